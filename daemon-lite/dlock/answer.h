/* SPDX-License-Identifier: MIT */
/* The records of an agent's answer about locks, in the order in which they are shown. */
#ifndef DLOCK_ANSWER_H
#define DLOCK_ANSWER_H

#include <stdbool.h>
#include <stddef.h>

#include "../records.h"
#include "json.h"
#include "table.h"

struct answer {
	struct record **records;	/* hosts and the like first, then those about locks, by name and family */
	size_t count;
	size_t others;			/* how many come first */
};

/* Asks the agent and reads its answer. 0, or -errno with a sentence; records that came before the failure are in
 * ret_answer all the same (answer_free). */
struct refusal;
int answer_ask(const char *runtime_dir, const char *verb, struct answer *ret_answer, struct refusal *refusal);
void answer_free(struct answer *answer);

/* The first record of a kind, or NULL. */
const struct record *answer_find(const struct answer *answer, const char *kind);

/* Calls fn for each different key: by name in byte order, flock before record locks. */
void answer_each_key(const struct answer *answer, void (*fn)(void *arg, const struct answer *answer, const char *key), void *arg);

/* "jobs/a.lock" of "f:jobs/a.lock". */
const char *answer_name(const char *key);

/* Where the records of one lock stand. */
struct answer_range { size_t from, to; };
struct answer_range answer_range(const struct answer *answer, const char *key);

/* Its waiters in the order in which they are served, to be freed; NULL if none (or no memory). */
const struct record **answer_waiters(const struct answer *answer, struct answer_range range, size_t *ret_count);

/*
 * rows.c: the rows of one lock, host by host: one for each lock that somebody holds, one for the rest of the host's cover;
 * then its waiters in order. Headings: answer_headings.
 */
#define ANSWER_COLUMNS 11
extern const char *const answer_headings[ANSWER_COLUMNS];
void answer_rows(const struct answer *answer, const char *key, struct table *table);

/* The name of a `host` record's host as the tables show it. */
const char *answer_host(const struct answer *answer, const struct record *host, char *buf, size_t size);

/* What to say where there is no row: that nobody has a lock, unless the store may not know of it yet. */
void answer_print_none(const struct answer *answer, const char *indent, const char *text);

/* A sentence for each host whose agent did not answer. */
void answer_print_silent(const struct answer *answer, const char *indent);

/* The object of one lock: name, key, covers, holders, waiters. */
void answer_json(const struct answer *answer, const char *key, struct json *json);
/* All fields of a record as members of an object. */
void answer_json_fields(const struct record *record, struct json *json);

#endif
