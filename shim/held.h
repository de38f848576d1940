/* SPDX-License-Identifier: MIT */
/* What an open file description holds already, as the kernel shows it in /proc/thread-self/fdinfo/N. No malloc; never blocks. */
#ifndef DLOCK_SHIM_HELD_H
#define DLOCK_SHIM_HELD_H

#include <stdbool.h>
#include <stddef.h>

#include "extent.h"
#include "wire.h"

struct held_parser {		/* zeroed but for fn and arg before the first piece */
	char line[160];		/* the line begun; longer ones are of no interest */
	size_t len;
	void (*fn)(void *arg, enum wire_family family, enum lock_mode mode, struct extent at);	/* called for each lock; at: EXTENT_ALL for a flock */
	void *arg;
};

/* Feeds the next n bytes of the file, in pieces of any size. Pure but for fn. */
void held_feed(struct held_parser *parser, const char *piece, size_t n);

/* Calls fn for each lock that the kernel shows at fd: those that were made through this description, and are its own or this process's. 0 or -errno (no /proc). */
int held_each(int fd, void (*fn)(void *arg, enum wire_family family, enum lock_mode mode, struct extent at), void *arg);

/* The strongest of them that is of that family. 0, or -errno when the kernel cannot be asked. */
int held_strongest(int fd, enum wire_family family, enum lock_mode *ret_mode);

#endif
