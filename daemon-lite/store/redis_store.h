/* SPDX-License-Identifier: MIT */
/*
 * The Redis store's own parts on the loop's thread, and how they call each other:
 *
 *   redis_store.c    the door (store.h), set-up and end
 *   redis_dial.c     opens connections in a helper thread, back-off
 *   redis_session.c  attach, leave, lost: the state machine
 *   redis_news.c     refusals, and what the renewal thread reports
 *   redis_reassert.c the complete state after the store forgot
 *   redis_ops.c      operations that are not answered yet, and their answers
 *   redis_push.c     messages: by the subscription and by the renewals' replies
 *
 * All of it runs on the loop's thread. No event is sent to the agent from inside one
 * of its calls: what a call finds out is told in the next round.
 */
#ifndef DLOCK_REDIS_STORE_H
#define DLOCK_REDIS_STORE_H

#include "../loop.h"
#include "redis_conn.h"
#include "redis_file.h"
#include "redis_renew.h"
#include "redis_script.h"
#include "redis_shared.h"
#include "redis_spans.h"
#include "store.h"

enum redis_phase {
	PHASE_OFF,		/* not started */
	PHASE_DETACHED,		/* no command connection, or not attached on it yet */
	PHASE_ATTACHING,
	PHASE_LEAVING,		/* ends the session before this one, then begins again */
	PHASE_REASSERTING,
	PHASE_PROVING,		/* attached; nothing is sent before the first good renewal */
	PHASE_STANDING,
	PHASE_LOST,		/* waits for store_rejoin */
};

struct redis_op;
struct redis_op {
	struct redis_op *next, *prev;	/* operations not answered, in the order of the calls */
	struct redis_op *next_sent;	/* those on the wire, in the order of their replies */
	/* One of the session's own: lives on the wire only. */
	void (*control)(struct store *store, struct redis_op *op, enum redis_answer answer,
			const struct redis_header *header, const struct redis_value *reply);
	enum lua_script_id script;
	bool sent, full;		/* full: with the script's text */
	bool again;			/* sent more than once */
	bool dropped;			/* on the wire, nobody cares for the answer */
	bool one_key;			/* status: of this lock only */
	enum lock_mode mode;		/* acquire: what is wanted … */
	struct extent at;		/* … where … */
	unsigned flags;			/* … and how, STORE_* */
	uint64_t req;			/* ask, tell: the nonce */
	uint64_t part;			/* tell */
	uint64_t sent_ns;
	void *call;			/* status */
	enum store_last last;		/* tell */
	char *key;
	char *text;			/* acquire: info; busy: host; ask: question; tell: what (the host is in key) */
	struct lock_span *spans;	/* giveback: the parts; reassert: those of all locks, one lock after the other */
	size_t span_count;
	struct store_cover *claims;	/* reassert: the locks, in order, without info */
	size_t claim_count;
};

struct store {
	struct loop *loop;
	struct store_events events;
	void *arg;
	struct redis_shared *shared;
	struct redis_renewal *renewal;
	void (*on_renewed)(void *arg, const struct store_lease *lease);
	void *on_renewed_arg;
	uint32_t ttl_ms;
	char name_space[80];
	char config_file[256];
	char *file;			/* the session file */
	char info[128];
	struct redis_identity id;
	struct loop_io mail_io;

	enum redis_phase phase;
	enum store_state state;
	bool state_told;
	char state_text[REDIS_TEXT_MAX];

	/* connections */
	struct redis_conn cmd, push;
	bool dialing;
	unsigned dial_serial;		/* raised when an answer of the helper is not wanted any more */
	struct redis_addresses addresses;
	char shas[REDIS_SCRIPTS_MAX][REDIS_SHA_SIZE];
	struct loop_timer retry;
	uint64_t backoff_ns;		/* 0: the next try is at once */
	uint64_t standing_since_ns;

