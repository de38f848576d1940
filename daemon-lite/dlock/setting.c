/* SPDX-License-Identifier: MIT */
/*
 * What every subcommand does first: common options, configuration, runtime
 * directory.
 */
#include "dlock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../config/config.h"

/* Puts an absolute path into the environment: the command may change its directory. */
static int export_path(const char *variable, const char *path)
{
	char *absolute, *directory;
	int n;

	if (path[0] == '/')
		return setenv(variable, path, 1) == 0 ? 0 : -errno;
	directory = getcwd(NULL, 0);
	if (!directory)
		return -errno;
	n = asprintf(&absolute, "%s/%s", directory, path);
	free(directory);
	if (n < 0)
		return -ENOMEM;
	n = setenv(variable, absolute, 1) == 0 ? 0 : -errno;
	free(absolute);
	return n;
}

/* "--NAME VALUE" or "--NAME=VALUE": 1 with *ret_value, 0 if it is something else, -1 if the value is missing. */
static int option_value(const char *name, int argc, char **argv, int *argi, const char **ret_value)
{
	const char *arg = argv[*argi];
	size_t len = strlen(name);

	if (strncmp(arg, name, len) != 0 || (arg[len] != '\0' && arg[len] != '='))
		return 0;
	if (arg[len] == '=') {
		*ret_value = arg + len + 1;
	} else {
		if (*argi + 1 >= argc)
			return -1;
		*ret_value = argv[++*argi];
	}
	++*argi;
	return **ret_value ? 1 : -1;
}

int options_common(int argc, char **argv, int *argi, const char **ret_bad)
{
	static const struct { const char *name, *variable; } options[] = {
		{ "--config", "DLOCKSHIM_CONFIG" }, { "--runtime-dir", "DLOCKSHIM_RUNTIME_DIR" },
	};

next:
	if (*argi >= argc)
		return 0;
	if (strcmp(argv[*argi], "--") == 0) {
		++*argi;
		return 0;
	}
	for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
		const char *value;
		int n = option_value(options[i].name, argc, argv, argi, &value);

		if (n < 0 || (n > 0 && export_path(options[i].variable, value) < 0)) {
			*ret_bad = options[i].name;
			return -1;
		}
		if (n > 0)
			goto next;
	}
	return 0;
}

int setting_load(struct setting *ret_setting, struct refusal *refusal)
{
	struct config_error error = { 0, "" };
	struct setting *setting = ret_setting;
	int n;

	setting->config = NULL;
	if (config_load(NULL, &setting->config, &error) < 0)
		return refuse(refusal, EXIT_TROUBLE, "%s", error.text);
	n = runtime_dir_find(setting->config->runtime_dir, setting->runtime_dir, sizeof setting->runtime_dir);
	if (n < 0) {
		refuse(refusal, EXIT_TROUBLE, "the path of the runtime directory is too long; set `runtime_dir` to a shorter one");
		goto fail;
	}
	n = runtime_dir_check(setting->runtime_dir);
	/* A directory that is not there yet is the agent's to make. */
	if (n < 0 && n != -ENOENT) {
		refuse(refusal, EXIT_TROUBLE, "the runtime directory %s cannot be trusted: it must be a directory that belongs to "
		       "root or to you and that nobody else can write to (%s); correct its owner and mode, or name another one by runtime_dir",
		       setting->runtime_dir, strerror(-n));
		goto fail;
	}
	return 0;
fail:
	setting_free(setting);
	return -1;
}

void setting_free(struct setting *setting)
{
	config_free(setting->config);
	setting->config = NULL;
}
