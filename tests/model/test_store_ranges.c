/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/test_store_ranges.c tests/model/store_calls.c tests/model/model_text.c tests/model/store_server.c daemon-lite/store/store_model.c daemon-lite/store/store_model_lock.c daemon-lite/store/store_model_tell.c daemon-lite/store/store_model_check.c build/lua_scripts.c */
/* LIBS: hiredis */
/*
 * The rules of covers and queue where they are about parts of a lock, as readable
 * examples on a real server; covers of so many spans that they lie in a set.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store_calls.h"

static void test_whole_line_is_granted_only_while_no_other_host_has_anything(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("A", "2", 30, 40, "1"), "granted [30-40)1/3 -");
	assert_string_equal(GIVE_PART("B", "r:x", 0, END, "0", 2), "cover - -");
	assert_string_equal(RANGE("A", "3", 50, 60, "1"), "granted [0-10)2/4[10-*)1/4 -");
}

static void test_what_is_given_back_by_parts_is_granted_by_parts(void **state)
{
	(void)state;
	assert_string_equal(RANGE("A", "1", 0, 10, "2"), "granted [0-*)2/1 -");
	assert_string_equal(RANGE("B", "1", 100, 200, "2"), "queued");
	assert_string_equal(next_push(), "A: R r:x [100-200)2/1");
	assert_string_equal(GIVE_PART("A", "r:x", 100, 150, "0", 1), "cover - -");
	assert_string_equal(GIVE_PART("A", "r:x", 100, 200, "1", 1), "cover [150-200)1/2 [150-200)2/2");
	assert_string_equal(RANGE("C", "1", 160, 170, "1"), "queued");	/* behind B */
	assert_string_equal(GIVE_PART("A", "r:x", 140, 201, "0", 2), "cover - -");
	assert_string_equal(next_push(), "B: G r:x 1 [100-200)2/3 [160-170)1/3");
}

static void test_giving_back_leaves_a_higher_fence_and_takes_a_lower_one(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("A", "2", 4, 6, "2"), "granted [4-6)2/3 -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "0", 1), "cover [4-6)2/3 -");
	assert_string_equal(RANGE("A", "3", 5, 10, "1"), "granted [5-6)2/4[6-10)1/4 -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 6, "0", 4), "cover - -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "0", 3), "cover [6-10)1/4 -");
}

static void test_several_parts_are_given_back_in_one_call(void **state)
{
	char parts[256];

	(void)state;
	two_ranges();
	snprintf(parts, sizeof(parts), "%s%s%s", part(0, 2, "1", 1), part(2, 3, "1", 1), part(5, 6, "0", 1));
	assert_string_equal(AS("A", LUA_GIVEBACK, "r:x", parts), "cover [0-3)1/3 -");
	assert_string_equal(AS("A", LUA_GIVEBACK, "r:x", part(0, 10, "0", 0)), "cover [0-3)1/3[3-5)2/1[6-10)2/1 -");
}

static void test_readers_share_a_range_and_a_writer_of_another_one_does_not_mind(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "1", 1), "cover [0-10)1/3 -");
	assert_string_equal(RANGE("B", "2", 0, 5, "1"), "granted [0-5)1/4 -");
	assert_string_equal(RANGE("C", "1", 20, 30, "2"), "granted [20-30)2/5 -");
	assert_string_equal(RANGE("C", "2", 4, 6, "2"), "queued");
	next_push();
	next_push();
	assert_string_equal(RANGE("B", "3", 6, 7, "1"), "granted [6-7)1/6 -");	/* C does not wait for that */
	assert_string_equal(RANGE("B", "4", 5, 7, "1"), "queued");
}

static void test_a_recall_is_left_out_only_if_the_very_same_part_was_told(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("B", "2", 2, 12, "2"), "queued");
	assert_string_equal(next_push(), "A: R r:x [2-10)2/1");
	assert_string_equal(RANGE("C", "1", 2, 10, "1"), "queued");
	assert_string_equal(RANGE("C", "2", 3, 10, "1"), "queued");
	assert_string_equal(next_push(), "A: R r:x [3-10)1/1");
	assert_string_equal(RANGE("C", "3", 2, 15, "2"), "queued");	/* the same part of A's span, and one of B's */
	assert_string_equal(next_push(), "B: R r:x [10-15)2/2");
	assert_string_equal(RANGE("C", "1", 2, 10, "1"), "queued");	/* a repeated packet */
	assert_string_equal(next_push(), "A: R r:x [2-10)1/1");
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), " r:x [0-10)2/1"));
	assert_string_equal(next_push(), "A: R r:x [2-10)2/1[3-10)1/1");
}

