/* SPDX-License-Identifier: MIT */
/* The explored world: scripts, which steps are possible, doing one. */
#include "explore_world.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool x_trace;

const char *const x_mode_names[] = { "nothing", "shared", "exclusive" };

void x_say(const char *format, ...)
{
	va_list args;

	if (!x_trace)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

void x_world_fail(struct x_world *w, enum x_violation violation, const char *why)
{
	if (w->violation)
		return;
	w->violation = (uint8_t)violation;
	w->why = why;
	x_say("!! %s", why);
}

const char *x_list_text(const struct x_list *list)
{
	static char texts[4][X_SPANS * 32];
	static int next;
	char *text = texts[next++ % 4];
	size_t n = 0;

	if (!list->count)
		return " nothing";
	for (int i = 0; i < list->count; i++)
		n += (size_t)sprintf(text + n, " [%d,%d) %s/%d", list->at[i].start, list->at[i].end, x_mode_names[list->at[i].mode],
				     list->at[i].fence);
	return text;
}

static int parse_script(const char *text, struct x_op *ops)
{
	int n = 0;

	while (*text) {
		struct x_op op = { 0 };

		while (*text == ' ')
			text++;
		if (!*text)
			break;
		if (n == X_OPS)
			return -EINVAL;
		if (!strncmp(text, "hold", 4)) {
			op.kind = OP_HOLD;
			text += 4;
			ops[n++] = op;
			continue;
		}
		op.try = *text == 't';
		text += op.try;
		op.kind = *text == 'u' ? OP_UNLOCK : OP_LOCK;
		op.mode = *text == 'e' ? MODE_EX : MODE_SH;
		if (!strchr("seu", *text) || text[1] < '0' || text[1] >= '0' + X_DESCS)
			return -EINVAL;
		op.desc = (uint8_t)(text[1] - '0');
		op.end = X_POINTS;
		text += 2;
		if (*text == ':') {
			op.start = (uint8_t)(text[1] - '0');
			op.end = (uint8_t)(text[2] - '0');
			text += 3;
		}
		if (op.start >= op.end || op.end > X_POINTS)
			return -EINVAL;
		ops[n++] = op;
	}
	return 0;
}

int x_def_make(struct x_def *def, const struct x_scenario *scenario)
{
	memset(def, 0, sizeof *def);
	def->scenario = scenario;
	for (int h = 0; h < X_HOSTS; h++) {
		for (int p = 0; p < X_PROGS - 1; p++) {
			if (!scenario->script[h][p])
				continue;
			def->hosts = h + 1;
			if (parse_script(scenario->script[h][p], def->ops[h][p]))
				return -EINVAL;
			for (int i = 0; i < X_OPS; i++)
				if (def->ops[h][p][i].kind == OP_LOCK || def->ops[h][p][i].kind == OP_UNLOCK)
					def->refs[h][def->ops[h][p][i].desc] |= (uint8_t)(1u << p);
		}
	}
	return 0;
}

void x_world_init(struct x_world *w, const struct x_def *def)
{
	memset(w, 0, sizeof *w);
	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++)
			if (p == X_EPILOGUE || !def->scenario->script[h][p])
				w->host[h].progs[p].state = P_ABSENT;
	}
	w->repeats = def->scenario->repeats;
	w->breaks = def->scenario->breaks;
	w->kills = def->scenario->kills;
	w->interrupts = def->scenario->interrupts;
	w->idles = def->scenario->idles;
	w->offers = def->scenario->offers;
	w->lapses = def->scenario->lapses;
	w->restarts = def->scenario->restarts;
	w->passes = def->scenario->passes;
}

void x_world_copy(struct x_world *dst, const struct x_world *src)
{
	for (int h = 0; h < X_HOSTS; h++) {
		struct x_host *to = &dst->host[h];
		const struct x_host *from = &src->host[h];

		memcpy(to, from, offsetof(struct x_host, cmds));
		memcpy(to->cmds, from->cmds, from->cmd_count * sizeof from->cmds[0]);
		memcpy(to->pushes, from->pushes, from->push_count * sizeof from->pushes[0]);
	}
	memcpy(&dst->store, &src->store, sizeof *src - offsetof(struct x_world, store));
}

