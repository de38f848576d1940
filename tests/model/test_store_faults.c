/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/test_store_faults.c tests/model/store_calls.c tests/model/model_text.c tests/model/store_server.c daemon-lite/store/store_model.c daemon-lite/store/store_model_lock.c daemon-lite/store/store_model_tell.c daemon-lite/store/store_model_check.c build/lua_scripts.c */
/* LIBS: hiredis */
/*
 * The scripts on a real server where the model has nothing to say: keys of a
 * wrong type, damaged records, no memory left, numbers near 2^53, status, questions.
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

/* --- what must not do harm ------------------------------------------------------ */

static void test_lock_key_of_another_type_is_an_error_and_changes_nothing(void **state)
{
	static const enum lua_script_id ids[] = { LUA_ACQUIRE, LUA_WITHDRAW, LUA_GIVEBACK, LUA_BUSY };
	char *before, *after;

	(void)state;
	command("LPUSH " TEST_PREFIX "n:f:x a");
	command("DEL " TEST_PREFIX "none");
	before = strdup(command("LRANGE " TEST_PREFIX "n:f:x 0 -1"));
	for (size_t i = 0; i < 4; i++)
		assert_non_null(strstr(AS("A", ids[i], "f:x", "1", "1", "0", "i"), "WRONGTYPE"));
	assert_string_equal(command("LRANGE " TEST_PREFIX "n:f:x 0 -1"), before);
	assert_string_equal(command("EXISTS " TEST_PREFIX "k:A"), "0");
	free(before);

	command("DEL " TEST_PREFIX "n:f:x");
	command("SET " TEST_PREFIX "k:A a");
	before = strdup(command("HGETALL " TEST_PREFIX "meta"));
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), "WRONGTYPE"));
	assert_string_equal(command("EXISTS " TEST_PREFIX "n:f:x"), "0");
	after = strdup(command("HGET " TEST_PREFIX "meta grace"));
	assert_string_equal(after, "0");
	free(before);
	free(after);
}

static void test_a_damaged_record_is_an_error_and_changes_nothing(void **state)
{
	char *before, *after;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	command("HSET " TEST_PREFIX "n:f:x c/Z rubbish");
	before = whole_state();
	assert_non_null(strstr(ACQUIRE("B", "f:x", "1", "2"), "damaged"));
	assert_non_null(strstr(GIVEBACK("A", "f:x", "0", "1"), "damaged"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_outbox_of_another_type_is_made_anew(void **state)
{
	(void)state;
	command("SET " TEST_PREFIX "o:A rubbish");
	ACQUIRE("A", "f:x", "1", "2");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/1");
	assert_string_equal(command("ZCARD " TEST_PREFIX "o:A"), "1");
}

static void test_one_bad_key_does_not_keep_a_dead_hosts_other_locks(void **state)
{
	(void)state;
	ACQUIRE("A", "f:a", "1", "2");
	ACQUIRE("A", "f:b", "2", "2");
	ACQUIRE("B", "f:b", "1", "2");
	next_push();
	command("SET " TEST_PREFIX "n:f:a rubbish");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 1");
	assert_string_equal(next_push(), "B: G f:b 1 [0-*)2/3 -");
}

static void test_at_maxmemory_nothing_new_is_granted_but_covers_are_given_back(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "1", "2");
	next_push();
	command("CONFIG SET maxmemory 1");
	assert_non_null(strstr(ACQUIRE("A", "f:y", "2", "2"), "OOM"));
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	assert_string_equal(next_push(), "B: G f:x 1 [0-*)2/2 -");
	assert_non_null(strstr(AS("B", LUA_ATTACH, "tB", "", "i"), "resumed"));
	command("CONFIG SET maxmemory 0");
}

static void test_numbers_near_two_to_the_53_stay_exact(void **state)
{
	(void)state;
	command("HSET " TEST_PREFIX "meta fence 9007199254740980 ticket 9007199254740980");
	assert_string_equal(ACQUIRE("A", "f:x", "18446744073709551614", "2"), "granted [0-*)2/9007199254740981 -");
	assert_string_equal(ACQUIRE("B", "f:x", "18446744073709551615", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x [0-*)2/9007199254740981");
	assert_string_equal(ACQUIRE("B", "f:x", "18446744073709551614", "2"), "queued");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "18446744073709551614"), "withdrawn 1");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "18446744073709551613"), "withdrawn 0");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "9007199254740981"), "cover - -");
	assert_string_equal(next_push(), "B: G f:x 18446744073709551615 [0-*)2/9007199254740982 -");
}

