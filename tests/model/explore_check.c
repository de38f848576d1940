/* SPDX-License-Identifier: MIT */
/*
 * What must hold in the explored world: no two hosts hold, no try is refused
 * without a reason, and nobody waits at the end without one.
 */
#include "explore_world.h"

static void check_overlap(struct x_world *w, const struct x_def *def)
{
	for (int p = 0; p < X_POINTS; p++) {
		enum lock_mode most[X_HOSTS] = { MODE_NONE };

		for (int h = 0; h < def->hosts; h++) {
			for (int d = 0; d < X_DESCS; d++)
				most[h] = mode_max(most[h], (enum lock_mode)w->host[h].sure[d][p]);
			for (int g = 0; g < h; g++)
				if (mode_conflicts(most[h], most[g]))
					x_world_fail(w, X_OVERLAP, "two hosts hold conflicting locks");
		}
	}
}

static bool calls_conflict(const struct x_call *a, const struct x_call *b)
{
	return mode_conflicts((enum lock_mode)a->mode, (enum lock_mode)b->mode) && x_overlaps(a->start, a->end, b->start, b->end);
}

/* Somebody holds, or was told GO, or was granted, what stands against this try. */
static bool excuse(const struct x_world *w, const struct x_def *def, int h, int c)
{
	const struct x_call *call = &w->host[h].calls[c];

	for (int g = 0; g < def->hosts; g++) {
		const struct x_host *host = &w->host[g];

		if (x_kernel_conflict(host, g == h ? call->desc : -1, call->start, call->end, (enum lock_mode)call->mode, false))
			return true;
		for (int i = 0; i < X_CALLS; i++) {
			const struct x_call *other = &host->calls[i];

			if ((g != h || i != c) && other->live && other->licensed && !(other->over && def->scenario->sockets_first) &&
			    calls_conflict(other, call))
				return true;
		}
	}
	return false;
}

/* Whether a nested reader's part is still read here by those who have their locks for good. */
static bool still_read(const struct x_host *host, const struct x_call *call)
{
	for (int p = call->start; p < call->end; p++) {
		bool read = false;

		for (int d = 0; d < X_DESCS; d++)
			read |= host->held[d][p] == MODE_SH && host->sure[d][p] == MODE_SH;
		if (!read)
			return false;
	}
	return true;
}

