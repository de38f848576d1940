/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/deadlock_graph.c daemon-lite/deadlock_solve.c daemon-lite/records.c daemon-lite/hash.c */
/* Cycles of waits over hosts, beside a brute search; and hosts that say nonsense. SEED=n repeats a random run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../daemon-lite/deadlock_graph.h"

/* One said thing: a wait (of owner) or a hold. */
struct said {
	const char *host;
	bool wait, asked;
	uint64_t id, owner, stamp;
	const char *key, *name;
	uint64_t start, end;
	enum lock_mode mode;
};

#define ASKED(host_, id_, owner_, key_, start_, end_, mode_) \
	{ .host = host_, .wait = true, .asked = true, .id = id_, .owner = owner_, .key = key_, .name = "", .start = start_, .end = end_, .mode = mode_ }
#define QUEUED(host_, id_, owner_, key_, name_, start_, end_, mode_) \
	{ .host = host_, .wait = true, .id = id_, .owner = owner_, .key = key_, .name = name_, .start = start_, .end = end_, .mode = mode_ }
#define HOLDS(host_, owner_, key_, start_, end_, mode_) \
	{ .host = host_, .owner = owner_, .key = key_, .start = start_, .end = end_, .mode = mode_ }

static void put(struct record_buf *buf, const struct said *s)
{
	struct extent at = { s->start, s->end };

	if (s->wait)
		deadlock_wait_put(buf, &(struct deadlock_wait){ .id = s->id, .owner = s->owner, .pid = s->id ? s->id % 1000 : 7, .stamp = s->stamp,
			.asked = s->asked, .key = s->key, .name = s->name, .at = at, .mode = s->mode });
	else
		deadlock_hold_put(buf, &(struct deadlock_hold){ s->owner, s->key, at, s->mode });
}

/* The graph of what is said, in this order, each in a part of its own. */
static struct deadlock_graph *graph_of(const struct said *said, size_t count)
{
	struct deadlock_graph *graph = deadlock_graph_new();

	assert_non_null(graph);
	for (size_t i = 0; i < count; i++) {
		struct record_buf buf = { 0 };

		put(&buf, &said[i]);
		assert_int_equal(buf.err, 0);
		assert_int_equal(deadlock_graph_add(graph, said[i].host, buf.data, buf.len), 0);
		record_buf_free(&buf);
	}
	return graph;
}

static struct deadlock_graph *solved(const struct said *said, size_t count, long victims)
{
	struct deadlock_graph *graph = graph_of(said, count);
	const struct deadlock_victim *found;

	assert_int_equal(deadlock_graph_solve(graph, &found), victims);
	return graph;
}

static void victim_is(const struct said *said, size_t count, const char *host, uint64_t id)
{
	struct deadlock_graph *graph = graph_of(said, count);
	const struct deadlock_victim *found;

	assert_int_equal(deadlock_graph_solve(graph, &found), 1);
	assert_string_equal(found[0].host, host);
	assert_int_equal(found[0].id, id);
	deadlock_graph_free(graph);
}

static void nobody(const struct said *said, size_t count)
{
	deadlock_graph_free(solved(said, count, 0));
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define VICTIM_IS(said, host, id) victim_is(said, COUNT(said), host, id)
#define NOBODY(said) nobody(said, COUNT(said))

/* --- what is a cycle --- */

static void test_two_hosts_that_wait_for_each_other_have_the_greater_one_as_victim(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 11, 1, "r:f", 10, 20, MODE_EX),
		HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 5, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "B", 5);
}

static void test_a_cycle_through_four_hosts_and_three_files_has_one_victim(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:g", 0, EXTENT_END, MODE_SH),
		HOLDS("B", 9, "r:g", 7, 8, MODE_EX), ASKED("B", 2, 9, "r:h", 0, 1, MODE_EX),
		HOLDS("C", 0, "r:h", 0, 1, MODE_SH), ASKED("C", 3, 0, "r:h", 100, 101, MODE_EX),
		HOLDS("D", 3, "r:h", 0, EXTENT_END, MODE_SH), ASKED("D", 4, 3, "r:f", 9, 10, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "D", 4);
}

static void test_two_upgraders_are_a_cycle(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_SH), ASKED("A", 1, 1, "r:f", 0, 10, MODE_EX),
		HOLDS("B", 1, "r:f", 0, 10, MODE_SH), ASKED("B", 1, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "B", 1);
}

