/* SPDX-License-Identifier: MIT */
/*
 * The store's scripts in C, beside those in Lua (the rules of one lock are in
 * store_model_lock.c and store_model_tell.c). It must not do I/O, read a clock, allocate or start
 * threads. It is not linked into the agent: the tests compare it with the
 * scripts on a real server and explore its interleavings.
 *
 * Invariants: unused array entries are zero; the queue is in ticket order.
 */
#include <string.h>

#include "store_model_lock.h"

void sm_reset(struct sm_store *s)
{
	memset(s, 0, sizeof(*s));
}

void sm_flush(struct sm_store *s)
{
	uint32_t last_inc = s->last_inc, overflow = s->overflow;

	memset(s, 0, sizeof(*s));
	s->last_inc = last_inc;
	s->overflow = overflow;
}

void sm_restart(struct sm_store *s, const struct sm_store *old)
{
	uint32_t last_inc = s->last_inc;

	if (old != s)
		*s = *old;
	s->last_inc = last_inc;
	s->replid_changed = 1;
}

static void set_reply(const struct sm_store *s, struct sm_reply *r, enum sm_verb verb)
{
	r->verb = verb;
	r->inc = s->inc;
	r->grace = s->grace;
}

static bool refuse(const struct sm_store *s, struct sm_reply *r, enum sm_reason reason, uint32_t number)
{
	set_reply(s, r, SM_REFUSED);
	r->reason = reason;
	r->number = number;
	return false;
}

/* --- the prologue; true: go on ------------------------------------------- */

static bool open_store(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r)
{
	memset(r, 0, sizeof(*r));
	if (s->inc == 0 || s->replid_changed) {
		if (s->ttl == 0) {
			if (c->ttl == 0)
				return refuse(s, r, SM_TTL, 0);
			s->ttl = c->ttl;
		}
		s->inc = ++s->last_inc;
		s->grace = 1;
		s->replid_changed = 0;
	}
	if (c->ttl != s->ttl)
		return refuse(s, r, SM_TTL, s->ttl);
	return true;
}

static void acknowledge(struct sm_host *h, uint32_t ack)
{
	uint32_t n = 0, left;

	while (n < h->outbox_count && h->outbox[n].seq <= ack)
		n++;
	left = h->outbox_count - n;
	memmove(h->outbox, h->outbox + n, left * sizeof(h->outbox[0]));
	memset(h->outbox + left, 0, n * sizeof(h->outbox[0]));
	h->outbox_count = left;
}

static bool enter(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r)
{
	struct sm_host *h = &s->host[c->host];

	if (!open_store(s, c, r))
		return false;
	if (c->inc != s->inc)
		return refuse(s, r, SM_INC, 0);
	if (!h->exists || h->token != c->token)
		return refuse(s, r, SM_TOKEN, 0);
	if (h->gen[c->role] != c->gen)
		return refuse(s, r, SM_GEN, 0);
	if (s->grace && h->inc != s->inc)
		return refuse(s, r, SM_CONFIRM, 0);
	acknowledge(h, c->ack);
	return true;
}

static void forget_host(struct sm_store *s, uint8_t host)
{
	if (s->host[host].seq > s->seqbase)
		s->seqbase = s->host[host].seq;
	if (s->host[host].counter > s->seqbase)
		s->seqbase = s->host[host].counter;
	memset(&s->host[host], 0, sizeof(s->host[host]));
}

static void remove_host(struct sm_store *s, uint8_t host, struct sm_reply *r)
{
	forget_host(s, host);
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		struct sm_work w = { .key = key };

		if (!sm_uses(s, key, host))
			continue;
		sm_drop_cover(s, key, host);
		sm_drop_requests(s, key, host);
		sm_pump(s, &w);
		sm_write_lock(s, &w, r);
	}
}

/* --- the scripts ---------------------------------------------------------- */

void sm_init(struct sm_store *s, uint32_t ttl, struct sm_reply *r)
{
	memset(r, 0, sizeof(*r));
	if (s->inc) {
		refuse(s, r, SM_EXISTS, 0);
		return;
	}
	if (ttl == 0) {
		refuse(s, r, SM_TTL, 0);
		return;
	}
	s->inc = ++s->last_inc;
	s->ttl = ttl;
	s->replid_changed = 0;
	set_reply(s, r, SM_OK);
}

