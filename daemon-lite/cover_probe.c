/* SPDX-License-Identifier: MIT */
/*
 * What a cover asks of the kernel, and what it gives back when it has heard.
 *
 * Invariants:
 *  - A cover is never reduced below what programs here may have: what the
 *    kernel has just said, and what a GO that is outstanding allows. "Just"
 *    means that no GO has ended since the kernel was asked.
 *  - After an answer, a recall that still stands has a helper that waits for one of the
 *    locks in its way, or a GO in its way: nothing is asked twice for nothing.
 *  - A helper waits for the weakest lock that lets the cover be reduced: shared
 *    under an exclusive cover. So a reader here never keeps readers elsewhere
 *    waiting, also where the strongest recall has been withdrawn meanwhile.
 *  - A helper holds nothing when it has ended; what it says is only that asking
 *    again is worth while.
 */
#include <stdlib.h>
#include <string.h>

#include "cover_private.h"

/* Whether what is covered there can be given back under a fence that is known. */
static bool is_known(const struct lock_span *span)
{
	return span->fence != 0 || !RULE(RULE_KNOWN_FENCE);
}

/* --- giving back --- */

/*
 * Too many parts that were given back: void_fence rises instead, and what is void in vain is asked for anew, or given back
 * again. Exact it must stay where a lowered part waits for its new fence.
 */
static void forget_voids(struct cover *c)
{
	struct lock_spans kept = { 0 };

	for (size_t i = 0; i < c->voids.count; i++) {
		const struct lock_span *given = &c->voids.at[i];

		if (given->fence > c->void_fence)
			c->void_fence = given->fence;
		for (size_t k = lock_spans_find(&c->spans, given->at.start); k < c->spans.count && c->spans.at[k].at.start < given->at.end; k++)
			if (!c->spans.at[k].fence &&
			    lock_spans_append(&kept, (struct lock_span){ extent_common(c->spans.at[k].at, given->at), MODE_SH, given->fence }))
				c->failed = true;
	}
	lock_spans_free(&c->voids);
	c->voids = kept;
}

/* Marks a part as given back; the store is told by the caller, behind that. 0 or -ENOMEM: then it stays. */
static int give_part(struct cover *c, const struct lock_span *part)
{
	int err = lock_spans_set(&c->spans, part->at, part->mode, 0);

	if (err)
		return err;
	if (lock_spans_set(&c->voids, part->at, MODE_SH, part->fence) && part->fence > c->void_fence)
		c->void_fence = part->fence;
	if (c->voids.count > c->voids_max)
		forget_voids(c);
	return 0;
}

/* The strongest mode at `point` that a program here has a GO for, and up to where that is so. */
static enum lock_mode go_at(const struct cover *c, uint64_t point, uint64_t *end)
{
	enum lock_mode most = MODE_NONE;

	for (size_t i = 0; i < c->request_count; i++) {
		const struct cover_request *r = &c->requests[i];

		if (!cover_has_go(r) || r->at.end <= point || r->at.start >= *end)
			continue;
		if (r->at.start > point) {
			*end = r->at.start;
			continue;
		}
		most = mode_max(most, r->mode);
		if (r->at.end < *end)
			*end = r->at.end;
	}
	return most;
}

/* The weakest mode that must stay at `point`, and up to where that is so. */
static enum lock_mode floor_at(const struct cover *c, const struct cover_question *q, const struct lock_spans *held,
			       uint64_t point, uint64_t *end)
{
	enum lock_mode floor = q->want < MODE_EX && RULE(RULE_FLOOR) ? MODE_SH : MODE_NONE;	/* readers were not asked for */
	enum lock_mode go = go_at(c, point, end);
	size_t i = lock_spans_find(held, point);

	if (i < held->count && held->at[i].at.start <= point) {
		floor = mode_max(floor, held->at[i].mode);
		if (held->at[i].at.end < *end)
			*end = held->at[i].at.end;
	} else if (i < held->count && held->at[i].at.start < *end) {
		*end = held->at[i].at.start;
	}
	return RULE(RULE_FLOOR) ? mode_max(floor, go) : floor;
}

