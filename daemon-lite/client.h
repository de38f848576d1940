/* SPDX-License-Identifier: MIT */
/*
 * A client, as client.c (the connection) and call.c (the lock call) share it.
 *
 * Life: NEW → (IDENTIFY in a helper thread for files that are not local) → WAIT
 * (the cover or the store decides) → OFFERED → GO → DEAD; or NEW → GETLK → DEAD. Its request's end is
 * told to the cover exactly once, in client_close().
 */
#ifndef DLOCK_CLIENT_H
#define DLOCK_CLIENT_H

#include <sys/socket.h>

#include "../shim/wire.h"
#include "agent.h"
#include "records.h"

enum client_state { CLIENT_NEW, CLIENT_IDENTIFY, CLIENT_WAIT, CLIENT_OFFERED, CLIENT_GO, CLIENT_GETLK, CLIENT_QUERY, CLIENT_DEAD };

struct client {
	struct agent *agent;
	struct loop_io io, process;	/* the connection; the pidfd of its program */
	struct hash_node node;
	struct list parked;
	struct list silent;
	struct ucred cred;
	enum client_state state;
	uint64_t id;
	struct name *name;		/* set by client_use_name() alone */
	struct wire_msg msg;		/* the REQUEST, STANDS or GETLK */
	struct extent at;		/* its range */
	struct getlk *getlk;		/* the other hosts are being asked */
	int fd;				/* received, until identified */
	struct identity *identity;
	enum identify_kind kind;
	bool local;			/* the file's filesystem makes nobody wait */
	int own_fd;			/* else: opened once more for the name, by the helper thread; -errno: could not */
	unsigned session;		/* of the GO */
	uint64_t valid_ns;		/* the GO counts until then */
	char *lapsed;			/* it counts no more: the name's key, and `name` is NULL */
	bool go_parked;			/* a GO that waits for the lease */
	bool looked;			/* a GO that lasts: looked whether it is part of a deadlock */
	bool closed;
	struct list answers;		/* an answer of the cover that is to be sent */
	enum cover_answer answer;
	uint64_t since_ns, go_ns;
	struct loop_timer timer;
	char command[16];
	struct record_buf out;		/* a query's answer, sent up to out_at */
	size_t out_at;
	int out_err;
	char out_text[512];
};

/* --- client.c --- */

int client_send(struct client *client, const struct wire_msg *msg, const char *text);	/* 0 or -errno; never blocks */
/* Sends a message without text; a client that cannot be reached is closed. Returns whether it lives. */
bool client_tell(struct client *client, enum wire_type type, int err, enum lock_mode mode);
void client_close(struct client *client);	/* the struct lives until the end of the round */
void client_release(struct client *client);
/* Makes it the client's name (NULL: none). A name with a client is not freed, whatever the client waits for. */
void client_use_name(struct client *client, struct name *name);
/* The connection may outlive the process in a forked child; the pidfd does not. */
void client_watch_process(struct client *client);

/* --- client_answer.c --- */

void client_answer_more(struct client *client);	/* the client can be written to again */

/* --- call.c: what a message means for the call --- */

void call_begin(struct client *client, const struct wire_msg *msg, int fd);	/* REQUEST, GETLK, or STANDS on a new connection */
void call_held(struct client *client, const struct wire_msg *msg);

/* --- call_go.c: what the cover's answer means for the program --- */

void call_give_go(struct client *client);	/* or an OFFER first, or once the lease allows it */
void call_taken(struct client *client);
void call_stands(struct client *client);	/* STANDS after GO */
void call_set_timer(struct client *client, uint64_t delay_ns);
void call_timer_fired(struct loop_timer *timer);

#endif
