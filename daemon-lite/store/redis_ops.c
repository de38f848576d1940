/* SPDX-License-Identifier: MIT */
/*
 * What the agent asked and the store has not answered. Every such operation is kept,
 * in the order of the calls; when a connection ends, all of them are sent again on
 * the next one, in that order. All are idempotent, so one that was carried out and
 * not answered does no harm. An operation leaves the list before its event.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../log.h"
#include "redis_store.h"

/* --- the lists --- */

struct redis_op *redis_op_new(enum lua_script_id script, const char *key, const char *text)
{
	size_t key_size = strlen(key) + 1, text_size = text ? strlen(text) + 1 : 1;
	struct redis_op *op = calloc(1, sizeof(*op) + key_size + text_size);

	if (!op)
		return NULL;
	op->script = script;
	op->key = memcpy(op + 1, key, key_size);
	op->text = op->key + key_size;
	if (text)
		memcpy(op->text, text, text_size);
	return op;
}

void redis_op_free(struct redis_op *op)
{
	if (!op)
		return;
	free(op->spans);
	free(op->claims);
	free(op);
}

bool redis_op_spans(struct redis_op *op, const struct lock_span *spans, size_t count)
{
	if (!count)
		return true;
	op->spans = calloc(count, sizeof(*spans));
	if (!op->spans)
		return false;
	memcpy(op->spans, spans, count * sizeof(*spans));
	op->span_count = count;
	return true;
}

static void list_append(struct store *store, struct redis_op *op)
{
	op->prev = store->ops_last;
	op->next = NULL;
	if (store->ops_last)
		store->ops_last->next = op;
	else
		store->ops_first = op;
	store->ops_last = op;
}

static void list_remove(struct store *store, struct redis_op *op)
{
	if (op->prev)
		op->prev->next = op->next;
	else
		store->ops_first = op->next;
	if (op->next)
		op->next->prev = op->prev;
	else
		store->ops_last = op->prev;
}

static void sent_append(struct store *store, struct redis_op *op)
{
	op->sent = true;
	op->sent_ns = loop_now_ns();
	op->next_sent = NULL;
	if (store->sent_last)
		store->sent_last->next_sent = op;
	else
		store->sent_first = op;
	store->sent_last = op;
	store->sent_count++;
}

/* --- sending --- */

static void put_begin(struct store *store, struct redis_op *op, size_t extra)
{
	struct redis_caller caller = {
		.prefix = store->shared->prefix,
		.host = store->id.host,
		.token = store->id.token,
		.role = "cmd",
		.inc = store->inc,
		.gen = store->gen,
		.ttl_ms = store->ttl_ms,
		.ack = atomic_load(&store->shared->seen),
	};

	redis_script_begin(&store->cmd.out, op->script, store->shas[op->script], op->full, &caller, extra);
	sent_append(store, op);
}

static void put(struct store *store, struct redis_op *op)
{
	struct redis_buf *out = &store->cmd.out;

	switch (op->script) {
	case LUA_ACQUIRE:
		put_begin(store, op, 7);
		redis_buf_text(out, op->key);
		redis_buf_u64(out, op->req);
		redis_buf_offset(out, op->at.start);
		redis_buf_offset(out, op->at.end);
		redis_buf_u64(out, op->mode);
		redis_buf_u64(out, op->flags);
		redis_buf_text(out, op->text);
		break;
	case LUA_WITHDRAW:
		put_begin(store, op, 2);
		redis_buf_text(out, op->key);
		redis_buf_u64(out, op->req);
		break;
	case LUA_GIVEBACK:
		put_begin(store, op, 2);
		redis_buf_text(out, op->key);
		redis_buf_spans(out, op->spans, op->span_count);
		break;
	case LUA_BUSY:
		put_begin(store, op, 3);
		redis_buf_text(out, op->key);
		redis_buf_text(out, op->text);
		redis_buf_u64(out, op->req);
		break;
	case LUA_ASK:
		put_begin(store, op, 3);
		redis_buf_u64(out, op->req);
		redis_buf_text(out, op->key);
		redis_buf_text(out, op->text);
		break;
	case LUA_TELL:
		put_begin(store, op, 5);
		redis_buf_text(out, op->key);
		redis_buf_u64(out, op->req);
		redis_buf_u64(out, op->part);
		redis_buf_u64(out, op->last);
		redis_buf_text(out, op->text);
		break;
	default:		/* status */
		put_begin(store, op, op->one_key ? 2 : 1);
		redis_buf_text(out, "");
		if (op->one_key)
			redis_buf_text(out, op->key);
	}
}

void redis_ops_control(struct store *store, struct redis_op *op, size_t extra)
{
	/* A script that the server has just lost would have to be sent again behind later
	 * commands; the few that a session begins with carry their text. */
	op->full = true;
	put_begin(store, op, extra);
}

