/* SPDX-License-Identifier: MIT */
/* The model's rules of one lock, for store_model.c and store_model_check.c alone. */
#ifndef DLOCK_STORE_MODEL_LOCK_H
#define DLOCK_STORE_MODEL_LOCK_H

#include "store_model.h"

/* What one operation does to one lock, until it is written: see sm_write_lock(). */
struct sm_work {
	uint8_t key;
	uint32_t fresh_count;
	uint8_t fresh[SM_HOSTS];	/* hosts whose cover needs a new fence, in order */
	bool is_fresh[SM_HOSTS];
	bool is_new[SM_HOSTS][SM_END];	/* the points that get it */
	uint32_t grant_count, busy_count;
	struct sm_request grants[SM_REQUESTS], busy[SM_REQUESTS];
};

/* Whether a cover of another host conflicts with the request. */
bool sm_cover_conflicts(const struct sm_store *s, const struct sm_request *q);
/* Whether one of the first n requests is blocking, of another host, and conflicts. */
bool sm_queue_conflicts(const struct sm_store *s, uint32_t n, const struct sm_request *q);
/* Whether the request has to wait: for covers, or for one of the first n requests. */
bool sm_must_wait(const struct sm_store *s, uint32_t n, const struct sm_request *q);
/* Whether no other host has a cover or a request in this lock. */
bool sm_is_alone(const struct sm_store *s, uint8_t key, uint8_t host);
/* The spans of a cover within [start, end). */
void sm_spans_of(const struct sm_cover *cover, uint8_t start, uint8_t end, struct sm_list *ret);
/* What waits that conflicts with these spans of host's cover. */
void sm_waiting_for(const struct sm_store *s, uint8_t key, uint8_t host, const struct sm_list *spans, struct sm_list *ret);
/* The parts of the list count as told to host. */
void sm_note_told(struct sm_store *s, uint8_t key, uint8_t host, const struct sm_list *waiting);
/* Takes out the request at index i. */
void sm_remove_request(struct sm_store *s, uint32_t i);
/* Puts a request at the end; false: no room (overflow is set). */
bool sm_add_request(struct sm_store *s, struct sm_request q);
/* Index of a waiting request, or -1. */
int sm_find_request(const struct sm_store *s, uint8_t key, uint8_t host, uint32_t req);
void sm_drop_cover(struct sm_store *s, uint8_t key, uint8_t host);
/* This point of host's cover has this mode from now on, under a new fence when the lock is written. */
void sm_set_point(struct sm_store *s, struct sm_work *w, uint8_t host, uint8_t point, uint8_t mode);
/* The point is covered no more. */
void sm_clear_point(struct sm_store *s, uint8_t key, uint8_t host, uint8_t point);
/* host's cover becomes at least the request's mode in [start, end), all of it under a new fence; tries of others that conflict with the request are refused. */
void sm_raise_cover(struct sm_store *s, struct sm_work *w, const struct sm_request *q, uint8_t start, uint8_t end);
/* Grants by ticket what can be granted; never in grace. */
void sm_pump(struct sm_store *s, struct sm_work *w);
/* Gives the new fences, then pushes what the work found. */
void sm_write_lock(struct sm_store *s, struct sm_work *w, struct sm_reply *r);
/* Tells the hosts whose covers keep request q waiting (again: even if they were told). */
void sm_recall(struct sm_store *s, const struct sm_request *q, bool again, struct sm_reply *r);
/* Tells host all that waits for its cover, but for what the work has granted it. */
void sm_tell(struct sm_store *s, const struct sm_work *w, uint8_t host, struct sm_reply *r);
/* Whether host has a cover or a request here. */
bool sm_uses(const struct sm_store *s, uint8_t key, uint8_t host);
void sm_drop_requests(struct sm_store *s, uint8_t key, uint8_t host);

#endif
