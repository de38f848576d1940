/* SPDX-License-Identifier: MIT */
/* LINK: tests/unit/redis_pair.c tests/unit/redis_bench.c daemon-lite/loop.c daemon-lite/log.c daemon-lite/store/redis_conn.c daemon-lite/store/redis_dial.c
 * daemon-lite/store/redis_file.c daemon-lite/store/redis_init.c daemon-lite/store/redis_link.c daemon-lite/store/redis_observe.c
 * daemon-lite/store/redis_open.c daemon-lite/store/redis_ops.c daemon-lite/store/redis_push.c daemon-lite/store/redis_renew.c
 * daemon-lite/store/redis_script.c daemon-lite/store/redis_session.c daemon-lite/store/redis_shared.c daemon-lite/store/redis_spans.c daemon-lite/store/redis_store.c
 * daemon-lite/store/redis_news.c daemon-lite/store/redis_reassert.c daemon-lite/store/redis_value.c daemon-lite/store/redis_watch.c build/lua_scripts.c
 * config/check.c config/config.c config/config_file.c config/duration.c config/lex.c config/links.c config/pattern.c config/rules.c config/rules_write.c config/runtime_dir.c config/suggest.c */
/* LIBS: hiredis libconfig uuid */
/* The Redis store against a real server: two hosts in one process, each with a state directory of its own. Rules, leases, a store that forgets. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "redis_pair.h"
#include "../../daemon-lite/log.h"

/* --- the rules, end to end --- */

static void test_a_waiting_host_is_granted_when_the_holder_gives_back(void **state)
{
	const struct event *event;
	uint64_t fence = acquire(&a, 1, MODE_EX), later;

	(void)state;
	wait_in_line(&b, 1, MODE_EX);
	event = await_event(&a, EV_RECALL, K, 0, 1);
	assert_int_equal(event->fence, fence);
	assert_int_equal(event->mode, MODE_EX);
	assert_null(host_find(&b, EV_GRANTED, K, 0));
	give_back(&a, MODE_NONE, fence);
	event = await_event(&a, EV_COVER, K, 0, 1);
	assert_int_equal(event->mode, MODE_NONE);
	event = await_event(&b, EV_GRANTED, K, 1, 0.25);	/* by the push: a renewal could bring it only after T/3 */
	assert_int_equal(event->mode, MODE_EX);
	later = event->fence;
	assert_true(later > fence);
}

static void test_a_give_back_under_an_older_fence_frees_nothing(void **state)
{
	const struct event *event;
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	give_back(&a, MODE_NONE, fence - 1);
	event = await_event(&a, EV_COVER, K, 0, 1);
	assert_int_equal(event->mode, MODE_EX);
	assert_int_equal(event->fence, fence);
}

static void test_a_holder_can_lower_its_cover_for_a_reader(void **state)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	wait_in_line(&b, 7, MODE_SH);
	assert_int_equal(await_event(&a, EV_RECALL, K, 0, 1)->mode, MODE_SH);
	give_back(&a, MODE_SH, fence);
	assert_int_equal(await_event(&a, EV_COVER, K, 0, 1)->mode, MODE_SH);
	assert_int_equal(await_event(&b, EV_GRANTED, K, 7, 1)->mode, MODE_SH);
}

static void test_a_try_is_refused_by_the_holder_and_granted_when_it_gives_back(void **state)
{
	const struct event *event;
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	store_acquire(b.store, K, 5, EXTENT_ALL, MODE_EX, STORE_TRY, "1 test");
	event = await_event(&a, EV_TRY, K, 5, 1);
	assert_int_equal(event->fence, fence);
	assert_string_equal(event->text, store_host_id(b.store));
	store_busy(a.store, K, event->text, event->req);
	await_event(&b, EV_BUSY, K, 5, 1);

	host_mark(&a);
	store_acquire(b.store, K, 6, EXTENT_ALL, MODE_EX, STORE_TRY, "1 test");
	await_event(&a, EV_TRY, K, 6, 1);
	give_back(&a, MODE_NONE, fence);
	await_event(&b, EV_GRANTED, K, 6, 1);
}

