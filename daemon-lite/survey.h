/* SPDX-License-Identifier: MIT */
/*
 * What is locked on all hosts: the store's covers and requests, and to them what
 * each host's kernel shows (look.h), asked of the other agents (ask.h). Whoever does not answer in half a second is left out
 * and said to be so. Nothing that another host sends is trusted further than to
 * be shown. One survey at a time; those who ask meanwhile share the next one.
 */
#ifndef DLOCK_SURVEY_H
#define DLOCK_SURVEY_H

#include "agent.h"
#include "records.h"

struct survey;

/* Calls fn once, later, when everything is known that can be (of this name only, in both families; NULL: all). 0 or -ENOMEM. */
int survey_join(struct agent *agent, const char *name, void (*fn)(void *arg, const struct survey *survey), void *arg);
/* For fn: the records of query.h from `store` to `waiter`, of this name only unless NULL. Returns 0, or an errno with
 * *ret_text why the store's part is missing. */
int survey_put(const struct survey *survey, const char *name, struct record_buf *buf, const char **ret_text);

#endif
