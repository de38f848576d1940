/* SPDX-License-Identifier: MIT */
/*
 * The answer of a query on its way to the client. It can be larger than a
 * socket takes at once (thousands of locks), and the loop never waits: what does
 * not fit is kept and sent when the client has read. A client that does not read
 * for ten seconds is dropped.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent.h"
#include "client.h"
#include "records.h"

#define READ_TIME_NS 10000000000u

static void late(struct loop_timer *timer)
{
	client_close(timer->arg);
}

static int send_text(struct client *client, enum wire_type type, int err, const char *text, size_t len)
{
	struct wire_msg msg;

	wire_init(&msg, type);
	msg.err = err;
	msg.text_len = (uint32_t)len;
	return client_send(client, &msg, text);
}

/* The rest of the answer, as far as the socket takes it: 0 when all is sent. */
static int send_rest(struct client *client)
{
	const struct record_buf *out = &client->out;

	while (client->out_at < out->len) {
		size_t n = records_fit(out->data + client->out_at, out->len - client->out_at, WIRE_TEXT_MAX);
		int err;

		if (!n)
			return -EMSGSIZE;
		err = send_text(client, WIRE_RECORD, 0, out->data + client->out_at, n);
		if (err)
			return err;
		client->out_at += n;
	}
	return send_text(client, WIRE_END, client->out_err, client->out_text, strlen(client->out_text));
}

void client_answer_more(struct client *client)
{
	size_t before = client->out_at;
	int err = send_rest(client);

	if (err != -EAGAIN) {
		client_close(client);
		return;
	}
	if (!(client->io.events & EPOLLOUT))
		loop_io_mod(client->agent->loop, &client->io, client->io.events | EPOLLOUT);
	if (client->out_at == before && client->timer.slot)
		return;
	client->timer.fn = late;
	if (loop_timer_set(client->agent->loop, &client->timer, loop_now_ns() + READ_TIME_NS))
		client_close(client);
}

void client_query_done(struct client *client, const struct record_buf *records, int err, const char *text)
{
	if (records)
		records_append(&client->out, records->data, records->len);
	client->out_err = client->out.err ? ENOMEM : err;
	strncpy(client->out_text, text, sizeof client->out_text - 1);
	client_answer_more(client);
}
