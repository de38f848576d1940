/* SPDX-License-Identifier: MIT */
/*
 * The cover of one lock on one host: requests, and what the store says. See
 * cover.h for who calls what; who elsewhere wants what is in cover_recall.c, what is asked of
 * the kernel and given back in cover_probe.c.
 *
 * Invariants:
 *  - No GO without a cover that suffices for the whole request at that moment.
 *  - While the agent itself may hold a lock in the kernel that a try could meet
 *    (a flock is being probed; a helper may have won) no GO is given to that try.
 *    Such a GO is READY and counts as given. For the same reason the
 *    kernel is asked for no mode that conflicts with a GO that is outstanding.
 *  - cover_step() is the only place that starts probes and helpers; every event ends
 *    in it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cover_private.h"
#include "store/store.h"

#ifdef COVER_MUTABLE
enum cover_rule cover_without;
#endif

enum { VOIDS_MAX = 256 };

void cover_init(struct cover *c, const struct cover_ops *ops, void *owner, bool gentle, uint64_t void_floor)
{
	memset(c, 0, sizeof *c);
	c->ops = ops;
	c->owner = owner;
	c->gentle = gentle;
	c->void_fence = void_floor;
	c->voids_max = VOIDS_MAX;
	c->top_fence = void_floor;
}

void cover_destroy(struct cover *c)
{
	lock_spans_free(&c->spans);
	lock_spans_free(&c->voids);
	free(c->recalls);
	free(c->questions);
	free(c->requests);
	free(c->tries);
	memset(c, 0, sizeof *c);
}

static int copy_array(void *dst, const void *src, size_t count, size_t size)
{
	void **to = dst;

	*to = NULL;
	if (!count)
		return 0;
	*to = malloc(count * size);
	if (!*to)
		return -ENOMEM;
	memcpy(*to, src, count * size);
	return 0;
}

int cover_copy(struct cover *dst, const struct cover *src)
{
	int err;

	*dst = *src;
	dst->recall_cap = src->recall_count;
	dst->question_cap = src->question_count;
	dst->request_cap = src->request_count;
	dst->try_cap = src->try_count;
	err = lock_spans_copy(&dst->spans, &src->spans);
	err |= lock_spans_copy(&dst->voids, &src->voids);
	err |= copy_array(&dst->recalls, src->recalls, src->recall_count, sizeof *src->recalls);
	err |= copy_array(&dst->questions, src->questions, src->question_count, sizeof *src->questions);
	err |= copy_array(&dst->requests, src->requests, src->request_count, sizeof *src->requests);
	err |= copy_array(&dst->tries, src->tries, src->try_count, sizeof *src->tries);
	if (!err)
		return 0;
	cover_destroy(dst);
	return -ENOMEM;
}

int cover_grow(void *array, size_t count, size_t *cap, size_t size)
{
	void **at = array, *grown;
	size_t more = *cap ? 2 * *cap : 4;

	if (count < *cap)
		return 0;
	grown = reallocarray(*at, more, size);
	if (!grown)
		return -ENOMEM;
	*at = grown;
	*cap = more;
	return 0;
}

static struct cover_request *find(struct cover *c, uint64_t id)
{
	for (size_t i = 0; id && i < c->request_count; i++)
		if (c->requests[i].id == id)
			return &c->requests[i];
	return NULL;
}

static void request_remove(struct cover *c, struct cover_request *r)
{
	size_t i = (size_t)(r - c->requests);

	memmove(r, r + 1, (c->request_count - i - 1) * sizeof *r);
	c->request_count--;
}

bool cover_go_conflicts(const struct cover *c, struct extent at, enum lock_mode mode)
{
	for (size_t i = 0; i < c->request_count; i++) {
		const struct cover_request *r = &c->requests[i];

		if (cover_has_go(r) && mode_conflicts(r->mode, mode) && extent_overlaps(r->at, at))
			return true;
	}
	return false;
}

static bool any_state(const struct cover *c, enum cover_request_state state)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == state)
			return true;
	return false;
}

/* Whether any program here has a GO for a part of it. */
static bool any_go(const struct cover *c, struct extent at)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (cover_has_go(&c->requests[i]) && extent_overlaps(c->requests[i].at, at))
			return true;
	return false;
}

/* --- requests --- */

