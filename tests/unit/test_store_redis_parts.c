/* SPDX-License-Identifier: MIT */
/* LINK: tests/unit/redis_pair.c tests/unit/redis_bench.c daemon-lite/loop.c daemon-lite/log.c daemon-lite/store/redis_conn.c daemon-lite/store/redis_dial.c
 * daemon-lite/store/redis_file.c daemon-lite/store/redis_init.c daemon-lite/store/redis_link.c daemon-lite/store/redis_observe.c
 * daemon-lite/store/redis_open.c daemon-lite/store/redis_ops.c daemon-lite/store/redis_push.c daemon-lite/store/redis_renew.c
 * daemon-lite/store/redis_script.c daemon-lite/store/redis_session.c daemon-lite/store/redis_shared.c daemon-lite/store/redis_spans.c daemon-lite/store/redis_store.c
 * daemon-lite/store/redis_news.c daemon-lite/store/redis_reassert.c daemon-lite/store/redis_value.c daemon-lite/store/redis_watch.c build/lua_scripts.c
 * config/check.c config/config.c config/config_file.c config/duration.c config/lex.c config/links.c config/pattern.c config/rules.c config/rules_write.c config/runtime_dir.c config/suggest.c */
/* LIBS: hiredis libconfig uuid */
/* The Redis store against a real server: parts of locks, and locks of many parts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis_pair.h"
#include "../../daemon-lite/log.h"

static void assert_span(const struct lock_span *span, uint64_t start, uint64_t end, enum lock_mode mode, uint64_t fence)
{
	assert_int_equal(span->at.start, start);
	assert_int_equal(span->at.end, end);
	assert_int_equal(span->mode, mode);
	if (fence)
		assert_int_equal(span->fence, fence);
}

static void give_part(struct host *host, uint64_t start, uint64_t end, enum lock_mode keep, uint64_t fence)
{
	host_give_back(host, R, &(struct lock_span){ { start, end }, keep, fence }, 1);
}

/* --- one part --- */

static void test_alone_a_host_is_granted_the_whole_line(void **state)
{
	const struct event *event = acquire_part(&a, 1, 10, 20, MODE_SH);

	(void)state;
	assert_int_equal(event->span_count, 1);
	assert_span(event->spans, 0, EXTENT_END, MODE_SH, 0);
	assert_int_equal(event->wait_count, 0);
	/* The part that is made stronger stands beside the rest, under the same fence. */
	event = acquire_part(&a, 2, 10, 20, MODE_EX);
	assert_int_equal(event->span_count, 1);
	assert_span(event->spans, 0, EXTENT_END, MODE_EX, 0);
}

static void test_a_part_is_recalled_and_given_back(void **state)
{
	const struct event *event;
	uint64_t fence = acquire_part(&a, 1, 0, 10, MODE_EX)->fence;

	(void)state;
	wait_for_part(&b, 1, 100, 200, MODE_SH);
	event = await_event(&a, EV_RECALL, R, 0, 1);
	assert_int_equal(event->span_count, 1);
	assert_span(event->spans, 100, 200, MODE_SH, fence);
	/* More than was wanted goes back, the part that is in use stays. */
	give_part(&a, 10, EXTENT_END, MODE_NONE, fence);
	event = await_event(&a, EV_COVER, R, 0, 1);
	assert_int_equal(event->span_count, 0);
	event = await_event(&b, EV_GRANTED, R, 1, 1);
	assert_int_equal(event->span_count, 1);
	assert_span(event->spans, 100, 200, MODE_SH, 0);
	assert_true(event->fence > fence);
	/* Each has its part; the next grants are what was asked for. */
	host_mark(&a);
	event = acquire_part(&a, 2, 300, EXTENT_END, MODE_EX);
	assert_span(event->spans, 300, EXTENT_END, MODE_EX, 0);
	event = acquire_part(&b, 2, 250, 300, MODE_EX);
	assert_span(event->spans, 250, 300, MODE_EX, 0);
	assert_null(host_find(&a, EV_RECALL, R, 0));
	assert_null(host_find(&b, EV_RECALL, R, 0));
}

