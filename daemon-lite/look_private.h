/* SPDX-License-Identifier: MIT */
/* One look: what it has found so far (look.c), and the records of it (look_put.c). */
#ifndef DLOCK_LOOK_PRIVATE_H
#define DLOCK_LOOK_PRIVATE_H

#include "agent.h"
#include "holders.h"
#include "records.h"
#include "spans.h"

struct looks;
struct request;

struct look_name {
	char *key;
	bool records;
	enum lock_mode probed;	/* flock */
	struct lock_spans seen_at;	/* record locks: those of the holders that were found */
	struct lock_spans missing;	/* … and what is locked besides */
	bool expected;		/* somebody must hold it who was not found */
	bool seen;		/* flock: a holder was found */
};

struct found {
	size_t name;
	struct holder holder;
};

struct look {
	struct agent *agent;
	struct looks *looks;
	struct request *requests;
	uint64_t begun_ns;
	struct look_name *names;
	size_t name_count;
	struct holder_file *files, *pass_files;
	size_t *owners, *pass_owners;	/* index into names, for each file */
	size_t file_count;
	bool again;		/* the walk is the second one */
	struct found *found;
	size_t found_count, found_size;
};

/* Whether anything in `at` is not among the spans. */
bool look_is_beyond(const struct lock_spans *spans, struct extent at);
/* All records of a look, and of who waits in the kernel by now. */
void look_put(const struct look *look, struct record_buf *buf);

#endif
