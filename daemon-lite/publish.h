/* SPDX-License-Identifier: MIT */
/*
 * The agent's side of the standing GOs (shim/standing.h): which names any program
 * here may lock without asking. Loop's thread only, but for publish_valid_until().
 */
#ifndef DLOCK_PUBLISH_H
#define DLOCK_PUBLISH_H

#include "../shim/standing.h"
#include "identify.h"

/* Opens or makes DIR/standing and maps it; before the guard starts, so that every agent inherits it. NULL and errno on failure:
 * then each call asks, nothing else is lost. */
struct standing_table *publish_map(const char *runtime_dir);
/* Closes everything: at an agent's start, before it does anything else. table may be NULL here and below. */
void publish_reset(struct standing_table *table);
/* Programs rely on entries until then (CLOCK_BOOTTIME); 0 = not at all. Any thread. */
void publish_valid_until(struct standing_table *table, uint64_t ns);

/* A place in the table for a file under a path, for its flock or its record locks. path_hash and records are the owner's to set. */
struct publish_slot {
	struct standing_entry *entry;	/* NULL = none */
	uint64_t path_hash[2];
	bool records;
};
/* Opens the slot for mode (taking a free place if it has none), or closes it with MODE_NONE; a changed path, or kind of lock, moves it. */
void publish_set(struct standing_table *table, struct publish_slot *slot, const struct inode_id *id, enum lock_mode mode);
/* Gives the place up. */
void publish_drop(struct publish_slot *slot);

#endif