/* Whether the agent's own lock may refuse this try for an instant. */
static bool may_meet_agent(const struct cover *c, const struct cover_request *r)
{
	if (!c->gentle && c->probing)
		return true;
	for (size_t i = 0; i < c->recall_count; i++) {
		const struct cover_recall *recall = &c->recalls[i];

		if (recall->wait != WAIT_NONE && extent_overlaps(recall->wait_at, r->at) &&
		    (!c->gentle || mode_conflicts(recall->wait_mode, r->mode)))
			return true;
	}
	return false;
}

static void go(struct cover *c, struct cover_request *r)
{
	if (r->try && may_meet_agent(c, r)) {
		r->state = REQUEST_READY;
		return;
	}
	r->state = REQUEST_GO;
	c->ops->answer(c->owner, r->id, ANSWER_GO);
}

unsigned cover_flags(const struct cover_request *r)
{
	return (r->try ? STORE_TRY : 0) | (r->stake ? STORE_PASS : 0);
}

static void ask(struct cover *c, struct cover_request *r)
{
	r->state = REQUEST_ASKED;
	r->twice = r->asked;
	r->asked = true;
	c->ops->ask(c->owner, r->id, r->at, r->mode, cover_flags(r));
}

static void answer_busy(struct cover *c, struct cover_request *r)
{
	uint64_t id = r->id;

	request_remove(c, r);
	c->ops->answer(c->owner, id, ANSWER_BUSY);
}

/* Decides a request whose owner's locks are known or do not matter. Returns false if it was removed. */
static bool settle(struct cover *c, struct cover_request *r)
{
	if (!cover_suffices(c, r->at, r->mode)) {
		ask(c, r);
		return true;
	}
	if (!cover_recall_against(c, r->at, r->mode)) {
		go(c, r);
		return true;
	}
	/* Who holds a part of what is wanted elsewhere would wait for itself behind those who wait for it. */
	if (r->stake && RULE(RULE_STAKE)) {
		go(c, r);
		return true;
	}
	/*
	 * Readers pass where the name is read already (nested readers would deadlock), and where a GO is outstanding:
	 * a reader may be in front of that one, and the kernel knows.
	 */
	if (r->mode == MODE_SH && RULE(RULE_NESTED_SH) && any_go(c, r->at)) {
		go(c, r);
		return true;
	}
	if (r->mode == MODE_EX && !r->try) {
		ask(c, r);
		return true;
	}
	if (cover_go_conflicts(c, r->at, r->mode)) {
		if (r->try) {
			answer_busy(c, r);
			return false;
		}
		ask(c, r);
		return true;
	}
	r->state = REQUEST_SETTLE;
	return true;
}

bool cover_settle_probed(struct cover *c, struct cover_request *r, enum lock_mode most)
{
	bool suffices = cover_suffices(c, r->at, r->mode);

	if (suffices && (!cover_recall_against(c, r->at, r->mode) || (r->mode == MODE_SH && most == MODE_SH && RULE(RULE_NESTED_SH)))) {
		go(c, r);
	} else if (r->try && mode_conflicts(most, r->mode)) {
		answer_busy(c, r);
		return false;
	} else {
		ask(c, r);
	}
	return true;
}

/* Whether it matters what the request's owner holds already. */
static bool has_to_be_checked(const struct cover *c, const struct cover_request *r)
{
	if (r->checked || !c->spans.count)	/* without any cover nothing can be held that counts */
		return false;
	if (!c->gentle)
		return true;
	/* Only somebody who waits for what is held here can be waited for in vain; a try waits for nobody. */
	return cover_is_recalled(c) && (!r->try || cover_suffices(c, r->at, r->mode));
}

/* Whether deciding has to wait for the kernel's answer, or for the end of a helper. */
static bool is_in_kernel(const struct cover *c)
{
	if (c->probing)
		return true;
	for (size_t i = 0; !c->gentle && i < c->recall_count; i++)
		if (c->recalls[i].wait == WAIT_ENDING)
			return true;
	return false;
}

/* Returns false if the request was removed. */
static bool decide(struct cover *c, struct cover_request *r)
{
	if (is_in_kernel(c)) {
		r->state = REQUEST_NEW;
		return true;
	}
	if (cover_suffices(c, r->at, r->mode) && !cover_recall_against(c, r->at, r->mode)) {
		go(c, r);
		return true;
	}
	if (has_to_be_checked(c, r)) {
		r->state = REQUEST_CHECK;
		c->ops->answer(c->owner, r->id, ANSWER_CHECK);
		return true;
	}
	return settle(c, r);
}

