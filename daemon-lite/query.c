/* SPDX-License-Identifier: MIT */
/*
 * Answers the dlock command (query.h): what is said of this agent and of a path is
 * here, what is locked comes from a survey of all hosts.
 */
#include "query.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "records.h"
#include "survey.h"
#include "version.h"

struct query {
	struct agent *agent;
	uint64_t client;		/* request id: the client may be gone when the answer is complete */
	char *name;			/* only this one's locks; NULL = all */
	struct record_buf records;
};

static void query_finish(struct query *q, int err, const char *text)
{
	struct client *client = client_find(q->agent, q->client);

	if (client)
		client_query_done(client, &q->records, q->records.err ? q->records.err : err,
				  q->records.err ? "out of memory" : text);
	free(q->name);
	record_buf_free(&q->records);
	free(q);
}

static void surveyed(void *arg, const struct survey *survey)
{
	struct query *q = arg;
	const char *text = "the agent is out of memory";
	int err = survey ? survey_put(survey, q->name, &q->records, &text) : ENOMEM;

	query_finish(q, err, text);
}

static void show_locks(struct query *q)
{
	if (survey_join(q->agent, q->name, surveyed, q))
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

/* Which rule names the path: the record, and the name for what follows. 0, 1: none, or -ENOMEM. */
static int put_rule(struct query *q, const char *path)
{
	struct rules_match match;
	struct record_buf *r = &q->records;
	char name[RULES_NAME_MAX + 1];

	if (*path != '/' || !rules_find(&q->agent->rules, path, strlen(path), &match) ||
	    rules_expand(match.name, match.pattern, path, name, sizeof name) < 0)
		return 1;
	records_begin(r, "rule");
	records_put(r, "path", path);
	records_put_u64(r, "line", match.line);
	records_put(r, "pattern", match.pattern);
	records_put(r, "name", name);
	records_put(r, "on_lost", match.on_lost);
	records_end(r);
	q->name = strdup(name);
	return q->name ? 0 : -ENOMEM;
}

/* A path that a rule names, or else a name as it is. */
static void show_one(struct query *q, const char *what)
{
	int n = put_rule(q, what);

	if (n == 1) {
		q->name = strdup(what);
		n = q->name ? 0 : -ENOMEM;
	}
	if (n)
		query_finish(q, ENOMEM, "the agent is out of memory");
	else
		show_locks(q);
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
	} else if (!strncmp(text, "status ", 7)) {
		show_one(q, text + 7);
	} else if (!strncmp(text, "check ", 6)) {
		int n = put_rule(q, text + 6);

		if (n)
			query_finish(q, n < 0 ? ENOMEM : 0, n < 0 ? "the agent is out of memory" : "");
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
