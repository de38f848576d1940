/* SPDX-License-Identifier: MIT */
/*
 * The record lines of query.h: written by the agent, read by the dlock command.
 *
 * A record is one line, `record=KIND` and more `name=value` fields separated by
 * tabs, ended by '\n'. In a value every byte below 0x20, 0x7f and the backslash
 * are written as \xHH (two hexadecimal digits); all other bytes, UTF-8 or not,
 * stand for themselves. A value never contains NUL. Names are [a-z0-9_]+.
 *
 * Pure but for malloc; not thread-safe on one buffer.
 */
#ifndef DLOCK_RECORDS_H
#define DLOCK_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_FIELDS_MAX 32

/* A growing text of records; zeroed = empty. After an error (`err` set) every further call does nothing. */
struct record_buf {
	char *data;		/* not NUL-terminated */
	size_t len, size;
	int err;		/* 0, -ENOMEM or -EINVAL (a bad name); sticky */
};

void record_buf_free(struct record_buf *buf);	/* empties it; it can be used again */

void records_begin(struct record_buf *buf, const char *kind);	/* record=KIND */
void records_put(struct record_buf *buf, const char *name, const char *value);	/* value NULL is written as empty */
void records_put_bytes(struct record_buf *buf, const char *name, const void *value, size_t len); /* a NUL is written as '?' */
void records_put_u64(struct record_buf *buf, const char *name, uint64_t value);
void records_end(struct record_buf *buf);
void records_append(struct record_buf *buf, const char *text, size_t len);	/* text that is records already */

/* Bytes of the whole records at the start of text that fit into max (for packets of WIRE_TEXT_MAX);
 * 0 if not even the first does, or none is complete. */
size_t records_fit(const char *text, size_t len, size_t max);

/* One record read. The strings live as long as the record; values are unescaped and NUL-terminated. */
struct record_field {
	const char *name, *value;
};

struct record {
	const char *kind;
	size_t count;		/* fields, the kind not counted */
	struct record_field fields[RECORD_FIELDS_MAX];
	char text[];
};

/*
 * Reads the record that starts at text[*pos] and moves *pos behind it.
 * Returns 1 with *ret_record (to be freed with record_free), 0 at the end of
 * the text, -EBADMSG for a line that is no record (*pos moves too), -ENOMEM.
 */
int records_next(const char *text, size_t len, size_t *pos, struct record **ret_record);
void record_free(struct record *record);	/* NULL is fine */

/* The value of a field, or otherwise (which may be NULL). */
const char *record_get(const struct record *record, const char *name, const char *otherwise);
/* A text that is a decimal number and nothing else. */
bool record_number(const char *text, uint64_t *ret);
/* A field's value as a number; `otherwise` too if it is no number. */
uint64_t record_get_u64(const struct record *record, const char *name, uint64_t otherwise);

#endif
