/* SPDX-License-Identifier: MIT */
/* LINK: config/rules.c config/rules_write.c config/pattern.c */
/* The compiled rules: what is written is found again, freshness, names, and files damaged in every byte. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/config.h"
#include "config/pattern.h"
#include "config/rules.h"

static char dir[] = "/tmp/test_rules.XXXXXX";
static char conf[64], rules_file[64];

static struct config_rule three[] = {
	{ (char *)"/var/lock/jobs/*.lock", (char *)"jobs/{basename}", (char *)"kill", 3 },
	{ (char *)"/srv/shared/**", (char *)"shared/{tail}", (char *)"signal:TERM", 5 },
	{ (char *)"/srv/exact", (char *)"{path}", (char *)"log", 9 },
};

static void write_bytes(const char *path, const void *bytes, size_t len)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, len), (ssize_t)len);
	close(fd);
}

static uint64_t conf_stamp(void)
{
	struct stat st;

	assert_int_equal(stat(conf, &st), 0);
	return rules_stamp(&st);
}

static void compile(struct config_rule *rules, size_t count)
{
	struct config config = { .file = conf, .rules = rules, .rule_count = count };
	struct config_error error = { 0, "" };

	write_bytes(conf, "x", 1);
	config.stamp = conf_stamp();
	if (config_write_rules(&config, dir, &error) != 0)
		fail_msg("%s", error.text);
}

static void open_rules(struct rules *ret_rules)
{
	memset(ret_rules, 0, sizeof *ret_rules);
	assert_int_equal(rules_open(dir, ret_rules), 0);
}

static int set_up(void **unused)
{
	(void)unused;
	umask(022);
	if (!mkdtemp(dir))
		return -1;
	snprintf(conf, sizeof conf, "%s/c.conf", dir);
	snprintf(rules_file, sizeof rules_file, "%s/%s", dir, RULES_FILE);
	return 0;
}

static int tear_down(void **unused)
{
	(void)unused;
	unlink(conf);
	unlink(rules_file);
	return rmdir(dir);
}

static bool find(const struct rules *rules, const char *path, struct rules_match *ret_match)
{
	return rules_find(rules, path, strlen(path), ret_match);
}

/* ---- writing and finding ---- */

static void test_the_first_matching_rule_is_found_with_all_it_says(void **unused)
{
	struct rules_match match = { 0 };
	struct rules rules;

	(void)unused;
	compile(three, 3);
	open_rules(&rules);
	assert_true(find(&rules, "/var/lock/jobs/a.lock", &match));
	assert_int_equal(match.index, 0);
	assert_int_equal(match.line, 3);
	assert_string_equal(match.pattern, three[0].path);
	assert_string_equal(match.name, three[0].name);
	assert_string_equal(match.on_lost, three[0].on_lost);
	assert_true(find(&rules, "/srv/shared/a/b", &match));
	assert_int_equal(match.index, 1);
	assert_string_equal(match.on_lost, "signal:TERM");
	assert_true(find(&rules, "/srv/exact", &match));
	assert_int_equal(match.index, 2);
	assert_false(find(&rules, "/srv/exact2", &match));
	assert_false(find(&rules, "/srv/exac", &match));
	assert_false(find(&rules, "/var/lock/jobs/x/a.lock", &match));
	assert_false(find(&rules, "/", &match));
	assert_false(find(&rules, "", &match));
	rules_close(&rules);
	assert_false(find(&rules, "/srv/exact", &match));
	rules_close(&rules);
}

static void test_only_len_bytes_of_the_path_count(void **unused)
{
	struct rules_match match;
	struct rules rules;
	char *exact = malloc(10);

	(void)unused;
	memcpy(exact, "/srv/exact", 10);
	compile(three, 3);
	open_rules(&rules);
	assert_true(rules_find(&rules, exact, 10, &match));
	assert_false(rules_find(&rules, exact, 9, &match));
	rules_close(&rules);
	free(exact);
}

