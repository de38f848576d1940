/* SPDX-License-Identifier: MIT */
/*
 * This host's part of the graph of waits. What is read in the helper thread
 * counts only for calls that waited before it and wait still when it is over, and whose
 * process is not known to have ended: so it is about them, whatever became of a pid.
 *
 * What an owner holds is told under a name only as far as this host's cover goes: outside of it nobody waits for us.
 * A host that is asked again and again spends at most half of its time on this.
 */
#include "deadlock_look.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "client.h"
#include "deadlock_graph.h"
#include "deadlock_proc.h"
#include "klock.h"
#include "log.h"

#define PAUSE_MAX_NS 200000000u
#define LOCAL_KEY_MAX 64

struct request {
	struct request *next;
	void (*fn)(void *arg, const struct record_buf *records, bool worth);
	void *arg;
};

struct deadlock_looks {		/* of an agent */
	struct agent *agent;
	struct request *waiting, **waiting_last;
	struct look *running;
	struct loop_timer again;
	uint64_t ended_ns, took_ns;
};

struct look {
	struct deadlock_looks *looks;
	struct request *requests;
	uint64_t begun_ns;
	struct proc_look proc;
};

static void start(struct deadlock_looks *looks);

/* --- who waits --- */

/* Where a blocking call for a record lock stands with the cover; NULL if it is none, or does not wait for an answer. */
static const struct cover_request *request_of(const struct client *client)
{
	const struct cover *cover;

	if (client->closed || !client->name || client->msg.family == FAMILY_FLOCK || (client->msg.flags & WIRE_FLAG_NONBLOCK) ||
	    client->state != CLIENT_WAIT)
		return NULL;
	cover = &client->name->cover;
	for (size_t i = 0; i < cover->request_count; i++)
		if (cover->requests[i].id == client->id)
			return &cover->requests[i];
	return NULL;
}

static bool waits_in_store(const struct client *client)
{
	const struct cover_request *request = request_of(client);

	return request && request->state == REQUEST_ASKED;
}

struct client *deadlock_client(struct agent *agent, uint64_t id)
{
	struct client *client = client_find(agent, id);

	return client && client->msg.family == FAMILY_POSIX && waits_in_store(client) ? client : NULL;
}

bool deadlock_anybody_waits(struct agent *agent)
{
	struct hash_node *node = NULL;

	while ((node = hash_walk(&agent->clients, node))) {
		const struct client *client = hash_entry(node, struct client, node);

		if (client->msg.family == FAMILY_POSIX && waits_in_store(client))
			return true;
	}
	return false;
}

/* Whether its process has ended, though the loop may not have come to that yet. */
static bool has_ended(const struct client *client)
{
	struct pollfd poll_fd = { .fd = client->process.fd, .events = POLLIN };

	return client->process.fd >= 0 && poll(&poll_fd, 1, 0) > 0;
}

/* A blocking POSIX call that was told GO and has not come back. Its GO may have lapsed: then it has no name any more. */
static bool may_be_in_kernel(const struct client *client)
{
	return client->state == CLIENT_GO && client->msg.family == FAMILY_POSIX && !(client->msg.flags & WIRE_FLAG_NONBLOCK);
}

/* The client of a wait that was looked at, if it waits as it did. */
static struct client *client_of(struct agent *agent, const struct proc_wait *wait)
{
	struct client *client = client_find(agent, wait->id);

	return client && !has_ended(client) && (wait->asked ? waits_in_store(client) : may_be_in_kernel(client)) ? client : NULL;
}

/* The files on which it may wait in the kernel; none: any. */
static int note_inodes(struct proc_wait *wait, const struct client *client)
{
	const struct name *name = client->lapsed ? name_find(client->agent, client->lapsed) : client->name;

	wait->inodes = calloc(name ? name->file_count + 1 : 1, sizeof *wait->inodes);
	if (!wait->inodes)
		return -ENOMEM;
	for (size_t i = 0; name && i < name->file_count; i++)
		wait->inodes[wait->inode_count++] = name->files[i].id.ino;
	return 0;
}

