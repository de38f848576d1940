/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/store/redis_spans.c daemon-lite/store/redis_value.c */
/* LIBS: hiredis */
/* Span lists as text: what is written can be read, and nothing else can be read. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../daemon-lite/store/redis_spans.h"

#define S0 "0000000000000000000"
#define S5 "0000000000000000005"
#define S9 "0000000000000000009"
#define SX "9223372036854775808"	/* 2^63 */
#define F3 "0000000000000003"
#define F7 "0000000000000007"

/* What redis_buf_spans has put: its bytes without the length before and the line's end behind. The caller's. */
static char *written(const struct lock_span *spans, size_t count)
{
	struct redis_buf buf = { 0 };
	char head[32], *text;
	int len = snprintf(head, sizeof(head), "$%zu\r\n", count * REDIS_SPAN_BYTES);

	redis_buf_spans(&buf, spans, count);
	assert_false(buf.failed);
	assert_int_equal(buf.len, (size_t)len + count * REDIS_SPAN_BYTES + 2);
	assert_memory_equal(buf.data, head, (size_t)len);
	assert_memory_equal(buf.data + buf.len - 2, "\r\n", 2);
	text = strndup(buf.data + len, count * REDIS_SPAN_BYTES);
	assert_non_null(text);
	redis_buf_free(&buf);
	return text;
}

static bool valid(const char *text, enum redis_spans_kind kind)
{
	return redis_spans_valid(text, strlen(text), kind);
}

static void test_a_list_is_written_as_the_protocol_says(void **state)
{
	const struct lock_span spans[] = {
		{ { 0, 5 }, MODE_SH, 3 },
		{ { 9, EXTENT_END }, MODE_NONE, REDIS_FENCE_END - 1 },
	};
	char *text = written(spans, 2);
	struct redis_buf buf = { 0 };

	(void)state;
	assert_string_equal(text, S0 " " S5 " 1 " F3 "," S9 " " SX " 0 9007199254740991,");
	free(text);
	text = written(NULL, 0);
	assert_string_equal(text, "");
	free(text);
	redis_buf_offset(&buf, EXTENT_END);
	redis_buf_offset(&buf, 42);
	assert_int_equal(buf.len, 2 * 26);
	assert_memory_equal(buf.data, "$19\r\n" SX "\r\n$19\r\n0000000000000000042\r\n", buf.len);
	redis_buf_free(&buf);
}

static void test_a_list_is_read_as_it_was_written(void **state)
{
	enum { COUNT = 20000 };
	struct lock_span *spans = calloc(COUNT, sizeof(*spans));
	struct redis_spans got;
	uint64_t at = 0;
	char *text;

	(void)state;
	assert_non_null(spans);
	for (size_t i = 0; i < COUNT; i++) {
		spans[i] = (struct lock_span){ { at + i % 3, at + i % 3 + 1 + i }, i % 2 ? MODE_EX : MODE_SH, i * 1000003 };
		at = spans[i].at.end;
	}
	spans[COUNT - 1].at.end = EXTENT_END;
	text = written(spans, COUNT);
	assert_int_equal(redis_spans_parse(text, COUNT * REDIS_SPAN_BYTES, SPANS_COVER, &got), 0);
	assert_int_equal(got.count, COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		assert_true(extent_equal(got.at[i].at, spans[i].at));
		assert_int_equal(got.at[i].mode, spans[i].mode);
		assert_int_equal(got.at[i].fence, spans[i].fence);
	}
	redis_spans_free(&got);
	assert_null(got.at);
	free(text);
	free(spans);
}

static void test_the_empty_list_is_a_list(void **state)
{
	struct redis_spans got = { .count = 1 };

	(void)state;
	assert_int_equal(redis_spans_parse("", 0, SPANS_COVER, &got), 0);
	assert_int_equal(got.count, 0);
	assert_null(got.at);
	assert_false(redis_spans_granted(&got));
	redis_spans_free(&got);
}

