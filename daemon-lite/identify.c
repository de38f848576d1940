/* SPDX-License-Identifier: MIT */
/*
 * From a descriptor to a path that can be believed.
 *
 * The kernel's link /proc/self/fd/N is what the program's mount namespace made
 * of it, so it proves nothing by itself. It is believed when the same path,
 * looked up here, is the same inode; or, for a deleted file, when the
 * descriptor lies on the very mount that its directory is on here: the mount's
 * tree is then ours, and the kernel's name for it is too.
 *
 * This file never opens a program's file, and never follows a symbolic link in
 * the last component.
 */
#include "identify.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DELETED " (deleted)"
#define DELETED_LEN (sizeof(DELETED) - 1)

#define IDENTIFY_MASK (STATX_TYPE | STATX_INO | STATX_NLINK | STATX_BTIME | STATX_MNT_ID)

/* "/proc/self/fd/N" without printf: this is on the way of every lock. */
static void fd_link(char buf[32], int fd)
{
	static const char prefix[] = "/proc/self/fd/";
	char digits[12];
	size_t n = 0, at = sizeof(prefix) - 1;

	memcpy(buf, prefix, at);
	do {
		digits[n++] = (char)('0' + fd % 10);
		fd /= 10;
	} while (fd > 0);
	while (n > 0)
		buf[at++] = digits[--n];
	buf[at] = '\0';
}

static dev_t statx_dev(const struct statx *stx)
{
	return makedev(stx->stx_dev_major, stx->stx_dev_minor);
}

static void id_from_statx(const struct statx *stx, struct inode_id *ret_id)
{
	ret_id->dev = statx_dev(stx);
	ret_id->ino = stx->stx_ino;
	ret_id->btime_ns = 0;
	if (stx->stx_mask & STATX_BTIME)
		ret_id->btime_ns = stx->stx_btime.tv_sec * 1000000000LL + stx->stx_btime.tv_nsec;
}

static bool same_inode(const struct statx *a, const struct statx *b)
{
	return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major && a->stx_dev_minor == b->stx_dev_minor;
}

/* The path's end, as much as a sentence has room for, without control bytes. */
static void shorten(const char *path, char buf[96])
{
	size_t len = strlen(path), from = len > 80 ? len - 80 : 0, n = 0;

	if (from > 0) {
		memcpy(buf, "...", 3);
		n = 3;
	}
	for (size_t i = from; i < len; i++)
		buf[n++] = (unsigned char)path[i] < 0x20 || path[i] == 0x7f ? '?' : path[i];
	buf[n] = '\0';
}

static enum identify_kind refuse(struct identity *identity, const char *why, int err)
{
	char path[96];

	shorten(identity->path, path);
	snprintf(identity->reason, sizeof(identity->reason), "the path \"%s\" cannot be trusted: %s%s%s", path, why,
		 err ? ": " : "", err ? strerror(err) : "");
	return IDENTIFY_REFUSED;
}

/* The last component of an O_TMPFILE is '#' and its own inode number. */
static bool is_tmpfile_name(const char *path, uint64_t ino)
{
	const char *base = strrchr(path, '/');
	char want[24];

	snprintf(want, sizeof(want), "#%llu", (unsigned long long)ino);
	return base && strcmp(base + 1, want) == 0;
}

/*
 * The mount that the directory of path is on here. A directory that is deleted
 * too has no entry any more; its nearest ancestor that is left says the same.
 * Returns 0 or -errno.
 */
static int mount_of_directory(const char *path, uint64_t *ret_mnt_id)
{
	char dir[PATH_MAX];
	size_t len = strlen(path);
	struct statx stx;

	if (len >= sizeof(dir))
		return -ENAMETOOLONG;
	memcpy(dir, path, len + 1);
	for (;;) {
		char *slash = strrchr(dir, '/');

		if (!slash)
			return -ENOENT;
		slash[slash == dir ? 1 : 0] = '\0';
		if (statx(AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &stx) == 0) {
			if (!(stx.stx_mask & STATX_MNT_ID))
				return -ENOSYS;
			*ret_mnt_id = stx.stx_mnt_id;
			return 0;
		}
		if ((errno != ENOENT && errno != ENOTDIR) || slash == dir)
			return -errno;
	}
}

static enum identify_kind identify_deleted(const struct statx *stx, struct identity *identity)
{
	size_t len = strlen(identity->path);
	bool is_memfd = strncmp(identity->path, "/memfd:", 7) == 0;
	uint64_t mnt_id;
	int r;

