/* SPDX-License-Identifier: MIT */
/*
 * `dlock init`: declares a store new, so that the first agents need not wait for
 * hosts that might hold something. One blocking exchange, no session.
 */
#include <errno.h>
#include <string.h>

#include "../../config/config.h"
#include "../loop.h"
#include "redis_script.h"
#include "store.h"

#define MS 1000000ull

static int init_call(struct redis_link *link, const struct redis_door *door, const struct config *config,
		     char shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE], char *ret_text, size_t text_size)
{
	uint64_t deadline = loop_now_ns() + door->connect_timeout_ms * MS;
	char prefix[REDIS_PREFIX_SIZE];
	struct redis_caller caller = { .prefix = prefix, .host = "", .token = "", .role = "cmd", .inc = "", .ttl_ms = config->ttl_ms };
	struct redis_header header;
	struct redis_value *reply;
	enum redis_answer answer;

	redis_say(prefix, sizeof(prefix), "dlock:{%s/0}:", config->name_space);
	redis_script_begin(&link->out, LUA_INIT, shas[LUA_INIT], true, &caller, 0);
	if (redis_link_flush(link, deadline) < 0 || redis_link_read(link, deadline, &reply) < 0) {
		redis_say(ret_text, text_size, "Redis at %s: %s", door->target.label, link->error);
		return -EIO;
	}
	answer = redis_script_answer(reply, &header);
	redis_value_free(reply);
	switch (answer) {
	case ANSWER_OK:
		redis_say(ret_text, text_size, "namespace %s on Redis at %s is declared new", config->name_space, door->target.label);
		return 0;
	case ANSWER_EXISTS:
		redis_say(ret_text, text_size, "namespace %s on Redis at %s is in use already: nothing was changed", config->name_space, door->target.label);
		return -EEXIST;
	case ANSWER_ROLE:
		redis_say(ret_text, text_size, "Redis at %s is a replica; locks need the primary: check `redis.servers`", door->target.label);
		return -EROFS;
	default:
		redis_say(ret_text, text_size, "Redis at %s refuses: %s", door->target.label, header.text);
		return -EIO;
	}
}

int store_redis_init(const struct config *config, char *ret_text, size_t text_size)
{
	struct redis_link link = { .fd = -1, .cancel_fd = -1 };
	struct redis_addresses addresses = { .count = 0 };
	char shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE] = { { 0 } };
	struct redis_door *door;
	enum redis_open_result result;
	int err;

	err = redis_door_new(config, &door, ret_text, text_size);
	if (err)
		return err;
	result = redis_link_open(&link, door, &addresses, OPEN_COMMANDS, NULL, loop_now_ns() + door->connect_timeout_ms * MS, shas);
	if (result == OPEN_OK) {
		err = init_call(&link, door, config, shas, ret_text, text_size);
	} else {
		redis_say(ret_text, text_size, "%s", link.error);
		err = result == OPEN_REFUSED ? -EACCES : -EHOSTDOWN;
	}
	redis_link_close(&link);
	redis_door_free(door);
	return err;
}
