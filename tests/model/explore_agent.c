/* SPDX-License-Identifier: MIT */
/*
 * The agent of the explored world: daemon-lite/cover.c between its
 * programs' connections, the kernel and the store.
 */
#include "explore_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The world that runs; the cover's owner is the host's number. */
static struct x_world *world;
static int probes;

static int host_of(void *owner)
{
	return (int)(intptr_t)owner;
}

struct x_call *x_call_of_id(struct x_world *w, int h, uint64_t id)
{
	int c = (int)(id & 0xff) - 1;

	if (c < 0 || c >= X_CALLS || w->host[h].calls[c].attempt != id >> 8)
		return NULL;
	return &w->host[h].calls[c];
}

static void command(int h, struct x_cmd cmd)
{
	struct x_host *host = &world->host[h];

	if (host->cmd_count == X_CMDS) {
		x_world_fail(world, X_LIVELOCK, "more commands than a world can hold");
		return;
	}
	host->cmds[host->cmd_count++] = cmd;
}

static void op_answer(void *owner, uint64_t id, enum cover_answer answer)
{
	static const char *const names[] = { "GO", "CHECK", "BUSY" };
	int h = host_of(owner);
	struct x_call *call = x_call_of_id(world, h, id);

	x_say("host %d agent: answers %s to program %d", h, names[answer], (int)((id & 0xff) - 1) / X_OPS);
	if (!call || !call->live) {
		x_world_fail(world, X_BROKEN, "an answer to a call that is over");
		return;
	}
	if (answer == ANSWER_GO && call->behind && !call->licensed &&
	    mode_conflicts(world->host[h].cover.recall, call->mode))
		x_world_fail(world, X_OVERTAKEN, "a call got GO without the store, though somebody elsewhere waited before it");
	if (answer == ANSWER_GO)
		call->licensed = 1;
	if (call->over)
		return;
	if (call->out) {
		x_world_fail(world, X_BROKEN, "two answers at once");
		return;
	}
	if (answer == ANSWER_BUSY) {
		if (!call->try)
			x_world_fail(world, X_BROKEN, "busy to a blocking call");
		world->host[h].progs[((id & 0xff) - 1) / X_OPS].refused = true;
		return;
	}
	call->out = answer == ANSWER_GO ? OUT_GO : OUT_CHECK;
}

static void op_ask(void *owner, uint64_t id, enum lock_mode mode, bool try)
{
	int h = host_of(owner);
	struct x_call *call = x_call_of_id(world, h, id);

	x_say("host %d agent: asks the store for %s (request %d, %s)", h, x_mode_names[mode], (int)id,
	      try ? "try" : "blocking");
	if (call)
		call->licensed = 0;
	command(h, (struct x_cmd){ .kind = VERB_ACQUIRE, .mode = (uint8_t)mode, .try = try, .req = (uint16_t)id });
}

static void op_withdraw(void *owner, uint64_t id)
{
	x_say("host %d agent: withdraws request %d", host_of(owner), (int)id);
	command(host_of(owner), (struct x_cmd){ .kind = VERB_WITHDRAW, .req = (uint16_t)id });
}

static void op_give_back(void *owner, enum lock_mode keep, uint64_t fence)
{
	x_say("host %d agent: gives back fence %d, keeps %s", host_of(owner), (int)fence, x_mode_names[keep]);
	/* Whoever gets the cover next may share this very file (two agents on one machine). */
	if (world->host[host_of(owner)].held[0] != MODE_NONE)
		x_world_fail(world, X_BROKEN, "gives back before its own lock is gone: a try would be refused by it");
	command(host_of(owner), (struct x_cmd){ .kind = VERB_GIVE_BACK, .mode = (uint8_t)keep, .fence = (uint8_t)fence });
}

static void op_busy(void *owner, const char *host, uint64_t req)
{
	x_say("host %d agent: busy to request %d of host %s", host_of(owner), (int)req, host);
	command(host_of(owner), (struct x_cmd){ .kind = VERB_BUSY, .host = (uint8_t)atoi(host), .req = (uint16_t)req });
}

static void op_probe(void *owner, enum lock_mode want)
{
	struct x_host *host = &world->host[host_of(owner)];

	if (host->probe != PROBE_NONE || host->helper != HELPER_NONE) {
		x_world_fail(world, X_BROKEN, "a probe while another one or a helper runs");
		return;
	}
	host->probe = PROBE_ASKED;
	host->probe_want = (uint8_t)want;
}

