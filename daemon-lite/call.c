/* SPDX-License-Identifier: MIT */
/*
 * The lock call of a client: which file and name, what the cover says, when the
 * program is told GO. Nothing here waits; what may is done in helper threads or
 * comes as an event.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config/config.h"
#include "client.h"
#include "deadlock.h"
#include "getlk.h"
#include "holders.h"
#include "klock.h"
#include "log.h"
#include "waiters.h"

#define OFFER_AFTER_NS 5000000u		/* a shorter wait needs no OFFER: stopping just then is as rare as stopping after GO */
#define OFFER_WAIT_NS 1000000000u	/* an OFFER not taken by then is withdrawn */
#define WATCH_AFTER_NS 100000000u	/* a GO without DONE for so long: watch the process itself */
#define GO_NS 1000000000u		/* a GO counts so long, or while the program waits in the kernel */

/* --- answers --- */

static void set_timer(struct client *client, uint64_t delay_ns)
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

/*
 * Whoever was stopped on the way to the kernel, or jumped out of it by a signal
 * handler, holds nothing and queues nowhere, but its GO keeps the cover here. Past
 * valid_ns the program asks before it keeps what it takes; so the GO may end then. One
 * that waits in the kernel's queue keeps its place.
 */
static void go_grows_old(struct client *client)
{
	uint64_t now = loop_now_ns();

	if (!client->name)
		return;
	if (now <= client->valid_ns || waiters_include(client->cred.pid))
		set_timer(client, now <= client->valid_ns ? client->valid_ns + 1 - now : GO_NS);
	else if (lapse(client))
		set_timer(client, GO_NS);
}

/*
 * Whether the program is going to wait in the kernel for a record lock. Then its GO must not
 * keep the whole range from others: on Linux a wait keeps nobody from the parts that nobody holds.
 */
static bool will_wait(const struct client *client)
{
	const struct name *name = client->name;
	struct lock_span lock;
	int pid;

	if (!name->records || (client->msg.flags & WIRE_FLAG_NONBLOCK) || !name_is_local(name))
		return false;
	for (size_t i = 0; i < name->file_count; i++)
		if (!klock_getlk(name->files[i].fd, client->at, (enum lock_mode)client->msg.mode, &lock, &pid) &&
		    lock.mode != MODE_NONE)
			return true;
	return false;
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
		if (client->msg.family == FAMILY_POSIX && !(client->msg.flags & WIRE_FLAG_NONBLOCK) && !client->looked)
			deadlock_check(client->agent);	/* at the first time; later it looks by itself */
		client->looked = true;
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
	set_timer(client, WATCH_AFTER_NS);
	if (will_wait(client))
		client->valid_ns = 0;
	if (client_tell(client, WIRE_GO, 0, MODE_NONE) && !client->valid_ns)
		lapse(client);		/* if there is no memory, it keeps its cover until it is done */
}

static void give_go(struct client *client)
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
	set_timer(client, OFFER_WAIT_NS);
	client_tell(client, WIRE_OFFER, 0, MODE_NONE);
}

void call_taken(struct client *client)
{
	const char *why;

	if (agent_may_go(client->agent, &why))
		send_go(client);
	else
		give_go(client);
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
			give_go(client);
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
		set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
	else if (client->msg.family != FAMILY_FLOCK && !client->timer.slot)
		set_timer(client, DEADLOCK_AFTER_NS);
}

/* --- requests --- */

