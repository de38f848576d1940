/* SPDX-License-Identifier: MIT */
/*
 * A pipelined connection on the loop. A command put into `out` goes to the socket
 * in the same call when nothing waits before it; one recv() takes all replies that
 * are there. Any of the owner's functions may close the connection: after each one
 * the serial is looked at again.
 */
#include "redis_conn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define OUT_KEEP 65536	/* a larger buffer is given back when empty */

static void conn_down(struct redis_conn *conn, const char *why)
{
	redis_conn_close(conn);
	conn->on_down(conn, why);
}

static const char *describe(int err)
{
	if (err == ECONNRESET || err == EPIPE || err == 0)
		return "the server closed the connection";
	if (err == ETIMEDOUT)
		return "the server cannot be reached any more";
	if (err == EPROTO)
		return "the server's answer is not Redis' protocol, or too large";
	return strerrordesc_np(err);
}

static void conn_broken(struct loop_timer *timer)
{
	struct redis_conn *conn = timer->arg;
	char why[REDIS_TEXT_MAX];

	memcpy(why, conn->why, sizeof(why));
	conn_down(conn, why);
}

/* The owner may be in the middle of a call of the agent: it hears of it in the next round. */
static void conn_fail_later(struct redis_conn *conn, int err)
{
	redis_say(conn->why, sizeof(conn->why), "%s", describe(err));
	loop_timer_set(conn->loop, &conn->broken, 0);
}

void redis_conn_flush(struct redis_conn *conn)
{
	if (!conn->up || conn->broken.slot)
		return;
	if (conn->out.failed) {
		conn_fail_later(conn, ENOMEM);
		return;
	}
	while (conn->out_done < conn->out.len) {
		ssize_t n = send(conn->io.fd, conn->out.data + conn->out_done, conn->out.len - conn->out_done,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n >= 0) {
			conn->out_done += (size_t)n;
		} else if (errno == EAGAIN) {
			loop_io_mod(conn->loop, &conn->io, EPOLLIN | EPOLLOUT);
			return;
		} else if (errno != EINTR) {
			conn_fail_later(conn, errno);
			return;
		}
	}
	conn->out.len = conn->out_done = 0;
	if (conn->out.size > OUT_KEEP)
		redis_buf_free(&conn->out);
	loop_io_mod(conn->loop, &conn->io, EPOLLIN);
}

static void conn_read(struct redis_conn *conn)
{
	char bytes[32768];
	unsigned serial = conn->serial;
	struct redis_value *value;
	ssize_t n;
	int err;

	do {
		n = recv(conn->io.fd, bytes, sizeof(bytes), MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		conn_down(conn, describe(n == 0 ? 0 : errno));
		return;
	}
	err = redis_reader_feed(conn->reader, bytes, (size_t)n);
	while (!err) {
		err = redis_reader_next(conn->reader, &value);
		if (err <= 0)
			break;
		conn->on_value(conn, value);
		redis_value_free(value);
		if (conn->serial != serial)
			return;
		err = 0;
	}
	if (err < 0)
		conn_down(conn, describe(-err));
}

static void conn_ready(struct loop_io *io, uint32_t events)
{
	struct redis_conn *conn = io->arg;
	unsigned serial = conn->serial;

	if (events & EPOLLOUT)
		redis_conn_flush(conn);
	if (conn->serial == serial && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		conn_read(conn);
}

int redis_conn_adopt(struct redis_conn *conn, struct redis_link *link)
{
	int err;

	redis_conn_close(conn);
	conn->io = (struct loop_io){ .fd = link->fd, .events = EPOLLIN, .fn = conn_ready, .arg = conn };
	err = loop_io_add(conn->loop, &conn->io);
	if (err)
		return err;
	conn->reader = link->reader;
	conn->broken.fn = conn_broken;
	conn->broken.arg = conn;
	link->fd = -1;
	link->reader = NULL;
	conn->up = true;
	conn->serial++;
	return 0;
}

void redis_conn_close(struct redis_conn *conn)
{
	if (!conn->up)
		return;
	loop_timer_stop(conn->loop, &conn->broken);
	loop_io_del(conn->loop, &conn->io);
	close(conn->io.fd);
	redis_reader_free(conn->reader);
	conn->reader = NULL;
	redis_buf_free(&conn->out);
	conn->out_done = 0;
	conn->up = false;
	conn->serial++;
}
