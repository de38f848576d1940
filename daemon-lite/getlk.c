/* SPDX-License-Identifier: MIT */
/*
 * The asking side of F_GETLK across hosts: the store's records of the lock, then the
 * question, then the first of all answers or the end of the time.
 *
 * The store's records are older than the answers. So a host that they do not
 * name held nothing at that moment, and one that they name answers for itself.
 */
#include "getlk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../config/config.h"
#include "agent.h"
#include "ask.h"
#include "getlk_merge.h"

#define WAIT_NS 500000000u	/* for records and answers together */

struct getlk {
	struct getlk *next;	/* of those that wait for the store */
	bool waits;
	struct agent *agent;
	char *key;
	struct getlk_merge merge;
	struct ask_status *status;
	struct ask *ask;
	struct loop_timer timer;
	uint64_t begun_ns;
	bool known_free;	/* this host's own cover rules it out */
	void (*done)(void *arg, const struct lock_span *lock, int l_pid, int err, const char *text);
	void *arg;
};

static void stop_waiting(struct getlk *getlk)
{
	struct getlk **at = &getlk->agent->getlks;

	if (!getlk->waits)
		return;
	while (*at != getlk)
		at = &(*at)->next;
	*at = getlk->next;
	getlk->waits = false;
}

void getlk_cancel(struct getlk *getlk)
{
	if (!getlk)
		return;
	stop_waiting(getlk);
	ask_close(getlk->ask);
	ask_status_cancel(getlk->status);
	loop_timer_stop(getlk->agent->loop, &getlk->timer);
	getlk_merge_clear(&getlk->merge);
	free(getlk->key);
	free(getlk);
}

static void finish(struct getlk *getlk, int err, const char *text)
{
	void (*done)(void *, const struct lock_span *, int, int, const char *) = getlk->done;
	void *arg = getlk->arg;
	struct lock_span lock = { .mode = MODE_NONE };
	int l_pid = 0;

	if (!err && getlk->merge.failed) {
		err = ENOMEM;
		text = "the agent is out of memory";
	}
	if (!err && !getlk->known_free)
		getlk_merge_result(&getlk->merge, &lock, &l_pid);
	getlk_cancel(getlk);
	done(arg, &lock, l_pid, err, text);
}

static void check(struct getlk *getlk)
{
	if (getlk->merge.failed || getlk_merge_complete(&getlk->merge))
		finish(getlk, 0, "");
}

static void on_reached(void *arg, const char *id, int err)
{
	struct getlk *getlk = arg;
	struct agent *agent = getlk->agent;
	struct store_host_view view;

	(void)err;		/* who was not reached counts as silent */
	if (id) {
		/* One that has not renewed for so long is not waited for. */
		store_host_view(agent->store, id, &view);
		getlk_merge_reached(&getlk->merge, id, view.unchanged_ms < agent->config->ttl_ms / 3 * 2);
	} else {
		getlk->merge.asked_all = true;
	}
	check(getlk);
}

static void on_told(void *arg, const char *id, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct getlk *getlk = arg;

	getlk_merge_told(&getlk->merge, id, part, last, text, len);
	check(getlk);
}

static const struct ask_events ask_events = { .reached = on_reached, .told = on_told };

static bool is_up(const struct agent *agent)
{
	return agent->state == STORE_UP || agent->state == STORE_GRACE;
}

/* As long as a lock call that must not wait would. */
static int wait_for_store(struct getlk *getlk)
{
	struct agent *agent = getlk->agent;

	getlk->waits = true;
	getlk->next = agent->getlks;
	agent->getlks = getlk;
	return loop_timer_set(agent->loop, &getlk->timer, agent->state == STORE_REFUSED ? 0 :
			      getlk->begun_ns + (uint64_t)agent->config->try_timeout_ms * 1000000u);
}

static void on_record(void *arg, const char *record, size_t len, int err)
{
	struct getlk *getlk = arg;
	char question[GETLK_QUESTION_MAX];

	if (record) {
		getlk_merge_row(&getlk->merge, record, len);
		return;
	}
	getlk->status = NULL;
	if (err && !is_up(getlk->agent) && !wait_for_store(getlk))
		return;
	if (err) {
		finish(getlk, -err, "the store did not answer");
		return;
	}
	if (!getlk_merge_must_ask(&getlk->merge)) {
		finish(getlk, 0, "");
		return;
	}
	getlk_question_put(question, getlk->merge.at, getlk->merge.mode);
	getlk->ask = ask_open(getlk->agent, getlk->key, question, &ask_events, getlk);
	if (!getlk->ask)
		finish(getlk, ENOMEM, "the agent is out of memory");
}

static int begin(struct getlk *getlk)
{
	stop_waiting(getlk);
	getlk->status = ask_status(getlk->agent, getlk->key, on_record, getlk);
	return getlk->status ? loop_timer_set(getlk->agent->loop, &getlk->timer, loop_now_ns() + WAIT_NS) : -ENOMEM;
}

void getlk_go_on(struct agent *agent)
{
	struct getlk *next;

	for (struct getlk *getlk = agent->getlks; getlk; getlk = next) {
		next = getlk->next;
		/* What fails ends by the timer: `done` may do anything. */
		if (agent->state == STORE_REFUSED || (is_up(agent) && begin(getlk)))
			loop_timer_set(agent->loop, &getlk->timer, 0);
	}
}

static void timer_fired(struct loop_timer *timer)
{
	struct getlk *getlk = timer->arg;

	if (getlk->known_free) {
		finish(getlk, 0, "");
	} else if (getlk->ask) {
		getlk->merge.over = true;
		finish(getlk, 0, "");
	} else if (getlk->status) {
		finish(getlk, ETIMEDOUT, "the store did not answer");
	} else if (is_up(getlk->agent)) {
		finish(getlk, ENOMEM, "the agent is out of memory");
	} else {
		finish(getlk, ENOTCONN, getlk->agent->state_text);
	}
}

static bool rules_out(struct agent *agent, const char *key, struct extent at, enum lock_mode mode)
{
	const struct name *name = name_find(agent, key);
	const char *why;

	return name && agent_may_go(agent, &why) && cover_suffices(&name->cover, at, mode);
}

int getlk_start(struct agent *agent, const char *key, struct extent at, enum lock_mode mode,
		void (*done)(void *arg, const struct lock_span *lock, int l_pid, int err, const char *text), void *arg, struct getlk **ret)
{
	struct getlk *getlk = calloc(1, sizeof *getlk);
	int err;

	if (!getlk)
		return -ENOMEM;
	*getlk = (struct getlk){ .agent = agent, .key = strdup(key), .begun_ns = loop_now_ns(), .done = done, .arg = arg };
	getlk->timer = (struct loop_timer){ .fn = timer_fired, .arg = getlk };
	getlk_merge_init(&getlk->merge, at, mode, store_host_id(agent->store));
	getlk->known_free = rules_out(agent, key, at, mode);
	err = !getlk->key ? -ENOMEM : getlk->known_free ? loop_timer_set(agent->loop, &getlk->timer, 0) :
	      is_up(agent) ? begin(getlk) : wait_for_store(getlk);
	if (err) {
		getlk_cancel(getlk);
		return -ENOMEM;
	}
	*ret = getlk;
	return 0;
}
