/* SPDX-License-Identifier: MIT */
/*
 * Waits, owners and holds from /proc.
 *
 * An owner of POSIX locks is a descriptor table: threads share their process's unless
 * they have unshared it, processes made with CLONE_FILES share one. kcmp(2) tells;
 * where it may not be asked, one process counts as one owner. `lock:` lines of type POSIX
 * in the fdinfo of a table are exactly what that table owns.
 *
 * /proc/locks names the process of a wait in the kernel, not the thread. A call that
 * the agent knows says its thread itself. Of another one it is the thread of that
 * process which is inside fcntl(F_SETLKW); where several are and they do not share a table, nobody
 * knows which, and the wait is left out. That such a wait is still the same one is seen by the
 * threads' counts of context switches: who has not run has not come out of it.
 *
 * Processes come and go under our eyes: what vanishes is left out, which never makes a deadlock of what is none.
 */
#include "deadlock_proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "holders.h"

#define SETLKW_32 14		/* F_SETLKW64 of 32-bit programs */

static int grow(void *array, size_t count, size_t *cap, size_t size)
{
	void **at = array, *grown;
	size_t more = *cap ? 2 * *cap : 16;

	if (count < *cap)
		return 0;
	grown = reallocarray(*at, more, size);
	if (!grown)
		return -ENOMEM;
	*at = grown;
	*cap = more;
	return 0;
}

/* The file's beginning, as a string. False if it cannot be read. */
static bool read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t have = 0;
	ssize_t n;

	if (fd < 0)
		return false;
	while (have < size - 1 && (n = read(fd, text + have, size - 1 - have)) > 0)
		have += (size_t)n;
	close(fd);
	text[have] = '\0';
	return have > 0;
}

/* Calls fn with each thread of the process until it returns false. */
static void each_task(pid_t pid, bool (*fn)(void *arg, pid_t pid, pid_t tid), void *arg)
{
	struct dirent *entry;
	char path[32];
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	dir = opendir(path);
	if (!dir)
		return;
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && !fn(arg, pid, (pid_t)atoi(entry->d_name)))
			break;
	closedir(dir);
}

/* --- threads --- */

/* The value of a line of /proc/PID/task/TID/status, its last number. 0 if it is not there. */
static uint64_t status_number(pid_t pid, pid_t tid, const char *field)
{
	char path[64], text[4096], *line, *end;

	snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)tid);
	if (!read_text(path, text, sizeof text))
		return 0;
	line = strstr(text, field);
	end = line ? strchr(line + 1, '\n') : NULL;
	if (!end)
		return 0;
	*end = '\0';
	while (end > line && end[-1] >= '0' && end[-1] <= '9')
		end--;
	return strtoull(end, NULL, 10);
}

struct wanted_task {
	uint32_t inner;
	pid_t tid;
};

static bool is_wanted_task(void *arg, pid_t pid, pid_t tid)
{
	struct wanted_task *wanted = arg;

	if (status_number(pid, tid, "\nNSpid:") != wanted->inner)
		return true;
	wanted->tid = tid;
	return false;
}

/* The thread that the client says it is, as we count threads here; the process's first one if there is no such thread. */
static pid_t task_of(pid_t pid, uint32_t tid)
{
	struct wanted_task wanted = { .inner = tid, .tid = pid };
	char path[64];
	uint64_t inner;

	if (!tid)
		return pid;
	inner = status_number(pid, pid, "\nNSpid:");
	if (inner == tid || !inner)
		return pid;
	if (inner != (uint64_t)pid) {	/* it lives in a pid namespace of its own */
		each_task(pid, is_wanted_task, &wanted);
		return wanted.tid;
	}
	snprintf(path, sizeof path, "/proc/%d/task/%u", (int)pid, tid);
	return access(path, F_OK) == 0 ? (pid_t)tid : pid;
}

/* --- owners --- */

static int compare_tables(pid_t a, pid_t b)
{
	return a == b ? 0 : (int)syscall(SYS_kcmp, a, b, KCMP_FILES, 0, 0);
}

