/* SPDX-License-Identifier: MIT */
/* The benchmark's own eyes on the store: round trips, counts of commands, MONITOR. */
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bench.h"

struct bench_store { redisContext *redis; };

struct bench_store *bench_store_connect(int port)
{
	struct bench_store *store = calloc(1, sizeof *store);
	int one = 1;

	store->redis = redisConnect("127.0.0.1", port);
	if (!store->redis || store->redis->err) {
		if (store->redis)
			redisFree(store->redis);
		free(store);
		return NULL;
	}
	setsockopt(store->redis->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return store;
}

void bench_store_free(struct bench_store *store)
{
	if (!store)
		return;
	redisFree(store->redis);
	free(store);
}

static redisReply *ask(struct bench_store *store, const char *command)
{
	redisReply *reply = redisCommand(store->redis, command);

	if (!reply || reply->type == REDIS_REPLY_ERROR)
		bench_fail("redis %s: %s", command, reply ? reply->str : store->redis->errstr);
	return reply;
}

uint64_t bench_store_ping_ns(struct bench_store *store)
{
	uint64_t from = bench_now_ns();

	freeReplyObject(ask(store, "PING"));
	return bench_now_ns() - from;
}

void bench_store_reset_stats(struct bench_store *store)
{
	freeReplyObject(ask(store, "CONFIG RESETSTAT"));
}

uint64_t bench_store_calls(struct bench_store *store, const char *command)
{
	redisReply *reply = ask(store, "INFO commandstats");
	uint64_t sum = 0;

	for (char *line = strtok(reply->str, "\r\n"); line; line = strtok(NULL, "\r\n")) {
		char name[64];
		uint64_t calls;

		if (sscanf(line, "cmdstat_%63[^:]:calls=%" SCNu64, name, &calls) == 2 && (!*command || strcmp(name, command) == 0))
			sum += calls;
	}
	freeReplyObject(reply);
	return sum;
}

void bench_store_print_stats(struct bench_store *store)
{
	redisReply *reply = ask(store, "INFO commandstats");

	for (char *line = strtok(reply->str, "\r\n"); line; line = strtok(NULL, "\r\n")) {
		char name[64];
		uint64_t calls, usec;
		double each;

		if (sscanf(line, "cmdstat_%63[^:]:calls=%" SCNu64 ",usec=%" SCNu64 ",usec_per_call=%lf", name, &calls, &usec, &each) == 4 &&
		    strcmp(name, "info") != 0 && strcmp(name, "config|resetstat") != 0)
			printf("      %-20s %10" PRIu64 " calls %8.1f us each\n", name, calls, each);
	}
	freeReplyObject(reply);
}

/* Each renewal raises its host's counter by one. */
static uint64_t renewals(struct bench_store *store, const char *name_space)
{
	redisReply *reply = redisCommand(store->redis, "HVALS dlock:{%s/0}:hosts", name_space);
	uint64_t sum = 0;

	if (!reply || reply->type != REDIS_REPLY_ARRAY)
		bench_fail("redis HVALS: no hosts");
	for (size_t i = 0; i < reply->elements; i++)
		sum += strtoull(reply->element[i]->str, NULL, 10);
	freeReplyObject(reply);
	return sum;
}

void bench_store_scripts_begin(struct bench_store *store, const char *name_space, struct bench_scripts *scripts)
{
	scripts->renewals = renewals(store, name_space);
	scripts->all = bench_store_calls(store, "evalsha");
}

uint64_t bench_store_scripts(struct bench_store *store, const char *name_space, const struct bench_scripts *begin)
{
	uint64_t all = bench_store_calls(store, "evalsha") - begin->all;
	uint64_t renewed = renewals(store, name_space) - begin->renewals;

	return all > renewed ? all - renewed : 0;
}

uint64_t bench_store_monitor(int port, unsigned seconds)
{
	struct bench_store *store = bench_store_connect(port);
	uint64_t until = bench_now_ns() + seconds * 1000000000ull, count = 0;

	if (!store)
		bench_fail("redis does not answer");
	freeReplyObject(ask(store, "MONITOR"));
	for (;;) {
		struct pollfd pollfd = { store->redis->fd, POLLIN, 0 };
		uint64_t now = bench_now_ns();
		redisReply *reply;

		while (redisGetReplyFromReader(store->redis, (void **)&reply) == REDIS_OK && reply) {
			/* 1700000000.1 [0 127.0.0.1:4711] "evalsha" … ; inside a script: [0 lua] */
			if (reply->str && !strstr(reply->str, " lua] "))
				count++;
			freeReplyObject(reply);
		}
		if (now >= until)
			break;
		if (poll(&pollfd, 1, (int)((until - now) / 1000000 + 1)) > 0 && redisBufferRead(store->redis) != REDIS_OK)
			bench_fail("redis ended MONITOR");
	}
	bench_store_free(store);
	return count;
}
