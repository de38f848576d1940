/* SPDX-License-Identifier: MIT */
/*
 * The rules of covers and queue in C, beside the Lua scripts. It must not do I/O,
 * read a clock, allocate or start threads. It is not linked into the agent:
 * the tests compare it with the scripts on a real server and explore its
 * interleavings.
 *
 * Invariants: unused array entries are zero; the queue is in ticket order.
 */
#include <string.h>

#include "store_model.h"

/* What one operation does to one lock, until it is written: see write_lock(). */
struct work {
	uint8_t key;
	uint32_t fresh_count;
	uint8_t fresh[SM_HOSTS];	/* hosts whose cover needs a new fence, in order */
	bool is_fresh[SM_HOSTS];
	uint32_t grant_count, busy_count;
	struct sm_request grants[SM_REQUESTS], busy[SM_REQUESTS];
};

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

static bool cover_conflicts(const struct sm_store *s, uint8_t key, uint8_t host, uint8_t mode)
{
	for (uint8_t other = 0; other < SM_HOSTS; other++)
		if (other != host && mode_conflicts(s->cover[key][other].mode, mode))
			return true;
	return false;
}

/* Whether one of the first n requests is blocking, of another host, and conflicts. */
static bool queue_conflicts(const struct sm_store *s, uint32_t n, uint8_t key, uint8_t host, uint8_t mode)
{
	for (uint32_t i = 0; i < n; i++) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == key && !q->try && q->host != host && mode_conflicts(q->mode, mode))
			return true;
	}
	return false;
}

static uint8_t waiting_for(const struct sm_store *s, uint8_t key, uint8_t host)
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

static void remove_request(struct sm_store *s, uint32_t i)
{
	s->queue_count--;
	memmove(&s->queue[i], &s->queue[i + 1], (s->queue_count - i) * sizeof(s->queue[0]));
	memset(&s->queue[s->queue_count], 0, sizeof(s->queue[0]));
}

static bool add_request(struct sm_store *s, struct sm_request q)
{
	if (s->queue_count == SM_REQUESTS) {
		s->overflow = 1;
		return false;
	}
	s->queue[s->queue_count++] = q;
	return true;
}

static int find_request(const struct sm_store *s, uint8_t key, uint8_t host, uint32_t req)
{
	for (uint32_t i = 0; i < s->queue_count; i++)
		if (s->queue[i].key == key && s->queue[i].host == host && s->queue[i].req == req)
			return (int)i;
	return -1;
}

static void drop_cover(struct sm_store *s, uint8_t key, uint8_t host)
{
	memset(&s->cover[key][host], 0, sizeof(s->cover[key][host]));
}

static void need_fence(struct work *w, uint8_t host)
{
	if (!w->is_fresh[host]) {
		w->is_fresh[host] = true;
		w->fresh[w->fresh_count++] = host;
	}
}

static void raise_cover(struct sm_store *s, struct work *w, uint8_t host, uint8_t mode, uint8_t info)
{
	struct sm_cover *cover = &s->cover[w->key][host];

	cover->mode = (uint8_t)mode_max(cover->mode, mode);
	cover->info = info;
	need_fence(w, host);
	for (uint32_t i = 0; i < s->queue_count;) {
		const struct sm_request *q = &s->queue[i];

		if (q->key == w->key && q->try && q->host != host && mode_conflicts(q->mode, mode)) {
			w->busy[w->busy_count++] = *q;
			remove_request(s, i);
		} else {
			i++;
		}
	}
}

