/* SPDX-License-Identifier: MIT */
/*
 * The search. States are remembered by a 64-bit fingerprint only. A state that
 * is met again while it is still on the path means that the world can go round
 * for ever: scripts and faults are finite, so nothing but messages is produced.
 */
#include "explore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH_MAX = 600, DRAIN_MAX = 2000 };

struct seen {
	uint64_t *slots;	/* fingerprint, lowest bit: on the path */
	uint64_t size, count;
};

struct frame {
	uint64_t hash;
	int step_count, next;
	struct x_step steps[X_STEPS_MAX];
	struct x_world world;
};

double x_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

uint64_t x_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t *seen_slot(struct seen *seen, uint64_t hash)
{
	uint64_t i = hash >> 1;

	for (;; i++) {
		uint64_t *slot = &seen->slots[i & (seen->size - 1)];

		if (!*slot || (*slot | 1) == (hash | 1))
			return slot;
	}
}

/* 256 MiB at most. Returns false when full. */
static bool seen_room(struct seen *seen)
{
	struct seen bigger = { NULL, seen->size ? 2 * seen->size : 1 << 16, seen->count };

	if (seen->size && seen->count * 4 < seen->size * 3)
		return true;
	if (bigger.size > 1u << 25)
		return false;
	bigger.slots = calloc(bigger.size, sizeof *bigger.slots);
	if (!bigger.slots)
		return false;
	for (uint64_t i = 0; i < seen->size; i++)
		if (seen->slots[i])
			*seen_slot(&bigger, seen->slots[i]) = seen->slots[i];
	free(seen->slots);
	*seen = bigger;
	return true;
}

/* Lets everything happen that must, in a fixed order; notes the steps behind the trace's end if there is one. */
static void drain(struct x_world *w, const struct x_def *def, struct x_result *result)
{
	struct x_step steps[X_STEPS_MAX];

	for (int i = 0; !w->violation; i++) {
		int n = x_world_steps(w, def, steps), k = 0;

		while (k < n && steps[k].kind >= STEP_FAULTS)
			k++;
		if (k == n)
			return;
		if (i == DRAIN_MAX) {
			x_world_fail(w, X_LIVELOCK, "it never comes to an end");
			return;
		}
		if (result && result->trace_len < X_TRACE_MAX)
			result->trace[result->trace_len++] = steps[k];
		x_world_do(w, def, steps[k]);
	}
}

/*
 * At an end where nobody holds or waits: each host can still have the lock, by
 * a try and by waiting.
 */
static void epilogue(struct x_world *w, const struct x_def *def)
{
	struct x_def more = *def;
	bool busy = false;

	for (int h = 0; h < def->hosts; h++)
		for (int p = 0; p < X_PROGS; p++)
			if (w->host[h].progs[p].state != P_OVER && w->host[h].progs[p].state != P_ABSENT)
				busy = true;
	if (busy)
		return;
	memset(&w->repeats, 0, X_FAULTS);
	for (int i = 0; i < 2 * def->hosts && !w->violation; i++) {
		struct x_prog *prog = &w->host[i / 2].progs[X_EPILOGUE];

		x_say("-- afterwards:");
		x_world_epilogue(w, &more, i / 2, i % 2 == 0);
		drain(w, &more, NULL);
		if (w->violation)
			return;
		if (prog->state != P_OVER)
			x_world_fail(w, X_HANG, "all is over, and a new call waits for ever");
		else if (prog->refused)
			x_world_fail(w, X_REFUSED, "all is over, and a new try is refused");
	}
}

/* Looks at a world in which nothing but faults is left. */
static void at_end(const struct x_world *end, const struct x_def *def, struct x_world *ret_world)
{
	x_world_copy(ret_world, end);
	x_world_check_end(ret_world, def);
	if (!ret_world->violation)
		epilogue(ret_world, def);
}

static void found(struct x_result *result, const struct x_world *w)
{
	result->violation = (enum x_violation)w->violation;
	result->why = w->why;
}

static void trace_of(struct x_result *result, const struct frame *frames, int depth)
{
	result->trace_len = 0;
	for (int i = 0; i <= depth; i++)
		if (frames[i].next)
			result->trace[result->trace_len++] = frames[i].steps[frames[i].next - 1];
}

