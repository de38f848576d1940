/* SPDX-License-Identifier: MIT */
/*
 * The cover of one name on one host. See cover.h for who calls what.
 *
 * Invariants:
 *  - No GO without a cover that suffices at that moment.
 *  - A cover is never reduced below what programs here may have: what the
 *    kernel has just said, and what a GO that is outstanding allows. "Just"
 *    means that no GO has ended since the kernel was asked.
 *  - While the agent itself may hold a lock in the kernel (probing, a helper
 *    that may have won) no GO is given to a try: the agent's own lock would
 *    refuse it. Such a GO is READY and counts as given. For the same reason the
 *    kernel is asked for no mode that conflicts with a GO that is outstanding.
 *  - A helper waits for the weakest lock that lets the cover be reduced: shared
 *    under an exclusive cover. So a reader here never keeps readers elsewhere
 *    waiting, also where the strongest recall has been withdrawn meanwhile.
 *  - step() is the only place that starts probes and helpers; every event ends
 *    in it.
 */
#include "cover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef COVER_MUTABLE
enum cover_rule cover_without;
#define RULE(r) (cover_without != (r))
#else
#define RULE(r) true
#endif

static void step(struct cover *c);

void cover_init(struct cover *c, const struct cover_ops *ops, void *owner, uint64_t void_floor)
{
	memset(c, 0, sizeof *c);
	c->ops = ops;
	c->owner = owner;
	c->void_fence = void_floor;
	c->fence = void_floor;
	c->fence_known = true;
}

void cover_destroy(struct cover *c)
{
	free(c->requests);
	free(c->tries);
	memset(c, 0, sizeof *c);
}

int cover_copy(struct cover *dst, const struct cover *src)
{
	*dst = *src;
	dst->requests = NULL;
	dst->tries = NULL;
	if (src->request_cap) {
		dst->requests = malloc(src->request_cap * sizeof *dst->requests);
		if (!dst->requests)
			return -ENOMEM;
		memcpy(dst->requests, src->requests, src->request_count * sizeof *dst->requests);
	}
	if (src->try_cap) {
		dst->tries = malloc(src->try_cap * sizeof *dst->tries);
		if (!dst->tries) {
			free(dst->requests);
			return -ENOMEM;
		}
		memcpy(dst->tries, src->tries, src->try_count * sizeof *dst->tries);
	}
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

static void try_remove(struct cover *c, size_t i)
{
	memmove(&c->tries[i], &c->tries[i + 1], (c->try_count - i - 1) * sizeof *c->tries);
	c->try_count--;
}

/* Whether a program with a GO (given or about to be) would conflict with `mode`. */
static bool go_conflicts(const struct cover *c, enum lock_mode mode)
{
	for (size_t i = 0; i < c->request_count; i++) {
		const struct cover_request *r = &c->requests[i];

		if ((r->state == REQUEST_GO || r->state == REQUEST_READY) && mode_conflicts(r->mode, mode))
			return true;
	}
	return false;
}

/* The strongest mode that a GO, given or about to be, lets a program take. */
static enum lock_mode go_mode(const struct cover *c)
{
	enum lock_mode most = MODE_NONE;

	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == REQUEST_GO || c->requests[i].state == REQUEST_READY)
			most = mode_max(most, c->requests[i].mode);
	return most;
}

static bool any_state(const struct cover *c, enum cover_request_state state)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == state)
			return true;
	return false;
}

/* Whether the pending recall stands against this mode. */
static bool recall_against(const struct cover *c, enum lock_mode mode)
{
	return RULE(RULE_RECALL_BLOCKS) && mode_conflicts(c->recall, mode);
}

static void go(struct cover *c, struct cover_request *r)
{
	if (r->try && (c->probing || c->wait != WAIT_NONE)) {
		r->state = REQUEST_READY;
		return;
	}
	r->state = REQUEST_GO;
	c->ops->answer(c->owner, r->id, ANSWER_GO);
}

static void ask(struct cover *c, struct cover_request *r)
{
	r->state = REQUEST_ASKED;
	r->twice = r->asked;
	r->asked = true;
	c->ops->ask(c->owner, r->id, r->mode, r->try);
}

