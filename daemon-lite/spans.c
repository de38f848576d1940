/* SPDX-License-Identifier: MIT */
/* Lists of disjoint parts of a line of bytes. Pure; see spans.h. */
#include "spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void lock_spans_free(struct lock_spans *spans)
{
	free(spans->at);
	memset(spans, 0, sizeof *spans);
}

static int reserve(struct lock_spans *spans, size_t more)
{
	size_t cap = spans->cap ? spans->cap : 4;
	struct lock_span *at;

	while (cap < spans->count + more)
		cap *= 2;
	if (cap == spans->cap)
		return 0;
	at = reallocarray(spans->at, cap, sizeof *at);
	if (!at)
		return -ENOMEM;
	spans->at = at;
	spans->cap = cap;
	return 0;
}

int lock_spans_copy(struct lock_spans *dst, const struct lock_spans *src)
{
	memset(dst, 0, sizeof *dst);
	if (!src->count)
		return 0;
	if (reserve(dst, src->count))
		return -ENOMEM;
	memcpy(dst->at, src->at, src->count * sizeof *dst->at);
	dst->count = src->count;
	return 0;
}

size_t lock_spans_find(const struct lock_spans *spans, uint64_t point)
{
	size_t low = 0, high = spans->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (spans->at[middle].at.end > point)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static bool same_kind(const struct lock_span *a, enum lock_mode mode, uint64_t fence)
{
	return a->mode == mode && a->fence == fence;
}

int lock_spans_set(struct lock_spans *spans, struct extent at, enum lock_mode mode, uint64_t fence)
{
	struct lock_span piece[3] = { 0 };
	size_t first, behind, n = 0;

	if (reserve(spans, 2))
		return -ENOMEM;
	first = lock_spans_find(spans, at.start);
	/* A neighbour of the same kind joins in. */
	if (first && mode != MODE_NONE && spans->at[first - 1].at.end == at.start && same_kind(&spans->at[first - 1], mode, fence))
		first--;
	behind = first;
	while (behind < spans->count && (spans->at[behind].at.start < at.end ||
	       (mode != MODE_NONE && spans->at[behind].at.start == at.end && same_kind(&spans->at[behind], mode, fence))))
		behind++;
	if (first < behind) {
		struct lock_span left = spans->at[first], right = spans->at[behind - 1];

		if (left.at.start < at.start && same_kind(&left, mode, fence)) {
			at.start = left.at.start;
		} else if (left.at.start < at.start) {
			left.at.end = at.start;
			piece[n++] = left;
		}
		if (right.at.end > at.end && same_kind(&right, mode, fence)) {
			at.end = right.at.end;
			right.at.start = at.end;
		} else if (right.at.end > at.end) {
			right.at.start = at.end;
		}
		if (mode != MODE_NONE)
			piece[n++] = (struct lock_span){ at, mode, fence };
		if (right.at.end > at.end)
			piece[n++] = right;
	} else if (mode != MODE_NONE) {
		piece[n++] = (struct lock_span){ at, mode, fence };
	}
	memmove(&spans->at[first + n], &spans->at[behind], (spans->count - behind) * sizeof *piece);
	memcpy(&spans->at[first], piece, n * sizeof *piece);
	spans->count = spans->count - (behind - first) + n;
	return 0;
}

int lock_spans_add(struct lock_spans *spans, struct extent at, enum lock_mode mode)
{
	while (at.start < at.end) {
		size_t i = lock_spans_find(spans, at.start);
		struct extent piece = at;
		enum lock_mode there = MODE_NONE;

		if (i < spans->count && spans->at[i].at.start <= at.start) {
			there = spans->at[i].mode;
			if (spans->at[i].at.end < piece.end)
				piece.end = spans->at[i].at.end;
		} else if (i < spans->count && spans->at[i].at.start < piece.end) {
			piece.end = spans->at[i].at.start;
		}
		if (mode > there && lock_spans_set(spans, piece, mode, 0))
			return -ENOMEM;
		at.start = piece.end;
	}
	return 0;
}

int lock_spans_append(struct lock_spans *spans, struct lock_span span)
{
	if (reserve(spans, 1))
		return -ENOMEM;
	spans->at[spans->count++] = span;
	return 0;
}

enum lock_mode lock_spans_mode(const struct lock_spans *spans, struct extent at)
{
	enum lock_mode most = MODE_NONE;

	for (size_t i = lock_spans_find(spans, at.start); i < spans->count && spans->at[i].at.start < at.end; i++)
		most = mode_max(most, spans->at[i].mode);
	return most;
}
