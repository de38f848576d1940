/* SPDX-License-Identifier: MIT */
/*
 * One lock on this host: a name in one of the two families, its files, its cover. Carries out what the cover decides (in the
 * kernel: name_kernel.c). The cover's operations must not call back, so probes are noted and done by name_settle().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "klock.h"
#include "log.h"
#include "name.h"

#define IDLE_PERIOD_MIN_NS 50000000u	/* how often an unlocked name is looked for when linger is 0 */

static struct name *name_of(void *owner)
{
	return owner;
}

static void op_answer(void *owner, uint64_t id, enum cover_answer answer)
{
	struct name *name = name_of(owner);
	struct client *client = client_find(name->agent, id);

	if (client)
		client_answer(client, answer);
}

static void op_ask(void *owner, uint64_t id, struct extent at, enum lock_mode mode, unsigned flags)
{
	struct name *name = name_of(owner);
	struct client *client = client_find(name->agent, id);

	if (!client)
		return;
	store_acquire(name->agent->store, name->key, id, at, mode, flags, client_info(client, name->info, sizeof name->info));
	client_asked(client);
}

static void op_withdraw(void *owner, uint64_t id)
{
	struct name *name = name_of(owner);

	store_withdraw(name->agent->store, name->key, id);
}

static void op_give_back(void *owner, const struct lock_span *parts, size_t count)
{
	struct name *name = name_of(owner);

	store_give_back(name->agent->store, name->key, parts, count);
}

static void op_busy(void *owner, const char *host, uint64_t req)
{
	struct name *name = name_of(owner);

	store_busy(name->agent->store, name->key, host, req);
}

static void op_probe(void *owner)
{
	name_of(owner)->probe_due = true;	/* the cover keeps the questions */
}

static void op_wait(void *owner, unsigned slot, struct extent at, enum lock_mode mode)
{
	name_wait_start(name_of(owner), slot, at, mode);
}

static void op_wait_cancel(void *owner, unsigned slot)
{
	name_wait_cancel(name_of(owner), slot);
}

static const struct cover_ops ops = {
	.answer = op_answer,
	.ask = op_ask,
	.withdraw = op_withdraw,
	.give_back = op_give_back,
	.busy = op_busy,
	.probe = op_probe,
	.wait = op_wait,
	.wait_cancel = op_wait_cancel,
};

void name_close_file(struct name *name, struct name_file *file)
{
	publish_drop(&file->standing);	/* before the inode's number can be another file's */
	if (file->kept)
		guard_drop(name->agent->link, (uint64_t)file->fd);
	helper_close(name->agent->loop, file->fd, file->local);
}

/* --- life --- */

static uint64_t idle_period(const struct name *name)
{
	uint64_t ns = (uint64_t)name->agent->config->linger_ms * 1000000u;

	return ns > IDLE_PERIOD_MIN_NS ? ns : IDLE_PERIOD_MIN_NS;
}

static void idle_fired(struct loop_timer *timer)
{
	struct name *name = timer->arg;
	uint64_t now = loop_now_ns(), period = idle_period(name);

	if (now - name->active_ns < period) {
		loop_timer_set(name->agent->loop, timer, name->active_ns + period);
		return;
	}
	loop_timer_set(name->agent->loop, timer, now + period);
	cover_idle(&name->cover);
	name_settle(name);
}

void names_each(struct agent *agent, void (*fn)(struct name *name))
{
	struct hash_node *node = hash_walk(&agent->names, NULL), *next;

	for (; node; node = next) {
		next = hash_walk(&agent->names, node);
		fn(hash_entry(node, struct name, node));
	}
}

struct name *name_find(struct agent *agent, const char *key)
{
	for (struct hash_node *n = hash_first(&agent->names, hash_bytes(key, strlen(key))); n; n = hash_next(n)) {
		struct name *name = hash_entry(n, struct name, node);

		if (!strcmp(name->key, key))
			return name;
	}
	return NULL;
}

static void set_on_lost(struct name *name, const char *on_lost)
{
	char *copy;

	if (!on_lost || (name->on_lost && !strcmp(name->on_lost, on_lost)))
		return;
	copy = strdup(on_lost);
	if (!copy || on_lost_parse(copy, &name->on_lost_rule)) {
		free(copy);
		return;
	}
	free(name->on_lost);
	name->on_lost = copy;
}

struct name *name_get(struct agent *agent, const char *key, const char *on_lost)
{
	struct name *name = name_find(agent, key);

