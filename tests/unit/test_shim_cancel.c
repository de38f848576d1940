/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* Cancellation, signals and jumps in the waits of record locks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;
static pthread_t locker;
static volatile sig_atomic_t handled;

__attribute__((noinline)) static unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static bool sleeps(pid_t tid)
{
	char path[64], text[256];
	const char *state;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	state = strrchr(text, ')');
	return state && state[2] == 'S';
}

static void await_sleep(struct fake_agent *a, pid_t tid)
{
	for (int i = 0; i < 10000; i++) {
		if (sleeps(tid))
			return;
		usleep(1000);
	}
	fake_blame(a, "the caller does not sleep");
}

static int bare(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return (int)syscall(SYS_fcntl, fd, cmd, &lock);
}

/* ---- cancellation ---- */

enum way { WAY_SETLKW, WAY_OFD_SETLKW, WAY_LOCKF, WAY_UNLOCK, CANCELLABLE, WAY_SETLK = CANCELLABLE, WAY_GETLK, WAY_TLOCK, WAY_FLOCK, WAY_GETFL, WAYS };

static int do_call(int fd, enum way way)
{
	struct flock lock = { .l_type = F_WRLCK, .l_len = 10 };

	switch (way) {
	case WAY_SETLKW:
		return fcntl(fd, F_SETLKW, &lock);
	case WAY_OFD_SETLKW:
		return fcntl(fd, F_OFD_SETLKW, &lock);
	case WAY_LOCKF:
		return lockf(fd, F_LOCK, 10);
	case WAY_UNLOCK:
		lock.l_type = F_UNLCK;
		return fcntl(fd, F_SETLKW, &lock);
	case WAY_SETLK:
		return fcntl(fd, F_SETLK, &lock);
	case WAY_GETLK:
		return fcntl(fd, F_GETLK, &lock);
	case WAY_TLOCK:
		return lockf(fd, F_TLOCK, 10);
	case WAY_FLOCK:
		return flock(fd, LOCK_EX);
	default:
		return fcntl(fd, F_GETFL);
	}
}

/* The address sanitizer does not know that a cancelled thread's frames are gone. */
static void need_cancellation(void)
{
#ifdef __SANITIZE_ADDRESS__
	skip();
#endif
}

static int thread_fd;
static enum way thread_way;
static _Atomic pid_t thread_tid;
static bool thread_cancels_itself;

static void *lock_in_thread(void *arg)
{
	int result;

	(void)arg;
	thread_tid = gettid();
	if (thread_cancels_itself)
		pthread_cancel(pthread_self());
	result = do_call(thread_fd, thread_way);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	return (void *)(intptr_t)(result < 0 ? -errno : 0);
}

static void *run_thread(int fd, enum way way, bool cancels_itself)
{
	void *result;

	thread_fd = fd;
	thread_way = way;
	thread_cancels_itself = cancels_itself;
	assert_int_equal(pthread_create(&locker, NULL, lock_in_thread, NULL), 0);
	pthread_join(locker, &result);
	return result;
}

static void test_only_the_calls_that_wait_are_cancellation_points(void **state)
{
	static const char *const names[] = { "elsewhere", A };

	(void)state;
	need_cancellation();
	for (int k = 0; k < 2; k++) {
		fake_start(&agent, fake_say_yes);
		for (int way = 0; way < WAYS; way++) {
			int fd = fake_open(names[k]), watcher = fake_open(names[k]);
			void *result = run_thread(fd, (enum way)way, true);

			if (way < CANCELLABLE) {
				assert_ptr_equal(result, PTHREAD_CANCELED);
				assert_true(fake_range_is_free(watcher, 0, 0, F_WRLCK));
			} else {
				assert_ptr_equal(result, NULL);
			}
			close(fd);
			close(watcher);
		}
		fake_reach_stage(&agent, 1);
		fake_finish(&agent);
	}
}

