/* SPDX-License-Identifier: MIT */
/* What cover.c, cover_recall.c and cover_probe.c share. */
#ifndef DLOCK_COVER_PRIVATE_H
#define DLOCK_COVER_PRIVATE_H

#include "cover.h"

#ifdef COVER_MUTABLE
#define RULE(r) (cover_without != (r))
#else
#define RULE(r) true
#endif

static inline bool cover_has_go(const struct cover_request *r)
{
	return r->state == REQUEST_GO || r->state == REQUEST_READY;
}

/* Makes room for one more element of an array (a pointer to its pointer). 0 or -ENOMEM. */
int cover_grow(void *array, size_t count, size_t *cap, size_t size);
/* Whether a program with a GO (given or about to be) would conflict there with `mode`. */
bool cover_go_conflicts(const struct cover *c, struct extent at, enum lock_mode mode);
/* Decides what can be decided and asks the kernel what has to be asked. */
void cover_step(struct cover *c);
/* The kernel has been asked about a request: most is the strongest lock here within what it wants. Returns false if it was removed. */
bool cover_settle_probed(struct cover *c, struct cover_request *r, enum lock_mode most);

/* --- cover_recall.c --- */

/* What is known of a point. */
struct cover_point {
	const struct lock_span *span;	/* what is covered there; NULL: nothing */
	bool known;			/* and under which fence */
	uint64_t void_fence;		/* the highest fence that is void there, if it is not known */
};

/* *end: up to where it is the same, if nearer. */
struct cover_point cover_point_at(const struct cover *c, uint64_t point, uint64_t *end);
/* Whether a recall stands against something that is covered now. */
bool cover_recall_active(const struct cover *c, const struct cover_recall *recall);
/* Whether a pending recall stands against a request here. */
bool cover_recall_against(const struct cover *c, struct extent at, enum lock_mode mode);
void cover_add_recall(struct cover *c, const struct lock_span *wanted);
/* Cuts recalls to what they stand against, and drops those that are over. */
void cover_prune_recalls(struct cover *c);

/* --- cover_probe.c --- */

/* Answers the tries of other hosts that need no question; ends the helpers that wait for nothing any more or stand in the way. Returns whether the next step has to wait for that. */
bool cover_end_waits(struct cover *c);
/* Starts a probe, if anything has to be asked. */
void cover_ask_kernel(struct cover *c);
/*
 * What is void of a part that the store has for us, or has told us to be wanted, is given back again. (The give-back was lost;
 * or it is void only because all up to void_fence is.) up_to: only up to this fence.
 */
void cover_void_again(struct cover *c, const struct lock_span *wanted, uint64_t up_to);

#endif
