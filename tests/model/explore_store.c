/* SPDX-License-Identifier: MIT */
#include "explore_store.h"
#include "explore_world.h"

#include <string.h>

static enum lock_mode waiting_against(const struct x_store *s, int host, enum lock_mode mode)
{
	enum lock_mode most = MODE_NONE;

	for (int i = 0; i < s->queue_count; i++)
		if (s->queue[i].host != host && !s->queue[i].try && mode_conflicts(s->queue[i].mode, mode))
			most = mode_max(most, s->queue[i].mode);
	return most;
}

static void queue_remove(struct x_store *s, int i)
{
	s->queue_count--;
	memmove(&s->queue[i], &s->queue[i + 1], (size_t)(s->queue_count - i) * sizeof s->queue[0]);
	memset(&s->queue[s->queue_count], 0, sizeof s->queue[0]);
}

static bool conflicts(const struct x_store *s, int host, enum lock_mode mode, int try, int before)
{
	for (int h = 0; h < X_STORE_HOSTS; h++)
		if (h != host && mode_conflicts(s->mode[h], mode))
			return true;
	for (int i = 0; !try && i < before; i++)
		if (s->queue[i].host != host && !s->queue[i].try && mode_conflicts(s->queue[i].mode, mode))
			return true;
	return false;
}

static void take(struct x_store *s, struct x_world *w, int host, enum lock_mode mode)
{
	s->mode[host] = (uint8_t)mode_max(s->mode[host], mode);
	s->fence[host] = ++s->last_fence;
	for (int i = 0; i < s->queue_count;) {
		struct x_queued q = s->queue[i];

		if (q.host != host && q.try && mode_conflicts(q.mode, s->mode[host])) {
			queue_remove(s, i);
			x_store_pushed(w, q.host, (struct x_push){ .kind = PUSH_BUSY, .req = q.req });
		} else {
			i++;
		}
	}
}

static void recall(struct x_store *s, struct x_world *w, struct x_queued q)
{
	for (int h = 0; h < X_STORE_HOSTS; h++) {
		if (h == q.host || !mode_conflicts(s->mode[h], q.mode))
			continue;
		x_store_pushed(w, h, (struct x_push){ .kind = q.try ? PUSH_TRY : PUSH_RECALL, .mode = q.mode,
						      .fence = s->fence[h], .host = q.try ? q.host : 0,
						      .req = q.try ? q.req : 0 });
	}
}

static void pump(struct x_store *s, struct x_world *w)
{
	struct x_queued granted[X_QUEUE];
	int count = 0;

	for (int i = 0; i < s->queue_count;) {
		struct x_queued q = s->queue[i];

		if (conflicts(s, q.host, q.mode, q.try, i)) {
			i++;
			continue;
		}
		queue_remove(s, i);
		take(s, w, q.host, q.mode);
		granted[count] = q;
		granted[count].mode = s->mode[q.host];
		granted[count++].try = s->fence[q.host];
		i = 0;
	}
	for (int i = 0; i < count; i++)
		x_store_pushed(w, granted[i].host,
			       (struct x_push){ .kind = PUSH_GRANT, .req = granted[i].req, .mode = granted[i].mode,
						.fence = granted[i].try,
						.waiting = (uint8_t)waiting_against(s, granted[i].host, granted[i].mode) });
}

void x_store_acquire(struct x_store *s, struct x_world *w, int host, uint16_t req, enum lock_mode mode, int try,
		     struct x_reply *ret_reply)
{
	struct x_queued q = { .host = (uint8_t)host, .mode = (uint8_t)mode, .try = (uint8_t)try, .req = req };

	for (int i = 0; i < s->queue_count; i++) {
		if (s->queue[i].host == host && s->queue[i].req == req) {
			recall(s, w, s->queue[i]);
			ret_reply->kind = REPLY_QUEUED;
			return;
		}
	}
	if (conflicts(s, host, mode, try, s->queue_count)) {
		if (s->queue_count == X_QUEUE) {
			x_world_fail(w, X_LIVELOCK, "the store's queue is full");
			return;
		}
		s->queue[s->queue_count++] = q;
		recall(s, w, q);
		ret_reply->kind = REPLY_QUEUED;
		return;
	}
	take(s, w, host, mode);
	*ret_reply = (struct x_reply){ .kind = REPLY_GRANTED, .mode = s->mode[host], .fence = s->fence[host],
				       .waiting = (uint8_t)waiting_against(s, host, s->mode[host]) };
}

void x_store_withdraw(struct x_store *s, struct x_world *w, int host, uint16_t req)
{
	for (int i = 0; i < s->queue_count; i++) {
		if (s->queue[i].host == host && s->queue[i].req == req) {
			queue_remove(s, i);
			break;
		}
	}
	pump(s, w);
}

void x_store_give_back(struct x_store *s, struct x_world *w, int host, enum lock_mode keep, uint8_t fence,
		       struct x_reply *ret_reply)
{
	if (s->mode[host] && s->fence[host] == fence) {
		if (keep == MODE_NONE) {
			s->mode[host] = s->fence[host] = 0;
		} else if (s->mode[host] == MODE_EX) {
			s->mode[host] = MODE_SH;
			s->fence[host] = ++s->last_fence;
		}
		pump(s, w);
	}
	*ret_reply = (struct x_reply){ .kind = REPLY_COVER, .mode = s->mode[host], .fence = s->fence[host],
				       .waiting = (uint8_t)waiting_against(s, host, s->mode[host]) };
}

void x_store_busy(struct x_store *s, struct x_world *w, int host, uint16_t req)
{
	for (int i = 0; i < s->queue_count; i++) {
		if (s->queue[i].host == host && s->queue[i].req == req && s->queue[i].try) {
			queue_remove(s, i);
			x_store_pushed(w, host, (struct x_push){ .kind = PUSH_BUSY, .req = req });
			return;
		}
	}
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
	}
	memcpy(ret_bytes + n, s->queue, s->queue_count * sizeof s->queue[0]);
	return n + s->queue_count * sizeof s->queue[0];
}