/* number: 0 = the agent lets it wait, 1 = it waits in the kernel after a GO. */
static void script_cancelled(struct fake_agent *a)
{
	struct wire_msg request;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	if (a->number)
		fake_go(s, 10000);
	await_sleep(a, (pid_t)request.tid);
	usleep(20000);	/* a sleep before the wait proper would end in between */
	await_sleep(a, (pid_t)request.tid);
	pthread_cancel(locker);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_cancelled_wait_for_the_agent_ends_the_thread_and_the_connection(void **state)
{
	unsigned before = open_descriptors();

	(void)state;
	need_cancellation();
	for (int way = 0; way < WAY_UNLOCK; way++) {
		int fd = fake_open(A), watcher = fake_open(A);

		assert_int_equal(bare(fd, F_OFD_SETLK, F_RDLCK, 20, 1), 0);
		fake_start(&agent, script_cancelled);
		assert_ptr_equal(run_thread(fd, (enum way)way, false), PTHREAD_CANCELED);
		fake_finish(&agent);
		assert_true(fake_range_is_free(watcher, 0, 20, F_WRLCK));
		assert_false(fake_range_is_free(watcher, 20, 1, F_WRLCK));
		close(fd);
		close(watcher);
		assert_int_equal(open_descriptors(), before);
	}
}

static void test_a_cancelled_wait_in_the_kernel_holds_nothing_but_what_it_held(void **state)
{
	unsigned before = open_descriptors();

	(void)state;
	need_cancellation();
	for (int way = 0; way < WAY_UNLOCK; way++) {
		int fd = fake_open(A), other = fake_open(A), watcher = fake_open(A);

		assert_int_equal(bare(other, F_OFD_SETLK, F_RDLCK, 5, 1), 0);
		assert_int_equal(bare(fd, way == WAY_OFD_SETLKW ? F_OFD_SETLK : F_SETLK, F_RDLCK, 4, 2), 0);
		fake_start_with(&agent, script_cancelled, 1);
		assert_ptr_equal(run_thread(fd, (enum way)way, false), PTHREAD_CANCELED);
		fake_finish(&agent);
		assert_int_equal(bare(other, F_OFD_SETLK, F_UNLCK, 0, 0), 0);
		assert_true(fake_range_is_free(watcher, 0, 4, F_WRLCK));
		assert_false(fake_range_is_free(watcher, 4, 1, F_WRLCK));
		assert_false(fake_range_is_free(watcher, 5, 1, F_WRLCK));
		assert_true(fake_range_is_free(watcher, 4, 2, F_RDLCK));
		assert_true(fake_range_is_free(watcher, 6, 0, F_WRLCK));
		close(fd);
		close(other);
		close(watcher);
		assert_int_equal(open_descriptors(), before);
	}
}

static void *cancel_sleeper(void *arg)
{
	while (!thread_tid)
		usleep(100);
	await_sleep(arg, thread_tid);
	usleep(20000);
	pthread_cancel(locker);
	return NULL;
}

static void test_a_cancelled_wait_without_a_rule_ends_the_thread(void **state)
{
	int fd = fake_open("elsewhere"), other = fake_open("elsewhere");
	pthread_t helper;

	(void)state;
	need_cancellation();
	assert_int_equal(bare(other, F_OFD_SETLK, F_WRLCK, 0, 0), 0);
	for (int way = 0; way < WAY_UNLOCK; way++) {
		thread_tid = 0;
		pthread_create(&helper, NULL, cancel_sleeper, &agent);
		assert_ptr_equal(run_thread(fd, (enum way)way, false), PTHREAD_CANCELED);
		pthread_join(helper, NULL);
	}
	close(fd);
	close(other);
}

static void test_a_cancelled_wait_for_an_agent_leaves_no_descriptor(void **state)
{
	unsigned before = open_descriptors();
	int fd = fake_open(A), watcher = fake_open(A);
	pthread_t helper;

	(void)state;
	need_cancellation();
	memset(&agent, 0, sizeof agent);
	for (int way = 0; way < WAY_UNLOCK; way++) {
		thread_tid = 0;
		pthread_create(&helper, NULL, cancel_sleeper, &agent);
		assert_ptr_equal(run_thread(fd, (enum way)way, false), PTHREAD_CANCELED);
		pthread_join(helper, NULL);
	}
	assert_true(fake_range_is_free(watcher, 0, 0, F_WRLCK));
	close(fd);
	close(watcher);
	assert_int_equal(open_descriptors(), before);
}

/* The lock is taken, and the next agent is asked whether it may be kept. */
static void script_cancelled_in_doubt(struct fake_agent *a)
{
	struct wire_msg request;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	fake_go(s, -1);
	fake_expect(a, s, WIRE_STANDS, NULL, NULL);
	await_sleep(a, (pid_t)request.tid);
	pthread_cancel(locker);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_lock_in_doubt_is_undone_when_the_thread_is_cancelled(void **state)
{
	(void)state;
	need_cancellation();
	for (int way = 0; way < WAY_UNLOCK; way++) {
		int fd = fake_open(A), watcher = fake_open(A);

		assert_int_equal(bare(fd, way == WAY_OFD_SETLKW ? F_OFD_SETLK : F_SETLK, F_RDLCK, 4, 2), 0);
		fake_start(&agent, script_cancelled_in_doubt);
		assert_ptr_equal(run_thread(fd, (enum way)way, false), PTHREAD_CANCELED);
		fake_finish(&agent);
		assert_true(fake_range_is_free(watcher, 0, 0, F_RDLCK));
		assert_false(fake_range_is_free(watcher, 4, 1, F_WRLCK));
		assert_true(fake_range_is_free(watcher, 6, 0, F_WRLCK));
		close(fd);
		close(watcher);
	}
}

/* ---- signals ---- */

static void count(int sig)
{
	(void)sig;
	handled++;
}

static sigjmp_buf out;

static void jump(int sig)
{
	siglongjmp(out, sig);
}

static void handle(void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	handled = 0;
	sigaction(SIGUSR1, &action, NULL);
}

static void script_interrupted(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	await_sleep(a, (pid_t)request.tid);
	pthread_kill(locker, SIGUSR1);
	if (a->number) {	/* restarted */
		while (!handled)
			usleep(1000);
		fake_go(s, 10000);
		fake_expect(a, s, WIRE_DONE, NULL, NULL);
	} else {
		fake_expect(a, s, WIRE_CANCEL, NULL, NULL);
	}
	fake_expect_end(a, s);
	close(s);
}

static void test_a_handler_interrupts_the_wait_or_not_as_it_was_installed(void **state)
{
	(void)state;
	locker = pthread_self();
	for (int way = 0; way < WAY_UNLOCK; way++) {
		int fd = fake_open(A);

		handle(count, 0);
		fake_start(&agent, script_interrupted);
		assert_int_equal(do_call(fd, (enum way)way), -1);
		assert_int_equal(errno, EINTR);
		fake_finish(&agent);
		handle(count, SA_RESTART);
		fake_start_with(&agent, script_interrupted, 1);
		assert_int_equal(do_call(fd, (enum way)way), 0);
		fake_finish(&agent);
		close(fd);
	}
}

static void script_jumped(struct fake_agent *a)
{
	struct wire_msg request = { .tid = 0 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, &request, NULL);
	await_sleep(a, (pid_t)request.tid);
	pthread_kill(locker, SIGUSR1);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_jump_out_of_the_wait_leaves_nothing_after_the_next_call(void **state)
{
	unsigned before = open_descriptors();
	int fd = fake_open(A);

	(void)state;
	locker = pthread_self();
	handle(jump, 0);
	fake_start(&agent, script_jumped);
	if (sigsetjmp(out, 1) == 0)
		fail_msg("returned %d", do_call(fd, WAY_SETLKW));
	/* the next call of this thread closes what the jump left, before it does anything itself */
	assert_int_equal(do_call(fake_open("elsewhere"), WAY_SETLK), 0);
	fake_finish(&agent);
	assert_int_equal(open_descriptors(), before + 2);
	close(fd);
	close(fd + 1);
}

/* ---- room ---- */

static void script_check(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_CHECK, 0, NULL);
	fake_expect(a, s, WIRE_HELD, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_thread_with_the_smallest_stack_can_lock(void **state)
{
	int fd = fake_open(A), other = fake_open(A);
	pthread_attr_t attr;
	void *result;

	(void)state;
	pthread_attr_init(&attr);
#ifdef __SANITIZE_ADDRESS__
	pthread_attr_setstacksize(&attr, 1 << 20);	/* the sanitizer's own frames do not fit into the smallest */
#else
	pthread_attr_setstacksize(&attr, 16384);
#endif
	/* so that what is held must be looked at in /proc */
	assert_int_equal(bare(other, F_OFD_SETLK, F_RDLCK, 0, 20), 0);
	assert_int_equal(bare(fd, F_OFD_SETLK, F_RDLCK, 0, 20), 0);
	assert_int_equal(bare(other, F_OFD_SETLK, F_UNLCK, 0, 20), 0);
	thread_fd = fd;
	thread_cancels_itself = false;
	for (int way = 0; way < 3; way++) {
		static const enum way ways[] = { WAY_OFD_SETLKW, WAY_SETLK, WAY_LOCKF };

		if (way == 1)	/* POSIX locks meet the description's own */
			assert_int_equal(bare(fd, F_OFD_SETLK, F_UNLCK, 0, 0), 0);
		thread_way = ways[way];
		fake_start(&agent, script_check);
		assert_int_equal(pthread_create(&locker, &attr, lock_in_thread, NULL), 0);
		pthread_join(locker, &result);
		assert_ptr_equal(result, NULL);
		fake_finish(&agent);
	}
	pthread_attr_destroy(&attr);
	close(fd);
	close(other);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_only_the_calls_that_wait_are_cancellation_points),
		cmocka_unit_test(test_a_cancelled_wait_for_the_agent_ends_the_thread_and_the_connection),
		cmocka_unit_test(test_a_cancelled_wait_in_the_kernel_holds_nothing_but_what_it_held),
		cmocka_unit_test(test_a_cancelled_wait_without_a_rule_ends_the_thread),
		cmocka_unit_test(test_a_cancelled_wait_for_an_agent_leaves_no_descriptor),
		cmocka_unit_test(test_a_lock_in_doubt_is_undone_when_the_thread_is_cancelled),
		cmocka_unit_test(test_a_handler_interrupts_the_wait_or_not_as_it_was_installed),
		cmocka_unit_test(test_a_thread_with_the_smallest_stack_can_lock),
		cmocka_unit_test(test_a_jump_out_of_the_wait_leaves_nothing_after_the_next_call),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
