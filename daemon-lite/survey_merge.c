/* SPDX-License-Identifier: MIT */
/*
 * What a survey has collected, and the records it becomes. What another host said
 * is read as records, and only the fields known here, of the form they must have,
 * go on; whose they are is what the store's script put beside them.
 */
#include "survey_merge.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MAX 16
#define HOSTS_MAX 4096
#define KEY_MAX 8192
#define COMMAND_MAX 64

/* --- collecting --- */

int merge_row(struct survey *survey, const char *record, size_t len)
{
	struct row *row;

	if (survey->row_count == survey->row_size) {
		size_t size = survey->row_size ? 2 * survey->row_size : 64;
		struct row *rows = reallocarray(survey->rows, size, sizeof *rows);

		if (!rows)
			return -ENOMEM;
		survey->rows = rows;
		survey->row_size = size;
	}
	row = &survey->rows[survey->row_count];
	row->data = malloc(len + 1);
	if (!row->data)
		return -ENOMEM;
	memcpy(row->data, record, len);
	row->data[len] = 0;
	row->len = len;
	survey->row_count++;
	return 0;
}

static struct survey_host *find_host(const struct survey *survey, const char *id)
{
	for (size_t i = 0; i < survey->host_count; i++)
		if (!strcmp(survey->hosts[i].id, id))
			return &survey->hosts[i];
	return NULL;
}

struct survey_host *merge_host(struct survey *survey, const char *id)
{
	struct survey_host *host = find_host(survey, id);

	if (host)
		return host;
	if (survey->host_count == survey->host_size) {
		size_t size = survey->host_size ? 2 * survey->host_size : 8;
		struct survey_host *hosts = size <= HOSTS_MAX ? reallocarray(survey->hosts, size, sizeof *hosts) : NULL;

		if (!hosts)
			return NULL;
		survey->hosts = hosts;
		survey->host_size = size;
	}
	host = &survey->hosts[survey->host_count];
	*host = (struct survey_host){ .id = strdup(id) };
	if (!host->id)
		return NULL;
	survey->host_count++;
	return host;
}

void merge_clear(struct survey *survey)
{
	for (size_t i = 0; i < survey->row_count; i++)
		free(survey->rows[i].data);
	for (size_t i = 0; i < survey->live_count; i++)
		record_free(survey->live[i].record);
	for (size_t i = 0; i < survey->host_count; i++) {
		free(survey->hosts[i].id);
		record_buf_free(&survey->hosts[i].text);
	}
	free(survey->rows);
	free(survey->live);
	free(survey->hosts);
}

/* --- what the hosts said --- */

static bool is_one_of(const char *value, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(value, *list))
			return true;
	return false;
}

static bool read_extent(const char *start, const char *end, struct extent *ret)
{
	return record_number(start, &ret->start) && record_number(end, &ret->end) && ret->start < ret->end && ret->end <= EXTENT_END;
}

/* A number that a process can have; empty where no process was found. */
static bool is_pid(const char *text)
{
	uint64_t pid;

	return !*text || (record_number(text, &pid) && pid > 0 && pid <= INT_MAX);
}

/* Whether the record has the form that it must have. */
static bool read_live(const struct record *record, struct live *ret)
{
	static const char *const modes[] = { "SH", "EX", NULL }, *const states[] = { "held", "recalled", NULL }, *const kinds[] = { "", "flock", "record", "ofd", NULL };
	const char *key = record_get(record, "key", ""), *start = record_get(record, "start", NULL);
	bool waiter = !strcmp(record->kind, "waiter");

	if (!*key || strlen(key) > KEY_MAX || !is_one_of(record_get(record, "kind", ""), kinds))
		return false;
	*ret = (struct live){ .key = key, .at = EXTENT_ALL, .class = LIVE_HELD };
	if (start && !read_extent(start, record_get(record, "end", ""), &ret->at))
		return false;
	if (!strcmp(record->kind, "cover")) {
		if (!strcmp(record_get(record, "state", ""), "recalled"))
			ret->class = LIVE_RECALLED;
		return is_one_of(record_get(record, "state", ""), states);
	}
	if (waiter)
		ret->class = LIVE_WAITER;
	if ((!waiter && strcmp(record->kind, "holder")) || !is_pid(record_get(record, "pid", "x")))
		return false;
	return is_one_of(record_get(record, "mode", ""), modes);
}

