/* SPDX-License-Identifier: MIT */
/*
 * The world that the explorer runs: up to three hosts with programs, shim,
 * kernel, agent (the real daemon-lite/cover*.c) and a network to one store (the
 * pure model of the scripts). One lock: a line of X_POINTS points, which a flock
 * takes wholly and record locks in parts. A world is plain memory, and everything it may
 * do next is a list of steps.
 */
#ifndef TESTS_EXPLORE_WORLD_H
#define TESTS_EXPLORE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../daemon-lite/cover.h"
#include "../../daemon-lite/store/store.h"
#include "explore_store.h"

enum {
	X_HOSTS = 3,
	X_PROGS = 4,		/* for each host; the last one is kept for the epilogue */
	X_EPILOGUE = X_PROGS - 1,
	X_DESCS = 3,		/* descriptions (owners of record locks) for each host */
	X_OPS = 6,		/* steps of a program's script */
	X_CALLS = X_PROGS * X_OPS,
	X_CMDS = 48,
	X_PUSHES = 36,
	X_RECALLS = 24,
	X_QUESTIONS = 40,
	X_HELPERS = 24,
	X_REQUESTS = 12,
	X_TRIES = 12,
	X_STEPS_MAX = 512,
};

/*
 * A script is a list of words: s0 e0 lock description 0 shared or exclusive and
 * wait, ts0 te0 only try, u0 unlock, "hold" stays for ever. e0:13 is about the part
 * [1, 3) of the line, without it a word is about all of it. At its end the
 * program exits. Programs of a host that name the same description share it,
 * as after a fork. The other fields are how often each fault may happen.
 */
struct x_scenario {
	const char *name;
	const char *script[X_HOSTS][X_PROGS - 1];
	uint8_t repeats;	/* a push comes twice */
	uint8_t breaks;		/* the connection breaks; unanswered commands are sent again */
	uint8_t kills;		/* kill -9 */
	uint8_t interrupts;	/* EINTR while waiting */
	uint8_t idles;		/* the linger time is over */
	uint8_t offers;		/* an offer is not taken in time */
	uint8_t lapses;		/* a GO grows too old before its lock is there */
	uint8_t restarts;	/* the agent dies; the next one resumes its session */
	uint8_t passes;		/* a waiting owner is found to hold something elsewhere that others wait for */
	bool records;		/* record locks, not flock */
	bool remote;		/* the agent cannot look whether a program will wait in the kernel, and keeps all for it that it was told GO for */
	uint8_t voids;		/* so many parts that were given back are kept exactly (0: as many as there are) */
	uint8_t seen;		/* answers of the kernel: 0 no more than asked, 1 all the free room around, 2 now this, now that */
	bool standing;		/* quiet covers are published: programs lock without asking (shim/standing.h) */
	bool async_probe;	/* the probe takes time, its answer comes later */
	bool pushes_in_order;
	bool sockets_first;	/* the agent handles its programs' messages before it starts anything else */
};

enum x_op_kind { OP_END, OP_LOCK, OP_UNLOCK, OP_HOLD };

struct x_op {
	uint8_t kind, mode, try, desc, start, end;
};

/* A scenario made ready to run. */
struct x_def {
	const struct x_scenario *scenario;
	int hosts;
	struct x_op ops[X_HOSTS][X_PROGS][X_OPS + 1];
	uint8_t refs[X_HOSTS][X_DESCS];	/* bit of each program that has this description open */
};

/* P_STANDING: has seen a standing GO; P_TOOK: has a lock that is not confirmed; P_UNDO: must give it up. */
enum x_prog_state { P_READY, P_WAITS, P_LOOKED, P_KERNEL, P_STANDING, P_TOOK, P_UNDO, P_DYING, P_OVER, P_HOLDS, P_ABSENT };

struct x_prog {
	uint8_t state, pc, looked, refused;
};

enum { IN_HELD = 1, IN_DONE, IN_CLOSE };	/* IN_HELD + 4 * what was seen: a mode; record locks: a bit for each point held */
enum { OUT_NOTHING, OUT_GO, OUT_CHECK };