static void op_wait(void *owner, enum lock_mode mode)
{
	struct x_host *host = &world->host[host_of(owner)];

	x_say("host %d agent: a helper waits in the kernel for %s", host_of(owner), x_mode_names[mode]);
	if (host->helper != HELPER_NONE)
		x_world_fail(world, X_BROKEN, "a second helper");
	host->helper = HELPER_WAITS;
	host->helper_mode = (uint8_t)mode;
	host->helper_cancelled = 0;
}

static void op_wait_cancel(void *owner)
{
	struct x_host *host = &world->host[host_of(owner)];

	x_say("host %d agent: interrupts the helper", host_of(owner));
	if (host->helper == HELPER_NONE || host->helper_cancelled)
		x_world_fail(world, X_BROKEN, "interrupts no helper");
	host->helper_cancelled = 1;
}

static void op_wait_unlock(void *owner)
{
	x_say("host %d agent: unlocks its own description", host_of(owner));
	world->host[host_of(owner)].held[0] = MODE_NONE;
}

static const struct cover_ops ops = {
	.answer = op_answer,
	.ask = op_ask,
	.withdraw = op_withdraw,
	.give_back = op_give_back,
	.busy = op_busy,
	.probe = op_probe,
	.wait = op_wait,
	.wait_cancel = op_wait_cancel,
	.wait_unlock = op_wait_unlock,
};

/* Before an event: the cover's pointers are those of another copy of the world. */
static struct cover *cover_of(struct x_world *w, int h)
{
	struct x_host *host = &w->host[h];

	world = w;
	probes = 0;
	host->cover.ops = &ops;
	host->cover.owner = (void *)(intptr_t)h;
	host->cover.requests = host->requests;
	host->cover.request_cap = X_REQUESTS;
	host->cover.tries = host->tries;
	host->cover.try_cap = X_TRIES;
	return &host->cover;
}

static enum lock_mode kernel_probe(const struct x_host *host, enum lock_mode want)
{
	if (x_kernel_conflict(host, 0, MODE_SH))
		return MODE_EX;
	if (want == MODE_EX && x_kernel_conflict(host, 0, MODE_EX))
		return MODE_SH;
	return MODE_NONE;
}

/* What programs may lock without asking; those that have seen it otherwise will notice. */
static void publish(struct x_host *host, const struct x_def *def)
{
	uint8_t mode = def->scenario->standing ? (uint8_t)cover_standing(&host->cover) : MODE_NONE;

	if (mode == host->standing)
		return;
	host->standing = mode;
	for (int c = 0; c < X_CALLS; c++)
		if (host->calls[c].standing)
			host->calls[c].moved = 1;
}

/* After an event: what is published, a probe that takes no time. */
static void settle(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];

	publish(host, def);	/* closed before the probe */
	while (!def->scenario->async_probe && host->probe != PROBE_NONE && !w->violation) {
		enum lock_mode held = kernel_probe(host, host->probe_want);

		x_say("host %d agent: probes with %s: %s is held", h, x_mode_names[host->probe_want], x_mode_names[held]);
		host->probe = PROBE_NONE;
		if (++probes > 50)
			x_world_fail(w, X_LIVELOCK, "the agent probes without end");
		cover_probed(&host->cover, held);
	}
	publish(host, def);
	if (host->cover.fence > 200)
		x_world_fail(w, X_LIVELOCK, "the cover changes hands without end");
}

void x_agent_request(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = cover_of(w, h);
	struct x_call *call = &w->host[h].calls[c];

	if (cover->request_count == X_REQUESTS) {
		x_world_fail(w, X_BROKEN, "too many requests for the explorer");
		return;
	}
	call->behind = !call->try && call->mode == MODE_EX && mode_conflicts(cover->recall, cover->mode);
	cover_request(cover, (uint64_t)(call->attempt << 8 | (c + 1)), call->mode, call->try);
	settle(w, def, h);
}

