/* SPDX-License-Identifier: MIT */
/*
 * The configuration: the only file that includes <libconfig.h> is config.c.
 * Every key with its default and reason stands in config/dlockshim.conf.
 */
#ifndef DLOCK_CONFIG_H
#define DLOCK_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#define CONFIG_DEFAULT_FILE "/etc/dlockshim.conf"

struct config_rule {
	char *path;		/* pattern */
	char *name;		/* template; default "{path}" */
	char *on_lost;		/* "kill" (default), "log", "signal:NAME" */
	unsigned line;
};

struct config {
	char *file;		/* absolute path it was read from */
	uint64_t stamp;		/* rules_stamp() of that file as read */
	char *name_space;	/* key `namespace`, required, [A-Za-z0-9._-]{1,64} */
	char *runtime_dir;	/* NULL = config_runtime_dir()'s default */
	char *state_dir;	/* NULL = the runtime directory */
	uint32_t ttl_ms;	/* T; default 30 s, 1 s to 1 h */
	uint32_t linger_ms;	/* default 2 s (or T, if that is less), 0 to T */
	uint32_t try_timeout_ms; /* bound of a non-blocking call while the store or another host is silent; default 2 s */
	uint32_t idle_exit_ms;	/* an agent started on demand ends after so long without work; default 60 s */
	struct {
		char **servers;	/* "redis://HOST[:PORT][/DB]" or "unix:///path"; exactly one for now */
		size_t server_count;
		uint32_t min_replicas;	/* only 0 for now; more is refused with a sentence */
		uint32_t connect_timeout_ms; /* default 2 s */
		char *user;		/* ACL user, NULL = default user */
		char *password_file;	/* NULL = none; must not be readable by others */
	} redis;
	struct config_rule *rules;	/* also those made for symbolic links, see links.h */
	size_t rule_count;
};

struct config_error {
	int err;		/* -ENOENT, -EACCES, -EINVAL, -ENOMEM… */
	char text[512];		/* "FILE:LINE: key `tttl` is not known; did you mean `ttl`?" One sentence, no newline. */
};

/*
 * Reads and checks a file: owner is root or the effective user, not writable by
 * group or others. NULL = $DLOCKSHIM_CONFIG, else CONFIG_DEFAULT_FILE.
 * Follows the symbolic links in the rules' directories, and may block on those.
 * Returns 0, or a negative errno with *ret_error filled.
 */
int config_load(const char *file, struct config **ret_config, struct config_error *ret_error);
void config_free(struct config *config);	/* NULL is fine */

/*
 * The password: the first line of redis.password_file, which must belong to
 * root or the effective user and be closed to others. Returns its length
 * (NUL-terminated in buf), 0 if no file is configured, or a negative errno with
 * *ret_error filled. May block on the file.
 */
int config_read_password(const struct config *config, char *buf, size_t size, struct config_error *ret_error);

/* The built-in defaults with no rules and no server; for tests and documentation. */
struct config *config_defaults(void);

/* Writes the compiled rules into DIR/rules (see rules.h), atomically; marks the file it replaces stale. */
int config_write_rules(const struct config *config, const char *runtime_dir, struct config_error *ret_error);

/* Sets `attended` in DIR/rules (a file just written has 0); 0 when an agent ends. Returns 0 or -errno. */
int config_attend_rules(const char *runtime_dir, int attended);

/*
 * The runtime directory in force: $DLOCKSHIM_RUNTIME_DIR, else key_value, else
 * for root /run/dlockshim, else $XDG_RUNTIME_DIR/dlockshim, else
 * /tmp/dlockshim-UID; without slashes at its end. Returns its length, -ENAMETOOLONG,
 * or -EINVAL if it is not absolute. No malloc (the shim uses it too).
 */
int runtime_dir_find(const char *key_value, char *buf, size_t size);

/* 0 if the directory can be trusted (directory, owner root or effective user, not writable by group or others), else -errno. No malloc. */
int runtime_dir_check(const char *dir);

/*
 * The value of the top-level key runtime_dir in the text of a configuration,
 * without libconfig: comments, strings and nesting are honoured. Returns the
 * length, -ENOENT if the key is not there, -ENAMETOOLONG. Pure, no malloc.
 */
int runtime_dir_scan(const char *text, size_t len, char *buf, size_t size);

#endif
