/* SPDX-License-Identifier: MIT */
/* LINK: config/config.c config/config_file.c config/check.c config/duration.c config/suggest.c config/lex.c config/links.c config/pattern.c config/rules.c config/runtime_dir.c */
/* LIBS: libconfig */
/* The configuration: the sample against the defaults, and one sentence for each mistake that a person can make. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/config.h"
#include "config/config_file.h"
#include "config/duration.h"
#include "config/suggest.h"

#define SAMPLE "config/dlockshim.conf"
#define REST "redis = { servers = [ \"redis://h\" ]; };\nrules = ( { path = \"/l/*\"; } );\n"
#define GOOD "namespace = \"n\";\n" REST

static char dir[] = "/tmp/test_config.XXXXXX";
static char file[64];

static void write_bytes(const char *path, const char *text, size_t len)
{
	FILE *out;

	unlink(path);
	out = fopen(path, "w");
	assert_non_null(out);
	assert_int_equal(fwrite(text, 1, len, out), len);
	assert_int_equal(fclose(out), 0);
	assert_int_equal(chmod(path, 0644), 0);
}

static struct config *load(const char *text, struct config_error *error)
{
	struct config *config = NULL;
	int err;

	error->text[0] = '\0';
	write_bytes(file, text, strlen(text));
	err = config_load(file, &config, error);
	assert_true(err == 0 ? config != NULL : config == NULL && err == error->err);
	return config;
}

static struct config *load_good(const char *text)
{
	struct config_error error;
	struct config *config = load(text, &error);

	if (!config)
		fail_msg("%s\n%s", text, error.text);
	return config;
}

/* The text must be refused by a sentence that holds every given part; line 0: the file alone is named. */
static void refuse(const char *text, unsigned line, const char *part, const char *other)
{
	struct config_error error;
	struct config *config = load(text, &error);
	char where[128];

	if (config)
		fail_msg("not refused:\n%s", text);
	snprintf(where, sizeof where, line ? "%s:%u: " : "%s: ", file, line);
	if (strncmp(error.text, where, strlen(where)) || !strstr(error.text, part) || (other && !strstr(error.text, other)))
		fail_msg("%s\n--- said:   %s\n--- wanted: %s… %s … %s", text, error.text, where, part, other ? other : "");
	assert_null(strchr(error.text, '\n'));
	assert_true(error.err < 0);
}

static int set_up(void **unused)
{
	(void)unused;
	umask(022);
	unsetenv("DLOCKSHIM_CONFIG");
	if (!mkdtemp(dir))
		return -1;
	snprintf(file, sizeof file, "%s/c.conf", dir);
	return 0;
}

