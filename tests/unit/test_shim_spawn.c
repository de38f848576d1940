/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/*
 * Starting an agent. The test runs as DIR/test, and DIR/dlockd beside it is the
 * same program, which plays an agent of the kind that DIR/kind names.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_agent.h"

#define A "locks/a"

/* ---- the agent's part ---- */

static void read_text(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "r");
	size_t n = file ? fread(text, 1, size - 1, file) : 0;

	text[n] = '\0';
	if (file)
		fclose(file);
}

static void append_line(const char *name, const char *line)
{
	int fd = open(fake_path(name), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);

	if (write(fd, line, strlen(line)) < 0)
		abort();
	close(fd);
}

/* What this process was born with, one line each. */
static void write_report(void)
{
	char status[4096], link[64], target[256], cwd[256], *line;
	FILE *file = fopen(fake_path("report.new"), "we");
	DIR *dir;

	if (!file)
		abort();
	umask(umask(0));
	fprintf(file, "session %d\n", getsid(0) == getpid());
	fprintf(file, "cwd %s\n", getcwd(cwd, sizeof cwd));
	read_text("/proc/self/status", status, sizeof status);
	for (line = strtok(status, "\n"); line; line = strtok(NULL, "\n"))
		if (!strncmp(line, "SigBlk", 6) || !strncmp(line, "SigIgn", 6) || !strncmp(line, "Umask", 5))
			fprintf(file, "%s\n", line);
	dir = opendir("/proc/self/fd");
	for (struct dirent *entry; (entry = readdir(dir));) {
		ssize_t n;
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] == '.' || fd == dirfd(dir) || fd == fileno(file))
			continue;
		snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		fprintf(file, "fd %d %s\n", fd, target);
	}
	closedir(dir);
	for (char **at = environ; *at; at++)
		fprintf(file, "env %s\n", *at);
	fclose(file);
	rename(fake_path("report.new"), fake_path("report"));
}

/* Answers GO to everybody until DIR/stop is there, or nobody has come for a while. */
static void serve(unsigned connections)
{
	struct fake_agent agent = { .path_fd = -1 };
	struct pollfd fds[64];
	unsigned n = 1, idle = 0;

	fake_listen(&agent);
	fds[0] = (struct pollfd){ agent.path_fd, POLLIN, 0 };
	while (access(fake_path("stop"), F_OK) < 0 && idle < 1000) {
		idle = poll(fds, n, 20) == 0 ? idle + 1 : 0;
		for (unsigned i = n - 1; i > 0; i--) {
			char buf[512];

			if (!fds[i].revents)
				continue;
			if (recv(fds[i].fd, buf, sizeof buf, 0) <= 0) {
				close(fds[i].fd);
				fds[i] = fds[--n];
			} else if (((struct wire_msg *)(void *)buf)->type == WIRE_REQUEST) {
				if (connections == 1)
					_exit(3);	/* dies with a request in hand */
				fake_go(fds[i].fd, 10000);
			}
		}
		if (fds[0].revents && n < 64) {
			fds[n++] = (struct pollfd){ accept4(agent.path_fd, NULL, NULL, SOCK_CLOEXEC), POLLIN, 0 };
			fds[n - 1].revents = 0;
		}
		fds[0].revents = 0;
	}
	fake_unlisten(&agent);
}

static int play_agent(void)
{
	char kind[32], text[160];

	read_text(fake_path("kind"), kind, sizeof kind);
	append_line("starts", "x");
	if (strcmp(kind, "silent") == 0)
		return 0;
	if (strcmp(kind, "broken") == 0) {
		snprintf(text, sizeof text, "%s/start-error", fake_runtime);
		fake_write_text(text, "dlockshim.conf:3: key `rulez` is not known; did you mean `rules`?\nmore\n");
		return 1;
	}
	if (strcmp(kind, "slow") == 0)
		usleep(1500000);	/* longer than the second after which another may be started */
	if (strcmp(kind, "dies") == 0) {
		fake_write_text(fake_path("kind"), "good");
		serve(1);
		return 0;
	}
	write_report();
	serve(0);
	append_line("ended", "x");
	return 0;
}

/* ---- the program's part ---- */

static volatile sig_atomic_t children_seen;

static void see_child(int sig)
{
	(void)sig;
	children_seen++;
}

static unsigned starts(void)
{
	char text[256];

	read_text(fake_path("starts"), text, sizeof text);
	return (unsigned)strlen(text);
}