static int add_live(struct survey *survey, const char *host, const struct live *one, struct record *record)
{
	if (survey->live_count == survey->live_size) {
		size_t size = survey->live_size ? 2 * survey->live_size : 64;
		struct live *live = reallocarray(survey->live, size, sizeof *live);

		if (!live)
			return -ENOMEM;
		survey->live = live;
		survey->live_size = size;
	}
	survey->live[survey->live_count] = *one;
	survey->live[survey->live_count].host = host;
	survey->live[survey->live_count++].record = record;
	return 0;
}

/* Of one host, one key and one class. */
static int compare_group(const struct live *x, const struct live *y)
{
	int n = strcmp(x->host, y->host);

	n = n ? n : strcmp(x->key, y->key);
	return n ? n : (int)x->class - (int)y->class;
}

static int compare_live(const void *a, const void *b)
{
	const struct live *x = a, *y = b;
	int n = compare_group(x, y);

	return n ? n : (x->at.start > y->at.start) - (x->at.start < y->at.start);
}

static void note_reach(struct survey *survey)
{
	for (size_t i = 0; i < survey->live_count; i++) {
		struct live *one = &survey->live[i];

		one->reach = one->at.end;
		if (i && !compare_group(one - 1, one) && one[-1].reach > one->reach)
			one->reach = one[-1].reach;
	}
}

int merge_sort(struct survey *survey)
{
	for (size_t i = 0; i < survey->host_count; i++) {
		struct survey_host *host = &survey->hosts[i];
		struct record *record;
		struct live live;
		size_t pos = 0;
		int n;

		if (!host->answered)
			continue;
		while ((n = records_next(host->text.data, host->text.len, &pos, &record)) != 0) {
			if (n == -ENOMEM)
				return n;
			if (n != 1) {		/* the rest cannot be trusted to be whole */
				host->cut = true;
				break;
			}
			if (!read_live(record, &live)) {
				record_free(record);
			} else if (add_live(survey, host->id, &live, record)) {
				record_free(record);
				return -ENOMEM;
			}
		}
	}
	if (survey->live_count)
		qsort(survey->live, survey->live_count, sizeof *survey->live, compare_live);
	note_reach(survey);
	return 0;
}

