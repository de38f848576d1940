/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/dlock/file_kind.c */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "../../daemon-lite/dlock/file_kind.h"

static void test_the_header_of_a_database_says_its_journal_mode(void **state)
{
	unsigned char head[FILE_KIND_BYTES] = "SQLite format 3";

	(void)state;
	head[18] = head[19] = 1;
	assert_int_equal(file_kind(head, sizeof head), FILE_SQLITE);
	head[19] = 2;
	assert_int_equal(file_kind(head, sizeof head), FILE_SQLITE_WAL);
	assert_int_equal(file_kind(head, 19), FILE_ORDINARY);
	head[0] = 's';
	assert_int_equal(file_kind(head, sizeof head), FILE_ORDINARY);
}

static void test_the_magic_number_of_lmdb_is_known_where_its_files_have_it(void **state)
{
	static const size_t at[] = { 0, 8, 16 };
	static const uint32_t magic = 0xbeefc0de;

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		unsigned char head[FILE_KIND_BYTES] = { 0 };

		memcpy(head + at[i], &magic, sizeof magic);
		assert_int_equal(file_kind(head, sizeof head), FILE_LMDB);
		assert_int_equal(file_kind(head, at[i] + 3), FILE_ORDINARY);
	}
}

static void test_an_empty_file_is_an_ordinary_one(void **state)
{
	(void)state;
	assert_int_equal(file_kind((const unsigned char *)"", 0), FILE_ORDINARY);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_header_of_a_database_says_its_journal_mode),
		cmocka_unit_test(test_the_magic_number_of_lmdb_is_known_where_its_files_have_it),
		cmocka_unit_test(test_an_empty_file_is_an_ordinary_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
