/* SPDX-License-Identifier: MIT */
/*
 * What a refusal means for the session, whichever call it answered, and what the
 * renewal thread reports. News of another session than the present one is void.
 */
#include <string.h>

#include "redis_store.h"

void redis_session_refused(struct store *store, enum redis_answer answer, const struct redis_header *header)
{
	char text[REDIS_TEXT_MAX];

	if (answer == ANSWER_TOKEN && header->inc[0] && strcmp(header->inc, store->inc) != 0)
		answer = ANSWER_INC;	/* forgotten with everything else, rather than expired */
	switch (answer) {
	case ANSWER_INC:
	case ANSWER_CONFIRM:
		if (store->phase == PHASE_STANDING || store->phase == PHASE_PROVING) {
			redis_session_reassert(store, header->inc);
			return;
		}
		redis_say(text, sizeof(text), "Redis at %s began anew meanwhile; connecting again", redis_label(store));
		break;
	case ANSWER_TOKEN:
		redis_session_lost(store, "this host's session has expired in the store: it was silent for longer than the lease time");
		return;
	case ANSWER_GEN:
		redis_say(text, sizeof(text), "Redis at %s: a newer connection of this host took over; connecting again", redis_label(store));
		break;
	case ANSWER_ROLE:
		redis_say(text, sizeof(text), "Redis at %s is a replica; locks need the primary: check `redis.servers`", redis_label(store));
		redis_session_unusable(store, STORE_REFUSED, text);
		return;
	case ANSWER_TTL:
		redis_say(text, sizeof(text), "the other hosts of namespace %s use ttl = \"%sms\", %s says \"%ums\": all must use the same",
			  store->name_space, header->text, store->config_file, store->ttl_ms);
		redis_session_unusable(store, STORE_REFUSED, text);
		return;
	case ANSWER_PROTO:
		redis_say(text, sizeof(text), "namespace %s on Redis at %s was made by a version of dlockshim with another protocol (%s): stop all agents, "
			  "empty the namespace (its keys begin with %s) and run `dlock init`",
			  store->name_space, redis_label(store), header->text, store->shared->prefix);
		redis_session_unusable(store, STORE_REFUSED, text);
		return;
	case ANSWER_RETRY:
		redis_say(text, sizeof(text), "Redis at %s cannot serve at present: %s", redis_label(store), header->text);
		break;
	default:
		redis_say(text, sizeof(text), "Redis at %s refuses: %s", redis_label(store), header->text);
		redis_session_unusable(store, STORE_REFUSED, text);
		return;
	}
	redis_session_unusable(store, STORE_CONNECTING, text);
}

void redis_session_news(struct store *store, struct mail *mail)
{
	struct redis_news_mail *news = (struct redis_news_mail *)mail;
	char text[REDIS_TEXT_MAX];

	if (news->serial != store->session_serial || !store->session_serial || store->phase == PHASE_LOST)
		goto done;
	switch (news->news) {
	case NEWS_GOOD:
		redis_session_seen(store, &news->header);
		if (store->phase == PHASE_PROVING && store->cmd.up)
			redis_session_stand(store);
		redis_push_open_messages(store, news->reply);
		if (store->cmd.up && redis_ops_silent(store)) {
			redis_say(text, sizeof(text), "Redis at %s renews the lease and answers nothing else on the other connection; connecting again",
				  redis_label(store));
			redis_session_unusable(store, STORE_CONNECTING, text);
		}
		break;
	case NEWS_SEEN:
		redis_session_seen(store, &news->header);
		break;
	case NEWS_REFUSED:
		/* Without a command connection, or in the middle of attaching, that finds out by itself. */
		if (store->phase == PHASE_STANDING || store->phase == PHASE_PROVING)
			redis_session_refused(store, news->answer, &news->header);
		break;
	case NEWS_LAPSED:
		redis_session_lost(store, "the lease was not renewed before its deadline");
		break;
	case NEWS_FAILED:
		if (store->phase == PHASE_PROVING)
			redis_session_state(store, STORE_CONNECTING, "%s", news->text);
		break;
	case NEWS_UNUSABLE:
		if (store->phase == PHASE_STANDING)
			redis_session_unusable(store, STORE_REFUSED, news->text);
		break;
	}
done:
	mail->discard(mail);
}
