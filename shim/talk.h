/* SPDX-License-Identifier: MIT */
/* The conversation of a call with the agent: what all of its parts have in common. */
#ifndef DLOCK_SHIM_TALK_H
#define DLOCK_SHIM_TALK_H

#include "call.h"
#include "wire.h"

#define TALK_LOST 1	/* the agent went away: once more, from the start */
#define TALK_TEXT_MAX 320

/* Sends a message that has a type, a mode and an errno at most. 0 or -errno. */
int talk_send(int socket, enum wire_type type, int mode, int err);

/* Sends REQUEST, STANDS or GETLK, which say the same about the call. 0 or -errno. */
int talk_send_call(const struct call *call, int socket, enum wire_type type);

/* Next message. 0, TALK_LOST, -EINTR (calls that wait), or -ENOLCK (logged); the last two have sent CANCEL. */
int talk_receive(const struct call *call, int socket, struct wire_msg *ret_msg, char text[TALK_TEXT_MAX]);

/* Logs why the call fails. Returns -ENOLCK. more may be NULL. */
int talk_refuse(const struct call *call, const char *why, const char *more);

/* The same for a message that does not belong here. */
int talk_refuse_nonsense(const struct call *call);

/*
 * Connects and calls talk(call, socket), as often as that returns TALK_LOST. Returns
 * its other results, or as reach_agent(); -ENOLCK (logged) when the time of a bounded call is over.
 */
int talk_exchange(struct call *call, int (*talk)(struct call *call, int socket));

/* Around all exchanges of a call: begins its reach, runs, and ends it; if the thread is cancelled, undoes a lock that nobody has confirmed. */
int talk_run(struct call *call, const struct shim_state *state, int (*run)(void *call));

/* Whether an error says that the other end is gone. */
bool talk_is_gone(int err);

#endif
