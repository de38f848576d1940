/* SPDX-License-Identifier: MIT */
/*
 * The agent's records, in order, and the objects made of them; the rows for people
 * are made in rows.c. Shared by status and check.
 */
#include "answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shim/extent.h"
#include "agent_client.h"
#include "dlock.h"
#include "text.h"

/* Fields that are numbers and truth values in JSON; all others are strings. */
static const char *const numbers[] = { "pid", "fence", "age_ms", "lease_ms", "ttl_ms", "order", "line", "start", "end" };
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

/* A name's families stand together. */
static int compare_keys(const char *a, const char *b)
{
	int n = strcmp(answer_name(a), answer_name(b));

	return n ? n : strcmp(a, b);
}

struct sorted {
	struct record *record;
	const char *key;	/* "" for what is not about a lock */
	size_t place;
};

static int compare_sorted(const void *a, const void *b)
{
	const struct sorted *x = a, *y = b;
	int n = compare_keys(x->key, y->key);

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

struct answer_range answer_range(const struct answer *answer, const char *key)
{
	size_t low = answer->others, high = answer->count;
	struct answer_range range;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_keys(key_at(answer, middle), key) < 0)
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

const struct record **answer_waiters(const struct answer *answer, struct answer_range range, size_t *ret_count)
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
		else if (strcmp(name, "end") == 0 && record_get_u64(record, name, 0) >= EXTENT_END)
			json_null(json, name);
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
	struct answer_range range = answer_range(answer, key);
	const struct record **waiters;
	size_t count;

	json_begin(json, NULL, '{');
	json_string(json, "name", answer_name(key));
	if (!utf8_valid(answer_name(key)))
		json_hex(json, "name_hex", answer_name(key));
	json_string(json, "family", key[0] && key[1] == ':' ? key[0] == 'f' ? "flock" : key[0] == 'r' ? "record" : "unknown" : "unknown");
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
	waiters = answer_waiters(answer, range, &count);
	for (size_t i = 0; i < count; i++) {
		json_begin(json, NULL, '{');
		answer_json_fields(waiters[i], json);
		json_end(json, '}');
	}
	free(waiters);
	json_end(json, ']');
	json_end(json, '}');
}
