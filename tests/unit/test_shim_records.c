/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* Each way that the conversation of one record lock call can go, with an agent that follows a script. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shim/extent.h"
#include "fake_agent.h"

#define A "locks/a"
#define TO_END 0

static struct fake_agent agent;

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

static void start_unvisited(void)
{
	fake_start(&agent, fake_be_alone);
}

static void finish_unvisited(void)
{
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
}

/* ---- without the agent ---- */

static void test_a_path_without_a_rule_is_left_to_the_kernel(void **state)
{
	int fd = fake_open("elsewhere");

	(void)state;
	start_unvisited();
	errno = 77;
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 5, 5), 0);
	assert_int_equal(range(fd, F_OFD_SETLKW, F_WRLCK, 20, 5), 0);
	assert_int_equal(lockf(fd, F_LOCK, 3), 0);
	assert_int_equal(lockf64(fd, F_TEST, 3), 0);
	assert_int_equal(errno, 77);
	assert_false(fake_range_is_free(fd, 0, 1, F_WRLCK));
	finish_unvisited();
	close(fd);
}

static void test_unlocking_is_the_kernels_alone(void **state)
{
	int fd = fake_open(A);

	(void)state;
	start_unvisited();
	assert_int_equal(bare(fd, F_SETLK, F_WRLCK, 0, 10), 0);
	errno = 77;
	assert_int_equal(range(fd, F_SETLK, F_UNLCK, 0, 5), 0);
	assert_int_equal(range(fd, F_SETLKW, F_UNLCK, 5, 3), 0);
	assert_true(fake_range_is_free(fd, 0, 8, F_WRLCK));
	assert_false(fake_range_is_free(fd, 8, 1, F_WRLCK));
	assert_int_equal(lockf(fd, F_ULOCK, 0), 0);
	assert_true(fake_range_is_free(fd, 0, 0, F_WRLCK));
	assert_int_equal(errno, 77);
	finish_unvisited();
	close(fd);
}

