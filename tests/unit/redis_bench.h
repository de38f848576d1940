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
	uint64_t req;		/* asked, reached, told: the nonce */
	struct lock_span *spans;	/* granted, cover, resumed, reasserted: the cover; recall, try: what is wanted */
	size_t span_count;
	struct lock_span *waits;	/* granted, cover: who waits */
	size_t wait_count;
	struct extent at;	/* of the first span */
	enum lock_mode mode;	/* of the first span, NONE if there is none */
	uint64_t fence;		/* of the first span; told: the part; reached: -err */
	enum lock_mode waiting;	/* the strongest of waits; told: last */
	char text[512];		/* state, failed, lost; try: the host; status: the record, NULs as '|'; told: the text; asked: the key */
	char question[64];
	uint64_t at_ns;
};

struct host_cover {
	char key[64];
	struct lock_span *spans;	/* by start, disjoint */
	size_t count;
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
	struct host_cover covers[16];
	size_t cover_count;
	struct { char key[64]; uint64_t req; struct extent at; enum lock_mode mode; } waits[16];
	size_t wait_count;
};

void host_make(struct host *host, struct loop *loop, const struct server *server, uint32_t ttl_ms);	/* config and state directory */
void host_start(struct host *host);
void host_stop(struct host *host, bool leave);	/* the store only; host_start makes it again */
void host_free(struct host *host);
/* store_give_back: what the host has of these parts is what the answer says. */
void host_give_back(struct host *host, const char *key, const struct lock_span *parts, size_t count);
const struct host_cover *host_cover(const struct host *host, const char *key);	/* NULL if there is none */
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