void sm_attach(struct sm_store *s, const struct sm_caller *c, uint32_t newtoken, uint32_t oldtoken, uint8_t info, struct sm_reply *r)
{
	struct sm_host *h = &s->host[c->host];
	bool joined = false, swapped;

	if (!open_store(s, c, r))
		return;
	swapped = h->token != newtoken;
	if (!h->exists) {
		if (c->role != SM_CMD) {
			refuse(s, r, SM_TOKEN, 0);
			return;
		}
		joined = true;
		h->exists = 1;
		h->inc = s->inc;
		h->seq = s->seqbase;
		h->counter = s->seqbase + 1;
	} else if (swapped && (c->role != SM_CMD || oldtoken == 0 || h->token != oldtoken)) {
		refuse(s, r, SM_TOKEN, 0);
		return;
	}
	h->gen[c->role] = (h->gen[c->role] > c->gen ? h->gen[c->role] : c->gen) + 1;
	set_reply(s, r, joined ? SM_JOINED : SM_RESUMED);
	r->gen = h->gen[c->role];
	r->confirmed = h->inc == s->inc;
	r->seq = h->seq;
	r->fence = s->fence;
	if (c->role != SM_CMD)
		return;
	h->token = newtoken;
	h->info = info;
	if (swapped) {
		memset(h->outbox, 0, sizeof(h->outbox));
		h->outbox_count = 0;
	}
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		struct sm_work w = { .key = key };

		if (!sm_uses(s, key, c->host))
			continue;
		if (swapped) {
			sm_drop_requests(s, key, c->host);
			sm_pump(s, &w);
			sm_write_lock(s, &w, r);
		}
		if (sm_has_cover(s, key, c->host)) {
			r->cover[r->cover_count].key = key;
			sm_cover_spans(s, key, c->host, 0, SM_END, &r->cover[r->cover_count++].spans);
			/* What a reply said before may have been lost. */
			memset(s->cover[key][c->host].told, 0, sizeof(s->cover[key][c->host].told));
			if (!s->grace && SM_HAS(SM_RULE_ATTACH_TELLS))
				sm_tell(s, &w, c->host, r);
		}
	}
}

void sm_leave(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r)
{
	if (!enter(s, c, r))
		return;
	remove_host(s, c->host, r);
	set_reply(s, r, SM_LEFT);
}

/* The cover of a lock within [start, end) and what waits for it, as a reply of this kind. */
static void reply_cover(struct sm_store *s, struct sm_reply *r, enum sm_verb verb, uint8_t key, uint8_t host)
{
	set_reply(s, r, verb);
	if (SM_HAS(SM_RULE_WAITING))
		sm_waiting_for(s, key, host, &r->spans, &r->waiting);
	if (!s->grace)
		sm_note_told(s, key, host, &r->waiting);
}

static void grant(struct sm_store *s, const struct sm_request *q, struct sm_reply *r)
{
	struct sm_work w = { .key = q->key };
	uint8_t start = q->start, end = q->end;

	if (sm_is_alone(s, q->key, q->host) || !SM_HAS(SM_RULE_GROW_ALONE)) {
		start = 0;
		end = SM_END;
	}
	sm_raise_cover(s, &w, q, start, end);
	sm_write_lock(s, &w, r);
	sm_cover_spans(s, q->key, q->host, start, end, &r->spans);
	reply_cover(s, r, SM_GRANTED, q->key, q->host);
}

/* A request that waits is sent again. */
static void acquire_again(struct sm_store *s, uint32_t at, uint8_t flags, struct sm_reply *r)
{
	struct sm_request *q = &s->queue[at], copy;
	bool raised = (flags & SM_PASS) && !(q->flags & SM_PASS) && SM_HAS(SM_RULE_PASS_LATE);

	if (raised)
		q->flags |= SM_PASS;
	copy = *q;
	if (raised && !s->grace && !(q->flags & SM_TRY) && !sm_must_wait(s, at, q)) {
		sm_remove_request(s, at);
		grant(s, &copy, r);
		return;
	}
	if (!s->grace)
		sm_recall(s, &copy, true, r);
	set_reply(s, r, SM_QUEUED);
}

