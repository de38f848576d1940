/* SPDX-License-Identifier: MIT */
/*
 * Calling the Lua scripts, and sorting what comes back. Pure but for the buffer.
 * A reply is believed only as far as its shape has been checked: the server may be
 * another program's, or hostile.
 */
#include "redis_script.h"

#include <stdio.h>
#include <string.h>

void redis_script_begin(struct redis_buf *out, enum lua_script_id script, const char *sha, bool full,
			const struct redis_caller *caller, size_t extra)
{
	redis_buf_command(out, 4 + 7 + extra);
	if (full || !sha[0]) {
		redis_buf_arg(out, "EVAL", 4);
		redis_buf_arg(out, lua_scripts[script].text, lua_scripts[script].len);
	} else {
		redis_buf_arg(out, "EVALSHA", 7);
		redis_buf_arg(out, sha, REDIS_SHA_SIZE - 1);
	}
	redis_buf_arg(out, "1", 1);
	redis_buf_text(out, caller->prefix);
	redis_buf_text(out, caller->host);
	redis_buf_text(out, caller->token);
	redis_buf_text(out, caller->role);
	redis_buf_u64(out, caller->gen);
	redis_buf_text(out, caller->inc);
	redis_buf_u64(out, caller->ttl_ms);
	redis_buf_u64(out, caller->ack);
}

static void copy_harmless(char *to, size_t size, const char *from)
{
	size_t i;

	for (i = 0; i + 1 < size && from[i]; i++)
		to[i] = (unsigned char)from[i] < ' ' || from[i] == 0x7f ? '?' : from[i];
	to[i] = '\0';
}

static enum redis_answer answer_of_error(const struct redis_value *reply, struct redis_header *header)
{
	static const char *const later[] = {
		"LOADING", "BUSY", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "CLUSTERDOWN", "UNKILLABLE", "MISCONF",
	};
	static const char *const denied[] = { "NOAUTH", "NOPERM", "WRONGPASS" };

	copy_harmless(header->text, sizeof(header->text), reply->str);
	if (redis_value_is_error(reply, "NOSCRIPT"))
		return ANSWER_NOSCRIPT;
	if (redis_value_is_error(reply, "READONLY"))
		return ANSWER_ROLE;
	for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
		if (redis_value_is_error(reply, later[i]))
			return ANSWER_RETRY;
	for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
		if (redis_value_is_error(reply, denied[i]))
			return ANSWER_DENIED;
	return ANSWER_FAILED;
}

enum redis_answer redis_script_answer(const struct redis_value *reply, struct redis_header *header)
{
	static const struct {
		const char *reason;
		enum redis_answer answer;
	} refusals[] = {
		{ "role", ANSWER_ROLE }, { "ttl", ANSWER_TTL }, { "inc", ANSWER_INC }, { "token", ANSWER_TOKEN },
		{ "gen", ANSWER_GEN }, { "confirm", ANSWER_CONFIRM }, { "nograce", ANSWER_NOGRACE },
		{ "conflict", ANSWER_CONFLICT }, { "exists", ANSWER_EXISTS },
		{ "proto", ANSWER_PROTO },
	};
	const char *word, *inc, *text;
	bool refused;
	uint64_t grace;

	*header = (struct redis_header){ 0 };
	if (reply->type == VALUE_ERROR)
		return answer_of_error(reply, header);
	word = redis_value_text(reply, 0);
	refused = word && !strcmp(word, "refused");
	inc = redis_value_text(reply, refused ? 2 : 1);
	if (!word || (!refused && strcmp(word, "ok") != 0) || !inc || strlen(inc) >= sizeof(header->inc) ||
	    !redis_value_u64(reply, refused ? 3 : 2, &grace)) {
		snprintf(header->text, sizeof(header->text), "the answer of a script has another form than expected; is another version of dlockshim, or another program, using these keys?");
		return ANSWER_FAILED;
	}
	strcpy(header->inc, inc);
	header->grace = grace != 0;
	if (!refused)
		return ANSWER_OK;
	text = redis_value_text(reply, 4);
	copy_harmless(header->text, sizeof(header->text), text ? text : "");
	word = redis_value_text(reply, 1);
	for (size_t i = 0; word && i < sizeof(refusals) / sizeof(refusals[0]); i++)
		if (!strcmp(word, refusals[i].reason))
			return refusals[i].answer;
	snprintf(header->text, sizeof(header->text), "a script refused for a reason this version does not know");
	return ANSWER_FAILED;
}
