/* SPDX-License-Identifier: MIT */
/*
 * The door: making a Redis store, the calls of store.h, and its end. What can block
 * (name servers, the first words on a connection, renewals) happens in other threads;
 * only the session file is read and written here, a few hundred bytes at start and
 * when a session begins.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../../config/config.h"
#include "../log.h"
#include "redis_store.h"

#define MS 1000000ull
#define LEAVE_NS (1000 * MS)

static void mail_ready(struct loop_io *io, uint32_t events)
{
	struct store *store = io->arg;
	struct mail *list = redis_mail_take(store->shared), *next;

	(void)events;
	for (; list; list = next) {
		next = list->next;
		list->deliver(store, list);
	}
}

static void conn_set_up(struct store *store, struct redis_conn *conn, void (*on_value)(struct redis_conn *, const struct redis_value *),
			void (*on_down)(struct redis_conn *, const char *))
{
	conn->loop = store->loop;
	conn->arg = store;
	conn->on_value = on_value;
	conn->on_down = on_down;
}

static int load_identity(struct store *store, const char *state_dir, char *ret_text, size_t text_size)
{
	char boot[sizeof(store->id.boot)];
	int err;

	if (asprintf(&store->file, "%s/session", state_dir) < 0) {
		store->file = NULL;
		return -ENOMEM;
	}
	err = redis_file_load(store->file, &store->id);
	if (err) {
		redis_say(ret_text, text_size, "%s cannot be read: %s", store->file, strerrordesc_np(-err));
		return err;
	}
	/* Nothing that was held before a reboot is held now: its session ends at once instead of after T. */
	redis_boot_id(boot, sizeof(boot));
	store->leave_first = store->id.token[0] && boot[0] && strcmp(boot, store->id.boot) != 0;
	return 0;
}

int store_redis_new(struct loop *loop, const struct config *config, const char *state_dir,
		    const struct store_events *events, void *arg, struct store **ret_store, char *ret_text, size_t text_size)
{
	struct store *store = calloc(1, sizeof(*store));
	char hostname[65] = "";
	int err;

	redis_say(ret_text, text_size, "out of memory");
	if (!store)
		return -ENOMEM;
	store->loop = loop;
	store->events = *events;
	store->arg = arg;
	store->ttl_ms = config->ttl_ms;
	err = redis_shared_new(&store->shared);
	if (err)
		goto fail;
	store->shared->ttl_ms = config->ttl_ms;
	err = redis_door_new(config, &store->shared->door, ret_text, text_size);
	if (err)
		goto fail;
	if (!config->name_space || !config->name_space[0] || strlen(config->name_space) >= sizeof(store->name_space)) {
		redis_say(ret_text, text_size, "`namespace` must have 1 to 64 characters");
		err = -EINVAL;
		goto fail;
	}
	strcpy(store->name_space, config->name_space);
	redis_say(store->shared->prefix, sizeof(store->shared->prefix), "dlock:{%s/0}:", config->name_space);
	redis_say(store->config_file, sizeof(store->config_file), "%s", config->file ? config->file : "this configuration");
	err = load_identity(store, state_dir, ret_text, text_size);
	if (err)
		goto fail;
	gethostname(hostname, sizeof(hostname) - 1);
	redis_say(store->info, sizeof(store->info), "%d %s", (int)getpid(), hostname);

	conn_set_up(store, &store->cmd, redis_ops_value, redis_session_cmd_down);
	conn_set_up(store, &store->push, redis_push_value, redis_session_push_down);
	store->retry.fn = redis_dial_timer;
	store->retry.arg = store;
	store->idle_timer.fn = redis_ops_idle;
	store->idle_timer.arg = store;
	store->mail_io = (struct loop_io){ .fd = store->shared->mail_fd, .events = EPOLLIN, .fn = mail_ready, .arg = store };
	err = loop_io_add(loop, &store->mail_io);
	if (err) {
		store->mail_io.fd = 0;
		redis_say(ret_text, text_size, "the event loop does not take another descriptor: %s", strerrordesc_np(-err));
		goto fail;
	}
	*ret_store = store;
	return 0;

fail:
	store_free(store, false);
	return err;
}

void store_on_renewed(struct store *store, void (*fn)(void *arg, const struct store_lease *lease), void *arg)
{
	store->on_renewed = fn;
	store->on_renewed_arg = arg;
}

void store_inherit_lease(struct store *store, uint64_t last_good_ns)
{
	store->inherited_good_ns = last_good_ns;
}

void store_start(struct store *store)
{
	int err;

	if (store->phase != PHASE_OFF)
		return;
	err = redis_renewal_start(store->shared, store->on_renewed, store->on_renewed_arg, redis_session_news, &store->renewal);
	if (err) {
		log_error("the renewal thread cannot be started: %s; there will be no locks", strerrordesc_np(-err));
		return;
	}
	store->phase = PHASE_DETACHED;
	redis_dial_now(store);
}

