/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* Each way that the conversation of one flock call can go, with an agent that follows a script. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../shim/mode.h"
#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;

/* ---- without the agent ---- */

static void script_nobody_comes(struct fake_agent *a)
{
	(void)fake_await_stage(a, 1);
	if (accept4(a->path_fd, NULL, NULL, SOCK_NONBLOCK) >= 0 || accept4(a->abstract_fd, NULL, NULL, SOCK_NONBLOCK) >= 0)
		fake_blame(a, "somebody connected");
}

/* accept4's flag is for the new socket; the listeners themselves must not wait. */
static void start_unvisited(void)
{
	fake_start(&agent, script_nobody_comes);
	fcntl(agent.path_fd, F_SETFL, O_NONBLOCK);
	fcntl(agent.abstract_fd, F_SETFL, O_NONBLOCK);
}

static void finish_unvisited(void)
{
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
}

static void test_unlocking_is_the_kernels_alone(void **state)
{
	int fd = fake_open(A);

	(void)state;
	start_unvisited();
	errno = 77;
	assert_int_equal(syscall(SYS_flock, fd, LOCK_EX), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	assert_true(fake_is_free_for(A, LOCK_EX));
	assert_int_equal(flock(fd, LOCK_UN | LOCK_NB), 0);
	assert_int_equal(errno, 77);
	finish_unvisited();
	close(fd);
}

static void test_the_kernel_answers_operations_that_are_not_valid(void **state)
{
	int fd = fake_open(A);

	(void)state;
	start_unvisited();
	for (int operation = 0; operation < 256; operation++) {
		int base = operation & ~LOCK_NB;
		int real, real_errno, ours;

		if (base == LOCK_SH || base == LOCK_EX)
			continue;
		real = (int)syscall(SYS_flock, fd, operation);
		real_errno = errno;
		ours = flock(fd, operation);
		assert_int_equal(ours, real);
		if (real < 0)
			assert_int_equal(errno, real_errno);
	}
	assert_int_equal(flock(-1, LOCK_EX), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(flock(9999, LOCK_SH), -1);
	assert_int_equal(errno, EBADF);
	finish_unvisited();
	close(fd);
}

static void test_a_path_without_a_rule_is_left_to_the_kernel(void **state)
{
	int fd = fake_open("elsewhere"), other = fake_open("elsewhere");

	(void)state;
	start_unvisited();
	errno = 77;
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(errno, 77);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	finish_unvisited();
	close(fd);
	close(other);
}

static void test_what_has_no_path_is_left_to_the_kernel(void **state)
{
	int pair[2], pipes[2], null = open("/dev/null", O_RDWR);

	(void)state;
	start_unvisited();
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(flock(pipes[0], LOCK_EX), 0);
	assert_int_equal(flock(pair[0], LOCK_EX), 0);
	assert_int_equal(flock(null, LOCK_SH), 0);
	finish_unvisited();
	close(null);
	close(pair[0]);
	close(pair[1]);
	close(pipes[0]);
	close(pipes[1]);
}

static void test_a_fifo_at_a_configured_path_needs_no_agent(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(mkfifo(fake_path("locks/fifo"), 0600), 0);
	fd = open(fake_path("locks/fifo"), O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	close(fd);
}

/* ---- the conversation ---- */

static struct wire_msg seen;
static struct stat seen_stat;

static void script_go(struct fake_agent *a)
{
	struct wire_msg done;
	int passed = -1;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &seen, &passed);
	if (passed < 0 || fstat(passed, &seen_stat) < 0)
		fake_blame(a, "no descriptor");
	close(passed);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, &done, NULL);
	a->number = done.err;
	fake_expect_end(a, s);
	close(s);
}

static void check_request(int operation, int mode, unsigned flags)
{
	int fd = fake_open(A);
	struct stat st;

	fake_start(&agent, script_go);
	errno = 77;
	assert_int_equal(flock(fd, operation), 0);
	assert_int_equal(errno, 77);
	fake_finish(&agent);
	assert_int_equal(agent.number, 0);
	assert_int_equal(seen.family, FAMILY_FLOCK);
	assert_int_equal(seen.mode, mode);
	assert_int_equal(seen.flags, flags);
	assert_int_equal(seen.fd_number, fd);
	assert_int_equal(seen.start, 0);
	assert_int_equal(seen.len, 0);
	assert_true(seen.stamp != 0);
	assert_int_equal(seen.tid, gettid());
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_ino, seen_stat.st_ino);
	assert_false(fake_is_free_for(A, LOCK_EX));
	assert_int_equal(fake_is_free_for(A, LOCK_SH), mode == MODE_SH);
	close(fd);
}

