/* SPDX-License-Identifier: MIT */
/* LINK: shim/wire.c */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/mode.h"
#include "../../shim/wire.h"

static void test_a_message_made_is_a_message_read(void **state)
{
	char buf[sizeof(struct wire_msg) + 5 + 1];
	struct wire_msg msg, back;
	const char *text;

	(void)state;
	wire_init(&msg, WIRE_ERROR);
	msg.err = ENOLCK;
	msg.text_len = 5;
	/* unaligned on purpose */
	memcpy(buf + 1, &msg, sizeof msg);
	memcpy(buf + 1 + sizeof msg, "hello", 5);
	assert_int_equal(wire_parse(buf + 1, sizeof msg + 5, &back, &text), 0);
	assert_memory_equal(&back, &msg, sizeof msg);
	assert_memory_equal(text, "hello", 5);
	assert_ptr_equal(text, buf + 1 + sizeof msg);
}

static void test_init_leaves_no_byte_unset(void **state)
{
	struct wire_msg a, b;

	(void)state;
	memset(&a, 0xaa, sizeof a);
	memset(&b, 0x55, sizeof b);
	wire_init(&a, WIRE_GO);
	wire_init(&b, WIRE_GO);
	assert_memory_equal(&a, &b, sizeof a);
}

static void test_every_other_size_is_refused_and_outputs_stay(void **state)
{
	char buf[sizeof(struct wire_msg) + 16] = { 0 };
	struct wire_msg msg, out = { .fence = 7 };
	const char *text = "untouched";

	(void)state;
	wire_init(&msg, WIRE_BUSY);
	msg.text_len = 3;
	memcpy(buf, &msg, sizeof msg);
	for (size_t n = 0; n <= sizeof buf; n++) {
		if (n == sizeof msg + 3)
			continue;
		assert_int_equal(wire_parse(buf, n, &out, &text), -EPROTO);
	}
	assert_int_equal(out.fence, 7);
	assert_string_equal(text, "untouched");
}

static void test_another_magic_version_or_length_is_refused(void **state)
{
	struct wire_msg msg, out;
	const char *text;

	(void)state;
	wire_init(&msg, WIRE_BUSY);
	msg.magic++;
	assert_int_equal(wire_parse(&msg, sizeof msg, &out, &text), -EPROTO);
	wire_init(&msg, WIRE_BUSY);
	msg.version++;
	assert_int_equal(wire_parse(&msg, sizeof msg, &out, &text), -EPROTO);
	wire_init(&msg, WIRE_BUSY);
	msg.text_len = UINT32_MAX;
	assert_int_equal(wire_parse(&msg, sizeof msg, &out, &text), -EPROTO);
	/* where size_t has 32 bits the sum would wrap around */
	msg.text_len = 0u - (uint32_t)sizeof msg;
	assert_int_equal(wire_parse(&msg, 0, &out, &text), -EPROTO);
	assert_int_equal(wire_parse(&msg, sizeof msg, &out, &text), -EPROTO);
}

static void test_random_bytes_never_read_beyond_their_end(void **state)
{
	unsigned seed = 1;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		size_t n = (size_t)rand_r(&seed) % 120;
		char *buf = malloc(n ? n : 1);
		struct wire_msg msg;
		const char *text;

		for (size_t i = 0; i < n; i++)
			buf[i] = (char)rand_r(&seed);
		if (n >= 6 && round % 2) {
			wire_init(&msg, WIRE_GO);
			memcpy(buf, &msg, 6);	/* magic and version are right */
		}
		if (wire_parse(buf, n, &msg, &text) == 0)
			assert_int_equal(sizeof msg + msg.text_len, n);
		free(buf);
	}
}

static void test_modes_exclude_as_locks_do(void **state)
{
	(void)state;
	assert_true(mode_conflicts(MODE_EX, MODE_EX));
	assert_true(mode_conflicts(MODE_EX, MODE_SH));
	assert_true(mode_conflicts(MODE_SH, MODE_EX));
	assert_false(mode_conflicts(MODE_SH, MODE_SH));
	for (int mode = MODE_NONE; mode <= MODE_EX; mode++) {
		assert_false(mode_conflicts(MODE_NONE, (enum lock_mode)mode));
		assert_false(mode_conflicts((enum lock_mode)mode, MODE_NONE));
		assert_int_equal(mode_max(MODE_NONE, (enum lock_mode)mode), mode);
	}
	assert_int_equal(mode_max(MODE_EX, MODE_SH), MODE_EX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_message_made_is_a_message_read),
		cmocka_unit_test(test_init_leaves_no_byte_unset),
		cmocka_unit_test(test_every_other_size_is_refused_and_outputs_stay),
		cmocka_unit_test(test_another_magic_version_or_length_is_refused),
		cmocka_unit_test(test_random_bytes_never_read_beyond_their_end),
		cmocka_unit_test(test_modes_exclude_as_locks_do),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
