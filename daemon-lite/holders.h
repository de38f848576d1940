/* SPDX-License-Identifier: MIT */
/*
 * Who holds a lock, as the kernel shows it: `lock:` lines of /proc/PID/fdinfo/N
 * (exact for flock, heirs of the description included), then, if the name is
 * still locked and nobody was found, mappings of the inode. Somebody who merely
 * has the file open is not a holder. Used by status, by the agent's ladder and by
 * the guard's; no malloc per holder beyond the callback's own.
 */
#ifndef DLOCK_HOLDERS_H
#define DLOCK_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "../shim/extent.h"
#include "../shim/mode.h"
#include "identify.h"

/* Which locks on which inode. */
struct holder_file {
	struct inode_id id;
	bool records;		/* POSIX and OFD locks; else flocks */
};

struct holder {
	pid_t pid;
	size_t inode;		/* index into the files given */
	enum lock_mode mode;
	struct extent at;	/* record locks: one of them; a process has one `holder` for each of its locks. flock: EXTENT_ALL */
	bool ofd;		/* owned by an open file description */
	char command[64];	/* /proc/PID/comm */
	bool mapping;		/* found by its mapping only; mode is unknown (EX) */
};

struct holder_lock {		/* as the kernel writes it */
	bool record, ofd;	/* neither: a flock */
	enum lock_mode mode;
	struct extent at;
	dev_t dev;		/* the superblock's: on btrfs, and on some overlays, not that of stat() */
	ino_t ino;
};

/* Calls fn for each lock on one of the files and each process that holds it; one pass over /proc. The caller itself (getpid()) and `skip_pid` are left out. Returns how many, or -errno. Does not touch the filesystems. */
int holders_find(const struct holder_file *files, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg);

/* The same for processes with a mapping of the inode. */
int holders_find_mappings(const struct holder_file *files, size_t count, pid_t skip_pid, void (*fn)(void *arg, const struct holder *holder), void *arg);

/*
 * Calls fn for each lock that the descriptor table of this task shows; fd_path is the descriptor's in /proc. A POSIX lock is shown
 * by a table that owns it, and by no other; a flock or OFD lock at each descriptor that keeps it. 0 or -errno.
 */
int holders_table(pid_t pid, pid_t tid, void (*fn)(void *arg, const char *fd_path, const struct holder_lock *lock), void *arg);

/* Every lock in this pid namespace with the descriptor it is held by: fn gets the path of /proc/PID/fd/N. For an agent that starts without a predecessor's descriptors. */
int holders_scan_all(void (*fn)(void *arg, pid_t pid, const char *fd_path, bool records, enum lock_mode mode), void *arg);

/* Sends a signal to a process by pidfd after checking once more that it still holds (SIGKILL reaches stopped ones too). 0 or -errno (-ESRCH gone). */
int holder_signal(const struct holder *holder, const struct holder_file *file, int sig);

/* The strongest lock (flock, or record lock if records) that descriptor fd_number of the process shows in /proc; MODE_NONE if none, or not to be seen. */
enum lock_mode holders_fd_mode(pid_t pid, int fd_number, bool records);

#endif
