/* SPDX-License-Identifier: MIT */
/*
 * Who holds a lock, from /proc alone.
 *
 * A lock line in /proc/PID/fdinfo/N names the inode as the superblock knows it.
 * On btrfs and on some overlays its device differs from that of stat(): the inode
 * number is compared first, and only where the device does not fit is the
 * descriptor itself asked (statx without synchronisation: no traffic).
 *
 * When the quick pass finds nobody there is a thorough one: descriptor tables of
 * threads that do not share their process's, and each flock whatever number it shows.
 *
 * Must not open a program's file and must not allocate. Processes come and go
 * all the time: what vanishes under our eyes is skipped.
 */
#include "holders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The kernel's record of getdents64(2). */
struct entry {
	uint64_t ino;
	int64_t off;
	unsigned short len;
	unsigned char type;
	char name[];
};

struct flock_line {
	enum lock_mode mode;
	dev_t dev;		/* the superblock's */
	uint64_t ino;
};

struct walk {
	const struct inode_id *ids;	/* NULL: every flock */
	size_t count;
	bool thorough;
	void (*fn)(void *arg, const struct holder *holder);
	void (*scan_fn)(void *arg, pid_t pid, const char *fd_path, enum lock_mode mode);
	void *arg;
	int found;
};

static int number_of(const char *name)
{
	int n = 0;

	if (*name == '\0')
		return -1;
	for (; *name; name++) {
		if (*name < '0' || *name > '9' || n > (INT_MAX - 9) / 10)
			return -1;
		n = n * 10 + (*name - '0');
	}
	return n;
}

/* Calls fn with each entry of the directory dirfd/name that is a number. 0 or -errno. */
static int each_number(int dirfd, const char *name, void (*fn)(void *arg, int dirfd, int number), void *arg)
{
	_Alignas(struct entry) char buf[8192];
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long n;

	if (fd < 0)
		return -errno;
	while ((n = syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0) {
		for (long at = 0; at < n;) {
			struct entry *entry = (struct entry *)(buf + at);
			int number = number_of(entry->name);

			if (number >= 0)
				fn(arg, fd, number);
			at += entry->len;
		}
	}
	n = n < 0 ? -errno : 0;
	close(fd);
	return (int)n;
}

/* "lock:\t1: FLOCK  ADVISORY  WRITE 123 fe:00:4711 0 EOF" */
static bool parse_lock_line(const char *line, struct flock_line *ret_lock)
{
	char kind[16], access[16];
	unsigned major_nr, minor_nr;
	unsigned long long ino;

	if (sscanf(line, "lock:%*d: %15s %*s %15s %*d %x:%x:%llu", kind, access, &major_nr, &minor_nr, &ino) != 5)
		return false;
	if (strcmp(kind, "FLOCK") != 0)
		return false;
	ret_lock->mode = strcmp(access, "WRITE") == 0 ? MODE_EX : MODE_SH;
	ret_lock->dev = makedev(major_nr, minor_nr);
	ret_lock->ino = ino;
	return true;
}

/* The flock that descriptor `number` of this table holds. A description has one at most, and the kernel lists it before any record lock. */
static bool read_flock(int fdinfo_dir, int number, struct flock_line *ret_lock)
{
	char name[16], text[2048], *line;
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "%d", number);
	fd = openat(fdinfo_dir, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	line = strstr(text, "\nlock:");
	while (line) {
		if (parse_lock_line(line + 1, ret_lock))
			return true;
		line = strstr(line + 1, "\nlock:");
	}
	return false;
}

static bool stat_fits(const char *path, const struct inode_id *id)
{
	struct statx stx;

	return statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_INO, &stx) == 0 && stx.stx_ino == id->ino &&
	       makedev(stx.stx_dev_major, stx.stx_dev_minor) == id->dev;
}

static void read_command(pid_t pid, char command[64])
{
	char path[64];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, command, 63);
		close(fd);
	}
	if (n > 0 && command[n - 1] == '\n')
		n--;
	command[n > 0 ? n : 0] = '\0';
}

