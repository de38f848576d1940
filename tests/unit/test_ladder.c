/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/ladder.c daemon-lite/holders.c daemon-lite/klock.c daemon-lite/loop.c daemon-lite/log.c */
/* The end of a lease: who is signalled, with what, how often; and who is left alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/guard.h"

#define SECOND 1000000000ull

static char path[64];
static struct ladder_file file;
static _Atomic int *counts;	/* signals the children got, by number; shared */

static int set_up(void **state)
{
	struct stat st;

	(void)state;
	strcpy(path, "/tmp/test_ladder.XXXXXX");
	file = (struct ladder_file){ .fd = mkostemp(path, O_CLOEXEC), .key = "f:test" };
	if (file.fd < 0 || fstat(file.fd, &st) < 0)
		return -1;
	file.id.dev = st.st_dev;
	file.id.ino = st.st_ino;
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ladder_pass(LADDER_GOOD, NULL, 0);
	return counts == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
	(void)state;
	close(file.fd);
	munmap((void *)counts, 4096);
	return unlink(path);
}

static void on_signal(int sig)
{
	atomic_fetch_add(&counts[sig], 1);
}

/* A child that runs fn, counts SIGTERM and SIGUSR1, and never ends by itself. */
static pid_t child_start(void (*fn)(void))
{
	struct sigaction action = { .sa_handler = on_signal };
	int pipe_fds[2];
	char byte = 'x';
	pid_t pid;

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sigaction(SIGTERM, &action, NULL);
		sigaction(SIGUSR1, &action, NULL);
		close(file.fd);
		fn();
		if (write(pipe_fds[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	close(pipe_fds[0]);
	return pid;
}

static void take(void)
{
	int fd = open(path, O_RDWR);

	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		_exit(2);
}

static void take_range(int fd, int command, off_t start)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1 };

	if (fd < 0 || fcntl(fd, command, &range) < 0)
		_exit(2);
}

static void take_ranges(void)
{
	int fd = open(path, O_RDWR);

	for (int i = 0; i < 500; i++)
		take_range(fd, F_SETLK, 1000 + 2 * i);
}

static void take_ofd_range(void)
{
	take_range(open(path, O_RDWR), F_OFD_SETLK, 7);
}

static void take_ofd_range_and_map(void)
{
	int fd = open(path, O_RDWR);

	take_range(fd, F_OFD_SETLK, 7);
	if (ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		_exit(2);
	close(fd);
}

static void just_open(void)
{
	if (open(path, O_RDWR) < 0)
		_exit(2);
}

static void take_and_map(void)
{
	int fd = open(path, O_RDWR);

	if (flock(fd, LOCK_EX) < 0 || ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		_exit(2);
	close(fd);
}

static void wait_for(int sig, int count)
{
	for (int i = 0; i < 5000 && atomic_load(&counts[sig]) < count; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	assert_int_equal(atomic_load(&counts[sig]), count);
}

static bool ended(pid_t pid)
{
	return waitpid(pid, NULL, WNOHANG) == pid;
}

static void wait_for_end(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* --- pure ------------------------------------------------------------------------ */

static void test_rules_are_read(void **state)
{
	static const struct { const char *text; int r; enum on_lost what; int sig; } cases[] = {
		{ "kill", 0, ON_LOST_KILL, 0 }, { "log", 0, ON_LOST_LOG, 0 },
		{ "signal:TERM", 0, ON_LOST_SIGNAL, SIGTERM }, { "signal:SIGUSR1", 0, ON_LOST_SIGNAL, SIGUSR1 },
		{ "signal:15", 0, ON_LOST_SIGNAL, 15 }, { "signal:0", -EINVAL, 0, 0 }, { "signal:999", -EINVAL, 0, 0 },
		{ "signal:", -EINVAL, 0, 0 }, { "signal:1x", -EINVAL, 0, 0 }, { "signal:NOPE", -EINVAL, 0, 0 }, { "", -EINVAL, 0, 0 },
		{ "Kill", -EINVAL, 0, 0 }, { "signal", -EINVAL, 0, 0 }, { "signal:SIGSIGTERM", -EINVAL, 0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct on_lost_rule rule = { .what = 99 };

		assert_int_equal(on_lost_parse(cases[i].text, &rule), cases[i].r);
		assert_int_equal(rule.what, cases[i].r ? 99 : cases[i].what);
		if (rule.what == ON_LOST_SIGNAL)
			assert_int_equal(rule.sig, cases[i].sig);
	}
}

static void test_the_steps_are_at_two_thirds_and_five_sixths(void **state)
{
	const uint64_t from = 1000 * SECOND;

	(void)state;
	assert_int_equal(ladder_at(from + 19 * SECOND, from, 30000), LADDER_GOOD);
	assert_int_equal(ladder_at(from + 20 * SECOND, from, 30000), LADDER_FAILING);
	assert_int_equal(ladder_at(from + 25 * SECOND - 1, from, 30000), LADDER_FAILING);
	assert_int_equal(ladder_at(from + 25 * SECOND, from, 30000), LADDER_KILL);
	assert_int_equal(ladder_at(UINT64_MAX, from, 30000), LADDER_KILL);
	assert_int_equal(ladder_at(from - 1, from, 30000), LADDER_GOOD);
	assert_int_equal(ladder_at(from, 0, 30000), LADDER_GOOD);
	assert_int_equal(ladder_at(from + 99 * SECOND, from, 0), LADDER_GOOD);
}

/* --- passes ------------------------------------------------------------------------ */

static void test_a_free_file_is_done_and_stays_free(void **state)
{
	(void)state;
	assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 0);
	assert_true(file.done);
	assert_int_equal(flock(file.fd, LOCK_EX | LOCK_NB), 0);
}

static void test_the_holder_gets_one_term_and_then_kill(void **state)
{
	pid_t pid = child_start(take);

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 1);
	wait_for(SIGTERM, 1);
	assert_false(ended(pid));
	kill(pid, SIGSTOP);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	wait_for_end(pid);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	assert_true(file.done);
}

static void test_heirs_are_ended_too_and_who_only_opened_is_not(void **state)
{
	pid_t other = child_start(just_open), heirs[3];
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)state;
	flock(fd, LOCK_EX);
	for (int i = 0; i < 3; i++) {
		heirs[i] = fork();
		if (heirs[i] == 0) {
			close(file.fd);
			for (;;)
				pause();
		}
	}
	close(fd);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	for (int i = 0; i < 3; i++)
		wait_for_end(heirs[i]);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	assert_false(ended(other));
	end(other);
	assert_int_equal(atomic_load(&counts[SIGTERM]), 0);
}

static void test_a_signal_rule_sends_its_signal_once_and_never_kills(void **state)
{
	pid_t pid = child_start(take);

	(void)state;
	assert_int_equal(on_lost_parse("signal:USR1", &file.on_lost), 0);
	assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 1);
	assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 1);
	wait_for(SIGUSR1, 1);
	assert_false(file.done);
	ladder_pass(LADDER_KILL, &file, 1);
	assert_true(file.done);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	assert_false(ended(pid));
	assert_int_equal(atomic_load(&counts[SIGUSR1]), 1);
	/* A lease that was good in between starts anew. */
	ladder_pass(LADDER_GOOD, NULL, 0);
	file.done = false;
	ladder_pass(LADDER_FAILING, &file, 1);
	wait_for(SIGUSR1, 2);
	end(pid);
}

static void test_a_log_rule_leaves_the_holder_alone(void **state)
{
	pid_t pid = child_start(take);

	(void)state;
	assert_int_equal(on_lost_parse("log", &file.on_lost), 0);
	assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 1);
	ladder_pass(LADDER_KILL, &file, 1);
	assert_true(file.done);
	assert_false(ended(pid));
	assert_int_equal(atomic_load(&counts[SIGTERM]), 0);
	end(pid);
}

