/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/getlk_merge.c daemon-lite/records.c */
/* Which lock F_GETLK reports of what the store and the other hosts say; and hosts that say nonsense. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon-lite/getlk_merge.h"

#define E19 "9223372036854775808"

static struct getlk_merge merge;
static struct lock_span lock;
static int l_pid;

static void ask_for(uint64_t start, uint64_t end, enum lock_mode mode)
{
	getlk_merge_clear(&merge);
	getlk_merge_init(&merge, (struct extent){ start, end }, mode, "self");
}

static int set_up(void **state)
{
	(void)state;
	ask_for(100, 200, MODE_EX);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	getlk_merge_clear(&merge);
	return 0;
}

#define ROW(record) getlk_merge_row(&merge, record, sizeof(record) - 1)
#define META(grace, made) ROW("meta\0" "2\0" "inc\0" grace "\0" "30000\0" "9\0" "4\0" "100000\0" "master\0" made)
#define COVER(host, mode, start, end) ROW("cover\0r:a\0" host "\0" mode "\0" "7\0" "99000\0" "11 sqlite\0" start "\0" end)

static void says(const char *host, const char *text)
{
	getlk_merge_told(&merge, host, 0, TELL_END, text, strlen(text));
}

static void all_reached(void)
{
	merge.asked_all = true;
}

static void result_is(enum lock_mode mode, uint64_t start, uint64_t end, int pid)
{
	getlk_merge_result(&merge, &lock, &l_pid);
	assert_int_equal(lock.mode, mode);
	if (mode != MODE_NONE) {
		assert_int_equal(lock.at.start, start);
		assert_int_equal(lock.at.end, end);
	}
	assert_int_equal(l_pid, pid);
}

static void test_where_no_other_host_covers_nobody_is_asked(void **state)
{
	(void)state;
	META("0", "1");
	ROW("host\0b\0" "7\0inc\0" "1\0" "10 web1\0" "3\0" "0");
	COVER("self", "2", "0000000000000000000", E19);
	COVER("b", "2", "0000000000000000000", "0000000000000000100");
	COVER("b", "2", "0000000000000000200", E19);
	assert_false(getlk_merge_must_ask(&merge));
	result_is(MODE_NONE, 0, 0, 0);
}

static void test_shared_covers_do_not_stand_against_a_reader(void **state)
{
	(void)state;
	ask_for(100, 200, MODE_SH);
	META("0", "1");
	COVER("b", "1", "0", E19);
	assert_false(getlk_merge_must_ask(&merge));
	COVER("c", "2", "199", "200");
	assert_true(getlk_merge_must_ask(&merge));
}

static void test_in_grace_all_hosts_are_asked_and_awaited(void **state)
{
	(void)state;
	META("1", "1");
	assert_true(getlk_merge_must_ask(&merge));
	getlk_merge_reached(&merge, "b", true);
	getlk_merge_reached(&merge, "c", false);
	all_reached();
	assert_false(getlk_merge_complete(&merge));
	says("b", "");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_NONE, 0, 0, 0);
}

static void test_a_server_that_may_have_forgotten_counts_as_grace(void **state)
{
	(void)state;
	META("0", "0");
	assert_true(getlk_merge_must_ask(&merge));
}

static void test_a_remote_lock_is_reported_with_its_true_range_and_the_negative_pid(void **state)
{
	(void)state;
	META("0", "1");
	COVER("b", "2", "0", E19);
	assert_true(getlk_merge_must_ask(&merge));
	getlk_merge_reached(&merge, "b", true);
	getlk_merge_reached(&merge, "c", true);
	assert_false(getlk_merge_complete(&merge));
	all_reached();
	assert_false(getlk_merge_complete(&merge));
	says("b", "record=lock\tmode=SH\tstart=150\tend=" E19 "\tpid=4711\n");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_SH, 150, EXTENT_END, -4711);
}

static void test_an_idle_cover_is_no_lock(void **state)
{
	(void)state;
	COVER("b", "2", "0", E19);
	getlk_merge_reached(&merge, "b", true);
	all_reached();
	says("b", "");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_NONE, 0, 0, 0);
}

static void test_a_description_or_an_unknown_pid_is_minus_one(void **state)
{
	(void)state;
	COVER("b", "2", "0", E19);
	all_reached();
	says("b", "record=lock\tmode=EX\tstart=0\tend=101\tpid=\n");
	result_is(MODE_EX, 0, 101, -1);
}

static void test_of_several_locks_the_lowest_start_is_reported(void **state)
{
	(void)state;
	COVER("b", "1", "0", E19);
	COVER("c", "1", "0", E19);
	COVER("d", "1", "0", E19);
	getlk_merge_reached(&merge, "b", true);
	getlk_merge_reached(&merge, "c", true);
	getlk_merge_reached(&merge, "d", true);
	all_reached();
	says("c", "record=lock\tmode=SH\tstart=180\tend=190\tpid=3\n");
	says("b", "record=lock\tmode=SH\tstart=120\tend=130\tpid=2\n");
	assert_false(getlk_merge_complete(&merge));
	says("d", "");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_SH, 120, 130, -2);
}

static void test_a_lock_from_the_first_byte_on_needs_no_further_answer(void **state)
{
	(void)state;
	COVER("b", "1", "0", E19);
	COVER("c", "1", "0", E19);
	getlk_merge_reached(&merge, "b", true);
	getlk_merge_reached(&merge, "c", true);
	says("c", "record=lock\tmode=SH\tstart=100\tend=190\tpid=3\n");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_SH, 100, 190, -3);
}

static void test_of_a_silent_host_the_first_covered_part_is_feared(void **state)
{
	(void)state;
	COVER("b", "1", "190", E19);
	COVER("b", "2", "0", "100");
	COVER("b", "2", "150", "160");
	getlk_merge_reached(&merge, "b", true);
	all_reached();
	assert_false(getlk_merge_complete(&merge));
	merge.over = true;
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_EX, 150, 160, -1);
}

static void test_who_was_not_reached_or_is_dead_is_not_waited_for(void **state)
{
	(void)state;
	COVER("b", "1", "50", "150");
	COVER("c", "1", "0", "120");
	getlk_merge_reached(&merge, "c", false);
	all_reached();
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_SH, 100, 150, -1);
}

static void test_a_known_lock_counts_before_a_feared_one(void **state)
{
	(void)state;
	COVER("b", "2", "0", "150");
	COVER("c", "2", "150", E19);
	all_reached();
	says("c", "record=lock\tmode=EX\tstart=199\tend=200\tpid=9\n");
	result_is(MODE_EX, 199, 200, -9);
}

static void test_an_answer_before_the_list_of_hosts_counts(void **state)
{
	(void)state;
	COVER("b", "2", "0", "150");
	says("b", "");
	getlk_merge_reached(&merge, "b", true);
	all_reached();
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_NONE, 0, 0, 0);
}

static void test_a_host_that_covers_since_then_may_say_so(void **state)
{
	(void)state;
	COVER("b", "2", "0", "150");
	getlk_merge_reached(&merge, "b", true);
	all_reached();
	says("c", "record=lock\tmode=EX\tstart=110\tend=111\tpid=5\n");
	assert_false(getlk_merge_complete(&merge));
	says("b", "");
	assert_true(getlk_merge_complete(&merge));
	result_is(MODE_EX, 110, 111, -5);
}

static void test_nonsense_is_as_silence(void **state)
{
	static const char *const bad[] = {
		"record=lock\tmode=EX\tstart=0\tend=100\tpid=1\n",		/* not within what was asked for */
		"record=lock\tmode=EX\tstart=200\tend=300\tpid=1\n",
		"record=lock\tmode=EX\tstart=150\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart=160\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart=0\tend=9223372036854775809\tpid=1\n",
		"record=lock\tmode=EX\tstart=0\tend=99999999999999999999999\tpid=1\n",
		"record=lock\tmode=EX\tstart=-1\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart= 1\tend=150\tpid=1\n",
		"record=lock\tmode=XX\tstart=0\tend=150\tpid=1\n",
		"record=lock\tmode=NONE\tstart=0\tend=150\tpid=1\n",
		"record=lock\tstart=0\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart=0\tend=150\tpid=-1\n",
		"record=lock\tmode=EX\tstart=0\tend=150\tpid=2147483648\n",
		"record=lock\tmode=EX\tstart=0\tend=150\tpid=1x\n",
		"record=holder\tmode=EX\tstart=0\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart=0\tend=150\tpid=1\nrecord=lock\tmode=EX\tstart=0\tend=150\tpid=1\n",
		"record=lock\tmode=EX\tstart=0\tend=150\tpid=1",
		"\n", "x", "lock 1 2",
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		ask_for(100, 200, MODE_EX);
		COVER("b", "2", "130", "150");
		getlk_merge_reached(&merge, "b", true);
		all_reached();
		says("b", bad[i]);
		assert_true(getlk_merge_complete(&merge));
		result_is(MODE_EX, 130, 150, -1);
	}
}