/* What may go of the cover by this question's answer, added to parts. */
static int find_parts(const struct cover *c, const struct cover_question *q, const struct lock_spans *held, struct lock_spans *parts)
{
	struct extent seen = RULE(RULE_SEEN) ? q->seen : q->bounds;

	for (size_t i = lock_spans_find(&c->spans, seen.start); i < c->spans.count && c->spans.at[i].at.start < seen.end; i++) {
		const struct lock_span *span = &c->spans.at[i];
		struct extent rest = extent_common(span->at, seen);

		while (is_known(span) && rest.start < rest.end) {
			uint64_t end = rest.end;
			enum lock_mode keep = floor_at(c, q, held, rest.start, &end);
			struct lock_span *last = parts->count ? &parts->at[parts->count - 1] : NULL;

			if (q->demand != MODE_EX)
				keep = mode_max(keep, MODE_SH);
			if (keep >= span->mode)
				;
			else if (last && last->at.end == rest.start && last->mode == keep && last->fence == span->fence)
				last->at.end = end;
			else if (lock_spans_append(parts, (struct lock_span){ { rest.start, end }, keep, span->fence }))
				return -1;
			rest.start = end;
		}
	}
	return 0;
}

static int by_start(const void *a, const void *b)
{
	const struct lock_span *x = a, *y = b;

	return (x->at.start > y->at.start) - (x->at.start < y->at.start);
}

/* Reduces the cover as others demand, and as what programs here may have allows; the strongest demand first, since it leaves least. */
static void reduce(struct cover *c, const struct lock_spans *held)
{
	struct lock_spans parts = { 0 }, all = { 0 };

	for (enum lock_mode demand = MODE_EX; demand > MODE_NONE; demand--) {
		for (size_t i = 0; i < c->question_count; i++) {
			const struct cover_question *q = &c->questions[i];

			if (q->demand != demand || (q->any && (c->request_count || lock_spans_mode(held, q->at) != MODE_NONE)))
				continue;
			parts.count = 0;
			if (find_parts(c, q, held, &parts))
				c->failed = true;
			/* Marked at once: the next question may see the same part. */
			for (size_t k = 0; k < parts.count; k++) {
				const struct lock_span *part = &parts.at[k];

				if (give_part(c, part) || lock_spans_append(&all, *part))
					c->failed = true;
			}
		}
	}
	if (all.count) {	/* no part is there twice: it has no fence any more */
		qsort(all.at, all.count, sizeof *all.at, by_start);
		c->ops->give_back(c->owner, all.at, all.count);
	}
	lock_spans_free(&parts);
	lock_spans_free(&all);
}

void cover_void_again(struct cover *c, const struct lock_span *wanted, uint64_t up_to)
{
	struct lock_spans parts = { 0 };
	struct extent rest = wanted->at;

	while (wanted->fence <= up_to && rest.start < rest.end) {
		struct extent piece = rest;
		struct cover_point point = cover_point_at(c, rest.start, &piece.end);

		if (!point.span && wanted->fence <= point.void_fence &&
		    lock_spans_append(&parts, (struct lock_span){ piece, MODE_NONE, wanted->fence }))
			c->failed = true;
		rest.start = piece.end;
	}
	if (parts.count)	/* frees nothing newer */
		c->ops->give_back(c->owner, parts.at, parts.count);
	lock_spans_free(&parts);
}

/* --- tries of other hosts --- */

enum { TRIES_OVER_MAX = 16 };

enum try_state {
	TRY_LATER,	/* a grant, or the new fence of a lowered part, is on its way */
	TRY_FREE,	/* nothing here stands against it: the store grants it */
	TRY_BUSY,	/* a program here has a GO */
	TRY_ASK,	/* the kernel knows */
};

/* *ret_sure: nothing can come that was given under the fence that the try was told with, and stands against it. */
static enum try_state try_state(const struct cover *c, const struct cover_try *t, bool *ret_sure)
{
	struct extent rest = t->wanted.at;
	bool conflict = false, heard = false;

