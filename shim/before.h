/* SPDX-License-Identifier: MIT */
/*
 * What the caller of a record lock held in the range before, so that a lock which may
 * not be kept can be given back without what was there already.
 */
#ifndef DLOCK_SHIM_BEFORE_H
#define DLOCK_SHIM_BEFORE_H

#include <stdbool.h>

#include "extent.h"
#include "wire.h"

#define BEFORE_MAX 16

struct before {
	struct {
		struct extent at;
		enum lock_mode mode;
	} part[BEFORE_MAX];
	unsigned count;
	bool more;		/* there was no room for all: nothing may be unlocked */
};

/* Notes it: one question to the kernel if nobody holds anything in the range. */
void before_note(struct before *before, int fd, enum wire_family family, struct extent at);

/* Makes the range what it was, after it was locked in that mode, or was not. Never waits. */
void before_restore(const struct before *before, int fd, enum wire_family family, struct extent at, enum lock_mode mode);

#endif
