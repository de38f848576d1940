/* SPDX-License-Identifier: MIT */
/*
 * The other hosts' counters. No clock of a server or of another host is compared
 * with ours: a counter either changed since we first saw it, or it did not.
 */
#include "redis_observe.h"

#include <stdlib.h>
#include <string.h>

void observe_begin(struct observations *all)
{
	all->round++;
}

struct observed *observe_find(struct observations *all, const char *host, size_t hint)
{
	/* Redis lists a hash in the same order while it does not change. */
	for (size_t i = 0; i < all->count; i++) {
		struct observed *one = &all->hosts[(i + hint) % all->count];

		if (!strcmp(one->host, host))
			return one;
	}
	return NULL;
}

void observe_host(struct observations *all, const char *host, uint64_t counter, uint64_t now_ns, size_t hint)
{
	struct observed *one = observe_find(all, host, hint);

	if (!one) {
		if (strlen(host) >= OBSERVED_ID_SIZE || all->count >= OBSERVED_MAX)
			return;
		if (all->count == all->size) {
			size_t size = all->size ? 2 * all->size : 16;
			struct observed *hosts = reallocarray(all->hosts, size, sizeof(*hosts));

			if (!hosts)
				return;
			all->hosts = hosts;
			all->size = size;
		}
		one = &all->hosts[all->count++];
		*one = (struct observed){ .counter = counter, .since_ns = now_ns };
		strcpy(one->host, host);
	} else if (one->counter != counter) {
		one->counter = counter;
		one->since_ns = now_ns;
	}
	one->round = all->round;
}

void observe_finish(struct observations *all)
{
	size_t kept = 0;

	for (size_t i = 0; i < all->count; i++)
		if (all->hosts[i].round == all->round)
			all->hosts[kept++] = all->hosts[i];
	all->count = kept;
}

struct observed *observe_oldest(struct observations *all)
{
	struct observed *oldest = NULL;

	for (size_t i = 0; i < all->count; i++)
		if (!oldest || all->hosts[i].since_ns < oldest->since_ns)
			oldest = &all->hosts[i];
	return oldest;
}

void observe_clear(struct observations *all)
{
	free(all->hosts);
	*all = (struct observations){ 0 };
}
