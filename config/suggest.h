/* SPDX-License-Identifier: MIT */
/* "Did you mean …?" Pure. */
#ifndef DLOCK_SUGGEST_H
#define DLOCK_SUGGEST_H

#include <stddef.h>

/*
 * The candidate that `word` was probably meant to be, or NULL if none is near:
 * at most one error (a letter too many, missing, wrong, or two swapped) for each
 * three letters; upper and lower case are alike, so are '-' and '_'.
 */
const char *suggest_nearest(const char *word, const char *const *candidates, size_t count);

#endif