/* Messages of finished calls that the agent has not read. */
static bool unread(const struct x_host *host)
{
	for (int i = 0; i < X_CALLS; i++)
		if (host->calls[i].live && host->calls[i].over)
			return true;
	return false;
}

/* Whether the owner of a call holds what somebody waits for, as its agent knows. */
static bool holds_wanted(const struct x_host *host, const struct x_call *call)
{
	for (int p = 0; p < X_POINTS; p++) {
		enum lock_mode held = (enum lock_mode)host->held[call->desc][p];

		for (int i = 0; held && i < host->cover.recall_count; i++) {
			const struct x_recall *r = &host->cover.recalls[i];

			if (!r->dropped && r->wanted.start <= p && p < r->wanted.end && mode_conflicts((enum lock_mode)r->wanted.mode, held))
				return true;
		}
		for (int c = 0; held && c < X_CALLS; c++) {
			const struct x_call *other = &host->calls[c];

			if (other->live && !other->over && !other->try && other->desc != call->desc && other->start <= p &&
			    p < other->end && mode_conflicts((enum lock_mode)other->mode, held))
				return true;
		}
	}
	return false;
}

static bool prog_step(const struct x_world *w, const struct x_def *def, struct x_step s)
{
	const struct x_host *host = &w->host[s.host];
	const struct x_prog *prog = &host->progs[s.arg];
	const struct x_call *call = &host->calls[x_call_of(s.arg, prog)];

	switch (s.kind) {
	case STEP_OP:
		return prog->state == P_READY && !(def->scenario->sockets_first && unread(host) &&
						   def->ops[s.host][s.arg][prog->pc].kind == OP_LOCK);
	case STEP_RECV:
		return prog->state == P_WAITS && call->out;
	case STEP_ANSWER:
		return prog->state == P_LOOKED;
	case STEP_TAKE:
		return prog->state == P_STANDING ||
		       (prog->state == P_KERNEL &&
			!x_kernel_conflict(host, call->desc, call->start, call->end, (enum lock_mode)call->mode, true));
	case STEP_CONFIRM:
		return prog->state == P_TOOK;
	case STEP_UNDO:
		return prog->state == P_UNDO;
	case STEP_REAP:
		return prog->state == P_DYING;
	case STEP_PASS:
	case STEP_PASS_ON:
		return def->scenario->records && prog->state == P_WAITS && !call->standing && !call->try &&
		       x_agent_queues(host, x_call_of(s.arg, prog)) && (s.kind == STEP_PASS ? holds_wanted(host, call) : w->passes > 0);
	case STEP_KILL:
		return w->kills && (prog->state <= P_UNDO || prog->state == P_HOLDS);
	default: /* STEP_INTERRUPT */
		return w->interrupts && (prog->state == P_WAITS || prog->state == P_KERNEL) && !call->try;
	}
}

/* Whether a call was told GO, which counts and is not done. */
static bool has_go(const struct x_host *host, int c)
{
	const struct x_call *call = &host->calls[c];
	const struct x_prog *prog = &host->progs[c / X_OPS];

	return call->live && !call->over && !call->lapsed && (call->out == OUT_GO || prog->state == P_KERNEL) &&
	       x_call_of(c / X_OPS, prog) == c;
}

