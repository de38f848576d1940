/* SPDX-License-Identifier: MIT */
/* One lock call, from the program's call to its return. */
#ifndef DLOCK_SHIM_LOCK_H
#define DLOCK_SHIM_LOCK_H

/* flock(2). Returns 0 or the negative of an errno that its manual page lists. May change errno. */
int lock_flock(int fd, int operation);

#endif
