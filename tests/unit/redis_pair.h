/* SPDX-License-Identifier: MIT */
/* What the tests of the Redis store begin with: a real server with a new namespace, and two hosts. */
#ifndef TEST_REDIS_PAIR_H
#define TEST_REDIS_PAIR_H

#include "redis_bench.h"

#define TTL 1000u	/* ms */
#define K "f:jobs/a"
#define R "r:jobs/a"

extern struct server server;
extern struct loop *loop;
extern struct host a, b;

int set_up(void **state);		/* the hosts are not started */
int set_up_started(void **state);	/* both are up */
int tear_down(void **state);

/* Asks for all of K and waits until it is granted; the fence. */
uint64_t acquire(struct host *host, uint64_t req, enum lock_mode mode);
/* Asks for all of K and waits until it is queued. */
void wait_in_line(struct host *host, uint64_t req, enum lock_mode mode);
/* Gives all of K back, or lowers it; without waiting. */
void give_back(struct host *host, enum lock_mode keep, uint64_t fence);

/* The same of a part of R. */
const struct event *acquire_part(struct host *host, uint64_t req, uint64_t start, uint64_t end, enum lock_mode mode);
void wait_for_part(struct host *host, uint64_t req, uint64_t start, uint64_t end, enum lock_mode mode);

#endif