static void note_excuses(struct x_world *w, const struct x_def *def)
{
	for (int h = 0; h < def->hosts; h++) {
		struct x_host *host = &w->host[h];

		for (int i = 0; i < host->cover.request_count; i++)
			if (host->cover.requests[i].state == REQUEST_READY)
				host->calls[(host->cover.requests[i].id & 0xff) - 1].licensed = 1;
	}
	for (int h = 0; h < def->hosts; h++) {
		for (int c = 0; c < X_CALLS; c++) {
			struct x_call *call = &w->host[h].calls[c];

			if (call->nested && !still_read(&w->host[h], call))
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

/* ---- who waits at the end ---- */

struct ends {
	const struct x_world *w;
	const struct x_def *def;
	bool stuck[X_HOSTS][X_PROGS];	/* waits, and would wait on Linux too */
};

static bool waits(const struct x_prog *prog)
{
	return prog->state == P_WAITS || prog->state == P_KERNEL || prog->state == P_LOOKED;
}

static const struct x_call *call_at(const struct x_world *w, int h, int p)
{
	return &w->host[h].calls[x_call_of(p, &w->host[h].progs[p])];
}

/* Whether the owner holds what stands against this call. */
static bool holds_against(const struct x_world *w, int h, int desc, const struct x_call *call)
{
	for (int p = call->start; p < call->end; p++)
		if (mode_conflicts((enum lock_mode)w->host[h].held[desc][p], (enum lock_mode)call->mode))
			return true;
	return false;
}

/* Whether a lock stands against this program's call that nobody will drop: its owners hold it for ever, or are stuck themselves. */
static bool waits_for_stuck(const struct ends *e, int h, int p)
{
	const struct x_call *call = call_at(e->w, h, p);

	for (int g = 0; g < e->def->hosts; g++) {
		for (int d = 0; d < X_DESCS; d++) {
			if ((g == h && d == call->desc) || !holds_against(e->w, g, d, call))
				continue;
			for (int q = 0; q < X_PROGS; q++)
				if ((e->def->refs[g][d] & 1u << q) && (e->w->host[g].progs[q].state == P_HOLDS || e->stuck[g][q]))
					return true;
		}
	}
	return false;
}

/* Whether anybody's lock stands against a program's call. */
static bool waits_for_lock(const struct ends *e, int h, int p)
{
	const struct x_call *call = call_at(e->w, h, p);

	for (int g = 0; g < e->def->hosts; g++)
		if (x_kernel_conflict(&e->w->host[g], g == h ? call->desc : -1, call->start, call->end, (enum lock_mode)call->mode, false))
			return true;
	return false;
}

/* Whether a program and its owner are one: an owner shared by a fork, or one of several of a program, says nothing about who waits for whom. */
static bool is_one_owner(const struct x_def *def, int h, int p)
{
	int descs = 0;

	for (int d = 0; d < X_DESCS; d++) {
		if (!(def->refs[h][d] & 1u << p))
			continue;
		if (def->refs[h][d] != 1u << p)
			return false;
		descs++;
	}
	return descs == 1;
}

/*
 * Documented differences from Linux. flock: a description that another process has locked since this one looked at
 * it. Both: who came later waits behind one that waits and wants what conflicts, but not where this host reads
 * already. Record locks: nor if that one waits for the owner of this one, or could go on in the kernel alone; but one
 * that waits in its host's kernel for a part of what it wants keeps all of it from other hosts, if its GO counts: when it
 * had to undo its lock before, or the agent could not look.
 */
static bool waits_in_order(const struct ends *e, int h, int p)
{
	const struct x_call *call = call_at(e->w, h, p);
	bool strict = e->def->scenario->records && is_one_owner(e->def, h, p);

	if (!e->def->scenario->records && e->w->host[h].held[call->desc][0] != MODE_NONE)
		return true;
	for (int g = 0; g < e->def->hosts; g++) {
		for (int q = 0; q < X_PROGS; q++) {
			const struct x_call *other = call_at(e->w, g, q);

			if (!waits(&e->w->host[g].progs[q]) || call->nested || (g == h && q == p) || !calls_conflict(other, call))
				continue;
			if (e->def->scenario->records && g != h && e->w->host[g].progs[q].state == P_KERNEL &&
			    (other->again || e->def->scenario->remote))
				return true;
			if (strict && (g == h || holds_against(e->w, h, call->desc, other)))
				continue;	/* a host's own requests have no order, and who waits for this one must let it pass */
			if (e->stuck[g][q] || (!strict && waits_for_lock(e, g, q)))
				return true;
		}
	}
	return false;
}

void x_world_check_end(struct x_world *w, const struct x_def *def)
{
	struct ends e = { .w = w, .def = def };
	bool changed = true;

	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++) {
			e.stuck[h][p] = waits(&w->host[h].progs[p]);
			if (!e.stuck[h][p] || !call_at(w, h, p)->try)
				continue;
			x_world_fail(w, X_HANG, "a try waits");
			return;
		}
	}
	/* Whom the kernel alone would let go on is not stuck, nor is who waits for such a one: what remains is cycles, and who waits for them or for ever. */
	while (changed) {
		changed = false;
		for (int h = 0; h < def->hosts; h++) {
			for (int p = 0; p < X_PROGS; p++) {
				if (!e.stuck[h][p] || waits_for_stuck(&e, h, p))
					continue;
				e.stuck[h][p] = false;
				changed = true;
			}
		}
	}
	/* Then those who wait in order behind them, and for those. */
	changed = true;
	while (changed) {
		changed = false;
		for (int h = 0; h < def->hosts; h++) {
			for (int p = 0; p < X_PROGS; p++) {
				if (e.stuck[h][p] || !waits(&w->host[h].progs[p]) || !(waits_in_order(&e, h, p) || waits_for_stuck(&e, h, p)))
					continue;
				e.stuck[h][p] = changed = true;
			}
		}
	}
	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++) {
			if (!waits(&w->host[h].progs[p]) || e.stuck[h][p])
				continue;
			x_say("host %d program %d waits for ever", h, p);
			x_world_fail(w, X_HANG, "nothing can happen any more, and a program waits for nobody");
		}
	}
}
