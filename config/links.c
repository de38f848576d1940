/* SPDX-License-Identifier: MIT */
/*
 * Follows symbolic links for paths that need not exist yet: those in rules and
 * those that a person asks about. Programs never run this; the path of a file
 * that is open comes from the kernel.
 */
#include "links.h"
#include "config.h"
#include "pattern.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int links_resolve(const char *path, char ret_path[PATH_MAX])
{
	char at[PATH_MAX];
	size_t cut;

	if ((size_t)snprintf(at, sizeof at, "%s", path) >= sizeof at)
		return -ENAMETOOLONG;
	for (cut = strlen(at); !realpath(*at ? at : path[0] == '/' ? "/" : ".", ret_path); ) {
		if (errno != ENOENT || cut == 0)
			return -errno;
		while (cut > 0 && at[cut - 1] == '/')
			cut--;
		while (cut > 0 && at[cut - 1] != '/')
			cut--;
		at[cut] = '\0';
	}
	for (const char *name = path + cut; *name; ) {
		size_t n = strcspn(name, "/"), len = strlen(ret_path);

		if (n == 2 && memcmp(name, "..", 2) == 0)
			return -ENOENT;
		if (n > 0 && !(n == 1 && *name == '.') &&
		    (size_t)snprintf(ret_path + len, PATH_MAX - len, "%s%.*s", ret_path[len - 1] == '/' ? "" : "/", (int)n, name) >= PATH_MAX - len)
			return -ENAMETOOLONG;
		name += n + (name[n] == '/');
	}
	return 0;
}

/* The pattern for the place that its directory leads to, to be freed; NULL if that is the same place or none (*ret_err is 0 then). */
static char *follow(const char *pattern, int *ret_err)
{
	char directory[PATH_MAX], resolved[PATH_MAX], *made, *out;
	size_t len = pattern_literal_len(pattern);
	const char *p;

	*ret_err = 0;
	if (pattern[len])		/* whole components only */
		while (len > 0 && pattern[len - 1] != '/')
			len--;
	while (len > 1 && pattern[len - 1] == '/')
		len--;
	if (len <= 1 || len >= sizeof directory)
		return NULL;
	memcpy(directory, pattern, len);
	directory[len] = '\0';
	if (links_resolve(directory, resolved) < 0 || strcmp(resolved, directory) == 0)
		return NULL;
	made = malloc(2 * strlen(resolved) + strlen(pattern + len) + 1);
	if (!made) {
		*ret_err = -ENOMEM;
		return NULL;
	}
	out = made;
	for (p = resolved[1] ? resolved : ""; *p; *out++ = *p++)
		if (strchr("*?[\\", *p))
			*out++ = '\\';
	strcpy(out, pattern + len);
	if (pattern_check(made)) {	/* too long, or "/" alone */
		free(made);
		return NULL;
	}
	return made;
}

int links_add_rules(struct config *config)
{
	struct config_rule *rules = calloc(2 * config->rule_count + 1, sizeof *rules);
	size_t count = 0;
	int err = 0;

	if (!rules)
		return -ENOMEM;
	for (size_t i = 0; i < config->rule_count; i++) {
		struct config_rule rule = config->rules[i];

		rules[count++] = rule;
		rule.path = err ? NULL : follow(rule.path, &err);
		if (!rule.path)
			continue;
		rule.name = strdup(rule.name);
		rule.on_lost = strdup(rule.on_lost);
		if (!rule.name || !rule.on_lost)
			err = -ENOMEM;
		rules[count++] = rule;
	}
	free(config->rules);
	config->rules = rules;
	config->rule_count = count;
	return err;
}
