/* SPDX-License-Identifier: MIT */
/*
 * The store as the explorer's world sees it: one lock, sessions that stand, no
 * grace. daemon-lite/store/store_model.c does the work; here is only what of
 * its state can change, in few bytes.
 */
#ifndef TESTS_EXPLORE_STORE_H
#define TESTS_EXPLORE_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "../../shim/mode.h"

enum { X_STORE_HOSTS = 3, X_QUEUE = 16 };

enum x_push_kind { PUSH_GRANT, PUSH_RECALL, PUSH_TRY, PUSH_BUSY };

struct x_push {
	uint8_t kind, mode, fence, waiting, host;
	uint16_t req;
};

enum x_reply_kind { REPLY_NONE, REPLY_QUEUED, REPLY_BUSY, REPLY_GRANTED, REPLY_COVER, REPLY_ATTACHED };

struct x_reply {
	uint8_t kind, mode, fence, waiting;
};

struct x_queued {
	uint8_t host, mode, try;
	uint16_t req;
};

struct x_store {
	uint8_t mode[X_STORE_HOSTS], fence[X_STORE_HOSTS], told[X_STORE_HOSTS];
	uint8_t last_fence, queue_count;
	struct x_queued queue[X_QUEUE];	/* by ticket */
};

enum x_verb { VERB_ACQUIRE, VERB_WITHDRAW, VERB_GIVE_BACK, VERB_BUSY, VERB_ATTACH };

struct x_cmd {
	uint8_t kind, mode, try, host, fence, processed;	/* kind: enum x_verb */
	uint8_t again;		/* sent more than once */
	uint16_t req;
	struct x_reply reply;
};

struct x_world;
/* Called by the store for each push; in explore_net.c. */
void x_store_pushed(struct x_world *w, int host, struct x_push push);

/* Does one command of a host; fills cmd->reply. */
void x_store_do(struct x_store *s, struct x_world *w, int host, struct x_cmd *cmd);

/* For the fingerprint: marks the fences in use; writes the state with the fences' ranks, returns how many bytes. */
void x_store_fences(const struct x_store *s, uint8_t used[256]);
size_t x_store_bytes(const struct x_store *s, const uint8_t rank[256], uint8_t *ret_bytes);

#endif