	identity->path[len - DELETED_LEN] = '\0';
	if (is_tmpfile_name(identity->path, stx->stx_ino)) {
		if (stx->stx_nlink == 0)
			return IDENTIFY_LOCAL;
		return refuse(identity, "it was opened as an unnamed temporary file and got its name later; open it by its name", 0);
	}
	r = mount_of_directory(identity->path, &mnt_id);
	if (r == 0 && (stx->stx_mask & STATX_MNT_ID) && stx->stx_mnt_id == mnt_id) {
		identity->deleted = true;
		return IDENTIFY_MANAGED;
	}
	/* A memfd lies on a mount of the kernel's own, whatever its name pretends. */
	if (is_memfd)
		return IDENTIFY_LOCAL;
	if (r < 0)
		return refuse(identity, "the file is deleted and its directory cannot be looked up", -r);
	return refuse(identity, "the file is deleted and was opened in another mount namespace or beneath a newer mount", 0);
}

/* One attempt; *ret_again when the path may only have changed under our eyes. */
static enum identify_kind identify_once(int fd, const struct statx *stx, struct identity *identity, bool *ret_again)
{
	char link[32];
	struct statx there;
	ssize_t n;
	size_t len;
	int err = 0;

	*ret_again = false;
	identity->path[0] = '\0';
	fd_link(link, fd);
	n = readlink(link, identity->path, sizeof(identity->path));
	if (n < 0) {
		err = errno;
		identity->path[0] = '\0';
		if (err == ENAMETOOLONG)
			return refuse(identity, "it is longer than the system allows", 0);
		return refuse(identity, "/proc does not show it", err);
	}
	if ((size_t)n >= sizeof(identity->path)) {
		identity->path[sizeof(identity->path) - 1] = '\0';
		return refuse(identity, "it is longer than the system allows", 0);
	}
	len = (size_t)n;
	identity->path[len] = '\0';
	if (identity->path[0] != '/')
		return IDENTIFY_LOCAL;

	/* The path as it is comes first: a live file may be called "x (deleted)". */
	if (statx(AT_FDCWD, identity->path, AT_SYMLINK_NOFOLLOW, STATX_INO, &there) < 0)
		err = errno;
	else if (same_inode(stx, &there))
		return IDENTIFY_MANAGED;

	if (len > DELETED_LEN && strcmp(identity->path + len - DELETED_LEN, DELETED) == 0)
		return identify_deleted(stx, identity);
	*ret_again = true;
	if (err == ENAMETOOLONG)
		return refuse(identity, "it is longer than the system allows", 0);
	if (err)
		return refuse(identity, "the lock agent cannot look it up in its own mount namespace", err);
	return refuse(identity, "it is another file in the lock agent's mount namespace", 0);
}

enum identify_kind identify_fd(int fd, struct identity *ret_identity)
{
	struct statx stx;
	enum identify_kind kind;
	bool again;
	int flags;

	ret_identity->directory = false;
	ret_identity->deleted = false;
	ret_identity->path[0] = '\0';
	ret_identity->reason[0] = '\0';
	memset(&ret_identity->id, 0, sizeof(ret_identity->id));

	flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return refuse(ret_identity, "the descriptor is not usable", errno);
	if (flags & O_PATH)	/* flock answers EBADF, and the kernel shall say so */
		return IDENTIFY_LOCAL;
	if (statx(fd, "", AT_EMPTY_PATH, IDENTIFY_MASK, &stx) < 0)
		return refuse(ret_identity, "the file cannot be examined", errno);
	if (!S_ISREG(stx.stx_mode) && !S_ISDIR(stx.stx_mode))
		return IDENTIFY_LOCAL;
	ret_identity->directory = S_ISDIR(stx.stx_mode);
	id_from_statx(&stx, &ret_identity->id);

	/* A rename between the two looks is no fake: look again. */
	for (int tries = 0;; tries++) {
		kind = identify_once(fd, &stx, ret_identity, &again);
		if (!again || tries == 3)
			break;
	}
	if (kind != IDENTIFY_REFUSED)
		ret_identity->reason[0] = '\0';
	return kind;
}

/*
 * A writer is noticed by others: it breaks a read lease, forbids execution (ETXTBSY), and its close is an event
 * "written" to whoever watches. Beside a program that has the file open for writing the agent changes nothing of that but for how long.
 */
static bool may_write_too(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_RDONLY)
		return false;
	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !(st.st_mode & 0111);
}

int identify_reopen(int fd, bool records)
{
	const int flags = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	char link[32];
	int r = -1;

	fd_link(link, fd);
	if (records && may_write_too(fd))
		r = open(link, O_RDWR | flags);
	if (r < 0)
		r = open(link, O_RDONLY | flags);
	if (r < 0 && errno == EACCES)
		r = open(link, O_WRONLY | flags);
	return r < 0 ? -errno : r;
}

