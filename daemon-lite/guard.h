/* SPDX-License-Identifier: MIT */
/*
 * The guard: a small parent of the agent, own session, memory locked. It
 *  - starts the agent and, when it dies or is silent for T/6, kills it and starts another;
 *  - keeps a copy of the agent's descriptions (one for each managed inode) so that the next agent
 *    can ask the kernel exactly what is still held, also for deleted files;
 *  - runs the ladder itself when no agent is up: TERM at failing, KILL at kill, repeated until the kernel shows the names free.
 *
 * Guard and agent share one page (struct guard_page, memfd) and one SOCK_SEQPACKET pair.
 */
#ifndef DLOCK_GUARD_H
#define DLOCK_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "identify.h"

struct guard_page {		/* times CLOCK_BOOTTIME ns; written by the agent */
	_Atomic uint64_t alive_ns;	/* main loop's last round (every T/24) */
	_Atomic uint64_t last_good_ns;	/* 0 = no session: no ladder */
	_Atomic uint32_t ttl_ms;
	_Atomic uint32_t quit;		/* 1 = the agent ends on purpose: the guard ends too */
	_Atomic uint32_t held;		/* covers held */
};

/* What happens to holders at the end of a lease. */
enum on_lost { ON_LOST_KILL, ON_LOST_SIGNAL, ON_LOST_LOG };
struct on_lost_rule { enum on_lost what; int sig; };
/* "kill", "log", "signal:TERM"/"signal:SIGTERM"/"signal:15". 0 or -EINVAL. Pure. */
int on_lost_parse(const char *text, struct on_lost_rule *ret_rule);

/* --- the agent's side --- */
struct guard_link {
	int fd;			/* SOCK_SEQPACKET to the guard. EPOLLHUP: the guard is dead. The agent then logs it and goes on with its own ladder: it still has the runtime lock and the listeners. */
	struct guard_page *page;
	int listen_fd, abstract_fd; /* what runtime_listen gave, inherited; -1 = none. The guard keeps them open: clients queue while an agent is started again. */
	struct guard_kept *kept;	/* the predecessor's, until guard_take_over */
	struct guard_out *out_first, *out_last; /* messages the socket had no room for */
};

/* Gives the guard a copy of fd for (key, id). Never blocks: 0 or -errno. */
int guard_keep(struct guard_link *link, uint64_t handle, int fd, const struct inode_id *id, const char *key, const char *on_lost);
int guard_drop(struct guard_link *link, uint64_t handle);
/* Sends what the socket had no room for. Call it in each round of the loop; costs nothing when there is nothing. */
void guard_flush(struct guard_link *link);

/* What a predecessor left: calls fn for each kept descriptor (now the caller's) and forgets the handles. At start only, always, exactly once; may block up to 1 s.
 * The predecessor's own locks on these descriptions are gone already. fn keeps those it wants to keep by guard_keep: none is unguarded in between. The strings live only for the call. Returns how many. */
int guard_take_over(struct guard_link *link, void (*fn)(void *arg, int fd, const struct inode_id *id, const char *key, const char *on_lost), void *arg);

/*
 * Becomes the guard: forks the agent (agent_main runs in the child with its link; its return value is its exit code)
 * and stays as its parent until the agent quits on purpose (page->quit = 1), or SIGTERM/SIGINT (passed on,
 * as SIGHUP is; the agent then quits). An agent that ends otherwise is started again; but for GUARD_EXIT_CONFIG and
 * GUARD_EXIT_TEMPFAIL from the first one before it ever wrote alive_ns, or while the guard keeps nothing: then its exit
 * code is the guard's.
 * Must be called with one thread only. Returns the process's exit code.
 *
 * The agent writes alive_ns from its first round on, at least each T/24, and ttl_ms before that. last_good_ns is what the
 * predecessor left until the new agent has a session of its own.
 */
#define GUARD_EXIT_CONFIG 78	/* EX_CONFIG */
#define GUARD_EXIT_TEMPFAIL 75	/* EX_TEMPFAIL */
int guard_run(int (*agent_main)(void *arg, struct guard_link *link), void *arg, int listen_fd, int abstract_fd);

/* --- the ladder, used by both sides; pure timing in ladder_step --- */
enum ladder_step { LADDER_GOOD, LADDER_FAILING, LADDER_KILL };
/* Which step applies now. last_good 0 = LADDER_GOOD. Pure. */
enum ladder_step ladder_at(uint64_t now_ns, uint64_t last_good_ns, uint32_t ttl_ms);

/* The key's beginning says which locks: "r:" record locks (POSIX and OFD, anywhere in the file), else flocks. */
struct ladder_file { int fd; struct inode_id id; const char *key; struct on_lost_rule on_lost; bool done; };
/* The process whose descriptions are the caller's own side: the guard for the agent, the agent for the guard. It is never a holder. */
void ladder_set_skip(pid_t pid);
/* One pass: finds the holders of each file (probing the kernel with fd), signals them as the step and the file's rule say, and sets `done` where
 * the kernel shows it free (or, at the kill step, the rule asks for nothing more); files that are `done` are left alone. A holder gets SIGTERM or the rule's signal once, however
 * often this is called; SIGKILL in each pass. LADDER_GOOD forgets who was signalled. Any thread; may take as long as a walk through /proc. Logs each holder it signals, and loudly a file that is locked with no holder found. Returns how many are still held. */
size_t ladder_pass(enum ladder_step step, struct ladder_file *files, size_t count);

#endif
