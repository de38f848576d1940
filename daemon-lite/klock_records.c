/* SPDX-License-Identifier: MIT */
/*
 * What record locks others hold, found by F_OFD_GETLK alone (klock.h).
 *
 * The kernel answers with one lock that stands against the question. If that is
 * a write lock, nobody else has anything there; if it is a read lock, others may
 * share it, but nobody writes: either way the mode of each of its points is known, and
 * what is not known is left and right of it. So a part costs two questions for
 * each lock in it and one more, however the readers overlap. But the kernel goes through all locks of the
 * file for each question: where there are many, who cannot wait asks about the part as a whole.
 *
 * Must not take a lock, and must not walk over locks outside the part asked for:
 * there may be thousands. Locks that come and go meanwhile are seen or not; each
 * question makes what is unknown smaller, so it ends.
 */
#include "klock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loop.h"

#define BRIEF_SURE 256		/* questions that are asked however long they take */
#define BRIEF_NS 20000000u	/* more of them until this has passed */

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

/* Whether there was too much to ask; a question is counted. */
static bool too_many(struct klock_brief *brief)
{
	if (!brief)
		return false;
	if (brief->sure) {
		brief->sure--;
		return false;
	}
	return klock_brief_is_over(brief);
}

/* All locks within `at`; *ret_reach: `at`, made larger by the locks that stick out. -E2BIG: there are too many. */
static int walk(int fd, struct extent at, struct lock_spans *spans, struct extent *ret_reach, struct klock_brief *brief)
{
	struct unknown unknown = { 0 };
	struct extent reach = at;
	int pid, r = unknown_push(&unknown, at.start, at.end);

	while (r == 0 && unknown.count > 0) {
		struct extent part = unknown.at[--unknown.count], seen;
		struct lock_span lock;

		r = too_many(brief) ? -E2BIG : klock_getlk(fd, part, MODE_EX, &lock, &pid);
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

static int probe(int fd, struct extent at, struct extent bounds, struct lock_spans *spans, struct extent *ret_seen, struct klock_brief *brief)
{
	struct extent reach, seen = at;
	int r;

	if (at.start >= at.end || bounds.end > EXTENT_END || !extent_contains(bounds, at))
		return -EINVAL;
	r = walk(fd, at, spans, &reach, brief);
	if (r == 0 && reach.start == at.start)
		r = free_room(fd, (struct extent){ bounds.start, at.start }, true, &seen.start);
	if (r == 0 && reach.end == at.end)
		r = free_room(fd, (struct extent){ at.end, bounds.end }, false, &seen.end);
	if (r == 0)
		*ret_seen = seen;
	return r;
}

int klock_probe_records(int fd, struct extent at, struct extent bounds, struct lock_spans *spans, struct extent *ret_seen)
{
	return probe(fd, at, bounds, spans, ret_seen, NULL);
}

void klock_brief_begin(struct klock_brief *brief)
{
	*brief = (struct klock_brief){ loop_now_ns() + BRIEF_NS, BRIEF_SURE };
}

bool klock_brief_is_over(const struct klock_brief *brief)
{
	return !brief->sure && loop_now_ns() > brief->until_ns;
}

int klock_strongest(int fd, struct extent at, enum lock_mode *ret_mode)
{
	struct lock_span lock;
	int pid, r = klock_getlk(fd, at, MODE_SH, &lock, &pid);

	if (r == 0 && lock.mode == MODE_NONE)
		r = klock_getlk(fd, at, MODE_EX, &lock, &pid);
	if (r == 0)
		*ret_mode = lock.mode;
	return r;
}

int klock_probe_briefly(int fd, struct extent at, struct extent bounds, struct klock_brief *brief, struct lock_spans *spans,
			struct extent *ret_seen, enum lock_mode *ret_all)
{
	struct lock_spans found = { 0 };
	int r = probe(fd, at, bounds, &found, ret_seen, brief);

	*ret_all = MODE_NONE;
	if (r == -E2BIG) {
		*ret_seen = at;
		r = klock_strongest(fd, at, ret_all);
	} else {
		for (size_t i = 0; r == 0 && i < found.count; i++)
			r = lock_spans_add(spans, found.at[i].at, found.at[i].mode);
	}
	lock_spans_free(&found);
	return r;
}

/* Of a file with many locks only the first ones are looked at; who is not among them is said to hold: the caller then passes others, which is harmless. */
#define OWNER_STEPS 64

enum lock_mode klock_owner_mode(int fd, struct extent at, pid_t pid)
{
	struct unknown unknown = { 0 };
	enum lock_mode most = MODE_NONE;
	int owner, r = unknown_push(&unknown, at.start, at.end), steps = 0;

	while (r == 0 && unknown.count > 0 && most != MODE_EX) {
		struct extent part = unknown.at[--unknown.count];
		struct lock_span lock;

		r = ++steps > OWNER_STEPS ? -EAGAIN : klock_getlk(fd, part, MODE_EX, &lock, &owner);
		if (r < 0 || lock.mode == MODE_NONE)
			continue;
		if (owner == pid)
			most = mode_max(most, lock.mode);
		r = unknown_push(&unknown, lock.at.end, part.end);
		if (r == 0)
			r = unknown_push(&unknown, part.start, lock.at.start);
	}
	free(unknown.at);
	return r < 0 ? MODE_EX : most;
}

bool klock_others_hold(int fd, struct extent at, enum lock_mode mode, pid_t pid)
{
	struct unknown unknown = { 0 };
	int owner, steps = 0;
	bool others = false;

	if (unknown_push(&unknown, at.start, at.end))
		return false;
	while (unknown.count > 0 && !others && ++steps <= OWNER_STEPS) {
		struct extent part = unknown.at[--unknown.count];
		struct lock_span lock;

		if (klock_getlk(fd, part, mode, &lock, &owner))
			break;
		others = lock.mode != MODE_NONE && owner != pid;
		if (lock.mode != MODE_NONE && (unknown_push(&unknown, lock.at.end, part.end) || unknown_push(&unknown, part.start, lock.at.start)))
			break;
	}
	free(unknown.at);
	return others;
}
