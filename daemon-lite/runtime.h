/* SPDX-License-Identifier: MIT */
/*
 * What an agent has in its runtime directory: the lock that makes it the only
 * one, the sockets it listens on, and the sentence that says why it could not
 * start. Called before guard_run: the guard holds the lock and the listeners
 * for its whole life and each agent inherits them.
 */
#ifndef DLOCK_RUNTIME_H
#define DLOCK_RUNTIME_H

#include <stdbool.h>
#include <sys/types.h>

#define RUNTIME_LOCK_FILE "agent.lock"
#define RUNTIME_ERROR_FILE "start-error"

/* Makes the directory if it is missing (0755 for root, 0700 for a user) and checks that it can be trusted (runtime_dir_check). 0 or -errno. */
int runtime_prepare(const char *dir);

/*
 * Takes DIR/agent.lock, waiting at most timeout_ms (0 = not at all), and writes
 * the caller's pid into it. Returns the descriptor that holds the lock (also
 * in children that inherit it), -EBUSY if another process holds it (then
 * *ret_owner, if not NULL, is the pid in the file, 0 if unknown), or -errno.
 */
int runtime_lock(const char *dir, unsigned timeout_ms, pid_t *ret_owner);

/* Writes the caller's pid into the lock file: after a fork that kept the lock. 0 or -errno. */
int runtime_lock_owner(int lock_fd);

/* Whether DIR/agent.lock is still the file that lock_fd has locked: else the directory was removed or replaced. */
bool runtime_lock_stands(const char *dir, int lock_fd);

/*
 * Listens on DIR/agent.sock (0666 for root, 0600 for a user) and on the abstract
 * name; only for the holder of the lock. A stale socket is replaced by rename,
 * so there is no moment without one. *ret_abstract_fd is -1 when that name is
 * too long or somebody else has it: clients in a chroot cannot reach us then,
 * nothing else is lost. Both are non-blocking. 0 or -errno.
 */
int runtime_listen(const char *dir, int *ret_path_fd, int *ret_abstract_fd);

/* Puts one sentence into DIR/start-error for the shim's log; NULL removes it. 0 or -errno. */
int runtime_start_error(const char *dir, const char *text);

#endif
