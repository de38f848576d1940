/* SPDX-License-Identifier: MIT */
/*
 * The store as the explorer's world sees it: one lock of a few points, sessions that
 * stand, no grace. daemon-lite/store/store_model.c does the work; here is only what of
 * its state can change, in few bytes.
 */
#ifndef TESTS_EXPLORE_STORE_H
#define TESTS_EXPLORE_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "../../shim/mode.h"

enum {
	X_STORE_HOSTS = 3,
	X_POINTS = 4,		/* of the lock's line; the last one is all that is behind it */
	X_SPANS = X_POINTS * (X_POINTS + 1) / 2,
	X_QUEUE = 16,
};

struct x_span {
	uint8_t start, end, mode, fence;
};

struct x_list {			/* unused spans are 0 */
	uint8_t count;
	struct x_span at[X_SPANS];
};

enum x_push_kind { PUSH_GRANT, PUSH_RECALL, PUSH_TRY, PUSH_BUSY };

struct x_push {
	uint8_t kind, host;
	uint16_t req;
	struct x_list spans, waiting;	/* a try: waiting has what is wanted */
};

enum x_reply_kind { REPLY_NONE, REPLY_QUEUED, REPLY_BUSY, REPLY_GRANTED, REPLY_COVER, REPLY_ATTACHED };

struct x_reply {
	uint8_t kind;
	struct x_list spans, waiting;
};

struct x_queued {
	uint8_t host, start, end, mode, flags, zero;
	uint16_t req;
};

struct x_store {
	uint8_t mode[X_STORE_HOSTS][X_POINTS], fence[X_STORE_HOSTS][X_POINTS], told[X_STORE_HOSTS][X_POINTS];
	uint8_t last_fence, queue_count;
	struct x_queued queue[X_QUEUE];	/* by ticket */
};

enum x_verb { VERB_ACQUIRE, VERB_WITHDRAW, VERB_GIVE_BACK, VERB_BUSY, VERB_ATTACH };

struct x_cmd {
	uint8_t kind, host, processed;	/* kind: enum x_verb */
	uint8_t start, end, mode, flags;	/* acquire: STORE_*; attach: 1 = another agent */
	uint8_t again;			/* sent more than once */
	uint16_t req;
	struct x_list parts;		/* give-back */
	struct x_reply reply;
};

struct x_world;
struct x_def;
/* Called by the store for each push; in explore_net.c. */
void x_store_pushed(struct x_world *w, const struct x_def *def, int host, struct x_push push);

/* Does one command of a host; fills cmd->reply. */
void x_store_do(struct x_store *s, struct x_world *w, const struct x_def *def, int host, struct x_cmd *cmd);

#endif
