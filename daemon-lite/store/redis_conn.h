/* SPDX-License-Identifier: MIT */
/*
 * A connection on the loop: commands are written at once, replies come in order.
 * Loop's thread only. Rather than hiredis' asynchronous context, whose writes wait
 * for the next round of the loop and which frees itself inside callbacks.
 */
#ifndef DLOCK_REDIS_CONN_H
#define DLOCK_REDIS_CONN_H

#include "../loop.h"
#include "redis_link.h"

struct redis_conn {		/* zeroed, then loop, arg and the functions set */
	struct loop *loop;
	void *arg;
	void (*on_value)(struct redis_conn *conn, const struct redis_value *value);
	void (*on_down)(struct redis_conn *conn, const char *why);	/* it is closed already; never from inside a call */

	bool up;
	unsigned serial;	/* raised by each open and close */
	struct loop_io io;
	struct loop_timer broken;	/* tells of a failed write in the next round */
	struct redis_reader *reader;
	struct redis_buf out;
	size_t out_done;
	char why[REDIS_TEXT_MAX];
};

/* Takes over an open link (which is closed then, without its descriptor). 0 or -errno. */
int redis_conn_adopt(struct redis_conn *conn, struct redis_link *link);
void redis_conn_close(struct redis_conn *conn);	/* no function is called */
/* Writes what has been put into conn->out, as far as the socket takes it. */
void redis_conn_flush(struct redis_conn *conn);

#endif
