/* SPDX-License-Identifier: MIT */
/*
 * The life of one flock call. The kernel's lock is the lock; the agent only says
 * when the call may be made, because this host then holds the right to it.
 *
 * Invariants:
 *  - No real call that can take a lock is made without a GO, a standing GO, or LOCAL.
 *  - A lock taken is reported (DONE), or confirmed by an agent (STANDS), or
 *    undone, before this returns.
 *  - No thread, no malloc, no stdio; no cancellation point (flock(2) is none); the
 *    descriptor of one connection, closed on every return, and by the thread's
 *    next call after a siglongjmp out of here (left.h).
 *  - Nothing here ends the program, whatever the agent sends.
 */
#include "lock.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>

#include "connect.h"
#include "decide.h"
#include "held.h"
#include "left.h"
#include "log.h"
#include "reach.h"
#include "sys.h"

/* What a conversation came to: 0, an errno's negative, or one of these. */
#define LOST 1	/* the agent went away: once more, from the start */
#define VOID 2	/* the lock was undone, since the cover is gone: once more */

#define VOIDS_MAX 3	/* for a non-blocking call */
#define TEXT_MAX 320

struct call {
	int fd;
	int operation;
	enum lock_mode mode;
	bool nonblock;
	uint64_t stamp;
	struct reach reach;
};

/* What flock(2) may answer; anything else that went wrong is ENOLCK. */
static int flock_error(int err)
{
	switch (err) {
	case EBADF:
	case EINTR:
	case EINVAL:
	case ENOLCK:
	case EWOULDBLOCK:
		return -err;
	default:
		return -ENOLCK;
	}
}

static bool is_gone(int err)
{
	return err == -ECONNRESET || err == -EPIPE || err == -ENOTCONN;
}

static int send_type(int socket, enum wire_type type, int mode, int err)
{
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.mode = (uint16_t)mode;
	msg.err = err;
	return connect_send(socket, &msg, NULL, -1);
}

/* REQUEST or STANDS, which say the same about the call. */
static int send_call(const struct call *call, int socket, enum wire_type type)
{
	struct wire_msg msg;
	char name[16];

	wire_init(&msg, type);
	msg.family = FAMILY_FLOCK;
	msg.mode = (uint16_t)call->mode;
	msg.flags = call->nonblock ? WIRE_FLAG_NONBLOCK : 0;
	msg.fd_number = call->fd;
	msg.stamp = call->stamp;
	msg.tid = (uint32_t)sys_call(SYS_gettid);
	if (prctl(PR_GET_NAME, name) == 0)
		msg.text_len = (uint32_t)strnlen(name, sizeof name);
	return connect_send(socket, &msg, name, call->fd);
}

static int refuse(const struct call *call, const char *why, const char *more)
{
	reach_complain(&call->reach, why, more);
	return -ENOLCK;
}

/* Next message. 0, LOST, -EINTR (blocking calls), or -ENOLCK (logged); the last two have sent CANCEL. */
static int receive(const struct call *call, int socket, struct wire_msg *ret_msg, char text[TEXT_MAX])
{
	int err;

	do {
		err = connect_receive(socket, ret_msg, text, TEXT_MAX);
		/* Asking without waiting is never interrupted, however long the answer takes. */
	} while (err == -EINTR && call->nonblock);
	if (err == 0)
		return 0;
	if (is_gone(err))
		return LOST;
	(void)send_type(socket, WIRE_CANCEL, 0, 0);
	if (err == -EINTR)
		return -EINTR;
	if (err == -EAGAIN)
		return refuse(call, "the agent does not answer", NULL);
	return refuse(call, "the agent sent something that is no answer", NULL);
}

/* ---- after GO ---- */

/* Asks whether the cover of a lock that was taken still stands. 0 yes, -ESTALE no, or as receive(). */
static int ask_standing(const struct call *call, int socket)
{
	struct wire_msg msg;
	char text[TEXT_MAX];
	int err;

	err = send_call(call, socket, WIRE_STANDS);
	if (err < 0)
		return is_gone(err) ? LOST : refuse(call, "the agent cannot be asked: ", shim_error(err));
	err = receive(call, socket, &msg, text);
	if (err != 0)
		return err;
	if (msg.type == WIRE_ERROR)
		return refuse(call, *text ? text : "the agent refuses", NULL);
	if (msg.type != WIRE_STANDING)
		return refuse(call, "the agent sent something that is no answer", NULL);
	if (msg.err)
		return -ESTALE;
	(void)send_type(socket, WIRE_DONE, 0, 0);
	return 0;
}

