/* SPDX-License-Identifier: MIT */
/*
 * dlock check: which rule manages a path, under which name, who holds, who
 * waits. The rule is found from the configuration itself, so the question can
 * be answered without an agent; who holds is the agent's answer.
 */
#include "dlock.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../config/config.h"
#include "../../config/pattern.h"
#include "../../config/rules.h"
#include "../query.h"
#include "agent_client.h"
#include "answer.h"
#include "managed.h"
#include "text.h"

/* The rule that nearly fits: most bytes of its literal beginning in common, more than "/"; NULL if none comes near. */
static const struct config_rule *nearest_rule(const struct config *config, const char *path)
{
	const struct config_rule *best = NULL;
	size_t best_len = 1;

	for (size_t i = 0; i < config->rule_count; i++) {
		const char *pattern = config->rules[i].path;
		size_t literal = pattern_literal_len(pattern), n = 0;

		while (n < literal && pattern[n] == path[n])
			n++;
		/* Whole components only: /srv/a and /srv/b have /srv/ in common. */
		while (n > 0 && n < literal && pattern[n - 1] != '/')
			n--;
		if (n > best_len) {
			best_len = n;
			best = &config->rules[i];
		}
	}
	return best;
}

static void say(const char *format, const char *text)
{
	char *safe = text_printable(text);

	printf(format, safe ? safe : "?");
	free(safe);
}

/* What the agent says of the lock: its table, or why there is none. EXIT_DONE or EXIT_TROUBLE. */
static int print_lock(const struct setting *setting, const char *path, const char *name)
{
	struct table table = { .columns = ANSWER_COLUMNS };
	static const char families[] = "fr";
	char verb[QUERY_VERB_MAX + 1], key[RULES_NAME_MAX + 3];
	const struct record *rule;
	struct answer answer;
	struct refusal refusal;
	int code = EXIT_DONE;

	if (strlen(path) + 6 > QUERY_VERB_MAX)
		return complain(EXIT_TROUBLE, "the path is too long to ask the agent about it");
	snprintf(verb, sizeof verb, "check %s", path);
	if (answer_ask(setting->runtime_dir, verb, &answer, &refusal) < 0) {
		answer_free(&answer);
		fflush(stdout);
		return complain(refusal.code, "%s; who holds and who waits is not known", refusal.text);
	}
	rule = answer_find(&answer, "rule");
	if (!rule || strcmp(record_get(rule, "name", ""), name) != 0)
		code = complain(EXIT_TROUBLE, "the agent in %s does not use this configuration (yet): name its own by --config, or restart it", setting->runtime_dir);
	table_add(&table, answer_headings);
	for (const char *family = families; *family; family++) {
		snprintf(key, sizeof key, "%c:%s", *family, name);
		answer_rows(&answer, key, &table);
	}
	if (table.count > 1)
		table_print(&table, stdout, "  ");
	else
		answer_print_none(&answer, "  ", "Nobody holds it, nobody waits.");
	answer_print_silent(&answer, "  ");
	table_free(&table);
	answer_free(&answer);
	return code;
}

static int check_path(const struct setting *setting, const char *given)
{
	const struct config *config = setting->config;
	char path[PATH_MAX], name[RULES_NAME_MAX + 1];
	const struct config_rule *rule;
	struct stat st;
	int n = *given ? managed_path(given, path) : -ENOENT;

	if (n < 0)
		return complain(EXIT_TROUBLE, "%s cannot be looked up (%s); check its directory", given, strerror(-n));
	say("%s", path);
	if (stat(path, &st) < 0)
		fputs(errno == ENOENT ? " (does not exist)" : "", stdout);
	else if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		puts("\n  not managed: neither a regular file nor a directory; its locks are the kernel's alone");
		return EXIT_NO;
	}
	putchar('\n');

	rule = managed_rule(config, path);
	if (!rule) {
		rule = nearest_rule(config, path);
		if (rule) {
			printf("  not managed: no rule matches; nearest is ");
			say("%s", config->file);
			printf(":%u", rule->line);
			say(" `%s`\n", rule->path);
		} else {
			say("  not managed: no rule of %s matches\n", config->file);
		}
		return EXIT_NO;
	}
	n = rules_expand(rule->name, rule->path, path, name, sizeof name);
	if (n < 0)
		return complain(EXIT_TROUBLE, "%s:%u: the name of this path cannot be made (%s); shorten the template `%s`", config->file, rule->line, strerror(-n), rule->name);
	say("  rule    %s", config->file);
	printf(":%u", rule->line);
	say(" `%s`\n", rule->path);
	say("  name    %s\n", name);
	say("  on_lost %s\n", rule->on_lost);
	return print_lock(setting, path, name);
}

int cmd_check(int argc, char **argv)
{
	struct refusal refusal;
	struct setting setting;
	int argi = 1, worst = EXIT_DONE;
	const char *bad;

	if (options_common(argc, argv, &argi, &bad) < 0)
		return usage_error("check", "%s needs a value", bad);
	if (argi >= argc)
		return usage_error("check", "name a path");
	if (argv[argi][0] == '-' && argv[argi][1] && strcmp(argv[argi - 1], "--") != 0)
		return usage_error("check", "`%s` is not known here; put -- before a path of that name", argv[argi]);
	if (setting_load(&setting, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);
	for (; argi < argc; argi++) {
		int code = check_path(&setting, argv[argi]);

		if (code > worst)
			worst = code;
	}
	setting_free(&setting);
	return worst;
}
