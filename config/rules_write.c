/* SPDX-License-Identifier: MIT */
/*
 * Compiles the configuration's rules into the flat file that programs map. Only
 * the agent runs this, under its runtime lock: there is one writer.
 *
 * The order in config_write_rules matters, since a crash may come at any point:
 * first the old file loses `attended` (whoever maps it now compares stamps
 * itself), then the new one takes its name, then the old one is marked stale.
 */
#include "config.h"
#include "rules.h"
#include "pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct config_error *error, int err, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(struct config_error *error, int err, const char *format, ...)
{
	va_list args;

	error->err = err;
	va_start(args, format);
	vsnprintf(error->text, sizeof error->text, format, args);
	va_end(args);
	return err;
}

/* Puts a string with its NUL behind *used and returns where it is. */
static uint32_t put_string(char *image, size_t *used, const char *text, uint32_t *ret_len)
{
	size_t off = *used, len = strlen(text);

	memcpy(image + off, text, len + 1);
	*used += len + 1;
	*ret_len = (uint32_t)len;
	return (uint32_t)off;
}

static size_t image_size(const struct config *config)
{
	size_t size = sizeof(struct rules_header) + strlen(config->file) + 1, i;

	for (i = 0; i < config->rule_count; i++) {
		const struct config_rule *rule = &config->rules[i];

		size += sizeof(struct rules_entry) + strlen(rule->path) + 1 + strlen(rule->name) + 1 + strlen(rule->on_lost) + 1;
	}
	return size;
}

static void fill_image(const struct config *config, char *image, size_t size)
{
	struct rules_header *header = (void *)image;
	struct rules_entry *entry = (void *)(header + 1);
	size_t used = sizeof *header + config->rule_count * sizeof *entry, i;

	*header = (struct rules_header){
		.magic = RULES_MAGIC, .version = RULES_VERSION, .stamp = config->stamp ? config->stamp : 1,
		.size = (uint32_t)size, .count = (uint32_t)config->rule_count,
	};
	header->config_off = put_string(image, &used, config->file, &header->config_len);
	for (i = 0; i < config->rule_count; i++, entry++) {
		const struct config_rule *rule = &config->rules[i];

		entry->pattern_off = put_string(image, &used, rule->path, &entry->pattern_len);
		entry->name_off = put_string(image, &used, rule->name, &entry->name_len);
		entry->on_lost_off = put_string(image, &used, rule->on_lost, &entry->on_lost_len);
		entry->line = rule->line;
		entry->prefix_len = (uint32_t)pattern_literal_len(rule->path);
	}
	header->checksum = rules_checksum(header + 1, size - sizeof *header);
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* The present file's header, mapped for writing; NULL if there is none (or it is no rules file: then nobody maps it). */
static struct rules_header *map_header(int dir)
{
	struct rules_header *header = NULL;
	struct stat st;
	int fd = openat(dir, RULES_FILE, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return NULL;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof *header) {
		void *map = mmap(NULL, sizeof *header, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (map != MAP_FAILED)
			header = map;
	}
	close(fd);
	if (header && header->magic != RULES_MAGIC) {
		munmap(header, sizeof *header);
		header = NULL;
	}
	return header;
}

/* Writes image as a new file under a name of its own. */
static int write_file(int dir, const char *name, const char *image, size_t size)
{
	int fd, err;

	/* Left by an agent that died while writing. */
	if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	err = write_all(fd, image, size);
	/* Every program reads it, whatever the umask of the agent. */
	if (!err && fchmod(fd, 0644) < 0)
		err = -errno;
	if (close(fd) < 0 && !err)
		err = -errno;
	if (err)
		unlinkat(dir, name, 0);
	return err;
}

int config_write_rules(const struct config *config, const char *runtime_dir, struct config_error *ret_error)
{
	static const char new_name[] = RULES_FILE ".new";
	struct rules_header *old;
	size_t size = image_size(config);
	char *image;
	int dir, err;

	if (size > RULES_FILE_MAX)
		return fail(ret_error, -EFBIG, "%.200s: the rules need %zu bytes where %u are allowed; join some of them by wildcards",
			    config->file, size, RULES_FILE_MAX);
	dir = open(runtime_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0) {
		err = -errno;
		return fail(ret_error, err, "the runtime directory %.200s cannot be opened (%s); correct `runtime_dir` or its owner and mode",
			    runtime_dir, strerror(-err));
	}
	image = calloc(1, size);
	if (!image) {
		close(dir);
		return fail(ret_error, -ENOMEM, "%.200s: out of memory while the rules were compiled", config->file);
	}
	fill_image(config, image, size);
	err = write_file(dir, new_name, image, size);
	if (!err) {
		old = map_header(dir);
		if (old)
			__atomic_store_n(&old->attended, 0, __ATOMIC_RELEASE);
		if (renameat(dir, new_name, dir, RULES_FILE) < 0) {
			err = -errno;
			unlinkat(dir, new_name, 0);
		} else if (old) {
			__atomic_store_n(&old->stale, 1, __ATOMIC_RELEASE);
		}
		if (old)
			munmap(old, sizeof *old);
	}
	free(image);
	close(dir);
	if (err)
		return fail(ret_error, err, "the rules cannot be written into %.200s (%s); make room there, or correct its owner and mode",
			    runtime_dir, strerror(-err));
	return 0;
}

int config_attend_rules(const char *runtime_dir, int attended)
{
	struct rules_header *header;
	int dir = open(runtime_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		return -errno;
	header = map_header(dir);
	close(dir);
	if (!header)
		return -ENOENT;
	__atomic_store_n(&header->attended, attended != 0, __ATOMIC_RELEASE);
	munmap(header, sizeof *header);
	return 0;
}
