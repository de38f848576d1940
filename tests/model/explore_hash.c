/* SPDX-License-Identifier: MIT */
/*
 * A world's fingerprint. Worlds that behave the same shall have the same one:
 * fences count by their order only, the order of pushes does not count where
 * they may overtake each other, and what is beyond an array's count is left out.
 */
#include "explore_world.h"

#include <stdlib.h>
#include <string.h>

struct bytes {
	size_t n;
	uint8_t at[8192];
};

static void put(struct bytes *b, const void *data, size_t n)
{
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static int push_order(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct x_push));
}

/* rank[f]: how many different fences of the world are below f. */
static void rank_fences(const struct x_world *w, const struct x_def *def, uint8_t rank[256])
{
	uint8_t used[256] = { 0 };
	int n = 0;

	for (int h = 0; h < def->hosts; h++) {
		const struct x_host *host = &w->host[h];

		used[(uint8_t)host->cover.fence] = used[(uint8_t)host->cover.void_fence] = 1;
		used[(uint8_t)host->cover.early_fence] = 1;
		for (size_t i = 0; i < host->cover.try_count; i++)
			used[(uint8_t)host->tries[i].fence] = 1;
		for (int i = 0; i < host->cmd_count; i++)
			used[host->cmds[i].fence] = used[host->cmds[i].reply.fence] = 1;
		for (int i = 0; i < host->push_count; i++)
			used[host->pushes[i].fence] = 1;
	}
	x_store_fences(&w->store, used);
	used[0] = 1;
	for (int i = 0; i < 256; i++)
		rank[i] = (uint8_t)(used[i] ? n++ : 0);
}

uint64_t x_world_hash(const struct x_world *w, const struct x_def *def)
{
	static struct bytes b;
	uint8_t rank[256];
	uint64_t hash = 0x9e3779b97f4a7c15u;

	b.n = 0;
	rank_fences(w, def, rank);
	for (int h = 0; h < def->hosts; h++) {
		const struct x_host *host = &w->host[h];
		struct cover cover = host->cover;
		struct x_push pushes[X_PUSHES];

		cover.ops = NULL;
		cover.owner = NULL;
		cover.requests = NULL;
		cover.tries = NULL;
		cover.request_cap = cover.try_cap = 0;
		cover.fence = rank[(uint8_t)cover.fence];
		cover.void_fence = rank[(uint8_t)cover.void_fence];
		cover.early_fence = rank[(uint8_t)cover.early_fence];
		put(&b, &cover, sizeof cover);
		put(&b, host->requests, cover.request_count * sizeof host->requests[0]);
		for (size_t i = 0; i < cover.try_count; i++) {
			const struct cover_try *t = &host->tries[i];
			uint8_t small[] = { (uint8_t)t->host[0], rank[(uint8_t)t->fence], (uint8_t)t->mode,
					    (uint8_t)t->req, (uint8_t)(t->req >> 8), t->asked };

			put(&b, small, sizeof small);
		}
		put(&b, host->held, offsetof(struct x_host, calls) - offsetof(struct x_host, held));
		for (int c = 0; c < X_CALLS; c++) {
			if (!host->calls[c].live)
				continue;
			put(&b, &c, 1);
			put(&b, &host->calls[c], sizeof host->calls[c]);
		}
		for (int i = 0; i < host->cmd_count; i++) {
			struct x_cmd cmd = host->cmds[i];

			cmd.fence = rank[cmd.fence];
			cmd.reply.fence = rank[cmd.reply.fence];
			put(&b, &cmd, sizeof cmd);
		}
		for (int i = 0; i < host->push_count; i++) {
			pushes[i] = host->pushes[i];
			pushes[i].fence = rank[pushes[i].fence];
		}
		if (!def->scenario->pushes_in_order)
			qsort(pushes, host->push_count, sizeof pushes[0], push_order);
		put(&b, pushes, host->push_count * sizeof pushes[0]);
	}
	b.n += x_store_bytes(&w->store, rank, b.at + b.n);
	put(&b, &w->repeats, 8);
	while (b.n % 8)
		b.at[b.n++] = 0;
	for (size_t i = 0; i < b.n; i += 8) {
		uint64_t word;

		memcpy(&word, b.at + i, 8);
		hash = (hash ^ word) * 0xd6e8feb86659fd93u;
		hash ^= hash >> 32;
	}
	hash ^= hash >> 29;
	hash *= 0xbf58476d1ce4e5b9u;
	return hash ^ hash >> 32;
}
