/* SPDX-License-Identifier: MIT */
/* A survey's own: what it has collected (survey.c), and how that becomes records (survey_merge.c). */
#ifndef DLOCK_SURVEY_MERGE_H
#define DLOCK_SURVEY_MERGE_H

#include <string.h>

#include "agent.h"
#include "ask.h"
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

enum live_class { LIVE_RECALLED, LIVE_HELD, LIVE_WAITER };

struct live {			/* a record of a host that answered */
	const char *host, *key;
	enum live_class class;
	struct extent at;
	uint64_t reach;		/* the largest end of those of this class up to here */
	struct record *record;
};

struct waiter;
struct survey;

struct survey_status {		/* what the store was asked for */
	struct survey *survey;
	struct ask_status *status;	/* NULL: answered, or not asked */
	bool locks_only;	/* hosts and the like came before */
};

struct survey {
	struct agent *agent;
	struct waiter *waiters;
	char *name;		/* all that was asked for, in each family; NULL = all */
	uint64_t begun_ns;
	struct loop_timer timer;
	struct survey_status status[2];
	struct ask *ask;
	bool ask_pending, look_pending, looked, live_over, store_over;
	int err;
	const char *err_text;
	struct row *rows;
	size_t row_count, row_size;
	struct survey_host *hosts;
	size_t host_count, host_size, bytes;
	struct live *live;	/* by host, key, class and start */
	size_t live_count, live_size;
};

/* Whether a key is of this name, whatever its family. */
static inline bool key_has_name(const char *key, const char *name)
{
	return key[0] && key[1] == ':' && !strcmp(key + 2, name);
}

int merge_row(struct survey *survey, const char *record, size_t len);	/* 0 or -ENOMEM */
/* Finds or makes it; NULL: too many. The pointer is good until the next call. */
struct survey_host *merge_host(struct survey *survey, const char *id);
/* When all is there: reads and sorts what the hosts said. 0 or -ENOMEM. */
int merge_sort(struct survey *survey);
/* All records; of one name only unless NULL. */
void merge_put(const struct survey *survey, const char *name, struct record_buf *buf);
void merge_clear(struct survey *survey);

#endif
