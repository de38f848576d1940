/* SPDX-License-Identifier: MIT */
/* The program's side of the standing GOs. See standing.h. Libc only, no malloc, no lock. */
#include "standing.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sys.h"

void standing_hash(const char *path, size_t len, uint64_t ret_hash[2])
{
	uint64_t a = UINT64_C(0xcbf29ce484222325), b = UINT64_C(0x9e3779b97f4a7c15) + len;

	for (size_t i = 0; i < len; i++) {
		a = (a ^ (unsigned char)path[i]) * UINT64_C(0x100000001b3);
		b = (b + (unsigned char)path[i]) * UINT64_C(0xd6e8feb86659fd93);
		b ^= b >> 29;
	}
	ret_hash[0] = a ^ a >> 32;
	ret_hash[1] = b;
}

static bool open_for(uint64_t state, enum lock_mode mode)
{
	return (state & 3) >= (uint64_t)mode;
}

bool standing_find(const struct standing_table *table, const char *path, size_t len, int fd, enum lock_mode mode, bool records,
		   struct standing_look *ret_look)
{
	const struct standing_entry *entry;
	uint64_t hash[2], state;
	bool known = false;
	struct stat st;

	standing_hash(path, len, hash);
	entry = &table->entry[hash[0] % (STANDING_ENTRIES / STANDING_WAYS) * STANDING_WAYS];
	for (int i = 0; i < STANDING_WAYS; i++, entry++) {
		state = atomic_load_explicit(&entry->state, memory_order_acquire);
		if (!open_for(state, mode) || entry->path_hash[0] != hash[0] || entry->path_hash[1] != hash[1] ||
		    entry->records != records)
			continue;
		if (!known && fstat(fd, &st) < 0)
			return false;
		known = true;
		if (st.st_dev != entry->dev || st.st_ino != entry->ino)
			continue;	/* the file that had this path before */
		*ret_look = (struct standing_look){ table, entry, state };
		return standing_still(ret_look);
	}
	return false;
}

bool standing_still(const struct standing_look *look)
{
	/* Orders the call that was made before this against the look. */
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load(&look->entry->state) == look->state &&
	       sys_now_ns(CLOCK_BOOTTIME) < atomic_load(&look->table->valid_until_ns);
}

const struct standing_table *standing_map(const char *runtime_dir)
{
	const struct standing_table *table = NULL;
	size_t n = strlen(runtime_dir);
	char path[PATH_MAX];
	struct stat st;
	void *map;
	int fd;

	if (n + sizeof "/" STANDING_FILE > sizeof path)
		return NULL;
	memcpy(path, runtime_dir, n);
	memcpy(path + n, "/" STANDING_FILE, sizeof "/" STANDING_FILE);
	fd = (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (st.st_uid == 0 || st.st_uid == geteuid()) &&
	    !(st.st_mode & (S_IWGRP | S_IWOTH)) && st.st_size == (off_t)sizeof *table) {
		map = mmap(NULL, sizeof *table, PROT_READ, MAP_SHARED, fd, 0);
		if (map != MAP_FAILED)
			table = map;
	}
	sys_close(fd);
	if (table && (table->magic != STANDING_MAGIC || table->version != STANDING_VERSION ||
		      table->entries != STANDING_ENTRIES)) {
		munmap((void *)table, sizeof *table);
		table = NULL;
	}
	return table;
}