static void test_a_request_that_may_pass_waits_for_covers_only(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("C", "1", 0, 20, "2"), "queued");
	next_push();
	next_push();
	assert_string_equal(RANGE("B", "2", 20, 30, "2"), "granted [20-30)2/3 -");
	assert_string_equal(RANGE("C", "2", 30, 50, "2"), "granted [30-50)2/4 -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "0", 1), "cover - -");
	assert_string_equal(RANGE("A", "2", 0, 5, "2"), "queued");	/* behind C */
	assert_string_equal(REQUEST("A", "r:x", "3", 5, 10, "2", "2"), "granted [5-10)2/5 [5-10)2/5");
	assert_string_equal(REQUEST("A", "r:x", "2", 0, 5, "2", "2"), "granted [0-5)2/6 [0-5)2/6");
	assert_string_equal(REQUEST("A", "r:x", "4", 10, 12, "2", "2"), "queued");
	assert_string_equal(next_push(), "B: R r:x [10-12)2/2");
}

static void test_a_request_that_may_pass_is_granted_beside_one_of_its_host_that_may_not(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("C", "1", 0, 10, "2"), "queued");
	next_push();
	assert_string_equal(RANGE("B", "2", 0, 5, "2"), "queued");
	next_push();
	assert_string_equal(REQUEST("B", "r:x", "3", 0, 5, "2", "2"), "queued");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 5, "0", 1), "cover - -");
	assert_string_equal(next_push(), "B: G r:x 3 [0-5)2/3 [0-5)2/3");
}

static void test_a_request_that_waits_may_pass_when_it_is_asked_again(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("C", "1", 0, 5, "2"), "queued");
	next_push();
	assert_string_equal(RANGE("B", "2", 0, 5, "1"), "queued");
	assert_string_equal(REQUEST("B", "r:x", "2", 0, 5, "1", "2"), "queued");	/* A has it */
	assert_string_equal(next_push(), "A: R r:x [0-5)1/1");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "1", 1), "cover [0-10)1/3 [0-5)2/3");
	assert_string_equal(next_push(), "B: G r:x 2 [0-5)1/4 [0-5)2/4");
}

static void test_a_grant_refuses_only_the_tries_that_its_own_range_conflicts_with(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(REQUEST("C", "r:x", "1", 0, 2, "2", "1"), "queued");
	assert_string_equal(next_push(), "A: T r:x [0-2)2/1 C 1");
	assert_string_equal(REQUEST("C", "r:x", "2", 1, 9, "1", "3"), "queued");
	assert_string_equal(next_push(), "A: T r:x [1-9)1/1 C 2");
	assert_string_equal(RANGE("A", "2", 0, 1, "2"), "granted [0-1)2/3 -");
	assert_string_equal(next_push(), "C: B r:x 1");
	assert_string_equal(RANGE("A", "3", 8, 10, "1"), "granted [8-10)2/4 -");	/* it was exclusive before */
	assert_string_equal(next_push(), "A: T r:x [1-9)1/4 C 2");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 10, "1", 4), "cover [0-10)1/5 -");
	assert_string_equal(next_push(), "C: G r:x 2 [1-9)1/6 -");
}

