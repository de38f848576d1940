/* SPDX-License-Identifier: MIT */
/* A JSON writer: what it prints is well-formed whatever bytes it is given. */
#include "json.h"

#include <inttypes.h>

#include "text.h"

static void print_string(FILE *out, const char *s)
{
	fputc('"', out);
	while (*s) {
		size_t n = utf8_sequence(s);
		unsigned char c = (unsigned char)*s;

		if (n == 0) {
			fputs("\\ufffd", out);
			n = 1;
		} else if (c == '"' || c == '\\') {
			fprintf(out, "\\%c", c);
		} else if (c == '\n') {
			fputs("\\n", out);
		} else if (c == '\t') {
			fputs("\\t", out);
		} else if (c < 0x20 || c == 0x7f) {
			fprintf(out, "\\u%04x", c);
		} else {
			fwrite(s, 1, n, out);
		}
		s += n;
	}
	fputc('"', out);
}

static void new_line(struct json *json)
{
	fprintf(json->out, "\n%*s", (int)(2 * json->depth), "");
}

static void before_value(struct json *json, const char *name)
{
	if (json->comma)
		fputc(',', json->out);
	if (json->depth)
		new_line(json);
	if (name) {
		print_string(json->out, name);
		fputs(": ", json->out);
	}
	json->comma = true;
}

void json_begin(struct json *json, const char *name, char bracket)
{
	before_value(json, name);
	fputc(bracket, json->out);
	json->depth++;
	json->comma = false;
}

void json_end(struct json *json, char bracket)
{
	bool filled = json->comma;

	json->depth--;
	if (filled)
		new_line(json);
	fputc(bracket, json->out);
	json->comma = true;
	if (!json->depth)
		fputc('\n', json->out);
}

void json_string(struct json *json, const char *name, const char *value)
{
	before_value(json, name);
	print_string(json->out, value);
}

void json_hex(struct json *json, const char *name, const char *bytes)
{
	before_value(json, name);
	fputc('"', json->out);
	for (; *bytes; bytes++)
		fprintf(json->out, "%02x", (unsigned char)*bytes);
	fputc('"', json->out);
}

void json_u64(struct json *json, const char *name, uint64_t value)
{
	before_value(json, name);
	fprintf(json->out, "%" PRIu64, value);
}

void json_bool(struct json *json, const char *name, bool value)
{
	before_value(json, name);
	fputs(value ? "true" : "false", json->out);
}

void json_null(struct json *json, const char *name)
{
	before_value(json, name);
	fputs("null", json->out);
}
