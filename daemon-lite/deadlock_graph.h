/* SPDX-License-Identifier: MIT */
/*
 * Who waits for whom over all hosts, and who has to give up. Pure but for malloc.
 *
 * What a host says of itself, as records (records.h), in any order:
 *
 *   record=wait id= asked=0|1 owner= pid= stamp= key= name= mode=1|2 start= end=
 *   record=hold owner= key= mode=1|2 start= end=
 *
 * A wait is one blocking POSIX lock call. asked=1: it waits in the store, key is "r:NAME", and it waits for what any host holds
 * under that key. asked=0: it waits in its host's kernel, key is "l:MAJOR:MINOR:INODE", and it waits for what its own host holds
 * there; name: the "r:NAME" whose cover its GO still keeps, or empty. id: the request's; 0 if the agent does not know the call, which pid
 * and stamp tell from a later one then. owner: a number for a descriptor table, within one host's words. A hold is a POSIX lock
 * of an owner that waits, under either kind of key, under "r:NAME" only as far as the host's cover goes. Ends are not included.
 *
 * A wait goes on until everything that stands against it is gone: so each cycle of waits and the owners of what they wait for is
 * a deadlock, if all of it is true at one moment. That it is, two graphs show (deadlock_graph_confirms).
 */
#ifndef DLOCK_DEADLOCK_GRAPH_H
#define DLOCK_DEADLOCK_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../shim/extent.h"
#include "records.h"

/* Of one host; what is beyond is left out. */
#define DEADLOCK_WAITS_MAX 1000
#define DEADLOCK_HOLDS_MAX 20000

struct deadlock_graph;

struct deadlock_wait {
	uint64_t id, owner, pid, stamp;
	bool asked;
	const char *key, *name;
	struct extent at;
	enum lock_mode mode;
};

struct deadlock_hold {
	uint64_t owner;
	const char *key;
	struct extent at;
	enum lock_mode mode;
};

void deadlock_wait_put(struct record_buf *buf, const struct deadlock_wait *wait);
void deadlock_hold_put(struct record_buf *buf, const struct deadlock_hold *hold);

struct deadlock_graph *deadlock_graph_new(void);	/* NULL: out of memory */
void deadlock_graph_free(struct deadlock_graph *graph);	/* NULL is fine */
/* What that host says, or a part of it that ends with a record. What is not of the right form is left out. 0 or -ENOMEM. */
int deadlock_graph_add(struct deadlock_graph *graph, const char *host, const char *text, size_t len);
/* Whether something was left out because it was too much. */
bool deadlock_graph_is_cut(const struct deadlock_graph *graph);

struct deadlock_victim {
	const char *host;	/* lives as long as the graph */
	uint64_t id;
};

/*
 * Finds the victims, after the last add: of each set of waits that reach each other, the one that waits in the store with the greatest (host, id).
 * A set in which nobody waits in the store is the kernel's. How many, and *ret_victims, which lives as long as the graph; or -ENOMEM.
 */
long deadlock_graph_solve(struct deadlock_graph *graph, const struct deadlock_victim **ret_victims);
/* The same again, of a graph that is solved. */
size_t deadlock_graph_victims(const struct deadlock_graph *graph, const struct deadlock_victim **ret_victims);

/*
 * Whether the victim of this number in `first` is one of `second` too, and the cycle through it is there again, made of the same waits. If everything in
 * `second` was seen after everything in `first`, they all waited at a moment between the two, and who waits lets go of nothing. Both are solved.
 */
bool deadlock_graph_confirms(const struct deadlock_graph *second, const struct deadlock_graph *first, size_t victim);

#endif
