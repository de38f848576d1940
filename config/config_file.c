/* SPDX-License-Identifier: MIT */
/*
 * From a file's path to a text that may be parsed. Whoever can write the
 * configuration decides over every lock, so owner and mode are judged on the
 * open descriptor, never by a second look at the path.
 */
#include "config_file.h"
#include "lex.h"
#include "rules.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_FILE_MAX (1u << 20)
#define TRIES 5
#define DEPTH_MAX 64

int config_fail(struct config_error *error, int err, const char *format, ...)
{
	va_list args;
	char *p;

	error->err = err;
	va_start(args, format);
	vsnprintf(error->text, sizeof error->text, format, args);
	va_end(args);
	for (p = error->text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return err;
}

const char *config_path_text(const char *path)
{
	size_t len = strlen(path);

	return len > 200 ? path + len - 200 : path;
}

/* Opens without waiting for anything and without becoming anybody's terminal. */
static int open_file(const char *path, struct config_error *error)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), err;
	const char *name = config_path_text(path);

	if (fd >= 0)
		return fd;
	err = -errno;
	switch (-err) {
	case ENOENT:
		return config_fail(error, err, "%s: there is no such file; write it, or name another one", name);
	case EACCES:
		return config_fail(error, err, "%s: user id %u may not read it; run `chmod` or `chown` on it or on a directory above it",
				   name, geteuid());
	default:
		return config_fail(error, err, "%s: cannot be opened (%s); correct the path or the file", name, strerror(-err));
	}
}

/* Judges kind and owner; forbidden: the mode bits that must not be set. */
static int check_file(int fd, const char *path, mode_t forbidden, const char *what, const char *repair,
		      struct stat *ret_st, struct config_error *error)
{
	const char *name = config_path_text(path);
	struct stat st;
	uid_t uid = geteuid();

	if (fstat(fd, &st) < 0) {
		int err = -errno;

		return config_fail(error, err, "%s: cannot be examined (%s); correct the path or the file", name, strerror(-err));
	}
	if (!S_ISREG(st.st_mode))
		return config_fail(error, -EINVAL, "%s: is not a regular file; name one", name);
	if (st.st_uid != 0 && st.st_uid != uid)
		return config_fail(error, -EACCES, "%s: belongs to user id %u, who could change every lock; run `chown %u %s`",
				   name, st.st_uid, uid, name);
	if (st.st_mode & forbidden)
		return config_fail(error, -EACCES, "%s: %s (mode %04o); run `chmod %s %s`",
				   name, what, st.st_mode & 07777, repair, name);
	*ret_st = st;
	return 0;
}

