/* SPDX-License-Identifier: MIT */
/*
 * Programs, shim and kernel of the explored world, and which steps are possible.
 *
 * The kernel's side is flock(2) on one inode of each host: a conversion drops
 * the old lock first, a waiter is any description whose call has not come back
 * (who gets the lock next is not ordered), a try fails at once.
 *
 * Two merges that lose nothing: a REQUEST reaches the agent in the step in which
 * the call begins (before that it has no effect, and a later begin makes the
 * check for refusals only stricter), and BUSY reaches the program at once.
 */
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
		if (!strchr("seu", *text) || text[1] < '0' || text[1] > '0' + X_DESCS - 2)
			return -EINVAL;
		op.desc = (uint8_t)(text[1] - '0' + 1);
		text += 2;
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
		cover_init(&w->host[h].cover, NULL, NULL, 0);
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
}

bool x_kernel_conflict(const struct x_host *host, int desc, enum lock_mode mode)
{
	for (int d = 0; d < X_DESCS; d++)
		if (d != desc && mode_conflicts(host->held[d], mode))
			return true;
	return false;
}

static int call_of(int p, const struct x_prog *prog)
{
	return p * X_OPS + prog->pc;
}

static void call_returns(struct x_world *w, int h, int p, uint8_t in, bool refused)
{
	struct x_prog *prog = &w->host[h].progs[p];
	struct x_call *call = &w->host[h].calls[call_of(p, prog)];

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
	const struct x_call *call = &w->host[h].calls[call_of(p, &w->host[h].progs[p])];

	x_say("host %d program %d: refused by %s", h, p, by);
	if (!call->excused)
		x_world_fail(w, X_REFUSED, "a try was refused, and nobody held a conflicting lock or could have got one");
}

/* Closes what nobody else has open. */
static void close_descriptions(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];

	for (int d = 1; d < X_DESCS; d++) {
		bool open = false;

		if (!(def->refs[h][d] & (1u << p)))
			continue;
		for (int q = 0; q < X_PROGS; q++)
			if (q != p && (def->refs[h][d] & (1u << q)) && host->progs[q].state != P_OVER)
				open = true;
		if (!open)
			host->held[d] = host->unsure[d] = MODE_NONE;
	}
}

static void do_op(struct x_world *w, const struct x_def *def, int h, int p)
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
		x_say("host %d program %d: unlocks description %d", h, p, op.desc);
		host->held[op.desc] = host->unsure[op.desc] = MODE_NONE;
		prog->pc++;
		return;
	}
	x_say("host %d program %d: asks for %s%s on description %d", h, p, op.try ? "a try of " : "",
	      x_mode_names[op.mode], op.desc);
	call = &host->calls[call_of(p, prog)];
	*call = (struct x_call){ .live = 1, .mode = op.mode, .try = op.try, .desc = op.desc };
	for (int d = 1; d < X_DESCS; d++)
		if (op.mode == MODE_SH && host->held[d] == MODE_SH)
			call->nested = 1;
	prog->refused = false;
	if (host->standing >= op.mode) {
		x_say("host %d program %d: sees a standing GO", h, p);
		call->standing = call->licensed = 1;
		prog->state = P_STANDING;
		return;
	}
	prog->state = P_WAITS;
	x_agent_request(w, def, h, call_of(p, prog));
}

/* The kernel's lock is there: is the GO still? */
static void took(struct x_host *host, struct x_prog *prog, const struct x_call *call)
{
	if (host->held[call->desc] != call->mode)
		host->unsure[call->desc] = 1;
	host->held[call->desc] = call->mode;
	prog->state = P_TOOK;
}

/* A standing GO did not help: ask. */
static void ask_after_all(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_prog *prog = &w->host[h].progs[p];
	struct x_call *call = &w->host[h].calls[call_of(p, prog)];

	prog->state = P_WAITS;
	call->attempt = (uint8_t)(call->attempt + call->lapsed);
	call->standing = call->moved = call->lapsed = call->licensed = 0;
	x_agent_request(w, def, h, call_of(p, prog));
}

