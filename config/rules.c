/* SPDX-License-Identifier: MIT */
/*
 * Reads the compiled rules. Used inside programs, also in signal handlers: libc
 * only, no malloc, no stdio, and no call that is a cancellation point (a lock
 * call of the program is none, so opening the rules must not become one).
 *
 * Everything a later call relies on is checked once, in rules_open; who may
 * write the file is trusted not to cut it short afterwards (the agent never
 * changes more than `stale` and `attended`; a newer file gets a new inode).
 */
#include "rules.h"
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(struct rules_header) == 48, "the same for 32 and 64 bits");
_Static_assert(sizeof(struct rules_entry) == 32, "the same for 32 and 64 bits");

static const struct rules_entry *entry_at(const struct rules_header *header, unsigned i)
{
	return (const struct rules_entry *)(const void *)(header + 1) + i;
}

static const char *string_at(const struct rules_header *header, uint32_t off)
{
	return (const char *)header + off;
}

uint32_t rules_checksum(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint32_t hash = 2166136261u;
	size_t i;

	for (i = 0; i < len; i++)
		hash = (hash ^ p[i]) * 16777619u;
	return hash;
}

/* ---- opening ---- */

/* A string of exactly len bytes, NUL-terminated, in the pool that begins at `pool`. */
static bool string_is_sound(const struct rules_header *header, uint32_t pool, uint32_t off, uint32_t len)
{
	if (off < pool || off >= header->size || len >= header->size - off)
		return false;
	return strnlen(string_at(header, off), (size_t)len + 1) == len;
}

static bool file_is_sound(const struct rules_header *header, size_t size)
{
	uint32_t pool, i;

	if (header->magic != RULES_MAGIC || header->version != RULES_VERSION)
		return false;
	if (header->size != size || header->stamp == 0 || header->reserved != 0)
		return false;
	if (header->stale > 1 || header->attended > 1)
		return false;
	if (header->count > (size - sizeof *header) / sizeof(struct rules_entry))
		return false;
	if (rules_checksum(header + 1, size - sizeof *header) != header->checksum)
		return false;
	/* The configuration's path is the first string: so `count` is what it was. */
	pool = (uint32_t)(sizeof *header + header->count * sizeof(struct rules_entry));
	if (header->config_off != pool || !string_is_sound(header, pool, pool, header->config_len))
		return false;
	for (i = 0; i < header->count; i++) {
		const struct rules_entry *e = entry_at(header, i);

		if (!string_is_sound(header, pool, e->pattern_off, e->pattern_len) ||
		    !string_is_sound(header, pool, e->name_off, e->name_len) ||
		    !string_is_sound(header, pool, e->on_lost_off, e->on_lost_len))
			return false;
		if (pattern_check(string_at(header, e->pattern_off)) ||
		    pattern_literal_len(string_at(header, e->pattern_off)) != e->prefix_len)
			return false;
	}
	return true;
}

/* Checks and maps the open file. */
static int map_file(int fd, struct rules *ret_rules)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || (st.st_uid != 0 && st.st_uid != geteuid()) ||
	    (st.st_mode & (S_IWGRP | S_IWOTH)))
		return -EACCES;
	if (st.st_size < (off_t)sizeof(struct rules_header) || st.st_size > (off_t)RULES_FILE_MAX)
		return -EBADMSG;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	if (!file_is_sound(map, (size_t)st.st_size)) {
		munmap(map, (size_t)st.st_size);
		return -EBADMSG;
	}
	ret_rules->header = map;
	ret_rules->map_size = (size_t)st.st_size;
	return 0;
}

