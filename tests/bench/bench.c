/* SPDX-License-Identifier: MIT */
/*
 * Prices of locks next to floors measured in the same run: a bare PING of the
 * same server, and the kernel's own calls. Single prices are taken in rounds
 * that go through all of them, so that a noisy moment hits all alike; medians.
 *   bench BUILD [--profile]
 */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define ROUNDS 20
#define PER_ROUND 50
#define RACE_SECONDS 5
#define COUNT_SECONDS 4
#define HELD_COVERS 1000

/* --- prices of single calls --- */

static struct series ping, raw_pair, stat_call, link_call, again, fresh, from_other, free_pair, free_raw;

static double measure_prices(struct bench_host hosts[2], struct bench_store *store, double *ret_look)
{
	struct bench_worker a, b, bare, unruled;
	char locks[2][300], free_dir[300], more[160];
	double unit, look;

	for (int i = 0; i < 2; i++)
		bench_text(locks[i], sizeof locks[i], "%s/locks", hosts[i].dir);
	bench_text(free_dir, sizeof free_dir, "%s/free", hosts[0].dir);
	bench_worker_start(&a, &hosts[0], locks[0], 0);
	bench_worker_start(&b, &hosts[1], locks[1], 1);
	bench_worker_start(&bare, NULL, free_dir, 2);
	bench_worker_start(&unruled, &hosts[0], free_dir, 3);
	bench_do(&bare, BENCH_OPEN, 0, 1, "bare");
	bench_do(&unruled, BENCH_OPEN, 0, 1, "unruled");
	bench_do(&a, BENCH_OPEN, 0, 1, "warm");
	bench_do(&b, BENCH_OPEN, 0, 1, "warm");
	bench_do(&a, BENCH_PAIRS, 0, 20, "");
	bench_do(&b, BENCH_PAIRS, 0, 20, "");

	for (unsigned round = 0; round < ROUNDS; round++) {
		char prefix[32];

		for (int i = 0; i < 200; i++)
			series_add(&ping, bench_store_ping_ns(store));
		bench_do(&bare, BENCH_RAW, 0, 200, "");
		series_add_samples(&raw_pair, 2);
		bench_do(&bare, BENCH_FSTAT, 0, 200, "");
		series_add_samples(&stat_call, 2);
		bench_do(&bare, BENCH_READLINK, 0, 200, "");
		series_add_samples(&link_call, 2);

		bench_do(&a, BENCH_OPEN, 0, 1, "again");
		bench_do(&a, BENCH_PAIRS, 0, 2, "");
		bench_do(&a, BENCH_PAIRS, 0, 100, "");
		series_add_samples(&again, 0);

		snprintf(prefix, sizeof prefix, "fresh%u-", round);
		bench_do(&a, BENCH_OPEN, 0, PER_ROUND, prefix);
		bench_do(&a, BENCH_EACH, 0, PER_ROUND, "");
		series_add_samples(&fresh, 0);

		snprintf(prefix, sizeof prefix, "other%u-", round);
		bench_do(&b, BENCH_OPEN, 0, PER_ROUND, prefix);
		bench_do(&b, BENCH_EACH, 0, PER_ROUND, "");
		bench_do(&a, BENCH_OPEN, 0, PER_ROUND, prefix);
		bench_do(&a, BENCH_EACH, 0, PER_ROUND, "");
		series_add_samples(&from_other, 0);

		bench_do(&unruled, BENCH_PAIRS, 0, 200, "");
		series_add_samples(&free_pair, 3);
		bench_do(&unruled, BENCH_RAW, 0, 200, "");
		series_add_samples(&free_raw, 3);
	}
	unit = series_us(&ping, 0.5);
	look = series_us(&stat_call, 0.5) + series_us(&link_call, 0.5);
	printf("floors (medians): PING %.1f us (p90 %.1f), flock pair %.2f us, fstat %.2f us, readlink of /proc/self/fd %.2f us\n\n",
	       unit, series_us(&ping, 0.9), series_us(&raw_pair, 0.5), series_us(&stat_call, 0.5), series_us(&link_call, 0.5));
	bench_row("(1) lock+unlock of a name this host had last", series_us(&again, 0.5) / unit, "PING", false, 1.5,
	    bench_text(more, sizeof more, "%.1f us, p90 %.1f", series_us(&again, 0.5), series_us(&again, 0.9)));
	bench_row("(2) lock+unlock of a name nobody had", series_us(&fresh, 0.5) / unit, "PING", false, 3.5,
	    bench_text(more, sizeof more, "%.1f us, p90 %.1f", series_us(&fresh, 0.5), series_us(&fresh, 0.9)));
	bench_row("(3) lock+unlock of a name another host had last, idle", series_us(&from_other, 0.5) / unit, "PING", false, 6,
	    bench_text(more, sizeof more, "%.1f us, p90 %.1f", series_us(&from_other, 0.5), series_us(&from_other, 0.9)));
	bench_row("(6) a path no rule names, above the kernel's own call", (series_us(&free_pair, 0.5) - series_us(&free_raw, 0.5)) / 2 / look, "stat+link",
	    false, 1, bench_text(more, sizeof more, "%.2f us a call above %.2f, fstat+readlink %.2f us",
			   (series_us(&free_pair, 0.5) - series_us(&free_raw, 0.5)) / 2, series_us(&free_raw, 0.5) / 2, look));
	bench_worker_stop(&a);
	bench_worker_stop(&b);
	bench_worker_stop(&bare);
	bench_worker_stop(&unruled);
	*ret_look = look;
	return unit;
}

