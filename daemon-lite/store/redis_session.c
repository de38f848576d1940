/* SPDX-License-Identifier: MIT */
/*
 * The session on the loop's thread: which step comes next, and what each answer of
 * the store means for it.
 *
 *   DETACHED -> ATTACHING -> (LEAVING -> DETACHED)
 *                         -> REASSERTING -> PROVING/STANDING
 *                         -> PROVING -> STANDING
 *   any -> LOST -> DETACHED (store_rejoin)
 *
 * Invariants. A token is on disk before it is sent. Nothing is sent for the agent
 * but while STANDING. In one process an incarnation is left only by a re-assertion
 * before our own deadline, or by `lost`; a session is never resumed after its kill
 * deadline, because its holders are being ended.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../log.h"
#include "redis_store.h"

#define MS 1000000ull
#define SETTLED_NS (1000 * MS)
#define COVERS_AT (ANSWER_ITEMS + 5)	/* in the reply of attach: the first cover */

/* --- what the agent is told --- */

void redis_session_state(struct store *store, enum store_state state, const char *format, ...)
{
	char text[REDIS_TEXT_MAX];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	if (store->state_told && store->state == state && !strcmp(store->state_text, text))
		return;
	store->state = state;
	store->state_told = true;
	memcpy(store->state_text, text, sizeof(text));
	store->events.state(store->arg, state, text);
}

static void tell_standing(struct store *store)
{
	if (!store->grace)
		redis_session_state(store, STORE_UP, "Redis at %s", redis_label(store));
	else
		redis_session_state(store, STORE_GRACE, "Redis at %s is new or may have forgotten locks: for one lease time (%g s) at most nothing "
				    "new is granted, so that other hosts can claim what they hold (for a new store, `dlock init` "
				    "before the first lock skips this)", redis_label(store), (double)store->ttl_ms / 1000);
}

void redis_session_seen(struct store *store, const struct redis_header *header)
{
	if (!store->has_session || store->needs_reassert || strcmp(header->inc, store->inc) != 0)
		return;
	/* Within an incarnation grace only ends; an older reply may come in later. */
	if (header->grace == store->grace || (header->grace && store->grace_over))
		return;
	store->grace = header->grace;
	store->grace_over = !header->grace;
	if (store->phase == PHASE_STANDING)
		tell_standing(store);
}

/* --- connections --- */

void redis_session_drop_cmd(struct store *store)
{
	redis_conn_close(&store->cmd);
	redis_ops_unsend(store);
	if (store->phase != PHASE_OFF && store->phase != PHASE_LOST)
		store->phase = PHASE_DETACHED;
}

/* A session that stood for a while starts its back-off anew. */
static void settle(struct store *store)
{
	if (store->standing_since_ns && loop_now_ns() - store->standing_since_ns > SETTLED_NS)
		store->backoff_ns = 0;
}

static void reconnect(struct store *store)
{
	settle(store);
	store->standing_since_ns = 0;
	redis_dial_soon(store);
}

void redis_session_unusable(struct store *store, enum store_state state, const char *why)
{
	redis_session_drop_cmd(store);
	reconnect(store);
	redis_session_state(store, state, "%s", why);
}

void redis_session_cmd_down(struct redis_conn *conn, const char *why)
{
	struct store *store = conn->arg;
	char text[REDIS_TEXT_MAX];

	redis_say(text, sizeof(text), "Redis at %s: %s; connecting again", redis_label(store), why);
	redis_session_unusable(store, STORE_CONNECTING, text);
}

void redis_session_push_down(struct redis_conn *conn, const char *why)
{
	struct store *store = conn->arg;

	log_debug("the subscription at %s ended: %s", redis_label(store), why);
	settle(store);
	redis_dial_soon(store);
}

/* --- lost --- */

void redis_session_lost(struct store *store, const char *why)
{
	char text[REDIS_TEXT_MAX];

	if (store->phase == PHASE_LOST)
		return;
	redis_say(text, sizeof(text), "%s", why);	/* it may live in what is freed now */
	redis_renewal_end(store->renewal);
	redis_dial_forget(store);
	redis_session_drop_cmd(store);
	redis_conn_close(&store->push);
	redis_ops_drop(store);
	store->phase = PHASE_LOST;
	store->session_serial = 0;
	store->has_session = false;
	store->needs_reassert = false;
	store->inherited_good_ns = 0;
	store->leave_first = true;
	store->inc[0] = '\0';
	store->gen = 0;
	store->backoff_ns = 0;
	redis_session_state(store, STORE_CONNECTING, "%s; a new session begins when the holders have ended", text);
	store->events.lost(store->arg, text);
}

/* --- attach --- */

static void attach(struct store *store);

static void save(struct store *store)
{
	int err = redis_file_save(store->file, &store->id);

	if (err)
		log_warn("%s cannot be written: %s; after a restart this host may have to wait for its own locks", store->file, strerrordesc_np(-err));
}

