/* SPDX-License-Identifier: MIT */
/* What a value of the configuration must look like, apart from its type, and what to write instead. */
#include "check.h"
#include "pattern.h"
#include "suggest.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS "0123456789"

static int bad(char text[CHECK_TEXT_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

static int bad(char text[CHECK_TEXT_MAX], const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(text, CHECK_TEXT_MAX, format, args);
	va_end(args);
	return -EINVAL;
}

int check_namespace(const char *value, char text[CHECK_TEXT_MAX])
{
	size_t len = strlen(value);

	if (len == 0)
		return bad(text, "is empty; write a name, as \"prod\"");
	if (len > 64)
		return bad(text, "has %zu characters; at most 64 are allowed", len);
	if (strspn(value, LETTERS DIGITS "._-") != len)
		return bad(text, "has a character that is not allowed; use letters, digits, `.`, `_` and `-`");
	return 0;
}

int check_path(const char *value, char text[CHECK_TEXT_MAX])
{
	if (*value != '/')
		return bad(text, "is not an absolute path; let it begin with `/`");
	if (strlen(value) >= PATH_MAX)
		return bad(text, "is longer than %d bytes; use a shorter path", PATH_MAX - 1);
	return 0;
}

/* A number of digits only, from low to high, that fills the text. */
static bool is_number(const char *value, unsigned long low, unsigned long high)
{
	size_t len = strspn(value, DIGITS);
	unsigned long n;

	if (len == 0 || len > 9 || value[len])
		return false;
	n = strtoul(value, NULL, 10);
	return n >= low && n <= high;
}

static int check_unix_server(const char *path, char text[CHECK_TEXT_MAX])
{
	if (*path != '/' || !path[1])
		return bad(text, "names no socket; write \"unix:///run/redis/redis-server.sock\", with three slashes");
	if (strlen(path) > 107)
		return bad(text, "has a socket path of more than 107 bytes, which the kernel cannot connect to; use a shorter one");
	return 0;
}

int check_server(const char *value, char text[CHECK_TEXT_MAX])
{
	static const char form[] = "write \"redis://HOST:PORT\" or \"unix:///path/of/socket\"";
	const char *rest, *db;
	char host[256], *port;
	size_t len;

	if (strncmp(value, "unix://", 7) == 0)
		return check_unix_server(value + 7, text);
	if (strncmp(value, "rediss://", 9) == 0)
		return bad(text, "asks for TLS, which this version does not speak; use redis:// over a network or tunnel you trust");
	if (strncmp(value, "redis://", 8) != 0)
		return bad(text, "is not a server; %s", form);
	rest = value + 8;
	if (strchr(rest, '@'))
		return bad(text, "has a user or password in it; put them into `user` and `password_file`");
	db = strchr(rest, '/');
	if (db && db[1] && !is_number(db + 1, 0, 65535))
		return bad(text, "has `%.40s` for the number of the database; write a number, as redis://HOST:PORT/0, or nothing", db + 1);
	len = db ? (size_t)(db - rest) : strlen(rest);
	if (len >= sizeof host)
		return bad(text, "has a host name of more than 255 bytes; %s", form);
	memcpy(host, rest, len);
	host[len] = '\0';
	if (*host == '[') {		/* an IPv6 address */
		port = strchr(host, ']');
		if (!port || port == host + 1)
			return bad(text, "has an unfinished address; write \"redis://[::1]:6379\"");
		port++;
		if (strspn(host + 1, DIGITS "abcdefABCDEF:.%" LETTERS) != (size_t)(port - host - 2))
			return bad(text, "has no IPv6 address between its brackets; write \"redis://[::1]:6379\"");
		if (*port && *port != ':')
			return bad(text, "has something between address and port; write \"redis://[::1]:6379\"");
	} else {
		port = strchr(host, ':');
		if (port && strchr(port + 1, ':'))
			return bad(text, "has more than one colon; write an IPv6 address in brackets, as \"redis://[::1]:6379\"");
		len = port ? (size_t)(port - host) : strlen(host);
		if (len == 0)
			return bad(text, "names no host; %s", form);
		if (strspn(host, LETTERS DIGITS ".-_") < len)
			return bad(text, "has a character that no host name has; %s", form);
	}
	if (port && *port == ':' && !is_number(port + 1, 1, 65535))
		return bad(text, "has `%.20s` for a port; write a number from 1 to 65535, or leave it out for 6379", port + 1);
	return 0;
}

static int check_signal(const char *name, char text[CHECK_TEXT_MAX])
{
	const char *names[NSIG], *near;
	size_t count = 0;
	int sig;

	if (strncmp(name, "SIG", 3) == 0)
		name += 3;
	if (is_number(name, 1, (unsigned long)SIGRTMAX))
		return 0;
	for (sig = 1; sig < NSIG; sig++) {
		const char *known = sigabbrev_np(sig);

		if (!known)
			continue;
		if (strcmp(name, known) == 0)
			return 0;
		names[count++] = known;
	}
	near = suggest_nearest(name, names, count);
	if (near)
		return bad(text, "names no signal; did you mean \"signal:%s\"?", near);
	return bad(text, "names no signal; write one as in \"signal:TERM\" (`kill -l` lists them)");
}

int check_on_lost(const char *value, char text[CHECK_TEXT_MAX])
{
	static const char *const known[] = { "kill", "log", "signal:TERM" };
	const char *near;

	if (strcmp(value, "kill") == 0 || strcmp(value, "log") == 0)
		return 0;
	if (strncmp(value, "signal:", 7) == 0)
		return check_signal(value + 7, text);
	near = suggest_nearest(value, known, sizeof known / sizeof *known);
	if (near)
		return bad(text, "is not known; did you mean \"%s\"?", near);
	return bad(text, "is not known; write \"kill\", \"log\" or \"signal:NAME\"");
}

static int check_placeholder(const char *word, const char *pattern, char text[CHECK_TEXT_MAX])
{
	static const char *const known[] = { "path", "dir", "basename", "tail" };
	const char *near;
	size_t i, wildcards;

	for (i = 0; i < sizeof known / sizeof *known; i++)
		if (strcmp(word, known[i]) == 0)
			return 0;
	if (*word && strspn(word, DIGITS) == strlen(word)) {
		if (!is_number(word, 1, 9) || word[1])
			return bad(text, "has the placeholder {%s}; the numbered ones are {1} to {9}", word);
		wildcards = pattern_wildcards(pattern);
		if ((size_t)(*word - '0') > wildcards)
			return bad(text, "has {%s}, but the pattern `%.100s` has %zu wildcard%s; count them from {1}, from the left",
				   word, pattern, wildcards, wildcards == 1 ? "" : "s");
		return 0;
	}
	near = suggest_nearest(word, known, sizeof known / sizeof *known);
	if (near)
		return bad(text, "has the placeholder {%s}, which is not known; did you mean {%s}?", word, near);
	return bad(text, "has the placeholder {%s}, which is not known; there are {path} {dir} {basename} {tail} and {1} to {9}, and {{ for a brace", word);
}

int check_template(const char *value, const char *pattern, char text[CHECK_TEXT_MAX])
{
	const char *p = value, *end;
	char word[32];
	size_t len;
	int err;

	if (!*value)
		return bad(text, "is empty; write a template, as \"jobs/{basename}\", or leave the key out for \"{path}\"");
	if (strlen(value) > 4095)
		return bad(text, "is longer than 4095 bytes; use a shorter one");
	while (*p) {
		if (*p != '{' && *p != '}') {
			p++;
		} else if (p[1] == *p) {
			p += 2;
		} else if (*p == '}') {
			return bad(text, "has a `}` without its `{`; write }} for the character");
		} else {
			end = strchr(p, '}');
			if (!end)
				return bad(text, "has a `{` without its `}`; write {{ for the character");
			len = (size_t)(end - p - 1);
			snprintf(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word - 1), p + 1);
			err = check_placeholder(word, pattern, text);
			if (err)
				return err;
			p = end + 1;
		}
	}
	return 0;
}
