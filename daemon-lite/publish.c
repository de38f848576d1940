/* SPDX-License-Identifier: MIT */
/*
 * Writes the table of standing GOs. An entry changes only in this order: closed,
 * then its fields, then open under a new generation; a program that has seen it
 * open before compares the whole state word and so notices any of it.
 */
#include "publish.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void set_state(struct standing_entry *entry, enum lock_mode mode)
{
	uint64_t generation = (atomic_load(&entry->state) >> 2) + 1;

	atomic_store(&entry->state, generation << 2 | (uint64_t)mode);	/* sequentially consistent: before any probe that follows */
}

static enum lock_mode mode_of(const struct standing_entry *entry)
{
	return (enum lock_mode)(atomic_load(&entry->state) & 3);
}

struct standing_table *publish_map(const char *runtime_dir)
{
	char path[PATH_MAX];
	struct stat st;
	void *map;
	int fd, err;

	if (snprintf(path, sizeof path, "%s/" STANDING_FILE, runtime_dir) >= (int)sizeof path) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, geteuid() == 0 ? 0644 : 0600);
	if (fd < 0)
		return NULL;
	/* The same file again, never a new one: programs that run have it mapped. */
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
	    fchmod(fd, geteuid() == 0 ? 0644 : 0600) < 0 || ftruncate(fd, sizeof(struct standing_table)) < 0 ||
	    posix_fallocate(fd, 0, sizeof(struct standing_table))) {
		err = errno ? errno : EPERM;
		close(fd);
		errno = err;
		return NULL;
	}
	map = mmap(NULL, sizeof(struct standing_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	err = errno;
	close(fd);
	errno = err;
	return map == MAP_FAILED ? NULL : map;
}

void publish_reset(struct standing_table *table)
{
	if (!table)
		return;
	atomic_store(&table->valid_until_ns, 0);
	for (size_t i = 0; i < STANDING_ENTRIES; i++)
		if (atomic_load(&table->entry[i].state) & 3)
			set_state(&table->entry[i], MODE_NONE);
	table->magic = STANDING_MAGIC;
	table->version = STANDING_VERSION;
	table->entries = STANDING_ENTRIES;
}

void publish_valid_until(struct standing_table *table, uint64_t ns)
{
	if (table)
		atomic_store(&table->valid_until_ns, ns);
}

void publish_drop(struct publish_slot *slot)
{
	if (!slot->entry)
		return;
	set_state(slot->entry, MODE_NONE);
	slot->entry->ino = 0;
	slot->entry = NULL;
}

static struct standing_entry *find_place(struct standing_table *table, const uint64_t hash[2])
{
	struct standing_entry *entry = &table->entry[hash[0] % (STANDING_ENTRIES / STANDING_WAYS) * STANDING_WAYS];

	for (int i = 0; i < STANDING_WAYS; i++)
		if (!entry[i].ino)
			return &entry[i];
	return NULL;
}

void publish_set(struct standing_table *table, struct publish_slot *slot, const struct inode_id *id, enum lock_mode mode)
{
	struct standing_entry *entry = slot->entry;

	if (!table)
		return;
	if (entry && (entry->path_hash[0] != slot->path_hash[0] || entry->path_hash[1] != slot->path_hash[1] ||
		      entry->records != slot->records)) {
		publish_drop(slot);
		entry = NULL;
	}
	if (!entry) {
		if (mode == MODE_NONE)
			return;
		entry = find_place(table, slot->path_hash);
		if (!entry)
			return;
		entry->path_hash[0] = slot->path_hash[0];
		entry->path_hash[1] = slot->path_hash[1];
		entry->dev = id->dev;
		entry->ino = id->ino;
		entry->records = slot->records;
		slot->entry = entry;
	}
	if (mode_of(entry) != mode)
		set_state(entry, mode);
}
