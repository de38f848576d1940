/* SPDX-License-Identifier: MIT */
/* The renewal thread's own: its state, and what redis_renew.c and redis_watch.c call of each other. */
#ifndef DLOCK_REDIS_WATCH_H
#define DLOCK_REDIS_WATCH_H

#include "redis_observe.h"
#include "redis_renew.h"

struct redis_renewal {
	struct redis_shared *shared;
	void (*on_renewed)(void *arg, const struct store_lease *lease);
	void *on_renewed_arg;
	void (*deliver)(struct store *store, struct mail *mail);
	pthread_t thread;
	int kick_fd;

	pthread_mutex_t mutex;		/* locks wanted and others */
	struct redis_session wanted;
	unsigned last_serial;		/* loop's thread */

	/* the thread's own */
	struct redis_session session;
	struct redis_link link;
	struct redis_addresses addresses;
	char shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE];
	int timer_fd;
	bool attached;
	uint64_t gen;
	uint64_t due_ns;		/* of the next renewal */
	uint64_t policy_due_ns;
	bool failing;			/* the last renewal failed, and that was said */
	struct observations others;
	char grace_inc[REDIS_INC_SIZE];	/* the grace that is watched; empty = none */
	uint64_t grace_since_ns;
};

/* redis_renew.c */
void redis_renewal_tell(struct redis_renewal *renewal, enum redis_news what, enum redis_answer answer,
			const struct redis_header *header, struct redis_value *reply, const char *text);
/* One script with up to three arguments. 0 and the reply (the caller's), or -errno with link.error. */
int redis_renewal_call(struct redis_renewal *renewal, enum lua_script_id script, const char *const *args, size_t count,
		       enum redis_answer *ret_answer, struct redis_header *ret_header, struct redis_value **ret_reply);

/* redis_watch.c: what a renewal's reply, received at now, shows of the grace and of the others (pairs from item first on). */
void redis_watch_grace(struct redis_renewal *renewal, const struct redis_header *header, uint64_t now);
void redis_watch_others(struct redis_renewal *renewal, const struct redis_value *reply, size_t first, uint64_t now);
/* Expires who is due, ends a grace that is; returns when the next thing is. */
uint64_t redis_watch(struct redis_renewal *renewal);

#endif
