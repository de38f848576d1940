/* SPDX-License-Identifier: MIT */
/* What must hold in a state of the model after every operation. Pure. */
#include <stddef.h>

#include "store_model_lock.h"

static bool confirmed(const struct sm_store *s, uint8_t host)
{
	return s->host[host].inc == s->inc;
}

static const char *check_covers(const struct sm_store *s, uint8_t key)
{
	for (uint8_t a = 0; a < SM_HOSTS; a++) {
		if (sm_has_cover(s, key, a) && !s->host[a].exists)
			return "a host that does not exist has a cover";
		for (uint8_t b = 0; b < a; b++)
			for (uint8_t p = 0; p < SM_END; p++)
				if (mode_conflicts(s->cover[key][a].mode[p], s->cover[key][b].mode[p]) &&
				    confirmed(s, a) && confirmed(s, b))
					return "covers of two confirmed hosts conflict";
	}
	return NULL;
}

static const char *check_points(const struct sm_store *s, uint8_t key, uint8_t host)
{
	const struct sm_cover *cover = &s->cover[key][host];

	for (uint8_t p = 0; p < SM_END; p++) {
		if (!cover->mode[p] != !cover->fence[p])
			return "a point has a mode and no fence, or a fence and no mode";
		if (cover->fence[p] > s->fence)
			return "a fence is higher than the last one given";
	}
	return NULL;
}

static const char *check_request(const struct sm_store *s, uint32_t i)
{
	const struct sm_request *q = &s->queue[i];

	if (!s->host[q->host].exists)
		return "a request of a host that does not exist waits";
	if ((q->flags & SM_TRY) && !sm_cover_conflicts(s, q))
		return "a try waits though no cover conflicts with it";
	if (!sm_must_wait(s, i, q))
		return "a request waits that could be granted";
	for (uint8_t host = 0; host < SM_HOSTS && !(q->flags & SM_TRY); host++)
		for (uint8_t p = q->start; p < q->end; p++)
			if (host != q->host && mode_conflicts(s->cover[q->key][host].mode[p], q->mode) &&
			    s->cover[q->key][host].told[p] < q->mode)
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
		for (uint8_t host = 0; host < SM_HOSTS && !wrong; host++)
			wrong = check_points(s, key, host);
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
