/* SPDX-License-Identifier: MIT */
/*
 * The benchmark: `bench` starts a throw-away Redis and two hosts, drives
 * `worker` processes (the unmodified programs, with the library preloaded) by
 * small commands on their standard input, and reads their time stamps from
 * shared memory.
 */
#ifndef DLOCK_BENCH_H
#define DLOCK_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define BENCH_SAMPLES 8192
#define BENCH_FILES 4096
#define BENCH_WORKERS 8
#define BENCH_LOG (1u << 20)

enum bench_verb {
	BENCH_OPEN,	/* opens DIR/PREFIX0000… (arg files), keeps the descriptors, after closing earlier ones */
	BENCH_PAIRS,	/* arg times lock+unlock of the first file; a sample each */
	BENCH_EACH,	/* lock+unlock of files first to first+arg; a sample each */
	BENCH_HOLD,	/* locks files first to first+arg and keeps them */
	BENCH_RAW,	/* arg times lock+unlock by the bare system call; samples are the kernel's own price */
	BENCH_FSTAT,	/* arg times fstat */
	BENCH_READLINK,	/* arg times readlink of /proc/self/fd/N */
	BENCH_RACE,	/* until `until_ns`: lock, log, unlock */
	BENCH_COUNT,	/* until `until_ns`: lock, increment the number in the file, unlock */
	/* Record locks (worker_records.c): arg times, of the ranges and files that the command names; a sample each. */
	BENCH_RECORD_PAIRS,	/* lock+unlock */
	BENCH_RECORD_HOLD,	/* locks and keeps */
	BENCH_RECORD_RAW,	/* lock+unlock by the bare system call */
	BENCH_RECORD_GET,	/* F_GETLK */
	BENCH_TRANSACTIONS,	/* the locks of a SQLite transaction on the first file */
	BENCH_ALTERNATE,	/* the same, taking turns with the worker of the number in `first` */
};

struct bench_command {
	uint32_t verb, first, arg, reserved;
	uint64_t until_ns;
	/* Number i of a record lock is [start + i * step, … + len) of the file first + i * file_step. */
	uint64_t start, step, len;
	uint32_t file_step, shared;	/* shared: a read lock */
	char prefix[32];
};

/* One turn in a race; written inside the lock, so the log is in the order of the turns. */
struct bench_turn {
	uint64_t acquired_ns, released_ns;	/* CLOCK_MONOTONIC; released: right before the call */
	uint32_t worker, reserved;
};

struct bench_shared {
	_Atomic uint32_t turns;
	_Atomic uint32_t inside;	/* workers inside the lock: more than one is an overlap */
	_Atomic uint32_t overlaps;
	_Atomic uint32_t turn_of;	/* BENCH_ALTERNATE: the worker whose turn it is; a futex */
	uint64_t count[BENCH_WORKERS];	/* increments, turns, or record locks that were refused and tried again */
	uint32_t samples[BENCH_WORKERS + 1];
	uint64_t sample_ns[BENCH_WORKERS + 1][BENCH_SAMPLES];
	struct bench_turn log[BENCH_LOG];
};

static inline uint64_t bench_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- report.c: medians and rows --- */
struct series {
	size_t count, size;
	uint64_t *ns;
};

void series_add(struct series *series, uint64_t ns);
void series_add_samples(struct series *series, unsigned worker);	/* what the worker's last command measured */
double series_us(struct series *series, double quantile);
/* One line of the result: a value beside its goal, or without one. */
void bench_row(const char *what, double value, const char *unit, bool at_least, double goal, const char *more);
void bench_row_free(const char *what, double value, const char *unit, const char *more);
const char *bench_text(char *buf, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
unsigned bench_missed(void);	/* goals so far */

/* --- worker_records.c, in the worker --- */
struct bench_self {
	struct bench_shared *shared;
	unsigned index;
	const int *files;
	void (*add_sample)(uint64_t ns);
	void (*fail)(const char *what);
};
void worker_records(const struct bench_self *self, const struct bench_command *command);

/* --- store.c: the only file with hiredis --- */
struct bench_store;
struct bench_store *bench_store_connect(int port);
void bench_store_free(struct bench_store *store);
uint64_t bench_store_ping_ns(struct bench_store *store);	/* one round trip */
void bench_store_reset_stats(struct bench_store *store);
/* Calls of a command since the reset; "" = of all. */
uint64_t bench_store_calls(struct bench_store *store, const char *command);
void bench_store_print_stats(struct bench_store *store);
/* Scripts of the agents of a namespace since the reset, without renewals. */
struct bench_scripts { uint64_t all, renewals; };
void bench_store_scripts_begin(struct bench_store *store, const char *name_space, struct bench_scripts *scripts);
uint64_t bench_store_scripts(struct bench_store *store, const char *name_space, const struct bench_scripts *begin);
/* Commands that clients sent (not those inside scripts) in so many seconds, by MONITOR. */
uint64_t bench_store_monitor(int port, unsigned seconds);

/* --- setup.c: processes --- */
struct bench_host {
	char name[16];
	char dir[256], config[300], runtime[300];
	pid_t agent;
};

struct bench_worker {
	pid_t pid;
	int in, out;
	unsigned index;
};

void bench_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void bench_setup(const char *build);		/* work directory, Redis, shared memory */
int bench_redis_port(void);
struct bench_shared *bench_memory(void);
/* A host with its own configuration and agent; the namespace is declared new at its first host. */
void bench_host_start(struct bench_host *host, const char *name, const char *name_space, const char *ttl);
void bench_host_stop(struct bench_host *host);
/* host NULL: without the library. */
void bench_worker_start(struct bench_worker *worker, const struct bench_host *host, const char *directory, unsigned index);
void bench_worker_stop(struct bench_worker *worker);
void bench_send(struct bench_worker *worker, const struct bench_command *command);
void bench_wait(struct bench_worker *worker);	/* for the end of the command; fails after 60 s */
void bench_do(struct bench_worker *worker, enum bench_verb verb, uint32_t first, uint32_t arg, const char *prefix);
void bench_cleanup(void);

/* --- records.c: the rows of record locks --- */
void measure_records(struct bench_host hosts[2], struct bench_store *store, double ping_us, double look_us);
void profile_records(struct bench_host hosts[2], struct bench_store *store);

#endif
