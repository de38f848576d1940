/* SPDX-License-Identifier: MIT */
/*
 * Record locks taken in one global order by owners of every kind, so that no
 * cycle of waits can exist: an EDEADLK is false.
 *
 *   order PREFIX STATE RUNS SEED [KINDS]
 *
 * A run takes one to four ranges of the files PREFIX0 … PREFIX3, upwards, with blocking calls, then lets go of them in any
 * order. Whoever waits holds only what is below the range it waits for, and whoever is in its way holds something higher.
 * Owners: processes; threads that share a process's locks and take turns; threads with a descriptor table of their own
 * (owners of POSIX locks under one pid); threads with OFD locks. RUNS are divided among them.
 * KINDS, some of the letters ptuo, leaves the other kinds out.
 *
 * STATE is a file that all hosts share; who has a cell is counted there, so an overlap is seen too. Prints
 * "RUNS runs LOCKS locks DEADLOCKS OVERLAPS ERRORS, longest wait MS ms"; exit 0 if the three are 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILES 4
#define CELLS 8			/* in each file; a cell is ten bytes */
#define WRITER 1000000		/* a cell's counter: readers, and WRITER for each writer */

enum kind { PROCESS, TURNS, OWN_TABLE, OFD };

struct result { long runs, locks, deadlocks, overlaps, errors, longest_us; };
struct owner { pthread_t thread; enum kind kind; unsigned seed; long runs; struct result *result; };

static const char *prefix;
static int *state;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static unsigned pick(unsigned *seed, unsigned n)
{
	*seed = *seed * 1103515245u + 12345u;
	return (*seed >> 8) % n;
}

static long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000L + ts.tv_nsec / 1000;
}

static void add(long *counter, long n) { __atomic_add_fetch(counter, n, __ATOMIC_RELAXED); }

static void enter(struct result *result, int first, int count, short type)
{
	int i, was;

	for (i = first; i < first + count; i++) {
		was = __atomic_fetch_add(&state[i], type == F_WRLCK ? WRITER : 1, __ATOMIC_SEQ_CST);
		if (was >= WRITER || (type == F_WRLCK && was))
			add(&result->overlaps, 1);
	}
}
static void leave(int first, int count, short type)
{
	int i;

	for (i = first; i < first + count; i++)
		__atomic_fetch_sub(&state[i], type == F_WRLCK ? WRITER : 1, __ATOMIC_SEQ_CST);
}

/* first: the cell's number over all files; the range stays in its file. */
static int set(const int *fds, enum kind kind, int first, int count, short type)
{
	struct flock lock = { .l_type = type, .l_start = first % CELLS * 10, .l_len = count * 10 };

	return fcntl(fds[first / CELLS], kind == OFD ? F_OFD_SETLKW : F_SETLKW, &lock);
}

static void run(const int *fds, struct owner *owner)
{
	struct { int first, count; short type; } held[4];
	struct result *result = owner->result;
	int n = 0, next = 0, wanted = 1 + (int)pick(&owner->seed, 4), i;
	long began, took;

	while (n < wanted && next < FILES * CELLS) {
		held[n].first = next + (int)pick(&owner->seed, 6);
		held[n].count = 1 + (int)pick(&owner->seed, 2);
		held[n].type = pick(&owner->seed, 3) ? F_WRLCK : F_RDLCK;
		if (held[n].first >= FILES * CELLS)
			break;
		if (held[n].first % CELLS + held[n].count > CELLS)
			held[n].count = 1;
		began = now_us();
		if (set(fds, owner->kind, held[n].first, held[n].count, held[n].type)) {
			if (errno == EDEADLK)
				add(&result->deadlocks, 1);
			else
				add(&result->errors, 1);
			fprintf(stderr, "kind %d cell %d+%d: %s\n", owner->kind, held[n].first, held[n].count, strerrorname_np(errno));
			break;
		}
		took = now_us() - began;
		if (took > result->longest_us)
			result->longest_us = took;
		add(&result->locks, 1);
		enter(result, held[n].first, held[n].count, held[n].type);
		next = held[n].first + held[n].count;
		n++;
		if (!pick(&owner->seed, 4))
			usleep(pick(&owner->seed, 300));
	}
	while (n) {
		i = (int)pick(&owner->seed, (unsigned)n);
		leave(held[i].first, held[i].count, held[i].type);
		if (set(fds, owner->kind, held[i].first, held[i].count, F_UNLCK))
			add(&result->errors, 1);
		held[i] = held[--n];
	}
	add(&result->runs, 1);
}

static void *owner_main(void *arg)
{
	struct owner *owner = arg;
	char path[4096];
	int fds[FILES], i;
	long n;

	if (owner->kind == OWN_TABLE && unshare(CLONE_FILES))
		add(&owner->result->errors, 1);
	for (i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "%s%d", prefix, i);
		fds[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fds[i] < 0)
			add(&owner->result->errors, 1);
	}
	for (n = 0; n < owner->runs; n++) {
		if (owner->kind == TURNS)
			pthread_mutex_lock(&turn);
		run(fds, owner);
		if (owner->kind == TURNS)
			pthread_mutex_unlock(&turn);
	}
	/* Closing would drop the locks of the threads that share the process's; its end closes all. */
	return NULL;
}

static pid_t process(enum kind kind, int threads, unsigned seed, long runs, struct result *result)
{
	struct owner owners[4];
	pid_t pid = fork();
	int i;

	if (pid)
		return pid;
	for (i = 0; i < threads; i++) {
		owners[i] = (struct owner){ .kind = kind, .seed = seed * 31 + (unsigned)i, .runs = runs, .result = result };
		if (kind != PROCESS)
			pthread_create(&owners[i].thread, NULL, owner_main, &owners[i]);
	}
	if (kind == PROCESS)
		owner_main(&owners[0]);
	else
		for (i = 0; i < threads; i++)
			pthread_join(owners[i].thread, NULL);
	_exit(0);
}

int main(int argc, char **argv)
{
	static const struct { enum kind kind; int threads; char letter; } plan[] = { { PROCESS, 1, 'p' }, { PROCESS, 1, 'p' }, { TURNS, 2, 't' },
		{ OWN_TABLE, 2, 'u' }, { OFD, 2, 'o' } };
	const char *kinds = argc > 5 ? argv[5] : "ptuo";
	struct result *result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd, i, status, bad = 0, owners = 0, n = (int)(sizeof plan / sizeof *plan);
	unsigned seed;
	long runs;

	if (argc < 5)
		return 2;
	prefix = argv[1];
	runs = atol(argv[3]);
	seed = (unsigned)atol(argv[4]);
	fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || ftruncate(fd, FILES * CELLS * sizeof *state))
		return 2;
	state = mmap(NULL, FILES * CELLS * sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED || result == MAP_FAILED)
		return 2;
	for (i = 0; i < n; i++)
		owners += strchr(kinds, plan[i].letter) ? plan[i].threads : 0;
	for (i = 0; i < n; i++)
		if (strchr(kinds, plan[i].letter))
			process(plan[i].kind, plan[i].threads, seed * 7919 + (unsigned)i, (runs + owners - 1) / owners, result);
	while (wait(&status) > 0)
		bad += status != 0;
	printf("%ld runs %ld locks %ld deadlocks %ld overlaps %ld errors, longest wait %ld ms\n", result->runs, result->locks,
		result->deadlocks, result->overlaps, result->errors + bad, result->longest_us / 1000);
	return result->deadlocks || result->overlaps || result->errors || bad;
}
