/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/klock.c daemon-lite/klock_records.c daemon-lite/spans.c daemon-lite/loop.c daemon-lite/log.c */
/* Record locks as the agent sees them: what a probe finds, against a map of each byte; waits that share a description. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/klock.h"
#include "../../daemon-lite/loop.h"

#define MS 1000000ull

static char path[64];
static struct loop *loop;
static _Atomic unsigned questions;	/* that the kernel was asked by F_OFD_GETLK */

/* In place of libc's, to count. */
int fcntl(int fd, int command, ...)
{
	va_list args;
	void *arg;

	va_start(args, command);
	arg = va_arg(args, void *);
	va_end(args);
	if (command == F_OFD_GETLK)
		questions++;
	return (int)syscall(SYS_fcntl, fd, command, arg);
}

static int open_file(int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static int set_up(void **state)
{
	int fd;

	(void)state;
	strcpy(path, "/tmp/test_klock_records.XXXXXX");
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

static int set_lock(int fd, int command, short type, uint64_t start, uint64_t end)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start,
			      .l_len = (off_t)extent_len((struct extent){ start, end }) };

	return fcntl(fd, command, &lock) < 0 ? errno : 0;
}

static void must_lock(int fd, short type, uint64_t start, uint64_t end)
{
	assert_int_equal(set_lock(fd, F_OFD_SETLK, type, start, end), 0);
}

/* Nobody holds anything, the agent's own description included. */
static bool all_is_free(void)
{
	int fd = open_file(O_RDWR), pid;
	struct lock_span lock;

	assert_int_equal(klock_getlk(fd, EXTENT_ALL, MODE_EX, &lock, &pid), 0);
	close(fd);
	return lock.mode == MODE_NONE;
}

/* --- processes that lock as they are told -------------------------------------- */

enum { OWNERS = 3 };	/* of each process: itself, and two descriptions */

struct order {
	int owner, type;
	uint64_t start, end;
};

struct actor {
	pid_t pid;
	int socket;
};

static void actor_run(int own_socket)
{
	int fds[OWNERS];
	struct order order;

	for (int i = 0; i < OWNERS; i++)
		fds[i] = open(path, O_RDWR);
	while (read(own_socket, &order, sizeof(order)) == sizeof(order)) {
		int r = set_lock(fds[order.owner], order.owner == 0 ? F_SETLK : F_OFD_SETLK, (short)order.type, order.start, order.end);

		if (write(own_socket, &r, sizeof(r)) != sizeof(r))
			break;
	}
	_exit(0);
}

static void actor_start(struct actor *actor)
{
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	actor->pid = fork();
	assert_true(actor->pid >= 0);
	if (actor->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		actor_run(pair[1]);
	}
	close(pair[1]);
	actor->socket = pair[0];
}

/* 0 or the errno. */
static int actor_lock(struct actor *actor, int owner, short type, uint64_t start, uint64_t end)
{
	struct order order = { .owner = owner, .type = type, .start = start, .end = end };
	int r;

	assert_int_equal(write(actor->socket, &order, sizeof(order)), sizeof(order));
	assert_int_equal(read(actor->socket, &r, sizeof(r)), sizeof(r));
	return r;
}

static void actor_end(struct actor *actor)
{
	kill(actor->pid, SIGKILL);
	assert_int_equal(waitpid(actor->pid, NULL, 0), actor->pid);
	close(actor->socket);
}

/* --- probing --------------------------------------------------------------------- */

enum { CELLS = 48, ACTORS = 4 };

/* The line is cut into cells, of one byte or of many; a lock covers whole cells, a question need not. */
struct map {
	uint64_t edge[CELLS + 1];
	enum lock_mode owner[ACTORS * OWNERS][CELLS];
};

static enum lock_mode mode_of(const struct map *map, int cell)
{
	enum lock_mode mode = MODE_NONE;

	for (int i = 0; i < ACTORS * OWNERS; i++)
		mode = mode_max(mode, map->owner[i][cell]);
	return mode;
}

static void cut(struct map *map, unsigned *seed)
{
	bool wide = rand_r(seed) % 2;

	map->edge[0] = 0;
	for (int i = 1; i < CELLS; i++)
		map->edge[i] = map->edge[i - 1] + (wide ? UINT64_C(1) << rand_r(seed) % 57 : 1 + (uint64_t)rand_r(seed) % 3);
	map->edge[CELLS] = EXTENT_END;
}

