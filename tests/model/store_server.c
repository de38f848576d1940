/* SPDX-License-Identifier: MIT */
/*
 * Starting and stopping a redis-server for the tests of the store's scripts.
 * Invariants: no TCP port, nothing outside its own directory, always stopped.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store_server.h"

static struct store_server *running;	/* to be stopped when this process ends */
static int running_owner;

static void stop_running(void)
{
	if (running && running_owner == getpid())
		store_server_stop(running);
}

static void die(const char *what, const redisContext *redis)
{
	fprintf(stderr, "store server: %s: %s\n", what, redis ? redis->errstr : strerror(errno));
	exit(1);
}

static void exec_server(const char *dir)
{
	char sock[128], log[128];
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(sock, sizeof(sock), "%s/sock", dir);
	snprintf(log, sizeof(log), "%s/log", dir);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0) {
		dup2(fd, 1);
		dup2(fd, 2);
	}
	setenv("LC_ALL", "C", 1);	/* Lua sorts by the locale */
	execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", sock, "--dir", dir, "--save", "",
	       "--appendonly", "no", "--daemonize", "no", "--enable-debug-command", "yes", (char *)NULL);
	_exit(127);
}

static redisContext *connect_server(struct store_server *server)
{
	char sock[128];

	snprintf(sock, sizeof(sock), "%s/sock", server->dir);
	for (int i = 0; i < 2000; i++) {	/* 10 s */
		redisContext *redis = redisConnectUnix(sock);

		if (redis && !redis->err) {
			struct timeval limit = { .tv_sec = 20 };

			redisSetTimeout(redis, limit);
			return redis;
		}
		if (redis)
			redisFree(redis);
		if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
			server->pid = 0;
			return NULL;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
	}
	return NULL;
}

int store_server_load(struct store_server *server, unsigned most, unsigned few)
{
	static const char limits[] = "MOST_INLINE, FEW_INLINE = 32, 16";

	for (int i = 0; i < LUA_SCRIPT_COUNT; i++) {
		char *text = strdup(lua_scripts[i].text), *at = text ? strstr(text, limits) : NULL;
		redisReply *reply;
		bool loaded;

		if (at)
			sprintf(at + strlen(limits) - strlen("32, 16"), "%2u, %2u", most % 100, few % 100);
		if (at)		/* sprintf has ended the text there */
			at[strlen(limits)] = lua_scripts[i].text[at - text + (ptrdiff_t)strlen(limits)];
		reply = text ? redisCommand(server->redis, "SCRIPT LOAD %s", text) : NULL;
		if (!reply)
			die("SCRIPT LOAD", server->redis);
		loaded = reply->type == REDIS_REPLY_STRING && reply->len == 40;
		if (loaded)
			memcpy(server->sha[i], reply->str, 41);
		else
			fprintf(stderr, "store server: %s.lua: %s\n", lua_scripts[i].name, reply->str);
		freeReplyObject(reply);
		free(text);
		if (!loaded)
			return -1;
	}
	return 0;
}

int store_server_start(struct store_server *server)
{
	memset(server, 0, sizeof(*server));
	strcpy(server->dir, "/tmp/dlock-model-XXXXXX");
	if (!mkdtemp(server->dir))
		die("mkdtemp", NULL);
	server->pid = fork();
	if (server->pid < 0)
		die("fork", NULL);
	if (server->pid == 0)
		exec_server(server->dir);
	if (running_owner == 0)
		atexit(stop_running);
	running = server;
	running_owner = getpid();
	server->redis = connect_server(server);
	server->pushes = server->redis ? connect_server(server) : NULL;
	if (!server->pushes) {
		fprintf(stderr, "store server: redis-server did not start; is it installed?\n");
		store_server_stop(server);
		return -1;
	}
	if (store_server_load(server, 32, 16) < 0) {
		store_server_stop(server);
		return -1;
	}
	freeReplyObject(redisCommand(server->pushes, "PSUBSCRIBE %s*", TEST_PREFIX "p:"));
	return 0;
}

void store_server_stop(struct store_server *server)
{
	char path[128];

	running = NULL;
	if (server->redis)
		redisFree(server->redis);
	if (server->pushes)
		redisFree(server->pushes);
	if (server->pid > 0) {
		kill(server->pid, SIGKILL);
		waitpid(server->pid, NULL, 0);
	}
	snprintf(path, sizeof(path), "%s/sock", server->dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/log", server->dir);
	unlink(path);
	rmdir(server->dir);
	memset(server, 0, sizeof(*server));
}

redisReply *store_server_run(struct store_server *server, enum lua_script_id id, int argc, const char *const *argv)
{
	const char *all[64] = { "EVALSHA", server->sha[id], "1", TEST_PREFIX };
	redisReply *reply;

	if (argc > 60)
		die("too many arguments", NULL);
	memcpy(all + 4, argv, (size_t)argc * sizeof(argv[0]));
	reply = redisCommandArgv(server->redis, argc + 4, all, NULL);
	if (!reply)
		die(lua_scripts[id].name, server->redis);
	return reply;
}

redisReply *store_server_command(struct store_server *server, const char *format, ...)
{
	redisReply *reply;
	va_list args;

	va_start(args, format);
	reply = redisvCommand(server->redis, format, args);
	va_end(args);
	if (!reply)
		die(format, server->redis);
	return reply;
}

redisReply *store_server_next_push(struct store_server *server)
{
	void *reply = NULL;

	if (redisGetReply(server->pushes, &reply) != REDIS_OK)
		die("a push did not come", server->pushes);
	return reply;
}