/* The same on a new connection: the agent that gave the GO has gone. */
static int ask_new_agent(struct call *call)
{
	struct left before;
	int socket, err;

	for (;;) {
		err = reach_agent(&call->reach, &socket);
		if (err < 0)
			return err;
		before = left_note_socket(socket, call->reach.frame);
		err = ask_standing(call, socket);
		left_restore(before);
		sys_close(socket);
		if (err != LOST)
			return err;
		err = reach_pause(&call->reach);
		if (err < 0)
			return err;
		if (reach_is_late(&call->reach))
			return refuse(call, "the agent ends each time it is asked", NULL);
	}
}

/* The real call. valid_until_ns: when the GO ends. */
static int go(struct call *call, int socket, uint64_t valid_until_ns)
{
	int err;

	err = sys_flock(call->fd, call->operation);
	if (err < 0) {
		(void)send_type(socket, WIRE_DONE, 0, -err);
		/* After the GO's end the agent may be asking the kernel itself, and be who refuses. */
		return err == -EWOULDBLOCK && sys_now_ns(CLOCK_BOOTTIME) > valid_until_ns ? VOID : err;
	}
	if (sys_now_ns(CLOCK_BOOTTIME) <= valid_until_ns) {
		if (send_type(socket, WIRE_DONE, 0, 0) == 0)
			return 0;
		err = LOST;
	} else {
		err = ask_standing(call, socket);
	}
	if (err == LOST)
		err = ask_new_agent(call);
	if (err == 0)
		return 0;
	/* Not confirmed: it must not be held, neither now nor by the program's ignorance. */
	(void)sys_flock(call->fd, LOCK_UN);
	return err == -ESTALE ? VOID : err == -ENOTSUP ? -ENOLCK : err;
}

/* ---- before it ---- */

/* The agent wants to know what the description holds. 1: answered, go on. Else the call's result. */
static int answer_check(const struct call *call, int socket)
{
	enum lock_mode held;
	int answer, err;

	if (held_flock(call->fd, &held) < 0) {
		answer = WIRE_HELD_UNKNOWN;
	} else if (held == call->mode) {
		(void)send_type(socket, WIRE_CANCEL, 0, 0);
		return 0;
	} else {
		/* Linux drops the shared lock before it waits for the exclusive one; two such programs would wait for ever. */
		if (held == MODE_SH)
			(void)sys_flock(call->fd, LOCK_UN);
		answer = held;
	}
	err = send_type(socket, WIRE_HELD, answer, 0);
	return err == 0 ? 1 : LOST;
}

/* The whole exchange on one connection. */
static int converse(struct call *call, int socket)
{
	struct wire_msg msg;
	char text[TEXT_MAX];
	int err;

	err = send_call(call, socket, WIRE_REQUEST);
	if (err == -EBADF)
		return err;
	if (err < 0)
		return is_gone(err) ? LOST : refuse(call, "the descriptor cannot be sent to the agent: ", shim_error(err));
	for (;;) {
		err = receive(call, socket, &msg, text);
		if (err != 0)
			return err;
		switch (msg.type) {
		case WIRE_LOCAL:
			return sys_flock(call->fd, call->operation);
		case WIRE_ERROR:
			if (*text)
				reach_complain(&call->reach, text, NULL);
			return flock_error(msg.err);
		case WIRE_BUSY:
			if (!call->nonblock)
				return refuse(call, "the agent sent something that is no answer", NULL);
			return -EWOULDBLOCK;
		case WIRE_CHECK:
			err = answer_check(call, socket);
			if (err != 1)
				return err == LOST ? LOST : 0;
			break;
		case WIRE_HELD:	/* we could not see it ourselves, the agent has */
			if (msg.mode == call->mode) {
				(void)send_type(socket, WIRE_CANCEL, 0, 0);
				return 0;
			}
			(void)sys_flock(call->fd, LOCK_UN);
			if (send_type(socket, WIRE_HELD, MODE_SH, 0) < 0)
				return LOST;
			break;
		case WIRE_OFFER:
			if (send_type(socket, WIRE_TAKE, 0, 0) < 0)
				return LOST;
			break;
		case WIRE_GO:
			return go(call, socket, msg.valid_until_ns);
		default:
			return refuse(call, "the agent sent something that is no answer", NULL);
		}
	}
}

