/* SPDX-License-Identifier: MIT */
/*
 * What a host does with its cover of one lock: the agent's half of the rules
 * (the store's half is store/lua and store/store_model.c). Pure: no I/O, no
 * clock, no thread; the model checker in tests/model runs this very file.
 *
 * A lock is a line of bytes (shim/extent.h), and a cover is what the store lets
 * this host's programs lock of it: spans, each with a mode and a fence. Each point
 * of the line follows the rules for itself; a request wants all its points at once.
 * A flock is a request for the whole line.
 *
 * Events go in by the cover_…() functions; what has to be done comes out by
 * the operations in struct cover_ops, which must not call back into the cover.
 *
 * A request (one lock call of a local program) lives here from cover_request()
 * until it is answered finally (BUSY, HELD), or ends by cover_done() or
 * cover_gone(). A request that was told GO counts as holding until then.
 */
#ifndef DLOCK_COVER_H
#define DLOCK_COVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../shim/extent.h"
#include "../shim/mode.h"
#include "spans.h"

/*
 * The rules that the model checker showed to be needed (docs/DESIGN.md has what happens without each).
 * A build with -DCOVER_MUTABLE can switch one off by setting cover_without, to show that a test notices.
 */
enum cover_rule {
	RULE_NONE = 0,
	RULE_FENCE_RISES,	/* only a strictly higher fence changes the cover */
	RULE_VOID_FENCE,	/* a fence at or below the highest one given back is void */
	RULE_LATE_GRANT,	/* a void or late grant still answers its request, or it is asked anew */
	RULE_GRANT_GOES,	/* a grant gives its own request a GO whatever recall is pending */
	RULE_WAITING_MODE,	/* a grant names the strongest waiting mode it conflicts with */
	RULE_EARLY_RECALL,	/* a recall for a fence not known yet is kept until that grant arrives */
	RULE_KNOWN_FENCE,	/* a give-back is sent only for a fence that is known */
	RULE_TRY_BY_MODE,	/* each recall is answered by its own mode */
	RULE_NESTED_SH,		/* held SH here: more SH gets a GO although EX is recalled */
	RULE_TRY_BUSY_GO,	/* a try is answered busy at once when a program with a GO waits here */
	RULE_RECALL_BLOCKS,	/* conflicting requests here join the store's queue behind a recall */
	RULE_FLOOR,		/* a reduction leaves what the probe was not asked for, and what outstanding GOs allow */
	RULE_STAKE,		/* an owner that holds a part already passes a recall, and waiting requests of other hosts */
	RULE_SEEN,		/* a reduction leaves what the probe has not looked at */
	RULE_EACH_PART,		/* a part that is wanted inside another one is waited for by itself */
	RULE_CUT,		/* a recall is cut to the parts of the cover that it stands against */
	RULE_GO_PART,		/* record locks: a GO keeps its own mode of its own part, not the whole of what is recalled */
	RULE_HELPER_TRY,	/* record locks: no helper starts while a try is in the kernel */
	RULE_TRY_OVER,		/* a try is kept while a grant may be late that stands against it */
	RULE_IDLE_ALONE,	/* an idle cover is not asked about beside something else */
	RULE_PROBE_STALE,	/* a probe's answer does not count if a GO has ended since it began */
	RULE_TRY_ASKED,		/* a probe that began before a try came does not refuse it */
	RULE_TRY_NEWEST,	/* a try told again counts under the newest fence */
	RULE_SAME_FENCE,	/* who waits, said again under the present fence, is added to the recall */
	RULE_WEAKEST_WAIT,	/* a helper waits for the weakest lock that lets the cover be reduced */
	RULE_TWICE,		/* a request that was asked for twice is withdrawn when it is granted */
	RULE_STANDING_QUIET,	/* a standing GO ends before the agent asks the kernel */
	RULE_STANDS,		/* a lock taken by a GO that counts no more stays only under a cover that suffices */
	RULE_COUNT,
};
#ifdef COVER_MUTABLE
extern enum cover_rule cover_without;
#endif

enum cover_answer {
	ANSWER_GO,	/* make the real call */
	ANSWER_CHECK,	/* say what the description holds; answered by cover_held() */
	ANSWER_BUSY,	/* somebody holds it: EWOULDBLOCK; the request is over */
};