static int tear_down(void **unused)
{
	char path[80];

	(void)unused;
	unlink(file);
	snprintf(path, sizeof path, "%s/secret", dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/link", dir);
	unlink(path);
	return rmdir(dir);
}

/* ---- the sample ---- */

/* The sample in memory; it may stand in a checkout that its group can write. */
static char *sample_text(bool uncomment)
{
	FILE *in = fopen(SAMPLE, "r");
	char *text = calloc(1, 65536), line[512], *key;

	if (!in)
		fail_msg(SAMPLE " cannot be opened; run the test in the project's top directory");
	while (fgets(line, sizeof line, in)) {
		key = line + strspn(line, " ");
		/* A commented key has no blank behind the #; prose has. */
		if (uncomment && key[0] == '#' && key[1] >= 'a' && key[1] <= 'z')
			*key = ' ';
		strcat(text, line);
	}
	fclose(in);
	return text;
}

static void test_the_sample_loads_and_its_values_are_the_defaults(void **unused)
{
	char *text = sample_text(false);
	struct config *config = load_good(text), *defaults = config_defaults();
	const struct config_rule *last;

	(void)unused;
	assert_string_equal(config->file, file);
	assert_int_not_equal(config->stamp, 0);
	assert_string_equal(config->name_space, "prod");
	assert_int_equal(config->ttl_ms, defaults->ttl_ms);
	assert_int_equal(config->linger_ms, defaults->linger_ms);
	assert_int_equal(config->try_timeout_ms, defaults->try_timeout_ms);
	assert_int_equal(config->idle_exit_ms, defaults->idle_exit_ms);
	assert_int_equal(config->redis.min_replicas, defaults->redis.min_replicas);
	assert_int_equal(config->redis.connect_timeout_ms, defaults->redis.connect_timeout_ms);
	assert_null(config->runtime_dir);
	assert_null(config->state_dir);
	assert_null(config->redis.user);
	assert_null(config->redis.password_file);
	assert_null(defaults->runtime_dir);
	assert_null(defaults->state_dir);
	assert_null(defaults->redis.user);
	assert_null(defaults->redis.password_file);
	assert_null(defaults->name_space);
	assert_int_equal(config->redis.server_count, 1);
	assert_string_equal(config->redis.servers[0], "redis://127.0.0.1:6379");
	assert_int_equal(defaults->redis.server_count, 0);
	assert_int_equal(defaults->rule_count, 0);
	assert_in_range(config->rule_count, 2, 4);	/* two, and where a directory is a symbolic link one more */
	assert_string_equal(config->rules[0].path, "/var/lock/jobs/*.lock");
	assert_string_equal(config->rules[0].name, "jobs/{basename}");
	assert_string_equal(config->rules[0].on_lost, "kill");
	last = &config->rules[config->rule_count - 1];
	assert_non_null(strstr(last->path, "/**"));
	assert_string_equal(last->name, "shared/{tail}");
	assert_string_equal(last->on_lost, "kill");
	config_free(defaults);
	config_free(config);
	free(text);
}

static void test_the_defaults_are_those_of_the_design(void **unused)
{
	struct config *defaults = config_defaults();

	(void)unused;
	assert_int_equal(defaults->ttl_ms, 30000);
	assert_int_equal(defaults->linger_ms, 2000);
	assert_int_equal(defaults->try_timeout_ms, 2000);
	assert_int_equal(defaults->idle_exit_ms, 60000);
	assert_int_equal(defaults->redis.connect_timeout_ms, 2000);
	assert_int_equal(defaults->redis.min_replicas, 0);
	config_free(defaults);
}

static void test_the_commented_keys_of_the_sample_load_too(void **unused)
{
	char *text = sample_text(true);
	struct config *config = load_good(text);

	(void)unused;
	assert_string_equal(config->runtime_dir, "/run/dlockshim");
	assert_string_equal(config->state_dir, "/var/lib/dlockshim");
	assert_string_equal(config->redis.user, "dlock");
	assert_string_equal(config->redis.password_file, "/etc/dlockshim.secret");
	config_free(config);
	free(text);
}

/* The sentence about an unknown key lists the known ones; each must stand in the sample as a key. */
static void test_the_sample_documents_every_key(void **unused)
{
	static const char *const asked[] = {
		"qqqqqqqqqqqqq = 1;", "redis = { qqqqqqqqqqqqq = 1; };", "rules = ( { qqqqqqqqqqqqq = 1; } );",
	};
	char *text = sample_text(true), *list, *key, needle[64];
	struct config_error error;
	unsigned i, keys = 0;

	(void)unused;
	for (i = 0; i < 3; i++) {
		assert_null(load(asked[i], &error));
		list = strstr(error.text, "the keys here are ");
		assert_non_null(list);
		for (key = strtok(list + strlen("the keys here are "), "`, "); key; key = strtok(NULL, "`, "), keys++) {
			snprintf(needle, sizeof needle, " %s = ", key);
			if (!strstr(text, needle)) {
				needle[0] = '\n';
				if (!strstr(text, needle))
					fail_msg("the sample does not have the key %s", key);
			}
		}
	}
	assert_int_equal(keys, 9 + 5 + 4);
	free(text);
}

/* ---- what may be written ---- */

static void test_every_key_is_read(void **unused)
{
	struct config *config = load_good(
		"namespace = \"a.B_c-9\"; ttl = \"1m\"; linger = \"0s\"; try_timeout = \"500ms\"; idle_exit = \"1h\";\n"
		"runtime_dir = \"/r\"; state_dir = \"/s\";\n"
		"redis: { servers = ( \"unix:///run/redis.sock\" ), min_replicas = 0; connect_timeout = \"1s\", user = \"u\"; password_file = \"/p\" }\n"
		"rules = ( { path = \"/a\\\\*/\" \"*\";\nname = \"x{{}}\" },\n"
		"  { on_lost = \"signal:SIGUSR1\"; local_lock = \"file\";\n    path = \"/b/**\" } )");

	(void)unused;
	assert_string_equal(config->name_space, "a.B_c-9");
	assert_int_equal(config->ttl_ms, 60000);
	assert_int_equal(config->linger_ms, 0);
	assert_int_equal(config->try_timeout_ms, 500);
	assert_int_equal(config->idle_exit_ms, 3600000);
	assert_string_equal(config->runtime_dir, "/r");
	assert_string_equal(config->state_dir, "/s");
	assert_string_equal(config->redis.servers[0], "unix:///run/redis.sock");
	assert_int_equal(config->redis.connect_timeout_ms, 1000);
	assert_string_equal(config->redis.user, "u");
	assert_string_equal(config->redis.password_file, "/p");
	assert_string_equal(config->rules[0].path, "/a\\*/*");
	assert_string_equal(config->rules[0].name, "x{{}}");
	assert_int_equal(config->rules[0].line, 4);
	assert_string_equal(config->rules[1].name, "{path}");
	assert_string_equal(config->rules[1].on_lost, "signal:SIGUSR1");
	assert_int_equal(config->rules[1].line, 7);
	config_free(config);
}

static void test_linger_left_out_never_exceeds_a_short_ttl(void **unused)
{
	struct config *config = load_good("ttl = \"1s\";\n" GOOD);

	(void)unused;
	assert_int_equal(config->linger_ms, 1000);
	config_free(config);
}

static void test_good_servers_pass(void **unused)
{
	static const char *const good[] = {
		"redis://10.0.0.5:6379", "redis://host", "redis://host/", "redis://h:1/15", "redis://[::1]:6379/0", "redis://[fe80::1%eth0]",
		"unix:///run/redis/redis.sock", "redis://my_host-1.example.org:65535",
	};
	char text[512];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof good / sizeof *good; i++) {
		snprintf(text, sizeof text, "namespace = \"n\"; redis = { servers = [ \"%s\" ]; }; rules = ( { path = \"/a\"; } );", good[i]);
		config_free(load_good(text));
	}
}