static void test_what_is_not_a_record_is_refused(void **state)
{
	static const char *const bad[] = {
		",",
		S0 " " S5 " 1 " F3,			/* cut off */
		S0 " " S5 " 1 " F3 ";",			/* another end */
		S0 "," S5 " 1 " F3 ",",
		S0 " " S5 ",1 " F3 ",",
		S0 " " S5 " 1," F3 ",",
		"000000000000000000 " " " S5 " 1 " F3 ",",	/* no digit */
		"-000000000000000001 " S5 " 1 " F3 ",",
		"+000000000000000001 " S5 " 1 " F3 ",",
		"00000000000000000x0 " S5 " 1 " F3 ",",
		S0 " 000000000000000005/ 1 " F3 ",",
		S0 " 000000000000000005: 1 " F3 ",",
		S0 " " S5 " 1 00000000000000 3,",
		S5 " " S5 " 1 " F3 ",",			/* nothing in it */
		S9 " " S5 " 1 " F3 ",",
		S0 " 9223372036854775809 1 " F3 ",",	/* beyond the line */
		S0 " 9999999999999999999 1 " F3 ",",
		SX " 9223372036854775809 1 " F3 ",",
		S0 " " S5 " 3 " F3 ",",			/* no such mode */
		S0 " " S5 " 9 " F3 ",",
		S0 " " S5 " x " F3 ",",
		S0 " " S5 " 1 9007199254740992,",	/* 2^53: no fence */
		S0 " " S5 " 1 9999999999999999,",
		S0 " " S5 " 1 " F3 ",x",
		S0 " " S5 " 1 " F3 ",,",
		"0 5 1 3,",
	};
	struct redis_spans untouched = { .count = 77 };

	(void)state;
	assert_true(valid(S0 " " S5 " 1 " F3 ",", SPANS_COVER));
	assert_true(valid(S0 " " SX " 1 9007199254740991,", SPANS_COVER));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		for (enum redis_spans_kind kind = SPANS_COVER; kind <= SPANS_PARTS; kind++) {
			if (valid(bad[i], kind))
				fail_msg("taken for a list: %s", bad[i]);
			assert_int_equal(redis_spans_parse(bad[i], strlen(bad[i]), kind, &untouched), -EPROTO);
		}
	assert_int_equal(untouched.count, 77);
	/* A NUL is no digit either, wherever it stands. */
	for (size_t i = 0; i < REDIS_SPAN_BYTES; i++) {
		char text[] = S0 " " S5 " 1 " F3 ",";

		text[i] = '\0';
		assert_false(redis_spans_valid(text, REDIS_SPAN_BYTES, SPANS_COVER));
	}
}

