/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/loop.c daemon-lite/log.c */
/* The event loop: descriptors, timers, functions posted by other threads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../../daemon-lite/loop.h"

#define MS 1000000ull

static int set_up(void **state)
{
	struct loop *loop;

	if (loop_new(&loop) < 0)
		return -1;
	*state = loop;
	return 0;
}

static int tear_down(void **state)
{
	loop_free(*state);
	return 0;
}

struct note {
	struct loop *loop;
	struct loop_timer timer;
	int *order, *next;
	int id;
	bool last;
	uint64_t fired_ns;
};

static void note_fired(struct loop_timer *timer)
{
	struct note *note = timer->arg;

	note->fired_ns = loop_now_ns();
	note->order[(*note->next)++] = note->id;
	if (note->last)
		loop_stop(note->loop);
}

static void test_timers_fire_in_the_order_of_their_times(void **state)
{
	enum { COUNT = 200 };
	struct note notes[COUNT] = { 0 };
	int order[COUNT], next = 0;
	uint64_t base = loop_now_ns() + 5 * MS;

	for (int i = 0; i < COUNT; i++) {
		int place = i * 77 % COUNT;	/* 77 and 200 have no common divisor */

		notes[i] = (struct note){ .loop = *state, .order = order, .next = &next, .id = place, .last = place == COUNT - 1 };
		notes[i].timer.fn = note_fired;
		notes[i].timer.arg = &notes[i];
		assert_int_equal(loop_timer_set(*state, &notes[i].timer, base + (uint64_t)place * MS / 20), 0);
	}
	assert_int_equal(loop_run(*state), 0);
	assert_int_equal(next, COUNT);
	for (int i = 0; i < COUNT; i++)
		assert_int_equal(order[i], i);
	for (int i = 0; i < COUNT; i++)
		assert_true(notes[i].fired_ns >= notes[i].timer.when_ns);
}

static void test_a_stopped_timer_never_fires_and_a_moved_one_fires_once(void **state)
{
	struct note a = { .loop = *state, .id = 1 }, b = { .loop = *state, .id = 2 }, end = { .loop = *state, .id = 3, .last = true };
	struct note *all[] = { &a, &b, &end };
	int order[8], next = 0;
	uint64_t now = loop_now_ns();

	for (int i = 0; i < 3; i++) {
		all[i]->order = order;
		all[i]->next = &next;
		all[i]->timer.fn = note_fired;
		all[i]->timer.arg = all[i];
	}
	loop_timer_set(*state, &a.timer, now + 2 * MS);
	loop_timer_set(*state, &b.timer, now + 1 * MS);
	loop_timer_set(*state, &end.timer, now + 30 * MS);
	loop_timer_set(*state, &b.timer, now + 20 * MS);
	loop_timer_stop(*state, &a.timer);
	loop_timer_stop(*state, &a.timer);
	assert_int_equal(loop_run(*state), 0);
	assert_int_equal(next, 2);
	assert_int_equal(order[0], 2);
	assert_int_equal(order[1], 3);
}

struct again {
	struct loop *loop;
	struct loop_timer timer;
	int pipe_fd;
	int count;
};

static void again_fired(struct loop_timer *timer)
{
	struct again *again = timer->arg;

	if (++again->count == 3)
		assert_int_equal(write(again->pipe_fd, "x", 1), 1);
	loop_timer_set(again->loop, timer, 0);
}

static void stop_on_byte(struct loop_io *io, uint32_t events)
{
	char byte;

	assert_true(events & EPOLLIN);
	assert_int_equal(read(io->fd, &byte, 1), 1);
	loop_stop(io->arg);
}

static void test_a_timer_that_is_always_due_does_not_starve_descriptors(void **state)
{
	struct again again = { .loop = *state };
	struct loop_io io = { .events = EPOLLIN, .fn = stop_on_byte, .arg = *state };
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	io.fd = fds[0];
	again.pipe_fd = fds[1];
	again.timer.fn = again_fired;
	again.timer.arg = &again;
	assert_int_equal(loop_io_add(*state, &io), 0);
	loop_timer_set(*state, &again.timer, 0);
	assert_int_equal(loop_run(*state), 0);
	assert_true(again.count >= 3 && again.count < 20);
	loop_timer_stop(*state, &again.timer);
	loop_io_del(*state, &io);
	close(fds[0]);
	close(fds[1]);
}

struct pair {
	struct loop *loop;
	struct loop_io io[2];
	int calls;
};

static void delete_the_other(struct loop_io *io, uint32_t events)
{
	struct pair *pair = io->arg;

	(void)events;
	pair->calls++;
	loop_io_del(pair->loop, &pair->io[0]);
	loop_io_del(pair->loop, &pair->io[1]);
	loop_stop(pair->loop);
}

