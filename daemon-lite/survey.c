/* SPDX-License-Identifier: MIT */
/*
 * The asking side of a survey: collects, waits, merges.
 *
 * Order matters: the store's records first, then the looks. So a cover that a look
 * does not name was there before and has no holder by then: it is idle.
 */
#include "survey.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../config/config.h"
#include "look.h"
#include "survey_merge.h"

#define LIVE_WAIT_NS 500000000u		/* for other hosts' looks */
#define STORE_WAIT_NS 2000000000u	/* a store that does not answer by then is left out */
#define HOST_BYTES_MAX (2u << 20)	/* of one host's answer */
#define ALL_BYTES_MAX (64u << 20)

struct waiter {
	struct waiter *next;
	char *key;		/* NULL = all */
	void (*fn)(void *arg, const struct survey *survey);
	void *arg;
};

struct surveys {		/* of an agent */
	struct agent *agent;
	struct waiter *waiting, **waiting_last;	/* for the next one */
	struct survey *running;
	struct survey *late;	/* over, but the store still owes an answer */
	struct loop_timer begin;
};

static void begin(struct surveys *surveys);

static void survey_free(struct survey *survey)
{
	if (!survey)
		return;
	merge_clear(survey);
	free(survey->key);
	free(survey);
}

static void free_waiters(struct waiter *waiters)
{
	struct waiter *next;

	for (; waiters; waiters = next) {
		next = waiters->next;
		free(waiters->key);
		free(waiters);
	}
}

static bool is_owed(const struct survey *survey)
{
	return survey->status_pending || survey->ask_pending || survey->look_pending;
}

/* --- the end --- */

static bool hosts_answered(const struct survey *survey)
{
	if (survey->ask_pending)
		return false;
	for (size_t i = 0; i < survey->host_count; i++)
		if (survey->hosts[i].awaited && !survey->hosts[i].answered)
			return false;
	return true;
}

static void release_late(struct surveys *surveys)
{
	struct survey **at = &surveys->late;

	while (*at) {
		struct survey *survey = *at;

		if (is_owed(survey)) {
			at = &survey->next;
		} else {
			*at = survey->next;
			survey_free(survey);
		}
	}
}

static void finish(struct survey *survey)
{
	struct surveys *surveys = survey->agent->surveys;

	loop_timer_stop(survey->agent->loop, &survey->timer);
	if (merge_sort(survey))
		survey->err = ENOMEM;
	for (struct waiter *w = survey->waiters; w; w = w->next)
		w->fn(w->arg, survey);
	free_waiters(survey->waiters);
	survey->waiters = NULL;
	surveys->running = NULL;
	survey->next = surveys->late;
	surveys->late = survey;
	release_late(surveys);
	begin(surveys);
}

static void check(struct survey *survey)
{
	if (survey != survey->agent->surveys->running) {
		release_late(survey->agent->surveys);
		return;
	}
	if (survey->look_pending || !survey->looked || (!survey->live_over && !hosts_answered(survey)))
		return;
	if (survey->status_pending && !survey->store_over)
		return;
	finish(survey);
}

/* --- what comes in --- */

static void on_look(void *arg, const struct record_buf *records)
{
	struct survey *survey = arg;
	struct survey_host *host = merge_host(survey, store_host_id(survey->agent->store));

	survey->look_pending = false;
	survey->looked = true;
	if (host && records) {
		records_append(&host->text, records->data, records->len);
		host->answered = !host->text.err;
	}
	check(survey);
}

static void look(struct survey *survey)
{
	if (survey->looked || survey->look_pending)
		return;
	survey->look_pending = true;
	if (look_start(survey->agent, on_look, survey)) {
		survey->look_pending = false;
		survey->looked = true;
	}
}

static void timer_fired(struct loop_timer *timer)
{
	struct survey *survey = timer->arg;

	if (!survey->live_over) {
		survey->live_over = true;
		look(survey);
		if (survey->status_pending)
			loop_timer_set(survey->agent->loop, timer, survey->begun_ns + STORE_WAIT_NS);
	} else {
		survey->store_over = true;
	}
	if (survey->store_over && survey->status_pending) {
		survey->err = ETIMEDOUT;
		survey->err_text = "the store did not answer";
	}
	check(survey);
}

void survey_store_record(void *arg, void *call, const char *record, size_t len, int err)
{
	struct survey *survey = call;

	(void)arg;
	if (record) {
		if (survey->waiters && merge_row(survey, record, len))
			survey->err = ENOMEM;
		return;
	}
	survey->status_pending = false;
	if (err && survey->waiters) {
		survey->err = -err;
		survey->err_text = "the store did not answer";
	}
	check(survey);
}

static struct survey *find(struct agent *agent, uint64_t nonce)
{
	struct surveys *surveys = agent->surveys;
	struct survey *survey;

