/* SPDX-License-Identifier: MIT */
/*
 * What record locks others hold, found by F_OFD_GETLK alone (klock.h).
 *
 * The kernel answers with one lock that stands against the question. If that is
 * a write lock, nobody else has anything there; if it is a read lock, others may
 * share it, but nobody writes: either way the mode of each of its points is known, and
 * what is not known is left and right of it. So a part costs two questions for
 * each lock in it and one more, however the readers overlap.
 *
 * Must not take a lock, and must not walk over locks outside the part asked for:
 * there may be thousands. Locks that come and go meanwhile are seen or not; each
 * question makes what is unknown smaller, so it ends.
 */
#include "klock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- spans ------------------------------------------------------------- */

void lock_spans_free(struct lock_spans *spans)
{
	free(spans->at);
	*spans = (struct lock_spans){ 0 };
}

/* Behind all others: of the same mode and without a gap it makes the last one longer. There is room. */
static void append(struct lock_span *at, size_t *count, uint64_t start, uint64_t end, enum lock_mode mode)
{
	if (start >= end || mode == MODE_NONE)
		return;
	if (*count > 0 && at[*count - 1].at.end == start && at[*count - 1].mode == mode)
		at[*count - 1].at.end = end;
	else
		at[(*count)++] = (struct lock_span){ .at = { start, end }, .mode = mode };
}

static int make_room(struct lock_spans *spans)
{
	size_t cap = spans->cap ? 2 * spans->cap : 8;
	struct lock_span *at;

	if (spans->count < spans->cap)
		return 0;
	at = realloc(spans->at, cap * sizeof(*at));
	if (!at)
		return -ENOMEM;
	spans->at = at;
	spans->cap = cap;
	return 0;
}

int lock_spans_add(struct lock_spans *spans, struct extent at, enum lock_mode mode)
{
	size_t count = 0, cap;
	struct lock_span *merged;
	uint64_t from = at.start;	/* what is before it in `at` is done */

	if (spans->count == 0 || spans->at[spans->count - 1].at.end <= at.start) {
		if (make_room(spans) < 0)
			return -ENOMEM;
		append(spans->at, &spans->count, at.start, at.end, mode);
		return 0;
	}
	cap = 2 * spans->count + 4;	/* each span: the gap before it, itself; two are cut */
	merged = malloc(cap * sizeof(*merged));
	if (!merged)
		return -ENOMEM;
	for (size_t i = 0; i < spans->count; i++) {
		struct extent old = spans->at[i].at;
		enum lock_mode old_mode = spans->at[i].mode;

		if (old.start >= at.end) {
			append(merged, &count, from, at.end, mode);
			from = at.end;
		}
		if (!extent_overlaps(old, at)) {
			append(merged, &count, old.start, old.end, old_mode);
			continue;
		}
		struct extent both = extent_common(old, at);

		append(merged, &count, old.start, both.start, old_mode);
		append(merged, &count, from, both.start, mode);
		append(merged, &count, both.start, both.end, mode_max(old_mode, mode));
		append(merged, &count, both.end, old.end, old_mode);
		from = both.end;
	}
	append(merged, &count, from, at.end, mode);
	free(spans->at);
	*spans = (struct lock_spans){ .at = merged, .count = count, .cap = cap };
	return 0;
}

/* --- asking ------------------------------------------------------------ */

struct unknown {		/* parts that have not been asked about; the last one comes next */
	struct extent *at;
	size_t count, cap;
};

static int unknown_push(struct unknown *unknown, uint64_t start, uint64_t end)
{
	if (start >= end)
		return 0;
	if (unknown->count == unknown->cap) {
		size_t cap = unknown->cap ? 2 * unknown->cap : 8;
		struct extent *at = realloc(unknown->at, cap * sizeof(*at));

		if (!at)
			return -ENOMEM;
		unknown->at = at;
		unknown->cap = cap;
	}
	unknown->at[unknown->count++] = (struct extent){ start, end };
	return 0;
}

/* All locks within `at`; *ret_reach: `at`, made larger by the locks that stick out. */
static int walk(int fd, struct extent at, struct lock_spans *spans, struct extent *ret_reach)
{
	struct unknown unknown = { 0 };
	struct extent reach = at;
	int pid, r = unknown_push(&unknown, at.start, at.end);

	while (r == 0 && unknown.count > 0) {
		struct extent part = unknown.at[--unknown.count], seen;
		struct lock_span lock;

		r = klock_getlk(fd, part, MODE_EX, &lock, &pid);
		if (r < 0 || lock.mode == MODE_NONE)
			continue;
		if (lock.at.start < reach.start)
			reach.start = lock.at.start;
		if (lock.at.end > reach.end)
			reach.end = lock.at.end;
		seen = extent_common(lock.at, part);
		r = lock_spans_add(spans, seen, lock.mode);
		/* From left to right, so that spans are only appended. */
		if (r == 0)
			r = unknown_push(&unknown, seen.end, part.end);
		if (r == 0)
			r = unknown_push(&unknown, part.start, seen.start);
	}
	free(unknown.at);
	*ret_reach = reach;
	return r;
}

/*
 * The free part of `room` that begins at its near edge: the right one if `leftwards`. A lock that is met says where the free
 * part ends at the latest. The kernel lists one owner's locks from left to right: leftwards it names the farthest one first.
 * So the whole of what is left is asked about in every other step only, and a growing piece at the near edge in between.
 */
static int free_room(int fd, struct extent room, bool leftwards, uint64_t *ret_edge)
{
	uint64_t step = 1;

	for (unsigned turn = 0; room.start < room.end; turn++) {
		uint64_t half = (room.end - room.start + 1) / 2, piece = step < half ? step : half;
		struct extent part = room;
		struct lock_span lock;
		int pid, r;

		if (turn >= 2 && turn % 2 == 0) {
			if (leftwards)
				part.start = part.end - piece;
			else
				part.end = part.start + piece;
			step = step > EXTENT_END / 16 ? EXTENT_END : step * 16;
		}
		r = klock_getlk(fd, part, MODE_EX, &lock, &pid);
		if (r < 0)
			return r;
		if (lock.mode == MODE_NONE) {
			if (leftwards)
				room.end = part.start;
			else
				room.start = part.end;
		} else if (leftwards) {
			room.start = lock.at.end < room.end ? lock.at.end : room.end;
		} else {
			room.end = lock.at.start > room.start ? lock.at.start : room.start;
		}
	}
	*ret_edge = room.start;
	return 0;
}

int klock_probe_records(int fd, struct extent at, struct extent bounds, struct lock_spans *spans, struct extent *ret_seen)
{
	struct extent reach, seen = at;
	int r;

	if (at.start >= at.end || bounds.end > EXTENT_END || !extent_contains(bounds, at))
		return -EINVAL;
	r = walk(fd, at, spans, &reach);
	if (r == 0 && reach.start == at.start)
		r = free_room(fd, (struct extent){ bounds.start, at.start }, true, &seen.start);
	if (r == 0 && reach.end == at.end)
		r = free_room(fd, (struct extent){ at.end, bounds.end }, false, &seen.end);
	if (r == 0)
		*ret_seen = seen;
	return r;
}
