/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/deadlock_proc.c daemon-lite/holders.c */
/* Who waits and what they hold, with real processes, threads and locks. */
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/deadlock_proc.h"

static char path[64];
static ino_t inode;
static dev_t device;

/* What a child tells, and is told. */
static struct shared {
	pid_t tid[4];		/* of its threads, as they see themselves */
	pid_t second;		/* another process that it has made */
	int ready, go_on;
} *shared;

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static bool wait_for(const int *what, int value)
{
	for (int i = 0; i < 5000; i++) {
		if (__atomic_load_n(what, __ATOMIC_SEQ_CST) >= value)
			return true;
		pause_ms(1);
	}
	return false;
}

static void is_ready(void)
{
	__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
}

static int set_up(void **state)
{
	struct stat st;
	int fd;

	(void)state;
	strcpy(path, "/tmp/test_deadlock.XXXXXX");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	close(fd);
	inode = st.st_ino;
	device = st.st_dev;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
	(void)state;
	munmap(shared, sizeof *shared);
	return unlink(path);
}

static pid_t child_start(void (*fn)(void), int ready)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn();
		is_ready();
		for (;;)
			pause();
	}
	assert_true(wait_for(&shared->ready, ready));
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static int open_it(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		_exit(2);
	return fd;
}

static void lock(int fd, int command, short type, off_t start, off_t len)
{
	struct flock fl = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };

	if (fcntl(fd, command, &fl) < 0)
		_exit(3);
}

/* --- looks --- */

static struct proc_wait waits[64];

static struct proc_wait *asked(size_t i, pid_t pid, pid_t tid)
{
	waits[i] = (struct proc_wait){ .id = i + 1, .pid = pid, .tid = (uint32_t)tid, .posix = true, .asked = true, .mode = MODE_EX, .at = EXTENT_ALL };
	return &waits[i];
}

static struct proc_wait *queued(size_t i, pid_t pid, pid_t tid, enum lock_mode mode, uint64_t start, uint64_t stop)
{
	asked(i, pid, tid)->asked = false;
	waits[i].mode = mode;
	waits[i].at = (struct extent){ start, stop };
	waits[i].inodes = &inode;
	waits[i].inode_count = 1;
	return &waits[i];
}

/* in_kernel: others on this machine may be in the kernel's queue, too. */
static struct proc_look look_at(size_t count, bool in_kernel)
{
	struct proc_look ret = { .wait_count = count, .wait_cap = count, .wait_max = 1000, .hold_max = 1000, .in_kernel = in_kernel };

	ret.waits = malloc(count * sizeof *waits + 1);
	memcpy(ret.waits, waits, count * sizeof *waits);
	deadlock_proc_look(&ret);
	assert_int_equal(ret.err, 0);
	return ret;
}

static struct proc_look look(size_t count)
{
	return look_at(count, false);
}

static void look_end(struct proc_look *ret)
{
	deadlock_proc_clear(ret);
	free(ret->waits);
}

/* What the owner of this wait holds, as "START-END MODE " each, in the order of the kernel. */
static const char *held_by(const struct proc_look *ret, size_t wait)
{
	static char text[256];

	*text = '\0';
	assert_true(ret->waits[wait].owner < ret->owner_count);
	for (size_t i = 0; i < ret->hold_count; i++) {
		const struct proc_hold *hold = &ret->holds[i];
		size_t n = strlen(text);

		if (hold->owner != ret->waits[wait].owner)
			continue;
		assert_true(hold->ino == inode);
		assert_true(hold->stat_dev == device);
		snprintf(text + n, sizeof text - n, "%llu-%llu %d ", (unsigned long long)hold->at.start, (unsigned long long)hold->at.end, hold->mode);
	}
	return text;
}

/* Whether a wait for the file that no client made was seen, and which. */
static const struct proc_wait *stranger(const struct proc_look *ret)
{
	for (size_t i = 0; i < ret->wait_count; i++)
		if (!ret->waits[i].id && ret->waits[i].ino == inode)
			return &ret->waits[i];
	return NULL;
}

/* --- processes --- */

static void two_ranges(void)
{
	int fd = open_it();

	lock(fd, F_SETLK, F_WRLCK, 0, 10);
	lock(open_it(), F_SETLK, F_RDLCK, 100, 0);
}

static void test_a_process_holds_what_its_table_owns(void **state)
{
	pid_t pid = child_start(two_ranges, 1);
	struct proc_look ret;

	(void)state;
	asked(0, pid, pid);
	asked(1, pid, 0);	/* an agent that was not told the thread */
	ret = look(2);
	assert_int_equal(ret.owner_count, 1);
	assert_int_equal(ret.waits[0].owner, ret.waits[1].owner);
	assert_true(ret.owners[0].holds_any);
	assert_string_equal(held_by(&ret, 0), "0-10 2 100-9223372036854775808 1 ");
	look_end(&ret);
	end(pid);
}