static void test_on_lost_takes_kill_log_and_signals(void **unused)
{
	static const char *const good[] = { "kill", "log", "signal:TERM", "signal:SIGTERM", "signal:15", "signal:USR1", "signal:64" };
	char text[512];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof good / sizeof *good; i++) {
		struct config *config;

		snprintf(text, sizeof text, "namespace = \"n\"; redis = { servers = [ \"redis://h\" ]; }; rules = ( { path = \"/a\"; on_lost = \"%s\"; } );", good[i]);
		config = load_good(text);
		assert_string_equal(config->rules[0].on_lost, good[i]);
		config_free(config);
	}
}

/* Programs read this key without libconfig: both must understand it alike. */
static void test_the_runtime_directory_is_read_alike_with_and_without_libconfig(void **unused)
{
	static const char *const written[] = {
		"/a", "/a\\\\b", "/a\\\"b", "/\\x41\\X7e", "/\\x4", "/\\q\\n\\t\\r\\f\\a", "/a\" /* c \" */ \"/b\" # \"\n \"c", "/a\nb", "/\303\251 {[(", "/\\\\\" \"\\\\",
	};
	char text[512], buf[256];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof written / sizeof *written; i++) {
		struct config *config;

		snprintf(text, sizeof text, "/* \" */ %s // runtime_dir = \"/no\";\nruntime_dir = \"%s\";\n", GOOD, written[i]);
		config = load_good(text);
		assert_int_equal(runtime_dir_scan(text, strlen(text), buf, sizeof buf), strlen(config->runtime_dir));
		assert_string_equal(buf, config->runtime_dir);
		config_free(config);
	}
}

/* ---- mistakes ---- */

static void test_an_unknown_key_is_named_with_the_one_meant(void **unused)
{
	(void)unused;
	refuse(GOOD "\ntttl = \"30s\";\n", 5, "`tttl`", "did you mean `ttl`?");
	refuse("name_space = \"n\";\n" REST, 1, "`name_space`", "`namespace`?");
	refuse("Namespace = \"n\";\n" REST, 1, "`Namespace`", "`namespace`?");
	refuse("\nrule = ();\n", 2, "`rule`", "`rules`?");
	refuse("try-timeout = \"1s\";\n", 1, "`try-timeout`", "`try_timeout`?");
	refuse("redis = {\n server = \"x\";\n};\n", 2, "`server`", "`servers`?");
	refuse("redis = {\n pasword_file = \"x\";\n};\n", 2, "`pasword_file`", "`password_file`?");
	refuse("rules = (\n {\n  path = \"/a\";\n  onlost = \"log\";\n } );\n", 4, "`onlost`", "`on_lost`?");
	refuse("rules = ( { paht = \"/a\"; } );\n", 1, "`paht`", "`path`?");
	refuse("completely_different = 1;\n", 1, "`completely_different`", "the keys here are `namespace`");
}

static void test_a_key_in_the_wrong_place_is_sent_to_the_right_one(void **unused)
{
	(void)unused;
	refuse("servers = [ \"redis://h\" ];\n", 1, "`servers`", "into the group `redis`");
	refuse("on_lost = \"kill\";\n", 1, "`on_lost`", "a rule of the list `rules`");
	refuse("redis = {\n ttl = \"1s\"; };\n", 2, "`ttl`", "top level");
}

static void test_a_time_without_unit_is_told_to_have_one(void **unused)
{
	(void)unused;
	refuse("ttl = 30;\n", 1, "`ttl`", "write \"30s\"");
	refuse("\nlinger = 1500;\n", 2, "`linger`", "write \"1500ms\"");
	refuse("ttl = \"30\";\n", 1, "no unit", "write \"30s\"");
	refuse("ttl = 99999999999;\n", 1, "no unit", NULL);
	refuse("ttl = -1;\n", 1, "no unit", NULL);
	refuse("ttl = \"30 s\";\n", 1, "not a time", "\"30s\"");
	refuse("ttl = \"1.5s\";\n", 1, "not a time", NULL);
	refuse("ttl = \"-1s\";\n", 1, "not a time", NULL);
	refuse("ttl = \"\";\n", 1, "not a time", NULL);
	refuse("ttl = \"30S\";\n", 1, "not a time", NULL);
	refuse("ttl = 1.5;\n", 1, "a number", "ttl = \"30s\"");
	refuse("ttl = true;\n", 1, "true or false", "ttl = \"30s\"");
}

