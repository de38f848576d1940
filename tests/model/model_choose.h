/* SPDX-License-Identifier: MIT */
/* A random sequence of operations on the store: what it knows, and choosing the next one. */
#ifndef DLOCK_TEST_MODEL_CHOOSE_H
#define DLOCK_TEST_MODEL_CHOOSE_H

#include <stdio.h>

#include "model_text.h"
#include "store_server.h"

#define HISTORY 128
#define TTL 30000

struct op {
	enum lua_script_id id;
	struct sm_caller caller;
	uint32_t token[2];	/* attach: new, old; reassert: new */
	uint8_t key, host, start, end, mode, flags, info;
	struct sm_list parts;	/* giveback */
	uint32_t req, fence, seq, counter;	/* fence: also maxfence */
	unsigned cover_count, request_count;
	struct sm_state_cover covers[SM_KEYS];
	struct sm_state_request requests[4];
};

struct run {
	struct store_server *server;
	struct inc_names incs;
	struct sm_store model, snapshot;
	bool has_snapshot;
	uint64_t random;
	struct op history[HISTORY];
	unsigned done;
	uint32_t last_req, last_token;
	char what[1024];	/* the last thing done, for a failure's message */
	FILE *trace;		/* what was done, kept if the sequence fails */
	char trace_name[64];
	uint64_t seed;
	unsigned counts[LUA_SCRIPT_COUNT][2];	/* refused, taken */
	unsigned pushes[128];			/* by kind */
};

/* Below n, the same sequence for the same seed everywhere. */
uint32_t random_below(struct run *run, uint32_t n);
bool chance(struct run *run, uint32_t percent);
/* Anything that a host may send, or may have sent: mostly sensible. */
void choose_op(struct run *run, struct op *op);
/* A waiting request of this host (or a try of any, if host is SM_HOSTS) goes into op; else one that may have existed. */
void some_request(struct run *run, unsigned host, struct op *op);

#endif