#define COVER_HOST_MAX 40	/* bytes of a host's id with NUL */

/* What the kernel is asked about: what programs here hold within `at`. */
struct cover_question {
	struct extent at;
	struct extent bounds;	/* contains `at`; the free room around `at` up to here is welcome in the answer */
	enum lock_mode want;	/* EX: everything; SH: exclusive locks only (shared ones may be left out) */
	bool any;		/* only whether anything is held at all matters: then all of `at` may be said to be held exclusively */
	enum lock_mode demand;	/* the cover's own note: what somebody elsewhere wants there; NONE: nobody */
	struct extent seen;	/* the answer: contains `at`, within bounds; all locks within it are among `held` */
};

struct cover_ops {
	void (*answer)(void *owner, uint64_t id, enum cover_answer answer);
	/* Store: acquire for this request; may be called again for the same id (idempotent). flags: STORE_TRY, STORE_PASS (store.h). */
	void (*ask)(void *owner, uint64_t id, struct extent at, enum lock_mode mode, unsigned flags);
	void (*withdraw)(void *owner, uint64_t id);
	/* Each part is reduced to its mode. */
	void (*give_back)(void *owner, const struct lock_span *parts, size_t count);
	void (*busy)(void *owner, const char *host, uint64_t req);
	/* Kernel: answer cover->questions; then cover_probed(), later or right after this event. */
	void (*probe)(void *owner);
	/*
	 * Kernel: wait, on a description of the agent's own, until nobody's lock within `at` conflicts with `mode`, holding nothing afterwards.
	 * Ends by cover_wait_ended(slot): freed, cancelled or failed, which makes no difference: the kernel is asked again.
	 */
	void (*wait)(void *owner, unsigned slot, struct extent at, enum lock_mode mode);
	void (*wait_cancel)(void *owner, unsigned slot);
};

enum cover_request_state {
	REQUEST_NEW,		/* not decided yet: a probe or the end of a helper comes first */
	REQUEST_CHECK,		/* the shim was asked what its description holds */
	REQUEST_SETTLE,		/* decided by the next probe */
	REQUEST_ASKED,		/* the store decides */
	REQUEST_READY,		/* a GO that waits until the agent itself holds nothing in the kernel */
	REQUEST_GO,
};

struct cover_request {
	uint64_t id;
	struct extent at;
	enum lock_mode mode;
	bool try;
	bool checked;		/* what the description holds is known */
	bool stake;		/* record locks: its owner holds some part of the file already */
	bool asked;		/* the store was asked for it … */
	bool twice;		/* … and again: when it is granted, another entry of it may wait there */
	enum cover_request_state state;
};

struct cover_try {		/* a non-blocking request of another host, to be answered */
	char host[COVER_HOST_MAX];
	uint64_t req;
	struct lock_span wanted;
	bool asked;		/* a probe has begun since it came */
	bool over;		/* nothing that is known here stands against it: it is kept for a grant that may be late */
};

enum cover_wait_state { WAIT_NONE, WAIT_RUNNING, WAIT_ENDING };

struct cover_recall {		/* a part that blocking requests of other hosts want, under this fence of ours */
	struct lock_span wanted;
	bool dropped;		/* over; stays until its wait has ended */
	enum cover_wait_state wait;	/* a helper waits for one of the locks that stand against it */
	unsigned slot;
	struct extent wait_at;
	enum lock_mode wait_mode;
};

struct cover {
	const struct cover_ops *ops;
	void *owner;
	/*
	 * Record locks: the kernel can be asked without a lock being taken for an instant (F_OFD_GETLK), and the agent's own
	 * helpers are not seen by its own questions. flock: asking and waiting are locks that a program's try may meet.
	 */
	bool gentle;
	struct lock_spans spans; /* what the store lets this host's programs lock; fence 0: lowered, its new fence is not back yet */
	uint64_t top_fence;	/* the highest fence known */
	uint64_t void_fence;	/* up to here every fence is void wherever nothing is covered … */
	struct lock_spans voids; /* … and at these parts up to the fence that was given back there last */
	size_t voids_max;	/* with more of them void_fence rises instead */
	struct cover_recall *recalls;
	size_t recall_count, recall_cap;
	bool probing, idle_check;
	bool probe_stale;	/* a lock may have been taken since the probe began: its answer does not count */
	struct cover_question *questions;	/* of the probe that runs, or ran last */
	size_t question_count, question_cap;
	struct cover_request *requests;	/* in order of arrival */
	size_t request_count, request_cap;
	struct cover_try *tries;
	size_t try_count, try_cap;
	bool failed;		/* out of memory: something was not done; the next event tries again */
};

