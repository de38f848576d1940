/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/waiters.c daemon-lite/loop.c daemon-lite/log.c */
/* Who waits in the kernel, by each kind of lock; and who does not, though it was interrupted in the same call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/waiters.h"

enum how { BY_FLOCK, BY_POSIX, BY_OFD, BY_OFD_IN_A_THREAD, NOT_AT_ALL };

static char path[64];
static int holder_fd;

static int set_up(void **state)
{
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	(void)state;
	strcpy(path, "/tmp/test_waiters.XXXXXX");
	holder_fd = mkostemp(path, O_CLOEXEC);
	return holder_fd < 0 || flock(holder_fd, LOCK_EX) < 0 || fcntl(holder_fd, F_OFD_SETLK, &all) < 0;
}

static int tear_down(void **state)
{
	(void)state;
	close(holder_fd);
	return unlink(path);
}

static void *wait_in_kernel(void *arg)
{
	struct flock range = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 2 };
	enum how how = *(const enum how *)arg;
	int fd = open(path, O_RDWR);

	if (how == BY_FLOCK)
		flock(fd, LOCK_SH);
	else
		fcntl(fd, how == BY_POSIX ? F_SETLKW : F_OFD_SETLKW, &range);
	return NULL;
}

static pid_t start(enum how how)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		pthread_t thread;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(holder_fd);
		if (how == BY_OFD_IN_A_THREAD)
			pthread_create(&thread, NULL, wait_in_kernel, &how);
		else if (how != NOT_AT_ALL)
			wait_in_kernel(&how);
		for (;;)
			pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static void wait_until(pid_t pid, bool waits)
{
	for (int i = 0; i < 500 && waiters_include(pid) != waits; i++)
		pause_ms(10);
	assert_int_equal(waiters_include(pid), waits);
}

static void test_a_process_that_waits_is_included_whatever_it_waits_for(void **state)
{
	pid_t other = start(NOT_AT_ALL);

	(void)state;
	for (int how = BY_FLOCK; how < NOT_AT_ALL; how++) {
		pid_t pid = start((enum how)how);

		wait_until(pid, true);
		assert_false(waiters_include(other));
		assert_false(waiters_include(getpid()));
		end(pid);
		wait_until(pid, false);
	}
	end(other);
}

/* Another one waits on, so that there is somebody to be taken for it. */
static void test_a_stopped_process_does_not_wait_until_it_goes_on(void **state)
{
	pid_t other = start(BY_OFD);

	(void)state;
	for (int how = BY_FLOCK; how < NOT_AT_ALL; how++) {
		pid_t pid = start((enum how)how);

		wait_until(pid, true);
		kill(pid, SIGSTOP);
		wait_until(pid, false);
		kill(pid, SIGCONT);
		wait_until(pid, true);
		end(pid);
	}
	wait_until(other, true);
	end(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_process_that_waits_is_included_whatever_it_waits_for),
		cmocka_unit_test(test_a_stopped_process_does_not_wait_until_it_goes_on),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