static void test_each_kind_of_list_has_its_modes_and_its_order(void **state)
{
	static const struct { const char *text; bool cover, waiting, parts; } lists[] = {
		{ S0 " " S5 " 0 " F3 ",", false, false, true },
		{ S0 " " S5 " 1 " F3 ",", true, true, true },
		{ S0 " " S5 " 2 " F3 ",", true, true, false },
		{ S0 " " S5 " 1 " F3 "," S5 " " S9 " 1 " F3 ",", true, true, true },	/* neighbours */
		{ S0 " " S9 " 1 " F3 "," S5 " " S9 " 1 " F3 ",", false, true, false },	/* overlap */
		{ S5 " " S9 " 1 " F3 "," S0 " " S5 " 1 " F7 ",", false, false, false },	/* not by start */
		{ S0 " " S5 " 1 " F3 "," S0 " " S9 " 1 " F7 ",", false, true, false },
		{ S0 " " S9 " 1 " F3 "," S0 " " S5 " 2 " F3 ",", false, true, false },
		{ S0 " " S5 " 1 " F7 "," S0 " " S9 " 1 " F3 ",", false, false, false },	/* not by fence */
		{ S0 " " S5 " 1 " F7 "," S5 " " S9 " 1 " F3 ",", true, true, true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		assert_int_equal(valid(lists[i].text, SPANS_COVER), lists[i].cover);
		assert_int_equal(valid(lists[i].text, SPANS_WAITING), lists[i].waiting);
		assert_int_equal(valid(lists[i].text, SPANS_PARTS), lists[i].parts);
	}
}

static void test_a_grant_has_one_fence(void **state)
{
	struct lock_span spans[] = { { { 0, 5 }, MODE_SH, 3 }, { { 5, 9 }, MODE_EX, 3 }, { { 12, 13 }, MODE_SH, 3 } };
	struct redis_spans grant = { spans, 3 };

	(void)state;
	assert_true(redis_spans_granted(&grant));
	spans[2].fence = 4;
	assert_false(redis_spans_granted(&grant));
}

static void test_a_reply_with_something_else_in_its_place_has_no_list(void **state)
{
	static const char bytes[] = "*4\r\n:5\r\n$-1\r\n*1\r\n+x\r\n$59\r\n" S0 " " S5 " 2 " F3 ",\r\n";
	struct redis_reader *reader;
	struct redis_value *value;
	struct redis_spans spans;

	(void)state;
	assert_int_equal(redis_reader_new(&reader), 0);
	assert_int_equal(redis_reader_feed(reader, bytes, sizeof(bytes) - 1), 0);
	assert_int_equal(redis_reader_next(reader, &value), 1);
	for (size_t i = 0; i < 6; i++)
		if (i != 3)
			assert_int_equal(redis_spans_item(value, i, SPANS_COVER, &spans), -EPROTO);
	assert_int_equal(redis_spans_item(value, 3, SPANS_COVER, &spans), 0);
	assert_int_equal(spans.count, 1);
	assert_int_equal(spans.at[0].mode, MODE_EX);
	redis_spans_free(&spans);
	redis_value_free(value);
	redis_reader_free(reader);
}

/* A list that should be one, damaged; the bytes end where the list ends, so that a sanitizer sees a look beyond it. */
static void test_damaged_lists_are_refused_or_keep_the_rules(void **state)
{
	static const char alphabet[] = "0123456789 ,-+x\n";
	unsigned seed = getenv("SEED") ? (unsigned)atol(getenv("SEED")) : (unsigned)time(NULL), taken = 0, refused = 0;

	(void)state;
	printf("SEED=%u\n", seed);
	for (int round = 0; round < 200000; round++) {
		struct lock_span spans[4];
		size_t count = (size_t)rand_r(&seed) % 5, len = count * REDIS_SPAN_BYTES;
		enum redis_spans_kind kind = (enum redis_spans_kind)(rand_r(&seed) % 3);
		struct redis_spans got;
		uint64_t at = 0;
		char *whole, *text;

		for (size_t i = 0; i < count; i++) {
			at += (uint64_t)rand_r(&seed) % 2;
			spans[i] = (struct lock_span){ { at, at + 1 + (uint64_t)rand_r(&seed) % 3 }, (enum lock_mode)(rand_r(&seed) % 3), (uint64_t)rand_r(&seed) % 3 };
			at = spans[i].at.end - (kind == SPANS_WAITING ? 1 : 0);
		}
		whole = written(spans, count);
		if (rand_r(&seed) % 4 == 0 && len)
			len = (size_t)rand_r(&seed) % (len + 1);
		text = malloc(len ? len : 1);
		assert_non_null(text);
		memcpy(text, whole, len);
		for (int i = rand_r(&seed) % 3; i > 0 && len; i--)
			text[(size_t)rand_r(&seed) % len] = rand_r(&seed) % 8 ? alphabet[(size_t)rand_r(&seed) % (sizeof(alphabet) - 1)] : (char)rand_r(&seed);
		if (redis_spans_parse(text, len, kind, &got) == 0) {
			char *back = written(got.at, got.count);

			/* What is taken is what was there, to the byte. */
			assert_int_equal(got.count * REDIS_SPAN_BYTES, len);
			assert_memory_equal(back, text, len);
			for (size_t i = 0; i < got.count; i++) {
				assert_true(got.at[i].at.start < got.at[i].at.end && got.at[i].at.end <= EXTENT_END);
				assert_true(kind == SPANS_PARTS ? got.at[i].mode <= MODE_SH : got.at[i].mode == MODE_SH || got.at[i].mode == MODE_EX);
				if (i)
					assert_true((kind == SPANS_WAITING ? got.at[i - 1].at.start : got.at[i - 1].at.end) <= got.at[i].at.start);
			}
			free(back);
			redis_spans_free(&got);
			taken++;
		} else {
			refused++;
		}
		free(text);
		free(whole);
	}
	assert_true(taken > 1000 && refused > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_list_is_written_as_the_protocol_says),
		cmocka_unit_test(test_a_list_is_read_as_it_was_written),
		cmocka_unit_test(test_the_empty_list_is_a_list),
		cmocka_unit_test(test_what_is_not_a_record_is_refused),
		cmocka_unit_test(test_each_kind_of_list_has_its_modes_and_its_order),
		cmocka_unit_test(test_a_grant_has_one_fence),
		cmocka_unit_test(test_a_reply_with_something_else_in_its_place_has_no_list),
		cmocka_unit_test(test_damaged_lists_are_refused_or_keep_the_rules),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
