/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/survey_merge.c daemon-lite/records.c */
/* What hosts say of their locks, merged with what the store has; and hosts that say nonsense. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon-lite/survey_merge.h"

/* The store, as far as it is asked. */
const char *store_host_id(const struct store *store)
{
	(void)store;
	return "h1";
}

void store_host_view(const struct store *store, const char *host, struct store_host_view *ret_view)
{
	(void)store;
	*ret_view = (struct store_host_view){ 0 };
	if (!strcmp(host, "h1"))
		*ret_view = (struct store_host_view){ 1000, 29000 };
}

static struct agent agent;
static struct survey survey;
static char *text;

#define ROW(record) assert_int_equal(merge_row(&survey, record, sizeof(record) - 1), 0)

static int set_up(void **state)
{
	(void)state;
	survey = (struct survey){ .agent = &agent };
	text = NULL;
	ROW("meta\0" "1\0" "inc\0" "0\0" "30000\0" "9\0" "4\0" "100000\0" "master\0" "1");
	ROW("host\0h1\0" "7\0inc\0" "1\0" "10 web1\0" "3\0" "0");
	ROW("host\0h2\0" "7\0inc\0" "1\0" "20 web2\0" "3\0" "0");
	ROW("cover\0f:a\0h1\0" "2\0" "7\0" "99000\0" "11 flock\0" "0000000000000000000\0" "9223372036854775808");
	ROW("cover\0f:b\0h2\0" "1\0" "8\0" "98000\0" "21 flock\0" "0000000000000000000\0" "9223372036854775808");
	ROW("wait\0f:a\0h2\0" "5\0" "3\0" "2\0" "0\0" "97000\0" "22 py\0" "0000000000000000000\0" "9223372036854775808");
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(text);
	merge_clear(&survey);
	return 0;
}

static void says(const char *id, const char *what, bool answered)
{
	struct survey_host *host = merge_host(&survey, id);

	assert_non_null(host);
	records_append(&host->text, what, strlen(what));
	host->answered = answered;
}

static const char *merged(const char *key)
{
	struct record_buf buf = { 0 };

	assert_int_equal(merge_sort(&survey), 0);
	merge_put(&survey, key, &buf);
	assert_int_equal(buf.err, 0);
	text = strndup(buf.data, buf.len);
	record_buf_free(&buf);
	return text;
}

static void shows(const char *line)
{
	if (!strstr(text, line))
		fail_msg("not shown: %s\nbut: %s", line, text);
}

static void test_a_holder_comes_from_the_host_itself_and_not_from_the_request(void **state)
{
	(void)state;
	says("h1", "record=cover\tkey=f:a\tstate=held\nrecord=holder\tkey=f:a\tpid=12\tcommand=heir\tmode=EX\tage_ms=5\n"
		   "record=waiter\tkey=f:a\tpid=13\tcommand=sh\tmode=SH\ttry=0\tage_ms=4\n", true);
	says("h2", "", true);
	merged(NULL);
	shows("record=cover\tkey=f:a\thost=h1\thost_name=web1\tmode=EX\tkind=flock\tstart=0\tend=9223372036854775808\tfence=7\tage_ms=1000\tstate=held\n");
	shows("record=holder\tkey=f:a\thost=h1\thost_name=web1\tpid=12\tcommand=heir\tmode=EX\tkind=flock\tstart=0\tend=9223372036854775808\tage_ms=5\n");
	shows("record=waiter\tkey=f:a\thost=h1\thost_name=web1\tpid=13\tcommand=sh\tmode=SH\tkind=flock\tstart=0\tend=9223372036854775808\tage_ms=4\ttry=0\torder=0\twhere=kernel\n");
	shows("record=waiter\tkey=f:a\thost=h2\thost_name=web2\torder=3\tmode=EX\tkind=flock\tstart=0\tend=9223372036854775808\ttry=0\tage_ms=3000\tpid=22\tcommand=py\twhere=store\n");
	shows("record=host\tid=h1\tname=web1\tpid=10\tself=1\tconfirmed=1\tlive=1\tage_ms=1000\tlease_ms=29000\n");
	/* It answered and did not name its cover. */
	shows("record=cover\tkey=f:b\thost=h2\thost_name=web2\tmode=SH\tkind=flock\tstart=0\tend=9223372036854775808\tfence=8\tage_ms=2000\tstate=idle\n");
}

