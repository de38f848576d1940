/* SPDX-License-Identifier: MIT */
/*
 * One lock name on this host: carries out what its cover decides. The cover's
 * operations must not call back, so probes are noted and done by name_settle().
 *
 * A name has one file in the ordinary case; more when the file was deleted and
 * made anew, or when several paths map to one name. "Free" means all of them.
 *
 * Lock calls on a file that is not local run in helper threads only.
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

#define IDLE_PERIOD_MIN_NS 50000000u	/* how often an unlocked name is looked for when linger is 0 */
#define RETRY_NS 200000000u

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

static void op_ask(void *owner, uint64_t id, enum lock_mode mode, bool try)
{
	struct name *name = name_of(owner);
	struct client *client = client_find(name->agent, id);

	if (!client)
		return;
	store_acquire(name->agent->store, name->key, id, mode, try,
		      client_info(client, name->info, sizeof name->info));
	client_asked(client);
}

static void op_withdraw(void *owner, uint64_t id)
{
	struct name *name = name_of(owner);

	store_withdraw(name->agent->store, name->key, id);
}

static void op_give_back(void *owner, enum lock_mode keep, uint64_t fence)
{
	struct name *name = name_of(owner);

	store_give_back(name->agent->store, name->key, keep, fence);
}

static void op_busy(void *owner, const char *host, uint64_t req)
{
	struct name *name = name_of(owner);

	store_busy(name->agent->store, name->key, host, req);
}

static void op_probe(void *owner, enum lock_mode want)
{
	(void)want;		/* the cover keeps it */
	name_of(owner)->probe_due = true;
}

static void wait_done(void *arg, int err);

static void wait_start(struct name *name, size_t file)
{
	int err;

	name->wait_file = file;
	name->wait_cancelled = false;
	err = klock_wait_start(name->agent->loop, name->files[file].fd, name->wait_mode, wait_done, name, &name->wait);
	if (err) {
		log_error("%s: no thread to wait for the local holder: %s", name->key, strerror(-err));
		loop_timer_set(name->agent->loop, &name->retry, loop_now_ns() + RETRY_NS);
	}
}

static void op_wait(void *owner, enum lock_mode mode)
{
	struct name *name = name_of(owner);

	name->wait_mode = mode;
	wait_start(name, name->wait_file < name->file_count ? name->wait_file : 0);
}

static void op_wait_cancel(void *owner)
{
	struct name *name = name_of(owner);

	name->wait_cancelled = true;
	if (name->wait)
		klock_wait_cancel(name->wait);
}

static void op_wait_unlock(void *owner)
{
	struct name *name = name_of(owner);

	if (name->wait_held)
		klock_unlock(name->files[name->wait_file].fd);
	name->wait_held = false;
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
	.wait_unlock = op_wait_unlock,
};

/* --- probes --- */

/*
 * What others hold on the files, the strongest; remembers where. `but` is left
 * out (the agent holds it). A file whose probe fails counts as held exclusively:
 * not knowing is no licence.
 */
static enum lock_mode probe_files(const struct name_file *files, size_t count, size_t but, enum lock_mode want,
				  size_t *ret_where)
{
	enum lock_mode held = MODE_NONE;

	for (size_t i = 0; i < count; i++) {
		int got;

		if (i == but)
			continue;
		got = klock_probe(files[i].fd, want);
		if (got < 0)
			got = MODE_EX;
		if (got > (int)held) {
			held = (enum lock_mode)got;
			*ret_where = i;
		}
	}
	return held;
}

static bool all_local(const struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++)
		if (!name->files[i].local)
			return false;
	return true;
}

struct probe_job {		/* a probe in a helper thread, on copies of the descriptors */
	struct name *name;
	struct name_file *files;
	size_t count, but, where;
	enum lock_mode want, held;
	bool for_win;
};

static void probe_job_run(void *arg)
{
	struct probe_job *job = arg;

	job->held = probe_files(job->files, job->count, job->but, job->want, &job->where);
}

static void probed(struct name *name, enum lock_mode held, size_t where)
{
	if (held != MODE_NONE)
		name->wait_file = where;
	cover_probed(&name->cover, held);
}

static void won_checked(struct name *name, enum lock_mode held, size_t where);

static void probe_job_done(void *arg)
{
	struct probe_job *job = arg;
	struct name *name = job->name;

	name->probe_running = false;
	if (job->for_win)	/* a lock taken meanwhile may be on a file that was looked at before */
		won_checked(name, name->cover.probe_stale ? MODE_EX : job->held, job->where);
	else
		probed(name, job->held, job->where);
	free(job->files);
	free(job);
	name_settle(name);
}

/* Files that only ever disappear from a name do so while no probe runs: the copies stay valid. */
static int probe_in_helper(struct name *name, enum lock_mode want, size_t but, bool for_win)
{
	struct probe_job *job = calloc(1, sizeof *job);
	int err;

	if (!job)
		return -ENOMEM;
	*job = (struct probe_job){ .name = name, .count = name->file_count, .but = but, .want = want, .for_win = for_win };
	job->files = malloc(job->count * sizeof *job->files);
	err = job->files ? 0 : -ENOMEM;
	if (!err) {
		memcpy(job->files, name->files, job->count * sizeof *job->files);
		err = helper_run(name->agent->loop, probe_job_run, probe_job_done, job);
	}
	if (err) {
		free(job->files);
		free(job);
		return err;
	}
	name->probe_running = true;
	return 0;
}