static uint64_t any_point(const struct map *map, unsigned *seed)
{
	int cell = rand_r(seed) % CELLS;
	uint64_t size = map->edge[cell + 1] - map->edge[cell];

	return rand_r(seed) % 2 ? map->edge[cell] : map->edge[cell] + (((uint64_t)rand_r(seed) << 31) ^ (uint64_t)rand_r(seed)) % size;
}

static struct extent any_extent(const struct map *map, unsigned *seed)
{
	uint64_t a = any_point(map, seed), b = any_point(map, seed);

	if (rand_r(seed) % 4 == 0)
		b = EXTENT_END;
	if (a == b)
		b = a + 1;
	return a < b ? (struct extent){ a, b } : (struct extent){ b, a };
}

/* What the probe has to say, by looking at each cell. */
static void expect(const struct map *map, struct extent at, struct extent bounds, struct lock_spans *spans, struct extent *seen)
{
	*seen = bounds;
	for (int i = 0; i < CELLS; i++) {
		struct extent cell = { map->edge[i], map->edge[i + 1] };
		enum lock_mode mode = mode_of(map, i);

		if (mode == MODE_NONE)
			continue;
		if (extent_overlaps(cell, at))
			assert_int_equal(lock_spans_add(spans, extent_common(cell, at), mode), 0);
		if (cell.start < at.start && cell.end > seen->start)
			seen->start = cell.end < at.start ? cell.end : at.start;
		if (cell.end > at.end && cell.start < seen->end)
			seen->end = cell.start > at.end ? cell.start : at.end;
	}
}

static void compare(int fd, const struct map *map, struct extent at, struct extent bounds)
{
	struct lock_spans want = { 0 }, got = { 0 };
	struct extent want_seen, got_seen;

	expect(map, at, bounds, &want, &want_seen);
	assert_int_equal(klock_probe_records(fd, at, bounds, &got, &got_seen), 0);
	assert_int_equal(got.count, want.count);
	for (size_t i = 0; i < got.count; i++) {
		assert_true(extent_equal(got.at[i].at, want.at[i].at));
		assert_int_equal(got.at[i].mode, want.at[i].mode);
		assert_int_equal(got.at[i].fence, 0);
	}
	assert_true(extent_equal(got_seen, want_seen));
	lock_spans_free(&want);
	lock_spans_free(&got);
}

static void test_a_probe_finds_what_a_map_of_all_bytes_shows(void **state)
{
	struct actor actors[ACTORS];
	unsigned seed = (unsigned)time(NULL);
	static const int open_modes[] = { O_RDONLY, O_WRONLY, O_RDWR };
	int refused = 0;

	(void)state;
	if (getenv("SEED"))
		seed = (unsigned)atoi(getenv("SEED"));
	print_message("SEED=%u\n", seed);
	for (int i = 0; i < ACTORS; i++)
		actor_start(&actors[i]);
	for (int round = 0; round < 60; round++) {
		static struct map map;
		int fd = open_file(open_modes[round % 3]), writers = rand_r(&seed) % 4;

		memset(&map, 0, sizeof(map));
		cut(&map, &seed);
		for (int step = 0; step < 60; step++) {
			int owner = rand_r(&seed) % (ACTORS * OWNERS), first = rand_r(&seed) % CELLS, last = first + rand_r(&seed) % 12;
			short type = rand_r(&seed) % 5 == 0 ? F_UNLCK : rand_r(&seed) % 4 < writers ? F_WRLCK : F_RDLCK;
			int r;

			if (last >= CELLS || rand_r(&seed) % 30 == 0)
				last = CELLS - 1;
			r = actor_lock(&actors[owner / OWNERS], owner % OWNERS, type, map.edge[first], map.edge[last + 1]);
			if (r == 0)
				for (int i = first; i <= last; i++)
					map.owner[owner][i] = type == F_WRLCK ? MODE_EX : type == F_RDLCK ? MODE_SH : MODE_NONE;
			else
				assert_int_equal(r, EAGAIN);
			refused += r != 0;
			for (int i = 0; i < 4; i++) {
				struct extent at = any_extent(&map, &seed), more = any_extent(&map, &seed);
				struct extent bounds = { at.start < more.start ? at.start : more.start, at.end > more.end ? at.end : more.end };

				compare(fd, &map, at, i == 0 ? EXTENT_ALL : i == 1 ? at : bounds);
			}
			compare(fd, &map, EXTENT_ALL, EXTENT_ALL);
		}
		close(fd);
		for (int i = 0; i < ACTORS * OWNERS; i++)
			assert_int_equal(actor_lock(&actors[i / OWNERS], i % OWNERS, F_UNLCK, 0, EXTENT_END), 0);
	}
	print_message("%d of 3600 locks were refused\n", refused);
	for (int i = 0; i < ACTORS; i++)
		actor_end(&actors[i]);
	assert_true(all_is_free());
}

