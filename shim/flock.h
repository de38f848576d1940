/* SPDX-License-Identifier: MIT */
/* flock(2): locks of open file descriptions on whole files. */
#ifndef DLOCK_SHIM_FLOCK_H
#define DLOCK_SHIM_FLOCK_H

/* Returns 0 or the negative of an errno that the manual page lists. May change errno. */
int flock_call(int fd, int operation);

#endif
