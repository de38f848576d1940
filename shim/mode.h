/* SPDX-License-Identifier: MIT */
/*
 * Lock modes, shared by every part: the shim, the agent, the store and the
 * models. The numbers travel on the wire and in the store; do not renumber.
 */
#ifndef DLOCK_MODE_H
#define DLOCK_MODE_H

#include <stdbool.h>

enum lock_mode {
	MODE_NONE = 0,
	MODE_SH = 1,	/* LOCK_SH, F_RDLCK */
	MODE_EX = 2,	/* LOCK_EX, F_WRLCK */
};

/* Whether two modes of different owners exclude each other. MODE_NONE never does. */
static inline bool mode_conflicts(enum lock_mode a, enum lock_mode b)
{
	return a != MODE_NONE && b != MODE_NONE && (a == MODE_EX || b == MODE_EX);
}

/* The stronger of two modes. */
static inline enum lock_mode mode_max(enum lock_mode a, enum lock_mode b)
{
	return a > b ? a : b;
}

#endif
