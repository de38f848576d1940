/* SPDX-License-Identifier: MIT */
/* LINK: shim/held.c shim/fd.c */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "../../shim/held.h"

static enum lock_mode parse(const char *text, size_t piece)
{
	struct held_parser parser = { .len = 0 };
	size_t len = strlen(text);

	for (size_t i = 0; i < len; i += piece)
		held_feed(&parser, text + i, len - i < piece ? len - i : piece);
	return parser.flock;
}

#define HEAD "pos:\t0\nflags:\t0100002\nmnt_id:\t27\nino:\t5\n"

static void test_the_lock_line_is_found_in_pieces_of_any_size(void **state)
{
	(void)state;
	for (size_t piece = 1; piece < 120; piece++) {
		assert_int_equal(parse(HEAD "lock:\t1: FLOCK  ADVISORY  WRITE 4711 08:01:5 0 EOF\n", piece), MODE_EX);
		assert_int_equal(parse(HEAD "lock:\t1: FLOCK  ADVISORY  READ  4711 08:01:5 0 EOF\n", piece), MODE_SH);
		assert_int_equal(parse(HEAD, piece), MODE_NONE);
	}
}

static void test_other_kinds_of_lock_are_not_a_flock(void **state)
{
	(void)state;
	assert_int_equal(parse(HEAD "lock:\t1: POSIX  ADVISORY  WRITE 4711 08:01:5 0 EOF\n", 512), MODE_NONE);
	assert_int_equal(parse(HEAD "lock:\t1: OFDLCK ADVISORY  WRITE -1 08:01:5 0 EOF\n", 512), MODE_NONE);
	assert_int_equal(parse(HEAD "lock:\t1: LEASE  ACTIVE    WRITE 4711 08:01:5 0 EOF\n", 512), MODE_NONE);
	assert_int_equal(parse(HEAD "lock:\t1: POSIX  ADVISORY  READ 1 08:01:5 0 EOF\n"
			       "lock:\t2: FLOCK  ADVISORY  READ 1 08:01:5 0 EOF\n", 512), MODE_SH);
}

static void test_rubbish_is_nothing_held(void **state)
{
	char line[5000];

	(void)state;
	assert_int_equal(parse("", 1), MODE_NONE);
	assert_int_equal(parse("lock:\n", 1), MODE_NONE);
	assert_int_equal(parse("lock:\t1:\n\n\n", 1), MODE_NONE);
	assert_int_equal(parse("lock:\t1: FLOCK  ADVISORY  WRITE without an end", 7), MODE_NONE);
	assert_int_equal(parse("xlock:\t1: FLOCK  ADVISORY  WRITE 1\n", 7), MODE_NONE);
	memset(line, 'a', sizeof line);
	strcpy(line + sizeof line - 64, "\nlock:\t1: FLOCK  ADVISORY  WRITE 1 0:0:0 0 EOF\n");
	assert_int_equal(parse(line, 33), MODE_EX);
}

static char path[] = "/tmp/dlockshim-held-XXXXXX";

static void test_the_kernel_shows_what_the_description_holds(void **state)
{
	enum lock_mode mode;
	int a, b, copy;

	(void)state;
	a = mkstemp(path);
	b = open(path, O_RDONLY | O_CLOEXEC);
	copy = dup(a);
	assert_int_equal(held_flock(a, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	assert_int_equal(flock(a, LOCK_SH), 0);
	assert_int_equal(held_flock(copy, &mode), 0);
	assert_int_equal(mode, MODE_SH);
	assert_int_equal(flock(a, LOCK_EX), 0);
	assert_int_equal(held_flock(copy, &mode), 0);
	assert_int_equal(mode, MODE_EX);
	/* another description of the same file holds nothing */
	assert_int_equal(held_flock(b, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	/* nor does a record lock count */
	assert_int_equal(flock(a, LOCK_UN), 0);
	assert_int_equal(fcntl(a, F_SETLK, &(struct flock){ .l_type = F_WRLCK }), 0);
	assert_int_equal(held_flock(a, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	close(a);
	close(b);
	close(copy);
	assert_true(held_flock(a, &mode) < 0);
	unlink(path);
}

static void *own_table(void *arg)
{
	enum lock_mode mode = MODE_NONE;
	char file[] = "/tmp/dlockshim-held-XXXXXX";
	int fd;

	(void)arg;
	if (unshare(CLONE_FILES) < 0)
		return (void *)1;
	fd = mkstemp(file);
	unlink(file);
	if (fd < 0 || flock(fd, LOCK_EX) < 0)
		return (void *)2;
	if (held_flock(fd, &mode) < 0 || mode != MODE_EX)
		return (void *)3;
	close(fd);
	return NULL;
}

static void test_a_thread_with_its_own_table_is_asked_about_that_table(void **state)
{
	pthread_t thread;
	void *result;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, own_table, NULL), 0);
	pthread_join(thread, &result);
	assert_ptr_equal(result, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_lock_line_is_found_in_pieces_of_any_size),
		cmocka_unit_test(test_other_kinds_of_lock_are_not_a_flock),
		cmocka_unit_test(test_rubbish_is_nothing_held),
		cmocka_unit_test(test_the_kernel_shows_what_the_description_holds),
		cmocka_unit_test(test_a_thread_with_its_own_table_is_asked_about_that_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
