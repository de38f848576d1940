/* SPDX-License-Identifier: MIT */
/*
 * The door to a store: what the agent asks of it and what it hears from it.
 * Asynchronous: no call waits for the network, except where it says so; every
 * event is delivered on the loop's thread, never from inside a call.
 *
 * The store keeps the session (token, connection generations), the incarnation
 * and the lease (the renewal thread with a connection of its own, which also
 * observes other hosts' counters, expires silent ones and ends the grace).
 * The agent keeps covers and requests; it never hears of connections.
 */
#ifndef DLOCK_STORE_H
#define DLOCK_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../shim/extent.h"
#include "../../shim/mode.h"

struct config;
struct loop;
struct store;

enum store_state {
	STORE_CONNECTING,	/* no connection yet, or lost; what was asked is kept and sent again later. text says why */
	STORE_REFUSED,		/* connected, but the store cannot be used (T differs, eviction policy, password, version…); text says why; tried again */
	STORE_UP,		/* the session stands, grants happen */
	STORE_GRACE,		/* the session stands, nothing new is granted; text says why and how long */
};

/* How a request is made. */
#define STORE_TRY 1u	/* never waits for anybody but the hosts that cover */
#define STORE_PASS 2u	/* does not wait behind waiting requests of other hosts, only for covers (its owner holds what they may wait for) */

struct store_cover {		/* one lock of a complete state */
	const char *key;
	const struct lock_span *spans;	/* by start, disjoint */
	size_t span_count;
	const char *info;
};

struct store_request {
	const char *key;
	uint64_t req;
	struct extent at;
	enum lock_mode mode;
	unsigned flags;		/* STORE_* */
	const char *info;
};

enum store_last {	/* of a part of an answer */
	TELL_MORE,
	TELL_END,
	TELL_CUT,	/* the last one, but there would have been more to say */
};

/* Events. `arg` is what was given to store_new. Strings live only for the call. */
struct store_events {
	void (*state)(void *arg, enum store_state state, const char *text);
	/*
	 * Answers to acquire, also by push or from a renewal; may come twice, late, out of order. key as asked. spans: the host's whole cover
	 * within what was granted (at least what was asked for), all under one new fence. waiting: what blocking requests of other
	 * hosts want that conflicts with it, cut to the spans, each with the span's fence: as a recall that comes with the grant.
	 */
	void (*granted)(void *arg, const char *key, uint64_t req, const struct lock_span *spans, size_t span_count,
			const struct lock_span *waiting, size_t waiting_count);
	/* again: it was sent more than once; if it was granted before, this one waits for nobody. */
	void (*queued)(void *arg, const char *key, uint64_t req, bool again);
	void (*busy)(void *arg, const char *key, uint64_t req);
	/* The store could not do it (wrong type of key, out of memory…): the request failed. req 0: it was a giveback. */
	void (*failed)(void *arg, const char *key, uint64_t req, const char *text);
	/* Other hosts want these parts in these modes; each lies within one part of this host's cover, whose fence it names. */
	void (*recall)(void *arg, const char *key, const struct lock_span *waiting, size_t waiting_count);
	/* The same for a try, which wants to be answered; its fence is the highest of this host's parts that it conflicts with. */
	void (*try)(void *arg, const char *key, const struct lock_span *wanted, const char *host, uint64_t req);
	/* The cover the store has for this host now: the reply of a giveback (within the parts that were given back; none, if nothing is left there), and
	 * for each lock after a new connection (then all of it). Each span has its own fence. */
	void (*cover)(void *arg, const char *key, const struct lock_span *spans, size_t span_count,
		      const struct lock_span *waiting, size_t waiting_count);
	/* The session was resumed after a restart of the agent: the cover the store has for this host. Before the state event. */
	void (*resumed)(void *arg, const char *key, const struct lock_span *spans, size_t span_count);
	/* A new incarnation, grace is on: the agent must call store_reassert with its complete state, from inside this event. */
	void (*reassert)(void *arg);
	/* The re-assertion was taken: the lock's spans with their new fence, in the order given. */
	void (*reasserted)(void *arg, const char *key, const struct lock_span *spans, size_t span_count);
	/* The session is gone (expired, or its deadline passed): every cover is lost. The store waits with a new
	 * session until the agent calls store_rejoin (holders are ended). */
	void (*lost)(void *arg, const char *why);
	/* A text answer to store_status; text NULL at the end, err 0 or -errno. */
	void (*status)(void *arg, void *call, const char *record, size_t len, int err);
	/* Another host asks what the kernel here shows of this host's covers (key "": of all): answered by store_tell. question: see store_ask. */
	void (*asked)(void *arg, const char *host, uint64_t nonce, const char *key, const char *question);
	/* What store_ask has reached: one event for each host that listens, then host NULL, err 0 or -errno. */
	void (*reached)(void *arg, uint64_t nonce, const char *host, int err);
	/* A part of that host's answer, numbered from 0. The text is as the other host sent it: not to be trusted. */
	void (*told)(void *arg, const char *host, uint64_t nonce, uint64_t part, enum store_last last, const char *text, size_t len);
};