/* The comparable owners are in the order that kcmp gives, and come first. */
static size_t owner_of(struct proc_look *look, pid_t pid, pid_t tid)
{
	size_t low = 0, high = 0, place;
	bool comparable = compare_tables(tid, getpid()) >= 0 || tid == getpid();

	while (high < look->owner_count && look->owners[high].comparable)
		high++;
	place = high;
	while (comparable && low < high) {
		size_t middle = low + (high - low) / 2;
		int order = compare_tables(tid, look->owners[middle].tid);

		if (order == 0)
			return middle;
		if (order == 1)
			high = middle;
		else if (order == 2)
			low = middle + 1;
		else
			comparable = false;	/* one of the two has gone */
	}
	if (comparable)
		place = low;
	for (size_t i = 0; !comparable && i < look->owner_count; i++)
		if (look->owners[i].pid == pid)
			return i;
	if (grow(&look->owners, look->owner_count, &look->owner_cap, sizeof *look->owners)) {
		look->err = -ENOMEM;
		return PROC_NOBODY;
	}
	if (!comparable)
		place = look->owner_count;
	memmove(&look->owners[place + 1], &look->owners[place], (look->owner_count - place) * sizeof *look->owners);
	look->owners[place] = (struct proc_owner){ .pid = pid, .tid = tid, .comparable = comparable };
	look->owner_count++;
	for (size_t i = 0; i < look->wait_count; i++)
		if (look->waits[i].owner != PROC_NOBODY && look->waits[i].owner >= place)
			look->waits[i].owner++;
	return place;
}

/* --- the kernel's queue --- */

struct queued {			/* a waiting line of /proc/locks */
	pid_t pid;
	enum lock_mode mode;
	struct extent at;
	dev_t dev;
	ino_t ino;
};

/* "1:  -> POSIX  ADVISORY  WRITE 4712 fe:00:815 0 EOF" */
static bool parse_queued(const char *line, struct queued *ret)
{
	const char *arrow = strstr(line, "-> POSIX ");
	char access[16], last[24];
	unsigned major_nr, minor_nr;
	unsigned long long ino, start;
	int pid;

	if (!arrow || sscanf(arrow, "-> POSIX %*s %15s %d %x:%x:%llu %llu %23s", access, &pid, &major_nr, &minor_nr, &ino, &start, last) != 7)
		return false;
	*ret = (struct queued){ .pid = pid, .mode = strcmp(access, "WRITE") == 0 ? MODE_EX : MODE_SH,
				.at = { start, strcmp(last, "EOF") == 0 ? EXTENT_END : strtoull(last, NULL, 10) + 1 },
				.dev = makedev(major_nr, minor_nr), .ino = (ino_t)ino };
	return pid > 0 && pid != getpid();
}

static struct proc_wait *known_wait(struct proc_look *look, const struct queued *queued)
{
	for (size_t i = 0; i < look->wait_count; i++) {
		struct proc_wait *wait = &look->waits[i];

		if (!wait->id || wait->asked || wait->ino || wait->pid != queued->pid || wait->mode != queued->mode || !extent_equal(wait->at, queued->at))
			continue;
		if (!wait->inode_count)
			return wait;
		for (size_t k = 0; k < wait->inode_count; k++)
			if (wait->inodes[k] == queued->ino)
				return wait;
	}
	return NULL;
}

static void read_queue(struct proc_look *look)
{
	FILE *file = fopen("/proc/locks", "re");
	struct queued queued;
	char line[256];

	if (!file)
		return;
	while (!look->err && fgets(line, sizeof line, file)) {
		struct proc_wait *wait;

		if (!parse_queued(line, &queued))
			continue;
		wait = known_wait(look, &queued);
		if (!wait) {
			if (look->wait_count == look->wait_max) {
				look->cut = true;
				break;
			}
			if (grow(&look->waits, look->wait_count, &look->wait_cap, sizeof *look->waits)) {
				look->err = -ENOMEM;
				break;
			}
			wait = &look->waits[look->wait_count++];
			*wait = (struct proc_wait){ .pid = queued.pid, .posix = true, .mode = queued.mode, .at = queued.at, .owner = PROC_NOBODY };
		}
		wait->dev = queued.dev;
		wait->ino = queued.ino;
	}
	fclose(file);
}

