/* SPDX-License-Identifier: MIT */
/*
 * The world that the explorer runs: up to three hosts with programs, shim,
 * kernel, agent (the real daemon-lite/cover.c) and a network to one store (the
 * pure model of the scripts). One lock name. A world is plain memory: it can be
 * copied with =, and everything it may do next is a list of steps.
 */
#ifndef TESTS_EXPLORE_WORLD_H
#define TESTS_EXPLORE_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../daemon-lite/cover.h"
#include "explore_store.h"

enum {
	X_HOSTS = 3,
	X_PROGS = 4,		/* for each host; the last one is kept for the epilogue */
	X_EPILOGUE = X_PROGS - 1,
	X_DESCS = 4,		/* descriptions for each host; 0 is the agent's own */
	X_OPS = 6,		/* steps of a program's script */
	X_CALLS = X_PROGS * X_OPS,
	X_CMDS = 24,
	X_PUSHES = 24,
	X_REQUESTS = 12,
	X_TRIES = 12,
	X_STEPS_MAX = 512,
};

/*
 * A script is a list of words: s0 e0 lock description 0 shared or exclusive and
 * wait, ts0 te0 only try, u0 unlock, "hold" stays for ever. At its end the
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
	bool standing;		/* quiet covers are published: programs lock without asking (shim/standing.h) */
	bool async_probe;	/* the probe takes time, its answer comes later */
	bool pushes_in_order;
	bool sockets_first;	/* the agent handles its programs' messages before it starts anything else */
};

enum x_op_kind { OP_END, OP_LOCK, OP_UNLOCK, OP_HOLD };

struct x_op {
	uint8_t kind, mode, try, desc;
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

enum { IN_HELD = 1, IN_DONE, IN_CLOSE };	/* IN_HELD + 4 * mode */
enum { OUT_NOTHING, OUT_GO, OUT_CHECK };

struct x_call {			/* one lock call and its connection */
	uint8_t live;		/* the agent has not seen its end yet */
	uint8_t over;		/* the program's call has returned */
	uint8_t attempt, mode, try, desc;
	uint8_t in[3], in_count; /* to the agent */
	uint8_t out;		/* to the program */
	uint8_t excused;	/* a refusal is right: at some moment of the call somebody held or could */
	uint8_t licensed;	/* told GO, or granted by the store */
	uint8_t nested;		/* shared, and began while this host held shared, which it still does */
	uint8_t standing;	/* by a standing GO, no connection */
	uint8_t moved;		/* which has changed since it was seen */
	uint8_t lapsed;		/* its GO counts no more */
	uint8_t behind;		/* exclusive, and began when the agent knew of somebody elsewhere who waits */
};

enum { HELPER_NONE, HELPER_WAITS, HELPER_WON };
enum { PROBE_NONE, PROBE_ASKED, PROBE_TAKEN, PROBE_OVER };

struct x_host {
	struct cover cover;
	struct cover_request requests[X_REQUESTS];
	struct cover_try tries[X_TRIES];
	uint8_t held[X_DESCS];	/* the kernel: what each description holds */
	uint8_t unsure[X_DESCS]; /* … but the call that took it has not returned */
	uint8_t standing;	/* the mode that is published */
	uint8_t helper, helper_mode, helper_cancelled;
	uint8_t probe, probe_want, probe_held;
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

struct x_world {
	struct x_host host[X_HOSTS];
	struct x_store store;
	uint8_t repeats, breaks, kills, interrupts, idles, offers, lapses, restarts;
	uint8_t violation;
	const char *why;
};

enum x_step_kind {
	STEP_OP, STEP_RECV, STEP_ANSWER, STEP_TAKE, STEP_CONFIRM, STEP_UNDO, STEP_REAP, STEP_AGENT, STEP_STORE, STEP_REPLY, STEP_PUSH,
	STEP_WON, STEP_WIN_TOLD, STEP_WAIT_ENDED, STEP_PROBE, STEP_PROBE_OVER, STEP_PROBED,
	STEP_FAULTS,		/* from here on: what need not happen */
	STEP_REPEAT = STEP_FAULTS, STEP_BREAK, STEP_KILL, STEP_INTERRUPT, STEP_IDLE, STEP_OFFER, STEP_LAPSE, STEP_RESTART,
};

struct x_step {
	uint8_t kind, host, arg;
};

/* 0 or -EINVAL (a script that cannot be read). */
int x_def_make(struct x_def *def, const struct x_scenario *scenario);
void x_world_init(struct x_world *w, const struct x_def *def);
/* All steps possible now; at most X_STEPS_MAX. */
int x_world_steps(const struct x_world *w, const struct x_def *def, struct x_step *ret_steps);
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

/* Used by the parts of the world itself. */
int x_call_of(int p, const struct x_prog *prog);
void x_prog_op(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_receive(struct x_world *w, const struct x_def *def, int h, int p);
void x_prog_answer(struct x_world *w, int h, int p);
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
void x_agent_won(struct x_world *w, const struct x_def *def, int h);
void x_agent_wait_ended(struct x_world *w, const struct x_def *def, int h);
void x_agent_probe(struct x_world *w, int h);
void x_agent_probed(struct x_world *w, const struct x_def *def, int h);
void x_agent_idle(struct x_world *w, const struct x_def *def, int h);
void x_agent_restart(struct x_world *w, const struct x_def *def, int h);
void x_agent_offer_over(struct x_world *w, const struct x_def *def, int h, int call);
/* The GO counts no more; whether the lock that was taken by one may stay. */
void x_agent_lapsed(struct x_world *w, const struct x_def *def, int h, int call);
bool x_agent_stands(struct x_world *w, const struct x_def *def, int h, enum lock_mode mode);
struct x_call *x_call_of_id(struct x_world *w, int h, uint64_t id);
void x_net_store(struct x_world *w, int h);
void x_net_break(struct x_world *w, int h);
bool x_kernel_conflict(const struct x_host *host, int desc, enum lock_mode mode);

#endif
