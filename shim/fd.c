/* SPDX-License-Identifier: MIT */
/*
 * Descriptors inside somebody's program.
 *
 * A program may have closed its standard input: the next socket() is 0 then,
 * and the program's next read from "stdin" would be ours. And it may sit at its
 * RLIMIT_NOFILE, where the kernel's flock needs no descriptor but we do: the
 * soft limit goes up to the hard one for the few instructions that open ours.
 * With all signals blocked, so that nothing can leave the limit raised; one
 * thread at a time, so that nobody saves the raised limit as the program's.
 */
#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>

#include "sys.h"

#define RAISE_TRIES 1000	/* yields for another thread's turn; it may have been killed in it (vfork child) */

static int above_two(int fd)
{
	int moved;

	if (fd < 0 || fd > 2)
		return fd;
	moved = (int)sys_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
	sys_close(fd);
	return moved;
}

static int make_raised(int (*make)(const void *), const void *arg)
{
	static atomic_bool raising;
	struct { uint64_t soft, hard; } old, high;	/* the kernel's struct rlimit64 */
	uint64_t mask;
	int fd = -EMFILE;

	mask = sys_block();
	for (unsigned i = 0; atomic_exchange(&raising, true); i++) {
		if (i == RAISE_TRIES) {
			sys_unblock(mask);
			return -EMFILE;
		}
		(void)syscall(SYS_sched_yield);
	}
	if (sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &old) == 0 && old.soft < old.hard) {
		high.soft = high.hard = old.hard;
		if (sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &high, NULL) == 0) {
			fd = above_two(make(arg));
			(void)sys_call(SYS_prlimit64, 0, RLIMIT_NOFILE, &old, NULL);
		}
	}
	atomic_store(&raising, false);
	sys_unblock(mask);
	return fd;
}

int fd_new(int (*make)(const void *arg), const void *arg)
{
	int fd = above_two(make(arg));

	return fd == -EMFILE ? make_raised(make, arg) : fd;
}

/*
 * Whether this thread is its process's first: its table is then the one in
 * /proc/self, which is a quarter of a microsecond cheaper than /proc/thread-self.
 * Never goes stale: the child of a fork by any thread is a first thread itself.
 */
static bool is_leader(void)
{
	static _Thread_local unsigned char known __attribute__((tls_model("initial-exec")));

	if (!known)
		known = sys_call(SYS_gettid) == sys_call(SYS_getpid) ? 1 : 2;
	return known == 1;
}

void fd_proc_path(char buf[FD_PROC_PATH_MAX], const char *what, int fd)
{
	char *end = stpcpy(stpcpy(buf, is_leader() ? "/proc/self/" : "/proc/thread-self/"), what);
	char digits[12];
	unsigned n = (unsigned)fd;
	size_t len = 0;

	do {
		digits[len++] = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	while (len)
		*end++ = digits[--len];
	*end = '\0';
}

int fd_path(int fd, char *buf, size_t size)
{
	char link[FD_PROC_PATH_MAX];
	long n;

	if (fd < 0)
		return -EBADF;
	fd_proc_path(link, "fd/", fd);
	n = sys_call(SYS_readlinkat, AT_FDCWD, link, buf, size);
	if (n < 0)
		return (int)n;
	if ((size_t)n >= size)
		return -ENAMETOOLONG;
	buf[n] = '\0';
	return (int)n;
}
