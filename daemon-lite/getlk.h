/* SPDX-License-Identifier: MIT */
/*
 * F_GETLK across hosts: who on another host stands against a record lock? Asks,
 * takes nothing, disturbs nobody; one question for each call, begun after it, so
 * that no older answer is given. First the store: if no other host covers a part that
 * conflicts, nobody holds it. Else all hosts are asked; half a second for both at most, once the store can be reached:
 *
 *   question   getlk MODE START END          MODE 1 or 2; offsets decimal, END not included, 2^63 at most
 *   answer     empty: nothing; or one record (records.h)
 *              record=lock mode=SH|EX start= end= pid=     pid empty: a description owns it, or the pid is not known
 *
 * Loop's thread only.
 */
#ifndef DLOCK_GETLK_H
#define DLOCK_GETLK_H

#include <stdint.h>

#include "../shim/extent.h"

struct agent;
struct getlk;

/*
 * Asks. key: "r:NAME". 0 with *ret, then `done` once, later; or -ENOMEM (`done` is not called). In `done`, err 0: lock is the
 * conflicting lock of another host with the lowest start, l_pid minus the pid it has there, or -1; mode NONE: nobody. A host
 * that covers a conflicting part and does not say who holds it counts as holding that part. err other than 0 (an errno): it could not be found out; text says why, lock
 * is mode NONE. *ret is gone when `done` is called.
 */
int getlk_start(struct agent *agent, const char *key, struct extent at, enum lock_mode mode,
		void (*done)(void *arg, const struct lock_span *lock, int l_pid, int err, const char *text), void *arg, struct getlk **ret);
/* `done` is not called any more. */
void getlk_cancel(struct getlk *getlk);

/* The store's state has changed: those that wait for it. */
void getlk_go_on(struct agent *agent);

/* Another host asks: answered at once from the kernel, in a helper thread where a file is not local. */
void getlk_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question);

#endif