void x_agent_receive(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = cover_of(w, h);
	struct x_call *call = &w->host[h].calls[c];
	uint64_t id = (uint64_t)(call->attempt << 8 | (c + 1));
	uint8_t in = call->in[0];

	call->in_count--;
	memmove(call->in, call->in + 1, sizeof call->in - 1);
	call->in[sizeof call->in - 1] = 0;
	switch (in & 3) {
	case IN_HELD:
		x_say("host %d agent: reads HELD %s of program %d", h, x_mode_names[in >> 2], c / X_OPS);
		cover_held(cover, id, (enum lock_mode)(in >> 2));
		break;
	case IN_DONE:
		x_say("host %d agent: reads DONE of program %d", h, c / X_OPS);
		cover_done(cover, id);
		memset(call, 0, sizeof *call);
		break;
	case IN_CLOSE:
		x_say("host %d agent: the connection of program %d has ended", h, c / X_OPS);
		cover_gone(cover, id);
		memset(call, 0, sizeof *call);
		break;
	}
	settle(w, def, h);
}

/* The offer is withdrawn; the program, if it still runs, asks anew. */
void x_agent_offer_over(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = cover_of(w, h);
	struct x_call *call = &w->host[h].calls[c];

	x_say("host %d agent: program %d does not take its offer; asks anew for it", h, c / X_OPS);
	call->out = OUT_NOTHING;
	call->licensed = 0;
	cover_gone(cover, (uint64_t)(call->attempt << 8 | (c + 1)));
	settle(w, def, h);
	call->attempt++;
	x_agent_request(w, def, h, c);
}

void x_agent_lapsed(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = cover_of(w, h);
	struct x_call *call = &w->host[h].calls[c];

	x_say("host %d agent: the GO of program %d counts no more", h, c / X_OPS);
	call->lapsed = 1;
	cover_done(cover, (uint64_t)(call->attempt << 8 | (c + 1)));
	settle(w, def, h);
}

bool x_agent_stands(struct x_world *w, const struct x_def *def, int h, enum lock_mode mode)
{
	struct cover *cover = cover_of(w, h);
	bool yes = cover_stands(cover, mode);

	x_say("host %d agent: a lock taken meanwhile (%s) %s", h, x_mode_names[mode], yes ? "stands" : "must go");
	(void)def;
	return yes;
}

void x_agent_reply(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = cover_of(w, h);
	struct x_host *host = &w->host[h];
	struct x_cmd cmd = host->cmds[0];

	host->cmd_count--;
	memmove(host->cmds, host->cmds + 1, host->cmd_count * sizeof host->cmds[0]);
	memset(&host->cmds[host->cmd_count], 0, sizeof host->cmds[0]);
	switch (cmd.reply.kind) {
	case REPLY_GRANTED:
		x_say("host %d agent: reads the reply to request %d: granted %s, fence %d, waiting %s", h, cmd.req,
		      x_mode_names[cmd.reply.mode], cmd.reply.fence, x_mode_names[cmd.reply.waiting]);
		cover_granted(cover, cmd.req, cmd.reply.mode, cmd.reply.fence, cmd.reply.waiting);
		break;
	case REPLY_QUEUED:
		cover_queued(cover, cmd.req, cmd.again);
		break;
	case REPLY_BUSY:
		cover_refused(cover, cmd.req);
		break;
	case REPLY_COVER:
	case REPLY_ATTACHED:
		x_say("host %d agent: reads the reply to its %s: %s, fence %d, waiting %s", h,
		      cmd.reply.kind == REPLY_COVER ? "give-back" : "attach", x_mode_names[cmd.reply.mode], cmd.reply.fence, x_mode_names[cmd.reply.waiting]);
		cover_granted(cover, 0, cmd.reply.mode, cmd.reply.fence, cmd.reply.waiting);
		break;
	default:
		break;
	}
	settle(w, def, h);
}

void x_agent_push(struct x_world *w, const struct x_def *def, int h, int i, bool keep)
{
	struct cover *cover = cover_of(w, h);
	struct x_host *host = &w->host[h];
	struct x_push push = host->pushes[i];
	char name[COVER_HOST_MAX];

	if (!keep) {
		host->push_count--;
		memmove(&host->pushes[i], &host->pushes[i + 1], (size_t)(host->push_count - i) * sizeof push);
		memset(&host->pushes[host->push_count], 0, sizeof push);
	}
	switch (push.kind) {
	case PUSH_GRANT:
		x_say("host %d agent: hears grant of request %d: %s, fence %d, waiting %s", h, push.req,
		      x_mode_names[push.mode], push.fence, x_mode_names[push.waiting]);
		cover_granted(cover, push.req, push.mode, push.fence, push.waiting);
		break;
	case PUSH_RECALL:
		x_say("host %d agent: hears recall of fence %d for %s", h, push.fence, x_mode_names[push.mode]);
		cover_recalled(cover, push.fence, push.mode);
		break;
	case PUSH_TRY:
		x_say("host %d agent: hears a try of host %d against fence %d for %s (request %d)", h, push.host, push.fence,
		      x_mode_names[push.mode], push.req);
		if (cover->try_count == X_TRIES) {
			x_world_fail(w, X_BROKEN, "too many tries for the explorer");
			return;
		}
		memset(name, 0, sizeof name);
		snprintf(name, sizeof name, "%d", push.host);
		cover_tried(cover, push.fence, push.mode, name, push.req);
		break;
	default:
		x_say("host %d agent: hears busy for request %d", h, push.req);
		cover_refused(cover, push.req);
		break;
	}
	settle(w, def, h);
}

