/* SPDX-License-Identifier: MIT */
/* The store's model, compiled here in a size for one short lock and three hosts. */
#define SM_HOSTS 3
#define SM_KEYS 1
#define SM_END 4
#define SM_OUTBOX 36
#define SM_PUSHES 64
#define STORE_MODEL_MUTABLE
#include "../../daemon-lite/store/store_model.c"
#include "../../daemon-lite/store/store_model_check.c"
#include "../../daemon-lite/store/store_model_lock.c"
#include "../../daemon-lite/store/store_model_tell.c"

#include "explore_store.h"
#include "explore_world.h"

_Static_assert(SM_END == X_POINTS && SM_HOSTS == X_STORE_HOSTS && SM_PARTS == X_SPANS, "one size for both");
_Static_assert(SM_TRY == STORE_TRY && SM_PASS == STORE_PASS, "the model's flags are those of store.h");

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
	for (int h = 0; h < SM_HOSTS; h++) {
		struct sm_cover *cover = &full.cover[0][h];

		for (int p = 0; p < SM_END; p++) {
			cover->mode[p] = s->mode[h][p];
			cover->fence[p] = s->fence[h][p];
			cover->told[p] = s->told[h][p];
			cover->info |= s->mode[h][p] != MODE_NONE;
		}
	}
	full.fence = s->last_fence;
	full.ticket = full.queue_count = s->queue_count;
	for (int i = 0; i < s->queue_count; i++) {
		const struct x_queued *q = &s->queue[i];

		full.queue[i] = (struct sm_request){ .ticket = (uint32_t)i + 1, .req = q->req, .host = q->host, .start = q->start,
						     .end = q->end, .mode = q->mode, .flags = q->flags, .info = 1 };
	}
	return &full;
}

static void closed(struct x_store *s, const struct sm_store *full)
{
	memset(s, 0, sizeof *s);
	for (int h = 0; h < SM_HOSTS; h++) {
		const struct sm_cover *cover = &full->cover[0][h];

		for (int p = 0; p < SM_END; p++) {
			s->mode[h][p] = cover->mode[p];
			s->fence[h][p] = (uint8_t)cover->fence[p];
			s->told[h][p] = cover->told[p];
		}
	}
	s->last_fence = (uint8_t)full->fence;
	s->queue_count = (uint8_t)full->queue_count;
	for (uint32_t i = 0; i < full->queue_count; i++) {
		const struct sm_request *q = &full->queue[i];

		s->queue[i] = (struct x_queued){ .host = q->host, .start = q->start, .end = q->end, .mode = q->mode,
						 .flags = q->flags, .req = (uint16_t)q->req };
	}
}

static struct x_list small_list(const struct sm_list *list)
{
	struct x_list small = { .count = (uint8_t)list->count };

	for (uint32_t i = 0; i < list->count; i++) {
		const struct sm_span *span = &list->span[i];

		small.at[i] = (struct x_span){ span->start, span->end, span->mode, (uint8_t)span->fence };
	}
	return small;
}

static struct x_push small_push(const struct sm_push *p)
{
	static const uint8_t kinds[] = { ['G'] = PUSH_GRANT, ['R'] = PUSH_RECALL, ['T'] = PUSH_TRY, ['B'] = PUSH_BUSY };
	struct x_push push;

	memset(&push, 0, sizeof push);
	push.kind = kinds[p->kind];
	push.host = p->host;
	push.req = (uint16_t)p->req;
	push.spans = small_list(&p->spans);
	push.waiting = small_list(&p->waiting);
	return push;
}

static uint32_t big_parts(const struct x_list *list, struct sm_span parts[X_SPANS])
{
	for (int i = 0; i < list->count; i++)
		parts[i] = (struct sm_span){ .start = list->at[i].start, .end = list->at[i].end, .mode = list->at[i].mode,
					     .fence = list->at[i].fence };
	return list->count;
}

void x_store_do(struct x_store *s, struct x_world *w, const struct x_def *def, int host, struct x_cmd *cmd)
{
	static const uint8_t kinds[] = { [SM_QUEUED] = REPLY_QUEUED, [SM_BUSY] = REPLY_BUSY,
					 [SM_GRANTED] = REPLY_GRANTED, [SM_COVER] = REPLY_COVER,
					 [SM_RESUMED] = REPLY_ATTACHED,
					 [SM_ASSERTED] = REPLY_NONE };
	static struct sm_reply r;
	struct sm_store *full = opened(s);
	struct sm_caller caller = { .host = (uint8_t)host, .role = SM_CMD, .inc = full->inc, .ttl = TTL,
				    .token = full->host[host].token, .gen = full->host[host].gen[SM_CMD] };
	struct sm_span parts[X_SPANS];
	const char *wrong;

	switch (cmd->kind) {
	case VERB_ACQUIRE:
		sm_acquire(full, &caller, 0, cmd->req, cmd->start, cmd->end, cmd->mode, cmd->flags, 1, &r);
		break;
	case VERB_WITHDRAW:
		sm_withdraw(full, &caller, 0, cmd->req, &r);
		break;
	case VERB_GIVE_BACK:
		sm_giveback(full, &caller, 0, parts, big_parts(&cmd->parts, parts), &r);
		break;
	case VERB_ATTACH:
		sm_attach(full, &caller, caller.token + (cmd->flags ? 100 : 0), caller.token, 0, &r);
		r.spans = r.cover[0].spans;	/* all 0 when it has none */
		break;
	default:
		sm_busy(full, &caller, 0, cmd->host, cmd->req, &r);
		break;
	}
	if (r.verb == SM_REFUSED)
		x_world_fail(w, X_BROKEN, "the store refuses a command");
	memset(&cmd->reply, 0, sizeof cmd->reply);
	cmd->reply.kind = kinds[r.verb];
	cmd->reply.spans = small_list(&r.spans);
	cmd->reply.waiting = small_list(&r.waiting);
	closed(s, full);
	wrong = sm_without ? NULL : sm_check(full);
	if (wrong)
		x_world_fail(w, X_BROKEN, wrong);
	if (full->overflow || full->queue_count > X_QUEUE)
		x_world_fail(w, X_LIVELOCK, "more than the store's model can hold");
	for (uint32_t i = 0; i < r.push_count; i++)
		x_store_pushed(w, def, r.push[i].to, small_push(&r.push[i]));
}
