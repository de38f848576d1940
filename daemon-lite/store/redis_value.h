/* SPDX-License-Identifier: MIT */
/*
 * Redis' wire format: commands into a buffer, bounded replies out of bytes.
 * Used by the loop's thread and the renewal thread, each on objects of its own.
 */
#ifndef DLOCK_REDIS_VALUE_H
#define DLOCK_REDIS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REDIS_REPLY_BYTES_MAX (64u << 20)	/* of one unfinished reply */
#define REDIS_REPLY_ITEMS_MAX (2u << 20)	/* items of one reply, all depths together */

enum redis_value_type { VALUE_NIL, VALUE_STRING, VALUE_STATUS, VALUE_ERROR, VALUE_INTEGER, VALUE_ARRAY };

struct redis_value {
	enum redis_value_type type;
	long long integer;
	size_t count;			/* of an array */
	struct redis_value **items;
	size_t len;			/* of a string, status or error; NUL-terminated, may hold NULs */
	char str[];
};

void redis_value_free(struct redis_value *value);	/* NULL is fine */
/* Item i of an array if it is a string, else NULL. */
const char *redis_value_text(const struct redis_value *array, size_t i);
/* Item i of an array as a number, written as an integer or as decimal digits. */
bool redis_value_u64(const struct redis_value *array, size_t i, uint64_t *ret_number);
bool redis_parse_u64(const char *text, size_t len, uint64_t *ret_number);
/* Whether value is an error that begins with word. NULL is none. */
bool redis_value_is_error(const struct redis_value *value, const char *word);

struct redis_reader;
int redis_reader_new(struct redis_reader **ret_reader);
void redis_reader_free(struct redis_reader *reader);	/* NULL is fine */
int redis_reader_feed(struct redis_reader *reader, const char *bytes, size_t len);	/* 0, -ENOMEM, -EPROTO (too much) */
/* 1 and a reply (the caller's), 0 if more bytes are needed, -EPROTO or -ENOMEM. */
int redis_reader_next(struct redis_reader *reader, struct redis_value **ret_value);

struct redis_buf {		/* zeroed = empty */
	char *data;
	size_t len, size;
	bool failed;		/* out of memory: what is in it is not whole */
};
void redis_buf_free(struct redis_buf *buf);
void redis_buf_command(struct redis_buf *buf, size_t argc);	/* then exactly argc of these: */
void redis_buf_arg(struct redis_buf *buf, const char *arg, size_t len);
/* An argument whose len bytes the caller writes, before the next call: where to, NULL without memory. */
char *redis_buf_room(struct redis_buf *buf, size_t len);
void redis_buf_text(struct redis_buf *buf, const char *arg);
void redis_buf_u64(struct redis_buf *buf, uint64_t arg);

#endif
