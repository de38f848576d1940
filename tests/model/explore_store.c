/* SPDX-License-Identifier: MIT */
/* The store's model, compiled here in a size for one lock and three hosts. */
#define SM_HOSTS 3
#define SM_KEYS 1
#define SM_OUTBOX 24
#define SM_PUSHES 48
#define STORE_MODEL_MUTABLE
#include "../../daemon-lite/store/store_model.c"
#include "../../daemon-lite/store/store_model_check.c"
#include "../../daemon-lite/store/store_model_lock.c"

#include "explore_store.h"
#include "explore_world.h"

enum { TTL = 30000 };

/* An initialized store in which every host has joined; what it holds is put in for each command. */
static struct sm_store *opened(const struct x_store *s)
{
	static struct sm_store empty, full;
	struct sm_reply r;

	if (!empty.inc) {
		sm_init(&empty, TTL, &r);
		for (uint8_t h = 0; h < SM_HOSTS; h++)
			sm_attach(&empty, &(struct sm_caller){ .host = h, .role = SM_CMD, .inc = empty.inc, .ttl = TTL },
				  h + 1u, 0, 0, &r);
	}
	full = empty;
	for (int h = 0; h < SM_HOSTS; h++)
		full.cover[0][h] = (struct sm_cover){ .fence = s->fence[h], .mode = s->mode[h], .told = s->told[h] };
	full.fence = s->last_fence;
	full.ticket = full.queue_count = s->queue_count;
	for (int i = 0; i < s->queue_count; i++)
		full.queue[i] = (struct sm_request){ .ticket = (uint32_t)i + 1, .req = s->queue[i].req,
						     .host = s->queue[i].host, .mode = s->queue[i].mode,
						     .try = s->queue[i].try };
	return &full;
}

static void closed(struct x_store *s, const struct sm_store *full)
{
	memset(s, 0, sizeof *s);
	for (int h = 0; h < SM_HOSTS; h++) {
		s->mode[h] = full->cover[0][h].mode;
		s->fence[h] = (uint8_t)full->cover[0][h].fence;
		s->told[h] = full->cover[0][h].told;
	}
	s->last_fence = (uint8_t)full->fence;
	s->queue_count = (uint8_t)full->queue_count;
	for (uint32_t i = 0; i < full->queue_count; i++)
		s->queue[i] = (struct x_queued){ .host = full->queue[i].host, .mode = full->queue[i].mode,
						 .try = full->queue[i].try, .req = (uint16_t)full->queue[i].req };
}

static struct x_push small_push(const struct sm_push *p)
{
	static const uint8_t kinds[] = { ['G'] = PUSH_GRANT, ['R'] = PUSH_RECALL, ['T'] = PUSH_TRY, ['B'] = PUSH_BUSY };

	return (struct x_push){ .kind = kinds[p->kind], .mode = p->mode, .fence = (uint8_t)p->fence,
				.waiting = p->waiting, .host = p->host, .req = (uint16_t)p->req };
}

void x_store_do(struct x_store *s, struct x_world *w, int host, struct x_cmd *cmd)
{
	static const uint8_t kinds[] = { [SM_QUEUED] = REPLY_QUEUED, [SM_BUSY] = REPLY_BUSY,
					 [SM_GRANTED] = REPLY_GRANTED, [SM_COVER] = REPLY_COVER,
					 [SM_RESUMED] = REPLY_ATTACHED,
					 [SM_ASSERTED] = REPLY_NONE };
	static struct sm_reply r;
	struct sm_store *full = opened(s);
	struct sm_caller caller = { .host = (uint8_t)host, .role = SM_CMD, .inc = full->inc, .ttl = TTL,
				    .token = full->host[host].token, .gen = full->host[host].gen[SM_CMD] };
	const char *wrong;

	switch (cmd->kind) {
	case VERB_ACQUIRE:
		sm_acquire(full, &caller, 0, cmd->req, cmd->mode, cmd->try, 0, &r);
		break;
	case VERB_WITHDRAW:
		sm_withdraw(full, &caller, 0, cmd->req, &r);
		break;
	case VERB_GIVE_BACK:
		sm_giveback(full, &caller, 0, cmd->mode, cmd->fence, &r);
		break;
	case VERB_ATTACH:
		/* try: another agent, with a token of its own */
		sm_attach(full, &caller, caller.token + (cmd->try ? 100 : 0), caller.token, 0, &r);
		r.mode = r.cover[0].mode;	/* all 0 when it has none */
		r.fence = r.cover[0].fence;
		break;
	default:
		sm_busy(full, &caller, 0, cmd->host, cmd->req, &r);
		break;
	}
	if (r.verb == SM_REFUSED)
		x_world_fail(w, X_BROKEN, "the store refuses a command");
	cmd->reply = (struct x_reply){ .kind = kinds[r.verb], .mode = (uint8_t)r.mode, .fence = (uint8_t)r.fence,
				       .waiting = (uint8_t)r.waiting };
	closed(s, full);
	wrong = sm_without ? NULL : sm_check(full);
	if (wrong)
		x_world_fail(w, X_BROKEN, wrong);
	if (full->overflow || full->queue_count > X_QUEUE)
		x_world_fail(w, X_LIVELOCK, "more than the store's model can hold");
	for (uint32_t i = 0; i < r.push_count; i++)
		x_store_pushed(w, r.push[i].to, small_push(&r.push[i]));
}

void x_store_fences(const struct x_store *s, uint8_t used[256])
{
	for (int h = 0; h < X_STORE_HOSTS; h++)
		used[s->fence[h]] = 1;
}

size_t x_store_bytes(const struct x_store *s, const uint8_t rank[256], uint8_t *ret_bytes)
{
	size_t n = 0;

	for (int h = 0; h < X_STORE_HOSTS; h++) {
		ret_bytes[n++] = s->mode[h];
		ret_bytes[n++] = rank[s->fence[h]];
		ret_bytes[n++] = s->told[h];
	}
	memcpy(ret_bytes + n, s->queue, s->queue_count * sizeof s->queue[0]);
	return n + s->queue_count * sizeof s->queue[0];
}