static void report(struct walk *walk, pid_t pid, size_t inode, enum lock_mode mode, bool mapping)
{
	struct holder holder = { .pid = pid, .inode = inode, .mode = mode, .mapping = mapping };

	walk->found++;
	if (!walk->fn)
		return;
	read_command(pid, holder.command);
	walk->fn(walk->arg, &holder);
}

/* --- descriptors -------------------------------------------------------- */

/* A process that holds one inode by several descriptors is one holder; this many inodes are remembered for it. */
#define SEEN_MAX 64

struct table {			/* one descriptor table */
	struct walk *walk;
	pid_t pid;
	char fd_dir[48];	/* "/proc/PID/fd" or "/proc/PID/task/TID/fd" */
	size_t seen[SEEN_MAX];
	size_t seen_count;
};

static bool seen_before(struct table *table, size_t inode)
{
	for (size_t i = 0; i < table->seen_count; i++)
		if (table->seen[i] == inode)
			return true;
	if (table->seen_count < SEEN_MAX)
		table->seen[table->seen_count++] = inode;
	return false;
}

static void on_fdinfo(void *arg, int fdinfo_dir, int number)
{
	struct table *table = arg;
	struct walk *walk = table->walk;
	struct flock_line lock;
	char path[64];

	if (!read_flock(fdinfo_dir, number, &lock))
		return;
	snprintf(path, sizeof(path), "%s/%d", table->fd_dir, number);
	if (walk->scan_fn) {
		walk->found++;
		walk->scan_fn(walk->arg, table->pid, path, lock.mode);
		return;
	}
	for (size_t i = 0; i < walk->count; i++) {
		const struct inode_id *id = &walk->ids[i];
		bool fits = lock.ino == id->ino && lock.dev == id->dev;

		if (!fits && (lock.ino == id->ino || walk->thorough))
			fits = stat_fits(path, id);
		if (!fits)
			continue;
		if (!seen_before(table, i))
			report(walk, table->pid, i, lock.mode, false);
		return;
	}
}

static void walk_table(struct walk *walk, pid_t pid, pid_t tid)
{
	struct table table = { .walk = walk, .pid = pid };
	char fdinfo[64];

	if (tid == pid)
		snprintf(table.fd_dir, sizeof(table.fd_dir), "/proc/%d/fd", (int)pid);
	else
		snprintf(table.fd_dir, sizeof(table.fd_dir), "/proc/%d/task/%d/fd", (int)pid, (int)tid);
	snprintf(fdinfo, sizeof(fdinfo), "%sinfo", table.fd_dir);
	each_number(AT_FDCWD, fdinfo, on_fdinfo, &table);
}

struct threads {
	struct walk *walk;
	pid_t pid;
};

static void on_thread(void *arg, int task_dir, int tid)
{
	struct threads *threads = arg;

	(void)task_dir;
	if (tid == threads->pid)
		return;
	if (syscall(SYS_kcmp, threads->pid, tid, KCMP_FILES, 0, 0) == 0)
		return;		/* the same table; where we may not ask, it is looked at */
	walk_table(threads->walk, threads->pid, tid);
}

static void walk_process(struct walk *walk, pid_t pid)
{
	walk_table(walk, pid, pid);
	if (walk->thorough) {
		struct threads threads = { .walk = walk, .pid = pid };
		char path[32];

		snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
		each_number(AT_FDCWD, path, on_thread, &threads);
	}
}

struct everyone {
	struct walk *walk;
	pid_t self, skip;
	void (*fn)(struct walk *walk, pid_t pid);
};

static void on_process(void *arg, int proc_dir, int pid)
{
	struct everyone *everyone = arg;

	(void)proc_dir;
	if (pid != everyone->self && pid != everyone->skip)
		everyone->fn(everyone->walk, pid);
}

static int walk_everyone(struct walk *walk, pid_t skip_pid, void (*fn)(struct walk *walk, pid_t pid))
{
	struct everyone everyone = { .walk = walk, .self = getpid(), .skip = skip_pid, .fn = fn };
	int r = each_number(AT_FDCWD, "/proc", on_process, &everyone);

	return r < 0 ? r : walk->found;
}

