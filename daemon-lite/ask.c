/* SPDX-License-Identifier: MIT */
/*
 * Questions under way, found by their nonce, and the store's records on their
 * way to whoever asked. An answer to a question that is over finds nobody and is
 * dropped. Must not keep anything that another host said.
 */
#include "ask.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "deadlock.h"
#include "getlk.h"
#include "records.h"

#define PARTS_MAX 32	/* of STORE_TELL_MAX bytes: a push connection holds a few megabytes before the server ends it */

struct ask {
	struct hash_node node;
	struct agent *agent;
	uint64_t nonce;
	const struct ask_events *events;
	void *arg;
};

struct ask_status {		/* lives until the store's last word */
	void (*fn)(void *arg, const char *record, size_t len, int err);	/* NULL: nobody listens any more */
	void *arg;
};

/* --- questions of this host --- */

static struct ask *find(const struct agent *agent, uint64_t nonce)
{
	for (struct hash_node *n = hash_first(&agent->asks, hash_u64(nonce)); n; n = hash_next(n)) {
		struct ask *ask = hash_entry(n, struct ask, node);

		if (ask->nonce == nonce)
			return ask;
	}
	return NULL;
}

struct ask *ask_open(struct agent *agent, const char *key, const char *question, const struct ask_events *events, void *arg)
{
	struct ask *ask = calloc(1, sizeof *ask);

	if (!ask)
		return NULL;
	*ask = (struct ask){ .agent = agent, .nonce = agent_next_id(agent), .events = events, .arg = arg };
	if (hash_insert(&agent->asks, &ask->node, hash_u64(ask->nonce))) {
		free(ask);
		return NULL;
	}
	store_ask(agent->store, ask->nonce, key, question);
	return ask;
}

void ask_close(struct ask *ask)
{
	if (!ask)
		return;
	hash_remove(&ask->agent->asks, &ask->node);
	free(ask);
}

void ask_reached(void *arg, uint64_t nonce, const char *host, int err)
{
	struct ask *ask = find(arg, nonce);

	if (ask)
		ask->events->reached(ask->arg, host, err);
}

void ask_told(void *arg, const char *host, uint64_t nonce, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct agent *agent = arg;
	struct ask *ask = find(agent, nonce);

	if (ask && strcmp(host, store_host_id(agent->store)))
		ask->events->told(ask->arg, host, part, last, text, len);
}

/* --- the store's records --- */

struct ask_status *ask_status(struct agent *agent, const char *key, void (*fn)(void *arg, const char *record, size_t len, int err), void *arg)
{
	struct ask_status *status = malloc(sizeof *status);

	if (!status)
		return NULL;
	*status = (struct ask_status){ fn, arg };
	store_status(agent->store, status, key);
	return status;
}

void ask_status_cancel(struct ask_status *status)
{
	if (status)
		status->fn = NULL;
}

void ask_record(void *agent, void *call, const char *record, size_t len, int err)
{
	struct ask_status *status = call;

	(void)agent;
	if (status->fn)
		status->fn(status->arg, record, len, err);
	if (!record)
		free(status);
}

/* --- questions of other hosts --- */

static const struct question {
	const char *word;
	void (*asked)(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question);
} questions[] = {
	{ "getlk", getlk_asked },
	{ "deadlock", deadlock_asked },
	{ "victim", deadlock_victim },
};

void ask_dispatch(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question)
{
	size_t len = strcspn(question, " ");

	for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
		if (strlen(questions[i].word) == len && !strncmp(questions[i].word, question, len)) {
			questions[i].asked(agent, host, nonce, key, question);
			return;
		}
}

void ask_asked(void *agent, const char *host, uint64_t nonce, const char *key, const char *question)
{
	if (*question)
		ask_dispatch(agent, host, nonce, key, question);
	else
		survey_asked(agent, host, nonce, key);
}

void ask_tell(struct agent *agent, const char *host, uint64_t nonce, const char *records, size_t len)
{
	char *text = malloc(STORE_TELL_MAX + 1);
	size_t at = 0;
	uint64_t part = 0;
	enum store_last last;

	if (!text)
		return;
	do {
		size_t n = len > at ? records_fit(records + at, len - at, STORE_TELL_MAX) : 0;

		if (n)
			memcpy(text, records + at, n);
		text[n] = 0;
		at += n;
		last = at == len ? TELL_END : !n || part + 1 == PARTS_MAX ? TELL_CUT : TELL_MORE;
		store_tell(agent->store, host, nonce, part++, last, text);
	} while (last == TELL_MORE);
	free(text);
}
