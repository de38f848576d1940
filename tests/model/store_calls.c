/* SPDX-License-Identifier: MIT */
/*
 * The store's scripts called one by one on a real server, by hosts called A, B and
 * C, with replies and pushes as short texts.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_text.h"
#include "store_calls.h"
#include "store_server.h"

static struct store_server server;
static char inc[64];

/*
 * Shortens each record of a span list so that a test can be read: [START-END)MODE/FENCE, without leading zeros,
 * the end of the line being *; and "-" for an empty list.
 */
static void shorten(char *text)
{
	char *in = text, *out = text;

	while (*in) {
		unsigned long long start, end, fence;
		unsigned mode;
		int n = 0;

		if (strspn(in, "0123456789") == 19 && sscanf(in, "%19llu %19llu %1u %16llu,%n", &start, &end, &mode, &fence, &n) == 4 && n == 59) {
			in += n;
			if (end == 1ull << 63)
				out += sprintf(out, "[%llu-*)%u/%llu", start, mode, fence);
			else
				out += sprintf(out, "[%llu-%llu)%u/%llu", start, end, mode, fence);
		} else {
			*out++ = *in++;
		}
	}
	*out = 0;
}

static char *joined(const redisReply *reply)
{
	static char text[256 * 1024];
	struct lines lines = { 0 };
	size_t len = 0;

	text[0] = 0;
	lines_of_lua_reply(reply, &lines);
	for (size_t i = 0; i < lines.count && len < sizeof(text); i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? " " : "", *lines.text[i] ? lines.text[i] : "-");
	lines_free(&lines);
	shorten(text);
	return text;
}

const char *as_generation(const char *host, enum lua_script_id id, const char *gen, const char *const *words)
{
	const char *argv[40];
	char token[8];
	redisReply *reply;
	const char *text;
	int argc = 0;

	snprintf(token, sizeof(token), "t%s", host);
	argv[argc++] = host;
	argv[argc++] = token;
	argv[argc++] = id == LUA_RENEW ? "renew" : "cmd";
	argv[argc++] = gen;
	argv[argc++] = inc;
	argv[argc++] = "30000";
	argv[argc++] = "0";
	for (; *words; words++)
		argv[argc++] = *words;
	reply = store_server_run(&server, id, argc, argv);
	text = joined(reply);
	if (!strncmp(text, "ok ", 3)) {
		text += 3 + strcspn(text + 3, " ");
		text += strlen(" 0 ");
	}
	freeReplyObject(reply);
	return text;
}

const char *as(const char *host, enum lua_script_id id, const char *const *words)
{
	return as_generation(host, id, id == LUA_ATTACH ? "0" : "1", words);
}

const char *offset(unsigned long long value)
{
	static char text[4][24];
	static unsigned next;
	char *at = text[next++ % 4];

	snprintf(at, sizeof(text[0]), "%019llu", value);
	return at;
}

const char *part(unsigned long long start, unsigned long long end, const char *keep, unsigned long long fence)
{
	static char text[4][64];
	static unsigned next;
	char *at = text[next++ % 4];

	snprintf(at, sizeof(text[0]), "%019llu %019llu %.1s %016llu,", start, end, keep, fence);
	return at;
}

const char *command(const char *format, ...)
{
	char line[512];
	va_list args;
	redisReply *reply;
	const char *text;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	reply = store_server_command(&server, line);
	if (reply->type == REDIS_REPLY_INTEGER) {
		static char number[32];

		snprintf(number, sizeof(number), "%lld", reply->integer);
		text = number;
	} else if (reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_NIL) {
		text = reply->type == REDIS_REPLY_NIL ? "(nil)" : "status";
	} else {
		text = joined(reply);
	}
	freeReplyObject(reply);
	return text;
}

const char *next_push(void)
{
	static char text[256 * 1024];
	redisReply *reply = store_server_next_push(&server);
	const char *host = reply->element[2]->str + strlen(TEST_PREFIX "p:");
	const char *message = reply->element[3]->str;
	size_t len = (size_t)reply->element[3]->len, from = strlen(message) + 1;
	int n;

	from += strlen(message + from) + 1;
	n = snprintf(text, sizeof(text), "%s:", host);
	while (from < len) {
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", message[from] ? message + from : "-");
		from += strlen(message + from) + 1;
	}
	if (from == len)	/* the last field is empty */
		snprintf(text + n, sizeof(text) - (size_t)n, " -");
	shorten(text);
	freeReplyObject(reply);
	return text;
}

char *whole_state(void)
{
	redisReply *reply = store_server_command(&server, "EVAL %s 1 %s", dump_script, TEST_PREFIX);
	struct lines lines = { 0 };
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	lines_of_lua_reply(reply, &lines);
	lines_sort(&lines);
	for (size_t i = 0; i < lines.count; i++)
		fprintf(out, "%s\n", lines.text[i]);
	fclose(out);
	lines_free(&lines);
	freeReplyObject(reply);
	return text;
}

void learn_inc(void)
{
	redisReply *reply = store_server_command(&server, "HGET %smeta inc", TEST_PREFIX);

	snprintf(inc, sizeof(inc), "%s", reply->str ? reply->str : "");
	freeReplyObject(reply);
}

static void attach(const char *host)
{
	char token[8];

	snprintf(token, sizeof(token), "t%s", host);
	assert_non_null(strstr(AS(host, LUA_ATTACH, token, "", "a host"), "joined 1 1"));
}

/* What an earlier test has not read must not be taken for this one's. */
static void forget_pushes(void)
{
	bool last = false;

	freeReplyObject(store_server_command(&server, "PUBLISH %sp:last x", TEST_PREFIX));
	while (!last) {
		redisReply *reply = store_server_next_push(&server);

		last = !strcmp(reply->element[2]->str, TEST_PREFIX "p:last");
		freeReplyObject(reply);
	}
}

int calls_fresh_store(void **state)
{
	(void)state;
	forget_pushes();
	command("FLUSHALL");
	AS("A", LUA_INIT, "");
	learn_inc();
	attach("A");
	attach("B");
	attach("C");
	return 0;
}

void two_ranges(void)
{
	assert_string_equal(RANGE("A", "1", 0, 10, "2"), "granted [0-*)2/1 -");
	assert_string_equal(RANGE("B", "1", 10, 20, "2"), "queued");
	assert_string_equal(next_push(), "A: R r:x [10-20)2/1");
	assert_string_equal(GIVE_PART("A", "r:x", 10, END, "0", 1), "cover - -");
	assert_string_equal(next_push(), "B: G r:x 1 [10-20)2/2 -");
}

int calls_start(void **state)
{
	(void)state;
	return store_server_start(&server);
}

int calls_stop(void **state)
{
	(void)state;
	store_server_stop(&server);
	return 0;
}
