/* SPDX-License-Identifier: MIT */
/*
 * One connection of a program (see shim/wire.h): its messages, its credentials,
 * its end. What a lock call comes to is decided in call.c.
 *
 * Nothing a client sends is trusted: sizes, types, order and the descriptor are
 * checked; a client that breaks the order is told EPROTO and dropped. Nothing
 * sent to a client may block: its socket is non-blocking and a client that does
 * not read is dropped when its buffer is full.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../config/config.h"
#include "../shim/wire.h"
#include "agent.h"
#include "client.h"
#include "getlk.h"
#include "klock.h"
#include "query.h"
#include "records.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define FD_RESERVE 40	/* descriptors kept for the store, names and pidfds */
#define ACCEPT_ROUND 64	/* connections taken in one round, so that nobody else starves */

int client_send(struct client *client, const struct wire_msg *msg, const char *text)
{
	struct iovec iov[2] = { { (void *)msg, sizeof *msg }, { (void *)text, msg->text_len } };
	struct msghdr hdr = { .msg_iov = iov, .msg_iovlen = msg->text_len ? 2 : 1 };

	return sendmsg(client->io.fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Sends a message without text; a client that cannot be reached is dropped. Returns whether it lives. */
bool client_tell(struct client *client, enum wire_type type, int err, enum lock_mode mode)
{
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.err = err;
	msg.mode = (uint16_t)mode;
	if (type == WIRE_GO)
		msg.valid_until_ns = client->valid_ns;
	if (type == WIRE_GO && client->name)
		msg.fence = client->name->cover.top_fence;
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

void client_release(struct client *client)
{
	record_buf_free(&client->out);
	free(client->identity);
	free(client->lapsed);
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

void client_use_name(struct client *client, struct name *name)
{
	if (client->name)
		client->name->clients--;
	client->name = name;
	if (name)
		name->clients++;
}

void client_close(struct client *client)
{
	struct agent *agent = client->agent;
	struct name *name = client->name;
	enum client_state state = client->state;

	if (client->closed)
		return;
	client->closed = true;
	client->state = CLIENT_DEAD;
	loop_timer_stop(agent->loop, &client->timer);
	getlk_cancel(client->getlk);
	loop_io_del(agent->loop, &client->io);
	close(client->io.fd);
	if (client->process.fd >= 0) {
		loop_io_del(agent->loop, &client->process);
		close(client->process.fd);
	}
	if (state != CLIENT_IDENTIFY) {
		helper_close(agent->loop, client->fd, client->local);
		helper_close(agent->loop, client->own_fd, client->local);
	}
	list_remove(&client->parked);
	list_remove(&client->answers);
	list_remove(&client->silent);
	hash_remove(&agent->clients, &client->node);
	agent->client_count--;
	agent->busy_ns = loop_now_ns();
	client_use_name(client, NULL);
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

const char *client_info(const struct client *client, char *buf, size_t size)
{
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
void client_watch_process(struct client *client)
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

/* The program's name for people, as it says itself (it could set /proc/PID/comm as well). */
static void note_command(struct client *client, const char *text, size_t len)
{
	size_t n = strnlen(text, len);

	if (n > sizeof client->command - 1)
		n = sizeof client->command - 1;
	memcpy(client->command, text, n);
	client->command[n] = 0;
}

static void on_message(struct client *client, const struct wire_msg *msg, const char *text, int fd)
{
	struct agent *agent = client->agent;
	char query[QUERY_VERB_MAX];

	if (fd >= 0 && !(client->state == CLIENT_NEW && (msg->type == WIRE_REQUEST || msg->type == WIRE_STANDS || msg->type == WIRE_GETLK)) &&
	    !(client->state == CLIENT_GO && msg->type == WIRE_STANDS)) {
		close(fd);
		fd = -1;
	}
	switch (msg->type) {
	case WIRE_REQUEST:
	case WIRE_GETLK:
		if (client->state != CLIENT_NEW)
			break;
		note_command(client, text, msg->text_len);
		call_begin(client, msg, fd);
		return;
	case WIRE_STANDS:
		if (client->state == CLIENT_NEW) {
			call_begin(client, msg, fd);
			return;
		}
		if (client->state != CLIENT_GO)
			break;
		if (fd >= 0)
			close(fd);
		call_stands(client);
		return;
	case WIRE_HELD:
		if (client->state != CLIENT_WAIT)
			break;
		call_held(client, msg);
		return;
	case WIRE_TAKE:
		if (client->state != CLIENT_OFFERED)
			break;
		call_taken(client);
		return;
	case WIRE_DONE:
		if (client->state == CLIENT_GO && client->name && !msg->err) {
			client->name->held_ns = loop_now_ns();
			client->name->held_mode = (enum lock_mode)client->msg.mode;
			client->name->held_pid = client->cred.pid;
		}
		client_close(client);
		return;
	case WIRE_CANCEL:
		client_close(client);
		return;
	case WIRE_RULES:
		if (client->state != CLIENT_NEW)
			break;
		agent_check_config(agent);
		agent_check_rules(agent);
		if (agent_is_replaced(agent))
			client_close(client);
		else if (agent->config_error[0])
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
	/* CMSG_LEN: in the padding of CMSG_SPACE the kernel would put a second descriptor that nobody closes. */
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = CMSG_LEN(sizeof(int)) };
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
	list_remove(&client->silent);
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

/*
 * Reads what the programs with a GO for this name have sent already. Before a try
 * may be refused on account of a GO: its DONE may lie unread in a socket, sent
 * before the lock was let go and the try made, and that would be a refusal
 * though nobody holds.
 */
void clients_hear(struct name *name)
{
	for (size_t i = 0; i < name->cover.request_count;) {
		const struct cover_request *request = &name->cover.requests[i];
		uint64_t id = request->id;
		struct client *client = request->state == REQUEST_GO ? client_find(name->agent, id) : NULL;

		if (client && client->state == CLIENT_GO)
			client_readable(client);
		/* It may be gone from here, and others with it. */
		if (i < name->cover.request_count && name->cover.requests[i].id == id)
			i++;
	}
}

static void client_event(struct loop_io *io, uint32_t events)
{
	struct client *client = io->arg;

	if ((events & EPOLLOUT) && !(events & (EPOLLHUP | EPOLLERR)))
		client_answer_more(client);
	else if (events & EPOLLIN)
		client_readable(client);
	else if (events & (EPOLLHUP | EPOLLERR))
		client_close(client);
}

void client_accept(struct agent *agent, int listen_fd)
{
	static uid_t self = (uid_t)-1;
	static int fd_most;

	if (self == (uid_t)-1) {
		struct rlimit limit;

		self = geteuid();
		fd_most = getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > INT_MAX ? INT_MAX : (int)limit.rlim_cur;
		fd_most -= FD_RESERVE;
	}
	for (int i = 0; i < ACCEPT_ROUND; i++) {
		struct client *client;
		socklen_t len = sizeof client->cred;
		int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				agent_pause_accepting(agent, errno);
			return;
		}
		client = calloc(1, sizeof *client);
		if (!client) {
			close(fd);
			return;
		}
		client->agent = agent;
		client->fd = client->own_fd = client->process.fd = -1;
		client->io = (struct loop_io){ .fd = fd, .events = EPOLLIN, .fn = client_event, .arg = client };
		client->timer = (struct loop_timer){ .fn = call_timer_fired, .arg = client };
		list_init(&client->parked);
		list_init(&client->answers);
		list_init(&client->silent);
		client->since_ns = loop_now_ns();
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
		list_append(&agent->silent, &client->silent);
		client_readable(client);
		if (fd >= fd_most) {
			agent_pause_accepting(agent, EMFILE);
			return;
		}
	}
}

/* A shim that was stopped between connecting and asking connects again. */
void clients_drop_silent(struct agent *agent, uint64_t since_ns)
{
	while (agent->silent.next != &agent->silent) {
		struct client *client = list_entry(agent->silent.next, struct client, silent);

		if (client->since_ns > since_ns)
			return;
		client_close(client);
	}
}

void clients_each(struct agent *agent, void (*fn)(void *arg, const struct client_view *view), void *arg)
{
	struct hash_node *node = NULL;

	while ((node = hash_walk(&agent->clients, node))) {
		struct client *client = hash_entry(node, struct client, node);
		struct client_view view = { .pid = (int)client->cred.pid, .mode = (enum lock_mode)client->msg.mode,
					    .try = client->msg.flags & WIRE_FLAG_NONBLOCK, .since_ns = client->since_ns,
					    .go_ns = client->go_ns, .waits_in_kernel = client->state == CLIENT_GO,
					    .family = (enum wire_family)client->msg.family };

		if ((!client->name && !client->lapsed) || client->state == CLIENT_NEW)
			continue;
		view.at = client->at;
		view.key = client->name ? client->name->key : client->lapsed;
		memcpy(view.command, client->command, sizeof view.command);
		fn(arg, &view);
	}
}