int holders_find(const struct inode_id *ids, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg)
{
	struct walk walk = { .ids = ids, .count = count, .fn = fn, .arg = arg };
	int r;

	if (count == 0)
		return 0;
	r = walk_everyone(&walk, skip_pid, walk_process);
	if (r != 0)
		return r;
	walk.thorough = true;
	return walk_everyone(&walk, skip_pid, walk_process);
}

int holders_scan_all(void (*fn)(void *arg, pid_t pid, const char *fd_path, enum lock_mode mode), void *arg)
{
	struct walk walk = { .thorough = true, .scan_fn = fn, .arg = arg };

	return walk_everyone(&walk, 0, walk_process);
}

/* --- mappings ----------------------------------------------------------- */

struct mapping {
	unsigned long long from, to, ino;
	dev_t dev;
};

/* "7f…-7f… r--s 00000000 fe:00 4711   /path"; false for what has no inode. */
static bool parse_mapping(const char *line, struct mapping *ret_mapping)
{
	unsigned major_nr, minor_nr;

	if (sscanf(line, "%llx-%llx %*s %*x %x:%x %llu", &ret_mapping->from, &ret_mapping->to, &major_nr, &minor_nr, &ret_mapping->ino) != 5)
		return false;
	ret_mapping->dev = makedev(major_nr, minor_nr);
	return ret_mapping->ino != 0;
}

static void match_mapping(struct walk *walk, pid_t pid, const struct mapping *mapping, struct table *table)
{
	char path[96];

	for (size_t i = 0; i < walk->count; i++) {
		const struct inode_id *id = &walk->ids[i];

		if (mapping->ino != id->ino)
			continue;
		if (mapping->dev != id->dev) {
			snprintf(path, sizeof(path), "/proc/%d/map_files/%llx-%llx", (int)pid, mapping->from, mapping->to);
			if (!stat_fits(path, id))
				continue;
		}
		if (!seen_before(table, i))
			report(walk, pid, i, MODE_EX, true);
		return;
	}
}

static void walk_mappings(struct walk *walk, pid_t pid)
{
	struct table table = { .walk = walk, .pid = pid };
	char text[8192], path[32];
	size_t have = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	/* A line can be longer than the buffer only in its path, which nobody needs. */
	while ((n = read(fd, text + have, sizeof(text) - 1 - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		text[have] = '\0';
		while ((end = strchr(line, '\n')) != NULL) {
			struct mapping mapping;

			*end = '\0';
			if (parse_mapping(line, &mapping))
				match_mapping(walk, pid, &mapping, &table);
			line = end + 1;
		}
		have -= (size_t)(line - text);
		memmove(text, line, have);
		if (have > 4096)	/* keep the numbers, drop the middle of the path */
			have = 1024;
	}
	close(fd);
}

int holders_find_mappings(const struct inode_id *ids, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg)
{
	struct walk walk = { .ids = ids, .count = count, .fn = fn, .arg = arg };

	if (count == 0)
		return 0;
	return walk_everyone(&walk, skip_pid, walk_mappings);
}

/* --- signals ------------------------------------------------------------ */

/* The pidfd is opened before the second look: what is seen then is what is signalled, whatever becomes of the number. */
int holder_signal(const struct holder *holder, const struct inode_id *id, int sig)
{
	struct walk walk = { .ids = id, .count = 1, .thorough = true };
	int pidfd = (int)syscall(SYS_pidfd_open, holder->pid, 0);
	int r = 0;

	if (pidfd < 0)
		return -errno;
	if (holder->mapping)
		walk_mappings(&walk, holder->pid);
	else
		walk_process(&walk, holder->pid);
	if (walk.found == 0)
		r = -ESRCH;
	else if (syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) < 0)
		r = -errno;
	close(pidfd);
	return r;
}

enum lock_mode holders_fd_mode(pid_t pid, int fd_number)
{
	struct flock_line lock = { .mode = MODE_NONE };
	char dir[32];
	int fd;

	snprintf(dir, sizeof(dir), "/proc/%d/fdinfo", (int)pid);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return MODE_NONE;
	read_flock(fd, fd_number, &lock);
	close(fd);
	return lock.mode;
}
