/* SPDX-License-Identifier: MIT */
/*
 * The guard: parent of the agent. It does little, so that nothing can make it
 * hang or die: it waits for its child, looks at one shared page, keeps copies of
 * descriptors, and runs the ladder when no agent does.
 *
 *	guard (own session, memory locked, has agent.lock and the listeners)
 *	  |- agent 1 ... killed when silent for T/6, its copies are kept
 *	  `- agent 2 ... inherits the copies, the listeners and the page
 *
 * Invariants:
 * - One thread. It never talks to the network, never allocates on account of the
 *   agent but for what it keeps, and calls nothing on a filesystem but flock and F_OFD_GETLK on the copies.
 * - An agent is silent only by time in which the guard itself ran: after a pause
 *   of the whole host (or of the guard) the agent gets a fresh T/6.
 * - The ladder is the agent's business first: with an agent that is up the guard
 *   only kills, and only a little later than the agent should have.
 * - The copies' locks are dropped before the next agent starts.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guard_link.h"
#include "log.h"
#include "notify.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define START_LIMIT (5 * SECOND)	/* for a new agent's first round */
#define DEATH_LIMIT (SECOND / 2)	/* a killed agent in state D is not waited for longer: it runs no more code of ours */
#define BACKOFF_FIRST (100 * MS)
#define BACKOFF_MAX (5 * SECOND)
#define LIVED_WELL (5 * SECOND)

struct guard {
	int (*agent_main)(void *arg, struct guard_link *link);
	void *arg;
	int listen_fd, abstract_fd;
	struct guard_page *page;
	struct guard_kept kept;
	sigset_t old_mask;
	int signal_fd;

	pid_t pid;		/* the agent, 0 = none */
	int pidfd, link_fd;	/* -1 = none */
	uint64_t started_ns;	/* this agent's fork */
	uint64_t killed_ns;	/* SIGKILL was sent, 0 = not */
	uint64_t start_at_ns;	/* when the next one is started */
	uint64_t backoff_ns;
	bool was_alive;		/* some agent has been alive */

	uint64_t round_ns, resumed_ns;	/* this round; the end of the guard's last pause */
	uint64_t ladder_ns, watchdog_ns; /* when the next pass, the next message is due */
	enum ladder_step ladder_step;	/* of the last pass */
	bool ready_sent;
	int stopping;		/* the signal that was passed on, 0 = none */
	bool stop_sent;		/* to this agent */
	bool finished;
	int exit_code;
};

/* Not loop_now_ns: the guard needs nothing of the loop. */
static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

static uint64_t ttl_ns(const struct guard *guard)
{
	uint32_t ttl_ms = atomic_load(&guard->page->ttl_ms);

	return (ttl_ms ? ttl_ms : 30000) * MS;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool agent_is_up(const struct guard *guard)
{
	return guard->pid > 0 && guard->killed_ns == 0 && atomic_load(&guard->page->alive_ns) != 0;
}

/* --- being a guard ------------------------------------------------------- */

static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		log_debug("the limit of open files cannot be raised: %s", strerror(errno));
}

static void lower_oom_score(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, "-900", 4) < 0)
		log_debug("the guard cannot protect itself from the out-of-memory killer: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* Sanitizers map terabytes of shadow, which must not be locked. Without the privilege MCL_FUTURE would make later allocations fail. */
static void lock_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	if (mlockall(geteuid() == 0 ? MCL_CURRENT | MCL_FUTURE : MCL_CURRENT) < 0)
		log_debug("the guard's memory cannot be locked: %s", strerror(errno));
#endif
}

static int guard_init(struct guard *guard)
{
	sigset_t mask;

	guard->page = mmap(NULL, sizeof(*guard->page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (guard->page == MAP_FAILED)
		return -errno;
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, &guard->old_mask);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL);	/* an inherited SIG_IGN would take our child's exit code from us */
	guard->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (guard->signal_fd < 0)
		return -errno;
	if (setsid() < 0)
		log_debug("the guard stays in its session: it leads a process group already");
	prctl(PR_SET_NAME, "dlockd-guard");
	raise_fd_limit();
	lower_oom_score();
	lock_memory();
	return 0;
}

