/* SPDX-License-Identifier: MIT */
/* One pass of the ladder over all names of an agent, in a helper thread (it walks through /proc and asks filesystems). */
#ifndef DLOCK_LADDER_JOB_H
#define DLOCK_LADDER_JOB_H

#include "agent.h"

/* done(agent, how many files are still held) runs on the loop's thread. 0 or -errno (then it does not run). One at a time. */
int ladder_job_start(struct agent *agent, enum ladder_step step, void (*done)(void *agent, size_t held));

#endif
