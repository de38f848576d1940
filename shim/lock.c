/* SPDX-License-Identifier: MIT */
/*
 * The life of one call that takes a lock, of whichever family. The kernel's lock is
 * the lock; the agent only says when the call may be made, because this host then
 * holds the right to it.
 *
 * Invariants:
 *  - No real call that can take a lock is made without a GO, a standing GO, or LOCAL.
 *  - A lock taken is reported (DONE), or confirmed by an agent (STANDS), or
 *    undone, before this returns or the thread is cancelled.
 *  - No thread, no malloc, no stdio; a cancellation point only where the call is one; the
 *    descriptor of one connection, closed on every return, and by the thread's
 *    next call after a siglongjmp out of here (left.h).
 *  - No descriptor of the locked file is opened or closed: its POSIX locks would be gone.
 *  - Nothing here ends the program, whatever the agent sends.
 */
#include "lock.h"

#include <errno.h>
#include <sys/stat.h>

#include "decide.h"
#include "left.h"
#include "log.h"
#include "sys.h"
#include "talk.h"

/* What a conversation came to: 0, an errno's negative, TALK_LOST, or one of these. */
#define VOID 2	/* the lock was undone, since the cover is gone: once more */
#define TAKEN 3	/* the lock is taken, but this agent cannot confirm it */

#define VOIDS_MAX 3	/* for a non-blocking call */

/* ---- after GO ---- */

/* Asks whether the cover of a lock that was taken still stands. 0 yes, -ESTALE no, or as talk_receive(). */
static int ask_standing(struct call *call, int socket)
{
	struct wire_msg msg;
	char text[TALK_TEXT_MAX];
	int err;

	err = talk_send_call(call, socket, WIRE_STANDS);
	if (err < 0)
		return talk_is_gone(err) ? TALK_LOST : talk_refuse(call, "the agent cannot be asked: ", shim_error(err));
	err = talk_receive(call, socket, &msg, text);
	if (err != 0)
		return err;
	if (msg.type == WIRE_ERROR)
		return talk_refuse(call, *text ? text : "the agent refuses", NULL);
	if (msg.type != WIRE_STANDING)
		return talk_refuse_nonsense(call);
	if (msg.err)
		return -ESTALE;
	(void)talk_send(socket, WIRE_DONE, 0, 0);
	return 0;
}

/* Keeps the lock that was taken if it was confirmed (err is 0); else it must not be held, neither now nor by the program's ignorance. */
static int keep_or_undo(struct call *call, int err)
{
	if (err != 0) {
		call->ops->undo(call);
		call->again = true;
	}
	call->taking = false;
	return err == -ESTALE || err == -ENOTSUP ? VOID : err;
}

/* Asks an agent on a new connection: the one that gave the GO has gone, or none did. */
static int confirm(struct call *call)
{
	return keep_or_undo(call, talk_exchange(call, ask_standing));
}

/* The real call. valid_until_ns: when the GO ends. */
static int go(struct call *call, int socket, uint64_t valid_until_ns)
{
	int err;

	if (call->ops->note)
		call->ops->note(call);
	call->taking = true;
	err = call->ops->take(call);
	if (err < 0) {
		call->taking = false;
		(void)talk_send(socket, WIRE_DONE, 0, -err);
		/* After the GO's end the agent may be asking the kernel itself, and be who refuses. */
		return err == -EWOULDBLOCK && sys_now_ns(CLOCK_BOOTTIME) > valid_until_ns ? VOID : err;
	}
	if (sys_now_ns(CLOCK_BOOTTIME) <= valid_until_ns) {
		if (talk_send(socket, WIRE_DONE, 0, 0) < 0)
			return TAKEN;
		call->taking = false;
		return 0;
	}
	err = ask_standing(call, socket);
	return err == TALK_LOST ? TAKEN : keep_or_undo(call, err);
}

/* ---- before it ---- */

/* Tells the agent what is held, or ends the call since the lock is held already (err is 1). Returns 0 with *ret_over. */
static int answer_held(int socket, int err, int mode, bool *ret_over)
{
	*ret_over = err == 1;
	if (*ret_over) {
		(void)talk_send(socket, WIRE_CANCEL, 0, 0);
		return 0;
	}
	return talk_send(socket, WIRE_HELD, err < 0 ? WIRE_HELD_UNKNOWN : mode, 0) < 0 ? TALK_LOST : 0;
}

/*
 * During a wait another thread may close the descriptor, and its number become another file's: a lock
 * there would be one that nobody asked for. The kernel, which waits with the file in hand, gives EBADF.
 */
static bool is_same_file(struct call *call)
{
	struct stat st;

	if (fstat(call->fd, &st) < 0)
		return false;
	if (!call->asked) {
		call->dev = st.st_dev;
		call->ino = st.st_ino;
	}
	return st.st_dev == call->dev && st.st_ino == call->ino;
}

