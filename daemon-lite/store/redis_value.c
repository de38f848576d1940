/* SPDX-License-Identifier: MIT */
/*
 * Redis' wire format. The parser is hiredis' reader; the objects are our own, so
 * that no other file sees hiredis and what a hostile server can make us allocate is
 * bounded: bytes of an unfinished reply, items of all its arrays together.
 */
#include "redis_value.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/read.h>

struct redis_reader {
	redisReader *hiredis;
	size_t items;		/* of the reply that is being read */
};

/* --- values --- */

void redis_value_free(struct redis_value *value)
{
	if (!value)
		return;
	for (size_t i = 0; i < value->count; i++)
		redis_value_free(value->items[i]);
	free(value->items);
	free(value);
}

const char *redis_value_text(const struct redis_value *array, size_t i)
{
	if (array->type != VALUE_ARRAY || i >= array->count || !array->items[i])
		return NULL;
	if (array->items[i]->type != VALUE_STRING && array->items[i]->type != VALUE_STATUS)
		return NULL;
	return array->items[i]->str;
}

bool redis_parse_u64(const char *text, size_t len, uint64_t *ret_number)
{
	uint64_t number = 0;

	if (len == 0 || len > 20)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		if (__builtin_mul_overflow(number, 10u, &number) ||
		    __builtin_add_overflow(number, (uint64_t)(text[i] - '0'), &number))
			return false;
	}
	*ret_number = number;
	return true;
}

bool redis_value_u64(const struct redis_value *array, size_t i, uint64_t *ret_number)
{
	const struct redis_value *item;

	if (array->type != VALUE_ARRAY || i >= array->count || !array->items[i])
		return false;
	item = array->items[i];
	if (item->type == VALUE_INTEGER) {
		if (item->integer < 0)
			return false;
		*ret_number = (uint64_t)item->integer;
		return true;
	}
	if (item->type != VALUE_STRING && item->type != VALUE_STATUS)
		return false;
	return redis_parse_u64(item->str, item->len, ret_number);
}

bool redis_value_is_error(const struct redis_value *value, const char *word)
{
	size_t len = strlen(word);

	return value && value->type == VALUE_ERROR && !strncmp(value->str, word, len) &&
	       (value->str[len] == ' ' || value->str[len] == '\0');
}

/* --- objects made by hiredis' reader --- */

static struct redis_value *value_new(const redisReadTask *task, enum redis_value_type type, size_t len)
{
	struct redis_value *value = calloc(1, sizeof(*value) + len + 1);

	if (!value)
		return NULL;
	value->type = type;
	value->len = len;
	if (task->parent) {
		struct redis_value *parent = task->parent->obj;

		parent->items[task->idx] = value;
	}
	return value;
}

static void *make_string(const redisReadTask *task, char *text, size_t len)
{
	enum redis_value_type type = VALUE_STRING;
	struct redis_value *value;

	if (task->type == REDIS_REPLY_STATUS)
		type = VALUE_STATUS;
	else if (task->type == REDIS_REPLY_ERROR)
		type = VALUE_ERROR;
	value = value_new(task, type, len);
	if (value)
		memcpy(value->str, text, len);
	return value;
}

static void *make_array(const redisReadTask *task, int count)
{
	struct redis_reader *reader = task->privdata;
	struct redis_value *value;
	struct redis_value **items = NULL;

	if (count < 0 || (size_t)count > REDIS_REPLY_ITEMS_MAX - reader->items)
		return NULL;
	reader->items += (size_t)count;
	if (count > 0) {
		items = calloc((size_t)count, sizeof(*items));
		if (!items)
			return NULL;
	}
	value = value_new(task, VALUE_ARRAY, 0);
	if (!value) {
		free(items);
		return NULL;
	}
	value->items = items;
	value->count = (size_t)count;
	return value;
}

static void *make_integer(const redisReadTask *task, long long number)
{
	struct redis_value *value = value_new(task, VALUE_INTEGER, 0);

	if (value)
		value->integer = number;
	return value;
}

static void *make_nil(const redisReadTask *task)
{
	return value_new(task, VALUE_NIL, 0);
}

static void free_object(void *object)
{
	redis_value_free(object);
}

static redisReplyObjectFunctions object_functions = {
	.createString = make_string,
	.createArray = make_array,
	.createInteger = make_integer,
	.createNil = make_nil,
	.freeObject = free_object,
};

int redis_reader_new(struct redis_reader **ret_reader)
{
	struct redis_reader *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return -ENOMEM;
	reader->hiredis = redisReaderCreateWithFunctions(&object_functions);
	if (!reader->hiredis) {
		free(reader);
		return -ENOMEM;
	}
	reader->hiredis->privdata = reader;
	*ret_reader = reader;
	return 0;
}

void redis_reader_free(struct redis_reader *reader)
{
	if (!reader)
		return;
	redisReaderFree(reader->hiredis);
	free(reader);
}

int redis_reader_feed(struct redis_reader *reader, const char *bytes, size_t len)
{
	if (reader->hiredis->len - reader->hiredis->pos + len > REDIS_REPLY_BYTES_MAX)
		return -EPROTO;
	return redisReaderFeed(reader->hiredis, bytes, len) == REDIS_OK ? 0 : -ENOMEM;
}

int redis_reader_next(struct redis_reader *reader, struct redis_value **ret_value)
{
	void *reply = NULL;

	if (redisReaderGetReply(reader->hiredis, &reply) != REDIS_OK)
		return -EPROTO;
	if (!reply)
		return 0;
	reader->items = 0;
	*ret_value = reply;
	return 1;
}

/* --- commands --- */

void redis_buf_free(struct redis_buf *buf)
{
	free(buf->data);
	*buf = (struct redis_buf){ 0 };
}

static char *grow(struct redis_buf *buf, size_t room)
{
	size_t size = buf->size ? buf->size : 1024;
	char *data;

	while (size - buf->len < room)
		size *= 2;
	if (size > buf->size) {
		data = realloc(buf->data, size);
		if (!data) {
			buf->failed = true;
			return NULL;
		}
		buf->data = data;
		buf->size = size;
	}
	return buf->data + buf->len;
}

void redis_buf_command(struct redis_buf *buf, size_t argc)
{
	char *at = grow(buf, 32);

	if (at)
		buf->len += (size_t)sprintf(at, "*%zu\r\n", argc);
}

char *redis_buf_room(struct redis_buf *buf, size_t len)
{
	char *at = grow(buf, len + 32);

	if (!at)
		return NULL;
	at += sprintf(at, "$%zu\r\n", len);
	memcpy(at + len, "\r\n", 2);
	buf->len = (size_t)(at + len + 2 - buf->data);
	return at;
}

void redis_buf_arg(struct redis_buf *buf, const char *arg, size_t len)
{
	char *at = redis_buf_room(buf, len);

	if (at)
		memcpy(at, arg, len);
}

void redis_buf_text(struct redis_buf *buf, const char *arg)
{
	redis_buf_arg(buf, arg, strlen(arg));
}

void redis_buf_u64(struct redis_buf *buf, uint64_t arg)
{
	char digits[24];
	int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)arg);

	redis_buf_arg(buf, digits, (size_t)len);
}
