/* SPDX-License-Identifier: MIT */
/*
 * The model's rules of one lock, second part: who waits for what, and who is told
 * of it. The same as lua/rules.lua and lua/recall.lua. Pure.
 */
#include <stdlib.h>
#include <string.h>

#include "store_model_lock.h"

/* --- pushes --------------------------------------------------------------- */

static void push(struct sm_store *s, struct sm_reply *r, uint8_t to, struct sm_push p)
{
	struct sm_host *h = &s->host[to];

	if (!h->exists)
		return;
	p.to = to;
	p.inc = s->inc;
	p.seq = ++h->seq;
	if (h->outbox_count == SM_OUTBOX || r->push_count == SM_PUSHES) {
		s->overflow = 1;
		return;
	}
	h->outbox[h->outbox_count++] = p;
	r->push[r->push_count++] = p;
}

static void push_recall(struct sm_store *s, struct sm_reply *r, uint8_t key, uint8_t to, const struct sm_list *waiting)
{
	if (waiting->count == 0)
		return;
	sm_note_told(s, key, to, waiting);
	push(s, r, to, (struct sm_push){ .kind = 'R', .key = key, .waiting = *waiting });
}

/* The highest fence of host's points that conflict with the try; 0: none does. */
static uint32_t fence_against(const struct sm_store *s, uint8_t host, const struct sm_request *q)
{
	const struct sm_cover *cover = &s->cover[q->key][host];
	uint32_t highest = 0;

	for (uint8_t p = q->start; p < q->end; p++)
		if (mode_conflicts(cover->mode[p], q->mode) && cover->fence[p] > highest)
			highest = cover->fence[p];
	return highest;
}

static void push_try(struct sm_store *s, struct sm_reply *r, uint8_t to, const struct sm_request *q)
{
	struct sm_push p = { .kind = 'T', .key = q->key, .host = q->host, .req = q->req, .waiting.count = 1 };

	p.waiting.span[0] = (struct sm_span){ .start = q->start, .end = q->end, .mode = q->mode, .fence = fence_against(s, to, q) };
	push(s, r, to, p);
}

/* --- who waits ------------------------------------------------------------ */

static int compare_spans(const void *left, const void *right)
{
	const struct sm_span *a = left, *b = right;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	if (a->end != b->end)
		return a->end < b->end ? -1 : 1;
	return a->mode < b->mode ? -1 : a->mode > b->mode;
}

/*
 * Whether b says all that a says. A part within another one does not: the host waits in the kernel for one part
 * at a time, and is not woken when a smaller one inside it becomes free.
 */
static bool says_all(const struct sm_span *a, const struct sm_span *b)
{
	if (!SM_HAS(SM_RULE_EACH_PART) && b->start <= a->start && a->end <= b->end)
		return a->fence == b->fence && b->mode >= a->mode;
	return a->fence == b->fence && b->start == a->start && a->end == b->end && b->mode >= a->mode;
}

/* Adds a part to the list unless it says nothing more; what it makes needless goes. */
static void add_part(struct sm_list *list, struct sm_span part)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < list->count; i++)
		if (says_all(&part, &list->span[i]))
			return;
	for (uint32_t i = 0; i < list->count; i++)
		if (!says_all(&list->span[i], &part))
			list->span[kept++] = list->span[i];
	list->span[kept++] = part;
	for (uint32_t i = kept; i < list->count; i++)
		list->span[i] = (struct sm_span){ 0 };
	list->count = kept;
}

/* The part of a span that the request wants and cannot have; mode is NONE if there is none. */
static struct sm_span wanted_part(const struct sm_span *span, const struct sm_request *q)
{
	struct sm_span part = {
		.start = span->start > q->start ? span->start : q->start,
		.end = span->end < q->end ? span->end : q->end,
		.fence = span->fence,
	};

	if (part.start < part.end && mode_conflicts(span->mode, q->mode))
		part.mode = q->mode;
	return part;
}

void sm_waiting_for(const struct sm_store *s, uint8_t key, uint8_t host, const struct sm_list *spans, struct sm_list *ret)
{
	memset(ret, 0, sizeof(*ret));
	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];

		if (q->key != key || (q->flags & SM_TRY) || q->host == host)
			continue;
		for (uint32_t k = 0; k < spans->count; k++) {
			struct sm_span part = wanted_part(&spans->span[k], q);

			if (part.mode)
				add_part(ret, part);
		}
	}
	qsort(ret->span, ret->count, sizeof(ret->span[0]), compare_spans);
}