static int begin(const char *kind)
{
	char path[160];

	fake_write_text(fake_path("kind"), kind);
	unlink(fake_path("starts"));
	unlink(fake_path("report"));
	unlink(fake_path("stop"));
	unlink(fake_path("ended"));
	snprintf(path, sizeof path, "%s/start", fake_runtime);
	unlink(path);
	snprintf(path, sizeof path, "%s/start-error", fake_runtime);
	unlink(path);
	fake_clear_log();
	children_seen = 0;
	return fake_open(A);
}

static void end_agent(int fd)
{
	close(fd);
	fake_write_text(fake_path("stop"), "");
	for (int i = 0; i < 5000 && access(fake_path("ended"), F_OK) < 0; i++)
		usleep(1000);
	assert_int_equal(access(fake_path("ended"), F_OK), 0);
}

static int atfork_calls;

static void count_fork(void)
{
	atfork_calls++;
}

static void test_the_program_does_not_notice_the_start(void **state)
{
	struct sigaction action = { .sa_handler = see_child }, old;
	int fd = begin("good");
	int next = dup(fd);

	(void)state;
	close(next);
	pthread_atfork(count_fork, count_fork, count_fork);
	atfork_calls = 0;
	sigaction(SIGCHLD, &action, &old);
	errno = 77;
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(errno, 77);
	assert_int_equal(starts(), 1);
	assert_false(fake_is_free_for(A, LOCK_SH));
	assert_int_equal(children_seen, 0);
	assert_int_equal(atfork_calls, 0);
	assert_int_equal(wait(NULL), -1);
	assert_int_equal(errno, ECHILD);
	assert_int_equal(waitpid(-1, NULL, __WALL), -1);
	assert_int_equal(errno, ECHILD);
	assert_int_equal(dup(fd), next);	/* no descriptor was left */
	close(next);
	sigaction(SIGCHLD, &old, NULL);
	end_agent(fd);
}

static void test_the_agent_inherits_nothing_of_the_program(void **state)
{
	char report[65536], line[200], cwd[4096];
	int fd = begin("good"), extra = open("/dev/zero", O_RDONLY);
	mode_t old_mask = umask(077);
	sigset_t set, old;

	(void)state;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, &old);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	setenv("LD_PRELOAD", "/nonexistent/libdlockshim.so", 1);
	setenv("LD_LIBRARY_PATH", "/nonexistent", 1);
	setenv("KEPT", "yes", 1);
	assert_non_null(getcwd(cwd, sizeof cwd));
	assert_int_equal(chdir(fake_dir), 0);

	assert_int_equal(flock(fd, LOCK_EX), 0);

	assert_int_equal(chdir(cwd), 0);
	unsetenv("LD_PRELOAD");
	unsetenv("LD_LIBRARY_PATH");
	signal(SIGPIPE, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, &set);
	assert_true(sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR2) && !sigismember(&set, SIGINT));
	umask(old_mask);
	close(extra);

	read_text(fake_path("report"), report, sizeof report);
	assert_non_null(strstr(report, "session 1\n"));
	assert_non_null(strstr(report, "cwd /\n"));
	assert_non_null(strstr(report, "Umask:\t0022\n"));
	assert_non_null(strstr(report, "SigBlk:\t0000000000000000\n"));
	assert_non_null(strstr(report, "SigIgn:\t0000000000000000\n"));
	assert_non_null(strstr(report, "fd 0 /dev/null\nfd 1 /dev/null\nfd 2 /dev/null\nenv "));
	assert_null(strstr(report, "env LD_"));
	assert_non_null(strstr(report, "env KEPT=yes\n"));
	snprintf(line, sizeof line, "env DLOCKSHIM_CONFIG=%s\n", fake_config);
	assert_non_null(strstr(report, line));
	assert_null(strstr(strstr(report, line) + 1, "env DLOCKSHIM_CONFIG="));
	snprintf(line, sizeof line, "env DLOCKSHIM_RUNTIME_DIR=%s\n", fake_runtime);
	assert_non_null(strstr(report, line));
	end_agent(fd);
}

static void test_a_program_without_standard_descriptors_can_start_an_agent(void **state)
{
	char report[65536];
	int fd = begin("good"), status;
	pid_t child;

	(void)state;
	child = fork();
	if (child == 0) {
		close(0);
		close(1);
		close(2);
		syscall(SYS_exit_group, flock(fd, LOCK_EX) == 0 ? 0 : errno);
	}
	waitpid(child, &status, 0);
	assert_int_equal(status, 0);
	read_text(fake_path("report"), report, sizeof report);
	assert_non_null(strstr(report, "fd 0 /dev/null\nfd 1 /dev/null\nfd 2 /dev/null\nenv "));
	end_agent(fd);
}

