/* SPDX-License-Identifier: MIT */
/*
 * Where the runtime directory is and whether it can be trusted. Used inside
 * programs: libc only, no malloc, no stdio; the environment is read in
 * runtime_dir_find alone, and never in a set-id program.
 *
 * The result is the name of the agent's abstract socket as well, so one
 * directory must always be spelled alike: slashes at its end are dropped.
 */
#include "config.h"
#include "lex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int put(char *buf, size_t size, const char *dir, const char *suffix)
{
	size_t len = strlen(dir), suffix_len = strlen(suffix);

	if (*dir != '/')
		return -EINVAL;
	while (len > 1 && dir[len - 1] == '/')
		len--;
	if (len + suffix_len >= size)
		return -ENAMETOOLONG;
	memcpy(buf, dir, len);
	memcpy(buf + len, suffix, suffix_len + 1);
	return (int)(len + suffix_len);
}

/* n as decimal digits; the text begins somewhere in buf. */
static const char *decimal(unsigned long n, char buf[24])
{
	char *p = buf + 23;

	*p = '\0';
	do {
		*--p = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	return p;
}

int runtime_dir_find(const char *key_value, char *buf, size_t size)
{
	const char *dir = secure_getenv("DLOCKSHIM_RUNTIME_DIR");
	char digits[24];
	uid_t uid;

	if (dir && *dir)
		return put(buf, size, dir, "");
	if (key_value && *key_value)
		return put(buf, size, key_value, "");
	uid = geteuid();
	if (uid == 0)
		return put(buf, size, "/run/dlockshim", "");
	dir = secure_getenv("XDG_RUNTIME_DIR");
	if (dir && *dir == '/')
		return put(buf, size, dir, "/dlockshim");
	return put(buf, size, "/tmp/dlockshim-", decimal(uid, digits));
}

int runtime_dir_check(const char *dir)
{
	struct stat st;

	/* Not through a symlink: in /tmp anybody could turn it elsewhere later. */
	if (lstat(dir, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return -EPERM;
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return -EACCES;
	return 0;
}

int runtime_dir_scan(const char *text, size_t len, char *buf, size_t size)
{
	static const char key[] = "runtime_dir";
	struct lex lex = { .text = text, .len = len, .line = 1 };
	struct lex_token t;
	unsigned depth = 0;

	for (;;) {
		int n = 0;

		lex_next(&lex, &t);
		switch (t.kind) {
		case LEX_END:
		case LEX_OPEN_STRING:
		case LEX_OPEN_COMMENT:
			return -ENOENT;
		case LEX_PUNCT:
			if (strchr("{[(", *t.text))
				depth++;
			else if (strchr("}])", *t.text) && depth)
				depth--;
			continue;
		case LEX_NAME:
			break;
		default:
			continue;
		}
		if (depth || t.len != sizeof key - 1 || memcmp(t.text, key, t.len))
			continue;
		lex_next(&lex, &t);
		if (t.kind != LEX_PUNCT || (*t.text != '=' && *t.text != ':'))
			return -ENOENT;
		lex_next(&lex, &t);
		if (t.kind != LEX_STRING)
			return -ENOENT;
		/* Strings that follow each other are one. */
		do {
			n = lex_string_value(&t, buf, (size_t)n, size);
			lex_next(&lex, &t);
		} while (n >= 0 && t.kind == LEX_STRING);
		return n;
	}
}