void sm_acquire(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, uint8_t start, uint8_t end,
		enum lock_mode mode, uint8_t flags, uint8_t info, struct sm_reply *r)
{
	struct sm_request q = { .req = req, .host = c->host, .key = key, .start = start, .end = end, .mode = (uint8_t)mode,
				.flags = flags, .info = info };
	int at;

	if (!enter(s, c, r))
		return;
	at = sm_find_request(s, key, c->host, req);
	if (at >= 0) {
		acquire_again(s, (uint32_t)at, flags, r);
		return;
	}
	if (s->grace && (flags & SM_TRY)) {
		set_reply(s, r, SM_BUSY);
		return;
	}
	if (!s->grace && !sm_must_wait(s, s->queue_count, &q)) {
		grant(s, &q, r);
		return;
	}
	q.ticket = ++s->ticket;
	if (sm_add_request(s, q) && !s->grace)
		sm_recall(s, &q, false, r);
	set_reply(s, r, SM_QUEUED);
}

void sm_withdraw(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, struct sm_reply *r)
{
	struct sm_work w = { .key = key };
	int at;

	if (!enter(s, c, r))
		return;
	at = sm_find_request(s, key, c->host, req);
	if (at >= 0) {
		sm_remove_request(s, (uint32_t)at);
		sm_pump(s, &w);
		sm_write_lock(s, &w, r);
		r->number = 1;
	}
	set_reply(s, r, SM_WITHDRAWN);
}

/* Whether a part of this fence reduces what has that one. */
static bool fence_allows(uint32_t part, uint32_t cover)
{
	if (cover > part)
		return !SM_HAS(SM_RULE_FENCE);
	return cover == part || SM_HAS(SM_RULE_LOWER_FENCE);
}

void sm_giveback(struct sm_store *s, const struct sm_caller *c, uint8_t key, const struct sm_span *parts, uint32_t part_count,
		 struct sm_reply *r)
{
	struct sm_cover *cover = &s->cover[key][c->host];
	struct sm_work w = { .key = key };
	bool changed = false, within[SM_END] = { false };
	struct sm_cover only;	/* what of it lies within the parts */

	if (!enter(s, c, r))
		return;
	for (uint32_t i = 0; i < part_count; i++)
		for (uint8_t p = parts[i].start; p < parts[i].end; p++) {
			within[p] = true;
			if (!cover->mode[p] || !fence_allows(parts[i].fence, cover->fence[p]))
				continue;
			if (parts[i].mode == MODE_NONE) {
				sm_clear_point(s, key, c->host, p);
				changed = true;
			} else if (cover->mode[p] == MODE_EX) {
				sm_set_point(s, &w, c->host, p, MODE_SH);
				changed = true;
			}
		}
	if (changed) {
		sm_pump(s, &w);
		sm_write_lock(s, &w, r);
	}
	only = *cover;
	for (uint8_t p = 0; p < SM_END; p++)
		if (!within[p])
			only.mode[p] = MODE_NONE;
	sm_spans_of(&only, 0, SM_END, &r->spans);
	reply_cover(s, r, SM_COVER, key, c->host);
}

void sm_busy(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint8_t host, uint32_t req, struct sm_reply *r)
{
	struct sm_work w = { .key = key };
	int at;

	if (!enter(s, c, r))
		return;
	at = sm_find_request(s, key, host, req);
	if (at >= 0 && (s->queue[at].flags & SM_TRY)) {
		w.busy[w.busy_count++] = s->queue[at];
		sm_remove_request(s, (uint32_t)at);
		sm_write_lock(s, &w, r);
		r->number = 1;
	}
	set_reply(s, r, SM_BUSIED);
}

void sm_renew(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r)
{
	struct sm_host *h = &s->host[c->host];

	if (!enter(s, c, r))
		return;
	set_reply(s, r, SM_RENEWED);
	r->counter = ++h->counter;
	r->message_count = h->outbox_count;
	memcpy(r->message, h->outbox, sizeof(r->message));
}

void sm_expire(struct sm_store *s, const struct sm_caller *c, uint8_t victim, uint32_t counter, struct sm_reply *r)
{
	if (!enter(s, c, r))
		return;
	if (s->host[victim].exists && s->host[victim].counter == counter) {
		remove_host(s, victim, r);
		r->number = 1;
	}
	set_reply(s, r, SM_EXPIRED);
}

