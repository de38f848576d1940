/* SPDX-License-Identifier: MIT */
/*
 * Span lists as the store has them (docs/PROTOCOL.md): text, 59 bytes for each span,
 * "START END MODE FENCE," with 19, 19, 1 and 16 digits. Linear in the length, no I/O.
 */
#ifndef DLOCK_REDIS_SPANS_H
#define DLOCK_REDIS_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "../../shim/extent.h"
#include "redis_value.h"

#define REDIS_SPAN_BYTES 59u
#define REDIS_FENCE_END (UINT64_C(1) << 53)	/* fences stay below it */

enum redis_spans_kind {
	SPANS_COVER,	/* modes 1 and 2; by start, disjoint */
	SPANS_WAITING,	/* modes 1 and 2; by start, then fence; may overlap */
	SPANS_PARTS,	/* modes 0 and 1, what is left of a cover; by start, disjoint */
};

struct redis_spans {		/* zeroed = empty */
	struct lock_span *at;
	size_t count;
};

/* Whether the len bytes are a well-formed list of this kind. The empty one is. */
bool redis_spans_valid(const char *text, size_t len, enum redis_spans_kind kind);
/* Reads a list; *ret_spans is the caller's, untouched on failure. 0, -EPROTO (not of the form) or -ENOMEM. */
int redis_spans_parse(const char *text, size_t len, enum redis_spans_kind kind, struct redis_spans *ret_spans);
/* The same of item i of a reply. */
int redis_spans_item(const struct redis_value *array, size_t i, enum redis_spans_kind kind, struct redis_spans *ret_spans);
/* Whether a cover can be what a grant names: something, under one fence. */
bool redis_spans_granted(const struct redis_spans *spans);
void redis_spans_free(struct redis_spans *spans);	/* *spans is empty then */

/* One argument of a command: the list; one offset. The ends must be at most EXTENT_END, the fences below REDIS_FENCE_END. */
void redis_buf_spans(struct redis_buf *buf, const struct lock_span *spans, size_t count);
void redis_buf_offset(struct redis_buf *buf, uint64_t offset);

#endif
