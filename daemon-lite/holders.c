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
 * threads that do not share their process's, and each lock whatever number it shows.
 *
 * A flock or an OFD lock is listed at each descriptor of its description, a POSIX
 * lock only where it was set and only in a table that owns it: a child that has
 * inherited the descriptor is not shown, a process that shares the table is.
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

struct walk {
	const struct holder_file *files;
	size_t count;
	bool thorough;
	void (*fn)(void *arg, const struct holder *holder);
	void (*scan_fn)(void *arg, pid_t pid, const char *fd_path, bool records, enum lock_mode mode); /* then `files` does not count */
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

/* "lock:\t1: FLOCK  ADVISORY  WRITE 123 fe:00:4711 0 EOF"; the end is the last byte. */
static bool parse_lock_line(const char *line, struct holder_lock *ret_lock)
{
	char kind[16], access[16], last[24];
	unsigned major_nr, minor_nr;
	unsigned long long ino, start;
	struct holder_lock lock = { .at = EXTENT_ALL };

	if (sscanf(line, "lock:%*d: %15s %*s %15s %*d %x:%x:%llu %llu %23s", kind, access, &major_nr, &minor_nr, &ino, &start, last) != 7)
		return false;
	lock.ofd = strcmp(kind, "OFDLCK") == 0;
	lock.record = lock.ofd || strcmp(kind, "POSIX") == 0;
	if (!lock.record && strcmp(kind, "FLOCK") != 0)
		return false;
	if (lock.record)
		lock.at = (struct extent){ start, strcmp(last, "EOF") == 0 ? EXTENT_END : strtoull(last, NULL, 10) + 1 };
	lock.mode = strcmp(access, "WRITE") == 0 ? MODE_EX : MODE_SH;
	lock.dev = makedev(major_nr, minor_nr);
	lock.ino = ino;
	*ret_lock = lock;
	return true;
}

/*
 * Calls fn with each lock that descriptor `number` of this table shows. The lock lines are together, behind some short ones:
 * without one in the first piece there are none. A piece that does not fill the buffer is the last: the kernel makes the text at once.
 */
static void each_lock(int fdinfo_dir, int number, void (*fn)(void *arg, const struct holder_lock *lock), void *arg)
{
	char name[16], text[4096];
	size_t have = 0, room;
	bool any = false, over = false;
	ssize_t n;
	int fd;

	snprintf(name, sizeof(name), "%d", number);
	fd = openat(fdinfo_dir, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	while (!over && (n = read(fd, text + have, room = sizeof(text) - 1 - have)) > 0) {
		char *line = text, *end;

		have += (size_t)n;
		text[have] = '\0';
		over = (size_t)n < room;
		for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
			struct holder_lock lock;

			*end = '\0';
			if (strncmp(line, "lock:", 5) != 0) {
				over = over || any;
				continue;
			}
			any = true;
			if (parse_lock_line(line, &lock))
				fn(arg, &lock);
		}
		over = over || !any;
		have -= (size_t)(line - text);
		memmove(text, line, have);
	}
	close(fd);
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

/* --- descriptors -------------------------------------------------------- */

/* What is remembered of a table, so that a lock is reported once however many descriptors lead to it. Beyond it nothing is: a lock may come twice then. */
#define SEEN_MAX 64

struct table {			/* one descriptor table */
	struct walk *walk;
	pid_t pid, tid;
	char fd_dir[48];	/* "/proc/PID/fd" or "/proc/PID/task/TID/fd" */
	char command[64];
	bool command_read;
	size_t seen[SEEN_MAX];	/* files: flocks, and mappings */
	size_t seen_count;
	int shown[SEEN_MAX];	/* descriptors whose record locks were reported */
	size_t shown_count;
};

static void report(struct table *table, struct holder holder)
{
	struct walk *walk = table->walk;

	walk->found++;
	if (!walk->fn)
		return;
	if (!table->command_read)
		read_command(table->pid, table->command);
	table->command_read = true;
	holder.pid = table->pid;
	memcpy(holder.command, table->command, sizeof(holder.command));
	walk->fn(walk->arg, &holder);
}

static bool seen_before(struct table *table, size_t file)
{
	for (size_t i = 0; i < table->seen_count; i++)
		if (table->seen[i] == file)
			return true;
	if (table->seen_count < SEEN_MAX)
		table->seen[table->seen_count++] = file;
	return false;
}

/* Whether an earlier descriptor was another number of this description. Without kcmp nobody knows: no. */
static bool shown_before(struct table *table, int number)
{
	for (size_t i = 0; i < table->shown_count; i++)
		if (syscall(SYS_kcmp, table->tid, table->tid, KCMP_FILE, table->shown[i], number) == 0)
			return true;
	if (table->shown_count < SEEN_MAX)
		table->shown[table->shown_count++] = number;
	return false;
}

struct descriptor {
	struct table *table;
	int number;
	char path[64];		/* in /proc */
	struct {
		bool looked;
		ssize_t file;	/* which of the walk's files; -1 = none of them, or reported already */
		enum lock_mode strongest;
	} kind[2];		/* flocks, record locks */
};

static ssize_t file_of(const struct descriptor *descriptor, const struct holder_lock *lock)
{
	const struct walk *walk = descriptor->table->walk;

	for (size_t i = 0; i < walk->count; i++) {
		const struct inode_id *id = &walk->files[i].id;
		bool fits = lock->ino == id->ino && lock->dev == id->dev;

		if (walk->files[i].records != lock->record)
			continue;
		if (!fits && (lock->ino == id->ino || walk->thorough))
			fits = stat_fits(descriptor->path, id);
		if (fits)
			return (ssize_t)i;
	}
	return -1;
}

static void on_lock(void *arg, const struct holder_lock *lock)
{
	struct descriptor *descriptor = arg;
	struct table *table = descriptor->table;
	ssize_t file;

	descriptor->kind[lock->record].strongest = mode_max(descriptor->kind[lock->record].strongest, lock->mode);
	if (table->walk->scan_fn)
		return;
	if (!descriptor->kind[lock->record].looked) {
		file = file_of(descriptor, lock);
		if (file >= 0 && (lock->record ? shown_before(table, descriptor->number) : seen_before(table, (size_t)file)))
			file = -1;
		descriptor->kind[lock->record].looked = true;
		descriptor->kind[lock->record].file = file;
	}
	file = descriptor->kind[lock->record].file;
	if (file >= 0)
		report(table, (struct holder){ .inode = (size_t)file, .mode = lock->mode, .at = lock->at, .ofd = lock->ofd });
}

static void on_fdinfo(void *arg, int fdinfo_dir, int number)
{
	struct table *table = arg;
	struct walk *walk = table->walk;
	struct descriptor descriptor = { .table = table, .number = number };

	snprintf(descriptor.path, sizeof(descriptor.path), "%s/%d", table->fd_dir, number);
	each_lock(fdinfo_dir, number, on_lock, &descriptor);
	for (int records = 0; walk->scan_fn && records < 2; records++) {
		if (descriptor.kind[records].strongest == MODE_NONE)
			continue;
		walk->found++;
		walk->scan_fn(walk->arg, table->pid, descriptor.path, records, descriptor.kind[records].strongest);
	}
}

static void walk_table(struct walk *walk, pid_t pid, pid_t tid)
{
	struct table table = { .walk = walk, .pid = pid, .tid = tid };
	char fdinfo[64];

	if (tid == pid)
		snprintf(table.fd_dir, sizeof(table.fd_dir), "/proc/%d/fd", (int)pid);
	else
		snprintf(table.fd_dir, sizeof(table.fd_dir), "/proc/%d/task/%d/fd", (int)pid, (int)tid);
	snprintf(fdinfo, sizeof(fdinfo), "%sinfo", table.fd_dir);
	each_number(AT_FDCWD, fdinfo, on_fdinfo, &table);
}

struct whole_table {
	char fd_dir[48];
	char fd_path[64];
	void (*fn)(void *arg, const char *fd_path, const struct holder_lock *lock);
	void *arg;
};

static void on_table_lock(void *arg, const struct holder_lock *lock)
{
	const struct whole_table *table = arg;

	table->fn(table->arg, table->fd_path, lock);
}

static void on_table_number(void *arg, int fdinfo_dir, int number)
{
	struct whole_table *table = arg;

	snprintf(table->fd_path, sizeof(table->fd_path), "%s/%d", table->fd_dir, number);
	each_lock(fdinfo_dir, number, on_table_lock, table);
}

int holders_table(pid_t pid, pid_t tid, void (*fn)(void *arg, const char *fd_path, const struct holder_lock *lock), void *arg)
{
	struct whole_table table = { .fn = fn, .arg = arg };
	char fdinfo[64];

	snprintf(table.fd_dir, sizeof(table.fd_dir), "/proc/%d/task/%d/fd", (int)pid, (int)tid);
	snprintf(fdinfo, sizeof(fdinfo), "%sinfo", table.fd_dir);
	return each_number(AT_FDCWD, fdinfo, on_table_number, &table);
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

int holders_find(const struct holder_file *files, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg)
{
	struct walk walk = { .files = files, .count = count, .fn = fn, .arg = arg };
	int r;

	if (count == 0)
		return 0;
	r = walk_everyone(&walk, skip_pid, walk_process);
	if (r != 0)
		return r;
	walk.thorough = true;
	return walk_everyone(&walk, skip_pid, walk_process);
}

int holders_scan_all(void (*fn)(void *arg, pid_t pid, const char *fd_path, bool records, enum lock_mode mode), void *arg)
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

/* A mapping keeps a description and so a flock or an OFD lock; what it holds is not shown. */
static void match_mapping(struct table *table, const struct mapping *mapping)
{
	const struct walk *walk = table->walk;
	char path[96];

	for (size_t i = 0; i < walk->count; i++) {
		const struct inode_id *id = &walk->files[i].id;

		if (mapping->ino != id->ino)
			continue;
		if (mapping->dev != id->dev) {
			snprintf(path, sizeof(path), "/proc/%d/map_files/%llx-%llx", (int)table->pid, mapping->from, mapping->to);
			if (!stat_fits(path, id))
				continue;
		}
		if (!seen_before(table, i))
			report(table, (struct holder){ .inode = i, .mode = MODE_EX, .at = EXTENT_ALL, .ofd = walk->files[i].records, .mapping = true });
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
				match_mapping(&table, &mapping);
			line = end + 1;
		}
		have -= (size_t)(line - text);
		memmove(text, line, have);
		if (have > 4096)	/* keep the numbers, drop the middle of the path */
			have = 1024;
	}
	close(fd);
}

int holders_find_mappings(const struct holder_file *files, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg)
{
	struct walk walk = { .files = files, .count = count, .fn = fn, .arg = arg };

	if (count == 0)
		return 0;
	return walk_everyone(&walk, skip_pid, walk_mappings);
}

/* --- signals ------------------------------------------------------------ */

/* The pidfd is opened before the second look: what is seen then is what is signalled, whatever becomes of the number. */
int holder_signal(const struct holder *holder, const struct holder_file *file, int sig)
{
	struct walk walk = { .files = file, .count = 1, .thorough = true };
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

struct strongest {
	bool records;
	enum lock_mode mode;
};

static void on_own_lock(void *arg, const struct holder_lock *lock)
{
	struct strongest *strongest = arg;

	if (lock->record == strongest->records)
		strongest->mode = mode_max(strongest->mode, lock->mode);
}

enum lock_mode holders_fd_mode(pid_t pid, int fd_number, bool records)
{
	struct strongest strongest = { .records = records, .mode = MODE_NONE };
	char dir[32];
	int fd;

	snprintf(dir, sizeof(dir), "/proc/%d/fdinfo", (int)pid);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return MODE_NONE;
	each_lock(fd, fd_number, on_own_lock, &strongest);
	close(fd);
	return strongest.mode;
}
