/* SPDX-License-Identifier: MIT */
/*
 * Answers the dlock command (query.h). What the store has comes first; to it is
 * added what only this host can see: who holds each file as the kernel shows it
 * and who waits in the kernel. Reading /proc takes long on a large machine, so
 * it is done in a helper thread, on copies.
 */
#include "query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "holders.h"
#include "klock.h"
#include "records.h"
#include "version.h"

#define FIELDS_MAX 16
#define STORE_WAIT_NS 2000000000u	/* a store that does not answer by then is left out */

struct query {
	struct agent *agent;
	uint64_t client;		/* request id: the client may be gone when the answer is complete */
	char *key;			/* only this lock; NULL = all */
	struct record_buf records;
	struct loop_timer timer;
	bool store_asked, answered;
	uint64_t server_ms;
	struct inode_id *ids;		/* the files looked at by the helper, and whose they are */
	char **keys;
	size_t file_count;
	struct record_buf holders;
};

static const char *mode_name(const char *digit)
{
	return *digit == '2' ? "EX" : *digit == '1' ? "SH" : "NONE";
}

static void query_free(struct query *q)
{
	for (size_t i = 0; i < q->file_count; i++)
		free(q->keys[i]);
	free(q->ids);
	free(q->keys);
	free(q->key);
	record_buf_free(&q->records);
	record_buf_free(&q->holders);
	free(q);
}

static void query_finish(struct query *q, int err, const char *text)
{
	struct client *client = client_find(q->agent, q->client);

	if (!q->answered && client)
		client_query_done(client, &q->records, q->records.err ? q->records.err : err,
				  q->records.err ? "out of memory" : text);
	q->answered = true;
	if (!q->store_asked)
		query_free(q);
}

/* --- what the store has --- */

/* Splits a record at its NUL bytes; fields are NUL-terminated in `copy`. */
static size_t split(char *copy, size_t len, const char **fields)
{
	size_t n = 0, at = 0;

	while (at <= len && n < FIELDS_MAX) {
		fields[n++] = copy + at;
		at += strlen(copy + at) + 1;
	}
	for (size_t i = n; i < FIELDS_MAX; i++)
		fields[i] = "";
	return n;
}

static void put_age(struct query *q, const char *ms)
{
	uint64_t then = strtoull(ms, NULL, 10);

	records_put_u64(&q->records, "age_ms", q->server_ms > then ? q->server_ms - then : 0);
}

/* INFO is "PID COMMAND". */
static void put_info(struct query *q, const char *info)
{
	const char *space = strchr(info, ' ');
	char pid[24];

	snprintf(pid, sizeof pid, "%.*s", space ? (int)(space - info) : (int)strlen(info), info);
	records_put(&q->records, "pid", pid);
	records_put(&q->records, "command", space ? space + 1 : "");
}

static const char *cover_state_name(const struct query *q, const char *key, const char *host)
{
	struct name *name;

	if (strcmp(host, store_host_id(q->agent->store)))
		return "unknown";
	name = name_find(q->agent, key);
	if (!name || name->cover.mode == MODE_NONE)
		return "idle";
	if (name->cover.recall != MODE_NONE)
		return "recalled";
	for (size_t i = 0; i < name->file_count; i++)
		if (!name->files[i].local || klock_probe(name->files[i].fd, MODE_EX) != MODE_NONE)
			return "held";
	return "idle";
}

static void put_host(struct query *q, const char *const *f)
{
	struct record_buf *r = &q->records;
	struct store_host_view view = { 0 };
	const char *space = strchr(f[5], ' ');	/* "PID HOSTNAME" */
	char pid[24];

	snprintf(pid, sizeof pid, "%.*s", space ? (int)(space - f[5]) : 0, f[5]);
	store_host_view(q->agent->store, f[1], &view);
	records_begin(r, "host");
	records_put(r, "id", f[1]);
	records_put(r, "name", space ? space + 1 : f[5]);
	records_put(r, "pid", pid);
	records_put(r, "self", strcmp(f[1], store_host_id(q->agent->store)) ? "0" : "1");
	records_put(r, "confirmed", f[4]);
	records_put_u64(r, "age_ms", view.unchanged_ms);
	records_put_u64(r, "lease_ms", view.remaining_ms);
	records_end(r);
}

