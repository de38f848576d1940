/* SPDX-License-Identifier: MIT */
/* What must hold in a state of the model after every operation. Pure. */
#include <stddef.h>

#include "store_model_lock.h"

static const char *check_covers(const struct sm_store *s, uint8_t key)
{
	for (uint8_t a = 0; a < SM_HOSTS; a++) {
		if (s->cover[key][a].mode && !s->host[a].exists)
			return "a host that does not exist has a cover";
		for (uint8_t b = 0; b < a; b++)
			if (mode_conflicts(s->cover[key][a].mode, s->cover[key][b].mode) &&
			    s->host[a].inc == s->inc && s->host[b].inc == s->inc)
				return "covers of two confirmed hosts conflict";
	}
	return NULL;
}

static const char *check_request(const struct sm_store *s, uint32_t i)
{
	const struct sm_request *q = &s->queue[i];
	bool held = sm_cover_conflicts(s, q->key, q->host, q->mode);

	if (!s->host[q->host].exists)
		return "a request of a host that does not exist waits";
	if (q->try && !held)
		return "a try waits though no cover conflicts with it";
	if (!held && !sm_queue_conflicts(s, i, q->key, q->host, q->mode))
		return "a request waits that could be granted";
	for (uint8_t host = 0; host < SM_HOSTS && !q->try; host++)
		if (host != q->host && mode_conflicts(s->cover[q->key][host].mode, q->mode) &&
		    s->cover[q->key][host].told < q->mode)
			return "a host keeps a request waiting and was not told";
	return NULL;
}

const char *sm_check(const struct sm_store *s)
{
	const char *wrong;

	if (s->inc == 0 || s->replid_changed)
		return NULL;
	for (uint8_t key = 0; key < SM_KEYS; key++) {
		wrong = check_covers(s, key);
		if (wrong)
			return wrong;
	}
	for (uint32_t i = 1; i < s->queue_count; i++)
		if (s->queue[i - 1].ticket >= s->queue[i].ticket)
			return "the queue is not in ticket order";
	if (s->grace)
		return NULL;
	for (uint8_t host = 0; host < SM_HOSTS; host++)
		if (s->host[host].exists && s->host[host].inc != s->inc)
			return "no grace, and a host is not confirmed";
	for (uint32_t i = 0; i < s->queue_count; i++) {
		wrong = check_request(s, i);
		if (wrong)
			return wrong;
	}
	return NULL;
}