/* The lease as the renewal thread keeps it; read from any thread. All times CLOCK_BOOTTIME in ns. */
struct store_lease {
	uint64_t last_good_ns;	/* send time of the last good renewal or attach of this incarnation; 0 = no session */
	uint64_t failing_ns;	/* last_good + 2T/3: no GO from here on */
	uint64_t kill_ns;	/* last_good + 5T/6 */
	uint32_t ttl_ms;
};

/*
 * Makes the Redis store. state_dir holds `session` (host id and token, written
 * before the token is used, mode 0600). Connecting starts with store_start.
 * Returns 0 or -errno; *ret_text says what is wrong with the configuration.
 */
int store_redis_new(struct loop *loop, const struct config *config, const char *state_dir,
		    const struct store_events *events, void *arg, struct store **ret_store, char *ret_text, size_t text_size);
void store_start(struct store *store);
/* Before store_start: when the lease of the agent before this one was last good, as the guard's page shows it. If the store has
 * forgotten meanwhile, what that agent held is re-asserted only before its `failing` deadline, else it is lost (0 = unknown: lost). A store that does
 * not even know this host has lost it in any case: the holders end before a new session begins. */
void store_inherit_lease(struct store *store, uint64_t last_good_ns);
/* Ends threads and connections; with leave=true removes the session first (bounded by 1 s; may block): only without covers. */
void store_free(struct store *store, bool leave);

const char *store_host_id(const struct store *store);
void store_lease(const struct store *store, struct store_lease *ret_lease);
/* Called on the renewal thread right after each good renewal (for the guard's shared page); set before start. */
void store_on_renewed(struct store *store, void (*fn)(void *arg, const struct store_lease *lease), void *arg);

void store_acquire(struct store *store, const char *key, uint64_t req, struct extent at, enum lock_mode mode, unsigned flags,
		   const char *info);
void store_withdraw(struct store *store, const char *key, uint64_t req);
/* Each part is reduced to its mode (NONE or SH), as far as its cover is not newer than the part's fence. */
void store_give_back(struct store *store, const char *key, const struct lock_span *parts, size_t part_count);
void store_busy(struct store *store, const char *key, const char *host, uint64_t req);
void store_reassert(struct store *store, const struct store_cover *covers, size_t cover_count,
		    const struct store_request *requests, size_t request_count, uint64_t max_fence);
void store_rejoin(struct store *store);
/* Everything the store has (key NULL), or one lock, as records (one event each; fields joined by NUL, see docs/PROTOCOL.md, status). `call` comes back in the event. */
void store_status(struct store *store, void *call, const char *key);

/*
 * What the kernels of the other hosts show: asks all of them (key NULL: about every lock). Nothing is stored; what is lost
 * on the way is not sent again. Answers come as `told` with this nonce. store_tell: text without NULs, at most STORE_TELL_MAX bytes.
 */
#define STORE_TELL_MAX 32768
/* question: "" asks for a look (daemon-lite/look.h); any other text is passed on as it is (no NUL): the agents know what it means. */
void store_ask(struct store *store, uint64_t nonce, const char *key, const char *question);
void store_tell(struct store *store, const char *host, uint64_t nonce, uint64_t part, enum store_last last, const char *text);

struct store_host_view { uint64_t unchanged_ms, remaining_ms; };
/* What this host has observed of another one: how long its counter has stood still, what remains of T then (0, 0 if unknown). */
void store_host_view(const struct store *store, const char *host, struct store_host_view *ret_view);

/* One-shot for `dlock init`, blocking: declares the store new. 0, -EEXIST, or -errno with text. */
int store_redis_init(const struct config *config, char *ret_text, size_t text_size);

#endif
