/* SPDX-License-Identifier: MIT */
/*
 * Starting an agent from inside somebody's program, which must not notice: no
 * SIGCHLD, no child that its wait() could find, no atfork handlers, no handler
 * run in the children, no descriptor kept.
 *
 *   program --clone, no exit signal--> middle --clone--> agent (execve)
 *      `-- wait4(__WALL) for the middle, which never execs (an execve would set
 *          its exit signal back to SIGCHLD)
 *
 * Raw clone with all arguments zero: a fork without an exit signal, the same on
 * every architecture. The children run only system calls and string functions.
 *
 * Who starts: RUNTIME_DIR/start, locked; its modification time is that of the
 * last start, its text the pid. Of many programs that miss the agent at once, one
 * starts it; the others wait.
 * An agent that cannot start says why in RUNTIME_DIR/start-error.
 *
 * Not from PID 1 or a child subreaper: the agent, once its parent has gone,
 * would become their child. Not in a chroot: the agent must see the host's paths.
 */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../config/config.h"
#include "fd.h"
#include "log.h"
#include "sys.h"

#ifndef DLOCKD_PATH
#define DLOCKD_PATH "/usr/sbin/dlockd"
#endif

#define START_FILE "start"
#define ERROR_FILE "start-error"
#define START_AGAIN_NS INT64_C(1000000000)	/* one start a second for each runtime directory */
#define START_SLOW_NS INT64_C(10000000000)	/* how long one that was started and still runs may take to answer */
#define CHILD_ENV_MAX 1000
#define SIGNALS 64
#define DIR_FILE_MAX 160	/* a runtime directory that long has no room for a socket's name anyway */

struct spawn_page {		/* shared by program and children */
	_Atomic int exec_error;
	_Atomic int pid;
};

/* Used in the children only: their copies, so nothing is shared with other threads. */
static char *child_env[CHILD_ENV_MAX + 3];
static char child_config[PATH_MAX + 32], child_dir[PATH_MAX + 32];

static void say(char *text, size_t size, const char *const *parts)
{
	size_t len = 0;

	for (; *parts; parts++)
		for (const char *p = *parts; *p && len + 1 < size; p++)
			text[len++] = *p;
	text[len] = '\0';
}
#define SAY(text, size, ...) say(text, size, (const char *const[]){ __VA_ARGS__, NULL })

static bool dir_file(char path[DIR_FILE_MAX], const struct shim_state *state, const char *name)
{
	if (strlen(state->runtime_dir) + 1 + strlen(name) >= DIR_FILE_MAX)
		return false;
	stpcpy(stpcpy(stpcpy(path, state->runtime_dir), "/"), name);
	return true;
}

