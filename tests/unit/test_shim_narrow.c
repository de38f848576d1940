/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/standing.c shim/wire.c daemon-lite/publish.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* 32-bit programs: run without the library and with it, on an agent of 64 bits, they print the same. Left out where they were not built. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon-lite/publish.h"
#include "fake_agent.h"

static struct fake_agent agent;
static char lib32[PATH_MAX + 32];	/* the folder of what is built for 32 bits */
static const char *const programs[] = { "transcript", "transcript64" };
static char text[2][4 << 20];

static bool find_programs(void)
{
	char self[PATH_MAX], program[PATH_MAX + 64];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	if (n < 0)
		return false;
	self[n] = '\0';
	snprintf(lib32, sizeof lib32, "%s/lib32", dirname(dirname(dirname(self))));
	snprintf(program, sizeof program, "%s/transcript64", lib32);
	return access(program, X_OK) == 0;
}

/* Runs a program, and puts what it prints into out. */
static void run(const char *name, bool with_library, const char *file, const char *seed, char *out, size_t size)
{
	char program[PATH_MAX + 64], library[PATH_MAX + 64];
	size_t n = 0;
	int ends[2], status;
	ssize_t got;
	pid_t pid;

	snprintf(program, sizeof program, "%s/%s", lib32, name);
	snprintf(library, sizeof library, "%s/libdlockshim.so", lib32);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], 1);
		if (with_library)
			setenv("LD_PRELOAD", library, 1);
		execl(program, name, file, seed, seed ? "1500" : NULL, NULL);
		_exit(127);
	}
	close(ends[1]);
	while ((got = read(ends[0], out + n, size - 1 - n)) > 0)
		n += (size_t)got;
	out[n] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void compare(const char *seed)
{
	char *a = text[0], *b = text[1];

	while (*a && *a == *b)
		a++, b++;
	if (*a != *b) {
		while (a > text[0] && a[-1] != '\n')
			a--, b--;
		fail_msg("seed %s\nbare %.*s\nshim %.*s", seed, (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
	}
}

static void test_random_calls_print_the_same_with_the_library_and_without(void **state)
{
	char seed[16];

	(void)state;
	if (!find_programs())
		skip();
	snprintf(seed, sizeof seed, "%s", getenv("SEED") ? getenv("SEED") : "0");
	if (!getenv("SEED"))
		snprintf(seed, sizeof seed, "%d", (int)getpid());
	print_message("SEED=%s\n", seed);
	for (int i = 0; i < 2; i++) {
		unlink(fake_path("bare"));
		unlink(fake_path("locks/narrow"));
		run(programs[i], false, fake_path("bare"), seed, text[0], sizeof text[0]);
		fake_start(&agent, fake_say_yes);
		run(programs[i], true, fake_path("locks/narrow"), seed, text[1], sizeof text[1]);
		fake_reach_stage(&agent, 1);
		fake_finish(&agent);
		assert_true(strlen(text[0]) > 10000);
		compare(seed);
		assert_true(agent.number > 50);
	}
}

static void test_a_standing_go_is_read_as_it_was_written(void **state)
{
	struct standing_table *table = publish_map(fake_runtime);
	struct publish_slot slot = { .records = true };
	const char *path = fake_path("locks/narrow");
	struct inode_id id;
	struct stat st;

	(void)state;
	if (!find_programs())
		skip();
	publish_reset(table);
	publish_valid_until(table, UINT64_MAX);
	for (int i = 0; i < 2; i++) {
		int fd;

		unlink(fake_path("bare"));
		unlink(path);
		fd = fake_open("locks/narrow");
		assert_int_equal(fstat(fd, &st), 0);
		id = (struct inode_id){ .dev = st.st_dev, .ino = st.st_ino };
		standing_hash(path, strlen(path), slot.path_hash);
		publish_set(table, &slot, &id, MODE_EX);
		run(programs[i], false, fake_path("bare"), "5", text[0], sizeof text[0]);
		fake_start(&agent, fake_be_alone);
		run(programs[i], true, path, "5", text[1], sizeof text[1]);
		fake_reach_stage(&agent, 1);
		fake_finish(&agent);
		compare("5");
		publish_drop(&slot);
		close(fd);
	}
}

static int64_t tell_start, tell_len;

static void script_tell(struct fake_agent *a)
{
	for (int i = 0; i < 3; i++) {
		int s = fake_accept(a);

		fake_expect(a, s, WIRE_GETLK, NULL, NULL);
		fake_lock(s, MODE_EX, tell_start, tell_len, -7);
		fake_expect_end(a, s);
		close(s);
	}
}

/* What the three ways to ask print in the two programs, cut down to the result. */
static void check_told(int64_t start, int64_t len, const char *narrow, const char *narrow_ofd, const char *wide)
{
	tell_start = start;
	tell_len = len;
	for (int i = 0; i < 2; i++) {
		const char *expected[] = { i ? wide : narrow, i ? wide : narrow_ofd, wide };
		char *line = text[0];

		fake_start(&agent, script_tell);
		run(programs[i], true, fake_path("locks/narrow"), NULL, text[0], sizeof text[0]);
		fake_finish(&agent);
		for (int k = 0; k < 3; k++) {
			assert_non_null(strstr(line, ": "));
			assert_int_equal(strncmp(strstr(line, ": ") + 2, expected[k], strlen(expected[k])), 0);
			line = strchr(line, '\n') + 1;
		}
	}
}

static void test_an_answer_that_does_not_fit_is_eoverflow_or_cut(void **state)
{
	(void)state;
	if (!find_programs())
		skip();
	check_told(10, 20, "0 ; type 1 whence 0 start 10 len 20 pid description", "0 ; type 1 whence 0 start 10 len 20 pid description",
		   "0 ; type 1 whence 0 start 10 len 20 pid description");
	check_told(INT64_C(5000000000), 20, "-1 Value too large", "-1 Value too large", "0 ; type 1 whence 0 start 5000000000 len 20");
	check_told(10, INT64_C(5000000000), "0 ; type 1 whence 0 start 10 len 2147483647", "-1 Value too large",
		   "0 ; type 1 whence 0 start 10 len 5000000000");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_calls_print_the_same_with_the_library_and_without),
		cmocka_unit_test(test_a_standing_go_is_read_as_it_was_written),
		cmocka_unit_test(test_an_answer_that_does_not_fit_is_eoverflow_or_cut),
	};
	int failed;

	fake_world(argc, argv);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