static void test_a_holder_that_has_only_a_mapping_is_ended(void **state)
{
	pid_t pid = child_start(take_and_map);

	(void)state;
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	wait_for_end(pid);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
}

static void test_the_other_half_of_the_agent_is_no_holder(void **state)
{
	pid_t pid = child_start(take);

	(void)state;
	ladder_set_skip(pid);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	assert_false(ended(pid));
	ladder_set_skip(0);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	wait_for_end(pid);
}

static void test_a_lock_in_flight_stays_counted_and_harms_nobody(void **state)
{
	pid_t other = child_start(just_open);
	int pair[2], fd = open(path, O_RDWR | O_CLOEXEC);
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&mh);

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair), 0);
	flock(fd, LOCK_EX);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	assert_int_equal(sendmsg(pair[0], &mh, 0), 1);
	close(fd);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	assert_false(ended(other));
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	end(other);
}

static void test_holders_of_record_locks_get_one_term_and_then_kill(void **state)
{
	pid_t posix = child_start(take_ranges), ofd = child_start(take_ofd_range), other = child_start(take);

	(void)state;
	file.key = "r:test";
	for (int i = 0; i < 5; i++)
		assert_int_equal(ladder_pass(LADDER_FAILING, &file, 1), 1);
	wait_for(SIGTERM, 2);
	assert_false(ended(posix));
	kill(posix, SIGSTOP);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	wait_for_end(posix);
	wait_for_end(ofd);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	assert_true(file.done);
	/* Who has only a flock is of another lock. */
	assert_false(ended(other));
	assert_int_equal(atomic_load(&counts[SIGTERM]), 2);
	end(other);
}

