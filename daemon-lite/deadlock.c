/* SPDX-License-Identifier: MIT */
/*
 * The check: this host's part of the graph, then all other hosts'; if one of our
 * own waits would have to give up, the same again after a while, and only what is
 * there both times is believed. A victim of another host is that host's own matter: it is told to look.
 *
 * Must not refuse anybody whose cycle could have been seen at two different times: all that the second look
 * shows was seen after all of the first. Costs the store nothing while nobody who waits in it holds anything that others can wait for.
 */
#include "deadlock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../config/config.h"
#include "agent.h"
#include "ask.h"
#include "client.h"
#include "deadlock_graph.h"
#include "deadlock_look.h"
#include "klock.h"
#include "log.h"

#define ANSWER_NS 300000000u	/* for the other hosts */
#define BETWEEN_NS 30000000u	/* from the end of the first look to the second */
#define PAUSE_MAX_NS 100000000u	/* after a check */
/*
 * While a cycle may lead through here it is looked again, ever more seldom: an answer may have been lost, and a
 * cycle can close where no wait of ours begins (a thread of a process that waits gets one more lock).
 */
#define AGAIN_FIRST_NS 100000000u
#define AGAIN_VICTIM_NS 100000000u	/* there may be another cycle through the same waits */
#define AGAIN_MAX_NS 10000000000u

enum phase { IDLE, FIRST, BETWEEN, SECOND };

struct host {
	struct host *next;
	bool awaited, answered;
	char id[];
};

struct deadlock {		/* of an agent */
	struct agent *agent;
	enum phase phase;
	bool wanted;		/* a check that begins from now on */
	uint64_t begun_ns, not_before_ns;
	uint64_t again_ns;	/* how long until it is looked again */
	struct loop_timer timer;
	struct deadlock_graph *graph, *first;
	struct ask *ask;
	struct host *hosts;
	bool reached_all;
	bool solved;
};

static void begin(struct deadlock *deadlock);

static void set_timer(struct deadlock *deadlock, uint64_t when_ns)
{
	loop_timer_set(deadlock->agent->loop, &deadlock->timer, when_ns);
}

static void stop_asking(struct deadlock *deadlock)
{
	ask_close(deadlock->ask);
	deadlock->ask = NULL;
	while (deadlock->hosts) {
		struct host *host = deadlock->hosts;

		deadlock->hosts = host->next;
		free(host);
	}
	deadlock->reached_all = false;
	loop_timer_stop(deadlock->agent->loop, &deadlock->timer);
}

/* again: there may be more to find, without anybody coming. */
static void finish(struct deadlock *deadlock, bool again)
{
	uint64_t now = loop_now_ns(), took = now - deadlock->begun_ns;

	stop_asking(deadlock);
	deadlock_graph_free(deadlock->graph);
	deadlock_graph_free(deadlock->first);
	deadlock->graph = deadlock->first = NULL;
	deadlock->phase = IDLE;
	deadlock->not_before_ns = now + (took < PAUSE_MAX_NS ? took : PAUSE_MAX_NS);
	if (deadlock->wanted) {
		set_timer(deadlock, deadlock->not_before_ns);
	} else if (again) {
		set_timer(deadlock, now + deadlock->again_ns);
		deadlock->again_ns = deadlock->again_ns * 2 < AGAIN_MAX_NS ? deadlock->again_ns * 2 : AGAIN_MAX_NS;
	}
}

/* --- what was found --- */

static bool is_ours(const struct deadlock *deadlock, const struct deadlock_victim *victim)
{
	return !strcmp(victim->host, store_host_id(deadlock->agent->store));
}

static void tell_host(struct deadlock *deadlock, const struct deadlock_victim *victim)
{
	struct agent *agent = deadlock->agent;
	char question[COVER_HOST_MAX + 40];

	if (snprintf(question, sizeof question, "victim %s %" PRIu64, victim->host, victim->id) < (int)sizeof question)
		store_ask(agent->store, agent_next_id(agent), "", question);
}

