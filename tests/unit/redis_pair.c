/* SPDX-License-Identifier: MIT */
/* See redis_pair.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "redis_pair.h"

struct server server;
struct loop *loop;
struct host a, b;

/* A server with a namespace that is declared new, and two hosts not started. */
int set_up(void **state)
{
	char text[512];

	(void)state;
	server = (struct server){ 0 };
	server_start(&server, "");
	assert_int_equal(loop_new(&loop), 0);
	host_make(&a, loop, &server, TTL);
	host_make(&b, loop, &server, TTL);
	assert_int_equal(store_redis_init(a.config, text, sizeof(text)), 0);
	return 0;
}

int set_up_started(void **state)
{
	set_up(state);
	host_start(&a);
	host_start(&b);
	await_state(&a, STORE_UP, 5);
	await_state(&b, STORE_UP, 5);
	return 0;
}

int tear_down(void **state)
{
	(void)state;
	host_free(&a);
	host_free(&b);
	loop_free(loop);
	server_stop(&server);
	remove_tree(server.dir);
	return 0;
}

static const struct event *acquire_at(struct host *host, const char *key, uint64_t req, struct extent at, enum lock_mode mode)
{
	store_acquire(host->store, key, req, at, mode, 0, "1 test");
	return await_event(host, EV_GRANTED, key, req, 5);
}

static void wait_at(struct host *host, const char *key, uint64_t req, struct extent at, enum lock_mode mode)
{
	store_acquire(host->store, key, req, at, mode, 0, "1 test");
	await_event(host, EV_QUEUED, key, req, 5);
	snprintf(host->waits[host->wait_count].key, 64, "%s", key);
	host->waits[host->wait_count].req = req;
	host->waits[host->wait_count].at = at;
	host->waits[host->wait_count++].mode = mode;
}

uint64_t acquire(struct host *host, uint64_t req, enum lock_mode mode)
{
	return acquire_at(host, K, req, EXTENT_ALL, mode)->fence;
}

void wait_in_line(struct host *host, uint64_t req, enum lock_mode mode)
{
	wait_at(host, K, req, EXTENT_ALL, mode);
}

void give_back(struct host *host, enum lock_mode keep, uint64_t fence)
{
	host_give_back(host, K, &(struct lock_span){ EXTENT_ALL, keep, fence }, 1);
}

const struct event *acquire_part(struct host *host, uint64_t req, uint64_t start, uint64_t end, enum lock_mode mode)
{
	return acquire_at(host, R, req, (struct extent){ start, end }, mode);
}

void wait_for_part(struct host *host, uint64_t req, uint64_t start, uint64_t end, enum lock_mode mode)
{
	wait_at(host, R, req, (struct extent){ start, end }, mode);
}
