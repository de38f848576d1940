/* SPDX-License-Identifier: MIT */
/*
 * See record_args.h. The kernel is asked for every errno that it can give; what is worked
 * out here is the range, in the kernel's order, because the agent must know it, and
 * because offset and size may be others by the time that the lock is taken.
 */
#include "record_args.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cancel.h"
#include "sys.h"

#define PAGE 4096	/* the smallest there is: what lies within one is readable as a whole */

struct flock32 {	/* struct flock of a 32-bit program without 64-bit offsets */
	int16_t type, whence;
	int32_t start, len, pid;
};

_Static_assert(sizeof(off_t) == 8, "compiled with 64-bit offsets");

/* Without a question to the kernel if all lies in the page that this very function has its frame in: so do most programs' structures. */
static bool is_readable(const char *at, size_t size)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0) / PAGE;
	uintptr_t first = (uintptr_t)at / PAGE, last = ((uintptr_t)at + size - 1) / PAGE;

	if (first == here && last == here)
		return true;
	return sys_readable(at) && (first == last || sys_readable(at + size - sizeof(uint64_t)));
}

bool record_read(const struct record_call *call, struct record_lock *ret_lock)
{
	size_t size = call->command.shape == RECORD_64 ? sizeof(struct flock64) : sizeof(struct flock32);
	const char *at = call->arg;

	if (!is_readable(at, size))
		return false;
	if (call->command.shape == RECORD_64) {
		struct flock64 lock;

		memcpy(&lock, at, sizeof lock);
		*ret_lock = (struct record_lock){ lock.l_type, lock.l_whence, lock.l_start, lock.l_len, lock.l_pid };
	} else {
		struct flock32 lock;

		memcpy(&lock, at, sizeof lock);
		*ret_lock = (struct record_lock){ lock.type, lock.whence, lock.start, lock.len, lock.pid };
	}
	return true;
}

/* Member by member: what lies between them is the program's. */
static void write_64(struct flock64 *to, const struct record_lock *lock)
{
	memcpy(&to->l_type, &lock->type, sizeof lock->type);
	memcpy(&to->l_whence, &lock->whence, sizeof lock->whence);
	memcpy(&to->l_start, &lock->start, sizeof lock->start);
	memcpy(&to->l_len, &lock->len, sizeof lock->len);
	memcpy(&to->l_pid, &lock->pid, sizeof lock->pid);
}

int record_write(const struct record_call *call, const struct record_lock *lock)
{
	struct flock32 narrow = { lock->type, lock->whence, (int32_t)lock->start, (int32_t)lock->len, lock->pid };

	if (call->command.shape == RECORD_64) {
		write_64(call->arg, lock);
		return 0;
	}
	if (lock->start > INT32_MAX)
		return -EOVERFLOW;
	if (lock->len > INT32_MAX) {
		if (call->command.shape == RECORD_32_WIDENED)
			return -EOVERFLOW;
		narrow.len = INT32_MAX;
	}
	memcpy(call->arg, &narrow, sizeof narrow);
	return 0;
}

int record_kernel(const struct record_call *call)
{
	bool widened = call->command.shape == RECORD_32_WIDENED && call->readable;
	bool waits = call->command.action == RECORD_WAIT;
	struct flock64 wide = { .l_type = 0 };
	int err, type;

	if (widened)
		write_64(&wide, &call->lock);
	type = cancel_open(waits);
	err = (int)sys_call(SYS_FCNTL, call->fd, call->command.cmd, widened ? (void *)&wide : call->arg);
	cancel_close(waits, type);
	if (err < 0 || !widened || call->command.action != RECORD_GET)
		return err;
	return record_write(call, &(struct record_lock){ wide.l_type, wide.l_whence, wide.l_start, wide.l_len, wide.l_pid });
}

bool record_is_clean(const struct record_call *call)
{
	const struct record_lock *lock = &call->lock;

	return (lock->type == F_RDLCK || lock->type == F_WRLCK) &&
	       (lock->whence == SEEK_SET || lock->whence == SEEK_CUR || lock->whence == SEEK_END) &&
	       !(call->command.family == FAMILY_OFD && lock->pid != 0);
}

enum lock_mode record_mode(const struct record_call *call)
{
	return call->lock.type == F_WRLCK ? MODE_EX : MODE_SH;
}

/* Where offsets count from. */
static int64_t find_base(const struct record_call *call)
{
	struct stat st;
	off_t at;

	switch (call->lock.whence) {
	case SEEK_CUR:
		at = lseek(call->fd, 0, SEEK_CUR);
		return at < 0 ? 0 : at;	/* what cannot seek is at its beginning */
	case SEEK_END:
		return fstat(call->fd, &st) < 0 ? 0 : st.st_size;
	default:
		return 0;
	}
}

static int find_extent(const struct record_call *call, struct extent *ret_at)
{
	int64_t start = find_base(call), len = call->lock.len;

	if (call->lock.start > INT64_MAX - start)
		return -EOVERFLOW;
	start += call->lock.start;
	if (start < 0)
		return -EINVAL;
	if (len < 0) {		/* the bytes before start */
		if (start + len < 0)
			return -EINVAL;
		*ret_at = (struct extent){ (uint64_t)(start + len), (uint64_t)start };
		return 0;
	}
	return extent_from_len(start, len, ret_at) ? 0 : -EOVERFLOW;
}

int record_extent(const struct record_call *call, struct extent *ret_at)
{
	int err = find_extent(call, ret_at);

	/* That a descriptor stands for a path alone, the kernel finds before all else. */
	return err < 0 && (sys_call(SYS_FCNTL, call->fd, F_GETFL, 0) & O_PATH) ? -EBADF : err;
}

bool record_is_misopened(int fd, enum lock_mode mode)
{
	int flags = (int)sys_call(SYS_FCNTL, fd, F_GETFL, 0);

	if (flags < 0 || (flags & O_PATH))
		return true;
	/* O_ACCMODE 3 is open for neither. */
	return !((flags + 1) & O_ACCMODE & (mode == MODE_EX ? 2 : 1));
}

int record_error(int err)
{
	switch (err) {
	case EACCES:
	case EAGAIN:
	case EBADF:
	case EDEADLK:
	case EFAULT:
	case EINTR:
	case EINVAL:
	case ENOLCK:
	case EOVERFLOW:
		return -err;
	default:
		return -ENOLCK;
	}
}
