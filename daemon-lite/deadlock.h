/* SPDX-License-Identifier: MIT */
/*
 * Cycles of F_SETLKW waits over hosts (docs/DESIGN.md, Deadlocks). Loop's thread only.
 *
 *   question              answer
 *   deadlock              who waits on this host and what their owners hold: records as in deadlock_graph.h; empty: nobody waits in the store
 *   victim HOST ID        none. That host should look whether its client with this id waits in a cycle
 */
#ifndef DLOCK_DEADLOCK_H
#define DLOCK_DEADLOCK_H

#include <stdint.h>

struct agent;

#define DEADLOCK_AFTER_NS 50000000u	/* a wait is looked at when it has lasted so long */

/*
 * A blocking call for a record lock has waited for some time: looks, now or soon, whether a cycle has closed, and lets those pass the store's queue
 * whose owners hold something. As often as one likes: one check runs at a time, and who comes meanwhile shares the next one.
 */
void deadlock_check(struct agent *agent);

/* Questions of other hosts (ask.c). */
void deadlock_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question);
void deadlock_victim(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question);

#endif