	/* session */
	bool has_session;		/* it stood in this process, and is not lost */
	bool needs_reassert;		/* begun, and the answer has not come */
	bool in_reassert;		/* inside the reassert event */
	bool reassert_sent;
	bool leave_first;		/* what the store has of this host must go before it joins */
	uint64_t inherited_good_ns;	/* of the agent before this one */
	unsigned token_refusals;
	char inc[REDIS_INC_SIZE];
	uint64_t gen;
	unsigned session_serial;	/* of the renewal */
	bool grace;
	bool grace_over;		/* of this incarnation */

	/* operations */
	struct redis_op *ops_first, *ops_last;
	struct redis_op *sent_first, *sent_last;
	unsigned sent_count;
	uint64_t suspect_ns;		/* when the oldest on the wire was sent, as of the last good renewal; 0: none */
	struct redis_op *idle;		/* status and ask while there is no connection; next */
	struct loop_timer idle_timer;
};

static inline const char *redis_label(const struct store *store)	/* the server, for people */
{
	return store->shared->door->target.label;
}

/* redis_dial.c */
void redis_dial_soon(struct store *store);	/* as the back-off says */
void redis_dial_now(struct store *store);	/* in the next round */
void redis_dial_forget(struct store *store);	/* the helper's answer is not wanted any more */
void redis_dial_timer(struct loop_timer *timer);

/* redis_session.c */
void redis_session_drive(struct store *store);	/* the next step, if nothing is under way */
void redis_session_state(struct store *store, enum store_state state, const char *format, ...) __attribute__((format(printf, 3, 4)));
void redis_session_unusable(struct store *store, enum store_state state, const char *why);	/* connect again later */
void redis_session_lost(struct store *store, const char *why);
void redis_session_seen(struct store *store, const struct redis_header *header);	/* the grace flag of an answer */
void redis_session_cmd_down(struct redis_conn *conn, const char *why);
void redis_session_push_down(struct redis_conn *conn, const char *why);
void redis_session_drop_cmd(struct store *store);

/* The session is attached, or re-asserted, in the incarnation of header; last_good_ns as for redis_renewal_begin. */
void redis_session_enter(struct store *store, const struct redis_header *header, uint64_t last_good_ns);

void redis_session_stand(struct store *store);	/* its lease is good: everything that waits is sent */

/* redis_news.c */
void redis_session_refused(struct store *store, enum redis_answer answer, const struct redis_header *header);
void redis_session_news(struct store *store, struct mail *mail);	/* from the renewal thread */

/* redis_reassert.c: from inside an event, with a command connection. */
void redis_session_reassert(struct store *store, const char *inc);

/* redis_ops.c */
struct redis_op *redis_op_new(enum lua_script_id script, const char *key, const char *text);
void redis_op_free(struct redis_op *op);
bool redis_op_spans(struct redis_op *op, const struct lock_span *spans, size_t count);	/* keeps a copy; false without memory */
void redis_ops_add(struct store *store, struct redis_op *op);	/* queued, and sent if the session stands */
void redis_ops_control(struct store *store, struct redis_op *op, size_t extra);	/* begins a command of the session; its arguments follow, then redis_conn_flush */
void redis_ops_flush(struct store *store);	/* sends everything that waits, in order */
void redis_ops_unsend(struct store *store);	/* the connection is gone: what was on the wire waits again */
bool redis_ops_silent(struct store *store);	/* at a good renewal: nothing is answered on this connection any more */
void redis_ops_drop(struct store *store);	/* give-backs and busy answers are void (new incarnation, lost) */
void redis_ops_free(struct store *store);
void redis_ops_value(struct redis_conn *conn, const struct redis_value *value);
void redis_ops_later(struct store *store, struct redis_op *op);	/* a status or ask ends in the next round, without an answer */
void redis_ops_idle(struct loop_timer *timer);

/* redis_push.c */
void redis_push_value(struct redis_conn *conn, const struct redis_value *value);
/* The messages of a renewal's reply. */
void redis_push_open_messages(struct store *store, const struct redis_value *reply);

#endif
