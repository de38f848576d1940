/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/holders.c */
/* Holders of locks as /proc shows them, with real processes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/holders.h"

static char path[64];
static struct holder_file file, records;

static struct inode_id id_of(const char *name)
{
	struct inode_id ret = { 0 };
	struct stat st;

	if (stat(name, &st) < 0)
		abort();
	ret.dev = st.st_dev;
	ret.ino = st.st_ino;
	return ret;
}

static int set_up(void **state)
{
	int fd;

	(void)state;
	strcpy(path, "/tmp/test_holders.XXXXXX");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return -1;
	close(fd);
	file.id = records.id = id_of(path);
	records.records = true;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	return unlink(path);
}

/* --- processes that do something and then sit there ------------------------- */

/* Runs fn in a child; returns its pid when fn has returned there. The child then waits for its end. */
static pid_t child_start(void (*fn)(void))
{
	int pipe_fds[2];
	char byte = 'x';
	pid_t pid;

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
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

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int lock(int operation)
{
	int fd = open(path, O_RDWR);

	if (fd < 0 || flock(fd, operation) < 0)
		_exit(2);
	return fd;
}

static void take_ex(void)
{
	lock(LOCK_EX);
}

static void take_sh(void)
{
	lock(LOCK_SH);
}

static void just_open(void)
{
	if (open(path, O_RDWR) < 0)
		_exit(2);
}

static void take_and_dup(void)
{
	int fd = lock(LOCK_EX);

	for (int i = 0; i < 5; i++)
		dup(fd);
}

static void take_and_map(void)
{
	int fd = lock(LOCK_EX);

	if (ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		_exit(2);
	close(fd);
}

static void take_many_record_locks(void)
{
	int fd = lock(LOCK_EX);

	for (int i = 0; i < 200; i++) {
		struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * i, .l_len = 1 };

		if (fcntl(fd, F_SETLK, &range) < 0)
			_exit(2);
	}
}

static void take_range(int fd, int command, short type, off_t start, off_t len)
{
	struct flock range = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	if (fd < 0 || fcntl(fd, command, &range) < 0)
		_exit(2);
}

/* Three POSIX locks, seen at one descriptor. */
static void take_ranges(void)
{
	int fd = open(path, O_RDWR);

	take_range(fd, F_SETLK, F_WRLCK, 10, 5);
	take_range(fd, F_SETLK, F_RDLCK, 100, 0);
	take_range(fd, F_SETLK, F_WRLCK, 50, 1);
}

static void take_shared_range(void)
{
	take_range(open(path, O_RDONLY), F_OFD_SETLK, F_RDLCK, 0, 0);
}

static void take_ranges_and_dup(void)
{
	int fd = open(path, O_RDWR);

	for (int i = 0; i < 300; i++)
		take_range(fd, F_OFD_SETLK, F_WRLCK, 2 * i, 1);
	for (int i = 0; i < 5; i++)
		dup(fd);
	/* A description of its own, and a process lock of the same range. */
	take_range(open(path, O_RDWR), F_OFD_SETLK, F_RDLCK, 1000, 10);
	take_range(fd, F_SETLK, F_RDLCK, 1000, 10);
}

static void take_range_and_map(void)
{
	int fd = open(path, O_RDWR);

	take_range(fd, F_OFD_SETLK, F_WRLCK, 3, 4);
	if (ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		_exit(2);
	close(fd);
}

static void take_both_kinds(void)
{
	int fd = lock(LOCK_SH);

	take_range(fd, F_SETLK, F_WRLCK, 7, 1);
	take_range(fd, F_OFD_SETLK, F_RDLCK, 9, 1);
}

static void *thread_with_own_table(void *arg)
{
	(void)arg;
	if (unshare(CLONE_FILES) < 0)
		_exit(2);
	lock(LOCK_EX);
	atomic_store((atomic_int *)arg, 1);
	for (;;)
		pause();
	return NULL;
}

static void take_in_a_thread_with_its_own_table(void)
{
	static atomic_int ready;
	pthread_t thread;

	pthread_create(&thread, NULL, thread_with_own_table, &ready);
	while (!atomic_load(&ready))
		sched_yield();
}

/* --- what was found ---------------------------------------------------------- */

static struct holder found[64];
static int found_count;

static void on_holder(void *arg, const struct holder *holder)
{
	(void)arg;
	if (found_count < 64)
		found[found_count++] = *holder;
}

static int find(pid_t skip)
{
	found_count = 0;
	return holders_find(&file, 1, skip, on_holder, NULL);
}

/* Of this program, and so of its children. */
static const char *own_command(void)
{
	static char command[64];

	assert_int_equal(prctl(PR_GET_NAME, command), 0);
	return command;
}

static const struct holder *found_pid(pid_t pid)
{
	for (int i = 0; i < found_count; i++)
		if (found[i].pid == pid)
			return &found[i];
	return NULL;
}

static void test_holder_and_heirs_are_found_and_who_only_opened_is_not(void **state)
{
	pid_t reader = child_start(take_sh), reader2 = child_start(take_sh), other = child_start(just_open), heir;
	int fd;

	(void)state;
	assert_int_equal(find(0), 2);
	assert_non_null(found_pid(reader));
	assert_non_null(found_pid(reader2));
	assert_int_equal(found_pid(reader)->mode, MODE_SH);
	assert_false(found_pid(reader)->mapping);
	assert_string_equal(found_pid(reader)->command, own_command());
	assert_int_equal(find(reader), 1);
	end(reader);
	end(reader2);
	assert_int_equal(find(0), 0);

	/* The one who took it has closed it: the heir holds. */
	fd = open(path, O_RDWR);
	flock(fd, LOCK_EX);
	heir = fork();
	if (heir == 0)
		for (;;)
			pause();
	assert_int_equal(find(0), 1);
	close(fd);
	assert_int_equal(find(0), 1);
	assert_non_null(found_pid(heir));
	assert_int_equal(found_pid(heir)->mode, MODE_EX);
	end(heir);
	end(other);
}

static void test_a_holder_is_reported_once_however_many_descriptors_it_has(void **state)
{
	pid_t pid = child_start(take_and_dup);

	(void)state;
	assert_int_equal(find(0), 1);
	end(pid);
}

static void test_the_caller_itself_is_no_holder(void **state)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)state;
	flock(fd, LOCK_EX);
	assert_int_equal(find(0), 0);
	close(fd);
}

