/* SPDX-License-Identifier: MIT */
/* Whether a lock call is the kernel's alone or the agent's matter too. */
#ifndef DLOCK_SHIM_DECIDE_H
#define DLOCK_SHIM_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "state.h"

enum decision {
	DECIDE_KERNEL,	/* the real call, untouched */
	DECIDE_AGENT,	/* ask the agent; *ret_stamp: of the rules that said so, 0 = none did */
	DECIDE_REFUSE,	/* it cannot be known: ENOLCK; logged */
	DECIDE_EINTR,	/* a signal came while the rules were being made */
};

/*
 * Decides for the descriptor fd. Usually one readlink and one stat, and no
 * change of anything; when the rules are missing or old, has the agent compile
 * them, which waits (bounded as in reach.h). frame: see left.h. *ret_state is
 * the state that decided.
 */
enum decision decide(int fd, bool bounded, uintptr_t frame, struct shim_state **ret_state, uint64_t *ret_stamp);

#endif