static void do_take_standing(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[call_of(p, prog)];

	if (host->held[call->desc] != call->mode) {
		host->held[call->desc] = host->unsure[call->desc] = MODE_NONE;
		if (x_kernel_conflict(host, call->desc, call->mode)) {
			x_say("host %d program %d: somebody here has the lock", h, p);
			if (!call->try || call->moved) {
				ask_after_all(w, def, h, p);
				return;
			}
			refused(w, h, p, "the kernel");
			call_returns(w, h, p, 0, true);
			return;
		}
	}
	x_say("host %d program %d: has taken the lock, %s", h, p, x_mode_names[call->mode]);
	took(host, prog, call);
}

static void do_confirm(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[call_of(p, prog)];

	if ((call->lapsed || call->moved) && !x_agent_stands(w, def, h, call->mode)) {
		prog->state = P_UNDO;
		return;
	}
	x_say("host %d program %d: its lock stands, %s", h, p, x_mode_names[call->mode]);
	if (host->held[call->desc] == call->mode)	/* else another process converts it just now */
		host->unsure[call->desc] = 0;
	call_returns(w, h, p, 0, false);
}

static void do_undo(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	int d = host->calls[call_of(p, &host->progs[p])].desc;

	x_say("host %d program %d: undoes its lock", h, p);
	host->held[d] = host->unsure[d] = MODE_NONE;
	ask_after_all(w, def, h, p);
}

static void do_receive(struct x_world *w, const struct x_def *def, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[call_of(p, prog)];

	if (call->out == OUT_CHECK) {
		prog->looked = host->held[call->desc];
		prog->state = P_LOOKED;
		call->out = OUT_NOTHING;
		x_say("host %d program %d: sees that its description holds %s", h, p, x_mode_names[prog->looked]);
		return;
	}
	call->out = OUT_NOTHING;
	if (host->held[call->desc] == call->mode && call->lapsed) {
		took(host, prog, call);
		return;
	}
	if (host->held[call->desc] == call->mode) {
		x_say("host %d program %d: GO, has the lock already", h, p);
		call_returns(w, h, p, IN_DONE, false);
		return;
	}
	host->held[call->desc] = host->unsure[call->desc] = MODE_NONE;
	if (!call->try) {
		x_say("host %d program %d: GO, calls the kernel", h, p);
		prog->state = P_KERNEL;
		return;
	}
	if (x_kernel_conflict(host, call->desc, call->mode) && call->lapsed) {
		x_say("host %d program %d: refused by the kernel too late, asks anew", h, p);
		ask_after_all(w, def, h, p);
		return;
	}
	if (x_kernel_conflict(host, call->desc, call->mode)) {
		refused(w, h, p, "the kernel");
		call_returns(w, h, p, IN_DONE, true);
		return;
	}
	x_say("host %d program %d: GO, its try has the lock", h, p);
	if (call->lapsed) {
		took(host, prog, call);
		return;
	}
	host->held[call->desc] = call->mode;
	call_returns(w, h, p, IN_DONE, false);
}

static void do_answer(struct x_world *w, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];
	struct x_call *call = &host->calls[call_of(p, prog)];

	if (prog->looked == call->mode) {
		x_say("host %d program %d: holds that already, returns", h, p);
		call_returns(w, h, p, IN_CLOSE, false);
		return;
	}
	if (prog->looked == MODE_SH && call->mode == MODE_EX)
		host->held[call->desc] = host->unsure[call->desc] = MODE_NONE;
	x_say("host %d program %d: says it holds %s%s", h, p, x_mode_names[prog->looked],
	      prog->looked == MODE_SH ? ", has dropped it" : "");
	call->in[call->in_count++] = (uint8_t)(IN_HELD + 4 * prog->looked);
	prog->looked = 0;
	prog->state = P_WAITS;
}

static void do_kill(struct x_world *w, int h, int p)
{
	struct x_host *host = &w->host[h];
	struct x_prog *prog = &host->progs[p];

	x_say("host %d program %d: is killed", h, p);
	w->kills--;
	if (prog->state >= P_WAITS && prog->state <= P_UNDO) {
		const struct x_call *call = &host->calls[call_of(p, prog)];

		call_returns(w, h, p, call->standing || call->lapsed ? 0 : IN_CLOSE, false);
	}
	prog->state = P_DYING;
}

static void do_interrupt(struct x_world *w, int h, int p)
{
	struct x_host *host = &w->host[h];

	x_say("host %d program %d: EINTR", h, p);
	w->interrupts--;
	if (host->calls[call_of(p, &host->progs[p])].lapsed)
		call_returns(w, h, p, 0, false);
	else
		call_returns(w, h, p, host->progs[p].state == P_KERNEL ? IN_DONE : IN_CLOSE, false);
}

