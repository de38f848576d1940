/* SPDX-License-Identifier: MIT */
/*
 * Programs, shim and kernel of the explored world.
 *
 * The kernel's side is one inode of each host: a waiter is any description whose
 * call has not come back (who gets the lock next is not ordered), a try fails at
 * once. flock(2): a conversion drops the old lock first. Record locks: a
 * description stands for an owner; a call changes all points of its part at
 * once or, while it waits and when it fails, none.
 *
 * Two merges that lose nothing: a REQUEST reaches the agent in the step in which
 * the call begins (before that it has no effect, and a later begin makes the
 * check for refusals only stricter), and BUSY reaches the program at once.
 */
#include "explore_world.h"

#include <string.h>

int x_call_of(int p, const struct x_prog *prog)
{
	return p * X_OPS + prog->pc;
}

static void call_returns(struct x_world *w, int h, int p, uint8_t in, bool refused)
{
	struct x_prog *prog = &w->host[h].progs[p];
	struct x_call *call = &w->host[h].calls[x_call_of(p, prog)];

	call->over = 1;
	call->out = OUT_NOTHING;
	if (in)
		call->in[call->in_count++] = in;
	else
		memset(call, 0, sizeof *call);
	prog->state = P_READY;
	prog->looked = 0;
	prog->refused = refused;
	prog->pc++;
}

static void refused(struct x_world *w, int h, int p, const char *by)
{
	const struct x_call *call = &w->host[h].calls[x_call_of(p, &w->host[h].progs[p])];

	x_say("host %d program %d: refused by %s", h, p, by);
	if (!call->excused)
		x_world_fail(w, X_REFUSED, "a try was refused, and nobody held a conflicting lock or could have got one");
}

/* The kernel's lock in a part of the line. */
static void set_held(struct x_host *host, int desc, int start, int end, uint8_t mode)
{
	memset(&host->held[desc][start], mode, (size_t)(end - start));
	memset(&host->sure[desc][start], mode, (size_t)(end - start));
}

/* A flock that is converted is dropped first. */
static void drop_first(struct x_host *host, const struct x_def *def, const struct x_call *call)
{
	if (!def->scenario->records && host->held[call->desc][0] != call->mode)
		set_held(host, call->desc, 0, X_POINTS, MODE_NONE);
}

static bool kernel_refuses(const struct x_host *host, const struct x_call *call)
{
	return x_kernel_conflict(host, call->desc, call->start, call->end, (enum lock_mode)call->mode, true);
}

/* Closes what nobody else has open. */
static void close_descriptions(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];

	for (int d = 0; d < X_DESCS; d++) {
		bool open = false;

		if (!(def->refs[h][d] & (1u << p)))
			continue;
		for (int q = 0; q < X_PROGS; q++)
			if (q != p && (def->refs[h][d] & (1u << q)) && host->progs[q].state != P_OVER)
				open = true;
		if (!open)
			set_held(host, d, 0, X_POINTS, MODE_NONE);
	}
}

/* Whether all of the part is read here, for good. */
static bool is_read(const struct x_host *host, int start, int end)
{
	for (int p = start; p < end; p++) {
		bool read = false;

		for (int d = 0; d < X_DESCS; d++)
			read |= host->held[d][p] == MODE_SH && host->sure[d][p] == MODE_SH;
		if (!read)
			return false;
	}
	return true;
}

