/* SPDX-License-Identifier: MIT */
/*
 * What must hold in the explored world: no two hosts hold, no try is refused
 * without a reason, and nobody waits at the end without one.
 */
#include "explore_world.h"

static void check_overlap(struct x_world *w, const struct x_def *def)
{
	enum lock_mode most[X_HOSTS] = { MODE_NONE };

	for (int h = 0; h < def->hosts; h++)
		for (int d = 1; d < X_DESCS; d++)
			if (!w->host[h].unsure[d])
				most[h] = mode_max(most[h], w->host[h].held[d]);
	for (int h = 0; h < def->hosts; h++)
		for (int g = 0; g < h; g++)
			if (mode_conflicts(most[h], most[g]))
				x_world_fail(w, X_OVERLAP, "two hosts hold conflicting locks");
}

/* Somebody holds, or was told GO, or was granted, what stands against this try. */
static bool excuse(const struct x_world *w, const struct x_def *def, int h, int c)
{
	const struct x_call *call = &w->host[h].calls[c];

	for (int g = 0; g < def->hosts; g++) {
		const struct x_host *host = &w->host[g];

		for (int d = 1; d < X_DESCS; d++)
			if ((g != h || d != call->desc) && mode_conflicts(host->held[d], call->mode))
				return true;
		for (int i = 0; i < X_CALLS; i++) {
			const struct x_call *other = &host->calls[i];

			if ((g != h || i != c) && other->live && other->licensed &&
			    !(other->over && def->scenario->sockets_first) && mode_conflicts(other->mode, call->mode))
				return true;
		}
	}
	return false;
}

static bool holds_shared(const struct x_host *host)
{
	for (int d = 1; d < X_DESCS; d++)
		if (host->held[d] == MODE_SH && !host->unsure[d])
			return true;
	return false;
}

static void note_excuses(struct x_world *w, const struct x_def *def)
{
	for (int h = 0; h < def->hosts; h++) {
		struct x_host *host = &w->host[h];

		for (size_t i = 0; i < host->cover.request_count; i++)
			if (host->requests[i].state == REQUEST_READY)
				host->calls[(host->requests[i].id & 0xff) - 1].licensed = 1;
	}
	for (int h = 0; h < def->hosts; h++) {
		for (int c = 0; c < X_CALLS; c++) {
			struct x_call *call = &w->host[h].calls[c];

			if (call->nested && !holds_shared(&w->host[h]))
				call->nested = 0;
			if (call->live && call->try && !call->over && !call->excused && excuse(w, def, h, c))
				call->excused = 1;
		}
	}
}

void x_check_step(struct x_world *w, const struct x_def *def)
{
	check_overlap(w, def);
	note_excuses(w, def);
}

static bool waits(const struct x_prog *prog)
{
	return prog->state == P_WAITS || prog->state == P_KERNEL || prog->state == P_LOOKED;
}

/*
 * Somebody who never lets go stands against it. A description that another
 * process has locked since this one looked at it counts too: that a process
 * waits then where Linux would let it pass is a documented difference.
 */
static bool waits_for_holder(const struct x_world *w, const struct x_def *def, int h, int p)
{
	const struct x_call *call = &w->host[h].calls[x_call_of(p, &w->host[h].progs[p])];

	if (w->host[h].held[call->desc] != MODE_NONE)
		return true;
	for (int g = 0; g < def->hosts; g++)
		for (int d = 1; d < X_DESCS; d++)
			if ((g != h || d != call->desc) && mode_conflicts(w->host[g].held[d], call->mode))
				return true;
	return false;
}

void x_world_check_end(struct x_world *w, const struct x_def *def)
{
	bool writer = false;

	for (int h = 0; h < def->hosts; h++)
		for (int p = 0; p < X_PROGS; p++)
			if (waits(&w->host[h].progs[p]) && waits_for_holder(w, def, h, p) &&
			    w->host[h].calls[x_call_of(p, &w->host[h].progs[p])].mode == MODE_EX)
				writer = true;
	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++) {
			struct x_prog *prog = &w->host[h].progs[p];

			if (!waits(prog))
				continue;
			if (w->host[h].calls[x_call_of(p, prog)].try) {
				x_world_fail(w, X_HANG, "a try waits");
				return;
			}
			if (waits_for_holder(w, def, h, p))
				continue;
			/* documented: new readers wait behind a writer that waits, but not where the host reads already */
			if (writer && w->host[h].calls[x_call_of(p, prog)].mode == MODE_SH &&
			    !w->host[h].calls[x_call_of(p, prog)].nested)
				continue;
			x_say("host %d program %d waits for ever", h, p);
			x_world_fail(w, X_HANG, "nothing can happen any more, and a program waits for nobody");
		}
	}
}
