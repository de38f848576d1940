/* SPDX-License-Identifier: MIT */
/*
 * Which file is this descriptor, and can its path be believed? A received
 * descriptor's path can be faked by a mount namespace, so the path, looked up
 * in the agent's own namespace, must be the same inode (or, for a deleted
 * file, the descriptor must be on the mount that its directory is on here).
 */
#ifndef DLOCK_IDENTIFY_H
#define DLOCK_IDENTIFY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct inode_id {
	dev_t dev;
	ino_t ino;
	int64_t btime_ns;	/* birth time, 0 = the filesystem has none: an inode number is used again at once */
};

enum identify_kind {
	IDENTIFY_MANAGED,	/* path and id are good */
	IDENTIFY_LOCAL,		/* not a regular file or directory, a memfd, an O_TMPFILE: the kernel's alone */
	IDENTIFY_REFUSED,	/* err and reason say why (ENOLCK) */
};

struct identity {
	struct inode_id id;
	bool directory;
	bool deleted;		/* path is the one it had; " (deleted)" is cut off */
	char path[4096];
	char reason[256];	/* one sentence when refused */
};

/*
 * May block on the descriptor's filesystem unless identify_is_local(fd):
 * then it is called in a helper thread.
 */
enum identify_kind identify_fd(int fd, struct identity *ret_identity);

/* Whether calls on this descriptor (stat, open, flock) never wait for a network or a user-space filesystem. Itself never blocks (statx with AT_STATX_DONT_SYNC, mountinfo's filesystem type, remembered by device). */
bool identify_is_local(int fd);

/*
 * A description of the agent's own for the same inode (opens /proc/self/fd/N again, O_NONBLOCK|O_NOCTTY|O_CLOEXEC), for regular files and
 * directories only. Read-only, or write-only if the agent may only write. records: for reading and writing, if fd is open for writing, the file is no
 * program (it could not be executed) and the agent may; else as above, and a wait in F_WRLCK has to ask (klock.h). Returns the descriptor or -errno.
 */
int identify_reopen(int fd, bool records);

#endif