void x_prog_op(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_op op = def->ops[h][p][prog->pc];
	struct x_call *call;

	switch (op.kind) {
	case OP_END:
		x_say("host %d program %d: exits", h, p);
		prog->state = P_OVER;
		close_descriptions(w, def, h, p);
		return;
	case OP_HOLD:
		prog->state = P_HOLDS;
		return;
	case OP_UNLOCK:
		x_say("host %d program %d: unlocks [%d,%d) of description %d", h, p, op.start, op.end, op.desc);
		set_held(host, op.desc, op.start, op.end, MODE_NONE);
		prog->pc++;
		return;
	}
	x_say("host %d program %d: asks for %s%s of [%d,%d) on description %d", h, p, op.try ? "a try of " : "",
	      x_mode_names[op.mode], op.start, op.end, op.desc);
	call = &host->calls[x_call_of(p, prog)];
	*call = (struct x_call){ .live = 1, .mode = op.mode, .try = op.try, .desc = op.desc, .start = op.start, .end = op.end };
	call->nested = op.mode == MODE_SH && is_read(host, op.start, op.end);
	prog->refused = false;
	if (host->standing >= op.mode) {
		x_say("host %d program %d: sees a standing GO", h, p);
		call->standing = call->licensed = 1;
		prog->state = P_STANDING;
		return;
	}
	prog->state = P_WAITS;
	x_agent_request(w, def, h, x_call_of(p, prog));
}

/* The kernel's lock is there: is the GO still? */
static void took(struct x_host *host, struct x_prog *prog, const struct x_call *call)
{
	for (int p = call->start; p < call->end; p++) {
		host->held[call->desc][p] = call->mode;
		if (host->sure[call->desc][p] > call->mode)
			host->sure[call->desc][p] = call->mode;
	}
	prog->state = P_TOOK;
}

/* A standing GO did not help: ask. */
static void ask_after_all(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_prog *prog = &w->host[h].progs[p];
	struct x_call *call = &w->host[h].calls[x_call_of(p, prog)];

	prog->state = P_WAITS;
	call->attempt = (uint8_t)(call->attempt + call->lapsed);
	call->standing = call->moved = call->lapsed = call->licensed = 0;
	x_agent_request(w, def, h, x_call_of(p, prog));
}

static void take_standing(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[x_call_of(p, prog)];

	drop_first(host, def, call);
	if (kernel_refuses(host, call) && (def->scenario->records || host->held[call->desc][0] != call->mode)) {
		x_say("host %d program %d: somebody here has the lock", h, p);
		if (!call->try || call->moved) {
			ask_after_all(w, def, h, p);
			return;
		}
		refused(w, h, p, "the kernel");
		call_returns(w, h, p, 0, true);
		return;
	}
	x_say("host %d program %d: has taken the lock, %s", h, p, x_mode_names[call->mode]);
	took(host, prog, call);
}

void x_prog_confirm(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[x_call_of(p, prog)];

	if ((call->lapsed || call->moved) && !x_agent_stands(w, def, h, call)) {
		prog->state = P_UNDO;
		return;
	}
	x_say("host %d program %d: its lock stands, %s", h, p, x_mode_names[call->mode]);
	for (int i = call->start; i < call->end; i++)
		if (host->held[call->desc][i] == call->mode)	/* else another process converts it just now */
			host->sure[call->desc][i] = call->mode;
	call_returns(w, h, p, 0, false);
}

void x_prog_undo(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	const struct x_call *call = &host->calls[x_call_of(p, &host->progs[p])];

	x_say("host %d program %d: undoes its lock", h, p);
	for (int i = call->start; i < call->end; i++)
		host->held[call->desc][i] = host->sure[call->desc][i];	/* record locks: what it had before */
	if (!def->scenario->records)
		set_held(host, call->desc, 0, X_POINTS, MODE_NONE);
	host->calls[x_call_of(p, &host->progs[p])].again = call->lapsed;
	ask_after_all(w, def, h, p);
}