static void test_what_is_no_clean_request_never_reaches_the_agent(void **state)
{
	int fd = fake_open(A), reader = open(fake_path(A), O_RDONLY), writer = open(fake_path(A), O_WRONLY);
	struct flock lock = { .l_type = F_WRLCK, .l_pid = 1 };

	(void)state;
	start_unvisited();
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(range(fd, F_SETLK, 77, 0, 0), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, -1, 0), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 5, -6), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, INT64_MAX, 2), -1);
	assert_int_equal(errno, EOVERFLOW);
	assert_int_equal(range(reader, F_SETLK, F_WRLCK, 0, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(range(writer, F_OFD_SETLK, F_RDLCK, 0, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(range(-1, F_SETLK, F_WRLCK, 0, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(lockf(fd, 99, 0), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(range(fd, F_OFD_GETLK, F_UNLCK, 0, 0), 0);
	assert_int_equal(range(fd, F_GETLK, F_UNLCK, 0, 0), -1);
	assert_int_equal(errno, EINVAL);
	finish_unvisited();
	close(fd);
	close(reader);
	close(writer);
}

static void test_a_bad_pointer_is_efault_and_never_a_crash(void **state)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int commands[] = { F_SETLK, F_SETLKW, F_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK };
	int fd = fake_open(A);

	(void)state;
	assert_int_equal(mprotect(page + 4096, 4096, PROT_NONE), 0);
	start_unvisited();
	for (unsigned i = 0; i < 6; i++) {
		char *bad[] = { NULL, (char *)8, (char *)-1, page + 4096, page + 4096 - 8, page + 4096 - 31, (char *)(UINT64_C(1) << 63) };

		for (unsigned k = 0; k < 7; k++) {
			assert_int_equal(fcntl(fd, commands[i], bad[k]), -1);
			assert_int_equal(errno, EFAULT);
			assert_int_equal(fcntl(-1, commands[i], bad[k]), -1);
			assert_int_equal(errno, EBADF);
		}
	}
	assert_true(fake_range_is_free(fd, 0, 0, F_WRLCK));
	finish_unvisited();
	munmap(page, 8192);
	close(fd);
}

static void test_other_commands_pass_with_their_arguments(void **state)
{
	int fd = fake_open(A), copy, ends[2];

	(void)state;
	start_unvisited();
	assert_int_equal(pipe(ends), 0);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 100);
	assert_true(copy >= 100);
	assert_int_equal(fcntl(copy, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl64(copy, F_SETFD, 0), 0);
	assert_int_equal(fcntl(copy, F_GETFD), 0);
	assert_true(fcntl(fd, F_GETFL) & O_RDWR);
	assert_int_equal(fcntl(ends[0], F_SETPIPE_SZ, 65536), 65536);
	assert_int_equal(fcntl(ends[0], F_GETPIPE_SZ), 65536);
	errno = 77;
	assert_int_equal(fcntl(ends[0], F_SETOWN, -getpgrp()), 0);
	assert_int_equal(fcntl(ends[0], F_GETOWN), -getpgrp());
	assert_int_equal(fcntl(ends[0], F_SETOWN, getpid()), 0);
	assert_int_equal(fcntl(ends[0], F_GETOWN), getpid());
	assert_int_equal(errno, 77);
	assert_int_equal(fcntl(fd, 123456, 5), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(fcntl(-1, F_GETOWN), -1);
	assert_int_equal(errno, EBADF);
	close(copy);
	assert_int_equal(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
	assert_int_equal(fcntl(fd, F_GETLEASE), F_WRLCK);
	finish_unvisited();
	close(ends[0]);
	close(ends[1]);
	close(fd);
}

/* ---- the conversation ---- */

static struct wire_msg seen;

static void script_go(struct fake_agent *a)
{
	struct wire_msg done = { .err = -1 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &seen, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, &done, NULL);
	a->number = done.err;
	fake_expect_end(a, s);
	close(s);
}

static void check_request(int cmd, short type, short whence, int64_t start, int64_t len, int64_t from, int64_t length)
{
	bool ofd = cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW, waits = cmd == F_OFD_SETLKW || cmd == F_SETLKW;
	struct flock lock = { .l_type = type, .l_whence = whence, .l_start = start, .l_len = len }, before = lock;
	int fd = fake_open(A), other = fake_open(A);

	assert_int_equal(ftruncate(fd, 1000), 0);
	assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
	fake_start(&agent, script_go);
	errno = 77;
	assert_int_equal(fcntl(fd, cmd, &lock), 0);
	assert_int_equal(errno, 77);
	fake_finish(&agent);
	assert_memory_equal(&lock, &before, sizeof lock);
	assert_int_equal(agent.number, 0);
	assert_int_equal(seen.family, ofd ? FAMILY_OFD : FAMILY_POSIX);
	assert_int_equal(seen.mode, type == F_WRLCK ? MODE_EX : MODE_SH);
	assert_int_equal(seen.flags, waits ? 0 : WIRE_FLAG_NONBLOCK);
	assert_int_equal(seen.fd_number, fd);
	assert_int_equal(seen.start, from);
	assert_int_equal(seen.len, length);
	assert_true(seen.stamp != 0);
	assert_int_equal(seen.tid, gettid());
	assert_false(fake_range_is_free(other, from, length ? length : 0, F_WRLCK));
	assert_int_equal(fake_range_is_free(other, from, 1, F_RDLCK), type == F_RDLCK);
	if (from)
		assert_true(fake_range_is_free(other, 0, from, F_WRLCK));
	if (length && from + length > 0)
		assert_true(fake_range_is_free(other, from + length, 0, F_WRLCK));
	close(fd);
	close(other);
}

static void test_a_request_says_family_mode_and_the_range_that_is_meant(void **state)
{
	int commands[] = { F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW };

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		check_request(commands[i], F_WRLCK, SEEK_SET, 0, 0, 0, TO_END);
		check_request(commands[i], F_RDLCK, SEEK_SET, 7, 3, 7, 3);
		check_request(commands[i], F_WRLCK, SEEK_CUR, 5, 10, 105, 10);
		check_request(commands[i], F_WRLCK, SEEK_CUR, -100, 1, 0, 1);
		check_request(commands[i], F_WRLCK, SEEK_END, 0, 0, 1000, TO_END);
		check_request(commands[i], F_RDLCK, SEEK_END, -10, 20, 990, 20);
		check_request(commands[i], F_WRLCK, SEEK_SET, 50, -20, 30, 20);
		check_request(commands[i], F_WRLCK, SEEK_END, 0, -1000, 0, 1000);
		check_request(commands[i], F_WRLCK, SEEK_SET, INT64_MAX, 1, INT64_MAX, TO_END);
		check_request(commands[i], F_WRLCK, SEEK_SET, INT64_MAX - 1, 1, INT64_MAX - 1, 1);
		check_request(commands[i], F_WRLCK, SEEK_SET, 1, INT64_MAX, 1, TO_END);
	}
}

static void test_lockf_asks_for_a_posix_write_lock_from_the_offset_on(void **state)
{
	int fd = fake_open(A);

	(void)state;
	assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
	fake_start(&agent, script_go);
	assert_int_equal(lockf(fd, F_TLOCK, -30), 0);
	fake_finish(&agent);
	assert_int_equal(seen.family, FAMILY_POSIX);
	assert_int_equal(seen.mode, MODE_EX);
	assert_int_equal(seen.flags, WIRE_FLAG_NONBLOCK);
	assert_int_equal(seen.start, 70);
	assert_int_equal(seen.len, 30);
	fake_start(&agent, script_go);
	assert_int_equal(lockf64(fd, F_LOCK, 0), 0);
	fake_finish(&agent);
	assert_int_equal(seen.flags, 0);
	assert_int_equal(seen.start, 100);
	assert_int_equal(seen.len, TO_END);
	close(fd);
}

static void script_answer(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	switch (a->number) {
	case 0:
		fake_send(s, WIRE_LOCAL, 0, NULL);
		break;
	case 1:
		fake_send(s, WIRE_BUSY, 0, NULL);
		break;
	default:
		fake_send(s, WIRE_ERROR, a->number, a->number == EDEADLK ? NULL : "the sentence of the agent");
	}
	fake_expect_end(a, s);
	close(s);
}

static int answered(int number, int cmd)
{
	int fd = fake_open(A), other = fake_open(A), result, saved;

	fake_start_with(&agent, script_answer, number);
	result = range(fd, cmd, F_WRLCK, 10, 10);
	saved = result < 0 ? errno : 0;
	fake_finish(&agent);
	assert_int_equal(fake_range_is_free(other, 0, 0, F_WRLCK), result < 0);
	close(fd);
	close(other);
	return saved;
}

static void test_answers_are_results_and_errors_of_the_manual_page(void **state)
{
	(void)state;
	assert_int_equal(answered(0, F_SETLK), 0);
	assert_int_equal(answered(0, F_OFD_SETLKW), 0);
	assert_int_equal(answered(1, F_SETLK), EAGAIN);
	assert_int_equal(answered(1, F_OFD_SETLK), EAGAIN);
	assert_int_equal(answered(1, F_SETLKW), ENOLCK);
	fake_clear_log();
	assert_int_equal(answered(EDEADLK, F_SETLKW), EDEADLK);
	assert_false(fake_log_has("cannot lock"));
	assert_int_equal(answered(ENOLCK, F_SETLK), ENOLCK);
	assert_true(fake_log_has("the sentence of the agent"));
	assert_int_equal(answered(EINTR, F_SETLKW), EINTR);
	assert_int_equal(answered(EIO, F_SETLKW), ENOLCK);
	assert_int_equal(answered(99999, F_SETLK), ENOLCK);
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

static void test_busy_in_the_kernel_is_reported_and_eagain(void **state)
{
	int fd = fake_open(A), release;
	pid_t pid = hold(fd, F_RDLCK, 5, 1, &release);

	(void)state;
	fake_start(&agent, script_go);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 10), -1);
	assert_int_equal(errno, EAGAIN);
	fake_finish(&agent);
	assert_int_equal(agent.number, EAGAIN);
	let_go(pid, release);
	close(fd);
}

/* A child waits for our range, we wait for its range: the kernel's own cycle. */
static void test_a_deadlock_that_the_kernel_sees_is_reported_and_passed_on(void **state)
{
	int fd = fake_open(A), ready[2];
	pid_t pid;
	char c;

	(void)state;
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	assert_int_equal(bare(fd, F_SETLK, F_WRLCK, 0, 1), 0);
	pid = fork();
	if (pid == 0) {
		if (bare(fd, F_SETLK, F_WRLCK, 1, 1) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		_exit(bare(fd, F_SETLKW, F_WRLCK, 0, 1) < 0);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	for (int i = 0; i < 10000; i++) {	/* until it sleeps in the kernel */
		char path[64], text[512] = "";
		int info;

		snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
		info = open(path, O_RDONLY | O_CLOEXEC);
		(void)!read(info, text, sizeof text - 1);
		close(info);
		if (atoi(text) == SYS_fcntl && text[0] != 'r')
			break;
		usleep(1000);
	}
	fake_start(&agent, script_go);
	assert_int_equal(range(fd, F_SETLKW, F_WRLCK, 1, 1), -1);
	assert_int_equal(errno, EDEADLK);
	fake_finish(&agent);
	assert_int_equal(agent.number, EDEADLK);
	assert_int_equal(bare(fd, F_SETLK, F_UNLCK, 0, 0), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(ready[0]);
	close(ready[1]);
	close(fd);
}

static void script_check(struct fake_agent *a)
{
	struct wire_msg held;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_CHECK, 0, NULL);
	if (fake_expect(a, s, WIRE_HELD, &held, NULL) < 0)
		return;
	a->number = held.mode;
	fake_send(s, WIRE_OFFER, 0, NULL);
	fake_expect(a, s, WIRE_TAKE, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void check_held(int fd, int cmd, int expected)
{
	fake_start(&agent, script_check);
	assert_int_equal(range(fd, cmd, F_WRLCK, 500, 1), 0);
	fake_finish(&agent);
	assert_int_equal(agent.number, expected);
	assert_int_equal(bare(fd, cmd, F_UNLCK, 500, 1), 0);
}

static void test_check_says_the_strongest_mode_of_the_owner_and_drops_nothing(void **state)
{
	int fd = fake_open(A), other = fake_open(A), third = fake_open(A);

	(void)state;
	check_held(fd, F_SETLK, MODE_NONE);
	check_held(fd, F_OFD_SETLK, MODE_NONE);
	assert_int_equal(bare(fd, F_SETLK, F_RDLCK, 0, 1), 0);
	assert_int_equal(bare(other, F_OFD_SETLK, F_WRLCK, 10, 1), 0);
	check_held(fd, F_SETLK, MODE_SH);
	check_held(other, F_SETLK, MODE_SH);	/* the process's, although through another description */
	check_held(fd, F_OFD_SETLK, MODE_NONE);
	check_held(other, F_OFD_SETLK, MODE_EX);
	assert_int_equal(bare(fd, F_SETLK, F_WRLCK, 2, 1), 0);
	check_held(fd, F_SETLKW, MODE_EX);
	assert_false(fake_range_is_free(third, 0, 1, F_WRLCK));
	assert_false(fake_range_is_free(third, 2, 1, F_RDLCK));
	assert_false(fake_range_is_free(third, 10, 1, F_RDLCK));
	close(fd);
	close(other);
	close(third);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_path_without_a_rule_is_left_to_the_kernel),
		cmocka_unit_test(test_unlocking_is_the_kernels_alone),
		cmocka_unit_test(test_what_is_no_clean_request_never_reaches_the_agent),
		cmocka_unit_test(test_a_bad_pointer_is_efault_and_never_a_crash),
		cmocka_unit_test(test_other_commands_pass_with_their_arguments),
		cmocka_unit_test(test_a_request_says_family_mode_and_the_range_that_is_meant),
		cmocka_unit_test(test_lockf_asks_for_a_posix_write_lock_from_the_offset_on),
		cmocka_unit_test(test_answers_are_results_and_errors_of_the_manual_page),
		cmocka_unit_test(test_busy_in_the_kernel_is_reported_and_eagain),
		cmocka_unit_test(test_a_deadlock_that_the_kernel_sees_is_reported_and_passed_on),
		cmocka_unit_test(test_check_says_the_strongest_mode_of_the_owner_and_drops_nothing),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
