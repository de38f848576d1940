/* SPDX-License-Identifier: MIT */
/*
 * Questions between agents, by way of the store (`ask` and `tell` in
 * docs/PROTOCOL.md): one host asks all others, each answers in its own time or
 * not at all. Nothing is stored, nothing that is lost is sent again. Whatever
 * comes from another host is not to be trusted. Loop's thread only.
 *
 *   question                 answer
 *   (empty)                  a look: records as in look.h (survey.c asks, survey_answer.c answers). Of one key: also of the same name's other family
 *   getlk MODE START END     getlk.h
 *   deadlock                 who waits there and what they hold: records as in deadlock_graph.h
 *   victim HOST ID           deadlock.h; no answer
 *
 * A question is a word and what belongs to it behind blanks. An agent that does not know the word is silent.
 */
#ifndef DLOCK_ASK_H
#define DLOCK_ASK_H

#include <stddef.h>
#include <stdint.h>

#include "store/store.h"

struct agent;
struct ask;		/* a question under way */
struct ask_status;	/* the store was asked for its records */

/* None is called from inside ask_open(). Each may close the question. */
struct ask_events {
	/* That host listens and was sent the question; host NULL: no more hosts (once; err 0 or -errno). Answers can come earlier. */
	void (*reached)(void *arg, const char *host, int err);
	/* A part of that host's answer, as it came. */
	void (*told)(void *arg, const char *host, uint64_t part, enum store_last last, const char *text, size_t len);
};

/* Asks all other hosts. It stays open, however many have answered, until ask_close(). NULL when out of memory. */
struct ask *ask_open(struct agent *agent, const char *key, const char *question, const struct ask_events *events, void *arg);
/* Whatever comes later is dropped. NULL is fine. */
void ask_close(struct ask *ask);

/*
 * Asks the store for its records (key NULL: all; see `status` in docs/PROTOCOL.md). fn: each record, then record NULL with err 0
 * or -errno, which ends it. NULL when out of memory. An ask_open() behind it is answered by what is newer than these records.
 */
struct ask_status *ask_status(struct agent *agent, const char *key, void (*fn)(void *arg, const char *record, size_t len, int err), void *arg);
/* fn is not called any more. */
void ask_status_cancel(struct ask_status *status);

/* Another host's question goes to those who can answer it: by store_tell(), now or later. */
void ask_dispatch(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question);
/* An answer of records, whole lines in as many parts as it takes; what is too much for 32 parts is cut off. */
void ask_tell(struct agent *agent, const char *host, uint64_t nonce, const char *records, size_t len);

#endif
