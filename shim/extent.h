/* SPDX-License-Identifier: MIT */
/*
 * Byte ranges of a file, half open: [start, end). Pure. The end of the range that
 * never ends is EXTENT_END, one more than the largest offset that a lock can name;
 * a lock on a whole file (flock) is EXTENT_ALL. An extent is never empty.
 */
#ifndef DLOCK_EXTENT_H
#define DLOCK_EXTENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mode.h"

#define EXTENT_END (UINT64_C(1) << 63)
#define EXTENT_ALL ((struct extent){ 0, EXTENT_END })

struct extent {
	uint64_t start, end;
};

/* A part of a file and what is locked there, wanted there, or covered there. */
struct lock_span {
	struct extent at;
	enum lock_mode mode;
	uint64_t fence;		/* where it has a meaning: of the cover; else 0 */
};

static inline bool extent_overlaps(struct extent a, struct extent b)
{
	return a.start < b.end && b.start < a.end;
}

static inline bool extent_contains(struct extent outer, struct extent inner)
{
	return outer.start <= inner.start && inner.end <= outer.end;
}

static inline bool extent_equal(struct extent a, struct extent b)
{
	return a.start == b.start && a.end == b.end;
}

/* What two overlapping extents have in common. */
static inline struct extent extent_common(struct extent a, struct extent b)
{
	return (struct extent){ a.start > b.start ? a.start : b.start, a.end < b.end ? a.end : b.end };
}

/* From start and length as struct flock has them (start ≥ 0, len ≥ 0; 0 = to the end). False if it passes the largest offset. */
static inline bool extent_from_len(int64_t start, int64_t len, struct extent *ret)
{
	if (start < 0 || len < 0 || (len && start > INT64_MAX - (len - 1)))
		return false;
	*ret = (struct extent){ (uint64_t)start, len ? (uint64_t)start + (uint64_t)len : EXTENT_END };
	return true;
}

/* The length for struct flock: 0 = to the end. */
static inline int64_t extent_len(struct extent e)
{
	return e.end == EXTENT_END ? 0 : (int64_t)(e.end - e.start);
}

#endif