/* --- identify_is_local ------------------------------------------------- */

/*
 * Verdicts are remembered by (device, mount) until the mount table changes:
 * device and mount numbers are used again after an unmount.
 */
struct verdict {
	dev_t dev;
	uint64_t mnt_id;
	bool is_local;
};

static struct {
	pthread_mutex_t lock;	/* guards all that follows */
	int mountinfo_fd;
	struct verdict verdicts[64];
	unsigned count, next;
} locals = { .lock = PTHREAD_MUTEX_INITIALIZER, .mountinfo_fd = -1 };

/* Overlay counts as local: its layers nearly always are, and containers have nothing else. */
static bool type_is_local(const char *type)
{
	static const char *const types[] = {
		"ext4", "tmpfs", "xfs", "btrfs", "overlay", "ext2", "ext3", "f2fs", "zfs", "bcachefs", "ramfs", "devtmpfs",
		"vfat", "exfat", "ntfs3", "jfs", "reiserfs", "nilfs2", "squashfs", "erofs", "iso9660", "udf",
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(types[i], type) == 0)
			return true;
	return false;
}

/* Reads all of mountinfo; the caller frees. NULL on failure. */
static char *mountinfo_read(int fd)
{
	size_t size = 16384, len = 0;
	char *text = malloc(size);

	while (text) {
		ssize_t n = pread(fd, text + len, size - len - 1, (off_t)len);
		char *more;

		if (n <= 0) {
			if (n < 0) {
				free(text);
				return NULL;
			}
			text[len] = '\0';
			return text;
		}
		len += (size_t)n;
		if (size - len > 4096)
			continue;
		size *= 2;
		more = realloc(text, size);
		if (!more)
			free(text);
		text = more;
	}
	return NULL;
}

/*
 * The line of this mount says the type (btrfs shows other device numbers in
 * stat than in the table); a mount of another namespace is found by its device.
 * Returns 1 local, 0 not, -ENOENT unknown.
 */
static int mountinfo_find(const char *text, dev_t dev, uint64_t mnt_id)
{
	int by_dev = -ENOENT;

	for (const char *line = text; line && *line;) {
		const char *end = strchr(line, '\n'), *dash = strstr(line, " - ");
		unsigned long long id;
		unsigned major_nr, minor_nr;
		char type[32];

		if (dash && (!end || dash < end) && sscanf(line, "%llu %*u %u:%u", &id, &major_nr, &minor_nr) == 3 &&
		    sscanf(dash, " - %31s", type) == 1) {
			if (id == mnt_id)
				return type_is_local(type);
			if (makedev(major_nr, minor_nr) == dev)
				by_dev = type_is_local(type);
		}
		line = end ? end + 1 : NULL;
	}
	return by_dev;
}

/* With the lock held. A change of the mount table wakes poll() on mountinfo. */
static bool locals_open(void)
{
	struct pollfd p;

	if (locals.mountinfo_fd < 0) {
		locals.mountinfo_fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
		locals.count = locals.next = 0;
		return locals.mountinfo_fd >= 0;
	}
	p.fd = locals.mountinfo_fd;
	p.events = POLLPRI;
	if (poll(&p, 1, 0) != 0)
		locals.count = locals.next = 0;
	return true;
}

bool identify_is_local(int fd)
{
	struct statx stx;
	bool is_local = false;
	dev_t dev;
	int found;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_MNT_ID, &stx) < 0 || !(stx.stx_mask & STATX_MNT_ID))
		return false;
	dev = statx_dev(&stx);

	pthread_mutex_lock(&locals.lock);
	if (!locals_open())
		goto out;
	for (unsigned i = 0; i < locals.count; i++) {
		if (locals.verdicts[i].mnt_id == stx.stx_mnt_id && locals.verdicts[i].dev == dev) {
			is_local = locals.verdicts[i].is_local;
			goto out;
		}
	}
	char *text = mountinfo_read(locals.mountinfo_fd);

	found = text ? mountinfo_find(text, dev, stx.stx_mnt_id) : -ENOMEM;
	free(text);
	if (found >= 0) {
		const unsigned max = sizeof(locals.verdicts) / sizeof(locals.verdicts[0]);

		is_local = found;
		locals.verdicts[locals.next] = (struct verdict){ .dev = dev, .mnt_id = stx.stx_mnt_id, .is_local = is_local };
		locals.next = (locals.next + 1) % max;
		if (locals.count < max)
			locals.count++;
	}
out:
	pthread_mutex_unlock(&locals.lock);
	return is_local;
}
