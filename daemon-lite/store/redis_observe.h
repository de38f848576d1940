/* SPDX-License-Identifier: MIT */
/*
 * Which hosts have been silent for a lease time, on our own clock: from the receipt
 * of the first reply that showed a counter. Pure but for malloc; the renewal thread's.
 */
#ifndef DLOCK_REDIS_OBSERVE_H
#define DLOCK_REDIS_OBSERVE_H

#include <stddef.h>
#include <stdint.h>

#define OBSERVED_MAX 4096	/* hosts; more are watched by others */
#define OBSERVED_ID_SIZE 64

struct observed {
	char host[OBSERVED_ID_SIZE];
	uint64_t counter;
	uint64_t since_ns;	/* receipt of the first reply that showed it */
	unsigned round;
};

struct observations {		/* zeroed = none */
	struct observed *hosts;
	size_t count, size;
	unsigned round;
};

void observe_begin(struct observations *all);
/* One host as a reply received at now_ns shows it; hint is its place in the reply. */
void observe_host(struct observations *all, const char *host, uint64_t counter, uint64_t now_ns, size_t hint);
void observe_finish(struct observations *all);	/* who was not shown is forgotten */
/* The host that has been silent for the longest, NULL if there is none. */
struct observed *observe_oldest(struct observations *all);
/* NULL if it is not among them. */
struct observed *observe_find(struct observations *all, const char *host, size_t hint);
void observe_clear(struct observations *all);

#endif
