/* SPDX-License-Identifier: MIT */
/* Names of locks and commands are bytes from programs: nothing of them may reach a terminal or a JSON reader raw. */
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t utf8_sequence(const char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *u = (const unsigned char *)s;
	size_t len = u[0] < 0x80 ? 1 : u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
	uint32_t code;

	if (len == 1)
		return 1;
	if (u[0] < 0xc2 || u[0] > 0xf4)
		return 0;
	code = u[0] & (0x7fu >> len);
	for (size_t i = 1; i < len; i++) {
		if ((u[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (u[i] & 0x3f);
	}
	/* Overlong forms, surrogates, and what lies behind Unicode's end. */
	if (code < least[len] || (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff)
		return 0;
	return len;
}

bool utf8_valid(const char *s)
{
	while (*s) {
		size_t n = utf8_sequence(s);

		if (n == 0)
			return false;
		s += n;
	}
	return true;
}

/* C0 and C1 control characters, DEL, and the line and direction marks that reorder a terminal's line. */
static bool harmful(const char *s, size_t n)
{
	const unsigned char *u = (const unsigned char *)s;

	if (n == 1)
		return u[0] < 0x20 || u[0] == 0x7f;
	if (n == 2)
		return u[0] == 0xc2 && u[1] < 0xa0;
	if (n == 3 && u[0] == 0xe2 && u[1] == 0x80)
		return u[2] >= 0xa8 && u[2] <= 0xae;
	return n == 3 && u[0] == 0xe2 && u[1] == 0x81 && u[2] >= 0xa6 && u[2] <= 0xa9;
}

char *text_printable(const char *s)
{
	char *text = malloc(4 * strlen(s) + 1), *out = text;

	if (!text)
		return NULL;
	while (*s) {
		size_t n = utf8_sequence(s);

		if (n && !harmful(s, n)) {
			memcpy(out, s, n);
			out += n;
			s += n;
			continue;
		}
		for (n = n ? n : 1; n; n--)
			out += sprintf(out, "\\x%02x", (unsigned char)*s++);
	}
	*out = '\0';
	return text;
}

size_t text_width(const char *s)
{
	size_t width = 0;

	for (; *s; s++)
		width += ((unsigned char)*s & 0xc0) != 0x80;
	return width;
}

const char *text_age(uint64_t ms, char *buf, size_t size)
{
	uint64_t s = ms / 1000;

	if (ms < 1000)
		snprintf(buf, size, "%" PRIu64 "ms", ms);
	else if (s < 60)
		snprintf(buf, size, "%" PRIu64 "s", s);
	else if (s < 3600)
		snprintf(buf, size, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, size, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
	else
		snprintf(buf, size, "%" PRIu64 "d%02" PRIu64 "h", s / 86400, s / 3600 % 24);
	return buf;
}
