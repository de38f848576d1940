/* SPDX-License-Identifier: MIT */
/*
 * What the loop's thread and the store's other threads have in common: how to reach
 * the server, a mailbox towards the loop, and a descriptor that ends every wait.
 * Counted, because a thread stuck in a name lookup may outlive the store.
 */
#ifndef DLOCK_REDIS_SHARED_H
#define DLOCK_REDIS_SHARED_H

#include <pthread.h>
#include <stdatomic.h>

#include "redis_link.h"

struct store;

struct mail {			/* first member of what is sent */
	struct mail *next;
	void (*deliver)(struct store *store, struct mail *mail);	/* on the loop's thread; mail is its own now */
	void (*discard)(struct mail *mail);	/* any thread */
};

struct redis_shared {
	atomic_uint refs;
	struct redis_door *door;
	char prefix[96];	/* P */
	uint32_t ttl_ms;
	int mail_fd;		/* readable: there is mail */
	int stop_fd;		/* readable: give up */
	_Atomic uint64_t last_good_ns;	/* of the lease; written under the renewal's mutex or before it knows the session */
	_Atomic uint64_t seen;	/* all pushes up to this number have been handled */
	pthread_mutex_t mutex;	/* locks the three below */
	bool closed;
	struct mail *first, **last;
};

int redis_shared_new(struct redis_shared **ret_shared);
struct redis_shared *redis_shared_ref(struct redis_shared *shared);
void redis_shared_unref(struct redis_shared *shared);	/* NULL is fine */
/* Nobody reads mail any more: what is there and what comes is discarded, and all waits end. */
void redis_shared_close(struct redis_shared *shared);
void redis_mail_put(struct redis_shared *shared, struct mail *mail);
struct mail *redis_mail_take(struct redis_shared *shared);	/* all of it, a list in order */
/* A thread that receives no signal. 0 or -errno. */
int redis_thread_start(void *(*fn)(void *arg), void *arg, pthread_t *ret_thread);

#endif