/*
 * Redis carries out all commands that it has read of one connection before it looks at the
 * next one. So no more than these are under way: the renewals, this host's and all others', come
 * in between.
 */
#define UNANSWERED_MAX 8

static void send_more(struct store *store)
{
	bool any = false;

	/* Those that have been sent are in front. */
	for (struct redis_op *op = store->ops_first; op && store->sent_count < UNANSWERED_MAX; op = op->next) {
		if (op->sent)
			continue;
		put(store, op);
		any = true;
	}
	if (any)
		redis_conn_flush(&store->cmd);
}

void redis_ops_add(struct store *store, struct redis_op *op)
{
	list_append(store, op);
	if (store->phase == PHASE_STANDING && store->cmd.up)
		send_more(store);
}

void redis_ops_flush(struct store *store)
{
	send_more(store);
	redis_conn_flush(&store->cmd);
}

/* Of use at once or never: status, ask and tell are not sent a second time. */
static bool is_momentary(const struct redis_op *op)
{
	return op->script == LUA_STATUS || op->script == LUA_ASK || op->script == LUA_TELL;
}

static void end_momentary(struct store *store, struct redis_op *op, int err)
{
	if (op->script == LUA_STATUS)
		store->events.status(store->arg, op->call, NULL, 0, err);
	else if (op->script == LUA_ASK)
		store->events.reached(store->arg, op->req, NULL, err);
	redis_op_free(op);
}

void redis_ops_later(struct store *store, struct redis_op *op)
{
	op->next = store->idle;
	store->idle = op;
	loop_timer_set(store->loop, &store->idle_timer, 0);
}

void redis_ops_idle(struct loop_timer *timer)
{
	struct store *store = timer->arg;
	struct redis_op *op = store->idle, *next;

	store->idle = NULL;
	for (; op; op = next) {
		next = op->next;
		end_momentary(store, op, -ENOTCONN);
	}
}

/*
 * The renewals have a connection of their own. One whose oldest command outlives
 * two of them leads nowhere (a proxy, a tunnel that takes and does not pass on);
 * the kernel sees nothing wrong with it. A server that is slow is slow for both.
 */
bool redis_ops_silent(struct store *store)
{
	uint64_t oldest_ns = store->sent_first ? store->sent_first->sent_ns : 0;
	bool silent = oldest_ns && oldest_ns == store->suspect_ns;

	store->suspect_ns = silent ? 0 : oldest_ns;
	return silent;
}

void redis_ops_unsend(struct store *store)
{
	struct redis_op *op = store->sent_first, *next;

	store->sent_first = store->sent_last = NULL;
	store->sent_count = 0;
	for (; op; op = next) {
		next = op->next_sent;
		op->sent = op->full = false;
		op->again = true;
		if (op->control || op->dropped) {
			redis_op_free(op);
		} else if (is_momentary(op)) {
			/* Somebody waits for it: an answer now rather than a good one some day. */
			list_remove(store, op);
			redis_ops_later(store, op);
		}
	}
}

void redis_ops_drop(struct store *store)
{
	struct redis_op *op, *next;

	for (op = store->ops_first; op; op = next) {
		next = op->next;
		if (op->script != LUA_GIVEBACK && op->script != LUA_BUSY)
			continue;
		list_remove(store, op);
		if (op->sent)
			op->dropped = true;
		else
			redis_op_free(op);
	}
}

void redis_ops_free(struct store *store)
{
	struct redis_op *op, *next;

	redis_ops_unsend(store);
	for (op = store->ops_first; op; op = next) {
		next = op->next;
		redis_op_free(op);
	}
	for (op = store->idle; op; op = next) {
		next = op->next;
		redis_op_free(op);
	}
	store->ops_first = store->ops_last = store->idle = NULL;
}

/* --- answers --- */

/* A cover, and who waits for parts of it: what both a grant and a give-back are answered with. 0, -EPROTO or -ENOMEM. */
static int answered_spans(struct store *store, const struct redis_op *op, const struct redis_value *reply)
{
	struct redis_spans cover = { 0 }, waiting = { 0 };
	int err = redis_spans_item(reply, ANSWER_ITEMS + 1, SPANS_COVER, &cover);

	if (!err)
		err = redis_spans_item(reply, ANSWER_ITEMS + 2, SPANS_WAITING, &waiting);
	if (!err && op->script == LUA_GIVEBACK)
		store->events.cover(store->arg, op->key, cover.at, cover.count, waiting.at, waiting.count);
	else if (!err && redis_spans_granted(&cover))
		store->events.granted(store->arg, op->key, op->req, cover.at, cover.count, waiting.at, waiting.count);
	else if (!err)
		err = -EPROTO;
	redis_spans_free(&cover);
	redis_spans_free(&waiting);
	return err;
}

