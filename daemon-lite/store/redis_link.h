/* SPDX-License-Identifier: MIT */
/*
 * A blocking connection to Redis with deadlines: how every connection begins
 * (also those that the loop takes over once they are open), and how the renewal
 * thread and `dlock init` speak. Never used on the loop's thread.
 */
#ifndef DLOCK_REDIS_LINK_H
#define DLOCK_REDIS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "redis_value.h"

struct config;

#define REDIS_TEXT_MAX 512	/* a sentence for people */
#define REDIS_ADDRESSES_MAX 8

/* A sentence into buf; cut off where it does not fit. */
void redis_say(char *buf, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Where the server is: one entry of `redis.servers`. */
struct redis_target {
	bool is_unix;
	char host[256];
	char port[8];
	char path[108];		/* of a unix socket */
	unsigned db;
	char label[272];	/* as people read it: HOST:PORT or the path */
};

/* "redis://HOST[:PORT][/DB]" or "unix:///PATH"; 0 or -EINVAL and a sentence. Pure. */
int redis_target_parse(const char *server, struct redis_target *ret_target, char *ret_text, size_t text_size);

struct redis_addresses {	/* what the host's name meant when it was asked last */
	struct sockaddr_storage addr[REDIS_ADDRESSES_MAX];
	socklen_t len[REDIS_ADDRESSES_MAX];
	size_t count;
};

/* A script as the server knows it. */
#define REDIS_SHA_SIZE 41
#define REDIS_SCRIPTS_MAX 16

struct redis_link {
	int fd;			/* -1 = closed */
	int cancel_fd;		/* readable: give up with -ECANCELED; -1 = none */
	struct redis_reader *reader;
	struct redis_buf out;	/* commands not written yet */
	char error[REDIS_TEXT_MAX];	/* why the last call failed */
};

/* How to open one; owned by the store, constant once made. */
struct redis_door {
	struct redis_target target;
	struct config *config;		/* user and password file only */
	uint32_t connect_timeout_ms;
	uint32_t silence_ms;		/* unacknowledged data ends the connection after this */
};

enum redis_open_kind {
	OPEN_COMMANDS,
	OPEN_RENEWALS,	/* the same without the checks: a lease is renewed even where nothing new may be granted */
	OPEN_PUSHES,
};

enum redis_open_result {
	OPEN_OK,
	OPEN_DOWN,	/* nobody there, or it went away: link->error says why */
	OPEN_REFUSED,	/* the server is there and cannot be used: link->error says why and what to do */
};

int redis_door_new(const struct config *config, struct redis_door **ret_door, char *ret_text, size_t text_size);
void redis_door_free(struct redis_door *door);	/* NULL is fine */

/*
 * Connects (addresses known from the last time first, then the name is asked
 * again), authenticates, and: for commands selects the database, checks version
 * and eviction policy and loads the scripts (ret_shas); for pushes subscribes to `channel`.
 * link must be zeroed but for cancel_fd. May block until deadline_ns (CLOCK_BOOTTIME), and longer for a slow name server.
 */
enum redis_open_result redis_link_open(struct redis_link *link, const struct redis_door *door, struct redis_addresses *addresses,
				       enum redis_open_kind kind, const char *channel, uint64_t deadline_ns,
				       char ret_shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE]);
void redis_link_close(struct redis_link *link);

/* Writes what is in link->out. 0 or -errno. */
int redis_link_flush(struct redis_link *link, uint64_t deadline_ns);
/* Waits for the next reply, which is the caller's. 0 or -errno. */
int redis_link_read(struct redis_link *link, uint64_t deadline_ns, struct redis_value **ret_value);

/* The eviction policy in an INFO reply: NULL if it is fine, else a sentence in buf. */
const char *redis_check_policy(const struct redis_value *info, const char *label, char *buf, size_t size);

#endif
