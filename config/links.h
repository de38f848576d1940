/* SPDX-License-Identifier: MIT */
/* Paths and symbolic links: rules are written by the names that people know, and matched with what the kernel knows. */
#ifndef DLOCK_LINKS_H
#define DLOCK_LINKS_H

#include <limits.h>

struct config;

/*
 * Resolves a directory as far as it exists; what does not is appended as it is
 * written. 0 or -errno (a ".." in the part that does not exist cannot be
 * followed). May block on the file systems it passes through.
 */
int links_resolve(const char *path, char ret_path[PATH_MAX]);

/*
 * Puts behind each rule whose directory (up to the first wildcard) lies behind a
 * symbolic link a second one, with the same line, for the place that it leads to:
 * /var/lock is /run/lock on many systems, and a program's path is always the
 * latter. The first is kept, for programs that see other directories. What cannot
 * be resolved is left as it is. 0 or -ENOMEM; may block as links_resolve().
 */
int links_add_rules(struct config *config);

#endif
