/* SPDX-License-Identifier: MIT */
/*
 * What a host does with its cover of one name: the agent's half of the rules
 * (the store's half is store/lua and store/store_model.c). Pure: no I/O, no
 * clock, no thread; the model checker in tests/model runs this very file.
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

#include "../shim/mode.h"

/*
 * The rules that the model checker showed to be needed (docs/DESIGN.md has what happens without each).
 * A build with -DCOVER_MUTABLE can switch one off by setting cover_without, to show that a test notices.
 */
enum cover_rule {
	RULE_NONE = 0,
	RULE_WIN_WITHOUT_GO,	/* a helper's win counts only if no conflicting GO is outstanding */
	RULE_WIN_RISEN_MODE,	/* … and only for the mode wanted now */
	RULE_FENCE_RISES,	/* only a strictly higher fence changes the cover */
	RULE_VOID_FENCE,	/* a fence at or below the highest one given back is void */
	RULE_MARK_FIRST,	/* mark the cover gone, unlock the helper, then send the give-back */
	RULE_LATE_GRANT,	/* a void or late grant still answers its request, or it is asked anew */
	RULE_GRANT_GOES,	/* a grant gives its own request a GO whatever recall is pending */
	RULE_WAITING_MODE,	/* a grant names the strongest waiting mode it conflicts with */
	RULE_EARLY_RECALL,	/* a recall for a fence not known yet is kept until that grant arrives */
	RULE_KNOWN_FENCE,	/* a give-back is sent only for a fence that is known */
	RULE_TRY_BY_MODE,	/* each recall is answered by its own mode */
	RULE_NESTED_SH,		/* held SH here: more SH gets a GO although EX is recalled */
	RULE_TRY_BUSY_GO,	/* a try is answered busy at once when a program with a GO waits here */
	RULE_RECALL_BLOCKS,	/* conflicting requests here join the store's queue behind a recall */
	RULE_FLOOR,		/* a reduction leaves what the probe was not asked for */
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

struct cover_ops {
	void (*answer)(void *owner, uint64_t id, enum cover_answer answer);
	/* Store: acquire for this request; may be called again for the same id (idempotent). */
	void (*ask)(void *owner, uint64_t id, enum lock_mode mode, bool try);
	void (*withdraw)(void *owner, uint64_t id);
	void (*give_back)(void *owner, enum lock_mode keep, uint64_t fence);
	void (*busy)(void *owner, const char *host, uint64_t req);
	/* Kernel: ask what others hold (see klock_probe); answered by cover_probed(), later or right after this event. */
	void (*probe)(void *owner, enum lock_mode want);
	/* Kernel: wait for a lock of this mode on the agent's own description; ends by cover_won() or cover_wait_ended(). */
	void (*wait)(void *owner, enum lock_mode mode);
	/* Stop waiting; ends by cover_wait_ended() once the helper is gone and holds nothing. */
	void (*wait_cancel)(void *owner);
	/* Drop the lock the helper has won; called from inside cover_won() only. */
	void (*wait_unlock)(void *owner);
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
	enum lock_mode mode;
	bool try;
	bool checked;		/* what the description holds is known */
	bool asked;		/* the store was asked for it … */
	bool twice;		/* … and again: when it is granted, another entry of it may wait there */
	enum cover_request_state state;
};

struct cover_try {		/* a non-blocking request of another host, to be answered */
	char host[COVER_HOST_MAX];
	uint64_t req;
	uint64_t fence;
	enum lock_mode mode;
	bool asked;		/* a probe has begun since it came */
};

enum cover_wait { WAIT_NONE, WAIT_RUNNING, WAIT_ENDING };

struct cover {
	const struct cover_ops *ops;
	void *owner;
	enum lock_mode mode;	/* what the store lets this host's programs lock */
	uint64_t fence;		/* of the last change of the cover that is known */
	uint64_t void_fence;	/* the highest fence given back */
	bool fence_known;	/* false: a downgrade is on its way, its new fence not back yet */
	enum lock_mode recall;	/* strongest mode that blocking requests of other hosts want */
	uint64_t early_fence;	/* a recall that came before its grant */
	enum lock_mode early_recall;
	bool probing, idle_check;
	bool probe_stale;	/* a lock may have been taken since the probe began: its answer does not count */
	enum lock_mode probe_want;
	enum cover_wait wait;
	enum lock_mode wait_mode;
	struct cover_request *requests;	/* in order of arrival */
	size_t request_count, request_cap;
	struct cover_try *tries;
	size_t try_count, try_cap;
};

/* void_floor: every fence up to it is void for a cover that is made anew (the highest fence the agent ever knew). */
void cover_init(struct cover *cover, const struct cover_ops *ops, void *owner, uint64_t void_floor);
void cover_destroy(struct cover *cover);
/* A copy for the model checker; the copy's owner and ops are the same. 0 or -ENOMEM. */
int cover_copy(struct cover *dst, const struct cover *src);

/* A local program asks. 0 or -ENOMEM. */
int cover_request(struct cover *cover, uint64_t id, enum lock_mode mode, bool try);
/* The answer to CHECK. A description that holds the asked mode already makes no call: that is cover_gone(). A flock
 * description that held SH and wants EX has dropped it by now. */
void cover_held(struct cover *cover, uint64_t id, enum lock_mode held);
/* The real call has returned (either way), or may come later but will be asked about then (cover_stands). */
void cover_done(struct cover *cover, uint64_t id);
/* A program took a lock of this mode in the kernel by a GO that no longer counts: whether it may keep it. */
bool cover_stands(struct cover *cover, enum lock_mode mode);
/* The request is given up: cancelled, its program gone, failed. */
void cover_gone(struct cover *cover, uint64_t id);

/* From the store; id 0: a change without a request (give-back's reply, re-assertion, end of grace, resumed). */
void cover_granted(struct cover *cover, uint64_t id, enum lock_mode mode, uint64_t fence, enum lock_mode waiting);
void cover_refused(struct cover *cover, uint64_t id);	/* busy */
/* It waits in the store. again: the store may have been asked twice, and have granted the first. */
void cover_queued(struct cover *cover, uint64_t id, bool again);
void cover_recalled(struct cover *cover, uint64_t fence, enum lock_mode mode);
int cover_tried(struct cover *cover, uint64_t fence, enum lock_mode mode, const char *host, uint64_t req);

/* From the kernel. held: what others hold, as klock_probe() says for the mode asked. */
void cover_probed(struct cover *cover, enum lock_mode held);
void cover_won(struct cover *cover);
void cover_wait_ended(struct cover *cover);

/* It has lain idle: give it back if the kernel agrees and nothing goes on. */
void cover_idle(struct cover *cover);
/* The session is lost: the cover is gone, nothing is sent. Requests stay and are asked anew by cover_ask_again(). */
void cover_lost(struct cover *cover);
void cover_ask_again(struct cover *cover);

/* Whether nothing depends on it any more and it can be destroyed. */
bool cover_unused(const struct cover *cover);
/* The mode that any program here may lock without asking: the cover's, while nobody elsewhere wants it, no program here waits for an answer
 * or in the kernel (it would be passed by), and the agent is not in the kernel itself. It must be taken back (shim/standing.h) before the probe that an event has asked for. */
enum lock_mode cover_standing(const struct cover *cover);
/* Whether a program has a GO (or is about to) or waits for an answer. */
bool cover_has_requests(const struct cover *cover);

#endif
