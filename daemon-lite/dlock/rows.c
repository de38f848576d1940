/* SPDX-License-Identifier: MIT */
/*
 * From the agent's records to rows for people. Who holds is known from the
 * `holder` records of the hosts that answered: one row for each lock. What a host
 * covers beside that is one row more: idle, nobody has it. Of a host that did not answer,
 * the cover only names who asked for it: shown in brackets.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/extent.h"
#include "answer.h"
#include "text.h"

#define HOLDERS_SHOWN 20	/* of one host */

const char *const answer_headings[ANSWER_COLUMNS] = { "NAME", "MODE", "KIND", "RANGE", "HOST", "PID", "COMMAND", "AGE", "FENCE", "STATE", "LEASE" };
enum { NAME, MODE, KIND, RANGE, HOST, PID, COMMAND, AGE, FENCE, STATE, LEASE };

static bool is(const struct record *record, const char *kind)
{
	return strcmp(record->kind, kind) == 0;
}

/* --- cells --- */

static bool is_shared_name(const struct answer *answer, const char *name)
{
	size_t count = 0;

	for (size_t i = 0; i < answer->others; i++)
		count += is(answer->records[i], "host") && strcmp(record_get(answer->records[i], "name", ""), name) == 0;
	return count > 1;
}

/* As people know the host with this id; where several have one name, with the beginning of the id. */
static const char *show_host(const struct answer *answer, const char *id, const char *name, char *buf, size_t size)
{
	if (!*name)
		return id;
	if (!is_shared_name(answer, name))
		return name;
	snprintf(buf, size, "%s/%.4s", name, id);
	return buf;
}

const char *answer_host(const struct answer *answer, const struct record *host, char *buf, size_t size)
{
	return show_host(answer, record_get(host, "id", "?"), record_get(host, "name", ""), buf, size);
}

static const char *host_name(const struct answer *answer, const struct record *record, char *buf, size_t size)
{
	const char *id = record_get(record, "host", ""), *name = record_get(record, "host_name", "");

	for (size_t i = 0; !*name && i < answer->others; i++)
		if (is(answer->records[i], "host") && strcmp(record_get(answer->records[i], "id", ""), id) == 0)
			name = record_get(answer->records[i], "name", "");
	for (size_t i = 0; !*name && i < answer->others; i++)
		if (is(answer->records[i], "agent") && strcmp(record_get(answer->records[i], "id", ""), id) == 0)
			name = record_get(answer->records[i], "host", "");
	return show_host(answer, id, name, buf, size);
}

/* What is left of the lease of the record's host, written to buf; "" if unknown. */
static const char *host_lease(const struct answer *answer, const struct record *record, char *buf, size_t size)
{
	const char *id = record_get(record, "host", "");

	buf[0] = '\0';
	for (size_t i = 0; i < answer->others; i++) {
		const struct record *host = answer->records[i];

		if (strcmp(host->kind, "host") == 0 && strcmp(record_get(host, "id", ""), id) == 0 && record_get(host, "lease_ms", NULL))
			text_age(record_get_u64(host, "lease_ms", 0), buf, size);
	}
	return buf;
}

static const char *age_of(const struct record *record, char *buf, size_t size)
{
	buf[0] = '\0';
	return record_get(record, "age_ms", NULL) ? text_age(record_get_u64(record, "age_ms", 0), buf, size) : buf;
}

static bool is_flock(const struct record *record)
{
	return strncmp(record_get(record, "key", ""), "f:", 2) == 0;
}

/* "f:" locks have no range. */
static const char *kind_of(const struct record *record)
{
	return record_get(record, "kind", is_flock(record) ? "flock" : "record");
}

static struct extent extent_of(const struct record *record)
{
	struct extent at = { record_get_u64(record, "start", 0), record_get_u64(record, "end", EXTENT_END) };

	return at.start < at.end && at.end <= EXTENT_END ? at : EXTENT_ALL;
}

/* START-END, END not included; with how many parts of it are meant, unless it is one. */
static const char *range_text(const struct record *record, struct extent at, size_t parts, char *buf, size_t size)
{
	char end[24] = "EOF", count[40] = "";

	if (is_flock(record))
		return "-";
	if (at.end != EXTENT_END)
		snprintf(end, sizeof end, "%" PRIu64, at.end);
	if (parts > 1)
		snprintf(count, sizeof count, " (%zu parts)", parts);
	snprintf(buf, size, "%" PRIu64 "-%s%s", at.start, end, count);
	return buf;
}

static const char *in_brackets(const char *text, char *buf, size_t size)
{
	snprintf(buf, size, *text ? "(%s)" : "%s", text);
	return buf;
}

static const char *or_unknown(const char *text)
{
	return *text ? text : "?";
}

/* --- what a host has --- */

