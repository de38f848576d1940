/* SPDX-License-Identifier: MIT */
/* Which rule manages a path: from the configuration alone, without an agent. */
#include "managed.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../config/config.h"
#include "../../config/links.h"
#include "../../config/pattern.h"

#define LINKS_MAX 40

int managed_path(const char *path, char ret_path[PATH_MAX])
{
	char at[PATH_MAX], directory[PATH_MAX], target[PATH_MAX];

	if ((size_t)snprintf(at, sizeof at, "%s", path) >= sizeof at)
		return -ENAMETOOLONG;
	for (int i = 0; i < LINKS_MAX; i++) {
		char *slash;
		ssize_t n;

		if (realpath(at, ret_path))
			return 0;
		if (errno != ENOENT)
			return -errno;
		slash = strrchr(at, '/');
		snprintf(target, sizeof target, "%s", slash ? slash + 1 : at);
		if (!*target || strcmp(target, ".") == 0 || strcmp(target, "..") == 0)
			return links_resolve(at, ret_path);
		if (slash)
			slash[slash == at] = '\0';
		n = links_resolve(slash ? at : ".", directory);
		if (n < 0)
			return (int)n;
		if ((size_t)snprintf(ret_path, PATH_MAX, "%s%s%s", directory, directory[1] ? "/" : "", target) >= PATH_MAX)
			return -ENAMETOOLONG;
		n = readlink(ret_path, target, sizeof target - 1);
		if (n < 0)
			return errno == ENOENT ? 0 : -errno;
		target[n] = '\0';
		if ((size_t)snprintf(at, sizeof at, "%s%s%s", target[0] == '/' ? "" : directory, target[0] == '/' ? "" : "/", target) >= sizeof at)
			return -ENAMETOOLONG;
	}
	return -ELOOP;
}

const struct config_rule *managed_rule(const struct config *config, const char *path)
{
	for (size_t i = 0; i < config->rule_count; i++)
		if (pattern_match(config->rules[i].path, path, strlen(path), NULL, 0, NULL))
			return &config->rules[i];
	return NULL;
}
