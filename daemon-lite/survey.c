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
#include "ask.h"
#include "look.h"
#include "survey_merge.h"

#define LIVE_WAIT_NS 500000000u		/* for other hosts' looks */
#define STORE_WAIT_NS 2000000000u	/* a store that does not answer by then is left out */
#define HOST_BYTES_MAX (2u << 20)	/* of one host's answer */
#define ALL_BYTES_MAX (64u << 20)

struct waiter {
	struct waiter *next;
	char *name;		/* NULL = all */
	void (*fn)(void *arg, const struct survey *survey);
	void *arg;
};

struct surveys {		/* of an agent */
	struct agent *agent;
	struct waiter *waiting, **waiting_last;	/* for the next one */
	struct survey *running;
	struct loop_timer begin;
};

static void begin(struct surveys *surveys);

static void free_waiters(struct waiter *waiters)
{
	struct waiter *next;

	for (; waiters; waiters = next) {
		next = waiters->next;
		free(waiters->name);
		free(waiters);
	}
}

static void survey_free(struct survey *survey)
{
	for (size_t i = 0; i < 2; i++)
		ask_status_cancel(survey->status[i].status);
	ask_close(survey->ask);
	merge_clear(survey);
	free_waiters(survey->waiters);
	free(survey->name);
	free(survey);
}

/* --- the end --- */

static bool status_pending(const struct survey *survey)
{
	return survey->status[0].status || survey->status[1].status;
}

static bool hosts_answered(const struct survey *survey)
{
	if (survey->ask_pending)
		return false;
	for (size_t i = 0; i < survey->host_count; i++)
		if (survey->hosts[i].awaited && !survey->hosts[i].answered)
			return false;
	return true;
}

static void finish(struct survey *survey)
{
	struct surveys *surveys = survey->agent->surveys;

	loop_timer_stop(survey->agent->loop, &survey->timer);
	if (merge_sort(survey))
		survey->err = ENOMEM;
	for (struct waiter *w = survey->waiters; w; w = w->next)
		w->fn(w->arg, survey);
	surveys->running = NULL;
	survey_free(survey);
	begin(surveys);
}

static void check(struct survey *survey)
{
	if (survey->look_pending || !survey->looked || (!survey->live_over && !hosts_answered(survey)))
		return;
	if (status_pending(survey) && !survey->store_over)
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
		if (status_pending(survey))
			loop_timer_set(survey->agent->loop, timer, survey->begun_ns + STORE_WAIT_NS);
	} else {
		survey->store_over = true;
	}
	if (survey->store_over && status_pending(survey)) {
		survey->err = ETIMEDOUT;
		survey->err_text = "the store did not answer";
	}
	check(survey);
}

/* Each status ends with a count of its own; merge_put() adds them up. */
static bool is_about_locks(const char *record)
{
	return !strcmp(record, "cover") || !strcmp(record, "wait") || !strcmp(record, "bad") || !strcmp(record, "end");
}

static void on_record(void *arg, const char *record, size_t len, int err)
{
	struct survey_status *status = arg;
	struct survey *survey = status->survey;

	if (record) {
		if ((!status->locks_only || (len && is_about_locks(record))) && merge_row(survey, record, len))
			survey->err = ENOMEM;
		return;
	}
	status->status = NULL;
	if (err) {
		survey->err = -err;
		survey->err_text = "the store did not answer";
	}
	check(survey);
}

static void on_reached(void *arg, const char *id, int err)
{
	struct survey *survey = arg;
	struct agent *agent = survey->agent;
	struct store_host_view view;
	struct survey_host *host;

	(void)err;
	if (!id) {
		survey->ask_pending = false;
		look(survey);
		check(survey);
		return;
	}
	store_host_view(agent->store, id, &view);
	host = merge_host(survey, id);
	/* One that has not renewed for so long is not waited for; its answer counts all the same. */
	if (host && view.unchanged_ms < agent->config->ttl_ms / 3 * 2)
		host->awaited = true;
}

static void on_told(void *arg, const char *id, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct survey *survey = arg;
	struct survey_host *host = merge_host(survey, id);

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

static const struct ask_events ask_events = { .reached = on_reached, .told = on_told };

static int ask_status_of(struct survey *survey, const char *key, size_t i)
{
	struct survey_status *status = &survey->status[i];

	*status = (struct survey_status){ .survey = survey, .locks_only = i > 0 };
	status->status = ask_status(survey->agent, key, on_record, status);
	return status->status ? 0 : -ENOMEM;
}

/* First the records, then the question: on one connection, so that no cover is newer than the answers. */
static int ask(struct survey *survey)
{
	char *key = NULL;
	int err;

	if (survey->name && asprintf(&key, "f:%s", survey->name) < 0)
		return -ENOMEM;
	err = ask_status_of(survey, key, 0);
	if (!err && key) {
		key[0] = 'r';
		err = ask_status_of(survey, key, 1);
	}
	if (!err) {
		survey->ask = ask_open(survey->agent, key, "", &ask_events, survey);
		survey->ask_pending = survey->ask != NULL;
		err = survey->ask ? 0 : -ENOMEM;
	}
	free(key);
	return err;
}

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
	surveys->running = survey;
	/* One name only, if nobody wants more. */
	survey->name = waiters->name ? strdup(waiters->name) : NULL;
	for (const struct waiter *w = waiters; survey->name && w; w = w->next) {
		if (!w->name || strcmp(w->name, survey->name)) {
			free(survey->name);
			survey->name = NULL;
		}
	}
	loop_timer_set(agent->loop, &survey->timer, survey->begun_ns + LIVE_WAIT_NS);
	if (agent->state != STORE_UP && agent->state != STORE_GRACE) {
		survey->err = ENOTCONN;
		survey->err_text = agent->state_text;
		look(survey);
	} else if (ask(survey)) {
		survey->err = ENOMEM;
		look(survey);
	}
}

static void begin_fired(struct loop_timer *timer)
{
	begin(timer->arg);
}

int survey_join(struct agent *agent, const char *name, void (*fn)(void *arg, const struct survey *survey), void *arg)
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
	*waiter = (struct waiter){ .fn = fn, .arg = arg, .name = name ? strdup(name) : NULL };
	if (name && !waiter->name) {
		free(waiter);
		return -ENOMEM;
	}
	*surveys->waiting_last = waiter;
	surveys->waiting_last = &waiter->next;
	return 0;
}

int survey_put(const struct survey *survey, const char *name, struct record_buf *buf, const char **ret_text)
{
	merge_put(survey, name, buf);
	*ret_text = survey->err == ENOMEM ? "the agent is out of memory" : survey->err_text ? survey->err_text : "";
	return survey->err;
}