struct part {
	struct extent at;
	const char *host;
	const struct record *record;
	size_t place;
};

struct parts {
	struct part *part;
	size_t count;
};

static int compare_parts(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	int n = strcmp(x->host, y->host);

	if (n)
		return n;
	if (x->at.start != y->at.start)
		return x->at.start < y->at.start ? -1 : 1;
	return x->place < y->place ? -1 : x->place > y->place;
}

/* The records of a kind, by host and start; to be freed. */
static struct parts parts_of(const struct answer *answer, struct answer_range range, const char *kind)
{
	struct parts parts = { reallocarray(NULL, range.to - range.from + 1, sizeof *parts.part), 0 };

	for (size_t i = range.from; parts.part && i < range.to; i++) {
		const struct record *record = answer->records[i];

		if (is(record, kind))
			parts.part[parts.count++] = (struct part){ extent_of(record), record_get(record, "host", ""), record, i };
	}
	if (parts.count)
		qsort(parts.part, parts.count, sizeof *parts.part, compare_parts);
	return parts;
}

/* Those of one host, from the first one on; *parts is what is left. */
static struct parts take_host(struct parts *parts, const char *host)
{
	struct parts of = { parts->part, 0 };

	while (of.count < parts->count && strcmp(of.part[of.count].host, host) == 0)
		of.count++;
	parts->part += of.count;
	parts->count -= of.count;
	return of;
}

static const char *state_of(const struct part *cover)
{
	return record_get(cover->record, "state", "unknown");
}

static void holder_rows(const struct answer *answer, struct parts holders, struct parts covers, struct table *table)
{
	char range[80], age[32], lease[32], name[160], more[40];
	const char *cells[ANSWER_COLUMNS];
	size_t c = 0, i;

	for (i = 0; i < holders.count && i < HOLDERS_SHOWN; i++) {
		const struct record *holder = holders.part[i].record;
		const struct record *cover = NULL;
		const char *state = "held";

		while (c < covers.count && covers.part[c].at.end <= holders.part[i].at.start)
			c++;
		if (c < covers.count && extent_overlaps(covers.part[c].at, holders.part[i].at)) {
			cover = covers.part[c].record;
			if (strcmp(state_of(&covers.part[c]), "idle") != 0)	/* the cover was looked at a moment earlier */
				state = state_of(&covers.part[c]);
		}
		cells[NAME] = answer_name(record_get(holder, "key", ""));
		cells[MODE] = record_get(holder, "mode", "?");
		cells[KIND] = kind_of(holder);
		cells[RANGE] = range_text(holder, holders.part[i].at, 1, range, sizeof range);
		cells[HOST] = host_name(answer, holder, name, sizeof name);
		cells[PID] = or_unknown(record_get(holder, "pid", ""));
		cells[COMMAND] = or_unknown(record_get(holder, "command", ""));
		/* A cover of parts has grown since its first part was locked, so it says nothing of that one. */
		cells[AGE] = age_of(cover && is_flock(holder) && !record_get(holder, "age_ms", NULL) ? cover : holder, age, sizeof age);
		cells[FENCE] = cover ? record_get(cover, "fence", "") : "";
		cells[STATE] = state;
		cells[LEASE] = cover ? host_lease(answer, cover, lease, sizeof lease) : "";
		table_add(table, cells);
	}
	if (i < holders.count) {
		snprintf(more, sizeof more, "+ %zu", holders.count - i);
		cells[RANGE] = "-";
		cells[PID] = more;
		cells[COMMAND] = "(more)";
		cells[AGE] = "";
		table_add(table, cells);
	}
}

/* What one host covers in one state, beside what is held. */
struct rest {
	struct extent at;
	size_t parts;
	const struct record *first;
	const char *mode;
	uint64_t fence;
	bool held;		/* somebody may have some of it */
};

static void add_rest(struct rest *rest, const struct part *cover, struct extent at, bool has_holder)
{
	const char *mode = record_get(cover->record, "mode", "?");
	uint64_t fence = record_get_u64(cover->record, "fence", 0);

	if (!rest->parts)
		*rest = (struct rest){ .at = at, .parts = 1, .first = cover->record, .mode = mode };
	else if (rest->at.end != at.start)
		rest->parts++;
	if (strcmp(rest->mode, mode) != 0)
		rest->mode = "SH/EX";
	rest->at.end = at.end;
	rest->fence = fence > rest->fence ? fence : rest->fence;
	rest->held |= !has_holder;
}

