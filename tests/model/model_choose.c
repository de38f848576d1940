/* SPDX-License-Identifier: MIT */
/*
 * Choosing the operations of a random sequence from what the model knows: mostly
 * what hosts would do, sometimes something late, of an earlier life, or plainly wrong.
 */
#include <string.h>

#include "model_choose.h"

/* xorshift64* */
uint32_t random_below(struct run *run, uint32_t n)
{
	run->random ^= run->random >> 12;
	run->random ^= run->random << 25;
	run->random ^= run->random >> 27;
	return (uint32_t)((run->random * 0x2545f4914f6cdd1dull) >> 33) % n;
}

bool chance(struct run *run, uint32_t percent)
{
	return random_below(run, 100) < percent;
}

static struct sm_caller choose_caller(struct run *run)
{
	const struct sm_store *s = &run->model;
	struct sm_caller c = { .host = (uint8_t)random_below(run, SM_HOSTS), .role = random_below(run, 2) ? SM_CMD : SM_RENEW };
	const struct sm_host *h = &s->host[c.host];

	c.token = h->token;
	c.gen = h->gen[c.role];
	c.inc = s->inc;
	c.ttl = s->ttl ? s->ttl : TTL;
	if (chance(run, 30) && h->seq)
		c.ack = h->outbox_count > 30 ? h->seq : random_below(run, h->seq + 2);
	switch (random_below(run, 60)) {	/* something of an earlier life, or plainly wrong */
	case 0: c.token = run->last_token ? 1 + random_below(run, run->last_token) : 0; break;
	case 1: c.gen = c.gen ? c.gen - 1 : 1; break;
	case 2: c.inc = s->last_inc ? random_below(run, s->last_inc + 1) : 0; break;
	case 3: c.ttl = TTL + 1; break;
	case 4: c.gen++; break;
	}
	return c;
}

/* A range of the line: all of it, a point, or anything. */
static void some_range(struct run *run, uint8_t *ret_start, uint8_t *ret_end)
{
	uint32_t kind = random_below(run, 10), start = random_below(run, SM_END);

	*ret_start = (uint8_t)(kind < 2 ? 0 : start);
	*ret_end = (uint8_t)(kind < 2 ? SM_END : kind < 6 ? start + 1 : start + 1 + random_below(run, SM_END - start));
}

/* Parts of host's cover, or of what may have been: with their fence, one that was, one that is higher. */
static void some_parts(struct run *run, uint8_t key, uint8_t host, struct sm_list *ret)
{
	const struct sm_cover *cover = &run->model.cover[key][host];
	uint32_t count = 1 + random_below(run, 3), from = 0;

	memset(ret, 0, sizeof(*ret));
	if (chance(run, 20)) {		/* everything */
		uint32_t top = run->model.fence;

		ret->span[ret->count++] = (struct sm_span){ .end = SM_END, .mode = chance(run, 30), .fence = top };
		return;
	}
	while (ret->count < count && from < SM_END) {
		struct sm_span *part = &ret->span[ret->count++];
		uint32_t start = from + random_below(run, SM_END - from), end = start + 1 + random_below(run, SM_END - start);

		if (chance(run, 25))
			start = from;	/* side by side with the one before */
		*part = (struct sm_span){ .start = (uint8_t)start, .end = (uint8_t)end, .mode = chance(run, 35) };
		part->fence = cover->fence[start + random_below(run, end - start)];
		if (!part->fence || chance(run, 15))
			part->fence = random_below(run, run->model.fence + 2);
		from = end;
	}
}

void some_request(struct run *run, unsigned host, struct op *op)
{
	uint32_t n = run->model.queue_count;

	op->host = (uint8_t)random_below(run, SM_HOSTS);
	op->req = random_below(run, run->last_req + 2);
	for (uint32_t i = 0, from = n ? random_below(run, n) : 0; i < n && chance(run, 90); i++) {
		const struct sm_request *q = &run->model.queue[(from + i) % n];

		if (host == SM_HOSTS ? (q->flags & SM_TRY) != 0 : q->host == host) {
			op->host = q->host;
			op->key = q->key;
			op->req = q->req;
			op->start = q->start;
			op->end = q->end;
			op->mode = q->mode;
			op->flags = q->flags;
			return;
		}
	}
}

static void choose_attach(struct run *run, struct op *op)
{
	const struct sm_host *h = &run->model.host[op->caller.host];

	op->token[0] = h->exists ? h->token : ++run->last_token;
	if (chance(run, 35)) {		/* another agent */
		op->token[1] = h->token;
		op->token[0] = ++run->last_token;
	}
	if (chance(run, 5))
		op->token[0] = 1 + random_below(run, run->last_token);
	if (chance(run, 15))
		op->caller.gen = random_below(run, 6);
}

