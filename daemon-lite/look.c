/* SPDX-License-Identifier: MIT */
/*
 * One look: in a helper thread, /proc, for the holders of everything covered; on
 * the loop, a probe of what nobody was seen to hold; if that is locked all the
 * same, a second walk through /proc, thorough and for mappings.
 *
 * Must not disturb a lock: the probe of a flock takes a lock for an instant, so it is made
 * only where no program here can be about to try one (its standing GO is closed
 * meanwhile), and where the agent's own description neither holds nor waits. Record
 * locks are asked for without taking any. A host that is asked again and again spends at most half of its time on this.
 */
#include "look.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "holders.h"
#include "klock.h"
#include "log.h"
#include "look_private.h"
#include "publish.h"

#define FOUND_MAX 100000	/* holders in one look */
#define PAUSE_MAX_NS 200000000u

struct request {
	struct request *next;
	void (*fn)(void *arg, const struct record_buf *records);
	void *arg;
};

struct looks {			/* of an agent */
	struct agent *agent;
	struct request *waiting, **waiting_last;
	struct look *running;
	struct loop_timer again;
	uint64_t ended_ns, took_ns;
};

static void look_free(struct look *look)
{
	if (!look)
		return;
	for (size_t i = 0; i < look->name_count; i++) {
		free(look->names[i].key);
		lock_spans_free(&look->names[i].seen_at);
		lock_spans_free(&look->names[i].missing);
	}
	free(look->names);
	free(look->files);
	free(look->pass_files);
	free(look->owners);
	free(look->pass_owners);
	free(look->found);
	free(look);
}

/* --- what to look at --- */

static int note_name(struct look *look, const struct name *name)
{
	struct look_name *one = &look->names[look->name_count];

	one->key = strdup(name->key);
	if (!one->key)
		return -ENOMEM;
	one->records = name->records;
	for (size_t i = 0; i < name->file_count; i++) {
		look->files[look->file_count] = (struct holder_file){ name->files[i].id, name->records };
		look->owners[look->file_count++] = look->name_count;
	}
	look->name_count++;
	return 0;
}

static int note_names(struct look *look)
{
	struct agent *agent = look->agent;
	struct hash_node *node = NULL;
	size_t names = 0, files = 0;
	int err = 0;

	while ((node = hash_walk(&agent->names, node))) {
		names++;
		files += hash_entry(node, struct name, node)->file_count;
	}
	look->names = calloc(names + 1, sizeof *look->names);
	look->files = calloc(files + 1, sizeof *look->files);
	look->pass_files = calloc(files + 1, sizeof *look->files);
	look->owners = calloc(files + 1, sizeof *look->owners);
	look->pass_owners = calloc(files + 1, sizeof *look->owners);
	if (!look->names || !look->files || !look->pass_files || !look->owners || !look->pass_owners)
		return -ENOMEM;
	while (!err && (node = hash_walk(&agent->names, node))) {
		const struct name *name = hash_entry(node, struct name, node);

		if (cover_mode(&name->cover) != MODE_NONE)
			err = note_name(look, name);
	}
	return err;
}

/* --- in the helper thread --- */

static void add_found(struct look *look, size_t name, const struct holder *holder)
{
	if (look->found_count == look->found_size) {
		size_t size = look->found_size ? 2 * look->found_size : 64;
		struct found *found = look->found_size < FOUND_MAX ? reallocarray(look->found, size, sizeof *found) : NULL;

		if (!found)
			return;
		look->found = found;
		look->found_size = size;
	}
	look->found[look->found_count++] = (struct found){ name, *holder };
}

/* Somebody who maps the file: of record locks, who has all that nobody else was found to have. */
static void on_mapping(struct look *look, size_t index, struct holder holder)
{
	struct look_name *name = &look->names[index];

	if (!name->records) {
		if (name->probed != MODE_NONE)
			holder.mode = name->probed;
		add_found(look, index, &holder);
		name->seen = true;
		return;
	}
	for (size_t i = 0; i < name->missing.count; i++) {
		holder.at = name->missing.at[i].at;
		holder.mode = name->missing.at[i].mode;
		holder.ofd = true;	/* a process's own lock would have ended with its descriptor */
		add_found(look, index, &holder);
		lock_spans_add(&name->seen_at, holder.at, holder.mode);
	}
	name->seen = true;
}

static void on_holder(void *arg, const struct holder *holder)
{
	struct look *look = arg;
	size_t index = look->pass_owners[holder->inode];
	struct look_name *name = &look->names[index];

	if (holder->mapping) {
		on_mapping(look, index, *holder);
		return;
	}
	/* Again: only those who were not found the first time. */
	if (look->again && name->records && !look_is_beyond(&name->seen_at, holder->at))
		return;
	add_found(look, index, holder);
	name->seen = true;
	if (name->records)
		lock_spans_add(&name->seen_at, holder->at, holder->mode);
}

static void pass(struct look *look, int (*find)(const struct holder_file *, size_t, pid_t, void (*)(void *, const struct holder *), void *))
{
	size_t n = 0;

	for (size_t i = 0; i < look->file_count; i++) {
		const struct look_name *name = &look->names[look->owners[i]];

		if (look->again && (name->seen || !name->expected))
			continue;
		look->pass_files[n] = look->files[i];
		look->pass_owners[n++] = look->owners[i];
	}
	if (n)
		find(look->pass_files, n, getppid(), on_holder, look);
}

static void walk(void *arg)
{
	pass(arg, holders_find);
}

