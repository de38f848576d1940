/* SPDX-License-Identifier: MIT */
/*
 * The dlock command: the table of subcommands below is also its usage. What a
 * subcommand does stands in its cmd_NAME.c; options that all of them take and
 * the loading of the configuration stand in setting.c.
 */
#include "dlock.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct command {
	const char *name;
	int (*function)(int argc, char **argv);	/* argv[0] is the subcommand's name */
	const char *usage;
	const char *description;
} commands[] = {
	{ "init", cmd_init, "[--config FILE]",
	  "Declares the store of the configuration new, once, before its first use.\n"
	  "Without it the first lock waits for one lease time, because an empty store\n"
	  "looks like one that has lost its memory. Exits 1 if data exist already." },
	{ "run", cmd_run, "[--config FILE] [--runtime-dir DIR] [--] COMMAND [ARGUMENT...]",
	  "Runs COMMAND with its file locks kept on every host. Refuses what cannot be\n"
	  "protected: static programs, other machine types, set-id programs. Starts an\n"
	  "agent if none answers. Exits as COMMAND does." },
	{ "check", cmd_check, "[--config FILE] [--runtime-dir DIR] [--] PATH...",
	  "Says which rule manages PATH and under which name, who holds the lock and\n"
	  "who waits. Exits 1 if no rule names one of the paths." },
	{ "doctor", cmd_doctor, "[--config FILE] [--runtime-dir DIR] [--] FILE...",
	  "Says whether locks can make FILE safe on several hosts: a rule that names it, and\n"
	  "what kind of file it is. A SQLite database in WAL mode and an LMDB file are not safe\n"
	  "with any locks: they keep shared memory. Takes no lock. Exits 1 if a FILE is not safe." },
	{ "status", cmd_status, "[--config FILE] [--runtime-dir DIR] [--json] [--] [NAME|PATH]",
	  "Lists every lock of every host, or those of one name or path: its holders as the\n"
	  "kernels there show them, waiters in order (those in a kernel's queue first), and\n"
	  "what of a host's cover lies idle. KIND is flock, record (fcntl, lockf) or ofd\n"
	  "(F_OFD_SETLK). RANGE is START-END of a record lock, in bytes from the file's\n"
	  "beginning, END not included; EOF: however long the file gets. What a host covers\n"
	  "but nobody has locked is one line, from the first such part to the last one.\n"
	  "AGE is that of the wait, or the longest the hold can have lasted: since its\n"
	  "process asked for it, or else since this host was given the cover; it is not\n"
	  "known of most record locks, and of an idle cover it is since that has grown last.\n"
	  "LEASE is what is left of the host's. A host that does not answer in half a\n"
	  "second is named; in brackets then: who asked for its cover, perhaps not its holder.\n"
	  "A ? is somebody who was not found, such as a process of another pid namespace.\n"
	  "--json prints one object {agent, store, hosts, locks}; start and end there are\n"
	  "offsets, end null for EOF; bytes that are no UTF-8 become U+FFFD, with the\n"
	  "name again as name_hex." },
	{ "version", cmd_version, "", "Prints the version." },
	{ "help", cmd_help, "[COMMAND]", "Prints this list, or the usage of one command." },
};

static const struct { int code; const char *meaning; } codes[] = {
	{ EXIT_DONE, "done; check: every path is managed; doctor: every file is safe" },
	{ EXIT_NO, "check: a path is not managed; doctor: a file is not safe; init: the store has data already" },
	{ EXIT_USAGE, "a mistake on the command line" },
	{ EXIT_TROUBLE, "configuration, runtime directory, agent or store" },
	{ EXIT_UNPROTECTED, "run: the command cannot be protected" },
	{ EXIT_CANNOT_EXEC, "run: the command cannot be executed" },
	{ EXIT_NOT_FOUND, "run: the command was not found" },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static void print_usage(FILE *out, const struct command *command)
{
	fprintf(out, "usage: dlock %s%s%s\n", command->name, command->usage[0] ? " " : "", command->usage);
}

static void print_help(FILE *out)
{
	fputs("usage: dlock COMMAND [ARGUMENT...]\n\nFile locks that hold on every host that shares a store.\n\n", out);
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		const char *text = commands[i].description;

		fprintf(out, "  dlock %s%s%s\n", commands[i].name, commands[i].usage[0] ? " " : "", commands[i].usage);
		while (*text) {
			size_t len = strcspn(text, "\n");

			fprintf(out, "      %.*s\n", (int)len, text);
			text += len + (text[len] == '\n');
		}
	}
	fputs("\nExit codes (run: else those of the command):\n", out);
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		fprintf(out, "  %-4d %s\n", codes[i].code, codes[i].meaning);
	fputs("\n--config names the configuration (else $DLOCKSHIM_CONFIG, else /etc/dlockshim.conf),\n"
	      "--runtime-dir the agent's directory (else $DLOCKSHIM_RUNTIME_DIR, else the key runtime_dir).\n", out);
}

static int cmd_help(int argc, char **argv)
{
	const struct command *command;

	if (argc < 2) {
		print_help(stdout);
		return EXIT_DONE;
	}
	command = find_command(argv[1]);
	if (!command)
		return complain(EXIT_USAGE, "there is no command `%s`; see `dlock help`", argv[1]);
	print_usage(stdout, command);
	printf("%s\n", command->description);
	return EXIT_DONE;
}

static int cmd_version(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	puts("dlock " DLOCK_VERSION);
	return EXIT_DONE;
}

int usage_error(const char *name, const char *format, ...)
{
	const struct command *command = find_command(name);
	char text[SENTENCE_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	complain(EXIT_USAGE, "%s", text);
	if (command)
		print_usage(stderr, command);
	return EXIT_USAGE;
}

static bool is_help(const char *arg)
{
	return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

int main(int argc, char **argv)
{
	const struct command *command;
	int code;

	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (is_help(argv[1]))
		argv[1] = (char *)"help";
	else if (strcmp(argv[1], "--version") == 0)
		argv[1] = (char *)"version";
	command = find_command(argv[1]);
	if (!command)
		return complain(EXIT_USAGE, "there is no command `%s`; see `dlock help`", argv[1]);
	if (argc >= 3 && is_help(argv[2])) {
		char *help[] = { (char *)"help", argv[1], NULL };

		code = cmd_help(2, help);
	} else {
		code = command->function(argc - 1, argv + 1);
	}
	if (fflush(stdout) != 0 || ferror(stdout))
		return complain(EXIT_TROUBLE, "standard output could not be written");
	return code;
}