bool x_world_possible(const struct x_world *w, const struct x_def *def, struct x_step s)
{
	const struct x_host *host = &w->host[s.host];
	const struct x_helper *helper = &host->helpers[s.kind >= STEP_WON && s.kind <= STEP_WAIT_ENDED ? s.arg : 0];
	bool quiet = !def->scenario->sockets_first || !unread(host);
	const struct x_call *call;

	switch (s.kind) {
	case STEP_AGENT:
		return host->calls[s.arg].live && host->calls[s.arg].in_count;
	case STEP_STORE:
		return host->cmd_count && !host->cmds[host->cmd_count - 1].processed &&
		       !(host->cmds[0].kind == VERB_ATTACH && host->cmds[0].processed);
	case STEP_REPLY:
		return host->cmd_count && host->cmds[0].processed && quiet;
	case STEP_PUSH:
		return s.arg < (def->scenario->pushes_in_order ? host->push_count > 0 : host->push_count) && quiet;
	case STEP_WON:
		return helper->state == HELPER_WAITS &&
		       !x_kernel_conflict(host, -1, helper->start, helper->end, (enum lock_mode)helper->mode, false);
	case STEP_WON_OVER:
		return helper->state == HELPER_HAS;
	case STEP_WAIT_ENDED:
		return (helper->state == HELPER_OVER || (helper->state == HELPER_WAITS && helper->cancelled)) && quiet;
	case STEP_PROBE:
		return host->probe == PROBE_ASKED;
	case STEP_PROBED:
		return host->probe == PROBE_OVER && quiet;
	case STEP_PROBE_OVER:
		return host->probe == PROBE_TAKEN;
	case STEP_REPEAT:
		return w->repeats && s.arg < host->push_count && quiet;
	case STEP_BREAK:
		return w->breaks && host->cmd_count && host->cmds[0].processed;
	case STEP_RESTART:
		return w->restarts;
	case STEP_IDLE:
		return w->idles && host->cover.span_count;
	case STEP_OFFER:
		return w->offers && host->calls[s.arg].live && host->calls[s.arg].out == OUT_GO &&
		       !host->calls[s.arg].try && !host->calls[s.arg].attempt && !host->calls[s.arg].lapsed;
	case STEP_LAPSE:
		return w->lapses && has_go(host, s.arg);
	case STEP_WILL_WAIT:	/* on Linux a wait for a part keeps nobody from the others */
		call = &host->calls[s.arg];
		return def->scenario->records && !def->scenario->remote && has_go(host, s.arg) && !call->try && !call->again &&
		       x_kernel_conflict(host, call->desc, call->start, call->end, (enum lock_mode)call->mode, false);
	default:
		return prog_step(w, def, s);
	}
}

int x_world_steps(const struct x_world *w, const struct x_def *def, struct x_step *ret_steps)
{
	static const uint8_t by_prog[] = { STEP_RECV, STEP_ANSWER, STEP_TAKE, STEP_CONFIRM, STEP_UNDO,
					   STEP_REAP, STEP_PASS, STEP_OP, STEP_KILL, STEP_INTERRUPT, STEP_PASS_ON };
	static const uint8_t by_host[] = { STEP_STORE, STEP_REPLY, STEP_PROBE, STEP_PROBE_OVER, STEP_PROBED, STEP_BREAK, STEP_IDLE, STEP_RESTART };
	struct x_step s;
	int n = 0;

#define TRY_STEP(k, a) do { \
		s.kind = (uint8_t)(k); \
		s.arg = (uint8_t)(a); \
		if (x_world_possible(w, def, s)) \
			ret_steps[n++] = s; \
	} while (0)
	for (int h = 0; h < def->hosts; h++) {
		const struct x_host *host = &w->host[h];

		s.host = (uint8_t)h;
		for (int p = 0; p < X_PROGS; p++) {
			if (host->progs[p].state == P_ABSENT)
				continue;
			for (size_t k = 0; k < sizeof by_prog; k++)
				TRY_STEP(by_prog[k], p);
			for (int c = p * X_OPS; c < (p + 1) * X_OPS; c++) {
				if (!host->calls[c].live)
					continue;
				TRY_STEP(STEP_AGENT, c);
				TRY_STEP(STEP_OFFER, c);
				TRY_STEP(STEP_LAPSE, c);
				TRY_STEP(STEP_WILL_WAIT, c);
			}
		}
		for (size_t k = 0; k < sizeof by_host; k++)
			TRY_STEP(by_host[k], 0);
		for (int i = 0; i < X_HELPERS; i++) {
			if (host->helpers[i].state == HELPER_NONE)
				continue;
			TRY_STEP(STEP_WON, i);
			TRY_STEP(STEP_WON_OVER, i);
			TRY_STEP(STEP_WAIT_ENDED, i);
		}
		for (int i = 0; i < host->push_count; i++) {
			TRY_STEP(STEP_PUSH, i);
			TRY_STEP(STEP_REPEAT, i);
		}
	}
