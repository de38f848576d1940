/* SPDX-License-Identifier: MIT */
/*
 * Starting an agent for `dlock run`. Unlike the shim, which does this inside
 * somebody else's program, dlock owns its process: an ordinary double fork will
 * do. The agent must inherit nothing that the command will lock or close: no
 * descriptors, no signal mask, no LD_PRELOAD.
 */
#include "agent_client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../runtime.h"
#include "dlock.h"
#include "protect.h"

#ifndef DLOCK_SBINDIR
#define DLOCK_SBINDIR "/usr/sbin"
#endif

#define START_TIMEOUT_MS 10000
#define START_STEP_MS 5

struct started {		/* what the starting child reports */
	pid_t pid;
	int err;		/* of exec, else 0 */
};

static void reset_signals(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		sigaction(sig, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* In the grandchild: becomes the agent, or reports why not on the pipe. */
static void become_agent(const char *path, int report)
{
	struct started failed = { getpid(), 0 };
	char *argv[] = { (char *)"dlockd", (char *)"--on-demand", NULL };
	int null = open("/dev/null", O_RDWR);

	/* Both out of the way first: the caller may run without standard descriptors. */
	if (null < 0 || (null = fcntl(null, F_DUPFD, 10)) < 0 || (report = fcntl(report, F_DUPFD, 10)) < 0)
		goto fail;
	/* The report goes to 3, which closes itself at exec; the rest is closed. */
	if (dup2(report, 3) < 0)
		goto fail;
	report = 3;
	for (int fd = 0; fd < 3; fd++)
		if (dup2(null, fd) < 0)
			goto fail;
	if (fcntl(3, F_SETFD, FD_CLOEXEC) < 0 || syscall(SYS_close_range, 4u, ~0u, 0u) < 0)
		goto fail;
	if (chdir("/") < 0)
		goto fail;
	umask(022);
	reset_signals();
	unsetenv("LD_PRELOAD");
	execv(path, argv);
fail:
	failed.err = errno;
	if (write(report, &failed, sizeof failed) < 0)
		_exit(126);
	_exit(127);
}

/* Starts it; *ret_pid is its pid. 0 or -errno. */
static int spawn(const char *path, pid_t *ret_pid)
{
	struct started started = { 0, 0 }, more;
	int report[2], status;
	pid_t child;
	ssize_t n;

	if (pipe2(report, O_CLOEXEC) < 0)
		return -errno;
	child = fork();
	if (child < 0) {
		n = -errno;
		close(report[0]);
		close(report[1]);
		return (int)n;
	}
	if (child == 0) {
		setsid();
		started.pid = fork();
		if (started.pid == 0)
			become_agent(path, report[1]);
		started.err = started.pid < 0 ? errno : 0;
		_exit(write(report[1], &started, sizeof started) == sizeof started ? 0 : 1);
	}
	close(report[1]);
	/* The pid from the child, an error from either; the end of the pipe says that exec worked. */
	while ((n = read(report[0], &more, sizeof more)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n != sizeof more)
			break;
		started.pid = more.pid;
		started.err = more.err ? more.err : started.err;
	}
	close(report[0]);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (started.err || started.pid <= 0)
		return started.err ? -started.err : -EAGAIN;
	*ret_pid = started.pid;
	return 0;
}

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* The sentence that an agent which could not start left since then (runtime.h); false if there is none. */
static bool read_reason(const char *runtime_dir, const struct timespec *since, char *text, size_t size)
{
	char path[PATH_MAX];
	struct stat st;
	ssize_t n = -1;
	int fd;

	if ((size_t)snprintf(path, sizeof path, "%s/%s", runtime_dir, RUNTIME_ERROR_FILE) >= sizeof path)
		return false;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    (st.st_mtim.tv_sec > since->tv_sec || (st.st_mtim.tv_sec == since->tv_sec && st.st_mtim.tv_nsec >= since->tv_nsec)))
		n = read(fd, text, size - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return true;
}

int agent_start(const char *runtime_dir, struct refusal *refusal)
{
	char path[PATH_MAX], reason[512];
	struct timespec since;
	long long until;
	struct pollfd ended = { .events = POLLIN };
	pid_t pid = 0;
	int n;

	if (beside_dlock("dlockd", path, sizeof path) < 0)
		snprintf(path, sizeof path, "%s/dlockd", DLOCK_SBINDIR);
	/* Time stamps of files come from the coarse clock. */
	clock_gettime(CLOCK_REALTIME_COARSE, &since);
	n = spawn(path, &pid);
	if (n < 0) {
		refuse(refusal, EXIT_TROUBLE, "no agent answers in %s, and %s could not be started (%s); install dlockd or start it by hand", runtime_dir, path, strerror(-n));
		return n;
	}
	ended.fd = (int)syscall(SYS_pidfd_open, pid, 0);
	until = now_ms() + START_TIMEOUT_MS;
	for (;;) {
		long long left = until - now_ms();
		int fd = agent_connect(runtime_dir, refusal);

		if (fd >= 0) {
			close(fd);
			n = 0;
			break;
		}
		if (fd != -ENOENT) {
			n = fd;
			break;
		}
		if (left <= 0 || (ended.fd < 0 && read_reason(runtime_dir, &since, reason, sizeof reason))) {
			if (read_reason(runtime_dir, &since, reason, sizeof reason))
				refuse(refusal, EXIT_TROUBLE, "the agent was started and cannot run: %s", reason);
			else
				refuse(refusal, EXIT_TROUBLE, "the agent was started but does not answer in %s; run `dlockd --foreground` to see why", runtime_dir);
			n = -ETIMEDOUT;
			break;
		}
		/* Ended at once: either another start was faster, which answers soon, or it said why to nobody. */
		if (poll(&ended, 1, START_STEP_MS) > 0) {
			if (ended.fd < 0)
				continue;
			close(ended.fd);
			ended.fd = -1;
			if (until > now_ms() + 1000)
				until = now_ms() + 1000;
		}
	}
	if (ended.fd >= 0)
		close(ended.fd);
	return n;
}