static void rest_row(const struct answer *answer, const struct rest *rest, const char *state, struct table *table)
{
	bool unknown = strcmp(state, "unknown") == 0, nobody = strcmp(state, "idle") == 0 || !rest->held;
	char range[80], pid[40], command[80], age[32], fence[24], lease[32], name[160];
	const struct record *cover = rest->first;
	const char *cells[ANSWER_COLUMNS] = {
		answer_name(record_get(cover, "key", "")), rest->mode, kind_of(cover), range_text(cover, rest->at, rest->parts, range, sizeof range),
		host_name(answer, cover, name, sizeof name),
		unknown ? in_brackets(record_get(cover, "pid", ""), pid, sizeof pid) : nobody ? "-" : "?",
		unknown ? in_brackets(record_get(cover, "command", ""), command, sizeof command) : nobody ? "-" : "?",
		age_of(cover, age, sizeof age), fence, state, host_lease(answer, cover, lease, sizeof lease),
	};

	snprintf(fence, sizeof fence, "%" PRIu64, rest->fence);
	table_add(table, cells);
}

/* What is held, as few extents as it takes; returns how many. The parts are by start. */
static size_t merge_extents(struct parts parts, struct extent *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < parts.count; i++) {
		struct extent at = parts.part[i].at;

		if (n && at.start <= ret[n - 1].end)
			ret[n - 1].end = at.end > ret[n - 1].end ? at.end : ret[n - 1].end;
		else
			ret[n++] = at;
	}
	return n;
}

/* What the covers in this state have beside what is held. Where a holder is known, the rest of the cover is idle. */
static struct rest rest_of(struct parts covers, const struct extent *held, size_t count, const char *state)
{
	struct rest rest = { .parts = 0 };
	size_t first = 0;

	for (size_t c = 0; c < covers.count; c++) {
		const struct part *cover = &covers.part[c];
		const char *own = state_of(cover);
		uint64_t at = cover->at.start;
		bool has_holder;

		while (first < count && held[first].end <= at)
			first++;
		has_holder = first < count && held[first].start < cover->at.end;
		if (strcmp(has_holder && strcmp(own, "held") == 0 ? "idle" : own, state) != 0)
			continue;
		for (size_t i = first; i < count && held[i].start < cover->at.end; i++) {
			if (held[i].start > at)
				add_rest(&rest, cover, (struct extent){ at, held[i].start }, has_holder);
			at = held[i].end;
		}
		if (at < cover->at.end)
			add_rest(&rest, cover, (struct extent){ at, cover->at.end }, has_holder);
	}
	return rest;
}

static void host_rows(const struct answer *answer, struct parts covers, struct parts holders, struct table *table)
{
	static const char *const states[] = { "held", "recalled", "unknown", "idle" };
	struct extent *held = reallocarray(NULL, holders.count + 1, sizeof *held);
	size_t count;

	if (!held) {
		table->err = -ENOMEM;
		return;
	}
	holder_rows(answer, holders, covers, table);
	count = merge_extents(holders, held);
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		struct rest rest = rest_of(covers, held, count, states[i]);

		if (rest.parts)
			rest_row(answer, &rest, states[i], table);
	}
	free(held);
}

static void waiter_rows(const struct answer *answer, struct answer_range range, struct table *table)
{
	size_t count;
	const struct record **waiters = answer_waiters(answer, range, &count);

	for (size_t i = 0; i < count; i++) {
		const struct record *waiter = waiters[i];
		char at[80], age[32], place[96], name[160];
		const char *cells[ANSWER_COLUMNS] = {
			answer_name(record_get(waiter, "key", "")), record_get(waiter, "mode", "?"), kind_of(waiter),
			range_text(waiter, extent_of(waiter), 1, at, sizeof at), host_name(answer, waiter, name, sizeof name),
			record_get(waiter, "pid", ""), record_get(waiter, "command", ""), age_of(waiter, age, sizeof age), "", place, "",
		};

		snprintf(place, sizeof place, "%s %zu%s", record_get_u64(waiter, "try", 0) ? "tries" : "waits", i + 1,
			 strcmp(record_get(waiter, "where", ""), "kernel") == 0 ? " (kernel)" : "");
		table_add(table, cells);
	}
	free(waiters);
}

void answer_rows(const struct answer *answer, const char *key, struct table *table)
{
	struct answer_range range = answer_range(answer, key);
	struct parts covers = parts_of(answer, range, "cover"), holders = parts_of(answer, range, "holder");
	struct part *to_free[2] = { covers.part, holders.part };

	if (!covers.part || !holders.part)
		table->err = -ENOMEM;
	/* A host can have holders without a cover: without the store's answer, or newer than it. */
	while (covers.count || holders.count) {
		const char *host = !covers.count ? holders.part->host : !holders.count ? covers.part->host :
				   strcmp(covers.part->host, holders.part->host) <= 0 ? covers.part->host : holders.part->host;
		struct parts host_covers = take_host(&covers, host), host_holders = take_host(&holders, host);

		host_rows(answer, host_covers, host_holders, table);
	}
	free(to_free[0]);
	free(to_free[1]);
	waiter_rows(answer, range, table);
}
