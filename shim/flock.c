/* SPDX-License-Identifier: MIT */
/* What is flock's own in a lock call: the operation, and that a description has one lock, which it converts. */
#include "flock.h"

#include <errno.h>
#include <sys/file.h>

#include "held.h"
#include "lock.h"
#include "sys.h"

static int flock_try(struct call *call)
{
	return sys_flock(call->fd, call->operation | LOCK_NB);
}

static int flock_take(struct call *call)
{
	return sys_flock(call->fd, call->operation);
}

/* What was converted is lost, as in a conversion that the kernel refuses. */
static void flock_undo(struct call *call)
{
	(void)sys_flock(call->fd, LOCK_UN);
}

static int flock_held(const struct call *call, int *ret_mode)
{
	enum lock_mode held;

	if (held_strongest(call->fd, FAMILY_FLOCK, &held) < 0)
		return -ENOENT;
	if (held == call->mode)
		return 1;
	/* Linux drops the shared lock before it waits for the exclusive one; two such programs would wait for ever. */
	if (held == MODE_SH)
		(void)sys_flock(call->fd, LOCK_UN);
	*ret_mode = held;
	return 0;
}

static int flock_seen(const struct call *call, int mode)
{
	if (mode == (int)call->mode)
		return 1;
	(void)sys_flock(call->fd, LOCK_UN);
	return 0;
}

static int flock_error(int err)
{
	switch (err) {
	case EBADF:
	case EINTR:
	case EINVAL:
	case ENOLCK:
	case EWOULDBLOCK:
		return -err;
	default:
		return -ENOLCK;
	}
}

static const struct call_ops flock_ops = {
	.try = flock_try,
	.take = flock_take,
	.undo = flock_undo,
	.held = flock_held,
	.seen = flock_seen,
	.error = flock_error,
};

__attribute__((noinline)) int flock_call(int fd, int operation)
{
	struct call call;
	int err;

	/* Unlocking is the kernel's alone, and it answers what is not valid. */
	if ((operation & ~LOCK_NB) != LOCK_SH && (operation & ~LOCK_NB) != LOCK_EX)
		return sys_flock(fd, operation);
	call = (struct call){
		.ops = &flock_ops,
		.family = FAMILY_FLOCK,
		.fd = fd,
		.mode = operation & LOCK_EX ? MODE_EX : MODE_SH,
		.at = EXTENT_ALL,
		.nonblock = operation & LOCK_NB,
		.frame = (uintptr_t)__builtin_frame_address(0),
		.operation = operation,
	};
	err = lock_call(&call);
	return err == LOCK_KERNEL ? sys_flock(fd, operation) : err;
}