static int note_client(struct look *look, const struct client *client)
{
	struct proc_look *proc = &look->proc;
	struct proc_wait wait = { .id = client->id, .pid = client->cred.pid, .tid = client->msg.tid, .posix = client->msg.family == FAMILY_POSIX,
				  .asked = client->state == CLIENT_WAIT, .mode = (enum lock_mode)client->msg.mode, .at = client->at };

	if (proc->wait_count == proc->wait_max) {
		proc->cut = true;
		return 0;
	}
	if (proc->wait_count == proc->wait_cap) {
		size_t cap = proc->wait_cap ? 2 * proc->wait_cap : 16;
		struct proc_wait *waits = reallocarray(proc->waits, cap, sizeof *waits);

		if (!waits)
			return -ENOMEM;
		proc->waits = waits;
		proc->wait_cap = cap;
	}
	if (!wait.asked && note_inodes(&wait, client))
		return -ENOMEM;
	proc->in_kernel = proc->in_kernel || (wait.posix && wait.asked);
	proc->waits[proc->wait_count++] = wait;
	return 0;
}

/* Those who wait in the store first: without one there is nothing to find here. */
static int note_clients(struct look *look)
{
	struct agent *agent = look->looks->agent;
	int err = 0;

	look->proc.wait_max = DEADLOCK_WAITS_MAX;
	look->proc.hold_max = DEADLOCK_HOLDS_MAX;
	for (int go = 0; go < 2 && (!go || look->proc.in_kernel); go++) {
		struct hash_node *node = NULL;

		while (!err && (node = hash_walk(&agent->clients, node))) {
			const struct client *client = hash_entry(node, struct client, node);

			if (go ? may_be_in_kernel(client) : waits_in_store(client))
				err = note_client(look, client);
		}
	}
	return err;
}

/* --- what comes of it --- */

static void local_key(char key[LOCAL_KEY_MAX], dev_t dev, ino_t ino)
{
	snprintf(key, LOCAL_KEY_MAX, "l:%u:%u:%llu", major(dev), minor(dev), (unsigned long long)ino);
}

/* Whoever holds something must not wait behind others who may be waiting for that: Linux has no such order. */
static void let_pass(struct look *look)
{
	struct agent *agent = look->looks->agent;

	for (size_t i = 0; i < look->proc.wait_count; i++) {
		const struct proc_wait *wait = &look->proc.waits[i];
		struct client *client = wait->id && wait->asked ? client_of(agent, wait) : NULL;
		struct name *name;

		if (!client || wait->owner == PROC_NOBODY || !look->proc.owners[wait->owner].holds_any || request_of(client)->stake)
			continue;
		name = client->name;
		cover_pass(&name->cover, client->id);
		name_settle(name);
	}
}

struct place {			/* a file on which something is held, and a name that has it */
	dev_t dev;
	ino_t ino;
	const struct name *name;
};

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (x->dev > y->dev) - (x->dev < y->dev);
}

struct part {			/* the graph's part of this host, being written */
	struct look *look;
	struct record_buf buf;
	bool *waiting;		/* for each owner: it waits */
	struct place *held;	/* distinct files on which owners that wait hold something */
	size_t held_count;
	struct place *places;	/* with names, sorted */
	size_t place_count, place_cap;
	size_t holds;
	bool asked, named;	/* somebody waits in the store; something is held under a name */
};

/* Which names have the files on which something is held. */
static int find_places(struct part *part)
{
	const struct proc_look *proc = &part->look->proc;
	struct hash_node *node = NULL;
	size_t n = 0;

	part->held = calloc(proc->hold_count + 1, sizeof *part->held);
	if (!part->held)
		return -ENOMEM;
	for (size_t i = 0; i < proc->hold_count; i++)
		if (part->waiting[proc->holds[i].owner])
			part->held[n++] = (struct place){ proc->holds[i].stat_dev, proc->holds[i].ino, NULL };
	qsort(part->held, n, sizeof *part->held, compare_places);
	for (size_t i = 0; i < n; i++)
		if (!part->held_count || compare_places(&part->held[part->held_count - 1], &part->held[i]))
			part->held[part->held_count++] = part->held[i];
	while (part->held_count && (node = hash_walk(&part->look->looks->agent->names, node))) {
		const struct name *name = hash_entry(node, struct name, node);

		for (size_t i = 0; name->records && name->cover.spans.count && i < name->file_count; i++) {
			struct place place = { name->files[i].id.dev, name->files[i].id.ino, name };

			if (!bsearch(&place, part->held, part->held_count, sizeof place, compare_places))
				continue;
			if (part->place_count == part->place_cap) {
				size_t cap = part->place_cap ? 2 * part->place_cap : 16;
				struct place *places = reallocarray(part->places, cap, sizeof *places);

				if (!places)
					return -ENOMEM;
				part->places = places;
				part->place_cap = cap;
			}
			part->places[part->place_count++] = place;
		}
	}
	if (part->place_count)
		qsort(part->places, part->place_count, sizeof *part->places, compare_places);
	return 0;
}