/* Messages of finished calls that the agent has not read. */
static bool unread(const struct x_host *host)
{
	for (int i = 0; i < X_CALLS; i++)
		if (host->calls[i].live && host->calls[i].over)
			return true;
	return false;
}

static bool prog_step(const struct x_world *w, const struct x_def *def, struct x_step s)
{
	const struct x_host *host = &w->host[s.host];
	const struct x_prog *prog = &host->progs[s.arg];
	const struct x_call *call = &host->calls[call_of(s.arg, prog)];

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
		       (prog->state == P_KERNEL && !x_kernel_conflict(host, call->desc, call->mode));
	case STEP_CONFIRM:
		return prog->state == P_TOOK;
	case STEP_UNDO:
		return prog->state == P_UNDO;
	case STEP_REAP:
		return prog->state == P_DYING;
	case STEP_KILL:
		return w->kills && (prog->state <= P_UNDO || prog->state == P_HOLDS);
	default: /* STEP_INTERRUPT */
		return w->interrupts && (prog->state == P_WAITS || prog->state == P_KERNEL) && !call->try;
	}
}

bool x_world_possible(const struct x_world *w, const struct x_def *def, struct x_step s)
{
	const struct x_host *host = &w->host[s.host];
	bool quiet = !def->scenario->sockets_first || !unread(host);

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
		return host->helper == HELPER_WAITS && !x_kernel_conflict(host, 0, host->helper_mode);
	case STEP_WIN_TOLD:
		return host->helper == HELPER_WON && quiet;
	case STEP_WAIT_ENDED:
		return host->helper == HELPER_WAITS && host->helper_cancelled && quiet;
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
	case STEP_IDLE:
		return w->idles && host->cover.mode != MODE_NONE;
	case STEP_OFFER:
		return w->offers && host->calls[s.arg].live && host->calls[s.arg].out == OUT_GO &&
		       !host->calls[s.arg].try && !host->calls[s.arg].attempt && !host->calls[s.arg].lapsed;
	case STEP_LAPSE:
		return w->lapses && host->calls[s.arg].live && !host->calls[s.arg].over && !host->calls[s.arg].lapsed &&
		       (host->calls[s.arg].out == OUT_GO || host->progs[s.arg / X_OPS].state == P_KERNEL) &&
		       call_of(s.arg / X_OPS, &host->progs[s.arg / X_OPS]) == s.arg;
	default:
		return prog_step(w, def, s);
	}
}

int x_world_steps(const struct x_world *w, const struct x_def *def, struct x_step *ret_steps)
{
	static const uint8_t by_prog[] = { STEP_RECV, STEP_ANSWER, STEP_TAKE, STEP_CONFIRM, STEP_UNDO,
					   STEP_REAP, STEP_OP, STEP_KILL, STEP_INTERRUPT };
	static const uint8_t by_host[] = { STEP_STORE, STEP_REPLY, STEP_WON, STEP_WIN_TOLD, STEP_WAIT_ENDED,
					   STEP_PROBE, STEP_PROBE_OVER, STEP_PROBED, STEP_BREAK, STEP_IDLE };
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
			}
		}
		for (size_t k = 0; k < sizeof by_host; k++)
			TRY_STEP(by_host[k], 0);
		for (int i = 0; i < host->push_count; i++) {
			TRY_STEP(STEP_PUSH, i);
			TRY_STEP(STEP_REPEAT, i);
		}
	}
#undef TRY_STEP
	return n;
}

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
		if (host->held[d] == MODE_SH)
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

