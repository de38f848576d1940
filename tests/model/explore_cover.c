/* SPDX-License-Identifier: MIT */
/*
 * A cover in few bytes, as the world keeps it between two events: so a world is plain
 * memory, and the cover's own arrays may grow as they like.
 */
#include "explore_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct extent x_extent(uint8_t start, uint8_t end)
{
	return (struct extent){ start, end == X_POINTS ? EXTENT_END : end };
}

uint8_t x_point(uint64_t offset)
{
	return offset == EXTENT_END ? X_POINTS : (uint8_t)offset;
}

static struct lock_span big_span(struct x_span span)
{
	return (struct lock_span){ x_extent(span.start, span.end), (enum lock_mode)span.mode, span.fence };
}

static struct x_span small_span(struct lock_span span)
{
	return (struct x_span){ x_point(span.at.start), x_point(span.at.end), (uint8_t)span.mode, (uint8_t)span.fence };
}

/* The arrays of `to` are empty or its own from an earlier time. */
void x_cover_unpack(const struct x_cover *from, struct cover *to)
{
	to->top_fence = from->top_fence;
	to->void_fence = from->void_fence;
	to->probing = from->probing;
	to->idle_check = from->idle_check;
	to->probe_stale = from->probe_stale;
	to->spans.count = 0;
	for (int i = 0; i < from->span_count; i++)
		lock_spans_append(&to->spans, big_span(from->spans[i]));
	to->voids.count = 0;
	for (int i = 0; i < from->void_count; i++)
		lock_spans_append(&to->voids, big_span(from->voids[i]));
#define ROOM(array, n) do { \
		if (to->n##_cap < from->n##_count) { \
			to->array = realloc(to->array, from->n##_count * sizeof *to->array); \
			to->n##_cap = from->n##_count; \
		} \
		to->n##_count = from->n##_count; \
	} while (0)
	ROOM(recalls, recall);
	ROOM(questions, question);
	ROOM(requests, request);
	ROOM(tries, try);
#undef ROOM
	for (int i = 0; i < from->recall_count; i++) {
		const struct x_recall *r = &from->recalls[i];

		to->recalls[i] = (struct cover_recall){ .wanted = big_span(r->wanted), .dropped = r->dropped,
							.wait = (enum cover_wait_state)r->wait, .slot = r->slot,
							.wait_at = x_extent(r->wait_start, r->wait_end),
							.wait_mode = (enum lock_mode)r->wait_mode };
	}
	for (int i = 0; i < from->question_count; i++) {
		const struct x_question *q = &from->questions[i];

		to->questions[i] = (struct cover_question){ .at = x_extent(q->start, q->end), .bounds = x_extent(q->from, q->to),
							    .want = (enum lock_mode)q->want, .any = q->any,
							    .demand = (enum lock_mode)q->demand,
							    .seen = x_extent(q->seen_start, q->seen_end) };
	}
	for (int i = 0; i < from->request_count; i++) {
		const struct x_request *r = &from->requests[i];

		to->requests[i] = (struct cover_request){ .id = r->id, .at = x_extent(r->start, r->end), .mode = (enum lock_mode)r->mode,
							  .try = r->try, .checked = r->checked, .stake = r->stake, .asked = r->asked,
							  .twice = r->twice, .state = (enum cover_request_state)r->state };
	}
	for (int i = 0; i < from->try_count; i++) {
		const struct x_try *t = &from->tries[i];

		to->tries[i] = (struct cover_try){ .req = t->req, .wanted = big_span(t->wanted), .asked = t->asked, .over = t->over };
		snprintf(to->tries[i].host, sizeof to->tries[i].host, "%d", t->host);
	}
}

/* What a cover must be between two events, whatever happened. */
static const char *broken(const struct cover *c)
{
	if (c->failed)
		return "the cover says that it is out of memory";
	if (c->spans.count > X_POINTS || c->voids.count > X_POINTS)
		return "a cover of more spans than there are points";
	for (size_t i = 0; i < c->spans.count; i++) {
		if (c->spans.at[i].mode == MODE_NONE || c->spans.at[i].at.start >= c->spans.at[i].at.end)
			return "an empty part of a cover";
		if (i && c->spans.at[i - 1].at.end > c->spans.at[i].at.start)
			return "the parts of a cover overlap";
	}
	for (size_t i = 0; i < c->recall_count; i++)
		for (size_t k = 0; k < i; k++)
			if (c->recalls[i].wait != WAIT_NONE && c->recalls[k].wait != WAIT_NONE &&
			    (c->recalls[i].slot == c->recalls[k].slot || !c->gentle))
				return "two helpers in one place";
	return NULL;
}

void x_cover_pack(struct x_world *w, const struct cover *from, struct x_cover *to)
{
	const char *why = broken(from);

	memset(to, 0, sizeof *to);
	if (why) {
		x_world_fail(w, X_BROKEN, why);
		return;
	}
	if (from->recall_count > X_RECALLS || from->question_count > X_QUESTIONS || from->request_count > X_REQUESTS ||
	    from->try_count > X_TRIES || from->top_fence > 200) {
		x_world_fail(w, X_LIVELOCK, "the cover changes hands without end");
		return;
	}
	to->top_fence = (uint8_t)from->top_fence;
	to->void_fence = (uint8_t)from->void_fence;
	to->probing = from->probing;
	to->idle_check = from->idle_check;
	to->probe_stale = from->probing && from->probe_stale;
	to->span_count = (uint8_t)from->spans.count;
	to->recall_count = (uint8_t)from->recall_count;
	to->question_count = from->probing ? (uint8_t)from->question_count : 0;
	to->request_count = (uint8_t)from->request_count;
	to->try_count = (uint8_t)from->try_count;
	to->void_count = (uint8_t)from->voids.count;
	for (int i = 0; i < to->void_count; i++)
		to->voids[i] = small_span(from->voids.at[i]);
	for (int i = 0; i < to->span_count; i++)
		to->spans[i] = small_span(from->spans.at[i]);
	for (int i = 0; i < to->recall_count; i++) {
		const struct cover_recall *r = &from->recalls[i];
		struct x_recall *small = &to->recalls[i];

		small->wanted = small_span(r->wanted);
		small->dropped = r->dropped;
		small->wait = (uint8_t)r->wait;
		if (r->wait == WAIT_NONE)
			continue;
		small->slot = (uint8_t)r->slot;
		small->wait_start = x_point(r->wait_at.start);
		small->wait_end = x_point(r->wait_at.end);
		small->wait_mode = (uint8_t)r->wait_mode;
	}
	for (int i = 0; i < to->question_count; i++) {
		const struct cover_question *q = &from->questions[i];

		to->questions[i] = (struct x_question){ x_point(q->at.start), x_point(q->at.end), x_point(q->bounds.start),
							x_point(q->bounds.end), (uint8_t)q->want, q->any, (uint8_t)q->demand,
							x_point(q->seen.start), x_point(q->seen.end) };
	}
	for (int i = 0; i < to->request_count; i++) {
		const struct cover_request *r = &from->requests[i];

		to->requests[i] = (struct x_request){ (uint16_t)r->id, x_point(r->at.start), x_point(r->at.end), (uint8_t)r->mode,
						      r->try, r->checked, r->stake, r->asked, r->twice, (uint8_t)r->state, 0 };
	}
	for (int i = 0; i < to->try_count; i++) {
		const struct cover_try *t = &from->tries[i];

		to->tries[i] = (struct x_try){ (uint16_t)t->req, small_span(t->wanted), (uint8_t)atoi(t->host), t->asked, t->over, 0 };
	}
}
