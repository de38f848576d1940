/* SPDX-License-Identifier: MIT */
/* LINK: config/runtime_dir.c config/lex.c */
/* Where the runtime directory is, whom it may belong to, and its key read from a text without libconfig. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/config.h"

static const char *find(const char *key_value)
{
	static char buf[256];
	int n = runtime_dir_find(key_value, buf, sizeof buf);

	if (n < 0)
		return n == -EINVAL ? "EINVAL" : n == -ENAMETOOLONG ? "ENAMETOOLONG" : "?";
	assert_int_equal(strlen(buf), n);
	return buf;
}

static int clear_environment(void **unused)
{
	(void)unused;
	unsetenv("DLOCKSHIM_RUNTIME_DIR");
	unsetenv("XDG_RUNTIME_DIR");
	return 0;
}

static void test_the_variable_comes_before_the_key_and_the_key_before_the_default(void **unused)
{
	(void)unused;
	setenv("DLOCKSHIM_RUNTIME_DIR", "/from/variable", 1);
	assert_string_equal(find("/from/key"), "/from/variable");
	setenv("DLOCKSHIM_RUNTIME_DIR", "", 1);
	assert_string_equal(find("/from/key"), "/from/key");
	unsetenv("DLOCKSHIM_RUNTIME_DIR");
	assert_string_equal(find("/from/key"), "/from/key");
	if (geteuid() == 0) {
		setenv("XDG_RUNTIME_DIR", "/run/user/0", 1);
		assert_string_equal(find(NULL), "/run/dlockshim");
		assert_string_equal(find(""), "/run/dlockshim");
	}
}

/* In a child, which gives up being root if it is. */
static void test_a_user_has_a_directory_of_his_own(void **unused)
{
	uid_t uid = geteuid() ? geteuid() : 4321;
	char want[64];
	int status;
	pid_t pid;

	(void)unused;
	snprintf(want, sizeof want, "/tmp/dlockshim-%u", uid);
	pid = fork();
	if (pid == 0) {
		if (geteuid() == 0 && setuid(uid) < 0)
			_exit(3);
		if (strcmp(find(NULL), want))
			_exit(1);
		setenv("XDG_RUNTIME_DIR", "/run/user/x", 1);
		if (strcmp(find(NULL), "/run/user/x/dlockshim"))
			_exit(2);
		/* Not absolute: of no use. */
		setenv("XDG_RUNTIME_DIR", "x", 1);
		_exit(strcmp(find(NULL), want) ? 4 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_one_directory_is_always_spelled_alike(void **unused)
{
	(void)unused;
	assert_string_equal(find("/a/b/"), "/a/b");
	assert_string_equal(find("/a/b///"), "/a/b");
	assert_string_equal(find("/"), "/");
}

static void test_a_relative_or_too_long_directory_is_refused(void **unused)
{
	char buf[8], longer[400];

	(void)unused;
	assert_string_equal(find("run/x"), "EINVAL");
	setenv("DLOCKSHIM_RUNTIME_DIR", "./x", 1);
	assert_string_equal(find("/a"), "EINVAL");
	unsetenv("DLOCKSHIM_RUNTIME_DIR");
	assert_int_equal(runtime_dir_find("/234567", buf, sizeof buf), 7);
	assert_int_equal(runtime_dir_find("/234567/", buf, sizeof buf), 7);
	assert_int_equal(runtime_dir_find("/2345678", buf, sizeof buf), -ENAMETOOLONG);
	memset(longer, 'x', sizeof longer - 1);
	longer[0] = '/';
	longer[sizeof longer - 1] = '\0';
	assert_string_equal(find(longer), "ENAMETOOLONG");
}

static void test_only_a_directory_closed_to_others_is_trusted(void **unused)
{
	char dir[] = "/tmp/test_runtime_dir.XXXXXX", path[64];

	(void)unused;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(runtime_dir_check(dir), 0);
	chmod(dir, 0755);
	assert_int_equal(runtime_dir_check(dir), 0);
	chmod(dir, 0775);
	assert_int_equal(runtime_dir_check(dir), -EACCES);
	chmod(dir, 0757);
	assert_int_equal(runtime_dir_check(dir), -EACCES);
	chmod(dir, 01777);
	assert_int_equal(runtime_dir_check(dir), -EACCES);
	chmod(dir, 0700);
	snprintf(path, sizeof path, "%s/link", dir);
	assert_int_equal(symlink(dir, path), 0);
	assert_int_equal(runtime_dir_check(path), -ENOTDIR);
	unlink(path);
	assert_int_equal(runtime_dir_check(path), -ENOENT);
	assert_int_equal(runtime_dir_check("/dev/null"), -ENOTDIR);
	if (geteuid() == 0) {
		assert_int_equal(chown(dir, 4321, 0), 0);
		assert_int_equal(runtime_dir_check(dir), -EPERM);
	}
	rmdir(dir);
}

/* ---- the key in a text ---- */

static const char *scan(const char *text)
{
	static char buf[64];
	/* Exactly as long as it is: the sanitizer sees a step too far. */
	size_t len = strlen(text);
	char *exact = malloc(len ? len : 1);
	int n;

	memcpy(exact, text, len);
	n = runtime_dir_scan(exact, len, buf, sizeof buf);
	free(exact);
	if (n < 0)
		return n == -ENOENT ? "ENOENT" : n == -ENAMETOOLONG ? "ENAMETOOLONG" : "?";
	assert_int_equal(strlen(buf), n);
	return buf;
}

static void test_the_key_is_found_on_the_top_level_only(void **unused)
{
	(void)unused;
	assert_string_equal(scan("runtime_dir = \"/a\";"), "/a");
	assert_string_equal(scan("a = 1; b = \"x\";\nruntime_dir: \"/a b\""), "/a b");
	assert_string_equal(scan("g = { runtime_dir = \"/no\"; };\nruntime_dir = \"/yes\";"), "/yes");
	assert_string_equal(scan("l = ( { runtime_dir = \"/no\"; } ); g : { h = { x = 1; }; runtime_dir = \"/no\" }"), "ENOENT");
	assert_string_equal(scan("xruntime_dir = \"/no\"; runtime_dirs = \"/no\"; runtime_di = \"/no\";"), "ENOENT");
	assert_string_equal(scan(""), "ENOENT");
}

static void test_comments_and_strings_hide_the_key(void **unused)
{
	(void)unused;
	assert_string_equal(scan("# runtime_dir = \"/no\";\n"), "ENOENT");
	assert_string_equal(scan("// runtime_dir = \"/no\";\nruntime_dir = \"/yes\";"), "/yes");
	assert_string_equal(scan("/* runtime_dir = \"/no\"; \n*/ runtime_dir /* here */ = # there\n \"/yes\";"), "/yes");
	assert_string_equal(scan("a = \"\\\" runtime_dir = \"; runtime_dir = \"/yes\";"), "/yes");
	assert_string_equal(scan("a = \"\\\\\"; runtime_dir = \"/yes\";"), "/yes");
	assert_string_equal(scan("a = \"# { /*\"; runtime_dir = \"/yes\";"), "/yes");
	assert_string_equal(scan("# \"\n/* { */ // (\nruntime_dir = \"/yes\";"), "/yes");
}

static void test_the_value_is_decoded_as_libconfig_does(void **unused)
{
	(void)unused;
	assert_string_equal(scan("runtime_dir = \"/a\" \"b\"\n# c\n \"c\";"), "/abc");
	assert_string_equal(scan("runtime_dir = \"/\\\"\\\\\\x41\\n\\q\";"), "/\"\\A\n\\q");
	assert_string_equal(scan("runtime_dir = \"\";"), "");
}

static void test_what_is_no_string_is_not_there(void **unused)
{
	(void)unused;
	assert_string_equal(scan("runtime_dir = 1;"), "ENOENT");
	assert_string_equal(scan("runtime_dir"), "ENOENT");
	assert_string_equal(scan("runtime_dir ="), "ENOENT");
	assert_string_equal(scan("runtime_dir = \"/a"), "ENOENT");
	assert_string_equal(scan("a = \"x\n runtime_dir = "), "ENOENT");
	assert_string_equal(scan("/* runtime_dir = \"/no\";"), "ENOENT");
	assert_string_equal(scan("} runtime_dir = \"/a\";"), "/a");
}

static void test_a_value_without_room_is_too_long(void **unused)
{
	char buf[4];

	(void)unused;
	assert_int_equal(runtime_dir_scan("runtime_dir=\"/ab\"", 17, buf, sizeof buf), 3);
	assert_int_equal(runtime_dir_scan("runtime_dir=\"/abc\"", 18, buf, sizeof buf), -ENAMETOOLONG);
	assert_int_equal(runtime_dir_scan("runtime_dir=\"/a\" \"bc\"", 21, buf, sizeof buf), -ENAMETOOLONG);
	assert_int_equal(runtime_dir_scan("runtime_dir=\"\"", 14, buf, 0), -ENAMETOOLONG);
}

static void test_any_text_is_harmless(void **unused)
{
	static const char *const words[] = {
		"runtime_dir", "=", ":", "\"", "\\", "/*", "*/", "//", "#", "\n", "{", "}", "(", ")", "[", "]", "x", "1", ";", " ", "\\x4", "@include", "\\\"",
	};
	unsigned state = 1, i, n;

	(void)unused;
	for (i = 0; i < 50000; i++) {
		char text[256] = "";

		for (n = 0; n < 20; n++) {
			state = state * 1103515245u + 12345u;
			strcat(text, words[(state >> 16) % (sizeof words / sizeof *words)]);
		}
		scan(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_the_variable_comes_before_the_key_and_the_key_before_the_default, clear_environment),
		cmocka_unit_test_setup(test_a_user_has_a_directory_of_his_own, clear_environment),
		cmocka_unit_test_setup(test_one_directory_is_always_spelled_alike, clear_environment),
		cmocka_unit_test_setup(test_a_relative_or_too_long_directory_is_refused, clear_environment),
		cmocka_unit_test(test_only_a_directory_closed_to_others_is_trusted),
		cmocka_unit_test(test_the_key_is_found_on_the_top_level_only),
		cmocka_unit_test(test_comments_and_strings_hide_the_key),
		cmocka_unit_test(test_the_value_is_decoded_as_libconfig_does),
		cmocka_unit_test(test_what_is_no_string_is_not_there),
		cmocka_unit_test(test_a_value_without_room_is_too_long),
		cmocka_unit_test(test_any_text_is_harmless),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
