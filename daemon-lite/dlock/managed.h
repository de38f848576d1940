/* SPDX-License-Identifier: MIT */
/* Which rule manages a path. */
#ifndef DLOCK_MANAGED_H
#define DLOCK_MANAGED_H

#include <limits.h>

struct config;
struct config_rule;

/*
 * The path that an open of `path` would lead to, existing or not: directories
 * are resolved, a symbolic link to a file that is not there yet is followed.
 * 0 or -errno.
 */
int managed_path(const char *path, char ret_path[PATH_MAX]);

/* The rule that manages a path as the kernel shows it: the first that matches. NULL if none. */
const struct config_rule *managed_rule(const struct config *config, const char *path);

#endif
