/* SPDX-License-Identifier: MIT */
/*
 * The renewal thread: keeps the lease, watches the other hosts, ends a grace.
 * A connection of its own; never waits for the loop's thread, which hears of
 * everything by mail.
 */
#ifndef DLOCK_REDIS_RENEW_H
#define DLOCK_REDIS_RENEW_H

#include "redis_script.h"
#include "redis_shared.h"
#include "store.h"

struct redis_renewal;

struct redis_session {		/* what is renewed */
	unsigned serial;	/* another one = another session; 0 = none */
	char host[REDIS_ID_SIZE], token[REDIS_ID_SIZE], inc[REDIS_INC_SIZE];
};

enum redis_news {
	NEWS_GOOD,	/* renewed: header, reply with the messages still open */
	NEWS_SEEN,	/* header: a sign of grace or incarnation, nothing else */
	NEWS_REFUSED,	/* header and answer */
	NEWS_LAPSED,	/* the store renewed a lease whose deadline had passed here */
	NEWS_FAILED,	/* text: no renewal at present */
	NEWS_UNUSABLE,	/* text: the server's eviction policy has become dangerous */
};

struct redis_news_mail {
	struct mail mail;
	unsigned serial;
	enum redis_news news;
	enum redis_answer answer;
	struct redis_header header;
	struct redis_value *reply;	/* from item 6 on: messages, as many as item 5 says */
	char text[REDIS_TEXT_MAX];
};

int redis_renewal_start(struct redis_shared *shared, void (*on_renewed)(void *arg, const struct store_lease *lease), void *arg,
			void (*deliver)(struct store *store, struct mail *mail), struct redis_renewal **ret_renewal);
/* Loop's thread. A session with the same host, token and incarnation goes on as it is; otherwise it is
 * renewed at once. last_good_ns: 0, or when the attach that made the session was sent. Returns its serial. */
unsigned redis_renewal_begin(struct redis_renewal *renewal, const struct redis_session *session, uint64_t last_good_ns);
void redis_renewal_end(struct redis_renewal *renewal);	/* no session: nothing is renewed, last_good_ns is 0 */
void redis_renewal_poll(struct redis_renewal *renewal);	/* renew now: something may have been missed */
/* Loop's thread: since when another host's counter has stood still, as far as it was observed; 0 = unknown. */
uint64_t redis_renewal_since(struct redis_renewal *renewal, const char *host);
/* After redis_shared_close(). Joins the thread, for at most 2 s. */
void redis_renewal_stop(struct redis_renewal *renewal);

void redis_lease_fill(uint64_t last_good_ns, uint32_t ttl_ms, struct store_lease *ret_lease);

#endif