void x_agent_won(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = cover_of(w, h);

	x_say("host %d agent: hears that its helper has won", h);
	w->host[h].helper = HELPER_NONE;
	w->host[h].helper_mode = w->host[h].helper_cancelled = 0;
	cover_won(cover);
	settle(w, def, h);
}

void x_agent_wait_ended(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = cover_of(w, h);

	x_say("host %d agent: hears that its helper has ended", h);
	w->host[h].helper = HELPER_NONE;
	w->host[h].helper_mode = w->host[h].helper_cancelled = 0;
	cover_wait_ended(cover);
	settle(w, def, h);
}

/* A probe that takes time: it looks now, may hold something for a while, and its answer comes later still. */
void x_agent_probe(struct x_world *w, int h)
{
	struct x_host *host = &w->host[h];

	host->probe_held = (uint8_t)kernel_probe(host, host->probe_want);
	host->held[0] = !mode_conflicts(host->probe_held, host->probe_want) ? host->probe_want : MODE_NONE;
	host->probe = PROBE_TAKEN;
	x_say("host %d agent: probes with %s: %s is held", h, x_mode_names[host->probe_want],
	      x_mode_names[host->probe_held]);
}

void x_agent_probed(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = cover_of(w, h);
	struct x_host *host = &w->host[h];
	enum lock_mode held = host->probe_held;

	x_say("host %d agent: reads the probe's answer", h);
	host->probe = PROBE_NONE;
	host->probe_want = host->probe_held = 0;
	cover_probed(cover, held);
	settle(w, def, h);
}

void x_agent_idle(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = cover_of(w, h);

	x_say("host %d agent: the cover has lain idle", h);
	cover_idle(cover);
	settle(w, def, h);
}

/*
 * The agent dies and the next one has resumed its session: the store has dropped
 * the requests and told the covers. A program that was told GO makes its call and
 * has to ask whether it stands; one that waited for an answer asks anew.
 */
void x_agent_restart(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];
	struct x_cmd attach = { .kind = VERB_ATTACH, .try = 1 };
	bool anew[X_CALLS] = { false };

	x_say("host %d agent: dies; another one takes over", h);
	host->held[0] = MODE_NONE;
	host->helper = host->helper_mode = host->helper_cancelled = 0;
	host->probe = host->probe_want = host->probe_held = 0;
	memset(host->cmds, 0, sizeof host->cmds);
	memset(host->pushes, 0, sizeof host->pushes);
	host->cmd_count = host->push_count = 0;
	host->standing = MODE_NONE;
	for (int c = 0; c < X_CALLS; c++) {
		struct x_call *call = &host->calls[c];
		struct x_prog *prog = &host->progs[c / X_OPS];

		call->moved = call->standing;
		if (!call->live || call->standing || call->lapsed)
			continue;
		if (call->over) {
			memset(call, 0, sizeof *call);
		} else if (call->out == OUT_GO || prog->state == P_KERNEL) {
			call->lapsed = 1;
		} else {
			call->out = OUT_NOTHING;
			call->licensed = call->in_count = 0;
			memset(call->in, 0, sizeof call->in);
			call->attempt++;
			prog->state = P_WAITS;
			prog->looked = 0;
			anew[c] = true;
		}
	}
	cover_init(&host->cover, &ops, NULL, 0);
	x_store_do(&w->store, w, h, &attach);
	cover_granted(cover_of(w, h), 0, attach.reply.mode, attach.reply.fence, MODE_NONE);
	settle(w, def, h);
	for (int c = 0; c < X_CALLS; c++)
		if (anew[c])
			x_agent_request(w, def, h, c);
}