static void stop_timer(struct loop_timer *timer)
{
	loop_stop(timer->arg);
}

static void test_a_descriptor_removed_in_a_callback_gets_no_later_event(void **state)
{
	struct pair pair = { .loop = *state };
	struct loop_timer end = { .fn = stop_timer, .arg = *state };
	int fds[2][2];

	for (int i = 0; i < 2; i++) {
		assert_int_equal(pipe(fds[i]), 0);
		assert_int_equal(write(fds[i][1], "x", 1), 1);
		pair.io[i] = (struct loop_io){ .fd = fds[i][0], .events = EPOLLIN, .fn = delete_the_other, .arg = &pair };
		assert_int_equal(loop_io_add(*state, &pair.io[i]), 0);
	}
	assert_int_equal(loop_run(*state), 0);
	loop_timer_set(*state, &end, loop_now_ns() + 5 * MS);
	assert_int_equal(loop_run(*state), 0);
	assert_int_equal(pair.calls, 1);
	for (int i = 0; i < 2; i++) {
		close(fds[i][0]);
		close(fds[i][1]);
	}
}

static void test_events_of_a_descriptor_can_be_changed(void **state)
{
	struct loop_io io = { .events = 0, .fn = stop_on_byte, .arg = *state };
	struct loop_timer end = { .fn = stop_timer, .arg = *state };
	char byte;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	io.fd = fds[0];
	assert_int_equal(write(fds[1], "xy", 2), 2);
	assert_int_equal(loop_io_add(*state, &io), 0);
	loop_timer_set(*state, &end, loop_now_ns() + 5 * MS);
	assert_int_equal(loop_run(*state), 0);	/* by the timer: nothing was read */
	assert_int_equal(loop_io_mod(*state, &io, EPOLLIN), 0);
	assert_int_equal(loop_run(*state), 0);
	assert_int_equal(read(fds[0], &byte, 1), 1);
	assert_int_equal(byte, 'y');
	loop_io_del(*state, &io);
	close(fds[0]);
	close(fds[1]);
}

enum { POSTERS = 4, POSTS = 2000 };

struct poster {
	struct loop *loop;
	int last[POSTERS];	/* loop's thread */
	int total;
};

struct post {
	struct poster *to;
	int from, number;
};

static void take_post(void *arg)
{
	struct post *post = arg;

	assert_int_equal(post->number, post->to->last[post->from] + 1);
	post->to->last[post->from] = post->number;
	if (++post->to->total == POSTERS * POSTS)
		loop_stop(post->to->loop);
	free(post);
}

struct poster_thread { struct poster *to; int from; };

static void *post_many(void *arg)
{
	struct poster_thread *self = arg;

	for (int i = 1; i <= POSTS; i++) {
		struct post *post = malloc(sizeof(*post));

		*post = (struct post){ .to = self->to, .from = self->from, .number = i };
		if (loop_post(self->to->loop, take_post, post) < 0)
			abort();
	}
	return NULL;
}

static void test_posted_functions_run_on_the_loop_in_order_and_none_is_lost(void **state)
{
	struct poster poster = { .loop = *state };
	struct poster_thread threads[POSTERS];
	pthread_t ids[POSTERS];

	for (int i = 0; i < POSTERS; i++) {
		threads[i] = (struct poster_thread){ .to = &poster, .from = i };
		assert_int_equal(pthread_create(&ids[i], NULL, post_many, &threads[i]), 0);
	}
	assert_int_equal(loop_run(*state), 0);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(ids[i], NULL);
	assert_int_equal(poster.total, POSTERS * POSTS);
}

static void count_round(void *arg)
{
	(*(int *)arg)++;
}

static void test_functions_after_each_round_run_before_the_loop_sleeps(void **state)
{
	struct loop_timer end = { .fn = stop_timer, .arg = *state };
	int rounds = 0, more = 0;

	loop_on_round(*state, count_round, &rounds);
	loop_on_round(*state, count_round, &more);
	loop_timer_set(*state, &end, loop_now_ns() + 2 * MS);
	assert_int_equal(loop_run(*state), 0);
	assert_true(rounds >= 2 && rounds < 6);
	assert_int_equal(rounds, more);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_timers_fire_in_the_order_of_their_times, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_stopped_timer_never_fires_and_a_moved_one_fires_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_timer_that_is_always_due_does_not_starve_descriptors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_descriptor_removed_in_a_callback_gets_no_later_event, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_events_of_a_descriptor_can_be_changed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_posted_functions_run_on_the_loop_in_order_and_none_is_lost, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_functions_after_each_round_run_before_the_loop_sleeps, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
