/* SPDX-License-Identifier: MIT */
/*
 * The answering side of a survey: what the kernel here shows, told to the hosts
 * that ask. All that ask while /proc is being read share the next look; of a host that
 * asks again and again only the last question is answered.
 */
#include <stdlib.h>
#include <string.h>

#include "agent.h"
#include "ask.h"
#include "log.h"
#include "look.h"
#include "records.h"
#include "survey_merge.h"

#define ASKERS_MAX 256
#define ID_MAX 64

struct asker {
	struct asker *next;
	struct agent *agent;
	char host[ID_MAX];
	uint64_t nonce;
	char *key;		/* "" = all */
};

static void unlink_asker(struct asker *asker)
{
	struct asker **at = &asker->agent->askers;

	while (*at != asker)
		at = &(*at)->next;
	*at = asker->next;
	asker->agent->asker_count--;
	free(asker->key);
	free(asker);
}

/* Only the records of one name, in each of its families. */
static void filter(struct record_buf *to, const struct record_buf *from, const char *name)
{
	size_t pos = 0, before = 0;
	struct record *record;

	while (records_next(from->data, from->len, &pos, &record) == 1) {
		if (key_has_name(record_get(record, "key", ""), name))
			records_append(to, from->data + before, pos - before);
		before = pos;
		record_free(record);
	}
}

static void on_look(void *arg, const struct record_buf *records)
{
	struct asker *asker = arg;
	struct record_buf one = { 0 };

	if (records && asker->key[0]) {
		filter(&one, records, asker->key[1] == ':' ? asker->key + 2 : asker->key);
		if (!one.err)
			ask_tell(asker->agent, asker->host, asker->nonce, one.data, one.len);
		record_buf_free(&one);
	} else if (records) {
		ask_tell(asker->agent, asker->host, asker->nonce, records->data, records->len);
	}
	unlink_asker(asker);
}

void survey_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key)
{
	struct asker *asker, *latest = NULL;
	unsigned count = 0;

	for (asker = agent->askers; asker; asker = asker->next) {
		if (strcmp(asker->host, host))
			continue;
		latest = latest ? latest : asker;
		count++;
	}
	if (count == 2) {	/* the look under way has one, the next one the other */
		char *copy = strdup(key);

		if (!copy)
			return;
		free(latest->key);
		latest->key = copy;
		latest->nonce = nonce;
		return;
	}
	if (strlen(host) >= ID_MAX || agent->asker_count >= ASKERS_MAX)
		return;
	asker = calloc(1, sizeof *asker);
	if (!asker)
		return;
	asker->agent = agent;
	asker->nonce = nonce;
	strcpy(asker->host, host);
	asker->key = strdup(key);
	if (!asker->key || look_start(agent, on_look, asker)) {
		free(asker->key);
		free(asker);
		log_error("out of memory: another host's question is not answered");
		return;
	}
	asker->next = agent->askers;
	agent->askers = asker;
	agent->asker_count++;
}
