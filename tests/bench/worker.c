/* SPDX-License-Identifier: MIT */
/*
 * The program that is measured: it knows nothing of the library. Reads commands
 * from standard input, answers one byte for each on standard output.
 *   worker SHARED DIRECTORY INDEX
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

static struct bench_shared *shared;
static const char *directory;
static unsigned self;
static int files[BENCH_FILES];
static unsigned file_count;

static void fail(const char *what)
{
	fprintf(stderr, "worker %u: %s: %s\n", self, what, strerror(errno));
	exit(1);
}

static void lock(int fd, int operation)
{
	while (flock(fd, operation) < 0)
		if (errno != EINTR)
			fail(operation == LOCK_UN ? "unlock" : "lock");
}

static void add_sample(uint64_t ns)
{
	if (shared->samples[self] < BENCH_SAMPLES)
		shared->sample_ns[self][shared->samples[self]++] = ns;
}

static void open_files(const struct bench_command *command)
{
	while (file_count)
		close(files[--file_count]);
	for (; file_count < command->arg && file_count < BENCH_FILES; file_count++) {
		char path[512];

		snprintf(path, sizeof path, "%s/%s%04u", directory, command->prefix, file_count);
		files[file_count] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (files[file_count] < 0)
			fail(path);
	}
}

static void time_pairs(const struct bench_command *command)
{
	for (unsigned i = 0; i < command->arg; i++) {
		int fd = files[command->verb == BENCH_EACH ? command->first + i : 0];
		uint64_t from = bench_now_ns();

		lock(fd, LOCK_EX);
		lock(fd, LOCK_UN);
		add_sample(bench_now_ns() - from);
	}
}

static void time_floor(const struct bench_command *command)
{
	char path[64], target[512];
	struct stat st;

	snprintf(path, sizeof path, "/proc/self/fd/%d", files[0]);
	for (unsigned i = 0; i < command->arg; i++) {
		uint64_t from = bench_now_ns();
		long n;

		if (command->verb == BENCH_RAW) {
			n = syscall(SYS_flock, files[0], LOCK_EX);
			if (n == 0)
				n = syscall(SYS_flock, files[0], LOCK_UN);
		} else if (command->verb == BENCH_FSTAT) {
			n = fstat(files[0], &st);
		} else {
			n = readlink(path, target, sizeof target);
		}
		if (n < 0)
			fail("floor");
		add_sample(bench_now_ns() - from);
	}
}

static void race(const struct bench_command *command)
{
	uint64_t turns = 0;

	while (bench_now_ns() < command->until_ns) {
		struct bench_turn *turn;
		uint64_t acquired;
		uint32_t number;

		lock(files[0], LOCK_EX);
		acquired = bench_now_ns();
		if (atomic_fetch_add(&shared->inside, 1) != 0)
			atomic_fetch_add(&shared->overlaps, 1);
		number = atomic_fetch_add(&shared->turns, 1);
		turn = &shared->log[number % BENCH_LOG];
		turn->acquired_ns = acquired;
		turn->worker = self;
		turns++;
		atomic_fetch_sub(&shared->inside, 1);
		turn->released_ns = bench_now_ns();
		lock(files[0], LOCK_UN);
	}
	shared->count[self] = turns;
}

static void count(const struct bench_command *command)
{
	uint64_t done = 0;

	while (bench_now_ns() < command->until_ns) {
		char text[32] = "";
		int n;

		lock(files[0], LOCK_EX);
		if (pread(files[0], text, sizeof text - 1, 0) < 0)
			fail("pread");
		n = snprintf(text, sizeof text, "%-12ld\n", atol(text) + 1);
		if (pwrite(files[0], text, (size_t)n, 0) != n)
			fail("pwrite");
		lock(files[0], LOCK_UN);
		done++;
	}
	shared->count[self] = done;
}

int main(int argc, char **argv)
{
	struct rlimit limit;
	struct bench_command command;
	int fd;

	if (argc != 4)
		return 2;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	directory = argv[2];
	self = (unsigned)atoi(argv[3]);
	fd = open(argv[1], O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail(argv[1]);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	close(fd);
	while (read(0, &command, sizeof command) == sizeof command) {
		shared->samples[self] = 0;
		switch (command.verb) {
		case BENCH_OPEN:
			open_files(&command);
			break;
		case BENCH_PAIRS:
		case BENCH_EACH:
			time_pairs(&command);
			break;
		case BENCH_HOLD:
			for (unsigned i = 0; i < command.arg; i++)
				lock(files[command.first + i], LOCK_EX);
			break;
		case BENCH_RAW:
		case BENCH_FSTAT:
		case BENCH_READLINK:
			time_floor(&command);
			break;
		case BENCH_RACE:
			race(&command);
			break;
		case BENCH_COUNT:
			count(&command);
			break;
		default:
			worker_records(&(struct bench_self){ shared, self, files, add_sample, fail }, &command);
			break;
		}
		if (write(1, "", 1) != 1)
			return 1;
	}
	return 0;
}
