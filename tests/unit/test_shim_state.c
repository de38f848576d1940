/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/*
 * The shim's surroundings: configuration, runtime directory and rules in each
 * state they can be in. The state is made once for each process, so a scenario is
 * this program, executed again with the scenario's number.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../shim/state.h"
#include "fake_agent.h"

#define A "locks/a"
#define OTHER "elsewhere"

static struct fake_agent agent;

/* Locks DIR/name without waiting, in a new process with these variables; returns the errno. */
static int lock_in_new_process(const char *name, const char *config, const char *runtime, const char *log)
{
	int status;
	pid_t child = fork();

	if (child == 0) {
		char *args[] = { (char *)(uintptr_t)"scenario", (char *)(uintptr_t)name, NULL };

		if (config)
			setenv("DLOCKSHIM_CONFIG", config, 1);
		else
			unsetenv("DLOCKSHIM_CONFIG");
		if (runtime)
			setenv("DLOCKSHIM_RUNTIME_DIR", runtime, 1);
		else
			unsetenv("DLOCKSHIM_RUNTIME_DIR");
		if (log)
			setenv("DLOCKSHIM_LOG", log, 1);
		execv("/proc/self/exe", args);
		_exit(126);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int scenario(const char *name)
{
	int fd, pipes[2];

	if (strcmp(name, "pipe") == 0)
		fd = pipe(pipes) < 0 ? -1 : pipes[0];
	else
		fd = fake_open(name);
	return flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

static void script_go(struct fake_agent *a)
{
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_go(s, 10000);
	fake_expect(a, s, WIRE_DONE, NULL, NULL);
	close(s);
}

static void reset(void)
{
	fake_clear_log();
	fake_write_text(fake_config, "namespace = \"test\";\n");
	chmod(fake_config, 0644);
	chmod(fake_runtime, 0755);
	fake_write_rules(NULL, true);
}

static void no_rules(void)
{
	unlink(fake_path("run/rules"));
}

static void test_without_any_configuration_the_kernel_does_it_all(void **state)
{
	(void)state;
	if (access("/etc/dlockshim.conf", F_OK) == 0)
		skip();
	reset();
	assert_int_equal(lock_in_new_process(A, NULL, fake_runtime, NULL), 0);
}

static void test_a_configuration_that_is_named_and_missing_is_enolck(void **state)
{
	(void)state;
	reset();
	no_rules();
	assert_int_equal(lock_in_new_process(A, fake_path("nothing.conf"), fake_runtime, NULL), ENOLCK);
	assert_true(fake_log_has("nothing.conf: the configuration cannot be opened (No such file or directory)"));
	/* Every file, since no rule is known; but nothing else. */
	assert_int_equal(lock_in_new_process(OTHER, fake_path("nothing.conf"), fake_runtime, NULL), ENOLCK);
	assert_int_equal(lock_in_new_process("pipe", fake_path("nothing.conf"), fake_runtime, NULL), 0);
}

static void test_a_configuration_that_others_can_write_is_not_used(void **state)
{
	(void)state;
	reset();
	no_rules();
	chmod(fake_config, 0664);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
	assert_true(fake_log_has("can be written by group or others"));
	fake_clear_log();
	chmod(fake_config, 0644);
	if (geteuid() == 0) {
		assert_int_equal(chown(fake_config, 65534, 0), 0);
		assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
		assert_true(fake_log_has("belongs to another user"));
		assert_int_equal(chown(fake_config, 0, 0), 0);
	}
	assert_int_equal(lock_in_new_process(OTHER, fake_path("locks"), fake_runtime, NULL), ENOLCK);
	assert_true(fake_log_has("is not a regular file"));
}

static void test_rules_compiled_before_hold_on_while_the_configuration_is_broken(void **state)
{
	(void)state;
	reset();
	chmod(fake_config, 0666);
	fake_write_rules(NULL, true);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), 0);
	fake_start(&agent, script_go);
	assert_int_equal(lock_in_new_process(A, fake_config, fake_runtime, NULL), 0);
	fake_finish(&agent);
}

static void test_a_runtime_directory_that_others_can_write_is_not_used(void **state)
{
	(void)state;
	reset();
	chmod(fake_runtime, 0777);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
	assert_true(fake_log_has("the runtime directory must belong to root"));
	chmod(fake_runtime, 0755);
	fake_clear_log();
	assert_int_equal(lock_in_new_process(OTHER, fake_config, "relative/dir", NULL), ENOLCK);
	assert_true(fake_log_has("must be an absolute path"));
}

static void test_the_runtime_directory_is_found_in_the_configuration(void **state)
{
	char text[300];

	(void)state;
	reset();
	snprintf(text, sizeof text, "namespace = \"test\"; # no\nruntime_dir = \"%s\";\n", fake_runtime);
	fake_write_text(fake_config, text);
	fake_write_rules(NULL, true);
	fake_start(&agent, script_go);
	assert_int_equal(lock_in_new_process(A, fake_config, NULL, NULL), 0);
	fake_finish(&agent);
}

static void test_a_relative_configuration_is_meant_from_the_directory_of_the_start(void **state)
{
	char cwd[4096];

	(void)state;
	reset();
	assert_non_null(getcwd(cwd, sizeof cwd));
	assert_int_equal(chdir(fake_dir), 0);
	assert_int_equal(lock_in_new_process(OTHER, "./dlockshim.conf", fake_runtime, NULL), 0);
	assert_int_equal(lock_in_new_process(OTHER, "dlockshim.conf", fake_runtime, NULL), 0);
	assert_int_equal(chdir(cwd), 0);
}

static void test_damaged_rules_are_no_rules(void **state)
{
	(void)state;
	reset();
	assert_int_equal(truncate(fake_path("run/rules"), 60), 0);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
	reset();
	chmod(fake_path("run/rules"), 0666);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
}

/* ---- rules that change ---- */

static void script_rules(struct fake_agent *a)
{
	struct wire_msg msg;
	int s = fake_accept(a);

	fake_expect(a, s, WIRE_RULES, &msg, NULL);
	if (a->number == 0) {
		fake_write_rules(NULL, true);
		fake_send(s, WIRE_RULES_OK, 0, NULL);
	} else {
		fake_send(s, WIRE_ERROR, ENOLCK, "dlockshim.conf:1: key `x` is not known");
	}
	fake_expect_end(a, s);
	close(s);
}

static void test_without_compiled_rules_the_agent_is_asked_for_them(void **state)
{
	(void)state;
	reset();
	no_rules();
	fake_start_with(&agent, script_rules, 0);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), 0);
	fake_finish(&agent);
	no_rules();
	fake_start_with(&agent, script_rules, 1);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), ENOLCK);
	fake_finish(&agent);
	assert_true(fake_log_has("key `x` is not known"));
}