void sm_endgrace(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r)
{
	bool silent[SM_HOSTS] = { false };

	if (!enter(s, c, r))
		return;
	if (!s->grace) {
		set_reply(s, r, SM_ENDED);
		return;
	}
	for (uint8_t host = 0; host < SM_HOSTS; host++)
		if (s->host[host].exists && s->host[host].inc != s->inc) {
			silent[host] = true;
			forget_host(s, host);
		}
	s->grace = 0;
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		struct sm_work w = { .key = key };

		for (uint8_t host = 0; host < SM_HOSTS; host++)
			if (silent[host]) {
				sm_drop_cover(s, key, host);
				sm_drop_requests(s, key, host);
			}
		sm_pump(s, &w);
		sm_write_lock(s, &w, r);
		for (uint8_t host = 0; host < SM_HOSTS; host++)
			sm_tell(s, &w, host, r);
	}
	set_reply(s, r, SM_ENDED);
	r->number = 1;
}

/* Whether a re-asserted cover conflicts with one of a confirmed host. */
static bool meets_confirmed(const struct sm_store *s, uint8_t host, const struct sm_state_cover *cover)
{
	for (uint8_t other = 0; other < SM_HOSTS; other++) {
		if (other == host || !s->host[other].exists || s->host[other].inc != s->inc)
			continue;
		for (uint32_t i = 0; i < cover->spans.count; i++)
			for (uint8_t p = cover->spans.span[i].start; p < cover->spans.span[i].end; p++)
				if (mode_conflicts(s->cover[cover->key][other].mode[p], cover->spans.span[i].mode))
					return true;
	}
	return false;
}

void sm_reassert(struct sm_store *s, const struct sm_caller *c, uint32_t newtoken, uint8_t info, uint32_t maxfence, uint32_t seq,
		 const struct sm_state_cover *covers, unsigned cover_count,
		 const struct sm_state_request *requests, unsigned request_count, struct sm_reply *r)
{
	struct sm_host *h = &s->host[c->host];

	if (!open_store(s, c, r))
		return;
	if (!s->grace) {
		refuse(s, r, SM_NOGRACE, 0);
		return;
	}
	if (h->exists && h->token != c->token && h->token != newtoken) {
		refuse(s, r, SM_TOKEN, 0);
		return;
	}
	if (h->exists && h->gen[SM_CMD] != c->gen) {
		refuse(s, r, SM_GEN, 0);
		return;
	}
	for (unsigned i = 0; i < cover_count; i++)
		if (meets_confirmed(s, c->host, &covers[i])) {
			refuse(s, r, SM_CONFLICT, covers[i].key);
			return;
		}
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		sm_drop_cover(s, key, c->host);
		sm_drop_requests(s, key, c->host);
	}
	if (!h->exists) {
		h->gen[SM_CMD] = c->gen;
		h->counter = s->seqbase + 1;
	}
	h->exists = 1;
	h->token = newtoken;
	h->inc = s->inc;
	h->info = info;
	if (seq > h->seq)
		h->seq = seq;
	memset(h->outbox, 0, sizeof(h->outbox));
	h->outbox_count = 0;
	if (maxfence > s->fence)
		s->fence = maxfence;
	set_reply(s, r, SM_ASSERTED);
	r->gen = h->gen[SM_CMD];
	r->gen_renew = h->gen[SM_RENEW];
	for (unsigned i = 0; i < cover_count; i++) {
		struct sm_cover *cover = &s->cover[covers[i].key][c->host];

		s->fence++;
		for (uint32_t k = 0; k < covers[i].spans.count; k++)
			for (uint8_t p = covers[i].spans.span[k].start; p < covers[i].spans.span[k].end; p++) {
				cover->mode[p] = covers[i].spans.span[k].mode;
				cover->fence[p] = s->fence;
				cover->info = covers[i].info;
			}
		r->cover[i].key = covers[i].key;
		r->cover[i].fence = s->fence;
	}
	r->cover_count = cover_count;
	for (unsigned i = 0; i < request_count; i++) {
		const struct sm_state_request *q = &requests[i];

		s->ticket++;
		if (!(q->flags & SM_TRY))
			sm_add_request(s, (struct sm_request){ .ticket = s->ticket, .req = q->req, .host = c->host, .key = q->key,
							    .start = q->start, .end = q->end, .mode = q->mode,
							    .flags = q->flags, .info = q->info });
	}
}
