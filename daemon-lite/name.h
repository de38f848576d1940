/* SPDX-License-Identifier: MIT */
/* What name.c and name_kernel.c share. */
#ifndef DLOCK_NAME_H
#define DLOCK_NAME_H

#include "agent.h"

struct name_wait {		/* a helper thread that waits for a lock to go */
	struct name *name;
	unsigned slot;		/* the cover's number for it */
	bool wanted;		/* started and not cancelled */
	struct klock_wait *running;
	struct extent at;
	enum lock_mode mode;
};

/* --- name.c --- */

void name_close_file(struct name *name, struct name_file *file);

/* --- name_kernel.c --- */

/* Answers the cover's questions: at once, or later from a helper thread. */
void name_probe_now(struct name *name);
void name_wait_start(struct name *name, unsigned slot, struct extent at, enum lock_mode mode);
void name_wait_cancel(struct name *name, unsigned slot);
void name_waits_step_aside(struct name *name);	/* so that the kernel sees a deadlock among programs here */
void name_free_waits(struct name *name);
/* Something could not be started: again in a moment. */
void name_retry(struct name *name);
void name_retry_fired(struct loop_timer *timer);

#endif
