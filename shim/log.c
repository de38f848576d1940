/* SPDX-License-Identifier: MIT */
/*
 * Log lines from inside somebody's program.
 *
 * Must not: allocate, block, raise a signal, keep a descriptor, or write into a
 * descriptor 2 that may be the program's data. So without DLOCKSHIM_LOG, fd 2 is
 * used only when it is a terminal.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>

#include "fd.h"
#include "sys.h"

#define LINE_MAX_BYTES 1000	/* below PIPE_BUF: a pipe that polls writable takes it whole */
#define REMEMBERED 8		/* different messages whose time is remembered */

static _Atomic(const char *) log_where;

struct line {
	char buf[LINE_MAX_BYTES];
	size_t len;
};

static void line_add(struct line *line, const char *text)
{
	/* one byte stays free for the newline */
	while (*text && line->len + 1 < sizeof line->buf) {
		unsigned char c = (unsigned char)*text++;

		line->buf[line->len++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
	}
}

static bool said_lately(const char *text, size_t len)
{
	static _Atomic uint64_t said[REMEMBERED];	/* high 32 bits of the hash, then seconds */
	uint64_t hash = UINT64_C(14695981039346656037);
	uint64_t entry, old;
	_Atomic uint64_t *slot;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
	entry = (hash >> 32 << 32) | (uint32_t)(sys_now_ns(CLOCK_MONOTONIC) / UINT64_C(1000000000));
	slot = &said[hash % REMEMBERED];
	old = atomic_exchange(slot, entry);
	return old == entry;
}

/* write() without the SIGPIPE of a pipe whose reader is gone. */
static void write_quietly(int fd, const char *buf, size_t len)
{
	uint64_t sigpipe = UINT64_C(1) << (SIGPIPE - 1), old = 0, pending = 0;
	struct pollfd pfd = { .fd = fd, .events = POLLOUT };
	struct timespec zero = { 0, 0 };

	if (sys_call(SYS_ppoll, &pfd, 1, &zero, NULL, sizeof old) != 1)
		return;
	(void)syscall(SYS_rt_sigpending, &pending, sizeof pending);
	(void)syscall(SYS_rt_sigprocmask, SIG_BLOCK, &sigpipe, &old, sizeof old);
	if (sys_call(SYS_write, fd, buf, len) == -EPIPE && !(pending & sigpipe))
		(void)syscall(SYS_rt_sigtimedwait, &sigpipe, NULL, &zero, sizeof sigpipe);
	sys_unblock(old);
}

static int open_file(const void *path)
{
	return (int)sys_call(SYS_openat, AT_FDCWD, path,
			     O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
}

static int open_socket(const void *unused)
{
	(void)unused;
	return (int)sys_call(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static void send_syslog(const char *text, size_t len)
{
	static const struct sockaddr_un addr = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
	struct line line = { .len = 0 };
	int fd;

	line_add(&line, "<27>");	/* daemon.err */
	if (len > sizeof line.buf - line.len)
		len = sizeof line.buf - line.len;
	memcpy(line.buf + line.len, text, len);
	line.len += len;
	fd = fd_new(open_socket, NULL);
	if (fd < 0)
		return;
	(void)sys_call(SYS_sendto, fd, line.buf, line.len, MSG_NOSIGNAL | MSG_DONTWAIT, &addr, sizeof addr);
	sys_close(fd);
}

static bool is_terminal(int fd)
{
	char termios[256];	/* struct termios of the kernel, which is smaller */

	return sys_call(SYS_ioctl, fd, TCGETS, termios) == 0;
}

void shim_log_to(const char *where)
{
	atomic_store(&log_where, where);
}

void shim_log_parts(const char *const *parts)
{
	const char *where = atomic_load(&log_where);
	struct line line = { .len = 0 };

	line_add(&line, "dlockshim[");
	line_add(&line, shim_number(sys_call(SYS_getpid)).text);
	line_add(&line, "] ");
	line_add(&line, program_invocation_short_name ? program_invocation_short_name : "?");
	line_add(&line, ": ");
	for (; *parts; parts++)
		line_add(&line, *parts);
	if (said_lately(line.buf, line.len))
		return;

	if (!where || !*where) {
		send_syslog(line.buf, line.len);
		if (!is_terminal(2))
			return;
	} else if (strcmp(where, "syslog") == 0) {
		send_syslog(line.buf, line.len);
		return;
	}
	line.buf[line.len++] = '\n';
	if (!where || !*where || strcmp(where, "stderr") == 0) {
		write_quietly(2, line.buf, line.len);
	} else {
		int fd = fd_new(open_file, where);

		if (fd < 0)
			return;
		write_quietly(fd, line.buf, line.len);
		sys_close(fd);
	}
}

struct shim_number shim_number(long value)
{
	struct shim_number number;
	unsigned long rest = value < 0 ? 0ul - (unsigned long)value : (unsigned long)value;
	size_t at = sizeof number.text;
	size_t len;

	number.text[--at] = '\0';
	do {
		number.text[--at] = (char)('0' + rest % 10);
		rest /= 10;
	} while (rest);
	if (value < 0)
		number.text[--at] = '-';
	len = sizeof number.text - at;
	memmove(number.text, number.text + at, len);
	return number;
}

const char *shim_error(int err)
{
	const char *text = strerrordesc_np(err < 0 ? -err : err);

	return text ? text : "unknown error";
}
