/* SPDX-License-Identifier: MIT */
/*
 * The configuration while the agent runs: read again when its file changes, rules
 * compiled for the shims. One that cannot be used stops new locks, never held
 * ones; one that names another store waits until nothing is held.
 */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "../config/config.h"
#include "agent.h"
#include "log.h"

#define CONFIG_CHECK_NS 2000000u	/* a stat() of the configuration holds for so long; it costs as much as a lock in a tight loop */

int reload_rules(struct agent *agent, char *ret_text, size_t size)
{
	struct config_error error;
	struct rules rules;
	int err;

	err = config_write_rules(agent->config, agent->options.runtime_dir, &error);
	if (err) {
		snprintf(ret_text, size, "%s", error.text);
		return err;
	}
	err = rules_open(agent->options.runtime_dir, &rules);
	if (err) {
		snprintf(ret_text, size, "the compiled rules in %s cannot be read: %s", agent->options.runtime_dir,
			 strerror(-err));
		return err;
	}
	rules_close(&agent->rules);
	agent->rules = rules;
	return config_attend_rules(agent->options.runtime_dir, 1);
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

/* Whether two configurations speak to the same session. */
static bool same_store(const struct config *a, const struct config *b)
{
	if (strcmp(a->name_space, b->name_space) || a->ttl_ms != b->ttl_ms ||
	    a->redis.server_count != b->redis.server_count || !same_text(a->redis.user, b->redis.user) ||
	    !same_text(a->redis.password_file, b->redis.password_file) || !same_text(a->state_dir, b->state_dir))
		return false;
	for (size_t i = 0; i < a->redis.server_count; i++)
		if (strcmp(a->redis.servers[i], b->redis.servers[i]))
			return false;
	return true;
}
static void forget_paths(struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++) {
		publish_drop(&name->files[i].standing);
		name->files[i].standing = (struct publish_slot){ 0 };
	}
}

void reload_close_standing(struct agent *agent)
{
	names_each(agent, name_publish);
}

void agent_check_rules(struct agent *agent)
{
	char text[sizeof agent->config_error];
	struct rules there;
	bool good;

	if (agent->config_restart || (agent->config_error[0] && agent->config_error_stamp))
		return;		/* the configuration itself is not usable */
	if (rules_open(agent->options.runtime_dir, &there) == 0) {
		good = there.header->stamp == agent->config->stamp && !there.header->stale;
		rules_close(&there);
		if (good && agent->rules.header->stamp == agent->config->stamp) {
			agent->config_error[0] = 0;
			return;
		}
	}
	if (reload_rules(agent, text, sizeof text) == 0) {
		log_info("the compiled rules in %s are made anew", agent->options.runtime_dir);
		agent->config_error[0] = 0;
	} else if (strcmp(text, agent->config_error)) {
		snprintf(agent->config_error, sizeof agent->config_error, "%s", text);
		log_error("%s", text);
	}
}

void agent_check_config(struct agent *agent)
{
	struct config *config;
	struct config_error error;
	struct stat st;
	uint64_t stamp, now = loop_now_ns();
	int err;

	if (now - agent->config_checked_ns < CONFIG_CHECK_NS)
		return;
	agent->config_checked_ns = now;
	stamp = stat(agent->config->file, &st) ? 0 : rules_stamp(&st);
	if (stamp == agent->config->stamp) {
		agent->config_error_stamp = 0;
		agent->config_restart = false;
		if (agent->rules.header->stamp != stamp)
			agent_check_rules(agent);	/* they could not be written before */
		else
			agent->config_error[0] = 0;
		return;
	}
	if (agent->config_error[0] && stamp == agent->config_error_stamp)
		return;
	agent->config_error_stamp = stamp;
	agent->config_restart = false;
	if (config_load(agent->config->file, &config, &error)) {
		snprintf(agent->config_error, sizeof agent->config_error, "%s", error.text);
		log_error("%s", error.text);
		reload_close_standing(agent);
		return;
	}
	if (!same_store(agent->config, config)) {
		config_free(config);
		agent->config_restart = true;
		snprintf(agent->config_error, sizeof agent->config_error,
			 "%s now names another store, namespace or ttl: that is used as soon as nothing is locked here any more",
			 agent->config->file);
		reload_close_standing(agent);
		return;
	}
	/* Other rules may give a path another name: whoever asks anew learns it. */
	names_each(agent, forget_paths);
	config_free(agent->config);
	agent->config = config;
	agent->config_restart = false;
	agent->config_error[0] = 0;
	err = reload_rules(agent, agent->config_error, sizeof agent->config_error);
	if (err)
		log_error("%s", agent->config_error);
	else
		log_info("%s read again", config->file);
}