/* --- eight processes --- */

static void run_eight(struct bench_host *hosts, unsigned host_count, enum bench_verb verb, unsigned seconds, const char *prefix, struct bench_store *store)
{
	struct bench_worker workers[BENCH_WORKERS];
	struct bench_command command = { .verb = verb };
	char locks[2][300];

	for (unsigned i = 0; i < host_count; i++)
		bench_text(locks[i], sizeof locks[i], "%s/locks", hosts[i].dir);
	for (unsigned i = 0; i < BENCH_WORKERS; i++) {
		bench_worker_start(&workers[i], &hosts[i % host_count], locks[i % host_count], i);
		bench_do(&workers[i], BENCH_OPEN, 0, 1, prefix);
		bench_do(&workers[i], BENCH_PAIRS, 0, 1, "");
	}
	atomic_store(&bench_memory()->turns, 0);
	atomic_store(&bench_memory()->overlaps, 0);
	bench_store_reset_stats(store);
	command.until_ns = bench_now_ns() + seconds * 1000000000ull;
	for (unsigned i = 0; i < BENCH_WORKERS; i++)
		bench_send(&workers[i], &command);
	for (unsigned i = 0; i < BENCH_WORKERS; i++)
		bench_wait(&workers[i]);
	for (unsigned i = 0; i < BENCH_WORKERS; i++)
		bench_worker_stop(&workers[i]);
}

static double shares(char *list, size_t size)
{
	uint64_t least = UINT64_MAX, most = 0;
	size_t n = 0;

	list[0] = '\0';
	for (unsigned i = 0; i < BENCH_WORKERS; i++) {
		uint64_t count = bench_memory()->count[i];

		least = count < least ? count : least;
		most = count > most ? count : most;
		n += (size_t)snprintf(list + n, n < size ? size - n : 0, "%s%" PRIu64, i ? " " : "", count);
	}
	return least ? (double)most / (double)least : 1e9;
}

