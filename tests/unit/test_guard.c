/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/guard.c daemon-lite/guard_link.c daemon-lite/ladder.c daemon-lite/holders.c daemon-lite/klock.c daemon-lite/loop.c daemon-lite/log.c daemon-lite/hash.c daemon-lite/notify.c */
/* The guard with agents that are killed, stopped, hung, or never come up. T is 1.2 s; a slow machine only makes it slower. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/guard.h"
#include "../../daemon-lite/log.h"

#define MS 1000000ull
#define TTL_MS 1200u

/* What agents report; shared by all processes of a test. */
struct report {
	_Atomic int starts;		/* agents started */
	_Atomic int pid;		/* the last one */
	_Atomic int up;			/* it is in its loop */
	_Atomic int taken;		/* descriptors the last one took over */
	_Atomic int taken_right;	/* of these with the key, rule and inode expected */
	_Atomic int signal;		/* what it got */
	_Atomic int hung_up;		/* it saw the guard's end */
	_Atomic int flushed;
	_Atomic int keep_err;
	_Atomic uint64_t last_good_ns;	/* the test's wish, copied into the page */
	_Atomic int stop_stamping;
	_Atomic int survives;		/* the agent is to outlive the guard */
};

static struct report *report;
static char path[64];
static int lock_fd;		/* the "agent's description"; made before the guard */
static struct inode_id id;
static pid_t guard_pid;
static const char *key;		/* of the lock; its beginning says what holders and agents take */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_BOOTTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000 * MS + (uint64_t)ts.tv_nsec;
}

static void nap(unsigned ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 }, NULL);
}

#define WAIT_FOR(what) do { \
	uint64_t until_ = now_ns() + 20000 * MS; \
	while (!(what) && now_ns() < until_) \
		nap(2); \
	assert_true(what); \
} while (0)

static int set_up(void **state)
{
	struct stat st;

	(void)state;
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (report == MAP_FAILED)
		return -1;
	strcpy(path, "/tmp/test_guard.XXXXXX");
	lock_fd = mkostemp(path, O_CLOEXEC);
	if (lock_fd < 0 || fstat(lock_fd, &st) < 0)
		return -1;
	id = (struct inode_id){ .dev = st.st_dev, .ino = st.st_ino, .btime_ns = 42 };
	guard_pid = 0;
	key = "f:job";
	return 0;
}

static int set_up_records(void **state)
{
	int r = set_up(state);

	key = "r:job";
	return r;
}

/* Exclusively, without waiting: all of the file, or by record locks a byte. */
static int take(int fd, int command)
{
	struct flock range = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 5, .l_len = 1 };

	return *key == 'f' ? flock(fd, LOCK_EX | LOCK_NB) : fcntl(fd, command, &range);
}

static int tear_down(void **state)
{
	(void)state;
	if (guard_pid > 0) {
		kill(guard_pid, SIGKILL);	/* its agent goes with it, see agent_loop */
		waitpid(guard_pid, NULL, 0);
	}
	munmap(report, sizeof(*report));
	close(lock_fd);
	return unlink(path);
}

/* --- agents ---------------------------------------------------------------------- */

static void on_term(int sig)
{
	report->signal = sig;
}

static void on_taken(void *arg, int fd, const struct inode_id *their_id, const char *their_key, const char *on_lost)
{
	struct guard_link *link = arg;
	struct stat st;
	int handle = report->taken++;

	if (fstat(fd, &st) == 0 && st.st_ino == id.ino && their_id->ino == id.ino && their_id->btime_ns == 42 && strcmp(their_key, key) == 0 &&
	    strcmp(on_lost, "kill") == 0)
		report->taken_right++;
	guard_keep(link, (uint64_t)handle, fd, their_id, their_key, on_lost);
}

/* Stamps the page until it is told to stop; the other agents are made of it. */
static int agent_loop(struct guard_link *link)
{
	struct sigaction action = { .sa_handler = on_term };

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	if (!report->survives)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	report->pid = getpid();
	link->page->ttl_ms = TTL_MS;
	report->signal = 0;
	for (;;) {
		struct pollfd p = { .fd = link->fd };

		if (!report->stop_stamping)
			link->page->alive_ns = now_ns();
		if (report->last_good_ns)
			link->page->last_good_ns = report->last_good_ns;
		report->up = 1;
		poll(&p, 1, 10);
		if (p.revents & POLLHUP)
			report->hung_up = 1;
		if (!report->stop_stamping) {
			guard_flush(link);
			report->flushed = link->out_first == NULL;
		}
		if (report->signal == SIGTERM) {
			link->page->quit = 1;
			return 0;
		}
		if (report->hung_up)
			nap(10);
	}
}

