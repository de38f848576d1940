/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* Signals, jumps and cancellation while a call waits for the agent. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;
static pthread_t locker;
static volatile sig_atomic_t handled;

static void count(int sig)
{
	(void)sig;
	handled++;
}

static void handle(void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	handled = 0;
	sigaction(SIGUSR1, &action, NULL);
}

__attribute__((noinline)) static unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Waits until the locking thread sleeps in the kernel, then signals it. */
static void signal_sleeper(struct fake_agent *a, pid_t tid)
{
	char path[64], text[256];

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	for (int i = 0; i < 10000; i++) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = read(fd, text, sizeof text - 1);
		char *state;

		close(fd);
		text[n > 0 ? n : 0] = '\0';
		state = strrchr(text, ')');
		if (state && state[2] == 'S') {
			pthread_kill(locker, SIGUSR1);
			return;
		}
		usleep(1000);
	}
	fake_blame(a, "the caller does not sleep");
}

static void go_and_done(struct fake_agent *a, int s)
{
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void script_interrupted(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	signal_sleeper(a, (pid_t)request.tid);
	fake_expect(a, s, WIRE_CANCEL, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
}

static void script_restarted(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	for (int i = 1; i <= 3; i++) {
		signal_sleeper(a, (pid_t)request.tid);
		while (handled < i)
			usleep(1000);
	}
	go_and_done(a, s);
}

static void test_a_handler_without_sa_restart_ends_the_wait_with_eintr(void **state)
{
	unsigned before = open_descriptors();
	int fd = fake_open(A);

	(void)state;
	handle(count, 0);
	fake_start(&agent, script_interrupted);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, EINTR);
	assert_int_equal(handled, 1);
	fake_finish(&agent);
	assert_true(fake_is_free_for(A, LOCK_EX));
	close(fd);
	assert_int_equal(open_descriptors(), before);
}

static void test_a_handler_with_sa_restart_does_not_end_the_wait(void **state)
{
	int fd = fake_open(A);

	(void)state;
	handle(count, SA_RESTART);
	fake_start(&agent, script_restarted);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(handled, 3);
	fake_finish(&agent);
	close(fd);
}

static void test_a_call_that_does_not_wait_is_never_interrupted(void **state)
{
	int fd = fake_open(A);

	(void)state;
	handle(count, 0);
	fake_start(&agent, script_restarted);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(handled, 3);
	fake_finish(&agent);
	close(fd);
}

static void script_kernel_queue(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 }, done = { .err = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	fake_go(s, 10000);
	signal_sleeper(a, (pid_t)request.tid);
	fake_expect(a, s, WIRE_DONE, &done, NULL);
	a->number = done.err;
	close(s);
}

static void test_eintr_in_the_kernels_queue_is_reported(void **state)
{
	int fd = fake_open(A), holder = fake_open(A);

	(void)state;
	assert_int_equal(syscall(SYS_flock, holder, LOCK_EX), 0);
	handle(count, 0);
	fake_start(&agent, script_kernel_queue);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, EINTR);
	fake_finish(&agent);
	assert_int_equal(agent.number, EINTR);
	close(fd);
	close(holder);
}

/* ---- while no agent is there ---- */

static void script_away(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	struct timespec start, now;
	int s = fake_accept(a), times = a->number;

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	fake_unlisten(a);
	close(s);
	/* Many signals at any moment of the pauses. */
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (int i = 1; i <= times; i++) {
		signal_sleeper(a, (pid_t)request.tid);
		while (handled < i)
			usleep(500);
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (times == 1)
		return;
	fake_listen(a);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	go_and_done(a, s);
}

static void test_the_pause_for_an_agent_is_interrupted_as_the_kernels_wait_would_be(void **state)
{
	unsigned before = open_descriptors();
	int fd = fake_open(A);

	(void)state;
	handle(count, SA_RESTART);
	fake_start_with(&agent, script_away, 50);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(handled, 50);
	fake_finish(&agent);
	close(fd);

	fd = fake_open(A);
	handle(count, 0);
	fake_start_with(&agent, script_away, 1);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, EINTR);
	fake_finish(&agent);
	close(fd);
	assert_int_equal(open_descriptors(), before);
}

/* ---- jumps ---- */

static sigjmp_buf place;

static void jump(int sig)
{
	(void)sig;
	siglongjmp(place, 1);
}

static void script_jumped(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a), second;

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	signal_sleeper(a, (pid_t)request.tid);
	second = fake_accept(a);
	/* The next call closed what the first left. */
	fake_expect_end(a, s);
	close(s);
	fake_expect(a, second, WIRE_REQUEST, NULL, NULL);
	go_and_done(a, second);
}

static void test_a_jump_out_of_the_wait_leaves_nothing_after_the_next_call(void **state)
{
	unsigned before = open_descriptors();
	volatile int fd = fake_open(A);

	(void)state;
	handle(jump, 0);
	fake_start(&agent, script_jumped);
	if (sigsetjmp(place, 1) == 0) {
		flock(fd, LOCK_EX);
		fail();
	}
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	close(fd);
	assert_int_equal(open_descriptors(), before);
}

static void script_jumped_then_reused(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	a->number = (int)request.tid;
	signal_sleeper(a, (pid_t)request.tid);
	fake_expect_end(a, s);	/* closed by the test itself */
	close(s);
	s = fake_accept(a);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	go_and_done(a, s);
}