static void measure_hand_over(struct bench_host hosts[2], struct bench_store *store, double unit)
{
	static struct series all, across, within;
	struct bench_shared *memory = bench_memory();
	char more[200], list[160];
	uint64_t scripts, publishes;
	uint32_t turns, n_across = 0;
	double ratio;

	run_eight(hosts, 2, BENCH_RACE, RACE_SECONDS, "race", store);
	scripts = bench_store_calls(store, "evalsha");
	publishes = bench_store_calls(store, "publish");
	turns = atomic_load(&memory->turns);
	if (turns > BENCH_LOG)
		turns = BENCH_LOG;
	for (uint32_t i = 1; i < turns; i++) {
		const struct bench_turn *before = &memory->log[i - 1], *turn = &memory->log[i];
		bool other = before->worker % 2 != turn->worker % 2;
		uint64_t gap = turn->acquired_ns - before->released_ns;

		n_across += other;
		series_add(&all, gap);
		series_add(other ? &across : &within, gap);
	}
	bench_row("(4) hand-over, 2 hosts, 8 processes, 5 s: median gap", series_us(&all, 0.5) / unit, "PING", false, 5,
	    bench_text(more, sizeof more, "aim 3.5; %.1f us, p90 %.1f, %u turns", series_us(&all, 0.5), series_us(&all, 0.9), turns));
	printf("      across hosts: %u turns, median %.2f PING, p90 %.2f; within a host: %u turns, median %.2f PING, p90 %.2f\n", n_across,
	       series_us(&across, 0.5) / unit, series_us(&across, 0.9) / unit, turns - n_across,
	       series_us(&within, 0.5) / unit, series_us(&within, 0.9) / unit);
	ratio = shares(list, sizeof list);
	bench_row("    shares of the processes, largest / smallest", ratio, "", false, 1.3, list);
	bench_row("    overlaps seen inside the lock", atomic_load(&memory->overlaps), "", false, 0, "");
	printf("      scripts per turn %.2f, per turn across hosts %.2f; pushes per turn across hosts %.2f; INFO commandstats:\n",
	       turns ? (double)scripts / turns : 0, n_across ? (double)scripts / n_across : 0, n_across ? (double)publishes / n_across : 0);
	bench_store_print_stats(store);
}

static void measure_counter(struct bench_host *host, struct bench_store *store)
{
	char path[340], more[200], list[160], number[32] = "";
	uint64_t sum = 0;
	FILE *in;

	run_eight(host, 1, BENCH_COUNT, COUNT_SECONDS, "count", store);
	for (unsigned i = 0; i < BENCH_WORKERS; i++)
		sum += bench_memory()->count[i];
	snprintf(path, sizeof path, "%s/locks/count0000", host->dir);
	in = fopen(path, "re");
	if (!in || !fgets(number, sizeof number, in))
		bench_fail("%s cannot be read", path);
	fclose(in);
	shares(list, sizeof list);
	bench_row("(5) 8 processes on one host: increments a second", (double)sum / COUNT_SECONDS, "/s", true, 15000, bench_text(more, sizeof more, "shares %s", list));
	bench_row("    increments lost", (double)sum - atof(number), "", false, 0, "");
}

static void measure_renewals(void)
{
	struct bench_host host;
	struct bench_worker worker;
	char locks[300], more[120];
	uint64_t commands;
	const unsigned seconds = 5;

	bench_host_start(&host, "R", "renewals", "3s");
	bench_text(locks, sizeof locks, "%s/locks", host.dir);
	bench_worker_start(&worker, &host, locks, 0);
	bench_do(&worker, BENCH_OPEN, 0, HELD_COVERS, "held");
	bench_do(&worker, BENCH_HOLD, 0, HELD_COVERS, "");
	commands = bench_store_monitor(bench_redis_port(), seconds);
	/* T/3 is one second. What other hosts of the run sent is counted too: they have ended before. */
	bench_row("(7) 1,000 covers held by one host: commands per T/3", (double)commands / seconds, "commands", false, 2,
	    bench_text(more, sizeof more, "%" PRIu64 " in %u s, T 3 s", commands, seconds));
	bench_worker_stop(&worker);
	bench_host_stop(&host);
}

/* --- where the time of (1) goes --- */

/* Whether somebody traces the process. */
static bool traced(pid_t pid)
{
	char path[64], line[128];
	int tracer = 0;
	FILE *in;

	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	in = fopen(path, "re");
	while (in && fgets(line, sizeof line, in))
		if (sscanf(line, "TracerPid: %d", &tracer) == 1)
			break;
	if (in)
		fclose(in);
	return tracer != 0;
}

