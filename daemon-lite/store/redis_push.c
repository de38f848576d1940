/* SPDX-License-Identifier: MIT */
/*
 * Messages from the store to this host. They come by the subscription and, as long
 * as they are not acknowledged, again in each renewal's reply; one path takes both.
 * `seen` is the number up to which all have been handled: smaller ones are repeats.
 * One that leaves a gap is handled (the agent puts up with any order) and a renewal
 * asked for, which brings what is missing. Of another incarnation: void.
 * Number 0: a host's question or answer to another one, kept nowhere and never repeated.
 */
#include <string.h>

#include "../log.h"
#include "redis_store.h"

#define FIELDS_MAX 8

struct message {
	const char *field[FIELDS_MAX];
	size_t len[FIELDS_MAX];
	size_t count;
};

/* Fields are separated by NULs, and the string ends with one. */
static bool split(const struct redis_value *value, struct message *ret_message)
{
	const char *at = value->str, *end = value->str + value->len;
	size_t count = 0;

	while (count < FIELDS_MAX) {
		size_t len = strlen(at);

		ret_message->field[count] = at;
		ret_message->len[count++] = len;
		at += len;
		if (at == end) {
			ret_message->count = count;
			return true;
		}
		at++;
	}
	return false;
}

static bool number(const struct message *message, size_t i, uint64_t *ret_number)
{
	return i < message->count && redis_parse_u64(message->field[i], message->len[i], ret_number);
}

static bool mode(const struct message *message, size_t i, enum lock_mode *ret_mode)
{
	uint64_t value;

	if (!number(message, i, &value) || value > MODE_EX)
		return false;
	*ret_mode = (enum lock_mode)value;
	return true;
}

/* False if it has not the form that it should have. */
static bool deliver(struct store *store, const struct message *message)
{
	const struct store_events *events = &store->events;
	enum lock_mode held, waiting;
	uint64_t req, fence;
	const char *key;

	if (message->count < 4 || message->len[2] != 1)
		return false;
	key = message->field[3];
	switch (message->field[2][0]) {
	case 'G':
		if (!number(message, 4, &req) || !mode(message, 5, &held) || !number(message, 6, &fence) || !mode(message, 7, &waiting))
			return false;
		events->granted(store->arg, key, req, held, fence, waiting);
		return true;
	case 'C':
		if (!mode(message, 4, &held) || !number(message, 5, &fence) || !mode(message, 6, &waiting))
			return false;
		events->granted(store->arg, key, 0, held, fence, waiting);
		return true;
	case 'R':
		if (!number(message, 4, &fence) || !mode(message, 5, &held))
			return false;
		events->recall(store->arg, key, fence, held);
		return true;
	case 'T':
		if (!number(message, 4, &fence) || !mode(message, 5, &held) || !number(message, 7, &req))
			return false;
		events->try(store->arg, key, fence, held, message->field[6], req);
		return true;
	case 'B':
		if (!number(message, 4, &req))
			return false;
		events->busy(store->arg, key, req);
		return true;
	default:
		return false;
	}
}

static bool deliver_talk(struct store *store, const struct message *message)
{
	const struct store_events *events = &store->events;
	uint64_t nonce, part, last;

	if (message->count < 6 || message->len[2] != 1 || !number(message, 4, &nonce))
		return false;
	switch (message->field[2][0]) {
	case 'D':
		events->asked(store->arg, message->field[3], nonce, message->field[5]);
		return true;
	case 'A':
		if (message->count != 8 || !number(message, 5, &part) || !number(message, 6, &last) || last > TELL_CUT)
			return false;
		events->told(store->arg, message->field[3], nonce, part, (enum store_last)last, message->field[7], message->len[7]);
		return true;
	default:
		return false;
	}
}

/* Returns the message's number, 0 if it is none of this session's. */
static uint64_t handle(struct store *store, const struct redis_value *value, bool pushed)
{
	struct message message;
	uint64_t seen = atomic_load(&store->shared->seen), seq;

	if (value->type != VALUE_STRING || !split(value, &message) || !number(&message, 0, &seq) || message.count < 3) {
		log_warn("a message from the store has another form than expected and is ignored");
		return 0;
	}
	if (!store->has_session || store->phase == PHASE_LOST || strcmp(message.field[1], store->inc) != 0)
		return 0;
	if (seq == 0 && pushed && !deliver_talk(store, &message))
		log_warn("a message from another host has another form than expected and is ignored");
	if (seq <= seen)
		return seq;
	if (seq == seen + 1)
		atomic_store(&store->shared->seen, seq);
	else if (pushed)
		redis_renewal_poll(store->renewal);
	if (!deliver(store, &message))
		log_warn("a message from the store has another form than expected and is ignored");
	return seq;
}

void redis_push_value(struct redis_conn *conn, const struct redis_value *value)
{
	const char *kind = redis_value_text(value, 0);

	if (kind && !strcmp(kind, "message") && value->count == 3 && value->items[2])
		handle(conn->arg, value->items[2], true);
}

void redis_push_open_messages(struct store *store, const struct redis_value *reply)
{
	unsigned serial = store->session_serial;
	uint64_t count, last = 0, seq;

	if (!redis_value_u64(reply, ANSWER_ITEMS + 2, &count))
		return;
	for (size_t i = 0; i < count && ANSWER_ITEMS + 3 + i < reply->count; i++) {
		const struct redis_value *item = reply->items[ANSWER_ITEMS + 3 + i];

		seq = item ? handle(store, item, false) : 0;
		if (store->session_serial != serial || !store->has_session)
			return;
		if (seq > last)
			last = seq;
	}
	/* The reply holds the oldest that are open: whatever is below its last one has been handled or does not exist. */
	if (last > atomic_load(&store->shared->seen))
		atomic_store(&store->shared->seen, last);
}
