/* SPDX-License-Identifier: MIT */
/*
 * What this host's kernel shows of the locks that the host covers: who holds, who
 * waits in the kernel. As records (records.h), the fields in this order:
 *
 *   record=cover key= state=held|recalled start= end=          (a cover, or a part of one, that is not named lies idle)
 *   record=holder key= pid= command= mode=SH|EX kind=flock|record|ofd start= end= [age_ms=]      (pid empty: nobody was found who has this lock)
 *   record=waiter key= pid= command= mode= kind= start= end= try=0|1 age_ms=
 *
 * A `cover` that is held is one that a program was told to lock, or of which it is not known which part is. start and end
 * are offsets, end not included, 2^63 where it never ends; a flock is on everything, and so is a record without start.
 * kind: `record` belongs to a process (POSIX), `ofd` to an open file description.
 *
 * Loop's thread; the walk through /proc is done in a helper thread, one at a time.
 */
#ifndef DLOCK_LOOK_H
#define DLOCK_LOOK_H

#include "agent.h"
#include "records.h"

/* Calls fn once, later, with what is seen from now on (not before); records NULL: out of memory. Those who ask while
 * a walk is under way share the next one. 0 or -ENOMEM (fn is not called). */
int look_start(struct agent *agent, void (*fn)(void *arg, const struct record_buf *records), void *arg);

#endif
