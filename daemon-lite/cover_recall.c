/* SPDX-License-Identifier: MIT */
/*
 * What is covered, and who elsewhere wants it. Must not ask anything of anybody.
 *
 * Invariants:
 *  - Each point follows the rules for itself: what is known of its fence, and which
 *    fences are void there because they were given back.
 *  - A recall that counts lies within one span of the cover, under that span's
 *    fence; or the grant that it is about is not known yet.
 *  - No two recalls are about the same part under the same fence.
 */
#include "cover_private.h"

bool cover_suffices(const struct cover *c, struct extent at, enum lock_mode mode)
{
	uint64_t reached = at.start;

	for (size_t i = lock_spans_find(&c->spans, at.start); i < c->spans.count && reached < at.end; i++) {
		const struct lock_span *span = &c->spans.at[i];

		if (span->at.start > reached || span->mode < mode)
			return false;
		reached = span->at.end;
	}
	return reached >= at.end;
}

enum lock_mode cover_mode(const struct cover *c)
{
	return lock_spans_mode(&c->spans, EXTENT_ALL);
}

/* What of a list is at a point, or NULL. */
static const struct lock_span *span_at(const struct lock_spans *spans, uint64_t point, uint64_t *end)
{
	size_t i = lock_spans_find(spans, point);
	const struct lock_span *span = i < spans->count ? &spans->at[i] : NULL;
	bool there = span && span->at.start <= point;

	if (span && (there ? span->at.end : span->at.start) < *end)
		*end = there ? span->at.end : span->at.start;
	return there ? span : NULL;
}

struct cover_point cover_point_at(const struct cover *c, uint64_t point, uint64_t *end)
{
	const struct lock_span *given = span_at(&c->voids, point, end);
	struct cover_point p = { .span = span_at(&c->spans, point, end), .void_fence = c->void_fence };

	p.known = p.span && p.span->fence;
	if (given && (given->fence > p.void_fence || p.span))	/* of what was lowered it is kept exactly */
		p.void_fence = given->fence;
	return p;
}

/* --- recalls --- */

/* Whether a recall stands against something that is covered within `at`. */
static bool recall_stands(const struct cover *c, const struct cover_recall *recall, struct extent at)
{
	const struct lock_span *wanted = &recall->wanted;

	if (recall->dropped || !extent_overlaps(wanted->at, at))
		return false;
	at = extent_common(wanted->at, at);
	for (size_t i = lock_spans_find(&c->spans, at.start); i < c->spans.count && c->spans.at[i].at.start < at.end; i++)
		if (c->spans.at[i].fence == wanted->fence && mode_conflicts(c->spans.at[i].mode, wanted->mode))
			return true;
	return false;
}

bool cover_recall_active(const struct cover *c, const struct cover_recall *recall)
{
	return recall_stands(c, recall, recall->wanted.at);
}

bool cover_is_recalled(const struct cover *c)
{
	for (size_t i = 0; i < c->recall_count; i++)
		if (cover_recall_active(c, &c->recalls[i]))
			return true;
	return false;
}

bool cover_recall_against(const struct cover *c, struct extent at, enum lock_mode mode)
{
	for (size_t i = 0; RULE(RULE_RECALL_BLOCKS) && i < c->recall_count; i++)
		if (mode_conflicts(c->recalls[i].wanted.mode, mode) && recall_stands(c, &c->recalls[i], at))
			return true;
	return false;
}

/* Whether the change that gave the part this fence is not known here yet. */
static bool is_early(const struct cover *c, const struct lock_span *wanted)
{
	struct extent rest = wanted->at;

	while (rest.start < rest.end) {
		uint64_t end = rest.end;
		struct cover_point p = cover_point_at(c, rest.start, &end);

		if (wanted->fence > (p.known ? p.span->fence : p.void_fence))
			return true;
		rest.start = end;
	}
	return false;
}