static void test_a_value_out_of_range_is_told_the_range(void **unused)
{
	(void)unused;
	refuse("ttl = \"999ms\";\n", 1, "out of range", "1s to 1h");
	refuse("ttl = \"2h\";\n", 1, "out of range", "1s to 1h");
	refuse("ttl = \"99999999999999999999h\";\n", 1, "out of range", NULL);
	refuse("try_timeout = \"0s\";\n", 1, "out of range", "10ms to 10m");
	refuse("idle_exit = \"500ms\";\n", 1, "out of range", "1s to 24h");
	refuse("redis = { connect_timeout = \"2m\"; };\n", 1, "`connect_timeout`", "10ms to 1m");
	refuse("ttl = \"10s\";\nlinger = \"11s\";\n" GOOD, 2, "longer than `ttl`", "at most \"10s\"");
}

static void test_a_value_of_the_wrong_type_is_shown_the_right_one(void **unused)
{
	(void)unused;
	refuse("namespace = 1;\n", 1, "`namespace` is a number", "namespace = \"prod\"");
	refuse("namespace = prod;\n", 1, "syntax error", NULL);
	refuse("redis = \"redis://h\";\n", 1, "a string", "{ servers = [");
	refuse("redis = { servers = \"redis://h\"; };\n", 1, "a string", "servers = [");
	refuse("redis = { servers = [ 1 ]; };\n", 1, "a number", "servers = [");
	refuse("redis = { min_replicas = \"0\"; };\n", 1, "a string", "min_replicas = 0");
	refuse("rules = { path = \"/a\"; };\n", 1, "a group", "( { path");
	refuse("rules = [ \"/a\" ];\n", 1, "an array", "( { path");
	refuse("rules = (\n\"/a\" );\n", 2, "a rule is a string", "{ path");
	refuse("rules = ( { path = 1; } );\n", 1, "`path` is a number", NULL);
	refuse("runtime_dir = ( );\n", 1, "a list", NULL);
}

static void test_what_is_missing_is_named(void **unused)
{
	(void)unused;
	refuse(REST, 0, "`namespace` is missing", "add namespace =");
	refuse("", 0, "`namespace` is missing", NULL);
	refuse("namespace = \"n\"; rules = ( { path = \"/a\"; } );", 0, "`servers`", "add redis =");
	refuse("namespace = \"n\"; redis = { }; rules = ( { path = \"/a\"; } );", 0, "`servers`", "missing");
	refuse("namespace = \"n\"; redis = { servers = [ \"redis://h\" ]; };", 0, "`rules` is missing", "no path");
	refuse("rules = ( );", 1, "`rules` is empty", "no path");
	refuse("rules = ( { path = \"/a\"; },\n{ name = \"x\"; } );", 2, "`path` is missing", NULL);
	refuse("redis = { servers = [ ]; };", 1, "`servers` is empty", NULL);
}

static void test_a_bad_namespace_is_refused(void **unused)
{
	(void)unused;
	refuse("namespace = \"\";", 1, "empty", NULL);
	refuse("namespace = \"a b\";", 1, "a character", NULL);
	refuse("namespace = \"a{b}\";", 1, "a character", NULL);
	refuse("namespace = \"0123456789012345678901234567890123456789012345678901234567890123x\";", 1, "65 characters", "at most 64");
}

static void test_a_bad_server_is_refused(void **unused)
{
	static const char *const bad[][2] = {
		{ "10.0.0.5:6379", "not a server" }, { "http://h", "not a server" }, { "", "not a server" }, { "rediss://h", "TLS" },
		{ "redis://", "no host" }, { "redis://:6379", "no host" }, { "redis://h:0", "port" }, { "redis://h:65536", "port" },
		{ "redis://h:x", "port" }, { "redis://h:", "port" }, { "redis://h:1:2", "brackets" }, { "redis://h/x", "database" },
		{ "redis://:secret@h", "password_file" }, { "redis://[::1", "unfinished" }, { "redis://[]", "unfinished" },
		{ "redis://[::1]x", "between" }, { "redis://a b", "a character" }, { "unix://run/x", "three slashes" }, { "unix:///", "three slashes" },
		{ "unix:///0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678", "107" },
	};
	char text[512];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof bad / sizeof *bad; i++) {
		snprintf(text, sizeof text, "redis = {\n servers = [\n\"%s\" ]; };\n", bad[i][0]);
		refuse(text, 3, "`servers`", bad[i][1]);
	}
	refuse("redis = { servers = [ \"redis://a\", \"redis://b\" ]; };", 1, "exactly one", NULL);
	refuse("redis = { min_replicas = 1; };", 1, "only 0 is supported by this version", NULL);
	refuse("redis = { min_replicas = -1; };", 1, "negative", NULL);
	refuse("redis = { user = \"\"; };", 1, "empty", NULL);
	refuse("redis = { password_file = \"secret\"; };", 1, "absolute", NULL);
	refuse("runtime_dir = \"run\";", 1, "absolute", NULL);
}

