/* SPDX-License-Identifier: MIT */
/*
 * The agent's event loop: epoll, timers on CLOCK_BOOTTIME, and functions posted
 * by other threads. Our own rather than libuv: sixty lines of epoll are less
 * than libuv's process-wide signal and thread-pool machinery would cost here,
 * and the renewal and kernel helper threads must not share a pool with anything.
 *
 * Not thread-safe but for loop_post().
 */
#ifndef DLOCK_LOOP_H
#define DLOCK_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct loop;

struct loop_io {		/* owned by the caller; zeroed before loop_io_add */
	int fd;
	uint32_t events;	/* EPOLLIN… */
	void (*fn)(struct loop_io *io, uint32_t events);
	void *arg;
};

struct loop_timer {		/* owned by the caller; zeroed before first use */
	uint64_t when_ns;
	void (*fn)(struct loop_timer *timer);
	void *arg;
	unsigned slot;		/* place in the heap + 1; 0 = not set */
};

int loop_new(struct loop **ret_loop);
void loop_free(struct loop *loop);
int loop_io_add(struct loop *loop, struct loop_io *io);
int loop_io_mod(struct loop *loop, struct loop_io *io, uint32_t events);
void loop_io_del(struct loop *loop, struct loop_io *io);	/* also safe from inside any callback: no later event reaches it */
int loop_timer_set(struct loop *loop, struct loop_timer *timer, uint64_t when_ns); /* moves it if set */
void loop_timer_stop(struct loop *loop, struct loop_timer *timer);
/* Runs fn(arg) on the loop's thread; any thread may call. 0 or -ENOMEM. */
int loop_post(struct loop *loop, void (*fn)(void *arg), void *arg);
int loop_run(struct loop *loop);	/* until loop_stop */
void loop_stop(struct loop *loop);
/* Called after each round of events, before sleeping. */
void loop_on_round(struct loop *loop, void (*fn)(void *arg), void *arg);

uint64_t loop_now_ns(void);		/* CLOCK_BOOTTIME */

#endif