static void test_a_part_is_lowered_for_a_reader(void **state)
{
	const struct event *event;
	uint64_t fence = acquire_part(&a, 1, 0, 10, MODE_EX)->fence;

	(void)state;
	wait_for_part(&b, 1, 5, 8, MODE_SH);
	await_event(&a, EV_RECALL, R, 0, 1);
	give_part(&a, 5, 8, MODE_SH, fence);
	event = await_event(&a, EV_COVER, R, 0, 1);
	assert_int_equal(event->span_count, 1);
	assert_span(event->spans, 5, 8, MODE_SH, 0);
	assert_true(event->fence > fence);
	assert_span(await_event(&b, EV_GRANTED, R, 1, 1)->spans, 5, 8, MODE_SH, 0);
	/* What stays has the old fence, on both sides. */
	assert_int_equal(host_cover(&a, R)->count, 3);
	assert_span(&host_cover(&a, R)->spans[0], 0, 5, MODE_EX, fence);
	assert_span(&host_cover(&a, R)->spans[2], 8, EXTENT_END, MODE_EX, fence);
}

static void test_a_try_names_what_it_wants_and_is_answered(void **state)
{
	const struct event *event;
	uint64_t fence = acquire_part(&a, 1, 0, 10, MODE_SH)->fence;

	(void)state;
	store_acquire(b.store, R, 5, (struct extent){ 4, 12 }, MODE_EX, STORE_TRY, "1 test");
	event = await_event(&a, EV_TRY, R, 5, 1);
	assert_span(event->spans, 4, 12, MODE_EX, fence);
	assert_string_equal(event->text, store_host_id(b.store));
	store_busy(a.store, R, event->text, 5);
	await_event(&b, EV_BUSY, R, 5, 1);
	/* Beside it the other one succeeds, once that is free. */
	give_part(&a, 10, EXTENT_END, MODE_NONE, fence);
	await_event(&a, EV_COVER, R, 0, 1);
	store_acquire(b.store, R, 6, (struct extent){ 10, 12 }, MODE_EX, STORE_TRY, "1 test");
	assert_span(await_event(&b, EV_GRANTED, R, 6, 1)->spans, 10, 12, MODE_EX, 0);
}

/* Whoever holds something already passes those who wait, and is told who waits for what it got. */
static void test_a_request_that_may_pass_is_granted_with_who_waits(void **state)
{
	const struct event *event;
	uint64_t fence = acquire_part(&a, 1, 0, 10, MODE_SH)->fence;

	(void)state;
	wait_for_part(&b, 1, 0, 100, MODE_EX);
	await_event(&a, EV_RECALL, R, 0, 1);
	give_part(&a, 10, EXTENT_END, MODE_NONE, fence);
	await_event(&a, EV_COVER, R, 0, 1);
	store_acquire(a.store, R, 2, (struct extent){ 20, 30 }, MODE_SH, 0, "1 test");
	await_event(&a, EV_QUEUED, R, 2, 1);
	store_acquire(a.store, R, 3, (struct extent){ 40, 50 }, MODE_SH, STORE_PASS, "1 test");
	event = await_event(&a, EV_GRANTED, R, 3, 1);
	assert_span(event->spans, 40, 50, MODE_SH, 0);
	assert_int_equal(event->wait_count, 1);
	assert_span(event->waits, 40, 50, MODE_EX, event->fence);
	/* The one that waits may be told later that it may pass. */
	store_acquire(a.store, R, 2, (struct extent){ 20, 30 }, MODE_SH, STORE_PASS, "1 test");
	assert_span(await_event(&a, EV_GRANTED, R, 2, 1)->spans, 20, 30, MODE_SH, 0);
}

static void test_a_flock_and_record_locks_of_a_file_do_not_meet(void **state)
{
	(void)state;
	acquire(&a, 1, MODE_EX);
	assert_span(acquire_part(&b, 1, 0, 10, MODE_EX)->spans, 0, EXTENT_END, MODE_EX, 0);
	assert_null(host_find(&a, EV_RECALL, NULL, 0));
}

