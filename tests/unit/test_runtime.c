/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/runtime.c daemon-lite/log.c config/runtime_dir.c config/lex.c */
/* One agent for a runtime directory, and a socket that is always there. */
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon-lite/log.h"
#include "../../daemon-lite/runtime.h"

static char base[64], dir[96];

static int set_up(void **state)
{
	(void)state;
	strcpy(base, "/tmp/test_runtime.XXXXXX");
	if (!mkdtemp(base))
		return -1;
	snprintf(dir, sizeof(dir), "%s/run", base);
	return runtime_prepare(dir);
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", base);
	return system(command);
}

static void test_the_directory_is_made_with_the_right_mode_and_an_unsafe_one_is_refused(void **state)
{
	struct stat st;
	mode_t mode = geteuid() == 0 ? 0755 : 0700;

	(void)state;
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, mode);
	assert_int_equal(runtime_prepare(dir), 0);
	assert_int_equal(chmod(dir, 0777), 0);
	assert_true(runtime_prepare(dir) < 0);
	assert_int_equal(chmod(dir, mode), 0);
	assert_int_equal(runtime_prepare("/no/such/parent/run"), -ENOENT);
}

static void test_only_one_holds_the_lock_and_the_other_learns_whom(void **state)
{
	int fd = runtime_lock(dir, 0, NULL), status;
	pid_t pid, owner = -1;

	(void)state;
	assert_true(fd >= 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(runtime_lock(dir, 30, &owner), -EBUSY);
	assert_int_equal(owner, getpid());
	/* A child that inherited it keeps it when we are gone. */
	pid = fork();
	if (pid == 0) {
		for (;;)
			pause();
	}
	close(fd);
	assert_int_equal(runtime_lock(dir, 0, NULL), -EBUSY);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	fd = runtime_lock(dir, 0, NULL);
	assert_true(fd >= 0);
	close(fd);
}

static void test_a_start_waits_for_one_that_ends(void **state)
{
	int ready[2], fd;
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		if (runtime_lock(dir, 0, NULL) < 0 || write(ready[1], "x", 1) != 1)
			_exit(1);
		usleep(100000);
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	fd = runtime_lock(dir, 10000, NULL);
	assert_true(fd >= 0);
	waitpid(pid, NULL, 0);
	close(fd);
	close(ready[0]);
	close(ready[1]);
}

static int connect_path(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/agent.sock", dir);
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		int err = errno;

		close(fd);
		return -err;
	}
	return fd;
}

static int connect_abstract(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), n;

	n = snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "dlockshim:%s", dir);
	if (connect(fd, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) < 0) {
		int err = errno;

		close(fd);
		return -err;
	}
	return fd;
}

static void test_both_sockets_take_connections_before_anybody_accepts(void **state)
{
	int path_fd, abstract_fd, a, b;
	char name[128];
	struct stat st;

	(void)state;
	assert_int_equal(runtime_listen(dir, &path_fd, &abstract_fd), 0);
	assert_true(abstract_fd >= 0);
	a = connect_path();
	b = connect_abstract();
	assert_true(a >= 0 && b >= 0);
	assert_int_equal(send(a, "x", 1, 0), 1);
	snprintf(name, sizeof(name), "%s/agent.sock", dir);
	assert_int_equal(stat(name, &st), 0);
	assert_int_equal(st.st_mode & 0777, geteuid() == 0 ? 0666 : 0600);
	assert_true(fcntl(path_fd, F_GETFL) & O_NONBLOCK);
	close(a);
	close(b);
	close(path_fd);
	close(abstract_fd);
}

static void test_a_stale_socket_is_replaced_and_a_taken_abstract_name_does_no_harm(void **state)
{
	int path_fd, abstract_fd, again_fd, none_fd, a;

	(void)state;
	assert_int_equal(runtime_listen(dir, &path_fd, &abstract_fd), 0);
	close(path_fd);
	assert_int_equal(connect_path(), -ECONNREFUSED);
	assert_int_equal(runtime_listen(dir, &again_fd, &none_fd), 0);
	assert_int_equal(none_fd, -1);
	a = connect_path();
	assert_true(a >= 0);
	close(a);
	close(again_fd);
	close(abstract_fd);
}

static void test_there_is_never_a_moment_without_the_socket(void **state)
{
	int path_fd, abstract_fd, status;
	pid_t pid;

	(void)state;
	assert_int_equal(runtime_listen(dir, &path_fd, &abstract_fd), 0);
	pid = fork();
	if (pid == 0) {
		for (int i = 0; i < 3000; i++) {
			int fd = connect_path();

			/* Refused or full: one that is just replaced; but never missing. */
			if (fd == -ENOENT)
				_exit(1);
			if (fd >= 0)
				close(fd);
		}
		_exit(0);
	}
	while (waitpid(pid, &status, WNOHANG) == 0) {
		close(path_fd);
		if (abstract_fd >= 0)
			close(abstract_fd);
		assert_int_equal(runtime_listen(dir, &path_fd, &abstract_fd), 0);
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	close(path_fd);
	close(abstract_fd);
}

static void test_a_long_directory_still_has_its_socket(void **state)
{
	char long_dir[300];
	int path_fd, abstract_fd;
	struct stat st;

	(void)state;
	snprintf(long_dir, sizeof(long_dir), "%s/%0150d", base, 1);
	assert_int_equal(runtime_prepare(long_dir), 0);
	assert_int_equal(runtime_listen(long_dir, &path_fd, &abstract_fd), 0);
	assert_int_equal(abstract_fd, -1);
	strcat(long_dir, "/agent.sock");
	assert_int_equal(stat(long_dir, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	close(path_fd);
}

static void test_the_reason_of_a_failed_start_is_written_and_removed(void **state)
{
	char name[128], text[64] = "";
	FILE *f;

	(void)state;
	snprintf(name, sizeof(name), "%s/start-error", dir);
	assert_int_equal(runtime_start_error(dir, NULL), 0);
	assert_int_equal(runtime_start_error(dir, "an older one that was longer"), 0);
	assert_int_equal(runtime_start_error(dir, "no such key"), 0);
	f = fopen(name, "re");
	assert_non_null(f);
	assert_non_null(fgets(text, sizeof(text), f));
	assert_string_equal(text, "no such key\n");
	assert_null(fgets(text, sizeof(text), f));
	fclose(f);
	assert_int_equal(runtime_start_error(dir, NULL), 0);
	assert_int_equal(access(name, F_OK), -1);
	assert_int_equal(runtime_start_error("/no/such/dir", "x"), -ENOENT);
}

#define RUNTIME_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RUNTIME_TEST(test_the_directory_is_made_with_the_right_mode_and_an_unsafe_one_is_refused),
		RUNTIME_TEST(test_only_one_holds_the_lock_and_the_other_learns_whom),
		RUNTIME_TEST(test_a_start_waits_for_one_that_ends),
		RUNTIME_TEST(test_both_sockets_take_connections_before_anybody_accepts),
		RUNTIME_TEST(test_a_stale_socket_is_replaced_and_a_taken_abstract_name_does_no_harm),
		RUNTIME_TEST(test_there_is_never_a_moment_without_the_socket),
		RUNTIME_TEST(test_a_long_directory_still_has_its_socket),
		RUNTIME_TEST(test_the_reason_of_a_failed_start_is_written_and_removed),
	};

	log_set_level(LOG_LEVEL_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
