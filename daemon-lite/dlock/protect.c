/* SPDX-License-Identifier: MIT */
/*
 * The checks of `dlock run` before the preload is set. The dynamic loader
 * ignores LD_PRELOAD silently in three cases: there is no loader (static), the
 * kernel set AT_SECURE (set-id bits or capabilities, ld.so(8)), or the library
 * is of another class. In each the command would run unprotected without a
 * word, so each is refused here.
 *
 * Only the command itself is checked; what it starts later may still be
 * a static or set-id program. The manual says so.
 */
#include "protect.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "dlock.h"

#ifndef DLOCK_LIBDIR
#define DLOCK_LIBDIR "/usr/lib/dlockshim"
#endif

#define LIBRARY_NAME "libdlockshim.so"
#define SCRIPT_LEVELS 4

static int executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (!S_ISREG(st.st_mode) || faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0)
		return -EACCES;
	return 0;
}

static int refuse_exec(const char *path, int err, struct refusal *refusal)
{
	if (err == -ENOENT || err == -ENOTDIR)
		return refuse(refusal, EXIT_NOT_FOUND, "%s does not exist; check the name of the command", path);
	if (err == -EISDIR)
		return refuse(refusal, EXIT_CANNOT_EXEC, "%s is a directory; name a program", path);
	return refuse(refusal, EXIT_CANNOT_EXEC, "%s cannot be executed (%s); check its mode", path, strerror(-err));
}

int program_find(const char *name, char *path, size_t size, struct refusal *refusal)
{
	const char *list = getenv("PATH"), *end;
	bool denied = false;
	int n;

	if (!*name)
		return refuse(refusal, EXIT_NOT_FOUND, "the name of the command is empty; name a program");
	if (strchr(name, '/')) {
		if ((size_t)snprintf(path, size, "%s", name) >= size)
			return refuse_exec(name, -ENAMETOOLONG, refusal);
		n = executable(path);
		return n < 0 ? refuse_exec(path, n, refusal) : 0;
	}
	if (!list)
		list = "/usr/local/bin:/bin:/usr/bin";
	for (; ; list = end + 1) {
		end = strchrnul(list, ':');
		if ((size_t)snprintf(path, size, "%.*s%s%s", (int)(end - list), list, end > list ? "/" : "", name) < size) {
			n = executable(path);
			if (n == 0)
				return 0;
			/* A directory of PATH that may not be searched is passed over, as a shell does. */
			denied = denied || (n == -EACCES && access(path, F_OK) == 0);
		}
		if (!*end)
			break;
	}
	if (denied)
		return refuse(refusal, EXIT_CANNOT_EXEC, "%s in PATH cannot be executed; check its mode", name);
	return refuse(refusal, EXIT_NOT_FOUND, "%s was not found in PATH; check the name or give its path", name);
}