	if (!surveys)
		return NULL;
	if (surveys->running && surveys->running->nonce == nonce)
		return surveys->running;
	for (survey = surveys->late; survey && survey->nonce != nonce; survey = survey->next)
		;
	return survey;
}

void survey_reached(void *arg, uint64_t nonce, const char *id, int err)
{
	struct agent *agent = arg;
	struct survey *survey = find(agent, nonce);
	struct store_host_view view;
	struct survey_host *host;

	(void)err;
	if (!survey)
		return;
	if (!id) {
		survey->ask_pending = false;
		if (survey->waiters)
			look(survey);
		check(survey);
		return;
	}
	store_host_view(agent->store, id, &view);
	host = survey->waiters ? merge_host(survey, id) : NULL;
	/* One that has not renewed for so long is not waited for; its answer counts all the same. */
	if (host && view.unchanged_ms < agent->config->ttl_ms / 3 * 2)
		host->awaited = true;
}

void survey_told(void *arg, const char *id, uint64_t nonce, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct agent *agent = arg;
	struct survey *survey = find(agent, nonce);
	struct survey_host *host;

	if (!survey || !survey->waiters || !strcmp(id, store_host_id(agent->store)))
		return;
	host = merge_host(survey, id);
	if (!host || host->answered || host->broken)
		return;
	if (part != host->parts++ || host->text.len + len > HOST_BYTES_MAX || survey->bytes + len > ALL_BYTES_MAX) {
		host->broken = true;
		return;
	}
	survey->bytes += len;
	records_append(&host->text, text, len);
	host->answered = last != TELL_MORE && !host->text.err;
	host->cut = last == TELL_CUT;
	check(survey);
}

/* --- the beginning --- */

static void begin(struct surveys *surveys)
{
	struct agent *agent = surveys->agent;
	struct survey *survey;
	struct waiter *waiters = surveys->waiting;

	if (!waiters || surveys->running)
		return;
	surveys->waiting = NULL;
	surveys->waiting_last = &surveys->waiting;
	survey = calloc(1, sizeof *survey);
	if (!survey) {
		for (struct waiter *w = waiters; w; w = w->next)
			w->fn(w->arg, NULL);
		free_waiters(waiters);
		return;
	}
	survey->agent = agent;
	survey->waiters = waiters;
	survey->begun_ns = loop_now_ns();
	survey->timer = (struct loop_timer){ .fn = timer_fired, .arg = survey };
	survey->nonce = agent_next_id(agent);
	surveys->running = survey;
	/* One lock only, if nobody wants more. */
	survey->key = waiters->key ? strdup(waiters->key) : NULL;
	for (const struct waiter *w = waiters; survey->key && w; w = w->next) {
		if (!w->key || strcmp(w->key, survey->key)) {
			free(survey->key);
			survey->key = NULL;
		}
	}
	loop_timer_set(agent->loop, &survey->timer, survey->begun_ns + LIVE_WAIT_NS);
	if (agent->state == STORE_UP || agent->state == STORE_GRACE) {
		survey->status_pending = survey->ask_pending = true;
		store_status(agent->store, survey, survey->key);
		store_ask(agent->store, survey->nonce, survey->key);
	} else {
		survey->err = ENOTCONN;
		survey->err_text = agent->state_text;
		look(survey);
	}
}

static void begin_fired(struct loop_timer *timer)
{
	begin(timer->arg);
}

int survey_join(struct agent *agent, const char *key, void (*fn)(void *arg, const struct survey *survey), void *arg)
{
	struct surveys *surveys = agent->surveys;
	struct waiter *waiter;

	if (!surveys) {
		surveys = calloc(1, sizeof *surveys);
		if (!surveys)
			return -ENOMEM;
		surveys->agent = agent;
		surveys->waiting_last = &surveys->waiting;
		surveys->begin = (struct loop_timer){ .fn = begin_fired, .arg = surveys };
		agent->surveys = surveys;
	}
	if (!surveys->running && !surveys->begin.slot && loop_timer_set(agent->loop, &surveys->begin, 0))
		return -ENOMEM;
	waiter = calloc(1, sizeof *waiter);
	if (!waiter)
		return -ENOMEM;
	*waiter = (struct waiter){ .fn = fn, .arg = arg, .key = key ? strdup(key) : NULL };
	if (key && !waiter->key) {
		free(waiter);
		return -ENOMEM;
	}
	*surveys->waiting_last = waiter;
	surveys->waiting_last = &waiter->next;
	return 0;
}

int survey_put(const struct survey *survey, const char *key, struct record_buf *buf, const char **ret_text)
{
	merge_put(survey, key, buf);
	*ret_text = survey->err == ENOMEM ? "the agent is out of memory" : survey->err_text ? survey->err_text : "";
	return survey->err;
}
