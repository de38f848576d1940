/* SPDX-License-Identifier: MIT */
/*
 * Opening connections for the loop. A name server, a connect and the first exchange
 * can take seconds, so they run in a thread of their own, one at a time; what it
 * opened comes back by mail. It holds nothing of the store but the shared part: the
 * store can end while it is stuck.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "redis_store.h"

#define MS 1000000ull
#define BACKOFF_FIRST_NS (50 * MS)

struct dial {
	struct mail mail;
	struct redis_shared *shared;
	unsigned serial;
	bool want_cmd, want_push;
	char channel[160];
	struct redis_addresses addresses;
	enum redis_open_result result;
	struct redis_link cmd, push;
	char text[REDIS_TEXT_MAX];
	char shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE];
};

static void dial_free(struct mail *mail)
{
	struct dial *dial = (struct dial *)mail;

	redis_link_close(&dial->cmd);
	redis_link_close(&dial->push);
	redis_shared_unref(dial->shared);
	free(dial);
}

static void dial_one(struct dial *dial, struct redis_link *link, enum redis_open_kind kind)
{
	uint64_t deadline = loop_now_ns() + dial->shared->door->connect_timeout_ms * MS;

	dial->result = redis_link_open(link, dial->shared->door, &dial->addresses, kind, dial->channel, deadline, dial->shas);
	if (dial->result != OPEN_OK)
		redis_say(dial->text, sizeof(dial->text), "%s", link->error);
}

static void *dial_main(void *arg)
{
	struct dial *dial = arg;
	struct redis_shared *shared = redis_shared_ref(dial->shared);

	/* The subscription first: what is pushed in answer to the first command must find it. */
	dial->result = OPEN_OK;
	if (dial->want_push)
		dial_one(dial, &dial->push, OPEN_PUSHES);
	if (dial->want_cmd && dial->result == OPEN_OK)
		dial_one(dial, &dial->cmd, OPEN_COMMANDS);
	redis_mail_put(shared, &dial->mail);
	redis_shared_unref(shared);
	return NULL;
}

static void dial_failed(struct store *store, enum redis_open_result result, const char *text)
{
	/* While the session stands only the subscription is missing: renewals bring what it would have. */
	if (store->phase != PHASE_STANDING && store->phase != PHASE_PROVING)
		redis_session_state(store, result == OPEN_REFUSED ? STORE_REFUSED : STORE_CONNECTING, "%s", text);
	redis_dial_soon(store);
}

static void dial_done(struct store *store, struct mail *mail)
{
	struct dial *dial = (struct dial *)mail;
	char text[REDIS_TEXT_MAX];
	int err = 0;

	store->dialing = false;
	if (dial->serial != store->dial_serial) {
		dial_free(mail);
		redis_session_drive(store);
		return;
	}
	store->addresses = dial->addresses;
	if (dial->result != OPEN_OK) {
		enum redis_open_result result = dial->result;

		redis_say(text, sizeof(text), "%s", dial->text);
		dial_free(mail);
		dial_failed(store, result, text);
		return;
	}
	if (dial->want_push)
		err = redis_conn_adopt(&store->push, &dial->push);
	if (dial->want_cmd && !err) {
		memcpy(store->shas, dial->shas, sizeof(store->shas));
		err = redis_conn_adopt(&store->cmd, &dial->cmd);
	}
	if (dial->want_push && !err && store->has_session)
		redis_renewal_poll(store->renewal);	/* what was pushed meanwhile */
	dial_free(mail);
	if (err) {
		dial_failed(store, OPEN_DOWN, strerrordesc_np(-err));
		return;
	}
	redis_session_drive(store);
}

static int dial_start(struct store *store)
{
	struct dial *dial = calloc(1, sizeof(*dial));
	pthread_t thread;
	int err;

	if (!dial)
		return -ENOMEM;
	dial->mail.deliver = dial_done;
	dial->mail.discard = dial_free;
	dial->shared = redis_shared_ref(store->shared);
	dial->serial = store->dial_serial;
	dial->want_cmd = !store->cmd.up;
	dial->want_push = !store->push.up;
	dial->addresses = store->addresses;
	redis_say(dial->channel, sizeof(dial->channel), "%sp:%s", store->shared->prefix, store->id.host);
	dial->cmd = dial->push = (struct redis_link){ .fd = -1, .cancel_fd = store->shared->stop_fd };
	err = redis_thread_start(dial_main, dial, &thread);
	if (err) {
		dial_free(&dial->mail);
		return err;
	}
	pthread_detach(thread);
	store->dialing = true;
	return 0;
}

void redis_dial_timer(struct loop_timer *timer)
{
	struct store *store = timer->arg;
	bool missing = !store->cmd.up || !store->push.up;

	if (store->phase == PHASE_OFF || store->phase == PHASE_LOST || store->dialing)
		return;
	if (!missing) {
		redis_session_drive(store);
		return;
	}
	if (!store->state_told)
		redis_session_state(store, STORE_CONNECTING, "connecting to Redis at %s", redis_label(store));
	if (dial_start(store) < 0)
		redis_dial_soon(store);
}

void redis_dial_now(struct store *store)
{
	if (!store->dialing)
		loop_timer_set(store->loop, &store->retry, 0);
}

void redis_dial_soon(struct store *store)
{
	uint64_t most = store->ttl_ms * MS / 12;
	uint64_t delay = store->backoff_ns;

	if (store->dialing || store->retry.slot)
		return;
	/* Many agents that lost one server must not all come back at the same moment. */
	if (delay)
		delay = delay - delay / 4 + arc4random_uniform((uint32_t)(delay / 2) + 1);
	loop_timer_set(store->loop, &store->retry, delay ? loop_now_ns() + delay : 0);
	store->backoff_ns = store->backoff_ns ? 2 * store->backoff_ns : BACKOFF_FIRST_NS;
	if (store->backoff_ns > most)
		store->backoff_ns = most;
}

void redis_dial_forget(struct store *store)
{
	store->dial_serial++;
	loop_timer_stop(store->loop, &store->retry);
}
