/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/explore.c tests/model/explore_agent.c tests/model/explore_check.c tests/model/explore_cover.c */
/* LINK: tests/model/explore_hash.c tests/model/explore_net.c tests/model/explore_probe.c tests/model/explore_programs.c */
/* LINK: tests/model/explore_store.c tests/model/explore_world.c */
/* LINK: daemon-lite/cover.c daemon-lite/cover_probe.c daemon-lite/cover_recall.c daemon-lite/spans.c */
/*
 * Explores what programs, kernels, agents and store do in every order: overlap,
 * hang, wrong refusal, endless exchange. Small scenarios wholly, larger ones at
 * random. DLOCK_EXPLORE=seconds (25) is the time for all of it, DLOCK_SEED the
 * first random scenario.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "explore.h"

enum { WALKS = 60 };		/* of each random scenario */

static struct x_result result;

static double seconds(void)
{
	const char *text = getenv("DLOCK_EXPLORE");
	double n = text ? strtod(text, NULL) : 0;

	return n > 0 ? n : 25;
}

static uint64_t first_seed(void)
{
	const char *text = getenv("DLOCK_SEED");

	return text ? strtoull(text, NULL, 0) : (uint64_t)(x_now() * 1000);
}

static void must_be_fine(const struct x_def *def)
{
	if (!result.violation)
		return;
	x_shrink_and_print(def, &result);
	fail_msg("%s: %s", def->scenario->name, result.why);
}

/* Every interleaving of a few scenarios, in a share of the time; one that is not done in its part is cut. */
static void explore_wholly(const struct x_scenario *list, size_t count, double share)
{
	double until = x_now() + seconds() * share;

	for (size_t i = 0; i < count; i++) {
		struct x_def def;
		double begin = x_now();

		assert_int_equal(x_def_make(&def, &list[i]), 0);
		x_search_all(&def, (until - begin) / (double)(count - i), &result);
		printf("  %-42s %s, %lu states, %lu steps, %.1f s\n", list[i].name, result.complete ? "every state" : "cut",
		       (unsigned long)result.states, (unsigned long)result.steps, x_now() - begin);
		must_be_fine(&def);
	}
}

static void test_no_order_of_events_breaks_two_hosts(void **state)
{
	static const struct x_scenario list[] = {
		{ .name = "two writers", .script = { { "e0 u0" }, { "e0 u0" } } },
		{ .name = "writer and try, repeats, idle", .script = { { "e0 u0" }, { "te0 u0" } }, .repeats = 1, .idles = 1 },
		{ .name = "two readers that both convert", .script = { { "s0 e0" }, { "s0 e0" } } },
		{ .name = "nested readers and a writer", .script = { { "s0 s1 u1 u0" }, { "e0 u0" } }, .interrupts = 1 },
		{ .name = "reader beside a writer that waits here", .script = { { "s0 s1", "e2" }, { "e0" } } },
		{ .name = "writer becomes reader", .script = { { "e0 s0" }, { "s0", "ts1" } } },
		{ .name = "a child unlocks", .script = { { "e0 e0", "u0" }, { "e0" } } },
		{ .name = "probes that take time", .script = { { "e0 u0" }, { "e0 u0", "te1" } }, .async_probe = true },
		{ .name = "standing GOs", .script = { { "e0 u0 e0 u0" }, { "e0 u0" } }, .standing = true },
		{ .name = "standing GOs, probes that take time", .script = { { "e0 u0 s0 u0", "s1" }, { "e0" } }, .standing = true,
		  .async_probe = true },
		{ .name = "GOs that grow too old", .script = { { "e0 u0" }, { "e0", "te1" } }, .lapses = 1, .standing = true },
		{ .name = "a killed writer", .script = { { "e0 u0" }, { "e0" } }, .kills = 1, .breaks = 1 },
		{ .name = "an agent that dies", .script = { { "e0 u0" }, { "e0 u0" } }, .restarts = 1, .interrupts = 1 },
		{ .name = "offers not taken", .script = { { "e0 u0" }, { "e0 u0" } }, .offers = 1, .interrupts = 1 },
		{ .name = "two writers and every network fault", .script = { { "e0 u0" }, { "e0 u0" } }, .repeats = 1,
		  .breaks = 1, .interrupts = 1 },
		{ .name = "a reader that stays", .script = { { "e0 s0 hold" }, { "e0", "s1" } }, .interrupts = 1 },
		{ .name = "writer and reader on both", .script = { { "e0", "s1" }, { "e0", "s1" } } },
	};

	(void)state;
	explore_wholly(list, sizeof list / sizeof list[0], 0.3);
}

static void test_no_order_of_events_breaks_three_hosts(void **state)
{
	static const struct x_scenario list[] = {
		{ .name = "three writers", .script = { { "e0" }, { "e0" }, { "e0" } } },
		{ .name = "reader, writer, reader's try", .script = { { "s0" }, { "e0" }, { "ts0" } } },
		{ .name = "a reader that stays, a writer, a try", .script = { { "s0 hold" }, { "e0" }, { "ts0" } }, .interrupts = 1 },
		{ .name = "three tries", .script = { { "te0 u0" }, { "te0 u0" }, { "ts0 u0" } }, .idles = 1 },
	};

	(void)state;
	explore_wholly(list, sizeof list / sizeof list[0], 0.1);
}

#define RECORDS(seen_) .records = true, .seen = seen_

