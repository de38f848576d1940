/* SPDX-License-Identifier: MIT */
/* The model's replies and states, and those of a real server, as the same lines of text. */
#ifndef DLOCK_TEST_MODEL_TEXT_H
#define DLOCK_TEST_MODEL_TEXT_H

#include <hiredis/hiredis.h>

#include "daemon-lite/store/store_model.h"

struct lines {		/* zeroed = empty */
	char **text;
	size_t count, room;
};

void lines_add(struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lines_sort(struct lines *lines);
void lines_free(struct lines *lines);
/* The first place where they differ, as a sentence in a static buffer; NULL if they are equal. */
const char *lines_differ(const struct lines *lua, const struct lines *model);

/* What the small numbers of the model are called on the server. */
const char *text_host(unsigned host);
const char *text_key(unsigned key);
const char *text_req(uint32_t req);	/* 20 digits for some; static buffers, four at a time */
const char *text_token(uint32_t token);
const char *text_point(unsigned point);	/* 19 digits */
/* A list of spans as the server has it; to be freed. */
char *text_spans(const struct sm_list *list);
const char *text_info(uint32_t info);

/* Incarnations get their text when the server first shows it. */
#define TEXT_INCS 512
struct inc_names { char *name[TEXT_INCS]; };
const char *inc_name(const struct inc_names *incs, uint32_t inc);
void inc_names_free(struct inc_names *incs);

/* A reply, one line an element; NUL bytes become '|'. learn: the model's incarnation, named by what the server said. */
void lines_of_lua_reply(const redisReply *reply, struct lines *ret);
void lines_of_model_reply(const struct sm_reply *reply, const struct sm_store *s, const struct inc_names *incs, struct lines *ret);
/* A push as it is published: host, '|', message. */
void lines_of_push(const struct sm_push *p, const struct inc_names *incs, struct lines *ret);

/* The whole state, sorted. The server's comes from the script dump_script. */
extern const char dump_script[];
void lines_of_model_state(const struct sm_store *s, const struct inc_names *incs, struct lines *ret);

#endif
