/* SPDX-License-Identifier: MIT */
/*
 * The records of a look (look.h): what of the covers does not lie idle, who holds,
 * who waits in the kernel. A name that has gone since it was looked at is left out.
 */
#include "look.h"

#include "look_private.h"

#define PASSING_NS 5000000u	/* a program with a GO for less than this is not said to wait */

/* Whether anything in `at` is not among the spans. */
bool look_is_beyond(const struct lock_spans *spans, struct extent at)
{
	for (size_t i = lock_spans_find(spans, at.start); at.start < at.end; i++) {
		if (i == spans->count || spans->at[i].at.start > at.start)
			return true;
		at.start = spans->at[i].at.end;
	}
	return false;
}

static const char *mode_name(enum lock_mode mode)
{
	return mode == MODE_SH ? "SH" : "EX";
}

static const char *kind_name(bool records, bool ofd)
{
	return !records ? "flock" : ofd ? "ofd" : "record";
}

static void put_extent(struct record_buf *buf, struct extent at)
{
	records_put_u64(buf, "start", at.start);
	records_put_u64(buf, "end", at.end);
}

static void put_cover(struct record_buf *buf, const char *key, const char *state, struct extent at)
{
	records_begin(buf, "cover");
	records_put(buf, "key", key);
	records_put(buf, "state", state);
	put_extent(buf, at);
	records_end(buf);
}

/* What nobody was found for in the end. */
static void put_missing(struct record_buf *buf, const struct look_name *one)
{
	for (size_t i = 0; i < one->missing.count; i++) {
		const struct lock_span *lock = &one->missing.at[i];

		if (!one->records || !look_is_beyond(&one->seen_at, lock->at))
			continue;
		records_begin(buf, "holder");
		records_put(buf, "key", one->key);
		records_put(buf, "pid", "");
		records_put(buf, "command", "");
		records_put(buf, "mode", mode_name(lock->mode));
		records_put(buf, "kind", "record");
		put_extent(buf, lock->at);
		records_end(buf);
	}
}

static void put_name(struct record_buf *buf, const struct look_name *one, const struct name *name)
{
	if (!name || cover_mode(&name->cover) == MODE_NONE)
		return;
	if (!one->records && (one->seen || one->probed != MODE_NONE))
		put_cover(buf, one->key, "held", EXTENT_ALL);
	for (size_t i = 0; i < name->cover.request_count; i++)
		if (name->cover.requests[i].state == REQUEST_GO)
			put_cover(buf, one->key, "held", name->cover.requests[i].at);
	for (size_t i = 0; cover_is_recalled(&name->cover) && i < name->cover.recall_count; i++)
		if (!name->cover.recalls[i].dropped)
			put_cover(buf, one->key, "recalled", name->cover.recalls[i].wanted.at);
	put_missing(buf, one);
}

/* How long it can have held it: since it last said so. Who took it under a standing GO, or inherited it, has not said so. */
static void put_age(struct record_buf *buf, uint64_t now, const struct name *name, const struct holder *holder)
{
	if (!name || name->records || !name->held_ns || name->held_mode != holder->mode || name->held_pid != holder->pid)
		return;
	records_put_u64(buf, "age_ms", now > name->held_ns ? (now - name->held_ns) / 1000000u : 0);
}

static void put_holder(struct record_buf *buf, const struct look *look, const struct found *found)
{
	const char *key = look->names[found->name].key;
	bool records = look->names[found->name].records;

	records_begin(buf, "holder");
	records_put(buf, "key", key);
	records_put_u64(buf, "pid", (uint64_t)found->holder.pid);
	records_put(buf, "command", found->holder.command);
	records_put(buf, "mode", mode_name(found->holder.mode));
	records_put(buf, "kind", kind_name(records, found->holder.ofd));
	put_extent(buf, records ? found->holder.at : EXTENT_ALL);
	put_age(buf, look->begun_ns, name_find(look->agent, key), &found->holder);
	records_end(buf);
}

static void on_client(void *arg, const struct client_view *view)
{
	struct record_buf *buf = arg;
	uint64_t now = loop_now_ns();

	if (!view->waits_in_kernel || now - view->go_ns < PASSING_NS)
		return;
	records_begin(buf, "waiter");
	records_put(buf, "key", view->key);
	records_put_u64(buf, "pid", (uint64_t)view->pid);
	records_put(buf, "command", view->command);
	records_put(buf, "mode", mode_name(view->mode));
	records_put(buf, "kind", kind_name(view->family != FAMILY_FLOCK, view->family == FAMILY_OFD));
	put_extent(buf, view->at);
	records_put(buf, "try", view->try ? "1" : "0");
	records_put_u64(buf, "age_ms", (now - view->since_ns) / 1000000u);
	records_end(buf);
}

void look_put(const struct look *look, struct record_buf *buf)
{
	struct agent *agent = look->agent;

	for (size_t i = 0; i < look->name_count; i++)
		put_name(buf, &look->names[i], name_find(agent, look->names[i].key));
	for (size_t i = 0; i < look->found_count; i++)
		put_holder(buf, look, &look->found[i]);
	clients_each(agent, on_client, buf);
}
