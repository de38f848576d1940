/* SPDX-License-Identifier: MIT */
/* What an open file description holds already, as the kernel shows it in /proc/thread-self/fdinfo/N. */
#ifndef DLOCK_SHIM_HELD_H
#define DLOCK_SHIM_HELD_H

#include <stdbool.h>
#include <stddef.h>

#include "mode.h"

struct held_parser {		/* zeroed before the first piece */
	char line[96];		/* the line begun; longer ones are of no interest */
	size_t len;
	enum lock_mode flock;	/* the answer so far */
};

/* Feeds the next n bytes of the file, in pieces of any size. Pure. */
void held_feed(struct held_parser *parser, const char *piece, size_t n);

/* The flock that the description behind fd holds. 0, or -errno when the kernel cannot be asked (no /proc). Never blocks, no malloc. */
int held_flock(int fd, enum lock_mode *ret_mode);

#endif
