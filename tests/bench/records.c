/* SPDX-License-Identifier: MIT */
/*
 * Prices of record locks: the locks of a SQLite transaction, one more lock in a file
 * with a thousand, F_GETLK. Like the prices in bench.c they are taken in rounds
 * that go through all of them; medians. The two hosts have files of their own, so
 * their kernel locks do not meet: what keeps them apart goes by way of the store.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define ROUNDS 10
#define PER_ROUND 50
#define HELD 1000		/* ranges [i * STRIDE, … + LEN) */
#define STRIDE 100
#define LEN 10
#define GAP 50			/* where in a gap one more lock is taken … */
#define NEXT_GAP 70		/* … and another one */

/*
 * What the protocol needs for each transaction of two hosts that alternate, after
 * which the whole line lies idle, exclusively, at the other host:
 *   PENDING shared      acquire; the other host lowers its cover, which others may read now
 *   SHARED shared       acquire: a request that had to wait is granted its own range and no more
 *                       (else hosts that lock different ranges would take the rest from each other for ever)
 *   RESERVED exclusive  acquire; the other host gives its cover back
 *   PENDING exclusive   acquire; nobody else has anything now, so it is the whole line
 *   SHARED exclusive    covered
 * A store that knew at the first lock what follows could do with an acquire and a
 * give-back. An acquire that moves a cover takes two round trips (question, recall, give-back, grant), another one.
 */
#define LEAST_SCRIPTS 6
#define LEAST_PINGS 6
#define LEAST_IF_KNOWN 2

enum { A, B, BARE, UNRULED, A2, WORKERS };

static struct bench_worker workers[WORKERS];
static char more[200];

static void records(unsigned worker, struct bench_command command, struct series *series)
{
	bench_send(&workers[worker], &command);
	bench_wait(&workers[worker]);
	if (series)
		series_add_samples(series, worker);
}

static void start_workers(struct bench_host hosts[2])
{
	char locks[2][300], free_dir[300];

	for (int i = 0; i < 2; i++)
		bench_text(locks[i], sizeof locks[i], "%s/locks", hosts[i].dir);
	bench_text(free_dir, sizeof free_dir, "%s/free", hosts[0].dir);
	bench_worker_start(&workers[A], &hosts[0], locks[0], A);
	bench_worker_start(&workers[B], &hosts[1], locks[1], B);
	bench_worker_start(&workers[BARE], NULL, free_dir, BARE);
	bench_worker_start(&workers[UNRULED], &hosts[0], free_dir, UNRULED);
	bench_worker_start(&workers[A2], &hosts[0], locks[0], A2);
}

static void stop_workers(void)
{
	for (unsigned i = 0; i < WORKERS; i++)
		bench_worker_stop(&workers[i]);
}

/* --- the locks of a SQLite transaction --- */

struct transactions {
	struct series alone, alternating, bare;
	uint64_t alone_scripts, scripts, refused;
};

static void alternate(uint32_t each)
{
	struct bench_command a = { .verb = BENCH_ALTERNATE, .first = B, .arg = each }, b = { .verb = BENCH_ALTERNATE, .first = A, .arg = each };

	atomic_store(&bench_memory()->turn_of, A);
	bench_send(&workers[A], &a);
	bench_send(&workers[B], &b);
	bench_wait(&workers[A]);
	bench_wait(&workers[B]);
}

static void round_transactions(struct transactions *t, struct bench_store *store)
{
	struct bench_scripts begin;

	bench_do(&workers[BARE], BENCH_OPEN, 0, 1, "sqlite");
	records(BARE, (struct bench_command){ .verb = BENCH_TRANSACTIONS, .arg = PER_ROUND }, &t->bare);

	bench_do(&workers[A], BENCH_OPEN, 0, 1, "sqlite-alone");
	records(A, (struct bench_command){ .verb = BENCH_TRANSACTIONS, .arg = 1 }, NULL);
	bench_store_scripts_begin(store, "bench", &begin);
	records(A, (struct bench_command){ .verb = BENCH_TRANSACTIONS, .arg = 2 * PER_ROUND }, &t->alone);
	t->alone_scripts += bench_store_scripts(store, "bench", &begin);

	for (unsigned i = A; i <= B; i++)
		bench_do(&workers[i], BENCH_OPEN, 0, 1, "sqlite-both");
	alternate(2);
	bench_store_scripts_begin(store, "bench", &begin);
	alternate(PER_ROUND);
	t->scripts += bench_store_scripts(store, "bench", &begin);
	for (unsigned i = A; i <= B; i++) {
		series_add_samples(&t->alternating, i);
		t->refused += bench_memory()->count[i];
	}
}