static void test_a_bad_rule_is_refused_with_its_line(void **unused)
{
	static const char *const bad[][2] = {
		{ "path = \"a/*\";", "begin with `/`" }, { "path = \"/[a\";", "`]`" }, { "path = \"/a/\";", "ends in `/`" },
		{ "path = \"\";", "begin with" }, { "path = \"/***\";", "three stars" },
		{ "path = \"/a\"; name = \"{basname}\";", "did you mean {basename}?" }, { "path = \"/a\"; name = \"{zzzzzzzz}\";", "there are {path}" },
		{ "path = \"/a\"; name = \"\";", "empty" }, { "path = \"/a\"; name = \"x{\";", "without its `}`" }, { "path = \"/a\"; name = \"x}\";", "without its `{`" },
		{ "path = \"/*/[a]\"; name = \"{3}\";", "has 2 wildcards" }, { "path = \"/*\"; name = \"{2}\";", "has 1 wildcard;" }, { "path = \"/a\"; name = \"{1}\";", "has 0 wildcards" },
		{ "path = \"/*\"; name = \"{0}\";", "{1} to {9}" }, { "path = \"/*\"; name = \"{10}\";", "{1} to {9}" }, { "path = \"/*\"; name = \"{}\";", "{}" },
		{ "name = \"{2}\"; path = \"/*\";", "has 1 wildcard;" },
		{ "path = \"/a\"; on_lost = \"signal:TREM\";", "signal:TERM" }, { "path = \"/a\"; on_lost = \"signal:\";", "names no signal" },
		{ "path = \"/a\"; on_lost = \"signal:0\";", "names no signal" }, { "path = \"/a\"; on_lost = \"signal:65\";", "names no signal" },
		{ "path = \"/a\"; on_lost = \"kil\";", "\"kill\"?" }, { "path = \"/a\"; on_lost = \"SIGTERM\";", "signal:" },
		{ "path = \"/a\"; local_lock = \"shadow\";", "write \"file\"" },
	};
	char text[512];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof bad / sizeof *bad; i++) {
		snprintf(text, sizeof text, "rules = ( { path = \"/ok\"; },\n { %s } );\n", bad[i][0]);
		refuse(text, 2, bad[i][1], NULL);
	}
}

static void test_a_key_written_twice_is_named(void **unused)
{
	(void)unused;
	refuse("ttl = \"1s\";\n# ttl = x\nlinger = \"1s\";\nttl = \"2s\";\n", 4, "`ttl`", "second time");
	refuse("ttl = \"1s\"; redis = { user = \"ttl\"; }; rules = (\n{ path = \"/a\"; name = \"n\"; },\n{ path = \"/b\"; name = \"n\"; path = \"/c\"; } );\n", 3, "`path`", "second time");
	refuse("redis = { user = \"a\";\n user = \"b\"; };\n", 2, "`user`", "second time");
	refuse("redis = { user = \"a\"; };\nredis = { user = \"b\"; };\n", 2, "`redis`", "second time");
}

static void test_a_syntax_error_has_its_line(void **unused)
{
	(void)unused;
	refuse("namespace = \"n\";\nttl \"1s\";\n", 2, "syntax error", NULL);
	refuse("rules = (\n{ path = \"/a\"; }\n{ path = \"/b\"; } );\n", 3, "syntax error", NULL);
	refuse("redis = { user = \"a\";\n\n", 1, "syntax error: the `{` here is never closed", NULL);
	refuse("rules = (\n{ path = \"/a\";\n);\n", 3, "cannot close the `{` of line 2", NULL);
	refuse("redis = { };\n};\n", 2, "`}` closes nothing", NULL);
	refuse("redis = { user = \n};\n", 2, "syntax error", NULL);
	refuse("redis = [ 1, \"a\" ];\n", 1, "mismatched", NULL);
	refuse("ttl = ;", 1, "syntax error", NULL);
	refuse("%", 1, "syntax error", NULL);
}

