/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c daemon-lite/publish.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/*
 * F_GETLK, F_OFD_GETLK and lockf(F_TEST): who stands against a lock, here or on another host.
 * shim/record_args.c is linked with a hook behind the kernel's answer.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../shim/record_args.h"
#define record_kernel real_record_kernel
int real_record_kernel(const struct record_call *call);
#include "../../shim/record_args.c"
#undef record_kernel

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon-lite/publish.h"
#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;
static struct wire_msg seen;
static struct wire_msg reply;

static int bare(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return (int)syscall(SYS_fcntl, fd, cmd, &lock);
}

static void check_lock(const struct flock *lock, short type, int64_t start, int64_t len, pid_t pid)
{
	assert_int_equal(lock->l_type, type);
	assert_int_equal(lock->l_whence, SEEK_SET);
	assert_int_equal(lock->l_start, start);
	assert_int_equal(lock->l_len, len);
	assert_int_equal(lock->l_pid, pid);
}

static void script_tell(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_GETLK, &seen, NULL);
	if (a->number == 1)
		fake_send(s, WIRE_LOCAL, 0, NULL);
	else if (a->number)
		fake_send(s, WIRE_ERROR, a->number, "the sentence");
	else
		fake_lock(s, reply.mode, reply.start, reply.len, reply.fd_number);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_lock_of_another_host_is_told_as_it_is(void **state)
{
	int commands[] = { F_GETLK, F_OFD_GETLK };

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		int fd = open(fake_path(A), O_RDONLY | O_CREAT, 0644);
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_start = 5, .l_len = 10 };

		assert_int_equal(lseek(fd, 100, SEEK_SET), 100);
		reply = (struct wire_msg){ .mode = MODE_SH, .start = 90, .len = 40, .fd_number = -4711 };
		fake_start(&agent, script_tell);
		errno = 77;
		assert_int_equal(fcntl(fd, commands[i], &lock), 0);
		assert_int_equal(errno, 77);
		fake_finish(&agent);
		check_lock(&lock, F_RDLCK, 90, 40, -4711);
		assert_int_equal(seen.family, i ? FAMILY_OFD : FAMILY_POSIX);
		assert_int_equal(seen.mode, MODE_EX);
		assert_int_equal(seen.start, 105);
		assert_int_equal(seen.len, 10);
		assert_int_equal(seen.fd_number, fd);

		lock = (struct flock){ .l_type = F_RDLCK };
		reply = (struct wire_msg){ .mode = MODE_EX, .start = 7, .len = 0, .fd_number = -1 };
		fake_start(&agent, script_tell);
		assert_int_equal(fcntl(fd, commands[i], &lock), 0);
		fake_finish(&agent);
		check_lock(&lock, F_WRLCK, 7, 0, -1);
		assert_int_equal(seen.mode, MODE_SH);
		close(fd);
	}
}

static void test_nobody_is_the_kernels_answer(void **state)
{
	(void)state;
	for (int local = 0; local < 2; local++) {
		int fd = fake_open(A);
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_END, .l_start = 3, .l_len = 4, .l_pid = 99 }, wanted = lock;

		wanted.l_type = F_UNLCK;
		reply = (struct wire_msg){ .mode = MODE_NONE };
		fake_start_with(&agent, script_tell, local);
		assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
		fake_finish(&agent);
		assert_memory_equal(&lock, &wanted, sizeof lock);
		close(fd);
	}
}

static void test_an_error_of_the_agent_changes_nothing(void **state)
{
	int fd = fake_open(A);
	struct flock lock = { .l_type = F_WRLCK, .l_start = 3, .l_len = 4, .l_pid = 99 }, wanted = lock;

	(void)state;
	fake_start_with(&agent, script_tell, ENOLCK);
	assert_int_equal(fcntl(fd, F_GETLK, &lock), -1);
	assert_int_equal(errno, ENOLCK);
	fake_finish(&agent);
	assert_memory_equal(&lock, &wanted, sizeof lock);
	close(fd);
}

static void script_ends_first(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_GETLK, &seen, NULL);
	close(s);
	script_tell(a);
}

static void test_an_agent_that_ends_is_asked_again(void **state)
{
	int fd = fake_open(A);
	struct flock lock = { .l_type = F_WRLCK };

	(void)state;
	reply = (struct wire_msg){ .mode = MODE_EX, .start = 1, .len = 2, .fd_number = -5 };
	fake_start(&agent, script_ends_first);
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	fake_finish(&agent);
	check_lock(&lock, F_WRLCK, 1, 2, -5);
	close(fd);
}

static void test_a_holder_of_this_host_is_the_answer_and_nobody_is_asked(void **state)
{
	int fd = fake_open(A), ready[2];
	struct flock lock = { .l_type = F_WRLCK };
	pid_t pid;
	char c;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (pid == 0) {
		bare(fd, F_SETLK, F_WRLCK, 5, 6);
		(void)!write(ready[1], "x", 1);
		pause();
		_exit(0);
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	fake_start(&agent, fake_be_alone);
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	check_lock(&lock, F_WRLCK, 5, 6, pid);
	assert_int_equal(lseek(fd, 4, SEEK_SET), 4);
	assert_int_equal(lockf(fd, F_TEST, 10), -1);
	assert_int_equal(errno, EACCES);
	lock = (struct flock){ .l_type = F_RDLCK };
	assert_int_equal(fcntl(fd, F_OFD_GETLK, &lock), 0);
	check_lock(&lock, F_WRLCK, 5, 6, pid);
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(ready[0]);
	close(ready[1]);
	close(fd);
}

static void test_lockf_test_asks_for_write_locks_of_others(void **state)
{
	int fd = fake_open(A);

	(void)state;
	reply = (struct wire_msg){ .mode = MODE_EX, .start = 0, .len = 2, .fd_number = -4 };
	fake_start(&agent, script_tell);
	assert_int_equal(lockf(fd, F_TEST, 10), -1);
	assert_int_equal(errno, EACCES);
	fake_finish(&agent);
	assert_int_equal(seen.mode, MODE_SH);	/* as libc asks */
	reply = (struct wire_msg){ .mode = MODE_NONE };
	fake_start(&agent, script_tell);
	errno = 77;
	assert_int_equal(lockf(fd, F_TEST, 10), 0);
	assert_int_equal(errno, 77);
	fake_finish(&agent);
	close(fd);
}

