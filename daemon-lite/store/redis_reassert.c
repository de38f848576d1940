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

static void reasserted(struct store *store, struct redis_op *op, enum redis_answer answer,
		       const struct redis_header *header, const struct redis_value *reply)
{
	const char *cover = op->covers;

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
	if (!redis_value_u64(reply, ANSWER_ITEMS + 1, &store->gen)) {
		redis_session_lost(store, "the store's answer to `reassert` has another form than expected");
		return;
	}
	for (size_t i = 0; i < op->cover_count; i++) {
		const char *key = cover + 1;
		uint64_t fence;

		if (redis_value_u64(reply, ANSWER_ITEMS + 3 + i, &fence))
			store->events.reasserted(store->arg, key, (enum lock_mode)cover[0], fence);
		cover = key + strlen(key) + 1;
	}
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
	size_t size = 1;
	char *at;

	if (!store->in_reassert || store->reassert_sent || store->phase != PHASE_REASSERTING)
		return;
	store->reassert_sent = true;
	op = redis_op_new(LUA_REASSERT, "", "");
	for (size_t i = 0; i < cover_count; i++)
		size += strlen(covers[i].key) + 2;
	if (op)
		op->covers = malloc(size);
	if (!op || !op->covers) {
		redis_op_free(op);
		redis_conn_close(&store->cmd);	/* told in the next round, as everything that a call finds out */
		redis_ops_unsend(store);
		store->phase = PHASE_DETACHED;
		redis_dial_soon(store);
		return;
	}
	op->cover_count = cover_count;
	op->control = reasserted;
	redis_ops_control(store, op, 6 + 3 * cover_count + 5 * request_count);
	redis_buf_text(&store->cmd.out, store->id.token);
	redis_buf_text(&store->cmd.out, store->info);
	redis_buf_u64(&store->cmd.out, max_fence);
	redis_buf_u64(&store->cmd.out, atomic_load(&store->shared->seen));
	redis_buf_u64(&store->cmd.out, cover_count);
	at = op->covers;
	for (size_t i = 0; i < cover_count; i++) {
		redis_buf_text(&store->cmd.out, covers[i].key);
		redis_buf_u64(&store->cmd.out, covers[i].mode);
		redis_buf_text(&store->cmd.out, covers[i].info ? covers[i].info : "");
		*at++ = (char)covers[i].mode;
		at = stpcpy(at, covers[i].key) + 1;
	}
	redis_buf_u64(&store->cmd.out, request_count);
	for (size_t i = 0; i < request_count; i++) {
		redis_buf_text(&store->cmd.out, requests[i].key);
		redis_buf_u64(&store->cmd.out, requests[i].req);
		redis_buf_u64(&store->cmd.out, requests[i].mode);
		redis_buf_text(&store->cmd.out, requests[i].try ? "1" : "0");
		redis_buf_text(&store->cmd.out, requests[i].info ? requests[i].info : "");
	}
	redis_conn_flush(&store->cmd);
}
