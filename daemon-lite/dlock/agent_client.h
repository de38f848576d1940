/* SPDX-License-Identifier: MIT */
/* The dlock command's side of the agent's socket (shim/wire.h, daemon-lite/query.h). All calls block, within bounds. */
#ifndef DLOCK_AGENT_CLIENT_H
#define DLOCK_AGENT_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "../records.h"

struct refusal;

/*
 * Connects to the agent of a runtime directory and checks that it runs as root
 * or as the user. Returns the descriptor; -ENOENT when no agent answers, else
 * another -errno; both with a sentence in the refusal (EXIT_TROUBLE).
 */
int agent_connect(const char *runtime_dir, struct refusal *refusal);

/*
 * Asks `verb` and collects the answer's records. Returns 0, or -errno (-ENOENT:
 * no agent) with a sentence. Either way ret_answer holds the records that came
 * (record_buf_free): without the store an agent still knows its own host.
 */
int agent_query(const char *runtime_dir, const char *verb, struct record_buf *ret_answer, struct refusal *refusal);

/* Has the agent compile the rules for the configuration with this stamp. 0 or -errno with a sentence. */
int agent_compile_rules(const char *runtime_dir, uint64_t stamp, struct refusal *refusal);

/*
 * Starts `dlockd --on-demand` away from this process (own session, descriptors
 * and LD_PRELOAD not inherited) and waits until it answers, 10 s at most.
 * 0, or -errno with a sentence.
 */
int agent_start(const char *runtime_dir, struct refusal *refusal);

#endif