/* -EPROTO: the answer has not the form that it should have. */
static int answered(struct store *store, const struct redis_op *op, const struct redis_value *reply)
{
	const struct store_events *events = &store->events;
	const char *verdict = redis_value_text(reply, ANSWER_ITEMS);

	if (!verdict)
		return -EPROTO;
	switch (op->script) {
	case LUA_ACQUIRE:
		if (!strcmp(verdict, "queued")) {
			events->queued(store->arg, op->key, op->req, op->again);
			return 0;
		}
		if (!strcmp(verdict, "busy")) {
			events->busy(store->arg, op->key, op->req);
			return 0;
		}
		return strcmp(verdict, "granted") ? -EPROTO : answered_spans(store, op, reply);
	case LUA_GIVEBACK:
		return strcmp(verdict, "cover") ? -EPROTO : answered_spans(store, op, reply);
	case LUA_ASK:
		for (size_t i = ANSWER_ITEMS + 1; i < reply->count; i++)
			if (redis_value_text(reply, i))
				events->reached(store->arg, op->req, redis_value_text(reply, i), 0);
		return 0;
	default:
		return 0;
	}
}

static void failed(struct store *store, const struct redis_op *op, const char *text)
{
	if (op->script == LUA_ACQUIRE)
		store->events.failed(store->arg, op->key, op->req, text);
	else if (op->script == LUA_GIVEBACK)
		store->events.failed(store->arg, op->key, 0, text);
	else
		log_warn("%s of %s failed in the store: %s", lua_scripts[op->script].name, op->key, text);
}

static void status_answered(struct store *store, struct redis_op *op, const struct redis_value *value)
{
	const char *word = redis_value_text(value, 0);

	if (value->type == VALUE_ERROR || !word || strcmp(word, "status") != 0) {
		log_warn("the store's status cannot be read: %s", value->type == VALUE_ERROR ? value->str : "its answer has another form than expected");
		end_momentary(store, op, -EIO);
		return;
	}
	for (size_t i = 1; i < value->count; i++)
		if (redis_value_text(value, i))
			store->events.status(store->arg, op->call, value->items[i]->str, value->items[i]->len, 0);
	end_momentary(store, op, 0);
}

static struct redis_op *sent_pop(struct store *store)
{
	struct redis_op *op = store->sent_first;

	if (op) {
		store->sent_first = op->next_sent;
		if (!store->sent_first)
			store->sent_last = NULL;
		store->sent_count--;
		op->sent = false;
	}
	return op;
}

static void op_answered(struct store *store, struct redis_op *op, const struct redis_value *value)
{
	struct redis_header header;
	enum redis_answer answer = redis_script_answer(value, &header);
	int err;

	if (op->dropped) {
		redis_op_free(op);
		return;
	}
	if (answer == ANSWER_NOSCRIPT && !op->full) {
		op->full = op->again = true;	/* behind later ones, also behind its own withdrawal */
		put(store, op);
		redis_conn_flush(&store->cmd);
		return;
	}
	if (op->script == LUA_STATUS) {
		list_remove(store, op);
		status_answered(store, op, value);
		return;
	}
	switch (answer) {
	case ANSWER_OK:
		list_remove(store, op);
		redis_session_seen(store, &header);
		err = answered(store, op, value);
		if (err == -ENOMEM)
			failed(store, op, "out of memory");
		else if (err)
			failed(store, op, "the store's answer has another form than expected; is another version of dlockshim using it?");
		end_momentary(store, op, 0);
		break;
	case ANSWER_NOSCRIPT:
	case ANSWER_NOGRACE:
	case ANSWER_CONFLICT:
	case ANSWER_EXISTS:
	case ANSWER_FAILED:
		list_remove(store, op);
		failed(store, op, header.text[0] ? header.text : "the store refused it");
		end_momentary(store, op, -EIO);
		break;
	default:
		/* It stays, and is sent again when the session stands again. */
		op->full = false;
		if (is_momentary(op)) {
			list_remove(store, op);
			redis_ops_later(store, op);
		}
		op->again = true;
		if (store->phase == PHASE_STANDING)
			redis_session_refused(store, answer, &header);
	}
}

void redis_ops_value(struct redis_conn *conn, const struct redis_value *value)
{
	struct store *store = conn->arg;
	struct redis_op *op = sent_pop(store);
	struct redis_header header;
	enum redis_answer answer;

	if (!op) {
		redis_session_cmd_down(conn, "it sent an answer that nobody asked for");
		return;
	}
	if (!op->control) {
		op_answered(store, op, value);
		if (store->phase == PHASE_STANDING && conn->up)
			send_more(store);
		return;
	}
	answer = redis_script_answer(value, &header);
	op->control(store, op, answer, &header, value);
	redis_op_free(op);
}