static void test_at_the_end_of_grace_old_parts_of_a_cover_are_recalled_too(void **state)
{
	(void)state;
	two_ranges();
	assert_string_equal(RANGE("C", "1", 5, 15, "2"), "queued");
	next_push();
	next_push();
	command("DEBUG CHANGE-REPL-ID");
	AS("A", LUA_ATTACH, "tA", "", "i");
	learn_inc();
	assert_string_equal(as_generation("A", LUA_REASSERT, "2", (const char *const[]){ "tA", "i", "9", "0", "1", "r:x", part(0, 10, "2", 1),
		"1 cmd", "1", "r:x", "7", offset(20), offset(21), "2", "0", "1 cmd", NULL }), "asserted 2 0 10");
	assert_string_equal(as_generation("C", LUA_REASSERT, "1", (const char *const[]){ "tC", "i", "9", "0", "0", "1", "r:x", "1", offset(5),
		offset(15), "2", "0", "1 cmd", NULL }), "asserted 1 0");
	assert_string_equal(as_generation("C", LUA_ENDGRACE, "1", (const char *const[]){ NULL }), "ended 1");
	assert_string_equal(next_push(), "A: G r:x 7 [20-21)2/11 -");
	assert_string_equal(next_push(), "A: R r:x [5-10)2/10");
}

/* --- many spans ------------------------------------------------------------------- */

/* A and B in turn, 10 bytes each from 0 to 20 * count. */
static void interleave(unsigned count)
{
	two_ranges();
	for (unsigned i = 1; i < count; i++) {
		char req[16];

		snprintf(req, sizeof(req), "%u", i + 1);
		assert_non_null(strstr(RANGE("A", req, 20 * i, 20 * i + 10, "2"), "granted ["));
		assert_non_null(strstr(RANGE("B", req, 20 * i + 10, 20 * i + 20, "2"), "granted ["));
	}
}

static void test_many_spans_lie_in_a_set_until_few_are_left(void **state)
{
	unsigned long long fence;

	(void)state;
	interleave(33);
	assert_string_equal(command("ZCARD " TEST_PREFIX "s:A/r:x"), "33");
	assert_string_equal(command("ZCARD " TEST_PREFIX "s:B/r:x"), "33");
	assert_string_equal(RANGE("C", "1", 200, 225, "1"), "queued");
	assert_string_equal(next_push(), "A: R r:x [200-210)1/21[220-225)1/23");
	assert_string_equal(next_push(), "B: R r:x [210-220)1/22");
	assert_string_equal(GIVE_PART("A", "r:x", 205, 222, "0", 1000), "cover - -");
	assert_string_equal(RANGE("A", "90", 203, 205, "2"), "queued");		/* behind C, which waits */
	assert_string_equal(REQUEST("A", "r:x", "91", 203, 205, "1", "2"), "granted [203-205)2/67 [203-205)1/67");
	assert_string_equal(AS("A", LUA_WITHDRAW, "r:x", "90"), "withdrawn 1");
	assert_string_equal(AS("C", LUA_WITHDRAW, "r:x", "1"), "withdrawn 1");
	/* [200-203) [203-205) [222-230) and 31 others. */
	assert_string_equal(command("ZCARD " TEST_PREFIX "s:A/r:x"), "34");
	for (unsigned i = 32; i > 14; i--) {
		assert_string_equal(command("EXISTS " TEST_PREFIX "s:A/r:x"), "1");
		assert_string_equal(GIVE_PART("A", "r:x", 20 * i, 20 * i + 10, "0", 1000), "cover - -");
	}
	assert_string_equal(command("EXISTS " TEST_PREFIX "s:A/r:x"), "0");
	fence = 67;
	assert_string_equal(GIVE_PART("A", "r:x", 180, 240, "1", fence), "cover [180-190)1/68[200-205)1/68[222-230)1/68 -");
	/* The other one goes with its host, and what it covered is free. */
	assert_string_equal(AS("B", LUA_LEAVE, ""), "left");
	assert_string_equal(command("EXISTS " TEST_PREFIX "s:B/r:x"), "0");
	assert_string_equal(RANGE("A", "92", 0, 10, "2"), "granted [0-*)2/69 -");
	assert_string_equal(command("EXISTS " TEST_PREFIX "s:A/r:x"), "0");
}