void x_search_all(const struct x_def *def, double seconds, struct x_result *ret_result)
{
	static struct x_world end;
	struct seen seen = { NULL, 0, 0 };
	struct frame *frames = calloc(DEPTH_MAX, sizeof *frames);
	double until = x_now() + seconds;
	struct x_result *r = ret_result;
	int depth = 0;

	memset(r, 0, sizeof *r);
	if (!frames)
		return;
	x_world_init(&frames[0].world, def);
	frames[0].step_count = x_world_steps(&frames[0].world, def, frames[0].steps);
	seen_room(&seen);
	while (depth >= 0 && !r->violation) {
		struct frame *f = &frames[depth], *g = f + 1;
		uint64_t *slot;
		bool must = false;

		if (f->next == f->step_count) {
			if (depth)
				*seen_slot(&seen, f->hash) &= ~(uint64_t)1;
			depth--;
			continue;
		}
		if (depth + 1 == DEPTH_MAX) {
			r->violation = X_LIVELOCK;
			r->why = "a path without end";
			trace_of(r, frames, depth);
			break;
		}
		x_world_copy(&g->world, &f->world);
		x_world_do(&g->world, def, f->steps[f->next++]);
		r->steps++;
		if (g->world.violation) {
			found(r, &g->world);
			trace_of(r, frames, depth);
			break;
		}
		g->hash = x_world_hash(&g->world, def) | 2;
		slot = seen_slot(&seen, g->hash);
		if (*slot & 1) {
			r->violation = X_LIVELOCK;
			r->why = "the world goes round in a circle";
			trace_of(r, frames, depth);
			break;
		}
		if (*slot)
			continue;
		*slot = g->hash | 1;
		seen.count++;
		r->states++;
		g->next = 0;
		g->step_count = x_world_steps(&g->world, def, g->steps);
		for (int i = 0; i < g->step_count; i++)
			if (g->steps[i].kind < STEP_FAULTS)
				must = true;
		if (!must) {
			at_end(&g->world, def, &end);
			if (end.violation) {
				found(r, &end);
				trace_of(r, frames, depth);
				break;
			}
		}
		depth++;
		if (!seen_room(&seen) || ((r->states & 1023) == 0 && x_now() > until))
			goto out;
	}
	r->complete = !r->violation;
out:
	free(seen.slots);
	free(frames);
}

void x_search_walks(const struct x_def *def, uint64_t seed, uint64_t walks, double seconds, struct x_result *ret_result)
{
	static struct x_world w, end;
	struct x_result *r = ret_result;
	struct x_step steps[X_STEPS_MAX];
	double until = x_now() + seconds;

	memset(r, 0, offsetof(struct x_result, trace));
	for (uint64_t walk = 0; walk < walks && !r->violation; walk++) {
		if ((walk & 63) == 63 && x_now() > until)
			break;
		x_world_init(&w, def);
		r->trace_len = 0;
		for (;;) {
			int n = x_world_steps(&w, def, steps), must = 0, k;

			while (must < n && steps[must].kind >= STEP_FAULTS)
				must++;
			if (must == n)
				break;
			/* Faults are rarer than what must happen. */
			do
				k = (int)(x_random(&seed) % (uint64_t)n);
			while (steps[k].kind >= STEP_FAULTS && x_random(&seed) % 8);
			if (r->trace_len == X_TRACE_MAX) {
				x_world_fail(&w, X_LIVELOCK, "a path without end");
				break;
			}
			r->trace[r->trace_len++] = steps[k];
			x_world_do(&w, def, steps[k]);
			r->steps++;
			if (w.violation)
				break;
		}
		r->states++;
		if (!w.violation) {
			at_end(&w, def, &end);
			if (end.violation)
				found(r, &end);
		} else {
			found(r, &w);
		}
	}
}

/* ---- making a trace shorter ---- */

/* Does what is possible of the trace, then lets it run out. */
static enum x_violation replay(const struct x_def *def, const struct x_result *trace, struct x_result *ret_done,
			       const char **ret_why)
{
	static struct x_world w, end;

	x_world_init(&w, def);
	ret_done->trace_len = 0;
	for (int i = 0; i < trace->trace_len && !w.violation; i++) {
		if (!x_world_possible(&w, def, trace->trace[i]))
			continue;
		ret_done->trace[ret_done->trace_len++] = trace->trace[i];
		x_world_do(&w, def, trace->trace[i]);
	}
	drain(&w, def, ret_done);
	if (!w.violation) {
		at_end(&w, def, &end);
		*ret_why = end.why;
		return (enum x_violation)end.violation;
	}
	*ret_why = w.why;
	return (enum x_violation)w.violation;
}

