/* SPDX-License-Identifier: MIT */
/*
 * One connection of a program: one lock call, a few messages (see shim/wire.h).
 *
 * Nothing a client sends is trusted: sizes, types, order and the descriptor are
 * checked; a client that breaks the order is told EPROTO and dropped. Nothing
 * sent to a client may block: its socket is non-blocking and a client that does
 * not read is dropped when its buffer is full.
 *
 * Life: NEW → (IDENTIFY in a helper thread for files that are not local) → WAIT
 * (the cover or the store decides) → OFFERED → GO → gone. The request's end is
 * told to the cover exactly once, in client_close().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../config/config.h"
#include "../shim/wire.h"
#include "agent.h"
#include "holders.h"
#include "klock.h"
#include "log.h"
#include "query.h"
#include "records.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define ACCEPT_ROUND 64			/* connections taken in one round, so that nobody else starves */
#define OFFER_AFTER_NS 5000000u		/* a shorter wait needs no OFFER: stopping just then is as rare as stopping after GO */
#define OFFER_WAIT_NS 1000000000u	/* an OFFER not taken by then is withdrawn */
#define WATCH_AFTER_NS 100000000u	/* a GO without DONE for so long: watch the process itself */

enum client_state { CLIENT_NEW, CLIENT_IDENTIFY, CLIENT_WAIT, CLIENT_OFFERED, CLIENT_GO, CLIENT_QUERY, CLIENT_DEAD };

struct client {
	struct agent *agent;
	struct loop_io io, process;	/* the connection; the pidfd of its program */
	struct hash_node node;
	struct list parked;
	struct ucred cred;
	enum client_state state;
	uint64_t id;
	struct name *name;
	struct wire_msg msg;		/* the REQUEST or STANDS */
	int fd;				/* received, until identified */
	struct identity *identity;
	enum identify_kind kind;
	unsigned session;		/* of the GO */
	bool go_parked;			/* a GO that waits for the lease */
	bool closed;
	struct list answers;		/* an answer of the cover that is to be sent */
	enum cover_answer answer;
	uint64_t since_ns, go_ns;
	struct loop_timer timer;
	char command[16];
};

static void client_close(struct client *client);
static void request_begin(struct client *client);