static void answer_busy(struct cover *c, struct cover_request *r)
{
	uint64_t id = r->id;

	request_remove(c, r);
	c->ops->answer(c->owner, id, ANSWER_BUSY);
}

/* Decides a request whose description's state is known or does not matter. Returns false if it was removed. */
static bool settle(struct cover *c, struct cover_request *r)
{
	if (c->mode < r->mode) {
		ask(c, r);
		return true;
	}
	if (!recall_against(c, r->mode)) {
		go(c, r);
		return true;
	}
	/*
	 * Readers pass where the name is read already (nested readers would deadlock), and where a GO is outstanding:
	 * a reader may be in front of that one, and the kernel knows.
	 */
	if (r->mode == MODE_SH && RULE(RULE_NESTED_SH) && go_mode(c) != MODE_NONE) {
		go(c, r);
		return true;
	}
	if (r->mode == MODE_EX && !r->try) {
		ask(c, r);
		return true;
	}
	if (go_conflicts(c, r->mode)) {
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

/* Returns false if the request was removed. */
static bool decide(struct cover *c, struct cover_request *r)
{
	if (c->probing || c->wait == WAIT_ENDING) {
		r->state = REQUEST_NEW;
		return true;
	}
	if (c->mode >= r->mode && !recall_against(c, r->mode)) {
		go(c, r);
		return true;
	}
	/* Without a cover the description cannot hold anything that counts. */
	if (!r->checked && c->mode != MODE_NONE) {
		r->state = REQUEST_CHECK;
		c->ops->answer(c->owner, r->id, ANSWER_CHECK);
		return true;
	}
	return settle(c, r);
}

/* Reduces the cover to `keep` and tells the store. The caller has made sure that nobody here holds more. */
static void give_back(struct cover *c, enum lock_mode keep, bool helper_holds)
{
	uint64_t fence = c->fence;

	c->void_fence = fence;
	if (!RULE(RULE_VOID_FENCE))	/* as if the fence went with the cover; it must stay */
		c->void_fence = c->fence = 0;
	c->mode = keep;
	c->fence_known = keep == MODE_NONE;
	if (!mode_conflicts(c->recall, keep))
		c->recall = MODE_NONE;
	if (helper_holds && RULE(RULE_MARK_FIRST))
		c->ops->wait_unlock(c->owner);
	c->ops->give_back(c->owner, keep, fence);
}

static bool may_give_back(const struct cover *c)
{
	return c->mode != MODE_NONE && (c->fence_known || !RULE(RULE_KNOWN_FENCE));
}

static bool recall_due(const struct cover *c)
{
	return mode_conflicts(c->recall, c->mode) && may_give_back(c) && !go_conflicts(c, c->recall);
}

/* Whether the probe decides about this try; else tries_due() does, or an event that is still to come. */
static bool try_probes(const struct cover *c, const struct cover_try *t)
{
	return t->fence <= c->fence && may_give_back(c) && mode_conflicts(t->mode, c->mode) && !go_conflicts(c, t->mode);
}

/* Answers the tries that need no probe. Returns what the others want to be asked of the kernel. */
static enum lock_mode tries_due(struct cover *c)
{
	enum lock_mode want = MODE_NONE;

	for (size_t i = 0; i < c->try_count;) {
		struct cover_try t = c->tries[i];

		if (t.fence > c->fence || (!c->fence_known && RULE(RULE_KNOWN_FENCE))) {	/* its grant, or the downgrade's reply, is on its way */
			i++;
		} else if (!mode_conflicts(t.mode, c->mode)) {	/* given back meanwhile: the store grants it */
			try_remove(c, i);
		} else if (go_conflicts(c, RULE(RULE_TRY_BY_MODE) ? t.mode : MODE_EX) && RULE(RULE_TRY_BUSY_GO)) {
			try_remove(c, i);
			c->ops->busy(c->owner, t.host, t.req);
		} else {
			if (try_probes(c, &t))
				want = mode_max(want, t.mode);
			i++;
		}
	}
	return want;
}

/* What a helper waits for, see above. */
static enum lock_mode helper_mode(const struct cover *c)
{
	return c->mode == MODE_EX && RULE(RULE_WEAKEST_WAIT) ? MODE_SH : MODE_EX;
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
			given = given || r->state == REQUEST_GO || r->state == REQUEST_READY;
		}
		i++;
	}
	return given;
}