static void test_the_greatest_request_numbers_and_offsets_survive(void **state)
{
	const struct event *event;
	uint64_t req = UINT64_MAX - 1, fence = acquire_part(&a, req, EXTENT_END - 1, EXTENT_END, MODE_EX)->fence;

	(void)state;
	wait_for_part(&b, UINT64_MAX, EXTENT_END - 1, EXTENT_END, MODE_EX);
	event = await_event(&a, EV_RECALL, R, 0, 1);
	assert_span(event->spans, EXTENT_END - 1, EXTENT_END, MODE_EX, fence);
	give_part(&a, EXTENT_END - 1, EXTENT_END, MODE_NONE, fence);
	event = await_event(&b, EV_GRANTED, R, UINT64_MAX, 1);
	assert_span(event->spans, EXTENT_END - 1, EXTENT_END, MODE_EX, 0);
}

/* --- many --- */

#define MANY 2000u

static bool batch_granted(void *arg)
{
	return host_count(&a, EV_GRANTED) >= *(size_t *)arg;
}

/* Host b has a byte far out, so that a is granted what it asks for and no more: MANY parts with a hole behind each. */
static void take_many(void)
{
	uint64_t fence = acquire_part(&b, 1, 1u << 30, (1u << 30) + 1, MODE_EX)->fence;

	give_part(&b, 0, 1u << 30, MODE_NONE, fence);
	give_part(&b, (1u << 30) + 1, EXTENT_END, MODE_NONE, fence);
	await_event(&b, EV_COVER, R, 0, 1);
	host_mark(&a);
	/* In batches: what comes in one piece Redis carries out in one piece, and answers no renewal meanwhile. */
	for (size_t i = 0; i < MANY; ) {
		do
			store_acquire(a.store, R, 100 + i, (struct extent){ 10 * i, 10 * i + 7 }, MODE_EX, 0, "1 test");
		while (++i % 50);
		if (!run_until(loop, batch_granted, &i, 5))
			fail_msg("%zu of %zu parts granted", host_count(&a, EV_GRANTED), i);
	}
	assert_int_equal(host_cover(&a, R)->count, MANY);
	host_mark(&a);
}

static void assert_many(const struct event *event)
{
	assert_int_equal(event->span_count, MANY);
	for (uint64_t i = 0; i < MANY; i++)
		assert_span(&event->spans[i], 10 * i, 10 * i + 7, MODE_EX, 0);
}

static void test_many_parts_are_given_back_at_once(void **state)
{
	const struct host_cover *cover;
	const struct event *event;
	struct lock_span *parts;
	uint64_t begun;

	(void)state;
	take_many();
	wait_for_part(&b, 2, 0, 10 * MANY, MODE_EX);
	event = await_event(&a, EV_RECALL, R, 0, 2);
	assert_many(event);
	cover = host_cover(&a, R);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(event->spans[i].fence, cover->spans[i].fence);
	parts = calloc(MANY, sizeof(*parts));
	assert_non_null(parts);
	for (size_t i = 0; i < MANY; i++) {
		parts[i] = cover->spans[i];
		parts[i].mode = i % 2 ? MODE_NONE : MODE_SH;
	}
	begun = loop_now_ns();
	host_give_back(&a, R, parts, MANY);
	event = await_event(&a, EV_COVER, R, 0, 2);
	assert_int_equal(event->span_count, MANY / 2);
	for (uint64_t i = 0; i < MANY / 2; i++)
		assert_span(&event->spans[i], 20 * i, 20 * i + 7, MODE_SH, event->spans[0].fence);
	assert_int_equal(event->wait_count, MANY / 2);
	host_mark(&a);
	for (size_t i = 0; i < MANY; i++) {
		parts[i].mode = MODE_NONE;
		parts[i].fence = event->spans[0].fence;
	}
	host_give_back(&a, R, parts, MANY);
	assert_int_equal(await_event(&a, EV_COVER, R, 0, 2)->span_count, 0);
	assert_span(await_event(&b, EV_GRANTED, R, 2, 2)->spans, 0, 10 * MANY, MODE_EX, 0);
	if (getenv("TEST_VERBOSE"))
		printf("two give-backs of %u parts: %.1f ms\n", MANY, (double)(loop_now_ns() - begun) / 1e6);
	free(parts);
}

static void test_many_parts_come_again_with_a_connection_and_a_restart(void **state)
{
	(void)state;
	take_many();
	server_do(&server, "CLIENT KILL TYPE normal");
	assert_many(await_event(&a, EV_COVER, R, 0, 5));
	await_state(&a, STORE_UP, 5);
	host_stop(&a, false);
	host_mark(&a);
	host_start(&a);
	assert_many(await_event(&a, EV_RESUMED, R, 0, 5));
	await_state(&a, STORE_UP, 5);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
}

