/* SPDX-License-Identifier: MIT */
/*
 * The first words on a connection: password, database, is this a server that we
 * can use, the scripts; or the subscription. All of it goes out in one write, so a
 * connection costs two round trips however much is checked.
 */
#include "redis_open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../config/config.h"
#include "redis_script.h"

#define OLDEST_MAJOR 7

int redis_door_new(const struct config *config, struct redis_door **ret_door, char *ret_text, size_t text_size)
{
	struct redis_door *door;

	if (config->redis.server_count != 1) {
		redis_say(ret_text, text_size, "`redis.servers` must name exactly one server");
		return -EINVAL;
	}
	if (config->redis.min_replicas != 0) {
		redis_say(ret_text, text_size, "`redis.min_replicas` must be 0: replicas are not supported yet");
		return -EINVAL;
	}
	door = calloc(1, sizeof(*door));
	if (!door)
		return -ENOMEM;
	if (redis_target_parse(config->redis.servers[0], &door->target, ret_text, text_size) < 0) {
		redis_door_free(door);
		return -EINVAL;
	}
	door->config = calloc(1, sizeof(*door->config));
	if (!door->config)
		goto no_memory;
	/* A copy of the little that is needed: the caller may read its configuration anew. */
	if (config->file && !(door->config->file = strdup(config->file)))
		goto no_memory;
	if (config->redis.user && !(door->config->redis.user = strdup(config->redis.user)))
		goto no_memory;
	if (config->redis.password_file && !(door->config->redis.password_file = strdup(config->redis.password_file)))
		goto no_memory;
	door->connect_timeout_ms = config->redis.connect_timeout_ms ? config->redis.connect_timeout_ms : 2000;
	door->silence_ms = config->ttl_ms / 3 > 1000 ? config->ttl_ms / 3 : 1000;
	*ret_door = door;
	return 0;

no_memory:
	redis_door_free(door);
	redis_say(ret_text, text_size, "out of memory");
	return -ENOMEM;
}

void redis_door_free(struct redis_door *door)
{
	if (!door)
		return;
	if (door->config) {
		free(door->config->file);
		free(door->config->redis.user);
		free(door->config->redis.password_file);
		free(door->config);
	}
	free(door);
}

/* --- checks of the server --- */

