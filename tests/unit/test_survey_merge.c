/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/survey_merge.c daemon-lite/records.c */
/* What hosts say of their locks, merged with what the store has; and hosts that say nonsense. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

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
	ROW("cover\0f:a\0h1\0" "2\0" "7\0" "99000\0" "11 flock");
	ROW("cover\0f:b\0h2\0" "1\0" "8\0" "98000\0" "21 flock");
	ROW("wait\0f:a\0h2\0" "5\0" "3\0" "2\0" "0\0" "97000\0" "22 py");
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
	shows("record=cover\tkey=f:a\thost=h1\thost_name=web1\tmode=EX\tfence=7\tage_ms=1000\tstate=held\n");
	shows("record=holder\tkey=f:a\thost=h1\thost_name=web1\tpid=12\tcommand=heir\tmode=EX\tage_ms=5\n");
	shows("record=waiter\tkey=f:a\thost=h1\thost_name=web1\tpid=13\tcommand=sh\tmode=SH\tage_ms=4\ttry=0\torder=0\twhere=kernel\n");
	shows("record=waiter\tkey=f:a\thost=h2\thost_name=web2\torder=3\tmode=EX\ttry=0\tage_ms=3000\tpid=22\tcommand=py\twhere=store\n");
	shows("record=host\tid=h1\tname=web1\tpid=10\tself=1\tconfirmed=1\tlive=1\tage_ms=1000\tlease_ms=29000\n");
	/* It answered and did not name its cover. */
	shows("record=cover\tkey=f:b\thost=h2\thost_name=web2\tmode=SH\tfence=8\tage_ms=2000\tstate=idle\n");
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
	merged("f:b");
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
	     "record=cover\tkey=f:a\tstate=forged\n"
	     "record=host\tid=h2\tlive=1\n"
	     "record=agent\tstate=up\n", true);
	merged(NULL);
	shows("record=holder\tkey=f:a\thost=h1\thost_name=web1\tpid=12\tcommand=c\\x1b[2J\tmode=EX\n");
	shows("\tfence=7\tage_ms=1000\tstate=idle\n");
	assert_null(strstr(text, "evil"));
	assert_null(strstr(text, "record=agent"));
	assert_null(strstr(text, "pid=14"));
	assert_null(strstr(text, "pid=15"));
	assert_null(strstr(text, "live=1\n"));
}

static void test_what_is_no_record_ends_the_answer(void **state)
{
	(void)state;
	says("h1", "record=holder\tkey=f:a\tpid=12\tcommand=c\tmode=EX\ngarbage without form\nrecord=holder\tkey=f:a\tpid=13\tcommand=c\tmode=EX\n", true);
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
		merged(round % 2 ? "f:a" : NULL);
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
		TEST(test_of_an_answer_that_was_cut_off_nothing_is_concluded),
		TEST(test_one_lock_can_be_asked_for),
		TEST(test_only_known_fields_of_the_right_form_go_on),
		TEST(test_what_is_no_record_ends_the_answer),
		TEST(test_damaged_rows_of_the_store_do_no_harm),
		TEST(test_any_bytes_are_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