/* Puts the request aside until clients_unpark(). A try waits no longer than its bound. */
static void park(struct client *client)
{
	list_remove(&client->parked);
	list_append(&client->agent->parked, &client->parked);
	client_watch_process(client);
	if (client->msg.flags & WIRE_FLAG_NONBLOCK && !client->timer.slot)
		set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
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

/* On a connection of its own: an earlier agent gave the GO. */
static void stands_anew(struct client *client)
{
	struct name *name = client->name;
	bool yes = cover_stands(&name->cover, client->at, (enum lock_mode)client->msg.mode);

	if (client_tell(client, WIRE_STANDING, yes ? 0 : ENOLCK, MODE_NONE))
		client->state = CLIENT_NEW;	/* a STANDS on a connection of its own; the client closes it */
}

static void request_begin(struct client *client)
{
	struct agent *agent = client->agent;
	bool try = client->msg.flags & WIRE_FLAG_NONBLOCK;
	const char *why;

	client->state = CLIENT_WAIT;
	if (agent->state == STORE_REFUSED) {
		client_fail(client, ENOLCK, agent->state_text);
		return;
	}
	if (!agent_may_go(agent, &why)) {
		park(client);
		return;
	}
	if (client->msg.type == WIRE_STANDS) {
		stands_anew(client);
		return;
	}
	if (try && cover_is_recalled(&client->name->cover))
		clients_hear(client->name);
	if (cover_request(&client->name->cover, client->id, client->at, (enum lock_mode)client->msg.mode, try)) {
		client_fail(client, ENOLCK, "the agent is out of memory");
		return;
	}
	name_settle(client->name);
}

static void getlk_done(void *arg, const struct lock_span *lock, int l_pid, int err, const char *text)
{
	struct client *client = arg;
	struct wire_msg msg;

	client->getlk = NULL;
	if (err) {
		client_fail(client, ENOLCK, text);
		return;
	}
	wire_init(&msg, WIRE_LOCK);
	msg.mode = (uint16_t)lock->mode;
	if (lock->mode != MODE_NONE) {
		msg.start = (int64_t)lock->at.start;
		msg.len = extent_len(lock->at);
		msg.fd_number = l_pid;
	}
	client_send(client, &msg, NULL);
	client_close(client);
}

static void getlk_begin(struct client *client, const char *key)
{
	client->state = CLIENT_GETLK;
	if (getlk_start(client->agent, key, client->at, (enum lock_mode)client->msg.mode, getlk_done, client, &client->getlk))
		client_fail(client, ENOLCK, "the agent is out of memory");
}

/* The descriptor is known: find its rule and name. */
static void identified(void *arg)
{
	struct client *client = arg;
	struct agent *agent = client->agent;
	const struct identity *identity = client->identity;
	struct rules_match match;
	char key[RULES_NAME_MAX + 2], text[600];
	struct name *name;
	int err;

	if (client->closed) {
		helper_close(agent->loop, client->fd, client->local);
		helper_close(agent->loop, client->own_fd, client->local);
		client_release(client);
		return;
	}
	client->state = CLIENT_NEW;
	if (client->kind == IDENTIFY_REFUSED) {
		static struct log_limit limit;

		if (log_allowed(&limit))
			log_warn("pid %d: %s", (int)client->cred.pid, identity->reason);
		client_fail(client, ENOLCK, identity->reason);
		return;
	}
	if (client->kind == IDENTIFY_LOCAL ||
	    !rules_find(&agent->rules, identity->path, strlen(identity->path), &match)) {
		if (client_tell(client, WIRE_LOCAL, 0, MODE_NONE))
			client_close(client);
		return;
	}
	memcpy(key, client->msg.family == FAMILY_FLOCK ? "f:" : "r:", 2);
	err = rules_expand(match.name, match.pattern, identity->path, key + 2, sizeof key - 2);
	if (err < 0) {
		snprintf(text, sizeof text, "line %u of %s: no name can be made for this path: %s", match.line,
			 agent->config->file, strerror(-err));
		client_fail(client, ENOLCK, text);
		return;
	}
	if (client->msg.type == WIRE_GETLK) {
		getlk_begin(client, key);
		return;
	}
	name = name_get(agent, key, match.on_lost);
	client_use_name(client, name);
	if (!name) {
		client_fail(client, ENOLCK, "the agent is out of memory");
		return;
	}
	name->active_ns = loop_now_ns();
	if (client->local)
		client->own_fd = name_has_file(name, &identity->id) ? -1 : identify_reopen(client->fd, name->records);
	err = name_add_file(name, &client->own_fd, &identity->id, client->local, identity->deleted ? NULL : identity->path);
	helper_close(agent->loop, client->own_fd, client->local);
	helper_close(agent->loop, client->fd, client->local);
	client->fd = client->own_fd = -1;
	if (err) {
		snprintf(text, sizeof text, "the agent (uid %d) cannot open %.400s: %s", (int)geteuid(), identity->path,
			 strerror(-err));
		client_fail(client, ENOLCK, text);
		return;
	}
	free(client->identity);
	client->identity = NULL;
	request_begin(client);
	/* After the question has been sent to the store: the guard has its copy long before the answer comes. */
	name_keep_files(name);
}

static void identify_job(void *arg)
{
	struct client *client = arg;

	client->kind = identify_fd(client->fd, client->identity);
	if (client->kind == IDENTIFY_MANAGED && !client->local)
		client->own_fd = identify_reopen(client->fd, client->msg.family != FAMILY_FLOCK);
}

static bool valid_request(const struct wire_msg *msg, struct extent *ret_at)
{
	if ((msg->mode != MODE_SH && msg->mode != MODE_EX) || (msg->flags & ~WIRE_FLAG_NONBLOCK))
		return false;
	if (msg->family == FAMILY_FLOCK) {
		*ret_at = EXTENT_ALL;
		return !msg->start && !msg->len && msg->type != WIRE_GETLK;
	}
	return (msg->family == FAMILY_POSIX || msg->family == FAMILY_OFD) && extent_from_len(msg->start, msg->len, ret_at);
}

void call_begin(struct client *client, const struct wire_msg *msg, int fd)
{
	struct agent *agent = client->agent;

	if (!valid_request(msg, &client->at)) {
		if (fd >= 0)
			close(fd);
		client_fail(client, EPROTO, "this request is not understood: are library and agent of one version?");
		return;
	}
	if (fd < 0) {
		client_fail(client, ENOLCK, "the request came without its descriptor: one of the two processes is at its limit of open files");
		return;
	}
	client->msg = *msg;
	client->fd = fd;
	if (client->cred.pid == 0) {
		client_fail(client, ENOLCK, "the agent runs in another pid namespace and could not end this program: start dlockd outside, or give each namespace a runtime directory of its own");
		return;
	}
	agent_check_config(agent);
	if (agent->config_error[0]) {
		client_fail(client, ENOLCK, agent->config_error);
		return;
	}
	if (agent->replaced && msg->type == WIRE_REQUEST) {
		client_close(client);	/* it connects again, to the agent that is there now */
		return;
	}
	if (agent->draining && msg->type == WIRE_REQUEST) {
		client_fail(client, ENOLCK, "the agent was told to end and gives no new locks");
		return;
	}
	client->since_ns = loop_now_ns();
	client->identity = malloc(sizeof *client->identity);
	if (!client->identity) {
		client_fail(client, ENOLCK, "the agent is out of memory");
		return;
	}
	client->local = identify_is_local(fd);
	if (client->local) {
		identify_job(client);
		identified(client);
		return;
	}
	client->state = CLIENT_IDENTIFY;
	if (helper_run(agent->loop, identify_job, identified, client)) {
		client->state = CLIENT_NEW;
		client_fail(client, ENOLCK, "the agent has no thread left for this file's filesystem");
	}
}

void call_held(struct client *client, const struct wire_msg *msg)
{
	enum lock_mode mode = (enum lock_mode)client->msg.mode, held;

	if (msg->mode == WIRE_HELD_UNKNOWN) {
		/* Without /proc (in a chroot) the program cannot say: look from here. */
		held = holders_fd_mode(client->cred.pid, client->msg.fd_number, client->msg.family != FAMILY_FLOCK);
		if (client->msg.family == FAMILY_FLOCK && (held == mode || (held == MODE_SH && mode == MODE_EX))) {
			/* The same: the call is over. SH that wants EX: the program drops it and says so. */
			client_tell(client, WIRE_HELD, 0, held);
			return;
		}
	} else if (msg->mode > MODE_EX) {
		client_fail(client, EPROTO, "no such mode");
		return;
	} else {
		held = (enum lock_mode)msg->mode;
	}
	cover_held(&client->name->cover, client->id, held);
	name_settle(client->name);
}

/* --- all of them --- */

void clients_unpark(struct agent *agent)
{
	struct list again;
	const char *why;

	if (agent->parked.next == &agent->parked || !agent_may_go(agent, &why))
		return;
	again = agent->parked;
	again.next->prev = again.prev->next = &again;
	list_init(&agent->parked);
	while (again.next != &again) {
		struct client *client = list_entry(again.next, struct client, parked);

		list_remove(&client->parked);
		if (client->go_parked)
			give_go(client);
		else
			request_begin(client);
	}
}

void clients_session_lost(struct agent *agent)
{
	for (struct list *l = agent->parked.next; l != &agent->parked; l = l->next) {
		struct client *client = list_entry(l, struct client, parked);

		if (!client->go_parked)
			continue;
		client->go_parked = false;
		cover_done(&client->name->cover, client->id);
	}
}

void clients_fail_waiting(struct agent *agent, const char *text)
{
	struct hash_node *node = NULL;
	struct list failed;

	list_init(&failed);
	while ((node = hash_walk(&agent->clients, node))) {
		struct client *client = hash_entry(node, struct client, node);

		if (client->state == CLIENT_WAIT && !client->go_parked) {
			list_remove(&client->parked);
			list_append(&failed, &client->parked);
		}
	}
	while (failed.next != &failed) {
		struct client *client = list_entry(failed.next, struct client, parked);

		list_remove(&client->parked);
		client_fail(client, ENOLCK, text);
	}
}

