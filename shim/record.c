/* SPDX-License-Identifier: MIT */
/*
 * What is the record locks' own in a lock call: ranges, two kinds of owner, a lock that
 * may be there in part before. Whatever is not a clean request for a lock goes to
 * the kernel as the program made it: unlocking, and all that the kernel refuses.
 */
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "before.h"
#include "cancel.h"
#include "getlk.h"
#include "held.h"
#include "lock.h"
#include "range.h"
#include "record_args.h"
#include "sys.h"

/* The kernel's numbers: with 64-bit offsets the headers of a 32-bit libc have others by these names. */
enum { GETLK = 5, SETLK = 6, SETLKW = 7 };
_Static_assert(sizeof(long) == 4 || (F_GETLK == GETLK && F_SETLK == SETLK && F_SETLKW == SETLKW), "other numbers here");

bool record_command(int cmd, bool narrow, struct record_command *ret_command)
{
	enum record_shape own = sizeof(long) == 4 ? RECORD_32 : RECORD_64;
	enum record_shape ofd = narrow ? RECORD_32_WIDENED : RECORD_64;

	switch (cmd) {
	case GETLK:
		*ret_command = (struct record_command){ cmd, RECORD_GET, FAMILY_POSIX, own };
		return true;
	case SETLK:
		*ret_command = (struct record_command){ cmd, RECORD_SET, FAMILY_POSIX, own };
		return true;
	case SETLKW:
		*ret_command = (struct record_command){ cmd, RECORD_WAIT, FAMILY_POSIX, own };
		return true;
#ifdef SYS_fcntl64
	case F_GETLK64:
		*ret_command = (struct record_command){ cmd, RECORD_GET, FAMILY_POSIX, RECORD_64 };
		return true;
	case F_SETLK64:
		*ret_command = (struct record_command){ cmd, RECORD_SET, FAMILY_POSIX, RECORD_64 };
		return true;
	case F_SETLKW64:
		*ret_command = (struct record_command){ cmd, RECORD_WAIT, FAMILY_POSIX, RECORD_64 };
		return true;
#endif
	case F_OFD_GETLK:
		*ret_command = (struct record_command){ cmd, RECORD_GET, FAMILY_OFD, ofd };
		return true;
	case F_OFD_SETLK:
		*ret_command = (struct record_command){ cmd, RECORD_SET, FAMILY_OFD, ofd };
		return true;
	case F_OFD_SETLKW:
		*ret_command = (struct record_command){ cmd, RECORD_WAIT, FAMILY_OFD, ofd };
		return true;
	default:
		return false;
	}
}

/* ---- the real calls ---- */

static int prepare(struct call *call)
{
	return record_extent(call->record, &call->at);
}

static bool refused(const struct call *call)
{
	return record_is_misopened(call->fd, call->mode);
}

static void note(struct call *call)
{
	before_note(&call->before, call->fd, call->family, call->at);
}

static int try(struct call *call)
{
	return range_set(call->fd, call->family, call->at, call->mode, false);
}

static int take(struct call *call)
{
	int err = try(call), type;

	/* Only a wait can be cancelled; a lock that is free is got without that door open. */
	if (err != -EAGAIN || call->nonblock)
		return err;
	type = cancel_open(call->cancellable);
	err = range_set(call->fd, call->family, call->at, call->mode, true);
	cancel_close(call->cancellable, type);
	return err;
}

static void undo(struct call *call)
{
	before_restore(&call->before, call->fd, call->family, call->at, call->mode);
}

static int held(const struct call *call, int *ret_mode)
{
	struct range_lock lock;
	enum lock_mode mode;
	int err;

	err = held_strongest(call->fd, call->family, &mode);
	if (err < 0)
		return err;
	/* This process's locks may have been taken through another description of the file. */
	if (mode == MODE_NONE && call->family == FAMILY_POSIX &&
	    range_get(call->fd, FAMILY_OFD, EXTENT_ALL, MODE_EX, &lock) == 0 && lock.mode != MODE_NONE &&
	    lock.pid == (int32_t)sys_call(SYS_getpid))
		mode = lock.mode;
	*ret_mode = mode;
	return 0;
}

static const struct call_ops record_ops = {
	.prepare = prepare,
	.refused = refused,
	.note = note,
	.try = try,
	.take = take,
	.undo = undo,
	.held = held,
	.error = record_error,
};

/* ---- the calls ---- */

static int set(const struct record_call *record, uintptr_t frame)
{
	bool waits = record->command.action == RECORD_WAIT;
	struct call call = {
		.ops = &record_ops,
		.family = record->command.family,
		.fd = record->fd,
		.mode = record_mode(record),
		.nonblock = !waits,
		.cancellable = waits,
		.frame = frame,
		.record = record,
	};
	int err;

	cancel_test(waits);
	err = lock_call(&call);
	return err == LOCK_KERNEL ? record_kernel(record) : err;
}

__attribute__((noinline)) int record_fcntl(int fd, const struct record_command *command, void *arg)
{
	uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
	struct record_call record = { .fd = fd, .command = *command, .arg = arg };

	record.readable = record_read(&record, &record.lock);
	if (!record.readable || !record_is_clean(&record))
		return record_kernel(&record);
	return command->action == RECORD_GET ? getlk_call(&record, frame) : set(&record, frame);
}

/* As libc does it: from the offset on, write locks, and a test that sees write locks. */
int record_lockf(int fd, int cmd, int64_t len, bool narrow)
{
	enum record_shape shape = narrow && sizeof(long) == 4 ? RECORD_32 : RECORD_64;
	struct record_command command = { .family = FAMILY_POSIX, .shape = shape };
	struct record_lock lock = { .whence = SEEK_CUR, .len = len };
	struct flock64 arg;	/* room for either shape */
	struct record_call call = { .arg = &arg };
	int err;

	switch (cmd) {
	case F_TEST:
		command.action = RECORD_GET;
		command.cmd = shape == RECORD_32 ? GETLK : F_GETLK64;
		lock.type = F_RDLCK;
		break;
	case F_ULOCK:
		command.action = RECORD_SET;
		command.cmd = shape == RECORD_32 ? SETLK : F_SETLK64;
		lock.type = F_UNLCK;
		break;
	case F_TLOCK:
		command.action = RECORD_SET;
		command.cmd = shape == RECORD_32 ? SETLK : F_SETLK64;
		lock.type = F_WRLCK;
		break;
	case F_LOCK:
		command.action = RECORD_WAIT;
		command.cmd = shape == RECORD_32 ? SETLKW : F_SETLKW64;
		lock.type = F_WRLCK;
		break;
	default:
		return -EINVAL;
	}
	memset(&arg, 0, sizeof arg);
	call.command = command;
	(void)record_write(&call, &lock);
	err = record_fcntl(fd, &command, &arg);
	if (err < 0 || cmd != F_TEST)
		return err;
	(void)record_read(&call, &lock);
	return lock.type == F_UNLCK || lock.pid == (int32_t)sys_call(SYS_getpid) ? 0 : -EACCES;
}
