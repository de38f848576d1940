/* SPDX-License-Identifier: MIT */
/*
 * The messages between a program's shim (or the dlock command) and the agent.
 *
 * Transport: AF_UNIX, SOCK_SEQPACKET, one connection for each call; one packet
 * is one message: a struct wire_msg, followed by text_len bytes of text without
 * a NUL. The agent listens at RUNTIME_DIR/agent.sock and at the abstract name
 * "\0dlockshim:RUNTIME_DIR" (for a program in a chroot). Both sides check the
 * other with SO_PEERCRED: the agent must run as root or as the program's own
 * effective user; the client as root or as the agent's user unless the agent
 * is root, who serves everybody.
 *
 * The layout has no padding and the same size for 32- and 64-bit callers.
 * A message of another size, magic or version is answered by WIRE_ERROR/EPROTO
 * and the end of the connection.
 *
 * A call that takes a lock, seen from the client:
 *
 *   REQUEST + descriptor ->
 *                        <- LOCAL    no rule, no regular file: call the kernel
 *                        <- ERROR    err, text: fail with err (ENOLCK...)
 *                        <- BUSY     fail with EWOULDBLOCK
 *                        <- CHECK    say what the description holds:
 *   HELD mode ->                     (asked SH->EX by flock: drop the SH first;
 *                                     the same mode: close, return 0, no call)
 *                        <- OFFER    the request waited; still there?
 *   TAKE ->
 *                        <- GO       make the real call now
 *   DONE err ->                      one way; then close
 *
 * Giving up (EINTR): CANCEL, then close. A DONE that cannot be sent (the agent
 * ended meanwhile) or a clock past valid_until_ns: STANDS + descriptor on a
 * connection that works (the same one, or a new one):
 *   STANDS + descriptor ->
 *                        <- STANDING err: 0 the cover is still held; else undo
 * An end of the connection without an answer: connect again (starting an agent
 * if there is none) and send the REQUEST anew; a waiter keeps waiting.
 */
#ifndef DLOCK_WIRE_H
#define DLOCK_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x6b434c44u	/* "DLCk" */
#define WIRE_VERSION 2
#define WIRE_TEXT_MAX 65000	/* bytes of text in one packet */
#define WIRE_SOCKET_NAME "agent.sock"
#define WIRE_ABSTRACT_PREFIX "dlockshim:"

enum wire_type {
	/* client to agent */
	WIRE_REQUEST = 1,	/* family, mode, flags, fd_number, start, len, stamp; text: the program's name; 1 descriptor */
	WIRE_HELD = 2,		/* mode. flock: what the description holds; WIRE_HELD_UNKNOWN if /proc is not there. The agent answers that with
				 * WIRE_HELD and what it sees: the asked mode (the call is over), or SH (drop it, answer HELD SH).
				 * Record locks: the strongest mode that the caller's owner (process, or description) holds anywhere in this
				 * file, as this descriptor shows it; NONE if nothing; WIRE_HELD_UNKNOWN: the agent looks itself and goes on */
	WIRE_TAKE = 3,
	WIRE_DONE = 4,		/* err: 0, or the errno of the real call */
	WIRE_CANCEL = 5,
	WIRE_STANDS = 6,	/* like REQUEST: the kernel lock is taken, does the cover stand? */
	WIRE_RULES = 7,		/* stamp: compile the configuration if the rules do not fit it */
	WIRE_QUERY = 8,		/* text: a query of the dlock command, see daemon-lite/query.h */
	WIRE_GETLK = 9,		/* like REQUEST, record locks only: who stands against such a lock on another host? Asks, takes nothing.
				 * Answered by LOCK, LOCAL (no rule) or ERROR */

	/* agent to client */
	WIRE_GO = 32,		/* valid_until_ns (0: ask by STANDS before keeping the lock), fence */
	WIRE_CHECK = 33,
	WIRE_OFFER = 34,
	WIRE_BUSY = 35,
	WIRE_LOCAL = 36,
	WIRE_ERROR = 37,	/* err, text: one sentence for the log */
	WIRE_STANDING = 38,	/* err: 0 or ENOLCK */
	WIRE_RULES_OK = 39,	/* the compiled rules in the runtime directory fit */
	WIRE_RECORD = 40,	/* text: a part of a query's answer */
	WIRE_END = 41,		/* err, text: the query's answer is complete */
	WIRE_LOCK = 42,		/* GETLK: mode NONE: nobody. Else a conflicting lock of another host: mode, start, len (0 = to the end), and in
				 * fd_number what l_pid is to be: minus its pid there, -1 if a description owns it or the pid is not known */
};

enum wire_family {
	FAMILY_FLOCK = 1,
	FAMILY_POSIX = 2,	/* record locks owned by a process */
	FAMILY_OFD = 3,		/* record locks owned by an open file description */
};

/*
 * ERROR with err EDEADLK and no text is a call's ordinary end: the wait (POSIX, blocking) would close a cycle over hosts.
 */

#define WIRE_HELD_UNKNOWN 0xff	/* in mode of WIRE_HELD */

#define WIRE_FLAG_NONBLOCK 1u	/* LOCK_NB: answer, never wait */
#define WIRE_FLAG_AGAIN 2u	/* this call had a GO that did not keep its cover, and had to undo its lock: it needs one that does */

struct wire_msg {
	uint32_t magic;		/* WIRE_MAGIC */
	uint16_t version;	/* WIRE_VERSION */
	uint16_t type;		/* enum wire_type */
	uint16_t family;	/* enum wire_family */
	uint16_t mode;		/* enum lock_mode */
	uint32_t flags;		/* WIRE_FLAG_* */
	int32_t err;		/* an errno, 0 for none */
	int32_t fd_number;	/* the descriptor's number in the caller's table */
	int64_t start, len;	/* byte range from the file's beginning, neither negative, len 0 = to the end; flock: 0, 0 */
	uint64_t valid_until_ns; /* CLOCK_BOOTTIME */
	uint64_t fence;
	uint64_t stamp;		/* configuration stamp the client's rules carry, 0 = none */
	uint32_t tid;		/* the calling thread, in its own pid namespace; 0 = unknown */
	uint32_t text_len;	/* bytes of text behind this header */
};

_Static_assert(sizeof(struct wire_msg) == 72, "the wire format has no padding");

/*
 * Whether the n bytes at buf are one well-formed message: size, magic, version
 * and text_len agree. Pure. The bytes may be unaligned: on success they are
 * copied to *ret_msg and *ret_text points into buf.
 * Returns 0 or -EPROTO (outputs untouched).
 */
int wire_parse(const void *buf, size_t n, struct wire_msg *ret_msg, const char **ret_text);

/* Fills magic, version and type of an otherwise zeroed message. Pure. */
void wire_init(struct wire_msg *msg, enum wire_type type);

#endif