static void test_a_host_that_did_not_answer_wholly_is_unknown_and_says_who_asked(void **state)
{
	(void)state;
	says("h1", "record=cover\tkey=f:a\tstate=held\n", true);
	says("h2", "record=holder\tkey=f:b\tpid=1\tcommand=x\tmode=EX\n", false);
	merged(NULL);
	shows("record=host\tid=h2\tname=web2\tpid=20\tself=0\tconfirmed=1\tlive=0\n");
	shows("\tfence=8\tage_ms=2000\tpid=21\tcommand=flock\tstate=unknown\n");
	assert_null(strstr(text, "record=holder"));
}

/* The parts of one host's cover, as the store has them. */
static void cover_parts(void)
{
	ROW("cover\0r:a\0h1\0" "2\0" "5\0" "99000\0" "11 tdb\0" "0000000000000000000\0" "0000000000000000100");
	ROW("cover\0r:a\0h1\0" "1\0" "6\0" "99000\0" "11 tdb\0" "0000000000000000100\0" "0000000000000000200");
	ROW("cover\0r:a\0h1\0" "2\0" "7\0" "99000\0" "11 tdb\0" "0000000000000000300\0" "9223372036854775808");
	ROW("cover\0r:a\0h2\0" "2\0" "8\0" "99000\0" "21 tdb\0" "0000000000000000200\0" "0000000000000000300");
	ROW("wait\0r:a\0h2\0" "6\0" "4\0" "2\0" "3\0" "97000\0" "22 tdb\0" "0000000000000000010\0" "0000000000000000020");
}

static void test_each_part_of_a_cover_has_its_own_state(void **state)
{
	(void)state;
	cover_parts();
	says("h1", "record=holder\tkey=r:a\tpid=11\tcommand=tdb\tmode=SH\tkind=ofd\tstart=150\tend=151\n"
		   "record=holder\tkey=r:a\tpid=11\tcommand=tdb\tmode=EX\tkind=record\tstart=10\tend=20\n"
		   "record=cover\tkey=r:a\tstate=recalled\tstart=10\tend=20\n", true);
	says("h2", "", true);
	merged("a");
	shows("key=r:a\thost=h1\thost_name=web1\tmode=EX\tkind=record\tstart=0\tend=100\tfence=5\tage_ms=1000\tstate=recalled\n");
	shows("key=r:a\thost=h1\thost_name=web1\tmode=SH\tkind=record\tstart=100\tend=200\tfence=6\tage_ms=1000\tstate=held\n");
	shows("key=r:a\thost=h1\thost_name=web1\tmode=EX\tkind=record\tstart=300\tend=9223372036854775808\tfence=7\tage_ms=1000\tstate=idle\n");
	shows("key=r:a\thost=h2\thost_name=web2\tmode=EX\tkind=record\tstart=200\tend=300\tfence=8\tage_ms=1000\tstate=idle\n");
	shows("record=holder\tkey=r:a\thost=h1\thost_name=web1\tpid=11\tcommand=tdb\tmode=SH\tkind=ofd\tstart=150\tend=151\n");
	shows("record=holder\tkey=r:a\thost=h1\thost_name=web1\tpid=11\tcommand=tdb\tmode=EX\tkind=record\tstart=10\tend=20\n");
	shows("order=4\tmode=EX\tkind=record\tstart=10\tend=20\ttry=1\tage_ms=3000\tpid=22\tcommand=tdb\twhere=store\n");
	/* Both families of the name, no other name. */
	shows("record=cover\tkey=f:a");
	assert_null(strstr(text, "key=f:b"));
}