/* libconfig would take these without a word, or read another file. */
static void test_what_libconfig_would_pass_over_is_refused(void **unused)
{
	struct config_error error;
	struct config *config = NULL;
	static const char nul[] = "namespace = \"n\";\n\0rubbish\n" REST;

	(void)unused;
	refuse("ttl = \"1s\";\n@include \"/etc/passwd\"\n", 2, "@include is not supported", NULL);
	refuse("\n  @include \"x\"\n" GOOD, 2, "@include is not supported", NULL);
	refuse(GOOD "ttl = \"1s;\n\n", 4, "a string begins here", NULL);
	refuse(GOOD "\n/* the rest\n\n", 5, "a comment begins here", NULL);
	refuse("rules = ( { path = \"/a\\x00b\"; } );\n", 1, "\\x00", NULL);
	write_bytes(file, nul, sizeof nul - 1);
	assert_int_equal(config_load(file, &config, &error), -EINVAL);
	assert_non_null(strstr(error.text, ":2: contains a NUL byte"));
	config_free(load_good("# @include \"x\"\n/* \" */ // \"\n" GOOD "state_dir = \"/a\n@include \\\"x\\\"\\\\\";\n"));
}

static void test_deep_nesting_and_long_words_do_no_harm(void **unused)
{
	size_t n = 200000, i;
	char *text = malloc(n + 1);
	struct config_error error;

	(void)unused;
	for (i = 0; i < n; i++)
		text[i] = "a = ("[i < 5 ? i : 4];
	text[n] = '\0';
	assert_null(load(text, &error));
	assert_non_null(strstr(error.text, "nested more than"));
	memset(text, 'k', n);
	memcpy(text + n - 5, " = 1;", 5);
	assert_null(load(text, &error));
	assert_non_null(strstr(error.text, "is not known"));
	free(text);
}