static void test_names_may_hold_any_byte_but_nul(void **state)
{
	char name[4300] = "f:\n \t\"\\%s{}\xc3\xa9\xff";

	(void)state;
	memset(name + strlen(name), 'x', 4095);
	assert_string_equal(ACQUIRE("A", name, "1", "2"), "granted [0-*)2/1 -");
	assert_string_equal(ACQUIRE("B", name, "1", "2"), "queued");
	assert_non_null(strstr(next_push(), name));
	assert_non_null(strstr(AS("A", LUA_STATUS, "0", name), name));
	assert_string_equal(GIVEBACK("A", name, "0", "1"), "cover - -");
	next_push();
}

static void test_a_queue_longer_than_a_listpack_keeps_its_order(void **state)
{
	char req[16], fence[16], expected[64];

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	for (int i = 100; i < 500; i++) {
		snprintf(req, sizeof(req), "%d", i);
		assert_string_equal(ACQUIRE(i % 2 ? "B" : "C", "f:x", req, "2"), "queued");
	}
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover - -");
	for (int i = 100; i < 500; i++) {
		const char *host = i % 2 ? "B" : "C";

		snprintf(expected, sizeof(expected), i < 499 ? "%s: G f:x %d [0-*)2/%d [0-*)2/%d" : "%s: G f:x %d [0-*)2/%d -", host, i, i - 98,
			 i - 98);
		assert_string_equal(next_push(), expected);
		snprintf(fence, sizeof(fence), "%d", i - 98);
		GIVEBACK(host, "f:x", "0", fence);
	}
}

static void test_status_shows_everything_and_needs_no_session(void **state)
{
	const char *text;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "5", "1");
	next_push();
	ACQUIRE("C", "f:y", "6", "1");
	command("SET " TEST_PREFIX "n:f:z rubbish");
	command("SADD " TEST_PREFIX "k:C f:z");
	text = AS("Z", LUA_STATUS, "0");
	assert_non_null(strstr(text, "status meta|2|"));
	assert_non_null(strstr(text, "|30000|2|1|"));
	assert_non_null(strstr(text, "|master|1"));
	assert_non_null(strstr(text, "host|A|1|"));
	assert_non_null(strstr(text, "|1|a host|1|1"));
	assert_non_null(strstr(text, "cover|f:x|A|2|1|"));
	assert_non_null(strstr(text, "wait|f:x|B|5|1|1|0|"));
	assert_non_null(strstr(text, "bad|f:z|string"));
	assert_non_null(strstr(text, "end|3|0"));
	assert_non_null(strstr(AS("Z", LUA_STATUS, "1"), "end|1|2"));
	text = AS("Z", LUA_STATUS, "0", "f:y");
	assert_non_null(strstr(text, "cover|f:y|C|1|2|"));
	assert_null(strstr(text, "f:x"));
	command("FLUSHALL");
	assert_non_null(strstr(AS("Z", LUA_STATUS, "0"), "status meta|||||||"));
	assert_string_equal(command("DBSIZE"), "0");
}

