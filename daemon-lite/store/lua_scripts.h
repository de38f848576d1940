/* SPDX-License-Identifier: MIT */
/*
 * The Lua scripts of the store, embedded at build time by embed.sh: each is the
 * shebang line of lua/NAME.lua, then lua/common.lua, then the rest of the file,
 * with lua/spans.lua, rules.lua and the other parts of the rules where it says so.
 * docs/PROTOCOL.md says what each takes and answers.
 */
#ifndef DLOCK_LUA_SCRIPTS_H
#define DLOCK_LUA_SCRIPTS_H

#include <stddef.h>

struct lua_script {
	const char *name, *text;	/* NUL-terminated */
	size_t len;			/* bytes of text */
};

enum lua_script_id {
	LUA_INIT,
	LUA_ATTACH,
	LUA_LEAVE,
	LUA_ACQUIRE,
	LUA_WITHDRAW,
	LUA_GIVEBACK,
	LUA_BUSY,
	LUA_RENEW,
	LUA_EXPIRE,
	LUA_ENDGRACE,
	LUA_REASSERT,
	LUA_STATUS,
	LUA_ASK,
	LUA_TELL,
	LUA_SCRIPT_COUNT
};

extern const struct lua_script lua_scripts[];	/* by enum lua_script_id */

#endif
