/* SPDX-License-Identifier: MIT */
/*
 * From a configuration file to struct config: types, keys, ranges. The only file
 * that includes <libconfig.h>; the agent and the dlock command use it, programs
 * never do. Every key stands in one of three tables below.
 *
 * libconfig reads from memory, from a text that config_file.c has approved, so
 * it opens nothing itself. The first error ends the reading.
 */
#include "config.h"
#include "check.h"
#include "config_file.h"
#include "duration.h"
#include "links.h"
#include "pattern.h"
#include "suggest.h"

#include <errno.h>
#include <libconfig.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND 1000u
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define KEYS_MAX 16

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct loader {
	struct config *config;
	struct config_error *error;
	unsigned linger_line;		/* 0: the key is not there */
};

struct key {
	const char *name;
	/* Reads the setting into the member at target. 0 or a negative errno with the error filled. */
	int (*read)(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
	size_t offset;			/* of the member */
	int (*check)(const char *value, char text[CHECK_TEXT_MAX]);	/* of a string */
	uint32_t min, max;		/* of a time, in ms */
	const char *example;
};

static int read_string(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int read_time(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int read_replicas(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int read_servers(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int read_redis(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int read_rules(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target);
static int check_user(const char *value, char text[CHECK_TEXT_MAX]);
static int check_pattern(const char *value, char text[CHECK_TEXT_MAX]);
static int check_local_lock(const char *value, char text[CHECK_TEXT_MAX]);

static const struct key top_keys[] = {
	{ "namespace", read_string, offsetof(struct config, name_space), check_namespace, .example = "\"prod\"" },
	{ "ttl", read_time, offsetof(struct config, ttl_ms), .min = SECOND, .max = HOUR, .example = "\"30s\"" },
	{ "linger", read_time, offsetof(struct config, linger_ms), .min = 0, .max = HOUR, .example = "\"2s\"" },
	{ "try_timeout", read_time, offsetof(struct config, try_timeout_ms), .min = 10, .max = 10 * MINUTE, .example = "\"2s\"" },
	{ "idle_exit", read_time, offsetof(struct config, idle_exit_ms), .min = SECOND, .max = 24 * HOUR, .example = "\"60s\"" },
	{ "runtime_dir", read_string, offsetof(struct config, runtime_dir), check_path, .example = "\"/run/dlockshim\"" },
	{ "state_dir", read_string, offsetof(struct config, state_dir), check_path, .example = "\"/var/lib/dlockshim\"" },
	{ "redis", read_redis, 0, .example = "{ servers = [ \"redis://HOST:6379\" ]; }" },
	{ "rules", read_rules, 0, .example = "( { path = \"/var/lock/*.lock\"; } )" },
};

static const struct key redis_keys[] = {
	{ "servers", read_servers, 0, .example = "[ \"redis://HOST:6379\" ]" },
	{ "min_replicas", read_replicas, offsetof(struct config, redis.min_replicas), .example = "0" },
	{ "connect_timeout", read_time, offsetof(struct config, redis.connect_timeout_ms), .min = 10, .max = MINUTE, .example = "\"2s\"" },
	{ "user", read_string, offsetof(struct config, redis.user), check_user, .example = "\"dlock\"" },
	{ "password_file", read_string, offsetof(struct config, redis.password_file), check_path, .example = "\"/etc/dlockshim.secret\"" },
};

/* local_lock has one value so far and nothing to remember. */
static const struct key rule_keys[] = {
	{ "path", read_string, offsetof(struct config_rule, path), check_pattern, .example = "\"/var/lock/*.lock\"" },
	{ "name", read_string, offsetof(struct config_rule, name), .example = "\"jobs/{basename}\"" },
	{ "on_lost", read_string, offsetof(struct config_rule, on_lost), check_on_lost, .example = "\"kill\"" },
	{ "local_lock", read_string, SIZE_MAX, check_local_lock, .example = "\"file\"" },
};

/* ---- errors ---- */

/* A sentence about a line of the file. */
#define fail_at(loader, line, err, format, ...) \
	config_fail((loader)->error, err, "%s:%u: " format, \
		    config_path_text((loader)->config->file), (unsigned)(line), ##__VA_ARGS__)
#define fail_on(loader, setting, format, ...) \
	fail_at(loader, config_setting_source_line(setting), -EINVAL, "`%s` " format, config_setting_name(setting), ##__VA_ARGS__)

static const char *type_name(const config_setting_t *setting)
{
	switch (config_setting_type(setting)) {
	case CONFIG_TYPE_GROUP:
		return "a group { … }";
	case CONFIG_TYPE_LIST:
		return "a list ( … )";
	case CONFIG_TYPE_ARRAY:
		return "an array [ … ]";
	case CONFIG_TYPE_INT:
	case CONFIG_TYPE_INT64:
	case CONFIG_TYPE_FLOAT:
		return "a number";
	case CONFIG_TYPE_BOOL:
		return "true or false";
	default:
		return "a string";
	}
}

static int fail_type(struct loader *loader, const config_setting_t *setting, const struct key *key)
{
	return fail_on(loader, setting, "is %s; write %s = %s", type_name(setting), key->name, key->example);
}

static int fail_memory(struct loader *loader)
{
	return config_fail(loader->error, -ENOMEM, "%s: out of memory while it was read", config_path_text(loader->config->file));
}

static const struct key *find_key(const struct key *keys, size_t count, const char *name)
{
	size_t i;

	for (i = 0; i < count; i++)
		if (strcmp(keys[i].name, name) == 0)
			return &keys[i];
	return NULL;
}

static int fail_unknown(struct loader *loader, const config_setting_t *setting, const struct key *keys, size_t count)
{
	const char *name = config_setting_name(setting), *names[KEYS_MAX], *near;
	unsigned line = config_setting_source_line(setting);
	char all[200] = "";
	size_t i, used = 0;

	if (keys != top_keys && find_key(top_keys, COUNT(top_keys), name))
		return fail_at(loader, line, -EINVAL, "key `%s` does not belong here, but on the top level of the file; move it there", name);
	if (keys != redis_keys && find_key(redis_keys, COUNT(redis_keys), name))
		return fail_at(loader, line, -EINVAL, "key `%s` does not belong here, but into the group `redis`; move it there", name);
	if (keys != rule_keys && find_key(rule_keys, COUNT(rule_keys), name))
		return fail_at(loader, line, -EINVAL, "key `%s` does not belong here, but into a rule of the list `rules`; move it there", name);
	for (i = 0; i < count; i++) {
		names[i] = keys[i].name;
		used += (size_t)snprintf(all + used, sizeof all - used, "%s`%s`", i ? ", " : "", keys[i].name);
	}
	near = suggest_nearest(name, names, count);
	if (near)
		return fail_at(loader, line, -EINVAL, "key `%.60s` is not known; did you mean `%s`?", name, near);
	return fail_at(loader, line, -EINVAL, "key `%.60s` is not known; the keys here are %s", name, all);
}

/* ---- single values ---- */

static int check_user(const char *value, char text[CHECK_TEXT_MAX])
{
	if (*value)
		return 0;
	snprintf(text, CHECK_TEXT_MAX, "is empty; name an ACL user of the server, or leave the key out for the default user");
	return -EINVAL;
}

static int check_pattern(const char *value, char text[CHECK_TEXT_MAX])
{
	const char *wrong = pattern_check(value);

	if (!wrong)
		return 0;
	snprintf(text, CHECK_TEXT_MAX, "%s", wrong);
	return -EINVAL;
}

static int check_local_lock(const char *value, char text[CHECK_TEXT_MAX])
{
	if (strcmp(value, "file") == 0)
		return 0;
	snprintf(text, CHECK_TEXT_MAX, "is not supported by this version; write \"file\" or leave the key out");
	return -EINVAL;
}

static int replace(struct loader *loader, char **target, const char *value)
{
	char *copy = strdup(value);

	if (!copy)
		return fail_memory(loader);
	free(*target);
	*target = copy;
	return 0;
}

static int read_string(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	const char *value = config_setting_get_string(setting);
	char text[CHECK_TEXT_MAX];

	if (!value)
		return fail_type(loader, setting, key);
	if (key->check && key->check(value, text) < 0)
		return fail_on(loader, setting, "= \"%.100s\" %s", value, text);
	return key->offset == SIZE_MAX ? 0 : replace(loader, target, value);
}

static int read_time(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	const char *value = config_setting_get_string(setting);
	char low[DURATION_TEXT_MAX], high[DURATION_TEXT_MAX];
	int type = config_setting_type(setting), err;
	uint32_t ms;

	if (type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64) {
		long long n = config_setting_get_int64(setting);

		/* Thousands are milliseconds, probably. */
		return fail_on(loader, setting, "= %lld has no unit; write \"%lld%s\"", n, n < 0 ? 0 : n, n < 1000 ? "s" : "ms");
	}
	if (!value)
		return fail_type(loader, setting, key);
	err = duration_parse(value, &ms);
	if (err == -ENODATA)
		return fail_on(loader, setting, "= \"%.40s\" has no unit; write \"%.40ss\"", value, value);
	if (err == -EINVAL)
		return fail_on(loader, setting, "= \"%.40s\" is not a time; write a whole number and a unit, as \"500ms\", \"30s\", \"5m\" or \"1h\"", value);
	if (err || ms < key->min || ms > key->max)
		return fail_on(loader, setting, "= \"%.40s\" is out of range; write %s to %s", value,
			       duration_format(key->min, low), duration_format(key->max, high));
	*(uint32_t *)target = ms;
	if (target == &loader->config->linger_ms)
		loader->linger_line = config_setting_source_line(setting);
	return 0;
}

static int read_replicas(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	int type = config_setting_type(setting);
	long long n;

	if (type != CONFIG_TYPE_INT && type != CONFIG_TYPE_INT64)
		return fail_type(loader, setting, key);
	n = config_setting_get_int64(setting);
	if (n < 0)
		return fail_on(loader, setting, "= %lld is negative; write 0", n);
	if (n > 0)
		return fail_on(loader, setting, "= %lld asks for replicas; only 0 is supported by this version", n);
	*(uint32_t *)target = 0;
	return 0;
}

/* ---- groups ---- */

static int read_group(struct loader *loader, const config_setting_t *setting, const struct key *keys, size_t count, void *base)
{
	unsigned n = (unsigned)config_setting_length(setting), i;

	for (i = 0; i < n; i++) {
		const config_setting_t *child = config_setting_get_elem(setting, i);
		const struct key *key = find_key(keys, count, config_setting_name(child));
		int err;

		if (!key)
			return fail_unknown(loader, child, keys, count);
		err = key->read(loader, child, key, key->offset == SIZE_MAX ? base : (char *)base + key->offset);
		if (err)
			return err;
	}
	return 0;
}

static int read_servers(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	const config_setting_t *first;
	struct config *config = loader->config;
	char text[CHECK_TEXT_MAX];
	const char *value;
	int n;

	(void)target;
	if (!config_setting_is_array(setting) && !config_setting_is_list(setting))
		return fail_type(loader, setting, key);
	n = config_setting_length(setting);
	if (n == 0)
		return fail_on(loader, setting, "is empty; write %s = %s", key->name, key->example);
	first = config_setting_get_elem(setting, 0);
	value = config_setting_get_string(first);
	if (!value)
		return fail_on(loader, setting, "holds %s; write %s = %s", type_name(first), key->name, key->example);
	if (n > 1)
		return fail_on(loader, setting, "names %d servers; this version supports exactly one", n);
	if (check_server(value, text) < 0)
		return fail_at(loader, config_setting_source_line(first), -EINVAL, "`servers`: \"%.150s\" %s", value, text);
	config->redis.servers = calloc(1, sizeof *config->redis.servers);
	if (!config->redis.servers)
		return fail_memory(loader);
	config->redis.server_count = 1;
	return replace(loader, &config->redis.servers[0], value);
}

static int read_redis(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	(void)target;
	if (!config_setting_is_group(setting))
		return fail_type(loader, setting, key);
	return read_group(loader, setting, redis_keys, COUNT(redis_keys), loader->config);
}

static int read_rule(struct loader *loader, const config_setting_t *setting, struct config_rule *rule)
{
	const config_setting_t *name, *path;
	char text[CHECK_TEXT_MAX];
	int err;

	rule->line = config_setting_source_line(setting);
	if (!config_setting_is_group(setting))
		return fail_at(loader, rule->line, -EINVAL, "a rule is %s; write { path = \"/var/lock/*.lock\"; }", type_name(setting));
	rule->name = strdup("{path}");
	rule->on_lost = strdup("kill");
	if (!rule->name || !rule->on_lost)
		return fail_memory(loader);
	err = read_group(loader, setting, rule_keys, COUNT(rule_keys), rule);
	if (err)
		return err;
	path = config_setting_get_member(setting, "path");
	if (!path)
		return fail_at(loader, rule->line, -EINVAL, "key `path` is missing in this rule; add path = \"/var/lock/*.lock\";");
	rule->line = config_setting_source_line(path);
	name = config_setting_get_member(setting, "name");
	if (name && check_template(rule->name, rule->path, text) < 0)
		return fail_on(loader, name, "= \"%.100s\" %s", rule->name, text);
	return 0;
}

static int read_rules(struct loader *loader, const config_setting_t *setting, const struct key *key, void *target)
{
	struct config *config = loader->config;
	unsigned n, i;

	(void)target;
	if (!config_setting_is_list(setting))
		return fail_on(loader, setting, "is %s; write a list of groups, %s = %s", type_name(setting), key->name, key->example);
	n = (unsigned)config_setting_length(setting);
	if (n == 0)
		return fail_on(loader, setting, "is empty, so no path would be locked; write %s = %s", key->name, key->example);
	config->rules = calloc(n, sizeof *config->rules);
	if (!config->rules)
		return fail_memory(loader);
	config->rule_count = n;
	for (i = 0; i < n; i++) {
		int err = read_rule(loader, config_setting_get_elem(setting, i), &config->rules[i]);

		if (err)
			return err;
	}
	return 0;
}

/* ---- the whole ---- */

/* What only the whole can show: keys that are missing, times that do not fit each other. */
static int check_whole(struct loader *loader)
{
	struct config *config = loader->config;
	const char *name = config_path_text(config->file);
	char linger[DURATION_TEXT_MAX], ttl[DURATION_TEXT_MAX];

	if (!config->name_space)
		return config_fail(loader->error, -EINVAL, "%s: key `namespace` is missing; add namespace = \"prod\";, the same on every host", name);
	if (!config->redis.server_count)
		return config_fail(loader->error, -EINVAL, "%s: key `servers` of the group `redis` is missing; add redis = { servers = [ \"redis://HOST:6379\" ]; };", name);
	if (!config->rule_count)
		return config_fail(loader->error, -EINVAL, "%s: key `rules` is missing, so no path would be locked; add rules = ( { path = \"/var/lock/*.lock\"; } );", name);
	if (config->linger_ms > config->ttl_ms) {
		if (loader->linger_line)
			return fail_at(loader, loader->linger_line, -EINVAL, "`linger` = \"%s\" is longer than `ttl`; write at most \"%s\"",
				       duration_format(config->linger_ms, linger), duration_format(config->ttl_ms, ttl));
		config->linger_ms = config->ttl_ms;
	}
	return 0;
}

static int fail_syntax(struct loader *loader, const config_t *parsed, const char *text, size_t len)
{
	const char *what = config_error_text(parsed);
	unsigned line = (unsigned)config_error_line(parsed), twice;
	char key[64];

	/* libconfig says neither which key it is nor, within one line, where. */
	if (what && strstr(what, "duplicate")) {
		twice = config_text_duplicate(text, len, key, sizeof key);
		if (twice)
			return fail_at(loader, twice, -EINVAL, "key `%s` stands here a second time; remove one of the two", key);
	}
	return fail_at(loader, line, -EINVAL, "%.80s; look here and just before for a missing quote, `=`, `;` or bracket",
		       what ? what : "syntax error");
}

static int parse(struct loader *loader, const char *text, size_t len)
{
	config_t parsed;
	int err;

	config_init(&parsed);
	if (config_read_string(&parsed, text) == CONFIG_TRUE)
		err = read_group(loader, config_root_setting(&parsed), top_keys, COUNT(top_keys), loader->config);
	else
		err = fail_syntax(loader, &parsed, text, len);
	config_destroy(&parsed);
	return err ? err : check_whole(loader);
}

#ifdef __SANITIZE_ADDRESS__
/* libconfig 1.5 drops a few bytes when it finds a syntax error. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libconfig.so";
}
#endif

/* An absolute path for `file`, without resolving symlinks: it is looked up anew each time. */
static char *absolute_path(const char *file)
{
	char *dir, *path = NULL;

	if (*file == '/')
		return strdup(file);
	dir = getcwd(NULL, 0);
	if (dir && asprintf(&path, "%s/%s", strcmp(dir, "/") ? dir : "", file) < 0)
		path = NULL;
	free(dir);
	return path;
}

struct config *config_defaults(void)
{
	struct config *config = calloc(1, sizeof *config);

	if (!config)
		return NULL;
	config->ttl_ms = 30 * SECOND;
	config->linger_ms = 2 * SECOND;
	config->try_timeout_ms = 2 * SECOND;
	config->idle_exit_ms = 60 * SECOND;
	config->redis.connect_timeout_ms = 2 * SECOND;
	return config;
}

int config_load(const char *file, struct config **ret_config, struct config_error *ret_error)
{
	struct loader loader = { .config = config_defaults(), .error = ret_error };
	char *text = NULL;
	size_t len;
	int err;

	if (!file)
		file = secure_getenv("DLOCKSHIM_CONFIG");
	if (!file || !*file)
		file = CONFIG_DEFAULT_FILE;
	if (loader.config)
		loader.config->file = absolute_path(file);
	if (!loader.config || !loader.config->file) {
		config_free(loader.config);
		return config_fail(ret_error, -ENOMEM, "%s: out of memory while it was read", config_path_text(file));
	}
	file = loader.config->file;
	err = config_file_read(file, &text, &len, &loader.config->stamp, ret_error);
	if (!err)
		err = config_text_check(file, text, len, ret_error);
	if (!err)
		err = parse(&loader, text, len);
	free(text);
	if (!err && links_add_rules(loader.config) < 0)
		err = fail_memory(&loader);
	if (err) {
		config_free(loader.config);
		return err;
	}
	*ret_config = loader.config;
	return 0;
}

void config_free(struct config *config)
{
	size_t i;

	if (!config)
		return;
	for (i = 0; i < config->redis.server_count; i++)
		free(config->redis.servers[i]);
	for (i = 0; i < config->rule_count; i++) {
		free(config->rules[i].path);
		free(config->rules[i].name);
		free(config->rules[i].on_lost);
	}
	free(config->redis.servers);
	free(config->rules);
	free(config->redis.user);
	free(config->redis.password_file);
	free(config->name_space);
	free(config->runtime_dir);
	free(config->state_dir);
	free(config->file);
	free(config);
}