void x_prog_receive(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[x_call_of(p, prog)];

	if (call->out == OUT_CHECK) {
		prog->looked = host->held[call->desc][0];
		for (int i = 0; i < X_POINTS && def->scenario->records; i++)
			prog->looked = (uint8_t)((i ? prog->looked : 0) | (host->held[call->desc][i] != MODE_NONE) << i);
		prog->state = P_LOOKED;
		call->out = OUT_NOTHING;
		x_say("host %d program %d: sees what its description holds: %d", h, p, prog->looked);
		return;
	}
	call->out = OUT_NOTHING;
	if (!def->scenario->records && host->held[call->desc][0] == call->mode) {
		x_say("host %d program %d: GO, has the lock already", h, p);
		if (call->lapsed)
			took(host, prog, call);
		else
			call_returns(w, h, p, IN_DONE, false);
		return;
	}
	drop_first(host, def, call);
	if (!call->try) {
		x_say("host %d program %d: GO, calls the kernel", h, p);
		prog->state = P_KERNEL;
		return;
	}
	if (kernel_refuses(host, call) && call->lapsed) {
		x_say("host %d program %d: refused by the kernel too late, asks anew", h, p);
		ask_after_all(w, def, h, p);
		return;
	}
	if (kernel_refuses(host, call)) {
		refused(w, h, p, "the kernel");
		call_returns(w, h, p, IN_DONE, true);
		return;
	}
	x_say("host %d program %d: GO, its try has the lock", h, p);
	if (call->lapsed) {
		took(host, prog, call);
		return;
	}
	set_held(host, call->desc, call->start, call->end, call->mode);
	call_returns(w, h, p, IN_DONE, false);
}

void x_prog_answer(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[x_call_of(p, prog)];

	if (!def->scenario->records && prog->looked == call->mode) {
		x_say("host %d program %d: holds that already, returns", h, p);
		call_returns(w, h, p, IN_CLOSE, false);
		return;
	}
	if (!def->scenario->records && prog->looked == MODE_SH && call->mode == MODE_EX)
		set_held(host, call->desc, 0, X_POINTS, MODE_NONE);
	x_say("host %d program %d: says what it holds", h, p);
	call->in[call->in_count++] = (uint8_t)(IN_HELD + 4 * prog->looked);
	prog->looked = 0;
	prog->state = P_WAITS;
}

void x_prog_kill(struct x_world *w, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];

	x_say("host %d program %d: is killed", h, p);
	w->kills--;
	if (prog->state >= P_WAITS && prog->state <= P_UNDO) {
		const struct x_call *call = &host->calls[x_call_of(p, prog)];

		call_returns(w, h, p, call->standing || call->lapsed ? 0 : IN_CLOSE, false);
	}
	prog->state = P_DYING;
}

void x_prog_interrupt(struct x_world *w, int h, int p)
{
	struct x_host *host = &w->host[h];

	x_say("host %d program %d: EINTR", h, p);
	w->interrupts--;
	if (host->calls[x_call_of(p, &host->progs[p])].lapsed)
		call_returns(w, h, p, 0, false);
	else
		call_returns(w, h, p, host->progs[p].state == P_KERNEL ? IN_DONE : IN_CLOSE, false);
}

/* What a waiter in the kernel's queue, or a program with a standing GO, was after. */
void x_prog_take(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	const struct x_call *call = &host->calls[x_call_of(p, prog)];

	if (prog->state == P_STANDING) {
		take_standing(w, def, h, p);
		return;
	}
	x_say("host %d program %d: has the lock, %s", h, p, x_mode_names[call->mode]);
	if (call->lapsed) {
		took(host, prog, call);
		return;
	}
	set_held(host, call->desc, call->start, call->end, call->mode);
	call_returns(w, h, p, IN_DONE, false);
}

void x_prog_reap(struct x_world *w, const struct x_def *def, int h, int p)
{
	x_say("host %d program %d: the kernel has closed its descriptors", h, p);
	w->host[h].progs[p].state = P_OVER;
	close_descriptions(w, def, h, p);
}

/* A refusal that the agent has decided reaches the program at once. */
void x_prog_refusals(struct x_world *w, const struct x_def *def)
{
	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++) {
			if (w->host[h].progs[p].state != P_WAITS || !w->host[h].progs[p].refused)
				continue;
			refused(w, h, p, "the agent");
			call_returns(w, h, p, 0, true);
		}
	}
}
