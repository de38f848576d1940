/* SPDX-License-Identifier: MIT */
/*
 * Messages from the store to this host. They come by the subscription and, as long
 * as they are not acknowledged, again in each renewal's reply; one path takes both.
 * `seen` is the number up to which all have been handled: smaller ones are repeats.
 * One that leaves a gap is handled (the agent puts up with any order) and a renewal
 * asked for, which brings what is missing. Of another incarnation: void.
 * Number 0: a host's question or answer to another one, kept nowhere and never repeated.
 */
#include <errno.h>
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

/* What a message says, read before it counts as handled. */
struct push {
	char kind;
	const char *key, *host;
	uint64_t req;
	struct redis_spans cover, waiting;	/* T: what is wanted, in waiting */
};

static int spans(const struct message *message, size_t i, enum redis_spans_kind kind, struct redis_spans *ret_spans)
{
	return i < message->count ? redis_spans_parse(message->field[i], message->len[i], kind, ret_spans) : -EPROTO;
}

/* 0, -EPROTO (it has not the form that it should have) or -ENOMEM. push was zeroed, and has to be freed either way. */
static int read_push(const struct message *message, struct push *push)
{
	int err;

	if (message->count < 5 || message->len[2] != 1)
		return -EPROTO;
	push->kind = message->field[2][0];
	push->key = message->field[3];
	switch (push->kind) {
	case 'G':
		if (message->count != 7 || !number(message, 4, &push->req))
			return -EPROTO;
		err = spans(message, 5, SPANS_COVER, &push->cover);
		if (!err && !redis_spans_granted(&push->cover))
			err = -EPROTO;
		return err ? err : spans(message, 6, SPANS_WAITING, &push->waiting);
	case 'R':
		err = message->count == 5 ? spans(message, 4, SPANS_WAITING, &push->waiting) : -EPROTO;
		return !err && !push->waiting.count ? -EPROTO : err;
	case 'T':
		if (message->count != 7 || !number(message, 6, &push->req))
			return -EPROTO;
		push->host = message->field[5];
		err = spans(message, 4, SPANS_WAITING, &push->waiting);
		return !err && push->waiting.count != 1 ? -EPROTO : err;
	case 'B':
		return message->count == 5 && number(message, 4, &push->req) ? 0 : -EPROTO;
	default:
		return -EPROTO;
	}
}

static void deliver(struct store *store, const struct push *push)
{
	const struct store_events *events = &store->events;

	switch (push->kind) {
	case 'G':
		events->granted(store->arg, push->key, push->req, push->cover.at, push->cover.count, push->waiting.at, push->waiting.count);
		break;
	case 'R':
		events->recall(store->arg, push->key, push->waiting.at, push->waiting.count);
		break;
	case 'T':
		events->try(store->arg, push->key, push->waiting.at, push->host, push->req);
		break;
	default:
		events->busy(store->arg, push->key, push->req);
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
		if (message->count != 7)
			return false;
		events->asked(store->arg, message->field[3], nonce, message->field[5], message->field[6]);
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

/* *ret_seq: the message's number, 0 if it is none of this session's. False: out of memory, it is still to be handled. */
static bool handle(struct store *store, const struct redis_value *value, bool pushed, uint64_t *ret_seq)
{
	struct message message;
	struct push push = { 0 };
	uint64_t seen = atomic_load(&store->shared->seen), seq;
	int err;

	*ret_seq = 0;
	if (value->type != VALUE_STRING || !split(value, &message) || !number(&message, 0, &seq) || message.count < 3) {
		log_warn("a message from the store has another form than expected and is ignored");
		return true;
	}
	if (!store->has_session || store->phase == PHASE_LOST || strcmp(message.field[1], store->inc) != 0)
		return true;
	if (seq == 0 && pushed && !deliver_talk(store, &message))
		log_warn("a message from another host has another form than expected and is ignored");
	*ret_seq = seq;
	if (seq <= seen)
		return true;
	err = read_push(&message, &push);
	if (err != -ENOMEM) {
		if (seq == seen + 1)
			atomic_store(&store->shared->seen, seq);
		else if (pushed)
			redis_renewal_poll(store->renewal);
		if (!err)
			deliver(store, &push);
		else
			log_warn("a message from the store has another form than expected and is ignored");
	}
	redis_spans_free(&push.cover);
	redis_spans_free(&push.waiting);
	return err != -ENOMEM;
}

void redis_push_value(struct redis_conn *conn, const struct redis_value *value)
{
	const char *kind = redis_value_text(value, 0);
	uint64_t seq;

	if (kind && !strcmp(kind, "message") && value->count == 3 && value->items[2] && !handle(conn->arg, value->items[2], true, &seq))
		log_error("out of memory: a message from the store waits for the next renewal");
}

void redis_push_open_messages(struct store *store, const struct redis_value *reply)
{
	unsigned serial = store->session_serial;
	uint64_t count, last = 0, seq;

	if (!redis_value_u64(reply, ANSWER_ITEMS + 2, &count))
		return;
	for (size_t i = 0; i < count && ANSWER_ITEMS + 3 + i < reply->count; i++) {
		const struct redis_value *item = reply->items[ANSWER_ITEMS + 3 + i];

		if (!item)
			continue;
		if (!handle(store, item, false, &seq))
			break;
		if (store->session_serial != serial || !store->has_session)
			return;
		if (seq > last)
			last = seq;
	}
	/* The reply holds the oldest that are open: whatever is below its last one has been handled or does not exist. */
	if (last > atomic_load(&store->shared->seen))
		atomic_store(&store->shared->seen, last);
}
