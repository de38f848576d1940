/* SPDX-License-Identifier: MIT */
/*
 * What the hosts say of their waits. What comes from other hosts is bounded in number
 * and in form; what is beyond is left out, which only means fewer edges.
 */
#include "deadlock_graph.h"

#include <errno.h>
#include <string.h>

#include "deadlock_graph_private.h"

#define KEY_MAX 4200
#define ALL_WAITS_MAX 20000
#define ALL_HOLDS_MAX 200000

struct text {
	struct hash_node node;
	char text[];
};

/* --- records --- */

void deadlock_wait_put(struct record_buf *buf, const struct deadlock_wait *wait)
{
	records_begin(buf, "wait");
	records_put_u64(buf, "id", wait->id);
	records_put_u64(buf, "asked", wait->asked);
	records_put_u64(buf, "owner", wait->owner);
	records_put_u64(buf, "pid", wait->pid);
	records_put_u64(buf, "stamp", wait->stamp);
	records_put(buf, "key", wait->key);
	records_put(buf, "name", wait->name);
	records_put_u64(buf, "mode", wait->mode);
	records_put_u64(buf, "start", wait->at.start);
	records_put_u64(buf, "end", wait->at.end);
	records_end(buf);
}

void deadlock_hold_put(struct record_buf *buf, const struct deadlock_hold *hold)
{
	records_begin(buf, "hold");
	records_put_u64(buf, "owner", hold->owner);
	records_put(buf, "key", hold->key);
	records_put_u64(buf, "mode", hold->mode);
	records_put_u64(buf, "start", hold->at.start);
	records_put_u64(buf, "end", hold->at.end);
	records_end(buf);
}

/* --- what was said --- */

int deadlock_graph_grow(void *array, size_t count, size_t *cap, size_t size)
{
	void **at = array, *grown;
	size_t more = *cap ? 2 * *cap : 16;

	if (count < *cap)
		return 0;
	grown = reallocarray(*at, more, size);
	if (!grown)
		return -ENOMEM;
	*at = grown;
	*cap = more;
	return 0;
}

struct deadlock_graph *deadlock_graph_new(void)
{
	return calloc(1, sizeof(struct deadlock_graph));
}

void deadlock_graph_free(struct deadlock_graph *graph)
{
	struct hash_node *node;

	if (!graph)
		return;
	while ((node = hash_walk(&graph->texts, NULL))) {
		hash_remove(&graph->texts, node);
		free(hash_entry(node, struct text, node));
	}
	hash_free(&graph->texts);
	for (size_t i = 0; i < graph->victim_count; i++)
		free(graph->cycles[i].waits);
	free(graph->hosts);
	free(graph->waits);
	free(graph->holds);
	free(graph->owners);
	free(graph->first);
	free(graph->to);
	free(graph->victims);
	free(graph->cycles);
	free(graph);
}

bool deadlock_graph_is_cut(const struct deadlock_graph *graph)
{
	return graph->cut;
}

/* The text as the graph has it: NULL when out of memory. A key of a host's own is told from other hosts'. */
static const char *intern(struct deadlock_graph *graph, const char *host, const char *rest)
{
	size_t host_len = strlen(host), len = host_len + strlen(rest) + 1;
	struct text *text = malloc(sizeof *text + len);
	uint64_t hash;

	if (!text)
		return NULL;
	memcpy(text->text, host, host_len);
	strcpy(text->text + host_len, rest);
	hash = hash_bytes(text->text, len);
	for (struct hash_node *n = hash_first(&graph->texts, hash); n; n = hash_next(n)) {
		const struct text *known = hash_entry(n, struct text, node);

		if (!strcmp(known->text, text->text)) {
			free(text);
			return known->text;
		}
	}
	if (hash_insert(&graph->texts, &text->node, hash)) {
		free(text);
		return NULL;
	}
	return text->text;
}

static bool read_at(const struct record *record, struct extent *ret_at, enum lock_mode *ret_mode)
{
	uint64_t mode = record_get_u64(record, "mode", 0);

	ret_at->start = record_get_u64(record, "start", UINT64_MAX);
	ret_at->end = record_get_u64(record, "end", 0);
	*ret_mode = (enum lock_mode)mode;
	return (mode == MODE_SH || mode == MODE_EX) && ret_at->start < ret_at->end && ret_at->end <= EXTENT_END;
}

