/* SPDX-License-Identifier: MIT */
/*
 * The path matcher. Used inside programs: libc only, no malloc, no I/O, a small
 * stack.
 *
 * A pattern is chunk0 star1 chunk1 star2 chunk2 … where a star is `*` or `**`
 * and a chunk is a run of everything else. Where a chunk begins in the path
 * determines where it ends, and a later begin never ends earlier: a literal and
 * a bracket take one byte, `?` takes one character and only begins at one.
 *
 * So the shortest choice for each star, from the left, can be made greedily:
 *  - A `**` that finds its chunk nowhere fails for good: any other choice to its
 *    left only makes it search less of the path.
 *  - A `*` that reaches a '/' without finding its chunk cannot be helped by a
 *    `*` before it (none of them gets past that '/'), only by the last `**`,
 *    which then takes its chunk's next place.
 * What a `*` found is kept, since after a retry it is asked again at the same
 * place or further right: the whole is O(pattern × path).
 */
#include "pattern.h"

#include <stdint.h>
#include <string.h>

struct subject {
	const char *path;
	size_t len;
};

struct star {
	uint32_t from;		/* searched from here … */
	uint32_t found;		/* … the chunk was found here, or `blocked` */
	bool known, blocked;	/* blocked: nothing from `from` up to `found` */
};

/* Length of the well-formed UTF-8 character at p, 1 for anything else. */
static size_t char_len(const struct subject *s, size_t p)
{
	unsigned char c = (unsigned char)s->path[p];
	size_t n, i;

	if (c >= 0xc2 && c <= 0xdf)
		n = 2;
	else if (c >= 0xe0 && c <= 0xef)
		n = 3;
	else if (c >= 0xf0 && c <= 0xf4)
		n = 4;
	else
		return 1;
	if (n > s->len - p)
		return 1;
	for (i = 1; i < n; i++)
		if (((unsigned char)s->path[p + i] & 0xc0) != 0x80)
			return 1;
	return n;
}

/* Whether p lies inside a character that begins before it. */
static bool inside_char(const struct subject *s, size_t p)
{
	size_t back;

	if (((unsigned char)s->path[p] & 0xc0) != 0x80)
		return false;
	for (back = 1; back <= 3 && back <= p; back++)
		if (((unsigned char)s->path[p - back] & 0xc0) != 0x80)
			return char_len(s, p - back) > back;
	return false;
}

/*
 * One bracket expression; pat points behind its '['. Says whether c is in it
 * and moves *pat behind the ']'. An unfinished one contains nothing.
 */
static bool in_bracket(const char **pat, unsigned char c)
{
	const char *p = *pat;
	bool negated = *p == '!', found = false, first = true;

	if (negated)
		p++;
	for (;; first = false) {
		unsigned char low, high;

		if (*p == ']' && !first)
			break;
		if (*p == '\\' && p[1])
			p++;
		if (!*p) {
			*pat = p;
			return false;
		}
		low = high = (unsigned char)*p++;
		if (*p == '-' && p[1] && p[1] != ']') {
			p++;
			if (*p == '\\' && p[1])
				p++;
			high = (unsigned char)*p++;
		}
		if (c >= low && c <= high)
			found = true;
	}
	*pat = p + 1;
	return found != negated;
}

/* The end of one item (literal, bracket, `?`, star) of the pattern. */
static const char *item_end(const char *pat)
{
	if (*pat == '*')
		return pat + (pat[1] == '*' ? 2 : 1);
	if (*pat == '[') {
		pat++;
		in_bracket(&pat, 0);
		return pat;
	}
	if (*pat == '\\' && pat[1])
		return pat + 2;
	return pat + 1;
}

/*
 * Matches the chunk at pat against the path from *pos on. On success *pos is
 * behind the match and *ret_end behind the chunk. spans, if not NULL, receives
 * what its `?` and brackets matched; *count goes up for each.
 */
static bool chunk_at(const char *pat, const struct subject *s, size_t *pos,
		     struct pattern_span *spans, size_t max, size_t *count, const char **ret_end)
{
	size_t p = *pos;

	while (*pat && *pat != '*') {
		size_t width = 1;

		if (p >= s->len)
			return false;
		if (*pat == '?' || *pat == '[') {
			if (s->path[p] == '/')
				return false;
			if (*pat == '?') {
				if (inside_char(s, p))
					return false;
				width = char_len(s, p);
				pat++;
			} else {
				pat++;
				if (!in_bracket(&pat, (unsigned char)s->path[p]))
					return false;
			}
			if (spans && *count < max)
				spans[*count] = (struct pattern_span){ p, width };
			if (count)
				(*count)++;
		} else {
			if (*pat == '\\' && pat[1])
				pat++;
			if (*pat++ != s->path[p])
				return false;
		}
		p += width;
	}
	*pos = p;
	*ret_end = pat;
	return true;
}

/*
 * The first place from `from` on where the chunk fits (and ends the path, if it
 * ends the pattern). A `*` may not pass a '/': then false and *ret_place is where it is.
 */
static bool chunk_find(const char *chunk, bool deep, const struct subject *s, size_t from, size_t *ret_place)
{
	size_t p;

	for (p = from; p <= s->len; p++) {
		size_t end = p;
		const char *pat;

		if (chunk_at(chunk, s, &end, NULL, 0, NULL, &pat) && (*pat || end == s->len)) {
			*ret_place = p;
			return true;
		}
		if (!deep && p < s->len && s->path[p] == '/')
			break;
	}
	*ret_place = p;
	return false;
}