/* Every prefix of a file, and every single byte of it turned: an answer, never a crash (the sanitizers look). */
static void test_damaged_files_never_crash_the_loader(void **unused)
{
	char *text = sample_text(true), *damaged;
	size_t len, i, refused = 0;
	struct config_error error;
	struct config *config;
	char *line, *keep = calloc(1, 65536);

	(void)unused;
	/* Without its comments, so that every byte counts. */
	for (line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (line[strspn(line, " ")] != '#')
			sprintf(keep + strlen(keep), "%s\n", line);
	len = strlen(keep);
	damaged = malloc(len + 1);
	for (i = 0; i < 2 * len; i++) {
		memcpy(damaged, keep, len + 1);
		if (i < len)
			damaged[i] = '\0';
		else
			damaged[i - len] = (char)(damaged[i - len] ^ (1 << (i % 7)));
		if (!damaged[0])
			continue;
		config = load(damaged, &error);
		refused += !config;
		assert_true(config || error.text[0]);
		config_free(config);
	}
	assert_true(refused > len);
	free(damaged);
	free(keep);
	free(text);
}

/* ---- files ---- */

static void refuse_file(const char *path, int want, const char *part)
{
	struct config_error error = { 0, "" };
	struct config *config = NULL;
	int err = config_load(path, &config, &error);

	config_free(config);
	if (err != want || error.err != want || !strstr(error.text, part))
		fail_msg("%s: %d %s", path, err, error.text);
}

static void test_a_file_that_others_can_change_is_refused_with_the_repair(void **unused)
{
	(void)unused;
	config_free(load_good(GOOD));
	chmod(file, 0664);
	refuse_file(file, -EACCES, "(mode 0664); run `chmod go-w /tmp/");
	chmod(file, 0646);
	refuse_file(file, -EACCES, "run `chmod go-w");
	chmod(file, 0600);
	if (geteuid() != 0)
		return;
	assert_int_equal(chown(file, 12345, 0), 0);
	refuse_file(file, -EACCES, "belongs to user id 12345, who could change every lock; run `chown 0 /tmp/");
}

static void test_a_file_that_cannot_be_read_is_named(void **unused)
{
	char path[5000];

	(void)unused;
	refuse_file("/nonexistent/x.conf", -ENOENT, "/nonexistent/x.conf: there is no such file");
	refuse_file(dir, -EINVAL, "not a regular file");
	refuse_file("/dev/null", -EINVAL, "not a regular file");
	refuse_file("/dev/null/x", -ENOTDIR, "cannot be opened");
	memset(path, 'x', sizeof path - 1);
	path[0] = '/';
	path[sizeof path - 1] = '\0';
	refuse_file(path, -ENAMETOOLONG, "cannot be opened");
	snprintf(path, sizeof path, "%s/a\nb", dir);
	refuse_file(path, -ENOENT, "a?b: there is no such file");
	snprintf(path, sizeof path, "%s/link", dir);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	refuse_file(path, -EINVAL, "not a regular file");
	unlink(path);
}

static void test_a_symlink_is_followed_and_a_relative_path_made_absolute(void **unused)
{
	char path[80], *cwd = getcwd(NULL, 0);
	struct config *config = NULL;
	struct config_error error;

	(void)unused;
	config_free(load_good(GOOD));
	snprintf(path, sizeof path, "%s/link", dir);
	assert_int_equal(symlink("c.conf", path), 0);
	assert_int_equal(config_load(path, &config, &error), 0);
	assert_string_equal(config->file, path);
	config_free(config);
	unlink(path);
	assert_int_equal(chdir(dir), 0);
	config = NULL;
	setenv("DLOCKSHIM_CONFIG", "c.conf", 1);
	assert_int_equal(config_load(NULL, &config, &error), 0);
	assert_string_equal(config->file, file);
	config_free(config);
	unsetenv("DLOCKSHIM_CONFIG");
	assert_int_equal(chdir(cwd), 0);
	free(cwd);
}

/* ---- the password ---- */

static int password(const char *bytes, size_t len, mode_t mode, char *buf, size_t size, struct config_error *error)
{
	char path[80];
	struct config config = { .redis.password_file = path };

	snprintf(path, sizeof path, "%s/secret", dir);
	write_bytes(path, bytes, len);
	chmod(path, mode);
	error->text[0] = '\0';
	return config_read_password(&config, buf, size, error);
}

/* Loads one rule; `text` is what its path is (%s stands for the test's directory). */
static struct config *load_rule(const char *text)
{
	char path[300], all[800];

	snprintf(path, sizeof path, text, dir);
	snprintf(all, sizeof all, "namespace = \"n\"; redis = { servers = [ \"redis://h\" ]; };\n"
		 "rules = ( { path = \"%s\"; name = \"x/{1}\"; on_lost = \"log\"; }, { path = \"/other/*\"; } );\n", path);
	return load_good(all);
}

static void expect_added(const char *rule, const char *added)
{
	struct config *config = load_rule(rule);
	char want[300];

	assert_int_equal(config->rule_count, added ? 3 : 2);
	if (added) {
		snprintf(want, sizeof want, added, dir);
		assert_string_equal(config->rules[1].path, want);
		assert_string_equal(config->rules[1].name, "x/{1}");
		assert_string_equal(config->rules[1].on_lost, "log");
		assert_int_equal(config->rules[1].line, config->rules[0].line);
	}
	assert_string_equal(config->rules[config->rule_count - 1].path, "/other/*");
	config_free(config);
}

static void test_a_rule_behind_a_symbolic_link_is_one_for_its_target_too(void **unused)
{
	char real[64], odd[64], link[64], odd_link[64];

	(void)unused;
	snprintf(real, sizeof real, "%s/real", dir);
	snprintf(odd, sizeof odd, "%s/o*d", dir);
	snprintf(link, sizeof link, "%s/link", dir);
	snprintf(odd_link, sizeof odd_link, "%s/oddlink", dir);
	assert_int_equal(mkdir(real, 0755), 0);
	assert_int_equal(mkdir(odd, 0755), 0);
	assert_int_equal(symlink("real", link), 0);
	assert_int_equal(symlink(odd, odd_link), 0);

	expect_added("%s/real/*.lock", NULL);
	expect_added("%s/link/*.lock", "%s/real/*.lock");
	expect_added("%s/link/not/yet/there/a*", "%s/real/not/yet/there/a*");
	expect_added("%s/link/**", "%s/real/**");
	expect_added("%s/lin*/a", NULL);
	expect_added("%s/oddlink/?", "%s/o\\*d/?");
	expect_added("/**/*", NULL);
	expect_added("/*", NULL);

	assert_int_equal(unlink(link) | unlink(odd_link) | rmdir(real) | rmdir(odd), 0);
}

static void test_the_password_is_the_first_line_of_its_file(void **unused)
{
	struct config none = { .file = NULL };
	struct config_error error;
	char buf[16];

	(void)unused;
	assert_int_equal(config_read_password(&none, buf, sizeof buf, &error), 0);
	assert_string_equal(buf, "");
	assert_int_equal(password("s3cret\nmore\n", 12, 0600, buf, sizeof buf, &error), 6);
	assert_string_equal(buf, "s3cret");
	assert_int_equal(password("a b\r\n", 5, 0640, buf, sizeof buf, &error), 3);
	assert_string_equal(buf, "a b");
	assert_int_equal(password("123456789012345", 15, 0400, buf, sizeof buf, &error), 15);
	assert_int_equal(password("123456789012345\n", 16, 0400, buf, sizeof buf, &error), 15);
}

static void test_a_password_file_that_is_no_secret_is_refused(void **unused)
{
	struct config_error error;
	char buf[16];

	(void)unused;
	assert_int_equal(password("x\n", 2, 0644, buf, sizeof buf, &error), -EACCES);
	assert_non_null(strstr(error.text, "run `chmod g-w,o= /tmp/"));
	assert_int_equal(password("x\n", 2, 0660, buf, sizeof buf, &error), -EACCES);
	assert_int_equal(password("\nx", 2, 0600, buf, sizeof buf, &error), -EINVAL);
	assert_non_null(strstr(error.text, "empty"));
	assert_int_equal(password("", 0, 0600, buf, sizeof buf, &error), -EINVAL);
	assert_int_equal(password("a\0b\n", 4, 0600, buf, sizeof buf, &error), -EINVAL);
	assert_non_null(strstr(error.text, "NUL"));
	assert_int_equal(password("1234567890123456\n", 17, 0600, buf, sizeof buf, &error), -EINVAL);
	assert_non_null(strstr(error.text, "longer than the 15 bytes"));
}

/* ---- the small parts ---- */

static void test_durations_have_units_and_come_back_as_written(void **unused)
{
	static const struct { const char *text; int err; uint32_t ms; } cases[] = {
		{ "500ms", 0, 500 }, { "30s", 0, 30000 }, { "5m", 0, 300000 }, { "1h", 0, 3600000 }, { "0s", 0, 0 },
		{ "4294967295ms", 0, 4294967295u }, { "4294967296ms", -ERANGE, 0 }, { "1193h", 0, 4294800000u }, { "1194h", -ERANGE, 0 },
		{ "30", -ENODATA, 0 }, { "99999999999999999999999", -ENODATA, 0 }, { "99999999999999999999999q", -EINVAL, 0 },
		{ "", -EINVAL, 0 }, { "s", -EINVAL, 0 }, { "1 s", -EINVAL, 0 }, { " 1s", -EINVAL, 0 }, { "+1s", -EINVAL, 0 }, { "1sec", -EINVAL, 0 }, { "1h30m", -EINVAL, 0 },
	};
	char buf[DURATION_TEXT_MAX];
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint32_t ms = 7;

		assert_int_equal(duration_parse(cases[i].text, &ms), cases[i].err);
		assert_int_equal(ms, cases[i].err ? 7 : cases[i].ms);
		if (!cases[i].err)
			assert_string_equal(duration_format(ms, buf), cases[i].text);
	}
}