static int take(struct call *call)
{
	unsigned voids = 0;
	struct left before;
	int socket, err;

	for (;;) {
		err = reach_agent(&call->reach, &socket);
		if (err == -ENOTSUP)
			return sys_flock(call->fd, call->operation);
		if (err < 0)
			return err;
		before = left_note_socket(socket, call->reach.frame);
		err = converse(call, socket);
		left_restore(before);
		sys_close(socket);
		if (err != LOST && err != VOID)
			return err;
		if (err == VOID && call->nonblock && ++voids >= VOIDS_MAX)
			return refuse(call, "the lease ends before the lock is taken", NULL);
		err = reach_pause(&call->reach);
		if (err < 0)
			return err;
		if (reach_is_late(&call->reach))
			return refuse(call, "the agent ends each time it is asked", NULL);
	}
}

__attribute__((noinline)) static int ask(const struct shim_state *state, int fd, int operation, uint64_t stamp, uintptr_t frame)
{
	struct call call = {
		.fd = fd,
		.operation = operation,
		.mode = operation & LOCK_EX ? MODE_EX : MODE_SH,
		.nonblock = operation & LOCK_NB,
		.stamp = stamp,
	};
	int err;

	reach_begin(&call.reach, state, fd, call.nonblock, frame);
	err = take(&call);
	reach_end(&call.reach);
	return err < 0 ? flock_error(-err) : err;
}

/* Its own frame, and not the one of the wait: a path of 4 kB must not stay on a small stack. */
__attribute__((noinline)) static enum decision decide_flock(int fd, enum lock_mode mode, int operation, uintptr_t frame,
							    struct decided *ret_decided)
{
	return decide(fd, mode, operation & LOCK_NB, frame, ret_decided);
}

/* Whether the lock that was taken under a standing GO may be kept although the GO has ended meanwhile. 0 yes, -ESTALE no, or as receive(). */
__attribute__((noinline)) static int ask_about_taken(const struct decided *decided, int fd, int operation, uintptr_t frame)
{
	struct call call = {
		.fd = fd, .operation = operation, .nonblock = operation & LOCK_NB, .stamp = decided->stamp,
		.mode = operation & LOCK_EX ? MODE_EX : MODE_SH,
	};
	int err;

	reach_begin(&call.reach, decided->state, fd, call.nonblock, frame);
	err = ask_new_agent(&call);
	reach_end(&call.reach);
	return err;
}

/*
 * With a standing GO: the real call, then a look whether it stood all the time.
 * Never waits in the kernel here: a wait must be the agent's to see. Returns
 * VOID when the agent has to be asked from the start.
 */
static int take_standing(const struct decided *decided, int fd, int operation, uintptr_t frame)
{
	int err = sys_flock(fd, operation | LOCK_NB);

	if (err == -EWOULDBLOCK)	/* by a program of this host, unless the agent itself was probing */
		return operation & LOCK_NB && standing_still(&decided->look) ? err : VOID;
	if (err < 0 || standing_still(&decided->look))
		return err;
	err = ask_about_taken(decided, fd, operation, frame);
	if (err == 0)
		return 0;
	(void)sys_flock(fd, LOCK_UN);
	return err == -ESTALE || err == -ENOTSUP ? VOID : err;
}

__attribute__((noinline)) int lock_flock(int fd, int operation)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
	enum lock_mode mode = operation & LOCK_EX ? MODE_EX : MODE_SH;
	struct decided decided;
	int err;

	/* Unlocking is the kernel's alone, and it answers what is not valid. */
	if ((operation & ~LOCK_NB) != LOCK_SH && (operation & ~LOCK_NB) != LOCK_EX)
		return sys_flock(fd, operation);
	left_close(frame);
	switch (decide_flock(fd, mode, operation, frame, &decided)) {
	case DECIDE_AGENT:
		err = decided.standing ? take_standing(&decided, fd, operation, frame) : VOID;
		if (err == VOID)
			err = ask(decided.state, fd, operation, decided.stamp, frame);
		return err < 0 ? flock_error(-err) : err;
	case DECIDE_REFUSE:
		return -ENOLCK;
	case DECIDE_EINTR:
		return -EINTR;
	case DECIDE_KERNEL:
		break;
	}
	return sys_flock(fd, operation);
}
