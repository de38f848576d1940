/* SPDX-License-Identifier: MIT */
/* A survey's own: what it has collected (survey.c), and how that becomes records (survey_merge.c). */
#ifndef DLOCK_SURVEY_MERGE_H
#define DLOCK_SURVEY_MERGE_H

#include "agent.h"
#include "records.h"

struct row {			/* a record of the store, fields ended by NULs */
	char *data;
	size_t len;
};

struct survey_host {
	char *id;
	bool awaited;		/* it was reached and is not silent */
	bool answered, broken, cut;
	uint64_t parts;
	struct record_buf text;	/* as it came */
};

struct live {			/* a record of a host that answered */
	const char *host, *key;
	struct record *record;
};

struct waiter;

struct survey {
	struct survey *next;
	struct agent *agent;
	struct waiter *waiters;	/* NULL: over */
	char *key;		/* all that was asked for; NULL = all */
	uint64_t nonce, begun_ns;
	struct loop_timer timer;
	bool status_pending, ask_pending, look_pending, looked, live_over, store_over;
	int err;
	const char *err_text;
	struct row *rows;
	size_t row_count, row_size;
	struct survey_host *hosts;
	size_t host_count, host_size, bytes;
	struct live *live;	/* by host and key */
	size_t live_count, live_size;
};

int merge_row(struct survey *survey, const char *record, size_t len);	/* 0 or -ENOMEM */
/* Finds or makes it; NULL: too many. The pointer is good until the next call. */
struct survey_host *merge_host(struct survey *survey, const char *id);
/* When all is there: reads and sorts what the hosts said. 0 or -ENOMEM. */
int merge_sort(struct survey *survey);
void merge_put(const struct survey *survey, const char *key, struct record_buf *buf);
void merge_clear(struct survey *survey);

#endif