static void test_a_lock_that_nobody_was_found_for_is_held(void **state)
{
	(void)state;
	cover_parts();
	says("h1", "record=holder\tkey=r:a\tpid=\tcommand=\tmode=EX\tkind=record\tstart=400\tend=401\n", true);
	merged("a");
	shows("start=300\tend=9223372036854775808\tfence=7\tage_ms=1000\tstate=held\n");
	shows("host_name=web1\tpid=\tcommand=\tmode=EX\tkind=record\tstart=400\tend=401\n");
}

static void test_a_long_lock_is_seen_behind_short_ones(void **state)
{
	(void)state;
	cover_parts();
	says("h1", "record=holder\tkey=r:a\tpid=1\tcommand=c\tmode=SH\tstart=50\tend=51\n"
		   "record=holder\tkey=r:a\tpid=2\tcommand=c\tmode=SH\tstart=0\tend=150\n"
		   "record=holder\tkey=r:a\tpid=3\tcommand=c\tmode=SH\tstart=60\tend=61\n"
		   "record=holder\tkey=r:b\tpid=4\tcommand=c\tmode=SH\tstart=300\tend=400\n", true);
	merged("a");
	shows("start=0\tend=100\tfence=5\tage_ms=1000\tstate=held\n");
	shows("start=100\tend=200\tfence=6\tage_ms=1000\tstate=held\n");
	shows("start=300\tend=9223372036854775808\tfence=7\tage_ms=1000\tstate=idle\n");
}

static void test_what_two_questions_to_the_store_left_out_is_added_up(void **state)
{
	(void)state;
	ROW("end\0" "2\0" "1");
	ROW("end\0" "1\0" "4");
	merged(NULL);
	shows("record=end\tshown=3\tleft_out=5\n");
	assert_null(strstr(strstr(text, "record=end") + 1, "record=end"));
}

static void test_of_an_answer_that_was_cut_off_nothing_is_concluded(void **state)
{
	(void)state;
	says("h2", "", true);
	merge_host(&survey, "h2")->cut = true;
	merged(NULL);
	shows("\tfence=8\tage_ms=2000\tpid=21\tcommand=flock\tstate=unknown\n");
}

static void test_one_lock_can_be_asked_for(void **state)
{
	(void)state;
	says("h1", "record=holder\tkey=f:a\tpid=12\tcommand=c\tmode=EX\nrecord=holder\tkey=f:b\tpid=13\tcommand=c\tmode=SH\n", true);
	merged("b");
	assert_null(strstr(text, "key=f:a"));
	shows("record=holder\tkey=f:b\thost=h1\thost_name=web1\tpid=13");
	shows("record=store\tinc=inc\tgrace=0\tttl_ms=30000\tfence=9\n");
}

static void test_only_known_fields_of_the_right_form_go_on(void **state)
{
	(void)state;
	says("h1",
	     "record=holder\tkey=f:a\tpid=12\tcommand=c\\x1b[2J\tmode=EX\thost=h2\tfence=99\tevil=1\n"	/* its own host only, no other fields */
	     "record=holder\tkey=f:a\tpid=x\tcommand=c\tmode=EX\n"
	     "record=holder\tkey=f:a\tpid=14\tcommand=c\tmode=XX\n"
	     "record=holder\tpid=15\tcommand=c\tmode=EX\n"
	     "record=holder\tkey=f:a\tpid=16\tmode=EX\tstart=5\tend=5\n"
	     "record=holder\tkey=f:a\tpid=17\tmode=EX\tstart=5\tend=9223372036854775809\n"
	     "record=holder\tkey=f:a\tpid=18\tmode=EX\tstart=-5\tend=9\n"
	     "record=holder\tkey=f:a\tpid=19\tmode=EX\tstart=5\n"
	     "record=holder\tkey=f:a\tpid=20\tmode=EX\tkind=evil\n"
	     "record=holder\tkey=f:a\tpid=4294967297\tmode=EX\n"
	     "record=holder\tkey=f:a\tpid=0\tmode=EX\n"
	     "record=holder\tkey=f:a\tmode=EX\n"
	     "record=cover\tkey=f:a\tstate=forged\n"
	     "record=host\tid=h2\tlive=1\n"
	     "record=agent\tstate=up\n", true);
	merged(NULL);
	shows("record=holder\tkey=f:a\thost=h1\thost_name=web1\tpid=12\tcommand=c\\x1b[2J\tmode=EX\tkind=flock\tstart=0\tend=9223372036854775808\n");
	shows("\tfence=7\tage_ms=1000\tstate=held\n");
	assert_null(strstr(text, "forged"));
	assert_null(strstr(text, "evil"));
	assert_null(strstr(text, "record=agent"));
	assert_null(strstr(text, "pid=14"));
	assert_null(strstr(text, "pid=15"));
	for (int pid = 16; pid <= 20; pid++) {
		char field[16];

		snprintf(field, sizeof field, "pid=%d\t", pid);
		assert_null(strstr(text + (strstr(text, "record=holder") - text), field));
	}
	assert_null(strstr(text, "pid=4294967297"));
	assert_null(strstr(text, "pid=0"));
	assert_null(strstr(text, "pid=\t"));
	assert_null(strstr(text, "live=1\n"));
}

