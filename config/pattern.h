/* SPDX-License-Identifier: MIT */
/*
 * Path patterns: `*` any bytes but '/', `?` one byte (one UTF-8 character) but
 * '/', `**` any bytes, '/' too, `[abc]` `[a-z]` `[!a]` one byte but '/', `\c`
 * the character c, also within brackets. Each of the first four is a wildcard.
 * A pattern is matched against the whole absolute path. Pure, no malloc,
 * bounded: at most O(pattern × path) steps whatever the pattern.
 */
#ifndef DLOCK_PATTERN_H
#define DLOCK_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#define PATTERN_LEN_MAX 4095
#define PATTERN_WILDCARDS_MAX 128	/* more are refused by pattern_check */

struct pattern_span { size_t off, len; };	/* of the path */

/* Whether pattern (NUL-terminated) matches path (len bytes). captures, if not NULL, receives what each
 * wildcard matched, in order, up to max; *ret_count how many there are. Shortest match for each, leftmost first. */
bool pattern_match(const char *pattern, const char *path, size_t len,
		   struct pattern_span *captures, size_t max, size_t *ret_count);

/* NULL if the pattern is well-formed, else what is wrong, to follow "the pattern `…` " (absolute path, brackets, trailing backslash…). */
const char *pattern_check(const char *pattern);

/* Bytes of the pattern before the first special character. */
size_t pattern_literal_len(const char *pattern);

/* How many wildcards (captures) it has. */
size_t pattern_wildcards(const char *pattern);

/* Which of its wildcards, from 0, is the first `**`; SIZE_MAX if there is none. */
size_t pattern_first_deep(const char *pattern);

#endif
