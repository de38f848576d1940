/* SPDX-License-Identifier: MIT */
/* The graph, as deadlock_graph.c (what was said) and deadlock_solve.c (what follows) share it. */
#ifndef DLOCK_DEADLOCK_GRAPH_PRIVATE_H
#define DLOCK_DEADLOCK_GRAPH_PRIVATE_H

#include <stdlib.h>

#include "deadlock_graph.h"
#include "hash.h"

struct wait {
	const char *host, *key, *name;	/* interned: equal texts are one pointer */
	uint64_t id, number, pid, stamp;	/* number: the owner's, as its host says it */
	bool asked;
	enum lock_mode mode;
	struct extent at;
	size_t owner;			/* index into owners */
};

struct hold {
	const char *host, *key;
	uint64_t number;
	size_t owner;
	enum lock_mode mode;
	struct extent at;
};

struct owner {
	const char *host;
	uint64_t number;
};

struct host {
	const char *id;
	size_t waits, holds;
};

struct cycle {
	size_t *waits, count;		/* from the victim on */
};

struct deadlock_graph {
	struct hash texts;
	struct host *hosts;
	size_t host_count, host_cap;
	struct wait *waits;
	size_t wait_count, wait_cap;
	struct hold *holds;
	size_t hold_count, hold_cap;
	struct owner *owners;
	size_t owner_count;
	/* Edges of vertex v: to[first[v]] … to[first[v + 1] - 1]. Vertices: the waits, then the owners. */
	size_t *first, *to;
	size_t edge_count, edge_cap;
	struct deadlock_victim *victims;
	struct cycle *cycles;
	size_t victim_count;
	bool cut;
};

/* Makes room for one more. 0 or -ENOMEM. */
int deadlock_graph_grow(void *array, size_t count, size_t *cap, size_t size);

#endif
