/* SPDX-License-Identifier: MIT */
/*
 * The shim's log: one line for each message, where DLOCKSHIM_LOG says. No
 * malloc, no stdio, never blocks, never raises SIGPIPE. Any thread, also in a
 * signal handler.
 */
#ifndef DLOCK_SHIM_LOG_H
#define DLOCK_SHIM_LOG_H

#include <stddef.h>

/*
 * Where messages go from now on: a path, "stderr", "syslog"; "" or NULL: syslog
 * if the host has one, and standard error if it is a terminal. The string must
 * stay.
 */
void shim_log_to(const char *where);

/* Writes the parts, up to a NULL, as one line; the same line at most once a second. */
void shim_log_parts(const char *const *parts);
#define shim_log(...) shim_log_parts((const char *const[]){ __VA_ARGS__, NULL })

/* A number as text: shim_number(5).text, valid to the end of the expression. */
struct shim_number { char text[24]; };
struct shim_number shim_number(long value);

/* The words for an errno, positive or negative. */
const char *shim_error(int err);

#endif
