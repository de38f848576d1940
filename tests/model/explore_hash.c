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
	uint8_t at[32768];
};

static void put(struct bytes *b, const void *data, size_t n)
{
	memcpy(b->at + b->n, data, n);
	b->n += n;
}

static void put_list(struct bytes *b, const struct x_list *list)
{
	put(b, list, offsetof(struct x_list, at) + list->count * sizeof list->at[0]);
}

static int push_order(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct x_push));
}

/* A pass over all fences of a world: marks those in use, or puts their rank. */
struct fences {
	bool rank;
	uint8_t of[256];
};

static void fence(struct fences *f, uint8_t *at)
{
	if (f->rank)
		*at = f->of[*at];
	else
		f->of[*at] = 1;
}

static void list_fences(struct fences *f, struct x_list *list)
{
	for (int i = 0; i < list->count; i++)
		fence(f, &list->at[i].fence);
}

static void pass(struct fences *f, struct x_world *w, int hosts)
{
	for (int h = 0; h < hosts; h++) {
		struct x_host *host = &w->host[h];
		struct x_cover *cover = &host->cover;

		fence(f, &cover->top_fence);
		fence(f, &cover->void_fence);
		for (int i = 0; i < cover->span_count; i++)
			fence(f, &cover->spans[i].fence);
		for (int i = 0; i < cover->void_count; i++)
			fence(f, &cover->voids[i].fence);
		for (int i = 0; i < cover->recall_count; i++)
			fence(f, &cover->recalls[i].wanted.fence);
		for (int i = 0; i < cover->try_count; i++)
			fence(f, &cover->tries[i].wanted.fence);
		for (int i = 0; i < host->cmd_count; i++) {
			list_fences(f, &host->cmds[i].parts);
			list_fences(f, &host->cmds[i].reply.spans);
			list_fences(f, &host->cmds[i].reply.waiting);
		}
		for (int i = 0; i < host->push_count; i++) {
			list_fences(f, &host->pushes[i].spans);
			list_fences(f, &host->pushes[i].waiting);
		}
		for (int p = 0; p < X_POINTS; p++)
			fence(f, &w->store.fence[h][p]);
	}
}

static void rank_fences(struct x_world *w, int hosts)
{
	struct fences f = { .of = { 1 } };
	int n = 0;

	pass(&f, w, hosts);
	for (int i = 0; i < 256; i++)
		f.of[i] = (uint8_t)(f.of[i] ? n++ : 0);
	f.rank = true;
	pass(&f, w, hosts);
}

static void put_host(struct bytes *b, struct x_host *host, const struct x_def *def)
{
	const struct x_cover *cover = &host->cover;

	put(b, cover, offsetof(struct x_cover, spans));
	put(b, cover->spans, cover->span_count * sizeof cover->spans[0]);
	put(b, cover->voids, cover->void_count * sizeof cover->voids[0]);
	put(b, cover->recalls, cover->recall_count * sizeof cover->recalls[0]);
	put(b, cover->questions, cover->question_count * sizeof cover->questions[0]);
	put(b, cover->requests, cover->request_count * sizeof cover->requests[0]);
	put(b, cover->tries, cover->try_count * sizeof cover->tries[0]);
	put(b, host->held, offsetof(struct x_host, calls) - offsetof(struct x_host, held));
	for (int c = 0; c < X_CALLS; c++) {
		if (!host->calls[c].live)
			continue;
		put(b, &c, 1);
		put(b, &host->calls[c], sizeof host->calls[c]);
	}
	for (int i = 0; i < host->cmd_count; i++) {
		const struct x_cmd *cmd = &host->cmds[i];

		put(b, cmd, offsetof(struct x_cmd, parts));
		put_list(b, &cmd->parts);
		put(b, &cmd->reply.kind, 1);
		put_list(b, &cmd->reply.spans);
		put_list(b, &cmd->reply.waiting);
	}
	if (!def->scenario->pushes_in_order)
		qsort(host->pushes, host->push_count, sizeof host->pushes[0], push_order);
	for (int i = 0; i < host->push_count; i++) {
		put(b, &host->pushes[i], offsetof(struct x_push, spans));
		put_list(b, &host->pushes[i].spans);
		put_list(b, &host->pushes[i].waiting);
	}
}

uint64_t x_world_hash(const struct x_world *world, const struct x_def *def)
{
	static struct bytes b;
	static struct x_world w;
	uint64_t hash = 0x9e3779b97f4a7c15u;

	b.n = 0;
	x_world_copy(&w, world);
	rank_fences(&w, def->hosts);
	for (int h = 0; h < def->hosts; h++)
		put_host(&b, &w.host[h], def);
	put(&b, w.store.mode, sizeof w.store.mode);
	put(&b, w.store.fence, sizeof w.store.fence);
	put(&b, w.store.told, sizeof w.store.told);
	put(&b, w.store.queue, w.store.queue_count * sizeof w.store.queue[0]);
	put(&b, &w.repeats, X_FAULTS);
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
