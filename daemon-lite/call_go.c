/* SPDX-License-Identifier: MIT */
/*
 * When a program is told GO, and how long that counts; the cover's other answers. A GO keeps the
 * host's cover until it is done, or lapses: whoever has lapsed asks (STANDS) before it
 * keeps the lock that it has taken.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../config/config.h"
#include "client.h"
#include "deadlock.h"
#include "holders.h"
#include "klock.h"
#include "name.h"
#include "waiters.h"

#define OFFER_AFTER_NS 5000000u		/* a shorter wait needs no OFFER: stopping just then is as rare as stopping after GO */
#define OFFER_WAIT_NS 1000000000u	/* an OFFER not taken by then is withdrawn */
#define WATCH_AFTER_NS 100000000u	/* a GO without DONE for so long: watch the process itself */
#define GO_NS 1000000000u		/* a GO counts so long, or while the program waits in the kernel */

void call_set_timer(struct client *client, uint64_t delay_ns)
{
	loop_timer_set(client->agent->loop, &client->timer, loop_now_ns() + delay_ns);
}

/* From here on the GO keeps no cover: the program asks (STANDS) before it keeps what it takes. 0 or -ENOMEM. */
static int lapse(struct client *client)
{
	struct name *name = client->name;

	client->lapsed = strdup(name->key);
	if (!client->lapsed)
		return -ENOMEM;
	client_use_name(client, NULL);
	cover_done(&name->cover, client->id);
	name_settle(name);
	return 0;
}

/* The l_pid of the caller's own locks; 0: it has none. Of a description that has locks nobody can tell which ones. */
static pid_t own_pid(const struct client *client)
{
	if (client->msg.family == FAMILY_POSIX)
		return client->cred.pid;
	return holders_fd_mode(client->cred.pid, client->msg.fd_number, true) != MODE_NONE ? -1 : 0;
}

/*
 * Whether the program is going to wait in the kernel for a record lock. Then its GO must not
 * keep the whole range from others: on Linux a wait keeps nobody from the parts that nobody holds.
 * But for its own locks it does not wait, and where that has cost it its cover before, it would for ever.
 */
static bool will_wait(const struct client *client)
{
	const struct name *name = client->name;
	struct lock_span lock;
	int pid;

	if (!name->records || (client->msg.flags & (WIRE_FLAG_NONBLOCK | WIRE_FLAG_AGAIN)) || !name_is_local(name))
		return false;
	for (size_t i = 0; i < name->file_count; i++)
		if (!klock_getlk(name->files[i].fd, client->at, (enum lock_mode)client->msg.mode, &lock, &pid) &&
		    lock.mode != MODE_NONE &&
		    klock_others_hold(name->files[i].fd, client->at, (enum lock_mode)client->msg.mode, own_pid(client)))
			return true;
	return false;
}

/* A wait in the kernel that may be part of a deadlock. */
static void waits_long(struct client *client)
{
	struct name *name = client->lapsed ? name_find(client->agent, client->lapsed) : client->name;

	if (name)
		name_waits_step_aside(name);
	if (!client->looked)
		deadlock_check(client->agent);	/* at the first time; later it looks by itself */
	client->looked = true;
	if (client->lapsed)
		call_set_timer(client, GO_NS);
}

/*
 * Whoever was stopped on the way to the kernel, or jumped out of it by a signal
 * handler, holds nothing and queues nowhere, but its GO keeps the cover here. Past
 * valid_ns the program asks before it keeps what it takes; so the GO may end then. One
 * that waits in the kernel's queue keeps its place, unless others could have parts of what it waits for.
 */
static void go_grows_old(struct client *client)
{
	uint64_t now = loop_now_ns();

	if (!client->name)
		return;
	if (now <= client->valid_ns || (waiters_include(client->cred.pid) && !will_wait(client)))
		call_set_timer(client, now <= client->valid_ns ? client->valid_ns + 1 - now : GO_NS);
	else if (lapse(client))
		call_set_timer(client, GO_NS);
}