static void test_the_own_locks_on_the_description_are_not_seen(void **state)
{
	int own = open_file(O_RDWR), pid;
	struct lock_spans spans = { 0 };
	struct extent seen;
	struct lock_span lock;

	(void)state;
	must_lock(own, F_WRLCK, 10, 20);
	assert_int_equal(klock_probe_records(own, (struct extent){ 12, 14 }, EXTENT_ALL, &spans, &seen), 0);
	assert_int_equal(spans.count, 0);
	assert_true(extent_equal(seen, EXTENT_ALL));
	assert_int_equal(klock_getlk(own, EXTENT_ALL, MODE_EX, &lock, &pid), 0);
	assert_int_equal(lock.mode, MODE_NONE);
	close(own);
}

static void test_the_first_lock_in_the_way_is_told_with_its_owner(void **state)
{
	int own = open_file(O_RDONLY), pid = 0;
	struct actor actor;
	struct lock_span lock;

	(void)state;
	actor_start(&actor);
	assert_int_equal(actor_lock(&actor, 0, F_RDLCK, 100, 200), 0);
	assert_int_equal(actor_lock(&actor, 1, F_WRLCK, 300, EXTENT_END), 0);
	assert_int_equal(klock_getlk(own, (struct extent){ 150, 250 }, MODE_EX, &lock, &pid), 0);
	assert_int_equal(lock.mode, MODE_SH);
	assert_true(extent_equal(lock.at, (struct extent){ 100, 200 }));
	assert_int_equal(pid, actor.pid);
	assert_int_equal(klock_getlk(own, (struct extent){ 0, 300 }, MODE_SH, &lock, &pid), 0);
	assert_int_equal(lock.mode, MODE_NONE);
	assert_int_equal(klock_getlk(own, EXTENT_ALL, MODE_SH, &lock, &pid), 0);
	assert_int_equal(lock.mode, MODE_EX);
	assert_true(extent_equal(lock.at, (struct extent){ 300, EXTENT_END }));
	assert_int_equal(pid, -1);
	actor_end(&actor);
	close(own);
}

static void test_what_a_process_owns_is_its_posix_locks_only(void **state)
{
	int own = open_file(O_RDONLY);
	const struct extent all = EXTENT_ALL, first = { 0, 100 };
	struct actor actor, other;

	(void)state;
	actor_start(&actor);
	actor_start(&other);
	assert_int_equal(actor_lock(&other, 0, F_RDLCK, 0, 50), 0);
	assert_int_equal(actor_lock(&actor, 1, F_WRLCK, 60, 70), 0);
	assert_int_equal(klock_owner_mode(own, all, actor.pid), MODE_NONE);
	assert_int_equal(actor_lock(&actor, 0, F_RDLCK, 80, 200), 0);
	assert_int_equal(klock_owner_mode(own, all, actor.pid), MODE_SH);
	assert_int_equal(actor_lock(&actor, 0, F_WRLCK, 1000, 1001), 0);
	assert_int_equal(klock_owner_mode(own, all, actor.pid), MODE_EX);
	assert_int_equal(klock_owner_mode(own, first, actor.pid), MODE_SH);
	assert_int_equal(klock_owner_mode(own, all, other.pid), MODE_SH);
	assert_int_equal(klock_owner_mode(-1, all, other.pid), MODE_EX);
	actor_end(&actor);
	actor_end(&other);
	close(own);
}