static void test_a_dead_holder_is_gone_before_it_is_reaped(void **state)
{
	pid_t pid = child_start(take_ex);
	siginfo_t info;

	(void)state;
	assert_int_equal(find(0), 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(find(0), 0);
	end(pid);
}

static void test_a_mapping_that_outlives_the_descriptor_is_found_by_mappings_only(void **state)
{
	pid_t pid = child_start(take_and_map);
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(find(0), 0);
	found_count = 0;
	assert_int_equal(holders_find_mappings(&file, 1, 0, on_holder, NULL), 1);
	assert_int_equal(found[0].pid, pid);
	assert_true(found[0].mapping);
	assert_int_equal(holder_signal(&found[0], &file, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	close(fd);
}

static void test_many_record_locks_do_not_hide_a_flock(void **state)
{
	pid_t pid = child_start(take_many_record_locks);

	(void)state;
	assert_int_equal(find(0), 1);
	assert_int_equal(found[0].mode, MODE_EX);
	end(pid);
}

static void test_a_thread_with_its_own_descriptor_table_is_found(void **state)
{
	pid_t pid = child_start(take_in_a_thread_with_its_own_table);

	(void)state;
	assert_int_equal(find(0), 1);
	assert_int_equal(found[0].pid, pid);
	assert_int_equal(holder_signal(&found[0], &file, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_each_inode_gets_its_own_holders(void **state)
{
	char other_path[] = "/tmp/test_holders.XXXXXX";
	pid_t pid = child_start(take_ex), heir;
	int other_fd = mkostemp(other_path, O_CLOEXEC), n = 0;
	struct holder_file files[2] = { { .id = id_of(other_path) }, file };

	(void)state;
	flock(other_fd, LOCK_SH);
	heir = fork();
	if (heir == 0)
		for (;;)
			pause();
	close(other_fd);
	found_count = 0;
	assert_int_equal(holders_find(files, 2, 0, on_holder, NULL), 2);
	for (int i = 0; i < 2; i++)
		n += (found[i].pid == pid && found[i].inode == 1) || (found[i].pid == heir && found[i].inode == 0);
	assert_int_equal(n, 2);
	end(pid);
	end(heir);
	unlink(other_path);
}

/* Two tmpfs give their first files the same inode number. */
static int same_number_on_two_devices(void)
{
	char a[80], b[80], paths[2][96];
	struct holder_file files[2] = { 0 };
	pid_t pid;
	int fd, n;

	snprintf(a, sizeof(a), "%s.a", path);
	snprintf(b, sizeof(b), "%s.b", path);
	mkdir(a, 0700);
	mkdir(b, 0700);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("a", a, "tmpfs", 0, NULL) < 0 ||
	    mount("b", b, "tmpfs", 0, NULL) < 0)
		return 77;
	snprintf(paths[0], sizeof(paths[0]), "%s/f", a);
	snprintf(paths[1], sizeof(paths[1]), "%s/f", b);
	for (int i = 0; i < 2; i++) {
		close(open(paths[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		files[i].id = id_of(paths[i]);
	}
	if (files[0].id.ino != files[1].id.ino)
		return 77;
	fd = open(paths[1], O_RDWR);
	flock(fd, LOCK_EX);
	pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	n = holders_find(&files[0], 1, 0, NULL, NULL);
	found_count = 0;
	if (n != 0 || holders_find(files, 2, 0, on_holder, NULL) != 1 || found[0].inode != 1)
		n = 1;
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return n;
}

static void test_the_same_inode_number_on_another_device_is_another_file(void **state)
{
	int status;
	pid_t pid;
	char dir[80];

	(void)state;
	if (geteuid() != 0)
		skip();
	pid = fork();
	if (pid == 0)
		_exit(same_number_on_two_devices());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	snprintf(dir, sizeof(dir), "%s.a", path);
	rmdir(dir);
	snprintf(dir, sizeof(dir), "%s.b", path);
	rmdir(dir);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* --- record locks --------------------------------------------------------------- */

static int find_records(void)
{
	found_count = 0;
	return holders_find(&records, 1, 0, on_holder, NULL);
}

static int found_like(pid_t pid, uint64_t start, uint64_t last, enum lock_mode mode, bool ofd)
{
	int n = 0;

	for (int i = 0; i < found_count; i++)
		n += found[i].pid == pid && found[i].at.start == start && found[i].at.end == last && found[i].mode == mode && found[i].ofd == ofd;
	return n;
}

static void test_each_record_lock_of_a_process_is_found_with_its_range(void **state)
{
	pid_t pid = child_start(take_ranges), other = child_start(take_ex);

	(void)state;
	assert_int_equal(find_records(), 3);
	assert_int_equal(found_like(pid, 10, 15, MODE_EX, false), 1);
	assert_int_equal(found_like(pid, 50, 51, MODE_EX, false), 1);
	assert_int_equal(found_like(pid, 100, EXTENT_END, MODE_SH, false), 1);
	assert_false(found[0].mapping);
	assert_string_equal(found[0].command, own_command());
	/* And the flock of the other process is of another kind. */
	assert_int_equal(find(0), 1);
	assert_int_equal(found[0].pid, other);
	assert_true(extent_equal(found[0].at, EXTENT_ALL));
	end(pid);
	assert_int_equal(find_records(), 0);
	end(other);
}

static void test_a_child_inherits_ofd_locks_and_no_posix_locks(void **state)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	pid_t heir;

	(void)state;
	take_range(fd, F_SETLK, F_WRLCK, 0, 1);
	take_range(fd, F_OFD_SETLK, F_WRLCK, 1, 1);
	heir = fork();
	if (heir == 0)
		for (;;)
			pause();
	assert_int_equal(find_records(), 1);
	assert_int_equal(found_like(heir, 1, 2, MODE_EX, true), 1);
	close(fd);
	assert_int_equal(find_records(), 1);
	end(heir);
	assert_int_equal(find_records(), 0);
}

static void test_a_record_lock_is_reported_once_however_many_descriptors_lead_to_it(void **state)
{
	pid_t pid = child_start(take_ranges_and_dup);
	struct holder_file files[2] = { records, file };

	(void)state;
	assert_int_equal(holders_find(files, 2, 0, NULL, NULL), 302);
	end(pid);
}

static void test_both_kinds_are_found_in_one_walk(void **state)
{
	pid_t pid = child_start(take_both_kinds);
	struct holder_file files[2] = { records, file };
	int fd = -1;

	(void)state;
	found_count = 0;
	assert_int_equal(holders_find(files, 2, 0, on_holder, NULL), 3);
	assert_int_equal(found_like(pid, 0, EXTENT_END, MODE_SH, false), 1);
	assert_int_equal(found_like(pid, 7, 8, MODE_EX, false), 1);
	assert_int_equal(found_like(pid, 9, 10, MODE_SH, true), 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(found[i].inode, extent_equal(found[i].at, EXTENT_ALL) ? 1 : 0);
	for (int i = 0; i < 64 && fd < 0; i++)
		if (holders_fd_mode(pid, i, false) != MODE_NONE)
			fd = i;
	assert_true(fd >= 0);
	assert_int_equal(holders_fd_mode(pid, fd, false), MODE_SH);
	assert_int_equal(holders_fd_mode(pid, fd, true), MODE_EX);
	end(pid);
	assert_int_equal(holders_fd_mode(pid, fd, true), MODE_NONE);
}

static void test_an_ofd_lock_kept_by_a_mapping_is_found_by_mappings_only(void **state)
{
	pid_t pid = child_start(take_range_and_map);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct flock lock = { .l_type = F_WRLCK };

	(void)state;
	assert_int_equal(fcntl(fd, F_OFD_GETLK, &lock), 0);
	assert_int_equal(lock.l_type, F_WRLCK);
	assert_int_equal(find_records(), 0);
	found_count = 0;
	assert_int_equal(holders_find_mappings(&records, 1, 0, on_holder, NULL), 1);
	assert_int_equal(found[0].pid, pid);
	assert_true(found[0].mapping && found[0].ofd);
	assert_int_equal(holder_signal(&found[0], &records, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(fd);
}

static void test_a_signal_goes_to_who_holds_a_lock_of_that_kind_only(void **state)
{
	pid_t pid = child_start(take_ex);
	struct holder holder = { .pid = pid, .mode = MODE_EX };

	(void)state;
	assert_int_equal(holder_signal(&holder, &records, SIGKILL), -ESRCH);
	end(pid);
	holder.pid = pid = child_start(take_ranges);
	assert_int_equal(holder_signal(&holder, &file, SIGKILL), -ESRCH);
	kill(pid, SIGSTOP);
	assert_int_equal(holder_signal(&holder, &records, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(holder_signal(&holder, &records, SIGKILL), -ESRCH);
}

/* --- signals -------------------------------------------------------------------- */

static void test_a_stopped_holder_can_be_killed(void **state)
{
	pid_t pid = child_start(take_ex);

	(void)state;
	kill(pid, SIGSTOP);
	assert_int_equal(find(0), 1);
	assert_int_equal(holder_signal(&found[0], &file, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(holder_signal(&found[0], &file, SIGKILL), -ESRCH);
}

static void test_who_has_let_go_is_not_signalled(void **state)
{
	pid_t pid = child_start(just_open);
	struct holder holder = { .pid = pid, .mode = MODE_EX };
	int status;

	(void)state;
	assert_int_equal(holder_signal(&holder, &file, SIGKILL), -ESRCH);
	holder.mapping = true;
	assert_int_equal(holder_signal(&holder, &file, SIGKILL), -ESRCH);
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	end(pid);
}

/* --- everything -------------------------------------------------------------------- */

static pid_t wanted;
static char wanted_path[64];

struct scan {
	int seen;
	bool records;
	enum lock_mode mode;
};

static void on_scan(void *arg, pid_t pid, const char *fd_path, bool is_records, enum lock_mode mode)
{
	struct scan *scan = arg;

	if (pid != wanted)
		return;
	scan->seen++;
	scan->records = is_records;
	scan->mode = mode;
	snprintf(wanted_path, sizeof(wanted_path), "%s", fd_path);
}

static void test_a_scan_gives_descriptors_that_lead_to_the_file(void **state)
{
	static const struct { void (*fn)(void); enum lock_mode mode; bool records; } cases[] = {
		{ take_sh, MODE_SH, false }, { take_ranges, MODE_EX, true }, { take_shared_range, MODE_SH, true },
	};
	struct stat st;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scan scan = { 0 };

		wanted = child_start(cases[i].fn);
		assert_true(holders_scan_all(on_scan, &scan) >= 1);
		assert_int_equal(scan.seen, 1);
		assert_int_equal(scan.mode, cases[i].mode);
		assert_int_equal(scan.records, cases[i].records);
		assert_int_equal(stat(wanted_path, &st), 0);
		assert_true(st.st_ino == file.id.ino && st.st_dev == file.id.dev);
		end(wanted);
	}
}

static void open_twenty(void)
{
	for (int i = 0; i < 20; i++)
		just_open();
}

static void test_a_pass_over_many_processes_is_quick(void **state)
{
	enum { COUNT = 300 };
	pid_t pids[COUNT], holder = child_start(take_ex);
	struct timespec a, b;

	(void)state;
	for (int i = 0; i < COUNT; i++)
		pids[i] = child_start(open_twenty);
	clock_gettime(CLOCK_MONOTONIC, &a);
	assert_int_equal(find(0), 1);
	clock_gettime(CLOCK_MONOTONIC, &b);
	print_message("%d processes with 20 descriptors: %.1f ms\n", COUNT,
		      (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
	for (int i = 0; i < COUNT; i++)
		end(pids[i]);
	end(holder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_holder_and_heirs_are_found_and_who_only_opened_is_not),
		cmocka_unit_test(test_a_holder_is_reported_once_however_many_descriptors_it_has),
		cmocka_unit_test(test_the_caller_itself_is_no_holder),
		cmocka_unit_test(test_a_dead_holder_is_gone_before_it_is_reaped),
		cmocka_unit_test(test_a_mapping_that_outlives_the_descriptor_is_found_by_mappings_only),
		cmocka_unit_test(test_many_record_locks_do_not_hide_a_flock),
		cmocka_unit_test(test_a_thread_with_its_own_descriptor_table_is_found),
		cmocka_unit_test(test_each_inode_gets_its_own_holders),
		cmocka_unit_test(test_the_same_inode_number_on_another_device_is_another_file),
		cmocka_unit_test(test_each_record_lock_of_a_process_is_found_with_its_range),
		cmocka_unit_test(test_a_child_inherits_ofd_locks_and_no_posix_locks),
		cmocka_unit_test(test_a_record_lock_is_reported_once_however_many_descriptors_lead_to_it),
		cmocka_unit_test(test_both_kinds_are_found_in_one_walk),
		cmocka_unit_test(test_an_ofd_lock_kept_by_a_mapping_is_found_by_mappings_only),
		cmocka_unit_test(test_a_signal_goes_to_who_holds_a_lock_of_that_kind_only),
		cmocka_unit_test(test_a_stopped_holder_can_be_killed),
		cmocka_unit_test(test_who_has_let_go_is_not_signalled),
		cmocka_unit_test(test_a_scan_gives_descriptors_that_lead_to_the_file),
		cmocka_unit_test(test_a_pass_over_many_processes_is_quick),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
