/* SPDX-License-Identifier: MIT */
/*
 * Asking the kernel, and waiting in it, on a description of the agent's own.
 */
#ifndef DLOCK_KLOCK_H
#define DLOCK_KLOCK_H

#include <stdbool.h>

#include "../shim/mode.h"

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
 * Starts a thread that waits in flock(fd, mode) (fd stays the caller's, must live
 * until the wait is over). When it has the lock, or failed, `done` runs on the
 * loop's thread with err 0 / -errno; the lock is then HELD on fd: the caller
 * unlocks with klock_unlock. The struct is gone after `done`.
 */
int klock_wait_start(struct loop *loop, int fd, enum lock_mode mode, void (*done)(void *arg, int err), void *arg,
		     struct klock_wait **ret_wait);
/* Interrupts the wait: `done` still runs exactly once, with -ECANCELED (nothing held) or 0 (it was faster). */
void klock_wait_cancel(struct klock_wait *wait);
void klock_unlock(int fd);

/* Runs fn(arg) on a helper thread, then done(arg) on the loop's thread. For calls that can block. Threads are kept for reuse, as many as run at once, at most 64; more wait in line. */
int helper_run(struct loop *loop, void (*fn)(void *arg), void (*done)(void *arg), void *arg);

/* Closes a descriptor (-1: none), on a helper thread unless its filesystem is local: close() can block too. */
void helper_close(struct loop *loop, int fd, bool local);

#endif
