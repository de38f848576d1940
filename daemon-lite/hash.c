/* SPDX-License-Identifier: MIT */
/* See hash.h. Buckets are a power of two; the table doubles when it is full. */
#include "hash.h"

#include <errno.h>
#include <stdlib.h>

static size_t slot(const struct hash *table, uint64_t hash)
{
	return (size_t)hash & (table->size - 1);
}

static int grow(struct hash *table)
{
	size_t size = table->size ? 2 * table->size : 64;
	struct hash_node **old = table->buckets, *node, *next;
	size_t old_size = table->size;

	table->buckets = calloc(size, sizeof(struct hash_node *));
	if (!table->buckets) {
		table->buckets = old;
		return -ENOMEM;
	}
	table->size = size;
	for (size_t i = 0; i < old_size; i++) {
		for (node = old[i]; node; node = next) {
			next = node->next;
			node->next = table->buckets[slot(table, node->hash)];
			table->buckets[slot(table, node->hash)] = node;
		}
	}
	free(old);
	return 0;
}

int hash_insert(struct hash *table, struct hash_node *node, uint64_t hash)
{
	if (table->count >= table->size) {
		int err = grow(table);

		if (err && !table->size)
			return err;
	}
	node->hash = hash;
	node->next = table->buckets[slot(table, hash)];
	table->buckets[slot(table, hash)] = node;
	table->count++;
	return 0;
}

void hash_remove(struct hash *table, struct hash_node *node)
{
	struct hash_node **at = &table->buckets[slot(table, node->hash)];

	while (*at && *at != node)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = node->next;
	table->count--;
}

struct hash_node *hash_first(const struct hash *table, uint64_t hash)
{
	struct hash_node *node = table->size ? table->buckets[slot(table, hash)] : NULL;

	while (node && node->hash != hash)
		node = node->next;
	return node;
}

struct hash_node *hash_next(const struct hash_node *node)
{
	struct hash_node *next = node->next;

	while (next && next->hash != node->hash)
		next = next->next;
	return next;
}

struct hash_node *hash_walk(const struct hash *table, const struct hash_node *node)
{
	size_t i = 0;

	if (node) {
		if (node->next)
			return node->next;
		i = slot(table, node->hash) + 1;
	}
	for (; i < table->size; i++)
		if (table->buckets[i])
			return table->buckets[i];
	return NULL;
}

void hash_free(struct hash *table)
{
	free(table->buckets);
	*table = (struct hash){ 0 };
}

uint64_t hash_bytes(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = 0xcbf29ce484222325u;

	while (len--)
		h = (h ^ *p++) * 0x100000001b3u;
	return hash_u64(h);
}

uint64_t hash_u64(uint64_t v)
{
	v ^= v >> 33;
	v *= 0xff51afd7ed558ccdu;
	v ^= v >> 33;
	return v;
}