static int agent_quits(void *arg, struct guard_link *link)
{
	report->starts++;
	guard_take_over(link, on_taken, link);
	link->page->alive_ns = now_ns();
	link->page->quit = 1;
	return *(int *)arg;
}

static int agent_ends(void *arg, struct guard_link *link)
{
	report->starts++;
	guard_take_over(link, on_taken, link);
	return *(int *)arg;
}

/* The first one keeps the file; all take over. */
static int agent_keeps(void *arg, struct guard_link *link)
{
	(void)arg;
	report->up = 0;
	report->taken = report->taken_right = 0;
	guard_take_over(link, on_taken, link);
	if (report->starts++ == 0) {
		report->keep_err = guard_keep(link, 7, lock_fd, &id, key, "kill");
		take(lock_fd, F_OFD_SETLK);	/* as a helper thread would */
	}
	close(lock_fd);
	return agent_loop(link);
}

/* Keeps the file and then there is never an agent again. */
static int agent_once(void *arg, struct guard_link *link)
{
	if (report->starts == 0)
		return agent_keeps(arg, link);
	report->starts++;
	return 1;
}

static int agent_keeps_thousands(void *arg, struct guard_link *link)
{
	char text[64];

	(void)arg;
	report->up = 0;
	report->taken = report->taken_right = 0;
	guard_take_over(link, on_taken, link);
	if (report->starts++ == 0) {
		kill(getppid(), SIGSTOP);
		for (int i = 0; i < 6000; i++) {
			snprintf(text, sizeof(text), "f:%d", i);
			if (guard_keep(link, (uint64_t)i, lock_fd, &id, text, "log") < 0)
				report->keep_err = 1;
		}
		for (int i = 0; i < 6000; i += 2)
			if (guard_drop(link, (uint64_t)i) < 0)
				report->keep_err = 1;
		kill(getppid(), SIGCONT);
	}
	return agent_loop(link);
}

/* Runs the guard in a child. */
static void guard_start(int (*agent_main)(void *arg, struct guard_link *link), void *arg)
{
	guard_pid = fork();
	assert_true(guard_pid >= 0);
	if (guard_pid == 0)
		_exit(guard_run(agent_main, arg, -1, -1));
}

