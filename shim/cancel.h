/* SPDX-License-Identifier: MIT */
/*
 * Thread cancellation. fcntl(F_SETLKW), fcntl(F_OFD_SETLKW) and lockf(F_LOCK)
 * are cancellation points; no other call here is one.
 */
#ifndef DLOCK_SHIM_CANCEL_H
#define DLOCK_SHIM_CANCEL_H

#include <stdbool.h>

/*
 * Between the two a pthread_cancel() of this thread ends it at once, also in the
 * middle of a system call; what is held then is cleared away by the scope around it.
 * on = false: nothing changes. Returns what cancel_close() wants.
 */
int cancel_open(bool on);
void cancel_close(bool on, int type);

/* Ends the thread if it has been cancelled already. */
void cancel_test(bool on);

/* Calls run(arg) and returns its result; if the thread is cancelled meanwhile, abandon(arg) is called in its stead. */
int cancel_scope(int (*run)(void *arg), void (*abandon)(void *arg), void *arg);

#endif
