/* SPDX-License-Identifier: MIT */
/* What the guard keeps for its agents, and the messages that fill it. Inside guard.c and guard_link.c only. */
#ifndef DLOCK_GUARD_LINK_H
#define DLOCK_GUARD_LINK_H

#include "guard.h"
#include "hash.h"

struct guard_file {
	struct hash_node by_handle, by_inode;
	uint64_t handle;
	bool is_old;		/* kept by a predecessor; handles of two agents may be the same */
	bool done;		/* the ladder has no more to do here */
	int fd;
	struct inode_id id;
	const char *key, *on_lost; /* in the same allocation */
};

struct guard_kept {
	struct hash by_handle, by_inode;
};

/* Both ends, non-blocking, with room for some hundred messages. 0 or -errno. */
int guard_link_pair(int ret_fds[2]);

/* Takes what the agent has sent. 0, or -EPIPE when its end is closed and all is read. */
int guard_kept_receive(struct guard_kept *kept, int fd);

/* The agent is dead: what it kept is now the next one's to take over, and locks it had on these descriptions are dropped. */
void guard_kept_orphan(struct guard_kept *kept);

size_t guard_kept_count(const struct guard_kept *kept);
/* Goes through all; NULL first. */
struct guard_file *guard_kept_walk(const struct guard_kept *kept, const struct guard_file *file);
void guard_kept_free(struct guard_kept *kept);

#endif
