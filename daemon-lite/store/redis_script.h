/* SPDX-License-Identifier: MIT */
/*
 * The Lua scripts: which there are, how one is called, what its reply begins with.
 * docs/PROTOCOL.md is the contract.
 */
#ifndef DLOCK_REDIS_SCRIPT_H
#define DLOCK_REDIS_SCRIPT_H

#include "lua_scripts.h"
#include "redis_link.h"

_Static_assert(LUA_SCRIPT_COUNT <= REDIS_SCRIPTS_MAX, "redis_link.h keeps a hash for each script");

#define REDIS_ID_SIZE 37	/* a UUID with its NUL */
#define REDIS_INC_SIZE 64	/* an incarnation with its NUL */
#define REDIS_PREFIX_SIZE 96

/* The arguments that every script begins with. */
struct redis_caller {
	const char *prefix;	/* P */
	const char *host, *token, *role, *inc;
	uint64_t gen;
	uint32_t ttl_ms;
	uint64_t ack;
};

/* Begins EVALSHA (or, full, EVAL) with the common arguments; exactly `extra` of redis_buf_… must follow. */
void redis_script_begin(struct redis_buf *out, enum lua_script_id script, const char *sha, bool full,
			const struct redis_caller *caller, size_t extra);

enum redis_answer {
	ANSWER_OK,		/* the script's own items begin at item 3 */
	ANSWER_ROLE, ANSWER_TTL, ANSWER_INC, ANSWER_TOKEN, ANSWER_GEN, ANSWER_CONFIRM, ANSWER_NOGRACE, ANSWER_CONFLICT, ANSWER_EXISTS,
	ANSWER_PROTO,
	ANSWER_NOSCRIPT,	/* send it again with the full text */
	ANSWER_RETRY,		/* the server cannot answer now (loading, busy, read-only…): connect again later */
	ANSWER_DENIED,		/* no permission: what to do is in text */
	ANSWER_FAILED,		/* an error of this one call */
};
#define ANSWER_ITEMS 3

struct redis_header {
	char inc[REDIS_INC_SIZE];	/* empty if there is none */
	bool grace;
	char text[256];			/* of a refusal or an error, harmless to print */
};
enum redis_answer redis_script_answer(const struct redis_value *reply, struct redis_header *ret_header);

#endif
