/* SPDX-License-Identifier: MIT */
/*
 * The rules of the store (docs/PROTOCOL.md) as a pure model: the same
 * operations, replies and pushes as the Lua scripts, on a state that is one
 * flat struct: copied by assignment, compared and hashed by its bytes
 * (start from sm_reset(); every byte has a defined value).
 *
 * Hosts, keys, tokens, infos are small numbers. token 0 is none, incarnation 0
 * is none. Whatever the store writes for people only (time of day) is left out.
 * An operation that would need more room than the arrays have sets `overflow`
 * and is then not to be trusted.
 */
#ifndef DLOCK_STORE_MODEL_H
#define DLOCK_STORE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "../../shim/mode.h"

#ifndef SM_HOSTS
#define SM_HOSTS 4
#endif
#ifndef SM_KEYS
#define SM_KEYS 2
#endif
#ifndef SM_REQUESTS
#define SM_REQUESTS 16	/* waiting at once, all keys */
#endif
#ifndef SM_OUTBOX
#define SM_OUTBOX 64	/* unacknowledged pushes of one host */
#endif
#ifndef SM_PUSHES
#define SM_PUSHES 64	/* pushes of one operation */
#endif

/*
 * Rules that exploring the interleavings showed to be needed. A build with
 * -DSTORE_MODEL_MUTABLE can switch one off by setting sm_without, to show that a test notices.
 */
enum sm_rule {
	SM_RULE_NONE = 0,
	SM_RULE_OTHER_HOSTS,	/* "conflict" means with covers and requests of other hosts */
	SM_RULE_TRY_COVERS,	/* a try looks at covers, never at waiting requests */
	SM_RULE_ENTRIES,	/* one queue entry for each request, not for each host */
	SM_RULE_WAITING,	/* a grant names the strongest waiting mode it conflicts with */
	SM_RULE_FENCE,		/* a give-back frees the cover of the fence it names, nothing newer */
	SM_RULE_GRANTED_MODE,	/* a grant refuses the tries that conflict with the granted mode, not with the whole cover */
	SM_RULE_TELL_AGAIN,	/* tries that still conflict are told again under a new fence */
	SM_RULE_TOLD_NOW,	/* on a new connection the host counts as told what it is told then */
	SM_RULE_COUNT,
};
#ifdef STORE_MODEL_MUTABLE
extern enum sm_rule sm_without;
#define SM_HAS(rule) (sm_without != (rule))
#else
#define SM_HAS(rule) true
#endif

enum sm_role { SM_CMD, SM_RENEW };

/* One push; kind is 'G', 'R', 'T' or 'B'. Fields a kind does not have are 0. */
struct sm_push {
	uint32_t seq, inc;
	uint32_t fence;
	uint32_t req;		/* G, B: the receiver's request; T: the other host's */
	uint8_t kind, to;	/* to: the receiving host */
	uint8_t key;
	uint8_t mode;		/* G: the whole cover; R, T: the mode wanted */
	uint8_t waiting;	/* G */
	uint8_t host;		/* T: who tries */
	uint8_t zero[2];
};

struct sm_cover {
	uint32_t fence;
	uint8_t mode;		/* MODE_NONE: no cover; then all is 0 */
	uint8_t told;
	uint8_t info;
	uint8_t zero;
};

struct sm_request {
	uint32_t ticket, req;
	uint8_t host, key, mode, try;
	uint8_t info;
	uint8_t zero[3];
};

struct sm_host {
	uint32_t exists;	/* else all is 0 */
	uint32_t counter, token, inc;
	uint32_t gen[2];	/* by role */
	uint32_t seq, info;
	uint32_t outbox_count;
	struct sm_push outbox[SM_OUTBOX];	/* oldest first; unused ones are 0 */
};