static void test_a_withdrawn_request_is_not_granted(void **state)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	wait_in_line(&b, 2, MODE_EX);
	store_withdraw(b.store, K, 2);
	store_acquire(b.store, K, 3, EXTENT_ALL, MODE_SH, 0, "1 test");
	await_event(&b, EV_QUEUED, K, 3, 1);
	give_back(&a, MODE_NONE, fence);
	assert_int_equal(await_event(&b, EV_GRANTED, K, 0, 1)->req, 3);
	run_for(loop, 0.5);
	assert_null(host_find(&b, EV_GRANTED, K, 2));
}

static void test_many_operations_in_a_row_are_answered_in_order(void **state)
{
	char key[32];

	(void)state;
	for (int i = 0; i < 500; i++) {
		snprintf(key, sizeof(key), "f:many/%d", i);
		store_acquire(a.store, key, (uint64_t)i + 100, EXTENT_ALL, MODE_EX, 0, "1 test");
	}
	await_event(&a, EV_GRANTED, NULL, 599, 5);
	assert_int_equal(host_count(&a, EV_GRANTED), 500);
	for (size_t i = a.mark, next = 100; i < a.count; i++)
		if (a.events[i].type == EV_GRANTED)
			assert_int_equal(a.events[i].req, next++);
}

static void test_status_shows_hosts_covers_and_waiters(void **state)
{
	bool cover = false, waiter = false, meta = false;
	int hosts = 0;

	(void)state;
	acquire(&a, 1, MODE_EX);
	wait_in_line(&b, 1, MODE_EX);
	host_mark(&a);
	store_status(a.store, (void *)77, NULL);
	assert_null(host_find(&a, EV_STATUS, NULL, 0));	/* nothing is told from inside the call */
	await_event(&a, EV_STATUS, "end", 77, 2);
	for (size_t i = a.mark; i < a.count; i++) {
		const char *text = a.events[i].text;

		if (a.events[i].type != EV_STATUS)
			continue;
		meta |= !strncmp(text, "meta|", 5);
		hosts += !strncmp(text, "host|", 5);
		cover |= !strncmp(text, "cover|" K "|", 6 + strlen(K)) && strstr(text, store_host_id(a.store));
		waiter |= !strncmp(text, "wait|" K "|", 5 + strlen(K)) && strstr(text, store_host_id(b.store));
	}
	assert_true(meta && cover && waiter);
	assert_int_equal(hosts, 2);
	host_mark(&a);
	store_status(a.store, (void *)78, "f:nothing");
	await_event(&a, EV_STATUS, "end", 78, 2);
	for (size_t i = a.mark; i < a.count; i++)
		assert_true(strncmp(a.events[i].text, "cover|", 6) != 0);
}

static void test_a_host_asks_another_one_and_is_told(void **state)
{
	static char long_text[STORE_TELL_MAX + 1];
	const struct event *event;
	char b_id[64];

	(void)state;
	snprintf(b_id, sizeof(b_id), "%s", store_host_id(b.store));
	store_ask(a.store, 4711, K, "what else?");
	await_event(&a, EV_REACHED, "end", 4711, 1);
	assert_non_null(host_find(&a, EV_REACHED, b_id, 4711));
	event = await_event(&b, EV_ASKED, store_host_id(a.store), 4711, 1);
	assert_string_equal(event->text, K);
	assert_string_equal(event->question, "what else?");
	assert_null(host_find(&a, EV_ASKED, NULL, 0));
	memset(long_text, 'x', STORE_TELL_MAX);
	store_tell(b.store, store_host_id(a.store), 4711, 0, TELL_MORE, long_text);
	store_tell(b.store, store_host_id(a.store), 4712, 1, TELL_END, "the end");
	event = await_event(&a, EV_TOLD, b_id, 4711, 1);
	assert_int_equal(event->fence, 0);
	assert_int_equal(event->waiting, TELL_MORE);
	event = await_event(&a, EV_TOLD, b_id, 4712, 1);
	assert_int_equal(event->fence, 1);
	assert_int_equal(event->waiting, TELL_END);
	assert_string_equal(event->text, "the end");
	/* Neither has a number: the next push is the first. */
	acquire(&a, 1, MODE_EX);
	wait_in_line(&b, 2, MODE_EX);
	await_event(&a, EV_RECALL, K, 0, 0.25);
}

static void test_a_question_without_a_connection_ends_at_once(void **state)
{
	(void)state;
	server_stop(&server);
	await_state(&a, STORE_CONNECTING, 5);
	host_mark(&a);
	store_ask(a.store, 5, NULL, "");
	store_tell(a.store, "somebody", 5, 0, TELL_END, "lost");
	assert_int_equal(await_event(&a, EV_REACHED, "end", 5, 0.5)->fence, ENOTCONN);
}

