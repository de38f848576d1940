/* SPDX-License-Identifier: MIT */
/*
 * What the renewal thread does for the others: a host whose counter stood still for T
 * on our clock is expired, a grace that we saw for T is ended. Only on the renewal
 * connection and only attached: whoever speaks for the dead must itself be alive.
 * The store compares the counter again, so a host that was late only lives on.
 */
#include <string.h>

#include "../log.h"
#include "../loop.h"
#include "redis_watch.h"

#define MS 1000000ull

void redis_watch_grace(struct redis_renewal *renewal, const struct redis_header *header, uint64_t now)
{
	if (!header->grace) {
		renewal->grace_inc[0] = '\0';
	} else if (strcmp(renewal->grace_inc, header->inc) != 0) {
		strcpy(renewal->grace_inc, header->inc);
		renewal->grace_since_ns = now;
	}
}

void redis_watch_others(struct redis_renewal *renewal, const struct redis_value *reply, size_t first, uint64_t now)
{
	pthread_mutex_lock(&renewal->mutex);
	observe_begin(&renewal->others);
	for (size_t i = first; i + 1 < reply->count; i += 2) {
		const char *host = redis_value_text(reply, i);
		uint64_t counter;

		if (host && redis_value_u64(reply, i + 1, &counter) && strcmp(host, renewal->session.host) != 0)
			observe_host(&renewal->others, host, counter, now, (i - first) / 2);
	}
	observe_finish(&renewal->others);
	pthread_mutex_unlock(&renewal->mutex);
}

/* The host that has been silent for the longest. */
static bool take_oldest(struct redis_renewal *renewal, struct observed *ret_oldest)
{
	struct observed *oldest;

	pthread_mutex_lock(&renewal->mutex);
	oldest = observe_oldest(&renewal->others);
	if (oldest)
		*ret_oldest = *oldest;
	pthread_mutex_unlock(&renewal->mutex);
	return oldest != NULL;
}

static void set_since(struct redis_renewal *renewal, const char *host, uint64_t since_ns)
{
	struct observed *one;

	pthread_mutex_lock(&renewal->mutex);
	one = observe_find(&renewal->others, host, 0);
	if (one)
		one->since_ns = since_ns;
	pthread_mutex_unlock(&renewal->mutex);
}

static void expire(struct redis_renewal *renewal, const struct observed *victim)
{
	char counter[24];
	const char *args[] = { victim->host, counter };
	enum redis_answer answer;
	struct redis_header header;
	struct redis_value *reply;
	uint64_t expired;

	redis_say(counter, sizeof(counter), "%llu", (unsigned long long)victim->counter);
	if (redis_renewal_call(renewal, LUA_EXPIRE, args, 2, &answer, &header, &reply) < 0) {
		/* Perhaps not sent: again when the connection is back, if the counter still stands. */
		redis_link_close(&renewal->link);
		renewal->due_ns = 0;
		return;
	}
	if (answer == ANSWER_OK || answer == ANSWER_FAILED)
		set_since(renewal, victim->host, loop_now_ns());	/* not again before T */
	else
		renewal->attached = false;	/* the next renewal finds out what is the matter */
	if (answer == ANSWER_OK && redis_value_u64(reply, ANSWER_ITEMS + 1, &expired) && expired)
		log_warn("host %s has been silent for %.1f s and is expired: its locks are free", victim->host, renewal->shared->ttl_ms / 1e3);
	redis_value_free(reply);
}

static void end_grace(struct redis_renewal *renewal)
{
	enum redis_answer answer;
	struct redis_header header;
	struct redis_value *reply;

	if (redis_renewal_call(renewal, LUA_ENDGRACE, NULL, 0, &answer, &header, &reply) < 0) {
		redis_link_close(&renewal->link);
		renewal->due_ns = 0;
		return;
	}
	if (answer == ANSWER_OK) {
		renewal->grace_inc[0] = '\0';
		redis_renewal_tell(renewal, NEWS_SEEN, answer, &header, NULL, NULL);
	} else {
		renewal->attached = false;
	}
	redis_value_free(reply);
}

uint64_t redis_watch(struct redis_renewal *renewal)
{
	uint64_t ttl_ns = renewal->shared->ttl_ms * MS, next = UINT64_MAX;
	struct observed oldest;

	while (renewal->attached && renewal->link.fd >= 0 && take_oldest(renewal, &oldest)) {
		if (loop_now_ns() < oldest.since_ns + ttl_ns) {
			next = oldest.since_ns + ttl_ns;
			break;
		}
		expire(renewal, &oldest);
	}
	if (renewal->grace_inc[0] && renewal->attached && renewal->link.fd >= 0) {
		if (loop_now_ns() >= renewal->grace_since_ns + ttl_ns)
			end_grace(renewal);
		else if (renewal->grace_since_ns + ttl_ns < next)
			next = renewal->grace_since_ns + ttl_ns;
	}
	return next;
}