struct x_call {			/* one lock call and its connection */
	uint8_t live;		/* the agent has not seen its end yet */
	uint8_t over;		/* the program's call has returned */
	uint8_t attempt, mode, try, desc, start, end;
	uint8_t in[3], in_count; /* to the agent */
	uint8_t out;		/* to the program */
	uint8_t excused;	/* a refusal is right: at some moment of the call somebody held or could */
	uint8_t licensed;	/* told GO, or granted by the store */
	uint8_t nested;		/* shared, and began while this host held shared all of it, which it still does */
	uint8_t standing;	/* by a standing GO, no connection */
	uint8_t moved;		/* which has changed since it was seen */
	uint8_t lapsed;		/* its GO counts no more */
	uint8_t again;		/* a lock that it took by such a GO was undone: the next one counts until it is done */
	uint8_t behind;		/* exclusive, and began when the agent knew of somebody elsewhere who waits */
};

/* HELPER_HAS: for an instant. */
enum { HELPER_NONE, HELPER_WAITS, HELPER_HAS, HELPER_OVER };
enum { PROBE_NONE, PROBE_ASKED, PROBE_TAKEN, PROBE_OVER };

struct x_helper {
	uint8_t state, start, end, mode, cancelled;
};

/* A cover between two events: what of it can change, in few bytes, in the order of its arrays. */
struct x_cover {
	uint8_t top_fence, void_fence, probing, idle_check, probe_stale;
	uint8_t span_count, void_count, recall_count, question_count, request_count, try_count;
	struct x_span spans[X_POINTS], voids[X_POINTS];
	struct x_recall { struct x_span wanted; uint8_t dropped, wait, slot, wait_start, wait_end, wait_mode; } recalls[X_RECALLS];
	struct x_question { uint8_t start, end, from, to, want, any, demand, seen_start, seen_end; } questions[X_QUESTIONS];
	struct x_request { uint16_t id; uint8_t start, end, mode, try, checked, stake, asked, twice, state, zero; } requests[X_REQUESTS];
	struct x_try { uint16_t req; struct x_span wanted; uint8_t host, asked, over, zero; } tries[X_TRIES];
};

struct x_host {		/* see x_world_copy() before anything is put behind the calls */
	struct x_cover cover;
	uint8_t held[X_DESCS][X_POINTS];	/* the kernel: what each description holds */
	uint8_t sure[X_DESCS][X_POINTS];	/* … of which this was taken by calls that have returned */
	uint8_t standing;	/* the mode that is published */
	uint8_t probe, probe_mode;	/* mode: a flock probe's own lock, for an instant */
	uint8_t probe_held[X_POINTS];	/* the answer under way */
	struct x_helper helpers[X_HELPERS];
	uint8_t cmd_count, push_count;
	struct x_prog progs[X_PROGS];
	struct x_call calls[X_CALLS];
	struct x_cmd cmds[X_CMDS];
	struct x_push pushes[X_PUSHES];
};

enum x_violation {
	X_FINE,
	X_OVERLAP,	/* two hosts hold */
	X_REFUSED,	/* a try was refused and nobody held */
	X_HANG,		/* nothing can happen any more and somebody waits without reason */
	X_LIVELOCK,	/* it never ends */
	X_OVERTAKEN,	/* a later call passed one that the agent knew to wait */
	X_BROKEN,	/* an operation that makes no sense */
	X_VIOLATIONS,
};

enum { X_FAULTS = 9 };

struct x_world {
	struct x_host host[X_HOSTS];
	struct x_store store;
	uint8_t repeats, breaks, kills, interrupts, idles, offers, lapses, restarts, passes;	/* X_FAULTS of them */
	uint8_t violation;
	const char *why;
};

enum x_step_kind {
	STEP_OP, STEP_RECV, STEP_ANSWER, STEP_TAKE, STEP_CONFIRM, STEP_UNDO, STEP_REAP, STEP_PASS, STEP_WILL_WAIT, STEP_AGENT, STEP_STORE, STEP_REPLY,
	STEP_PUSH, STEP_WON, STEP_WON_OVER, STEP_WAIT_ENDED, STEP_PROBE, STEP_PROBE_OVER, STEP_PROBED,
	STEP_FAULTS,		/* from here on: what need not happen */
	STEP_REPEAT = STEP_FAULTS, STEP_BREAK, STEP_KILL, STEP_INTERRUPT, STEP_IDLE, STEP_OFFER, STEP_LAPSE, STEP_RESTART, STEP_PASS_ON,
};

