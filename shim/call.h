/* SPDX-License-Identifier: MIT */
/* One call that asks for a lock, of whichever family: what it wants, and the real call. */
#ifndef DLOCK_SHIM_CALL_H
#define DLOCK_SHIM_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "before.h"
#include "extent.h"
#include "reach.h"
#include "wire.h"

struct call;
struct record_call;

/* What differs between the families. Each gets the call and returns 0 or -errno unless it says otherwise; NULL where marked. */
struct call_ops {
	int (*prepare)(struct call *call);	/* NULL. Completes mode and range once the path has a rule */
	bool (*refused)(const struct call *call);	/* NULL. Whether the kernel refuses such a call anyway */
	void (*note)(struct call *call);	/* NULL. Before the real call: writes down what undo needs */
	int (*try)(struct call *call);		/* the real call, without waiting */
	int (*take)(struct call *call);		/* the real call, waiting if the program's does */
	void (*undo)(struct call *call);	/* gives back what the real call has added */
	int (*held)(const struct call *call, int *ret_mode);	/* answers CHECK: WIRE_HELD's mode; 1 = the lock is held already, the call is over */
	int (*seen)(const struct call *call, int mode);		/* NULL. The agent has seen this; as held */
	int (*error)(int err);			/* -err if the call's manual page lists it, else -ENOLCK */
};

struct call {
	const struct call_ops *ops;
	enum wire_family family;
	int fd;
	enum lock_mode mode;
	struct extent at;
	bool nonblock;
	bool cancellable;	/* a cancellation point */
	bool taking;		/* the real call may have taken a lock that nobody has confirmed yet */
	uintptr_t frame;	/* for left.h */
	uint64_t stamp;		/* of the rules that named the path */
	bool again;		/* a lock that was taken had to be undone */
	bool asked;		/* the agent has been asked before */
	uint64_t dev, ino;	/* what the descriptor was when the call began */
	struct reach reach;
	/* flock */
	int operation;
	/* record locks */
	const struct record_call *record;
	struct before before;
};

#endif