static void test_the_two_kinds_of_locks_of_a_file_are_two_files(void **state)
{
	pid_t flocker = child_start(take), other = child_start(take_ofd_range);
	struct ladder_file files[2] = { file, file };

	(void)state;
	files[1].key = "r:test";
	assert_int_equal(on_lost_parse("log", &files[1].on_lost), 0);
	assert_int_equal(ladder_pass(LADDER_KILL, files, 2), 2);
	wait_for_end(flocker);
	assert_false(files[0].done);
	assert_true(files[1].done);
	assert_int_equal(ladder_pass(LADDER_KILL, files, 2), 0);
	assert_false(ended(other));
	end(other);
}

static void test_the_agents_own_record_lock_is_nobodys(void **state)
{
	(void)state;
	file.key = "r:test";
	take_range(file.fd, F_OFD_SETLK, 7);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
	assert_true(file.done);
}

static void test_an_ofd_lock_that_only_a_mapping_keeps_ends_with_its_process(void **state)
{
	pid_t pid = child_start(take_ofd_range_and_map);

	(void)state;
	file.key = "r:test";
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 1);
	wait_for_end(pid);
	assert_int_equal(ladder_pass(LADDER_KILL, &file, 1), 0);
}

static void test_many_files_are_handled_in_one_pass(void **state)
{
	enum { COUNT = 50 };
	struct ladder_file files[COUNT];
	char names[COUNT][80];
	pid_t pid;
	int held[COUNT];

	(void)state;
	for (int i = 0; i < COUNT; i++) {
		struct stat st;

		snprintf(names[i], sizeof(names[i]), "%s.%d", path, i);
		files[i] = (struct ladder_file){ .fd = open(names[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600), .key = names[i] };
		assert_int_equal(fstat(files[i].fd, &st), 0);
		files[i].id.dev = st.st_dev;
		files[i].id.ino = st.st_ino;
		held[i] = open(names[i], O_RDWR | O_CLOEXEC);
		if (i % 2)
			flock(held[i], LOCK_SH);
	}
	pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	for (int i = 0; i < COUNT; i++)
		close(held[i]);
	/* The first SIGKILL frees them all, some perhaps before the pass is over. */
	assert_in_range(ladder_pass(LADDER_KILL, files, COUNT), 1, COUNT / 2);
	wait_for_end(pid);
	assert_int_equal(ladder_pass(LADDER_KILL, files, COUNT), 0);
	for (int i = 0; i < COUNT; i++) {
		assert_true(files[i].done);
		close(files[i].fd);
		unlink(names[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules_are_read),
		cmocka_unit_test(test_the_steps_are_at_two_thirds_and_five_sixths),
		cmocka_unit_test_setup_teardown(test_a_free_file_is_done_and_stays_free, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_holder_gets_one_term_and_then_kill, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_heirs_are_ended_too_and_who_only_opened_is_not, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_signal_rule_sends_its_signal_once_and_never_kills, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_log_rule_leaves_the_holder_alone, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_holder_that_has_only_a_mapping_is_ended, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_other_half_of_the_agent_is_no_holder, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_lock_in_flight_stays_counted_and_harms_nobody, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_holders_of_record_locks_get_one_term_and_then_kill, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_two_kinds_of_locks_of_a_file_are_two_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_the_agents_own_record_lock_is_nobodys, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_an_ofd_lock_that_only_a_mapping_keeps_ends_with_its_process, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_files_are_handled_in_one_pass, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
