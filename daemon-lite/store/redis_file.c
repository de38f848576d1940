/* SPDX-License-Identifier: MIT */
/*
 * The session file. A token is in it before the store sees it, and the one before
 * stays in it until the store has said yes: whenever the agent dies, the next one
 * has the token that the store knows. Lines of `name value`; mode 0600, because who
 * has the token can take over the session.
 */
#include "redis_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uuid.h>

#include "../log.h"

#define PLACE_SIZE 48

void redis_new_id(char ret_id[REDIS_ID_SIZE])
{
	uuid_t uuid;

	uuid_generate_random(uuid);
	uuid_unparse_lower(uuid, ret_id);
}

static int read_small(const char *path, char *buf, size_t size, struct stat *ret_st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = fstat(fd, ret_st) < 0 ? -1 : read(fd, buf, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n >= 0)
		buf[n] = '\0';
	return (int)n;
}

void redis_boot_id(char *buf, size_t size)
{
	struct stat st;

	if (read_small("/proc/sys/kernel/random/boot_id", buf, size, &st) < 0)
		buf[0] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
}

static bool take_id(char to[REDIS_ID_SIZE], const char *value)
{
	uuid_t uuid;

	if (uuid_parse(value, uuid) < 0)
		return false;
	uuid_unparse_lower(uuid, to);
	return true;
}

/* Where the file is itself, for the line `here`: a copy of it lies elsewhere. */
static void place(const struct stat *st, char *buf, size_t size)
{
	snprintf(buf, size, "%llx:%llu", (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
}

static bool parse(char *text, struct redis_identity *identity, char *here, size_t here_size)
{
	char *rest = text, *line;

	while ((line = strsep(&rest, "\n"))) {
		char *value = strchr(line, ' ');
		bool good = true;

		if (!value)
			continue;
		*value++ = '\0';
		if (!strcmp(line, "host"))
			good = take_id(identity->host, value);
		else if (!strcmp(line, "token"))
			good = take_id(identity->token, value);
		else if (!strcmp(line, "pending"))
			good = take_id(identity->pending, value);
		else if (!strcmp(line, "here"))
			snprintf(here, here_size, "%s", value);
		else if (!strcmp(line, "boot"))
			snprintf(identity->boot, sizeof(identity->boot), "%s", value);
		if (!good)
			return false;
	}
	return identity->host[0] != '\0';
}

int redis_file_load(const char *path, struct redis_identity *ret_identity)
{
	struct redis_identity identity = { 0 };
	char text[1024], here[PLACE_SIZE] = "", seen[PLACE_SIZE];
	struct stat st;
	int n = read_small(path, text, sizeof(text), &st);
	bool good = n >= 0 && parse(text, &identity, here, sizeof(here)), copied = false;

	if (n < 0 && n != -ENOENT)
		return n;
	if (good) {
		place(&st, seen, sizeof(seen));
		copied = strcmp(here, seen);
	}
	/* Two hosts with one identity would take each other's locks. */
	if (copied)
		log_warn("%s is a copy; this host joins the store under an identity of its own", path);
	if (!good || copied) {
		if (n > 0 && !copied)
			log_warn("%s is damaged; this host joins the store anew, locks of its last session are free after the lease time", path);
		identity = (struct redis_identity){ 0 };
		redis_new_id(identity.host);
	}
	*ret_identity = identity;
	return 0;
}

static int sync_directory(const char *path)
{
	char dir[PATH_MAX];
	char *slash;
	int fd, err = 0;

	if (snprintf(dir, sizeof(dir), "%s", path) >= (int)sizeof(dir))
		return -ENAMETOOLONG;
	slash = strrchr(dir, '/');
	if (slash)
		slash[slash == dir] = '\0';
	fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0 && errno != EINVAL)
		err = -errno;
	close(fd);
	return err;
}

int redis_file_save(const char *path, const struct redis_identity *identity)
{
	char temp[PATH_MAX], text[512], here[PLACE_SIZE];
	struct stat st;
	int fd, len, err = 0;

	if (snprintf(temp, sizeof(temp), "%s.new", path) >= (int)sizeof(temp))
		return -ENAMETOOLONG;
	len = snprintf(text, sizeof(text), "host %s\n", identity->host);
	if (identity->token[0])
		len += snprintf(text + len, sizeof(text) - (size_t)len, "token %s\n", identity->token);
	if (identity->pending[0])
		len += snprintf(text + len, sizeof(text) - (size_t)len, "pending %s\n", identity->pending);
	if (identity->boot[0])
		len += snprintf(text + len, sizeof(text) - (size_t)len, "boot %s\n", identity->boot);

	unlink(temp);
	fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0) {
		place(&st, here, sizeof(here));
		len += snprintf(text + len, sizeof(text) - (size_t)len, "here %s\n", here);
	}
	if (write(fd, text, (size_t)len) != len)
		err = errno ? -errno : -EIO;
	else if (fsync(fd) < 0)
		err = -errno;
	close(fd);
	if (!err && rename(temp, path) < 0)
		err = -errno;
	if (!err)
		err = sync_directory(path);
	if (err)
		unlink(temp);
	return err;
}