/* Whether the kernel would give the program another identity, and so the loader ignore LD_PRELOAD. */
static int check_identity(const char *path, int fd, struct refusal *refusal)
{
	uid_t uid = geteuid();
	gid_t gid = getegid();
	struct stat st;

	if (fstat(fd, &st) < 0)
		return refuse_exec(path, -errno, refusal);
	if (st.st_mode & S_ISUID)
		uid = st.st_uid;
	if ((st.st_mode & S_ISGID) && (st.st_mode & S_IXGRP))
		gid = st.st_gid;
	if (uid != getuid())
		return refuse(refusal, EXIT_UNPROTECTED, "%s is set-user-id: the loader ignores preloaded libraries for it; "
			      "run dlock as that user, or put `dlock run` inside what it starts", path);
	if (gid != getgid())
		return refuse(refusal, EXIT_UNPROTECTED, "%s is set-group-id: the loader ignores preloaded libraries for it; "
			      "run dlock with that group, or put `dlock run` inside what it starts", path);
	if (getuid() != 0 && fgetxattr(fd, "security.capability", NULL, 0) > 0)
		return refuse(refusal, EXIT_UNPROTECTED, "%s has file capabilities: the loader ignores preloaded libraries for it; "
			      "remove them (setcap -r), run a copy without them, or run dlock as root", path);
	return 0;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int check_elf(const char *path, const struct elf_info *info, const struct elf_info *library, const char *loader, struct refusal *refusal)
{
	char program_machine[32], library_machine[32];

	switch (info->kind) {
	case ELF_KIND_OTHER:
	case ELF_KIND_SCRIPT:
		return refuse(refusal, EXIT_CANNOT_EXEC, "%s is neither an ELF program nor a script that begins with #!; run it by its interpreter", path);
	case ELF_KIND_DAMAGED:
		return refuse(refusal, EXIT_CANNOT_EXEC, "%s is a damaged ELF file or no program; install it again", path);
	case ELF_KIND_LIBRARY:
		return refuse(refusal, EXIT_CANNOT_EXEC, "%s is a shared library, not a program; name a program", path);
	case ELF_KIND_STATIC:
		return refuse(refusal, EXIT_UNPROTECTED, "%s is statically linked, so no library can be preloaded into it; "
			      "use a dynamically linked build, or take the lock around it: dlock run flock FILE %s", path, path);
	case ELF_KIND_FOREIGN:
	case ELF_KIND_DYNAMIC:
		break;
	}
	if (info->kind == ELF_KIND_FOREIGN || info->bits != library->bits || info->machine != library->machine)
		return refuse(refusal, EXIT_UNPROTECTED, "%s is a %u-bit %s program, but the library is for %u-bit %s; use a build of dlockshim for that kind of program",
			      path, info->bits, info->kind == ELF_KIND_FOREIGN ? "other-byte-order" : elf_machine_name(info->machine, program_machine, sizeof program_machine),
			      library->bits, elf_machine_name(library->machine, library_machine, sizeof library_machine));
	if (loader[0] && strcmp(base_name(info->interpreter), base_name(loader)) != 0)
		return refuse(refusal, EXIT_UNPROTECTED, "%s is started by %s, that of another C library, which cannot load the library; "
			      "use a build for %s", path, info->interpreter, base_name(loader));
	return 0;
}

/* Reads the #! line of a script and puts the interpreter's path into path. */
static int follow_script(char *path, size_t size, int fd, struct refusal *refusal)
{
	struct script_line script;
	char line[256], program[256];
	long n = elf_read_fd(&fd, 0, line, sizeof line);

	if (n < 0 || script_parse(line, (size_t)n, &script) < 0)
		return refuse(refusal, EXIT_CANNOT_EXEC, "the first line of the script %s names no interpreter; correct it", path);
	if (strcmp(base_name(script.interpreter), "env") != 0) {
		n = executable(script.interpreter);
		if (n < 0)
			return refuse(refusal, EXIT_CANNOT_EXEC, "the interpreter %s of the script %s cannot be executed (%s); install it or correct the first line",
				      script.interpreter, path, strerror((int)-n));
		snprintf(path, size, "%s", script.interpreter);
		return 0;
	}
	n = script_env_program(script.argument, program, sizeof program);
	if (n == -EINVAL)
		return refuse(refusal, EXIT_UNPROTECTED, "the first line of the script %s clears the environment, and with it the preload; "
			      "run it by its interpreter: dlock run INTERPRETER %s", path, path);
	if (n < 0)
		return refuse(refusal, EXIT_CANNOT_EXEC, "the first line of the script %s names no program for env; correct it", path);
	return program_find(program, path, size, refusal);
}

int program_check(const char *path, const struct elf_info *library, const char *loader, struct refusal *refusal)
{
	char at[PATH_MAX];

	if ((size_t)snprintf(at, sizeof at, "%s", path) >= sizeof at)
		return refuse_exec(path, -ENAMETOOLONG, refusal);
	for (int level = 0; level <= SCRIPT_LEVELS; level++) {
		struct elf_info info;
		int fd = open(at, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), n;

		if (fd < 0)
			return refuse(refusal, EXIT_UNPROTECTED, "%s cannot be read (%s), so nobody can say whether it can be protected; "
				      "give yourself permission to read it", at, strerror(errno));
		n = elf_inspect(elf_read_fd, &fd, &info);
		if (n < 0) {
			close(fd);
			return refuse(refusal, EXIT_CANNOT_EXEC, "%s cannot be read (%s); check the file", at, strerror(-n));
		}
		/* The kernel takes set-id bits from the interpreter, never from the script. */
		if (info.kind == ELF_KIND_SCRIPT)
			n = follow_script(at, sizeof at, fd, refusal);
		else
			n = check_elf(at, &info, library, loader, refusal) < 0 ? -1 : check_identity(at, fd, refusal);
		close(fd);
		if (n < 0 || info.kind != ELF_KIND_SCRIPT)
			return n;
	}
	return refuse(refusal, EXIT_CANNOT_EXEC, "the script %s is interpreted by a script by a script, more than %d deep; name the program itself", path, SCRIPT_LEVELS);
}

int beside_dlock(const char *name, char *path, size_t size)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash;

	if (n < 0)
		return -errno;
	self[n] = '\0';
	slash = strrchr(self, '/');
	if (!slash || (size_t)n + 1 == sizeof self)
		return -ENAMETOOLONG;
	*slash = '\0';
	if ((size_t)snprintf(path, size, "%s/%s", self, name) >= size)
		return -ENAMETOOLONG;
	return access(path, F_OK) < 0 ? -errno : 0;
}

