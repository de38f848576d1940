/* SPDX-License-Identifier: MIT */
/*
 * Standing GOs: the names that any program of this host may lock right now
 * without asking, because the host has the cover and nobody recalls it. One
 * table, RUNTIME_DIR/standing, written by the agent and mapped read-only by
 * every program; it lives as long as the guard, through restarts of the agent.
 *
 * A program that finds its file here makes the real call without waiting and
 * then looks again. The agent closes an entry *before* it probes the kernel, so
 * one of the two sees the other: either the probe meets the program's lock, or
 * the program sees that the entry has changed and asks (STANDS), keeping or
 * undoing its lock before the call returns. It costs no message, and the rule
 * holds that no call returns with a lock whose host has no cover.
 *
 * An entry's file is open in the agent as long as it is in the table, so its
 * inode number cannot belong to another file.
 */
#ifndef DLOCK_STANDING_H
#define DLOCK_STANDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mode.h"

#define STANDING_FILE "standing"
#define STANDING_MAGIC 0x474f4453u
#define STANDING_VERSION 2
#define STANDING_WAYS 4			/* places where a path's entry may be */
#define STANDING_ENTRIES 8192		/* a multiple of STANDING_WAYS; a name that finds no place asks as ever */

struct standing_entry {
	_Atomic uint64_t state;		/* generation << 2 | mode; MODE_NONE = closed. The other fields change only while closed */
	uint64_t path_hash[2];
	uint64_t dev, ino;		/* st_dev, st_ino as the agent sees them */
	uint64_t records;		/* 1: record locks, any range of the file; 0: flock. A file has an entry for each */
	uint64_t reserved[2];
};

struct standing_table {
	uint32_t magic, version;
	uint32_t entries;
	uint32_t reserved;
	_Atomic uint64_t valid_until_ns; /* CLOCK_BOOTTIME: no entry counts from here on (the lease fails, or the agent is silent for T/6) */
	uint64_t pad[5];
	struct standing_entry entry[STANDING_ENTRIES];
};

_Static_assert(sizeof(struct standing_entry) == 64 && offsetof(struct standing_table, entry) == 64, "the same for 32- and 64-bit programs");

/* 128 bits of a path (len bytes). Pure. Only files of one inode can ever be confused, so it need not resist attackers. */
void standing_hash(const char *path, size_t len, uint64_t ret_hash[2]);

struct standing_look {			/* what a program saw */
	const struct standing_table *table;
	const struct standing_entry *entry;
	uint64_t state;
};

/* Whether there is an open entry for this path and the file of fd, for record locks or flocks, that suffices for mode. One fstat(), and only if the path is there. */
bool standing_find(const struct standing_table *table, const char *path, size_t len, int fd, enum lock_mode mode, bool records,
		   struct standing_look *ret_look);
/* Whether it is still as it was seen, and the lease good. */
bool standing_still(const struct standing_look *look);

/* Maps DIR/standing read-only after checking owner, mode and size. NULL if there is none to be trusted. No malloc. */
const struct standing_table *standing_map(const char *runtime_dir);

#endif
