/* SPDX-License-Identifier: MIT */
/*
 * The model's rules of one lock: covers, queue, grants. The same as lua/rules.lua
 * and lua/pump.lua (what is said of it: store_model_tell.c). Pure.
 *
 * Covers are kept and compared point by point, quite unlike in the scripts: what
 * both get right was thought of twice.
 */
#include <string.h>

#include "store_model_lock.h"

#ifdef STORE_MODEL_MUTABLE
enum sm_rule sm_without;
#endif

/* --- conflicts ------------------------------------------------------------ */

static bool requests_conflict(const struct sm_request *a, const struct sm_request *b)
{
	return a->start < b->end && b->start < a->end && mode_conflicts(a->mode, b->mode);
}

bool sm_cover_conflicts(const struct sm_store *s, const struct sm_request *q)
{
	for (uint8_t other = 0; other < SM_HOSTS; other++)
		for (uint8_t p = q->start; p < q->end; p++)
			if ((other != q->host || !SM_HAS(SM_RULE_OTHER_HOSTS)) &&
			    mode_conflicts(s->cover[q->key][other].mode[p], q->mode))
				return true;
	return false;
}

bool sm_queue_conflicts(const struct sm_store *s, uint32_t n, const struct sm_request *q)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct sm_request *a = &s->queue[i];

		if (a->key == q->key && !(a->flags & SM_TRY) && (a->host != q->host || !SM_HAS(SM_RULE_OTHER_HOSTS)) &&
		    requests_conflict(a, q))
			return true;
	}
	return false;
}

bool sm_must_wait(const struct sm_store *s, uint32_t n, const struct sm_request *q)
{
	bool passes = ((q->flags & SM_TRY) && SM_HAS(SM_RULE_TRY_COVERS)) ||
		      ((q->flags & SM_PASS) && SM_HAS(SM_RULE_PASS));

	return sm_cover_conflicts(s, q) || (!passes && sm_queue_conflicts(s, n, q));
}

bool sm_is_alone(const struct sm_store *s, uint8_t key, uint8_t host)
{
	for (uint8_t other = 0; other < SM_HOSTS; other++)
		if (other != host && sm_uses(s, key, other))
			return false;
	return true;
}

/* --- covers and queue ----------------------------------------------------- */

bool sm_has_cover(const struct sm_store *s, uint8_t key, uint8_t host)
{
	for (uint8_t p = 0; p < SM_END; p++)
		if (s->cover[key][host].mode[p])
			return true;
	return false;
}

void sm_spans_of(const struct sm_cover *cover, uint8_t start, uint8_t end, struct sm_list *ret)
{
	struct sm_span *last = NULL;

	memset(ret, 0, sizeof(*ret));
	for (uint8_t p = start; p < end; p++) {
		if (!cover->mode[p])
			continue;
		if (!last || last->end != p || last->mode != cover->mode[p] || last->fence != cover->fence[p]) {
			last = &ret->span[ret->count++];
			*last = (struct sm_span){ .start = p, .mode = cover->mode[p], .fence = cover->fence[p] };
		}
		last->end = (uint8_t)(p + 1);
	}
}

void sm_cover_spans(const struct sm_store *s, uint8_t key, uint8_t host, uint8_t start, uint8_t end, struct sm_list *ret)
{
	sm_spans_of(&s->cover[key][host], start, end, ret);
}

void sm_remove_request(struct sm_store *s, uint32_t i)
{
	s->queue_count--;
	memmove(&s->queue[i], &s->queue[i + 1], (s->queue_count - i) * sizeof(s->queue[0]));
	memset(&s->queue[s->queue_count], 0, sizeof(s->queue[0]));
}

bool sm_add_request(struct sm_store *s, struct sm_request q)
{
	if (s->queue_count == SM_REQUESTS) {
		s->overflow = 1;
		return false;
	}
	s->queue[s->queue_count++] = q;
	return true;
}

int sm_find_request(const struct sm_store *s, uint8_t key, uint8_t host, uint32_t req)
{
	for (uint32_t i = 0; i < s->queue_count; i++)
		if (s->queue[i].key == key && s->queue[i].host == host &&
		    (s->queue[i].req == req || !SM_HAS(SM_RULE_ENTRIES)))
			return (int)i;
	return -1;
}

void sm_drop_cover(struct sm_store *s, uint8_t key, uint8_t host)
{
	memset(&s->cover[key][host], 0, sizeof(s->cover[key][host]));
}

void sm_set_point(struct sm_store *s, struct sm_work *w, uint8_t host, uint8_t point, uint8_t mode)
{
	struct sm_cover *cover = &s->cover[w->key][host];

	cover->mode[point] = mode;
	cover->told[point] = 0;
	w->is_new[host][point] = true;
	if (!w->is_fresh[host]) {
		w->is_fresh[host] = true;
		w->fresh[w->fresh_count++] = host;
	}
}

void sm_clear_point(struct sm_store *s, uint8_t key, uint8_t host, uint8_t point)
{
	struct sm_cover *cover = &s->cover[key][host];

	cover->mode[point] = 0;
	cover->fence[point] = 0;
	cover->told[point] = 0;
	if (!sm_has_cover(s, key, host))
		cover->info = 0;
}

void sm_raise_cover(struct sm_store *s, struct sm_work *w, const struct sm_request *q, uint8_t start, uint8_t end)
{
	struct sm_cover *cover = &s->cover[w->key][q->host];

	for (uint8_t p = start; p < end; p++)
		sm_set_point(s, w, q->host, p, (uint8_t)mode_max(cover->mode[p], q->mode));
	cover->info = q->info;
	for (uint32_t i = 0; i < s->queue_count;) {
		const struct sm_request *t = &s->queue[i];
		bool conflicts = requests_conflict(t, q);

		for (uint8_t p = t->start; p < t->end && !SM_HAS(SM_RULE_GRANTED_MODE); p++)
			conflicts = conflicts || mode_conflicts(cover->mode[p], t->mode);
		if (t->key == w->key && (t->flags & SM_TRY) && t->host != q->host && conflicts) {
			w->busy[w->busy_count++] = *t;
			sm_remove_request(s, i);
		} else {
			i++;
		}
	}
}

void sm_pump(struct sm_store *s, struct sm_work *w)
{
	uint32_t passed = 0;	/* tickets up to this one are done */

	if (s->grace)
		return;
	for (uint32_t i = 0; i < s->queue_count;) {
		struct sm_request q = s->queue[i];

		if (q.key != w->key || q.ticket <= passed || sm_must_wait(s, i, &q)) {
			i++;
			continue;
		}
		passed = q.ticket;
		sm_remove_request(s, i);
		sm_raise_cover(s, w, &q, q.start, q.end);
		w->grants[w->grant_count++] = q;
		i = 0;		/* tries in front may be gone */
	}
}

bool sm_uses(const struct sm_store *s, uint8_t key, uint8_t host)
{
	if (sm_has_cover(s, key, host))
		return true;
	for (uint32_t i = 0; i < s->queue_count; i++)
		if (s->queue[i].key == key && s->queue[i].host == host)
			return true;
	return false;
}

void sm_drop_requests(struct sm_store *s, uint8_t key, uint8_t host)
{
	for (uint32_t i = 0; i < s->queue_count;)
		if (s->queue[i].key == key && s->queue[i].host == host)
			sm_remove_request(s, i);
		else
			i++;
}