/* Whether the host said something of this class about any point of `at`. */
static bool is_said(const struct survey *survey, const char *id, const char *key, enum live_class class, struct extent at)
{
	struct live wanted = { .host = id, .key = key, .class = class, .at = { .start = at.end } };
	size_t low = 0, high = survey->live_count;

	while (low < high) {		/* the first that begins behind it */
		size_t middle = low + (high - low) / 2;

		if (compare_live(&survey->live[middle], &wanted) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low && !compare_group(&survey->live[low - 1], &wanted) && survey->live[low - 1].reach > at.start;
}

/* What the owner of a cover says of this part of it; it names only what does not lie idle. */
static const char *state_of(const struct survey *survey, const char *id, const char *key, struct extent at)
{
	const struct survey_host *host = find_host(survey, id);

	if (!host || !host->answered)
		return "unknown";
	if (is_said(survey, id, key, LIVE_RECALLED, at))
		return "recalled";
	if (is_said(survey, id, key, LIVE_HELD, at))
		return "held";
	return host->cut ? "unknown" : "idle";
}

/* --- the records --- */

/* As far as the key alone says it. */
static const char *family_kind(const char *key)
{
	return *key == 'f' ? "flock" : "record";
}

static const char *mode_name(const char *digit)
{
	return *digit == '2' ? "EX" : *digit == '1' ? "SH" : "NONE";
}

/* Splits a row at its NUL bytes. */
static void split(const struct row *row, const char **fields)
{
	size_t n = 0, at = 0;

	while (at <= row->len && n < FIELDS_MAX) {
		fields[n++] = row->data + at;
		at += strlen(row->data + at) + 1;
	}
	while (n < FIELDS_MAX)
		fields[n++] = "";
}

/* "PID NAME" */
static const char *split_info(const char *info, char pid[24])
{
	const char *space = strchr(info, ' ');

	snprintf(pid, 24, "%.*s", space ? (int)(space - info) : 0, info);
	return space ? space + 1 : info;
}

static void put_host_name(const struct survey *survey, const char *id, struct record_buf *buf)
{
	const char *f[FIELDS_MAX];
	char pid[24];

	records_put(buf, "host", id);
	for (size_t i = 0; i < survey->row_count; i++) {
		const struct row *row = &survey->rows[i];

		if (!strcmp(row->data, "cover") || !strcmp(row->data, "wait"))
			break;		/* hosts come first */
		if (strcmp(row->data, "host"))
			continue;
		split(row, f);
		if (!strcmp(f[1], id)) {
			records_put(buf, "host_name", split_info(f[5], pid));
			return;
		}
	}
}

static void put_age(uint64_t server_ms, const char *ms, struct record_buf *buf)
{
	uint64_t then = strtoull(ms, NULL, 10);

	records_put_u64(buf, "age_ms", server_ms > then ? server_ms - then : 0);
}

static void put_info(const char *info, struct record_buf *buf)
{
	char pid[24];
	const char *command = split_info(info, pid);

	records_put(buf, "pid", pid);
	records_put(buf, "command", command);
}

static void put_host(const struct survey *survey, const char *const *f, struct record_buf *buf)
{
	const struct survey_host *host = find_host(survey, f[1]);
	struct store_host_view view = { 0 };
	const char *self = store_host_id(survey->agent->store), *name;
	char pid[24];

	store_host_view(survey->agent->store, f[1], &view);
	name = split_info(f[5], pid);
	records_begin(buf, "host");
	records_put(buf, "id", f[1]);
	records_put(buf, "name", name);
	records_put(buf, "pid", pid);
	records_put(buf, "self", strcmp(f[1], self) ? "0" : "1");
	records_put(buf, "confirmed", f[4]);
	records_put(buf, "live", host && host->answered ? "1" : "0");
	if (view.unchanged_ms || view.remaining_ms) {	/* else not seen to renew yet */
		records_put_u64(buf, "age_ms", view.unchanged_ms);
		records_put_u64(buf, "lease_ms", view.remaining_ms);
	}
	records_end(buf);
}

static void put_extent(const char *kind, struct extent at, struct record_buf *buf)
{
	records_put(buf, "kind", kind);
	records_put_u64(buf, "start", at.start);
	records_put_u64(buf, "end", at.end);
}

/* The store's own: a record that cannot be read is about everything. */
static void put_store_extent(const char *key, const char *start, const char *end, struct record_buf *buf)
{
	struct extent at;

	put_extent(family_kind(key), read_extent(start, end, &at) ? at : EXTENT_ALL, buf);
}

static void put_cover(const struct survey *survey, uint64_t server_ms, const char *const *f, struct record_buf *buf)
{
	struct extent at;
	const char *state = state_of(survey, f[2], f[1], read_extent(f[7], f[8], &at) ? at : EXTENT_ALL);

	records_begin(buf, "cover");
	records_put(buf, "key", f[1]);
	put_host_name(survey, f[2], buf);
	records_put(buf, "mode", mode_name(f[3]));
	put_store_extent(f[1], f[7], f[8], buf);
	records_put(buf, "fence", f[4]);
	put_age(server_ms, f[5], buf);
	if (!strcmp(state, "unknown"))	/* who asked for it; nothing better is known */
		put_info(f[6], buf);
	records_put(buf, "state", state);
	records_end(buf);
}

static void put_wait(const struct survey *survey, uint64_t server_ms, const char *const *f, struct record_buf *buf)
{
	records_begin(buf, "waiter");
	records_put(buf, "key", f[1]);
	put_host_name(survey, f[2], buf);
	records_put(buf, "order", f[4]);
	records_put(buf, "mode", mode_name(f[5]));
	put_store_extent(f[1], f[9], f[10], buf);
	records_put(buf, "try", strtoul(f[6], NULL, 10) & STORE_TRY ? "1" : "0");
	put_age(server_ms, f[7], buf);
	put_info(f[8], buf);
	records_put(buf, "where", "store");
	records_end(buf);
}

static void put_live(const struct survey *survey, const struct live *live, struct record_buf *buf)
{
	const struct record *record = live->record;
	bool waits = !strcmp(record->kind, "waiter");
	const char *command = record_get(record, "command", ""), *kind = record_get(record, "kind", "");

	if (!waits && strcmp(record->kind, "holder"))
		return;
	records_begin(buf, waits ? "waiter" : "holder");
	records_put(buf, "key", live->key);
	put_host_name(survey, live->host, buf);
	records_put(buf, "pid", record_get(record, "pid", ""));
	records_put_bytes(buf, "command", command, strnlen(command, COMMAND_MAX));
	records_put(buf, "mode", record_get(record, "mode", ""));
	put_extent(*kind ? kind : family_kind(live->key), live->at, buf);
	if (record_get(record, "age_ms", NULL))
		records_put_u64(buf, "age_ms", record_get_u64(record, "age_ms", 0));
	if (waits) {
		records_put(buf, "try", record_get_u64(record, "try", 0) ? "1" : "0");
		records_put_u64(buf, "order", 0);
		records_put(buf, "where", "kernel");
	}
	records_end(buf);
}

static void put_row(const struct survey *survey, const char *name, uint64_t server_ms, const char *const *f, struct record_buf *buf)
{
	bool wanted = !name || key_has_name(f[1], name);

	if (!strcmp(f[0], "meta")) {
		records_begin(buf, "store");
		records_put(buf, "inc", f[2]);
		records_put(buf, "grace", f[3][0] ? f[3] : "0");
		records_put(buf, "ttl_ms", f[4]);
		records_put(buf, "fence", f[5]);
		records_end(buf);
	} else if (!strcmp(f[0], "host")) {
		put_host(survey, f, buf);
	} else if (!strcmp(f[0], "cover") && wanted) {
		put_cover(survey, server_ms, f, buf);
	} else if (!strcmp(f[0], "wait") && wanted) {
		put_wait(survey, server_ms, f, buf);
	} else if (!strcmp(f[0], "bad") && wanted) {
		records_begin(buf, "bad");
		records_put(buf, "key", f[1]);
		records_put(buf, "type", f[2]);
		records_end(buf);
	}
}

void merge_put(const struct survey *survey, const char *name, struct record_buf *buf)
{
	const char *f[FIELDS_MAX];
	uint64_t server_ms = 0, shown = 0, left_out = 0;
	bool ended = false;

	for (size_t i = 0; i < survey->row_count; i++) {
		split(&survey->rows[i], f);
		if (!strcmp(f[0], "meta"))
			server_ms = strtoull(f[7], NULL, 10);
		if (!strcmp(f[0], "end")) {	/* one for each key that the store was asked for */
			ended = true;
			shown += strtoull(f[1], NULL, 10);
			left_out += strtoull(f[2], NULL, 10);
		}
		put_row(survey, name, server_ms, f, buf);
	}
	if (ended) {
		records_begin(buf, "end");
		records_put_u64(buf, "shown", shown);
		records_put_u64(buf, "left_out", left_out);
		records_end(buf);
	}
	for (size_t i = 0; i < survey->live_count; i++)
		if (!name || key_has_name(survey->live[i].key, name))
			put_live(survey, &survey->live[i], buf);
}
