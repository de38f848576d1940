/* SPDX-License-Identifier: MIT */
/* Bytes that somebody else chose, made fit to be shown. Pure but for malloc. */
#ifndef DLOCK_TEXT_H
#define DLOCK_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed UTF-8 character at s (NUL-terminated): 1 to 4, 0 if it is none. */
size_t utf8_sequence(const char *s);
bool utf8_valid(const char *s);

/* A copy for terminals: control bytes and what is no UTF-8 as \xHH. To be freed; NULL without memory. */
char *text_printable(const char *s);

/* Columns it takes in a terminal, each character taken for one column. */
size_t text_width(const char *s);

/* "850ms" "12s" "3m05s" "2h04m" "5d03h" written to buf. */
const char *text_age(uint64_t ms, char *buf, size_t size);

#endif