/* "72 0x5 0x7 …": the call's number, and what it is given. 55 and 221 are the fcntl and fcntl64 of 32-bit programs. */
static bool is_in_setlkw(pid_t pid, pid_t tid)
{
	unsigned long long fd, command;
	char path[64], text[256];
	int number;

	snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)tid);
	if (!read_text(path, text, sizeof text) || sscanf(text, "%d %llx %llx", &number, &fd, &command) != 3)
		return false;
	return (number == SYS_fcntl || number == 55 || number == 221) && (command == F_SETLKW || command == SETLKW_32);
}

struct sleepers {		/* the threads of a process that wait in the kernel */
	pid_t tid;		/* one of them */
	bool many;		/* they do not share one table */
	uint64_t stamp;
};

static bool add_sleeper(void *arg, pid_t pid, pid_t tid)
{
	struct sleepers *sleepers = arg;
	uint64_t more;

	if (!is_in_setlkw(pid, tid))
		return true;
	if (!sleepers->tid)
		sleepers->tid = tid;
	else if (compare_tables(sleepers->tid, tid) != 0)
		sleepers->many = true;
	more = status_number(pid, tid, "\nvoluntary_ctxt_switches:") * 31 + status_number(pid, tid, "\nnonvoluntary_ctxt_switches:");
	sleepers->stamp = (sleepers->stamp ^ (more + (uint64_t)tid)) * UINT64_C(0x9e3779b97f4a7c15) + more;
	return true;
}

/* --- what they hold --- */

struct table {
	struct proc_look *look;
	size_t owner;
	char fd_path[64];	/* the last descriptor that was asked for its file … */
	dev_t dev;		/* … and what it said */
};

static void on_lock(void *arg, const char *fd_path, const struct holder_lock *lock)
{
	struct table *table = arg;
	struct proc_look *look = table->look;
	struct statx stx;

	look->owners[table->owner].holds_any = true;
	if (!lock->record || lock->ofd)
		return;
	if (look->hold_count == look->hold_max) {
		look->cut = true;
		return;
	}
	if (grow(&look->holds, look->hold_count, &look->hold_cap, sizeof *look->holds)) {
		look->err = -ENOMEM;
		return;
	}
	if (strcmp(table->fd_path, fd_path) != 0) {
		strcpy(table->fd_path, fd_path);
		table->dev = lock->dev;
		if (statx(AT_FDCWD, fd_path, AT_STATX_DONT_SYNC, STATX_INO, &stx) == 0 && stx.stx_ino == lock->ino)
			table->dev = makedev(stx.stx_dev_major, stx.stx_dev_minor);
	}
	look->holds[look->hold_count++] = (struct proc_hold){ .owner = table->owner, .dev = lock->dev, .stat_dev = table->dev,
							      .ino = lock->ino, .mode = lock->mode, .at = lock->at };
}

void deadlock_proc_look(struct proc_look *look)
{
	for (size_t i = 0; i < look->wait_count; i++) {
		look->waits[i].owner = PROC_NOBODY;
		look->waits[i].ino = 0;
	}
	if (look->in_kernel)
		read_queue(look);
	for (size_t i = 0; !look->err && i < look->wait_count; i++) {
		struct proc_wait *wait = &look->waits[i];
		size_t owner = PROC_NOBODY;

		if (wait->asked || (wait->id && wait->ino)) {
			owner = owner_of(look, wait->pid, task_of(wait->pid, wait->tid));
		} else if (wait->ino) {
			struct sleepers sleepers = { 0 };

			each_task(wait->pid, add_sleeper, &sleepers);
			wait->stamp = sleepers.stamp;
			if (sleepers.tid && !sleepers.many)
				owner = owner_of(look, wait->pid, sleepers.tid);
		}
		wait->owner = owner;
	}
	for (size_t i = 0; !look->err && i < look->owner_count; i++) {
		struct table table = { .look = look, .owner = i };

		holders_table(look->owners[i].pid, look->owners[i].tid, on_lock, &table);
	}
}

void deadlock_proc_clear(struct proc_look *look)
{
	free(look->owners);
	free(look->holds);
	look->owners = NULL;
	look->holds = NULL;
	look->owner_count = look->owner_cap = look->hold_count = look->hold_cap = 0;
}
