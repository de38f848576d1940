/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/test_store_scripts.c tests/model/store_calls.c tests/model/model_text.c tests/model/store_server.c daemon-lite/store/store_model.c daemon-lite/store/store_model_lock.c daemon-lite/store/store_model_tell.c daemon-lite/store/store_model_check.c build/lua_scripts.c */
/* LIBS: hiredis */
/*
 * The rules of covers and queue one by one, as readable examples on a real server:
 * whole locks, hosts that come and go, grace.
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

/* --- the rules, one by one ---------------------------------------------------- */

static void test_exclusive_excludes_another_host_and_its_recall_names_the_fence(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/1");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(next_push(), "B: G f:x 1 [0-*)2/2 -");
}

static void test_shared_covers_stand_together_and_hold_an_exclusive_request_back(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted [0-*)1/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "1"), "granted [0-*)1/2 -");
	assert_string_equal(ACQUIRE("C", "f:x", "1", "2"), "queued");
	next_push();
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover - -");
	assert_string_equal(next_push(), "C: G f:x 1 [0-*)2/3 -");
}

static void test_giving_back_an_old_fence_frees_nothing_newer(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(ACQUIRE("A", "f:x", "2", "2"), "granted [0-*)2/2 -");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover [0-*)2/2 -");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover - -");
	assert_string_equal(TRY("B", "f:x", "1", "2"), "queued");
	next_push();
}

static void test_a_waiting_writer_is_not_passed_by_readers_of_a_third_host(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted [0-*)1/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	assert_string_equal(ACQUIRE("C", "f:x", "1", "1"), "queued");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(next_push(), "B: G f:x 1 [0-*)2/2 [0-*)1/2");	/* told that a reader waits */
}

static void test_a_try_passes_a_waiting_writer_and_is_told_of_it(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted [0-*)1/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	assert_string_equal(TRY("C", "f:x", "1", "1"), "granted [0-*)1/2 [0-*)2/2");
}

static void test_a_try_is_refused_by_the_holder_or_granted_when_it_gives_back(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(TRY("B", "f:x", "7", "1"), "queued");
	assert_string_equal(next_push(), "A: T f:x [0-*)1/1 B 7");
	assert_string_equal(AS("A", LUA_BUSY, "f:x", "B", "7"), "busy 1");
	assert_string_equal(next_push(), "B: B f:x 7");
	assert_string_equal(AS("A", LUA_BUSY, "f:x", "B", "7"), "busy 0");
	assert_string_equal(TRY("B", "f:x", "8", "1"), "queued");
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "1", "1"), "cover [0-*)1/2 -");
	assert_string_equal(next_push(), "B: G f:x 8 [0-*)1/3 -");
}

static void test_an_upgrade_waits_for_other_hosts_only(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted [0-*)1/1 -");
	assert_string_equal(ACQUIRE("A", "f:x", "2", "2"), "granted [0-*)2/2 -");
	assert_string_equal(GIVEBACK("A", "f:x", "1", "2"), "cover [0-*)1/3 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "1"), "granted [0-*)1/4 -");
	assert_string_equal(ACQUIRE("A", "f:x", "3", "2"), "queued");
	assert_string_equal(next_push(), "B: R f:x [0-*)2/4");
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/3");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "4"), "cover - -");
	assert_string_equal(next_push(), "A: G f:x 3 [0-*)2/5 [0-*)2/5");
}

static void test_each_request_has_its_own_place_and_repeating_it_keeps_that_place(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/1");
	assert_string_equal(ACQUIRE("C", "f:x", "1", "2"), "queued");	/* A was told already */
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");	/* a repeated packet */
	assert_string_equal(next_push(), "A: R f:x [0-*)2/1");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(next_push(), "B: G f:x 1 [0-*)2/2 [0-*)2/2");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "2"), "withdrawn 1");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "2"), "withdrawn 0");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover - -");
	assert_string_equal(next_push(), "C: G f:x 1 [0-*)2/3 -");
}

static void test_a_host_expires_only_with_the_counter_that_was_seen(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	command("HINCRBY " TEST_PREFIX "hosts A 1");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 0");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 1");
	assert_string_equal(next_push(), "B: G f:x 1 [0-*)2/2 -");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "2", "2"), "refused token"));
	assert_string_equal(command("EXISTS " TEST_PREFIX "h:A " TEST_PREFIX "k:A " TEST_PREFIX "o:A"), "0");
}

static void test_push_numbers_of_a_host_go_on_when_it_comes_back(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "1", "2");
	next_push();
	assert_string_equal(AS("A", LUA_LEAVE, ""), "left");
	next_push();
	assert_string_equal(AS("A", LUA_ATTACH, "tA", "", "i"), "joined 1 1 1 2");
}

/* An observer saw A with 1, then with 1 again after A left and came back: it must not take them for one silent host. */
static void test_counter_of_a_host_that_comes_back_is_a_new_one(void **state)
{
	(void)state;
	assert_string_equal(command("HGET " TEST_PREFIX "hosts A"), "1");
	assert_string_equal(AS("A", LUA_LEAVE, ""), "left");
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "joined"));
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 0");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 1");
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "joined"));
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 0");
}

static void test_emptied_store_grants_nothing_until_the_grace_ends(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	command("FLUSHALL");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "2", "2"), "refused inc"));
	learn_inc();
	AS("B", LUA_ATTACH, "tB", "", "i");
	assert_string_equal(TRY("B", "f:x", "1", "2"), "busy");
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(AS("A", LUA_REASSERT, "tA", "i", "1", "0", "1", "f:x", part(0, END, "2", 1), "1 cmd", "0"), "asserted 1 0 2");
	assert_string_equal(AS("B", LUA_ENDGRACE, ""), "ended 1");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/2");	/* in grace nobody was recalled */
	assert_string_equal(AS("B", LUA_ENDGRACE, ""), "ended 0");
}

#define STORE_TEST(name) cmocka_unit_test_setup(name, calls_fresh_store)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_exclusive_excludes_another_host_and_its_recall_names_the_fence),
		STORE_TEST(test_shared_covers_stand_together_and_hold_an_exclusive_request_back),
		STORE_TEST(test_giving_back_an_old_fence_frees_nothing_newer),
		STORE_TEST(test_a_waiting_writer_is_not_passed_by_readers_of_a_third_host),
		STORE_TEST(test_a_try_passes_a_waiting_writer_and_is_told_of_it),
		STORE_TEST(test_a_try_is_refused_by_the_holder_or_granted_when_it_gives_back),
		STORE_TEST(test_an_upgrade_waits_for_other_hosts_only),
		STORE_TEST(test_each_request_has_its_own_place_and_repeating_it_keeps_that_place),
		STORE_TEST(test_a_host_expires_only_with_the_counter_that_was_seen),
		STORE_TEST(test_push_numbers_of_a_host_go_on_when_it_comes_back),
		STORE_TEST(test_counter_of_a_host_that_comes_back_is_a_new_one),
		STORE_TEST(test_emptied_store_grants_nothing_until_the_grace_ends),
	};

	return cmocka_run_group_tests(tests, calls_start, calls_stop);
}
