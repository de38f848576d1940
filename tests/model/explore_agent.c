/* SPDX-License-Identifier: MIT */
/*
 * The agent of the explored world: daemon-lite/cover.c between its
 * programs' connections, the kernel (explore_probe.c) and the store.
 */
#include "explore_agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The world that runs; the cover's owner is the host's number. */
static struct x_world *world;
static struct cover live[X_HOSTS];	/* its arrays are kept for the next world */

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

static uint64_t id_of(const struct x_host *host, int c)
{
	return (uint64_t)(host->calls[c].attempt << 8 | (c + 1));
}

static const struct cover_request *request_of(const struct cover *cover, uint64_t id)
{
	for (size_t i = 0; i < cover->request_count; i++)
		if (cover->requests[i].id == id)
			return &cover->requests[i];
	return NULL;
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

/* Whether somebody elsewhere is known to wait for what a call wants. */
static bool stands_behind(const struct cover *cover, const struct x_call *call)
{
	struct extent at = x_extent(call->start, call->end);

	for (size_t i = 0; i < cover->recall_count; i++) {
		const struct lock_span *wanted = &cover->recalls[i].wanted;

		if (cover->recalls[i].dropped || !mode_conflicts(wanted->mode, call->mode) || !extent_overlaps(wanted->at, at))
			continue;
		for (size_t k = 0; k < cover->spans.count; k++) {
			const struct lock_span *span = &cover->spans.at[k];

			if (span->fence == wanted->fence && mode_conflicts(span->mode, wanted->mode) &&
			    extent_overlaps(span->at, extent_common(wanted->at, at)))
				return true;
		}
	}
	return false;
}

static void op_answer(void *owner, uint64_t id, enum cover_answer answer)
{
	static const char *const names[] = { "GO", "CHECK", "BUSY" };
	int h = host_of(owner);
	const struct cover *cover = &live[h];
	struct x_call *call = x_call_of_id(world, h, id);

	x_say("host %d agent: answers %s to program %d", h, names[answer], (int)((id & 0xff) - 1) / X_OPS);
	if (!call || !call->live) {
		x_world_fail(world, X_BROKEN, "an answer to a call that is over");
		return;
	}
	if (answer == ANSWER_GO && !cover_suffices(cover, x_extent(call->start, call->end), (enum lock_mode)call->mode))
		x_world_fail(world, X_BROKEN, "a GO without a cover that suffices");
	if (answer == ANSWER_GO && call->behind && !call->licensed && !request_of(cover, id)->stake && stands_behind(cover, call))
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

static void op_ask(void *owner, uint64_t id, struct extent at, enum lock_mode mode, unsigned flags)
{
	int h = host_of(owner);
	struct x_call *call = x_call_of_id(world, h, id);
	uint8_t start = x_point(at.start), end = x_point(at.end);

	x_say("host %d agent: asks the store for %s of [%d,%d) (request %d, %s%s)", h, x_mode_names[mode], start, end, (int)id,
	      flags & STORE_TRY ? "try" : "blocking", flags & STORE_PASS ? ", may pass" : "");
	if (call)
		call->licensed = 0;
	command(h, (struct x_cmd){ .kind = VERB_ACQUIRE, .start = start, .end = end, .mode = (uint8_t)mode,
				   .flags = (uint8_t)flags, .req = (uint16_t)id });
}

static void op_withdraw(void *owner, uint64_t id)
{
	x_say("host %d agent: withdraws request %d", host_of(owner), (int)id);
	command(host_of(owner), (struct x_cmd){ .kind = VERB_WITHDRAW, .req = (uint16_t)id });
}

static void op_give_back(void *owner, const struct lock_span *parts, size_t count)
{
	int h = host_of(owner);
	struct x_cmd cmd = { .kind = VERB_GIVE_BACK };

	if (count > X_SPANS) {
		x_world_fail(world, X_BROKEN, "gives back more parts than there are points");
		return;
	}
	for (size_t i = 0; i < count; i++) {
		if (i && parts[i].at.start < parts[i - 1].at.end)
			x_world_fail(world, X_BROKEN, "gives back parts that are not in order");
		cmd.parts.at[cmd.parts.count++] = (struct x_span){ x_point(parts[i].at.start), x_point(parts[i].at.end),
								   (uint8_t)parts[i].mode, (uint8_t)parts[i].fence };
	}
	x_say("host %d agent: gives back%s", h, x_list_text(&cmd.parts));
	x_probe_gives_back(world, h);
	command(h, cmd);
}

static void op_busy(void *owner, const char *host, uint64_t req)
{
	x_say("host %d agent: busy to request %d of host %s", host_of(owner), (int)req, host);
	command(host_of(owner), (struct x_cmd){ .kind = VERB_BUSY, .host = (uint8_t)atoi(host), .req = (uint16_t)req });
}

static void op_probe(void *owner)
{
	x_probe_start(world, host_of(owner), live[host_of(owner)].gentle);
}

static void op_wait(void *owner, unsigned slot, struct extent at, enum lock_mode mode)
{
	x_helper_start(world, host_of(owner), slot, at, mode);
}

static void op_wait_cancel(void *owner, unsigned slot)
{
	x_helper_cancel(world, host_of(owner), slot);
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
};

struct cover *x_agent_cover(struct x_world *w, const struct x_def *def, int h)
{
	world = w;
	live[h].ops = &ops;
	live[h].owner = (void *)(intptr_t)h;
	live[h].gentle = def->scenario->records;
	live[h].voids_max = def->scenario->voids ? def->scenario->voids : X_POINTS;
	live[h].failed = false;
	x_cover_unpack(&w->host[h].cover, &live[h]);
	return &live[h];
}

/* What programs may lock without asking; those that have seen it otherwise will notice. */
static void publish(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];
	uint8_t mode = def->scenario->standing ? (uint8_t)cover_standing(&live[h]) : MODE_NONE;

	if (mode == host->standing)
		return;
	host->standing = mode;
	for (int c = 0; c < X_CALLS; c++)
		if (host->calls[c].standing)
			host->calls[c].moved = 1;
}

void x_agent_settle(struct x_world *w, const struct x_def *def, int h)
{
	publish(w, def, h);	/* closed before the probe */
	for (int i = 0; !def->scenario->async_probe && w->host[h].probe != PROBE_NONE && !w->violation; i++) {
		if (i == 50)
			x_world_fail(w, X_LIVELOCK, "the agent probes without end");
		x_probe_at_once(w, def, h, &live[h]);
	}
	publish(w, def, h);
	x_cover_pack(w, &live[h], &w->host[h].cover);
}

/* ---- programs ---- */

void x_agent_request(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_call *call = &w->host[h].calls[c];

	call->behind = !call->try && call->mode == MODE_EX && stands_behind(cover, call);
	cover_request(cover, id_of(&w->host[h], c), x_extent(call->start, call->end), (enum lock_mode)call->mode, call->try);
	x_agent_settle(w, def, h);
}

void x_agent_receive(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_call *call = &w->host[h].calls[c];
	uint64_t id = id_of(&w->host[h], c);
	uint8_t in = call->in[0];
	enum lock_mode held;

	call->in_count--;
	memmove(call->in, call->in + 1, sizeof call->in - 1);
	call->in[sizeof call->in - 1] = 0;
	switch (in & 3) {
	case IN_HELD:
		held = !def->scenario->records ? (enum lock_mode)(in >> 2) : in >> 2 ? MODE_SH : MODE_NONE;
		x_say("host %d agent: reads HELD %s of program %d", h, x_mode_names[held], c / X_OPS);
		cover_held(cover, id, held);
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
	x_agent_settle(w, def, h);
}

bool x_agent_queues(const struct x_host *host, int c)
{
	for (int i = 0; i < host->cover.request_count; i++) {
		const struct x_request *r = &host->cover.requests[i];

		if (r->id == id_of(host, c))
			return r->state == REQUEST_ASKED && !r->stake && !r->try;
	}
	return false;
}

void x_agent_pass(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = x_agent_cover(w, def, h);

	x_say("host %d agent: program %d holds what others may wait for", h, c / X_OPS);
	cover_pass(cover, id_of(&w->host[h], c));
	x_agent_settle(w, def, h);
}

/* The offer is withdrawn; the program, if it still runs, asks anew. */
void x_agent_offer_over(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_call *call = &w->host[h].calls[c];

	x_say("host %d agent: program %d does not take its offer; asks anew for it", h, c / X_OPS);
	call->out = OUT_NOTHING;
	call->licensed = 0;
	cover_gone(cover, id_of(&w->host[h], c));
	x_agent_settle(w, def, h);
	call->attempt++;
	x_agent_request(w, def, h, c);
}

void x_agent_lapsed(struct x_world *w, const struct x_def *def, int h, int c)
{
	struct cover *cover = x_agent_cover(w, def, h);

	x_say("host %d agent: the GO of program %d counts no more", h, c / X_OPS);
	w->host[h].calls[c].lapsed = 1;
	cover_done(cover, id_of(&w->host[h], c));
	x_agent_settle(w, def, h);
}

bool x_agent_stands(struct x_world *w, const struct x_def *def, int h, const struct x_call *call)
{
	struct cover *cover = x_agent_cover(w, def, h);
	bool yes = cover_stands(cover, x_extent(call->start, call->end), (enum lock_mode)call->mode);

	x_say("host %d agent: a lock taken meanwhile (%s of [%d,%d)) %s", h, x_mode_names[call->mode], call->start, call->end,
	      yes ? "stands" : "must go");
	x_cover_pack(w, cover, &w->host[h].cover);
	return yes;
}

void x_agent_idle(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = x_agent_cover(w, def, h);

	x_say("host %d agent: the cover has lain idle", h);
	cover_idle(cover);
	x_agent_settle(w, def, h);
}

/* ---- the store ---- */

static size_t big_list(const struct x_list *list, struct lock_span spans[X_SPANS])
{
	for (int i = 0; i < list->count; i++)
		spans[i] = (struct lock_span){ x_extent(list->at[i].start, list->at[i].end), (enum lock_mode)list->at[i].mode,
					       list->at[i].fence };
	return list->count;
}

static void granted(struct cover *cover, uint64_t id, const struct x_list *spans, const struct x_list *waiting)
{
	struct lock_span a[X_SPANS], b[X_SPANS];
	size_t n = big_list(spans, a), m = big_list(waiting, b);

	cover_granted(cover, id, a, n, b, m);
}

void x_agent_reply(struct x_world *w, const struct x_def *def, int h)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_host *host = &w->host[h];
	struct x_cmd cmd = host->cmds[0];

	host->cmd_count--;
	memmove(host->cmds, host->cmds + 1, host->cmd_count * sizeof host->cmds[0]);
	memset(&host->cmds[host->cmd_count], 0, sizeof host->cmds[0]);
	switch (cmd.reply.kind) {
	case REPLY_GRANTED:
		x_say("host %d agent: reads the reply to request %d: granted%s, waiting%s", h, cmd.req,
		      x_list_text(&cmd.reply.spans), x_list_text(&cmd.reply.waiting));
		granted(cover, cmd.req, &cmd.reply.spans, &cmd.reply.waiting);
		break;
	case REPLY_QUEUED:
		cover_queued(cover, cmd.req, cmd.again);
		break;
	case REPLY_BUSY:
		cover_refused(cover, cmd.req);
		break;
	case REPLY_COVER:
	case REPLY_ATTACHED:
		x_say("host %d agent: reads the reply to its %s:%s, waiting%s", h,
		      cmd.reply.kind == REPLY_COVER ? "give-back" : "attach", x_list_text(&cmd.reply.spans),
		      x_list_text(&cmd.reply.waiting));
		granted(cover, 0, &cmd.reply.spans, &cmd.reply.waiting);
		break;
	default:
		break;
	}
	x_agent_settle(w, def, h);
}

void x_agent_push(struct x_world *w, const struct x_def *def, int h, int i, bool keep)
{
	struct cover *cover = x_agent_cover(w, def, h);
	struct x_host *host = &w->host[h];
	struct x_push push = host->pushes[i];
	struct lock_span waiting[X_SPANS];
	char name[COVER_HOST_MAX];
	size_t n;

	if (!keep) {
		host->push_count--;
		memmove(&host->pushes[i], &host->pushes[i + 1], (size_t)(host->push_count - i) * sizeof push);
		memset(&host->pushes[host->push_count], 0, sizeof push);
	}
	n = big_list(&push.waiting, waiting);
	switch (push.kind) {
	case PUSH_GRANT:
		x_say("host %d agent: hears grant of request %d:%s, waiting%s", h, push.req, x_list_text(&push.spans),
		      x_list_text(&push.waiting));
		granted(cover, push.req, &push.spans, &push.waiting);
		break;
	case PUSH_RECALL:
		x_say("host %d agent: hears recall of%s", h, x_list_text(&push.waiting));
		cover_recalled(cover, waiting, n);
		break;
	case PUSH_TRY:
		x_say("host %d agent: hears a try of host %d for%s (request %d)", h, push.host, x_list_text(&push.waiting), push.req);
		snprintf(name, sizeof name, "%d", push.host);
		cover_tried(cover, &waiting[0], name, push.req);
		break;
	default:
		x_say("host %d agent: hears busy for request %d", h, push.req);
		cover_refused(cover, push.req);
		break;
	}
	x_agent_settle(w, def, h);
}

/*
 * The agent dies and the next one has resumed its session: the store has dropped
 * the requests and told the covers. A program that was told GO makes its call and
 * has to ask whether it stands; one that waited for an answer asks anew.
 */
void x_agent_restart(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];
	struct x_cmd attach = { .kind = VERB_ATTACH, .flags = 1 };
	bool anew[X_CALLS] = { false };

	x_say("host %d agent: dies; another one takes over", h);
	x_probe_dies(host);
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
	memset(&host->cover, 0, sizeof host->cover);
	x_store_do(&w->store, w, def, h, &attach);
	granted(x_agent_cover(w, def, h), 0, &attach.reply.spans, &attach.reply.waiting);
	x_agent_settle(w, def, h);
	for (int c = 0; c < X_CALLS; c++)
		if (anew[c])
			x_agent_request(w, def, h, c);
}