void x_shrink_and_print(const struct x_def *def, struct x_result *result)
{
	static struct x_result attempt, done;
	const struct x_scenario *s = def->scenario;
	const char *why;
	bool again = true;

	while (again && result->trace_len < 400) {
		again = false;
		for (int i = result->trace_len - 1; i >= 0; i--) {
			attempt = *result;
			memmove(&attempt.trace[i], &attempt.trace[i + 1],
				(size_t)(attempt.trace_len - i - 1) * sizeof attempt.trace[0]);
			attempt.trace_len--;
			if (replay(def, &attempt, &done, &why) != result->violation ||
			    done.trace_len >= result->trace_len)
				continue;
			memcpy(result->trace, done.trace, sizeof done.trace);
			result->trace_len = done.trace_len;
			result->why = why;
			again = true;
			if (i > result->trace_len)
				i = result->trace_len;
		}
	}
	printf("---- %s: %s\n", s->name, result->why);
	for (int h = 0; h < def->hosts; h++)
		for (int p = 0; p < X_PROGS - 1; p++)
			if (s->script[h][p])
				printf("host %d program %d: %s\n", h, p, s->script[h][p]);
	printf("repeats %d breaks %d kills %d interrupts %d idles %d offers %d lapses %d restarts %d passes %d%s%s%s%s%s%s%s\n", s->repeats, s->breaks, s->kills,
	       s->interrupts, s->idles, s->offers, s->lapses, s->restarts, s->passes,
	       s->records ? s->seen == 0 ? ", record locks" : s->seen == 1 ? ", record locks, wide answers" : ", record locks, changing answers" : "",
	       s->remote ? ", nobody looks who will wait" : "", s->voids ? ", few voids" : "", s->standing ? ", standing GOs" : "", s->async_probe ? ", probes take time" : "",
	       s->pushes_in_order ? ", pushes in order" : "", s->sockets_first ? ", sockets first" : "");
	x_trace = true;
	replay(def, result, &done, &why);
	x_trace = false;
	printf("----\n");
	fflush(stdout);
}

/* ---- random scenarios ---- */

static void add_word(char *text, const char *word, int desc, bool records, uint64_t *seed)
{
	int start = (int)(x_random(seed) % X_POINTS), end = start + 1 + (int)(x_random(seed) % (uint64_t)(X_POINTS - start));

	if (records && x_random(seed) % 6)
		sprintf(text + strlen(text), "%s%d:%d%d ", word, desc, start, end);
	else
		sprintf(text + strlen(text), "%s%d ", word, desc);
}

void x_scenario_random(uint64_t seed, int hosts, int progs, bool records, struct x_scenario *ret_scenario, struct x_text *ret_text)
{
	struct x_scenario *s = ret_scenario;

	memset(s, 0, sizeof *s);
	s->name = "random";
	s->records = records;
	for (int h = 0; h < hosts; h++) {
		int n = 1 + (int)(x_random(&seed) % (uint64_t)progs);

		for (int p = 0; p < n; p++) {
			static const char *const words[] = { "s", "e", "s", "e", "te", "ts", "u", "u" };
			char *text = ret_text->script[h][p];
			int ops = 1 + (int)(x_random(&seed) % 5);
			/* Mostly a description of its own; at times one shared with the neighbour. A program with two would
			 * deadlock with itself, which is right and shows nothing. */
			int desc = p % X_DESCS;

			if (p && x_random(&seed) % 4 == 0)
				desc = p - 1;
			text[0] = '\0';
			for (int i = 0; i < ops; i++)
				add_word(text, words[x_random(&seed) % 8], desc, records, &seed);
			/* Nested readers: a second shared lock on another description while the first is held. */
			if (x_random(&seed) % 6 == 0)
				sprintf(text, "s%d s%d u%d u%d", desc, (desc + 1) % X_DESCS, (desc + 1) % X_DESCS, desc);
			if (x_random(&seed) % 12 == 0)
				strcat(text, " hold");
			s->script[h][p] = text;
		}
	}
	s->repeats = x_random(&seed) % 3;
	s->breaks = x_random(&seed) % 3;
	s->kills = x_random(&seed) % 2;
	s->interrupts = x_random(&seed) % 3;
	s->idles = x_random(&seed) % 3;
	s->offers = x_random(&seed) % 2;
	s->lapses = x_random(&seed) % 4 == 0;
	s->restarts = x_random(&seed) % 3 == 0;
	s->passes = records && x_random(&seed) % 3 == 0;
	s->seen = records ? x_random(&seed) % 3 : 0;
	s->remote = records && x_random(&seed) % 4 == 0;
	s->voids = records && x_random(&seed) % 4 == 0;
	s->async_probe = x_random(&seed) % 4 == 0;
	s->pushes_in_order = x_random(&seed) % 4 == 0;
	s->sockets_first = x_random(&seed) % 2;
	s->standing = x_random(&seed) % 2;
}