	if (name) {
		set_on_lost(name, on_lost);
		return name;
	}
	name = calloc(1, sizeof *name);
	if (!name)
		return NULL;
	name->agent = agent;
	name->key = strdup(key);
	if (!name->key || hash_insert(&agent->names, &name->node, hash_bytes(key, strlen(key)))) {
		free(name->key);
		free(name);
		return NULL;
	}
	name->records = key[0] == 'r';
	name->on_lost_rule.what = ON_LOST_KILL;
	set_on_lost(name, on_lost);
	cover_init(&name->cover, &ops, name, name->records, agent->void_floor);
	name->active_ns = loop_now_ns();
	name->idle = (struct loop_timer){ .fn = idle_fired, .arg = name };
	name->retry = (struct loop_timer){ .fn = name_retry_fired, .arg = name };
	loop_timer_set(agent->loop, &name->idle, name->active_ns + idle_period(name));
	return name;
}

static bool same_inode(const struct inode_id *a, const struct inode_id *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->btime_ns == b->btime_ns;
}

int name_adopt_file(struct name *name, int own_fd, const struct inode_id *id, bool local)
{
	struct name_file *files = realloc(name->files, (name->file_count + 1) * sizeof *files);

	if (!files)
		return -ENOMEM;
	name->files = files;
	files[name->file_count++] = (struct name_file){ .fd = own_fd, .id = *id, .local = local,
						       .standing.records = name->records };
	return 0;
}

void name_keep_files(struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++) {
		struct name_file *file = &name->files[i];
		int err;

		if (file->kept)
			continue;
		/* A descriptor's number is a good handle: it is unique while it is open. */
		err = guard_keep(name->agent->link, (uint64_t)file->fd, file->fd, &file->id, name->key,
				 name->on_lost ? name->on_lost : "kill");
		if (err)
			log_warn("%s: the guard does not know this file: %s", name->key, strerror(-err));
		file->kept = true;
	}
}

static size_t find_file(const struct name *name, const struct inode_id *id)
{
	size_t i = 0;

	while (i < name->file_count && !same_inode(&name->files[i].id, id))
		i++;
	return i;
}

bool name_has_file(const struct name *name, const struct inode_id *id)
{
	return find_file(name, id) < name->file_count;
}

int name_add_file(struct name *name, int *own, const struct inode_id *id, bool local, const char *path)
{
	size_t i = find_file(name, id);
	int err;

	if (i == name->file_count) {
		if (*own < 0)
			return *own;
		err = name_adopt_file(name, *own, id, local);
		if (err)
			return err;
		*own = -1;
	}
	if (path)
		standing_hash(path, strlen(path), name->files[i].standing.path_hash);
	return 0;
}

void name_publish(struct name *name)
{
	struct agent *agent = name->agent;
	enum lock_mode mode = cover_standing(&name->cover);

	if (agent->lost || agent->draining || agent->config_error[0] || name->probe_running || !name_is_local(name))
		mode = MODE_NONE;
	for (size_t i = 0; i < name->file_count; i++)
		if (name->files[i].standing.path_hash[0])
			publish_set(agent->options.standing, &name->files[i].standing, &name->files[i].id, mode);
}

void name_free(struct name *name)
{
	struct agent *agent = name->agent;

	if (name->cover.top_fence > agent->void_floor)
		agent->void_floor = name->cover.top_fence;
	if (name->cover.void_fence > agent->void_floor)
		agent->void_floor = name->cover.void_fence;
	loop_timer_stop(agent->loop, &name->idle);
	loop_timer_stop(agent->loop, &name->retry);
	for (size_t i = 0; i < name->file_count; i++)
		name_close_file(name, &name->files[i]);
	hash_remove(&agent->names, &name->node);
	cover_destroy(&name->cover);
	name_free_waits(name);
	free(name->files);
	free(name->on_lost);
	free(name->key);
	free(name);
}

void name_settle(struct name *name)
{
	name_publish(name);	/* closed before the probe: see shim/standing.h */
	if (name->probe_due) {
		do {
			name->probe_due = false;
			name_probe_now(name);
		} while (name->probe_due);
		name_publish(name);
	}
	clients_answer(name->agent);
	/* Kept for a while after its last use: the next call would open the file again. */
	if (cover_unused(&name->cover) && !name->clients && !name_is_asking(name) && !name->agent->lost &&
	    loop_now_ns() - name->active_ns > idle_period(name))
		name_free(name);
}