void sm_note_told(struct sm_store *s, uint8_t key, uint8_t host, const struct sm_list *waiting)
{
	struct sm_cover *cover = &s->cover[key][host];

	for (uint32_t i = 0; i < waiting->count; i++)
		for (uint8_t p = waiting->span[i].start; p < waiting->span[i].end; p++)
			if (cover->fence[p] == waiting->span[i].fence && cover->told[p] < waiting->span[i].mode)
				cover->told[p] = waiting->span[i].mode;
}

/* --- telling -------------------------------------------------------------- */

/* Tells host of the tries of others that conflict with its cover, the highest fence there being a new one or not. */
static void tell_tries(struct sm_store *s, const struct sm_work *w, uint8_t host, bool new, struct sm_reply *r)
{
	const struct sm_cover *cover = &s->cover[w->key][host];

	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];
		bool meets_new = false, meets_old = false;

		if (q->key != w->key || !(q->flags & SM_TRY) || q->host == host)
			continue;
		for (uint8_t p = q->start; p < q->end; p++)
			if (mode_conflicts(cover->mode[p], q->mode)) {
				meets_new = meets_new || w->is_new[host][p];
				meets_old = true;
			}
		if (new ? meets_new : meets_old && !meets_new)
			push_try(s, r, host, q);
	}
}

void sm_write_lock(struct sm_store *s, struct sm_work *w, struct sm_reply *r)
{
	for (uint32_t i = 0; i < w->fresh_count; i++) {
		s->fence++;
		for (uint8_t p = 0; p < SM_END; p++)
			if (w->is_new[w->fresh[i]][p])
				s->cover[w->key][w->fresh[i]].fence[p] = s->fence;
	}
	for (uint32_t i = 0; i < w->grant_count; i++) {
		const struct sm_request *q = &w->grants[i];
		struct sm_push p = { .kind = 'G', .key = q->key, .req = q->req };

		sm_cover_spans(s, q->key, q->host, q->start, q->end, &p.spans);
		if (SM_HAS(SM_RULE_WAITING))
			sm_waiting_for(s, q->key, q->host, &p.spans, &p.waiting);
		sm_note_told(s, q->key, q->host, &p.waiting);
		push(s, r, q->host, p);
	}
	for (uint32_t i = 0; i < w->busy_count; i++)
		push(s, r, w->busy[i].host, (struct sm_push){ .kind = 'B', .key = w->key, .req = w->busy[i].req });
	/* What was told under the old fences would go unanswered. */
	for (uint32_t i = 0; i < w->fresh_count && !s->grace && SM_HAS(SM_RULE_TELL_AGAIN); i++)
		tell_tries(s, w, w->fresh[i], true, r);
}

/* Whether host was told of this part of a span of its cover: a queued request of at least its mode wants the same. */
static bool was_told(const struct sm_store *s, const struct sm_request *r, uint8_t host, const struct sm_span *span, const struct sm_span *part)
{
	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];
		struct sm_span other = wanted_part(span, q);

		if (q->ticket == r->ticket || q->key != r->key || (q->flags & SM_TRY) || q->host == host)
			continue;
		if (!SM_HAS(SM_RULE_TOLD) || (other.mode && says_all(part, &other)))
			return true;
	}
	return false;
}

void sm_recall(struct sm_store *s, const struct sm_request *q, bool again, struct sm_reply *r)
{
	for (uint8_t host = 0; host < SM_HOSTS; host++) {
		struct sm_list spans, waiting = { 0 };

		if (host == q->host)
			continue;
		if (q->flags & SM_TRY) {
			if (fence_against(s, host, q))
				push_try(s, r, host, q);
			continue;
		}
		sm_cover_spans(s, q->key, host, 0, SM_END, &spans);
		for (uint32_t i = 0; i < spans.count; i++) {
			struct sm_span part = wanted_part(&spans.span[i], q);

			if (part.mode && (again || !was_told(s, q, host, &spans.span[i], &part)))
				add_part(&waiting, part);
		}
		push_recall(s, r, q->key, host, &waiting);
	}
}

void sm_tell(struct sm_store *s, const struct sm_work *w, uint8_t host, struct sm_reply *r)
{
	struct sm_list spans, rest = { 0 }, waiting;

	if (!sm_has_cover(s, w->key, host))
		return;
	sm_cover_spans(s, w->key, host, 0, SM_END, &spans);
	for (uint32_t i = 0; i < spans.count; i++)
		if (!w->is_new[host][spans.span[i].start])
			rest.span[rest.count++] = spans.span[i];
	sm_waiting_for(s, w->key, host, &rest, &waiting);
	push_recall(s, r, w->key, host, &waiting);
	tell_tries(s, w, host, false, r);
}
