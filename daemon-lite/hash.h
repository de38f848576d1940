/* SPDX-License-Identifier: MIT */
/* A small hash table of nodes that live in their owners' structs; the owner compares keys. */
#ifndef DLOCK_HASH_H
#define DLOCK_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash_node {
	struct hash_node *next;
	uint64_t hash;
};

struct hash {			/* zeroed = empty */
	struct hash_node **buckets;
	size_t size, count;
};

int hash_insert(struct hash *table, struct hash_node *node, uint64_t hash);	/* 0 or -ENOMEM */
void hash_remove(struct hash *table, struct hash_node *node);
/* The first node with this hash value, then the next one behind `node`; NULL at the end. */
struct hash_node *hash_first(const struct hash *table, uint64_t hash);
struct hash_node *hash_next(const struct hash_node *node);
/* Any node, for going through all: pass NULL first, then the node before. The table must not change meanwhile, but for the removal of nodes already passed. */
struct hash_node *hash_walk(const struct hash *table, const struct hash_node *node);
void hash_free(struct hash *table);

uint64_t hash_bytes(const void *data, size_t len);
uint64_t hash_u64(uint64_t value);

#define hash_entry(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

#endif
