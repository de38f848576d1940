/* SPDX-License-Identifier: MIT */
/*
 * One line for each event, put together on the stack and handed over by one
 * write(), so that lines of several threads and processes never mix. Must not
 * take a lock or allocate: the renewal thread logs too. A line that does not
 * fit is cut; one that cannot be written is lost.
 */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static _Atomic int max_level = LOG_LEVEL_INFO;

static const char *const level_names[] = {
	[LOG_LEVEL_ERROR] = "error",
	[LOG_LEVEL_WARN] = "warning",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_DEBUG] = "debug",
};

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

/* A name with a newline or an escape sequence in it must not forge a line. */
static void make_harmless(char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			text[i] = '?';
}

void log_line(enum log_level level, const char *format, ...)
{
	char line[LINE_MAX_BYTES];
	int saved_errno = errno;
	struct timespec now;
	struct tm tm;
	size_t head, len;
	va_list ap;
	int n;

	if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	head = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
	n = snprintf(line + head, sizeof(line) - head, ".%03ldZ %s: ", now.tv_nsec / 1000000L, level_names[level]);
	head += (size_t)n;

	errno = saved_errno;	/* for %m */
	va_start(ap, format);
	n = vsnprintf(line + head, sizeof(line) - head - 1, format, ap);
	va_end(ap);
	if (n < 0)
		n = 0;
	len = head + (size_t)n;
	if (len > sizeof(line) - 2)
		len = sizeof(line) - 2;
	make_harmless(line + head, len - head);
	line[len++] = '\n';

	while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR)
		;
	errno = saved_errno;
}

int log_allowed(struct log_limit *limit)
{
	struct timespec now;
	unsigned dropped;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (atomic_exchange(&limit->second, (long)now.tv_sec) != (long)now.tv_sec) {
		atomic_store(&limit->lines, 0);
		dropped = atomic_exchange(&limit->dropped, 0);
		if (dropped)
			log_warn("%u more lines like the following were left out", dropped);
	}
	if (atomic_fetch_add(&limit->lines, 1) < LOG_OFTEN)
		return 1;
	atomic_fetch_add(&limit->dropped, 1);
	return 0;
}