void query_store_record(void *arg, void *call, const char *record, size_t len, int err)
{
	struct query *q = call;
	struct record_buf *r = &q->records;
	const char *f[FIELDS_MAX];
	char *copy;

	(void)arg;
	if (!record) {
		q->store_asked = false;
		loop_timer_stop(q->agent->loop, &q->timer);
		query_finish(q, err ? err : 0, err ? "the store did not answer" : "");
		return;
	}
	if (q->answered)
		return;
	copy = malloc(len + 1);
	if (!copy)
		return;
	memcpy(copy, record, len);
	copy[len] = 0;
	split(copy, len, f);
	if (!strcmp(f[0], "meta")) {
		q->server_ms = strtoull(f[7], NULL, 10);
		records_begin(r, "store");
		records_put(r, "inc", f[2]);
		records_put(r, "grace", f[3][0] ? f[3] : "0");
		records_put(r, "ttl_ms", f[4]);
		records_put(r, "fence", f[5]);
		records_end(r);
	} else if (!strcmp(f[0], "host")) {
		put_host(q, f);
	} else if (!strcmp(f[0], "cover")) {
		records_begin(r, "cover");
		records_put(r, "key", f[1]);
		records_put(r, "host", f[2]);
		records_put(r, "mode", mode_name(f[3]));
		records_put(r, "fence", f[4]);
		put_age(q, f[5]);
		put_info(q, f[6]);
		records_put(r, "state", cover_state_name(q, f[1], f[2]));
		records_end(r);
	} else if (!strcmp(f[0], "wait")) {
		records_begin(r, "waiter");
		records_put(r, "key", f[1]);
		records_put(r, "host", f[2]);
		records_put(r, "order", f[4]);
		records_put(r, "mode", mode_name(f[5]));
		records_put(r, "try", f[6]);
		put_age(q, f[7]);
		put_info(q, f[8]);
		records_put(r, "where", "store");
		records_end(r);
	} else if (!strcmp(f[0], "bad")) {
		records_begin(r, "bad");
		records_put(r, "key", f[1]);
		records_put(r, "type", f[2]);
		records_end(r);
	} else if (!strcmp(f[0], "end")) {
		records_begin(r, "end");
		records_put(r, "shown", f[1]);
		records_put(r, "left_out", f[2]);
		records_end(r);
	}
	free(copy);
}

static void store_late(struct loop_timer *timer)
{
	query_finish(timer->arg, -ETIMEDOUT, "the store did not answer");
}

static void ask_store(struct query *q)
{
	if (q->agent->state != STORE_UP && q->agent->state != STORE_GRACE) {
		query_finish(q, ENOTCONN, q->agent->state_text);
		return;
	}
	q->store_asked = true;
	q->timer = (struct loop_timer){ .fn = store_late, .arg = q };
	loop_timer_set(q->agent->loop, &q->timer, loop_now_ns() + STORE_WAIT_NS);
	store_status(q->agent->store, q, q->key);
}

/* --- what the kernel shows --- */

static void on_holder(void *arg, const struct holder *holder)
{
	struct query *q = arg;
	struct record_buf *r = &q->holders;

	records_begin(r, "holder");
	records_put(r, "key", q->keys[holder->inode]);
	records_put(r, "host", store_host_id(q->agent->store));
	records_put_u64(r, "pid", (uint64_t)holder->pid);
	records_put(r, "command", holder->command);
	records_put(r, "mode", holder->mode == MODE_SH ? "SH" : "EX");
	records_end(r);
}

static void look(void *arg)
{
	struct query *q = arg;

	if (q->file_count)
		holders_find(q->ids, q->file_count, getppid(), on_holder, q);
}

static void on_client(void *arg, const struct client_view *view)
{
	struct query *q = arg;
	struct record_buf *r = &q->records;

	if (!view->waits_in_kernel || (q->key && strcmp(q->key, view->key)))
		return;
	records_begin(r, "waiter");
	records_put(r, "key", view->key);
	records_put(r, "host", store_host_id(q->agent->store));
	records_put_u64(r, "pid", (uint64_t)view->pid);
	records_put(r, "command", view->command);
	records_put(r, "mode", view->mode == MODE_SH ? "SH" : "EX");
	records_put(r, "try", view->try ? "1" : "0");
	records_put_u64(r, "order", 0);
	records_put_u64(r, "age_ms", (loop_now_ns() - view->since_ns) / 1000000u);
	records_put(r, "where", "kernel");
	records_end(r);
}