/* Reads up to size bytes. Returns how many or -errno. */
static ssize_t read_all(int fd, char *buf, size_t size)
{
	size_t used = 0;

	while (used < size) {
		ssize_t n = pread(fd, buf + used, size - used, (off_t)used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		used += (size_t)n;
	}
	return (ssize_t)used;
}

int config_file_read(const char *path, char **ret_text, size_t *ret_len, uint64_t *ret_stamp, struct config_error *error)
{
	const char *name = config_path_text(path);
	int fd = open_file(path, error), err, i;
	struct stat st;
	char *text = NULL;

	if (fd < 0)
		return fd;
	for (i = 0; i < TRIES; i++) {
		uint64_t stamp;
		ssize_t n;

		err = check_file(fd, path, S_IWGRP | S_IWOTH, "group or others may write it", "go-w", &st, error);
		if (err)
			goto out;
		if (st.st_size > (off_t)CONFIG_FILE_MAX) {
			err = config_fail(error, -EFBIG, "%s: has %lld bytes where 1 MiB is allowed; join rules by wildcards", name, (long long)st.st_size);
			goto out;
		}
		free(text);
		text = malloc((size_t)st.st_size + 1);
		if (!text) {
			err = config_fail(error, -ENOMEM, "%s: out of memory while it was read", name);
			goto out;
		}
		n = read_all(fd, text, (size_t)st.st_size);
		if (n < 0) {
			err = config_fail(error, (int)n, "%s: cannot be read (%s); correct the path or the file", name, strerror((int)-n));
			goto out;
		}
		/* The stamp must be that of what was read, not of an edit in the middle of it. */
		stamp = rules_stamp(&st);
		if (n == st.st_size && fstat(fd, &st) == 0 && rules_stamp(&st) == stamp) {
			text[n] = '\0';
			*ret_text = text;
			*ret_len = (size_t)n;
			*ret_stamp = stamp;
			close(fd);
			return 0;
		}
	}
	err = config_fail(error, -EAGAIN, "%s: changes again and again while it is read; write a new file and rename it over this one", name);
out:
	free(text);
	close(fd);
	return err;
}

/* Follows the brackets; stack holds those that are open. */
static int check_bracket(const char *name, const struct lex_token *t, struct lex_token *stack, unsigned *depth, struct config_error *error)
{
	static const char opening[] = "{[(", closing[] = "}])";
	const struct lex_token *last = *depth ? &stack[*depth - 1] : NULL;
	const char *p;

	if (strchr(opening, *t->text)) {
		if (*depth == DEPTH_MAX)
			return config_fail(error, -EINVAL, "%s:%u: brackets are nested more than %d deep; no key needs that",
					   name, t->line, DEPTH_MAX);
		stack[(*depth)++] = *t;
		return 0;
	}
	p = strchr(closing, *t->text);
	if (!p)
		return 0;
	if (!last)
		return config_fail(error, -EINVAL, "%s:%u: syntax error: this `%c` closes nothing; remove it", name, t->line, *p);
	if (*last->text != opening[p - closing])
		return config_fail(error, -EINVAL, "%s:%u: syntax error: this `%c` cannot close the `%c` of line %u; close that first",
				   name, t->line, *p, *last->text, last->line);
	--*depth;
	return 0;
}

int config_text_check(const char *path, const char *text, size_t len, struct config_error *error)
{
	struct lex lex = { .text = text, .len = len, .line = 1 };
	const char *name = config_path_text(path), *nul = memchr(text, '\0', len), *p;
	struct lex_token t, stack[DEPTH_MAX];
	unsigned line = 1, depth = 0;

	if (nul) {
		for (p = text; p < nul; p++)
			line += *p == '\n';
		return config_fail(error, -EINVAL, "%s:%u: contains a NUL byte; write the file as plain UTF-8 text", name, line);
	}
	do {
		lex_next(&lex, &t);
		if (t.kind == LEX_INCLUDE)
			return config_fail(error, -EINVAL, "%s:%u: @include is not supported; write everything into one file", name, t.line);
		if (t.kind == LEX_OPEN_STRING)
			return config_fail(error, -EINVAL, "%s:%u: a string begins here and has no end; close it with \"", name, t.line);
		if (t.kind == LEX_OPEN_COMMENT)
			return config_fail(error, -EINVAL, "%s:%u: a comment begins here and has no end; close it with */", name, t.line);
		if (t.kind == LEX_PUNCT && check_bracket(name, &t, stack, &depth, error) < 0)
			return -EINVAL;
		if (t.kind == LEX_STRING) {
			for (p = t.text; p < t.text + t.len; p++) {
				if (*p != '\\')
					continue;
				p++;
				if (t.text + t.len - p >= 3 && (*p == 'x' || *p == 'X') && p[1] == '0' && p[2] == '0')
					return config_fail(error, -EINVAL, "%s:%u: a string contains \\x00, which no path or name can; remove it", name, t.line);
			}
		}
	} while (t.kind != LEX_END);
	if (depth)
		return config_fail(error, -EINVAL, "%s:%u: syntax error: the `%c` here is never closed; close it",
				   name, stack[depth - 1].line, *stack[depth - 1].text);
	return 0;
}

/* Whether the group that begins where `lex` stands has the key, before `end`, on its own level. */
static bool has_key_before(struct lex lex, const char *end, const struct lex_token *key)
{
	struct lex_token t;
	unsigned depth = 0;

	for (;;) {
		lex_next(&lex, &t);
		if (t.kind == LEX_END || t.text >= end)
			return false;
		if (t.kind == LEX_PUNCT && strchr("{[(", *t.text))
			depth++;
		else if (t.kind == LEX_PUNCT && strchr("}])", *t.text) && depth)
			depth--;
		else if (t.kind == LEX_NAME && !depth && t.len == key->len && !memcmp(t.text, key->text, t.len)) {
			struct lex ahead = lex;

			lex_next(&ahead, &t);
			if (t.kind == LEX_PUNCT && (*t.text == '=' || *t.text == ':'))
				return true;
		}
	}
}

unsigned config_text_duplicate(const char *text, size_t len, char *buf, size_t size)
{
	struct lex lex = { .text = text, .len = len, .line = 1 };
	struct lex groups[DEPTH_MAX];
	struct lex_token t, key = { .kind = LEX_END };
	unsigned depth = 0;

	groups[0] = lex;
	for (;;) {
		lex_next(&lex, &t);
		if (t.kind == LEX_END || t.kind == LEX_OPEN_STRING || t.kind == LEX_OPEN_COMMENT)
			return 0;
		if (t.kind == LEX_PUNCT && strchr("{[(", *t.text)) {
			if (++depth == DEPTH_MAX)
				return 0;
			groups[depth] = lex;
		} else if (t.kind == LEX_PUNCT && strchr("}])", *t.text) && depth) {
			depth--;
		} else if (t.kind == LEX_PUNCT && (*t.text == '=' || *t.text == ':') && key.kind == LEX_NAME &&
			   has_key_before(groups[depth], key.text, &key)) {
			snprintf(buf, size, "%.*s", (int)(key.len < size ? key.len : size - 1), key.text);
			return key.line;
		}
		key = t;
	}
}

int config_read_password(const struct config *config, char *buf, size_t size, struct config_error *ret_error)
{
	const char *path = config->redis.password_file, *name, *newline;
	struct stat st;
	ssize_t n;
	size_t len;
	int fd, err;

	if (size == 0)
		return config_fail(ret_error, -EINVAL, "there is no room for a password");
	buf[0] = '\0';
	if (!path)
		return 0;
	name = config_path_text(path);
	fd = open_file(path, ret_error);
	if (fd < 0)
		return fd;
	err = check_file(fd, path, S_IWGRP | S_IRWXO, "others may read or change the password in it", "g-w,o=", &st, ret_error);
	if (err) {
		close(fd);
		return err;
	}
	n = read_all(fd, buf, size);
	close(fd);
	if (n < 0)
		return config_fail(ret_error, (int)n, "%s: cannot be read (%s); correct the path or the file", name, strerror((int)-n));
	newline = memchr(buf, '\n', (size_t)n);
	len = newline ? (size_t)(newline - buf) : (size_t)n;
	if (len > 0 && buf[len - 1] == '\r')
		len--;
	if (len >= size)
		err = config_fail(ret_error, -EINVAL, "%s: its first line is longer than the %zu bytes a password may have", name, size - 1);
	else if (len == 0)
		err = config_fail(ret_error, -EINVAL, "%s: its first line is empty; write the password there", name);
	else if (memchr(buf, '\0', len))
		err = config_fail(ret_error, -EINVAL, "%s: its first line contains a NUL byte; write the password as plain text", name);
	explicit_bzero(buf + (err ? 0 : len), size - (err ? 0 : len));
	return err ? err : (int)len;
}
