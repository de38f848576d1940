/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/klock.c daemon-lite/loop.c daemon-lite/log.c */
/* Waiting in the kernel on threads: real flocks, real processes, and cancellations at every moment. */
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/klock.h"
#include "../../daemon-lite/loop.h"

#define MS 1000000ull

static char path[64];
static struct loop *loop;

static int open_file(void)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static int set_up(void **state)
{
	int fd;

	(void)state;
	strcpy(path, "/tmp/test_klock.XXXXXX");
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0 || loop_new(&loop) < 0)
		return -1;
	close(fd);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	loop_free(loop);
	return unlink(path);
}

static void on_deadline(struct loop_timer *timer)
{
	*(bool *)timer->arg = true;
	loop_stop(loop);
}

/* Runs the loop until somebody stops it; fails after ms. */
static void run_loop(unsigned ms)
{
	bool late = false;
	struct loop_timer timer = { .fn = on_deadline, .arg = &late };

	loop_timer_set(loop, &timer, loop_now_ns() + ms * MS);
	loop_run(loop);
	loop_timer_stop(loop, &timer);
	assert_false(late);
}

struct result {
	int calls, err;
	uint64_t at_ns;
	int *left;
};

static void on_done(void *arg, int err)
{
	struct result *result = arg;

	result->calls++;
	result->err = err;
	result->at_ns = loop_now_ns();
	if (!result->left || --*result->left == 0)
		loop_stop(loop);
}

/* Waits until the kernel shows n waiters for the file. */
static void wait_for_waiters(int n)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	struct stat st;
	char want[64];

	assert_int_equal(stat(path, &st), 0);
	snprintf(want, sizeof(want), ":%llu ", (unsigned long long)st.st_ino);
	for (int i = 0; i < 10000; i++) {
		FILE *f = fopen("/proc/locks", "re");
		char line[256];
		int seen = 0;

		assert_non_null(f);
		while (fgets(line, sizeof(line), f))
			if (strstr(line, "-> FLOCK") && strstr(line, want))
				seen++;
		fclose(f);
		if (seen == n)
			return;
		nanosleep(&pause, NULL);
	}
	fail_msg("the kernel never showed %d waiters", n);
}

static bool is_free(void)
{
	int fd = open_file();
	bool ok = flock(fd, LOCK_EX | LOCK_NB) == 0;

	close(fd);
	return ok;
}

/* --- probing ---------------------------------------------------------------- */

static void test_a_probe_says_what_is_held_and_leaves_nothing(void **state)
{
	int own = open_file(), other = open_file();

	(void)state;
	assert_int_equal(klock_probe(own, MODE_EX), MODE_NONE);
	assert_int_equal(klock_probe(own, MODE_SH), MODE_NONE);
	assert_true(is_free());
	flock(other, LOCK_SH);
	assert_int_equal(klock_probe(own, MODE_EX), MODE_SH);
	assert_int_equal(klock_probe(own, MODE_SH), MODE_NONE);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(klock_probe(own, MODE_EX), MODE_EX);
	assert_int_equal(klock_probe(own, MODE_SH), MODE_EX);
	flock(other, LOCK_UN);
	assert_true(is_free());
	close(own);
	close(other);
	assert_int_equal(klock_probe(own, MODE_EX), -EBADF);
	assert_int_equal(klock_probe(0, MODE_NONE), -EINVAL);
}

/* --- waiting ---------------------------------------------------------------- */

static void test_a_wait_for_a_free_lock_is_done_at_once_and_holds_nothing(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;
	int own = open_file();

	(void)state;
	assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
	run_loop(5000);
	assert_int_equal(result.calls, 1);
	assert_int_equal(result.err, 0);
	assert_true(is_free());
	close(own);
}

static void test_a_shared_wait_passes_readers_and_an_exclusive_one_does_not(void **state)
{
	struct result shared = { 0 }, exclusive = { 0 };
	struct klock_wait *wait;
	int reader = open_file(), a = open_file(), b = open_file();

	(void)state;
	flock(reader, LOCK_SH);
	assert_int_equal(klock_wait_start(loop, a, false, EXTENT_ALL, MODE_SH, on_done, &shared, &wait), 0);
	run_loop(5000);
	assert_int_equal(shared.calls, 1);
	assert_int_equal(klock_wait_start(loop, b, false, EXTENT_ALL, MODE_EX, on_done, &exclusive, &wait), 0);
	wait_for_waiters(1);
	assert_int_equal(exclusive.calls, 0);
	flock(reader, LOCK_UN);
	run_loop(5000);
	assert_int_equal(exclusive.err, 0);
	close(reader);
	close(a);
	close(b);
}