/* chunk_find for a `*`, which remembers. Each caller's `from` is at or right of the one before. */
static bool star_find(struct star *star, const char *chunk, const struct subject *s, size_t from, size_t *ret_place)
{
	if (!star->known || from > star->found) {
		size_t place;

		star->blocked = !chunk_find(chunk, false, s, from, &place);
		star->found = (uint32_t)place;
		star->known = true;
	}
	*ret_place = star->found;
	return !star->blocked;
}

bool pattern_match(const char *pattern, const char *path, size_t len,
		   struct pattern_span *captures, size_t max, size_t *ret_count)
{
	struct subject s = { path, len };
	struct star stars[PATTERN_WILDCARDS_MAX];	/* since the last `**`; `used` of them are filled */
	size_t used = 0, i = 0;
	const char *deep = NULL;			/* the last `**`, with … */
	size_t deep_from = 0, deep_count = 0;		/* … where it began, captures before it, … */
	size_t deep_next = 0;				/* … where its search goes on */
	size_t pos = 0, count = 0, from, place;
	const char *pat;

	if (len >= UINT32_MAX)
		return false;
	if (!captures)
		max = 0;
	if (!chunk_at(pattern, &s, &pos, captures, max, &count, &pat) || (!*pat && pos != len))
		return false;
	while (*pat) {
		if (pat[1] == '*') {
			if (pat != deep) {
				deep = pat;
				deep_from = deep_next = pos;
				deep_count = count;
				used = 0;
			}
			pat += 2;
			if (!chunk_find(pat, true, &s, deep_next, &place))
				return false;
			from = deep_from;
			count = deep_count;
			deep_next = place + 1;
			i = 0;
		} else {
			if (i == PATTERN_WILDCARDS_MAX)
				return false;
			if (i == used)
				stars[used++].known = false;
			pat++;
			if (!star_find(&stars[i++], pat, &s, pos, &place)) {
				if (!deep)
					return false;
				pat = deep;
				continue;
			}
			from = pos;
		}
		if (count < max)
			captures[count] = (struct pattern_span){ from, place - from };
		count++;
		pos = place;
		chunk_at(pat, &s, &pos, captures, max, &count, &pat);
	}
	if (ret_count)
		*ret_count = count;
	return true;
}

size_t pattern_literal_len(const char *pattern)
{
	return strcspn(pattern, "*?[\\");
}

size_t pattern_wildcards(const char *pattern)
{
	size_t n = 0;

	for (; *pattern; pattern = item_end(pattern))
		n += *pattern == '*' || *pattern == '?' || *pattern == '[';
	return n;
}

size_t pattern_first_deep(const char *pattern)
{
	size_t n = 0;

	for (; *pattern; pattern = item_end(pattern)) {
		if (pattern[0] == '*' && pattern[1] == '*')
			return n;
		n += *pattern == '*' || *pattern == '?' || *pattern == '[';
	}
	return SIZE_MAX;
}

/* Checks the bracket expression behind whose '[' p points. */
static const char *check_bracket(const char *p)
{
	bool first = true;

	if (*p == '^')
		return "has a bracket that begins with `^`; write [!…] for \"none of these\", [\\^…] for the character";
	if (*p == '!')
		p++;
	for (; first || *p != ']'; first = false) {
		unsigned char low, high;

		if (*p == '\\')
			p++;
		if (!*p)
			return "has a `[` without its `]`; write \\[ for the character";
		low = high = (unsigned char)*p++;
		if (*p == '-' && p[1] && p[1] != ']') {
			p += p[1] == '\\' ? 2 : 1;
			if (!*p)
				return "has a `[` without its `]`; write \\[ for the character";
			high = (unsigned char)*p++;
		}
		if (low >= 0x80 || high >= 0x80)
			return "has a character in brackets that is not ASCII; brackets match single bytes";
		if (low > high)
			return "has a range in brackets that runs backwards, as [z-a]";
		if (low == '/' || high == '/')
			return "has a `/` in brackets, which never match one";
	}
	return NULL;
}

const char *pattern_check(const char *pattern)
{
	const char *p, *bad;

	if (*pattern != '/')
		return "does not begin with `/`; a pattern is matched against the whole absolute path";
	if (strlen(pattern) > PATTERN_LEN_MAX)
		return "is longer than 4095 bytes";
	for (p = pattern; *p; p = item_end(p)) {
		if (*p == '\\' && !p[1])
			return "ends in a backslash; write \\\\ for the character";
		if (*p == '[' && (bad = check_bracket(p + 1)) != NULL)
			return bad;
		if (p[0] == '*' && p[1] == '*' && p[2] == '*')
			return "has three stars in a row; `*` stays within a directory, `**` goes below";
		if (*p != '/')
			continue;
		if (p[1] == '/')
			return "has an empty component (`//`), which no path has";
		if (!p[1] && p != pattern)
			return "ends in `/`, which no path does; append `**` for all that lies below";
		if (p[1] == '.' && (p[2] == '/' || !p[2]))
			return "has a component `.`, which no resolved path has";
		if (p[1] == '.' && p[2] == '.' && (p[3] == '/' || !p[3]))
			return "has a component `..`, which no resolved path has";
	}
	if (pattern_wildcards(pattern) > PATTERN_WILDCARDS_MAX)
		return "has more than 128 wildcards";
	return NULL;
}
