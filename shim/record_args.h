/* SPDX-License-Identifier: MIT */
/* The arguments of a record lock call: read, judged, and answered. */
#ifndef DLOCK_SHIM_RECORD_ARGS_H
#define DLOCK_SHIM_RECORD_ARGS_H

#include "extent.h"
#include "record.h"

struct record_lock {		/* struct flock in whichever shape */
	short type, whence;
	int64_t start, len;
	int32_t pid;
};

struct record_call {
	int fd;
	struct record_command command;
	void *arg;		/* the program's structure */
	bool readable;		/* lock is what it says */
	struct record_lock lock;
};

/* Reads the program's structure; never crashes. False: it cannot be read. */
bool record_read(const struct record_call *call, struct record_lock *ret_lock);

/* Writes a lock to the program's structure, which the kernel has just written to. 0 or -EOVERFLOW, as a kernel with such a structure answers. */
int record_write(const struct record_call *call, const struct record_lock *lock);

/* The program's own call, exactly. Waits and is a cancellation point if its command is. 0 or -errno. */
int record_kernel(const struct record_call *call);

/* Whether it asks for, or about, a lock at all, as far as that is to be seen without the file; else it is the kernel's to answer. */
bool record_is_clean(const struct record_call *call);
enum lock_mode record_mode(const struct record_call *call);

/* The bytes that a clean call means, with the file's offset and size as they are now. 0, -EINVAL, -EOVERFLOW or -EBADF. */
int record_extent(const struct record_call *call, struct extent *ret_at);

/* The negative of an errno that the manual pages list, else -ENOLCK. */
int record_error(int err);

/* Whether the descriptor is not open in the way that a lock of this mode needs. */
bool record_is_misopened(int fd, enum lock_mode mode);

#endif