/* Whoever may write to the channel: nothing is believed, nothing breaks, and what has a number is numbered as before. */
static void test_damaged_talk_is_ignored(void **state)
{
	static const char *const bad[] = { "D", "D\\x00A", "D\\x00A\\x00no-number\\x00f:x\\x00", "D\\x00A\\x007\\x00f:x", "D\\x00A\\x007\\x00f:x\\x00\\x00",
					   "A\\x00B\\x007\\x000\\x009\\x00text", "A\\x00B\\x007\\x00x\\x000\\x00text",
					   "A\\x00B\\x007\\x000", "X\\x00B\\x007\\x000", "G\\x00f:x\\x001\\x002\\x009\\x000", "" };
	char inc[64];

	(void)state;
	assert_int_equal(sscanf(server_do(&server, "HGET dlock:{test/0}:meta inc"), "$%*d %63s", inc), 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		server_do(&server, "PUBLISH dlock:{test/0}:p:%s \"0\\x00%s\\x00%s\"", store_host_id(a.store), inc, bad[i]);
	server_do(&server, "PUBLISH dlock:{test/0}:p:%s \"0\\x00other-inc\\x00D\\x00B\\x009\\x00\\x00\"", store_host_id(a.store));
	/* A good one comes behind them all. */
	server_do(&server, "PUBLISH dlock:{test/0}:p:%s \"0\\x00%s\\x00D\\x00B\\x008\\x00\\x00\"", store_host_id(a.store), inc);
	await_event(&a, EV_ASKED, "B", 8, 1);
	assert_int_equal(host_count(&a, EV_ASKED), 1);
	assert_null(host_find(&a, EV_TOLD, NULL, 0));
	assert_null(host_find(&a, EV_GRANTED, NULL, 0));
	acquire(&a, 1, MODE_EX);
}

/* --- leases --- */

static bool observed(void *arg)
{
	struct store_host_view view;

	store_host_view(a.store, arg, &view);
	return view.remaining_ms > 0;
}

static void test_a_silent_host_is_expired_after_the_lease_time_and_not_before(void **state)
{
	struct store_lease lease;
	uint64_t granted;

	(void)state;
	acquire(&b, 1, MODE_EX);
	wait_in_line(&a, 1, MODE_EX);
	assert_true(run_until(loop, observed, (void *)store_host_id(b.store), 2));
	store_lease(b.store, &lease);
	assert_true(lease.last_good_ns > 0);
	host_stop(&b, false);
	granted = await_event(&a, EV_GRANTED, K, 1, 5)->at_ns;
	assert_true(granted >= lease.last_good_ns + TTL * MS);
	assert_true(granted <= lease.last_good_ns + TTL * MS * 5 / 3 + 300 * MS);
}

static void test_a_host_that_leaves_frees_its_locks_at_once(void **state)
{
	(void)state;
	acquire(&b, 1, MODE_EX);
	wait_in_line(&a, 1, MODE_EX);
	host_stop(&b, true);
	await_event(&a, EV_GRANTED, K, 1, 0.3);
}

static bool lease_moved(void *arg)
{
	struct store_lease lease;

	store_lease(a.store, &lease);
	return lease.last_good_ns > *(uint64_t *)arg;
}

static void test_the_lease_is_renewed_and_its_deadlines_follow(void **state)
{
	struct store_lease lease;
	uint64_t before;

	(void)state;
	store_lease(a.store, &lease);
	assert_int_equal(lease.ttl_ms, TTL);
	assert_int_equal(lease.failing_ns, lease.last_good_ns + TTL * MS * 2 / 3);
	assert_int_equal(lease.kill_ns, lease.last_good_ns + TTL * MS * 5 / 6);
	for (int i = 0; i < 3; i++) {
		store_lease(a.store, &lease);
		before = lease.last_good_ns;
		assert_true(run_until(loop, lease_moved, &before, 0.6));
	}
}

static void test_a_lease_that_passed_its_deadline_is_lost_and_not_revived(void **state)
{
	struct store_lease lease;
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	host_mark(&a);
	server_signal(&server, SIGSTOP);
	run_for(loop, 1.4);
	store_lease(a.store, &lease);
	assert_true(loop_now_ns() > lease.kill_ns);
	server_signal(&server, SIGCONT);
	await_event(&a, EV_LOST, NULL, 0, 3);
	host_mark(&a);
	await_state(&a, STORE_UP, 5);
	await_state(&b, STORE_UP, 5);
	assert_true(acquire(&b, 50, MODE_EX) > fence);	/* what a held is free */
}

static void test_a_waiting_host_sends_nothing_but_renewals(void **state)
{
	char before[4096], *at;
	long calls;

	(void)state;
	acquire(&a, 1, MODE_EX);
	wait_in_line(&b, 1, MODE_EX);
	run_for(loop, 0.1);
	server_do(&server, "CONFIG RESETSTAT");
	run_for(loop, 2);
	snprintf(before, sizeof(before), "%s", server_do(&server, "INFO commandstats"));
	at = strstr(before, "cmdstat_evalsha:calls=");
	assert_non_null(at);
	calls = atol(at + strlen("cmdstat_evalsha:calls="));
	assert_true(calls >= 10 && calls <= 16);	/* two hosts, a renewal each T/3, for 2 s */
}

/* --- a store that forgets --- */

static void forget_and_reassert(void (*forget)(void))
{
	uint64_t fence = acquire(&a, 1, MODE_EX), again;
	const struct event *event;
	uint64_t begun;

	wait_in_line(&b, 1, MODE_EX);
	await_event(&a, EV_RECALL, K, 0, 1);
	host_mark(&a);
	host_mark(&b);
	begun = loop_now_ns();
	forget();
	event = await_event(&a, EV_REASSERTED, K, 0, 3);
	assert_int_equal(event->mode, MODE_EX);
	again = event->fence;
	assert_true(again > fence);
	await_state(&a, STORE_GRACE, 3);
	assert_non_null(strstr(a.state_text, "dlock init"));
	await_state(&b, STORE_GRACE, 3);
	store_acquire(b.store, "f:other", 9, EXTENT_ALL, MODE_EX, STORE_TRY, "1 test");
	await_event(&b, EV_BUSY, "f:other", 9, 1);
	await_state(&a, STORE_UP, 4);
	assert_true(loop_now_ns() - begun >= TTL * MS);
	await_state(&b, STORE_UP, 4);
	assert_null(host_find(&b, EV_GRANTED, K, 0));
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	assert_null(host_find(&b, EV_LOST, NULL, 0));
	/* the request was re-asserted too: its recall comes with the end of the grace */
	assert_int_equal(await_event(&a, EV_RECALL, K, 0, 1)->fence, again);
	give_back(&a, MODE_NONE, again);
	assert_true(await_event(&b, EV_GRANTED, K, 1, 1)->fence > again);
}

static void flush_all(void)
{
	server_do(&server, "FLUSHALL");
}

static void restart_empty(void)
{
	server_stop(&server);
	server_start(&server, "");
}

static void test_holders_keep_their_locks_over_a_flushall(void **state)
{
	(void)state;
	forget_and_reassert(flush_all);
}

static void test_holders_keep_their_locks_over_a_restart_without_data(void **state)
{
	(void)state;
	forget_and_reassert(restart_empty);
}

static void test_without_init_the_first_lock_waits_for_the_grace(void **state)
{
	uint64_t begun = loop_now_ns();

	(void)state;
	server_do(&server, "FLUSHALL");
	host_start(&a);
	await_state(&a, STORE_GRACE, 2);
	wait_in_line(&a, 1, MODE_EX);
	await_event(&a, EV_GRANTED, K, 1, 4);
	assert_true(loop_now_ns() - begun >= TTL * MS);
	await_state(&a, STORE_UP, 1);	/* the grant may overtake the news of the grace's end */
}

static void test_init_is_refused_when_the_namespace_is_in_use(void **state)
{
	char text[512];

	(void)state;
	assert_int_equal(store_redis_init(a.config, text, sizeof(text)), -EEXIST);
	server_stop(&server);
	assert_true(store_redis_init(a.config, text, sizeof(text)) < 0);
	assert_non_null(strstr(text, "127.0.0.1"));
}

static void test_a_host_that_missed_the_grace_has_lost_its_locks(void **state)
{
	char text[512];

	(void)state;
	acquire(&a, 1, MODE_EX);
	host_mark(&a);
	server_stop(&server);
	server_start(&server, "");
	assert_int_equal(store_redis_init(b.config, text, sizeof(text)), 0);	/* no grace at all */
	await_event(&a, EV_LOST, NULL, 0, 3);
	await_state(&a, STORE_UP, 3);
}

/* --- agents and machines that start again --- */

static void test_an_agent_that_starts_again_resumes_its_covers(void **state)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);
	char id[64];

	(void)state;
	wait_in_line(&b, 1, MODE_EX);
	snprintf(id, sizeof(id), "%s", store_host_id(a.store));
	host_stop(&a, false);
	host_mark(&a);
	host_start(&a);
	await_state(&a, STORE_UP, 3);
	assert_string_equal(store_host_id(a.store), id);
	assert_int_equal(host_find(&a, EV_RESUMED, K, 0)->fence, fence);
	assert_true(host_find(&a, EV_RESUMED, K, 0) < host_find(&a, EV_STATE, NULL, 0) || a.events[a.mark].state == STORE_CONNECTING);
	assert_int_equal(await_event(&a, EV_RECALL, K, 0, 1)->fence, fence);
	give_back(&a, MODE_NONE, fence);
	await_event(&b, EV_GRANTED, K, 1, 1);
}