static void test_a_cycle_with_waits_in_the_kernel_has_a_victim_that_waits_in_the_store(void **state)
{
	const struct said said[] = {
		HOLDS("B", 1, "r:f", 0, 10, MODE_EX), QUEUED("B", 99, 1, "l:8:1:5", "r:g", 0, 10, MODE_EX),
		HOLDS("B", 2, "l:8:1:5", 0, 5, MODE_EX), HOLDS("B", 2, "r:g", 0, 5, MODE_EX), ASKED("B", 2, 2, "r:h", 0, 1, MODE_EX),
		HOLDS("A", 1, "r:h", 0, 1, MODE_EX), ASKED("A", 3, 1, "r:f", 0, 1, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "B", 2);
}

static void test_a_cycle_of_waits_in_one_kernel_is_left_to_it(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "l:8:1:5", 0, 10, MODE_EX), QUEUED("A", 1, 1, "l:8:1:5", "r:f", 10, 20, MODE_EX),
		HOLDS("A", 2, "l:8:1:5", 10, 20, MODE_EX), QUEUED("A", 2, 2, "l:8:1:5", "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	NOBODY(said);
}

static void test_two_cycles_have_two_victims(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:f", 10, 20, MODE_EX),
		HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 2, 1, "r:f", 0, 10, MODE_EX),
		HOLDS("A", 2, "r:g", 0, 10, MODE_EX), ASKED("A", 3, 2, "r:g", 10, 20, MODE_EX),
		HOLDS("B", 2, "r:g", 10, 20, MODE_EX), ASKED("B", 4, 2, "r:g", 0, 10, MODE_EX),
	};

	(void)state;
	deadlock_graph_free(solved(said, COUNT(said), 2));
}

static void test_an_owner_waits_when_any_thread_of_it_does(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:g", 50, 60, MODE_EX), ASKED("A", 2, 1, "r:f", 10, 20, MODE_EX),
		HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 1, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "B", 1);
}

static void test_a_wait_behind_another_hosts_go_is_an_edge(void **state)
{
	/* B's part [5, 10) cannot be given back while its program waits for [0, 10) in the kernel. */
	const struct said said[] = {
		HOLDS("A", 1, "r:g", 0, 1, MODE_EX), ASKED("A", 1, 1, "r:f", 5, 10, MODE_EX),
		QUEUED("B", 7, 1, "l:8:1:5", "r:f", 0, 10, MODE_EX),
		HOLDS("B", 2, "l:8:1:5", 0, 5, MODE_EX), HOLDS("B", 2, "r:f", 0, 5, MODE_EX), ASKED("B", 2, 2, "r:g", 0, 1, MODE_EX),
	};

	(void)state;
	VICTIM_IS(said, "B", 2);
}

/* --- what is none --- */

static void test_a_chain_is_no_cycle(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:f", 10, 20, MODE_EX),
		HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 1, 1, "r:f", 20, 30, MODE_EX),
		HOLDS("C", 1, "r:f", 20, 30, MODE_EX),
	};

	(void)state;
	NOBODY(said);
}

static void test_readers_and_neighbours_do_not_wait_for_each_other(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_SH), ASKED("A", 1, 1, "r:f", 10, 20, MODE_SH),
		HOLDS("B", 1, "r:f", 10, 20, MODE_SH), ASKED("B", 1, 1, "r:f", 0, 10, MODE_SH),
		HOLDS("C", 1, "r:f", 30, 40, MODE_EX), ASKED("C", 1, 1, "r:f", 60, 70, MODE_EX),
		HOLDS("D", 1, "r:f", 50, 60, MODE_EX), ASKED("D", 1, 1, "r:f", 40, 50, MODE_EX),
	};

	(void)state;
	NOBODY(said);
}

static void test_a_wait_does_not_stand_behind_its_own_owner(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_SH), ASKED("A", 1, 1, "r:f", 0, 10, MODE_EX), ASKED("A", 2, 1, "r:f", 0, 10, MODE_EX),
		HOLDS("B", 1, "r:f", 0, 10, MODE_SH),
	};

	(void)state;
	NOBODY(said);
}