static void test_many_parts_survive_a_store_that_forgets(void **state)
{
	const struct event *event;
	uint64_t most = 0;

	(void)state;
	take_many();
	acquire(&a, 5, MODE_SH);
	for (size_t i = 0; i < MANY; i++)
		if (host_cover(&a, R)->spans[i].fence > most)
			most = host_cover(&a, R)->spans[i].fence;
	server_do(&server, "FLUSHALL");
	event = await_event(&a, EV_REASSERTED, R, 0, 5);
	assert_many(event);
	assert_true(event->fence > most);
	for (size_t i = 1; i < MANY; i++)
		assert_int_equal(event->spans[i].fence, event->fence);
	assert_span(await_event(&a, EV_REASSERTED, K, 0, 1)->spans, 0, EXTENT_END, MODE_SH, 0);
	await_state(&a, STORE_UP, 5);
	await_state(&b, STORE_UP, 5);
	store_acquire(b.store, R, 9, (struct extent){ 5, 6 }, MODE_SH, 0, "1 test");
	assert_span(await_event(&a, EV_RECALL, R, 0, 2)->spans, 5, 6, MODE_SH, event->fence);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
}

/* What was given back or asked for without a connection is sent when there is one, in order, all parts of it. */
static void test_parts_that_were_given_back_without_a_connection_are_sent_later(void **state)
{
	struct lock_span parts[] = { { { 0, 5 }, MODE_NONE, 0 }, { { 7, 9 }, MODE_SH, 0 }, { { 20, EXTENT_END }, MODE_NONE, 0 } };
	const struct event *event;
	uint64_t fence = acquire_part(&a, 1, 0, 10, MODE_EX)->fence;
	size_t found = 0;

	(void)state;
	wait_for_part(&b, 1, 30, 40, MODE_EX);
	host_mark(&a);
	for (size_t i = 0; i < 3; i++)
		parts[i].fence = fence;
	server_do(&server, "CLIENT KILL TYPE normal");
	host_give_back(&a, R, parts, 3);
	store_acquire(a.store, R, 2, (struct extent){ 0, 2 }, MODE_SH, STORE_PASS, "1 test");
	parts[1].mode = MODE_EX;	/* the store has a copy */
	event = await_event(&a, EV_GRANTED, R, 2, 5);
	assert_span(event->spans, 0, 2, MODE_SH, 0);
	await_event(&b, EV_GRANTED, R, 1, 5);
	run_for(loop, 0.2);
	store_status(a.store, (void *)1, R);
	await_event(&a, EV_STATUS, "end", 1, 2);
	for (size_t i = a.mark; i < a.count; i++) {
		static const char *const ends[] = {
			"|0000000000000000000|0000000000000000002", "|0000000000000000005|0000000000000000007", "|0000000000000000007|0000000000000000009",
			"|0000000000000000009|0000000000000000020",
		};
		const char *text = a.events[i].text;

		if (a.events[i].type != EV_STATUS || strncmp(text, "cover|", 6) != 0 || !strstr(text, store_host_id(a.store)))
			continue;
		if (found >= 4 || !strstr(text, ends[found]))
			fail_msg("span %zu is %s", found, text);
		found++;
	}
	assert_int_equal(found, 4);
}

#define STARTED(test) cmocka_unit_test_setup_teardown(test, set_up_started, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		STARTED(test_alone_a_host_is_granted_the_whole_line),
		STARTED(test_a_part_is_recalled_and_given_back),
		STARTED(test_a_part_is_lowered_for_a_reader),
		STARTED(test_a_try_names_what_it_wants_and_is_answered),
		STARTED(test_a_request_that_may_pass_is_granted_with_who_waits),
		STARTED(test_a_flock_and_record_locks_of_a_file_do_not_meet),
		STARTED(test_the_greatest_request_numbers_and_offsets_survive),
		STARTED(test_many_parts_are_given_back_at_once),
		STARTED(test_many_parts_come_again_with_a_connection_and_a_restart),
		STARTED(test_many_parts_survive_a_store_that_forgets),
		STARTED(test_parts_that_were_given_back_without_a_connection_are_sent_later),
	};

	log_set_level(getenv("TEST_VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