/* *ret NULL with 0: not a key. */
static int read_key(struct deadlock_graph *graph, const char *host, const struct record *record, const char **ret)
{
	const char *key = record_get(record, "key", "");
	bool local = !strncmp(key, "l:", 2);

	*ret = NULL;
	if ((!local && strncmp(key, "r:", 2) != 0) || strlen(key) > KEY_MAX)
		return 0;
	*ret = intern(graph, local ? host : "", key);
	return *ret ? 0 : -ENOMEM;
}

static bool is_local(const char *host, const char *key)
{
	return !strncmp(key, host, strlen(host)) && !strncmp(key + strlen(host), "l:", 2);
}

static int add_wait(struct deadlock_graph *graph, struct host *host, const struct record *record)
{
	const char *name = record_get(record, "name", "");
	struct wait wait = { .host = host->id, .id = record_get_u64(record, "id", 0), .number = record_get_u64(record, "owner", UINT64_MAX),
			     .pid = record_get_u64(record, "pid", 0), .stamp = record_get_u64(record, "stamp", 0),
			     .asked = record_get_u64(record, "asked", 0) };

	if (host->waits == DEADLOCK_WAITS_MAX || graph->wait_count == ALL_WAITS_MAX) {
		graph->cut = true;
		return 0;
	}
	if (!read_at(record, &wait.at, &wait.mode) || wait.number == UINT64_MAX || (wait.asked && !wait.id) || strlen(name) > KEY_MAX)
		return 0;
	if (read_key(graph, host->id, record, &wait.key))
		return -ENOMEM;
	if (!wait.key || wait.asked == is_local(host->id, wait.key))
		return 0;
	wait.name = intern(graph, "", name);
	if (!wait.name || deadlock_graph_grow(&graph->waits, graph->wait_count, &graph->wait_cap, sizeof wait))
		return -ENOMEM;
	graph->waits[graph->wait_count++] = wait;
	host->waits++;
	return 0;
}

static int add_hold(struct deadlock_graph *graph, struct host *host, const struct record *record)
{
	struct hold hold = { .host = host->id, .number = record_get_u64(record, "owner", UINT64_MAX) };

	if (host->holds == DEADLOCK_HOLDS_MAX || graph->hold_count == ALL_HOLDS_MAX) {
		graph->cut = true;
		return 0;
	}
	if (!read_at(record, &hold.at, &hold.mode) || hold.number == UINT64_MAX)
		return 0;
	if (read_key(graph, host->id, record, &hold.key))
		return -ENOMEM;
	if (!hold.key)
		return 0;
	if (deadlock_graph_grow(&graph->holds, graph->hold_count, &graph->hold_cap, sizeof hold))
		return -ENOMEM;
	graph->holds[graph->hold_count++] = hold;
	host->holds++;
	return 0;
}

static struct host *host_of(struct deadlock_graph *graph, const char *id)
{
	for (size_t i = 0; i < graph->host_count; i++)
		if (!strcmp(graph->hosts[i].id, id))
			return &graph->hosts[i];
	if (deadlock_graph_grow(&graph->hosts, graph->host_count, &graph->host_cap, sizeof *graph->hosts))
		return NULL;
	id = intern(graph, "", id);
	if (!id)
		return NULL;
	graph->hosts[graph->host_count] = (struct host){ .id = id };
	return &graph->hosts[graph->host_count++];
}

int deadlock_graph_add(struct deadlock_graph *graph, const char *id, const char *text, size_t len)
{
	struct host *host = host_of(graph, id);
	struct record *record;
	size_t pos = 0;
	int r, err = host ? 0 : -ENOMEM;

	while (!err && (r = records_next(text, len, &pos, &record)) != 0) {
		if (r == -EBADMSG)
			continue;
		if (r < 0)
			return r;
		if (!strcmp(record->kind, "wait"))
			err = add_wait(graph, host, record);
		else if (!strcmp(record->kind, "hold"))
			err = add_hold(graph, host, record);
		record_free(record);
	}
	return err;
}
