/* SPDX-License-Identifier: MIT */
/*
 * F_GETLK. The kernel's answer comes first: what stands against the lock on this host is
 * the answer. Only if nothing does, other hosts matter: a standing GO says that they
 * hold nothing, else the agent is asked. It takes nothing and waits for nobody's lock.
 */
#include "getlk.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "decide.h"
#include "left.h"
#include "log.h"
#include "record_args.h"
#include "sys.h"
#include "talk.h"

#define MOMENT_NS 500000	/* the agent holds a lock of its own for much less; each further moment is twice as long */
#define MOMENTS 3

struct question {
	struct call call;	/* the first member: it is what talk_exchange() hands on */
	struct record_lock answer;
};

/* One exchange: what the agent knows of other hosts. */
static int ask(struct call *call, int socket)
{
	struct question *question = (struct question *)call;
	struct wire_msg msg;
	char text[TALK_TEXT_MAX];
	int err;

	err = talk_send_call(call, socket, WIRE_GETLK);
	if (err == -EBADF)
		return err;
	if (err < 0)
		return talk_is_gone(err) ? TALK_LOST : talk_refuse(call, "the descriptor cannot be sent to the agent: ", shim_error(err));
	err = talk_receive(call, socket, &msg, text);
	if (err != 0)
		return err;
	switch (msg.type) {
	case WIRE_LOCAL:
		return 0;
	case WIRE_ERROR:
		if (*text)
			reach_complain(&call->reach, text, NULL);
		return record_error(msg.err);
	case WIRE_LOCK:
		break;
	default:
		return talk_refuse_nonsense(call);
	}
	if (msg.mode == MODE_NONE)
		return 0;
	if (msg.mode > MODE_EX || msg.start < 0 || msg.len < 0)
		return talk_refuse_nonsense(call);
	question->answer = (struct record_lock){
		.type = msg.mode == MODE_EX ? F_WRLCK : F_RDLCK,
		.whence = SEEK_SET,
		.start = msg.start,
		.len = msg.len,
		.pid = msg.fd_number,
	};
	return 0;
}

static int exchange(void *arg)
{
	int err = talk_exchange(arg, ask);

	return err == -ENOTSUP ? 0 : err;	/* no file that distributed locks are taken on */
}

/*
 * The kernel's answer, in the program's structure. A lock that an open file description
 * holds may be the agent's own, which it takes and drops at once when it waits for a
 * lock's end: such an answer counts if it is the same a moment later.
 */
static int ask_kernel(const struct record_call *record, bool configured, struct record_lock *ret_answer)
{
	struct timespec moment = { 0, MOMENT_NS };
	int err;

	for (unsigned i = 0;; i++, moment.tv_nsec *= 2) {
		err = record_kernel(record);
		if (err < 0)
			return err;
		if (!record_read(record, ret_answer))
			return -EFAULT;
		if (!configured || i == MOMENTS || ret_answer->type == F_UNLCK || ret_answer->pid != -1)
			return 0;
		(void)record_write(record, &record->lock);
		(void)sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, NULL);
	}
}

/* Its own frame: see lock.c. */
__attribute__((noinline)) static enum decision decide_question(const struct record_call *record, uintptr_t frame, struct decided *ret_decided)
{
	return decide(record->fd, record_mode(record), DECIDE_BOUNDED | DECIDE_RECORDS, frame, ret_decided);
}

__attribute__((noinline)) static int ask_agent(const struct record_call *record, const struct decided *decided, const struct extent *at,
						uintptr_t frame, struct record_lock *ret_answer)
{
	struct question question = {
		.call = {
			.family = record->command.family, .fd = record->fd, .mode = record_mode(record), .at = *at,
			.nonblock = true, .frame = frame, .stamp = decided->stamp,
		},
		.answer = { .type = F_UNLCK },
	};
	int err = talk_run(&question.call, decided->state, exchange);

	*ret_answer = question.answer;
	return err;
}

int getlk_call(const struct record_call *record, uintptr_t frame)
{
	struct record_lock answer = { .type = F_UNLCK };
	struct decided decided;
	enum decision decision;
	struct extent at;
	int err;

	left_close(frame);
	decision = decide_question(record, frame, &decided);
	if (decision == DECIDE_KERNEL)
		return record_kernel(record);
	err = record_extent(record, &at);
	if (err == 0)
		err = ask_kernel(record, decision == DECIDE_AGENT, &answer);
	if (err < 0 || answer.type != F_UNLCK)
		return err;
	if (decision != DECIDE_AGENT)
		err = -ENOLCK;
	else if (decided.standing && standing_still(&decided.look))
		return 0;
	else
		err = ask_agent(record, &decided, &at, frame, &answer);
	if (err == 0 && answer.type != F_UNLCK)
		err = record_write(record, &answer);
	if (err < 0)
		(void)record_write(record, &record->lock);	/* a call that fails changes nothing */
	return err < 0 ? record_error(-err) : err;
}