/* Decides what can be decided. Returns whether a GO was given: that may settle others. */
static bool decide_all(struct cover *c)
{
	bool given = false;

	for (size_t i = 0; i < c->request_count;) {
		struct cover_request *r = &c->requests[i];

		if (r->state == REQUEST_NEW || r->state == REQUEST_SETTLE) {
			if (!decide(c, r))
				continue;
			given = given || cover_has_go(r);
		}
		i++;
	}
	return given;
}

/* GOs that waited until the agent itself holds nothing in the kernel that they could meet. */
static void go_ready(struct cover *c)
{
	for (size_t i = 0; i < c->request_count; i++) {
		struct cover_request *r = &c->requests[i];

		if (r->state != REQUEST_READY || may_meet_agent(c, r))
			continue;
		if (cover_suffices(c, r->at, r->mode))
			go(c, r);
		else
			ask(c, r);	/* the session was lost meanwhile */
	}
}

void cover_step(struct cover *c)
{
	cover_prune_recalls(c);
	if (is_in_kernel(c))
		return;
	while (decide_all(c) && any_state(c, REQUEST_SETTLE))
		;
	if (cover_end_waits(c))
		return;
	go_ready(c);
	cover_ask_kernel(c);
}

int cover_request(struct cover *c, uint64_t id, struct extent at, enum lock_mode mode, bool try)
{
	struct cover_request *r;

	if (cover_grow(&c->requests, c->request_count, &c->request_cap, sizeof *r))
		return -ENOMEM;
	r = &c->requests[c->request_count++];
	*r = (struct cover_request){ .id = id, .at = at, .mode = mode, .try = try, .state = REQUEST_NEW };
	c->idle_check = false;
	if (decide(c, r))
		cover_step(c);
	return 0;
}

void cover_held(struct cover *c, uint64_t id, enum lock_mode held)
{
	struct cover_request *r = find(c, id);

	if (!r || r->state != REQUEST_CHECK)
		return;
	r->checked = true;
	r->stake = c->gentle && held != MODE_NONE;
	/* A flock that its own description makes weaker: a probe would take that lock for somebody else's. */
	if (!c->gentle && held == MODE_EX && r->mode == MODE_SH && cover_suffices(c, r->at, MODE_EX))
		go(c, r);
	else if (is_in_kernel(c))
		r->state = REQUEST_NEW;
	else
		settle(c, r);
	cover_step(c);
}

void cover_pass(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);

	if (!r || r->stake || r->try)
		return;
	r->stake = true;
	if (r->state == REQUEST_ASKED)
		ask(c, r);
	cover_step(c);
}

void cover_done(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);

	if (!r || r->state != REQUEST_GO)
		return;
	c->probe_stale = true;
	request_remove(c, r);
	cover_step(c);
}

bool cover_stands(struct cover *c, struct extent at, enum lock_mode mode)
{
	if (!cover_suffices(c, at, mode) && RULE(RULE_STANDS))
		return false;
	c->probe_stale = true;
	return true;
}

void cover_gone(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);
	bool asked;

	if (!r)
		return;
	asked = r->state == REQUEST_ASKED;
	if (r->state == REQUEST_GO)
		c->probe_stale = true;
	request_remove(c, r);
	if (asked)
		c->ops->withdraw(c->owner, id);
	cover_step(c);
}

/* --- from the store --- */

/* One span of a grant: counts where it is newer than what is known, or given back. Returns whether it is not void. */
static bool learn(struct cover *c, const struct lock_span *granted)
{
	struct extent rest = granted->at;
	bool counts = false;

	while (rest.start < rest.end) {
		struct extent piece = rest;
		struct cover_point p = cover_point_at(c, rest.start, &piece.end);
		bool newer;

		newer = p.known ? granted->fence > p.span->fence || !RULE(RULE_FENCE_RISES) :
				  granted->fence > p.void_fence || !RULE(RULE_VOID_FENCE);
		if (newer && lock_spans_set(&c->spans, piece, granted->mode, granted->fence))
			c->failed = true;	/* the store has more for us than we know: it is asked for anew, or recalled as void */
		counts = counts || p.known || newer;
		rest.start = piece.end;
	}
	if (granted->fence > c->top_fence)
		c->top_fence = granted->fence;
	return counts;
}

