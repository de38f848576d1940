/* SPDX-License-Identifier: MIT */
/*
 * Reads the waiting lines of /proc/locks:
 *
 *	1: FLOCK  ADVISORY  WRITE 4711 fe:00:815 0 EOF
 *	1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:815 0 EOF
 *
 * Called on the loop's thread only. The file is as long as the host's list of
 * locks, so it is read at most each 100 ms, for however many who ask.
 */
#include "waiters.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loop.h"

#define FRESH_NS 100000000u

static struct {
	uint64_t read_ns;
	pid_t *pids;		/* sorted */
	size_t count, cap;
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
	if (!file)
		return;
	while (fgets(line, sizeof line, file)) {
		const char *arrow = strstr(line, "-> FLOCK");
		int pid;

		if (arrow && sscanf(arrow, "-> FLOCK %*s %*s %d", &pid) == 1)
			add(pid);
	}
	fclose(file);
	qsort(seen.pids, seen.count, sizeof *seen.pids, compare);
}

bool waiters_include(pid_t pid)
{
	uint64_t now = loop_now_ns();

	if (!seen.read_ns || now - seen.read_ns >= FRESH_NS) {
		read_locks();
		seen.read_ns = now;
	}
	return seen.count && bsearch(&pid, seen.pids, seen.count, sizeof pid, compare);
}