static void child_has_the_descriptor(void)
{
	pid_t pid;

	two_ranges();
	pid = fork();
	if (pid)
		shared->second = pid;
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		is_ready();
		for (;;)
			pause();
	}
}

static void test_a_child_that_has_inherited_the_descriptor_holds_nothing(void **state)
{
	pid_t pid = child_start(child_has_the_descriptor, 2);
	struct proc_look ret;

	(void)state;
	asked(0, pid, pid);
	asked(1, shared->second, shared->second);
	ret = look(2);
	assert_int_equal(ret.owner_count, 2);
	assert_string_equal(held_by(&ret, 0), "0-10 2 100-9223372036854775808 1 ");
	assert_string_equal(held_by(&ret, 1), "");
	assert_false(ret.owners[ret.waits[1].owner].holds_any);
	look_end(&ret);
	kill(shared->second, SIGKILL);
	end(pid);
}

static void others_kinds(void)
{
	if (flock(open_it(), LOCK_EX) < 0)
		_exit(4);
}

static void test_a_flock_is_something_but_no_edge(void **state)
{
	pid_t pid = child_start(others_kinds, 1);
	struct proc_look ret;

	(void)state;
	asked(0, pid, pid)->posix = false;
	ret = look(1);
	assert_true(ret.owners[0].holds_any);
	assert_int_equal(ret.hold_count, 0);
	look_end(&ret);
	end(pid);
}

static void ofd_lock(void)
{
	lock(open_it(), F_OFD_SETLK, F_WRLCK, 0, 10);
}

static void test_an_ofd_lock_is_something_but_no_edge(void **state)
{
	pid_t pid = child_start(ofd_lock, 1);
	struct proc_look ret;

	(void)state;
	asked(0, pid, pid);
	ret = look(1);
	assert_true(ret.owners[0].holds_any);
	assert_int_equal(ret.hold_count, 0);
	look_end(&ret);
	end(pid);
}

/* --- threads --- */

static bool own_tables;

static void *thread_main(void *arg)
{
	int n = (int)(intptr_t)arg;

	if (own_tables && unshare(CLONE_FILES) < 0)
		_exit(5);
	lock(open_it(), F_SETLK, F_WRLCK, n * 20, 10);
	shared->tid[n] = gettid();
	is_ready();
	for (;;)
		pause();
	return NULL;
}

static void start_thread(void *(*fn)(void *), int n)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, fn, (void *)(intptr_t)n))
		_exit(6);
}

static void two_threads(void)
{
	start_thread(thread_main, 1);
	start_thread(thread_main, 2);
}

static void two_threads_with_own_tables(void)
{
	own_tables = true;
	two_threads();
}

static void test_threads_that_share_a_table_are_one_owner(void **state)
{
	pid_t pid = child_start(two_threads, 3);
	struct proc_look ret;

	(void)state;
	asked(0, pid, shared->tid[1]);
	asked(1, pid, shared->tid[2]);
	asked(2, pid, pid);
	ret = look(3);
	assert_int_equal(ret.owner_count, 1);
	assert_int_equal(ret.hold_count, 2);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(ret.waits[i].owner, 0);
	look_end(&ret);
	end(pid);
}

static void test_threads_with_tables_of_their_own_are_owners_of_their_own(void **state)
{
	pid_t pid = child_start(two_threads_with_own_tables, 3);
	struct proc_look ret;

	(void)state;
	asked(0, pid, shared->tid[1]);
	asked(1, pid, shared->tid[2]);
	asked(2, pid, pid);
	ret = look(3);
	assert_int_equal(ret.owner_count, 3);
	assert_string_equal(held_by(&ret, 0), "20-30 2 ");
	assert_string_equal(held_by(&ret, 1), "40-50 2 ");
	assert_string_equal(held_by(&ret, 2), "");
	look_end(&ret);
	end(pid);
}

static void test_a_thread_that_is_not_there_stands_for_its_process(void **state)
{
	pid_t pid = child_start(two_ranges, 1);
	struct proc_look ret;

	(void)state;
	asked(0, pid, 1);	/* somebody else's */
	asked(1, pid, 0x3fffffff);
	ret = look(2);
	assert_int_equal(ret.owner_count, 1);
	assert_int_equal(ret.owners[0].tid, pid);
	assert_int_equal(ret.hold_count, 2);
	look_end(&ret);
	end(pid);
}

