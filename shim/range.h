/* SPDX-License-Identifier: MIT */
/*
 * The kernel's record locks on extents. Raw system calls, any thread, no malloc.
 * family is FAMILY_POSIX or FAMILY_OFD. Each returns 0 or -errno.
 */
#ifndef DLOCK_SHIM_RANGE_H
#define DLOCK_SHIM_RANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "extent.h"
#include "wire.h"

struct range_lock {		/* a lock that stands against one that was asked about */
	enum lock_mode mode;	/* MODE_NONE: none does */
	struct extent at;
	int32_t pid;		/* as the kernel says; -1: owned by a description */
};

/* Locks, converts, or unlocks (MODE_NONE) a range; wait: until nobody stands against it. */
int range_set(int fd, enum wire_family family, struct extent at, enum lock_mode mode, bool wait);

/* Which lock stands against such a one, of an owner of that family. */
int range_get(int fd, enum wire_family family, struct extent at, enum lock_mode mode, struct range_lock *ret_lock);

#endif
