/* SPDX-License-Identifier: MIT */
/* The wire format's two pure functions; used inside programs: libc only. */
#include "wire.h"

#include <errno.h>
#include <string.h>

int wire_parse(const void *buf, size_t n, struct wire_msg *ret_msg, const char **ret_text)
{
	struct wire_msg msg;

	if (n < sizeof msg)
		return -EPROTO;
	memcpy(&msg, buf, sizeof msg);
	if (msg.magic != WIRE_MAGIC || msg.version != WIRE_VERSION)
		return -EPROTO;
	if (msg.text_len > WIRE_TEXT_MAX || n != sizeof msg + msg.text_len)
		return -EPROTO;
	*ret_msg = msg;
	*ret_text = (const char *)buf + sizeof msg;
	return 0;
}

void wire_init(struct wire_msg *msg, enum wire_type type)
{
	memset(msg, 0, sizeof *msg);
	msg->magic = WIRE_MAGIC;
	msg->version = WIRE_VERSION;
	msg->type = (uint16_t)type;
}
