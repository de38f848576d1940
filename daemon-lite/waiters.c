/* SPDX-License-Identifier: MIT */
/*
 * Reads the waiting lines of /proc/locks:
 *
 *	1: FLOCK  ADVISORY  WRITE 4711 fe:00:815 0 EOF
 *	1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:815 0 EOF
 *	2: -> POSIX  ADVISORY  WRITE 4713 fe:00:815 100 100
 *	2:  -> OFDLCK ADVISORY  WRITE -1 fe:00:815 100 100
 *
 * The line of an OFD lock names no process. While there is such a line, the
 * process is asked itself: a thread of it is inside fcntl(fd, F_OFD_SETLKW) when
 * /proc/PID/task/TID/syscall says so and the thread sleeps. One that was stopped in
 * the call still shows it, hence the look at its state. Reading `syscall` needs the right
 * to trace the process, which a system may keep from an agent that is not
 * root; `wchan` needs less and names the kernel's function (fcntl_setlk).
 *
 * Called on the loop's thread only. The file is as long as the host's list of
 * locks, so it is read at most each 100 ms, for however many who ask.
 */
#include "waiters.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop.h"

#define FRESH_NS 100000000u

static struct {
	uint64_t read_ns;
	pid_t *pids;		/* sorted */
	size_t count, cap;
	bool ofd;		/* somebody waits for an OFD lock */
} seen;

static int compare(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return (x > y) - (x < y);
}

static void add(pid_t pid)
{
	if (seen.count == seen.cap) {
		size_t cap = seen.cap ? 2 * seen.cap : 64;
		pid_t *pids = realloc(seen.pids, cap * sizeof *pids);

		if (!pids)
			return;
		seen.pids = pids;
		seen.cap = cap;
	}
	seen.pids[seen.count++] = pid;
}

static void read_locks(void)
{
	char line[256];
	FILE *file = fopen("/proc/locks", "re");

	seen.count = 0;
	seen.ofd = false;
	if (!file)
		return;
	while (fgets(line, sizeof line, file)) {
		const char *arrow = strstr(line, "-> ");
		char kind[16];
		int pid;

		if (!arrow || sscanf(arrow, "-> %15s %*s %*s %d", kind, &pid) != 2)
			continue;
		if (strcmp(kind, "FLOCK") == 0 || strcmp(kind, "POSIX") == 0)
			add(pid);
		else if (strcmp(kind, "OFDLCK") == 0)
			seen.ofd = true;
	}
	fclose(file);
	qsort(seen.pids, seen.count, sizeof *seen.pids, compare);
}

/* --- OFD locks ---------------------------------------------------------- */

/* The file's beginning, as a string. False if it cannot be read. */
static bool read_text(int dir, const char *tid, const char *name, char *text, size_t size)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "%.20s/%s", tid, name);
	fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, size - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

/* "TID (COMMAND) S …": the command may contain anything. Stopped, running or dead is not asleep. */
static bool is_asleep(const char *stat)
{
	const char *paren = strrchr(stat, ')');

	return paren && paren[1] == ' ' && (paren[2] == 'S' || paren[2] == 'D');
}

/* "72 0x5 0x26 …": the call's number, and what it is given. 55 and 221 are the fcntl and fcntl64 of 32-bit programs. */
static bool is_ofd_wait(const char *syscall_text)
{
	unsigned long long fd, command;
	int number;

	if (sscanf(syscall_text, "%d %llx %llx", &number, &fd, &command) != 3)
		return false;
	return (number == SYS_fcntl || number == 55 || number == 221) && command == F_OFD_SETLKW;
}

static bool thread_waits(int dir, const char *tid)
{
	char text[512];

	if (!read_text(dir, tid, "stat", text, sizeof text) || !is_asleep(text))
		return false;
	if (read_text(dir, tid, "syscall", text, sizeof text))
		return is_ofd_wait(text);
	/* "0": the kernel does not tell. */
	return !read_text(dir, tid, "wchan", text, sizeof text) || strcmp(text, "0") == 0 || strstr(text, "lk") || strstr(text, "lock");
}

static bool waits_for_ofd(pid_t pid)
{
	char path[32];
	struct dirent *entry;
	bool waits = false;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	dir = opendir(path);
	if (!dir)
		return false;
	while (!waits && (entry = readdir(dir)))
		waits = entry->d_name[0] != '.' && thread_waits(dirfd(dir), entry->d_name);
	closedir(dir);
	return waits;
}

bool waiters_include(pid_t pid)
{
	uint64_t now = loop_now_ns();

	if (!seen.read_ns || now - seen.read_ns >= FRESH_NS) {
		read_locks();
		seen.read_ns = now;
	}
	if (seen.count && bsearch(&pid, seen.pids, seen.count, sizeof pid, compare))
		return true;
	return seen.ofd && waits_for_ofd(pid);
}