static void test_a_bad_descriptor_ends_the_wait_with_its_error(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;

	(void)state;
	assert_int_equal(klock_wait_start(loop, -1, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
	run_loop(5000);
	assert_int_equal(result.err, -EBADF);
	assert_int_equal(klock_wait_start(loop, 0, false, EXTENT_ALL, MODE_NONE, on_done, &result, &wait), -EINVAL);
}

/* A child that takes the lock and does what it is told; returns its pid when the lock is held. */
static pid_t holder_start(bool map_only)
{
	int pipe_fds[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		int fd = open(path, O_RDWR);

		if (flock(fd, LOCK_EX) < 0)
			_exit(1);
		if (map_only) {
			if (ftruncate(fd, 4096) < 0 || mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
				_exit(1);
			close(fd);
		}
		if (write(pipe_fds[1], "x", 1) != 1)
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

static void test_the_death_of_the_holder_ends_the_wait(void **state)
{
	(void)state;
	for (int mapped = 0; mapped < 2; mapped++) {
		struct result result = { 0 };
		struct klock_wait *wait;
		int own = open_file();
		pid_t pid = holder_start(mapped);

		assert_int_equal(klock_probe(own, MODE_EX), MODE_EX);
		assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
		wait_for_waiters(1);
		end(pid);
		run_loop(5000);
		assert_int_equal(result.err, 0);
		close(own);
	}
}

static void test_a_stopped_holder_still_holds_until_it_is_killed(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;
	int own = open_file();
	pid_t pid = holder_start(false);

	(void)state;
	kill(pid, SIGSTOP);
	assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
	wait_for_waiters(1);
	assert_int_equal(result.calls, 0);
	end(pid);
	run_loop(5000);
	assert_int_equal(result.err, 0);
	close(own);
}

/* --- cancelling -------------------------------------------------------------- */

static void test_a_cancelled_wait_ends_and_holds_nothing(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;
	int own = open_file(), other = open_file();

	(void)state;
	flock(other, LOCK_EX);
	assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_SH, on_done, &result, &wait), 0);
	wait_for_waiters(1);
	klock_wait_cancel(wait);
	klock_wait_cancel(wait);
	run_loop(1000);
	assert_int_equal(result.calls, 1);
	assert_int_equal(result.err, -ECANCELED);
	wait_for_waiters(0);
	flock(other, LOCK_UN);
	assert_true(is_free());
	close(own);
	close(other);
}

static void test_a_cancelled_conversion_has_lost_the_old_lock(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;
	int own = open_file(), other = open_file();

	(void)state;
	flock(own, LOCK_SH);
	flock(other, LOCK_SH);
	assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
	klock_wait_cancel(wait);
	run_loop(1000);
	assert_int_equal(result.err, -ECANCELED);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
	close(own);
	close(other);
}

static void test_no_cancellation_is_lost_however_early_it_comes(void **state)
{
	int own = open_file(), other = open_file();
	unsigned seed = 1;

	(void)state;
	flock(other, LOCK_EX);
	for (int i = 0; i < 2000; i++) {
		struct result result = { 0 };
		struct klock_wait *wait;
		volatile unsigned spin = (unsigned)rand_r(&seed) % 20000;

		assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
		while (spin > 0)
			spin--;
		klock_wait_cancel(wait);
		run_loop(2000);
		assert_int_equal(result.calls, 1);
		assert_int_equal(result.err, -ECANCELED);
	}
	close(own);
	close(other);
}

static void test_a_cancellation_that_races_with_the_lock_says_which_it_was(void **state)
{
	int own = open_file(), other = open_file(), won = 0, cancelled = 0;
	unsigned seed = 2;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		struct result result = { 0 };
		struct klock_wait *wait;
		volatile unsigned spin = (unsigned)rand_r(&seed) % 30000;

		flock(other, LOCK_EX);
		assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
		if (i % 2)
			wait_for_waiters(1);
		flock(other, LOCK_UN);
		while (spin > 0)
			spin--;
		klock_wait_cancel(wait);
		run_loop(2000);
		assert_int_equal(result.calls, 1);
		if (result.err == 0) {
			won++;
		} else {
			cancelled++;
			assert_int_equal(result.err, -ECANCELED);
		}
		assert_true(is_free());
	}
	print_message("the lock won %d, the cancellation %d times\n", won, cancelled);
	close(own);
	close(other);
}

static void test_three_hundred_waits_at_once_all_end(void **state)
{
	enum { COUNT = 300 };
	static struct result results[COUNT];
	struct klock_wait *waits[COUNT];
	int fds[COUNT], other = open_file(), left = COUNT;

	(void)state;
	flock(other, LOCK_EX);
	for (int i = 0; i < COUNT; i++) {
		fds[i] = open_file();
		results[i] = (struct result){ .left = &left };
		assert_int_equal(klock_wait_start(loop, fds[i], false, EXTENT_ALL, MODE_SH, on_done, &results[i], &waits[i]), 0);
	}
	wait_for_waiters(COUNT);
	for (int i = 0; i < COUNT; i += 2)
		klock_wait_cancel(waits[i]);
	flock(other, LOCK_UN);
	run_loop(10000);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(results[i].calls, 1);
		assert_true(results[i].err == 0 || (i % 2 == 0 && results[i].err == -ECANCELED));
		close(fds[i]);
	}
	close(other);
}

/* --- helper calls --------------------------------------------------------------- */

static atomic_int running, most, ran;
static int helpers_left;

static void helper_fn(void *arg)
{
	int now = atomic_fetch_add(&running, 1) + 1, seen = atomic_load(&most);
	sigset_t mask;

	(void)arg;
	while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now))
		;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	if (sigismember(&mask, SIGTERM) && sigismember(&mask, SIGCHLD))
		atomic_fetch_add(&ran, 1);
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	atomic_fetch_sub(&running, 1);
}

