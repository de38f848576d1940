/* SPDX-License-Identifier: MIT */
/*
 * The graph of waits: its vertices are the waits and the owners that wait. An
 * edge leads from a wait to each other owner that holds something against it, and
 * from an owner to each of its waits: like the kernel, an owner counts as waiting
 * when any thread of it does. Besides, a wait in the store is led to another host's
 * wait in the kernel whose GO stands against it: that host cannot give the part
 * back before that GO has ended (docs/DESIGN.md, Deadlocks).
 */
#include <errno.h>
#include <string.h>

#include "deadlock_graph_private.h"

#define WORK_MAX 20000000u	/* holds looked at; what is beyond only means fewer edges */

/* --- edges --- */

static int compare_pointers(const char *a, const char *b)
{
	return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int compare_owners(const void *a, const void *b)
{
	const struct owner *x = a, *y = b;
	int c = compare_pointers(x->host, y->host);

	return c ? c : compare_numbers(x->number, y->number);
}

static int compare_holds(const void *a, const void *b)
{
	const struct hold *x = a, *y = b;
	int c = compare_pointers(x->key, y->key);

	return c ? c : compare_numbers(x->at.start, y->at.start);
}

static struct owner *find_owner(const struct deadlock_graph *graph, const char *host, uint64_t number)
{
	struct owner key = { host, number };

	return graph->owner_count ? bsearch(&key, graph->owners, graph->owner_count, sizeof key, compare_owners) : NULL;
}

/* Who waits; and of the holds only theirs, by key and start. */
static int find_owners(struct deadlock_graph *graph)
{
	size_t n = 0;

	graph->owners = calloc(graph->wait_count + 1, sizeof *graph->owners);
	if (!graph->owners)
		return -ENOMEM;
	for (size_t i = 0; i < graph->wait_count; i++)
		graph->owners[i] = (struct owner){ graph->waits[i].host, graph->waits[i].number };
	qsort(graph->owners, graph->wait_count, sizeof *graph->owners, compare_owners);
	for (size_t i = 0; i < graph->wait_count; i++)
		if (!n || compare_owners(&graph->owners[n - 1], &graph->owners[i]))
			graph->owners[n++] = graph->owners[i];
	graph->owner_count = n;
	for (size_t i = 0; i < graph->wait_count; i++)
		graph->waits[i].owner = (size_t)(find_owner(graph, graph->waits[i].host, graph->waits[i].number) - graph->owners);
	n = 0;
	for (size_t i = 0; i < graph->hold_count; i++) {
		struct owner *owner = find_owner(graph, graph->holds[i].host, graph->holds[i].number);

		if (!owner)
			continue;
		graph->holds[n] = graph->holds[i];
		graph->holds[n++].owner = (size_t)(owner - graph->owners);
	}
	graph->hold_count = n;
	if (n)
		qsort(graph->holds, n, sizeof *graph->holds, compare_holds);
	return 0;
}

static int add_edge(struct deadlock_graph *graph, size_t to)
{
	if (deadlock_graph_grow(&graph->to, graph->edge_count, &graph->edge_cap, sizeof *graph->to))
		return -ENOMEM;
	graph->to[graph->edge_count++] = to;
	return 0;
}

/* The first hold with this key. */
static size_t first_hold(const struct deadlock_graph *graph, const char *key)
{
	size_t low = 0, high = graph->hold_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_pointers(graph->holds[middle].key, key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool is_behind_go(const struct wait *n, const struct wait *m)
{
	return n->asked && !m->asked && n->key == m->name && n->host != m->host &&
	       extent_overlaps(n->at, m->at) && mode_conflicts(n->mode, m->mode);
}

static int compare_names(const void *a, const void *b, void *waits)
{
	const struct wait *w = waits;

	return compare_pointers(w[*(const size_t *)a].name, w[*(const size_t *)b].name);
}

struct edges {			/* while they are made */
	size_t *mark;		/* for each owner: the wait that leads there already, + 1 */
	size_t *gos, go_count;	/* the waits in the kernel, by name */
	size_t work;
};

static int edges_of_wait(struct deadlock_graph *graph, struct edges *edges, size_t n)
{
	const struct wait *wait = &graph->waits[n];
	size_t low = 0, high = edges->go_count;

	for (size_t i = first_hold(graph, wait->key); i < graph->hold_count && edges->work < WORK_MAX; i++) {
		const struct hold *hold = &graph->holds[i];

		if (hold->key != wait->key || hold->at.start >= wait->at.end)
			break;
		edges->work++;
		if (hold->owner == wait->owner || edges->mark[hold->owner] == n + 1 || hold->at.end <= wait->at.start ||
		    !mode_conflicts(hold->mode, wait->mode))
			continue;
		edges->mark[hold->owner] = n + 1;
		if (add_edge(graph, graph->wait_count + hold->owner))
			return -ENOMEM;
	}
	while (wait->asked && low < high) {
		size_t middle = low + (high - low) / 2;

		if (compare_pointers(graph->waits[edges->gos[middle]].name, wait->key) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (; wait->asked && low < edges->go_count && edges->work < WORK_MAX; low++) {
		const struct wait *go = &graph->waits[edges->gos[low]];

		if (go->name != wait->key)
			break;
		edges->work++;
		if (is_behind_go(wait, go) && add_edge(graph, edges->gos[low]))
			return -ENOMEM;
	}
	return 0;
}

static int edges_of_owners(struct deadlock_graph *graph)
{
	size_t *count = calloc(graph->owner_count + 1, sizeof *count);
	size_t at = graph->edge_count;
	int err = count ? 0 : -ENOMEM;

	for (size_t i = 0; !err && i < graph->wait_count; i++) {
		count[graph->waits[i].owner]++;
		err = add_edge(graph, 0);
	}
	for (size_t i = 0; !err && i < graph->owner_count; i++) {
		graph->first[graph->wait_count + i] = at;
		at += count[i];
		count[i] = graph->first[graph->wait_count + i];
	}
	for (size_t i = 0; !err && i < graph->wait_count; i++)
		graph->to[count[graph->waits[i].owner]++] = i;
	free(count);
	return err;
}

static int find_edges(struct deadlock_graph *graph)
{
	struct edges edges = { .mark = calloc(graph->owner_count + 1, sizeof *edges.mark),
			       .gos = calloc(graph->wait_count + 1, sizeof *edges.gos) };
	int err = edges.mark && edges.gos ? 0 : -ENOMEM;

	graph->first = calloc(graph->wait_count + graph->owner_count + 1, sizeof *graph->first);
	err = graph->first ? err : -ENOMEM;
	for (size_t i = 0; !err && i < graph->wait_count; i++)
		if (!graph->waits[i].asked && graph->waits[i].name[0])
			edges.gos[edges.go_count++] = i;
	if (!err)
		qsort_r(edges.gos, edges.go_count, sizeof *edges.gos, compare_names, graph->waits);
	for (size_t i = 0; !err && i < graph->wait_count; i++) {
		graph->first[i] = graph->edge_count;
		err = edges_of_wait(graph, &edges, i);
	}
	if (!err)
		err = edges_of_owners(graph);
	if (!err)
		graph->first[graph->wait_count + graph->owner_count] = graph->edge_count;
	graph->cut = graph->cut || edges.work >= WORK_MAX;
	free(edges.mark);
	free(edges.gos);
	return err;
}

/* --- cycles --- */

struct search {			/* strongly connected components (Tarjan), without recursion */
	size_t *number, *low, *next;	/* of each vertex: when it was met (0: not yet), …, its next edge */
	size_t *stack, stacked;
	bool *on_stack;
	size_t *path, depth;
	size_t *component, *size, components;
};

static void visit(struct search *s, const size_t *first, size_t v, size_t *met)
{
	s->number[v] = s->low[v] = ++*met;
	s->next[v] = first[v];
	s->stack[s->stacked++] = v;
	s->on_stack[v] = true;
	s->path[s->depth++] = v;
}

static void component_from(struct search *s, const struct deadlock_graph *graph, size_t root, size_t *met)
{
	visit(s, graph->first, root, met);
	while (s->depth) {
		size_t v = s->path[s->depth - 1], w;

		if (s->next[v] < graph->first[v + 1]) {
			w = graph->to[s->next[v]++];
			if (!s->number[w])
				visit(s, graph->first, w, met);
			else if (s->on_stack[w] && s->number[w] < s->low[v])
				s->low[v] = s->number[w];
			continue;
		}
		s->depth--;
		if (s->depth && s->low[v] < s->low[s->path[s->depth - 1]])
			s->low[s->path[s->depth - 1]] = s->low[v];
		if (s->low[v] != s->number[v])
			continue;
		do {
			w = s->stack[--s->stacked];
			s->on_stack[w] = false;
			s->component[w] = s->components;
			s->size[s->components]++;
		} while (w != v);
		s->components++;
	}
}

/* The shortest way from the victim back to it, within its component. */
static int find_cycle(const struct deadlock_graph *graph, const size_t *component, size_t victim, struct cycle *ret)
{
	size_t vertices = graph->wait_count + graph->owner_count, head = 0, tail = 0, last = SIZE_MAX;
	size_t *queue = calloc(vertices, sizeof *queue), *from = calloc(vertices, sizeof *from);	/* from: + 1; 0 = not met */
	int err = queue && from ? 0 : -ENOMEM;

	if (!err)
		queue[tail++] = victim;
	while (!err && last == SIZE_MAX && head < tail) {
		size_t v = queue[head++];

		for (size_t e = graph->first[v]; e < graph->first[v + 1]; e++) {
			size_t w = graph->to[e];

			if (w == victim) {
				last = v;
				break;
			}
			if (component[w] != component[victim] || from[w])
				continue;
			from[w] = v + 1;
			queue[tail++] = w;
		}
	}
	if (last == SIZE_MAX)
		err = err ? err : -EINVAL;
	for (size_t v = last; !err; v = from[v] - 1) {
		ret->count += v < graph->wait_count;
		if (v == victim)
			break;
	}
	ret->waits = err ? NULL : calloc(ret->count, sizeof *ret->waits);
	if (!ret->waits)
		err = err ? err : -ENOMEM;
	for (size_t v = last, i = ret->count; !err; v = from[v] - 1) {
		if (v < graph->wait_count)
			ret->waits[--i] = v;
		if (v == victim)
			break;
	}
	free(queue);
	free(from);
	return err;
}

static bool is_greater(const struct wait *a, const struct wait *b)
{
	int c = strcmp(a->host, b->host);

	return c ? c > 0 : a->id > b->id;
}

static int find_victims(struct deadlock_graph *graph, const struct search *s)
{
	size_t *best = calloc(s->components + 1, sizeof *best);	/* + 1 */
	int err = 0;

	graph->victims = calloc(s->components + 1, sizeof *graph->victims);
	graph->cycles = calloc(s->components + 1, sizeof *graph->cycles);
	if (!best || !graph->victims || !graph->cycles) {
		free(best);
		return -ENOMEM;
	}
	for (size_t i = 0; i < graph->wait_count; i++) {
		size_t c = s->component[i];

		if (s->size[c] > 1 && graph->waits[i].asked && (!best[c] || is_greater(&graph->waits[i], &graph->waits[best[c] - 1])))
			best[c] = i + 1;
	}
	for (size_t c = 0; !err && c < s->components; c++) {
		const struct wait *wait = &graph->waits[best[c] ? best[c] - 1 : 0];

		if (!best[c])
			continue;
		err = find_cycle(graph, s->component, best[c] - 1, &graph->cycles[graph->victim_count]);
		if (!err)
			graph->victims[graph->victim_count++] = (struct deadlock_victim){ wait->host, wait->id };
	}
	free(best);
	return err;
}

long deadlock_graph_solve(struct deadlock_graph *graph, const struct deadlock_victim **ret_victims)
{
	struct search s = { 0 };
	size_t vertices, met = 0, *numbers = NULL;
	int err = find_owners(graph);

	if (!err)
		err = find_edges(graph);
	vertices = graph->wait_count + graph->owner_count;
	if (!err) {
		numbers = calloc(vertices + 1, 7 * sizeof *numbers);
		s.on_stack = calloc(vertices + 1, sizeof *s.on_stack);
		err = numbers && s.on_stack ? 0 : -ENOMEM;
	}
	if (!err) {
		size_t **parts[] = { &s.number, &s.low, &s.next, &s.stack, &s.path, &s.component, &s.size };

		for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
			*parts[i] = numbers + i * (vertices + 1);
		for (size_t v = 0; v < vertices; v++)
			if (!s.number[v])
				component_from(&s, graph, v, &met);
		err = find_victims(graph, &s);
	}
	free(numbers);
	free(s.on_stack);
	*ret_victims = graph->victims;
	return err ? err : (long)graph->victim_count;
}

size_t deadlock_graph_victims(const struct deadlock_graph *graph, const struct deadlock_victim **ret_victims)
{
	*ret_victims = graph->victims;
	return graph->victim_count;
}

/* --- twice --- */

/* Two graphs have texts of their own. */
static bool is_same(const struct wait *a, const struct wait *b)
{
	return a->id == b->id && a->asked == b->asked && a->pid == b->pid && a->stamp == b->stamp && a->mode == b->mode &&
	       extent_equal(a->at, b->at) && !strcmp(a->host, b->host) && !strcmp(a->key, b->key);
}

static size_t find_wait(const struct deadlock_graph *graph, const struct wait *wait)
{
	size_t i = 0;

	while (i < graph->wait_count && !is_same(&graph->waits[i], wait))
		i++;
	return i;
}

/* Whether one waits for the other, or for its owner. */
static bool is_edge(const struct deadlock_graph *graph, size_t n, size_t m)
{
	for (size_t e = graph->first[n]; e < graph->first[n + 1]; e++)
		if (graph->to[e] == m || graph->to[e] == graph->wait_count + graph->waits[m].owner)
			return true;
	return false;
}

bool deadlock_graph_confirms(const struct deadlock_graph *second, const struct deadlock_graph *first, size_t victim)
{
	const struct cycle *cycle = &first->cycles[victim];
	size_t begin, at;
	bool there = false;

	for (size_t i = 0; i < second->victim_count; i++)
		there = there || (second->victims[i].id == first->victims[victim].id && !strcmp(second->victims[i].host, first->victims[victim].host));
	begin = at = find_wait(second, &first->waits[cycle->waits[0]]);
	for (size_t i = 1; there && at < second->wait_count && i <= cycle->count; i++) {
		size_t next = i < cycle->count ? find_wait(second, &first->waits[cycle->waits[i]]) : begin;

		there = next < second->wait_count && is_edge(second, at, next);
		at = next;
	}
	return there && at < second->wait_count;
}