static int shares_all(void *arg)
{
	(void)arg;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	lock(open_it(), F_SETLK, F_WRLCK, 50, 5);
	is_ready();
	for (;;)
		pause();
	return 0;
}

static void makes_one_that_shares_its_table(void)
{
	static char stack[65536] __attribute__((aligned(16)));

	lock(open_it(), F_SETLK, F_WRLCK, 0, 10);
	shared->second = clone(shares_all, stack + sizeof stack, CLONE_FILES | SIGCHLD, NULL);
	if (shared->second < 0)
		_exit(7);
}

static void test_processes_that_share_a_table_are_one_owner(void **state)
{
	pid_t pid = child_start(makes_one_that_shares_its_table, 2);
	struct proc_look ret;

	(void)state;
	asked(0, pid, pid);
	asked(1, shared->second, shared->second);
	ret = look(2);
	assert_int_equal(ret.owner_count, 1);
	assert_int_equal(ret.waits[0].owner, ret.waits[1].owner);
	assert_string_equal(held_by(&ret, 0), "0-10 2 50-55 2 ");
	look_end(&ret);
	kill(shared->second, SIGKILL);
	end(pid);
}

static void *threads_of_a_new_namespace(void *arg)
{
	shared->tid[0] = getpid();
	return thread_main(arg);
}

static void in_a_pid_namespace(void)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID) < 0)
		_exit(8);
	pid = fork();
	if (pid)
		shared->second = pid;
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		own_tables = true;
		start_thread(threads_of_a_new_namespace, 1);
		start_thread(thread_main, 2);
		for (;;)
			pause();
	}
}

static void test_a_thread_of_another_pid_namespace_is_found_by_its_number_there(void **state)
{
	struct proc_look ret;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	pid = child_start(in_a_pid_namespace, 3);
	assert_int_equal(shared->tid[0], 1);
	asked(0, shared->second, shared->tid[1]);
	asked(1, shared->second, shared->tid[2]);
	asked(2, shared->second, 1);
	ret = look(3);
	assert_int_equal(ret.owner_count, 3);
	assert_string_equal(held_by(&ret, 0), "20-30 2 ");
	assert_string_equal(held_by(&ret, 1), "40-50 2 ");
	assert_string_equal(held_by(&ret, 2), "");
	look_end(&ret);
	kill(shared->second, SIGKILL);
	end(pid);
}

/* --- in the kernel's queue --- */

/* Holds [70, 80) and waits for [0, 10), again and again: has it, lets go, says so. */
static void *waiter_main(void *arg)
{
	int fd = open_it(), n = (int)(intptr_t)arg;

	if (own_tables && unshare(CLONE_FILES) < 0)
		_exit(5);
	lock(fd, F_SETLK, F_RDLCK, 70, 10);
	shared->tid[n] = gettid();
	is_ready();
	for (;;) {
		lock(fd, F_SETLKW, F_WRLCK, 0, 10);
		lock(fd, F_SETLK, F_UNLCK, 0, 10);
		is_ready();
		wait_for(&shared->go_on, 1);
	}
	return NULL;
}

static void waits_in_a_thread(void)
{
	start_thread(waiter_main, 1);
}

static void two_wait_with_own_tables(void)
{
	own_tables = true;
	start_thread(waiter_main, 1);
	start_thread(waiter_main, 2);
}

static int holder;		/* the test's own lock on [0, 10) */

static void hold(void)
{
	struct flock fl = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10 };

	holder = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(fcntl(holder, F_OFD_SETLK, &fl), 0);
}

static void let_go(void)
{
	struct flock fl = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

	assert_int_equal(fcntl(holder, F_OFD_SETLK, &fl), 0);	/* children have the descriptor too */
	close(holder);
}

/* Until this many wait in the kernel for the file; the last look is returned. */
static struct proc_look look_until_queued(size_t count, size_t how_many)
{
	for (int i = 0; i < 2000; i++) {
		struct proc_look ret = look_at(count, true);
		size_t n = 0;

		for (size_t k = 0; k < ret.wait_count; k++)
			n += !ret.waits[k].asked && ret.waits[k].ino == inode;
		if (n == how_many)
			return ret;
		look_end(&ret);
		pause_ms(1);
	}
	fail_msg("%zu do not wait", how_many);
	abort();
}