void own_loader(char *buf, size_t size)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct elf_info info;

	buf[0] = '\0';
	if (fd < 0)
		return;
	if (elf_inspect(elf_read_fd, &fd, &info) == 0 && strlen(info.interpreter) < size)
		strcpy(buf, info.interpreter);
	close(fd);
}

int library_find(char *path, size_t size, struct elf_info *ret_info, struct refusal *refusal)
{
	const char *given = getenv("DLOCKSHIM_LIBRARY");
	char resolved[PATH_MAX];
	struct stat st;
	int fd, n;

	if (given && *given)
		n = (size_t)snprintf(path, size, "%s", given) < size ? 0 : -ENAMETOOLONG;
	else if (beside_dlock(LIBRARY_NAME, path, size) == 0)
		n = 0;
	else
		n = (size_t)snprintf(path, size, "%s/%s", DLOCK_LIBDIR, LIBRARY_NAME) < size ? 0 : -ENAMETOOLONG;
	if (n < 0)
		return refuse(refusal, EXIT_UNPROTECTED, "the path of the library is too long; install it at a shorter one");

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return refuse(refusal, EXIT_UNPROTECTED, "the library %s cannot be read (%s); keep it beside dlock, or name it by DLOCKSHIM_LIBRARY", path, strerror(errno));
	n = fstat(fd, &st) < 0 ? -errno : elf_inspect(elf_read_fd, &fd, ret_info);
	close(fd);
	if (n < 0 || !S_ISREG(st.st_mode) || ret_info->kind != ELF_KIND_LIBRARY)
		return refuse(refusal, EXIT_UNPROTECTED, "%s is no shared library; install it again, or name it by DLOCKSHIM_LIBRARY", path);
	if ((st.st_uid != 0 && st.st_uid != geteuid()) || (st.st_mode & S_IWOTH))
		return refuse(refusal, EXIT_UNPROTECTED, "the library %s cannot be trusted: it must belong to root or to you and not be writable by all; "
			      "correct its owner and mode", path);
	/* LD_PRELOAD must be absolute: the command may change its directory. */
	if (!realpath(path, resolved) || (size_t)snprintf(path, size, "%s", resolved) >= size)
		return refuse(refusal, EXIT_UNPROTECTED, "the library %s cannot be resolved (%s); install it at a shorter path", path, strerror(errno));
	if (strpbrk(path, " :\t\n"))
		return refuse(refusal, EXIT_UNPROTECTED, "the path of the library, %s, has a blank or a colon, which LD_PRELOAD cannot carry; install it elsewhere", path);
	return 0;
}