static int client_send(struct client *client, const struct wire_msg *msg, const char *text)
{
	struct iovec iov[2] = { { (void *)msg, sizeof *msg }, { (void *)text, msg->text_len } };
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = msg->text_len ? 2 : 1 };

	return sendmsg(client->io.fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Sends a message without text; a client that cannot be reached is dropped. Returns whether it lives. */
static bool client_tell(struct client *client, enum wire_type type, int err, enum lock_mode mode)
{
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.err = err;
	msg.mode = (uint16_t)mode;
	if (type == WIRE_GO)
		msg.valid_until_ns = agent_valid_until(client->agent);
	if (type == WIRE_GO && client->name)
		msg.fence = client->name->cover.fence;
	if (client_send(client, &msg, NULL) == 0)
		return true;
	client_close(client);
	return false;
}

void client_fail(struct client *client, int err, const char *text)
{
	struct wire_msg msg;

	wire_init(&msg, WIRE_ERROR);
	msg.err = err;
	msg.text_len = (uint32_t)strlen(text);
	client_send(client, &msg, text);
	client_close(client);
}

static void client_release(struct client *client)
{
	free(client->identity);
	free(client);
}

void clients_release_dead(struct agent *agent)
{
	while (agent->dead.next != &agent->dead) {
		struct client *client = list_entry(agent->dead.next, struct client, parked);

		list_remove(&client->parked);
		client_release(client);
	}
}

static void client_close(struct client *client)
{
	struct agent *agent = client->agent;
	struct name *name = client->name;
	enum client_state state = client->state;

	if (client->closed)
		return;
	client->closed = true;
	client->state = CLIENT_DEAD;
	loop_timer_stop(agent->loop, &client->timer);
	loop_io_del(agent->loop, &client->io);
	close(client->io.fd);
	if (client->process.fd >= 0) {
		loop_io_del(agent->loop, &client->process);
		close(client->process.fd);
	}
	if (client->fd >= 0 && state != CLIENT_IDENTIFY)
		close(client->fd);
	list_remove(&client->parked);
	list_remove(&client->answers);
	hash_remove(&agent->clients, &client->node);
	agent->client_count--;
	agent->busy_ns = loop_now_ns();
	client->name = NULL;
	if (name) {
		name->active_ns = agent->busy_ns;
		cover_gone(&name->cover, client->id);
		name_settle(name);
	}
	/* A helper thread may still look at it (identified() frees it then); so may callbacks further up the stack. */
	if (state != CLIENT_IDENTIFY)
		list_append(&agent->dead, &client->parked);
}

struct client *client_find(struct agent *agent, uint64_t id)
{
	for (struct hash_node *n = hash_first(&agent->clients, hash_u64(id)); n; n = hash_next(n)) {
		struct client *client = hash_entry(n, struct client, node);

		if (client->id == id)
			return client;
	}
	return NULL;
}

static void read_command(struct client *client);

const char *client_info(struct client *client, char *buf, size_t size)
{
	if (!client->command[0])
		read_command(client);
	snprintf(buf, size, "%d %s", (int)client->cred.pid, client->command);
	return buf;
}

uint64_t client_id(const struct client *client)
{
	return client->id;
}

uid_t client_uid(const struct client *client)
{
	return client->cred.uid;
}

/* --- the program's end --- */

static void process_event(struct loop_io *io, uint32_t events)
{
	(void)events;
	client_close(io->arg);
}

/* The connection may outlive the process in a forked child; the pidfd does not. */
static void watch_process(struct client *client)
{
	socklen_t len = sizeof client->process.fd;

	if (client->process.fd >= 0)
		return;
	if (getsockopt(client->io.fd, SOL_SOCKET, SO_PEERPIDFD, &client->process.fd, &len) < 0) {
		int err = errno;

		client->process.fd = err == ESRCH || err == EINVAL ? -1
			: (int)syscall(SYS_pidfd_open, client->cred.pid, 0);
		if (client->process.fd < 0)
			return;		/* gone already, or not to be had: the connection's end has to do */
	}
	fcntl(client->process.fd, F_SETFD, FD_CLOEXEC);
	client->process.events = EPOLLIN;
	client->process.fn = process_event;
	client->process.arg = client;
	if (loop_io_add(client->agent->loop, &client->process)) {
		close(client->process.fd);
		client->process.fd = -1;
	}
}

/* --- answers --- */

static void timer_fired(struct loop_timer *timer)
{
	struct client *client = timer->arg;
	const char *why;

	switch (client->state) {
	case CLIENT_WAIT:	/* a try that nobody has answered */
		if (!(client->msg.flags & WIRE_FLAG_NONBLOCK))
			return;
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
		watch_process(client);
		return;
	default:
		return;
	}
}

static void set_timer(struct client *client, uint64_t delay_ns)
{
	loop_timer_set(client->agent->loop, &client->timer, loop_now_ns() + delay_ns);
}

static void send_go(struct client *client)
{
	client->state = CLIENT_GO;
	client->session = client->agent->session;
	client->go_ns = loop_now_ns();
	set_timer(client, WATCH_AFTER_NS);
	client_tell(client, WIRE_GO, 0, MODE_NONE);
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

void clients_answer(struct agent *agent)
{
	while (agent->answers.next != &agent->answers) {
		struct client *client = list_entry(agent->answers.next, struct client, answers);

		list_remove(&client->answers);
		if (client->answer == ANSWER_GO)
			give_go(client);
		else if (client->answer == ANSWER_CHECK)
			client_tell(client, WIRE_CHECK, 0, MODE_NONE);
		else if (client_tell(client, WIRE_BUSY, 0, MODE_NONE))
			client_close(client);
	}
}

void client_asked(struct client *client)
{
	watch_process(client);
	if (client->msg.flags & WIRE_FLAG_NONBLOCK)
		set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
}

/* --- requests --- */

/* Puts the request aside until clients_unpark(). A try waits no longer than its bound. */
static void park(struct client *client)
{
	list_remove(&client->parked);
	list_append(&client->agent->parked, &client->parked);
	watch_process(client);
	if (client->msg.flags & WIRE_FLAG_NONBLOCK && !client->timer.slot)
		set_timer(client, (uint64_t)client->agent->config->try_timeout_ms * 1000000u);
}

static void stands(struct client *client)
{
	struct name *name = client->name;
	bool yes = !name->cover.probing && name->cover.mode >= (enum lock_mode)client->msg.mode;

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
		stands(client);
		return;
	}
	if (cover_request(&client->name->cover, client->id, (enum lock_mode)client->msg.mode, try)) {
		client_fail(client, ENOLCK, "the agent is out of memory");
		return;
	}
	name_settle(client->name);
}

/* The descriptor is known: find its rule and name. */
static void identified(void *arg)
{
	struct client *client = arg;
	struct agent *agent = client->agent;
	const struct identity *identity = client->identity;
	struct rules_match match;
	char key[RULES_NAME_MAX + 2], text[600];
	int fd = client->fd, err;
	bool local;

	if (client->closed) {
		close(fd);
		client_release(client);
		return;
	}
	client->state = CLIENT_NEW;
	if (client->kind == IDENTIFY_REFUSED) {
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
	memcpy(key, "f:", 2);
	err = rules_expand(match.name, match.pattern, identity->path, key + 2, sizeof key - 2);
	if (err < 0) {
		snprintf(text, sizeof text, "line %u of %s: no name can be made for this path: %s", match.line,
			 agent->config->file, strerror(-err));
		client_fail(client, ENOLCK, text);
		return;
	}
	client->name = name_get(agent, key, match.on_lost);
	if (!client->name) {
		client_fail(client, ENOLCK, "the agent is out of memory");
		return;
	}
	client->name->active_ns = loop_now_ns();
	local = identify_is_local(fd);
	err = name_add_file(client->name, fd, &identity->id, local);
	close(fd);
	client->fd = -1;
	if (err) {
		snprintf(text, sizeof text, "the agent (uid %d) cannot open %.400s: %s", (int)geteuid(), identity->path,
			 strerror(-err));
		client_fail(client, ENOLCK, text);
		return;
	}
	free(client->identity);
	client->identity = NULL;
	request_begin(client);
}

static void identify_job(void *arg)
{
	struct client *client = arg;

	client->kind = identify_fd(client->fd, client->identity);
}

static bool valid_request(const struct wire_msg *msg)
{
	return msg->family == FAMILY_FLOCK && (msg->mode == MODE_SH || msg->mode == MODE_EX) &&
	       !(msg->flags & ~WIRE_FLAG_NONBLOCK);
}

static void read_command(struct client *client)
{
	char path[32];
	int fd;
	ssize_t n = 0;

	snprintf(path, sizeof path, "/proc/%d/comm", (int)client->cred.pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, client->command, sizeof client->command - 1);
		close(fd);
	}
	client->command[n > 0 ? n - (client->command[n - 1] == '\n') : 0] = 0;
}

static void on_request(struct client *client, const struct wire_msg *msg, int fd)
{
	struct agent *agent = client->agent;

	if (!valid_request(msg)) {
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
	agent_check_config(agent);
	if (agent->config_error[0]) {
		client_fail(client, ENOLCK, agent->config_error);
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
	if (identify_is_local(fd)) {
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

static void on_held(struct client *client, const struct wire_msg *msg)
{
	enum lock_mode mode = (enum lock_mode)client->msg.mode, held;

	if (msg->mode == WIRE_HELD_UNKNOWN) {
		/* Without /proc (in a chroot) the program cannot say: look from here. */
		held = holders_fd_mode(client->cred.pid, client->msg.fd_number);
		if (held == mode || (held == MODE_SH && mode == MODE_EX)) {
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

static void on_message(struct client *client, const struct wire_msg *msg, const char *text, int fd)
{
	struct agent *agent = client->agent;
	char query[QUERY_VERB_MAX];
	const char *why;

	if (fd >= 0 && !(client->state == CLIENT_NEW && (msg->type == WIRE_REQUEST || msg->type == WIRE_STANDS)) &&
	    !(client->state == CLIENT_GO && msg->type == WIRE_STANDS)) {
		close(fd);
		fd = -1;
	}
	switch (msg->type) {
	case WIRE_REQUEST:
		if (client->state != CLIENT_NEW)
			break;
		on_request(client, msg, fd);
		return;
	case WIRE_STANDS:
		if (client->state == CLIENT_NEW) {
			on_request(client, msg, fd);
			return;
		}
		if (client->state != CLIENT_GO)
			break;
		if (fd >= 0)
			close(fd);
		client_tell(client, WIRE_STANDING, client->session == agent->session && agent_may_go(agent, &why) &&
			    client->name->cover.mode >= (enum lock_mode)client->msg.mode ? 0 : ENOLCK, MODE_NONE);
		return;
	case WIRE_HELD:
		if (client->state != CLIENT_WAIT)
			break;
		on_held(client, msg);
		return;
	case WIRE_TAKE:
		if (client->state != CLIENT_OFFERED)
			break;
		if (agent_may_go(agent, &why))
			send_go(client);
		else
			give_go(client);
		return;
	case WIRE_DONE:
		if (client->state != CLIENT_GO)
			break;
		client_close(client);
		return;
	case WIRE_CANCEL:
		client_close(client);
		return;
	case WIRE_RULES:
		if (client->state != CLIENT_NEW)
			break;
		agent_check_config(agent);
		if (agent->config_error[0])
			client_fail(client, ENOLCK, agent->config_error);
		else
			client_tell(client, WIRE_RULES_OK, 0, MODE_NONE);
		return;
	case WIRE_QUERY:
		if (client->state != CLIENT_NEW || msg->text_len >= sizeof query)
			break;
		memcpy(query, text, msg->text_len);
		query[msg->text_len] = 0;
		client->state = CLIENT_QUERY;
		query_start(agent, client, query);
		return;
	default:
		break;
	}
	client_fail(client, EPROTO, "a message out of order");
}

static void client_readable(struct client *client)
{
	char buf[sizeof(struct wire_msg) + QUERY_VERB_MAX];
	union { struct cmsghdr align; char buf[CMSG_SPACE(sizeof(int))]; } control;
	struct iovec iov = { buf, sizeof buf };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof control.buf };
	struct wire_msg msg;
	const char *text;
	ssize_t n;
	int fd = -1;

	n = recvmsg(client->io.fd, &hdr, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		client_close(client);
		return;
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&hdr); c; c = CMSG_NXTHDR(&hdr, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(sizeof fd))
			memcpy(&fd, CMSG_DATA(c), sizeof fd);
	if ((hdr.msg_flags & MSG_TRUNC) || wire_parse(buf, (size_t)n, &msg, &text)) {
		if (fd >= 0)
			close(fd);
		client_fail(client, EPROTO, "not a message of this version: are library and agent of one version?");
		return;
	}
	on_message(client, &msg, text, fd);
}

static void client_event(struct loop_io *io, uint32_t events)
{
	struct client *client = io->arg;

	if (events & EPOLLIN)
		client_readable(client);
	else if (events & (EPOLLHUP | EPOLLERR))
		client_close(client);
}

void client_accept(struct agent *agent, int listen_fd)
{
	uid_t self = geteuid();

	for (int i = 0; i < ACCEPT_ROUND; i++) {
		struct client *client;
		socklen_t len = sizeof client->cred;
		int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE)
				agent_pause_accepting(agent);
			return;
		}
		client = calloc(1, sizeof *client);
		if (!client) {
			close(fd);
			return;
		}
		client->agent = agent;
		client->fd = client->process.fd = -1;
		client->io = (struct loop_io){ .fd = fd, .events = EPOLLIN, .fn = client_event, .arg = client };
		client->timer = (struct loop_timer){ .fn = timer_fired, .arg = client };
		list_init(&client->parked);
		list_init(&client->answers);
		client->id = agent_next_id(agent);
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &client->cred, &len) < 0 ||
		    (self != 0 && client->cred.uid != self && client->cred.uid != 0) ||
		    hash_insert(&agent->clients, &client->node, hash_u64(client->id))) {
			close(fd);
			free(client);
			continue;
		}
		agent->client_count++;
		if (loop_io_add(agent->loop, &client->io)) {
			client_close(client);
			continue;
		}
		/* The request is there already, as a rule: a shim sends it right after connecting. */
		client_readable(client);
	}
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

void clients_each(struct agent *agent, void (*fn)(void *arg, const struct client_view *view), void *arg)
{
	struct hash_node *node = NULL;

	while ((node = hash_walk(&agent->clients, node))) {
		struct client *client = hash_entry(node, struct client, node);
		struct client_view view = { .pid = (int)client->cred.pid, .mode = (enum lock_mode)client->msg.mode,
					    .try = client->msg.flags & WIRE_FLAG_NONBLOCK, .since_ns = client->since_ns,
					    .waits_in_kernel = client->state == CLIENT_GO };

		if (!client->name || client->state == CLIENT_NEW)
			continue;
		view.key = client->name->key;
		memcpy(view.command, client->command, sizeof view.command);
		fn(arg, &view);
	}
}

void client_query_done(struct client *client, const struct record_buf *records, int err, const char *text)
{
	struct wire_msg msg;
	size_t at = 0;

	while (records && at < records->len) {
		size_t n = records_fit(records->data + at, records->len - at, WIRE_TEXT_MAX);

		if (!n)
			break;
		wire_init(&msg, WIRE_RECORD);
		msg.text_len = (uint32_t)n;
		if (client_send(client, &msg, records->data + at)) {
			client_close(client);	/* does not read fast enough */
			return;
		}
		at += n;
	}
	wire_init(&msg, WIRE_END);
	msg.err = err;
	msg.text_len = (uint32_t)strlen(text);
	client_send(client, &msg, text);
	client_close(client);
}
