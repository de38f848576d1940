/* SPDX-License-Identifier: MIT */
/*
 * Reads the `lock:` lines of /proc/thread-self/fdinfo/N:
 *
 *   lock:\t1: FLOCK  ADVISORY  WRITE 4711 08:01:5 0 EOF
 *   lock:\t2: POSIX  ADVISORY  READ 4711 08:01:5 100 199
 *
 * /proc/self would show the table of the thread-group leader, and a thread can
 * have unshared its own. The kernel lists here only what this description holds,
 * never what it waits for; at most one flock. A POSIX lock is shown at the description
 * through which it was made, not at another one of the same file.
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

static bool parse_number(const char *word, size_t len, uint64_t *ret)
{
	uint64_t n = 0;

	if (!word || len > 19)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (word[i] < '0' || word[i] > '9')
			return false;
		n = n * 10 + (uint64_t)(word[i] - '0');
	}
	*ret = n;
	return true;
}

/* First and last byte, as the kernel has them; "EOF" is the last of all. */
static bool parse_extent(const char **rest, struct extent *ret)
{
	const char *word;
	size_t len;

	word = next_word(rest, &len);
	if (!parse_number(word, len, &ret->start))
		return false;
	word = next_word(rest, &len);
	if (word_is(word, len, "EOF"))
		ret->end = EXTENT_END;
	else if (!parse_number(word, len, &ret->end) || ++ret->end > EXTENT_END)
		return false;
	return ret->start < ret->end;
}

static void parse_line(struct held_parser *parser)
{
	const char *rest = parser->line;
	enum wire_family family;
	enum lock_mode mode;
	struct extent at;
	const char *word;
	size_t len;

	word = next_word(&rest, &len);
	if (!word_is(word, len, "lock:"))
		return;
	next_word(&rest, &len);			/* "1:" */
	word = next_word(&rest, &len);
	if (word_is(word, len, "FLOCK"))
		family = FAMILY_FLOCK;
	else if (word_is(word, len, "POSIX"))
		family = FAMILY_POSIX;
	else if (word_is(word, len, "OFDLCK"))
		family = FAMILY_OFD;
	else
		return;
	next_word(&rest, &len);			/* ADVISORY */
	word = next_word(&rest, &len);
	if (word_is(word, len, "WRITE"))
		mode = MODE_EX;
	else if (word_is(word, len, "READ"))
		mode = MODE_SH;
	else
		return;
	next_word(&rest, &len);			/* the process */
	next_word(&rest, &len);			/* the inode */
	if (parse_extent(&rest, &at))
		parser->fn(parser->arg, family, mode, at);
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

int held_each(int fd, void (*fn)(void *arg, enum wire_family family, enum lock_mode mode, struct extent at), void *arg)
{
	struct held_parser parser = { .len = 0, .fn = fn, .arg = arg };
	char path[FD_PROC_PATH_MAX], piece[1024];
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
	return n < 0 ? (int)n : 0;
}

struct strongest {
	enum wire_family family;
	enum lock_mode mode;
};

static void note_strongest(void *arg, enum wire_family family, enum lock_mode mode, struct extent at)
{
	struct strongest *strongest = arg;

	(void)at;
	if (family == strongest->family)
		strongest->mode = mode_max(strongest->mode, mode);
}

int held_strongest(int fd, enum wire_family family, enum lock_mode *ret_mode)
{
	struct strongest strongest = { family, MODE_NONE };
	int err = held_each(fd, note_strongest, &strongest);

	if (err == 0)
		*ret_mode = strongest.mode;
	return err;
}