static void put_wait(struct part *part, const struct proc_wait *wait, const char *name)
{
	char key[LOCAL_KEY_MAX];

	local_key(key, wait->dev, wait->ino);
	deadlock_wait_put(&part->buf, &(struct deadlock_wait){ .id = wait->id, .owner = wait->owner, .pid = (uint64_t)wait->pid, .stamp = wait->stamp,
		.asked = wait->asked, .key = wait->asked ? name : key, .name = wait->asked ? "" : name, .at = wait->at, .mode = wait->mode });
	part->waiting[wait->owner] = true;
	part->asked = part->asked || wait->asked;
}

static void put_waits(struct part *part)
{
	struct look *look = part->look;

	for (size_t i = 0; i < look->proc.wait_count; i++) {
		struct proc_wait *wait = &look->proc.waits[i];
		const struct client *client = wait->id ? client_of(look->looks->agent, wait) : NULL;

		if (!wait->posix || wait->owner == PROC_NOBODY || (wait->id && !client)) {
			wait->owner = PROC_NOBODY;
			continue;
		}
		put_wait(part, wait, client && client->name ? client->name->key : "");
	}
}

static void put_hold(struct part *part, const struct proc_hold *hold, const char *key, struct extent at, enum lock_mode mode)
{
	if (part->holds++ < DEADLOCK_HOLDS_MAX)
		deadlock_hold_put(&part->buf, &(struct deadlock_hold){ hold->owner, key, at, mode });
	else
		part->look->proc.cut = true;
}

static void put_covered(struct part *part, const struct proc_hold *hold, const struct name *name)
{
	const struct lock_spans *spans = &name->cover.spans;
	struct lock_span last = { .mode = MODE_NONE };

	for (size_t i = lock_spans_find(spans, hold->at.start); i < spans->count && spans->at[i].at.start < hold->at.end; i++) {
		struct lock_span next = { .at = extent_common(spans->at[i].at, hold->at), .mode = spans->at[i].mode < hold->mode ? spans->at[i].mode : hold->mode };

		if (last.mode == next.mode && last.at.end == next.at.start) {
			last.at.end = next.at.end;
			continue;
		}
		if (last.mode != MODE_NONE)
			put_hold(part, hold, name->key, last.at, last.mode);
		last = next;
	}
	if (last.mode == MODE_NONE)
		return;
	put_hold(part, hold, name->key, last.at, last.mode);
	part->named = true;
}

/* Whether somebody waits for this file in the kernel here. */
static bool is_waited_for(const struct proc_look *proc, const struct proc_hold *hold)
{
	for (size_t i = 0; i < proc->wait_count; i++)
		if (proc->waits[i].owner != PROC_NOBODY && !proc->waits[i].asked && proc->waits[i].ino == hold->ino && proc->waits[i].dev == hold->dev)
			return true;
	return false;
}

static void put_holds(struct part *part)
{
	const struct proc_look *proc = &part->look->proc;
	const struct proc_hold *before = NULL;
	bool waited_for = false;

	for (size_t i = 0; i < proc->hold_count; i++) {
		const struct proc_hold *hold = &proc->holds[i];
		struct place place = { hold->stat_dev, hold->ino, NULL };
		const struct place *found;
		char key[LOCAL_KEY_MAX];

		if (!part->waiting[hold->owner])
			continue;
		if (!before || before->ino != hold->ino || before->dev != hold->dev)
			waited_for = is_waited_for(proc, hold);
		before = hold;
		if (waited_for) {
			local_key(key, hold->dev, hold->ino);
			put_hold(part, hold, key, hold->at, hold->mode);
		}
		found = part->place_count ? bsearch(&place, part->places, part->place_count, sizeof place, compare_places) : NULL;
		while (found && found > part->places && !compare_places(found - 1, &place))
			found--;
		for (; found && found < part->places + part->place_count && !compare_places(found, &place); found++)
			put_covered(part, hold, found->name);
	}
}