static void choose_reassert(struct run *run, struct op *op)
{
	const struct sm_host *h = &run->model.host[op->caller.host];

	op->caller.role = SM_CMD;
	op->caller.gen = h->exists && chance(run, 90) ? h->gen[SM_CMD] : random_below(run, 5);
	op->token[0] = h->exists && chance(run, 80) ? h->token : ++run->last_token;
	op->fence = chance(run, 70) ? run->model.fence : random_below(run, 400);
	op->seq = chance(run, 70) ? h->seq : random_below(run, 100);
	for (uint8_t key = 0; key < SM_KEYS; key++)
		if (chance(run, 40)) {
			struct sm_state_cover *c = &op->covers[op->cover_count++];

			c->key = key;
			c->info = (uint8_t)random_below(run, 9);
			some_parts(run, key, op->caller.host, &c->spans);
			for (uint32_t i = 0; i < c->spans.count; i++)
				c->spans.span[i].mode = (uint8_t)(1 + random_below(run, 2));
			if (chance(run, 5))
				memset(&c->spans, 0, sizeof(c->spans));
		}
	while (op->request_count < 3 && run->model.queue_count < 8 && chance(run, 40)) {
		struct sm_state_request *q = &op->requests[op->request_count++];

		*q = (struct sm_state_request){ .key = (uint8_t)random_below(run, SM_KEYS), .mode = (uint8_t)(1 + random_below(run, 2)),
						.flags = (uint8_t)random_below(run, 4), .info = 3, .req = ++run->last_req };
		some_range(run, &q->start, &q->end);
	}
}

static enum lua_script_id choose_script(struct run *run)
{
	static const struct { enum lua_script_id id; unsigned weight, in_grace; } table[] = {
		{ LUA_ACQUIRE, 36, 12 }, { LUA_GIVEBACK, 22, 6 }, { LUA_WITHDRAW, 8, 4 }, { LUA_BUSY, 8, 2 }, { LUA_RENEW, 7, 4 },
		{ LUA_ATTACH, 7, 12 }, { LUA_EXPIRE, 2, 1 }, { LUA_LEAVE, 1, 1 }, { LUA_ENDGRACE, 1, 5 }, { LUA_REASSERT, 1, 14 },
		{ LUA_INIT, 1, 1 },
	};
	bool grace = run->model.grace || run->model.replid_changed || !run->model.inc;
	unsigned total = 0, at;

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		total += grace ? table[i].in_grace : table[i].weight;
	at = random_below(run, total);
	for (size_t i = 0;; i++) {
		unsigned weight = grace ? table[i].in_grace : table[i].weight;

		if (at < weight)
			return table[i].id;
		at -= weight;
	}
}

void choose_op(struct run *run, struct op *op)
{
	memset(op, 0, sizeof(*op));
	op->id = choose_script(run);
	op->caller = choose_caller(run);
	if (!run->model.host[op->caller.host].exists && chance(run, 70)) {
		op->id = LUA_ATTACH;
		op->caller.role = SM_CMD;
	}
	op->key = (uint8_t)random_below(run, SM_KEYS);
	op->mode = (uint8_t)(1 + random_below(run, 2));
	op->info = (uint8_t)random_below(run, 200);
	op->host = (uint8_t)random_below(run, SM_HOSTS);
	switch (op->id) {
	case LUA_ATTACH: choose_attach(run, op); break;
	case LUA_ACQUIRE:
		some_range(run, &op->start, &op->end);
		op->flags = (uint8_t)((chance(run, 25) ? SM_TRY : 0) | (chance(run, 20) ? SM_PASS : 0));
		op->req = ++run->last_req;
		if (chance(run, 12)) {		/* one that waits, again; perhaps it need not wait any more */
			some_request(run, op->caller.host, op);
			op->flags |= chance(run, 70) ? SM_PASS : 0;
		}
		break;
	case LUA_WITHDRAW: some_request(run, op->caller.host, op); break;
	case LUA_GIVEBACK:
		some_parts(run, op->key, op->caller.host, &op->parts);
		break;
	case LUA_BUSY: some_request(run, SM_HOSTS, op); break;
	case LUA_EXPIRE: op->counter = run->model.host[op->host].counter - (chance(run, 20) ? 1 : 0); break;
	case LUA_REASSERT: choose_reassert(run, op); break;
	case LUA_INIT: op->caller.ttl = TTL; break;
	default: break;
	}
}
