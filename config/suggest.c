/* SPDX-License-Identifier: MIT */
/* Finds the word that was probably meant, by the number of typing errors between two words (Damerau–Levenshtein, neighbours only). */
#include "suggest.h"

#include <stdint.h>
#include <string.h>

#define WORD_MAX 63	/* longer words are not worth a guess */

static char fold(char c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c - 'A' + 'a');
	return c == '-' ? '_' : c;
}

static unsigned min(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

/* Errors between a and b, of at most WORD_MAX letters each. */
static unsigned distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	unsigned rows[3][WORD_MAX + 1];
	unsigned *before = rows[0], *last = rows[1], *row = rows[2], *swap;
	size_t i, j;

	memset(rows, 0, sizeof rows);
	for (j = 0; j <= b_len; j++)
		last[j] = (unsigned)j;
	for (i = 1; i <= a_len; i++) {
		row[0] = (unsigned)i;
		for (j = 1; j <= b_len; j++) {
			char x = fold(a[i - 1]), y = fold(b[j - 1]);

			row[j] = min(min(last[j], row[j - 1]) + 1, last[j - 1] + (x != y));
			if (i > 1 && j > 1 && x == fold(b[j - 2]) && fold(a[i - 2]) == y)
				row[j] = min(row[j], before[j - 2] + 1);
		}
		swap = before;
		before = last;
		last = row;
		row = swap;
	}
	return last[b_len];
}

const char *suggest_nearest(const char *word, const char *const *candidates, size_t count)
{
	size_t len = strlen(word), i;
	const char *nearest = NULL;
	unsigned best = UINT32_MAX;

	if (len > WORD_MAX)
		return NULL;
	for (i = 0; i < count; i++) {
		size_t other = strlen(candidates[i]);
		unsigned d, allowed;

		if (other > WORD_MAX)
			continue;
		d = distance(word, len, candidates[i], other);
		allowed = (unsigned)(len > other ? len : other) / 3;
		if (d <= allowed && d < best) {
			best = d;
			nearest = candidates[i];
		}
	}
	return nearest;
}
