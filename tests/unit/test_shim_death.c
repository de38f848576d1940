/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* A GO that has ended, an agent that has: is the lock still ours? And a program that has left the root directory. */
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

static struct wire_msg seen;

static void script_go(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
}

/* ---- the GO has ended, or the agent ---- */

static void script_late(struct fake_agent *a)
{
	int passed = -1, s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, -1);
	fake_expect(a, s, WIRE_STANDS, &seen, &passed);
	if (passed < 0)
		fake_blame(a, "no descriptor");
	close(passed);
	if (fake_is_free_for(A, LOCK_SH))
		fake_blame(a, "the lock is not held while it is asked about");
	fake_send(s, WIRE_STANDING, a->number, NULL);
	if (a->number == 0) {
		fake_expect(a, s, WIRE_DONE, NULL, NULL);
		fake_expect_end(a, s);
		close(s);
		return;
	}
	fake_expect_end(a, s);
	if (!fake_is_free_for(A, LOCK_EX))
		fake_blame(a, "the lock was not undone");
	close(s);
	a->number = 0;
	script_go(a);
}

static void test_a_lock_taken_too_late_is_kept_if_the_cover_stands(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_start(&agent, script_late);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	assert_int_equal(seen.mode, MODE_EX);
	assert_false(fake_is_free_for(A, LOCK_SH));
	close(fd);
}

static void test_a_lock_taken_too_late_is_undone_and_asked_for_anew(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_start_with(&agent, script_late, ENOLCK);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	assert_false(fake_is_free_for(A, LOCK_SH));
	close(fd);
}

static void script_dies_before_go(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	close(s);
	s = fake_accept(a);
	close(s);			/* not even read */
	fake_unlisten(a);
	usleep(30000);
	fake_listen(a);
	script_go(a);
}

static void test_an_agent_that_dies_before_go_is_replaced_and_the_call_waits_on(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_start(&agent, script_dies_before_go);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	close(fd);
	fake_start(&agent, script_dies_before_go);
	fd = fake_open(A);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	fake_finish(&agent);
	close(fd);
}

static void script_dies_after_go(struct fake_agent *a)
{
	int passed = -1, s = fake_accept(a);
	int answer = a->number;

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, 10000);
	close(s);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_STANDS, &seen, &passed);
	if (passed < 0)
		fake_blame(a, "no descriptor");
	close(passed);
	fake_send(s, WIRE_STANDING, answer, NULL);
	if (answer == 0)
		fake_expect(a, s, WIRE_DONE, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
	if (answer)
		script_go(a);
}

static void test_after_the_agents_death_the_next_one_is_asked_whether_the_cover_stands(void **state)
{
	(void)state;
	for (int answer = 0; answer <= ENOLCK; answer += ENOLCK) {
		int fd = fake_open(A), holder = fake_open(A);
		pid_t child;

		/* The kernel's queue holds the call up, so that the agent is gone when it returns. */
		assert_int_equal(syscall(SYS_flock, holder, LOCK_EX), 0);
		fake_start_with(&agent, script_dies_after_go, answer);
		child = fork();
		if (child == 0) {
			usleep(50000);
			_exit(0);	/* the last descriptor of the lock */
		}
		close(holder);
		assert_int_equal(flock(fd, LOCK_EX), 0);
		fake_finish(&agent);
		assert_false(fake_is_free_for(A, LOCK_SH));
		waitpid(child, NULL, 0);
		close(fd);
	}
}

static void script_refuses_to_say(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, -1);
	fake_expect(a, s, WIRE_STANDS, NULL, NULL);
	fake_send(s, WIRE_ERROR, ENOLCK, "no");
	fake_expect_end(a, s);
	close(s);
}

static void test_a_lock_that_nobody_confirms_is_not_held(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_start(&agent, script_refuses_to_say);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, ENOLCK);
	fake_finish(&agent);
	assert_true(fake_is_free_for(A, LOCK_EX));
	close(fd);
}

/* ---- chroot ---- */

static void test_a_program_in_a_chroot_asks_about_every_file_by_the_abstract_name(void **state)
{
	int fd = fake_open(A), status;
	pid_t child;

	(void)state;
	if (geteuid() != 0)
		skip();
	fake_start(&agent, script_go);
	child = fork();
	if (child == 0) {
		if (chroot(fake_path("locks")) < 0 || chdir("/") < 0)
			_exit(2);
		_exit(flock(fd, LOCK_EX) == 0 ? 0 : 1);
	}
	waitpid(child, &status, 0);
	assert_int_equal(status, 0);
	fake_finish(&agent);
	close(fd);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_lock_taken_too_late_is_kept_if_the_cover_stands),
		cmocka_unit_test(test_a_lock_taken_too_late_is_undone_and_asked_for_anew),
		cmocka_unit_test(test_an_agent_that_dies_before_go_is_replaced_and_the_call_waits_on),
		cmocka_unit_test(test_after_the_agents_death_the_next_one_is_asked_whether_the_cover_stands),
		cmocka_unit_test(test_a_lock_that_nobody_confirms_is_not_held),
		cmocka_unit_test(test_a_program_in_a_chroot_asks_about_every_file_by_the_abstract_name),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