static bool needs_fresh_token(const struct store *store)
{
	return !store->id.pending[0] && (!store->has_session || !store->id.token[0]);
}

/* A session that is not the same agent's gets a new token; on disk before the store sees it. */
static int prepare_token(struct store *store)
{
	int err;

	if (!needs_fresh_token(store))
		return 0;
	redis_new_id(store->id.pending);
	err = redis_file_save(store->file, &store->id);
	if (err)
		store->id.pending[0] = '\0';
	return err;
}

static void adopt_token(struct store *store)
{
	if (!store->id.pending[0])
		return;
	memcpy(store->id.token, store->id.pending, sizeof(store->id.token));
	store->id.pending[0] = '\0';
	redis_boot_id(store->id.boot, sizeof(store->id.boot));
	save(store);
}

static void prove(struct store *store, uint64_t last_good_ns)
{
	struct redis_session session = { 0 };

	memcpy(session.host, store->id.host, sizeof(session.host));
	memcpy(session.token, store->id.token, sizeof(session.token));
	memcpy(session.inc, store->inc, sizeof(session.inc));
	store->session_serial = redis_renewal_begin(store->renewal, &session, last_good_ns);
	store->phase = PHASE_PROVING;
}

void redis_session_stand(struct store *store)
{
	store->phase = PHASE_STANDING;
	store->standing_since_ns = loop_now_ns();
	store->token_refusals = 0;
	redis_ops_flush(store);
	tell_standing(store);
}

void redis_session_enter(struct store *store, const struct redis_header *header, uint64_t last_good_ns)
{
	if (strcmp(store->inc, header->inc) != 0) {
		strcpy(store->inc, header->inc);
		store->grace_over = false;
		store->grace = false;
	}
	store->grace = header->grace && !store->grace_over;
	store->has_session = true;
	store->needs_reassert = false;
	prove(store, last_good_ns);
	if (atomic_load(&store->shared->last_good_ns))
		redis_session_stand(store);
}

static void left(struct store *store, struct redis_op *op, enum redis_answer answer,
		 const struct redis_header *header, const struct redis_value *reply)
{
	(void)op;
	(void)reply;
	if (answer != ANSWER_OK && answer != ANSWER_TOKEN) {
		redis_session_refused(store, answer, header);
		return;
	}
	/* A new subscription too: nothing that was pushed to the old session may reach the new one. */
	store->leave_first = false;
	store->gen = 0;
	redis_session_drop_cmd(store);
	redis_conn_close(&store->push);
	redis_dial_now(store);
}

static void leave(struct store *store, const struct redis_header *header)
{
	struct redis_op *op = redis_op_new(LUA_LEAVE, "", "");

	if (!op) {
		redis_session_unusable(store, STORE_CONNECTING, "out of memory");
		return;
	}
	strcpy(store->inc, header->inc);
	op->control = left;
	store->phase = PHASE_LEAVING;
	redis_ops_control(store, op, 0);
	redis_conn_flush(&store->cmd);
}

/* Whoever has another token than ours took this session over: a copy of our state directory. */
static void attach_refused_token(struct store *store)
{
	if (store->has_session) {
		redis_session_lost(store, "another agent has taken over this host's session in the store");
		return;
	}
	if (++store->token_refusals > 3) {
		redis_session_unusable(store, STORE_REFUSED, "the store refuses every session of this host; is something else writing its keys?");
		return;
	}
	log_warn("the store knows this host, but not its token (is %s a copy of another host's?): it joins as a new host", store->file);
	redis_new_id(store->id.host);
	redis_conn_close(&store->push);	/* it listens for the other name */
	redis_dial_soon(store);
	store->id.token[0] = store->id.pending[0] = '\0';
	store->leave_first = false;
	store->gen = 0;
	attach(store);
}

/*
 * What the store has of this host. A grant whose answer went down with the
 * connection is known to nobody here: asked again, the request may have to wait
 * behind others who wait for just that cover.
 */
static bool tell_covers(struct store *store, const struct redis_value *reply, bool resumed)
{
	for (size_t i = COVERS_AT; i + 1 < reply->count; i += 2) {
		const char *key = redis_value_text(reply, i);
		struct redis_spans spans;

		if (redis_spans_item(reply, i + 1, SPANS_COVER, &spans) < 0) {
			redis_session_unusable(store, STORE_CONNECTING, "out of memory");
			return false;
		}
		if (resumed)
			store->events.resumed(store->arg, key, spans.at, spans.count);
		else	/* who waits for it comes as a recall */
			store->events.cover(store->arg, key, spans.at, spans.count, NULL, 0);
		redis_spans_free(&spans);
	}
	return true;
}

/* Looked at before anything is told: half of a host's covers would be taken for all of them. */
static bool covers_valid(const struct redis_value *reply)
{
	if (reply->count < COVERS_AT || (reply->count - COVERS_AT) % 2)
		return false;
	for (size_t i = COVERS_AT; i < reply->count; i += 2) {
		const char *key = redis_value_text(reply, i), *spans = redis_value_text(reply, i + 1);

		if (!key || !spans || !redis_spans_valid(spans, reply->items[i + 1]->len, SPANS_COVER))
			return false;
	}
	return true;
}

