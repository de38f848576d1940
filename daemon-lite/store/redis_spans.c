/* SPDX-License-Identifier: MIT */
/*
 * Span lists as text. What is read comes from a server that may be another program's,
 * or hostile: a list is believed only if every byte of it is as it should be, so that
 * the agent's rules can rely on order and bounds. Pure but for the buffer and malloc.
 */
#include "redis_spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OFFSET_DIGITS 19u
#define FENCE_DIGITS 16u

/* Where the fields of a record begin, each but the last followed by a space, the last one by a comma. */
#define END_AT (OFFSET_DIGITS + 1)
#define MODE_AT (END_AT + OFFSET_DIGITS + 1)
#define FENCE_AT (MODE_AT + 1 + 1)

_Static_assert(FENCE_AT + FENCE_DIGITS + 1 == REDIS_SPAN_BYTES, "a record's width is part of the protocol");

/* --- reading --- */

/* At most 19 digits: they fit. */
static bool get_digits(const char *at, size_t width, uint64_t *ret_number)
{
	uint64_t number = 0;

	for (size_t i = 0; i < width; i++) {
		if (at[i] < '0' || at[i] > '9')
			return false;
		number = 10 * number + (uint64_t)(at[i] - '0');
	}
	*ret_number = number;
	return true;
}

static bool get_span(const char *at, struct lock_span *ret_span)
{
	struct lock_span span;
	uint64_t mode;

	if (at[END_AT - 1] != ' ' || at[MODE_AT - 1] != ' ' || at[FENCE_AT - 1] != ' ' || at[REDIS_SPAN_BYTES - 1] != ',')
		return false;
	if (!get_digits(at, OFFSET_DIGITS, &span.at.start) || !get_digits(at + END_AT, OFFSET_DIGITS, &span.at.end) ||
	    !get_digits(at + MODE_AT, 1, &mode) || !get_digits(at + FENCE_AT, FENCE_DIGITS, &span.fence))
		return false;
	if (span.at.start >= span.at.end || span.at.end > EXTENT_END || mode > MODE_EX || span.fence >= REDIS_FENCE_END)
		return false;
	span.mode = (enum lock_mode)mode;
	*ret_span = span;
	return true;
}

/* Whether span may stand behind `before`, the first one behind a zeroed one. */
static bool fits(const struct lock_span *before, const struct lock_span *span, enum redis_spans_kind kind)
{
	if (kind == SPANS_PARTS ? span->mode == MODE_EX : span->mode == MODE_NONE)
		return false;
	if (kind != SPANS_WAITING)
		return before->at.end <= span->at.start;
	return before->at.start < span->at.start || (before->at.start == span->at.start && before->fence <= span->fence);
}

bool redis_spans_valid(const char *text, size_t len, enum redis_spans_kind kind)
{
	struct lock_span span, before = { 0 };

	if (len % REDIS_SPAN_BYTES)
		return false;
	for (size_t i = 0; i < len; i += REDIS_SPAN_BYTES) {
		if (!get_span(text + i, &span) || !fits(&before, &span, kind))
			return false;
		before = span;
	}
	return true;
}

int redis_spans_parse(const char *text, size_t len, enum redis_spans_kind kind, struct redis_spans *ret_spans)
{
	struct redis_spans spans = { .count = len / REDIS_SPAN_BYTES };

	/* First all of it: what is malformed must not make us allocate. */
	if (!redis_spans_valid(text, len, kind))
		return -EPROTO;
	if (spans.count) {
		spans.at = malloc(spans.count * sizeof(*spans.at));
		if (!spans.at)
			return -ENOMEM;
	}
	for (size_t i = 0; i < spans.count; i++)
		get_span(text + i * REDIS_SPAN_BYTES, &spans.at[i]);
	*ret_spans = spans;
	return 0;
}

int redis_spans_item(const struct redis_value *array, size_t i, enum redis_spans_kind kind, struct redis_spans *ret_spans)
{
	const char *text = redis_value_text(array, i);

	return text ? redis_spans_parse(text, array->items[i]->len, kind, ret_spans) : -EPROTO;
}

bool redis_spans_granted(const struct redis_spans *spans)
{
	for (size_t i = 1; i < spans->count; i++)
		if (spans->at[i].fence != spans->at[0].fence)
			return false;
	return spans->count > 0;
}

void redis_spans_free(struct redis_spans *spans)
{
	free(spans->at);
	*spans = (struct redis_spans){ 0 };
}

/* --- writing --- */

static void put_digits(char *at, size_t width, uint64_t number)
{
	while (width-- > 0) {
		at[width] = (char)('0' + number % 10);
		number /= 10;
	}
}

void redis_buf_spans(struct redis_buf *buf, const struct lock_span *spans, size_t count)
{
	char *at = redis_buf_room(buf, count * REDIS_SPAN_BYTES);

	if (!at)
		return;
	for (size_t i = 0; i < count; i++, at += REDIS_SPAN_BYTES) {
		memset(at, ' ', REDIS_SPAN_BYTES);
		put_digits(at, OFFSET_DIGITS, spans[i].at.start);
		put_digits(at + END_AT, OFFSET_DIGITS, spans[i].at.end);
		put_digits(at + MODE_AT, 1, spans[i].mode);
		put_digits(at + FENCE_AT, FENCE_DIGITS, spans[i].fence);
		at[REDIS_SPAN_BYTES - 1] = ',';
	}
}

void redis_buf_offset(struct redis_buf *buf, uint64_t offset)
{
	char digits[OFFSET_DIGITS];

	put_digits(digits, OFFSET_DIGITS, offset);
	redis_buf_arg(buf, digits, OFFSET_DIGITS);
}