	*ret_sure = true;
	while (rest.start < rest.end) {
		uint64_t end = rest.end;
		struct cover_point p = cover_point_at(c, rest.start, &end);

		if (p.span && !p.known && RULE(RULE_KNOWN_FENCE))
			return TRY_LATER;
		conflict |= p.span && mode_conflicts(p.span->mode, t->wanted.mode) && (!t->over || p.span->fence <= t->wanted.fence);
		if (t->wanted.fence <= (p.known ? p.span->fence : p.void_fence))
			heard = true;
		else
			*ret_sure = false;
		rest.start = end;
	}
	if (!heard)
		return TRY_LATER;
	if (!conflict)
		return TRY_FREE;
	if (cover_go_conflicts(c, t->wanted.at, RULE(RULE_TRY_BY_MODE) ? t->wanted.mode : MODE_EX) && RULE(RULE_TRY_BUSY_GO))
		return TRY_BUSY;
	return cover_go_conflicts(c, t->wanted.at, t->wanted.mode) ? TRY_LATER : TRY_ASK;
}

static void try_remove(struct cover *c, size_t i)
{
	memmove(&c->tries[i], &c->tries[i + 1], (c->try_count - i - 1) * sizeof *c->tries);
	c->try_count--;
}

static void try_refuse(struct cover *c, size_t i)
{
	struct cover_try t = c->tries[i];

	try_remove(c, i);
	c->ops->busy(c->owner, t.host, t.req);
}

/* Answers those that need no question. Returns whether others do. */
static bool answer_tries(struct cover *c)
{
	size_t over = 0;
	bool ask = false, sure;

	for (size_t i = c->try_count; i-- > 0;) {	/* the newest first, so that the oldest of those that are over go */
		enum try_state state = try_state(c, &c->tries[i], &sure);

		ask |= state == TRY_ASK;
		if (state != TRY_FREE) {
			c->tries[i].over = false;
			if (state == TRY_BUSY)
				try_refuse(c, i);
		} else if (sure || over == TRIES_OVER_MAX || !RULE(RULE_TRY_OVER)) {
			try_remove(c, i);
		} else {
			/* Of the grants up to this fence some may be late, and stand against it still. Of a newer one it is told again. */
			c->tries[i].over = true;
			over++;
		}
	}
	return ask;
}

/* Those that somebody here stands against, as the kernel has said. Each is answered by its own mode. */
static void refuse_tries(struct cover *c, const struct lock_spans *held)
{
	for (size_t i = 0; i < c->try_count;) {
		const struct cover_try *t = &c->tries[i];
		enum lock_mode mode = t->wanted.mode;
		bool sure;

		for (size_t k = 0; k < c->recall_count && !RULE(RULE_TRY_BY_MODE); k++)
			mode = mode_max(mode, c->recalls[k].wanted.mode);
		/* One that came later: who held then may be gone. */
		if ((t->asked || !RULE(RULE_TRY_ASKED)) && try_state(c, t, &sure) == TRY_ASK &&
		    mode_conflicts(lock_spans_mode(held, t->wanted.at), mode))
			try_refuse(c, i);
		else
			i++;
	}
}

/* --- helpers that wait --- */

static enum lock_mode helper_mode(const struct cover *c, struct extent at)
{
	return lock_spans_mode(&c->spans, at) == MODE_EX && RULE(RULE_WEAKEST_WAIT) ? MODE_SH : MODE_EX;
}

static bool any_waits_for_kernel(const struct cover *c)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == REQUEST_SETTLE || c->requests[i].state == REQUEST_READY)
			return true;
	return false;
}

/* Whether a GO waits until no helper is there. */
static bool any_ready(const struct cover *c, struct extent at)
{
	for (size_t i = 0; i < c->request_count; i++)
		if (c->requests[i].state == REQUEST_READY && extent_overlaps(c->requests[i].at, at))
			return true;
	return false;
}