static void report_transactions(struct transactions *t, double unit)
{
	double us = series_us(&t->alone, 0.5);

	bench_row("(8) SQLite transaction, one host: store commands each", (double)t->alone_scripts / (double)t->alone.count, "commands", false, 0,
		  bench_text(more, sizeof more, "%" PRIu64 " in %zu transactions after the first", t->alone_scripts, t->alone.count));
	bench_row_free("    time", us / unit, "PING",
		       bench_text(more, sizeof more, "%.1f us, p90 %.1f; nine calls, the kernel's own %.1f us", us, series_us(&t->alone, 0.9), series_us(&t->bare, 0.5)));
	us = series_us(&t->alternating, 0.5);
	bench_row("(9) the same, two hosts alternating: store commands each", (double)t->scripts / (double)t->alternating.count, "commands", false, LEAST_SCRIPTS,
		  bench_text(more, sizeof more, "the goal is the least by the rules of covers; %d if the store knew what follows", LEAST_IF_KNOWN));
	bench_row_free("    time", us / unit, "PING",
		       bench_text(more, sizeof more, "least %d; %.1f us, p90 %.1f", LEAST_PINGS, us, series_us(&t->alternating, 0.9)));
	bench_row("    locks refused that nobody held", (double)t->refused, "", false, 0, "");
}

/* --- one more lock in a file with a thousand --- */

struct thousand {
	struct series bare_empty, bare_full;		/* the kernel alone */
	struct series local_empty, local_full;		/* all held on this host */
	struct series asked_empty, asked_full;		/* held on the other host, whose cover has to be cut */
	struct series shared_empty, shared_full;	/* held by both in turn, no cover stands against it */
};

static void hold(unsigned worker, uint64_t first, uint64_t step, uint32_t count)
{
	records(worker, (struct bench_command){ .verb = BENCH_RECORD_HOLD, .arg = count, .start = first * STRIDE, .step = step * STRIDE, .len = LEN }, NULL);
}

/* One more lock in each of the first gaps. */
static void gaps(unsigned worker, enum bench_verb verb, uint64_t at, struct series *series)
{
	records(worker, (struct bench_command){ .verb = verb, .arg = PER_ROUND, .start = at, .step = STRIDE, .len = LEN }, series);
}

static void open_both(unsigned first, unsigned second, uint32_t files, const char *prefix)
{
	bench_do(&workers[first], BENCH_OPEN, 0, files, prefix);
	bench_do(&workers[second], BENCH_OPEN, 0, files, prefix);
}

static void round_thousand(struct thousand *t, unsigned round)
{
	struct bench_command each = { .verb = BENCH_RECORD_PAIRS, .arg = PER_ROUND, .file_step = 1, .start = GAP, .len = LEN };
	char prefix[32];

	/* The kernel alone: UNRULED holds, on a path that no rule names. */
	bench_text(prefix, sizeof prefix, "kernel%u-", round);
	open_both(BARE, UNRULED, 1, prefix);
	gaps(BARE, BENCH_RECORD_RAW, GAP, &t->bare_empty);
	hold(UNRULED, 0, 1, HELD);
	gaps(BARE, BENCH_RECORD_RAW, GAP, &t->bare_full);

	/* Held by another process of this host. */
	bench_text(prefix, sizeof prefix, "local%u-", round);
	open_both(A, A2, 1, prefix);
	gaps(A, BENCH_RECORD_PAIRS, GAP, NULL);
	gaps(A, BENCH_RECORD_PAIRS, GAP, &t->local_empty);
	hold(A2, 0, 1, HELD);
	gaps(A, BENCH_RECORD_PAIRS, GAP, &t->local_full);

	/* Held on the other host: it has to give back the free room in each gap. Empty files: the other host has locked and left them. */
	bench_text(prefix, sizeof prefix, "idle%u-", round);
	open_both(A, B, PER_ROUND, prefix);
	records(A, each, NULL);
	records(B, each, &t->asked_empty);
	bench_text(prefix, sizeof prefix, "other%u-", round);
	open_both(A, B, 1, prefix);
	hold(A, 0, 1, HELD);
	gaps(B, BENCH_RECORD_PAIRS, GAP, &t->asked_full);

	/* Held by both in turn. The gap in which B has been belongs to nobody else, so A is granted what it asks for there. Empty files: nobody had them. */
	bench_text(prefix, sizeof prefix, "fresh%u-", round);
	bench_do(&workers[A], BENCH_OPEN, 0, PER_ROUND, prefix);
	records(A, each, &t->shared_empty);
	bench_text(prefix, sizeof prefix, "both%u-", round);
	open_both(A, B, 1, prefix);
	hold(A, 0, 2, HELD / 2);
	hold(B, 1, 2, HELD / 2);
	gaps(A, BENCH_RECORD_PAIRS, NEXT_GAP, &t->shared_full);
}

