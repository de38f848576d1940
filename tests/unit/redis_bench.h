/* SPDX-License-Identifier: MIT */
/* For tests of the Redis store: a server of the test's own, and hosts that record what their stores tell them. */
#ifndef TEST_REDIS_BENCH_H
#define TEST_REDIS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../config/config.h"
#include "../../daemon-lite/loop.h"
#include "../../daemon-lite/store/store.h"

#define MS 1000000ull

/* --- the server --- */
struct server {
	char dir[64];
	int port;
	pid_t pid;
};
void server_start(struct server *server, const char *options);	/* ends the test run if it does not come up */
void server_stop(struct server *server);	/* SIGKILL: nothing is saved */
void server_signal(struct server *server, int sig);
/* One inline command on a connection of its own; the answer's first bytes. */
const char *server_do(const struct server *server, const char *format, ...) __attribute__((format(printf, 2, 3)));
int free_port(void);
void remove_tree(const char *dir);

/* --- a host --- */
enum event_type { EV_STATE, EV_GRANTED, EV_QUEUED, EV_BUSY, EV_FAILED, EV_RECALL, EV_TRY, EV_COVER, EV_RESUMED, EV_REASSERT, EV_REASSERTED, EV_LOST, EV_STATUS,
	EV_ASKED, EV_REACHED, EV_TOLD };

struct event {
	enum event_type type;
	enum store_state state;
	char key[64];		/* reached, told: the host, "end" at the end; asked: the host, with the key in text */
	uint64_t req, fence;	/* asked, reached, told: the nonce; told: the part, and waiting: last; reached: -err */
	enum lock_mode mode, waiting;
	char text[512];		/* state, failed, lost; try: the host; status: the record, NULs as '|'; told: the text */
	uint64_t at_ns;
};

struct host {
	struct loop *loop;
	struct config *config;
	char dir[64];
	struct store *store;
	enum store_state state;
	bool state_known;
	char state_text[512];
	bool rejoin_at_once;
	uint64_t inherited_good_ns;
	struct event *events;
	size_t count, size, mark;
	/* what it holds, for re-assertions */
	struct { char key[64]; enum lock_mode mode; uint64_t fence; } covers[16];
	size_t cover_count;
	struct { char key[64]; uint64_t req; enum lock_mode mode; } waits[16];
	size_t wait_count;
};

void host_make(struct host *host, struct loop *loop, const struct server *server, uint32_t ttl_ms);	/* config and state directory */
void host_start(struct host *host);
void host_stop(struct host *host, bool leave);	/* the store only; host_start makes it again */
void host_free(struct host *host);
void host_mark(struct host *host);		/* later looks begin here */
/* The first event since the mark of this type (key NULL, req 0: any). NULL if there is none. */
const struct event *host_find(const struct host *host, enum event_type type, const char *key, uint64_t req);
size_t host_count(const struct host *host, enum event_type type);

/* Runs the loop until there is such an event, or fails the test after `seconds`. */
const struct event *await_event(struct host *host, enum event_type type, const char *key, uint64_t req, double seconds);
void await_state(struct host *host, enum store_state state, double seconds);
void run_for(struct loop *loop, double seconds);	/* when nothing must happen */
bool run_until(struct loop *loop, bool (*done)(void *arg), void *arg, double seconds);

#endif
