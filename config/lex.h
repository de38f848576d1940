/* SPDX-License-Identifier: MIT */
/*
 * The words of a configuration's text, as libconfig reads them. For what
 * libconfig cannot say (which key stands there twice, that an include is meant)
 * and for programs, where libconfig must not be. Pure, no malloc.
 */
#ifndef DLOCK_LEX_H
#define DLOCK_LEX_H

#include <stddef.h>

enum lex_kind {
	LEX_END,
	LEX_NAME,		/* a key, true, false */
	LEX_STRING,		/* text is what stands between the quotes, escapes and all */
	LEX_PUNCT,		/* one of = : , ; { } [ ] ( ) */
	LEX_OTHER,		/* numbers, and what libconfig will refuse */
	LEX_INCLUDE,		/* @include */
	LEX_OPEN_STRING,	/* a string without its end; line is where it begins */
	LEX_OPEN_COMMENT,	/* a comment without its end */
};

struct lex {			/* begin with { .text = …, .len = …, .line = 1 } */
	const char *text;
	size_t len, pos;
	unsigned line;
};

struct lex_token {
	enum lex_kind kind;
	unsigned line;
	const char *text;
	size_t len;
};

/* Reads the next word. */
void lex_next(struct lex *lex, struct lex_token *ret_token);

/* Appends the value of a LEX_STRING, escapes decoded, to buf, which holds `used` bytes. Returns the new length (NUL-terminated) or -ENAMETOOLONG. */
int lex_string_value(const struct lex_token *token, char *buf, size_t used, size_t size);

#endif