static void guard_end(struct guard *guard)
{
	guard_kept_free(&guard->kept);
	if (guard->link_fd >= 0)
		close(guard->link_fd);
	if (guard->pidfd >= 0)
		close(guard->pidfd);
	if (guard->signal_fd >= 0)
		close(guard->signal_fd);
	sigprocmask(SIG_SETMASK, &guard->old_mask, NULL);
}

/* --- the agent's life ---------------------------------------------------- */

static _Noreturn void agent_child(struct guard *guard, pid_t guard_pid, int link_fd)
{
	struct guard_link link = {
		.fd = link_fd,
		.page = guard->page,
		.listen_fd = guard->listen_fd,
		.abstract_fd = guard->abstract_fd,
		.kept = &guard->kept,
	};

	close(guard->signal_fd);
	prctl(PR_SET_NAME, "dlockd");
	ladder_set_skip(guard_pid);
	sigprocmask(SIG_SETMASK, &guard->old_mask, NULL);
	exit(guard->agent_main(guard->arg, &link));
}

static void retry_later(struct guard *guard)
{
	guard->backoff_ns = guard->backoff_ns ? guard->backoff_ns * 2 : BACKOFF_FIRST;
	if (guard->backoff_ns > BACKOFF_MAX)
		guard->backoff_ns = BACKOFF_MAX;
	guard->start_at_ns = now_ns() + guard->backoff_ns;
}

static void agent_start(struct guard *guard)
{
	pid_t guard_pid = getpid();
	int fds[2], r = guard_link_pair(fds);

	if (r < 0) {
		log_error("the agent cannot be started: %s", strerror(-r));
		retry_later(guard);
		return;
	}
	atomic_store(&guard->page->alive_ns, 0);
	atomic_store(&guard->page->quit, 0);
	fflush(NULL);
	guard->pid = fork();
	if (guard->pid < 0) {
		log_error("the agent cannot be started: %s", strerror(errno));
		guard->pid = 0;
		close(fds[0]);
		close(fds[1]);
		retry_later(guard);
		return;
	}
	if (guard->pid == 0) {
		close(fds[0]);
		agent_child(guard, guard_pid, fds[1]);
	}
	close(fds[1]);
	guard->link_fd = fds[0];
	guard->pidfd = (int)syscall(SYS_pidfd_open, guard->pid, 0);
	guard->started_ns = now_ns();
	guard->killed_ns = 0;
	guard->stop_sent = false;
	ladder_set_skip(guard->pid);
}

static void agent_signal(struct guard *guard, int sig)
{
	if (guard->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, guard->pidfd, sig, NULL, 0);
	else if (guard->pid > 0)
		kill(guard->pid, sig);	/* our child, not reaped yet: the number is still its own */
}

/* Everything that remains of an agent that runs no more. */
static void agent_forget(struct guard *guard)
{
	if (guard->link_fd >= 0) {
		guard_kept_receive(&guard->kept, guard->link_fd);	/* what it sent just before */
		close(guard->link_fd);
		guard->link_fd = -1;
	}
	if (guard->pidfd >= 0)
		close(guard->pidfd);
	guard->pidfd = -1;
	guard->pid = 0;
	guard_kept_orphan(&guard->kept);
}

static void finish(struct guard *guard, int exit_code)
{
	guard->finished = true;
	guard->exit_code = exit_code;
}

static void say_end(pid_t pid, int status)
{
	if (WIFSIGNALED(status))
		log_error("the agent %d was ended by signal %d; starting another", (int)pid, WTERMSIG(status));
	else
		log_error("the agent %d ended with code %d; starting another", (int)pid, WEXITSTATUS(status));
}

static void agent_ended(struct guard *guard, int status)
{
	bool was_up = atomic_load(&guard->page->alive_ns) != 0;
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
	uint64_t lived = now_ns() - guard->started_ns;
	pid_t pid = guard->pid;

	if (was_up)
		guard->was_alive = true;
	agent_forget(guard);
	/* It had made up its mind, however it went then. */
	if (atomic_load(&guard->page->quit)) {
		finish(guard, code < 0 ? 0 : code);
		return;
	}
	/* The next one would refuse as well; with nothing to watch, whoever needs an agent starts it and is told why. */
	if ((code == GUARD_EXIT_CONFIG || code == GUARD_EXIT_TEMPFAIL) &&
	    (!guard->was_alive || guard_kept_count(&guard->kept) == 0)) {
		finish(guard, code);
		return;
	}
	/* Told to stop: fine, unless it crashed and left holders that somebody has to watch. */
	if (guard->stopping && (code >= 0 || guard_kept_count(&guard->kept) == 0)) {
		finish(guard, code >= 0 ? code : WTERMSIG(status) == guard->stopping ? 0 : 128 + WTERMSIG(status));
		return;
	}
	say_end(pid, status);
	if (lived >= LIVED_WELL)
		guard->backoff_ns = 0;
	if (lived >= SECOND)
		guard->start_at_ns = now_ns();
	else
		retry_later(guard);
}