bool cover_end_waits(struct cover *c)
{
	bool others = answer_tries(c) || any_waits_for_kernel(c), any = false;

	for (size_t i = 0; i < c->recall_count; i++) {
		struct cover_recall *recall = &c->recalls[i];

		any |= recall->wait != WAIT_NONE;
		if (recall->wait != WAIT_RUNNING)
			continue;
		if (recall->dropped || (others && !c->gentle) || any_ready(c, recall->wait_at) || !cover_recall_active(c, recall) ||
		    !extent_contains(recall->wanted.at, recall->wait_at) ||
		    recall->wait_mode != helper_mode(c, recall->wait_at)) {
			recall->wait = WAIT_ENDING;
			c->ops->wait_cancel(c->owner, recall->slot);
		}
	}
	return any && !c->gentle;	/* on a flock's one description waiting and probing would meet */
}

/* The lowest slot that no helper has, none below `slot` being free. */
static unsigned free_slot(const struct cover *c, unsigned slot)
{
	for (size_t i = 0; i < c->recall_count; i++) {
		if (c->recalls[i].wait == WAIT_NONE || c->recalls[i].slot != slot)
			continue;
		slot++;
		i = (size_t)-1;
	}
	return slot;
}

/* Whether GOs that are outstanding leave nothing to give back for this recall, or the kernel may not be asked. */
static bool is_kept_by_go(const struct cover *c, const struct cover_recall *recall)
{
	const struct lock_span *wanted = &recall->wanted;

	if (!cover_go_conflicts(c, wanted->at, wanted->mode))
		return false;
	if (!c->gentle || !RULE(RULE_GO_PART))	/* flock: the probe's own lock would meet theirs */
		return true;
	/* A reader that waits here for another part must not keep readers elsewhere from this one. */
	for (size_t i = lock_spans_find(&c->spans, wanted->at.start);
	     i < c->spans.count && c->spans.at[i].at.start < wanted->at.end; i++) {
		const struct lock_span *span = &c->spans.at[i];
		struct extent rest = extent_common(span->at, wanted->at);

		while (span->fence == wanted->fence && rest.start < rest.end) {
			uint64_t end = rest.end;

			if (go_at(c, rest.start, &end) < span->mode)
				return false;
			rest.start = end;
		}
	}
	return true;
}

static bool is_due(const struct cover *c, const struct cover_recall *recall)
{
	/* Not while a try is in the kernel, or about to be: it could meet the helper. That is soon over. */
	for (size_t i = 0; c->gentle && RULE(RULE_HELPER_TRY) && i < c->request_count; i++)
		if (c->requests[i].try && cover_has_go(&c->requests[i]) && extent_overlaps(c->requests[i].at, recall->wanted.at))
			return false;
	return !recall->dropped && recall->wait == WAIT_NONE && cover_recall_active(c, recall) && !is_kept_by_go(c, recall);
}

/* A helper for each recall that a lock here stands against; it waits for one of them. */
static void start_waits(struct cover *c, const struct lock_spans *held)
{
	unsigned slot = 0;

	for (size_t i = 0; i < c->recall_count; i++) {
		struct cover_recall *recall = &c->recalls[i];
		struct extent at = recall->wanted.at;
		size_t k;

		if (!is_due(c, recall))
			continue;
		/* A shared lock that a GO keeps the cover exclusive for is not worth waiting for: that would end at once. */
		for (k = lock_spans_find(held, at.start); k < held->count && held->at[k].at.start < at.end; k++)
			if (mode_conflicts(held->at[k].mode, helper_mode(c, extent_common(held->at[k].at, at))))
				break;
		if (k == held->count || held->at[k].at.start >= at.end)
			continue;
		slot = free_slot(c, slot);
		recall->slot = slot;
		recall->wait = WAIT_RUNNING;
		recall->wait_at = extent_common(held->at[k].at, at);
		recall->wait_mode = helper_mode(c, recall->wait_at);
		c->ops->wait(c->owner, recall->slot, recall->wait_at, recall->wait_mode);
	}
}

