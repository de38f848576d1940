/* SPDX-License-Identifier: MIT */
/* A call that takes a lock, from the program's call to its return. */
#ifndef DLOCK_SHIM_LOCK_H
#define DLOCK_SHIM_LOCK_H

#include "call.h"

#define LOCK_KERNEL 1	/* the agent has nothing to do with it: make the program's own call */

/*
 * Takes the lock. ops, fd, family, mode, at (unless ops->prepare sets it), nonblock, cancellable, frame and what the
 * ops need are set, the rest is zero. Returns 0, an errno's negative that the program may see, or LOCK_KERNEL (nothing was done). May change errno.
 */
int lock_call(struct call *call);

#endif