static void test_the_nearest_word_is_suggested_and_no_far_one(void **unused)
{
	static const char *const words[] = { "namespace", "ttl", "linger", "path", "name" };
	char longer[100];

	(void)unused;
	assert_string_equal(suggest_nearest("tll", words, 5), "ttl");
	assert_string_equal(suggest_nearest("ttll", words, 5), "ttl");
	assert_string_equal(suggest_nearest("NAMESPACE", words, 5), "namespace");
	assert_string_equal(suggest_nearest("lnigre", words, 5), "linger");
	assert_string_equal(suggest_nearest("names", words, 5), "name");
	assert_null(suggest_nearest("", words, 5));
	assert_null(suggest_nearest("xyz", words, 5));
	assert_null(suggest_nearest("ttl", words, 0));
	memset(longer, 'a', 99);
	longer[99] = '\0';
	assert_null(suggest_nearest(longer, words, 5));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_sample_loads_and_its_values_are_the_defaults),
		cmocka_unit_test(test_the_defaults_are_those_of_the_design),
		cmocka_unit_test(test_the_commented_keys_of_the_sample_load_too),
		cmocka_unit_test(test_the_sample_documents_every_key),
		cmocka_unit_test(test_every_key_is_read),
		cmocka_unit_test(test_linger_left_out_never_exceeds_a_short_ttl),
		cmocka_unit_test(test_good_servers_pass),
		cmocka_unit_test(test_on_lost_takes_kill_log_and_signals),
		cmocka_unit_test(test_the_runtime_directory_is_read_alike_with_and_without_libconfig),
		cmocka_unit_test(test_an_unknown_key_is_named_with_the_one_meant),
		cmocka_unit_test(test_a_key_in_the_wrong_place_is_sent_to_the_right_one),
		cmocka_unit_test(test_a_time_without_unit_is_told_to_have_one),
		cmocka_unit_test(test_a_value_out_of_range_is_told_the_range),
		cmocka_unit_test(test_a_value_of_the_wrong_type_is_shown_the_right_one),
		cmocka_unit_test(test_what_is_missing_is_named),
		cmocka_unit_test(test_a_bad_namespace_is_refused),
		cmocka_unit_test(test_a_bad_server_is_refused),
		cmocka_unit_test(test_a_bad_rule_is_refused_with_its_line),
		cmocka_unit_test(test_a_key_written_twice_is_named),
		cmocka_unit_test(test_a_syntax_error_has_its_line),
		cmocka_unit_test(test_what_libconfig_would_pass_over_is_refused),
		cmocka_unit_test(test_deep_nesting_and_long_words_do_no_harm),
		cmocka_unit_test(test_damaged_files_never_crash_the_loader),
		cmocka_unit_test(test_a_file_that_others_can_change_is_refused_with_the_repair),
		cmocka_unit_test(test_a_file_that_cannot_be_read_is_named),
		cmocka_unit_test(test_a_symlink_is_followed_and_a_relative_path_made_absolute),
		cmocka_unit_test(test_a_rule_behind_a_symbolic_link_is_one_for_its_target_too),
		cmocka_unit_test(test_the_password_is_the_first_line_of_its_file),
		cmocka_unit_test(test_a_password_file_that_is_no_secret_is_refused),
		cmocka_unit_test(test_durations_have_units_and_come_back_as_written),
		cmocka_unit_test(test_the_nearest_word_is_suggested_and_no_far_one),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
