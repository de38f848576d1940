/* SPDX-License-Identifier: MIT */
/*
 * Re-assertion: the store may have forgotten what this host holds, and is told all of
 * it anew. Only before our own `failing` deadline: from then on holders are being
 * ended, and what they held must not be claimed. What the agent gave back meanwhile
 * is not in the state it hands over, so give-backs that wait are void.
 */
#include <stdlib.h>
#include <string.h>

#include "redis_store.h"

/* The fence of each lock, for all its spans. False unless there is one for each. */
static bool take_fences(struct redis_op *op, const struct redis_value *reply)
{
	struct lock_span *span = op->spans;
	uint64_t fence;

	for (size_t i = 0; i < op->claim_count; i++) {
		if (!redis_value_u64(reply, ANSWER_ITEMS + 3 + i, &fence) || fence >= REDIS_FENCE_END)
			return false;
		for (size_t n = op->claims[i].span_count; n > 0; n--)
			(span++)->fence = fence;
	}
	return true;
}

/* Keeps the locks and their spans for the answer, in few pieces: there may be many. */
static bool keep_claims(struct redis_op *op, const struct store_cover *covers, size_t count)
{
	size_t spans = 0, size = count * sizeof(*covers);
	struct lock_span *span;
	char *key;

	for (size_t i = 0; i < count; i++) {
		spans += covers[i].span_count;
		size += strlen(covers[i].key) + 1;
	}
	op->claims = malloc(size + 1);
	op->spans = calloc(spans + 1, sizeof(*op->spans));
	if (!op->claims || !op->spans)
		return false;
	span = op->spans;
	key = (char *)(op->claims + count);
	for (size_t i = 0; i < count; i++) {
		op->claims[i] = (struct store_cover){ .key = key, .spans = span, .span_count = covers[i].span_count };
		key = stpcpy(key, covers[i].key) + 1;
		for (size_t n = 0; n < covers[i].span_count; n++)
			*span++ = covers[i].spans[n];
	}
	op->claim_count = count;
	op->span_count = spans;
	return true;
}

static void reasserted(struct store *store, struct redis_op *op, enum redis_answer answer,
		       const struct redis_header *header, const struct redis_value *reply)
{
	switch (answer) {
	case ANSWER_OK:
		break;
	case ANSWER_NOGRACE:
		redis_session_lost(store, "the store has forgotten this host's locks, and the time to claim them again is over");
		return;
	case ANSWER_CONFLICT:
		redis_session_lost(store, "the store has forgotten this host's locks, and another host has claimed one of them");
		return;
	case ANSWER_TOKEN:
		redis_session_lost(store, "another agent has taken over this host's session in the store");
		return;
	default:
		redis_session_refused(store, answer, header);
		return;
	}
	if (!redis_value_u64(reply, ANSWER_ITEMS + 1, &store->gen) || !take_fences(op, reply)) {
		redis_session_lost(store, "the store's answer to `reassert` has another form than expected");
		return;
	}
	for (size_t i = 0; i < op->claim_count; i++)
		store->events.reasserted(store->arg, op->claims[i].key, op->claims[i].spans, op->claims[i].span_count);
	redis_session_enter(store, header, 0);
}

void redis_session_reassert(struct store *store, const char *inc)
{
	struct store_lease lease;

	store_lease(store, &lease);
	if (lease.last_good_ns && loop_now_ns() >= lease.failing_ns) {
		redis_session_lost(store, "the store has forgotten this host's locks, and the lease ended before they could be claimed again");
		return;
	}
	strcpy(store->inc, inc);
	store->grace_over = false;
	store->grace = false;
	store->has_session = true;
	store->needs_reassert = true;
	store->phase = PHASE_REASSERTING;
	redis_ops_drop(store);	/* the complete state says it */
	store->in_reassert = true;
	store->reassert_sent = false;
	store->events.reassert(store->arg);
	if (store->in_reassert && !store->reassert_sent)
		store_reassert(store, NULL, 0, NULL, 0, 0);
	store->in_reassert = false;
}

void store_reassert(struct store *store, const struct store_cover *covers, size_t cover_count,
		    const struct store_request *requests, size_t request_count, uint64_t max_fence)
{
	struct redis_op *op;

	if (!store->in_reassert || store->reassert_sent || store->phase != PHASE_REASSERTING)
		return;
	store->reassert_sent = true;
	op = redis_op_new(LUA_REASSERT, "", "");
	if (!op || !keep_claims(op, covers, cover_count)) {
		redis_op_free(op);
		redis_conn_close(&store->cmd);	/* told in the next round, as everything that a call finds out */
		redis_ops_unsend(store);
		store->phase = PHASE_DETACHED;
		redis_dial_soon(store);
		return;
	}
	op->control = reasserted;
	redis_ops_control(store, op, 6 + 3 * cover_count + 7 * request_count);
	redis_buf_text(&store->cmd.out, store->id.token);
	redis_buf_text(&store->cmd.out, store->info);
	redis_buf_u64(&store->cmd.out, max_fence);
	redis_buf_u64(&store->cmd.out, atomic_load(&store->shared->seen));
	redis_buf_u64(&store->cmd.out, cover_count);
	for (size_t i = 0; i < cover_count; i++) {
		redis_buf_text(&store->cmd.out, covers[i].key);
		redis_buf_spans(&store->cmd.out, covers[i].spans, covers[i].span_count);
		redis_buf_text(&store->cmd.out, covers[i].info ? covers[i].info : "");
	}
	redis_buf_u64(&store->cmd.out, request_count);
	for (size_t i = 0; i < request_count; i++) {
		redis_buf_text(&store->cmd.out, requests[i].key);
		redis_buf_u64(&store->cmd.out, requests[i].req);
		redis_buf_offset(&store->cmd.out, requests[i].at.start);
		redis_buf_offset(&store->cmd.out, requests[i].at.end);
		redis_buf_u64(&store->cmd.out, requests[i].mode);
		redis_buf_u64(&store->cmd.out, requests[i].flags);
		redis_buf_text(&store->cmd.out, requests[i].info ? requests[i].info : "");
	}
	redis_conn_flush(&store->cmd);
}
