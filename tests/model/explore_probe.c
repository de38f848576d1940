/* SPDX-License-Identifier: MIT */
/*
 * What the agent of the explored world does in the kernel.
 *
 * flock: a probe takes the lock for an instant, and so does a helper that has
 * waited; a program's try may meet both. Record locks: a probe takes nothing and
 * sees no helper; how far it looks beyond what it was asked is the kernel's
 * choice (x_scenario.seen), what it says of that is exact.
 */
#include "explore_agent.h"

#include <string.h>

bool x_kernel_conflict(const struct x_host *host, int desc, uint8_t start, uint8_t end, enum lock_mode mode, bool agent)
{
	for (int d = 0; d < X_DESCS; d++)
		for (int p = start; p < end && d != desc; p++)
			if (mode_conflicts(host->held[d][p], mode))
				return true;
	if (agent && mode_conflicts(host->probe_mode, mode))
		return true;
	for (int i = 0; agent && i < X_HELPERS; i++) {
		const struct x_helper *helper = &host->helpers[i];

		if (helper->state == HELPER_HAS && mode_conflicts(helper->mode, mode) &&
		    x_overlaps(helper->start, helper->end, start, end))
			return true;
	}
	return false;
}

/* ---- probes ---- */

void x_probe_start(struct x_world *w, int h, bool records)
{
	struct x_host *host = &w->host[h];

	if (host->probe != PROBE_NONE)
		x_world_fail(w, X_BROKEN, "a probe while another one runs");
	for (int i = 0; i < X_HELPERS && !records; i++)
		if (host->helpers[i].state != HELPER_NONE)
			x_world_fail(w, X_BROKEN, "a probe while a helper runs");
	host->probe = PROBE_ASKED;
}

static enum lock_mode held_at(const struct x_host *host, int p)
{
	enum lock_mode most = MODE_NONE;

	for (int d = 0; d < X_DESCS; d++)
		most = mode_max(most, (enum lock_mode)host->held[d][p]);
	return most;
}

/* The kernel's answer to one question: what is held, and how far it has looked. */
static void answer(const struct x_host *host, const struct x_def *def, struct cover_question *q, bool wide, uint8_t held[X_POINTS])
{
	int start = x_point(q->at.start), end = x_point(q->at.end);
	bool exclusive = q->want == MODE_EX, any = false;

	for (int p = start; p < end; p++) {
		enum lock_mode mode = held_at(host, p);

		any |= mode != MODE_NONE;
		if (mode == MODE_EX || exclusive || wide)
			held[p] = (uint8_t)mode_max((enum lock_mode)held[p], mode);
	}
	if (q->any && any && (wide || !def->scenario->records))
		memset(held + start, MODE_EX, (size_t)(end - start));
	if (!wide || !def->scenario->records)
		return;
	/* Shared locks around are no matter if only exclusive ones were asked for. */
	while (start > x_point(q->bounds.start) && held_at(host, start - 1) <= (exclusive ? MODE_NONE : MODE_SH))
		start--;
	while (end < x_point(q->bounds.end) && held_at(host, end) <= (exclusive ? MODE_NONE : MODE_SH))
		end++;
	q->seen = x_extent((uint8_t)start, (uint8_t)end);
}

static void look(const struct x_host *host, const struct x_def *def, struct cover *cover, uint8_t held[X_POINTS])
{
	memset(held, 0, X_POINTS);
	for (size_t i = 0; i < cover->question_count; i++) {
		uint8_t wide = def->scenario->seen;

		if (wide == 2)
			wide = (uint8_t)((cover->top_fence + i + cover->request_count) & 1);
		answer(host, def, &cover->questions[i], wide, held);
	}
}

static void say_probed(int h, const struct cover *cover, const uint8_t held[X_POINTS])
{
	for (size_t i = 0; i < cover->question_count; i++) {
		const struct cover_question *q = &cover->questions[i];

		x_say("host %d agent: asks the kernel for %s in [%d,%d), %s elsewhere: has looked at [%d,%d)", h,
		      x_mode_names[q->want], x_point(q->at.start), x_point(q->at.end),
		      q->demand ? "wanted" : "not wanted", x_point(q->seen.start), x_point(q->seen.end));
	}
	x_say("host %d agent: at the points are held %d %d %d %d", h, held[0], held[1], held[2], held[3]);
}

