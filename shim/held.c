/* SPDX-License-Identifier: MIT */
/*
 * Reads the `lock:` lines of /proc/thread-self/fdinfo/N:
 *
 *   lock:\t1: FLOCK  ADVISORY  WRITE 4711 08:01:5 0 EOF
 *
 * /proc/self would show the table of the thread-group leader, and a thread can
 * have unshared its own. The kernel lists here only what this description holds,
 * never what it waits for; at most one flock.
 */
#include "held.h"

#include <fcntl.h>
#include <string.h>

#include "fd.h"
#include "sys.h"

/* The next word of a line of words parted by blanks; NULL at the end. */
static const char *next_word(const char **line, size_t *ret_len)
{
	const char *word = *line + strspn(*line, " \t");
	size_t len = strcspn(word, " \t");

	*line = word + len;
	*ret_len = len;
	return len ? word : NULL;
}

static bool word_is(const char *word, size_t len, const char *wanted)
{
	return word && strlen(wanted) == len && memcmp(word, wanted, len) == 0;
}

static void parse_line(struct held_parser *parser)
{
	const char *rest = parser->line;
	const char *word;
	size_t len;

	word = next_word(&rest, &len);
	if (!word_is(word, len, "lock:"))
		return;
	next_word(&rest, &len);			/* "1:" */
	word = next_word(&rest, &len);
	if (!word_is(word, len, "FLOCK"))
		return;
	next_word(&rest, &len);			/* ADVISORY */
	word = next_word(&rest, &len);
	if (word_is(word, len, "WRITE"))
		parser->flock = MODE_EX;
	else if (word_is(word, len, "READ"))
		parser->flock = mode_max(parser->flock, MODE_SH);
}

void held_feed(struct held_parser *parser, const char *piece, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (piece[i] == '\n') {
			parser->line[parser->len] = '\0';
			parse_line(parser);
			parser->len = 0;
		} else if (parser->len + 1 < sizeof parser->line) {
			parser->line[parser->len++] = piece[i];
		}
	}
}

static int open_path(const void *path)
{
	return (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
}

int held_flock(int fd, enum lock_mode *ret_mode)
{
	struct held_parser parser = { .len = 0 };
	char path[64], piece[512];
	int info;
	long n;

	fd_proc_path(path, "fdinfo/", fd);
	info = fd_new(open_path, path);
	if (info < 0)
		return info;
	do {
		n = sys_call(SYS_read, info, piece, sizeof piece);
		if (n > 0)
			held_feed(&parser, piece, (size_t)n);
	} while (n > 0 || n == -EINTR);
	sys_close(info);
	if (n < 0)
		return (int)n;
	*ret_mode = parser.flock;
	return 0;
}
