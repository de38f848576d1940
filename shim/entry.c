/* SPDX-License-Identifier: MIT */
/*
 * The exported symbols, and nothing else: unit tests link all the rest without
 * preloading anything. errno is assigned here alone; a call that succeeds
 * leaves it as it was.
 */
/* With 64-bit offsets, fcntl and lockf of a 32-bit libc would be fcntl64 and lockf64. */
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "flock.h"
#include "record.h"

#define EXPORT __attribute__((visibility("default")))
#ifdef SYS_fcntl64
#define SYS_FCNTL SYS_fcntl64
#else
#define SYS_FCNTL SYS_fcntl
#endif

static int finish(int err, int saved)
{
	errno = err < 0 ? -err : saved;
	return err < 0 ? -1 : 0;
}

/* Commands that are no locks, whatever they are, with their argument, whatever it is. */
static int pass(int fd, int cmd, void *arg)
{
	struct f_owner_ex owner;

	if (cmd != F_GETOWN)
		return (int)syscall(SYS_FCNTL, fd, cmd, arg);
	/* As libc: the kernel's own answer cannot tell a small process group from an errno. */
	if (syscall(SYS_FCNTL, fd, F_GETOWN_EX, &owner) < 0)
		return -1;
	return owner.type == F_OWNER_PGRP ? -owner.pid : owner.pid;
}

static int dispatch(int fd, int cmd, void *arg, bool narrow)
{
	struct record_command command;
	int saved = errno;

	if (!record_command(cmd, narrow, &command))
		return pass(fd, cmd, arg);
	return finish(record_fcntl(fd, &command, arg), saved);
}

/* An argument that is an int, or none, is passed on as it lies there, as libc does. */
#define FCNTL(name, narrow) \
	EXPORT int name(int fd, int cmd, ...) \
	{ \
		va_list args; \
		void *arg; \
\
		va_start(args, cmd); \
		arg = va_arg(args, void *); \
		va_end(args); \
		return dispatch(fd, cmd, arg, narrow); \
	}

FCNTL(fcntl, sizeof(off_t) == 4)
FCNTL(fcntl64, false)
#ifdef SYS_fcntl64
int __fcntl_time64(int fd, int cmd, ...);
FCNTL(__fcntl_time64, false)	/* fcntl of a program with a 64-bit time_t */
#endif

EXPORT int flock(int fd, int operation)
{
	int saved = errno;

	return finish(flock_call(fd, operation), saved);
}

EXPORT int lockf(int fd, int cmd, off_t len)
{
	int saved = errno;

	return finish(record_lockf(fd, cmd, len, sizeof len == 4), saved);
}

EXPORT int lockf64(int fd, int cmd, off64_t len)
{
	int saved = errno;

	return finish(record_lockf(fd, cmd, len, false), saved);
}