static void test_a_call_with_a_go_is_found_in_the_kernels_queue(void **state)
{
	struct proc_look ret;
	pid_t pid;

	(void)state;
	hold();
	pid = child_start(waits_in_a_thread, 2);
	queued(0, pid, shared->tid[1], MODE_EX, 0, 10);
	queued(1, pid, shared->tid[1], MODE_EX, 0, 11);	/* not that one */
	queued(2, pid, shared->tid[1], MODE_SH, 0, 10);
	ret = look_until_queued(3, 1);
	assert_true(ret.waits[0].ino == inode);
	assert_string_equal(held_by(&ret, 0), "70-80 1 ");
	assert_true(ret.waits[1].owner == PROC_NOBODY && ret.waits[2].owner == PROC_NOBODY);
	assert_null(stranger(&ret));
	look_end(&ret);
	let_go();
	end(pid);
}

static void test_a_wait_that_no_client_made_is_found_and_told_from_the_next_one(void **state)
{
	struct proc_look ret;
	uint64_t stamp;
	pid_t pid;

	(void)state;
	hold();
	pid = child_start(waits_in_a_thread, 2);
	ret = look_until_queued(0, 1);
	assert_int_equal(stranger(&ret)->pid, pid);
	assert_true(extent_equal(stranger(&ret)->at, ((struct extent){ 0, 10 })));
	assert_int_equal(stranger(&ret)->mode, MODE_EX);
	assert_string_equal(held_by(&ret, (size_t)(stranger(&ret) - ret.waits)), "70-80 1 ");
	look_end(&ret);
	/* It may have been seen on its way to sleep. */
	pause_ms(20);
	ret = look_until_queued(0, 1);
	stamp = stranger(&ret)->stamp;
	look_end(&ret);
	pause_ms(50);
	ret = look_until_queued(0, 1);
	assert_true(stranger(&ret)->stamp == stamp);
	look_end(&ret);
	/* The same thread waits for the same once more. */
	let_go();
	assert_true(wait_for(&shared->ready, 3));
	hold();
	__atomic_store_n(&shared->go_on, 1, __ATOMIC_SEQ_CST);
	ret = look_until_queued(0, 1);
	assert_int_equal(stranger(&ret)->pid, pid);
	assert_false(stranger(&ret)->stamp == stamp);
	look_end(&ret);
	let_go();
	end(pid);
}

static void test_of_threads_with_tables_of_their_own_it_is_not_known_who_waits(void **state)
{
	struct proc_look ret;
	pid_t pid;

	(void)state;
	hold();
	pid = child_start(two_wait_with_own_tables, 3);
	ret = look_until_queued(0, 2);
	assert_true(stranger(&ret)->owner == PROC_NOBODY);
	look_end(&ret);
	/* But a client says its thread. */
	queued(0, pid, shared->tid[2], MODE_EX, 0, 10);
	ret = look_until_queued(1, 2);
	assert_int_equal(ret.owners[ret.waits[0].owner].tid, shared->tid[2]);
	look_end(&ret);
	let_go();
	end(pid);
}

static void test_what_is_too_much_is_cut(void **state)
{
	struct proc_look ret = { .waits = calloc(1, sizeof *waits), .wait_count = 1, .wait_cap = 1, .wait_max = 1, .hold_max = 1, .in_kernel = true };
	pid_t pid, waiter;

	(void)state;
	pid = child_start(two_ranges, 1);
	waiter = child_start(waits_in_a_thread, 3);
	*ret.waits = *asked(0, pid, pid);
	deadlock_proc_look(&ret);
	assert_true(ret.cut);
	assert_int_equal(ret.wait_count, 1);
	assert_int_equal(ret.hold_count, 1);
	look_end(&ret);
	end(waiter);
	end(pid);
}

static void test_a_process_that_has_gone_holds_nothing(void **state)
{
	pid_t pid = child_start(two_ranges, 1);
	struct proc_look ret;

	(void)state;
	end(pid);
	asked(0, pid, pid);
	queued(1, pid, pid, MODE_EX, 0, 10);
	ret = look_at(2, true);
	assert_string_equal(held_by(&ret, 0), "");
	assert_true(ret.waits[1].owner == PROC_NOBODY);
	look_end(&ret);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_process_holds_what_its_table_owns, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_child_that_has_inherited_the_descriptor_holds_nothing, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_flock_is_something_but_no_edge, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_an_ofd_lock_is_something_but_no_edge, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_threads_that_share_a_table_are_one_owner, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_threads_with_tables_of_their_own_are_owners_of_their_own, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_thread_that_is_not_there_stands_for_its_process, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_processes_that_share_a_table_are_one_owner, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_thread_of_another_pid_namespace_is_found_by_its_number_there, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_call_with_a_go_is_found_in_the_kernels_queue, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_wait_that_no_client_made_is_found_and_told_from_the_next_one, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_of_threads_with_tables_of_their_own_it_is_not_known_who_waits, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_is_too_much_is_cut, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_process_that_has_gone_holds_nothing, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