/* Host a's agent ends while it covers K; meanwhile the server comes back with its data, in a new incarnation. */
static uint64_t restart_both(void)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);
	struct store_lease lease;

	store_lease(a.store, &lease);
	a.inherited_good_ns = lease.last_good_ns;
	server_do(&server, "SAVE");
	host_stop(&a, false);
	host_stop(&b, false);
	server_stop(&server);
	server_start(&server, "");
	host_mark(&a);
	return fence;
}

static void test_an_agent_that_starts_in_a_grace_claims_what_its_predecessor_held(void **state)
{
	uint64_t fence = restart_both();

	(void)state;
	host_start(&a);
	assert_true(await_event(&a, EV_REASSERTED, K, 0, 3)->fence > fence);
	assert_int_equal(host_find(&a, EV_RESUMED, K, 0)->fence, fence);
	await_state(&a, STORE_UP, 4);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	store_acquire(a.store, K, 9, EXTENT_ALL, MODE_EX, STORE_TRY, "1 test");
	await_event(&a, EV_GRANTED, K, 9, 1);
}

static void test_an_agent_that_starts_in_a_grace_too_late_has_lost_what_its_predecessor_held(void **state)
{
	restart_both();
	(void)state;
	a.inherited_good_ns -= TTL * MS * 2 / 3;
	host_start(&a);
	await_event(&a, EV_LOST, NULL, 0, 3);
	assert_null(host_find(&a, EV_RESUMED, K, 0));
	await_state(&a, STORE_GRACE, 3);
	host_start(&b);
	await_state(&b, STORE_UP, 4);
	acquire(&b, 5, MODE_EX);	/* nobody has it */
}

