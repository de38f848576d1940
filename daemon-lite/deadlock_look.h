/* SPDX-License-Identifier: MIT */
/* Who waits on this host and what they hold. Loop's thread; /proc is read in a helper thread, one look at a time. */
#ifndef DLOCK_DEADLOCK_LOOK_H
#define DLOCK_DEADLOCK_LOOK_H

#include <stdbool.h>

#include "agent.h"
#include "records.h"

/*
 * Calls fn once, later, with this host's part of the graph (deadlock_graph.h) as it is seen from now on, not before; NULL: out of memory. worth: a cycle may
 * lead through here: somebody waits in the store, and somebody who waits holds something that others can wait for. Those who ask while a look runs share the next
 * one. A wait in the store whose owner holds any lock passes the store's queue from then on. 0 or -ENOMEM (fn is not called).
 */
int deadlock_look_start(struct agent *agent, void (*fn)(void *arg, const struct record_buf *records, bool worth), void *arg);

/* Whether any blocking POSIX call here waits in the store. */
bool deadlock_anybody_waits(struct agent *agent);
/* The blocking POSIX call with this id, if it waits in the store. */
struct client *deadlock_client(struct agent *agent, uint64_t id);

#endif
