/* SPDX-License-Identifier: MIT */
/*
 * The compiled rules: one flat file, RUNTIME_DIR/rules, that the agent writes
 * from the configuration and every shim maps read-only (MAP_SHARED). Reading
 * needs no libconfig, no malloc and no lock.
 *
 * Freshness. The header carries the identity (stamp) of the configuration file
 * it was made from. The agent writes a new file, renames it over the old one and
 * then sets `stale` in the old one, which every process that maps it sees
 * without a system call. `attended` is 1 while an agent lives that watches the
 * configuration; with 0 a reader compares the stamp itself by one stat().
 */
#ifndef DLOCK_RULES_H
#define DLOCK_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stat;

#define RULES_FILE "rules"
#define RULES_MAGIC 0x31526c64u
#define RULES_VERSION 1
#define RULES_FILE_MAX (8u << 20)	/* bytes; a larger file is refused */
#define RULES_CAPTURES 9		/* {1} to {9} */
#define RULES_NAME_MAX 4096		/* bytes of a name, without NUL */

/* The file: this header, then `count` struct rules_entry, then a pool of strings. All offsets from the file's start. */
struct rules_header {
	uint32_t magic;
	uint32_t version;
	uint32_t stale;		/* atomic: 1 = a newer file has replaced this one */
	uint32_t attended;	/* atomic: 1 = an agent watches the configuration */
	uint64_t stamp;		/* rules_stamp() of the configuration file; never 0 */
	uint32_t size;		/* bytes of the whole file */
	uint32_t count;		/* rules */
	uint32_t config_off;	/* the configuration's absolute path */
	uint32_t config_len;
	uint32_t checksum;	/* of everything behind the header, FNV-1a */
	uint32_t reserved;
};

struct rules_entry {
	uint32_t pattern_off, pattern_len;	/* see pattern.h */
	uint32_t name_off, name_len;		/* template */
	uint32_t on_lost_off, on_lost_len;	/* "kill", "log", "signal:TERM" */
	uint32_t line;				/* in the configuration file */
	uint32_t prefix_len;			/* bytes of pattern before its first special character */
};

struct rules {			/* a mapped file; zeroed = none */
	const struct rules_header *header;
	size_t map_size;
};

struct rules_match {
	unsigned index;		/* from 0; the first matching rule wins */
	unsigned line;
	const char *pattern, *name, *on_lost;	/* NUL-terminated, in the mapping */
};

/*
 * Opens, checks (owner is root or the effective user, not writable by others,
 * regular, sane sizes and offsets, checksum) and maps DIR/rules.
 * Returns 0 or -errno: -ENOENT none there, -EACCES not to be trusted, -EBADMSG damaged.
 * No malloc; the descriptor is closed again.
 */
int rules_open(const char *runtime_dir, struct rules *ret_rules);
void rules_close(struct rules *rules);

/* FNV-1a of len bytes, as in rules_header.checksum. Pure. */
uint32_t rules_checksum(const void *data, size_t len);

/* Identity of a configuration file: a hash of dev, ino, size, mtime, ctime; never 0. Pure. */
uint64_t rules_stamp(const struct stat *st);

/*
 * Whether the rules are still those of the configuration file: not stale, and
 * attended (with config_path spelled as in the file) or the stamp of a stat() of
 * config_path fits.
 */
bool rules_fresh(const struct rules *rules, const char *config_path);

/* The first rule whose pattern matches the absolute path (len bytes, no NUL). Pure, no malloc. */
bool rules_find(const struct rules *rules, const char *path, size_t len, struct rules_match *ret_match);

/* The name that `template` gives for a path matched by `pattern`: {path} {dir} {basename} {tail} {1}…{9}.
 * Returns its length (NUL-terminated in buf) or -ENAMETOOLONG, -EINVAL (no match). Pure. */
int rules_expand(const char *template, const char *pattern, const char *path, char *buf, size_t size);

#endif
