/* SPDX-License-Identifier: MIT */
/*
 * An agent that answers, whatever it takes: connecting, starting one, trying
 * again until a deadline. Any thread; waits.
 */
#ifndef DLOCK_SHIM_REACH_H
#define DLOCK_SHIM_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "left.h"
#include "spawn.h"
#include "state.h"

struct reach {			/* of one lock call, over all its connections; see reach_begin() */
	const struct shim_state *state;
	bool bounded;		/* the call is non-blocking: an end after REACH_BOUNDED_NS, and no EINTR */
	int fd;			/* the descriptor to lock, -1 = none */
	uintptr_t frame;	/* of the call, for left.h */
	bool was_connected;	/* an agent has answered in this call */
	uint64_t since_ns;	/* CLOCK_MONOTONIC: nobody answers since then; 0 = connected or not tried */
	uint64_t trouble_ns;	/* CLOCK_MONOTONIC: the first time that nobody answered or a connection broke; 0 = never */
	uint64_t nap_ns;	/* the last pause */
	unsigned starts;	/* agents started in this call that ended at once */
	bool complained;
	bool cancellable;	/* waits are cancellation points; then it runs in a cancel_scope() whose end calls reach_abandon() */
	int open_fd;		/* the one descriptor that this holds open: a connection, or the timer of a pause; -1 = none */
	struct left before;	/* what was written down before it */
	struct spawn spawn;
};

#define REACH_BOUNDED_NS UINT64_C(2000000000)
#define REACH_START_NS UINT64_C(3000000000)

/* fd: the descriptor to lock, -1 for none. */
void reach_begin(struct reach *reach, const struct shim_state *state, int fd, bool bounded, uintptr_t frame);

/*
 * Connects; reach_close() ends it. Returns 0, -EINTR (a signal, without SA_RESTART; never when
 * bounded), -ENOTSUP (nobody answers, and fd is no regular file or directory:
 * the kernel's alone anyway) or -ENOLCK; that one has been logged.
 */
int reach_agent(struct reach *reach, int *ret_socket);

/* Closes the connection. */
void reach_close(struct reach *reach);

/* Pauses before a connection that broke is made again, a little longer each time. 0 or -EINTR. */
int reach_pause(struct reach *reach);

/* Whether the time of a bounded call is over. */
bool reach_is_late(const struct reach *reach);

void reach_end(struct reach *reach);

/* In place of reach_end() when the thread is cancelled in the middle. */
void reach_abandon(struct reach *reach);

/* Logs why a lock call fails: "cannot lock FILE: " why and more (may be NULL). */
void reach_complain(const struct reach *reach, const char *why, const char *more);

#endif
