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

uint64_t acquire(struct host *host, uint64_t req, enum lock_mode mode)
{
	store_acquire(host->store, K, req, mode, false, "1 test");
	return await_event(host, EV_GRANTED, K, req, 5)->fence;
}

void wait_in_line(struct host *host, uint64_t req, enum lock_mode mode)
{
	store_acquire(host->store, K, req, mode, false, "1 test");
	await_event(host, EV_QUEUED, K, req, 5);
	snprintf(host->waits[host->wait_count].key, 64, "%s", K);
	host->waits[host->wait_count].req = req;
	host->waits[host->wait_count++].mode = mode;
}