static void test_no_order_of_events_breaks_record_locks_of_two_hosts(void **state)
{
	static const struct x_scenario list[] = {
		{ RECORDS(0), .name = "two writers of one part", .script = { { "e0:01 u0:01" }, { "e0:01 u0:01" } }, .idles = 1, .interrupts = 1 },
		{ RECORDS(1), .name = "parts that do not meet", .script = { { "e0:02 u0:02" }, { "e0:24 u0:24" } }, .repeats = 1, .breaks = 1 },
		{ RECORDS(0), .name = "a part of a larger one is unlocked", .script = { { "e0 u0:02" }, { "e0:12", "e1" } } },
		{ RECORDS(2), .name = "a larger one in two parts", .script = { { "e0:01", "e1:12" }, { "s0:02" } }, .interrupts = 1 },
		{ RECORDS(1), .name = "an upgrade of a part", .script = { { "s0 e0:12" }, { "s0:01", "ts1:12" } } },
		{ RECORDS(0), .name = "a downgrade of a part", .script = { { "e0 s0:12 u0:01" }, { "s0:12", "te1:01" } } },
		{ RECORDS(0), .name = "two that both upgrade", .script = { { "s0:02 e0:02" }, { "s0:02 e0:02" } }, .interrupts = 1 },
		{ RECORDS(0), .name = "who holds a part passes", .script = { { "e0:01 e0:12" }, { "e0:02" } }, .interrupts = 1 },
		{ RECORDS(2), .name = "who holds a part passes, beside another", .script = { { "s0:01 e0:12", "s1:12" }, { "e0:02" } } },
		{ RECORDS(1), .name = "each holds what the other wants", .script = { { "e0:01 e0:12" }, { "e0:12 e0:01" } } },
		{ RECORDS(0), .name = "a try beside what is held here", .script = { { "e0:01 te0:02" }, { "e0:12 u0:12", "te1:02" } } },
		{ RECORDS(1), .name = "probes that take time", .script = { { "e0:02 u0:01" }, { "te0:01", "s1:02" } }, .async_probe = true },
		{ RECORDS(2), .name = "standing GOs", .script = { { "e0:01 u0:01 s0" }, { "e0:12" } }, .standing = true, .async_probe = true },
		{ RECORDS(0), .name = "GOs that grow too old", .script = { { "s0:02 e0:01" }, { "e0:12" } }, .lapses = 1, .standing = true },
		{ RECORDS(1), .name = "a killed writer", .script = { { "e0:02 u0:01" }, { "e0:01", "s1:12" } }, .kills = 1 },
		{ RECORDS(0), .name = "an agent that dies", .script = { { "e0:02 u0:01" }, { "e0:12" } }, .restarts = 1, .interrupts = 1 },
		{ RECORDS(0), .name = "offers not taken", .script = { { "e0:02" }, { "e0:12 u0:12" } }, .offers = 1, .interrupts = 1 },
		{ RECORDS(2), .name = "every network fault", .script = { { "e0:02" }, { "e0:12" } }, .repeats = 1, .breaks = 1, .interrupts = 1, .voids = 1 },
		{ RECORDS(1), .name = "a reader that stays", .script = { { "s0:12 hold" }, { "e0", "s1:02" } }, .interrupts = 1 },
		{ RECORDS(0), .name = "an owner that holds something elsewhere", .script = { { "s0:02 hold", "e1" }, { "e0:01", "s1:01" } }, .passes = 1 },
	};

	(void)state;
	explore_wholly(list, sizeof list / sizeof list[0], 0.25);
}

static void test_no_order_of_events_breaks_record_locks_of_three_hosts(void **state)
{
	static const struct x_scenario list[] = {
		{ RECORDS(0), .name = "three parts in a row", .script = { { "e0:02" }, { "e0:13" }, { "e0:24" } } },
		{ RECORDS(1), .name = "reader, writer, reader's try", .script = { { "s0:02" }, { "e0:12" }, { "ts0:13" } } },
		{ RECORDS(2), .name = "a cycle of three", .script = { { "e0:01 e0:12" }, { "e0:12 e0:23" }, { "e0:23 e0:01" } } },
		{ RECORDS(0), .name = "a larger one over two hosts", .script = { { "s0:01" }, { "s0:12" }, { "e0:02" } }, .idles = 1 },
	};

	(void)state;
	explore_wholly(list, sizeof list / sizeof list[0], 0.1);
}

static void walk(bool records, double share)
{
	uint64_t seed = first_seed(), first = seed, walks = 0, steps = 0;
	double until = x_now() + seconds() * share;

	printf("  DLOCK_SEED=%lu\n", (unsigned long)first);
	for (; x_now() < until; seed++) {
		struct x_scenario scenario;
		struct x_text text;
		struct x_def def;

		x_scenario_random(seed, 2 + (int)(seed % 2), 2 + (int)(seed / 2 % 2), records, &scenario, &text);
		assert_int_equal(x_def_make(&def, &scenario), 0);
		x_search_walks(&def, seed, WALKS, until - x_now(), &result);
		walks += result.states;
		steps += result.steps;
		if (result.violation)
			printf("  DLOCK_SEED=%lu\n", (unsigned long)seed);
		must_be_fine(&def);
	}
	printf("  %lu scenarios, %lu walks, %lu steps\n", (unsigned long)(seed - first), (unsigned long)walks,
	       (unsigned long)steps);
}

static void test_no_random_walk_finds_a_violation(void **state)
{
	(void)state;
	walk(false, 0.1);
}

static void test_no_random_walk_of_record_locks_finds_a_violation(void **state)
{
	(void)state;
	walk(true, 0.15);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_order_of_events_breaks_two_hosts),
		cmocka_unit_test(test_no_order_of_events_breaks_three_hosts),
		cmocka_unit_test(test_no_order_of_events_breaks_record_locks_of_two_hosts),
		cmocka_unit_test(test_no_order_of_events_breaks_record_locks_of_three_hosts),
		cmocka_unit_test(test_no_random_walk_finds_a_violation),
		cmocka_unit_test(test_no_random_walk_of_record_locks_finds_a_violation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