/* The whole exchange on one connection. */
static int converse(struct call *call, int socket)
{
	struct wire_msg msg;
	char text[TALK_TEXT_MAX];
	int err, mode = MODE_NONE;
	bool over = false;

	if (!is_same_file(call))
		return -EBADF;
	call->asked = true;
	err = talk_send_call(call, socket, WIRE_REQUEST);
	if (err == -EBADF)
		return err;
	if (err < 0)
		return talk_is_gone(err) ? TALK_LOST : talk_refuse(call, "the descriptor cannot be sent to the agent: ", shim_error(err));
	for (;;) {
		err = talk_receive(call, socket, &msg, text);
		if (err != 0)
			return err;
		switch (msg.type) {
		case WIRE_LOCAL:
			return call->ops->take(call);
		case WIRE_ERROR:
			if (*text)
				reach_complain(&call->reach, text, NULL);
			return call->ops->error(msg.err);
		case WIRE_BUSY:
			return call->nonblock ? -EWOULDBLOCK : talk_refuse_nonsense(call);
		case WIRE_CHECK:
			err = call->ops->held(call, &mode);
			err = answer_held(socket, err, mode, &over);
			break;
		case WIRE_HELD:	/* we could not see it ourselves, the agent has */
			if (!call->ops->seen)
				return talk_refuse_nonsense(call);
			err = answer_held(socket, call->ops->seen(call, msg.mode), MODE_SH, &over);
			break;
		case WIRE_OFFER:
			if (!is_same_file(call)) {
				(void)talk_send(socket, WIRE_CANCEL, 0, 0);
				return -EBADF;
			}
			err = talk_send(socket, WIRE_TAKE, 0, 0) < 0 ? TALK_LOST : 0;
			break;
		case WIRE_GO:
			return go(call, socket, msg.valid_until_ns);
		default:
			return talk_refuse_nonsense(call);
		}
		if (err != 0 || over)
			return err;
	}
}

static int take(void *arg)
{
	struct call *call = arg;
	unsigned voids = 0;
	int err;

	for (;;) {
		err = talk_exchange(call, converse);
		if (err == -ENOTSUP)
			return call->ops->take(call);
		if (err == TAKEN)
			err = confirm(call);
		if (err != VOID)
			return err;
		if (call->nonblock && ++voids >= VOIDS_MAX)
			return talk_refuse(call, "the lease ends before the lock is taken", NULL);
		err = reach_pause(&call->reach);
		if (err < 0)
			return err;
		if (reach_is_late(&call->reach))
			return talk_refuse(call, "the agent ends each time it is asked", NULL);
	}
}

static int confirm_taken(void *arg)
{
	return confirm(arg);
}

/* ---- without asking ---- */

/*
 * With a standing GO: the real call, then a look whether it stood all the time.
 * Never waits in the kernel here: a wait must be the agent's to see. Returns
 * VOID when the agent has to be asked from the start.
 */
static int take_standing(struct call *call, const struct decided *decided)
{
	int err;

	if (call->ops->note)
		call->ops->note(call);
	err = call->ops->try(call);
	if (err == -EWOULDBLOCK)	/* by a program of this host, unless the agent itself was probing */
		return call->nonblock && standing_still(&decided->look) ? err : VOID;
	if (err < 0 || standing_still(&decided->look))
		return err;
	call->taking = true;
	return talk_run(call, decided->state, confirm_taken);
}

/* Its own frame, and not the one of the wait: a path of 4 kB must not stay on a small stack. */
__attribute__((noinline)) static enum decision decide_call(const struct call *call, struct decided *ret_decided)
{
	return decide(call->fd, call->mode,
		      (call->nonblock ? DECIDE_BOUNDED : 0) | (call->cancellable ? DECIDE_CANCELLABLE : 0) |
		      (call->family == FAMILY_FLOCK ? 0 : DECIDE_RECORDS), call->frame, ret_decided);
}

int lock_call(struct call *call)
{
	struct decided decided;
	int err;

	left_close(call->frame);
	switch (decide_call(call, &decided)) {
	case DECIDE_AGENT:
		break;
	case DECIDE_REFUSE:
		return -ENOLCK;
	case DECIDE_EINTR:
		return -EINTR;
	case DECIDE_KERNEL:
		return LOCK_KERNEL;
	}
	call->stamp = decided.stamp;
	if (call->ops->prepare) {
		err = call->ops->prepare(call);
		if (err != 0)
			return err;
	}
	err = decided.standing ? take_standing(call, &decided) : VOID;
	if (err == VOID) {
		if (call->ops->refused && call->ops->refused(call))
			return LOCK_KERNEL;
		err = talk_run(call, decided.state, take);
	}
	return err < 0 ? call->ops->error(-err) : err;
}