static void test_of_many_programs_one_starts_the_agent(void **state)
{
	int fd = begin("slow"), status, failed = 0;

	(void)state;
	for (int i = 0; i < 20; i++)
		if (fork() == 0) {
			int own = fake_open(A);

			syscall(SYS_exit_group, flock(own, LOCK_SH) == 0 ? 0 : errno);
		}
	while (wait(&status) > 0)
		failed += status != 0;
	assert_int_equal(failed, 0);
	assert_int_equal(starts(), 1);
	end_agent(fd);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void test_an_agent_that_cannot_run_is_enolck_and_its_reason_is_logged(void **state)
{
	int fd = begin("broken");
	double start = seconds();

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, ENOLCK);
	assert_true(seconds() - start < 1);
	assert_true(fake_log_has("did you mean `rules`?\n"));
	/* The next call within the second does not start another to hear the same. */
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, ENOLCK);
	assert_int_equal(starts(), 1);
	assert_true(fake_is_free_for(A, LOCK_EX));
	close(fd);
}

static void test_an_agent_that_ends_without_a_word_is_enolck_after_three(void **state)
{
	int fd = begin("silent");
	double start = seconds();

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, ENOLCK);
	assert_true(seconds() - start < 6);
	assert_int_equal(starts(), 3);
	assert_true(fake_log_has("ended at once"));
	close(fd);
}

static void test_a_waiter_whose_agent_dies_has_another_one_started(void **state)
{
	int fd = begin("dies");

	(void)state;
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(starts(), 2);
	end_agent(fd);
}

static void test_a_program_that_cannot_be_executed_is_named(void **state)
{
	int fd = begin("good");

	(void)state;
	assert_int_equal(rename(fake_path("dlockd"), fake_path("dlockd.saved")), 0);
	fake_write_text(fake_path("dlockd"), "\177ELF but not really");
	chmod(fake_path("dlockd"), 0755);
	assert_int_equal(flock(fd, LOCK_EX), -1);
	assert_int_equal(errno, ENOLCK);
	assert_true(fake_log_has("dlockd cannot be executed"));
	unlink(fake_path("dlockd"));
	close(fd);
	fd = begin("good");
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, ENOLCK);
	if (access("/usr/sbin/dlockd", F_OK) < 0)
		assert_true(fake_log_has("dlockd is neither beside the library nor at"));
	assert_int_equal(rename(fake_path("dlockd.saved"), fake_path("dlockd")), 0);
	close(fd);
}

static void test_a_missing_runtime_directory_is_made(void **state)
{
	int fd, status;
	struct stat st;
	pid_t child;

	(void)state;
	fd = begin("good");
	unlink(fake_path("run/rules"));
	assert_int_equal(rename(fake_path("run"), fake_path("run.saved")), 0);
	child = fork();
	if (child == 0) {
		umask(0777);
		syscall(SYS_exit_group, flock(fd, LOCK_EX) == 0 ? 0 : errno);
	}
	waitpid(child, &status, 0);
	assert_int_equal(status, 0);
	assert_int_equal(stat(fake_path("run"), &st), 0);
	assert_int_equal(st.st_mode & 07777, geteuid() == 0 ? 0755 : 0700);
	end_agent(fd);
}

static void copy_program(const char *to)
{
	char buf[65536];
	int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	ssize_t n;

	while ((n = read(in, buf, sizeof buf)) > 0)
		if (write(out, buf, (size_t)n) != n)
			abort();
	close(in);
	close(out);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_program_does_not_notice_the_start),
		cmocka_unit_test(test_the_agent_inherits_nothing_of_the_program),
		cmocka_unit_test(test_a_program_without_standard_descriptors_can_start_an_agent),
		cmocka_unit_test(test_of_many_programs_one_starts_the_agent),
		cmocka_unit_test(test_an_agent_that_cannot_run_is_enolck_and_its_reason_is_logged),
		cmocka_unit_test(test_an_agent_that_ends_without_a_word_is_enolck_after_three),
		cmocka_unit_test(test_a_waiter_whose_agent_dies_has_another_one_started),
		cmocka_unit_test(test_a_program_that_cannot_be_executed_is_named),
		cmocka_unit_test(test_a_missing_runtime_directory_is_made),
	};
	int failed;

	fake_world(argc, argv);
	if (strcmp(argv[0], "dlockd") == 0)
		return play_agent();
	if (argc < 2 || strcmp(argv[1], "in place")) {
		char *args[] = { argv[0], (char *)(uintptr_t)"in place", NULL };

		copy_program(fake_path("test"));
		copy_program(fake_path("dlockd"));
		execv(fake_path("test"), args);
		return 2;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