static void test_whether_others_hold_is_not_said_of_ones_own_locks(void **state)
{
	int own = open_file(O_RDONLY);
	const struct extent all = EXTENT_ALL, middle = { 65, 90 };
	struct actor actor, other;

	(void)state;
	actor_start(&actor);
	actor_start(&other);
	assert_false(klock_others_hold(own, all, MODE_EX, actor.pid));
	assert_int_equal(actor_lock(&actor, 0, F_WRLCK, 60, 70), 0);
	assert_int_equal(actor_lock(&actor, 0, F_RDLCK, 80, 100), 0);
	assert_false(klock_others_hold(own, all, MODE_EX, actor.pid));
	assert_true(klock_others_hold(own, all, MODE_EX, other.pid));
	assert_true(klock_others_hold(own, all, MODE_EX, 0));
	assert_int_equal(actor_lock(&other, 0, F_RDLCK, 200, 201), 0);
	assert_true(klock_others_hold(own, all, MODE_EX, actor.pid));
	assert_false(klock_others_hold(own, all, MODE_SH, actor.pid));
	assert_false(klock_others_hold(own, middle, MODE_EX, actor.pid));
	actor_end(&actor);
	actor_end(&other);
	close(own);
}

static void test_what_is_too_much_to_ask_is_answered_as_a_whole(void **state)
{
	int own = open_file(O_RDONLY);
	const struct extent at = { 0, 1000 }, beside = { 1000, 1001 };
	struct klock_brief brief = { 0, 20 };	/* its time is over, and so it is after twenty questions */
	struct lock_spans spans = { 0 };
	struct extent seen;
	struct actor actor;
	enum lock_mode all;

	(void)state;
	actor_start(&actor);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(actor_lock(&actor, 0, F_RDLCK, 2 * i, 2 * i + 1), 0);
	questions = 0;
	assert_int_equal(klock_probe_briefly(own, at, EXTENT_ALL, &brief, &spans, &seen, &all), 0);
	assert_true(questions <= 22);
	assert_true(klock_brief_is_over(&brief));
	assert_int_equal(all, MODE_SH);
	assert_int_equal(spans.count, 0);
	assert_true(extent_equal(seen, at));
	assert_int_equal(actor_lock(&actor, 0, F_WRLCK, 500, 501), 0);
	assert_int_equal(klock_probe_briefly(own, at, EXTENT_ALL, &brief, &spans, &seen, &all), 0);
	assert_int_equal(all, MODE_EX);
	assert_int_equal(klock_probe_briefly(own, beside, EXTENT_ALL, &brief, &spans, &seen, &all), 0);
	assert_int_equal(all, MODE_NONE);
	klock_brief_begin(&brief);
	assert_int_equal(klock_probe_briefly(own, at, at, &brief, &spans, &seen, &all), 0);
	assert_int_equal(all, MODE_NONE);
	assert_int_equal(spans.count, 101);
	lock_spans_free(&spans);
	actor_end(&actor);
	close(own);
}

static void test_a_question_that_makes_no_sense_is_refused(void **state)
{
	int own = open_file(O_RDONLY), pid;
	const struct extent empty = { 5, 5 }, beyond = { 5, EXTENT_END + 1 }, fine = { 5, 6 }, inside = { 0, 6 };
	struct lock_spans spans = { 0 };
	struct lock_span lock;
	struct extent seen;

	(void)state;
	assert_int_equal(klock_getlk(own, empty, MODE_EX, &lock, &pid), -EINVAL);
	assert_int_equal(klock_getlk(own, beyond, MODE_EX, &lock, &pid), -EINVAL);
	assert_int_equal(klock_getlk(own, fine, MODE_NONE, &lock, &pid), -EINVAL);
	assert_int_equal(klock_getlk(-1, fine, MODE_EX, &lock, &pid), -EBADF);
	assert_int_equal(klock_probe_records(own, empty, EXTENT_ALL, &spans, &seen), -EINVAL);
	assert_int_equal(klock_probe_records(own, inside, fine, &spans, &seen), -EINVAL);
	assert_int_equal(klock_probe_records(-1, fine, inside, &spans, &seen), -EBADF);
	close(own);
}