struct x_step {
	uint8_t kind, host, arg;
};

/* 0 or -EINVAL (a script that cannot be read). */
int x_def_make(struct x_def *def, const struct x_scenario *scenario);
void x_world_init(struct x_world *w, const struct x_def *def);
/* All steps possible now; at most X_STEPS_MAX. */
int x_world_steps(const struct x_world *w, const struct x_def *def, struct x_step *ret_steps);
/* dst is another world; what is beyond its arrays' counts is left as it was. */
void x_world_copy(struct x_world *dst, const struct x_world *src);
bool x_world_possible(const struct x_world *w, const struct x_def *def, struct x_step step);
/* Does one step and checks overlap and refusal: w->violation. */
void x_world_do(struct x_world *w, const struct x_def *def, struct x_step step);
/* Nothing but faults can happen: who still waits without a reason? Sets w->violation. */
void x_world_check_end(struct x_world *w, const struct x_def *def);
/* Gives the epilogue's program of a host one lock call and an exit. */
void x_world_epilogue(struct x_world *w, struct x_def *def, int host, bool try);
/* A number that is the same for states that behave the same. */
uint64_t x_world_hash(const struct x_world *w, const struct x_def *def);

/* Readable lines of what happens, while set. */
extern bool x_trace;
void x_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern const char *const x_mode_names[];
/* A list in words, for x_say(); a static buffer, one of four. */
const char *x_list_text(const struct x_list *list);

/* Used by the parts of the world itself. */
static inline bool x_overlaps(uint8_t a_start, uint8_t a_end, uint8_t b_start, uint8_t b_end)
{
	return a_start < b_end && b_start < a_end;
}
int x_call_of(int p, const struct x_prog *prog);
void x_prog_op(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_receive(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_answer(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_take(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_confirm(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_undo(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_kill(struct x_world *w, int h, int p);
void x_prog_interrupt(struct x_world *w, int h, int p);
void x_prog_reap(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_refusals(struct x_world *w, const struct x_def *def);
void x_check_step(struct x_world *w, const struct x_def *def);
void x_world_fail(struct x_world *w, enum x_violation violation, const char *why);
void x_agent_request(struct x_world *w, const struct x_def *def, int h, int call);
void x_agent_receive(struct x_world *w, const struct x_def *def, int h, int call);
void x_agent_reply(struct x_world *w, const struct x_def *def, int h);
void x_agent_push(struct x_world *w, const struct x_def *def, int h, int i, bool keep);
void x_agent_wait_ended(struct x_world *w, const struct x_def *def, int h, int slot);
void x_agent_probe(struct x_world *w, const struct x_def *def, int h);
void x_agent_probed(struct x_world *w, const struct x_def *def, int h);
void x_agent_idle(struct x_world *w, const struct x_def *def, int h);
void x_agent_restart(struct x_world *w, const struct x_def *def, int h);
void x_agent_offer_over(struct x_world *w, const struct x_def *def, int h, int call);
/* Whether a call waits in the store's queue behind others. */
bool x_agent_queues(const struct x_host *host, int call);
void x_agent_pass(struct x_world *w, const struct x_def *def, int h, int call);
/* The GO counts no more; whether the lock that was taken by one may stay. */
void x_agent_lapsed(struct x_world *w, const struct x_def *def, int h, int call);
bool x_agent_stands(struct x_world *w, const struct x_def *def, int h, const struct x_call *call);
struct x_call *x_call_of_id(struct x_world *w, int h, uint64_t id);
void x_net_store(struct x_world *w, const struct x_def *def, int h);
void x_net_break(struct x_world *w, int h);
/* Whether a lock of anybody but this description (-1: of any description) stands against `mode` there; agent: its own for an instant too. */
bool x_kernel_conflict(const struct x_host *host, int desc, uint8_t start, uint8_t end, enum lock_mode mode, bool agent);
/* The cover's parts as its arrays have them, and back. */
void x_cover_unpack(const struct x_cover *from, struct cover *to);
void x_cover_pack(struct x_world *w, const struct cover *from, struct x_cover *to);
struct extent x_extent(uint8_t start, uint8_t end);
uint8_t x_point(uint64_t offset);

#endif