/* ---- the agent's own lock ---- */

static int momentary = -1;	/* a description that drops its locks when the kernel has been asked once */

int record_kernel(const struct record_call *call)
{
	int err = real_record_kernel(call);

	if (momentary >= 0)
		bare(momentary, F_OFD_SETLK, F_UNLCK, 0, 0);
	momentary = -1;
	return err;
}

static void test_a_description_that_holds_for_a_moment_is_not_an_answer(void **state)
{
	int fd = fake_open(A), other = fake_open(A);
	struct flock lock = { .l_type = F_WRLCK, .l_len = 3 };

	(void)state;
	reply = (struct wire_msg){ .mode = MODE_NONE };
	fake_start(&agent, script_tell);
	assert_int_equal(bare(other, F_OFD_SETLK, F_WRLCK, 0, 0), 0);
	momentary = other;
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	fake_finish(&agent);
	assert_int_equal(lock.l_type, F_UNLCK);
	assert_int_equal(seen.len, 3);
	/* one that stays is */
	assert_int_equal(bare(other, F_OFD_SETLK, F_WRLCK, 1, 1), 0);
	fake_start(&agent, fake_be_alone);
	lock = (struct flock){ .l_type = F_WRLCK, .l_len = 3 };
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	check_lock(&lock, F_WRLCK, 1, 1, -1);
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
	close(fd);
	close(other);
}

/* ---- standing GOs ---- */

static void test_a_standing_go_that_suffices_saves_the_question(void **state)
{
	struct standing_table *table = publish_map(fake_runtime);
	struct publish_slot slot = { .records = true };
	const char *path = fake_path(A);
	struct flock lock = { .l_type = F_WRLCK };
	struct inode_id id;
	struct stat st;
	int fd = fake_open(A);

	(void)state;
	publish_reset(table);
	publish_valid_until(table, UINT64_MAX);
	assert_int_equal(fstat(fd, &st), 0);
	id = (struct inode_id){ .dev = st.st_dev, .ino = st.st_ino };
	standing_hash(path, strlen(path), slot.path_hash);
	publish_set(table, &slot, &id, MODE_EX);
	fake_start(&agent, fake_be_alone);
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	assert_int_equal(lock.l_type, F_UNLCK);
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);

	publish_set(table, &slot, &id, MODE_SH);
	lock = (struct flock){ .l_type = F_WRLCK };
	reply = (struct wire_msg){ .mode = MODE_SH, .start = 1, .len = 2, .fd_number = -5 };
	fake_start(&agent, script_tell);
	assert_int_equal(fcntl(fd, F_GETLK, &lock), 0);
	fake_finish(&agent);
	check_lock(&lock, F_RDLCK, 1, 2, -5);
	publish_drop(&slot);
	close(fd);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_lock_of_another_host_is_told_as_it_is),
		cmocka_unit_test(test_nobody_is_the_kernels_answer),
		cmocka_unit_test(test_an_error_of_the_agent_changes_nothing),
		cmocka_unit_test(test_an_agent_that_ends_is_asked_again),
		cmocka_unit_test(test_a_holder_of_this_host_is_the_answer_and_nobody_is_asked),
		cmocka_unit_test(test_lockf_test_asks_for_write_locks_of_others),
		cmocka_unit_test(test_a_description_that_holds_for_a_moment_is_not_an_answer),
		cmocka_unit_test(test_a_standing_go_that_suffices_saves_the_question),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
