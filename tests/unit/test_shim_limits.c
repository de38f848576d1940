/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* A program at its limits, and agents that are impostors, silent, or talk rubbish. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;

static void script_go(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void script_check(struct fake_agent *a)
{
	struct wire_msg held = { .mode = 9 };
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_CHECK, 0, NULL);
	fake_expect(a, s, WIRE_HELD, &held, NULL);
	a->number = held.mode;
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

/* Runs fn(fd) in a child, so that its limits are not ours; its result is the exit code. */
static int in_child(int (*fn)(int fd), void (*script)(struct fake_agent *))
{
	int fd = fake_open(A), status = -1;
	pid_t child;

	fake_start(&agent, script);
	child = fork();
	if (child == 0)		/* past the sanitizers, which miss the agent's thread in here */
		syscall(SYS_exit_group, fn(fd));
	waitpid(child, &status, 0);
	fake_finish(&agent);
	close(fd);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

/* ---- descriptors ---- */

static void script_look_at_peer(struct fake_agent *a)
{
	char link[64], target[64] = "";
	struct ucred peer = { .pid = 0 };
	socklen_t len = sizeof peer;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	getsockopt(s, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	for (int fd = 0; fd < 3; fd++) {
		snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)peer.pid, fd);
		if (readlink(link, target, sizeof target - 1) > 0)
			fake_blame(a, "descriptor %d is in use while the call waits: %s", fd, target);
	}
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static int lock_without_standard_descriptors(int fd)
{
	close(0);
	close(1);
	close(2);
	return flock(fd, LOCK_EX) < 0 ? 1 : 0;
}

static void test_a_waiting_call_leaves_the_standard_descriptors_closed(void **state)
{
	(void)state;
	assert_int_equal(in_child(lock_without_standard_descriptors, script_look_at_peer), 0);
}

static int fill_table(rlim_t soft, rlim_t hard)
{
	struct rlimit limit = { soft, hard };

	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -1;
	while (dup(2) >= 0)
		;
	return errno == EMFILE ? 0 : -1;
}

static int lock_at_soft_limit(int fd)
{
	struct rlimit after;

	if (fill_table(64, 256) < 0)
		return 1;
	if (flock(fd, LOCK_EX) < 0)
		return 2;
	if (getrlimit(RLIMIT_NOFILE, &after) < 0 || after.rlim_cur != 64 || after.rlim_max != 256)
		return 3;
	return dup(2) < 0 && errno == EMFILE ? 0 : 4;
}

static void test_a_program_at_its_soft_limit_gets_the_lock_and_keeps_its_limit(void **state)
{
	(void)state;
	assert_int_equal(in_child(lock_at_soft_limit, script_check), 0);
	assert_int_equal(agent.number, 0);	/* fdinfo could be read too */
}

static int lock_at_hard_limit(int fd)
{
	if (fill_table(64, 64) < 0)
		return 1;
	if (flock(fd, LOCK_EX) == 0)
		return 2;
	return errno == ENOLCK ? 0 : 3;
}

static void script_nobody(struct fake_agent *a)
{
	(void)a;
}

static void test_a_program_at_its_hard_limit_gets_enolck(void **state)
{
	(void)state;
	assert_int_equal(in_child(lock_at_hard_limit, script_nobody), 0);
}

#define THREADS 8
#define ROUNDS 20

static void *lock_many(void *arg)
{
	intptr_t failed = 0;

	for (int i = 0; i < ROUNDS; i++)
		failed += flock(*(int *)arg, LOCK_SH) != 0;
	return (void *)failed;
}

static int lock_at_limit_in_threads(int fd)
{
	pthread_t threads[THREADS];
	struct rlimit after;
	intptr_t failed = 0;
	void *result;

	if (fill_table(64, 256) < 0)
		return 1;
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, lock_many, &fd))
			return 2;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &result);
		failed += (intptr_t)result;
	}
	if (failed)
		return 3;
	return getrlimit(RLIMIT_NOFILE, &after) == 0 && after.rlim_cur == 64 ? 0 : 4;
}

static void script_go_many(struct fake_agent *a)
{
	for (int i = 0; i < THREADS * ROUNDS; i++)
		script_go(a);
}

static void test_threads_at_the_limit_do_not_leave_it_raised(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip();		/* it knows no threads in the child of a process with threads */
#endif
	assert_int_equal(in_child(lock_at_limit_in_threads, script_go_many), 0);
}

/* ---- who answers ---- */

static int expect_enolck(int fd, int operation)
{
	if (flock(fd, operation) == 0)
		return 1;
	return errno == ENOLCK ? 0 : 2;
}

static void test_an_agent_of_another_user_is_not_trusted(void **state)
{
	int fd = fake_open(A);

	(void)state;
	if (geteuid() != 0)
		skip();
	fake_clear_log();
	fake_start(&agent, script_nobody);
	/* The credentials are those at the time of listen(). */
	assert_int_equal(seteuid(65534), 0);
	assert_int_equal(listen(agent.path_fd, 8), 0);
	assert_int_equal(listen(agent.abstract_fd, 8), 0);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(expect_enolck(fd, LOCK_EX), 0);
	fake_finish(&agent);
	assert_true(fake_log_has("65534"));
	assert_true(fake_is_free_for(A, LOCK_EX));
	close(fd);
}

/* ---- rubbish ---- */