static void refuse(struct deadlock *deadlock, uint64_t id)
{
	struct client *client = deadlock_client(deadlock->agent, id);
	static struct log_limit limit;

	if (!client)
		return;
	if (log_allowed(&limit))
		log_info("%s: pid %d (%s) waits in a cycle of waits over hosts: it is told EDEADLK", client->name->key, (int)client->cred.pid, client->command);
	client_fail(client, EDEADLK, "");
}

static void judge_first(struct deadlock *deadlock)
{
	const struct deadlock_victim *victims;
	size_t count = deadlock_graph_victims(deadlock->graph, &victims);
	bool ours = false;

	for (size_t i = 0; i < count; i++) {
		if (is_ours(deadlock, &victims[i]))
			ours = true;
		else
			tell_host(deadlock, &victims[i]);
	}
	if (!ours) {
		finish(deadlock, true);
		return;
	}
	deadlock->first = deadlock->graph;
	deadlock->graph = NULL;
	deadlock->phase = BETWEEN;
	set_timer(deadlock, loop_now_ns() + BETWEEN_NS);
}

static void judge_second(struct deadlock *deadlock)
{
	const struct deadlock_victim *victims;
	size_t count = deadlock_graph_victims(deadlock->first, &victims);

	for (size_t i = 0; i < count; i++) {
		if (!is_ours(deadlock, &victims[i]) || !deadlock_graph_confirms(deadlock->graph, deadlock->first, i))
			continue;
		refuse(deadlock, victims[i].id);
		deadlock->again_ns = AGAIN_VICTIM_NS;
	}
	finish(deadlock, true);
}

static void solve(void *arg)
{
	struct deadlock *deadlock = arg;
	const struct deadlock_victim *victims;

	deadlock->solved = deadlock_graph_solve(deadlock->graph, &victims) >= 0;
}

static void solved(void *arg)
{
	struct deadlock *deadlock = arg;
	static struct log_limit limit;

	if (deadlock_graph_is_cut(deadlock->graph) && log_allowed(&limit))
		log_warn("too many waits, or locks of those who wait, on all hosts: a deadlock may not be found");
	if (!deadlock->solved)
		finish(deadlock, true);
	else if (deadlock->phase == FIRST)
		judge_first(deadlock);
	else
		judge_second(deadlock);
}

/* All have answered, or the time is up. With thousands of waits it takes a while. */
static void judge(struct deadlock *deadlock)
{
	stop_asking(deadlock);
	if (helper_run(deadlock->agent->loop, solve, solved, deadlock))
		finish(deadlock, true);
}

/* --- the other hosts --- */

static struct host *host_of(struct deadlock *deadlock, const char *id)
{
	struct host *host = deadlock->hosts;

	while (host && strcmp(host->id, id) != 0)
		host = host->next;
	if (host)
		return host;
	host = calloc(1, sizeof *host + strlen(id) + 1);
	if (!host)
		return NULL;
	strcpy(host->id, id);
	host->next = deadlock->hosts;
	deadlock->hosts = host;
	return host;
}

static void look_whether_all(struct deadlock *deadlock)
{
	if (!deadlock->reached_all)
		return;
	for (const struct host *host = deadlock->hosts; host; host = host->next)
		if (host->awaited && !host->answered)
			return;
	judge(deadlock);
}

static void on_reached(void *arg, const char *id, int err)
{
	struct deadlock *deadlock = arg;
	struct store_host_view view;
	struct host *host;

	(void)err;
	if (!id) {
		deadlock->reached_all = true;
	} else if (strcmp(id, store_host_id(deadlock->agent->store)) != 0) {
		/* One that has not renewed for so long is not waited for. */
		store_host_view(deadlock->agent->store, id, &view);
		host = host_of(deadlock, id);
		if (host)
			host->awaited = view.unchanged_ms < deadlock->agent->config->ttl_ms / 3 * 2;
	}
	look_whether_all(deadlock);
}