static void trace(pid_t pid, const char *who, struct bench_worker *worker)
{
	char number[16];
	int status;
	pid_t tracer;

	printf("\n%s, system calls of about 2,000 lock+unlock pairs (strace -f -c; the times are strace's, read the counts):\n", who);
	fflush(stdout);
	snprintf(number, sizeof number, "%d", (int)pid);
	tracer = fork();
	if (tracer == 0) {
		dup2(1, 2);
		execlp("strace", "strace", "-q", "-f", "-c", "-U", "calls,name", "-p", number, (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 500 && !traced(pid) && waitpid(tracer, &status, WNOHANG) == 0; i++)
		poll(NULL, 0, 10);
	if (!traced(pid)) {
		puts("strace cannot trace it; is it installed?");
		return;
	}
	bench_do(worker, BENCH_PAIRS, 0, 2000, "");
	kill(tracer, SIGINT);
	waitpid(tracer, &status, 0);
}

/* What a lock of (2) and of (3) costs the store. */
static void profile_scripts(struct bench_host hosts[2], struct bench_store *store)
{
	static struct series mine, other;
	struct bench_worker workers[2];
	char locks[2][300];

	for (unsigned i = 0; i < 2; i++) {
		bench_text(locks[i], sizeof locks[i], "%s/locks", hosts[i].dir);
		bench_worker_start(&workers[i], &hosts[i], locks[i], i);
		bench_do(&workers[i], BENCH_OPEN, 0, 500, "scripts");
	}
	bench_store_reset_stats(store);
	bench_do(&workers[0], BENCH_EACH, 0, 500, "");
	series_add_samples(&mine, 0);
	printf("\n500 names nobody had, %.1f us each; in the store:\n", series_us(&mine, 0.5));
	bench_store_print_stats(store);
	bench_store_reset_stats(store);
	bench_do(&workers[1], BENCH_EACH, 0, 500, "");
	series_add_samples(&other, 1);
	printf("\n500 names another host had last, %.1f us each; in the store:\n", series_us(&other, 0.5));
	bench_store_print_stats(store);
	for (unsigned i = 0; i < 2; i++)
		bench_worker_stop(&workers[i]);
}

static void profile(struct bench_host hosts[2], struct bench_store *store)
{
	struct bench_worker worker;
	char locks[300], children[64], line[64] = "";
	FILE *in;

	bench_text(locks, sizeof locks, "%s/locks", hosts[0].dir);
	bench_worker_start(&worker, &hosts[0], locks, 0);
	bench_do(&worker, BENCH_OPEN, 0, 1, "profile");
	bench_do(&worker, BENCH_PAIRS, 0, 10, "");
	trace(worker.pid, "The program", &worker);
	/* The agent is the child of its guard. */
	snprintf(children, sizeof children, "/proc/%d/task/%d/children", (int)hosts[0].agent, (int)hosts[0].agent);
	in = fopen(children, "re");
	if (in && fgets(line, sizeof line, in) && atoi(line) > 0)
		trace(atoi(line), "The agent", &worker);
	else
		trace(hosts[0].agent, "The agent", &worker);
	if (in)
		fclose(in);
	bench_worker_stop(&worker);
	profile_scripts(hosts, store);
	profile_records(hosts, store);
}

int main(int argc, char **argv)
{
	struct bench_host hosts[2];
	struct bench_store *store;
	uint64_t from = bench_now_ns();
	double unit, look;

	if (argc < 2 || (argc == 3 && strcmp(argv[2], "--profile") != 0) || argc > 3) {
		fputs("usage: bench BUILD [--profile]\n", stderr);
		return 2;
	}
	bench_setup(argv[1]);
	bench_host_start(&hosts[0], "A", "bench", "30s");
	bench_host_start(&hosts[1], "B", "bench", "30s");
	store = bench_store_connect(bench_redis_port());
	if (!store)
		bench_fail("redis does not answer");
	if (argc == 3) {
		profile(hosts, store);
	} else {
		unit = measure_prices(hosts, store, &look);
		measure_records(hosts, store, unit, look);
		measure_hand_over(hosts, store, unit);
		measure_counter(&hosts[0], store);
	}
	for (int i = 0; i < 2; i++)
		bench_host_stop(&hosts[i]);
	if (argc == 2) {
		measure_renewals();
		printf("\n%u goals missed; %.0f s\n", bench_missed(), (double)(bench_now_ns() - from) / 1e9);
	}
	bench_store_free(store);
	bench_cleanup();
	return 0;
}
