/* SPDX-License-Identifier: MIT */
/* Searching a world for a violation: every interleaving, or many at random. */
#ifndef TESTS_EXPLORE_H
#define TESTS_EXPLORE_H

#include "explore_world.h"

enum { X_TRACE_MAX = 4096 };

struct x_result {
	enum x_violation violation;
	const char *why;
	bool complete;		/* every state was seen */
	uint64_t states, steps;
	int trace_len;
	struct x_step trace[X_TRACE_MAX];
};

/* Seconds of a clock that only goes forward. */
double x_now(void);
/* Every interleaving, depth first; stops at the first violation, at `seconds` or when the memory bound is met. */
void x_search_all(const struct x_def *def, double seconds, struct x_result *ret_result);
/* Interleavings chosen by `seed`, until a violation, `walks` or `seconds`. */
void x_search_walks(const struct x_def *def, uint64_t seed, uint64_t walks, double seconds, struct x_result *ret_result);
/* Leaves out of the trace what the violation does not need, and prints it with the scenario. */
void x_shrink_and_print(const struct x_def *def, struct x_result *result);
/* A scenario made of random scripts and faults; the strings live in `ret_text`. */
struct x_text { char script[X_HOSTS][X_PROGS - 1][64]; };
void x_scenario_random(uint64_t seed, int hosts, int progs, bool records, struct x_scenario *ret_scenario, struct x_text *ret_text);
uint64_t x_random(uint64_t *state);

#endif