void x_world_do(struct x_world *w, const struct x_def *def, struct x_step s)
{
	struct x_host *host = &w->host[s.host];
	struct x_prog *prog = &host->progs[s.arg < X_PROGS ? s.arg : 0];
	int h = s.host;

	switch (s.kind) {
	case STEP_OP:
		do_op(w, def, h, s.arg);
		break;
	case STEP_RECV:
		do_receive(w, def, h, s.arg);
		break;
	case STEP_ANSWER:
		do_answer(w, h, s.arg);
		break;
	case STEP_TAKE: {
		const struct x_call *call = &host->calls[call_of(s.arg, prog)];

		if (prog->state == P_STANDING) {
			do_take_standing(w, def, h, s.arg);
			break;
		}
		x_say("host %d program %d: has the lock, %s", h, s.arg, x_mode_names[call->mode]);
		if (call->lapsed) {
			took(host, prog, call);
			break;
		}
		host->held[call->desc] = call->mode;
		call_returns(w, h, s.arg, IN_DONE, false);
		break;
	}
	case STEP_CONFIRM:
		do_confirm(w, def, h, s.arg);
		break;
	case STEP_UNDO:
		do_undo(w, def, h, s.arg);
		break;
	case STEP_REAP:
		x_say("host %d program %d: the kernel has closed its descriptors", h, s.arg);
		prog->state = P_OVER;
		close_descriptions(w, def, h, s.arg);
		break;
	case STEP_AGENT:
		x_agent_receive(w, def, h, s.arg);
		break;
	case STEP_STORE:
		x_net_store(w, h);
		break;
	case STEP_REPLY:
		x_agent_reply(w, def, h);
		break;
	case STEP_PUSH:
		x_agent_push(w, def, h, s.arg, false);
		break;
	case STEP_WON:
		x_say("host %d helper: has the lock, %s", h, x_mode_names[host->helper_mode]);
		host->held[0] = host->helper_mode;
		host->helper = HELPER_WON;
		break;
	case STEP_WIN_TOLD:
		x_agent_won(w, def, h);
		break;
	case STEP_WAIT_ENDED:
		x_agent_wait_ended(w, def, h);
		break;
	case STEP_PROBE:
		x_agent_probe(w, h);
		break;
	case STEP_PROBE_OVER:
		host->held[0] = MODE_NONE;
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
		do_kill(w, h, s.arg);
		break;
	case STEP_INTERRUPT:
		do_interrupt(w, h, s.arg);
		break;
	case STEP_IDLE:
		w->idles--;
		x_agent_idle(w, def, h);
		break;
	case STEP_LAPSE:
		w->lapses--;
		x_agent_lapsed(w, def, h, s.arg);
		break;
	default: /* STEP_OFFER */
		w->offers--;
		x_agent_offer_over(w, def, h, s.arg);
		break;
	}
	check_overlap(w, def);
	note_excuses(w, def);
	/* A refusal that the agent has decided reaches the program at once. */
	for (int g = 0; g < def->hosts; g++) {
		for (int p = 0; p < X_PROGS; p++) {
			if (w->host[g].progs[p].state != P_WAITS || !w->host[g].progs[p].refused)
				continue;
			refused(w, g, p, "the agent");
			call_returns(w, g, p, 0, true);
		}
	}
}

/* ---- the end ---- */

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
	const struct x_call *call = &w->host[h].calls[call_of(p, &w->host[h].progs[p])];

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
			    w->host[h].calls[call_of(p, &w->host[h].progs[p])].mode == MODE_EX)
				writer = true;
	for (int h = 0; h < def->hosts; h++) {
		for (int p = 0; p < X_PROGS; p++) {
			struct x_prog *prog = &w->host[h].progs[p];

			if (!waits(prog))
				continue;
			if (w->host[h].calls[call_of(p, prog)].try) {
				x_world_fail(w, X_HANG, "a try waits");
				return;
			}
			if (waits_for_holder(w, def, h, p))
				continue;
			/* documented: new readers wait behind a writer that waits, but not where the host reads already */
			if (writer && w->host[h].calls[call_of(p, prog)].mode == MODE_SH &&
			    !w->host[h].calls[call_of(p, prog)].nested)
				continue;
			x_say("host %d program %d waits for ever", h, p);
			x_world_fail(w, X_HANG, "nothing can happen any more, and a program waits for nobody");
		}
	}
}

void x_world_epilogue(struct x_world *w, struct x_def *def, int h, bool try)
{
	struct x_op *ops = def->ops[h][X_EPILOGUE];

	memset(ops, 0, sizeof def->ops[h][X_EPILOGUE]);
	ops[0] = (struct x_op){ .kind = OP_LOCK, .mode = MODE_EX, .try = try, .desc = 1 };
	ops[1] = (struct x_op){ .kind = OP_UNLOCK, .desc = 1 };
	w->host[h].progs[X_EPILOGUE] = (struct x_prog){ .state = P_READY };
	memset(&w->host[h].calls[X_EPILOGUE * X_OPS], 0, X_OPS * sizeof w->host[h].calls[0]);
}