static void test_what_is_no_record_ends_the_answer(void **state)
{
	(void)state;
	says("h1", "record=holder\tkey=f:c\tpid=12\tcommand=c\tmode=EX\ngarbage without form\nrecord=holder\tkey=f:a\tpid=13\tcommand=c\tmode=EX\n", true);
	merged(NULL);
	shows("pid=12");
	assert_null(strstr(text, "pid=13"));
	shows("\tfence=7\tage_ms=1000\tpid=11\tcommand=flock\tstate=unknown\n");
}

static void test_damaged_rows_of_the_store_do_no_harm(void **state)
{
	(void)state;
	ROW("");
	ROW("cover");
	ROW("cover\0f:c");
	ROW("wait\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
	ROW("host\0h3\0\0\0\0\0\0");
	ROW("host\0h4\0\0\0\0no-number-here\0\0");
	ROW("bad\0f:d\0string");
	ROW("end\0" "2\0" "0");
	merged(NULL);
	shows("record=host\tid=h4\tname=no-number-here\tpid=\t");
	shows("record=bad\tkey=f:d\ttype=string\n");
	shows("record=end\tshown=2\tleft_out=0\n");
}

static void test_any_bytes_are_survived(void **state)
{
	unsigned seed = 1;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		char bytes[400];
		static const char *const parts[] = { "record=", "holder", "cover", "waiter", "\t", "\n", "key=f:a", "pid=1", "mode=EX", "state=held", "=", "\\x", "\\x0", "command=" };
		size_t len = 0;

		while (len < 300) {
			const char *part;

			seed = seed * 1103515245 + 12345;
			part = parts[seed / 65536 % 14];
			memcpy(bytes + len, part, strlen(part));
			len += strlen(part);
			if (seed / 7 % 11 == 0)
				bytes[len++] = (char)(seed >> 16);
		}
		for (size_t i = 0; i < len; i++)
			if (!bytes[i])
				bytes[i] = 1;
		bytes[len] = 0;
		says("h1", bytes, true);
		merged(round % 2 ? "a" : NULL);
		tear_down(state);
		set_up(state);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_holder_comes_from_the_host_itself_and_not_from_the_request),
		TEST(test_a_host_that_did_not_answer_wholly_is_unknown_and_says_who_asked),
		TEST(test_each_part_of_a_cover_has_its_own_state),
		TEST(test_a_lock_that_nobody_was_found_for_is_held),
		TEST(test_a_long_lock_is_seen_behind_short_ones),
		TEST(test_what_two_questions_to_the_store_left_out_is_added_up),
		TEST(test_of_an_answer_that_was_cut_off_nothing_is_concluded),
		TEST(test_one_lock_can_be_asked_for),
		TEST(test_only_known_fields_of_the_right_form_go_on),
		TEST(test_what_is_no_record_ends_the_answer),
		TEST(test_damaged_rows_of_the_store_do_no_harm),
		TEST(test_any_bytes_are_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
