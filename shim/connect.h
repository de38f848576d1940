/* SPDX-License-Identifier: MIT */
/*
 * One connection to the agent: a socket, the check of who listens, packets.
 * Raw system calls only: nothing here is a cancellation point.
 */
#ifndef DLOCK_SHIM_CONNECT_H
#define DLOCK_SHIM_CONNECT_H

#include <stdbool.h>
#include <stddef.h>

#include "wire.h"

#define CONNECT_ANSWER_S 15	/* how long a bounded call waits for a silent agent; a busy store is the agent's to bound */

/*
 * Connects to the agent of a runtime directory: by its path, else by the
 * abstract name. bounded: no wait on the connection is longer than
 * CONNECT_ANSWER_S. Returns 0, -ESRCH (nobody listens), -EPERM (somebody listens
 * who is neither root nor our user; *ret_uid is who), -EINTR, or another -errno.
 */
int connect_agent(const char *runtime_dir, bool bounded, int *ret_socket, unsigned *ret_uid);

/* Sends one message with its text_len bytes of text (NULL: none), and a descriptor unless passed_fd is -1. 0 or -errno (-EPIPE, -ECONNRESET: the agent is gone). */
int connect_send(int socket, const struct wire_msg *msg, const char *text, int passed_fd);

/*
 * Receives one message; its text, cut to size - 1 bytes, is NUL-terminated.
 * Returns 0, -ECONNRESET at the end of the connection, -EINTR, -EAGAIN (bounded
 * and nothing came), -EPROTO.
 */
int connect_receive(int socket, struct wire_msg *ret_msg, char *text, size_t size);

#endif
