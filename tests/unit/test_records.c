/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/records.c */
/* The record lines between agent and dlock: any bytes a person may put into a name come back as they were. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon-lite/records.h"

static void test_fields_come_back_in_order(void **state)
{
	struct record_buf buf = { 0 };
	struct record *record = NULL;
	size_t pos = 0;

	(void)state;
	records_begin(&buf, "cover");
	records_put(&buf, "key", "f:jobs/a.lock");
	records_put_u64(&buf, "fence", 18446744073709551615ull);
	records_put(&buf, "command", NULL);
	records_end(&buf);
	assert_int_equal(buf.err, 0);
	assert_int_equal(buf.len, strlen("record=cover\tkey=f:jobs/a.lock\tfence=18446744073709551615\tcommand=\n"));
	assert_memory_equal(buf.data, "record=cover\tkey=f:jobs/a.lock\tfence=18446744073709551615\tcommand=\n", buf.len);
	assert_int_equal(records_next(buf.data, buf.len, &pos, &record), 1);
	assert_string_equal(record->kind, "cover");
	assert_int_equal(record->count, 3);
	assert_string_equal(record_get(record, "key", NULL), "f:jobs/a.lock");
	assert_true(record_get_u64(record, "fence", 0) == UINT64_MAX);
	assert_string_equal(record_get(record, "command", NULL), "");
	assert_null(record_get(record, "pid", NULL));
	assert_int_equal(record_get_u64(record, "command", 7), 7);
	assert_int_equal(records_next(buf.data, buf.len, &pos, &record), 0);
	record_free(record);
	record_buf_free(&buf);
}

static void test_every_byte_but_nul_survives(void **state)
{
	struct record_buf buf = { 0 };
	struct record *record = NULL;
	char all[256];
	size_t pos = 0;

	(void)state;
	for (int i = 1; i < 256; i++)
		all[i - 1] = (char)i;
	all[255] = '\0';
	records_begin(&buf, "x");
	records_put(&buf, "a", all);
	records_put(&buf, "b", "\tb=\n\\x41");
	records_end(&buf);
	assert_null(memchr(buf.data, '\n', buf.len - 1));
	assert_int_equal(records_next(buf.data, buf.len, &pos, &record), 1);
	assert_string_equal(record_get(record, "a", ""), all);
	assert_string_equal(record_get(record, "b", ""), "\tb=\n\\x41");
	record_free(record);
	record_buf_free(&buf);
}

static void test_a_nul_in_a_value_becomes_a_question_mark(void **state)
{
	struct record_buf buf = { 0 };
	struct record *record = NULL;
	size_t pos = 0;

	(void)state;
	records_begin(&buf, "x");
	records_put_bytes(&buf, "a", "1\0002", 3);
	records_end(&buf);
	assert_int_equal(records_next(buf.data, buf.len, &pos, &record), 1);
	assert_string_equal(record_get(record, "a", ""), "1?2");
	record_free(record);
	record_buf_free(&buf);
}

static void test_a_bad_line_is_refused_and_the_next_one_is_read(void **state)
{
	static const char *const bad[] = {
		"\n", "record\n", "key=a\n", "record=a\tb\n", "record=a\t=c\n", "record=a\tb=\\x0\n", "record=a\tb=\\x00\n",
		"record=a\tb=\\y41\n", "record=a\tb=\\\n", "record=a\tB=c\n", "record=a\t\tb=c\n", "record=a\tb=\001\n",
	};

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct record *record = NULL;
		char text[64];
		size_t pos = 0;

		strcpy(text, bad[i]);
		strcat(text, "record=good\n");
		assert_int_equal(records_next(text, strlen(text), &pos, &record), -EBADMSG);
		assert_int_equal(records_next(text, strlen(text), &pos, &record), 1);
		assert_string_equal(record->kind, "good");
		record_free(record);
	}
}

static void test_an_unfinished_line_is_refused(void **state)
{
	struct record *record = NULL;
	size_t pos = 0;

	(void)state;
	assert_int_equal(records_next("record=a", 8, &pos, &record), -EBADMSG);
	assert_int_equal(records_next("record=a", 8, &pos, &record), 0);
	pos = 0;
	assert_int_equal(records_next("record=a\0\n", 10, &pos, &record), -EBADMSG);
}

static void test_too_many_fields_are_refused(void **state)
{
	struct record_buf buf = { 0 };
	struct record *record = NULL;
	size_t pos = 0;

	(void)state;
	records_begin(&buf, "x");
	for (int i = 0; i < RECORD_FIELDS_MAX + 1; i++)
		records_put(&buf, "a", "b");
	records_end(&buf);
	assert_int_equal(records_next(buf.data, buf.len, &pos, &record), -EBADMSG);
	record_buf_free(&buf);
}

static void test_a_bad_field_name_sticks_as_an_error(void **state)
{
	struct record_buf buf = { 0 };

	(void)state;
	records_begin(&buf, "x");
	records_put(&buf, "A=", "b");
	records_end(&buf);
	assert_int_equal(buf.err, -EINVAL);
	record_buf_free(&buf);
	assert_int_equal(buf.err, 0);
}

static void test_a_packet_takes_whole_records_only(void **state)
{
	const char *text = "record=a\nrecord=bb\nrec";

	(void)state;
	assert_int_equal(records_fit(text, strlen(text), 8), 0);
	assert_int_equal(records_fit(text, strlen(text), 9), 9);
	assert_int_equal(records_fit(text, strlen(text), 18), 9);
	assert_int_equal(records_fit(text, strlen(text), 100), 19);
	assert_int_equal(records_fit(text, 0, 100), 0);
}

static void test_random_bytes_never_break_the_reader(void **state)
{
	static const char letters[] = "record=\t\n\\x4g1\001";
	unsigned seed = 1;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		char text[64];
		size_t len = 0, pos = 0;
		int n;

		for (; len < sizeof text; len++) {
			seed = seed * 1103515245u + 12345u;
			text[len] = letters[(seed >> 16) % (sizeof letters - 1)];
		}
		if (round % 2)
			memcpy(text, "record=r\t", 9);
		do {
			struct record *record = NULL;

			n = records_next(text, len, &pos, &record);
			record_free(record);
		} while (n != 0);
		assert_int_equal(pos, len);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields_come_back_in_order),
		cmocka_unit_test(test_every_byte_but_nul_survives),
		cmocka_unit_test(test_a_nul_in_a_value_becomes_a_question_mark),
		cmocka_unit_test(test_a_bad_line_is_refused_and_the_next_one_is_read),
		cmocka_unit_test(test_an_unfinished_line_is_refused),
		cmocka_unit_test(test_too_many_fields_are_refused),
		cmocka_unit_test(test_a_bad_field_name_sticks_as_an_error),
		cmocka_unit_test(test_a_packet_takes_whole_records_only),
		cmocka_unit_test(test_random_bytes_never_break_the_reader),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
