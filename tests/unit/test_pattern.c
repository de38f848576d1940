/* SPDX-License-Identifier: MIT */
/* LINK: config/pattern.c */
/* The path matcher: the written rules by example, and thousands of random cases against a plain recursive one. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/pattern.h"

#define CASES 60000

static bool matches(const char *pattern, const char *path)
{
	return pattern_match(pattern, path, strlen(path), NULL, 0, NULL);
}

/* The captures joined by '|'. */
static const char *captured(const char *pattern, const char *path)
{
	static char text[1024];
	struct pattern_span spans[PATTERN_WILDCARDS_MAX];
	size_t count = 0, used = 0, i;

	if (!pattern_match(pattern, path, strlen(path), spans, PATTERN_WILDCARDS_MAX, &count))
		return "no match";
	text[0] = '\0';
	for (i = 0; i < count; i++)
		used += (size_t)sprintf(text + used, "%s%.*s", i ? "|" : "", (int)spans[i].len, path + spans[i].off);
	return text;
}

/* ---- a reference that is nothing but the definition ---- */

static size_t ref_char(const unsigned char *p, size_t n)
{
	size_t want = *p >= 0xf0 && *p <= 0xf4 ? 4 : *p >= 0xe0 && *p < 0xf0 ? 3 : *p >= 0xc2 && *p < 0xe0 ? 2 : 1, i;

	if (want > n)
		return 1;
	for (i = 1; i < want; i++)
		if (p[i] < 0x80 || p[i] > 0xbf)
			return 1;
	return want;
}

struct ref {
	const char *path;
	size_t len;
	bool starts[256];	/* where characters begin */
	struct pattern_span spans[256];
	size_t count;
};

/* Whether pat matches from p on; each star tries the shortest first. */
static bool ref_match(struct ref *r, const char *pat, size_t p)
{
	size_t count = r->count, n;

	if (!*pat)
		return p == r->len;
	if (*pat == '*') {
		bool deep = pat[1] == '*';

		for (n = 0; p + n <= r->len; n++) {
			if (n && !deep && r->path[p + n - 1] == '/')
				break;
			r->spans[count] = (struct pattern_span){ p, n };
			r->count = count + 1;
			if (ref_match(r, pat + (deep ? 2 : 1), p + n))
				return true;
		}
		r->count = count;
		return false;
	}
	if (p >= r->len)
		return false;
	if (*pat == '?' || *pat == '[') {
		n = 1;
		if (r->path[p] == '/')
			return false;
		if (*pat == '?') {
			if (!r->starts[p])
				return false;
			n = ref_char((const unsigned char *)r->path + p, r->len - p);
			pat++;
		} else {
			/* The generator makes [xy], [!xy] and [a-b] only. */
			bool negated = pat[1] == '!', in;
			const char *set = pat + 1 + negated;

			in = set[1] == '-' ? r->path[p] >= set[0] && r->path[p] <= set[2] : r->path[p] == set[0] || r->path[p] == set[1];
			if (in == negated)
				return false;
			pat = strchr(pat, ']') + 1;
		}
		r->spans[count] = (struct pattern_span){ p, n };
		r->count = count + 1;
		if (ref_match(r, pat, p + n))
			return true;
		r->count = count;
		return false;
	}
	if (*pat == '\\')
		pat++;
	return *pat == r->path[p] && ref_match(r, pat + 1, p + 1);
}

static unsigned next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (unsigned)(*state >> 33);
}

static void random_pattern(uint64_t *state, char *buf)
{
	static const char *const items[] = {
		"a", "b", "/", "a", "b", "/", "*", "*", "**", "?", "[ab]", "[!ab]", "[a-b]", "\\*", "\303\251", "\303", "\251", "\\a", "\xe2\x82\xac",
	};
	unsigned n = 1 + next_random(state) % 9, stars = 0;

	strcpy(buf, "/");
	while (n--) {
		const char *item = items[next_random(state) % (sizeof items / sizeof *items)];

		/* "***" is refused by pattern_check. */
		if (*item == '*' && (buf[strlen(buf) - 1] == '*' || ++stars > 5))
			continue;
		strcat(buf, item);
	}
}

static void random_path(uint64_t *state, char *buf)
{
	static const char *const items[] = { "a", "b", "/", "a", "b", "*", "\303\251", "\xe2\x82\xac", "\251", "\303", "\360\237\230\200" };
	unsigned n = next_random(state) % 11;

	strcpy(buf, "/");
	while (n--)
		strcat(buf, items[next_random(state) % (sizeof items / sizeof *items)]);
}