static void script_rubbish(struct fake_agent *a)
{
	struct wire_msg msg;
	char big[65536];
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	wire_init(&msg, WIRE_GO);
	memset(big, 'x', sizeof big);
	switch (a->number) {
	case 0:
		send(s, "x", 1, MSG_NOSIGNAL);
		break;
	case 1:
		send(s, &msg, sizeof msg - 1, MSG_NOSIGNAL);
		break;
	case 2:
		msg.version++;
		send(s, &msg, sizeof msg, MSG_NOSIGNAL);
		break;
	case 3:
		msg.text_len = 60000;
		send(s, &msg, sizeof msg, MSG_NOSIGNAL);
		break;
	case 4:
		send(s, big, sizeof big, MSG_NOSIGNAL);
		break;
	case 5:
		msg.type = 999;
		send(s, &msg, sizeof msg, MSG_NOSIGNAL);
		break;
	case 6:
		fake_send(s, WIRE_STANDING, 0, NULL);
		break;
	case 7:
		fake_send(s, WIRE_REQUEST, 0, NULL);
		break;
	}
	while (recv(s, big, sizeof big, 0) > 0)
		;
	close(s);
}

static void test_rubbish_is_enolck_and_nothing_is_held(void **state)
{
	(void)state;
	for (int kind = 0; kind < 8; kind++) {
		int fd = fake_open(A);

		fake_start_with(&agent, script_rubbish, kind);
		assert_int_equal(expect_enolck(fd, LOCK_EX), 0);
		fake_finish(&agent);
		assert_true(fake_is_free_for(A, LOCK_EX));
		close(fd);
	}
}

static void script_long_text(struct fake_agent *a)
{
	static char text[60000];
	int size = 1 << 20, s = fake_accept(a);

	memset(text, 'y', sizeof text - 1);
	memcpy(text, "long story", 10);
	setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_ERROR, EWOULDBLOCK, text);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_long_sentence_is_cut(void **state)
{
	int fd = fake_open(A);

	(void)state;
	fake_clear_log();
	fake_start(&agent, script_long_text);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	fake_finish(&agent);
	assert_true(fake_log_has("long storyyyyy"));
	close(fd);
}

static void script_passes_descriptors(struct fake_agent *a)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} control = { .buf = { 0 } };
	struct wire_msg msg;
	struct iovec iov = { &msg, sizeof msg };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	int fds[2] = { 0, 0 }, s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	wire_init(&msg, WIRE_LOCAL);
	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_RIGHTS;
	control.align.cmsg_len = CMSG_LEN(sizeof fds);
	memcpy(CMSG_DATA(&control.align), fds, sizeof fds);
	sendmsg(s, &header, MSG_NOSIGNAL);
	fake_expect_end(a, s);
	close(s);
}

static int lock_and_count(int fd)
{
	int before = dup(fd), after;

	close(before);
	if (flock(fd, LOCK_EX) < 0)
		return 1;
	after = dup(fd);
	return after == before ? 0 : 2;
}

static void test_descriptors_that_nobody_asked_for_are_not_taken(void **state)
{
	(void)state;
	assert_int_equal(in_child(lock_and_count, script_passes_descriptors), 0);
}

/* ---- time ---- */

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_a_non_blocking_call_without_an_agent_is_enolck_after_two_seconds(void **state)
{
	int fd = fake_open(A);
	double start = seconds();

	(void)state;
	fake_clear_log();
	assert_int_equal(expect_enolck(fd, LOCK_EX | LOCK_NB), 0);
	assert_true(seconds() - start > 1.9 && seconds() - start < 3);
	assert_true(fake_log_has("no agent answers, and this process is PID 1 or a subreaper"));
	close(fd);
}

static void test_a_blocking_call_that_can_start_no_agent_is_enolck_after_three_seconds(void **state)
{
	int fd = fake_open(A);
	double start = seconds();

	(void)state;
	assert_int_equal(expect_enolck(fd, LOCK_EX), 0);
	assert_true(seconds() - start > 2.9 && seconds() - start < 4);
	close(fd);
}

static void script_breaks_off(struct fake_agent *a)
{
	/* Connections come until the caller gives up. */
	for (;;) {
		int s = accept4(a->path_fd, NULL, NULL, SOCK_CLOEXEC);

		if (s < 0)
			return;
		close(s);
	}
}

static void test_a_non_blocking_call_whose_agent_always_ends_is_enolck_after_two_seconds(void **state)
{
	int fd = fake_open(A);
	double start = seconds();

	(void)state;
	fake_start(&agent, script_breaks_off);
	assert_int_equal(expect_enolck(fd, LOCK_EX | LOCK_NB), 0);
	assert_true(seconds() - start > 1.9 && seconds() - start < 3);
	shutdown(agent.path_fd, SHUT_RDWR);
	fake_finish(&agent);
	close(fd);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_waiting_call_leaves_the_standard_descriptors_closed),
		cmocka_unit_test(test_a_program_at_its_soft_limit_gets_the_lock_and_keeps_its_limit),
		cmocka_unit_test(test_a_program_at_its_hard_limit_gets_enolck),
		cmocka_unit_test(test_threads_at_the_limit_do_not_leave_it_raised),
		cmocka_unit_test(test_an_agent_of_another_user_is_not_trusted),
		cmocka_unit_test(test_rubbish_is_enolck_and_nothing_is_held),
		cmocka_unit_test(test_a_long_sentence_is_cut),
		cmocka_unit_test(test_descriptors_that_nobody_asked_for_are_not_taken),
		cmocka_unit_test(test_a_non_blocking_call_without_an_agent_is_enolck_after_two_seconds),
		cmocka_unit_test(test_a_blocking_call_that_can_start_no_agent_is_enolck_after_three_seconds),
		cmocka_unit_test(test_a_non_blocking_call_whose_agent_always_ends_is_enolck_after_two_seconds),
	};
	int failed;

	fake_world(argc, argv);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