static void file_close(struct name *name, struct name_file *file)
{
	publish_drop(&file->standing);	/* before the inode's number can be another file's */
	if (file->kept)
		guard_drop(name->agent->link, (uint64_t)file->fd);
	helper_close(name->agent->loop, file->fd, file->local);
}

/* Drops files that nobody can lock any more: deleted, free, and not the only one. */
static void forget_deleted(struct name *name)
{
	for (size_t i = 0; name->file_count > 1 && i < name->file_count;) {
		struct stat st;

		if (name->files[i].local && !fstat(name->files[i].fd, &st) && st.st_nlink == 0) {
			file_close(name, &name->files[i]);
			name->files[i] = name->files[--name->file_count];
		} else {
			i++;
		}
	}
	name->wait_file = 0;
}

static void probe_now(struct name *name)
{
	enum lock_mode held;
	size_t where = 0;

	if (name->file_count && !all_local(name)) {
		if (probe_in_helper(name, name->cover.probe_want, SIZE_MAX, false))
			loop_timer_set(name->agent->loop, &name->retry, loop_now_ns() + RETRY_NS);
		return;
	}
	held = probe_files(name->files, name->file_count, SIZE_MAX, name->cover.probe_want, &where);
	if (held == MODE_NONE && name->cover.probe_want == MODE_EX && name->file_count > 1 &&
	    !cover_has_requests(&name->cover))
		forget_deleted(name);
	probed(name, held, where);
}

/* --- the helper that waits in the kernel --- */

static void won_checked(struct name *name, enum lock_mode held, size_t where)
{
	if (held == MODE_NONE && name->cover.wait == WAIT_RUNNING) {
		cover_won(&name->cover);
		return;
	}
	op_wait_unlock(name);
	if (name->cover.wait == WAIT_RUNNING)
		wait_start(name, where);	/* another file of the name is still locked */
	else
		cover_wait_ended(&name->cover);
}

static void wait_done(void *arg, int err)
{
	struct name *name = arg;
	enum lock_mode held = MODE_NONE;
	size_t where = 0;

	name->wait = NULL;
	if (err == 0) {
		name->wait_held = true;
		if (name->file_count > 1 && !all_local(name)) {
			name->cover.probe_stale = false;
			if (!probe_in_helper(name, name->wait_mode, name->wait_file, true))
				return;
			held = MODE_EX;
		} else if (name->file_count > 1) {
			held = probe_files(name->files, name->file_count, name->wait_file, name->wait_mode, &where);
		}
		won_checked(name, held, where);
	} else if (err == -ECANCELED || name->wait_cancelled) {
		cover_wait_ended(&name->cover);
	} else {
		log_error("%s: waiting for the local holder: %s", name->key, strerror(-err));
		loop_timer_set(name->agent->loop, &name->retry, loop_now_ns() + RETRY_NS);
		return;
	}
	name_settle(name);
}

/* A probe or a wait could not be started: try again. */
static void retry_fired(struct loop_timer *timer)
{
	struct name *name = timer->arg;

	if (name->cover.probing && !name->probe_running)
		name->probe_due = true;
	else if (name->cover.wait != WAIT_NONE && !name->wait)
		cover_wait_ended(&name->cover);
	name_settle(name);
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
	name->on_lost_rule.what = ON_LOST_KILL;
	set_on_lost(name, on_lost);
	cover_init(&name->cover, &ops, name, agent->void_floor);
	name->active_ns = loop_now_ns();
	name->idle = (struct loop_timer){ .fn = idle_fired, .arg = name };
	name->retry = (struct loop_timer){ .fn = retry_fired, .arg = name };
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
	files[name->file_count++] = (struct name_file){ .fd = own_fd, .id = *id, .local = local };
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

	if (agent->lost || agent->draining || agent->config_error[0] || name->probe_running || !all_local(name))
		mode = MODE_NONE;
	for (size_t i = 0; i < name->file_count; i++)
		if (name->files[i].standing.path_hash[0])
			publish_set(agent->options.standing, &name->files[i].standing, &name->files[i].id, mode);
}

void name_free(struct name *name)
{
	struct agent *agent = name->agent;

	if (name->cover.fence > agent->void_floor)
		agent->void_floor = name->cover.fence;
	if (name->cover.void_fence > agent->void_floor)
		agent->void_floor = name->cover.void_fence;
	loop_timer_stop(agent->loop, &name->idle);
	loop_timer_stop(agent->loop, &name->retry);
	for (size_t i = 0; i < name->file_count; i++)
		file_close(name, &name->files[i]);
	hash_remove(&agent->names, &name->node);
	cover_destroy(&name->cover);
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
			probe_now(name);
		} while (name->probe_due);
		name_publish(name);
	}
	clients_answer(name->agent);
	/* Kept for a while after its last use: the next call would open the file again. */
	if (cover_unused(&name->cover) && !name->clients && !name->probe_running && !name->wait && !name->agent->lost &&
	    loop_now_ns() - name->active_ns > idle_period(name))
		name_free(name);
}