/* With `owners` actors that take turns, one byte each, two apart. */
static void many_locks(int owners, unsigned most)
{
	enum { SIDE = 1000 };
	struct actor actors[ACTORS];
	int own = open_file(O_RDONLY);
	const struct extent gap = { 2 * SIDE, 2 * SIDE + 1000 };
	struct lock_spans spans = { 0 };
	struct extent seen;

	for (int i = 0; i < owners; i++)
		actor_start(&actors[i]);
	for (int i = 0; i < SIDE; i++) {
		assert_int_equal(actor_lock(&actors[i % owners], i % OWNERS, F_WRLCK, 2 * (uint64_t)i, 2 * (uint64_t)i + 1), 0);
		assert_int_equal(actor_lock(&actors[(i + 1) % owners], i % OWNERS, F_RDLCK, gap.end + 2 * (uint64_t)i,
					    gap.end + 2 * (uint64_t)i + 1), 0);
	}
	questions = 0;
	assert_int_equal(klock_probe_records(own, (struct extent){ gap.start + 500, gap.start + 501 }, EXTENT_ALL, &spans, &seen), 0);
	print_message("%d owners: %u questions\n", owners * OWNERS, questions);
	assert_true(questions <= most);
	assert_int_equal(spans.count, 0);
	assert_true(extent_equal(seen, (struct extent){ gap.start - 1, gap.end }));
	/* Between two of them. */
	questions = 0;
	assert_int_equal(klock_probe_records(own, (struct extent){ 501, 502 }, EXTENT_ALL, &spans, &seen), 0);
	print_message("%d owners, amid: %u questions\n", owners * OWNERS, questions);
	assert_true(questions <= most);
	assert_true(extent_equal(seen, (struct extent){ 501, 502 }));
	/* All of them: two questions each. */
	questions = 0;
	assert_int_equal(klock_probe_records(own, EXTENT_ALL, EXTENT_ALL, &spans, &seen), 0);
	assert_int_equal(spans.count, 2 * SIDE);
	assert_true(questions <= 4 * SIDE + 2);
	lock_spans_free(&spans);
	for (int i = 0; i < owners; i++)
		actor_end(&actors[i]);
	close(own);
}

static void test_a_thousand_locks_on_each_side_are_not_walked_over(void **state)
{
	(void)state;
	many_locks(1, 60);
	many_locks(ACTORS, 60);
}

static void test_the_free_room_of_a_free_file_costs_three_questions(void **state)
{
	int own = open_file(O_RDONLY);
	struct lock_spans spans = { 0 };
	struct extent seen;

	(void)state;
	questions = 0;
	assert_int_equal(klock_probe_records(own, (struct extent){ 1000, 1001 }, EXTENT_ALL, &spans, &seen), 0);
	assert_int_equal(questions, 3);
	assert_true(extent_equal(seen, EXTENT_ALL));
	close(own);
}

/* --- waiting ----------------------------------------------------------------------- */

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
	int *left;
};

static void on_done(void *arg, int err)
{
	struct result *result = arg;

	result->calls++;
	result->err = err;
	if (!result->left || --*result->left == 0)
		loop_stop(loop);
}

static struct klock_wait *wait_start(int fd, uint64_t start, uint64_t end, enum lock_mode mode, struct result *result)
{
	struct klock_wait *wait;

	assert_int_equal(klock_wait_start(loop, fd, true, (struct extent){ start, end }, mode, on_done, result, &wait), 0);
	return wait;
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
			if (strstr(line, "-> OFDLCK") && strstr(line, want))
				seen++;
		fclose(f);
		if (seen == n)
			return;
		nanosleep(&pause, NULL);
	}
	fail_msg("the kernel never showed %d waiters", n);
}

static void test_a_wait_for_a_free_range_is_done_at_once_and_holds_nothing(void **state)
{
	static const int open_modes[] = { O_RDONLY, O_WRONLY, O_RDWR };

	(void)state;
	for (int i = 0; i < 6; i++) {
		struct result result = { 0 };
		int own = open_file(open_modes[i / 2]);

		wait_start(own, 10, i == 0 ? EXTENT_END : 20, i % 2 ? MODE_SH : MODE_EX, &result);
		run_loop(5000);
		assert_int_equal(result.calls, 1);
		assert_int_equal(result.err, 0);
		assert_true(all_is_free());
		close(own);
	}
}

