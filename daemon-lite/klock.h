/* SPDX-License-Identifier: MIT */
/*
 * Asking the kernel, and waiting in it, on a description of the agent's own.
 */
#ifndef DLOCK_KLOCK_H
#define DLOCK_KLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "../shim/extent.h"
#include "../shim/mode.h"
#include "spans.h"

struct loop;
struct klock_wait;

/*
 * Whether anybody else's flock on the file of fd conflicts with `want`, without
 * leaving a lock behind: want EX returns MODE_NONE (free), MODE_SH or MODE_EX
 * (what is held; SH is probed before EX); want SH returns MODE_NONE (free or
 * held shared) or MODE_EX. Never waits on a local filesystem. -errno on failure.
 */
int klock_probe(int fd, enum lock_mode want);

/*
 * What record locks (POSIX, OFD) others hold on the file of fd within `at`, added to *spans, by F_OFD_GETLK: no lock is
 * taken and none of the agent's own on this description is seen. *ret_seen: what was looked at, all of whose locks are in
 * *spans now: `at`, and the free room on both sides of it up to the next lock or to `bounds`. fd may be open in any mode. 0 or -errno.
 */
int klock_probe_records(int fd, struct extent at, struct extent bounds, struct lock_spans *spans, struct extent *ret_seen);

/* How much may be asked by somebody who cannot wait. */
struct klock_brief {
	uint64_t until_ns;
	unsigned sure;		/* questions that are asked in any case */
};
void klock_brief_begin(struct klock_brief *brief);
bool klock_brief_is_over(const struct klock_brief *brief);

/* The strongest mode of any record lock that others hold within `at`, in two questions. 0 or -errno. */
int klock_strongest(int fd, struct extent at, enum lock_mode *ret_mode);

/*
 * As klock_probe_records(). Where that is too much to ask, *spans stays as it is and *ret_all is the strongest mode of
 * any lock within `at`, and *ret_seen is `at`; else *ret_all is MODE_NONE.
 */
int klock_probe_briefly(int fd, struct extent at, struct extent bounds, struct klock_brief *brief, struct lock_spans *spans,
			struct extent *ret_seen, enum lock_mode *ret_all);

/* The first record lock within `at` that stands against `mode`, as F_OFD_GETLK says: *ret_lock (mode NONE: none), *ret_pid (l_pid; -1 for OFD). 0 or -errno. */
int klock_getlk(int fd, struct extent at, enum lock_mode mode, struct lock_span *ret_lock, int *ret_pid);

/*
 * The strongest POSIX lock that this process holds within `at`. A reader that another reader hides may be missed; where there are too many
 * locks to look at, or the filesystem does not answer, MODE_EX.
 */
enum lock_mode klock_owner_mode(int fd, struct extent at, pid_t pid);

/*
 * Whether a lock of somebody else than `pid` (l_pid; 0: of anybody) stands against `mode` within `at`. One that shares a part with a lock
 * of `pid`, or that comes behind very many of them, may be missed.
 */
bool klock_others_hold(int fd, struct extent at, enum lock_mode mode, pid_t pid);

/*
 * Starts a thread that waits until nobody's lock stands against `mode` within `at`:
 * by taking it on fd (flock, or F_OFD_SETLKW if records) and dropping it at once. fd stays the caller's and must live
 * until the wait is over. Where that cannot be (F_WRLCK on a description that is not open for writing) or
 * must not be (another record wait is in the kernel on this description, see klock.c) the thread asks each 10 ms, in a crowd each 40 ms.
 * When it is free, or that failed, `done` runs on the loop's thread with err 0 / -errno; nothing is held. The struct is gone after `done`.
 */
int klock_wait_start(struct loop *loop, int fd, bool records, struct extent at, enum lock_mode mode, void (*done)(void *arg, int err), void *arg,
		     struct klock_wait **ret_wait);
/* Interrupts the wait: `done` still runs exactly once, with -ECANCELED or 0 (it was faster). */
void klock_wait_cancel(struct klock_wait *wait);

/*
 * Leaves the kernel's queue for a moment and comes back at its end. For a POSIX lock's wait that has queued behind this one: the kernel
 * looks for deadlocks only among POSIX waits that are not behind an open file description's, and only when one begins; it begins anew by this.
 */
void klock_wait_step_aside(struct klock_wait *wait);

/* Runs fn(arg) on a helper thread, then done(arg) on the loop's thread. For calls that can block. Threads are kept for reuse, as many as run at once, at most 64; more wait in line. */
int helper_run(struct loop *loop, void (*fn)(void *arg), void (*done)(void *arg), void *arg);

/* Closes a descriptor (-1: none), on a helper thread unless its filesystem is local: close() can block too. */
void helper_close(struct loop *loop, int fd, bool local);

#endif