static void test_owners_of_different_hosts_with_one_number_are_two(void **state)
{
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:f", 10, 20, MODE_EX),
		HOLDS("B", 2, "r:f", 10, 20, MODE_EX), ASKED("B", 1, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	NOBODY(said);
}

static void test_a_wait_in_the_kernel_waits_for_its_own_host_only(void **state)
{
	/* Two hosts may have the same inode numbers, and a host's kernel knows no other's locks. */
	const struct said said[] = {
		HOLDS("A", 1, "l:8:1:5", 0, 10, MODE_EX), HOLDS("A", 1, "r:f", 0, 10, MODE_EX), QUEUED("A", 1, 1, "l:8:1:5", "r:f", 10, 20, MODE_EX),
		HOLDS("B", 1, "l:8:1:5", 10, 20, MODE_EX), HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 1, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	NOBODY(said);
}

static void test_what_is_not_of_the_right_form_is_left_out(void **state)
{
	static const char *const nonsense[] = {
		"", "x", "record=wait\n", "record=hold\towner=1\tkey=r:f\tmode=3\tstart=0\tend=10\n",
		"record=wait\tid=1\tasked=1\towner=1\tkey=l:1:1:1\tmode=2\tstart=10\tend=20\n",
		"record=wait\tid=1\tasked=0\towner=1\tkey=r:f\tmode=2\tstart=10\tend=20\n",
		"record=wait\tid=0\tasked=1\towner=1\tkey=r:f\tmode=2\tstart=10\tend=20\n",
		"record=wait\tid=1\tasked=1\tkey=r:f\tmode=2\tstart=10\tend=20\n",
		"record=wait\tid=1\tasked=1\towner=1\tkey=f:f\tmode=2\tstart=10\tend=20\n",
		"record=wait\tid=1\tasked=1\towner=1\tkey=r:f\tmode=2\tstart=20\tend=10\n",
		"record=wait\tid=1\tasked=1\towner=1\tkey=r:f\tmode=2\tstart=10\tend=9223372036854775809\n",
		"record=hold\towner=1\tkey=r:f\tmode=2\tstart=-1\tend=10\n", "\n\n\n", "record=hold\towner=1\tkey=r:f\tmode=2\tstart=0",
	};
	const struct said said[] = {
		HOLDS("A", 1, "r:f", 0, 10, MODE_EX),
		HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 1, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	for (size_t i = 0; i < COUNT(nonsense); i++) {
		struct deadlock_graph *graph = graph_of(said, COUNT(said));
		const struct deadlock_victim *found;

		assert_int_equal(deadlock_graph_add(graph, "A", nonsense[i], strlen(nonsense[i])), 0);
		assert_int_equal(deadlock_graph_solve(graph, &found), 0);
		deadlock_graph_free(graph);
	}
}

static void test_a_host_that_says_too_much_is_cut(void **state)
{
	struct deadlock_graph *graph = deadlock_graph_new();
	const struct deadlock_victim *found;
	struct record_buf buf = { 0 };
	struct timespec before, after;

	(void)state;
	for (uint64_t i = 0; i < DEADLOCK_WAITS_MAX + 10; i++)
		put(&buf, &(struct said)ASKED("A", i + 1, i, "r:f", 0, EXTENT_END, MODE_EX));
	for (uint64_t i = 0; i < DEADLOCK_HOLDS_MAX + 10; i++)
		put(&buf, &(struct said)HOLDS("A", i % 1000, "r:f", 2 * i, 2 * i + 1, MODE_EX));
	clock_gettime(CLOCK_MONOTONIC, &before);
	assert_int_equal(deadlock_graph_add(graph, "A", buf.data, buf.len), 0);
	assert_true(deadlock_graph_is_cut(graph));
	assert_int_equal(deadlock_graph_solve(graph, &found), 1);
	clock_gettime(CLOCK_MONOTONIC, &after);
	assert_int_equal(found[0].id, DEADLOCK_WAITS_MAX);
	print_message("%zu bytes, each waits for each: %ld ms\n", buf.len, (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000);
	deadlock_graph_free(graph);
	record_buf_free(&buf);
}

/* --- twice --- */

#define CYCLE \
	HOLDS("A", 1, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 1, "r:f", 10, 20, MODE_EX), \
	HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 2, 1, "r:f", 0, 10, MODE_EX)

static bool confirmed(const struct said *second, size_t second_count, const struct said *first, size_t first_count)
{
	struct deadlock_graph *a = graph_of(first, first_count), *b = graph_of(second, second_count);
	const struct deadlock_victim *found;
	bool ret;

	assert_int_equal(deadlock_graph_solve(a, &found), 1);
	assert_true(deadlock_graph_solve(b, &found) >= 0);
	assert_int_equal(deadlock_graph_victims(a, &found), 1);
	ret = deadlock_graph_confirms(b, a, 0);
	deadlock_graph_free(a);
	deadlock_graph_free(b);
	return ret;
}

static void test_a_cycle_is_confirmed_by_the_same_waits_whatever_else_there_is(void **state)
{
	const struct said first[] = { CYCLE };
	const struct said again[] = {	/* other numbers of the owners, another order, one more who waits */
		ASKED("B", 2, 8, "r:f", 0, 10, MODE_EX), ASKED("A", 1, 9, "r:f", 10, 20, MODE_EX), ASKED("C", 3, 1, "r:f", 0, 10, MODE_EX),
		HOLDS("B", 8, "r:f", 10, 20, MODE_EX), HOLDS("A", 9, "r:f", 0, 10, MODE_EX), HOLDS("C", 1, "r:f", 90, 91, MODE_EX),
	};

	(void)state;
	assert_true(confirmed(first, COUNT(first), first, COUNT(first)));
	assert_true(confirmed(again, COUNT(again), first, COUNT(first)));
}

static void test_a_cycle_is_not_confirmed_when_a_wait_is_another_one(void **state)
{
	const struct said first[] = { CYCLE };

	(void)state;
	for (size_t i = 0; i < COUNT(first); i++) {
		struct said second[] = { CYCLE };

		if (!second[i].wait)
			continue;
		second[i].id = 3;
		assert_false(confirmed(second, COUNT(second), first, COUNT(first)));
	}
}

static void test_a_cycle_is_not_confirmed_when_a_hold_is_gone(void **state)
{
	const struct said first[] = { CYCLE }, second[] = {
		ASKED("A", 1, 1, "r:f", 10, 20, MODE_EX), HOLDS("B", 1, "r:f", 10, 20, MODE_EX), ASKED("B", 2, 1, "r:f", 0, 10, MODE_EX),
	};

	(void)state;
	assert_false(confirmed(second, COUNT(second), first, COUNT(first)));
}

static void test_a_cycle_is_not_confirmed_when_a_greater_victim_has_come(void **state)
{
	const struct said first[] = { CYCLE }, second[] = {
		CYCLE,
		HOLDS("C", 1, "r:f", 0, 10, MODE_SH), HOLDS("C", 1, "r:f", 10, 20, MODE_SH), ASKED("C", 3, 1, "r:f", 10, 20, MODE_EX),
	};

	(void)state;
	assert_false(confirmed(second, COUNT(second), first, COUNT(first)));
}

static void test_a_thread_that_has_run_between_is_not_the_same_wait(void **state)
{
#define MIXED(stamp_) { \
	HOLDS("B", 1, "r:f", 0, 10, MODE_EX), \
	{ .host = "B", .wait = true, .owner = 1, .stamp = stamp_, .key = "l:8:1:5", .name = "", .start = 0, .end = 10, .mode = MODE_EX }, \
	HOLDS("B", 2, "l:8:1:5", 0, 5, MODE_EX), ASKED("B", 2, 2, "r:h", 0, 1, MODE_EX), \
	HOLDS("A", 1, "r:h", 0, 1, MODE_EX), ASKED("A", 3, 1, "r:f", 0, 1, MODE_EX) }
	const struct said first[] = MIXED(100), same[] = MIXED(100), later[] = MIXED(101);

	(void)state;
	assert_true(confirmed(same, COUNT(same), first, COUNT(first)));
	assert_false(confirmed(later, COUNT(later), first, COUNT(first)));
}

/* --- random graphs beside a brute search --- */

static uint64_t seed;

static unsigned pick(unsigned n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

#define SAID_MAX 64

static size_t make_random(struct said *said)
{
	static const char *const hosts[] = { "A", "B", "C", "D" }, *const keys[] = { "r:f", "r:g" }, *const local[] = { "l:8:1:5", "l:8:1:6" };
	size_t count = 4 + pick(SAID_MAX - 4), n = 0;
	unsigned host_count = 1 + pick(4), owners = 1 + pick(4), width = 2 + pick(6);
	uint64_t id = 1;

	while (n < count) {
		struct said one = { .host = hosts[pick(host_count)], .owner = pick(owners), .start = pick(10), .mode = pick(3) ? MODE_EX : MODE_SH, .name = "" };
		unsigned key = pick(2);

		one.end = one.start + 1 + pick(width);
		one.wait = pick(2);
		one.asked = one.wait && pick(3);
		one.id = one.wait ? id++ : 0;
		one.key = one.wait ? (one.asked ? keys[key] : local[key]) : pick(3) ? keys[key] : local[key];
		if (one.wait && !one.asked && pick(2))
			one.name = keys[key];
		said[n++] = one;
	}
	return n;
}

static bool same_owner(const struct said *a, const struct said *b)
{
	return !strcmp(a->host, b->host) && a->owner == b->owner;
}

static bool against(const struct said *n, const struct said *h)
{
	return n->start < h->end && h->start < n->end && (n->mode == MODE_EX || h->mode == MODE_EX);
}

/* Whether n waits for m. */
static bool brute_edge(const struct said *said, size_t count, const struct said *n, const struct said *m)
{
	if (n->asked && !m->asked && !strcmp(n->key, m->name) && strcmp(n->host, m->host) != 0 && against(n, m))
		return true;
	for (size_t i = 0; i < count; i++) {
		const struct said *h = &said[i];

		if (!h->wait && same_owner(h, m) && !same_owner(h, n) && !strcmp(h->key, n->key) && against(n, h) &&
		    (n->asked || !strcmp(h->host, n->host)))
			return true;
	}
	return false;
}

static void brute_reach(const struct said *said, size_t count, bool reach[SAID_MAX][SAID_MAX])
{
	memset(reach, 0, sizeof(bool) * SAID_MAX * SAID_MAX);
	for (size_t n = 0; n < count; n++)
		for (size_t m = 0; m < count; m++)
			reach[n][m] = said[n].wait && said[m].wait && brute_edge(said, count, &said[n], &said[m]);
	for (size_t k = 0; k < count; k++)
		for (size_t n = 0; n < count; n++)
			for (size_t m = 0; m < count; m++)
				reach[n][m] = reach[n][m] || (reach[n][k] && reach[k][m]);
}

/* The victims, a line for each, in order. */
static void brute_victims(const struct said *said, size_t count, bool reach[SAID_MAX][SAID_MAX], char *text)
{
	bool victim[SAID_MAX] = { false };
	char lines[SAID_MAX][32];
	size_t n_lines = 0;

	for (size_t n = 0; n < count; n++) {
		size_t best = SIZE_MAX;

		for (size_t m = 0; reach[n][n] && m < count; m++) {
			if (!said[m].asked || !reach[n][m] || !reach[m][n])
				continue;
			if (best == SIZE_MAX || strcmp(said[m].host, said[best].host) > 0 ||
			    (!strcmp(said[m].host, said[best].host) && said[m].id > said[best].id))
				best = m;
		}
		if (best != SIZE_MAX)
			victim[best] = true;
	}
	for (size_t n = 0; n < count; n++)
		if (victim[n])
			snprintf(lines[n_lines++], sizeof *lines, "%s %" PRIu64 "\n", said[n].host, said[n].id);
	qsort(lines, n_lines, sizeof *lines, (int (*)(const void *, const void *))strcmp);
	*text = '\0';
	for (size_t i = 0; i < n_lines; i++)
		strcat(text, lines[i]);
}

static void graph_victims(const struct said *said, size_t count, char *text)
{
	struct deadlock_graph *graph = graph_of(said, count);
	const struct deadlock_victim *found;
	long n = deadlock_graph_solve(graph, &found);
	char lines[SAID_MAX][32];

	assert_true(n >= 0);
	for (long i = 0; i < n; i++) {
		snprintf(lines[i], sizeof *lines, "%s %" PRIu64 "\n", found[i].host, found[i].id);
		/* The same things said once more confirm it: so its cycle is one. */
		assert_true(deadlock_graph_confirms(graph, graph, (size_t)i));
	}
	qsort(lines, (size_t)n, sizeof *lines, (int (*)(const void *, const void *))strcmp);
	*text = '\0';
	for (long i = 0; i < n; i++)
		strcat(text, lines[i]);
	deadlock_graph_free(graph);
}

static void shuffle(struct said *said, size_t count)
{
	for (size_t i = count; i > 1; i--) {
		size_t k = pick((unsigned)i);
		struct said one = said[i - 1];

		said[i - 1] = said[k];
		said[k] = one;
	}
}

static void test_random_graphs_have_the_victims_that_a_brute_search_finds_in_any_order(void **state)
{
	static struct said said[SAID_MAX];
	static bool reach[SAID_MAX][SAID_MAX];
	static char brute[4096], found[4096];
	size_t with = 0, runs = getenv("QUICK") ? 1000 : 5000;
	const char *given = getenv("SEED");

	(void)state;
	for (size_t run = 0; run < runs; run++) {
		uint64_t first = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003 + run;
		size_t count;

		seed = first;
		count = make_random(said);
		brute_reach(said, count, reach);
		brute_victims(said, count, reach, brute);
		with += *brute != '\0';
		for (int order = 0; order < 3; order++) {
			graph_victims(said, count, found);
			if (strcmp(brute, found) != 0)
				print_message("SEED=%" PRIu64 "\nbrute:\n%sfound:\n%s", first, brute, found);
			assert_string_equal(brute, found);
			shuffle(said, count);
		}
	}
	print_message("%zu random graphs, %zu of them with a victim\n", runs, with);
}

/* Each victim's end takes away a cycle; when nobody is a victim there is no cycle left through anybody who waits in the store. */
static void test_victims_that_go_one_after_the_other_leave_no_cycle(void **state)
{
	static struct said said[SAID_MAX];
	static bool reach[SAID_MAX][SAID_MAX];

	(void)state;
	for (size_t run = 0; run < 1000; run++) {
		const struct deadlock_victim *found;
		size_t count;
		long n;

		seed = (uint64_t)time(NULL) * 7777 + run;
		count = make_random(said);
		do {
			struct deadlock_graph *graph = graph_of(said, count);

			n = deadlock_graph_solve(graph, &found);
			for (long i = 0; i < n; i++) {
				size_t k = 0;

				while (!said[k].asked || said[k].id != found[i].id)
					k++;
				memmove(&said[k], &said[k + 1], (count - k - 1) * sizeof *said);
				count--;
			}
			deadlock_graph_free(graph);
		} while (n > 0);
		brute_reach(said, count, reach);
		for (size_t i = 0; i < count; i++)
			assert_false(said[i].asked && reach[i][i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_hosts_that_wait_for_each_other_have_the_greater_one_as_victim),
		cmocka_unit_test(test_a_cycle_through_four_hosts_and_three_files_has_one_victim),
		cmocka_unit_test(test_two_upgraders_are_a_cycle),
		cmocka_unit_test(test_a_cycle_with_waits_in_the_kernel_has_a_victim_that_waits_in_the_store),
		cmocka_unit_test(test_a_cycle_of_waits_in_one_kernel_is_left_to_it),
		cmocka_unit_test(test_two_cycles_have_two_victims),
		cmocka_unit_test(test_an_owner_waits_when_any_thread_of_it_does),
		cmocka_unit_test(test_a_wait_behind_another_hosts_go_is_an_edge),
		cmocka_unit_test(test_a_chain_is_no_cycle),
		cmocka_unit_test(test_readers_and_neighbours_do_not_wait_for_each_other),
		cmocka_unit_test(test_a_wait_does_not_stand_behind_its_own_owner),
		cmocka_unit_test(test_owners_of_different_hosts_with_one_number_are_two),
		cmocka_unit_test(test_a_wait_in_the_kernel_waits_for_its_own_host_only),
		cmocka_unit_test(test_what_is_not_of_the_right_form_is_left_out),
		cmocka_unit_test(test_a_host_that_says_too_much_is_cut),
		cmocka_unit_test(test_a_cycle_is_confirmed_by_the_same_waits_whatever_else_there_is),
		cmocka_unit_test(test_a_cycle_is_not_confirmed_when_a_wait_is_another_one),
		cmocka_unit_test(test_a_cycle_is_not_confirmed_when_a_hold_is_gone),
		cmocka_unit_test(test_a_cycle_is_not_confirmed_when_a_greater_victim_has_come),
		cmocka_unit_test(test_a_thread_that_has_run_between_is_not_the_same_wait),
		cmocka_unit_test(test_random_graphs_have_the_victims_that_a_brute_search_finds_in_any_order),
		cmocka_unit_test(test_victims_that_go_one_after_the_other_leave_no_cycle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
