/* SPDX-License-Identifier: MIT */
/*
 * dlock run: makes sure that the command will really be protected, then becomes
 * it. Everything that can go wrong is said before the command starts; nothing
 * of dlock stays in between.
 */
#include "dlock.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../config/config.h"
#include "../../config/rules.h"
#include "agent_client.h"
#include "protect.h"

#define SETTLE_TRIES 50
#define SETTLE_STEP_MS 10

/* An agent that was just started is still connecting: give it half a second before its state is worth a word. */
static void note_state(const char *runtime_dir)
{
	for (int i = 0; i < SETTLE_TRIES; i++) {
		const struct timespec step = { .tv_nsec = SETTLE_STEP_MS * 1000000L };
		struct record_buf answer = { 0 };
		struct record *record = NULL;
		struct refusal refusal;
		const char *state, *why;
		size_t pos = 0;
		bool again;

		if (agent_query(runtime_dir, "ping", &answer, &refusal) < 0 || records_next(answer.data, answer.len, &pos, &record) <= 0) {
			record_buf_free(&answer);
			return;
		}
		state = record_get(record, "state", "up");
		why = record_get(record, "why", "");
		again = strcmp(state, "connecting") == 0 && i + 1 < SETTLE_TRIES;
		if (again)
			nanosleep(&step, NULL);
		else if (strcmp(state, "connecting") == 0)
			complain(0, "warning: the agent does not reach the store%s%s; locks wait until it does, non-blocking ones fail", *why ? ": " : "", why);
		else if (strcmp(state, "refused") == 0)
			complain(0, "warning: the agent cannot use the store%s%s; locks fail until that is corrected", *why ? ": " : "", why);
		else if (strcmp(state, "lost") == 0)
			complain(0, "warning: this host has lost its session and ends the holders of its locks%s%s", *why ? ": " : "", why);
		else if (strcmp(state, "grace") == 0)
			complain(0, "note: the store is in its grace period%s%s; nothing new is locked until it ends", *why ? ": " : "", why);
		record_free(record);
		record_buf_free(&answer);
		if (!again)
			return;
	}
}

/* An agent that answers, and compiled rules that fit the configuration and can be read. */
static int prepare(const struct setting *setting, struct refusal *refusal)
{
	struct rules rules = { 0 };
	bool fresh;
	int n = agent_connect(setting->runtime_dir, refusal);

	if (n == -ENOENT)
		n = agent_start(setting->runtime_dir, refusal);
	else if (n >= 0)
		n = close(n);
	if (n < 0)
		return n;
	n = agent_compile_rules(setting->runtime_dir, setting->config->stamp, refusal);
	if (n < 0)
		return n;
	n = rules_open(setting->runtime_dir, &rules);
	if (n < 0)
		return refuse(refusal, EXIT_TROUBLE, "the compiled rules %s/%s cannot be used (%s); correct the directory's owner and mode, and restart the agent",
			      setting->runtime_dir, RULES_FILE, strerror(-n));
	fresh = rules.header->stamp == setting->config->stamp;
	rules_close(&rules);
	if (!fresh)
		return refuse(refusal, EXIT_TROUBLE, "the agent in %s works with another configuration than %s; name its runtime directory, or restart it",
			      setting->runtime_dir, setting->config->file);
	return 0;
}

/* Whether the list, separated as LD_PRELOAD is, has the library already. */
static bool preloaded(const char *list, const char *library)
{
	size_t len = strlen(library);

	while (*list) {
		size_t n = strcspn(list, " :");

		if (n == len && strncmp(list, library, n) == 0)
			return true;
		list += n + (list[n] != '\0');
	}
	return false;
}

static int set_preload(const char *library)
{
	const char *list = getenv("LD_PRELOAD");
	char *text;
	int n;

	if (!list || !*list)
		return setenv("LD_PRELOAD", library, 1) == 0 ? 0 : -errno;
	if (preloaded(list, library))
		return 0;
	if (asprintf(&text, "%s:%s", library, list) < 0)
		return -ENOMEM;
	n = setenv("LD_PRELOAD", text, 1) == 0 ? 0 : -errno;
	free(text);
	return n;
}

int cmd_run(int argc, char **argv)
{
	char program[PATH_MAX], library[PATH_MAX], loader[256];
	struct elf_info library_info;
	struct refusal refusal;
	struct setting setting;
	const char *bad;
	int argi = 1, n;

	if (options_common(argc, argv, &argi, &bad) < 0)
		return usage_error("run", "%s needs a value", bad);
	if (argi >= argc)
		return usage_error("run", "name the command to run");
	if (argv[argi][0] == '-' && strcmp(argv[argi - 1], "--") != 0)
		return usage_error("run", "`%s` is not known here; put -- before a command of that name", argv[argi]);

	own_loader(loader, sizeof loader);
	if (program_find(argv[argi], program, sizeof program, &refusal) < 0 ||
	    library_find(library, sizeof library, &library_info, &refusal) < 0 ||
	    program_check(program, &library_info, loader, &refusal) < 0 ||
	    setting_load(&setting, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);
	n = prepare(&setting, &refusal);
	if (n == 0)
		note_state(setting.runtime_dir);
	setting_free(&setting);
	if (n < 0)
		return complain(refusal.code, "%s", refusal.text);
	n = set_preload(library);
	if (n < 0)
		return complain(EXIT_TROUBLE, "the environment could not be changed (%s)", strerror(-n));

	fflush(stdout);
	execv(program, argv + argi);
	n = errno;
	return complain(n == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, "%s could not be executed (%s)", program, strerror(n));
}