static void looked(void *arg)
{
	struct query *q = arg;

	records_append(&q->records, q->holders.data, q->holders.len);
	clients_each(q->agent, on_client, q);
	ask_store(q);
}

static int note_files(struct query *q)
{
	struct hash_node *node = NULL;
	size_t n = 0;

	while ((node = hash_walk(&q->agent->names, node)))
		n += hash_entry(node, struct name, node)->file_count;
	q->ids = calloc(n + 1, sizeof *q->ids);
	q->keys = calloc(n + 1, sizeof *q->keys);
	if (!q->ids || !q->keys)
		return -ENOMEM;
	while ((node = hash_walk(&q->agent->names, node))) {
		struct name *name = hash_entry(node, struct name, node);

		if (name->cover.mode == MODE_NONE || (q->key && strcmp(q->key, name->key)))
			continue;
		for (size_t i = 0; i < name->file_count; i++) {
			q->keys[q->file_count] = strdup(name->key);
			if (!q->keys[q->file_count])
				return -ENOMEM;
			q->ids[q->file_count++] = name->files[i].id;
		}
	}
	return 0;
}

static void show_locks(struct query *q)
{
	if (note_files(q) || helper_run(q->agent->loop, look, looked, q))
		query_finish(q, ENOMEM, "the agent is out of memory");
}

/* --- verbs --- */

static void put_agent(struct query *q)
{
	static const char *const states[] = { "connecting", "refused", "up", "grace" };
	struct agent *agent = q->agent;
	struct record_buf *r = &q->records;
	char host[256] = "";

	gethostname(host, sizeof host - 1);
	records_begin(r, "agent");
	records_put(r, "version", DLOCK_VERSION);
	records_put_u64(r, "pid", (uint64_t)getpid());
	records_put(r, "host", host);
	records_put(r, "id", store_host_id(agent->store));
	records_put(r, "namespace", agent->config->name_space);
	records_put(r, "config", agent->config->file);
	records_put(r, "runtime_dir", agent->options.runtime_dir);
	records_put(r, "state", agent->lost ? "lost" : states[agent->state]);
	records_put(r, "why", agent->config_error[0] ? agent->config_error : agent->state_text);
	records_put(r, "on_demand", agent->options.on_demand ? "1" : "0");
	records_end(r);
}

/* Which rule names the path: the record, and the key for what follows. */
static int put_rule(struct query *q, const char *path)
{
	struct rules_match match;
	struct record_buf *r = &q->records;
	char key[RULES_NAME_MAX + 2] = "f:";

	if (*path != '/' || !rules_find(&q->agent->rules, path, strlen(path), &match) ||
	    rules_expand(match.name, match.pattern, path, key + 2, sizeof key - 2) < 0)
		return 1;
	records_begin(r, "rule");
	records_put(r, "path", path);
	records_put_u64(r, "line", match.line);
	records_put(r, "pattern", match.pattern);
	records_put(r, "name", key + 2);
	records_put(r, "key", key);
	records_put(r, "on_lost", match.on_lost);
	records_end(r);
	q->key = strdup(key);
	return q->key ? 0 : -ENOMEM;
}

void query_start(struct agent *agent, struct client *client, const char *text)
{
	struct query *q = calloc(1, sizeof *q);

	if (!q) {
		client_fail(client, ENOMEM, "the agent is out of memory");
		return;
	}
	q->agent = agent;
	q->client = client_id(client);
	agent_check_config(agent);
	put_agent(q);
	if (!strcmp(text, "ping")) {
		query_finish(q, 0, "");
	} else if (!strcmp(text, "status")) {
		show_locks(q);
	} else if (!strncmp(text, "check ", 6)) {
		if (put_rule(q, text + 6))
			query_finish(q, 0, "");
		else
			show_locks(q);
	} else if (!strcmp(text, "stop")) {
		if (client_uid(client) != 0 && client_uid(client) != geteuid())
			query_finish(q, EPERM, "only root and the agent's own user may stop it");
		else if (agent_any_held(agent))
			query_finish(q, EBUSY, "locks are held here: the agent stays until their programs have ended");
		else {
			query_finish(q, 0, "");
			agent_end(agent, 0);
		}
	} else {
		query_finish(q, EINVAL, "no such query: are dlock and dlockd of one version?");
	}
}
