/* SPDX-License-Identifier: MIT */
/*
 * Raw system calls for code that runs inside somebody's program.
 *
 * The libc functions of the same names are cancellation points, or can be
 * interposed by another preloaded library; syscall() is neither. Each wrapper
 * returns the result or -errno. errno itself is overwritten on failure: the
 * exported function saves it and is the only place that sets it.
 */
#ifndef DLOCK_SHIM_SYS_H
#define DLOCK_SHIM_SYS_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline long sys_result(long result)
{
	return result < 0 ? -errno : result;
}

#define sys_call(...) sys_result(syscall(__VA_ARGS__))

/*
 * The kernel's flock. Not dlsym(RTLD_NEXT): that allocates and takes the
 * loader's lock, so it could be called neither before our constructor nor in a
 * signal handler, and it would make flock a place where a program can hang.
 */
static inline int sys_flock(int fd, int operation)
{
	return (int)sys_call(SYS_flock, fd, operation);
}

/* Where off_t once had 32 bits, the command F_SETLK64 and its like exist in fcntl64 alone; it takes every other command too. */
#ifdef SYS_fcntl64
#define SYS_FCNTL SYS_fcntl64
#else
#define SYS_FCNTL SYS_fcntl
#endif

/*
 * Whether the eight bytes at the address can be read. The kernel copies the set before it finds that there is no
 * such way to change the mask: no descriptor, no side effect, and never forbidden by a sandbox, as process_vm_readv may be.
 */
static inline bool sys_readable(const void *address)
{
	/* NULL would be no set at all; the byte after it lies in the same page. */
	return sys_call(SYS_rt_sigprocmask, -1, address ? address : (const void *)1, NULL, sizeof(uint64_t)) != -EFAULT;
}

static inline void sys_close(int fd)
{
	(void)syscall(SYS_close, fd);
}

/* Blocks every signal of this thread, libc's own too; returns the mask for sys_unblock(). */
static inline uint64_t sys_block(void)
{
	uint64_t all = ~UINT64_C(0), old = 0;

	(void)syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &all, &old, sizeof all);
	return old;
}

static inline void sys_unblock(uint64_t old)
{
	(void)syscall(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &old, NULL, sizeof old);
}

static inline uint64_t sys_now_ns(clockid_t clock)
{
	struct timespec ts = { 0, 0 };

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

#endif