/* Reaps the agent, and earlier ones that took long to die. */
static void reap(struct guard *guard)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == guard->pid)
			agent_ended(guard, status);
	if (guard->pid > 0 && guard->killed_ns && guard->round_ns - guard->killed_ns > DEATH_LIMIT) {
		log_error("the agent %d was killed but does not end (a filesystem that hangs?); starting another", (int)guard->pid);
		agent_forget(guard);
		guard->start_at_ns = guard->round_ns;
	}
}

static void check_silence(struct guard *guard)
{
	uint64_t alive = atomic_load(&guard->page->alive_ns), last, limit = ttl_ns(guard) / 6;

	if (guard->pid <= 0 || guard->killed_ns)
		return;
	if (alive)
		guard->was_alive = true;
	if (!alive || atomic_load(&guard->page->quit))	/* it may take its leave of the store */
		limit = max_u64(limit, START_LIMIT);
	last = max_u64(max_u64(alive, guard->started_ns), guard->resumed_ns);
	if (guard->round_ns <= last || guard->round_ns - last <= limit)
		return;
	log_error("the agent %d has been silent for %llu ms; ending it", (int)guard->pid,
		  (unsigned long long)((guard->round_ns - last) / MS));
	agent_signal(guard, SIGKILL);
	guard->killed_ns = guard->round_ns;
}

/* --- the ladder ---------------------------------------------------------- */

static size_t ladder_collect(struct guard *guard, bool only_kill, struct ladder_file *files, struct guard_file **from)
{
	struct guard_file *file = NULL;
	size_t n = 0;

	while ((file = guard_kept_walk(&guard->kept, file)) != NULL) {
		struct on_lost_rule rule = { .what = ON_LOST_KILL };

		on_lost_parse(file->on_lost, &rule);	/* what cannot be read means kill */
		if (file->done || (only_kill && rule.what != ON_LOST_KILL))
			continue;
		files[n] = (struct ladder_file){ .fd = file->fd, .id = file->id, .key = file->key, .on_lost = rule };
		from[n++] = file;
	}
	return n;
}

static void ladder_off(struct guard *guard)
{
	struct guard_file *file = NULL;

	if (guard->ladder_step == LADDER_GOOD)
		return;
	guard->ladder_step = LADDER_GOOD;
	while ((file = guard_kept_walk(&guard->kept, file)) != NULL)
		file->done = false;
	ladder_pass(LADDER_GOOD, NULL, 0);
}

/* An agent that is up has a little more time for its own work. */
static uint64_t ladder_margin(const struct guard *guard)
{
	return agent_is_up(guard) ? ttl_ns(guard) / 48 : 0;
}

static void run_ladder(struct guard *guard)
{
	uint64_t last_good = atomic_load(&guard->page->last_good_ns);
	bool is_up = agent_is_up(guard);
	struct ladder_file *files;
	struct guard_file **from;
	enum ladder_step step;
	size_t n;

	step = ladder_at(guard->round_ns - ladder_margin(guard), last_good, atomic_load(&guard->page->ttl_ms));
	if (step == LADDER_GOOD) {
		ladder_off(guard);
		return;
	}
	if ((is_up && step != LADDER_KILL) || (step == guard->ladder_step && guard->round_ns < guard->ladder_ns))
		return;
	guard->ladder_step = step;
	guard->ladder_ns = guard->round_ns + ttl_ns(guard) / 24;
	n = guard_kept_count(&guard->kept);
	if (n == 0)
		return;
	files = calloc(n, sizeof(*files));
	from = calloc(n, sizeof(*from));
	if (files && from) {
		n = ladder_collect(guard, is_up, files, from);
		if (n > 0)
			ladder_pass(step, files, n);
		for (size_t i = 0; i < n; i++)
			/* At failing a file that is free may be locked once more before the kill. */
			if (step == LADDER_KILL)
				from[i]->done = files[i].done;
	} else {
		log_error("no memory for the ladder; trying again");
	}
	free(files);
	free(from);
	guard->round_ns = now_ns();	/* a long walk through /proc is no pause of the guard */
}

