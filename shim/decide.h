/* SPDX-License-Identifier: MIT */
/* Whether a lock call is the kernel's alone or the agent's matter too. */
#ifndef DLOCK_SHIM_DECIDE_H
#define DLOCK_SHIM_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "standing.h"
#include "state.h"

enum decision {
	DECIDE_KERNEL,	/* the real call, untouched */
	DECIDE_AGENT,	/* ask the agent, unless there is a standing GO */
	DECIDE_REFUSE,	/* it cannot be known: ENOLCK; logged */
	DECIDE_EINTR,	/* a signal came while the rules were being made */
};

struct decided {
	struct shim_state *state;	/* the one that decided */
	uint64_t stamp;			/* of the rules that said so; 0 = none did */
	bool standing;			/* there is a standing GO for the mode asked: look */
	struct standing_look look;
};

/* How it is asked. */
#define DECIDE_BOUNDED 1u	/* for a call that does not wait, see reach.h */
#define DECIDE_CANCELLABLE 2u	/* for one that is a cancellation point */
#define DECIDE_RECORDS 4u	/* a record lock; else a flock */

/*
 * Decides for the descriptor fd and the mode. Usually one readlink and one stat,
 * and no change of anything; when the rules are missing or old, has the agent compile
 * them, which waits. how: DECIDE_*; frame: see left.h.
 */
enum decision decide(int fd, enum lock_mode mode, unsigned how, uintptr_t frame, struct decided *ret_decided);

#endif