struct sm_store {
	/* What a server that lost its data has lost. */
	uint32_t inc;		/* 0: no meta */
	uint32_t grace, ttl, fence, ticket, seqbase;
	struct sm_host host[SM_HOSTS];
	struct sm_cover cover[SM_KEYS][SM_HOSTS];
	uint32_t queue_count;
	struct sm_request queue[SM_REQUESTS];	/* by ticket; unused ones are 0 */
	/* The server itself. */
	uint32_t replid_changed; /* 1: meta was made by a server with another replication id */
	uint32_t last_inc;	/* incarnations are never used again */
	uint32_t overflow;
};

struct sm_caller {		/* the common arguments */
	uint8_t host;
	uint8_t role;		/* enum sm_role */
	uint32_t token, gen, inc, ttl, ack;
};

enum sm_verb {
	SM_REFUSED, SM_OK, SM_JOINED, SM_RESUMED, SM_LEFT, SM_GRANTED, SM_QUEUED, SM_BUSY, SM_WITHDRAWN,
	SM_COVER, SM_BUSIED, SM_RENEWED, SM_EXPIRED, SM_ENDED, SM_ASSERTED
};

enum sm_reason {
	SM_NONE, SM_TTL, SM_INC, SM_TOKEN, SM_GEN, SM_CONFIRM, SM_NOGRACE, SM_CONFLICT, SM_EXISTS
};

struct sm_reply {
	enum sm_verb verb;
	enum sm_reason reason;
	uint32_t inc, grace;	/* of the store, after the operation */
	uint32_t number;	/* refused ttl: the stored one; conflict: the key; withdrawn, busied, expired, ended: 0 or 1 */
	uint32_t mode, fence, waiting;			/* granted, cover */
	uint32_t gen, gen_renew, confirmed, seq;	/* joined, resumed; asserted: gen, gen_renew */
	uint32_t counter;				/* renewed */
	uint32_t cover_count;				/* joined, resumed (by key), asserted (in order) */
	struct { uint32_t key, mode, fence; } cover[SM_KEYS];
	uint32_t message_count;				/* renewed: the outbox */
	struct sm_push message[SM_OUTBOX];
	uint32_t push_count;				/* every operation: what it pushed, in order */
	struct sm_push push[SM_PUSHES];
};

struct sm_state_cover { uint8_t key, mode, info; };
struct sm_state_request { uint8_t key, mode, try, info; uint32_t req; };

/* An empty server that never had anything. */
void sm_reset(struct sm_store *s);
/* The server lost everything (restart without data, FLUSHALL). */
void sm_flush(struct sm_store *s);
/* The server came back, or another was promoted, with the data of `old`: s as of some earlier time, or s itself. */
void sm_restart(struct sm_store *s, const struct sm_store *old);

/* The scripts. Each fills *r wholly. */
void sm_init(struct sm_store *s, uint32_t ttl, struct sm_reply *r);
void sm_attach(struct sm_store *s, const struct sm_caller *c, uint32_t newtoken, uint32_t oldtoken, uint8_t info, struct sm_reply *r);
void sm_leave(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r);
void sm_acquire(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, enum lock_mode mode, bool try, uint8_t info, struct sm_reply *r);
void sm_withdraw(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, struct sm_reply *r);
void sm_giveback(struct sm_store *s, const struct sm_caller *c, uint8_t key, enum lock_mode keep, uint32_t fence, struct sm_reply *r);
void sm_busy(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint8_t host, uint32_t req, struct sm_reply *r);
void sm_renew(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r);
void sm_expire(struct sm_store *s, const struct sm_caller *c, uint8_t victim, uint32_t counter, struct sm_reply *r);
void sm_endgrace(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r);
/* At most one cover for each key, each request once. */
void sm_reassert(struct sm_store *s, const struct sm_caller *c, uint32_t newtoken, uint8_t info, uint32_t maxfence, uint32_t seq,
		 const struct sm_state_cover *covers, unsigned cover_count,
		 const struct sm_state_request *requests, unsigned request_count, struct sm_reply *r);

/*
 * What must hold after every operation: covers of different hosts do not
 * conflict, no request waits that could be granted, every host that keeps a
 * blocking request waiting was told. NULL, or a sentence that says what does not.
 */
const char *sm_check(const struct sm_store *s);

#endif