static void test_a_descriptor_that_has_become_the_programs_own_is_not_closed(void **state)
{
	volatile int fd = fake_open(A);
	int probe, theirs;

	(void)state;
	handle(jump, 0);
	fake_start(&agent, script_jumped_then_reused);
	probe = dup(fd);
	close(probe);		/* the lowest free number, which the socket will get */
	if (sigsetjmp(place, 1) == 0) {
		flock(fd, LOCK_EX);
		fail();
	}
	/* A program that closes every descriptor it does not know, and opens its own. */
	close(probe);
	theirs = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(theirs, probe);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_true(fcntl(theirs, F_GETFD) >= 0);
	fake_finish(&agent);
	close(theirs);
	close(fd);
}

static int inner_fd, inner_result;

static void lock_inside(int sig)
{
	(void)sig;
	inner_result = flock(inner_fd, LOCK_EX);
	handled++;
}

static void script_nested(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int outer = fake_accept(a), inner;

	fake_expect(a, outer, WIRE_REQUEST, &request, NULL);
	signal_sleeper(a, (pid_t)request.tid);
	inner = fake_accept(a);
	fake_expect(a, inner, WIRE_REQUEST, NULL, NULL);
	go_and_done(a, inner);
	while (!handled)
		usleep(1000);
	/* The outer connection is as it was. */
	go_and_done(a, outer);
}

static void check_nested(int flags)
{
	int fd = fake_open(A);

	inner_fd = fake_open("locks/b");
	inner_result = -2;
	handle(lock_inside, SA_RESTART | flags);
	fake_start(&agent, script_nested);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	assert_int_equal(inner_result, 0);
	assert_false(fake_is_free_for("locks/b", LOCK_SH));
	close(fd);
	close(inner_fd);
}

static void test_a_handler_that_locks_does_not_disturb_the_call_it_interrupted(void **state)
{
	static char memory[1 << 16];
	stack_t stack = { .ss_sp = memory, .ss_size = sizeof memory }, off = { .ss_flags = SS_DISABLE };

	(void)state;
	check_nested(0);
	sigaltstack(&stack, NULL);
	check_nested(SA_ONSTACK);
	sigaltstack(&off, NULL);
}

/* ---- cancellation ---- */

static void script_waits_for_stage(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	fake_reach_stage(a, 1);
	fake_await_stage(a, 2);
	go_and_done(a, s);
}

static int cancelled_result;

static void *lock_while_cancelled(void *arg)
{
	cancelled_result = flock(*(int *)arg, LOCK_EX);
	pthread_testcancel();
	return NULL;
}

static void test_a_cancelled_thread_finishes_its_flock(void **state)
{
	int fd = fake_open(A);
	pthread_t thread;
	void *result;

	(void)state;
	cancelled_result = -2;
	fake_start(&agent, script_waits_for_stage);
	assert_int_equal(pthread_create(&thread, NULL, lock_while_cancelled, &fd), 0);
	assert_true(fake_await_stage(&agent, 1));
	pthread_cancel(thread);
	fake_reach_stage(&agent, 2);
	pthread_join(thread, &result);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(cancelled_result, 0);
	fake_finish(&agent);
	close(fd);
}

static void *lock_on_small_stack(void *arg)
{
	cancelled_result = flock(*(int *)arg, LOCK_EX);
	return NULL;
}

static void test_a_thread_with_the_smallest_stack_can_lock(void **state)
{
	int fd = fake_open(A);
	pthread_attr_t attr;
	pthread_t thread;

	(void)state;
	cancelled_result = -2;
	fake_start(&agent, script_waits_for_stage);
	fake_reach_stage(&agent, 2);
	pthread_attr_init(&attr);
#ifdef __SANITIZE_ADDRESS__
	pthread_attr_setstacksize(&attr, 1 << 20);	/* the sanitizer's own frames do not fit into the smallest */
#else
	pthread_attr_setstacksize(&attr, 16384);
#endif
	assert_int_equal(pthread_create(&thread, &attr, lock_on_small_stack, &fd), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
	assert_int_equal(cancelled_result, 0);
	fake_finish(&agent);
	close(fd);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_handler_without_sa_restart_ends_the_wait_with_eintr),
		cmocka_unit_test(test_a_handler_with_sa_restart_does_not_end_the_wait),
		cmocka_unit_test(test_a_call_that_does_not_wait_is_never_interrupted),
		cmocka_unit_test(test_eintr_in_the_kernels_queue_is_reported),
		cmocka_unit_test(test_the_pause_for_an_agent_is_interrupted_as_the_kernels_wait_would_be),
		cmocka_unit_test(test_a_jump_out_of_the_wait_leaves_nothing_after_the_next_call),
		cmocka_unit_test(test_a_descriptor_that_has_become_the_programs_own_is_not_closed),
		cmocka_unit_test(test_a_handler_that_locks_does_not_disturb_the_call_it_interrupted),
		cmocka_unit_test(test_a_cancelled_thread_finishes_its_flock),
		cmocka_unit_test(test_a_thread_with_the_smallest_stack_can_lock),
	};
	int failed;

#ifdef __SANITIZE_THREAD__
	return 0;	/* it delivers signals late, after the system call that they interrupted */
#endif
	fake_world(argc, argv);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	locker = pthread_self();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
