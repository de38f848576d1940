/* SPDX-License-Identifier: MIT */
/*
 * From the agent's records to rows and objects, shared by status and check. Who
 * holds is known from the `holder` records of the hosts that answered. Of a host
 * that did not, the cover only names who asked for it: shown in brackets. An idle
 * cover has no holder, and none is shown for it.
 */
#include "answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent_client.h"
#include "dlock.h"
#include "text.h"

const char *const answer_headings[ANSWER_COLUMNS] = { "NAME", "MODE", "HOST", "PID", "COMMAND", "AGE", "FENCE", "STATE", "LEASE" };

/* Fields that are numbers and truth values in JSON; all others are strings. */
static const char *const numbers[] = { "pid", "fence", "age_ms", "lease_ms", "ttl_ms", "order", "line" };
static const char *const truths[] = { "grace", "self", "confirmed", "live", "try", "on_demand" };

static bool listed(const char *name, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

static bool about_lock(const struct record *record)
{
	return strcmp(record->kind, "cover") == 0 || strcmp(record->kind, "holder") == 0 || strcmp(record->kind, "waiter") == 0;
}

struct sorted {
	struct record *record;
	const char *key;	/* "" for what is not about a lock */
	size_t place;
};

static int compare_sorted(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;
	int n = strcmp(x->key, y->key);

	return n ? n : x->place < y->place ? -1 : x->place > y->place;
}

/* So that one lock's records are found at once, however many there are. */
static int sort_records(struct answer *answer)
{
	struct sorted *sorted = reallocarray(NULL, answer->count + 1, sizeof *sorted);

	if (!sorted)
		return -ENOMEM;
	for (size_t i = 0; i < answer->count; i++) {
		struct record *record = answer->records[i];
		bool lock = about_lock(record) && *record_get(record, "key", "");

		sorted[i] = (struct sorted){ record, lock ? record_get(record, "key", "") : "", i };
		answer->others += !lock;
	}
	qsort(sorted, answer->count, sizeof *sorted, compare_sorted);
	for (size_t i = 0; i < answer->count; i++)
		answer->records[i] = sorted[i].record;
	free(sorted);
	return 0;
}

int answer_ask(const char *runtime_dir, const char *verb, struct answer *ret_answer, struct refusal *refusal)
{
	struct record_buf buf = { 0 };
	struct answer answer = { NULL, 0, 0 };
	size_t pos = 0, size = 0;
	int asked, n;

	memset(ret_answer, 0, sizeof *ret_answer);
	asked = agent_query(runtime_dir, verb, &buf, refusal);
	for (;;) {
		struct record *record;

		n = records_next(buf.data, buf.len, &pos, &record);
		if (n == 0) {
			n = sort_records(&answer);
			if (n == 0)
				break;
		}
		if (n > 0 && answer.count == size) {
			void *records = reallocarray(answer.records, size = size ? 2 * size : 64, sizeof *answer.records);

			if (records) {
				answer.records = records;
			} else {
				record_free(record);
				n = -ENOMEM;
			}
		}
		if (n < 0) {
			refuse(refusal, EXIT_TROUBLE, n == -ENOMEM ? "there is not enough memory for the agent's answer" :
			       "the agent's answer cannot be read; install dlock and dlockd of one version and restart the agent");
			answer_free(&answer);
			record_buf_free(&buf);
			return n;
		}
		answer.records[answer.count++] = record;
	}
	record_buf_free(&buf);
	*ret_answer = answer;
	return asked;
}

void answer_free(struct answer *answer)
{
	for (size_t i = 0; i < answer->count; i++)
		record_free(answer->records[i]);
	free(answer->records);
	memset(answer, 0, sizeof *answer);
}

const struct record *answer_find(const struct answer *answer, const char *kind)
{
	for (size_t i = 0; i < answer->count; i++)
		if (strcmp(answer->records[i]->kind, kind) == 0)
			return answer->records[i];
	return NULL;
}

static const char *key_at(const struct answer *answer, size_t i)
{
	return record_get(answer->records[i], "key", "");
}

void answer_each_key(const struct answer *answer, void (*fn)(void *arg, const struct answer *answer, const char *key), void *arg)
{
	for (size_t i = answer->others; i < answer->count; i++)
		if (i == answer->others || strcmp(key_at(answer, i), key_at(answer, i - 1)) != 0)
			fn(arg, answer, key_at(answer, i));
}

/* Where the records of a key begin and end. */
struct range { size_t from, to; };

static struct range range_of(const struct answer *answer, const char *key)
{
	size_t low = answer->others, high = answer->count;
	struct range range;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (strcmp(key_at(answer, middle), key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	range.from = range.to = low;
	while (range.to < answer->count && strcmp(key_at(answer, range.to), key) == 0)
		range.to++;
	return range;
}

const char *answer_name(const char *key)
{
	return key[0] && key[1] == ':' ? key + 2 : key;
}

static bool is(const struct record *record, const char *kind)
{
	return strcmp(record->kind, kind) == 0;
}

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

#define HOLDERS_SHOWN 10	/* of one cover */

static const char *in_brackets(const char *text, char *buf, size_t size)
{
	snprintf(buf, size, *text ? "(%s)" : "%s", text);
	return buf;
}

/* One row for each holder of a cover's host, else one for the cover itself. */
static void cover_rows(const struct answer *answer, struct range range, const struct record *cover, struct table *table)
{
	const char *host = record_get(cover, "host", ""), *state = record_get(cover, "state", "unknown");
	bool unknown = strcmp(state, "unknown") == 0;
	size_t count = 0;
	char age[32], lease[32], pid[40], command[80], name[160];
	const char *cells[ANSWER_COLUMNS] = {
		answer_name(record_get(cover, "key", "")), record_get(cover, "mode", "?"), host_name(answer, cover, name, sizeof name),
		unknown ? in_brackets(record_get(cover, "pid", ""), pid, sizeof pid) : strcmp(state, "idle") == 0 ? "-" : "?",
		unknown ? in_brackets(record_get(cover, "command", ""), command, sizeof command) : strcmp(state, "idle") == 0 ? "-" : "?",
		age_of(cover, age, sizeof age), record_get(cover, "fence", ""), state, host_lease(answer, cover, lease, sizeof lease),
	};

	for (size_t i = range.from; i < range.to; i++) {
		const struct record *holder = answer->records[i];

		if (!is(holder, "holder") || strcmp(record_get(holder, "host", ""), host) != 0 || ++count > HOLDERS_SHOWN)
			continue;
		cells[1] = record_get(holder, "mode", cells[1]);
		cells[3] = record_get(holder, "pid", "");
		cells[4] = record_get(holder, "command", "");
		age_of(record_get(holder, "age_ms", NULL) ? holder : cover, age, sizeof age);
		if (strcmp(state, "idle") == 0)		/* the cover was looked at a moment earlier */
			cells[7] = "held";
		table_add(table, cells);
	}
	if (count > HOLDERS_SHOWN) {
		snprintf(pid, sizeof pid, "+ %zu", count - HOLDERS_SHOWN);
		cells[3] = pid;
		cells[4] = "(more)";
		cells[5] = "";
		table_add(table, cells);
	}
	if (!count)
		table_add(table, cells);
}

static int compare_order(const void *a, const void *b)
{
	const struct record *x = *(const struct record *const *)a, *y = *(const struct record *const *)b;
	/* Those who wait in a kernel wait inside a cover: they are next. */
	int kernel = (strcmp(record_get(y, "where", ""), "kernel") == 0) - (strcmp(record_get(x, "where", ""), "kernel") == 0);
	uint64_t m = record_get_u64(x, "order", 0), n = record_get_u64(y, "order", 0);

	if (m == n) {		/* in a kernel: who came first */
		m = record_get_u64(y, "age_ms", 0);
		n = record_get_u64(x, "age_ms", 0);
	}
	return kernel ? kernel : m < n ? -1 : m > n;
}

/* The waiters of a key in order, to be freed; NULL if none (or no memory). */
static const struct record **waiters_of(const struct answer *answer, struct range range, size_t *ret_count)
{
	const struct record **waiters = reallocarray(NULL, range.to - range.from + 1, sizeof *waiters);
	size_t count = 0;

	for (size_t i = range.from; waiters && i < range.to; i++)
		if (is(answer->records[i], "waiter"))
			waiters[count++] = answer->records[i];
	if (waiters)
		qsort(waiters, count, sizeof *waiters, compare_order);
	*ret_count = count;
	return waiters;
}

static bool has_cover(const struct answer *answer, struct range range, const char *host)
{
	for (size_t i = range.from; i < range.to; i++)
		if (is(answer->records[i], "cover") && strcmp(record_get(answer->records[i], "host", ""), host) == 0)
			return true;
	return false;
}

void answer_rows(const struct answer *answer, const char *key, struct table *table)
{
	struct range range = range_of(answer, key);
	const struct record **waiters;
	size_t count;

	for (size_t i = range.from; i < range.to; i++)
		if (is(answer->records[i], "cover"))
			cover_rows(answer, range, answer->records[i], table);
	/* Without the store's answer, or newer than it: what the kernels show. */
	for (size_t i = range.from; i < range.to; i++)
		if (is(answer->records[i], "holder") && !has_cover(answer, range, record_get(answer->records[i], "host", ""))) {
			const struct record *holder = answer->records[i];
			char age[32], name[160];
			const char *cells[ANSWER_COLUMNS] = {
				answer_name(key), record_get(holder, "mode", "?"), host_name(answer, holder, name, sizeof name), record_get(holder, "pid", ""),
				record_get(holder, "command", ""), age_of(holder, age, sizeof age), "", "held", "",
			};

			table_add(table, cells);
		}
	waiters = waiters_of(answer, range, &count);
	for (size_t i = 0; i < count; i++) {
		const struct record *waiter = waiters[i];
		char age[32], place[96], name[160];
		const char *cells[ANSWER_COLUMNS] = {
			answer_name(key), record_get(waiter, "mode", "?"), host_name(answer, waiter, name, sizeof name), record_get(waiter, "pid", ""),
			record_get(waiter, "command", ""), age_of(waiter, age, sizeof age), "", place, "",
		};

		snprintf(place, sizeof place, "%s %zu%s", record_get_u64(waiter, "try", 0) ? "tries" : "waits", i + 1,
			 strcmp(record_get(waiter, "where", ""), "kernel") == 0 ? " (kernel)" : "");
		table_add(table, cells);
	}
	free(waiters);
}

void answer_print_none(const struct answer *answer, const char *indent, const char *text)
{
	const struct record *store = answer_find(answer, "store");

	if (store && record_get_u64(store, "grace", 0))
		text = "No host has claimed it so far; a holder may still do so, since the store is in its grace period.";
	printf("%s%s\n", indent, text);
}

void answer_print_silent(const struct answer *answer, const char *indent)
{
	for (size_t i = 0; i < answer->others; i++) {
		const struct record *host = answer->records[i];
		char age[32], name[160], *safe;

		if (!is(host, "host") || record_get_u64(host, "live", 1))
			continue;
		safe = text_printable(answer_host(answer, host, name, sizeof name));
		printf("%sThe agent of host %s (pid %llu", indent, safe ? safe : "?", (unsigned long long)record_get_u64(host, "pid", 0));
		if (record_get(host, "age_ms", NULL))
			printf(", silent for %s", text_age(record_get_u64(host, "age_ms", 0), age, sizeof age));
		puts(") did not answer: who holds and who waits in the kernel there is not known.");
		free(safe);
	}
}

void answer_json_fields(const struct record *record, struct json *json)
{
	for (size_t i = 0; i < record->count; i++) {
		const char *name = record->fields[i].name, *value = record->fields[i].value;

		if (strcmp(name, "key") == 0)
			continue;
		if (listed(name, truths, sizeof truths / sizeof *truths))
			json_bool(json, name, strcmp(value, "1") == 0);
		else if (!listed(name, numbers, sizeof numbers / sizeof *numbers))
			json_string(json, name, value);
		else if (record_get_u64(record, name, UINT64_MAX) == UINT64_MAX && strcmp(value, "18446744073709551615") != 0)
			json_null(json, name);
		else
			json_u64(json, name, record_get_u64(record, name, 0));
	}
}

void answer_json(const struct answer *answer, const char *key, struct json *json)
{
	static const struct { const char *kind, *plural; } lists[] = { { "cover", "covers" }, { "holder", "holders" } };
	struct range range = range_of(answer, key);
	const struct record **waiters;
	size_t count;

	json_begin(json, NULL, '{');
	json_string(json, "name", answer_name(key));
	if (!utf8_valid(answer_name(key)))
		json_hex(json, "name_hex", answer_name(key));
	json_string(json, "family", key[0] == 'f' && key[1] == ':' ? "flock" : "unknown");
	for (size_t list = 0; list < 2; list++) {
		json_begin(json, lists[list].plural, '[');
		for (size_t i = range.from; i < range.to; i++) {
			if (!is(answer->records[i], lists[list].kind))
				continue;
			json_begin(json, NULL, '{');
			answer_json_fields(answer->records[i], json);
			json_end(json, '}');
		}
		json_end(json, ']');
	}
	json_begin(json, "waiters", '[');
	waiters = waiters_of(answer, range, &count);
	for (size_t i = 0; i < count; i++) {
		json_begin(json, NULL, '{');
		answer_json_fields(waiters[i], json);
		json_end(json, '}');
	}
	free(waiters);
	json_end(json, ']');
	json_end(json, '}');
}
