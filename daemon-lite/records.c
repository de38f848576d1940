/* SPDX-License-Identifier: MIT */
/*
 * Reading and writing record lines. What a program may choose (names of files
 * and of commands) ends up in values, so nothing that a value holds may look
 * like a separator: tabs, newlines, backslashes and control bytes are escaped
 * on the way out, and a line that breaks the rules is refused on the way in.
 */
#include "records.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void record_buf_free(struct record_buf *buf)
{
	free(buf->data);
	memset(buf, 0, sizeof *buf);
}

/* Room for more bytes, or NULL with err set. */
static char *buf_room(struct record_buf *buf, size_t more)
{
	size_t size = buf->size ? buf->size : 512;
	char *data;

	if (buf->err)
		return NULL;
	if (more <= buf->size - buf->len)
		return buf->data + buf->len;
	while (size - buf->len < more) {
		if (size > SIZE_MAX / 2) {
			buf->err = -ENOMEM;
			return NULL;
		}
		size *= 2;
	}
	data = realloc(buf->data, size);
	if (!data) {
		buf->err = -ENOMEM;
		return NULL;
	}
	buf->data = data;
	buf->size = size;
	return data + buf->len;
}

static bool name_char(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static bool must_escape(unsigned char c)
{
	return c < 0x20 || c == 0x7f || c == '\\';
}

void records_put_bytes(struct record_buf *buf, const char *name, const void *value, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const unsigned char *bytes = value;
	size_t name_len = strlen(name);
	char *out;

	for (size_t i = 0; i < name_len; i++)
		if (!name_char((unsigned char)name[i]) && !buf->err)
			buf->err = -EINVAL;
	if (len > SIZE_MAX / 8 && !buf->err)
		buf->err = -ENOMEM;
	out = buf_room(buf, name_len + 4 * len + 2);
	if (!out)
		return;
	if (buf->len > 0 && buf->data[buf->len - 1] != '\n')
		*out++ = '\t';
	memcpy(out, name, name_len);
	out += name_len;
	*out++ = '=';
	for (size_t i = 0; i < len; i++) {
		unsigned char c = bytes[i] ? bytes[i] : '?';

		if (must_escape(c)) {
			*out++ = '\\';
			*out++ = 'x';
			*out++ = digits[c >> 4];
			*out++ = digits[c & 15];
		} else {
			*out++ = (char)c;
		}
	}
	buf->len = (size_t)(out - buf->data);
}

void records_put(struct record_buf *buf, const char *name, const char *value)
{
	records_put_bytes(buf, name, value ? value : "", value ? strlen(value) : 0);
}

void records_put_u64(struct record_buf *buf, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof text, "%llu", (unsigned long long)value);
	records_put(buf, name, text);
}

void records_begin(struct record_buf *buf, const char *kind)
{
	records_put(buf, "record", kind);
}

void records_end(struct record_buf *buf)
{
	char *out = buf_room(buf, 1);

	if (!out)
		return;
	*out = '\n';
	buf->len++;
}

void records_append(struct record_buf *buf, const char *text, size_t len)
{
	char *out = buf_room(buf, len);

	if (!out || !len)	/* nothing to add may have no address */
		return;
	memcpy(out, text, len);
	buf->len += len;
}

size_t records_fit(const char *text, size_t len, size_t max)
{
	size_t n = len < max ? len : max;
	const char *end = n ? memrchr(text, '\n', n) : NULL;

	return end ? (size_t)(end - text) + 1 : 0;
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

/* Unescapes a NUL-terminated value in place; false if an escape is broken or means NUL. */
static bool unescape(char *value)
{
	char *out = value;

	for (const char *in = value; *in; ) {
		int high, low;

		if (*in != '\\') {
			*out++ = *in++;
			continue;
		}
		if (in[1] != 'x' || (high = hex_digit(in[2])) < 0 || (low = hex_digit(in[3])) < 0)
			return false;
		if (high == 0 && low == 0)
			return false;
		*out++ = (char)(high << 4 | low);
		in += 4;
	}
	*out = '\0';
	return true;
}

/* Splits record->text, a copy of the line, into the fields. */
static bool split(struct record *record)
{
	char *next = record->text;

	for (size_t i = 0; next; i++) {
		char *field = next, *value;

		next = strchr(field, '\t');
		if (next)
			*next++ = '\0';
		value = strchr(field, '=');
		if (!value || value == field)
			return false;
		*value++ = '\0';
		for (const char *c = field; *c; c++)
			if (!name_char((unsigned char)*c))
				return false;
		for (const char *c = value; *c; c++)
			if ((unsigned char)*c < 0x20)
				return false;
		if (!unescape(value))
			return false;
		if (i == 0) {
			if (strcmp(field, "record") != 0)
				return false;
			record->kind = value;
			continue;
		}
		if (record->count == RECORD_FIELDS_MAX)
			return false;
		record->fields[record->count].name = field;
		record->fields[record->count++].value = value;
	}
	return true;
}

int records_next(const char *text, size_t len, size_t *pos, struct record **ret_record)
{
	const char *start = text + *pos, *end;
	struct record *record;
	size_t n;

	if (*pos >= len)
		return 0;
	end = memchr(start, '\n', len - *pos);
	n = end ? (size_t)(end - start) : len - *pos;
	*pos += end ? n + 1 : n;
	if (!end || memchr(start, '\0', n))
		return -EBADMSG;
	record = calloc(1, sizeof *record + n + 1);
	if (!record)
		return -ENOMEM;
	memcpy(record->text, start, n);
	if (!split(record)) {
		free(record);
		return -EBADMSG;
	}
	*ret_record = record;
	return 1;
}

void record_free(struct record *record)
{
	free(record);
}

const char *record_get(const struct record *record, const char *name, const char *otherwise)
{
	for (size_t i = 0; i < record->count; i++)
		if (strcmp(record->fields[i].name, name) == 0)
			return record->fields[i].value;
	return otherwise;
}

bool record_number(const char *text, uint64_t *ret)
{
	unsigned long long number;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (*end || errno)
		return false;
	*ret = number;
	return true;
}

uint64_t record_get_u64(const struct record *record, const char *name, uint64_t otherwise)
{
	const char *value = record_get(record, name, NULL);
	uint64_t number;

	return value && record_number(value, &number) ? number : otherwise;
}