static void test_a_wait_ends_when_its_range_is_free_and_no_other_counts(void **state)
{
	struct result result = { 0 };
	int own = open_file(O_RDWR), other = open_file(O_RDWR), third = open_file(O_RDWR);

	(void)state;
	must_lock(other, F_WRLCK, 0, 10);
	must_lock(other, F_WRLCK, 20, EXTENT_END);
	must_lock(third, F_RDLCK, 12, 18);
	wait_start(own, 10, 20, MODE_SH, &result);
	run_loop(5000);
	assert_int_equal(result.err, 0);
	wait_start(own, 10, 20, MODE_EX, &result);
	wait_for_waiters(1);
	must_lock(other, F_UNLCK, 0, EXTENT_END);
	wait_for_waiters(1);
	assert_int_equal(result.calls, 1);
	must_lock(third, F_UNLCK, 0, EXTENT_END);
	run_loop(5000);
	assert_int_equal(result.calls, 2);
	assert_true(all_is_free());
	close(own);
	close(other);
	close(third);
}

static void test_waits_of_one_description_do_not_disturb_each_other(void **state)
{
	struct result a = { 0 }, b = { 0 }, c = { 0 };
	int own = open_file(O_RDWR), other = open_file(O_RDWR);

	(void)state;
	must_lock(other, F_WRLCK, 0, 30);
	wait_start(own, 0, 15, MODE_EX, &a);
	wait_start(own, 10, 20, MODE_SH, &b);
	wait_start(own, 5, 30, MODE_EX, &c);
	wait_for_waiters(1);		/* the others ask: to the kernel two would be one owner that waits and has */
	must_lock(other, F_UNLCK, 10, 20);
	run_loop(5000);
	assert_int_equal(b.calls, 1);
	must_lock(other, F_RDLCK, 10, 12);
	must_lock(other, F_UNLCK, 20, 30);
	wait_for_waiters(1);
	must_lock(other, F_UNLCK, 0, 10);
	wait_for_waiters(1);
	assert_int_equal(a.calls + c.calls, 0);
	must_lock(other, F_UNLCK, 0, EXTENT_END);
	while (a.calls + c.calls < 2)
		run_loop(5000);
	assert_int_equal(a.err + b.err + c.err, 0);
	assert_true(all_is_free());
	close(own);
	close(other);
}

static void test_a_description_that_cannot_take_the_lock_asks_for_it(void **state)
{
	static const struct { int open_mode; enum lock_mode mode; } cases[] = { { O_RDONLY, MODE_EX }, { O_WRONLY, MODE_SH } };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct result result = { 0 };
		int own = open_file(cases[i].open_mode), other = open_file(O_RDWR);

		must_lock(other, F_WRLCK, 0, 10);
		wait_start(own, 5, 6, cases[i].mode, &result);
		questions = 0;
		for (int tries = 0; questions < 3 && tries < 5000; tries++)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		assert_in_range(questions, 3, 100);
		wait_for_waiters(0);
		assert_int_equal(result.calls, 0);
		must_lock(other, F_UNLCK, 0, 10);
		run_loop(5000);
		assert_int_equal(result.err, 0);

		must_lock(other, F_WRLCK, 0, 10);
		klock_wait_cancel(wait_start(own, 5, 6, cases[i].mode, &result));
		run_loop(1000);
		assert_int_equal(result.calls, 2);
		assert_int_equal(result.err, -ECANCELED);
		close(own);
		close(other);
	}
}

/* By its death, and by its unlocking: for both kinds of owners. */
static void test_the_end_of_the_holder_ends_the_wait(void **state)
{
	int own = open_file(O_RDWR);

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct result result = { 0 };
		struct actor actor;

		actor_start(&actor);
		assert_int_equal(actor_lock(&actor, i % 2, F_WRLCK, 5, EXTENT_END), 0);
		wait_start(own, 0, 100, MODE_EX, &result);
		wait_for_waiters(1);
		if (i < 2)
			assert_int_equal(actor_lock(&actor, i % 2, F_UNLCK, 0, EXTENT_END), 0);
		else
			kill(actor.pid, SIGKILL);
		run_loop(5000);
		assert_int_equal(result.err, 0);
		actor_end(&actor);
	}
	assert_true(all_is_free());
	close(own);
}

static void test_a_bad_descriptor_or_range_ends_with_its_error(void **state)
{
	struct result result = { 0 };
	struct klock_wait *wait;

	(void)state;
	wait_start(-1, 0, 1, MODE_EX, &result);
	run_loop(5000);
	assert_int_equal(result.err, -EBADF);
	assert_int_equal(klock_wait_start(loop, 0, true, (struct extent){ 1, 1 }, MODE_EX, on_done, &result, &wait), -EINVAL);
}

