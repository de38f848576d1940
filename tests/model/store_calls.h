/* SPDX-License-Identifier: MIT */
/*
 * The store's scripts called one by one on a real server. Hosts are "A", "B" and "C" (tokens tA…).
 * In replies and pushes each record of a span list is [START-END)MODE/FENCE, the end of the line being *,
 * and an empty element is "-".
 */
#ifndef DLOCK_TEST_STORE_CALLS_H
#define DLOCK_TEST_STORE_CALLS_H

#include "daemon-lite/store/lua_scripts.h"
#include "store_server.h"

/* For cmocka: the server; an empty, initialized store with the hosts A, B and C. */
int calls_start(void **state);
int calls_stop(void **state);
int calls_fresh_store(void **state);

/* Runs a script as a host (connection generation 1, or another one), and gives its reply without "ok inc grace"; words end by NULL. */
const char *as(const char *host, enum lua_script_id id, const char *const *words);
const char *as_generation(const char *host, enum lua_script_id id, const char *gen, const char *const *words);
/* An offset; a record of a span list. Static buffers, four at a time. */
const char *offset(unsigned long long value);
const char *part(unsigned long long start, unsigned long long end, const char *mode, unsigned long long fence);
/* Any command; what it answers, as a text. */
const char *command(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The next push: "HOST: fields" without number and incarnation. */
const char *next_push(void);
/* Everything on the server, as one text: to see that nothing changed. To be freed. */
char *whole_state(void);
/* The hosts speak of the store's present incarnation from now on. */
void learn_inc(void);

#define END (1ull << 63)
#define AS(host, id, ...) as(host, id, (const char *const[]){ __VA_ARGS__, NULL })
#define REQUEST(host, key, req, start, end, mode, flags) \
	AS(host, LUA_ACQUIRE, key, req, offset(start), offset(end), mode, flags, "1 cmd")
#define ACQUIRE(host, key, req, mode) REQUEST(host, key, req, 0, END, mode, "0")
#define TRY(host, key, req, mode) REQUEST(host, key, req, 0, END, mode, "1")
#define RANGE(host, req, start, end, mode) REQUEST(host, "r:x", req, start, end, mode, "0")
#define GIVEBACK(host, key, keep, fence) AS(host, LUA_GIVEBACK, key, part(0, END, keep, strtoull(fence, NULL, 10)))
#define GIVE_PART(host, key, start, end, keep, fence) AS(host, LUA_GIVEBACK, key, part(start, end, keep, fence))

/* A holds [0, 10) of r:x under fence 1, B [10, 20) under fence 2, both exclusively. */
void two_ranges(void);

#endif