static void test_a_question_reaches_every_other_host_that_listens_and_changes_nothing(void **state)
{
	char *before, *after;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	before = whole_state();
	/* The test's server listens for all hosts. */
	assert_string_equal(AS("A", LUA_ASK, "77", "f:x"), "asked B C");
	assert_string_equal(next_push(), "B: D A 77 f:x -");
	assert_string_equal(next_push(), "C: D A 77 f:x -");
	assert_string_equal(AS("A", LUA_ASK, "78", ""), "asked B C");
	assert_string_equal(next_push(), "B: D A 78 - -");
	next_push();
	assert_string_equal(AS("B", LUA_TELL, "A", "77", "0", "1", "record=holder\tkey=f:x\n"), "told 1");
	assert_non_null(strstr(next_push(), "A: A B 77 0 1 record=holder\tkey=f:x\n"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_only_a_host_of_the_session_may_ask_or_tell(void **state)
{
	char *before = whole_state(), *after;

	(void)state;
	assert_non_null(strstr(AS("Z", LUA_ASK, "77", ""), "refused token"));
	assert_non_null(strstr(AS("Z", LUA_TELL, "A", "77", "0", "1", ""), "refused token"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_a_namespace_of_another_protocol_is_left_alone(void **state)
{
	char *before, *after;

	(void)state;
	command("HSET " TEST_PREFIX "meta proto 1 replid x");
	before = whole_state();
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), "refused proto"));
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), " 1"));
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "refused proto"));
	assert_non_null(strstr(AS("A", LUA_INIT, ""), "refused exists"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_wrong_arguments_are_an_error_and_change_nothing(void **state)
{
	static const struct { const char *start, *end, *mode, *flags; } bad[] = {
		{ "0000000000000000000", "9223372036854775809", "2", "0" }, { "0000000000000000005", "0000000000000000005", "2", "0" },
		{ "0", "9223372036854775808", "2", "0" }, { "0000000000000000000", "9", "2", "0" },
		{ "000000000000000000x", "9223372036854775808", "2", "0" }, { "0000000000000000000", "9223372036854775808", "0", "0" },
		{ "0000000000000000000", "9223372036854775808", "2", "4" },
	};
	char *before, *after, parts[128];

	(void)state;
	two_ranges();
	before = whole_state();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_non_null(strstr(AS("A", LUA_ACQUIRE, "r:x", "5", bad[i].start, bad[i].end, bad[i].mode, bad[i].flags, "i"), "error "));
	snprintf(parts, sizeof(parts), "%s%s", part(5, 9, "0", 9), part(3, 4, "0", 9));
	assert_non_null(strstr(AS("A", LUA_GIVEBACK, "r:x", parts), "damaged"));
	assert_non_null(strstr(AS("A", LUA_GIVEBACK, "r:x", "rubbish"), "damaged"));
	assert_non_null(strstr(AS("A", LUA_GIVEBACK, "r:x", part(5, 9, "2", 9)), "damaged"));
	assert_string_equal(AS("A", LUA_GIVEBACK, "r:x", ""), "cover - -");
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_init_says_once_that_a_store_is_new(void **state)
{
	(void)state;
	assert_non_null(strstr(AS("A", LUA_INIT, ""), "refused exists"));
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "resumed"));
}

static void test_another_lease_time_is_refused(void **state)
{
	(void)state;
	command("HSET " TEST_PREFIX "meta ttl 10000");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), "refused ttl"));
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), " 10000"));
}

#define STORE_TEST(name) cmocka_unit_test_setup(name, calls_fresh_store)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_lock_key_of_another_type_is_an_error_and_changes_nothing),
		STORE_TEST(test_a_damaged_record_is_an_error_and_changes_nothing),
		STORE_TEST(test_outbox_of_another_type_is_made_anew),
		STORE_TEST(test_one_bad_key_does_not_keep_a_dead_hosts_other_locks),
		STORE_TEST(test_at_maxmemory_nothing_new_is_granted_but_covers_are_given_back),
		STORE_TEST(test_numbers_near_two_to_the_53_stay_exact),
		STORE_TEST(test_names_may_hold_any_byte_but_nul),
		STORE_TEST(test_a_queue_longer_than_a_listpack_keeps_its_order),
		STORE_TEST(test_status_shows_everything_and_needs_no_session),
		STORE_TEST(test_a_question_reaches_every_other_host_that_listens_and_changes_nothing),
		STORE_TEST(test_only_a_host_of_the_session_may_ask_or_tell),
		STORE_TEST(test_a_namespace_of_another_protocol_is_left_alone),
		STORE_TEST(test_wrong_arguments_are_an_error_and_change_nothing),
		STORE_TEST(test_init_says_once_that_a_store_is_new),
		STORE_TEST(test_another_lease_time_is_refused),
	};

	return cmocka_run_group_tests(tests, calls_start, calls_stop);
}
