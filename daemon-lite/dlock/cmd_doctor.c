/* SPDX-License-Identifier: MIT */
/*
 * dlock doctor: whether the locks of a file can protect it on several hosts at
 * all. It looks at the file and at the configuration, and asks nobody; it opens the
 * file for reading and takes no lock.
 *
 * It must not open a file that somebody in this very process has locked (closing it
 * would drop the lock): it is a command of its own.
 */
#include "dlock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../config/config.h"
#include "../identify.h"
#include "file_kind.h"
#include "managed.h"
#include "text.h"

static void say(const char *verdict, const char *text)
{
	char *safe = text_printable(text);

	printf("  %-7s %s\n", verdict, safe ? safe : "?");
	free(safe);
}

static bool exists_beside(const char *path, const char *suffix)
{
	char name[PATH_MAX];

	return (size_t)snprintf(name, sizeof name, "%s%s", path, suffix) < sizeof name && access(name, F_OK) == 0;
}

/* What is in the file. Returns whether its locks can protect it. */
static bool look_inside(const char *path, int fd)
{
	unsigned char head[FILE_KIND_BYTES];
	ssize_t n = pread(fd, head, sizeof head, 0);

	switch (n > 0 ? file_kind(head, (size_t)n) : FILE_ORDINARY) {
	case FILE_SQLITE_WAL:
		say("unsafe", "a SQLite database in WAL mode: it keeps an index in shared memory, which hosts do not share. "
		    "No locks make that safe. Close it everywhere, then on one host: PRAGMA journal_mode=DELETE;");
		return false;
	case FILE_SQLITE:
		if (exists_beside(path, "-shm")) {
			say("unsafe", "a SQLite database with a -shm file beside it: somebody may have it open in WAL mode. "
			    "Close it everywhere; if the file stays, on one host: PRAGMA journal_mode=DELETE;");
			return false;
		}
		say("ok", "a SQLite database with a rollback journal: its record locks are all it needs");
		return true;
	case FILE_LMDB:
		say("unsafe", "an LMDB file: it keeps mutexes and a table of its readers in shared memory, which hosts do not share. No locks make that safe");
		return false;
	default:
		say("ok", "nothing is known of this kind of file that locks could not protect; "
		    "what is mapped as shared memory by its users is not shared between hosts");
		return true;
	}
}

static bool look_at_rule(const struct setting *setting, const char *path)
{
	const struct config_rule *rule = managed_rule(setting->config, path);
	char text[PATH_MAX + 200];

	if (!rule) {
		snprintf(text, sizeof text, "no rule of %s names it: its locks are this host's alone; see `dlock check`", setting->config->file);
		say("unsafe", text);
		return false;
	}
	snprintf(text, sizeof text, "managed by line %u of %s, flock and record locks both", rule->line, setting->config->file);
	say("ok", text);
	if (strcmp(rule->on_lost, "kill") == 0)
		return true;
	snprintf(text, sizeof text, "on_lost = \"%s\": a holder whose host loses its lease is not ended, and may then not be alone", rule->on_lost);
	say("unsafe", text);
	return false;
}

static int examine(const struct setting *setting, const char *given)
{
	char path[PATH_MAX];
	struct stat st;
	bool safe;
	int fd, err = *given ? managed_path(given, path) : -ENOENT;

	if (err < 0)
		return complain(EXIT_TROUBLE, "%s cannot be looked up (%s); check its directory", given, strerror(-err));
	puts(path);
	if (stat(path, &st) < 0)
		return complain(EXIT_TROUBLE, "%s cannot be looked at: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		say("unsafe", "neither a regular file nor a directory; its locks are the kernel's alone");
		return EXIT_NO;
	}
	safe = look_at_rule(setting, path);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return complain(EXIT_TROUBLE, "%s cannot be read: %s", path, strerror(errno));
	if (S_ISREG(st.st_mode))
		safe &= look_inside(path, fd);
	if (!identify_is_local(fd))
		say("note", "on a filesystem that may make lock calls wait (network, FUSE): the locks taken there are this host's as far as dlockshim is concerned, "
		    "and hosts exclude each other by the store");
	close(fd);
	return safe ? EXIT_DONE : EXIT_NO;
}

int cmd_doctor(int argc, char **argv)
{
	struct refusal refusal;
	struct setting setting;
	int argi = 1, worst = EXIT_DONE;
	const char *bad;

	if (options_common(argc, argv, &argi, &bad) < 0)
		return usage_error("doctor", "%s needs a value", bad);
	if (argi >= argc)
		return usage_error("doctor", "name a file");
	if (argv[argi][0] == '-' && argv[argi][1] && strcmp(argv[argi - 1], "--") != 0)
		return usage_error("doctor", "`%s` is not known here; put -- before a path of that name", argv[argi]);
	if (setting_load(&setting, &refusal) < 0)
		return complain(refusal.code, "%s", refusal.text);
	for (; argi < argc; argi++) {
		int code = examine(&setting, argv[argi]);

		if (code > worst)
			worst = code;
	}
	setting_free(&setting);
	return worst;
}