static void test_go_takes_the_kernels_lock_and_done_reports_it(void **state)
{
	(void)state;
	check_request(LOCK_EX, MODE_EX, 0);
	check_request(LOCK_SH, MODE_SH, 0);
	check_request(LOCK_EX | LOCK_NB, MODE_EX, WIRE_FLAG_NONBLOCK);
	check_request(LOCK_SH | LOCK_NB, MODE_SH, WIRE_FLAG_NONBLOCK);
}

static void test_a_deleted_file_and_a_directory_are_asked_about(void **state)
{
	int fd = fake_open("locks/gone"), dir;

	(void)state;
	unlink(fake_path("locks/gone"));
	fake_start(&agent, script_go);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	close(fd);

	assert_int_equal(mkdir(fake_path("locks/dir with\nnewline (deleted)"), 0755), 0);
	dir = open(fake_path("locks/dir with\nnewline (deleted)"), O_RDONLY | O_DIRECTORY);
	fake_start(&agent, script_go);
	assert_int_equal(flock(dir, LOCK_EX), 0);
	fake_finish(&agent);
	close(dir);
}

static void test_a_path_beyond_path_max_is_asked_about(void **state)
{
	char name[201];
	int up = open(fake_path("locks"), O_RDONLY | O_DIRECTORY), down, fd;

	(void)state;
	memset(name, 'x', 200);
	name[200] = '\0';
	for (int depth = 0; depth < 25; depth++) {
		assert_int_equal(mkdirat(up, name, 0755), 0);
		down = openat(up, name, O_RDONLY | O_DIRECTORY);
		close(up);
		up = down;
	}
	fd = openat(up, "f", O_RDWR | O_CREAT, 0644);
	fake_start(&agent, script_go);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	close(fd);
	close(up);
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
		fake_send(s, WIRE_ERROR, a->number, "the sentence\nof the agent");
	}
	fake_expect_end(a, s);
	close(s);
}

static int flock_answered(int number, int operation)
{
	int fd = fake_open(A), result, saved;

	fake_start_with(&agent, script_answer, number);
	result = flock(fd, operation);
	saved = result < 0 ? errno : 0;
	fake_finish(&agent);
	if (result == 0)
		assert_false(fake_is_free_for(A, LOCK_EX));
	else
		assert_true(fake_is_free_for(A, LOCK_EX));
	close(fd);
	return saved;
}

static void test_local_is_the_real_call(void **state)
{
	(void)state;
	assert_int_equal(flock_answered(0, LOCK_EX), 0);
}

static void test_busy_is_ewouldblock(void **state)
{
	(void)state;
	assert_int_equal(flock_answered(1, LOCK_EX | LOCK_NB), EWOULDBLOCK);
}

static void test_busy_for_a_call_that_waits_is_no_answer(void **state)
{
	(void)state;
	assert_int_equal(flock_answered(1, LOCK_EX), ENOLCK);
}

static void test_an_error_fails_the_call_and_its_sentence_is_logged(void **state)
{
	(void)state;
	fake_clear_log();
	assert_int_equal(flock_answered(ENOLCK, LOCK_EX), ENOLCK);
	assert_true(fake_log_has("cannot lock "));
	assert_true(fake_log_has(A ": the sentence?of the agent\n"));
}

