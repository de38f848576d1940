/* SPDX-License-Identifier: MIT */
/*
 * The network of the explored world, and what the store does with a command.
 *
 * Commands of a host are executed in order and answered in order; after a break
 * the host attaches, then sends again what has no answer. Pushes are another channel: they
 * come in any order, as one that was lost comes with a later renewal.
 */
#include "explore_world.h"

#include <string.h>

/* The store has granted a request: from now on a try may be refused for it. */
static void granted(struct x_world *w, const struct x_def *def, int h, uint16_t req)
{
	struct x_call *call = x_call_of_id(w, h, req);
	int c = (req & 0xff) - 1;
	const struct x_op *op = &def->ops[h][c / X_OPS][c % X_OPS];

	if (call && call->live) {
		call->licensed = 1;
		call->behind = 0;	/* it was its turn; a grant that comes late may be answered from a newer cover */
	}
	if (call && call->live && !call->over)
		return;
	for (int g = 0; g < X_HOSTS; g++) {
		for (c = 0; c < X_CALLS; c++) {
			struct x_call *other = &w->host[g].calls[c];

			if (other->live && other->try && !other->over && g != h &&
			    mode_conflicts((enum lock_mode)other->mode, (enum lock_mode)op->mode) &&
			    x_overlaps(other->start, other->end, op->start, op->end))
				other->excused = 1;
		}
	}
}

void x_store_pushed(struct x_world *w, const struct x_def *def, int h, struct x_push push)
{
	static const char *const names[] = { "grant", "recall", "try", "busy" };
	struct x_host *host = &w->host[h];

	x_say("  store: %s to host %d (request %d:%s, waiting%s)", names[push.kind], h, push.req, x_list_text(&push.spans),
	      x_list_text(&push.waiting));
	if (push.kind == PUSH_GRANT)
		granted(w, def, h, push.req);
	if (host->push_count == X_PUSHES) {
		x_world_fail(w, X_LIVELOCK, "more pushes than a world can hold");
		return;
	}
	host->pushes[host->push_count++] = push;
}

void x_net_store(struct x_world *w, const struct x_def *def, int h)
{
	struct x_host *host = &w->host[h];
	struct x_cmd *cmd = host->cmds;

	while (cmd->processed)
		cmd++;
	cmd->processed = 1;
	switch (cmd->kind) {
	case VERB_ACQUIRE:
		x_say("store: acquire %s of [%d,%d) by host %d, request %d", x_mode_names[cmd->mode], cmd->start, cmd->end, h, cmd->req);
		break;
	case VERB_WITHDRAW:
		x_say("store: withdraw by host %d, request %d", h, cmd->req);
		break;
	case VERB_GIVE_BACK:
		x_say("store: give-back by host %d:%s", h, x_list_text(&cmd->parts));
		break;
	case VERB_ATTACH:
		x_say("store: attach by host %d on its new connection", h);
		break;
	default:
		x_say("store: host %d says busy to request %d of host %d", h, cmd->req, cmd->host);
		break;
	}
	x_store_do(&w->store, w, def, h, cmd);
	if (cmd->reply.kind >= REPLY_GRANTED)
		x_say("  store: %s%s, waiting%s", cmd->reply.kind == REPLY_GRANTED ? "granted" : "has now",
		      x_list_text(&cmd->reply.spans), x_list_text(&cmd->reply.waiting));
	if (cmd->reply.kind == REPLY_GRANTED)
		granted(w, def, h, cmd->req);
}

void x_net_break(struct x_world *w, int h)
{
	struct x_host *host = &w->host[h];

	x_say("host %d: its connection breaks; what has no answer is sent again", h);
	w->breaks--;
	if (host->cmds[0].kind != VERB_ATTACH) {
		if (host->cmd_count == X_CMDS) {
			x_world_fail(w, X_LIVELOCK, "more commands than a world can hold");
			return;
		}
		memmove(&host->cmds[1], &host->cmds[0], host->cmd_count++ * sizeof host->cmds[0]);
		host->cmds[0] = (struct x_cmd){ .kind = VERB_ATTACH };
	}
	for (int i = 0; i < host->cmd_count; i++) {
		host->cmds[i].processed = 0;
		host->cmds[i].again = 1;
		memset(&host->cmds[i].reply, 0, sizeof host->cmds[i].reply);
	}
}
