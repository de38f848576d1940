/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* A record lock that was taken and may not be kept: it is undone, and what its owner held before stays. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;
static struct wire_msg seen;

static int range(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &lock);
}

/* The kernel's own. */
static int bare(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return (int)syscall(SYS_fcntl, fd, cmd, &lock);
}

/* A child that holds a range by a POSIX lock until it is released. */
static pid_t hold(int fd, short type, int64_t start, int64_t len, int *ret_release)
{
	int ready[2], release[2];
	pid_t pid;
	char c;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(pipe2(release, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		close(release[1]);
		if (bare(fd, F_SETLK, type, start, len) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		(void)!read(release[0], &c, 1);
		_exit(0);
	}
	close(release[0]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	*ret_release = release[1];
	return pid;
}

static void let_go(pid_t pid, int release)
{
	close(release);
	waitpid(pid, NULL, 0);
}

/* The GO is over when the lock is taken, and the agent says that it may not be kept. */
static void script_void(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, -1);
	if (fake_expect(a, s, WIRE_STANDS, &seen, NULL) < 0)
		return;
	fake_send(s, WIRE_STANDING, ENOLCK, NULL);
	fake_expect_end(a, s);
	close(s);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_ERROR, ENOLCK, NULL);
	fake_expect_end(a, s);
	close(s);
}

static void check_void(int fd, int cmd, short type, int64_t start, int64_t len)
{
	fake_start(&agent, script_void);
	assert_int_equal(range(fd, cmd, type, start, len), -1);
	assert_int_equal(errno, ENOLCK);
	fake_finish(&agent);
	assert_int_equal(seen.start, start);
	assert_int_equal(seen.len, len);
}

/* What each byte from 0 to 9 is locked as: '-', 'r', 'w'; seen from another description. */
static const char *picture(int watcher)
{
	static char text[11];

	for (int i = 0; i < 10; i++)
		text[i] = fake_range_is_free(watcher, i, 1, F_WRLCK) ? '-' : fake_range_is_free(watcher, i, 1, F_RDLCK) ? 'r' : 'w';
	return text;
}

static void test_a_lock_that_may_not_be_kept_is_undone_and_nothing_more(void **state)
{
	int commands[] = { F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW };

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		int cmd = commands[i], set = i < 2 ? F_SETLK : F_OFD_SETLK;
		int fd = fake_open(A), watcher = fake_open(A);

		check_void(fd, cmd, F_WRLCK, 2, 5);
		assert_string_equal(picture(watcher), "----------");
		bare(fd, set, F_WRLCK, 0, 3);
		bare(fd, set, F_RDLCK, 5, 2);
		assert_string_equal(picture(watcher), "www--rr---");
		check_void(fd, cmd, F_WRLCK, 2, 7);
		assert_string_equal(picture(watcher), "www--rr---");
		check_void(fd, cmd, F_RDLCK, 0, 0);
		assert_string_equal(picture(watcher), "www--rr---");
		check_void(fd, cmd, F_WRLCK, 0, 0);
		assert_string_equal(picture(watcher), "www--rr---");
		check_void(fd, cmd, F_RDLCK, 3, 6);
		assert_string_equal(picture(watcher), "www--rr---");
		close(fd);
		close(watcher);
	}
}

static void test_what_was_locked_through_another_descriptor_stays_too(void **state)
{
	int fd = fake_open(A), other = fake_open(A), watcher = fake_open(A);

	(void)state;
	bare(other, F_SETLK, F_WRLCK, 1, 2);
	bare(fd, F_SETLK, F_WRLCK, 5, 1);
	bare(other, F_SETLK, F_RDLCK, 7, 2);
	check_void(fd, F_SETLK, F_WRLCK, 0, 10);
	assert_string_equal(picture(watcher), "-ww--w-rr-");
	close(fd);
	close(other);
	close(watcher);
}

static void test_other_owners_locks_are_not_taken_for_ones_own(void **state)
{
	int fd = fake_open(A), watcher = fake_open(A), release;
	pid_t pid = hold(fd, F_RDLCK, 0, 4, &release);

	(void)state;
	bare(fd, F_SETLK, F_RDLCK, 2, 4);
	check_void(fd, F_SETLK, F_RDLCK, 0, 10);
	assert_string_equal(picture(watcher), "rrrrrr----");
	let_go(pid, release);
	assert_string_equal(picture(watcher), "--rrrr----");
	close(fd);
	close(watcher);
}

static void test_with_more_parts_than_can_be_noted_none_is_lost(void **state)
{
	int fd = fake_open(A), watcher = fake_open(A);

	(void)state;
	for (int i = 0; i < 100; i++)
		bare(fd, F_OFD_SETLK, F_WRLCK, 2 * i, 1);
	check_void(fd, F_OFD_SETLK, F_WRLCK, 0, 200);
	for (int i = 0; i < 100; i++)
		assert_false(fake_range_is_free(watcher, 2 * i, 1, F_WRLCK));
	close(fd);
	close(watcher);
}

static void script_ends(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	shutdown(s, SHUT_RD);	/* DONE cannot be sent */
	fake_go(s, 10000);
	close(s);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_STANDS, &seen, NULL);
	fake_send(s, WIRE_STANDING, a->number, NULL);
	if (a->number == 0) {
		fake_expect(a, s, WIRE_DONE, NULL, NULL);
		fake_expect_end(a, s);
		close(s);
		return;
	}
	close(s);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_BUSY, 0, NULL);
	close(s);
}

static void test_the_next_agent_is_asked_when_the_one_that_said_go_has_ended(void **state)
{
	int fd = fake_open(A), watcher = fake_open(A);

	(void)state;
	bare(fd, F_SETLK, F_RDLCK, 1, 1);
	fake_start_with(&agent, script_ends, ENOLCK);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 4), -1);
	assert_int_equal(errno, EAGAIN);
	fake_finish(&agent);
	assert_string_equal(picture(watcher), "-r--------");
	fake_start_with(&agent, script_ends, 0);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 4), 0);
	fake_finish(&agent);
	assert_string_equal(picture(watcher), "wwww------");
	assert_int_equal(seen.family, FAMILY_POSIX);
	assert_int_equal(seen.len, 4);
	close(fd);
	close(watcher);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_lock_that_may_not_be_kept_is_undone_and_nothing_more),
		cmocka_unit_test(test_what_was_locked_through_another_descriptor_stays_too),
		cmocka_unit_test(test_other_owners_locks_are_not_taken_for_ones_own),
		cmocka_unit_test(test_with_more_parts_than_can_be_noted_none_is_lost),
		cmocka_unit_test(test_the_next_agent_is_asked_when_the_one_that_said_go_has_ended),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