static void test_a_shared_lock_is_no_answer_to_a_reader(void **state)
{
	(void)state;
	ask_for(100, 200, MODE_SH);
	COVER("b", "2", "130", "150");
	all_reached();
	says("b", "record=lock\tmode=SH\tstart=100\tend=150\tpid=1\n");
	result_is(MODE_EX, 130, 150, -1);
}

static void test_an_answer_in_parts_or_cut_off_is_void(void **state)
{
	static const char text[] = "record=lock\tmode=EX\tstart=140\tend=150\tpid=1\n";

	(void)state;
	COVER("b", "2", "130", "150");
	getlk_merge_told(&merge, "b", 1, TELL_END, text, strlen(text));
	result_is(MODE_EX, 130, 150, -1);
	ask_for(100, 200, MODE_EX);
	COVER("b", "2", "130", "150");
	getlk_merge_told(&merge, "b", 0, TELL_MORE, text, strlen(text));
	getlk_merge_told(&merge, "b", 1, TELL_END, "", 0);
	result_is(MODE_EX, 130, 150, -1);
}

static void test_of_a_damaged_record_the_worst_is_assumed(void **state)
{
	(void)state;
	ask_for(100, 200, MODE_SH);
	ROW("cover\0r:a\0b\0" "x\0");
	assert_true(getlk_merge_must_ask(&merge));
	all_reached();
	result_is(MODE_EX, 100, 200, -1);
	ROW("");
	ROW("cover");
	ROW("meta");
	assert_false(merge.failed);
}