/* A part counts for itself: where another one is missing, edges are. */
static void on_told(void *arg, const char *id, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct deadlock *deadlock = arg;
	struct host *host = host_of(deadlock, id);

	(void)part;
	if (host && host->answered)
		return;
	if (!host || deadlock_graph_add(deadlock->graph, id, text, len)) {
		log_error("out of memory: what host %s says about its waits is left out", id);
		return;
	}
	host->answered = last != TELL_MORE;
	look_whether_all(deadlock);
}

static const struct ask_events ask_events = { .reached = on_reached, .told = on_told };

/* --- the course of a check --- */

static void on_look(void *arg, const struct record_buf *records, bool worth)
{
	struct deadlock *deadlock = arg;
	struct agent *agent = deadlock->agent;

	if (!records || !worth) {
		finish(deadlock, !records);
		return;
	}
	deadlock->graph = deadlock_graph_new();
	if (deadlock->graph && !deadlock_graph_add(deadlock->graph, store_host_id(agent->store), records->data, records->len) &&
	    (agent->state == STORE_UP || agent->state == STORE_GRACE))
		deadlock->ask = ask_open(agent, "", "deadlock", &ask_events, deadlock);
	if (!deadlock->ask) {
		finish(deadlock, true);
		return;
	}
	set_timer(deadlock, loop_now_ns() + ANSWER_NS);
}

static void look(struct deadlock *deadlock, enum phase phase)
{
	deadlock->phase = phase;
	if (deadlock_look_start(deadlock->agent, on_look, deadlock))
		finish(deadlock, true);
}

static void begin(struct deadlock *deadlock)
{
	loop_timer_stop(deadlock->agent->loop, &deadlock->timer);
	deadlock->wanted = false;
	deadlock->begun_ns = loop_now_ns();
	look(deadlock, FIRST);
}

static void timer_fired(struct loop_timer *timer)
{
	struct deadlock *deadlock = timer->arg;

	switch (deadlock->phase) {
	case IDLE:
		begin(deadlock);
		return;
	case BETWEEN:
		look(deadlock, SECOND);
		return;
	default:
		judge(deadlock);
		return;
	}
}

void deadlock_check(struct agent *agent)
{
	struct deadlock *deadlock = agent->deadlock;

	if (!deadlock) {
		deadlock = calloc(1, sizeof *deadlock);
		if (!deadlock)
			return;
		deadlock->agent = agent;
		deadlock->timer = (struct loop_timer){ .fn = timer_fired, .arg = deadlock };
		agent->deadlock = deadlock;
	}
	deadlock->wanted = true;
	deadlock->again_ns = AGAIN_FIRST_NS;
	if (deadlock->phase != IDLE)
		return;
	if (loop_now_ns() < deadlock->not_before_ns)
		set_timer(deadlock, deadlock->not_before_ns);
	else
		begin(deadlock);
}

/* --- questions of other hosts --- */

struct asker {
	struct agent *agent;
	uint64_t nonce;
	char host[];
};

static void tell(void *arg, const struct record_buf *records, bool worth)
{
	struct asker *asker = arg;

	(void)worth;
	if (records)
		ask_tell(asker->agent, asker->host, asker->nonce, records->data, records->len);
	free(asker);
}

void deadlock_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question)
{
	struct asker *asker;

	(void)key;
	(void)question;
	/* Every cycle through this host leads out of it by somebody who waits in the store. */
	if (!deadlock_anybody_waits(agent)) {
		ask_tell(agent, host, nonce, NULL, 0);
		return;
	}
	asker = calloc(1, sizeof *asker + strlen(host) + 1);
	if (!asker)
		return;
	asker->agent = agent;
	asker->nonce = nonce;
	strcpy(asker->host, host);
	if (deadlock_look_start(agent, tell, asker))
		free(asker);
}

void deadlock_victim(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question)
{
	char id[COVER_HOST_MAX];
	uint64_t client;

	(void)host;
	(void)nonce;
	(void)key;
	if (sscanf(question, "victim %39s %" SCNu64, id, &client) != 2 || strcmp(id, store_host_id(agent->store)) != 0)
		return;
	if (deadlock_client(agent, client))
		deadlock_check(agent);
}