/* The kernel itself walks through a file's locks: where that alone costs more than the goal allows, its own ratio is the goal. */
static void report_ratio(const char *what, struct series *full, struct series *empty, double kernel)
{
	double us[2] = { series_us(full, 0.5), series_us(empty, 0.5) };

	bench_row(what, us[0] / us[1], "times", false, kernel > 3 ? kernel : 3,
		  bench_text(more, sizeof more, "%.1f us, p90 %.1f; in an empty one %.1f us", us[0], series_us(full, 0.9), us[1]));
}

static void report_thousand(struct thousand *t)
{
	double full = series_us(&t->bare_full, 0.5), empty = series_us(&t->bare_empty, 0.5), kernel = full / empty;

	report_ratio("(10) one more lock in a file with 1,000, on one host", &t->local_full, &t->local_empty, kernel);
	printf("      the kernel alone: %.1f times, %.2f us; in an empty one %.2f us\n", kernel, full, empty);
	report_ratio("(11) one more, the 1,000 held on the other host", &t->asked_full, &t->asked_empty, 0);
	report_ratio("(12) one more, the 1,000 held on both in turn", &t->shared_full, &t->shared_empty, 0);
}

/* --- F_GETLK and the path that no rule names --- */

static struct series getlk, free_pair, free_raw;

static void round_others(unsigned round)
{
	struct bench_command get = { .verb = BENCH_RECORD_GET, .arg = PER_ROUND, .len = LEN };
	char prefix[32];

	bench_text(prefix, sizeof prefix, "get%u-", round);
	open_both(A, B, 1, prefix);
	hold(B, 0, 1, 1);
	records(A, get, &getlk);

	bench_do(&workers[UNRULED], BENCH_OPEN, 0, 1, "unruled-record");
	records(UNRULED, (struct bench_command){ .verb = BENCH_RECORD_PAIRS, .arg = 200, .len = LEN }, &free_pair);
	records(UNRULED, (struct bench_command){ .verb = BENCH_RECORD_RAW, .arg = 200, .len = LEN }, &free_raw);
}

void measure_records(struct bench_host hosts[2], struct bench_store *store, double unit, double look)
{
	static struct transactions transactions;
	static struct thousand thousand;
	double above;

	start_workers(hosts);
	bench_do(&workers[UNRULED], BENCH_OPEN, 0, 1, "unruled-record");
	for (unsigned round = 0; round < ROUNDS; round++) {
		round_transactions(&transactions, store);
		round_thousand(&thousand, round);
		round_others(round);
	}
	stop_workers();
	report_transactions(&transactions, unit);
	report_thousand(&thousand);
	above = (series_us(&free_pair, 0.5) - series_us(&free_raw, 0.5)) / 2;
	bench_row("(13) F_SETLK, a path no rule names, above the kernel's own", above / look, "stat+link", false, 1,
		  bench_text(more, sizeof more, "%.2f us a call above %.2f", above, series_us(&free_raw, 0.5) / 2));
	bench_row_free("(14) F_GETLK that asks another host", series_us(&getlk, 0.5) / unit, "PING",
		       bench_text(more, sizeof more, "%.1f us, p90 %.1f", series_us(&getlk, 0.5), series_us(&getlk, 0.9)));
}

/* Where the store's time goes in (9), (11) and (12). */
void profile_records(struct bench_host hosts[2], struct bench_store *store)
{
	start_workers(hosts);
	for (unsigned i = A; i <= B; i++)
		bench_do(&workers[i], BENCH_OPEN, 0, 1, "sqlite-profile");
	alternate(2);
	bench_store_reset_stats(store);
	alternate(PER_ROUND);
	printf("\n%d transactions of two hosts that alternate; in the store:\n", 2 * PER_ROUND);
	bench_store_print_stats(store);

	open_both(A, B, 1, "other-profile");
	hold(A, 0, 1, HELD);
	bench_store_reset_stats(store);
	gaps(B, BENCH_RECORD_PAIRS, GAP, NULL);
	printf("\n%d locks in gaps of the 1,000 that another host holds; in the store:\n", PER_ROUND);
	bench_store_print_stats(store);

	open_both(A, B, 1, "both-profile");
	hold(A, 0, 2, HELD / 2);
	hold(B, 1, 2, HELD / 2);
	bench_store_reset_stats(store);
	gaps(A, BENCH_RECORD_PAIRS, NEXT_GAP, NULL);
	printf("\n%d locks in gaps of the 1,000 that two hosts hold in turn; in the store:\n", PER_ROUND);
	bench_store_print_stats(store);
	stop_workers();
}
