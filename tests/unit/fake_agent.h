/* SPDX-License-Identifier: MIT */
/*
 * An agent made of a thread and a script, for tests of the shim, and the world
 * that the shim finds: a configuration, a runtime directory with compiled rules
 * for DIR/locks/ and below, a log file. Everything lies in one directory below /tmp.
 */
#ifndef TEST_FAKE_AGENT_H
#define TEST_FAKE_AGENT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "../../shim/wire.h"

struct fake_agent {
	int path_fd, abstract_fd;
	pthread_t thread;
	void (*script)(struct fake_agent *agent);
	char why[200];		/* the first thing that was not as expected; "" = none */
	_Atomic int number;	/* for the script's own use */
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	int stage;		/* for fake_reach_stage, fake_await_stage */
};

extern char fake_dir[];		/* DIR */
extern char fake_runtime[];	/* DIR/run */
extern char fake_config[];	/* DIR/dlockshim.conf */
extern char fake_log[];		/* DIR/log */

/*
 * Called first in main(): makes the world, sets the shim's variables and executes
 * the program again, so that the shim's constructor finds them. In the second run
 * only fills in the names. fake_remove() at the end.
 */
void fake_world(int argc, char **argv);
void fake_remove(void);

/* Compiles rules for a pattern (NULL: DIR/locks/ **) as if from the configuration as it is now. */
void fake_write_rules(const char *pattern, bool attended);
void fake_write_text(const char *path, const char *text);
/* Path of DIR/name, in a buffer that lasts for some calls. */
const char *fake_path(const char *name);
bool fake_log_has(const char *text);
void fake_clear_log(void);

void fake_start(struct fake_agent *agent, void (*script)(struct fake_agent *agent));
void fake_start_with(struct fake_agent *agent, void (*script)(struct fake_agent *agent), int number);
/* Waits for the script's end; fails the test if something was not as expected. */
void fake_finish(struct fake_agent *agent);
/* The script's other steps (in the thread). -1: it did not happen within 10 s; agent->why is set. */
void fake_listen(struct fake_agent *agent);
void fake_unlisten(struct fake_agent *agent);
int fake_accept(struct fake_agent *agent);
/* Receives one message of that type; ret_fd (NULL: it is not received) the passed descriptor or -1. */
int fake_expect(struct fake_agent *agent, int socket, enum wire_type type, struct wire_msg *ret_msg, int *ret_fd);
void fake_expect_end(struct fake_agent *agent, int socket);
void fake_send(int socket, enum wire_type type, int err, const char *text);
void fake_go(int socket, long long valid_for_ms);
/* WIRE_LOCK: who stands against a lock elsewhere; mode MODE_NONE: nobody. pid: as l_pid is to be. */
void fake_lock(int socket, int mode, int64_t start, int64_t len, int pid);
/* A script: says yes to everything (GO, STANDING, nobody's LOCK) until stage 1; counts the calls in `number`. */
void fake_say_yes(struct fake_agent *agent);
/* A script: nobody may connect until stage 1. */
void fake_be_alone(struct fake_agent *agent);
void fake_reach_stage(struct fake_agent *agent, int stage);
bool fake_await_stage(struct fake_agent *agent, int stage);
void fake_blame(struct fake_agent *agent, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A file below DIR, made and open for reading and writing. */
int fake_open(const char *name);
/* Whether another description could lock the file that way now. */
bool fake_is_free_for(const char *name, int operation);
/* Whether nobody but this very description has a record lock against such a one; POSIX locks of this process count. */
bool fake_range_is_free(int fd, int64_t start, int64_t len, short type);

#endif
