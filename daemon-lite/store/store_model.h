/* SPDX-License-Identifier: MIT */
/*
 * The rules of the store (docs/PROTOCOL.md) as a pure model: the same
 * operations, replies and pushes as the Lua scripts, on a state that is one
 * flat struct: copied by assignment, compared and hashed by its bytes
 * (start from sm_reset(); every byte has a defined value).
 *
 * Hosts, keys, tokens, infos are small numbers. token 0 is none, incarnation 0
 * is none. A lock is a line of SM_END points; its whole is [0, SM_END). A cover is
 * kept by points: its spans are the longest runs of one mode and one fence, so it
 * has no other form and needs no room that could run out. Whatever the store
 * writes for people only (time of day) is left out.
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
#ifndef SM_END
#define SM_END 10	/* points of a lock; at most 255 */
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
	SM_RULE_WAITING,	/* a grant names what waits that it conflicts with */
	SM_RULE_FENCE,		/* a give-back frees nothing of a higher fence than it names */
	SM_RULE_LOWER_FENCE,	/* … and what has a lower one too: a grant that its host took for void */
	SM_RULE_GRANTED_MODE,	/* a grant refuses the tries that conflict with what was asked for, not with the whole cover */
	SM_RULE_TELL_AGAIN,	/* tries that still conflict are told again under a new fence */
	SM_RULE_ATTACH_TELLS,	/* on a new connection the host is told all that waits for its covers */
	SM_RULE_GROW_ALONE,	/* more than was asked for is granted only if no other host has anything in the lock */
	SM_RULE_PASS,		/* a request with SM_PASS does not wait behind those who wait */
	SM_RULE_PASS_LATE,	/* a request that waits already gets SM_PASS when it is repeated with it */
	SM_RULE_TOLD,		/* a recall is left out only where a queued request of at least its mode wants the very same part */
	SM_RULE_EACH_PART,	/* who waits is told for each different part, also for one that lies within another */
	SM_RULE_COUNT,
};
#ifdef STORE_MODEL_MUTABLE
extern enum sm_rule sm_without;
#define SM_HAS(rule) (sm_without != (rule))
#else
#define SM_HAS(rule) true
#endif

enum sm_role { SM_CMD, SM_RENEW };

#define SM_TRY 1u	/* flags of a request */
#define SM_PASS 2u

struct sm_span {
	uint32_t fence;		/* 0 where it has no meaning */
	uint8_t start, end, mode;
	uint8_t zero;
};

#define SM_PARTS (SM_END * (SM_END + 1) / 2)	/* as many as there are parts of a line: no list of the rules can be longer */

struct sm_list {		/* unused spans are 0 */
	uint32_t count;
	struct sm_span span[SM_PARTS];
};

/* One push; kind is 'G', 'R', 'T' or 'B'. Fields a kind does not have are 0. */
struct sm_push {
	uint32_t seq, inc;
	uint32_t req;		/* G, B: the receiver's request; T: the other host's */
	uint8_t kind, to;	/* to: the receiving host */
	uint8_t key;
	uint8_t host;		/* T: who tries */
	struct sm_list spans;	/* G: what was granted */
	struct sm_list waiting;	/* G, R: who waits; T: the one span that is wanted */
};

struct sm_cover {		/* by points; where mode is MODE_NONE the others are 0 */
	uint32_t fence[SM_END];
	uint8_t mode[SM_END];
	uint8_t told[SM_END];	/* the strongest waiting mode its host was told of under this fence: for sm_check() only, no operation looks at it */
	uint8_t info;		/* 0 if there is no cover */
};

struct sm_request {
	uint32_t ticket, req;
	uint8_t host, key, start, end, mode;
	uint8_t flags;		/* SM_TRY, SM_PASS */
	uint8_t info;
	uint8_t zero;
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
	struct sm_list spans, waiting;			/* granted, cover */
	uint32_t gen, gen_renew, confirmed, seq, fence;	/* joined, resumed; asserted: gen, gen_renew */
	uint32_t counter;				/* renewed */
	uint32_t cover_count;				/* joined, resumed (by key), asserted (in order) */
	struct { uint32_t key, fence; struct sm_list spans; } cover[SM_KEYS];	/* fence: asserted; spans: joined, resumed */
	uint32_t message_count;				/* renewed: the outbox */
	struct sm_push message[SM_OUTBOX];
	uint32_t push_count;				/* every operation: what it pushed, in order */
	struct sm_push push[SM_PUSHES];
};

struct sm_state_cover { uint8_t key, info; struct sm_list spans; };	/* spans by start, disjoint; their fences do not matter */
struct sm_state_request { uint8_t key, start, end, mode, flags, info; uint32_t req; };

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
void sm_acquire(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, uint8_t start, uint8_t end,
		enum lock_mode mode, uint8_t flags, uint8_t info, struct sm_reply *r);
void sm_withdraw(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint32_t req, struct sm_reply *r);
/* parts by start, disjoint; mode: what is kept. */
void sm_giveback(struct sm_store *s, const struct sm_caller *c, uint8_t key, const struct sm_span *parts, uint32_t part_count,
		 struct sm_reply *r);
void sm_busy(struct sm_store *s, const struct sm_caller *c, uint8_t key, uint8_t host, uint32_t req, struct sm_reply *r);
void sm_renew(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r);
void sm_expire(struct sm_store *s, const struct sm_caller *c, uint8_t victim, uint32_t counter, struct sm_reply *r);
void sm_endgrace(struct sm_store *s, const struct sm_caller *c, struct sm_reply *r);
/* At most one cover for each key, each request once. */
void sm_reassert(struct sm_store *s, const struct sm_caller *c, uint32_t newtoken, uint8_t info, uint32_t maxfence, uint32_t seq,
		 const struct sm_state_cover *covers, unsigned cover_count,
		 const struct sm_state_request *requests, unsigned request_count, struct sm_reply *r);

/* The spans of host's cover within [start, end), cut to it. */
void sm_cover_spans(const struct sm_store *s, uint8_t key, uint8_t host, uint8_t start, uint8_t end, struct sm_list *ret);
/* Whether host has a cover. */
bool sm_has_cover(const struct sm_store *s, uint8_t key, uint8_t host);

/*
 * What must hold after every operation: covers of different hosts conflict at
 * no point, no request waits that could be granted, every host that keeps a
 * blocking request waiting was told (a reply counts as told here, though it may
 * be lost). NULL, or a sentence that says what does not.
 */
const char *sm_check(const struct sm_store *s);

#endif