void cover_granted(struct cover *c, uint64_t id, const struct lock_span *spans, size_t count,
		   const struct lock_span *waiting, size_t waiting_count)
{
	uint64_t before = c->top_fence;
	struct cover_request *r = find(c, id);
	bool is_void = count != 0, asks = r && r->state == REQUEST_ASKED;

	for (size_t i = 0; i < count; i++) {
		if (learn(c, &spans[i]))
			is_void = false;
		cover_void_again(c, &spans[i], c->void_fence);	/* perhaps void in vain: the store has it for us */
	}
	/* The same change told twice, by a push and by a reply: each knows who waited when it was made. */
	for (size_t i = 0; RULE(RULE_WAITING_MODE) && i < waiting_count; i++)
		if (waiting[i].fence > before || RULE(RULE_SAME_FENCE))
			cover_add_recall(c, &waiting[i]);
	if (asks && (RULE(RULE_LATE_GRANT) || !is_void)) {
		if (!cover_suffices(c, r->at, r->mode)) {
			ask(c, r);
		} else if (RULE(RULE_GRANT_GOES) || !cover_recall_against(c, r->at, r->mode)) {
			if (r->twice && RULE(RULE_TWICE))
				c->ops->withdraw(c->owner, id);
			r->twice = false;
			go(c, r);
		} else {
			ask(c, r);
		}
	}
	cover_step(c);
}

void cover_refused(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);

	if (r && r->try && r->state == REQUEST_ASKED)
		answer_busy(c, r);
	cover_step(c);
}

/*
 * Of an acquire that was repeated while its grant was under way, the second waits
 * for nobody; left there, it would keep others waiting behind it.
 */
void cover_queued(struct cover *c, uint64_t id, bool again)
{
	struct cover_request *r = find(c, id);

	if (!again || !RULE(RULE_TWICE))
		return;
	if (!r || r->state != REQUEST_ASKED)
		c->ops->withdraw(c->owner, id);
	else
		r->twice = true;
}

void cover_recalled(struct cover *c, const struct lock_span *waiting, size_t count)
{
	/* The next step drops what stands against nothing. */
	for (size_t i = 0; i < count; i++) {
		cover_void_again(c, &waiting[i], UINT64_MAX);
		cover_add_recall(c, &waiting[i]);
	}
	cover_step(c);
}

int cover_tried(struct cover *c, const struct lock_span *wanted, const char *host, uint64_t req)
{
	struct cover_try *t;

	cover_void_again(c, wanted, UINT64_MAX);
	for (size_t i = 0; i < c->try_count; i++) {
		t = &c->tries[i];
		if (t->req != req || strcmp(t->host, host) != 0)
			continue;
		if (wanted->fence > t->wanted.fence && RULE(RULE_TRY_NEWEST)) {	/* what would be given back under the old fence frees nothing */
			t->wanted.fence = wanted->fence;
			t->over = false;
		}
		cover_step(c);
		return 0;
	}
	if (cover_grow(&c->tries, c->try_count, &c->try_cap, sizeof *t))
		return -ENOMEM;
	t = &c->tries[c->try_count++];
	memset(t, 0, sizeof *t);
	strncpy(t->host, host, sizeof t->host - 1);
	t->req = req;
	t->wanted = *wanted;
	cover_step(c);
	return 0;
}

/* --- all of it --- */

void cover_idle(struct cover *c)
{
	if (c->request_count || !c->spans.count || c->recall_count)
		return;
	c->idle_check = true;
	cover_step(c);
}

void cover_lost(struct cover *c)
{
	if (c->top_fence > c->void_fence)
		c->void_fence = c->top_fence;
	c->spans.count = 0;
	c->voids.count = 0;
	c->try_count = 0;
	cover_step(c);
}

void cover_ask_again(struct cover *c)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == REQUEST_ASKED)
			ask(c, &c->requests[i]);
}

static bool any_try(const struct cover *c)
{
	for (size_t i = 0; i < c->try_count; i++)
		if (!c->tries[i].over)
			return true;
	return false;
}

bool cover_unused(const struct cover *c)
{
	return !c->spans.count && !c->request_count && !any_try(c) && !c->probing && !c->recall_count;
}

enum lock_mode cover_standing(const struct cover *c)
{
	/* Nobody elsewhere wants it, and no program here waits: it would be passed by. */
	bool quiet = !c->recall_count && !any_try(c) && !c->request_count && !c->probing;
	enum lock_mode least = MODE_EX;

	if ((!quiet && RULE(RULE_STANDING_QUIET)) || !cover_suffices(c, EXTENT_ALL, MODE_SH))
		return MODE_NONE;
	for (size_t i = 0; i < c->spans.count; i++) {
		if (!c->spans.at[i].fence && RULE(RULE_STANDING_QUIET))
			return MODE_NONE;
		if (c->spans.at[i].mode < least)
			least = c->spans.at[i].mode;
	}
	return least;
}

bool cover_has_requests(const struct cover *c)
{
	return c->request_count != 0;
}
