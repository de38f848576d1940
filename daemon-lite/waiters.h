/* SPDX-License-Identifier: MIT */
/* Who waits in the kernel's queue for a lock. */
#ifndef DLOCK_WAITERS_H
#define DLOCK_WAITERS_H

#include <stdbool.h>
#include <sys/types.h>

/*
 * Whether a thread of this process waits in the kernel for a lock (flock, POSIX, OFD), as /proc
 * showed it within the last 100 ms (the caller has to live with that). A process
 * that is stopped does not wait: the kernel takes it out of the queue. Locks on a
 * filesystem that keeps them elsewhere (NFS, FUSE) are not seen. A process whose threads
 * /proc does not show to the agent counts as waiting for an OFD lock while somebody does.
 */
bool waiters_include(pid_t pid);

#endif