static void step(struct cover *c)
{
	enum lock_mode want;
	bool settles, idle;

	if (c->probing || c->wait == WAIT_ENDING)
		return;
	while (decide_all(c) && any_state(c, REQUEST_SETTLE))
		;
	want = tries_due(c);
	settles = any_state(c, REQUEST_SETTLE);
	idle = c->idle_check && !c->request_count && may_give_back(c) && c->recall == MODE_NONE;
	if (c->wait == WAIT_RUNNING) {
		if (want || settles || any_state(c, REQUEST_READY) || !mode_conflicts(c->recall, c->mode) ||
		    c->wait_mode != helper_mode(c)) {
			c->wait = WAIT_ENDING;
			c->ops->wait_cancel(c->owner);
		}
		return;
	}
	for (size_t i = 0; i < c->request_count; i++) {
		struct cover_request *r = &c->requests[i];

		if (r->state != REQUEST_READY)
			continue;
		if (c->mode >= r->mode)
			go(c, r);
		else
			ask(c, r);	/* the session was lost meanwhile */
	}
	if (settles || idle)		/* nobody has a GO then */
		want = MODE_EX;
	if (recall_due(c))
		want = mode_max(want, c->recall);
	if (!want)
		return;
	for (size_t i = 0; i < c->try_count; i++)
		c->tries[i].asked = true;
	c->probe_want = want;
	c->probe_stale = false;
	c->probing = true;
	c->ops->probe(c->owner, want);
}

int cover_request(struct cover *c, uint64_t id, enum lock_mode mode, bool try)
{
	struct cover_request *r;

	if (c->request_count == c->request_cap) {
		size_t cap = c->request_cap ? 2 * c->request_cap : 4;

		r = realloc(c->requests, cap * sizeof *r);
		if (!r)
			return -ENOMEM;
		c->requests = r;
		c->request_cap = cap;
	}
	r = &c->requests[c->request_count++];
	memset(r, 0, sizeof *r);
	r->id = id;
	r->mode = mode;
	r->try = try;
	r->state = REQUEST_NEW;
	c->idle_check = false;
	if (!decide(c, r))
		return 0;
	step(c);
	return 0;
}

void cover_held(struct cover *c, uint64_t id, enum lock_mode held)
{
	struct cover_request *r = find(c, id);

	if (!r || r->state != REQUEST_CHECK)
		return;
	r->checked = true;
	if (held == MODE_EX && r->mode == MODE_SH && c->mode == MODE_EX)
		go(c, r);
	else if (c->probing || c->wait == WAIT_ENDING)
		r->state = REQUEST_NEW;
	else
		settle(c, r);
	step(c);
}

void cover_done(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);

	if (!r || r->state != REQUEST_GO)
		return;
	c->probe_stale = true;
	request_remove(c, r);
	step(c);
}

bool cover_stands(struct cover *c, enum lock_mode mode)
{
	if (c->mode < mode && RULE(RULE_STANDS))
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
	step(c);
}

void cover_granted(struct cover *c, uint64_t id, enum lock_mode mode, uint64_t fence, enum lock_mode waiting)
{
	struct cover_request *r;
	bool is_void = RULE(RULE_VOID_FENCE) && fence <= c->void_fence;

	if (!is_void && (fence > c->fence || !RULE(RULE_FENCE_RISES))) {
		c->mode = mode;
		c->fence = fence;
		c->fence_known = true;
		c->recall = RULE(RULE_WAITING_MODE) && mode_conflicts(waiting, mode) ? waiting : MODE_NONE;
		if (c->early_fence == fence && mode_conflicts(c->early_recall, mode))
			c->recall = mode_max(c->recall, c->early_recall);
		if (c->early_fence <= fence)
			c->early_recall = MODE_NONE;
	} else if (!is_void && fence == c->fence && RULE(RULE_SAME_FENCE) && RULE(RULE_WAITING_MODE) &&
		   mode_conflicts(waiting, c->mode)) {
		/* The same change told twice, by a push and by a reply: each knows who waited when it was made. */
		c->recall = mode_max(c->recall, waiting);
	}
	r = find(c, id);
	if (r && r->state == REQUEST_ASKED && (RULE(RULE_LATE_GRANT) || !is_void)) {
		if (c->mode < r->mode) {
			ask(c, r);
		} else if (RULE(RULE_GRANT_GOES) || !recall_against(c, r->mode)) {
			if (r->twice && RULE(RULE_TWICE))
				c->ops->withdraw(c->owner, id);
			r->twice = false;
			go(c, r);
		} else {
			ask(c, r);
		}
	}
	step(c);
}

