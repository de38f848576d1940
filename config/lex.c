/* SPDX-License-Identifier: MIT */
/*
 * Splits a configuration's text into words. Used inside programs: libc only, no
 * malloc. It has no opinion on grammar; libconfig judges that in the agent.
 */
#include "lex.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static bool is_name_start(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '*';
}

static bool is_word(char c)
{
	return is_name_start(c) || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static char peek(const struct lex *lex, size_t ahead)
{
	return lex->pos + ahead < lex->len ? lex->text[lex->pos + ahead] : '\0';
}

static void advance(struct lex *lex)
{
	if (lex->text[lex->pos++] == '\n')
		lex->line++;
}

/* Passes blanks and comments. False: a comment has no end, and *ret_line is where it begins. */
static bool skip_blanks(struct lex *lex, unsigned *ret_line)
{
	while (lex->pos < lex->len) {
		char c = peek(lex, 0);

		if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f') {
			advance(lex);
		} else if (c == '#' || (c == '/' && peek(lex, 1) == '/')) {
			while (lex->pos < lex->len && peek(lex, 0) != '\n')
				advance(lex);
		} else if (c == '/' && peek(lex, 1) == '*') {
			*ret_line = lex->line;
			lex->pos += 2;
			while (lex->pos < lex->len && !(peek(lex, 0) == '*' && peek(lex, 1) == '/'))
				advance(lex);
			if (lex->pos >= lex->len)
				return false;
			lex->pos += 2;
		} else {
			break;
		}
	}
	return true;
}

void lex_next(struct lex *lex, struct lex_token *ret_token)
{
	struct lex_token t = { .kind = LEX_END };
	unsigned line = lex->line;
	bool closed = skip_blanks(lex, &line);
	char c;

	t.text = lex->text + lex->pos;
	t.line = closed ? lex->line : line;
	c = peek(lex, 0);
	if (!closed) {
		t.kind = LEX_OPEN_COMMENT;
	} else if (lex->pos >= lex->len) {
		t.kind = LEX_END;
	} else if (c == '"') {
		lex->pos++;
		t.text++;
		t.kind = LEX_OPEN_STRING;
		while (lex->pos < lex->len) {
			c = peek(lex, 0);
			if (c == '"') {
				t.kind = LEX_STRING;
				break;
			}
			/* Only these two escapes hide the character behind the backslash. */
			if (c == '\\' && (peek(lex, 1) == '\\' || peek(lex, 1) == '"'))
				lex->pos++;
			advance(lex);
		}
		t.len = (size_t)(lex->text + lex->pos - t.text);
		if (t.kind == LEX_STRING)
			lex->pos++;
		*ret_token = t;
		return;
	} else if (c == '@') {
		t.kind = lex->len - lex->pos >= 8 && !memcmp(t.text, "@include", 8) ? LEX_INCLUDE : LEX_OTHER;
		lex->pos++;
	} else if (is_name_start(c)) {
		t.kind = LEX_NAME;
		while (lex->pos < lex->len && is_word(peek(lex, 0)))
			lex->pos++;
	} else if (c && strchr("=:,;{}[]()", c)) {
		t.kind = LEX_PUNCT;
		lex->pos++;
	} else {
		t.kind = LEX_OTHER;
		lex->pos++;
		while (lex->pos < lex->len && (is_word(peek(lex, 0)) || peek(lex, 0) == '.'))
			lex->pos++;
	}
	t.len = (size_t)(lex->text + lex->pos - t.text);
	*ret_token = t;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The character that the escape at p (behind the backslash, n bytes left) means; *ret_used how many bytes it has, 0 = none, the backslash stands for itself. */
static char escape(const char *p, size_t n, size_t *ret_used)
{
	static const char from[] = "nrtf\\\"", to[] = "\n\r\t\f\\\"";
	const char *known;

	*ret_used = 0;
	if (n == 0)
		return '\\';
	known = *p ? strchr(from, *p) : NULL;
	if (known) {
		*ret_used = 1;
		return to[known - from];
	}
	if (n >= 3 && (*p == 'x' || *p == 'X') && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
		*ret_used = 3;
		return (char)(hex_digit(p[1]) * 16 + hex_digit(p[2]));
	}
	return '\\';
}

int lex_string_value(const struct lex_token *token, char *buf, size_t used, size_t size)
{
	size_t i;

	for (i = 0; i < token->len; i++) {
		char c = token->text[i];

		if (c == '\\') {
			size_t n;

			c = escape(token->text + i + 1, token->len - i - 1, &n);
			i += n;
		}
		if (used + 1 >= size)
			return -ENAMETOOLONG;
		buf[used++] = c;
	}
	if (used >= size)
		return -ENAMETOOLONG;
	buf[used] = '\0';
	return (int)used;
}
