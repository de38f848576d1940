/* SPDX-License-Identifier: MIT */
/*
 * See talk.h. One connection at a time; it is closed on every return, by the end of a
 * cancelled thread, and by the thread's next call after a siglongjmp (left.h).
 */
#include "talk.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>

#include "cancel.h"
#include "connect.h"
#include "log.h"
#include "sys.h"

bool talk_is_gone(int err)
{
	return err == -ECONNRESET || err == -EPIPE || err == -ENOTCONN;
}

int talk_send(int socket, enum wire_type type, int mode, int err)
{
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.mode = (uint16_t)mode;
	msg.err = err;
	return connect_send(socket, &msg, NULL, -1);
}

int talk_send_call(const struct call *call, int socket, enum wire_type type)
{
	struct wire_msg msg;
	char name[16];

	wire_init(&msg, type);
	msg.family = (uint16_t)call->family;
	msg.mode = (uint16_t)call->mode;
	msg.flags = (call->nonblock ? WIRE_FLAG_NONBLOCK : 0) | (call->again ? WIRE_FLAG_AGAIN : 0);
	msg.fd_number = call->fd;
	msg.start = (int64_t)call->at.start;
	msg.len = extent_len(call->at);
	msg.stamp = call->stamp;
	msg.tid = (uint32_t)sys_call(SYS_gettid);
	if (prctl(PR_GET_NAME, name) == 0)
		msg.text_len = (uint32_t)strnlen(name, sizeof name);
	return connect_send(socket, &msg, name, call->fd);
}

int talk_refuse(const struct call *call, const char *why, const char *more)
{
	reach_complain(&call->reach, why, more);
	return -ENOLCK;
}

int talk_refuse_nonsense(const struct call *call)
{
	return talk_refuse(call, "the agent sent something that is no answer", NULL);
}

int talk_receive(const struct call *call, int socket, struct wire_msg *ret_msg, char text[TALK_TEXT_MAX])
{
	int err, type;

	do {
		type = cancel_open(call->cancellable);
		err = connect_receive(socket, ret_msg, text, TALK_TEXT_MAX);
		cancel_close(call->cancellable, type);
		/* Asking without waiting is never interrupted, however long the answer takes. */
	} while (err == -EINTR && call->nonblock);
	if (err == 0)
		return 0;
	if (talk_is_gone(err))
		return TALK_LOST;
	(void)talk_send(socket, WIRE_CANCEL, 0, 0);
	if (err == -EINTR)
		return -EINTR;
	if (err == -EAGAIN)
		return talk_refuse(call, "the agent does not answer", NULL);
	return talk_refuse_nonsense(call);
}

int talk_exchange(struct call *call, int (*talk)(struct call *call, int socket))
{
	int socket, err;

	for (;;) {
		err = reach_agent(&call->reach, &socket);
		if (err < 0)
			return err;
		err = talk(call, socket);
		reach_close(&call->reach);
		if (err != TALK_LOST)
			return err;
		err = reach_pause(&call->reach);
		if (err < 0)
			return err;
		if (reach_is_late(&call->reach))
			return talk_refuse(call, "the agent ends each time it is asked", NULL);
	}
}

static void abandon(void *arg)
{
	struct call *call = arg;

	/* First the lock, then the connection: the cover is there for as long as the lock is. */
	if (call->taking)
		call->ops->undo(call);
	reach_abandon(&call->reach);
}

int talk_run(struct call *call, const struct shim_state *state, int (*run)(void *call))
{
	int err;

	reach_begin(&call->reach, state, call->fd, call->nonblock, call->frame);
	call->reach.cancellable = call->cancellable;
	err = call->cancellable ? cancel_scope(run, abandon, call) : run(call);
	reach_end(&call->reach);
	return err;
}