static void walk_again(void *arg)
{
	struct look *look = arg;

	look->again = true;
	for (size_t i = 0; i < look->name_count; i++)
		look->names[i].seen &= !look->names[i].records;
	pass(arg, holders_find);	/* it looks thoroughly only where it finds nobody at all */
	pass(arg, holders_find_mappings);
}

/* --- where nobody was seen --- */

static bool all_local(const struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++)
		if (!name->files[i].local)
			return false;
	return true;
}

static enum lock_mode probe(struct name *name)
{
	enum lock_mode held = MODE_NONE;

	if (cover_has_requests(&name->cover) || name_is_asking(name) || !all_local(name))
		return MODE_NONE;
	for (size_t i = 0; i < name->file_count; i++) {
		int got;

		publish_set(name->agent->options.standing, &name->files[i].standing, &name->files[i].id, MODE_NONE);
		got = klock_probe(name->files[i].fd, MODE_EX);
		if (got > (int)held)
			held = (enum lock_mode)got;
	}
	name_publish(name);
	return held;
}

/* Adds those parts of the lock that no holder was found for. */
static void note_missing(struct look_name *one, const struct lock_span *lock)
{
	struct extent rest = lock->at;

	for (size_t i = lock_spans_find(&one->seen_at, rest.start); rest.start < lock->at.end; i++) {
		const struct extent *seen = i < one->seen_at.count && one->seen_at.at[i].at.start < lock->at.end ? &one->seen_at.at[i].at : NULL;

		rest.end = seen ? seen->start : lock->at.end;
		if (rest.start < rest.end)
			lock_spans_add(&one->missing, rest, lock->mode);
		rest.start = seen ? seen->end : lock->at.end;
	}
}

/* Where there are too many locks to look at each, only those are shown whose holders were seen. */
static void probe_records(struct look_name *one, const struct name *name)
{
	struct lock_spans held = { 0 };
	struct klock_brief brief;

	if (!all_local(name))
		return;
	klock_brief_begin(&brief);
	for (size_t i = 0; i < name->file_count; i++) {
		enum lock_mode all;
		struct extent seen;

		klock_probe_briefly(name->files[i].fd, EXTENT_ALL, EXTENT_ALL, &brief, &held, &seen, &all);
	}
	for (size_t i = 0; i < held.count; i++)
		note_missing(one, &held.at[i]);
	lock_spans_free(&held);
	one->expected = one->missing.count > 0;
}

/* Whether something is held by somebody who was not seen. */
static bool anybody_missing(struct look *look)
{
	bool missing = false;

	for (size_t i = 0; i < look->name_count; i++) {
		struct look_name *one = &look->names[i];
		struct name *name = one->seen && !one->records ? NULL : name_find(look->agent, one->key);

		if (!name || cover_mode(&name->cover) == MODE_NONE)
			continue;
		if (one->records) {
			probe_records(one, name);
		} else {
			one->probed = probe(name);
			one->expected = one->probed != MODE_NONE || cover_is_recalled(&name->cover);
		}
		missing |= one->expected;
	}
	return missing;
}

/* --- the answer --- */

static void answer(struct request *requests, const struct record_buf *records)
{
	struct request *next;

	for (; requests; requests = next) {
		next = requests->next;
		requests->fn(requests->arg, records);
		free(requests);
	}
}

static void start(struct looks *looks);

static void seen_all(void *arg)
{
	struct look *look = arg;
	struct looks *looks = look->looks;
	struct record_buf buf = { 0 };

	look_put(look, &buf);
	looks->ended_ns = loop_now_ns();
	looks->took_ns = looks->ended_ns - look->begun_ns;
	looks->running = NULL;
	answer(look->requests, buf.err ? NULL : &buf);
	record_buf_free(&buf);
	look_free(look);
	start(looks);
}

static void seen(void *arg)
{
	struct look *look = arg;

	if (!anybody_missing(look) || helper_run(look->agent->loop, walk_again, seen_all, look))
		seen_all(look);
}

/* --- one at a time --- */

static void start(struct looks *looks)
{
	uint64_t now = loop_now_ns();
	struct look *look;
	struct request *requests;
	uint64_t pause = looks->took_ns < PAUSE_MAX_NS ? looks->took_ns : PAUSE_MAX_NS;

	if (!looks->waiting || looks->running)
		return;
	if (looks->ended_ns && now < looks->ended_ns + pause) {
		if (looks->again.slot || !loop_timer_set(looks->agent->loop, &looks->again, looks->ended_ns + pause))
			return;
	}
	requests = looks->waiting;
	looks->waiting = NULL;
	looks->waiting_last = &looks->waiting;
	look = calloc(1, sizeof *look);
	if (look) {
		*look = (struct look){ .agent = looks->agent, .looks = looks, .requests = requests, .begun_ns = now };
		looks->running = look;
		if (!note_names(look) && !helper_run(looks->agent->loop, walk, seen, look))
			return;
		looks->running = NULL;
	}
	look_free(look);
	log_error("out of memory: it cannot be seen who holds the locks here");
	answer(requests, NULL);
}

static void again(struct loop_timer *timer)
{
	start(timer->arg);
}

int look_start(struct agent *agent, void (*fn)(void *arg, const struct record_buf *records), void *arg)
{
	struct looks *looks = agent->looks;
	struct request *request;

	if (!looks) {
		looks = calloc(1, sizeof *looks);
		if (!looks)
			return -ENOMEM;
		looks->agent = agent;
		looks->waiting_last = &looks->waiting;
		looks->again = (struct loop_timer){ .fn = again, .arg = looks };
		agent->looks = looks;
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