void call_timer_fired(struct loop_timer *timer)
{
	struct client *client = timer->arg;
	const char *why;

	switch (client->state) {
	case CLIENT_WAIT:	/* a try that nobody has answered, or a wait for a record lock that lasts */
		if (!(client->msg.flags & WIRE_FLAG_NONBLOCK)) {
			deadlock_check(client->agent);
			return;
		}
		if (client->agent->state == STORE_GRACE ||
		    (client->agent->state == STORE_UP && agent_may_go(client->agent, &why))) {
			if (client_tell(client, WIRE_BUSY, 0, MODE_NONE))
				client_close(client);
			return;
		}
		agent_may_go(client->agent, &why);
		client_fail(client, ENOLCK, why);
		return;
	case CLIENT_OFFERED:
		client_close(client);
		return;
	case CLIENT_GO:
		client_watch_process(client);
		if (client->msg.family == FAMILY_POSIX && !(client->msg.flags & WIRE_FLAG_NONBLOCK))
			waits_long(client);
		go_grows_old(client);
		return;
	default:
		return;
	}
}

static void send_go(struct client *client)
{
	client->state = CLIENT_GO;
	client->session = client->agent->session;
	client->go_ns = loop_now_ns();
	client->valid_ns = client->go_ns + GO_NS;
	if (client->valid_ns > agent_valid_until(client->agent))
		client->valid_ns = agent_valid_until(client->agent);
	call_set_timer(client, WATCH_AFTER_NS);
	if (will_wait(client))
		client->valid_ns = 0;
	if (client_tell(client, WIRE_GO, 0, MODE_NONE) && !client->valid_ns)
		lapse(client);		/* if there is no memory, it keeps its cover until it is done */
}

void call_give_go(struct client *client)
{
	const char *why;

	if (!agent_may_go(client->agent, &why)) {
		client->go_parked = true;
		list_remove(&client->parked);
		list_append(&client->agent->parked, &client->parked);
		return;
	}
	client->go_parked = false;
	if (loop_now_ns() - client->since_ns < OFFER_AFTER_NS) {
		send_go(client);
		return;
	}
	client->state = CLIENT_OFFERED;
	call_set_timer(client, OFFER_WAIT_NS);
	client_tell(client, WIRE_OFFER, 0, MODE_NONE);
}

void call_taken(struct client *client)
{
	const char *why;

	if (agent_may_go(client->agent, &why))
		send_go(client);
	else
		call_give_go(client);
}

/*
 * The cover calls this from inside an event, and a client that turns out dead
 * ends in a second event: so the answer is noted and sent by clients_answer().
 */
void client_answer(struct client *client, enum cover_answer answer)
{
	client->answer = answer;
	list_remove(&client->answers);
	list_append(&client->agent->answers, &client->answers);
}

/* What a process holds by POSIX locks the kernel tells here, under whatever descriptor it took them; of a description, its own fdinfo. */
static void check(struct client *client)
{
	struct name *name = client->name;

	if (client->msg.family != FAMILY_POSIX || !name_is_local(name)) {
		client_tell(client, WIRE_CHECK, 0, MODE_NONE);
		return;
	}
	cover_held(&name->cover, client->id, name_owner_mode(name, client->at, client->cred.pid));
	name_settle(name);
}

void clients_answer(struct agent *agent)
{
	while (agent->answers.next != &agent->answers) {
		struct client *client = list_entry(agent->answers.next, struct client, answers);

		list_remove(&client->answers);
		if (client->answer == ANSWER_GO)
			call_give_go(client);
		else if (client->answer == ANSWER_CHECK)
			check(client);
		else if (client_tell(client, WIRE_BUSY, 0, MODE_NONE))
			client_close(client);
	}
}

void client_asked(struct client *client)
{
	client_watch_process(client);
	if (client->msg.flags & WIRE_FLAG_NONBLOCK)
		call_set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
	else if (client->msg.family != FAMILY_FLOCK && !client->timer.slot)
		call_set_timer(client, DEADLOCK_AFTER_NS);
}

void call_stands(struct client *client)
{
	struct agent *agent = client->agent;
	const char *why;
	struct name *name = client->lapsed ? name_find(agent, client->lapsed) : client->name;
	bool yes = client->session == agent->session && agent_may_go(agent, &why) && name &&
		   cover_stands(&name->cover, client->at, (enum lock_mode)client->msg.mode);

	client_tell(client, WIRE_STANDING, yes ? 0 : ENOLCK, MODE_NONE);
}