#undef TRY_STEP
	return n;
}

void x_world_do(struct x_world *w, const struct x_def *def, struct x_step s)
{
	struct x_host *host = &w->host[s.host];
	int h = s.host;

	switch (s.kind) {
	case STEP_OP:
		x_prog_op(w, def, h, s.arg);
		break;
	case STEP_RECV:
		x_prog_receive(w, def, h, s.arg);
		break;
	case STEP_ANSWER:
		x_prog_answer(w, def, h, s.arg);
		break;
	case STEP_TAKE:
		x_prog_take(w, def, h, s.arg);
		break;
	case STEP_CONFIRM:
		x_prog_confirm(w, def, h, s.arg);
		break;
	case STEP_UNDO:
		x_prog_undo(w, def, h, s.arg);
		break;
	case STEP_REAP:
		x_prog_reap(w, def, h, s.arg);
		break;
	case STEP_AGENT:
		x_agent_receive(w, def, h, s.arg);
		break;
	case STEP_STORE:
		x_net_store(w, def, h);
		break;
	case STEP_REPLY:
		x_agent_reply(w, def, h);
		break;
	case STEP_PUSH:
		x_agent_push(w, def, h, s.arg, false);
		break;
	case STEP_WON:
		x_say("host %d helper %d: has the lock", h, s.arg);
		host->helpers[s.arg].state = HELPER_HAS;
		break;
	case STEP_WON_OVER:
		x_say("host %d helper %d: has dropped the lock", h, s.arg);
		host->helpers[s.arg].state = HELPER_OVER;
		break;
	case STEP_WAIT_ENDED:
		x_agent_wait_ended(w, def, h, s.arg);
		break;
	case STEP_PASS:
		x_agent_pass(w, def, h, x_call_of(s.arg, &host->progs[s.arg]));
		break;
	case STEP_PASS_ON:
		w->passes--;
		x_agent_pass(w, def, h, x_call_of(s.arg, &host->progs[s.arg]));
		break;
	case STEP_PROBE:
		x_agent_probe(w, def, h);
		break;
	case STEP_PROBE_OVER:
		host->probe_mode = MODE_NONE;
		host->probe = PROBE_OVER;
		break;
	case STEP_PROBED:
		x_agent_probed(w, def, h);
		break;
	case STEP_REPEAT:
		w->repeats--;
		x_agent_push(w, def, h, s.arg, true);
		break;
	case STEP_BREAK:
		x_net_break(w, h);
		break;
	case STEP_KILL:
		x_prog_kill(w, h, s.arg);
		break;
	case STEP_INTERRUPT:
		x_prog_interrupt(w, h, s.arg);
		break;
	case STEP_RESTART:
		w->restarts--;
		x_agent_restart(w, def, h);
		break;
	case STEP_IDLE:
		w->idles--;
		x_agent_idle(w, def, h);
		break;
	case STEP_LAPSE:
		w->lapses--;
		x_agent_lapsed(w, def, h, s.arg);
		break;
	case STEP_WILL_WAIT:
		x_agent_lapsed(w, def, h, s.arg);
		break;
	default: /* STEP_OFFER */
		w->offers--;
		x_agent_offer_over(w, def, h, s.arg);
		break;
	}
	x_check_step(w, def);
	x_prog_refusals(w, def);
}

void x_world_epilogue(struct x_world *w, struct x_def *def, int h, bool try)
{
	struct x_op *ops = def->ops[h][X_EPILOGUE];

	memset(ops, 0, sizeof def->ops[h][X_EPILOGUE]);
	ops[0] = (struct x_op){ .kind = OP_LOCK, .mode = MODE_EX, .try = try, .end = X_POINTS };
	ops[1] = (struct x_op){ .kind = OP_UNLOCK, .end = X_POINTS };
	w->host[h].progs[X_EPILOGUE] = (struct x_prog){ .state = P_READY };
	memset(&w->host[h].calls[X_EPILOGUE * X_OPS], 0, X_OPS * sizeof w->host[h].calls[0]);
}