static void test_the_file_can_be_read_by_all_and_written_by_its_owner(void **unused)
{
	struct stat st;
	mode_t mask = umask(077);

	(void)unused;
	compile(three, 3);
	umask(mask);
	assert_int_equal(stat(rules_file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0644);
}

static void test_no_descriptor_stays_open(void **unused)
{
	int before = dup(0), after;
	struct rules rules;

	(void)unused;
	close(before);
	compile(three, 3);
	open_rules(&rules);
	config_attend_rules(dir, 1);
	rules_close(&rules);
	assert_int_not_equal(chmod(rules_file, 0666), -1);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	after = dup(0);
	close(after);
	assert_int_equal(after, before);
}

static void test_a_thousand_rules_and_a_long_path_are_kept(void **unused)
{
	enum { COUNT = 1000 };
	static struct config_rule many[COUNT];
	static char paths[COUNT][64], longest[PATTERN_LEN_MAX + 1];
	struct rules_match match;
	struct rules rules;
	unsigned i;

	(void)unused;
	for (i = 0; i < COUNT; i++) {
		snprintf(paths[i], sizeof paths[i], "/d/%u/*", i);
		many[i] = (struct config_rule){ paths[i], (char *)"{path}", (char *)"kill", i };
	}
	memset(longest, 'x', sizeof longest - 1);
	longest[0] = '/';
	many[COUNT - 1].path = longest;
	compile(many, COUNT);
	open_rules(&rules);
	assert_true(find(&rules, "/d/998/a", &match));
	assert_int_equal(match.index, 998);
	assert_true(find(&rules, longest, &match));
	assert_int_equal(match.index, COUNT - 1);
	rules_close(&rules);
}

static void test_rules_that_do_not_fit_are_refused_with_a_sentence(void **unused)
{
	struct config config = { .file = conf, .stamp = 1 };
	struct config_error error = { 0, "" };
	char *huge = malloc(RULES_FILE_MAX + 1);
	struct config_rule rule = { huge, (char *)"{path}", (char *)"kill", 1 };

	(void)unused;
	memset(huge, 'x', RULES_FILE_MAX);
	huge[0] = '/';
	huge[RULES_FILE_MAX] = '\0';
	config.rules = &rule;
	config.rule_count = 1;
	assert_int_equal(config_write_rules(&config, dir, &error), -EFBIG);
	assert_non_null(strstr(error.text, "bytes"));
	free(huge);
	config.rules = three;
	assert_int_equal(config_write_rules(&config, "/nonexistent", &error), -ENOENT);
	assert_non_null(strstr(error.text, "/nonexistent"));
}

/* ---- freshness ---- */

static void test_rules_are_stale_once_a_newer_file_replaced_them(void **unused)
{
	struct rules old, new;

	(void)unused;
	compile(three, 3);
	assert_int_equal(config_attend_rules(dir, 1), 0);
	open_rules(&old);
	assert_true(rules_fresh(&old, conf));
	compile(three, 2);
	assert_false(rules_fresh(&old, conf));
	assert_int_equal(old.header->stale, 1);
	assert_int_equal(old.header->attended, 0);
	open_rules(&new);
	assert_true(rules_fresh(&new, conf));
	assert_int_equal(new.header->count, 2);
	assert_int_equal(new.header->attended, 0);
	rules_close(&old);
	rules_close(&new);
	assert_false(rules_fresh(&new, conf));
}

static void test_unattended_rules_are_fresh_only_with_the_stamp_of_their_file(void **unused)
{
	struct rules rules;

	(void)unused;
	compile(three, 3);
	open_rules(&rules);
	assert_true(rules_fresh(&rules, conf));
	write_bytes(conf, "yy", 2);
	assert_false(rules_fresh(&rules, conf));
	assert_int_equal(config_attend_rules(dir, 1), 0);
	assert_true(rules_fresh(&rules, conf));
	assert_int_equal(config_attend_rules(dir, 0), 0);
	assert_false(rules_fresh(&rules, conf));
	unlink(conf);
	assert_false(rules_fresh(&rules, conf));
	rules_close(&rules);
}

static void test_attended_rules_are_not_fresh_for_another_configuration(void **unused)
{
	struct rules rules;
	char other[80];

	(void)unused;
	compile(three, 3);
	assert_int_equal(config_attend_rules(dir, 1), 0);
	open_rules(&rules);
	assert_false(rules_fresh(&rules, "/nonexistent"));
	assert_false(rules_fresh(&rules, "/etc/passwd"));
	/* Another name of the same file. */
	snprintf(other, sizeof other, "%s/./c.conf", dir);
	assert_true(rules_fresh(&rules, other));
	rules_close(&rules);
}

static void test_a_stamp_changes_with_each_part_of_the_identity(void **unused)
{
	struct stat st, other;
	uint64_t stamp;

	(void)unused;
	write_bytes(conf, "x", 1);
	assert_int_equal(stat(conf, &st), 0);
	stamp = rules_stamp(&st);
	assert_int_not_equal(stamp, 0);
	assert_true(rules_stamp(&st) == stamp);
#define CHANGED(member) (other = st, other.member++, rules_stamp(&other) != stamp)
	assert_true(CHANGED(st_dev));
	assert_true(CHANGED(st_ino));
	assert_true(CHANGED(st_size));
	assert_true(CHANGED(st_mtim.tv_sec));
	assert_true(CHANGED(st_mtim.tv_nsec));
	assert_true(CHANGED(st_ctim.tv_sec));
	assert_true(CHANGED(st_ctim.tv_nsec));
#undef CHANGED
	other = st;
	other.st_atim.tv_sec++;
	assert_true(rules_stamp(&other) == stamp);
}

/* ---- trust and damage ---- */

static void test_files_that_cannot_be_trusted_are_refused(void **unused)
{
	struct rules rules = { 0 };
	char other[80];

	(void)unused;
	unlink(rules_file);
	assert_int_equal(rules_open(dir, &rules), -ENOENT);
	assert_int_equal(rules_open("/nonexistent", &rules), -ENOENT);
	assert_int_equal(rules_open("/dev/null", &rules), -ENOTDIR);
	assert_int_equal(config_attend_rules(dir, 1), -ENOENT);
	compile(three, 3);
	assert_int_equal(chmod(rules_file, 0664), 0);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	assert_int_equal(chmod(rules_file, 0646), 0);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	assert_int_equal(chmod(rules_file, 0444), 0);
	open_rules(&rules);
	rules_close(&rules);
	if (geteuid() == 0) {
		assert_int_equal(chown(rules_file, 12345, 0), 0);
		assert_int_equal(rules_open(dir, &rules), -EACCES);
	}
	compile(three, 3);
	snprintf(other, sizeof other, "%s/other", dir);
	assert_int_equal(rename(rules_file, other), 0);
	assert_int_equal(symlink("other", rules_file), 0);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	unlink(rules_file);
	unlink(other);
	assert_int_equal(mkfifo(rules_file, 0644), 0);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	unlink(rules_file);
	assert_int_equal(mkdir(rules_file, 0755), 0);
	assert_int_equal(rules_open(dir, &rules), -EACCES);
	rmdir(rules_file);
	assert_null(rules.header);
}

static size_t read_image(unsigned char *image, size_t size)
{
	int fd = open(rules_file, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, image, size);
	close(fd);
	assert_true(n > 0 && (size_t)n < size);
	return (size_t)n;
}

/* Opens the image; where it is taken, everything in it is used. */
static int try_image(const unsigned char *image, size_t len)
{
	struct rules rules = { 0 };
	struct rules_match match;
	char name[RULES_NAME_MAX];
	int err;

	write_bytes(rules_file, image, len);
	err = rules_open(dir, &rules);
	if (err) {
		assert_null(rules.header);
		return err;
	}
	rules_fresh(&rules, conf);
	if (find(&rules, "/srv/shared/a/b", &match))
		rules_expand(match.name, match.pattern, "/srv/shared/a/b", name, sizeof name);
	find(&rules, "/var/lock/jobs/a.lock", &match);
	rules_close(&rules);
	return 0;
}

static void test_a_file_cut_short_anywhere_is_damaged(void **unused)
{
	unsigned char image[1024];
	size_t len, i;

	(void)unused;
	compile(three, 3);
	len = read_image(image, sizeof image);
	assert_int_equal(try_image(image, len), 0);
	for (i = 0; i < len; i++)
		assert_int_equal(try_image(image, i), -EBADMSG);
	assert_int_equal(try_image(image, len + 1), -EBADMSG);
}

static void test_each_bit_turned_is_noticed(void **unused)
{
	unsigned char image[1024];
	size_t len, i;
	int bit;

	(void)unused;
	compile(three, 3);
	len = read_image(image, sizeof image);
	for (i = 0; i < len; i++) {
		/* The stamp is any number, and the lowest bit of the two flags is free. */
		bool stamp = i >= offsetof(struct rules_header, stamp) && i < offsetof(struct rules_header, stamp) + 8;
		bool flag = i == offsetof(struct rules_header, stale) || i == offsetof(struct rules_header, attended);

		for (bit = 0; bit < 8; bit++) {
			int want = stamp || (flag && bit == 0) ? 0 : -EBADMSG, got;

			image[i] ^= (unsigned char)(1 << bit);
			got = try_image(image, len);
			image[i] ^= (unsigned char)(1 << bit);
			if (got != want)
				fail_msg("byte %zu bit %d: %d", i, bit, got);
		}
	}
}

/* The checksum is made to fit, so that the checks behind it are reached: any answer, no crash. */
static void test_each_byte_changed_under_a_right_checksum_is_harmless(void **unused)
{
	static const unsigned char values[] = { 0x00, 0x01, 0x7f, 0x80, 0xff, '/', '*', '[', '\\', '{', '}' };
	unsigned char image[1024], was;
	struct rules_header *header = (void *)image;
	size_t len, i, v, refused = 0;

	(void)unused;
	compile(three, 3);
	len = read_image(image, sizeof image);
	for (i = 0; i < len; i++) {
		was = image[i];
		for (v = 0; v < sizeof values; v++) {
			image[i] = values[v];
			if (i < offsetof(struct rules_header, checksum) || i >= sizeof *header)
				header->checksum = rules_checksum(header + 1, len - sizeof *header);
			refused += try_image(image, len) != 0;
		}
		image[i] = was;
	}
	assert_true(refused > len);
}

static void test_an_empty_list_of_rules_is_sound(void **unused)
{
	struct rules_match match;
	struct rules rules;

	(void)unused;
	compile(three, 0);
	open_rules(&rules);
	assert_false(find(&rules, "/srv/exact", &match));
	rules_close(&rules);
}

/* ---- names ---- */

static const char *expand(const char *template, const char *pattern, const char *path)
{
	static char name[RULES_NAME_MAX];
	int n = rules_expand(template, pattern, path, name, sizeof name);

	if (n < 0)
		return n == -EINVAL ? "EINVAL" : n == -ENAMETOOLONG ? "ENAMETOOLONG" : "?";
	assert_int_equal(strlen(name), n);
	return name;
}

static void test_placeholders_stand_for_the_parts_of_the_path(void **unused)
{
	(void)unused;
	assert_string_equal(expand("{path}", "/a/*", "/a/b"), "/a/b");
	assert_string_equal(expand("{dir}", "/a/b/*", "/a/b/c"), "/a/b");
	assert_string_equal(expand("{dir}", "/*", "/c"), "/");
	assert_string_equal(expand("jobs/{basename}", "/var/lock/jobs/*.lock", "/var/lock/jobs/x.lock"), "jobs/x.lock");
	assert_string_equal(expand("{1}-{2}", "/*/*.lock", "/a/b.lock"), "a-b");
	assert_string_equal(expand("{2}{1}{2}", "/[ab]/?", "/a/\303\251"), "\303\251a\303\251");
	assert_string_equal(expand("fixed", "/a", "/a"), "fixed");
	assert_string_equal(expand("{{{1}}}{{}}", "/*", "/a"), "{a}{}");
	assert_string_equal(expand("{9}", "/?????????", "/123456789"), "9");
	assert_string_equal(expand("{basename}", "/*", "/a\nb (deleted)"), "a\nb (deleted)");
}

static void test_tail_is_what_two_stars_matched_or_what_follows_the_directory(void **unused)
{
	(void)unused;
	assert_string_equal(expand("{tail}", "/srv/shared/**", "/srv/shared/a/b"), "a/b");
	assert_string_equal(expand("{tail}", "/srv/*/**/x", "/srv/q/a/b/x"), "a/b");
	assert_string_equal(expand("{tail}", "/var/lock/j*.lock", "/var/lock/jobs.lock"), "jobs.lock");
	assert_string_equal(expand("{tail}", "/var/*/x", "/var/a/x"), "a/x");
	assert_string_equal(expand("{tail}", "/var/lock/x", "/var/lock/x"), "x");
	assert_string_equal(expand("{tail}", "/a/b\\*c", "/a/b*c"), "b*c");
	assert_string_equal(expand("{tail}", "/?????????[9]/**", "/0123456789/a/b"), "a/b");
}

static void test_a_name_that_cannot_be_made_is_an_error(void **unused)
{
	char name[8];

	(void)unused;
	assert_string_equal(expand("{path}", "/a/*", "/b/c"), "EINVAL");
	assert_string_equal(expand("{path}", "a", "a"), "EINVAL");
	assert_string_equal(expand("{2}", "/*", "/a"), "EINVAL");
	assert_string_equal(expand("{0}", "/*", "/a"), "EINVAL");
	assert_string_equal(expand("{10}", "/*", "/a"), "EINVAL");
	assert_string_equal(expand("{nope}", "/*", "/a"), "EINVAL");
	assert_string_equal(expand("{path", "/*", "/a"), "EINVAL");
	assert_string_equal(expand("}", "/*", "/a"), "EINVAL");
	assert_int_equal(rules_expand("{path}", "/*", "/234567", name, sizeof name), 7);
	assert_string_equal(name, "/234567");
	assert_int_equal(rules_expand("{path}", "/*", "/2345678", name, sizeof name), -ENAMETOOLONG);
	assert_int_equal(rules_expand("x", "/*", "/a", name, 1), -ENAMETOOLONG);
	assert_int_equal(rules_expand("x", "/*", "/a", name, 0), -ENAMETOOLONG);
}

static void test_a_path_of_4095_bytes_gives_a_name_of_as_many(void **unused)
{
	char path[4096];

	(void)unused;
	memset(path, 'p', sizeof path - 1);
	path[0] = '/';
	path[4095] = '\0';
	assert_string_equal(expand("{path}", "/**", path), path);
	assert_string_equal(expand("x{path}", "/**", path), "ENAMETOOLONG");
}

/* ---- speed, printed ---- */

static void test_a_hundred_rules_that_do_not_match_cost_little(void **unused)
{
	enum { COUNT = 100, ROUNDS = 20000 };
	static struct config_rule many[COUNT];
	static char paths[COUNT][64];
	const char *path = "/home/someone/project/.git/index.lock";
	struct rules_match match;
	struct timespec from, to;
	struct rules rules;
	double ns;
	unsigned i;

	(void)unused;
	for (i = 0; i < COUNT; i++) {
		snprintf(paths[i], sizeof paths[i], "/home/someone/locks/%u/**", i);
		many[i] = (struct config_rule){ paths[i], (char *)"{path}", (char *)"kill", i };
	}
	compile(many, COUNT);
	open_rules(&rules);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (i = 0; i < ROUNDS; i++)
		assert_false(rules_find(&rules, path, strlen(path), &match));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	rules_close(&rules);
	ns = ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / ROUNDS;
	print_message("%d rules without a match: %.0f ns\n", COUNT, ns);
	assert_true(ns < 100000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_first_matching_rule_is_found_with_all_it_says),
		cmocka_unit_test(test_only_len_bytes_of_the_path_count),
		cmocka_unit_test(test_the_file_can_be_read_by_all_and_written_by_its_owner),
		cmocka_unit_test(test_no_descriptor_stays_open),
		cmocka_unit_test(test_a_thousand_rules_and_a_long_path_are_kept),
		cmocka_unit_test(test_rules_that_do_not_fit_are_refused_with_a_sentence),
		cmocka_unit_test(test_rules_are_stale_once_a_newer_file_replaced_them),
		cmocka_unit_test(test_unattended_rules_are_fresh_only_with_the_stamp_of_their_file),
		cmocka_unit_test(test_attended_rules_are_not_fresh_for_another_configuration),
		cmocka_unit_test(test_a_stamp_changes_with_each_part_of_the_identity),
		cmocka_unit_test(test_files_that_cannot_be_trusted_are_refused),
		cmocka_unit_test(test_a_file_cut_short_anywhere_is_damaged),
		cmocka_unit_test(test_each_bit_turned_is_noticed),
		cmocka_unit_test(test_each_byte_changed_under_a_right_checksum_is_harmless),
		cmocka_unit_test(test_an_empty_list_of_rules_is_sound),
		cmocka_unit_test(test_placeholders_stand_for_the_parts_of_the_path),
		cmocka_unit_test(test_tail_is_what_two_stars_matched_or_what_follows_the_directory),
		cmocka_unit_test(test_a_name_that_cannot_be_made_is_an_error),
		cmocka_unit_test(test_a_path_of_4095_bytes_gives_a_name_of_as_many),
		cmocka_unit_test(test_a_hundred_rules_that_do_not_match_cost_little),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