/* Whether a helper that waits for an older recall of the same part goes on for this one: a stronger mode, or the next fence. */
static bool is_followed_by(const struct cover *c, const struct cover_recall *old, const struct lock_span *wanted)
{
	if (!extent_equal(old->wanted.at, wanted->at))
		return false;
	return old->wanted.fence == wanted->fence || (old->dropped && wanted->fence > old->wanted.fence) ||
	       (wanted->fence > old->wanted.fence && !cover_recall_active(c, old) && !is_early(c, &old->wanted));
}

void cover_add_recall(struct cover *c, const struct lock_span *wanted)
{
	size_t at = c->recall_count;

	for (size_t i = 0; i < c->recall_count; i++) {
		struct cover_recall *old = &c->recalls[i];

		if (!old->dropped && old->wanted.fence == wanted->fence && old->wanted.mode >= wanted->mode &&
		    (extent_equal(old->wanted.at, wanted->at) ||
		     (!RULE(RULE_EACH_PART) && extent_contains(old->wanted.at, wanted->at))))
			return;
		if (is_followed_by(c, old, wanted) && (at == c->recall_count || old->wait != WAIT_NONE))
			at = i;
	}
	if (at == c->recall_count) {
		if (cover_grow(&c->recalls, c->recall_count, &c->recall_cap, sizeof *c->recalls)) {
			c->failed = true;
			return;
		}
		c->recalls[c->recall_count++] = (struct cover_recall){ 0 };
	}
	c->recalls[at].wanted = *wanted;
	c->recalls[at].dropped = false;
	/*
	 * The same part in a weaker mode needs no helper of its own: on a flock's one description two would meet. A smaller part
	 * does: who waits for that is served when it is free, and the helper of the larger one does not hear of that.
	 */
	for (size_t i = 0; i < c->recall_count; i++) {
		struct cover_recall *old = &c->recalls[i];

		if (i != at && old->wanted.fence == wanted->fence && extent_equal(wanted->at, old->wanted.at))
			old->dropped = true;
	}
}

/*
 * Cuts a recall to the parts of the cover that it stands against, each a recall of its own: so the store has it too, which
 * does not say again of such a part that it is wanted. In a larger one, whoever wants just that would wait for more.
 */
static void cut_recall(struct cover *c, size_t at)
{
	struct lock_span wanted = c->recalls[at].wanted;
	bool kept = false;

	if (!RULE(RULE_CUT)) {
		c->recalls[at].dropped = !cover_recall_active(c, &c->recalls[at]);
		return;
	}
	for (size_t i = lock_spans_find(&c->spans, wanted.at.start); i < c->spans.count && c->spans.at[i].at.start < wanted.at.end; i++) {
		const struct lock_span *span = &c->spans.at[i];
		struct lock_span part = { extent_common(span->at, wanted.at), wanted.mode, wanted.fence };
		struct cover_recall *recall = &c->recalls[at];

		if (span->fence != wanted.fence || !mode_conflicts(span->mode, wanted.mode))
			continue;
		if (extent_equal(part.at, wanted.at))
			return;
		if (!kept && recall->wait == WAIT_RUNNING && extent_contains(part.at, recall->wait_at)) {
			recall->wanted.at = part.at;
			kept = true;
		} else {
			cover_add_recall(c, &part);
		}
	}
	c->recalls[at].dropped = !kept;
}

void cover_prune_recalls(struct cover *c)
{
	size_t count = c->recall_count;

	for (size_t i = 0; i < count; i++)
		if (!c->recalls[i].dropped && !(RULE(RULE_EARLY_RECALL) && is_early(c, &c->recalls[i].wanted)))
			cut_recall(c, i);
	for (size_t i = 0; i < c->recall_count;) {
		struct cover_recall *recall = &c->recalls[i];

		if (recall->dropped && recall->wait == WAIT_NONE)
			*recall = c->recalls[--c->recall_count];
		else
			i++;
	}
}
