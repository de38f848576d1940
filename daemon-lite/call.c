/* SPDX-License-Identifier: MIT */
/*
 * The lock call of a client: which file and name, and what the cover is asked; what
 * becomes of its answer is in call_go.c. Nothing here waits; what may is done in
 * helper threads or comes as an event.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config/config.h"
#include "client.h"
#include "getlk.h"
#include "holders.h"
#include "klock.h"
#include "log.h"

/* Puts the request aside until clients_unpark(). A try waits no longer than its bound. */
static void park(struct client *client)
{
	list_remove(&client->parked);
	list_append(&client->agent->parked, &client->parked);
	client_watch_process(client);
	if (client->msg.flags & WIRE_FLAG_NONBLOCK && !client->timer.slot)
		call_set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
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
	uint32_t flags = WIRE_FLAG_NONBLOCK | (msg->type == WIRE_GETLK ? 0 : WIRE_FLAG_AGAIN);

	if ((msg->mode != MODE_SH && msg->mode != MODE_EX) || (msg->flags & ~flags))
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
			call_give_go(client);
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

