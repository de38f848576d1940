/* SPDX-License-Identifier: MIT */
/* What the kernel shows of those who wait: who they are, what they hold, who waits besides. Reads /proc only; for a helper thread. */
#ifndef DLOCK_DEADLOCK_PROC_H
#define DLOCK_DEADLOCK_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../shim/extent.h"

#define PROC_NOBODY SIZE_MAX

struct proc_wait {
	/* Given, for the calls that the agent knows */
	uint64_t id;
	pid_t pid;
	uint32_t tid;		/* the calling thread in its own pid namespace; 0 = unknown */
	bool posix;
	bool asked;		/* waits in the store; else it has a GO and is looked for in the kernel's queue */
	enum lock_mode mode;
	struct extent at;
	ino_t *inodes;		/* with a GO: the file is one of these (none: any); owned by the caller */
	size_t inode_count;

	/* Found. id 0: somebody else who waits in the kernel */
	size_t owner;		/* index into owners; PROC_NOBODY: does not wait, or is not to be known */
	dev_t dev;		/* in the kernel: the file, by its superblock's device */
	ino_t ino;
	uint64_t stamp;		/* id 0: another value once the thread has run. Never the same for a later wait */
};

struct proc_owner {		/* a descriptor table: that is who owns a POSIX lock */
	pid_t pid, tid;
	bool comparable;
	bool holds_any;		/* any lock at all, of any kind */
};

struct proc_hold {		/* a POSIX lock */
	size_t owner;
	dev_t dev, stat_dev;	/* the superblock's, and as stat() says it */
	ino_t ino;
	enum lock_mode mode;
	struct extent at;
};

struct proc_look {
	struct proc_wait *waits;
	size_t wait_count, wait_cap, wait_max;
	struct proc_owner *owners;
	size_t owner_count, owner_cap;
	struct proc_hold *holds;
	size_t hold_count, hold_cap, hold_max;
	bool in_kernel;		/* given: look for those who wait in the kernel */
	bool cut;		/* more than wait_max or hold_max */
	int err;		/* -ENOMEM */
};

/*
 * Fills in what is to be found. A wait that is asked was there before and after (the caller sees to that), so what its owner holds is
 * what it held all the time. In the queue of the kernel a wait was seen before its owner's locks.
 */
void deadlock_proc_look(struct proc_look *look);
/* What was found; the waits are the caller's. */
void deadlock_proc_clear(struct proc_look *look);

#endif
