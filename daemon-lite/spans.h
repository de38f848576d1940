/* SPDX-License-Identifier: MIT */
/* Lists of disjoint parts of a line of bytes, by start. Pure. */
#ifndef DLOCK_SPANS_H
#define DLOCK_SPANS_H

#include "../shim/extent.h"

struct lock_spans {		/* zeroed = empty */
	struct lock_span *at;	/* none of mode NONE; neighbours of one mode and fence are one */
	size_t count, cap;
};

void lock_spans_free(struct lock_spans *spans);
int lock_spans_copy(struct lock_spans *dst, const struct lock_spans *src);
/* The index of the first span that ends behind this point; count if none does. */
size_t lock_spans_find(const struct lock_spans *spans, uint64_t point);
/* Whatever was there, from now on it is this (mode NONE: nothing). 0 or -ENOMEM, then nothing is changed. */
int lock_spans_set(struct lock_spans *spans, struct extent at, enum lock_mode mode, uint64_t fence);
/* Adds a lock: where it overlaps what is there, the stronger mode counts. For lists without fences. 0 or -ENOMEM. */
int lock_spans_add(struct lock_spans *spans, struct extent at, enum lock_mode mode);
/* Puts a span behind the last one, whatever its place: for lists that are only walked. 0 or -ENOMEM. */
int lock_spans_append(struct lock_spans *spans, struct lock_span span);
/* The strongest mode of any span that overlaps. */
enum lock_mode lock_spans_mode(const struct lock_spans *spans, struct extent at);

#endif
