/* SPDX-License-Identifier: MIT */
/*
 * Record locks as programs ask for them: fcntl's lock commands and lockf, and the
 * shapes of struct flock. This header has no type whose size depends on
 * _FILE_OFFSET_BITS: entry.c is compiled without it.
 */
#ifndef DLOCK_SHIM_RECORD_H
#define DLOCK_SHIM_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

enum record_action {
	RECORD_GET,
	RECORD_SET,
	RECORD_WAIT,	/* set, waiting */
};

enum record_shape {	/* of the program's structure */
	RECORD_64,
	RECORD_32,		/* 32-bit offsets, understood by the kernel */
	RECORD_32_WIDENED,	/* 32-bit offsets, which libc makes into 64-bit ones for the kernel */
};

struct record_command {
	int cmd;		/* the kernel's number */
	enum record_action action;
	enum wire_family family;
	enum record_shape shape;
};

/* Whether cmd is a lock command. narrow: fcntl of a 32-bit libc, not fcntl64. */
bool record_command(int cmd, bool narrow, struct record_command *ret_command);

/* fcntl with a lock command. Returns 0 or the negative of an errno. May change errno. */
int record_fcntl(int fd, const struct record_command *command, void *arg);

/* lockf. narrow: its off_t has 32 bits. Returns 0 or the negative of an errno. May change errno. */
int record_lockf(int fd, int cmd, int64_t len, bool narrow);

#endif
