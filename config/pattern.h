/* SPDX-License-Identifier: MIT */
/*
 * Path patterns: `*` any bytes but '/', `?` one byte (one UTF-8 character) but
 * '/', `**` any bytes, '/' too, `[abc]` `[a-z]` `[!a]` one byte but '/', `\c`
 * the character c. A pattern is matched against the whole absolute path. Pure,
 * no malloc, bounded: at most O(pattern × path) steps whatever the pattern.
 */
#ifndef DLOCK_PATTERN_H
#define DLOCK_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

struct pattern_span { size_t off, len; };	/* of the path */

/* Whether pattern (NUL-terminated) matches path (len bytes). captures, if not NULL, receives what each
 * wildcard matched, in order, up to max; *ret_count how many there are. Shortest match for each, leftmost first. */
bool pattern_match(const char *pattern, const char *path, size_t len,
		   struct pattern_span *captures, size_t max, size_t *ret_count);

/* NULL if the pattern is well-formed, else a sentence that says what is wrong (absolute path, brackets, trailing backslash…). */
const char *pattern_check(const char *pattern);

/* Bytes of the pattern before the first special character. */
size_t pattern_literal_len(const char *pattern);

/* How many wildcards (captures) it has. */
size_t pattern_wildcards(const char *pattern);

#endif
