/* SPDX-License-Identifier: MIT */
/* A redis-server of the test's own, on a unix socket in a directory of its own, and the store's scripts on it. */
#ifndef DLOCK_TEST_STORE_SERVER_H
#define DLOCK_TEST_STORE_SERVER_H

#include <stddef.h>

#include <hiredis/hiredis.h>

#include "daemon-lite/store/lua_scripts.h"

#define TEST_PREFIX "dlock:{test/0}:"

struct store_server {
	char dir[64];
	int pid;
	redisContext *redis;	/* for scripts */
	redisContext *pushes;	/* subscribed to every push channel */
	char sha[LUA_SCRIPT_COUNT][41];
};

/* Starts it; returns 0, or -1 with a sentence on stderr. It ends with this process whatever happens. */
int store_server_start(struct store_server *server);
void store_server_stop(struct store_server *server);

/* Loads the scripts with other limits: above `most` spans a cover's go into a set, at `few` back into its record. 0, or -1 with a sentence on stderr. */
int store_server_load(struct store_server *server, unsigned most, unsigned few);

/* Runs a script: argc arguments behind KEYS[1]. Never NULL; ends the process with a sentence if the server is gone. */
redisReply *store_server_run(struct store_server *server, enum lua_script_id id, int argc, const char *const *argv);
/* Any other command, as redisCommand(). */
redisReply *store_server_command(struct store_server *server, const char *format, ...);
/* The next push: PMESSAGE pattern channel message. */
redisReply *store_server_next_push(struct store_server *server);

#endif
