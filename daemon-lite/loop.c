/* SPDX-License-Identifier: MIT */
/*
 * The agent's event loop: one epoll set, a heap of timers behind one timerfd,
 * and a list of posted functions behind one eventfd.
 *
 * The timerfd runs on CLOCK_BOOTTIME, so a timer that came due while the machine
 * was suspended fires at once after it; an epoll timeout would not count that
 * time. It is set again only when an earlier timer than the one armed appears,
 * so moving a timer away costs no system call, but one idle round.
 *
 * Only loop_post may be called by other threads. The posted list's mutex is held
 * for a few instructions, never across a call.
 */
#include "loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define EVENTS_PER_ROUND 128
#define ROUND_FUNCTIONS 4

struct posted {
	struct posted *next;
	void (*fn)(void *arg);
	void *arg;
};

struct round_function {
	void (*fn)(void *arg);
	void *arg;
};

struct loop {
	int epoll_fd;
	bool stop;

	struct loop_io timer_io;
	uint64_t armed_ns;		/* what the timerfd is set to, 0 = off or fired */
	bool timer_fired;		/* readable until it is set again */
	struct loop_timer **heap;
	unsigned heap_len, heap_size;

	struct loop_io post_io;
	pthread_mutex_t post_mutex;	/* locks post_first, post_last */
	struct posted *post_first, **post_last;

	struct epoll_event events[EVENTS_PER_ROUND];
	int event_count, event_next;	/* of the round that runs */

	struct round_function round[ROUND_FUNCTIONS];
	unsigned round_count;
};

uint64_t loop_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* --- descriptors --- */

int loop_io_add(struct loop *loop, struct loop_io *io)
{
	struct epoll_event event = { .events = io->events, .data.ptr = io };

	return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, io->fd, &event) < 0 ? -errno : 0;
}

int loop_io_mod(struct loop *loop, struct loop_io *io, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = io };

	if (events == io->events)
		return 0;
	if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, io->fd, &event) < 0)
		return -errno;
	io->events = events;
	return 0;
}

void loop_io_del(struct loop *loop, struct loop_io *io)
{
	struct epoll_event event = { 0 };

	epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, io->fd, &event);
	for (int i = loop->event_next; i < loop->event_count; i++)
		if (loop->events[i].data.ptr == io)
			loop->events[i].data.ptr = NULL;
}

/* --- timers: a binary heap, the earliest on top --- */

static void heap_put(struct loop *loop, unsigned at, struct loop_timer *timer)
{
	loop->heap[at] = timer;
	timer->slot = at + 1;
}