static void answer(struct request *requests, const struct record_buf *records, bool worth)
{
	while (requests) {
		struct request *request = requests;

		requests = request->next;
		request->fn(request->arg, records, worth);
		free(request);
	}
}

static void look_free(struct look *look)
{
	for (size_t i = 0; i < look->proc.wait_count; i++)
		free(look->proc.waits[i].inodes);
	free(look->proc.waits);
	deadlock_proc_clear(&look->proc);
	free(look);
}

static void finish(struct look *look, int err)
{
	struct deadlock_looks *looks = look->looks;
	struct part part = { .look = look, .waiting = calloc(look->proc.owner_count + 1, sizeof *part.waiting) };
	static struct log_limit limit;

	err = look->proc.err ? look->proc.err : err;
	err = part.waiting ? err : -ENOMEM;
	if (!err) {
		let_pass(look);
		put_waits(&part);
		err = find_places(&part);
	}
	if (!err) {
		put_holds(&part);
		err = part.buf.err;
	}
	if (err)
		log_error("out of memory: whether programs wait for each other is not found out");
	else if (look->proc.cut && log_allowed(&limit))
		log_warn("more than %d waits or %d locks of those who wait: a deadlock over hosts may not be found", DEADLOCK_WAITS_MAX, DEADLOCK_HOLDS_MAX);
	looks->ended_ns = loop_now_ns();
	looks->took_ns = looks->ended_ns - look->begun_ns;
	looks->running = NULL;
	answer(look->requests, err ? NULL : &part.buf, part.asked && part.named);
	record_buf_free(&part.buf);
	free(part.waiting);
	free(part.held);
	free(part.places);
	look_free(look);
	start(looks);
}

static void run(void *arg)
{
	struct look *look = arg;

	deadlock_proc_look(&look->proc);
}

static void done(void *arg)
{
	finish(arg, 0);
}

/* --- one at a time --- */

static void start(struct deadlock_looks *looks)
{
	uint64_t now = loop_now_ns(), pause = looks->took_ns < PAUSE_MAX_NS ? looks->took_ns : PAUSE_MAX_NS;
	struct request *requests = looks->waiting;
	struct look *look;
	int err;

	if (!looks->waiting || looks->running)
		return;
	if (looks->ended_ns && now < looks->ended_ns + pause) {
		if (looks->again.slot || !loop_timer_set(looks->agent->loop, &looks->again, looks->ended_ns + pause))
			return;
	}
	looks->waiting = NULL;
	looks->waiting_last = &looks->waiting;
	look = calloc(1, sizeof *look);
	if (!look) {
		answer(requests, NULL, false);
		return;
	}
	*look = (struct look){ .looks = looks, .requests = requests, .begun_ns = now };
	looks->running = look;
	err = note_clients(look);
	if (!err && look->proc.wait_count && !helper_run(looks->agent->loop, run, done, look))
		return;
	if (!err && look->proc.wait_count)
		err = -ENOMEM;
	finish(look, err);
}

static void again(struct loop_timer *timer)
{
	start(timer->arg);
}

int deadlock_look_start(struct agent *agent, void (*fn)(void *arg, const struct record_buf *records, bool worth), void *arg)
{
	struct deadlock_looks *looks = agent->deadlock_looks;
	struct request *request;

	if (!looks) {
		looks = calloc(1, sizeof *looks);
		if (!looks)
			return -ENOMEM;
		looks->agent = agent;
		looks->waiting_last = &looks->waiting;
		looks->again = (struct loop_timer){ .fn = again, .arg = looks };
		agent->deadlock_looks = looks;
	}
	/* In the next round: fn is not called from in here, and who asks at the same time shares the look. */
	if (!looks->running && !looks->again.slot && loop_timer_set(agent->loop, &looks->again, 0))
		return -ENOMEM;
	request = calloc(1, sizeof *request);
	if (!request)
		return -ENOMEM;
	*request = (struct request){ .fn = fn, .arg = arg };
	*looks->waiting_last = request;
	looks->waiting_last = &request->next;
	return 0;
}
