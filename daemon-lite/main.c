/* SPDX-License-Identifier: MIT */
/*
 * dlockd: reads the command line, becomes the only agent of its runtime
 * directory, opens the door, and turns into the guard, whose child is the agent
 * (agent.c). From then on nothing here runs again.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "log.h"
#include "publish.h"
#include "runtime.h"
#include "version.h"

#define EXIT_USAGE 64	/* EX_USAGE */

static const char usage[] =
	"Usage: dlockd [OPTION]...\n"
	"The agent of dlockshim: keeps this host's locks in the store.\n"
	"\n"
	"  -c, --config FILE       configuration ($DLOCKSHIM_CONFIG, " CONFIG_DEFAULT_FILE ")\n"
	"  -r, --runtime-dir DIR   socket, compiled rules, state ($DLOCKSHIM_RUNTIME_DIR, the key runtime_dir,\n"
	"                          /run/dlockshim for root)\n"
	"  -f, --foreground        stay in the foreground, log to stderr (for systemd: Type=notify)\n"
	"      --on-demand         started by a program: quiet if one runs already, ends when idle\n"
	"  -l, --log-level LEVEL   error, warn, info (default) or debug\n"
	"      --version, --help\n"
	"\n"
	"Exit codes: 0 ended on request; 64 usage; 75 another agent runs here, or no resources; 78 configuration refused.\n";

struct options {
	const char *config, *runtime_dir;
	bool foreground, on_demand;
	enum log_level level;
};

static int parse_level(const char *text, enum log_level *ret_level)
{
	static const char *const names[] = { "error", "warn", "info", "debug" };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (!strcmp(text, names[i])) {
			*ret_level = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* Returns -1 to go on, else the exit code. */
static int parse_options(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "config", required_argument, NULL, 'c' },	  { "runtime-dir", required_argument, NULL, 'r' },
		{ "foreground", no_argument, NULL, 'f' },	  { "on-demand", no_argument, NULL, 'd' },
		{ "log-level", required_argument, NULL, 'l' },	  { "version", no_argument, NULL, 'v' },
		{ "help", no_argument, NULL, 'h' },		  { NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "c:r:fl:h", longs, NULL)) != -1) {
		switch (c) {
		case 'c': o->config = optarg; break;
		case 'r': o->runtime_dir = optarg; break;
		case 'f': o->foreground = true; break;
		case 'd': o->on_demand = true; break;
		case 'v': puts("dlockd " DLOCK_VERSION); return 0;
		case 'h': fputs(usage, stdout); return 0;
		case 'l':
			if (!parse_level(optarg, &o->level))
				break;
			fprintf(stderr, "dlockd: no such log level: %s (error, warn, info, debug)\n", optarg);
			return EXIT_USAGE;
		default:
			fputs("Try `dlockd --help'.\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "dlockd: unexpected argument: %s\n", argv[optind]);
		return EXIT_USAGE;
	}
	return -1;
}

/* Puts standard error into DIR/dlockd.log, the rest of the standard descriptors on /dev/null. */
static int log_to_file(const char *dir)
{
	char path[PATH_MAX];
	int fd, null;

	if (snprintf(path, sizeof path, "%s/dlockd.log", dir) >= (int)sizeof path)
		return -ENAMETOOLONG;
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0640);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (fd < 0 || null < 0)
		return -errno;
	dup2(null, 0);
	dup2(null, 1);
	dup2(fd, 2);
	if (fd > 2)
		close(fd);
	if (null > 2)
		close(null);
	return 0;
}

static int refuse(const struct options *o, const char *dir, int exit_code, const char *text)
{
	fprintf(stderr, "dlockd: %s\n", text);
	if (o->on_demand && dir)
		runtime_start_error(dir, text);
	return exit_code;
}

static int find_runtime_dir(const struct options *o, const char *key, char *dir, size_t size)
{
	if (!o->runtime_dir)
		return runtime_dir_find(key, dir, size);
	return snprintf(dir, size, "%s", o->runtime_dir) >= (int)size ? -ENAMETOOLONG : 0;
}

int main(int argc, char **argv)
{
	struct options o = { .level = LOG_LEVEL_INFO };
	struct agent_options agent = { 0 };
	struct config *config = NULL;
	struct config_error error;
	char dir[PATH_MAX], text[PATH_MAX + 200];
	int code = parse_options(argc, argv, &o), err, lock_fd, listen_fd, abstract_fd;
	pid_t owner = 0;

	if (code >= 0)
		return code;
	log_set_level(o.level);
	err = config_load(o.config, &config, &error);
	if (find_runtime_dir(&o, config ? config->runtime_dir : NULL, dir, sizeof dir) < 0)
		return refuse(&o, NULL, GUARD_EXIT_CONFIG, "the runtime directory's path is too long");
	if (err)
		return refuse(&o, runtime_prepare(dir) ? NULL : dir, GUARD_EXIT_CONFIG, error.text);
	err = runtime_prepare(dir);
	if (err) {
		snprintf(text, sizeof text, "the runtime directory %s cannot be used: %s; it must be a directory of root or of uid %d that nobody else can write to",
			 dir, strerror(-err), (int)geteuid());
		return refuse(&o, NULL, GUARD_EXIT_CONFIG, text);
	}
	err = lock_fd = runtime_lock(dir, 0, &owner);
	if (err == -EBUSY && o.on_demand)
		return 0;
	if (err < 0) {
		if (err == -EBUSY)
			snprintf(text, sizeof text, "an agent (pid %d) runs already in %s", (int)owner, dir);
		else
			snprintf(text, sizeof text, "%s/%s: %s", dir, RUNTIME_LOCK_FILE, strerror(-err));
		return refuse(&o, NULL, GUARD_EXIT_TEMPFAIL, text);
	}
	err = runtime_listen(dir, &listen_fd, &abstract_fd);
	if (err) {
		snprintf(text, sizeof text, "no socket can be made in %s: %s", dir, strerror(-err));
		return refuse(&o, dir, GUARD_EXIT_TEMPFAIL, text);
	}
	if (!o.foreground) {
		err = log_to_file(dir);
		if (err) {
			snprintf(text, sizeof text, "%s/dlockd.log cannot be written: %s", dir, strerror(-err));
			return refuse(&o, dir, GUARD_EXIT_CONFIG, text);
		}
		if (!o.on_demand && (daemon(0, 1) < 0 || runtime_lock_owner(lock_fd) < 0))
			return GUARD_EXIT_TEMPFAIL;
	}
	agent.config_file = strdup(config->file);
	agent.runtime_dir = dir;
	agent.on_demand = o.on_demand;
	agent.lock_fd = lock_fd;
	agent.standing = publish_map(dir);
	if (!agent.standing)
		log_warn("%s/" STANDING_FILE ": %s; every lock call will ask the agent", dir, strerror(errno));
	config_free(config);
	return guard_run(agent_main, &agent, listen_fd, abstract_fd);
}