/* A path that the pattern matches, more often than not. */
static void fitting_path(uint64_t *state, const char *pat, char *buf)
{
	static const char *const items[] = { "a", "b", "\303\251", "*", "/" };
	unsigned n, i;

	*buf = '\0';
	while (*pat) {
		bool deep = pat[0] == '*' && pat[1] == '*';

		if (*pat == '*') {
			n = next_random(state) % 4;
			for (i = 0; i < n; i++)
				strcat(buf, items[next_random(state) % (deep ? 5 : 4)]);
			pat += deep ? 2 : 1;
		} else if (*pat == '?' || *pat == '[') {
			strcat(buf, items[next_random(state) % 3]);
			pat = *pat == '[' ? strchr(pat, ']') + 1 : pat + 1;
		} else {
			pat += *pat == '\\';
			strncat(buf, pat++, 1);
		}
	}
}

static void test_random_patterns_match_and_capture_as_the_definition_says(void **unused)
{
	uint64_t seed = (uint64_t)time(NULL) ^ ((uint64_t)clock() << 32), state;
	const char *given = getenv("SEED");
	unsigned i, hits = 0;

	(void)unused;
	if (given)
		seed = strtoull(given, NULL, 0);
	print_message("SEED=%llu\n", (unsigned long long)seed);
	state = seed | 1;
	for (i = 0; i < CASES; i++) {
		char pattern[128], path[256];
		struct pattern_span spans[PATTERN_WILDCARDS_MAX];
		struct ref r = { .path = path };
		size_t count = 0, p;
		bool want, got;

		random_pattern(&state, pattern);
		if (i % 2)
			fitting_path(&state, pattern, path);
		else
			random_path(&state, path);
		r.len = strlen(path);
		for (p = 0; p < r.len; p += ref_char((unsigned char *)path + p, r.len - p))
			r.starts[p] = true;
		want = ref_match(&r, pattern, 0);
		got = pattern_match(pattern, path, r.len, spans, PATTERN_WILDCARDS_MAX, &count);
		if (want != got || (want && (count != r.count || memcmp(spans, r.spans, count * sizeof *spans))))
			fail_msg("pattern %s path %s: %d, the definition says %d", pattern, path, got, want);
		assert_int_equal(matches(pattern, path), want);
		if (want)
			assert_int_equal(pattern_wildcards(pattern), count);
		hits += want;
	}
	print_message("%u of %u matched\n", hits, CASES);
	assert_true(hits > CASES / 5);
}

/* ---- by example ---- */

static void test_star_stays_within_a_directory(void **unused)
{
	(void)unused;
	assert_true(matches("/l/*.lock", "/l/a.lock"));
	assert_true(matches("/l/*.lock", "/l/.lock"));
	assert_false(matches("/l/*.lock", "/l/x/a.lock"));
	assert_false(matches("/l/*.lock", "/l/a.lock2"));
	assert_false(matches("/l/*", "/l"));
	assert_true(matches("/l/*", "/l/"));
}

static void test_two_stars_go_below(void **unused)
{
	(void)unused;
	assert_true(matches("/srv/**", "/srv/a"));
	assert_true(matches("/srv/**", "/srv/a/b/c"));
	assert_false(matches("/srv/**", "/srv"));
	assert_true(matches("/srv/**/x", "/srv/a/b/x"));
	assert_false(matches("/srv/**/x", "/srv/x"));
	assert_true(matches("/**/a/*/b", "/q/a/a/c/b"));
}

static void test_question_mark_takes_one_character(void **unused)
{
	(void)unused;
	assert_true(matches("/?", "/a"));
	assert_false(matches("/?", "/"));
	assert_false(matches("/?", "//"));
	assert_false(matches("/?", "/ab"));
	assert_true(matches("/?", "/\303\251"));
	assert_true(matches("/?", "/\360\237\230\200"));
	assert_true(matches("/?", "/\377"));
	assert_true(matches("/??", "/\303\303"));
	assert_false(matches("/??", "/\303\251"));
}

static void test_brackets_take_one_byte_of_a_set(void **unused)
{
	(void)unused;
	assert_true(matches("/[abc]", "/b"));
	assert_false(matches("/[abc]", "/d"));
	assert_true(matches("/[a-cx]", "/x"));
	assert_true(matches("/[a-c]", "/b"));
	assert_true(matches("/[!a]", "/b"));
	assert_false(matches("/[!a]", "/a"));
	assert_false(matches("/a[!b]c", "/a/c"));
	assert_true(matches("/[]]", "/]"));
	assert_true(matches("/[!]]", "/a"));
	assert_false(matches("/[!]]", "/]"));
	assert_true(matches("/[\\]]", "/]"));
	assert_true(matches("/[a-]", "/-"));
	assert_true(matches("/[\\!a]", "/!"));
}

