/* SPDX-License-Identifier: MIT */
/*
 * Prints what record lock calls come to: transcript FILE SEED ROUNDS makes random calls, good and bad, and prints
 * each with its result, errno, structure and the locks that are there then; transcript FILE asks
 * once by each way to ask. Built for 32-bit programs with and without 64-bit offsets; run with the
 * library and without, what it prints must be the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef SYS_fcntl64
#define RAW SYS_fcntl64
#else
#define RAW SYS_fcntl
#endif

static unsigned seed;
static int fds[3], other, watcher;

static unsigned any(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

static int64_t any_offset(void)
{
	static const int64_t odd[] = {
		INT64_MAX, INT64_MAX - 1, INT64_MIN, -1, 0, 1, INT64_C(1) << 32, INT64_C(0x7fffffff), INT64_C(0x80000000), INT32_MIN,
	};

	return any(5) ? (int64_t)any(40) - 8 : odd[any(sizeof odd / sizeof *odd)];
}

/* How the watcher's description sees a byte. */
static char look_at(int64_t at)
{
	struct flock64 lock = { .l_type = F_WRLCK, .l_start = at, .l_len = 1 };

	if (syscall(RAW, watcher, F_OFD_GETLK, &lock) < 0)
		return '?';
	if (lock.l_type == F_UNLCK)
		return '-';
	lock = (struct flock64){ .l_type = F_RDLCK, .l_start = at, .l_len = 1 };
	return syscall(RAW, watcher, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK ? 'r' : 'w';
}

static void picture(void)
{
	static const int64_t far[] = { INT64_C(0x7fffffff), INT64_C(0x80000000), INT64_C(1) << 32, INT64_MAX - 1, INT64_MAX };

	putchar(' ');
	for (int64_t at = 0; at < 60; at++)
		putchar(look_at(at));
	for (unsigned i = 0; i < sizeof far / sizeof *far; i++)
		putchar(look_at(far[i]));
	putchar('\n');
}

static const char *owner(pid_t pid)
{
	return pid == getpid() ? "self" : pid == 0 ? "0" : pid < 0 ? "description" : "other";
}

static void tell(const char *what, int cmd, int result, short type, short whence, int64_t start, int64_t len, pid_t pid)
{
	printf("%s %d: %d %s; type %d whence %d start %" PRId64 " len %" PRId64 " pid %s", what, cmd, result,
	       result < 0 ? strerror(errno) : "", type, whence, start, len, owner(pid));
}

/* A wait that would be one. */
static int would_block(int fd, int ofd, short type, short whence, int64_t start, int64_t len)
{
	struct flock64 lock = { .l_type = type, .l_whence = whence, .l_start = start, .l_len = len };

	return (type == F_RDLCK || type == F_WRLCK) && syscall(RAW, fd, ofd ? F_OFD_GETLK : F_GETLK64, &lock) == 0 &&
	       lock.l_type != F_UNLCK;
}

static void call(int fd, int cmd, short type, short whence, int64_t start, int64_t len, pid_t pid)
{
	struct flock lock;
	int result;

	memset(&lock, 0, sizeof lock);
	lock.l_type = type;
	lock.l_whence = whence;
	lock.l_start = (off_t)start;
	lock.l_len = (off_t)len;
	lock.l_pid = pid;
	if ((cmd == F_SETLKW || cmd == F_OFD_SETLKW) && would_block(fd, cmd == F_OFD_SETLKW, type, whence, lock.l_start, lock.l_len))
		return;
	result = fcntl(fd, cmd, &lock);
	tell("fcntl", cmd, result, lock.l_type, lock.l_whence, lock.l_start, lock.l_len, lock.l_pid);
	picture();
}

static void call64(int fd, int cmd, short type, short whence, int64_t start, int64_t len, pid_t pid)
{
	struct flock64 lock;
	int result;

	memset(&lock, 0, sizeof lock);
	lock.l_type = type;
	lock.l_whence = whence;
	lock.l_start = start;
	lock.l_len = len;
	lock.l_pid = pid;
	if ((cmd == F_SETLKW64 || cmd == F_OFD_SETLKW) && would_block(fd, cmd == F_OFD_SETLKW, type, whence, start, len))
		return;
	result = fcntl64(fd, cmd, &lock);
	tell("fcntl64", cmd, result, lock.l_type, lock.l_whence, lock.l_start, lock.l_len, lock.l_pid);
	picture();
}

static void call_lockf(int fd, int cmd, int64_t len, int wide)
{
	int result;

	if (!wide)
		len = (off_t)len;
	if (cmd == F_LOCK && would_block(fd, 0, F_WRLCK, SEEK_CUR, 0, len))
		return;
	result = wide ? lockf64(fd, cmd, len) : lockf(fd, cmd, (off_t)len);
	printf("%s %d %" PRId64 ": %d %s", wide ? "lockf64" : "lockf", cmd, len, result, result < 0 ? strerror(errno) : "");
	picture();
}

static void one_round(void)
{
	static const int commands[] = { F_SETLK, F_SETLKW, F_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK };
	static const int commands64[] = { F_SETLK64, F_SETLKW64, F_GETLK64, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK };
	static const int lockfs[] = { F_LOCK, F_TLOCK, F_ULOCK, F_TEST, 99 };
	static const short types[] = { F_RDLCK, F_WRLCK, F_RDLCK, F_WRLCK, F_RDLCK, F_WRLCK, F_UNLCK, F_UNLCK, 77 };
	static const short whences[] = { SEEK_SET, SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_END, 3 };
	int fd = any(4) ? fds[0] : fds[any(3)];
	short type = types[any(9)], whence = whences[any(6)];
	int64_t start = any_offset(), len = any_offset();
	pid_t pid = any(20) ? 0 : 1;

	switch (any(8)) {
	case 0:
		call_lockf(fd, lockfs[any(5)], len, (int)any(2));
		break;
	case 1: {	/* another owner, the offset, the size */
		struct flock64 lock = { .l_type = types[any(8)], .l_start = any(3) ? any(30) : INT64_C(5000000000), .l_len = any(6) };

		(void)syscall(RAW, other, F_OFD_SETLK, &lock);
		lseek64(fds[0], any(3) ? any(50) : INT64_C(3000000000), SEEK_SET);
		(void)!ftruncate64(other, any(3) ? any(50) : INT64_C(3000000000));
		break;
	}
	case 2:
	case 3:
	case 4:
		call64(fd, commands64[any(6)], type, whence, start, len, pid);
		break;
	default:
		call(fd, commands[any(6)], type, whence, start, len, pid);
	}
}

static void other_commands(void)
{
	int pipes[2];

	if (pipe(pipes) < 0)
		return;
	printf("dup %d ", fcntl(fds[0], F_DUPFD_CLOEXEC, 100));
	printf("flags %x ", (unsigned)fcntl(100, F_GETFD));
	printf("set %d ", fcntl(100, F_SETFD, 0));
	printf("flags %x ", (unsigned)fcntl64(100, F_GETFD));
	printf("owner %d %d ", fcntl(pipes[0], F_SETOWN, -getpgrp()), fcntl(pipes[0], F_GETOWN) == -getpgrp());
	printf("size %d ", fcntl(pipes[0], F_SETPIPE_SZ, 65536));
	printf("unknown %d\n", fcntl(fds[0], 123456, 5));
	close(100);
	close(pipes[0]);
	close(pipes[1]);
}

int main(int argc, char **argv)
{
	const char *file = argc > 1 ? argv[1] : "";
	int rounds = argc > 3 ? atoi(argv[3]) : 0;

	other = open(file, O_RDWR | O_CREAT | O_LARGEFILE, 0644);
	watcher = open(file, O_RDWR | O_LARGEFILE);
	fds[0] = open(file, O_RDWR | O_LARGEFILE);
	fds[1] = open(file, O_RDONLY | O_LARGEFILE);
	fds[2] = open(file, O_WRONLY | O_LARGEFILE);
	if (other < 0 || watcher < 0 || fds[2] < 0)
		return 1;
	if (argc < 4) {
		call(fds[0], F_GETLK, F_WRLCK, SEEK_SET, 0, 0, 0);
		call(fds[0], F_OFD_GETLK, F_WRLCK, SEEK_SET, 0, 0, 0);
		call64(fds[0], F_GETLK64, F_WRLCK, SEEK_SET, 0, 0, 0);
		return 0;
	}
	seed = (unsigned)atoi(argv[2]);
	other_commands();
	for (int i = 0; i < rounds; i++)
		one_round();
	return 0;
}
