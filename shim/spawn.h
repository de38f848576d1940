/* SPDX-License-Identifier: MIT */
/*
 * Starting an agent without the program noticing. Any thread; blocks for a fork
 * and no longer; signals are blocked meanwhile.
 */
#ifndef DLOCK_SHIM_SPAWN_H
#define DLOCK_SHIM_SPAWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "state.h"

struct spawn {			/* one start that is watched; zeroed = none */
	pid_t pid;
	int64_t since_ns;	/* the start's time stamp, of the runtime directory's filesystem */
	_Atomic int *exec_error; /* shared with the child: 0 or an errno */
};

enum spawn_result {
	SPAWN_STARTED,	/* *ret_spawn is set: watch it */
	SPAWN_OTHERS,	/* somebody else is starting one, or did within the last second */
	SPAWN_FAILED,	/* an agent was started and said that it cannot: text */
	SPAWN_CANNOT,	/* this process cannot start one: text */
};

/* Starts an agent for the state's runtime directory. text receives one sentence. */
enum spawn_result spawn_agent(const struct shim_state *state, struct spawn *ret_spawn, char *text, size_t size);

/* Whether the agent's process has ended. */
bool spawn_ended(const struct spawn *spawn);

/* Why it ended, if it said so (or could not be executed). */
bool spawn_reason(const struct shim_state *state, const struct spawn *spawn, char *text, size_t size);

/* Frees what is watched; zeroed is fine. */
void spawn_forget(struct spawn *spawn);

#endif