static void test_backslash_takes_the_next_character_literally(void **unused)
{
	(void)unused;
	assert_true(matches("/\\*", "/*"));
	assert_false(matches("/\\*", "/a"));
	assert_true(matches("/\\[a]", "/[a]"));
	assert_true(matches("/\\\\", "/\\"));
	assert_true(matches("/a\\?", "/a?"));
}

static void test_any_byte_but_nul_can_stand_in_a_path(void **unused)
{
	(void)unused;
	assert_true(matches("/x/*", "/x/a\nb c\377 (deleted)"));
	assert_true(matches("/x/a b", "/x/a b"));
}

static void test_captures_are_shortest_from_the_left(void **unused)
{
	(void)unused;
	assert_string_equal(captured("/l/*.lock", "/l/a.lock"), "a");
	assert_string_equal(captured("/*-*", "/a-b-c"), "a|b-c");
	assert_string_equal(captured("/**/*", "/a/b/c"), "a/b|c");
	assert_string_equal(captured("/**a**", "/xaya"), "x|ya");
	assert_string_equal(captured("/[ab]?*", "/a\303\251z"), "a|\303\251|z");
	assert_string_equal(captured("/*/*/**", "/a/b/c/d"), "a|b|c/d");
	assert_string_equal(captured("/**/*b*", "/a/xb/yb"), "a/xb|y|");
	assert_string_equal(captured("/a", "/a"), "");
}

static void test_no_more_captures_are_written_than_there_is_room_for(void **unused)
{
	struct pattern_span spans[2] = { { 7, 7 }, { 7, 7 } };
	size_t count = 0;

	(void)unused;
	assert_true(pattern_match("/*/*/?", "/a/b/c", 6, spans, 1, &count));
	assert_int_equal(count, 3);
	assert_int_equal(spans[0].off, 1);
	assert_int_equal(spans[1].off, 7);
}

static void test_only_len_bytes_of_the_path_are_read(void **unused)
{
	char path[4] = { '/', 'a', '\303', 'X' };
	char *exact = malloc(3);

	(void)unused;
	memcpy(exact, path, 3);
	assert_true(pattern_match("/a?", exact, 3, NULL, 0, NULL));
	assert_true(pattern_match("/*", exact, 3, NULL, 0, NULL));
	assert_false(pattern_match("/a?X", exact, 3, NULL, 0, NULL));
	free(exact);
}

static void test_well_formed_patterns_pass_the_check(void **unused)
{
	static const char *const good[] = {
		"/", "/a", "/var/lock/jobs/*.lock", "/srv/**", "/**/[a-z]?", "/[!a]", "/[]]", "/a\\*", "/...", "/.a", "/..a", "/a b\n",
	};
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof good / sizeof *good; i++)
		assert_null(pattern_check(good[i]));
}

static void test_each_mistake_in_a_pattern_is_named(void **unused)
{
	static const char *const wrong[][2] = {
		{ "", "begin with `/`" }, { "a/*", "begin with `/`" }, { "/a/", "ends in `/`" }, { "/a//b", "empty component" },
		{ "/./a", "`.`" }, { "/a/..", "`..`" }, { "/a/../b", "`..`" }, { "/a\\", "ends in a backslash" },
		{ "/[a", "without its `]`" }, { "/[", "without its `]`" }, { "/[!", "without its `]`" }, { "/[]", "without its `]`" },
		{ "/[a\\", "without its `]`" }, { "/[a-\\", "without its `]`" }, { "/[z-a]", "backwards" }, { "/[^a]", "[!" },
		{ "/[a/b]", "`/` in brackets" }, { "/[\303\251]", "not ASCII" }, { "/***", "three stars" }, { "/**/***/a", "three stars" },
	};
	size_t i;

	(void)unused;
	for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		const char *text = pattern_check(wrong[i][0]);

		if (!text || !strstr(text, wrong[i][1]))
			fail_msg("%s: %s", wrong[i][0], text ? text : "passed");
	}
}

