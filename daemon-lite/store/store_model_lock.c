/* SPDX-License-Identifier: MIT */
/*
 * The model's rules of one lock: covers, queue, grants, recalls. The same as
 * lua/rules.lua. Pure.
 */
#include <string.h>

#include "store_model_lock.h"

#ifdef STORE_MODEL_MUTABLE
enum sm_rule sm_without;
#endif

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

static void push_recall(struct sm_store *s, struct sm_reply *r, uint8_t key, uint8_t to, uint8_t mode)
{
	push(s, r, to, (struct sm_push){ .kind = 'R', .key = key, .fence = s->cover[key][to].fence, .mode = mode });
}

static void push_try(struct sm_store *s, struct sm_reply *r, uint8_t to, const struct sm_request *q)
{
	push(s, r, to, (struct sm_push){ .kind = 'T', .key = q->key, .fence = s->cover[q->key][to].fence,
					 .mode = q->mode, .host = q->host, .req = q->req });
}

/* --- one lock ------------------------------------------------------------- */

bool sm_cover_conflicts(const struct sm_store *s, uint8_t key, uint8_t host, uint8_t mode)
{
	for (uint8_t other = 0; other < SM_HOSTS; other++)
		if ((other != host || !SM_HAS(SM_RULE_OTHER_HOSTS)) && mode_conflicts(s->cover[key][other].mode, mode))
			return true;
	return false;
}

bool sm_queue_conflicts(const struct sm_store *s, uint32_t n, uint8_t key, uint8_t host, uint8_t mode)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == key && !q->try && (q->host != host || !SM_HAS(SM_RULE_OTHER_HOSTS)) &&
		    mode_conflicts(q->mode, mode))
			return true;
	}
	return false;
}

uint8_t sm_waiting_for(const struct sm_store *s, uint8_t key, uint8_t host)
{
	uint8_t most = 0;

	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == key && !q->try && q->host != host && q->mode > most &&
		    mode_conflicts(s->cover[key][host].mode, q->mode))
			most = q->mode;
	}
	return most;
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

void sm_need_fence(struct sm_work *w, uint8_t host)
{
	if (!w->is_fresh[host]) {
		w->is_fresh[host] = true;
		w->fresh[w->fresh_count++] = host;
	}
}

void sm_raise_cover(struct sm_store *s, struct sm_work *w, uint8_t host, uint8_t mode, uint8_t info)
{
	struct sm_cover *cover = &s->cover[w->key][host];

	cover->mode = (uint8_t)mode_max(cover->mode, mode);
	cover->info = info;
	sm_need_fence(w, host);
	for (uint32_t i = 0; i < s->queue_count;) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == w->key && q->try && q->host != host &&
		    mode_conflicts(q->mode, SM_HAS(SM_RULE_GRANTED_MODE) ? mode : cover->mode)) {
			w->busy[w->busy_count++] = *q;
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

		if (q.key != w->key || q.ticket <= passed ||
		    sm_cover_conflicts(s, q.key, q.host, q.mode) ||
		    ((!q.try || !SM_HAS(SM_RULE_TRY_COVERS)) && sm_queue_conflicts(s, i, q.key, q.host, q.mode))) {
			i++;
			continue;
		}
		passed = q.ticket;
		sm_remove_request(s, i);
		sm_raise_cover(s, w, q.host, q.mode, q.info);
		w->grants[w->grant_count++] = q;
		i = 0;		/* tries in front may be gone */
	}
}

/* Tells host of the tries of others that conflict with its cover: its fence is new, or its agent is. */
static void tell_tries(struct sm_store *s, uint8_t key, uint8_t host, struct sm_reply *r)
{
	for (uint32_t i = 0; i < s->queue_count; i++) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == key && q->try && q->host != host && mode_conflicts(s->cover[key][host].mode, q->mode))
			push_try(s, r, host, q);
	}
}

void sm_write_lock(struct sm_store *s, struct sm_work *w, struct sm_reply *r)
{
	for (uint32_t i = 0; i < w->fresh_count; i++) {
		struct sm_cover *cover = &s->cover[w->key][w->fresh[i]];

		cover->fence = ++s->fence;
		cover->told = s->grace || !SM_HAS(SM_RULE_WAITING) ? 0 : sm_waiting_for(s, w->key, w->fresh[i]);
	}
	for (uint32_t i = 0; i < w->grant_count; i++) {
		const struct sm_request *q = &w->grants[i];
		const struct sm_cover *cover = &s->cover[q->key][q->host];

		push(s, r, q->host, (struct sm_push){ .kind = 'G', .key = q->key, .req = q->req, .mode = cover->mode,
				.fence = cover->fence,
				.waiting = SM_HAS(SM_RULE_WAITING) ? sm_waiting_for(s, q->key, q->host) : 0 });
	}
	for (uint32_t i = 0; i < w->busy_count; i++)
		push(s, r, w->busy[i].host, (struct sm_push){ .kind = 'B', .key = w->key, .req = w->busy[i].req });
	/* What was told under the old fences would go unanswered. */
	for (uint32_t i = 0; i < w->fresh_count && !s->grace && SM_HAS(SM_RULE_TELL_AGAIN); i++)
		tell_tries(s, w->key, w->fresh[i], r);
}

void sm_recall(struct sm_store *s, const struct sm_request *q, bool again, struct sm_reply *r)
{
	for (uint8_t host = 0; host < SM_HOSTS; host++) {
		struct sm_cover *cover = &s->cover[q->key][host];

		if (host == q->host || !mode_conflicts(cover->mode, q->mode))
			continue;
		if (q->try) {
			push_try(s, r, host, q);
		} else if (again || cover->told < q->mode) {
			cover->told = (uint8_t)mode_max(cover->told, q->mode);
			push_recall(s, r, q->key, host, q->mode);
		}
	}
}

void sm_tell(struct sm_store *s, uint8_t key, uint8_t host, struct sm_reply *r)
{
	struct sm_cover *cover = &s->cover[key][host];
	uint8_t most;

	if (cover->mode == MODE_NONE)
		return;
	most = sm_waiting_for(s, key, host);
	/* Lower too: a reply that said it may have been lost. */
	cover->told = SM_HAS(SM_RULE_TOLD_NOW) ? most : (uint8_t)mode_max(most, cover->told);
	if (most)
		push_recall(s, r, key, host, most);
	tell_tries(s, key, host, r);
}

bool sm_uses(const struct sm_store *s, uint8_t key, uint8_t host)
{
	if (s->cover[key][host].mode)
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