int rules_open(const char *runtime_dir, struct rules *ret_rules)
{
	long dir, fd;
	int err;

	/* Raw calls: open and close of libc are cancellation points. */
	dir = syscall(SYS_openat, AT_FDCWD, runtime_dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (dir < 0)
		return -errno;
	fd = syscall(SYS_openat, (int)dir, RULES_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
	err = fd < 0 ? -errno : 0;
	syscall(SYS_close, (int)dir);
	if (err)
		return err == -ELOOP ? -EACCES : err;
	err = map_file((int)fd, ret_rules);
	syscall(SYS_close, (int)fd);
	return err;
}

void rules_close(struct rules *rules)
{
	if (rules->header)
		munmap((void *)(uintptr_t)rules->header, rules->map_size);
	rules->header = NULL;
	rules->map_size = 0;
}

/* ---- freshness ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	int i;

	for (i = 0; i < 64; i += 8)
		hash = (hash ^ ((value >> i) & 0xff)) * 1099511628211u;
	return hash;
}

uint64_t rules_stamp(const struct stat *st)
{
	uint64_t hash = 14695981039346656037u;

	hash = mix(hash, (uint64_t)st->st_dev);
	hash = mix(hash, (uint64_t)st->st_ino);
	hash = mix(hash, (uint64_t)st->st_size);
	hash = mix(hash, (uint64_t)st->st_mtim.tv_sec);
	hash = mix(hash, (uint64_t)st->st_mtim.tv_nsec);
	hash = mix(hash, (uint64_t)st->st_ctim.tv_sec);
	hash = mix(hash, (uint64_t)st->st_ctim.tv_nsec);
	return hash ? hash : 1;
}

bool rules_fresh(const struct rules *rules, const char *config_path)
{
	const struct rules_header *header = rules->header;
	struct stat st;

	if (!header || __atomic_load_n(&header->stale, __ATOMIC_ACQUIRE))
		return false;
	/* The agent watches the file it knows; another name may be another file. */
	if (__atomic_load_n(&header->attended, __ATOMIC_ACQUIRE) &&
	    strcmp(config_path, string_at(header, header->config_off)) == 0)
		return true;
	return stat(config_path, &st) == 0 && rules_stamp(&st) == header->stamp;
}

/* ---- use ---- */

bool rules_find(const struct rules *rules, const char *path, size_t len, struct rules_match *ret_match)
{
	const struct rules_header *header = rules->header;
	unsigned i;

	for (i = 0; header && i < header->count; i++) {
		const struct rules_entry *e = entry_at(header, i);
		const char *pattern = string_at(header, e->pattern_off);

		if (e->prefix_len > len || memcmp(pattern, path, e->prefix_len) != 0)
			continue;
		if (e->prefix_len == e->pattern_len ? len != e->prefix_len : !pattern_match(pattern, path, len, NULL, 0, NULL))
			continue;
		*ret_match = (struct rules_match){
			.index = i, .line = e->line, .pattern = pattern,
			.name = string_at(header, e->name_off),
			.on_lost = string_at(header, e->on_lost_off),
		};
		return true;
	}
	return false;
}

/* What a placeholder is replaced by. `word` is what stands between the braces. */
static int placeholder(const char *word, size_t word_len, const char *pattern, const char *path,
		       const struct pattern_span *captures, size_t count, struct pattern_span *ret_span)
{
	size_t len = strlen(path), slash = (size_t)(strrchr(path, '/') - path), n;

	if (word_len == 1 && *word >= '1' && *word <= '9') {
		n = (size_t)(*word - '1');
		if (n >= count)
			return -EINVAL;
		*ret_span = captures[n];
	} else if (word_len == 4 && !memcmp(word, "path", 4)) {
		*ret_span = (struct pattern_span){ 0, len };
	} else if (word_len == 3 && !memcmp(word, "dir", 3)) {
		*ret_span = (struct pattern_span){ 0, slash ? slash : 1 };
	} else if (word_len == 8 && !memcmp(word, "basename", 8)) {
		*ret_span = (struct pattern_span){ slash + 1, len - slash - 1 };
	} else if (word_len == 4 && !memcmp(word, "tail", 4)) {
		n = pattern_first_deep(pattern);
		if (n < count) {
			*ret_span = captures[n];
			return 0;
		}
		/* Behind the last slash of the literal prefix, which is in the path as well. */
		for (n = pattern_literal_len(pattern); n > 0 && pattern[n - 1] != '/'; n--)
			;
		*ret_span = (struct pattern_span){ n, len - n };
	} else {
		return -EINVAL;
	}
	return 0;
}

int rules_expand(const char *template, const char *pattern, const char *path, char *buf, size_t size)
{
	struct pattern_span captures[PATTERN_WILDCARDS_MAX];
	size_t count = 0, used = 0;

	if (*path != '/' || !pattern_match(pattern, path, strlen(path), captures, PATTERN_WILDCARDS_MAX, &count))
		return -EINVAL;
	if (count > PATTERN_WILDCARDS_MAX)
		return -EINVAL;
	while (*template) {
		const char *text = template, *end;
		size_t text_len = 1;

		if (*template != '{' && *template != '}') {
			template++;
		} else if (template[1] == *template) {
			template += 2;
		} else {
			struct pattern_span span;

			end = *template == '{' ? strchr(template, '}') : NULL;
			if (!end)
				return -EINVAL;
			text = template + 1;
			if (placeholder(text, (size_t)(end - text), pattern, path, captures, count, &span) < 0)
				return -EINVAL;
			text = path + span.off;
			text_len = span.len;
			template = end + 1;
		}
		if (used + text_len >= size)
			return -ENAMETOOLONG;
		memcpy(buf + used, text, text_len);
		used += text_len;
	}
	if (used >= size)
		return -ENAMETOOLONG;
	buf[used] = '\0';
	return (int)used;
}