/* Ends the session on the command connection, behind what is on the wire. */
static void leave_now(struct store *store)
{
	struct redis_link link = { .fd = store->cmd.io.fd, .cancel_fd = -1, .reader = store->cmd.reader };
	uint64_t deadline = loop_now_ns() + LEAVE_NS;
	struct redis_value *reply;
	struct redis_op *op = redis_op_new(LUA_LEAVE, "", "");
	size_t pending = 0;

	if (!op)
		return;
	redis_ops_control(store, op, 0);
	for (const struct redis_op *sent = store->sent_first; sent; sent = sent->next_sent)
		pending++;
	op->control = NULL;
	op->dropped = true;
	link.out = store->cmd.out;
	if (store->cmd.out_done) {
		link.out.len -= store->cmd.out_done;
		memmove(link.out.data, link.out.data + store->cmd.out_done, link.out.len);
	}
	if (redis_link_flush(&link, deadline) == 0)
		while (pending-- > 0 && redis_link_read(&link, deadline, &reply) == 0)
			redis_value_free(reply);
	store->cmd.out = (struct redis_buf){ 0 };
	redis_buf_free(&link.out);
}

void store_free(struct store *store, bool leave)
{
	if (!store)
		return;
	if (store->shared)
		redis_shared_close(store->shared);
	redis_renewal_stop(store->renewal);
	if (leave && store->phase == PHASE_STANDING && store->cmd.up && !store->cmd.broken.slot)
		leave_now(store);
	if (store->mail_io.fd > 0)
		loop_io_del(store->loop, &store->mail_io);
	redis_conn_close(&store->cmd);
	redis_conn_close(&store->push);
	redis_ops_free(store);
	loop_timer_stop(store->loop, &store->retry);
	loop_timer_stop(store->loop, &store->idle_timer);
	redis_shared_unref(store->shared);
	free(store->file);
	free(store);
}

const char *store_host_id(const struct store *store)
{
	return store->id.host;
}

void store_lease(const struct store *store, struct store_lease *ret_lease)
{
	redis_lease_fill(atomic_load(&store->shared->last_good_ns), store->ttl_ms, ret_lease);
}

/* --- what the agent asks --- */

static void add(struct store *store, struct redis_op *op)
{
	/* The caller cannot be told from inside its call, and a lost operation would be worse than an ended connection. */
	if (op)
		redis_ops_add(store, op);
	else
		log_error("out of memory: an operation is lost");
}

void store_acquire(struct store *store, const char *key, uint64_t req, struct extent at, enum lock_mode mode, unsigned flags,
		   const char *info)
{
	struct redis_op *op = redis_op_new(LUA_ACQUIRE, key, info);

	if (op) {
		op->req = req;
		op->at = at;
		op->mode = mode;
		op->flags = flags;
	}
	add(store, op);
}

void store_withdraw(struct store *store, const char *key, uint64_t req)
{
	struct redis_op *op = redis_op_new(LUA_WITHDRAW, key, NULL);

	if (op)
		op->req = req;
	add(store, op);
}

void store_give_back(struct store *store, const char *key, const struct lock_span *parts, size_t part_count)
{
	struct redis_op *op = redis_op_new(LUA_GIVEBACK, key, NULL);

	if (op && !redis_op_spans(op, parts, part_count)) {
		redis_op_free(op);
		op = NULL;
	}
	add(store, op);
}

void store_busy(struct store *store, const char *key, const char *host, uint64_t req)
{
	struct redis_op *op = redis_op_new(LUA_BUSY, key, host);

	if (op)
		op->req = req;
	add(store, op);
}

void store_host_view(const struct store *store, const char *host, struct store_host_view *ret_view)
{
	uint64_t since = 0, now = loop_now_ns(), gone_ms;

	if (!strcmp(host, store->id.host))
		since = atomic_load(&store->shared->last_good_ns);
	else if (store->renewal)
		since = redis_renewal_since(store->renewal, host);
	*ret_view = (struct store_host_view){ 0 };
	if (!since || since > now)
		return;
	gone_ms = (now - since) / MS;
	ret_view->unchanged_ms = gone_ms;
	ret_view->remaining_ms = gone_ms < store->ttl_ms ? store->ttl_ms - gone_ms : 0;
}

/* What somebody waits for: an answer now, or none. */
static void ask_now(struct store *store, struct redis_op *op)
{
	if (store->phase == PHASE_STANDING && store->cmd.up)
		redis_ops_add(store, op);
	else
		redis_ops_later(store, op);
}

void store_status(struct store *store, void *call, const char *key)
{
	struct redis_op *op = redis_op_new(LUA_STATUS, key ? key : "", NULL);

	if (!op)
		return;
	op->call = call;
	op->one_key = key != NULL;
	ask_now(store, op);
}

void store_ask(struct store *store, uint64_t nonce, const char *key, const char *question)
{
	struct redis_op *op = redis_op_new(LUA_ASK, key ? key : "", question);

	if (!op)
		return;
	op->req = nonce;
	ask_now(store, op);
}

void store_tell(struct store *store, const char *host, uint64_t nonce, uint64_t part, enum store_last last, const char *text)
{
	struct redis_op *op;

	if (store->phase != PHASE_STANDING || !store->cmd.up)
		return;
	op = redis_op_new(LUA_TELL, host, text);
	if (!op)
		return;
	op->req = nonce;
	op->part = part;
	op->last = last;
	redis_ops_add(store, op);
}

void store_rejoin(struct store *store)
{
	if (store->phase != PHASE_LOST)
		return;
	store->phase = PHASE_DETACHED;
	redis_dial_now(store);
}
