/* SPDX-License-Identifier: MIT */
/*
 * What the shim knows of its surroundings: where configuration and runtime
 * directory are, the compiled rules, the root directory at the start. Made once,
 * in the constructor or in the first call before it; then read by any thread
 * without a lock.
 */
#ifndef DLOCK_SHIM_STATE_H
#define DLOCK_SHIM_STATE_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../config/rules.h"
#include "standing.h"

enum state_kind {
	STATE_OFF,	/* no configuration: every call is the kernel's */
	STATE_ON,
	STATE_BROKEN,	/* there is a configuration or a runtime directory, and it cannot be used: err, what */
};

struct shim_state {
	enum state_kind kind;
	int err;			/* negative errno */
	const char *what;		/* the file or directory that err is about, and the words for it */
	const char *why;
	char config[PATH_MAX];		/* absolute where that is possible */
	char runtime_dir[PATH_MAX];
	char log[PATH_MAX];
	bool root_known;
	dev_t root_dev;
	ino_t root_ino;

	_Atomic(const struct rules_header *) rules;	/* NULL = none mapped */
	atomic_int readers;		/* calls that look at `rules` right now */
	_Atomic uint64_t compared_s;	/* CLOCK_MONOTONIC_COARSE: the stamp was last compared with the file's */
	_Atomic uint64_t tried_s;	/* the last try to have the rules compiled anew */
	atomic_bool complained;		/* that it failed has been logged */
	_Atomic(const struct standing_table *) standing; /* NULL = not mapped (yet) */
};

enum state_verdict {
	STATE_NO_RULE,	/* the rules are there and none matches */
	STATE_RULE,	/* one matches */
	STATE_NO_RULES,	/* no rules are mapped */
};

/* The state; never NULL, never changes its address but after STATE_BROKEN. */
struct shim_state *state_get(void);

/* Looks again whether a broken state has been mended, at most once a second. Returns the state in force. */
struct shim_state *state_again(struct shim_state *state);

/* Whether the calling thread has another root directory than at the start: its paths then mean other files than the agent's. */
bool state_root_moved(const struct shim_state *state);

/* Whether the mapped rules are those of the configuration file as it is now. Mostly without a system call. */
bool state_rules_fresh(struct shim_state *state);

/*
 * Maps RUNTIME_DIR/rules in place of what is mapped. Returns 0, -ESTALE (they
 * are those of another configuration), or rules_open()'s error; then the old ones stay.
 */
int state_map_rules(struct shim_state *state);

/* The table of standing GOs, or NULL. Mapped at the first call that finds it; it stays the same through restarts of the agent. */
const struct standing_table *state_standing(struct shim_state *state);

/* Whether a rule matches the path (len bytes, as the kernel gives it, " (deleted)" included or not). *ret_stamp: of the rules, 0 = none. */
enum state_verdict state_match(struct shim_state *state, const char *path, size_t len, uint64_t *ret_stamp);

#endif
