/* SPDX-License-Identifier: MIT */
/* Between the agent of the explored world (explore_agent.c) and what it does in the kernel (explore_probe.c). */
#ifndef TESTS_EXPLORE_AGENT_H
#define TESTS_EXPLORE_AGENT_H

#include "explore_world.h"

/* The cover of a host, for one event, which ends with x_agent_settle(). */
struct cover *x_agent_cover(struct x_world *w, const struct x_def *def, int h);
/* After an event: what is published, probes that take no time. */
void x_agent_settle(struct x_world *w, const struct x_def *def, int h);

void x_probe_start(struct x_world *w, int h, bool records);
void x_probe_at_once(struct x_world *w, const struct x_def *def, int h, struct cover *cover);
/* Whoever gets the cover next may share this very file (two agents on one machine). */
void x_probe_gives_back(struct x_world *w, int h);
/* The agent is dead: its locks are gone. */
void x_probe_dies(struct x_host *host);
void x_helper_start(struct x_world *w, int h, unsigned slot, struct extent at, enum lock_mode mode);
void x_helper_cancel(struct x_world *w, int h, unsigned slot);

#endif