void cover_wait_ended(struct cover *c, unsigned slot)
{
	for (size_t i = 0; i < c->recall_count; i++) {
		if (c->recalls[i].wait == WAIT_NONE || c->recalls[i].slot != slot)
			continue;
		c->recalls[i].wait = WAIT_NONE;
		cover_step(c);
		return;
	}
}

/* --- questions --- */

static void ask(struct cover *c, struct cover_question question)
{
	if (cover_grow(&c->questions, c->question_count, &c->question_cap, sizeof question))
		c->failed = true;
	else
		c->questions[c->question_count++] = question;
}

/* About each part of the cover that stands against what is wanted; fence 0: whatever its fence. */
static void ask_about(struct cover *c, const struct lock_span *wanted, uint64_t fence)
{
	for (size_t i = lock_spans_find(&c->spans, wanted->at.start);
	     i < c->spans.count && c->spans.at[i].at.start < wanted->at.end; i++) {
		const struct lock_span *span = &c->spans.at[i];

		if (mode_conflicts(span->mode, wanted->mode) && is_known(span) && (!fence || span->fence == fence))
			ask(c, (struct cover_question){ .at = extent_common(span->at, wanted->at), .bounds = span->at,
							.want = wanted->mode, .demand = wanted->mode });
	}
}

void cover_ask_kernel(struct cover *c)
{
	bool idle;

	c->question_count = 0;
	if (c->failed) {		/* no memory: not now, the next event tries again */
		c->failed = false;
		return;
	}
	for (size_t i = 0; i < c->try_count; i++) {
		bool sure;

		if (try_state(c, &c->tries[i], &sure) != TRY_ASK)
			continue;
		ask_about(c, &c->tries[i].wanted, 0);
		c->tries[i].asked = true;
	}
	for (size_t i = 0; i < c->request_count; i++) {	/* nobody has a GO there then */
		if (c->requests[i].state != REQUEST_SETTLE)
			continue;
		ask(c, (struct cover_question){ .at = c->requests[i].at, .bounds = c->requests[i].at, .want = MODE_EX });
	}
	for (size_t i = 0; i < c->recall_count; i++)
		if (is_due(c, &c->recalls[i]))
			ask_about(c, &c->recalls[i].wanted, c->recalls[i].wanted.fence);
	/* Alone: how coarse its answer may be would refuse others. */
	idle = c->idle_check && !(c->question_count && RULE(RULE_IDLE_ALONE)) && !c->request_count && !c->recall_count;
	for (size_t i = 0; idle && i < c->spans.count; i++) {
		const struct lock_span *span = &c->spans.at[i];

		if (is_known(span))
			ask(c, (struct cover_question){ .at = span->at, .bounds = span->at, .want = MODE_EX, .any = true, .demand = MODE_EX });
	}
	if (!c->question_count)
		return;
	for (size_t i = 0; i < c->question_count; i++)
		c->questions[i].seen = c->questions[i].at;
	c->probe_stale = false;
	c->probing = true;
	c->ops->probe(c->owner);
}

/* What the answer says of the requests that waited for it. */
static void settle_probed(struct cover *c, const struct lock_spans *held)
{
	for (size_t i = 0; i < c->request_count; i++) {
		struct cover_request *r = &c->requests[i];
		enum lock_mode most = lock_spans_mode(held, r->at);

		if (r->state == REQUEST_SETTLE)
			i -= !cover_settle_probed(c, r, most);
	}
}

void cover_probed(struct cover *c, const struct lock_spans *held)
{
	if (!c->probing)
		return;
	c->probing = false;
	if (c->probe_stale && RULE(RULE_PROBE_STALE)) {		/* somebody may have taken a lock behind the probe's back */
		cover_step(c);
		return;
	}
	c->idle_check = false;
	refuse_tries(c, held);
	reduce(c, held);
	settle_probed(c, held);
	start_waits(c, held);
	cover_step(c);
}
