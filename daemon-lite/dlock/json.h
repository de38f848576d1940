/* SPDX-License-Identifier: MIT */
/* Writing JSON (RFC 8259), two blanks for each level. The caller keeps begin and end in step. */
#ifndef DLOCK_JSON_H
#define DLOCK_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {			/* zeroed but for `out` = start */
	FILE *out;
	unsigned depth;
	bool comma;		/* a value stands before the next one */
};

/* name NULL inside arrays and at the top. */
void json_begin(struct json *json, const char *name, char bracket);	/* '{' or '[' */
void json_end(struct json *json, char bracket);				/* '}' or ']' */
/* Bytes that are no UTF-8 become U+FFFD, one for each byte. */
void json_string(struct json *json, const char *name, const char *value);
void json_hex(struct json *json, const char *name, const char *bytes);	/* a string of hexadecimal digits */
void json_u64(struct json *json, const char *name, uint64_t value);
void json_bool(struct json *json, const char *name, bool value);
void json_null(struct json *json, const char *name);

#endif
