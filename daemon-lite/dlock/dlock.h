/* SPDX-License-Identifier: MIT */
/* The dlock command: what its files share. Each cmd_NAME.c is one subcommand. */
#ifndef DLOCK_DLOCK_H
#define DLOCK_DLOCK_H

#include <stddef.h>
#include <stdio.h>

#include "../version.h"

/* Exit codes; the list in `dlock help` is made from them. */
enum exit_code {
	EXIT_DONE = 0,
	EXIT_NO = 1,		/* check: not managed; doctor: not safe; init: the store has data already */
	EXIT_USAGE = 120,
	EXIT_TROUBLE = 121,	/* configuration, runtime directory, agent or store */
	EXIT_UNPROTECTED = 122,	/* run: the command cannot be protected */
	EXIT_CANNOT_EXEC = 126,
	EXIT_NOT_FOUND = 127,
};

#define SENTENCE_MAX 2048

/* One sentence that says why not, and the exit code that goes with it. */
struct refusal {
	int code;
	char text[SENTENCE_MAX];
};

/* Fills it and returns -1, so that a check can `return refuse(…)`. */
int refuse(struct refusal *refusal, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Prints "dlock: TEXT" with every control byte made harmless, and returns code. */
int complain(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints the usage of the subcommand and returns EXIT_USAGE. */
int usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * --config and --runtime-dir, which every subcommand takes, are put into the
 * environment (as absolute paths) by this; *argi moves behind them and behind a
 * "--". Returns 0 at the first argument that is none of the two, -1 with *ret_bad on a mistake.
 */
int options_common(int argc, char **argv, int *argi, const char **ret_bad);

/* The configuration and the runtime directory in force, checked. */
struct config;
struct setting {
	struct config *config;
	char runtime_dir[4096];
};
int setting_load(struct setting *ret_setting, struct refusal *refusal);
void setting_free(struct setting *setting);

int cmd_init(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_status(int argc, char **argv);

#endif