static void test_too_long_and_too_many_are_refused(void **unused)
{
	char pattern[5000];
	size_t i;

	(void)unused;
	memset(pattern, 'a', sizeof pattern);
	pattern[0] = '/';
	pattern[PATTERN_LEN_MAX] = '\0';
	assert_null(pattern_check(pattern));
	pattern[PATTERN_LEN_MAX] = 'a';
	pattern[PATTERN_LEN_MAX + 1] = '\0';
	assert_non_null(pattern_check(pattern));
	for (i = 1; i < 260; i += 2)
		memcpy(pattern + i, "*a", 2);
	pattern[1 + 2 * PATTERN_WILDCARDS_MAX] = '\0';
	assert_null(pattern_check(pattern));
	pattern[1 + 2 * PATTERN_WILDCARDS_MAX] = '*';
	pattern[2 + 2 * PATTERN_WILDCARDS_MAX] = '\0';
	assert_non_null(pattern_check(pattern));
	assert_false(matches(pattern, "/aaaa"));
}

/* Whatever the bytes: no read beyond the end (the sanitizers see it), no endless loop. */
static void test_any_bytes_as_a_pattern_are_harmless(void **unused)
{
	static const char bytes[] = "/*?[]!-^\\ab\303\251";
	uint64_t state = 88172645463325252u;
	unsigned i, n;

	(void)unused;
	for (i = 0; i < CASES; i++) {
		size_t len = next_random(&state) % 12;
		char *pattern = malloc(len + 1);

		for (n = 0; n < len; n++)
			pattern[n] = bytes[next_random(&state) % (sizeof bytes - 1)];
		pattern[len] = '\0';
		matches(pattern, "/a/b]\303\251-");
		pattern_wildcards(pattern);
		pattern_first_deep(pattern);
		assert_true(pattern_literal_len(pattern) <= len);
		pattern_check(pattern);
		free(pattern);
	}
}

/* A matcher that backtracks without a bound would need years for these. */
static void test_hostile_patterns_end_soon(void **unused)
{
	char pattern[600] = "/", path[4097];
	struct timespec from, to;
	unsigned i;
	double took;

	(void)unused;
	memset(path, 'a', sizeof path - 1);
	path[0] = '/';
	path[4096] = '\0';
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
	for (i = 0; i < 60; i++)
		strcat(pattern, "*a");
	strcat(pattern, "*b");
	assert_false(matches(pattern, path));
	strcpy(pattern, "/");
	for (i = 0; i < 60; i++)
		strcat(pattern, i % 2 ? "*a" : "**a?");
	strcat(pattern, "b");
	assert_false(matches(pattern, path));
	for (i = 1; i < 4096; i += 2)
		path[i] = '/';
	strcpy(pattern, "/**");
	for (i = 0; i < 60; i++)
		strcat(pattern, "*a/");
	strcat(pattern, "**/*?/b");
	assert_false(matches(pattern, path));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
	took = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
	print_message("three hostile matches: %.3f ms\n", took * 1e3);
	assert_true(took < 2);
}

static void test_literal_length_and_first_two_stars_are_counted(void **unused)
{
	(void)unused;
	assert_int_equal(pattern_literal_len("/a/b*"), 4);
	assert_int_equal(pattern_literal_len("/a\\*"), 2);
	assert_int_equal(pattern_literal_len("/a"), 2);
	assert_int_equal(pattern_wildcards("/*/[a*]?/\\*/**"), 4);
	assert_int_equal(pattern_first_deep("/*/[a**]?/\\**/**"), 4);
	assert_true(pattern_first_deep("/*/a") == SIZE_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_star_stays_within_a_directory),
		cmocka_unit_test(test_two_stars_go_below),
		cmocka_unit_test(test_question_mark_takes_one_character),
		cmocka_unit_test(test_brackets_take_one_byte_of_a_set),
		cmocka_unit_test(test_backslash_takes_the_next_character_literally),
		cmocka_unit_test(test_any_byte_but_nul_can_stand_in_a_path),
		cmocka_unit_test(test_captures_are_shortest_from_the_left),
		cmocka_unit_test(test_no_more_captures_are_written_than_there_is_room_for),
		cmocka_unit_test(test_only_len_bytes_of_the_path_are_read),
		cmocka_unit_test(test_well_formed_patterns_pass_the_check),
		cmocka_unit_test(test_each_mistake_in_a_pattern_is_named),
		cmocka_unit_test(test_too_long_and_too_many_are_refused),
		cmocka_unit_test(test_any_bytes_as_a_pattern_are_harmless),
		cmocka_unit_test(test_hostile_patterns_end_soon),
		cmocka_unit_test(test_literal_length_and_first_two_stars_are_counted),
		cmocka_unit_test(test_random_patterns_match_and_capture_as_the_definition_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