static void attach_in_session(struct store *store, bool joined, bool confirmed, const struct redis_header *header,
			      const struct redis_value *reply)
{
	struct store_lease lease;

	store_lease(store, &lease);
	if (store->needs_reassert || strcmp(header->inc, store->inc) != 0 || !confirmed)
		redis_session_reassert(store, header->inc);
	else if (joined)
		redis_session_lost(store, "this host's session has expired in the store: it was silent for longer than the lease time");
	else if (lease.last_good_ns && loop_now_ns() >= lease.kill_ns)
		redis_session_lost(store, "the lease could not be renewed before its deadline");
	else if (tell_covers(store, reply, false))
		redis_session_enter(store, header, 0);
}

/* Whether covers that an earlier agent left may be claimed from a store that forgot. */
static bool inherits_lease(const struct store *store)
{
	struct store_lease lease;

	redis_lease_fill(store->inherited_good_ns, store->ttl_ms, &lease);
	return loop_now_ns() < lease.failing_ns;
}

static void attach_first(struct store *store, bool joined, bool confirmed, const struct redis_header *header,
			 const struct redis_value *reply, uint64_t sent_ns)
{
	uint64_t seq = 0;

	redis_value_u64(reply, ANSWER_ITEMS + 3, &seq);
	atomic_store(&store->shared->seen, seq);
	if (store->leave_first && !joined) {
		if (confirmed) {
			leave(store, header);
		} else {
			/* Nothing of the earlier session is held: the complete state replaces it. */
			store->leave_first = false;
			redis_session_reassert(store, header->inc);
		}
		return;
	}
	store->leave_first = false;
	/* What is held here by the word of that session, nobody but the kernel knows any more; others may be granted it. */
	if (joined && store->inherited_good_ns) {
		redis_session_lost(store, "the store does not know the session of the agent before this one any more");
		return;
	}
	if (!confirmed && reply->count > COVERS_AT && !inherits_lease(store)) {
		redis_session_lost(store, "the store has forgotten what this host held before its agent started again, and the lease is over");
		return;
	}
	if (!tell_covers(store, reply, true))
		return;
	if (confirmed)
		redis_session_enter(store, header, joined ? sent_ns : 0);
	else
		redis_session_reassert(store, header->inc);
}

static void attached(struct store *store, struct redis_op *op, enum redis_answer answer,
		     const struct redis_header *header, const struct redis_value *reply)
{
	const char *verdict;
	uint64_t confirmed;
	bool joined;

	if (answer == ANSWER_TOKEN) {
		attach_refused_token(store);
		return;
	}
	if (answer != ANSWER_OK) {
		redis_session_refused(store, answer, header);
		return;
	}
	verdict = redis_value_text(reply, ANSWER_ITEMS);
	if (!verdict || !redis_value_u64(reply, ANSWER_ITEMS + 1, &store->gen) || !redis_value_u64(reply, ANSWER_ITEMS + 2, &confirmed) ||
	    !covers_valid(reply)) {
		redis_session_unusable(store, STORE_REFUSED, "the store's answer to `attach` has another form than expected; is another version of dlockshim using it?");
		return;
	}
	joined = !strcmp(verdict, "joined");
	adopt_token(store);
	if (store->has_session)
		attach_in_session(store, joined, confirmed != 0, header, reply);
	else
		attach_first(store, joined, confirmed != 0, header, reply, op->sent_ns);
}

static void attach(struct store *store)
{
	struct redis_op *op;
	int err = prepare_token(store);

	if (err) {
		char text[REDIS_TEXT_MAX];

		redis_say(text, sizeof(text), "%s cannot be written: %s; the agent needs it before it may hold locks", store->file, strerrordesc_np(-err));
		redis_session_unusable(store, STORE_REFUSED, text);
		return;
	}
	op = redis_op_new(LUA_ATTACH, "", "");
	if (!op) {
		redis_session_unusable(store, STORE_CONNECTING, "out of memory");
		return;
	}
	op->control = attached;
	store->phase = PHASE_ATTACHING;
	redis_ops_control(store, op, 3);
	redis_buf_text(&store->cmd.out, store->id.pending[0] ? store->id.pending : store->id.token);
	redis_buf_text(&store->cmd.out, store->id.token);
	redis_buf_text(&store->cmd.out, store->info);
	redis_conn_flush(&store->cmd);
}

void redis_session_drive(struct store *store)
{
	if (store->phase != PHASE_OFF && store->phase != PHASE_LOST && (!store->cmd.up || !store->push.up)) {
		redis_dial_soon(store);
		if (!store->cmd.up || store->phase == PHASE_DETACHED)
			return;
	}
	if (store->phase == PHASE_DETACHED)
		attach(store);
}
