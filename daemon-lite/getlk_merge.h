/* SPDX-License-Identifier: MIT */
/* What a getlk (getlk.h) has heard from the store and from other hosts, and what follows from it. Pure but for malloc. */
#ifndef DLOCK_GETLK_MERGE_H
#define DLOCK_GETLK_MERGE_H

#include <stdbool.h>
#include <stddef.h>

#include "store/store.h"

#define GETLK_QUESTION_MAX 64
#define GETLK_ANSWER_MAX 160

/* The question and the answer as texts. */
void getlk_question_put(char buf[GETLK_QUESTION_MAX], struct extent at, enum lock_mode mode);
bool getlk_question_read(const char *question, struct extent *ret_at, enum lock_mode *ret_mode);
void getlk_answer_put(char buf[GETLK_ANSWER_MAX], const struct lock_span *lock, int pid);	/* mode NONE: no lock */

struct getlk_host;

struct getlk_merge {
	struct extent at;	/* what is asked for */
	enum lock_mode mode;
	const char *self;	/* this host's id: it is left out */
	bool grace;		/* the store may not know all covers */
	bool asked_all;		/* no more hosts will be reached */
	bool over;		/* the time is up */
	bool failed;		/* out of memory */
	struct getlk_host *hosts;
	size_t count, size;
};

void getlk_merge_init(struct getlk_merge *merge, struct extent at, enum lock_mode mode, const char *self);
void getlk_merge_clear(struct getlk_merge *merge);

/* A record of the store's status of the key, fields ended by NULs. */
void getlk_merge_row(struct getlk_merge *merge, const char *record, size_t len);
/* Whether hosts must be asked at all. */
bool getlk_merge_must_ask(const struct getlk_merge *merge);
/* That host has the question; awaited: it is expected to answer in time. */
void getlk_merge_reached(struct getlk_merge *merge, const char *id, bool awaited);
void getlk_merge_told(struct getlk_merge *merge, const char *id, uint64_t part, enum store_last last, const char *text, size_t len);
/* Whether nothing that may still come can matter. */
bool getlk_merge_complete(const struct getlk_merge *merge);
/* *ret_lock, *ret_l_pid as `done` in getlk.h has them. */
void getlk_merge_result(const struct getlk_merge *merge, struct lock_span *ret_lock, int *ret_l_pid);

#endif