static void probed(struct x_world *w, struct cover *cover, const uint8_t held[X_POINTS])
{
	struct lock_spans spans = { 0 };

	for (uint8_t p = 0; p < X_POINTS; p++)
		if (held[p])
			lock_spans_add(&spans, x_extent(p, (uint8_t)(p + 1)), (enum lock_mode)held[p]);
	cover_probed(cover, &spans);
	lock_spans_free(&spans);
	(void)w;
}

void x_probe_at_once(struct x_world *w, const struct x_def *def, int h, struct cover *cover)
{
	struct x_host *host = &w->host[h];
	uint8_t held[X_POINTS];

	look(host, def, cover, held);
	say_probed(h, cover, held);
	host->probe = PROBE_NONE;
	probed(w, cover, held);
}

/* A probe that takes time: it looks at one moment, its answer comes later. */
void x_agent_probe(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];
	struct cover *cover = x_agent_cover(w, def, h);
	enum lock_mode want = MODE_SH, most = MODE_NONE;

	look(host, def, cover, host->probe_held);
	say_probed(h, cover, host->probe_held);
	host->probe = PROBE_TAKEN;
	x_cover_pack(w, cover, &host->cover);
	if (def->scenario->records)
		return;
	for (size_t i = 0; i < cover->question_count; i++)
		want = mode_max(want, cover->questions[i].want);
	for (int p = 0; p < X_POINTS; p++)
		most = mode_max(most, held_at(host, p));
	if (!mode_conflicts(most, want))
		host->probe_mode = (uint8_t)want;
}

void x_agent_probed(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_host *host = &w->host[h];
	uint8_t held[X_POINTS];

	x_say("host %d agent: reads the probe's answer", h);
	memcpy(held, host->probe_held, sizeof held);
	host->probe = PROBE_NONE;
	memset(host->probe_held, 0, sizeof host->probe_held);
	probed(w, cover, held);
	x_agent_settle(w, def, h);
}

void x_probe_gives_back(struct x_world *w, int h)
{
	const struct x_host *host = &w->host[h];

	if (host->probe_mode)
		x_world_fail(w, X_BROKEN, "gives back before its own lock is gone: a try would be refused by it");
}

void x_probe_dies(struct x_host *host)
{
	host->probe = host->probe_mode = PROBE_NONE;
	memset(host->probe_held, 0, sizeof host->probe_held);
	memset(host->helpers, 0, sizeof host->helpers);
}

/* ---- helpers ---- */

void x_helper_start(struct x_world *w, int h, unsigned slot, struct extent at, enum lock_mode mode)
{
	struct x_host *host = &w->host[h];

	x_say("host %d agent: helper %u waits in the kernel for %s of [%d,%d)", h, slot, x_mode_names[mode], x_point(at.start),
	      x_point(at.end));
	if (slot >= X_HELPERS || host->helpers[slot].state != HELPER_NONE) {
		x_world_fail(w, X_BROKEN, "a helper in the place of another one");
		return;
	}
	host->helpers[slot] = (struct x_helper){ HELPER_WAITS, x_point(at.start), x_point(at.end), (uint8_t)mode, 0 };
}

void x_helper_cancel(struct x_world *w, int h, unsigned slot)
{
	struct x_host *host = &w->host[h];

	x_say("host %d agent: interrupts helper %u", h, slot);
	if (slot >= X_HELPERS || host->helpers[slot].state == HELPER_NONE || host->helpers[slot].cancelled) {
		x_world_fail(w, X_BROKEN, "interrupts no helper");
		return;
	}
	host->helpers[slot].cancelled = 1;
}

void x_agent_wait_ended(struct x_world *w, const struct x_def *def, int h, int slot)
{
	struct cover *cover = x_agent_cover(w, def, h);

	x_say("host %d agent: hears that helper %d has ended", h, slot);
	memset(&w->host[h].helpers[slot], 0, sizeof w->host[h].helpers[slot]);
	cover_wait_ended(cover, (unsigned)slot);
	x_agent_settle(w, def, h);
}