static void test_a_changed_configuration_has_the_rules_compiled_anew(void **state)
{
	char pattern[128];

	(void)state;
	reset();
	snprintf(pattern, sizeof pattern, "%s/elsewhere*", fake_dir);
	fake_write_rules(pattern, false);
	fake_write_text(fake_config, "namespace = \"changed\";\n");
	/* Now locks are at locks/ again, and elsewhere is the kernel's. */
	fake_start_with(&agent, script_rules, 0);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), 0);
	fake_finish(&agent);
}

static void test_old_rules_stay_in_force_when_the_new_ones_cannot_be_made(void **state)
{
	(void)state;
	reset();
	fake_write_rules(NULL, false);
	fake_write_text(fake_config, "namespace = ;\n");
	fake_start_with(&agent, script_rules, 1);
	assert_int_equal(lock_in_new_process(OTHER, fake_config, fake_runtime, NULL), 0);
	fake_finish(&agent);
	assert_true(fake_log_has("key `x` is not known"));
	assert_true(fake_log_has("stay in force"));
}

static void test_rules_of_another_configuration_are_refused(void **state)
{
	char other[128];

	(void)state;
	reset();
	snprintf(other, sizeof other, "%s/other.conf", fake_dir);
	fake_write_text(other, "namespace = \"another one\";\n");
	/* The agent there says that all is well, for its own configuration. */
	fake_start_with(&agent, script_rules, 0);
	assert_int_equal(lock_in_new_process(OTHER, other, fake_runtime, NULL), ENOLCK);
	fake_finish(&agent);
	assert_true(fake_log_has("serves another configuration"));
	unlink(other);
}

static void test_new_rules_are_seen_at_once_without_the_agent(void **state)
{
	struct shim_state *own = state_get();
	int fd = fake_open(OTHER);
	char pattern[128];

	(void)state;
	reset();
	assert_int_equal(flock(fd, LOCK_EX), 0);
	snprintf(pattern, sizeof pattern, "%s/elsewhere*", fake_dir);
	fake_write_rules(pattern, true);
	fake_start(&agent, script_go);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	fake_finish(&agent);
	assert_true(state_rules_fresh(own));
	assert_int_equal(atomic_load(&own->readers), 0);
	close(fd);
}