static void test_what_one_call_has_given_back_of_a_set_does_not_hide_the_rest(void **state)
{
	(void)state;
	interleave(40);
	assert_string_equal(AS("B", LUA_LEAVE, ""), "left");
	assert_string_equal(RANGE("C", "1", 0, END, "2"), "queued");
	next_push();
	assert_string_equal(GIVE_PART("A", "r:x", 200, END, "0", 1000), "cover - -");
	assert_string_equal(command("HEXISTS " TEST_PREFIX "n:r:x c/C"), "0");
	assert_string_equal(GIVE_PART("A", "r:x", 40, 1000, "0", 1000), "cover - -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 25, "0", 1000), "cover - -");
	assert_string_equal(GIVE_PART("A", "r:x", 25, 26, "0", 1000), "cover - -");
	assert_string_equal(GIVE_PART("A", "r:x", 0, 1000, "0", 1000), "cover - -");
	assert_string_equal(next_push(), "C: G r:x 1 [0-*)2/81 -");
}

static void test_a_cover_in_a_set_becomes_one_span_when_nobody_else_is_left(void **state)
{
	const char *text;

	(void)state;
	interleave(40);
	text = AS("A", LUA_STATUS, "0", "r:x");
	assert_non_null(strstr(text, "cover|r:x|A|2|79|"));
	assert_non_null(strstr(text, "cover|r:x|B|2|80|"));
	assert_string_equal(AS("C", LUA_EXPIRE, "B", "1"), "expired 1");
	text = RANGE("A", "99", 5, 6, "1");	/* the whole line: shared between A's exclusive parts */
	assert_non_null(strstr(text, "granted [0-10)2/81[10-20)1/81[20-30)2/81"));
	assert_non_null(strstr(text, "[770-780)1/81[780-790)2/81[790-*)1/81 -"));
	assert_string_equal(command("ZCARD " TEST_PREFIX "s:A/r:x"), "80");
	assert_string_equal(RANGE("A", "100", 0, 10, "2"), "granted [0-*)2/82 -");
	assert_string_equal(command("EXISTS " TEST_PREFIX "s:A/r:x"), "0");
}

static void test_a_set_that_does_not_fit_its_record_is_an_error(void **state)
{
	char *before, *after;

	(void)state;
	interleave(40);
	command("ZPOPMAX " TEST_PREFIX "s:B/r:x");
	before = whole_state();
	assert_non_null(strstr(RANGE("A", "99", 2000, 2010, "2"), "damaged"));
	assert_non_null(strstr(GIVE_PART("A", "r:x", 0, 10, "0", 1000), "damaged"));
	command("SET " TEST_PREFIX "s:B/r:x rubbish");
	assert_non_null(strstr(RANGE("A", "99", 2000, 2010, "2"), "WRONGTYPE"));
	assert_string_equal(AS("A", LUA_LEAVE, ""), "left");	/* what can be read goes */
	assert_string_equal(command("EXISTS " TEST_PREFIX "s:A/r:x"), "0");
	command("DEL " TEST_PREFIX "s:B/r:x");
	after = whole_state();
	assert_string_not_equal(before, after);
	free(before);
	free(after);
}

#define STORE_TEST(name) cmocka_unit_test_setup(name, calls_fresh_store)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_whole_line_is_granted_only_while_no_other_host_has_anything),
		STORE_TEST(test_what_is_given_back_by_parts_is_granted_by_parts),
		STORE_TEST(test_giving_back_leaves_a_higher_fence_and_takes_a_lower_one),
		STORE_TEST(test_several_parts_are_given_back_in_one_call),
		STORE_TEST(test_readers_share_a_range_and_a_writer_of_another_one_does_not_mind),
		STORE_TEST(test_a_recall_is_left_out_only_if_the_very_same_part_was_told),
		STORE_TEST(test_a_request_that_may_pass_waits_for_covers_only),
		STORE_TEST(test_a_request_that_may_pass_is_granted_beside_one_of_its_host_that_may_not),
		STORE_TEST(test_a_request_that_waits_may_pass_when_it_is_asked_again),
		STORE_TEST(test_a_grant_refuses_only_the_tries_that_its_own_range_conflicts_with),
		STORE_TEST(test_at_the_end_of_grace_old_parts_of_a_cover_are_recalled_too),
		STORE_TEST(test_many_spans_lie_in_a_set_until_few_are_left),
		STORE_TEST(test_what_one_call_has_given_back_of_a_set_does_not_hide_the_rest),
		STORE_TEST(test_a_cover_in_a_set_becomes_one_span_when_nobody_else_is_left),
		STORE_TEST(test_a_set_that_does_not_fit_its_record_is_an_error),
	};

	return cmocka_run_group_tests(tests, calls_start, calls_stop);
}