static void pump(struct sm_store *s, struct work *w)
{
	uint32_t passed = 0;	/* tickets up to this one are done */

	if (s->grace)
		return;
	for (uint32_t i = 0; i < s->queue_count;) {
		struct sm_request q = s->queue[i];

		if (q.key != w->key || q.ticket <= passed ||
		    cover_conflicts(s, q.key, q.host, q.mode) ||
		    (!q.try && queue_conflicts(s, i, q.key, q.host, q.mode))) {
			i++;
			continue;
		}
		passed = q.ticket;
		remove_request(s, i);
		raise_cover(s, w, q.host, q.mode, q.info);
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

static void write_lock(struct sm_store *s, struct work *w, struct sm_reply *r)
{
	for (uint32_t i = 0; i < w->fresh_count; i++) {
		struct sm_cover *cover = &s->cover[w->key][w->fresh[i]];

		cover->fence = ++s->fence;
		cover->told = s->grace ? 0 : waiting_for(s, w->key, w->fresh[i]);
	}
	for (uint32_t i = 0; i < w->grant_count; i++) {
		const struct sm_request *q = &w->grants[i];
		const struct sm_cover *cover = &s->cover[q->key][q->host];

		push(s, r, q->host, (struct sm_push){ .kind = 'G', .key = q->key, .req = q->req, .mode = cover->mode,
				.fence = cover->fence, .waiting = waiting_for(s, q->key, q->host) });
	}
	for (uint32_t i = 0; i < w->busy_count; i++)
		push(s, r, w->busy[i].host, (struct sm_push){ .kind = 'B', .key = w->key, .req = w->busy[i].req });
	/* What was told under the old fences would go unanswered. */
	for (uint32_t i = 0; i < w->fresh_count && !s->grace; i++)
		tell_tries(s, w->key, w->fresh[i], r);
}

/* Recalls for a request that is queued. */
static void recall(struct sm_store *s, const struct sm_request *q, bool again, struct sm_reply *r)
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

static void tell(struct sm_store *s, uint8_t key, uint8_t host, struct sm_reply *r)
{
	struct sm_cover *cover = &s->cover[key][host];

	if (cover->mode == MODE_NONE)
		return;
	cover->told = waiting_for(s, key, host);	/* lower too: a reply that said it may have been lost */
	if (cover->told)
		push_recall(s, r, key, host, cover->told);
	tell_tries(s, key, host, r);
}

static bool uses(const struct sm_store *s, uint8_t key, uint8_t host)
{
	if (s->cover[key][host].mode)
		return true;
	for (uint32_t i = 0; i < s->queue_count; i++)
		if (s->queue[i].key == key && s->queue[i].host == host)
			return true;
	return false;
}

static void drop_requests(struct sm_store *s, uint8_t key, uint8_t host)
{
	for (uint32_t i = 0; i < s->queue_count;)
		if (s->queue[i].key == key && s->queue[i].host == host)
			remove_request(s, i);
		else
			i++;
}

static void forget_host(struct sm_store *s, uint8_t host)
{
	if (s->host[host].seq > s->seqbase)
		s->seqbase = s->host[host].seq;
	memset(&s->host[host], 0, sizeof(s->host[host]));
}

static void remove_host(struct sm_store *s, uint8_t host, struct sm_reply *r)
{
	forget_host(s, host);
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		struct work w = { .key = key };

		if (!uses(s, key, host))
			continue;
		drop_cover(s, key, host);
		drop_requests(s, key, host);
		pump(s, &w);
		write_lock(s, &w, r);
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
		struct work w = { .key = key };

		if (!uses(s, key, c->host))
			continue;
		if (swapped) {
			drop_requests(s, key, c->host);
			pump(s, &w);
			write_lock(s, &w, r);
		}
		if (s->cover[key][c->host].mode) {
			r->cover[r->cover_count].key = key;
			r->cover[r->cover_count].mode = s->cover[key][c->host].mode;
			r->cover[r->cover_count++].fence = s->cover[key][c->host].fence;
			if (!s->grace)
				tell(s, key, c->host, r);
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

void sm_acquire(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, enum lock_mode mode, bool try, uint8_t info, struct sm_reply *r)
{
	struct work w = { .key = key };
	int at;

	if (!enter(s, c, r))
		return;
	at = find_request(s, key, c->host, req);
	if (at >= 0) {
		if (!s->grace)
			recall(s, &s->queue[at], true, r);
		set_reply(s, r, SM_QUEUED);
		return;
	}
	if (s->grace && try) {
		set_reply(s, r, SM_BUSY);
		return;
	}
	if (s->grace || cover_conflicts(s, key, c->host, mode) ||
	    (!try && queue_conflicts(s, s->queue_count, key, c->host, mode))) {
		struct sm_request q = { .ticket = ++s->ticket, .req = req, .host = c->host, .key = key,
					.mode = (uint8_t)mode, .try = try, .info = info };

		if (add_request(s, q) && !s->grace)
			recall(s, &q, false, r);
		set_reply(s, r, SM_QUEUED);
		return;
	}
	raise_cover(s, &w, c->host, (uint8_t)mode, info);
	write_lock(s, &w, r);
	set_reply(s, r, SM_GRANTED);
	r->mode = s->cover[key][c->host].mode;
	r->fence = s->cover[key][c->host].fence;
	r->waiting = s->cover[key][c->host].told;
}

void sm_withdraw(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, struct sm_reply *r)
{
	struct work w = { .key = key };
	int at;

	if (!enter(s, c, r))
		return;
	at = find_request(s, key, c->host, req);
	if (at >= 0) {
		remove_request(s, (uint32_t)at);
		pump(s, &w);
		write_lock(s, &w, r);
		r->number = 1;
	}
	set_reply(s, r, SM_WITHDRAWN);
}

void sm_giveback(struct sm_store *s, const struct sm_caller *c, uint8_t key, enum lock_mode keep, uint32_t fence, struct sm_reply *r)
{
	struct sm_cover *cover = &s->cover[key][c->host];
	struct work w = { .key = key };

	if (!enter(s, c, r))
		return;
	if (cover->mode && cover->fence == fence && (keep == MODE_NONE || (keep == MODE_SH && cover->mode == MODE_EX))) {
		if (keep == MODE_NONE) {
			drop_cover(s, key, c->host);
		} else {
			cover->mode = MODE_SH;
			need_fence(&w, c->host);
		}
		pump(s, &w);
		write_lock(s, &w, r);
	}
	set_reply(s, r, SM_COVER);
	r->mode = cover->mode;
	r->fence = cover->fence;
	r->waiting = waiting_for(s, key, c->host);
}

void sm_busy(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint8_t host, uint32_t req, struct sm_reply *r)
{
	struct work w = { .key = key };
	int at;

	if (!enter(s, c, r))
		return;
	at = find_request(s, key, host, req);
	if (at >= 0 && s->queue[at].try) {
		w.busy[w.busy_count++] = s->queue[at];
		remove_request(s, (uint32_t)at);
		write_lock(s, &w, r);
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
		struct work w = { .key = key };

		for (uint8_t host = 0; host < SM_HOSTS; host++)
			if (silent[host]) {
				drop_cover(s, key, host);
				drop_requests(s, key, host);
			}
		pump(s, &w);
		write_lock(s, &w, r);
		for (uint8_t host = 0; host < SM_HOSTS; host++)
			if (!w.is_fresh[host])
				tell(s, key, host, r);
	}
	set_reply(s, r, SM_ENDED);
	r->number = 1;
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
		for (uint8_t other = 0; other < SM_HOSTS; other++)
			if (other != c->host && s->host[other].exists && s->host[other].inc == s->inc &&
			    mode_conflicts(s->cover[covers[i].key][other].mode, covers[i].mode)) {
				refuse(s, r, SM_CONFLICT, covers[i].key);
				return;
			}
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		drop_cover(s, key, c->host);
		drop_requests(s, key, c->host);
	}
	if (!h->exists)
		h->gen[SM_CMD] = c->gen;
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

		cover->mode = covers[i].mode;
		cover->info = covers[i].info;
		cover->fence = ++s->fence;
		r->cover[i].key = covers[i].key;
		r->cover[i].mode = cover->mode;
		r->cover[i].fence = cover->fence;
	}
	r->cover_count = cover_count;
	for (unsigned i = 0; i < request_count; i++) {
		const struct sm_state_request *q = &requests[i];

		s->ticket++;
		if (!q->try)
			add_request(s, (struct sm_request){ .ticket = s->ticket, .req = q->req, .host = c->host, .key = q->key,
							    .mode = q->mode, .info = q->info });
	}
}

/* --- what must hold ------------------------------------------------------- */

static const char *check_covers(const struct sm_store *s, uint8_t key)
{
	for (uint8_t a = 0; a < SM_HOSTS; a++) {
		if (s->cover[key][a].mode && !s->host[a].exists)
			return "a host that does not exist has a cover";
		for (uint8_t b = 0; b < a; b++)
			if (mode_conflicts(s->cover[key][a].mode, s->cover[key][b].mode) &&
			    s->host[a].inc == s->inc && s->host[b].inc == s->inc)
				return "covers of two confirmed hosts conflict";
	}
	return NULL;
}

static const char *check_request(const struct sm_store *s, uint32_t i)
{
	const struct sm_request *q = &s->queue[i];
	bool held = cover_conflicts(s, q->key, q->host, q->mode);

	if (!s->host[q->host].exists)
		return "a request of a host that does not exist waits";
	if (q->try && !held)
		return "a try waits though no cover conflicts with it";
	if (!held && !queue_conflicts(s, i, q->key, q->host, q->mode))
		return "a request waits that could be granted";
	for (uint8_t host = 0; host < SM_HOSTS && !q->try; host++)
		if (host != q->host && mode_conflicts(s->cover[q->key][host].mode, q->mode) &&
		    s->cover[q->key][host].told < q->mode)
			return "a host keeps a request waiting and was not told";
	return NULL;
}

const char *sm_check(const struct sm_store *s)
{
	const char *wrong;

	if (s->inc == 0 || s->replid_changed)
		return NULL;
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		wrong = check_covers(s, key);
		if (wrong)
			return wrong;
	}
	for (uint32_t i = 1; i < s->queue_count; i++)
		if (s->queue[i - 1].ticket >= s->queue[i].ticket)
			return "the queue is not in ticket order";
	if (s->grace)
		return NULL;
	for (uint8_t host = 0; host < SM_HOSTS; host++)
		if (s->host[host].exists && s->host[host].inc != s->inc)
			return "no grace, and a host is not confirmed";
	for (uint32_t i = 0; i < s->queue_count; i++) {
		wrong = check_request(s, i);
		if (wrong)
			return wrong;
	}
	return NULL;
}