/* Copies the value of a line `name:value` of an INFO reply. */
static bool info_field(const struct redis_value *info, const char *name, char *buf, size_t size)
{
	size_t name_len = strlen(name);
	const char *line = info->str;

	if (info->type != VALUE_STRING)
		return false;
	while (line) {
		if (!strncmp(line, name, name_len) && line[name_len] == ':') {
			size_t len = strcspn(line + name_len + 1, "\r\n");

			if (len >= size)
				len = size - 1;
			memcpy(buf, line + name_len + 1, len);
			buf[len] = '\0';
			return true;
		}
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return false;
}

const char *redis_check_policy(const struct redis_value *info, const char *label, char *buf, size_t size)
{
	char policy[64];

	if (!info_field(info, "maxmemory_policy", policy, sizeof(policy)) || strncmp(policy, "allkeys-", 8) != 0)
		return NULL;
	redis_say(buf, size, "Redis at %s may throw locks away when its memory is full: its maxmemory-policy is %s; "
		 "set it to noeviction (or a volatile-… policy): CONFIG SET maxmemory-policy noeviction", label, policy);
	return buf;
}

static const char *check_version(const struct redis_value *info, const char *label, char *buf, size_t size)
{
	char version[32];

	if (!info_field(info, "redis_version", version, sizeof(version)))
		redis_say(buf, size, "the server at %s does not say which version of Redis it is; is it Redis?", label);
	else if (atoi(version) < OLDEST_MAJOR)
		redis_say(buf, size, "Redis at %s is version %s; dlockshim needs 7.0 or newer", label, version);
	else
		return NULL;
	return buf;
}

/* --- the conversation --- */

struct opening {
	struct redis_link *link;
	const struct redis_door *door;
	uint64_t deadline_ns;
	bool has_auth;
};

static enum redis_open_result opening_down(struct opening *opening)
{
	char why[REDIS_TEXT_MAX];

	memcpy(why, opening->link->error, sizeof(why));
	redis_say(opening->link->error, sizeof(opening->link->error), "Redis at %s: %s", opening->door->target.label, why);
	return OPEN_DOWN;
}

static enum redis_open_result opening_refused(struct opening *opening, const char *step, const struct redis_value *reply)
{
	struct redis_link *link = opening->link;
	struct redis_header header = { 0 };
	enum redis_answer answer = ANSWER_FAILED;
	const char *advice = "";

	if (reply->type == VALUE_ERROR)
		answer = redis_script_answer(reply, &header);
	else
		strcpy(header.text, "not the answer that Redis gives");
	if (redis_value_is_error(reply, "NOAUTH"))
		advice = "; name a file with the password: redis.password_file";
	else if (redis_value_is_error(reply, "WRONGPASS") || !strcmp(step, "AUTH"))
		advice = "; check redis.password_file and redis.user";
	else if (redis_value_is_error(reply, "NOPERM"))
		advice = "; see docs/OPERATIONS.md for the commands that the user needs";
	redis_say(link->error, sizeof(link->error), "Redis at %s refuses %s: %s%s", opening->door->target.label, step, header.text, advice);
	return answer == ANSWER_RETRY ? OPEN_DOWN : OPEN_REFUSED;
}

/* Reads one reply that must be of this type; the value is the caller's. */
static enum redis_open_result opening_read(struct opening *opening, const char *step, enum redis_value_type type, struct redis_value **ret_value)
{
	struct redis_value *value;
	enum redis_open_result result;

	if (redis_link_read(opening->link, opening->deadline_ns, &value) < 0)
		return opening_down(opening);
	if (value->type == type) {
		*ret_value = value;
		return OPEN_OK;
	}
	result = opening_refused(opening, step, value);
	redis_value_free(value);
	return result;
}

static enum redis_open_result opening_ok(struct opening *opening, const char *step)
{
	struct redis_value *value;
	enum redis_open_result result = opening_read(opening, step, VALUE_STATUS, &value);

	if (result == OPEN_OK)
		redis_value_free(value);
	return result;
}

static enum redis_open_result put_auth(struct opening *opening)
{
	const struct config *config = opening->door->config;
	char password[1024];
	struct config_error error = { 0 };
	int len;

	if (!config->redis.password_file)
		return OPEN_OK;
	len = config_read_password(config, password, sizeof(password), &error);
	if (len < 0) {
		redis_say(opening->link->error, sizeof(opening->link->error), "%s", error.text);
		return OPEN_REFUSED;
	}
	redis_buf_command(&opening->link->out, config->redis.user ? 3 : 2);
	redis_buf_text(&opening->link->out, "AUTH");
	if (config->redis.user)
		redis_buf_text(&opening->link->out, config->redis.user);
	redis_buf_arg(&opening->link->out, password, (size_t)len);
	explicit_bzero(password, sizeof(password));
	opening->has_auth = true;
	return OPEN_OK;
}

static void put_words(struct redis_buf *out, const char *first, const char *second)
{
	redis_buf_command(out, 2);
	redis_buf_text(out, first);
	redis_buf_text(out, second);
}

static enum redis_open_result open_pushes(struct opening *opening, const char *channel)
{
	struct redis_value *value;
	enum redis_open_result result;

	put_words(&opening->link->out, "SUBSCRIBE", channel);
	if (redis_link_flush(opening->link, opening->deadline_ns) < 0)
		return opening_down(opening);
	if (opening->has_auth) {
		result = opening_ok(opening, "AUTH");
		if (result != OPEN_OK)
			return result;
	}
	result = opening_read(opening, "SUBSCRIBE", VALUE_ARRAY, &value);
	if (result == OPEN_OK)
		redis_value_free(value);
	return result;
}

static enum redis_open_result read_check(struct opening *opening, const char *step,
					 const char *(*check)(const struct redis_value *, const char *, char *, size_t))
{
	struct redis_value *value;
	enum redis_open_result result = opening_read(opening, step, VALUE_STRING, &value);

	if (result != OPEN_OK)
		return result;
	if (check(value, opening->door->target.label, opening->link->error, sizeof(opening->link->error)))
		result = OPEN_REFUSED;
	redis_value_free(value);
	return result;
}

static enum redis_open_result read_sha(struct opening *opening, char *ret_sha)
{
	struct redis_value *value;
	enum redis_open_result result = opening_read(opening, "SCRIPT LOAD", VALUE_STRING, &value);

	if (result != OPEN_OK)
		return result;
	if (value->len == REDIS_SHA_SIZE - 1)
		memcpy(ret_sha, value->str, REDIS_SHA_SIZE);
	else
		result = opening_refused(opening, "SCRIPT LOAD", value);
	redis_value_free(value);
	return result;
}

static enum redis_open_result open_commands(struct opening *opening, bool checked, char ret_shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE])
{
	struct redis_buf *out = &opening->link->out;
	enum redis_open_result result = OPEN_OK;
	char db[16];

	if (opening->door->target.db) {
		snprintf(db, sizeof(db), "%u", opening->door->target.db);
		put_words(out, "SELECT", db);
	}
	if (checked) {
		put_words(out, "INFO", "server");
		put_words(out, "INFO", "memory");
	}
	for (int i = 0; i < LUA_SCRIPT_COUNT; i++) {
		redis_buf_command(out, 3);
		redis_buf_text(out, "SCRIPT");
		redis_buf_text(out, "LOAD");
		redis_buf_arg(out, lua_scripts[i].text, lua_scripts[i].len);
	}
	if (redis_link_flush(opening->link, opening->deadline_ns) < 0)
		return opening_down(opening);

	if (opening->has_auth)
		result = opening_ok(opening, "AUTH");
	if (result == OPEN_OK && opening->door->target.db)
		result = opening_ok(opening, "SELECT");
	if (result == OPEN_OK && checked)
		result = read_check(opening, "INFO", check_version);
	if (result == OPEN_OK && checked)
		result = read_check(opening, "INFO", redis_check_policy);
	for (int i = 0; i < LUA_SCRIPT_COUNT && result == OPEN_OK; i++)
		result = read_sha(opening, ret_shas[i]);
	return result;
}

enum redis_open_result redis_link_open(struct redis_link *link, const struct redis_door *door, struct redis_addresses *addresses,
				       enum redis_open_kind kind, const char *channel, uint64_t deadline_ns,
				       char ret_shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE])
{
	struct opening opening = { .link = link, .door = door, .deadline_ns = deadline_ns };
	enum redis_open_result result;

	if (redis_link_connect(link, door, addresses, deadline_ns) < 0)
		return OPEN_DOWN;
	result = put_auth(&opening);
	if (result == OPEN_OK)
		result = kind == OPEN_PUSHES ? open_pushes(&opening, channel) : open_commands(&opening, kind == OPEN_COMMANDS, ret_shas);
	if (result != OPEN_OK)
		redis_link_close(link);
	return result;
}