/* --- the loop ------------------------------------------------------------ */

static void handle_signals(struct guard *guard)
{
	struct signalfd_siginfo info;

	while (read(guard->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		int sig = (int)info.ssi_signo;

		if (sig != SIGHUP) {
			guard->stopping = sig;
			guard->stop_sent = guard->pid > 0;
			notify_send("STOPPING=1");
		}
		if (guard->pid > 0)
			agent_signal(guard, sig);
		else if (guard->stopping && guard_kept_count(&guard->kept) == 0)
			finish(guard, 0);
	}
}

/* The service manager watches the guard; the guard watches the agent. */
static void notify(struct guard *guard)
{
	uint64_t every = notify_watchdog_ns();

	if (!guard->ready_sent && agent_is_up(guard)) {
		notify_send("READY=1");
		guard->ready_sent = true;
	}
	if (every && guard->round_ns >= guard->watchdog_ns) {
		notify_send("WATCHDOG=1");
		guard->watchdog_ns = guard->round_ns + every / 3;
	}
}

static uint64_t interval_ns(const struct guard *guard)
{
	uint64_t every = ttl_ns(guard) / 48;

	return every < 10 * MS ? 10 * MS : every > 500 * MS ? 500 * MS : every;
}

static void begin_round(struct guard *guard)
{
	uint64_t now = now_ns(), limit = max_u64(ttl_ns(guard) / 12, 2 * interval_ns(guard));

	if (guard->round_ns && now - guard->round_ns > limit) {
		guard->resumed_ns = now;
		log_debug("the guard did not run for %llu ms", (unsigned long long)((now - guard->round_ns) / MS));
	}
	guard->round_ns = now;
}

static void wait_for_events(struct guard *guard)
{
	struct pollfd fds[3] = {
		{ .fd = guard->signal_fd, .events = POLLIN },
		{ .fd = guard->link_fd, .events = POLLIN },
		{ .fd = guard->pidfd, .events = POLLIN },
	};
	uint64_t wait = interval_ns(guard), now = now_ns(), last_good = atomic_load(&guard->page->last_good_ns);

	if (guard->pid == 0 && guard->start_at_ns < now + wait)
		wait = guard->start_at_ns > now ? guard->start_at_ns - now : 0;
	if (last_good) {
		uint64_t kill_at = last_good + ttl_ns(guard) / 6 * 5 + ladder_margin(guard);

		if (kill_at > now && kill_at - now < wait)
			wait = kill_at - now;
	}
	poll(fds, 3, (int)((wait + MS - 1) / MS));
	if (guard->link_fd >= 0 && fds[1].revents && guard_kept_receive(&guard->kept, guard->link_fd) < 0) {
		close(guard->link_fd);	/* closed before its end; the end will come, or silence */
		guard->link_fd = -1;
	}
	handle_signals(guard);
}

int guard_run(int (*agent_main)(void *arg, struct guard_link *link), void *arg, int listen_fd, int abstract_fd)
{
	struct guard guard = {
		.agent_main = agent_main, .arg = arg, .listen_fd = listen_fd, .abstract_fd = abstract_fd,
		.signal_fd = -1, .pidfd = -1, .link_fd = -1,
	};
	int r = guard_init(&guard);

	if (r < 0) {
		log_error("the guard cannot start: %s", strerror(-r));
		return GUARD_EXIT_TEMPFAIL;
	}
	while (!guard.finished) {
		begin_round(&guard);
		reap(&guard);
		if (guard.finished)
			break;
		if (guard.pid == 0 && guard.round_ns >= guard.start_at_ns)
			agent_start(&guard);
		if (guard.stopping && !guard.stop_sent && agent_is_up(&guard)) {
			agent_signal(&guard, guard.stopping);
			guard.stop_sent = true;
		}
		check_silence(&guard);
		run_ladder(&guard);
		notify(&guard);
		wait_for_events(&guard);
	}
	guard_end(&guard);
	munmap(guard.page, sizeof(*guard.page));
	return guard.exit_code;
}