static void heap_up(struct loop *loop, unsigned at, struct loop_timer *timer)
{
	while (at > 0 && loop->heap[(at - 1) / 2]->when_ns > timer->when_ns) {
		heap_put(loop, at, loop->heap[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_put(loop, at, timer);
}

static void heap_down(struct loop *loop, unsigned at, struct loop_timer *timer)
{
	for (;;) {
		unsigned child = 2 * at + 1;

		if (child + 1 < loop->heap_len && loop->heap[child + 1]->when_ns < loop->heap[child]->when_ns)
			child++;
		if (child >= loop->heap_len || loop->heap[child]->when_ns >= timer->when_ns)
			break;
		heap_put(loop, at, loop->heap[child]);
		at = child;
	}
	heap_put(loop, at, timer);
}

static void heap_place(struct loop *loop, unsigned at, struct loop_timer *timer)
{
	if (at > 0 && loop->heap[(at - 1) / 2]->when_ns > timer->when_ns)
		heap_up(loop, at, timer);
	else
		heap_down(loop, at, timer);
}

int loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t when_ns)
{
	timer->when_ns = when_ns;
	if (timer->slot) {
		heap_place(loop, timer->slot - 1, timer);
		return 0;
	}
	if (loop->heap_len == loop->heap_size) {
		unsigned size = loop->heap_size ? 2 * loop->heap_size : 64;
		struct loop_timer **heap = reallocarray(loop->heap, size, sizeof(*heap));

		if (!heap)
			return -ENOMEM;
		loop->heap = heap;
		loop->heap_size = size;
	}
	heap_up(loop, loop->heap_len++, timer);
	return 0;
}

void loop_timer_stop(struct loop *loop, struct loop_timer *timer)
{
	struct loop_timer *last;
	unsigned at;

	if (!timer->slot)
		return;
	at = timer->slot - 1;
	timer->slot = 0;
	last = loop->heap[--loop->heap_len];
	if (last != timer)
		heap_place(loop, at, last);
}

static void timers_arm(struct loop *loop)
{
	struct itimerspec at = { 0 };
	uint64_t first = 0;

	if (loop->heap_len > 0)
		first = loop->heap[0]->when_ns ? loop->heap[0]->when_ns : 1;
	if (!loop->timer_fired && (first == 0 || (loop->armed_ns != 0 && loop->armed_ns <= first)))
		return;
	at.it_value.tv_sec = (time_t)(first / 1000000000u);
	at.it_value.tv_nsec = (long)(first % 1000000000u);
	if (timerfd_settime(loop->timer_io.fd, TFD_TIMER_ABSTIME, &at, NULL) < 0) {
		log_error("cannot set the loop's timer: %m");
		return;
	}
	loop->armed_ns = first;
	loop->timer_fired = false;
}

static void timers_fired(struct loop_io *io, uint32_t events)
{
	struct loop *loop = io->arg;

	(void)events;
	loop->timer_fired = true;
	loop->armed_ns = 0;
}

static void timers_run(struct loop *loop)
{
	/* One that sets itself again for a time already past must not keep the descriptors waiting. */
	unsigned most = loop->heap_len;
	uint64_t now;

	if (!loop->heap_len)
		return;
	now = loop_now_ns();
	while (most-- > 0 && loop->heap_len > 0 && loop->heap[0]->when_ns <= now && !loop->stop) {
		struct loop_timer *timer = loop->heap[0];

		loop_timer_stop(loop, timer);
		timer->fn(timer);
	}
}

/* --- functions posted by other threads --- */

int loop_post(struct loop *loop, void (*fn)(void *arg), void *arg)
{
	struct posted *posted = malloc(sizeof(*posted));
	uint64_t one = 1;
	bool first;

	if (!posted)
		return -ENOMEM;
	*posted = (struct posted){ .fn = fn, .arg = arg };
	pthread_mutex_lock(&loop->post_mutex);
	first = !loop->post_first;
	*loop->post_last = posted;
	loop->post_last = &posted->next;
	pthread_mutex_unlock(&loop->post_mutex);
	if (first)
		while (write(loop->post_io.fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	return 0;
}

static struct posted *posted_take(struct loop *loop)
{
	struct posted *list;

	pthread_mutex_lock(&loop->post_mutex);
	list = loop->post_first;
	loop->post_first = NULL;
	loop->post_last = &loop->post_first;
	pthread_mutex_unlock(&loop->post_mutex);
	return list;
}

static void posted_run(struct loop_io *io, uint32_t events)
{
	struct loop *loop = io->arg;
	struct posted *list, *next;
	uint64_t count;

	(void)events;
	while (read(io->fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	for (list = posted_take(loop); list; list = next) {
		next = list->next;
		list->fn(list->arg);
		free(list);
	}
}

/* --- the loop --- */

int loop_new(struct loop **ret_loop)
{
	struct loop *loop = calloc(1, sizeof(*loop));
	int err;

	if (!loop)
		return -ENOMEM;
	pthread_mutex_init(&loop->post_mutex, NULL);
	loop->post_last = &loop->post_first;
	loop->timer_io = (struct loop_io){ .fd = -1, .events = EPOLLIN, .fn = timers_fired, .arg = loop };
	loop->post_io = (struct loop_io){ .fd = -1, .events = EPOLLIN, .fn = posted_run, .arg = loop };
	loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll_fd < 0)
		goto fail_errno;
	loop->timer_io.fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	if (loop->timer_io.fd < 0)
		goto fail_errno;
	loop->post_io.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (loop->post_io.fd < 0)
		goto fail_errno;
	err = loop_io_add(loop, &loop->timer_io);
	if (!err)
		err = loop_io_add(loop, &loop->post_io);
	if (err)
		goto fail;
	*ret_loop = loop;
	return 0;

fail_errno:
	err = -errno;
fail:
	loop_free(loop);
	return err;
}

void loop_free(struct loop *loop)
{
	struct posted *list, *next;

	if (!loop)
		return;
	for (list = posted_take(loop); list; list = next) {
		next = list->next;
		free(list);
	}
	if (loop->timer_io.fd >= 0)
		close(loop->timer_io.fd);
	if (loop->post_io.fd >= 0)
		close(loop->post_io.fd);
	if (loop->epoll_fd >= 0)
		close(loop->epoll_fd);
	pthread_mutex_destroy(&loop->post_mutex);
	free(loop->heap);
	free(loop);
}

void loop_on_round(struct loop *loop, void (*fn)(void *arg), void *arg)
{
	if (loop->round_count == ROUND_FUNCTIONS) {
		log_error("the loop has no room for another function after each round");
		return;
	}
	loop->round[loop->round_count++] = (struct round_function){ .fn = fn, .arg = arg };
}

void loop_stop(struct loop *loop)
{
	loop->stop = true;
}

static void loop_dispatch(struct loop *loop)
{
	for (loop->event_next = 0; loop->event_next < loop->event_count && !loop->stop;) {
		struct epoll_event *event = &loop->events[loop->event_next++];
		struct loop_io *io = event->data.ptr;

		if (io)
			io->fn(io, event->events);
	}
	loop->event_count = 0;
}

int loop_run(struct loop *loop)
{
	loop->stop = false;
	for (;;) {
		int n;

		for (unsigned i = 0; i < loop->round_count; i++)
			loop->round[i].fn(loop->round[i].arg);
		if (loop->stop)
			return 0;
		timers_arm(loop);
		n = epoll_wait(loop->epoll_fd, loop->events, EVENTS_PER_ROUND, -1);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			return -errno;
		}
		loop->event_count = n;
		loop_dispatch(loop);
		timers_run(loop);
	}
}