/* void_floor: every fence up to it is void for a cover that is made anew (the highest fence the agent ever knew). */
void cover_init(struct cover *cover, const struct cover_ops *ops, void *owner, bool gentle, uint64_t void_floor);
void cover_destroy(struct cover *cover);
/* A copy for the model checker; the copy's owner and ops are the same. 0 or -ENOMEM. */
int cover_copy(struct cover *dst, const struct cover *src);

/* A local program asks. 0 or -ENOMEM. */
int cover_request(struct cover *cover, uint64_t id, struct extent at, enum lock_mode mode, bool try);
/*
 * The answer to CHECK. flock: a description that holds the asked mode already makes no call: that is cover_gone(); one
 * that held SH and wants EX has dropped it by now. Record locks: the strongest mode that the request's owner holds anywhere in this file
 * (within the request itself it would be taken for somebody else's).
 */
void cover_held(struct cover *cover, uint64_t id, enum lock_mode held);
/* The real call has returned (either way), or may come later but will be asked about then (cover_stands). */
void cover_done(struct cover *cover, uint64_t id);
/* A program took a lock of this mode in the kernel by a GO that no longer counts: whether it may keep it. */
bool cover_stands(struct cover *cover, struct extent at, enum lock_mode mode);
/* The request's owner turns out to hold something, here or elsewhere, that others may be waiting for: it must not wait behind them. */
void cover_pass(struct cover *cover, uint64_t id);
/* The request is given up: cancelled, its program gone, failed. */
void cover_gone(struct cover *cover, uint64_t id);

/* From the store, as in store.h; id 0: a change without a request (give-back's reply, re-assertion, end of grace, resumed). */
void cover_granted(struct cover *cover, uint64_t id, const struct lock_span *spans, size_t count,
		   const struct lock_span *waiting, size_t waiting_count);
void cover_refused(struct cover *cover, uint64_t id);	/* busy */
/* It waits in the store. again: the store may have been asked twice, and have granted the first. */
void cover_queued(struct cover *cover, uint64_t id, bool again);
void cover_recalled(struct cover *cover, const struct lock_span *waiting, size_t count);
int cover_tried(struct cover *cover, const struct lock_span *wanted, const char *host, uint64_t req);

/* From the kernel. held: what others hold within the questions' `seen`, each point's strongest mode. */
void cover_probed(struct cover *cover, const struct lock_spans *held);
void cover_wait_ended(struct cover *cover, unsigned slot);

/* It has lain idle: give it back if the kernel agrees and nothing goes on. */
void cover_idle(struct cover *cover);
/* The session is lost: the cover is gone, nothing is sent. Requests stay and are asked anew by cover_ask_again(). */
void cover_lost(struct cover *cover);
void cover_ask_again(struct cover *cover);

/* Whether nothing depends on it any more and it can be destroyed. */
bool cover_unused(const struct cover *cover);
/* The mode in which any program here may lock any part without asking: the cover's weakest, while nobody elsewhere wants it, no program here waits for an answer
 * or in the kernel (it would be passed by), and the agent is not in the kernel itself. It must be taken back (shim/standing.h) before the probe that an event has asked for. */
enum lock_mode cover_standing(const struct cover *cover);
/* The flags with which the store is asked for it: STORE_TRY, STORE_PASS (store.h). */
unsigned cover_flags(const struct cover_request *request);
/* Whether all of `at` is covered in this mode or a stronger one. */
bool cover_suffices(const struct cover *cover, struct extent at, enum lock_mode mode);
/* The strongest mode in which any part is covered. */
enum lock_mode cover_mode(const struct cover *cover);
/* Whether another host waits for something covered here. */
bool cover_is_recalled(const struct cover *cover);
/* Whether a program has a GO (or is about to) or waits for an answer. */
bool cover_has_requests(const struct cover *cover);

#endif