static atomic_bool stop;

static void *lock_elsewhere(void *arg)
{
	intptr_t failed = 0;
	int fd = *(int *)arg;

	while (!atomic_load(&stop))
		failed += flock(fd, LOCK_SH) != 0;
	return (void *)failed;
}

static unsigned rules_mapped(void)
{
	FILE *file = fopen("/proc/self/maps", "r");
	char line[5000];
	unsigned n = 0;

	while (fgets(line, sizeof line, file))
		n += strstr(line, "/run/rules") != NULL;
	fclose(file);
	return n;
}

static void test_threads_read_rules_while_they_are_replaced(void **state)
{
	int fd = fake_open("third");
	pthread_t threads[4];
	intptr_t failed = 0;
	void *result;

	(void)state;
	reset();
	atomic_store(&stop, false);
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, lock_elsewhere, &fd);
	for (int i = 0; i < 300; i++) {
		fake_write_rules(NULL, true);
		usleep(500);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		failed += (intptr_t)result;
	}
	assert_int_equal(failed, 0);
	/* Most of the replaced ones are unmapped again; with 4 threads all the time at it, not all. */
	assert_true(rules_mapped() < 250);
	for (int i = 0; i < 50; i++) {
		unsigned before = rules_mapped();

		fake_write_rules(NULL, true);
		assert_int_equal(flock(fd, LOCK_SH), 0);
		assert_int_equal(rules_mapped(), before);
	}
	close(fd);
}

/* ---- the log ---- */

static void test_standard_error_is_used_only_when_it_is_asked_for(void **state)
{
	char text[4096];
	int pipes[2], saved;
	ssize_t n;

	(void)state;
	reset();
	no_rules();
	assert_int_equal(pipe2(pipes, O_NONBLOCK), 0);
	saved = dup(2);
	dup2(pipes[1], 2);
	(void)lock_in_new_process(A, fake_path("nothing.conf"), fake_runtime, "");
	n = read(pipes[0], text, sizeof text);
	(void)lock_in_new_process(A, fake_path("nothing.conf"), fake_runtime, "stderr");
	dup2(saved, 2);
	assert_int_equal(n, -1);
	n = read(pipes[0], text, sizeof text - 1);
	assert_true(n > 0);
	text[n] = '\0';
	assert_non_null(strstr(text, "dlockshim["));
	assert_non_null(strstr(text, "nothing.conf"));
	assert_ptr_equal(strchr(text, '\n'), text + n - 1);
	/* A pipe that nobody reads any more does not end the program. */
	close(pipes[0]);
	dup2(pipes[1], 2);
	n = lock_in_new_process(A, fake_path("nothing.conf"), fake_runtime, "stderr");
	dup2(saved, 2);
	assert_int_equal(n, ENOLCK);
	close(saved);
	close(pipes[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_without_any_configuration_the_kernel_does_it_all),
		cmocka_unit_test(test_a_configuration_that_is_named_and_missing_is_enolck),
		cmocka_unit_test(test_a_configuration_that_others_can_write_is_not_used),
		cmocka_unit_test(test_rules_compiled_before_hold_on_while_the_configuration_is_broken),
		cmocka_unit_test(test_a_runtime_directory_that_others_can_write_is_not_used),
		cmocka_unit_test(test_the_runtime_directory_is_found_in_the_configuration),
		cmocka_unit_test(test_a_relative_configuration_is_meant_from_the_directory_of_the_start),
		cmocka_unit_test(test_damaged_rules_are_no_rules),
		cmocka_unit_test(test_without_compiled_rules_the_agent_is_asked_for_them),
		cmocka_unit_test(test_a_changed_configuration_has_the_rules_compiled_anew),
		cmocka_unit_test(test_old_rules_stay_in_force_when_the_new_ones_cannot_be_made),
		cmocka_unit_test(test_rules_of_another_configuration_are_refused),
		cmocka_unit_test(test_new_rules_are_seen_at_once_without_the_agent),
		cmocka_unit_test(test_threads_read_rules_while_they_are_replaced),
		cmocka_unit_test(test_standard_error_is_used_only_when_it_is_asked_for),
	};
	int failed;

	fake_world(argc, argv);
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	if (argc == 2 && strcmp(argv[0], "scenario") == 0)
		return scenario(argv[1]);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
