/* SPDX-License-Identifier: MIT */
/*
 * See before.h. The kernel names nobody's own locks when asked by F_GETLK, but those of
 * the other family it does: an owner of the other family is asked for, on the caller's
 * own descriptor, and sees the caller's locks among everybody's. The descriptor's own
 * lines in /proc are exact, but show only what was locked through this description.
 *
 * What cannot be restored:
 *  - an exclusive lock that was lowered to shared, if somebody has taken a shared lock there meanwhile;
 *  - what another thread of the owner changed between note and restore;
 *  - POSIX locks taken through another description of the file that are hidden behind
 *    other processes' shared locks, or were taken by another process that shares the table of descriptors.
 * With more parts than there is room for, nothing is unlocked: bytes that are locked
 * beyond the program's knowledge do no harm to its data, lost ones would.
 */
#include "before.h"

#include "held.h"
#include "range.h"
#include "sys.h"

#define TODO_MAX 8
#define QUESTIONS_MAX 64

struct noting {
	struct before *before;
	enum wire_family family;
	struct extent at;
};

static void add(struct before *before, struct extent at, enum lock_mode mode)
{
	for (unsigned i = 0; i < before->count; i++)
		if (before->part[i].mode == mode && extent_contains(before->part[i].at, at))
			return;
	if (before->count == BEFORE_MAX) {
		before->more = true;
		return;
	}
	before->part[before->count].at = at;
	before->part[before->count++].mode = mode;
}

static void add_line(void *arg, enum wire_family family, enum lock_mode mode, struct extent at)
{
	struct noting *noting = arg;

	if (family == noting->family && extent_overlaps(at, noting->at))
		add(noting->before, extent_common(at, noting->at), mode);
}

/*
 * Whether a lock that the kernel says to be this process's belongs to another owner in it: a thread with a table of descriptors
 * of its own. Such a one stands against ours; where nothing of this process does, the lock is ours.
 */
static bool is_other_threads(int fd, struct extent at)
{
	struct range_lock lock;

	return range_get(fd, FAMILY_POSIX, at, MODE_EX, &lock) < 0 ||
	       (lock.mode != MODE_NONE && lock.pid == (int32_t)sys_call(SYS_getpid));
}

/* Adds what the kernel says to be this process's, through whichever description. Returns whether anybody has a lock there. */
static bool note_by_asking(struct before *before, int fd, enum wire_family family, struct extent at)
{
	enum wire_family other = family == FAMILY_OFD ? FAMILY_POSIX : FAMILY_OFD;
	struct extent todo[TODO_MAX] = { at };
	unsigned count = 1;
	bool any = false;

	for (unsigned i = 0; count && i < QUESTIONS_MAX; i++) {
		struct extent here = todo[--count], common;
		struct range_lock lock;

		if (range_get(fd, other, here, MODE_EX, &lock) < 0)
			return true;
		if (lock.mode == MODE_NONE)
			continue;
		any = true;
		if (family == FAMILY_OFD)
			break;	/* /proc shows all that a description has */
		common = extent_common(here, lock.at);
		if (lock.pid == (int32_t)sys_call(SYS_getpid) && !is_other_threads(fd, common))
			add(before, common, lock.mode);
		if (here.start < common.start && count < TODO_MAX)
			todo[count++] = (struct extent){ here.start, common.start };
		if (common.end < here.end && count < TODO_MAX)
			todo[count++] = (struct extent){ common.end, here.end };
	}
	return any;
}

void before_note(struct before *before, int fd, enum wire_family family, struct extent at)
{
	struct noting noting = { before, family, at };

	before->count = 0;
	before->more = false;
	if (note_by_asking(before, fd, family, at))
		(void)held_each(fd, add_line, &noting);
}

/* The mode of the part that begins at `from`, and where that part ends. */
static enum lock_mode part_at(const struct before *before, uint64_t from, uint64_t *end)
{
	enum lock_mode mode = MODE_NONE;

	for (unsigned i = 0; i < before->count; i++) {
		struct extent at = before->part[i].at;

		if (from < at.start) {
			if (at.start < *end)
				*end = at.start;
		} else if (from < at.end) {
			mode = mode_max(mode, before->part[i].mode);
			if (at.end < *end)
				*end = at.end;
		}
	}
	return mode;
}

void before_restore(const struct before *before, int fd, enum wire_family family, struct extent at, enum lock_mode mode)
{
	struct extent part = { at.start, at.start };

	for (; part.start < at.end; part.start = part.end) {
		enum lock_mode was;

		part.end = at.end;
		was = part_at(before, part.start, &part.end);
		if (was != mode && !(was == MODE_NONE && before->more))
			(void)range_set(fd, family, part, was, false);
	}
}
