/* SPDX-License-Identifier: MIT */
/*
 * Descriptors left open by a siglongjmp out of a wait. No cleanup runs then, so
 * each wait writes down its descriptor in thread-local memory, and a later call
 * of the same thread closes what is still written there.
 */
#ifndef DLOCK_SHIM_LEFT_H
#define DLOCK_SHIM_LEFT_H

#include <stdbool.h>
#include <stdint.h>

struct left {
	int fd;			/* 0 = nothing written down */
	bool timer;		/* a timerfd; else a socket */
	uint64_t cookie;	/* tells our descriptor from a later one with its number */
	uintptr_t frame;	/* of the call that waits: see left.c */
};

/* Writes down the socket fd of a call whose frame address is given. Returns what was written there, for left_restore(). */
struct left left_note_socket(int fd, uintptr_t frame);
/* The same for a timerfd, told again by the nanoseconds of its interval. */
struct left left_note_timer(int fd, uint64_t interval_ns, uintptr_t frame);
void left_restore(struct left before);

/* Closes what an abandoned call of this thread left. `frame`: the address of the caller's frame. */
void left_close(uintptr_t frame);

#endif
