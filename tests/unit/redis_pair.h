/* SPDX-License-Identifier: MIT */
/* What the tests of the Redis store begin with: a real server with a new namespace, and two hosts. */
#ifndef TEST_REDIS_PAIR_H
#define TEST_REDIS_PAIR_H

#include "redis_bench.h"

#define TTL 1000u	/* ms */
#define K "f:jobs/a"

extern struct server server;
extern struct loop *loop;
extern struct host a, b;

int set_up(void **state);		/* the hosts are not started */
int set_up_started(void **state);	/* both are up */
int tear_down(void **state);

/* Asks for K and waits until it is granted; the fence. */
uint64_t acquire(struct host *host, uint64_t req, enum lock_mode mode);
/* Asks for K and waits until it is queued. */
void wait_in_line(struct host *host, uint64_t req, enum lock_mode mode);

#endif