static void helper_done(void *arg)
{
	(void)arg;
	if (--helpers_left == 0)
		loop_stop(loop);
}

static void test_helper_calls_run_beside_each_other_and_at_most_64_at_once(void **state)
{
	(void)state;
	helpers_left = 1000;
	for (int i = 0; i < 1000; i++)
		assert_int_equal(helper_run(loop, helper_fn, helper_done, NULL), 0);
	run_loop(30000);
	assert_int_equal(helpers_left, 0);
	assert_int_equal(atomic_load(&ran), 1000);	/* and signals are blocked in them */
	assert_true(atomic_load(&most) <= 64);
	assert_true(atomic_load(&most) > 1);
}

/* --- how fast ----------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void test_the_way_from_the_kernel_to_the_loop_is_short(void **state)
{
	enum { ROUNDS = 300 };
	static double us[ROUNDS];
	int own = open_file();
	_Atomic uint64_t *released = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int go[2], ready[2];
	char byte;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		int fd = open(path, O_RDWR);

		close(go[1]);
		for (;;) {
			if (flock(fd, LOCK_EX) < 0 || write(ready[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1)
				_exit(0);
			nanosleep(&(struct timespec){ .tv_nsec = 300000 }, NULL);	/* the loop sleeps by now */
			atomic_store(released, loop_now_ns());
			flock(fd, LOCK_UN);
			if (read(go[0], &byte, 1) != 1)
				_exit(0);
		}
	}
	close(ready[1]);
	close(go[0]);
	for (int i = 0; i < ROUNDS; i++) {
		struct result result = { 0 };
		struct klock_wait *wait;

		assert_int_equal(read(ready[0], &byte, 1), 1);
		assert_int_equal(klock_wait_start(loop, own, false, EXTENT_ALL, MODE_EX, on_done, &result, &wait), 0);
		wait_for_waiters(1);
		assert_int_equal(write(go[1], "x", 1), 1);
		run_loop(5000);
		us[i] = (double)(result.at_ns - atomic_load(released)) / 1000;
		assert_int_equal(write(go[1], "x", 1), 1);
	}
	qsort(us, ROUNDS, sizeof(us[0]), by_value);
	print_message("unlock elsewhere to done on the loop: median %.1f us, 90 %% %.1f us\n", us[ROUNDS / 2], us[ROUNDS * 9 / 10]);
	close(go[1]);
	close(ready[0]);
	end(pid);
	munmap(released, 4096);
	close(own);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_probe_says_what_is_held_and_leaves_nothing),
		cmocka_unit_test(test_a_wait_for_a_free_lock_is_done_at_once_and_holds_nothing),
		cmocka_unit_test(test_a_shared_wait_passes_readers_and_an_exclusive_one_does_not),
		cmocka_unit_test(test_a_bad_descriptor_ends_the_wait_with_its_error),
		cmocka_unit_test(test_the_death_of_the_holder_ends_the_wait),
		cmocka_unit_test(test_a_stopped_holder_still_holds_until_it_is_killed),
		cmocka_unit_test(test_a_cancelled_wait_ends_and_holds_nothing),
		cmocka_unit_test(test_a_cancelled_conversion_has_lost_the_old_lock),
		cmocka_unit_test(test_no_cancellation_is_lost_however_early_it_comes),
		cmocka_unit_test(test_a_cancellation_that_races_with_the_lock_says_which_it_was),
		cmocka_unit_test(test_three_hundred_waits_at_once_all_end),
		cmocka_unit_test(test_helper_calls_run_beside_each_other_and_at_most_64_at_once),
		cmocka_unit_test(test_the_way_from_the_kernel_to_the_loop_is_short),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