static int64_t mtime_ns(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

/* ---- where dlockd is ---- */

struct scratch {		/* mapped, not on the stack: a thread may have 16 kB of it */
	char program[PATH_MAX];
	char line[PATH_MAX + 128];	/* of /proc/self/maps, being read */
	size_t len;
};

static uintptr_t parse_hex(const char **text)
{
	uintptr_t value = 0;

	for (;; (*text)++) {
		char c = **text;

		if (c >= '0' && c <= '9')
			value = value * 16 + (uintptr_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value * 16 + (uintptr_t)(c - 'a' + 10);
		else
			return value;
	}
}

/* Whether the line's mapping has the address; then its file's path, else NULL. */
static char *map_of(char *line, uintptr_t address)
{
	const char *at = line;
	uintptr_t from = parse_hex(&at), to;

	if (*at++ != '-')
		return NULL;
	to = parse_hex(&at);
	return address >= from && address < to ? strchr(line, '/') : NULL;
}

static int open_maps(const void *unused)
{
	(void)unused;
	return (int)sys_call(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
}

/* The file that this code was loaded from, or NULL. dladdr() would take the loader's lock and can give a relative name. */
static char *find_library(struct scratch *scratch)
{
	char *found = NULL;
	char piece[1024];
	long n;
	int fd = fd_new(open_maps, NULL);

	if (fd < 0)
		return NULL;
	while (!found && ((n = sys_call(SYS_read, fd, piece, sizeof piece)) > 0 || n == -EINTR)) {
		for (long i = 0; i < n && !found; i++) {
			if (piece[i] != '\n') {
				if (scratch->len + 1 < sizeof scratch->line)
					scratch->line[scratch->len++] = piece[i];
				continue;
			}
			scratch->line[scratch->len] = '\0';
			found = map_of(scratch->line, (uintptr_t)find_library);
			scratch->len = 0;
		}
	}
	sys_close(fd);
	return found;
}

/* dlockd beside the library, or in the folder above (the library for 32-bit programs has one of its own), else where it is installed. */
static bool find_program(struct scratch *scratch)
{
	char *library = find_library(scratch);

	for (int up = 0; library && up < 2; up++) {
		char *slash = strrchr(library, '/');

		if (!slash || (size_t)(slash - library) + sizeof "/dlockd" > sizeof scratch->program)
			break;
		*slash = '\0';
		strcpy(stpcpy(scratch->program, library), "/dlockd");
		if (sys_call(SYS_faccessat, AT_FDCWD, scratch->program, X_OK) == 0)
			return true;
	}
	strcpy(scratch->program, DLOCKD_PATH);
	return sys_call(SYS_faccessat, AT_FDCWD, scratch->program, X_OK) == 0;
}

/* ---- in the children ---- */

static void reset_signals(void)
{
	static const unsigned char none[64];	/* a kernel's struct sigaction of zeros: SIG_DFL */

	for (int sig = 1; sig <= SIGNALS; sig++)
		(void)syscall(SYS_rt_sigaction, sig, none, NULL, sizeof(uint64_t));
}

static void fill_env(const struct shim_state *state)
{
	size_t n = 0;

	for (char **at = environ; at && *at && n < CHILD_ENV_MAX; at++)
		if (strncmp(*at, "LD_", 3) && strncmp(*at, "DLOCKSHIM_CONFIG=", 17) &&
		    strncmp(*at, "DLOCKSHIM_RUNTIME_DIR=", 22))
			child_env[n++] = *at;
	stpcpy(stpcpy(child_config, "DLOCKSHIM_CONFIG="), state->config);
	stpcpy(stpcpy(child_dir, "DLOCKSHIM_RUNTIME_DIR="), state->runtime_dir);
	child_env[n++] = child_config;
	child_env[n++] = child_dir;
	child_env[n] = NULL;
}

static _Noreturn void leave(int code)
{
	for (;;)
		(void)syscall(SYS_exit_group, code);
}

static int null_descriptors(void)
{
	long null = sys_call(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);

	if (null < 0)
		return (int)null;
	for (int fd = 0; fd < 3; fd++)
		if (fd != null && sys_call(SYS_dup3, null, fd, 0) < 0)
			return -EMFILE;
#ifdef SYS_close_range
	if (sys_call(SYS_close_range, 3u, ~0u, 0u) == 0)
		return 0;
#endif
	for (int fd = 3; fd < 65536; fd++)
		sys_close(fd);
	return 0;
}

static _Noreturn void become_agent(const struct shim_state *state, const char *program, struct spawn_page *page)
{
	char *argv[] = { (char *)(uintptr_t)"dlockd", (char *)(uintptr_t)"--on-demand", NULL };
	int err;

	(void)syscall(SYS_setsid);
	reset_signals();
	err = null_descriptors();
	if (err == 0) {
		(void)syscall(SYS_umask, 022);
		(void)sys_call(SYS_chdir, "/");
		fill_env(state);
		sys_unblock(0);
		err = (int)sys_call(SYS_execve, program, argv, child_env);
	}
	atomic_store(&page->exec_error, -err);
	leave(127);
}

/* ---- in the program ---- */

/* Signals are blocked. Returns the agent's pid or -errno. */
static int clone_twice(const struct shim_state *state, const char *program, struct spawn_page *page)
{
	long middle, agent;
	int status, err;

	middle = sys_call(SYS_clone, 0, 0, 0, 0, 0);
	if (middle == 0) {
		agent = sys_call(SYS_clone, 0, 0, 0, 0, 0);
		if (agent == 0)
			become_agent(state, program, page);
		atomic_store(&page->pid, (int)agent);
		leave(0);
	}
	if (middle < 0)
		return (int)middle;
	do {
		err = (int)sys_call(SYS_wait4, middle, &status, __WALL, NULL);
	} while (err == -EINTR);
	agent = atomic_load(&page->pid);
	return agent ? (int)agent : -ECHILD;
}

static bool would_get_the_orphan(void)
{
	int subreaper = 0;

	return sys_call(SYS_getpid) == 1 ||
	       (sys_call(SYS_prctl, PR_GET_CHILD_SUBREAPER, &subreaper, 0, 0, 0) == 0 && subreaper);
}

static int make_start_file(const void *path)
{
	return (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

static int prepare_dir(const char *dir)
{
	mode_t mode = sys_call(SYS_geteuid) == 0 ? 0755 : 0700;
	int err = (int)sys_call(SYS_mkdirat, AT_FDCWD, dir, mode);

	if (err == 0)
		(void)chmod(dir, mode);		/* whatever the program's umask is */
	else if (err != -EEXIST)
		return err;
	return runtime_dir_check(dir);
}

static bool read_error_file(const struct shim_state *state, int64_t since_ns, char *text, size_t size)
{
	char path[DIR_FILE_MAX];
	struct stat st;
	long n = 0;
	int fd;

	if (!dir_file(path, state, ERROR_FILE))
		return false;
	fd = (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && mtime_ns(&st) >= since_ns)
		n = sys_call(SYS_read, fd, text, size - 1);
	sys_close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return true;
}

/* Starts the program, with the start file locked. */
static enum spawn_result start_program(const struct shim_state *state, int start_fd, const char *program,
				       struct spawn *ret_spawn, char *text, size_t size)
{
	static const struct timespec now[2] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } };
	struct spawn_page *page;
	struct shim_number digits;
	struct stat st;
	int pid;

	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED) {
		SAY(text, size, "no memory to start it");
		return SPAWN_CANNOT;
	}
	(void)sys_call(SYS_ftruncate, start_fd, 0);
	(void)futimens(start_fd, now);
	if (fstat(start_fd, &st) < 0)
		memset(&st, 0, sizeof st);
	pid = clone_twice(state, program, page);
	if (pid < 0) {
		munmap(page, sizeof *page);
		SAY(text, size, "it cannot be started: ", shim_error(pid));
		return SPAWN_CANNOT;
	}
	digits = shim_number(pid);
	(void)sys_call(SYS_lseek, start_fd, 0, SEEK_SET);
	(void)sys_call(SYS_write, start_fd, digits.text, strlen(digits.text));
	/* Back to the moment before it ran, so that what it says is later. */
	(void)futimens(start_fd, (struct timespec[2]){ st.st_mtim, st.st_mtim });
	*ret_spawn = (struct spawn){ .pid = pid, .since_ns = mtime_ns(&st), .exec_error = &page->exec_error };
	return SPAWN_STARTED;
}

/* Whether the process named in the start file runs. One of another pid namespace may be mistaken; START_SLOW_NS bounds that. */
static bool runs_still(int start_fd)
{
	char text[16];
	long n = sys_call(SYS_read, start_fd, text, sizeof text - 1);
	struct spawn spawn = { .pid = 0 };

	for (long i = 0; i < n && text[i] >= '0' && text[i] <= '9' && spawn.pid < 100000000; i++)
		spawn.pid = spawn.pid * 10 + (text[i] - '0');
	return spawn.pid > 0 && !spawn_ended(&spawn);
}

/* With the start file open: decides whether it is our turn, and if so starts. */
static enum spawn_result start(const struct shim_state *state, int start_fd, struct spawn *ret_spawn, char *text, size_t size)
{
	enum spawn_result result = SPAWN_CANNOT;
	struct scratch *scratch;
	struct timespec clock;
	struct stat st;
	int64_t age;

	if (sys_flock(start_fd, LOCK_EX | LOCK_NB) < 0)
		return SPAWN_OTHERS;
	if (fstat(start_fd, &st) == 0 && clock_gettime(CLOCK_REALTIME, &clock) == 0) {
		age = (int64_t)clock.tv_sec * INT64_C(1000000000) + clock.tv_nsec - mtime_ns(&st);
		/* Empty: the file is new, and nobody has started yet. */
		if (st.st_size > 0 && age >= 0 && age < START_AGAIN_NS)
			return read_error_file(state, mtime_ns(&st), text, size) ? SPAWN_FAILED : SPAWN_OTHERS;
		if (st.st_size > 0 && age >= 0 && age < START_SLOW_NS && runs_still(start_fd))
			return SPAWN_OTHERS;
	}
	scratch = mmap(NULL, sizeof *scratch, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (scratch == MAP_FAILED)
		SAY(text, size, "no memory to start it");
	else if (!find_program(scratch))
		SAY(text, size, "dlockd is neither beside the library nor at " DLOCKD_PATH);
	else
		result = start_program(state, start_fd, scratch->program, ret_spawn, text, size);
	if (scratch != MAP_FAILED)
		munmap(scratch, sizeof *scratch);
	return result;
}

enum spawn_result spawn_agent(const struct shim_state *state, struct spawn *ret_spawn, char *text, size_t size)
{
	enum spawn_result result = SPAWN_CANNOT;
	char path[DIR_FILE_MAX];
	uint64_t mask;
	int fd, err;

	if (state_root_moved(state)) {
		SAY(text, size, "this program has changed its root directory and cannot start one: start dlockd outside");
		return SPAWN_CANNOT;
	}
	if (would_get_the_orphan()) {
		SAY(text, size, "this process is PID 1 or a subreaper, which would become the agent's parent: "
				"start dlockd by hand or by systemd");
		return SPAWN_CANNOT;
	}
	/* No jump out of here with the start file locked, no handler in the children. */
	mask = sys_block();
	err = prepare_dir(state->runtime_dir);
	fd = err < 0 ? err : dir_file(path, state, START_FILE) ? fd_new(make_start_file, path) : -ENAMETOOLONG;
	if (fd < 0) {
		SAY(text, size, "this process cannot start one there (", shim_error(fd), "): start dlockd as its owner");
	} else {
		result = start(state, fd, ret_spawn, text, size);
		sys_close(fd);
	}
	sys_unblock(mask);
	return result;
}

bool spawn_ended(const struct spawn *spawn)
{
	struct timespec zero = { 0, 0 };
	long fd, n;

	/* A pidfd shows a zombie too, which nobody may be there to reap. */
	fd = sys_call(SYS_pidfd_open, spawn->pid, 0);
	if (fd < 0)
		return fd == -ESRCH || sys_call(SYS_kill, spawn->pid, 0) == -ESRCH;
	n = sys_call(SYS_ppoll, &(struct pollfd){ .fd = (int)fd, .events = POLLIN }, 1, &zero, NULL, sizeof(uint64_t));
	sys_close((int)fd);
	return n == 1;
}

bool spawn_reason(const struct shim_state *state, const struct spawn *spawn, char *text, size_t size)
{
	int err = atomic_load(spawn->exec_error);

	if (err) {
		SAY(text, size, "dlockd cannot be executed: ", shim_error(err));
		return true;
	}
	return read_error_file(state, spawn->since_ns, text, size);
}

void spawn_forget(struct spawn *spawn)
{
	if (spawn->exec_error)
		munmap((void *)(uintptr_t)spawn->exec_error, sizeof(struct spawn_page));
	*spawn = (struct spawn){ .pid = 0 };
}