static void test_the_program_sees_only_errors_of_the_manual_page(void **state)
{
	(void)state;
	assert_int_equal(flock_answered(EWOULDBLOCK, LOCK_EX), EWOULDBLOCK);
	assert_int_equal(flock_answered(EBADF, LOCK_EX), EBADF);
	assert_int_equal(flock_answered(EINVAL, LOCK_EX), EINVAL);
	assert_int_equal(flock_answered(EIO, LOCK_EX), ENOLCK);
	assert_int_equal(flock_answered(-5, LOCK_EX), ENOLCK);
	assert_int_equal(flock_answered(99999, LOCK_EX), ENOLCK);
}

static void script_offer(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_OFFER, 0, NULL);
	fake_expect(a, s, WIRE_TAKE, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void test_an_offer_is_taken(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_start(&agent, script_offer);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
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
	/* free for all if the shared lock was dropped */
	if (held.mode == MODE_SH && !fake_is_free_for(A, LOCK_EX))
		fake_blame(a, "the shared lock was not dropped");
	if (held.mode == MODE_EX && fake_is_free_for(A, LOCK_SH))
		fake_blame(a, "the exclusive lock was dropped");
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void check_held(int has, int asked, int expected)
{
	int fd = fake_open(A);

	if (has)
		assert_int_equal(syscall(SYS_flock, fd, has), 0);
	fake_start(&agent, script_check);
	assert_int_equal(flock(fd, asked), 0);
	fake_finish(&agent);
	assert_int_equal(agent.number, expected);
	close(fd);
}

static void test_check_says_what_is_held_and_drops_shared_before_exclusive(void **state)
{
	(void)state;
	check_held(0, LOCK_EX, MODE_NONE);
	check_held(LOCK_SH, LOCK_EX, MODE_SH);
	check_held(LOCK_EX, LOCK_SH, MODE_EX);
	check_held(LOCK_SH, LOCK_EX | LOCK_NB, MODE_SH);
}

static void script_check_same(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_CHECK, 0, NULL);
	fake_expect(a, s, WIRE_CANCEL, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
}

static void test_the_same_mode_again_makes_no_call(void **state)
{
	int fd = fake_open(A);

	(void)state;
	assert_int_equal(syscall(SYS_flock, fd, LOCK_SH), 0);
	fake_start(&agent, script_check_same);
	assert_int_equal(flock(fd, LOCK_SH), 0);
	fake_finish(&agent);
	assert_false(fake_is_free_for(A, LOCK_EX));
	close(fd);
}

static void test_go_and_busy_in_the_kernel_is_reported_and_ewouldblock(void **state)
{
	int fd = fake_open(A), other = fake_open(A);

	(void)state;
	assert_int_equal(syscall(SYS_flock, other, LOCK_SH), 0);
	fake_start(&agent, script_go);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	fake_finish(&agent);
	assert_int_equal(agent.number, EWOULDBLOCK);
	close(fd);
	close(other);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unlocking_is_the_kernels_alone),
		cmocka_unit_test(test_the_kernel_answers_operations_that_are_not_valid),
		cmocka_unit_test(test_a_path_without_a_rule_is_left_to_the_kernel),
		cmocka_unit_test(test_what_has_no_path_is_left_to_the_kernel),
		cmocka_unit_test(test_a_fifo_at_a_configured_path_needs_no_agent),
		cmocka_unit_test(test_go_takes_the_kernels_lock_and_done_reports_it),
		cmocka_unit_test(test_a_deleted_file_and_a_directory_are_asked_about),
		cmocka_unit_test(test_a_path_beyond_path_max_is_asked_about),
		cmocka_unit_test(test_local_is_the_real_call),
		cmocka_unit_test(test_busy_is_ewouldblock),
		cmocka_unit_test(test_busy_for_a_call_that_waits_is_no_answer),
		cmocka_unit_test(test_an_error_fails_the_call_and_its_sentence_is_logged),
		cmocka_unit_test(test_the_program_sees_only_errors_of_the_manual_page),
		cmocka_unit_test(test_an_offer_is_taken),
		cmocka_unit_test(test_check_says_what_is_held_and_drops_shared_before_exclusive),
		cmocka_unit_test(test_the_same_mode_again_makes_no_call),
		cmocka_unit_test(test_go_and_busy_in_the_kernel_is_reported_and_ewouldblock),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
