/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/spans.c */
/* Random operations on lists of spans, beside the same on a map of points. DLOCK_SEED=n repeats a run. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../daemon-lite/spans.h"

enum { POINTS = 24, ROUNDS = 4000, OPERATIONS = 40 };

/* The last point of the map is all that is behind it: the end is EXTENT_END. */
struct map {
	enum lock_mode mode[POINTS];
	uint64_t fence[POINTS];
};

static uint64_t state;

static uint64_t next(void)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t place(int point)
{
	return point == POINTS ? EXTENT_END : (uint64_t)point;
}

static void two_points(int *ret_from, int *ret_to)
{
	int a = (int)(next() % (POINTS + 1)), b = (int)(next() % POINTS);

	b += b >= a;
	*ret_from = a < b ? a : b;
	*ret_to = a < b ? b : a;
}

/* The list says what the map says, in the one form that a list has. */
static void must_agree(const struct lock_spans *spans, const struct map *map, bool joined)
{
	for (size_t i = 0; i < spans->count; i++) {
		const struct lock_span *span = &spans->at[i];

		assert_true(span->at.start < span->at.end && span->at.end <= EXTENT_END);
		assert_int_not_equal(span->mode, MODE_NONE);
		if (!i)
			continue;
		assert_true(span[-1].at.end <= span->at.start);
		if (joined)
			assert_false(span[-1].at.end == span->at.start && span[-1].mode == span->mode && span[-1].fence == span->fence);
	}
	for (int p = 0; p < POINTS; p++) {
		size_t i = lock_spans_find(spans, (uint64_t)p);
		bool there = i < spans->count && spans->at[i].at.start <= (uint64_t)p;

		if (i)
			assert_true(spans->at[i - 1].at.end <= (uint64_t)p);
		if (i < spans->count)
			assert_true(spans->at[i].at.end > (uint64_t)p);
		assert_int_equal(there ? spans->at[i].mode : MODE_NONE, map->mode[p]);
		if (there) {
			assert_true(spans->at[i].fence == map->fence[p]);
			assert_true(spans->at[i].at.end >= place(p + 1));
		}
	}
}

static void random_set(struct lock_spans *spans, struct map *map)
{
	enum lock_mode mode = (enum lock_mode)(next() % 3);
	uint64_t fence = mode ? next() % 3 : 0;
	int from, to;

	two_points(&from, &to);
	assert_int_equal(lock_spans_set(spans, (struct extent){ place(from), place(to) }, mode, fence), 0);
	for (int p = from; p < to; p++) {
		map->mode[p] = mode;
		map->fence[p] = fence;
	}
}

static void random_add(struct lock_spans *spans, struct map *map)
{
	enum lock_mode mode = (enum lock_mode)(next() % 3);
	int from, to;

	two_points(&from, &to);
	assert_int_equal(lock_spans_add(spans, (struct extent){ place(from), place(to) }, mode), 0);
	for (int p = from; p < to; p++)
		map->mode[p] = mode_max(map->mode[p], mode);
}

static void look(const struct lock_spans *spans, const struct map *map)
{
	enum lock_mode most = MODE_NONE;
	int from, to;

	two_points(&from, &to);
	for (int p = from; p < to; p++)
		most = mode_max(most, map->mode[p]);
	assert_int_equal(lock_spans_mode(spans, (struct extent){ place(from), place(to) }), most);
}

static void run(void (*change)(struct lock_spans *, struct map *), bool copies)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct lock_spans spans = { 0 };
		struct map map = { 0 };

		for (int i = 0; i < OPERATIONS; i++) {
			change(&spans, &map);
			must_agree(&spans, &map, true);
			look(&spans, &map);
			if (copies && next() % 8 == 0) {
				struct lock_spans copy;

				assert_int_equal(lock_spans_copy(&copy, &spans), 0);
				lock_spans_free(&spans);
				spans = copy;
				must_agree(&spans, &map, true);
			}
		}
		lock_spans_free(&spans);
		assert_null(spans.at);
		assert_int_equal(spans.count, 0);
	}
}

static void test_setting_parts_is_what_a_map_of_points_does(void **unused)
{
	(void)unused;
	run(random_set, true);
}

static void test_adding_locks_keeps_the_stronger_mode(void **unused)
{
	(void)unused;
	run(random_add, true);
}

static void test_setting_nothing_in_an_empty_list_leaves_it_empty(void **unused)
{
	struct lock_spans spans = { 0 };

	(void)unused;
	assert_int_equal(lock_spans_set(&spans, EXTENT_ALL, MODE_NONE, 0), 0);
	assert_int_equal(lock_spans_add(&spans, EXTENT_ALL, MODE_NONE), 0);
	assert_int_equal(spans.count, 0);
	assert_int_equal(lock_spans_find(&spans, 0), 0);
	assert_int_equal(lock_spans_mode(&spans, EXTENT_ALL), MODE_NONE);
	lock_spans_free(&spans);
}

static void test_neighbours_of_one_mode_and_fence_are_one_and_others_are_not(void **unused)
{
	struct lock_spans spans = { 0 };

	(void)unused;
	assert_int_equal(lock_spans_set(&spans, (struct extent){ 0, 10 }, MODE_SH, 1), 0);
	assert_int_equal(lock_spans_set(&spans, (struct extent){ 20, 30 }, MODE_SH, 1), 0);
	assert_int_equal(lock_spans_set(&spans, (struct extent){ 10, 20 }, MODE_SH, 2), 0);
	assert_int_equal(spans.count, 3);
	assert_int_equal(lock_spans_set(&spans, (struct extent){ 10, 20 }, MODE_SH, 1), 0);
	assert_int_equal(spans.count, 1);
	assert_true(extent_equal(spans.at[0].at, (struct extent){ 0, 30 }));
	assert_int_equal(lock_spans_set(&spans, (struct extent){ 10, 20 }, MODE_NONE, 0), 0);
	assert_int_equal(spans.count, 2);
	lock_spans_free(&spans);
}

static void test_what_is_appended_stays_as_it_is(void **unused)
{
	struct lock_spans spans = { 0 };

	(void)unused;
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(lock_spans_append(&spans, (struct lock_span){ { 100 - i, 101 - i }, MODE_NONE, i }), 0);
	assert_int_equal(spans.count, 100);
	for (uint64_t i = 0; i < 100; i++) {
		assert_true(spans.at[i].at.start == 100 - i);
		assert_true(spans.at[i].fence == i);
	}
	lock_spans_free(&spans);
}

static int seed(void **unused)
{
	const char *text = getenv("DLOCK_SEED");

	(void)unused;
	state = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	printf("# DLOCK_SEED=%lu\n", (unsigned long)state);
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_setting_parts_is_what_a_map_of_points_does),
		cmocka_unit_test(test_adding_locks_keeps_the_stronger_mode),
		cmocka_unit_test(test_setting_nothing_in_an_empty_list_leaves_it_empty),
		cmocka_unit_test(test_neighbours_of_one_mode_and_fence_are_one_and_others_are_not),
		cmocka_unit_test(test_what_is_appended_stays_as_it_is),
	};

	return cmocka_run_group_tests_name("spans", tests, seed, NULL);
}
