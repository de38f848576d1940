/* SPDX-License-Identifier: MIT */
/* See range.h. Always the 64-bit commands and structure, in a 32-bit program too. */
#include "range.h"

#include <fcntl.h>
#include <unistd.h>

#include "sys.h"

static struct flock64 describe(struct extent at, enum lock_mode mode)
{
	return (struct flock64){
		.l_type = mode == MODE_EX ? F_WRLCK : mode == MODE_SH ? F_RDLCK : F_UNLCK,
		.l_whence = SEEK_SET,
		.l_start = (int64_t)at.start,
		.l_len = extent_len(at),
	};
}

int range_set(int fd, enum wire_family family, struct extent at, enum lock_mode mode, bool wait)
{
	struct flock64 lock = describe(at, mode);
	int cmd = family == FAMILY_OFD ? (wait ? F_OFD_SETLKW : F_OFD_SETLK) : (wait ? F_SETLKW64 : F_SETLK64);

	return (int)sys_call(SYS_FCNTL, fd, cmd, &lock);
}

int range_get(int fd, enum wire_family family, struct extent at, enum lock_mode mode, struct range_lock *ret_lock)
{
	struct flock64 lock = describe(at, mode);
	int err;

	err = (int)sys_call(SYS_FCNTL, fd, family == FAMILY_OFD ? F_OFD_GETLK : F_GETLK64, &lock);
	if (err < 0)
		return err;
	*ret_lock = (struct range_lock){ .mode = MODE_NONE, .at = at };
	if (lock.l_type == F_UNLCK || !extent_from_len(lock.l_start, lock.l_len, &ret_lock->at))
		return 0;
	ret_lock->mode = lock.l_type == F_WRLCK ? MODE_EX : MODE_SH;
	ret_lock->pid = lock.l_pid;
	return 0;
}
