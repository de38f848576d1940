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

static struct {
	enum wire_family family;
	enum lock_mode mode;
	struct extent at;
} found[8];
static unsigned found_count;

static void note(void *arg, enum wire_family family, enum lock_mode mode, struct extent at)
{
	(void)arg;
	assert_true(found_count < 8);
	found[found_count].family = family;
	found[found_count].mode = mode;
	found[found_count++].at = at;
}

static void feed(const char *text, size_t piece)
{
	struct held_parser parser = { .len = 0, .fn = note };
	size_t len = strlen(text);

	found_count = 0;
	for (size_t i = 0; i < len; i += piece)
		held_feed(&parser, text + i, len - i < piece ? len - i : piece);
}

/* The flock that the text shows. */
static enum lock_mode parse(const char *text, size_t piece)
{
	enum lock_mode mode = MODE_NONE;

	feed(text, piece);
	for (unsigned i = 0; i < found_count; i++)
		if (found[i].family == FAMILY_FLOCK)
			mode = mode_max(mode, found[i].mode);
	return mode;
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

static void check_found(unsigned i, enum wire_family family, enum lock_mode mode, uint64_t start, uint64_t end)
{
	assert_int_equal(found[i].family, family);
	assert_int_equal(found[i].mode, mode);
	assert_int_equal(found[i].at.start, start);
	assert_int_equal(found[i].at.end, end);
}

static void test_record_locks_have_an_owner_and_a_range(void **state)
{
	(void)state;
	for (size_t piece = 1; piece < 200; piece++) {
		feed(HEAD "lock:\t1: POSIX  ADVISORY  WRITE 4711 08:01:5 0 EOF\n"
			  "lock:\t2: POSIX  ADVISORY  READ  4711 08:01:5 100 199\n"
			  "lock:\t3: OFDLCK ADVISORY  READ  -1 103:02:123456789012 9223372036854775806 9223372036854775806\n"
			  "lock:\t4: FLOCK  ADVISORY  WRITE 4711 08:01:5 0 EOF\n"
			  "lock:\t5: LEASE  ACTIVE    WRITE 4711 08:01:5 0 EOF\n", piece);
		assert_int_equal(found_count, 4);
		check_found(0, FAMILY_POSIX, MODE_EX, 0, EXTENT_END);
		check_found(1, FAMILY_POSIX, MODE_SH, 100, 200);
		check_found(2, FAMILY_OFD, MODE_SH, INT64_MAX - 1, INT64_MAX);
		check_found(3, FAMILY_FLOCK, MODE_EX, 0, EXTENT_END);
	}
}

static void test_rubbish_is_nothing_held(void **state)
{
	char line[5000];

	(void)state;
	assert_int_equal(parse("", 1), MODE_NONE);
	assert_int_equal(parse("lock:\n", 1), MODE_NONE);
	assert_int_equal(parse("lock:\t1:\n\n\n", 1), MODE_NONE);
	assert_int_equal(parse("lock:\t1: FLOCK  ADVISORY  WRITE without an end", 7), MODE_NONE);
	for (unsigned i = 0; i < 6; i++) {
		static const char *const bad[] = {
			"lock:\t1: POSIX  ADVISORY  WRITE 1 0:0:0\n", "lock:\t1: POSIX  ADVISORY  WRITE 1 0:0:0 5\n",
			"lock:\t1: POSIX  ADVISORY  WRITE 1 0:0:0 5 4\n", "lock:\t1: POSIX  ADVISORY  WRITE 1 0:0:0 -5 EOF\n",
			"lock:\t1: POSIX  ADVISORY  WRITE 1 0:0:0 0 99999999999999999999\n",
			"lock:\t1: POSIX  ADVISORY  UNLCK 1 0:0:0 0 EOF\n",
		};

		feed(bad[i], 512);
		assert_int_equal(found_count, 0);
	}
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
	assert_int_equal(held_strongest(a, FAMILY_FLOCK, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	assert_int_equal(flock(a, LOCK_SH), 0);
	assert_int_equal(held_strongest(copy, FAMILY_FLOCK, &mode), 0);
	assert_int_equal(mode, MODE_SH);
	assert_int_equal(flock(a, LOCK_EX), 0);
	assert_int_equal(held_strongest(copy, FAMILY_FLOCK, &mode), 0);
	assert_int_equal(mode, MODE_EX);
	/* another description of the same file holds nothing */
	assert_int_equal(held_strongest(b, FAMILY_FLOCK, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	/* nor does a record lock count */
	assert_int_equal(flock(a, LOCK_UN), 0);
	assert_int_equal(fcntl(a, F_SETLK, &(struct flock){ .l_type = F_WRLCK }), 0);
	assert_int_equal(held_strongest(a, FAMILY_FLOCK, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	assert_int_equal(held_strongest(a, FAMILY_POSIX, &mode), 0);
	assert_int_equal(mode, MODE_EX);
	assert_int_equal(held_strongest(b, FAMILY_POSIX, &mode), 0);
	assert_int_equal(mode, MODE_NONE);	/* it was made through the other description */
	assert_int_equal(held_strongest(a, FAMILY_OFD, &mode), 0);
	assert_int_equal(mode, MODE_NONE);
	close(a);
	close(b);
	close(copy);
	assert_true(held_strongest(a, FAMILY_FLOCK, &mode) < 0);
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
	if (held_strongest(fd, FAMILY_FLOCK, &mode) < 0 || mode != MODE_EX)
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
		cmocka_unit_test(test_record_locks_have_an_owner_and_a_range),
		cmocka_unit_test(test_rubbish_is_nothing_held),
		cmocka_unit_test(test_the_kernel_shows_what_the_description_holds),
		cmocka_unit_test(test_a_thread_with_its_own_table_is_asked_about_that_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
