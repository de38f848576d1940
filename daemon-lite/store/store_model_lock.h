/* SPDX-License-Identifier: MIT */
/* The model's rules of one lock, for store_model.c alone. */
#ifndef DLOCK_STORE_MODEL_LOCK_H
#define DLOCK_STORE_MODEL_LOCK_H

#include "store_model.h"

/* What one operation does to one lock, until it is written: see sm_write_lock(). */
struct sm_work {
	uint8_t key;
	uint32_t fresh_count;
	uint8_t fresh[SM_HOSTS];	/* hosts whose cover needs a new fence, in order */
	bool is_fresh[SM_HOSTS];
	uint32_t grant_count, busy_count;
	struct sm_request grants[SM_REQUESTS], busy[SM_REQUESTS];
};

/* Whether a cover of another host conflicts with mode. */
bool sm_cover_conflicts(const struct sm_store *s, uint8_t key, uint8_t host, uint8_t mode);
/* Whether one of the first n requests is blocking, of another host, and conflicts. */
bool sm_queue_conflicts(const struct sm_store *s, uint32_t n, uint8_t key, uint8_t host, uint8_t mode);
/* The strongest blocking waiting mode of other hosts that conflicts with host's cover. */
uint8_t sm_waiting_for(const struct sm_store *s, uint8_t key, uint8_t host);
/* Takes out the request at index i. */
void sm_remove_request(struct sm_store *s, uint32_t i);
/* Puts a request at the end; false: no room (overflow is set). */
bool sm_add_request(struct sm_store *s, struct sm_request q);
/* Index of a waiting request, or -1. */
int sm_find_request(const struct sm_store *s, uint8_t key, uint8_t host, uint32_t req);
void sm_drop_cover(struct sm_store *s, uint8_t key, uint8_t host);
/* host's cover gets a new fence when the lock is written. */
void sm_need_fence(struct sm_work *w, uint8_t host);
/* host's cover becomes at least mode; tries of others that conflict with mode are refused. */
void sm_raise_cover(struct sm_store *s, struct sm_work *w, uint8_t host, uint8_t mode, uint8_t info);
/* Grants by ticket what can be granted; never in grace. */
void sm_pump(struct sm_store *s, struct sm_work *w);
/* Gives the new fences, then pushes what the work found. */
void sm_write_lock(struct sm_store *s, struct sm_work *w, struct sm_reply *r);
/* Tells the hosts whose covers keep request q waiting (again: even if they were told). */
void sm_recall(struct sm_store *s, const struct sm_request *q, bool again, struct sm_reply *r);
/* Tells host all that waits for its cover. */
void sm_tell(struct sm_store *s, uint8_t key, uint8_t host, struct sm_reply *r);
/* Whether host has a cover or a request here. */
bool sm_uses(const struct sm_store *s, uint8_t key, uint8_t host);
void sm_drop_requests(struct sm_store *s, uint8_t key, uint8_t host);

#endif