static void rewrite_session(struct host *host, const char *from, const char *to)
{
	char path[128], text[1024] = "", out[1024], *at;
	FILE *file;

	snprintf(path, sizeof(path), "%s/session", host->dir);
	file = fopen(path, "r+");
	assert_non_null(file);
	assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
	at = strstr(text, from);
	assert_non_null(at);
	snprintf(out, sizeof(out), "%.*s%s\n", (int)(at - text), text, to);
	at = strchr(at, '\n');
	if (at)
		strcat(out, at + 1);
	rewind(file);
	assert_int_equal(ftruncate(fileno(file), 0), 0);
	fputs(out, file);
	fclose(file);
}

static void test_after_a_reboot_the_old_session_ends_at_once(void **state)
{
	(void)state;
	acquire(&a, 1, MODE_EX);
	wait_in_line(&b, 1, MODE_EX);
	host_stop(&a, false);
	rewrite_session(&a, "boot ", "boot 11111111-2222-3333-4444-555555555555");
	host_mark(&a);
	host_start(&a);
	await_event(&b, EV_GRANTED, K, 1, 0.7);
	await_state(&a, STORE_UP, 3);
	assert_null(host_find(&a, EV_RESUMED, K, 0));
}

/* B gets A's session file; `moved`: one that says it lies where it does, as in the copy of a whole disk. */
static void copy_session(bool moved)
{
	char command[256], path[128], line[64];
	struct stat st;

	snprintf(command, sizeof(command), "cp %s/session %s/session", a.dir, b.dir);
	assert_int_equal(system(command), 0);
	if (!moved)
		return;
	snprintf(path, sizeof(path), "%s/session", b.dir);
	assert_int_equal(stat(path, &st), 0);
	snprintf(line, sizeof(line), "here %llx:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	rewrite_session(&b, "here ", line);
}

static void test_a_copied_session_file_makes_a_host_of_its_own(void **state)
{
	char id[64];

	(void)state;
	acquire(&a, 1, MODE_EX);
	snprintf(id, sizeof(id), "%s", store_host_id(a.store));
	host_stop(&b, true);
	copy_session(false);
	host_start(&b);
	await_state(&b, STORE_UP, 3);
	assert_string_not_equal(store_host_id(b.store), id);
	wait_in_line(&b, 4, MODE_EX);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
}

static void test_a_disk_copied_long_ago_makes_a_host_of_its_own(void **state)
{
	char id[64];

	(void)state;
	acquire(&a, 1, MODE_EX);
	snprintf(id, sizeof(id), "%s", store_host_id(a.store));
	host_stop(&b, true);
	copy_session(true);
	rewrite_session(&b, "token ", "token 11111111-2222-3333-4444-555555555555");
	host_start(&b);
	await_state(&b, STORE_UP, 3);
	assert_string_not_equal(store_host_id(b.store), id);
	assert_string_equal(store_host_id(a.store), id);
	wait_in_line(&b, 4, MODE_EX);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
}

static void test_an_agent_whose_session_another_took_over_is_told(void **state)
{
	(void)state;
	acquire(&a, 1, MODE_EX);
	host_stop(&b, true);
	copy_session(true);
	a.rejoin_at_once = false;
	host_start(&b);
	await_event(&b, EV_RESUMED, K, 0, 3);
	await_event(&a, EV_LOST, NULL, 0, 3);
}

static void test_the_session_file_is_private(void **state)
{
	char path[128];
	struct stat st;

	(void)state;
	snprintf(path, sizeof(path), "%s/session", a.dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

#define STARTED(test) cmocka_unit_test_setup_teardown(test, set_up_started, tear_down)
#define BARE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		STARTED(test_a_waiting_host_is_granted_when_the_holder_gives_back),
		STARTED(test_a_give_back_under_an_older_fence_frees_nothing),
		STARTED(test_a_holder_can_lower_its_cover_for_a_reader),
		STARTED(test_a_try_is_refused_by_the_holder_and_granted_when_it_gives_back),
		STARTED(test_a_withdrawn_request_is_not_granted),
		STARTED(test_many_operations_in_a_row_are_answered_in_order),
		STARTED(test_status_shows_hosts_covers_and_waiters),
		STARTED(test_a_host_asks_another_one_and_is_told),
		STARTED(test_a_question_without_a_connection_ends_at_once),
		STARTED(test_damaged_talk_is_ignored),
		STARTED(test_a_silent_host_is_expired_after_the_lease_time_and_not_before),
		STARTED(test_a_host_that_leaves_frees_its_locks_at_once),
		STARTED(test_the_lease_is_renewed_and_its_deadlines_follow),
		STARTED(test_a_lease_that_passed_its_deadline_is_lost_and_not_revived),
		STARTED(test_a_waiting_host_sends_nothing_but_renewals),
		STARTED(test_holders_keep_their_locks_over_a_flushall),
		STARTED(test_holders_keep_their_locks_over_a_restart_without_data),
		BARE(test_without_init_the_first_lock_waits_for_the_grace),
		BARE(test_init_is_refused_when_the_namespace_is_in_use),
		STARTED(test_a_host_that_missed_the_grace_has_lost_its_locks),
		STARTED(test_an_agent_that_starts_again_resumes_its_covers),
		STARTED(test_an_agent_that_starts_in_a_grace_claims_what_its_predecessor_held),
		STARTED(test_an_agent_that_starts_in_a_grace_too_late_has_lost_what_its_predecessor_held),
		STARTED(test_after_a_reboot_the_old_session_ends_at_once),
		STARTED(test_a_copied_session_file_makes_a_host_of_its_own),
		STARTED(test_a_disk_copied_long_ago_makes_a_host_of_its_own),
		STARTED(test_an_agent_whose_session_another_took_over_is_told),
		STARTED(test_the_session_file_is_private),
	};

	log_set_level(getenv("TEST_VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