void cover_refused(struct cover *c, uint64_t id)
{
	struct cover_request *r = find(c, id);

	if (r && r->try && r->state == REQUEST_ASKED)
		answer_busy(c, r);
	step(c);
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

/*
 * A recall or try that names a fence from the past while nothing is held: the
 * give-back was lost, or the grant reached nobody. Saying it again frees nothing newer.
 */
static bool void_again(struct cover *c, uint64_t fence)
{
	if (fence > c->void_fence || c->mode != MODE_NONE)
		return false;
	c->ops->give_back(c->owner, MODE_NONE, fence);
	return true;
}

void cover_recalled(struct cover *c, uint64_t fence, enum lock_mode mode)
{
	if (void_again(c, fence))
		return;
	if (fence > c->fence) {
		if (!RULE(RULE_EARLY_RECALL))
			return;
		if (fence > c->early_fence) {
			c->early_fence = fence;
			c->early_recall = MODE_NONE;
		}
		if (fence == c->early_fence)
			c->early_recall = mode_max(c->early_recall, mode);
	} else if (fence == c->fence && c->fence_known && mode_conflicts(mode, c->mode)) {
		c->recall = mode_max(c->recall, mode);
	}
	step(c);
}

int cover_tried(struct cover *c, uint64_t fence, enum lock_mode mode, const char *host, uint64_t req)
{
	struct cover_try *t;

	if (void_again(c, fence))
		return 0;
	for (size_t i = 0; i < c->try_count; i++) {
		t = &c->tries[i];
		if (t->req != req || strcmp(t->host, host) != 0)
			continue;
		if (fence > t->fence && RULE(RULE_TRY_NEWEST))	/* what would be given back under the old fence frees nothing */
			t->fence = fence;
		step(c);
		return 0;
	}
	if (c->try_count == c->try_cap) {
		size_t cap = c->try_cap ? 2 * c->try_cap : 2;

		t = realloc(c->tries, cap * sizeof *t);
		if (!t)
			return -ENOMEM;
		c->tries = t;
		c->try_cap = cap;
	}
	t = &c->tries[c->try_count++];
	memset(t, 0, sizeof *t);
	strncpy(t->host, host, sizeof t->host - 1);
	t->req = req;
	t->fence = fence;
	t->mode = mode;
	step(c);
	return 0;
}

/* What the probe says of the requests that waited for it. */
static void settle_probed(struct cover *c, enum lock_mode held)
{
	for (size_t i = 0; i < c->request_count;) {
		struct cover_request *r = &c->requests[i];

		i++;
		if (r->state != REQUEST_SETTLE)
			continue;
		if (c->mode >= r->mode && !recall_against(c, r->mode))
			go(c, r);
		else if (r->mode == MODE_SH && held == MODE_SH && c->mode >= MODE_SH && RULE(RULE_NESTED_SH))
			go(c, r);
		else if (r->try && mode_conflicts(held, r->mode)) {
			answer_busy(c, r);
			i--;
		} else
			ask(c, r);
	}
}

/*
 * Reduces the cover as the tries and the recall want, and as what programs here
 * may have allows. Each try is answered by its own mode.
 */
static void reduce(struct cover *c, enum lock_mode held, enum lock_mode want)
{
	enum lock_mode demand = MODE_NONE, floor = held, keep;

	if (want < MODE_EX && RULE(RULE_FLOOR))	/* readers were not asked for */
		floor = mode_max(floor, MODE_SH);
	floor = mode_max(floor, go_mode(c));
	for (size_t i = 0; i < c->try_count;) {
		struct cover_try t = c->tries[i];

		if (!try_probes(c, &t) || t.mode > want) {
			i++;
		} else if (mode_conflicts(held, RULE(RULE_TRY_BY_MODE) ? t.mode : mode_max(t.mode, c->recall))) {
			if (!t.asked && RULE(RULE_TRY_ASKED)) {	/* it came later; who held then may be gone */
				i++;
				continue;
			}
			try_remove(c, i);
			c->ops->busy(c->owner, t.host, t.req);
		} else {
			try_remove(c, i);
			demand = mode_max(demand, t.mode);
		}
	}
	if (may_give_back(c) && mode_conflicts(c->recall, c->mode))
		demand = mode_max(demand, c->recall);
	if (!demand)
		return;
	keep = demand == MODE_EX ? floor : mode_max(floor, MODE_SH);
	if (keep < c->mode)
		give_back(c, keep, false);
}

void cover_probed(struct cover *c, enum lock_mode held)
{
	enum lock_mode want = c->probe_want;
	bool idle = c->idle_check;

	if (!c->probing)
		return;
	c->probing = false;
	if (c->probe_stale && RULE(RULE_PROBE_STALE)) {		/* somebody may have taken the lock behind the probe's back */
		step(c);
		return;
	}
	c->idle_check = false;
	if (idle && held == MODE_NONE && want == MODE_EX && !c->request_count && may_give_back(c) &&
	    c->recall == MODE_NONE) {
		give_back(c, MODE_NONE, false);
	} else {
		reduce(c, held, want);
	}
	settle_probed(c, held);
	if (recall_due(c) && c->recall <= want && mode_conflicts(held, c->recall)) {
		c->wait = WAIT_RUNNING;
		c->wait_mode = helper_mode(c);
		c->ops->wait(c->owner, c->wait_mode);
	}
	step(c);
}

void cover_won(struct cover *c)
{
	/* The win of a shared lock says that no writer is left, not that nobody is: then the kernel is asked again. */
	bool counts = c->wait == WAIT_RUNNING && mode_conflicts(c->recall, c->mode) && may_give_back(c) &&
		      (!go_conflicts(c, c->recall) || !RULE(RULE_WIN_WITHOUT_GO)) &&
		      (c->wait_mode >= c->recall || !RULE(RULE_WIN_RISEN_MODE));

	c->wait = WAIT_NONE;
	if (counts)
		give_back(c, c->recall == MODE_SH ? MODE_SH : MODE_NONE, true);
	if (!counts || !RULE(RULE_MARK_FIRST))
		c->ops->wait_unlock(c->owner);
	step(c);
}

void cover_wait_ended(struct cover *c)
{
	if (c->wait == WAIT_NONE)
		return;
	c->wait = WAIT_NONE;
	step(c);
}

void cover_idle(struct cover *c)
{
	if (c->request_count || c->mode == MODE_NONE || c->recall != MODE_NONE)
		return;
	c->idle_check = true;
	step(c);
}

void cover_lost(struct cover *c)
{
	if (c->fence > c->void_fence)
		c->void_fence = c->fence;
	c->mode = MODE_NONE;
	c->fence_known = true;
	c->recall = c->early_recall = MODE_NONE;
	c->try_count = 0;
	step(c);
}

void cover_ask_again(struct cover *c)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == REQUEST_ASKED)
			ask(c, &c->requests[i]);
}

bool cover_unused(const struct cover *c)
{
	return c->mode == MODE_NONE && !c->request_count && !c->try_count && !c->probing && c->wait == WAIT_NONE;
}

enum lock_mode cover_standing(const struct cover *c)
{
	/* Nobody elsewhere wants it, and no program here waits: it would be passed by. */
	bool quiet = c->recall == MODE_NONE && c->early_recall == MODE_NONE && c->fence_known && !c->try_count &&
		     !c->request_count && !c->probing && c->wait == WAIT_NONE;

	return quiet || !RULE(RULE_STANDING_QUIET) ? c->mode : MODE_NONE;
}

bool cover_has_requests(const struct cover *c)
{
	return c->request_count != 0;
}