static int guard_end(void)
{
	int status;

	assert_int_equal(waitpid(guard_pid, &status, 0), guard_pid);
	guard_pid = 0;
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* --- ends ------------------------------------------------------------------------- */

static void test_an_agent_that_quits_ends_the_guard(void **state)
{
	int code = 0;

	(void)state;
	guard_start(agent_quits, &code);
	assert_int_equal(guard_end(), 0);
	assert_int_equal(report->starts, 1);
}

static void test_a_refused_start_is_passed_on_and_not_tried_again(void **state)
{
	int codes[] = { GUARD_EXIT_CONFIG, GUARD_EXIT_TEMPFAIL };

	(void)state;
	for (int i = 0; i < 2; i++) {
		report->starts = 0;
		guard_start(agent_ends, &codes[i]);
		assert_int_equal(guard_end(), codes[i]);
		assert_int_equal(report->starts, 1);
	}
}

static void test_an_agent_that_ends_at_once_again_and_again_is_started_more_and_more_slowly(void **state)
{
	int code = 1, starts;

	(void)state;
	guard_start(agent_ends, &code);
	WAIT_FOR(report->starts >= 3);
	nap(1000);	/* 100, 200, 400, 800 ms: no condition to wait for */
	starts = report->starts;
	assert_true(starts <= 6);
	kill(guard_pid, SIGTERM);
	guard_end();
}

static void test_sigterm_is_passed_on_and_the_agents_code_comes_back(void **state)
{
	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	kill(guard_pid, SIGHUP);
	WAIT_FOR(report->signal == SIGHUP);
	kill(guard_pid, SIGTERM);
	assert_int_equal(guard_end(), 0);
	assert_int_equal(report->starts, 1);
}

/* --- another agent ------------------------------------------------------------------ */

static void test_a_killed_agent_is_replaced_and_its_descriptions_are_handed_on(void **state)
{
	int program, own_descriptor = open(path, O_RDWR | O_CLOEXEC);

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	assert_int_equal(report->keep_err, 0);
	close(lock_fd);		/* the test's copy of the agent's description */
	lock_fd = -1;
	assert_int_equal(flock(own_descriptor, LOCK_SH | LOCK_NB), -1);	/* the helper's lock */
	for (int i = 2; i <= 4; i++) {
		kill(report->pid, SIGKILL);
		WAIT_FOR(report->starts == i && report->up);
		assert_int_equal(report->taken, 1);
		assert_int_equal(report->taken_right, 1);
		/* It did not outlive the thread, though the guard has copies. */
		assert_int_equal(flock(own_descriptor, LOCK_EX | LOCK_NB), 0);
		flock(own_descriptor, LOCK_UN);
	}
	/* A program's lock is another description: no change of agents touches it. */
	program = open(path, O_RDWR | O_CLOEXEC);
	flock(program, LOCK_EX);
	kill(report->pid, SIGKILL);
	WAIT_FOR(report->starts == 5 && report->up);
	assert_int_equal(flock(own_descriptor, LOCK_SH | LOCK_NB), -1);
	close(program);
	close(own_descriptor);
}

static void test_a_killed_agents_record_locks_do_not_outlive_it(void **state)
{
	int own_descriptor = open(path, O_RDWR | O_CLOEXEC);

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	close(lock_fd);
	lock_fd = -1;
	assert_int_equal(take(own_descriptor, F_OFD_SETLK), -1);
	kill(report->pid, SIGKILL);
	WAIT_FOR(report->starts == 2 && report->up);
	assert_int_equal(report->taken_right, 1);
	assert_int_equal(take(own_descriptor, F_OFD_SETLK), 0);
	close(own_descriptor);
}

static void test_a_stopped_agent_is_replaced_within_a_sixth_of_the_lease_and_a_second(void **state)
{
	uint64_t from;

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	report->up = 0;
	from = now_ns();
	kill(report->pid, SIGSTOP);
	WAIT_FOR(report->starts == 2 && report->up);
	assert_in_range((now_ns() - from) / MS, TTL_MS / 6 / 2, TTL_MS / 6 + 1000);
	assert_int_equal(report->taken_right, 1);
}

static void test_an_agent_that_runs_but_does_not_get_round_is_replaced(void **state)
{
	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	report->stop_stamping = 1;
	WAIT_FOR(report->starts == 2);
	report->stop_stamping = 0;
	WAIT_FOR(report->up);
}

static void test_after_a_pause_of_both_the_agent_has_time_again(void **state)
{
	int agent;

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	agent = report->pid;
	for (int i = 0; i < 3; i++) {
		kill(guard_pid, SIGSTOP);
		kill(agent, SIGSTOP);
		nap(TTL_MS / 2);	/* the pause itself */
		kill(guard_pid, SIGCONT);
		nap(TTL_MS / 48);
		kill(agent, SIGCONT);
		nap(TTL_MS / 6 + TTL_MS / 12);
		assert_int_equal(report->starts, 1);
		assert_int_equal(kill(agent, 0), 0);
	}
}

static void test_thousands_of_descriptions_pass_while_the_guard_does_not_listen(void **state)
{
	(void)state;
	guard_start(agent_keeps_thousands, NULL);
	WAIT_FOR(report->up && report->flushed);
	assert_int_equal(report->keep_err, 0);
	kill(report->pid, SIGKILL);
	WAIT_FOR(report->starts == 2 && report->up);
	assert_int_equal(report->taken, 3000);
}

static void test_an_agent_survives_its_guard_and_notices(void **state)
{
	int agent;

	(void)state;
	report->survives = 1;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	agent = report->pid;
	kill(guard_pid, SIGKILL);
	assert_int_equal(waitpid(guard_pid, NULL, 0), guard_pid);
	guard_pid = 0;
	WAIT_FOR(report->hung_up);
	assert_int_equal(kill(agent, 0), 0);
	kill(agent, SIGTERM);
	WAIT_FOR(kill(agent, 0) < 0);
}

/* --- the ladder ------------------------------------------------------------------------- */

static _Atomic int *got_term;

static void count_term(int sig)
{
	(void)sig;
	(*got_term)++;
}

static pid_t holder_start(void)
{
	struct sigaction action = { .sa_handler = count_term };
	int pipe_fds[2];
	char byte = 'x';
	pid_t pid;

	got_term = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0) {
		int fd = open(path, O_RDWR);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(lock_fd);
		sigaction(SIGTERM, &action, NULL);
		if (take(fd, F_SETLK) < 0 || write(pipe_fds[1], &byte, 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipe_fds[1]);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
	close(pipe_fds[0]);
	return pid;
}

static void wait_for_kill(pid_t pid)
{
	int status = 0, r = 0;

	WAIT_FOR(r == pid || (r = waitpid(pid, &status, WNOHANG)) == pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_without_an_agent_the_guard_ends_holders_before_the_lease_ends(void **state)
{
	uint64_t from, took;
	pid_t holder = holder_start();

	(void)state;
	guard_start(agent_once, NULL);
	WAIT_FOR(report->up);
	close(lock_fd);
	lock_fd = -1;
	from = now_ns();
	report->last_good_ns = from;
	nap(50);	/* the agent copies it */
	kill(report->pid, SIGKILL);
	wait_for_kill(holder);
	took = (now_ns() - from) / MS;
	print_message("ended after %llu ms of %u\n", (unsigned long long)took, TTL_MS);
	assert_int_equal(*got_term, 1);
	assert_in_range(took, TTL_MS / 6 * 5, TTL_MS);
	assert_int_equal(kill(guard_pid, 0), 0);
}

static void test_without_an_agent_holders_of_record_locks_are_ended_too(void **state)
{
	test_without_an_agent_the_guard_ends_holders_before_the_lease_ends(state);
}

static void test_with_an_agent_that_forgets_the_ladder_the_guard_kills_a_little_later(void **state)
{
	uint64_t from, took;
	pid_t holder = holder_start();

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	from = now_ns();
	report->last_good_ns = from;
	wait_for_kill(holder);
	took = (now_ns() - from) / MS;
	assert_int_equal(*got_term, 0);
	assert_in_range(took, TTL_MS / 6 * 5 + TTL_MS / 48, TTL_MS);
	assert_int_equal(report->starts, 1);
}

static void test_renewals_keep_the_holder_alive(void **state)
{
	uint64_t until = now_ns() + 2 * TTL_MS * MS;
	pid_t holder = holder_start();

	(void)state;
	guard_start(agent_keeps, NULL);
	WAIT_FOR(report->up);
	while (now_ns() < until) {
		report->last_good_ns = now_ns();
		nap(TTL_MS / 3);
	}
	assert_int_equal(waitpid(holder, NULL, WNOHANG), 0);
	assert_int_equal(*got_term, 0);
	report->last_good_ns = now_ns();
	kill(holder, SIGKILL);
	waitpid(holder, NULL, 0);
}

/* --- the service manager ---------------------------------------------------------------------- */

static bool hear(int fd, const char *want)
{
	char text[64];
	uint64_t until = now_ns() + 10000 * MS;

	while (now_ns() < until) {
		ssize_t n = recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT);

		if (n > 0) {
			text[n] = '\0';
			if (strcmp(text, want) == 0)
				return true;
		} else {
			nap(2);
		}
	}
	return false;
}

static void test_the_service_manager_hears_of_start_life_and_end(void **state)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	(void)state;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s.notify", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	setenv("NOTIFY_SOCKET", addr.sun_path, 1);
	setenv("WATCHDOG_USEC", "300000", 1);
	guard_start(agent_keeps, NULL);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	assert_true(hear(fd, "READY=1"));
	assert_true(hear(fd, "WATCHDOG=1"));
	assert_true(hear(fd, "WATCHDOG=1"));
	kill(guard_pid, SIGTERM);
	assert_true(hear(fd, "STOPPING=1"));
	assert_int_equal(guard_end(), 0);
	close(fd);
	unlink(addr.sun_path);
}

#define GUARD_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		GUARD_TEST(test_an_agent_that_quits_ends_the_guard),
		GUARD_TEST(test_a_refused_start_is_passed_on_and_not_tried_again),
		GUARD_TEST(test_an_agent_that_ends_at_once_again_and_again_is_started_more_and_more_slowly),
		GUARD_TEST(test_sigterm_is_passed_on_and_the_agents_code_comes_back),
		GUARD_TEST(test_a_killed_agent_is_replaced_and_its_descriptions_are_handed_on),
		cmocka_unit_test_setup_teardown(test_a_killed_agents_record_locks_do_not_outlive_it, set_up_records, tear_down),
		GUARD_TEST(test_a_stopped_agent_is_replaced_within_a_sixth_of_the_lease_and_a_second),
		GUARD_TEST(test_an_agent_that_runs_but_does_not_get_round_is_replaced),
		GUARD_TEST(test_after_a_pause_of_both_the_agent_has_time_again),
		GUARD_TEST(test_thousands_of_descriptions_pass_while_the_guard_does_not_listen),
		GUARD_TEST(test_an_agent_survives_its_guard_and_notices),
		GUARD_TEST(test_without_an_agent_the_guard_ends_holders_before_the_lease_ends),
		cmocka_unit_test_setup_teardown(test_without_an_agent_holders_of_record_locks_are_ended_too, set_up_records, tear_down),
		GUARD_TEST(test_with_an_agent_that_forgets_the_ladder_the_guard_kills_a_little_later),
		GUARD_TEST(test_renewals_keep_the_holder_alive),
		GUARD_TEST(test_the_service_manager_hears_of_start_life_and_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