static void test_question_and_answer_survive_the_way(void **state)
{
	char text[GETLK_ANSWER_MAX], question[GETLK_QUESTION_MAX];
	struct extent at;
	enum lock_mode mode;

	(void)state;
	getlk_question_put(question, (struct extent){ EXTENT_END - 1, EXTENT_END }, MODE_SH);
	assert_string_equal(question, "getlk 1 9223372036854775807 9223372036854775808");
	assert_true(getlk_question_read(question, &at, &mode));
	assert_true(at.start == EXTENT_END - 1 && at.end == EXTENT_END && mode == MODE_SH);
	getlk_question_put(question, EXTENT_ALL, MODE_EX);
	assert_true(getlk_question_read(question, &at, &mode));
	assert_true(at.start == 0 && at.end == EXTENT_END && mode == MODE_EX);

	getlk_answer_put(text, &(struct lock_span){ .mode = MODE_NONE }, 5);
	assert_string_equal(text, "");
	for (int pid = -1; pid < 3; pid++) {
		ask_for(100, 200, MODE_EX);
		getlk_answer_put(text, &(struct lock_span){ { 7, 150 }, MODE_EX, 3 }, pid);
		says("b", text);
		result_is(MODE_EX, 7, 150, pid > 0 ? -pid : -1);
	}
	getlk_answer_put(text, &(struct lock_span){ { EXTENT_END - 1, EXTENT_END }, MODE_EX, 3 }, 2147483647);
	assert_true(strlen(text) < GETLK_ANSWER_MAX - 1);
}

static void test_a_question_in_another_form_is_refused(void **state)
{
	static const char *const bad[] = {
		"getlk", "getlk ", "getlk 1 2", "getlk 0 1 2", "getlk 3 1 2", "getlk 9 1 2", "getlk 1 2 2", "getlk 1 3 2", "getlk 1 1 2 ", "getlk 1 1 2 3", "getlk  1 1 2",
		"getlk 1 -1 2", "getlk 1 1 9223372036854775809", "getlk 1 1 99999999999999999999999", "getlk x 1 2", "getlk 1,1,2", "deadlock 1 1 2", "",
	};
	struct extent at;
	enum lock_mode mode;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_false(getlk_question_read(bad[i], &at, &mode));
}

static void test_any_bytes_are_survived(void **state)
{
	static const char *const parts[] = { "record=", "lock", "\t", "\n", "mode=EX", "mode=SH", "start=", "end=", "pid=", "100", "150", E19, "=", "\\x" };
	unsigned seed = 1;

	(void)state;
	for (int round = 0; round < 5000; round++) {
		char bytes[400] = "record=lock";
		size_t len = round % 2 ? 11 : 0;

		while (len < 200) {
			const char *part;

			seed = seed * 1103515245 + 12345;
			part = parts[seed / 65536 % 14];
			memcpy(bytes + len, part, strlen(part));
			len += strlen(part);
			if (seed / 7 % 13 == 0)
				bytes[len++] = (char)(seed >> 16);
		}
		ask_for(100, 200, MODE_EX);
		getlk_merge_told(&merge, "b", 0, TELL_END, bytes, len);
		getlk_merge_row(&merge, bytes, len);
		getlk_merge_result(&merge, &lock, &l_pid);
		assert_true(lock.mode == MODE_NONE || (l_pid < 0 && extent_overlaps(lock.at, merge.at)));
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_where_no_other_host_covers_nobody_is_asked),
		TEST(test_shared_covers_do_not_stand_against_a_reader),
		TEST(test_in_grace_all_hosts_are_asked_and_awaited),
		TEST(test_a_server_that_may_have_forgotten_counts_as_grace),
		TEST(test_a_remote_lock_is_reported_with_its_true_range_and_the_negative_pid),
		TEST(test_an_idle_cover_is_no_lock),
		TEST(test_a_description_or_an_unknown_pid_is_minus_one),
		TEST(test_of_several_locks_the_lowest_start_is_reported),
		TEST(test_a_lock_from_the_first_byte_on_needs_no_further_answer),
		TEST(test_of_a_silent_host_the_first_covered_part_is_feared),
		TEST(test_who_was_not_reached_or_is_dead_is_not_waited_for),
		TEST(test_a_known_lock_counts_before_a_feared_one),
		TEST(test_an_answer_before_the_list_of_hosts_counts),
		TEST(test_a_host_that_covers_since_then_may_say_so),
		TEST(test_nonsense_is_as_silence),
		TEST(test_a_shared_lock_is_no_answer_to_a_reader),
		TEST(test_an_answer_in_parts_or_cut_off_is_void),
		TEST(test_of_a_damaged_record_the_worst_is_assumed),
		TEST(test_question_and_answer_survive_the_way),
		TEST(test_a_question_in_another_form_is_refused),
		TEST(test_any_bytes_are_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
