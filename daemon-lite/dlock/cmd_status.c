/* SPDX-License-Identifier: MIT */
/* dlock status: every lock of every host, or those of one name, as the store has it and as the hosts that answered see it in their kernels. */
#include "dlock.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../query.h"
#include "agent_client.h"
#include "answer.h"
#include "text.h"

static void print_safe(const char *before, const char *text)
{
	char *safe = text_printable(text);

	printf("%s%s", before, safe ? safe : "?");
	free(safe);
}

/* Two lines about agent and store; the grace period must not be overlooked. */
static void print_top(const struct answer *answer)
{
	const struct record *agent = answer_find(answer, "agent"), *store = answer_find(answer, "store");
	char age[32];

	if (agent) {
		const char *why = record_get(agent, "why", "");

		print_safe("agent  ", record_get(agent, "host", "?"));
		print_safe(", pid ", record_get(agent, "pid", "?"));
		print_safe(", version ", record_get(agent, "version", "?"));
		print_safe(", namespace ", record_get(agent, "namespace", "?"));
		print_safe(", store ", record_get(agent, "state", "?"));
		if (*why)
			print_safe(": ", why);
		putchar('\n');
	}
	if (store) {
		print_safe("store  incarnation ", record_get(store, "inc", "?"));
		print_safe(", last fence ", record_get(store, "fence", "?"));
		printf(", T %s\n", text_age(record_get_u64(store, "ttl_ms", 0), age, sizeof age));
		if (record_get_u64(store, "grace", 0))
			puts("GRACE  the store may have forgotten locks: hosts say again what they hold, and nothing new is granted until that is over");
	}
}

static void add_key(void *arg, const struct answer *answer, const char *key)
{
	answer_rows(answer, key, arg);
}

static bool has_locks(const struct answer *answer, const char *id)
{
	for (size_t i = 0; i < answer->count; i++) {
		const struct record *record = answer->records[i];

		if ((strcmp(record->kind, "cover") == 0 || strcmp(record->kind, "waiter") == 0) && strcmp(record_get(record, "host", ""), id) == 0)
			return true;
	}
	return false;
}

/* Hosts that neither hold nor wait (in the store's eyes). */
static void print_idle_hosts(const struct answer *answer)
{
	static const char *const headings[] = { "HOST WITHOUT LOCKS", "AGENT", "LEASE", "ID" };
	struct table table = { .columns = 4 };

	table_add(&table, headings);
	for (size_t i = 0; i < answer->others; i++) {
		const struct record *host = answer->records[i];
		char lease[32], name[160];
		const char *cells[4];

		if (strcmp(host->kind, "host") != 0 || has_locks(answer, record_get(host, "id", "")))
			continue;
		cells[0] = answer_host(answer, host, name, sizeof name);
		cells[1] = record_get(host, "pid", "");
		cells[2] = record_get(host, "lease_ms", NULL) ? text_age(record_get_u64(host, "lease_ms", 0), lease, sizeof lease) : "";
		cells[3] = record_get(host, "id", "");
		table_add(&table, cells);
	}
	if (table.count > 1) {
		putchar('\n');
		table_print(&table, stdout, "");
	}
	table_free(&table);
}

/* Keys of the store that are no locks though they are called so, and what the store left out. */
static void print_odd(const struct answer *answer)
{
	for (size_t i = 0; i < answer->others; i++) {
		const struct record *record = answer->records[i];

		if (strcmp(record->kind, "bad") == 0) {
			print_safe("\nThe store's key for the lock ", answer_name(record_get(record, "key", "?")));
			print_safe(" has the wrong type (", record_get(record, "type", "?"));
			puts("): locks of that name fail until it is removed.");
		} else if (strcmp(record->kind, "end") == 0 && record_get_u64(record, "left_out", 0)) {
			print_safe("\n", record_get(record, "left_out", "?"));
			puts(" more locks are not shown; ask for one by `dlock check PATH`.");
		}
	}
}