static void test_no_cancellation_is_lost_and_none_leaves_a_lock(void **state)
{
	int own = open_file(O_RDWR), other = open_file(O_RDWR), won = 0;
	unsigned seed = 3;

	(void)state;
	for (int i = 0; i < 1500; i++) {
		struct result result = { 0 };
		struct klock_wait *wait;
		volatile unsigned spin = (unsigned)rand_r(&seed) % 30000;

		must_lock(other, F_WRLCK, 0, 10);
		wait = wait_start(own, 0, 10, MODE_SH, &result);
		if (i % 3 == 0)
			wait_for_waiters(1);
		if (i % 3 != 1)
			must_lock(other, F_UNLCK, 0, 10);
		while (spin > 0)
			spin--;
		klock_wait_cancel(wait);
		run_loop(2000);
		assert_int_equal(result.calls, 1);
		assert_true(result.err == -ECANCELED || (result.err == 0 && i % 3 != 1));
		won += result.err == 0;
		must_lock(other, F_UNLCK, 0, 10);
		assert_true(all_is_free());
	}
	print_message("the lock won %d of 1500 times\n", won);
	close(own);
	close(other);
}

static void test_two_hundred_overlapping_waits_of_one_description_all_end_and_leave_nothing(void **state)
{
	enum { COUNT = 200 };
	static struct result results[COUNT];
	struct klock_wait *waits[COUNT];
	int own = open_file(O_RDWR), other = open_file(O_RDWR);
	unsigned seed = 4;

	(void)state;
	for (int round = 0; round < 5; round++) {
		int left = COUNT;

		must_lock(other, F_WRLCK, 0, 1000);
		for (int i = 0; i < COUNT; i++) {
			uint64_t start = (uint64_t)rand_r(&seed) % 900;

			results[i] = (struct result){ .left = &left };
			waits[i] = wait_start(own, start, start + 1 + (uint64_t)rand_r(&seed) % 100, rand_r(&seed) % 2 ? MODE_SH : MODE_EX, &results[i]);
		}
		wait_for_waiters(1);
		for (int i = 0; i < COUNT; i += 4)
			klock_wait_cancel(waits[i]);
		for (uint64_t i = 0; i < 1000; i += 10)
			must_lock(other, F_UNLCK, i, i + 10);
		run_loop(10000);
		for (int i = 0; i < COUNT; i++) {
			assert_int_equal(results[i].calls, 1);
			assert_true(results[i].err == 0 || (i % 4 == 0 && results[i].err == -ECANCELED));
		}
		assert_true(all_is_free());
	}
	close(own);
	close(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_probe_finds_what_a_map_of_all_bytes_shows),
		cmocka_unit_test(test_the_own_locks_on_the_description_are_not_seen),
		cmocka_unit_test(test_the_first_lock_in_the_way_is_told_with_its_owner),
		cmocka_unit_test(test_what_a_process_owns_is_its_posix_locks_only),
		cmocka_unit_test(test_whether_others_hold_is_not_said_of_ones_own_locks),
		cmocka_unit_test(test_what_is_too_much_to_ask_is_answered_as_a_whole),
		cmocka_unit_test(test_a_question_that_makes_no_sense_is_refused),
		cmocka_unit_test(test_a_thousand_locks_on_each_side_are_not_walked_over),
		cmocka_unit_test(test_the_free_room_of_a_free_file_costs_three_questions),
		cmocka_unit_test(test_a_wait_for_a_free_range_is_done_at_once_and_holds_nothing),
		cmocka_unit_test(test_a_wait_ends_when_its_range_is_free_and_no_other_counts),
		cmocka_unit_test(test_waits_of_one_description_do_not_disturb_each_other),
		cmocka_unit_test(test_a_description_that_cannot_take_the_lock_asks_for_it),
		cmocka_unit_test(test_the_end_of_the_holder_ends_the_wait),
		cmocka_unit_test(test_a_bad_descriptor_or_range_ends_with_its_error),
		cmocka_unit_test(test_no_cancellation_is_lost_and_none_leaves_a_lock),
		cmocka_unit_test(test_two_hundred_overlapping_waits_of_one_description_all_end_and_leave_nothing),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