static int print_people(const struct answer *answer, const char *what, bool whole)
{
	struct table table = { .columns = ANSWER_COLUMNS };
	int n;

	print_top(answer);
	table_add(&table, answer_headings);
	answer_each_key(answer, add_key, &table);
	n = table.err;
	putchar('\n');
	if (table.count > 1)
		table_print(&table, stdout, "");
	else if (whole)
		answer_print_none(answer, "", what ? "Nobody holds it, nobody waits." : "No host has a lock.");
	else
		puts("Who has a lock cannot be told now.");
	table_free(&table);
	if (!what)
		print_idle_hosts(answer);
	answer_print_silent(answer, "");
	print_odd(answer);
	return n;
}

static void json_key(void *arg, const struct answer *answer, const char *key)
{
	answer_json(answer, key, arg);
}

static void json_one(const struct answer *answer, const char *kind, struct json *json)
{
	const struct record *record = answer_find(answer, kind);

	json_begin(json, kind, '{');
	if (record)
		answer_json_fields(record, json);
	json_end(json, '}');
}

static void print_json(const struct answer *answer)
{
	struct json json = { .out = stdout };

	json_begin(&json, NULL, '{');
	json_one(answer, "agent", &json);
	json_one(answer, "store", &json);
	json_begin(&json, "hosts", '[');
	for (size_t i = 0; i < answer->others; i++) {
		if (strcmp(answer->records[i]->kind, "host") != 0)
			continue;
		json_begin(&json, NULL, '{');
		answer_json_fields(answer->records[i], &json);
		json_end(&json, '}');
	}
	json_end(&json, ']');
	json_begin(&json, "locks", '[');
	answer_each_key(answer, json_key, &json);
	json_end(&json, ']');
	json_u64(&json, "left_out", answer_find(answer, "end") ? record_get_u64(answer_find(answer, "end"), "left_out", 0) : 0);
	json_end(&json, '}');
}

/* The question to the agent. A path is what it leads to. 0 or -1 with a sentence. */
static int make_verb(const char *what, char verb[QUERY_VERB_MAX + 1], struct refusal *refusal)
{
	char path[PATH_MAX];

	if (what && *what == '/' && realpath(what, path))
		what = path;
	if ((size_t)snprintf(verb, QUERY_VERB_MAX + 1, "status%s%s", what ? " " : "", what ? what : "") > QUERY_VERB_MAX)
		return refuse(refusal, EXIT_TROUBLE, "the name is too long to ask the agent about it");
	return 0;
}

int cmd_status(int argc, char **argv)
{
	char verb[QUERY_VERB_MAX + 1];
	const char *what;
	struct answer answer;
	struct refusal refusal;
	struct setting setting;
	bool json = false;
	const char *bad;
	int argi = 1, asked, n;

	for (;;) {
		if (options_common(argc, argv, &argi, &bad) < 0)
			return usage_error("status", "%s needs a value", bad);
		if (argi >= argc || strcmp(argv[argi], "--json") != 0)
			break;
		json = true;
		argi++;
	}
	if (argi < argc && argv[argi][0] == '-' && strcmp(argv[argi - 1], "--") != 0)
		return usage_error("status", "`%s` is not known here; put -- before a name like that", argv[argi]);
	what = argi < argc ? argv[argi++] : NULL;
	if (argi < argc)
		return usage_error("status", "`%s` is one name too many", argv[argi]);
	if (make_verb(what, verb, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);
	if (setting_load(&setting, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);
	asked = answer_ask(setting.runtime_dir, verb, &answer, &refusal);
	setting_free(&setting);
	n = 0;
	if (asked == 0 || answer.count) {
		if (json)
			print_json(&answer);
		else
			n = print_people(&answer, what, asked == 0);
	}
	answer_free(&answer);
	fflush(stdout);
	if (asked < 0)
		return complain(refusal.code, "%s", refusal.text);
	return n < 0 ? complain(EXIT_TROUBLE, "there is not enough memory for the table") : EXIT_DONE;
}
