/* SPDX-License-Identifier: MIT */
/* LINK: tests/unit/redis_bench.c daemon-lite/loop.c daemon-lite/log.c daemon-lite/store/redis_conn.c daemon-lite/store/redis_dial.c
 * daemon-lite/store/redis_file.c daemon-lite/store/redis_init.c daemon-lite/store/redis_link.c daemon-lite/store/redis_observe.c
 * daemon-lite/store/redis_open.c daemon-lite/store/redis_ops.c daemon-lite/store/redis_push.c daemon-lite/store/redis_renew.c
 * daemon-lite/store/redis_script.c daemon-lite/store/redis_session.c daemon-lite/store/redis_shared.c daemon-lite/store/redis_store.c
 * daemon-lite/store/redis_reassert.c daemon-lite/store/redis_value.c daemon-lite/store/redis_watch.c build/lua_scripts.c
 * config/check.c config/config.c config/config_file.c config/duration.c config/lex.c config/pattern.c config/rules.c config/rules_write.c config/runtime_dir.c config/suggest.c */
/* LIBS: hiredis libconfig uuid */
/* The Redis store against a real server: two hosts in one process, each with a state directory of its own. */
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

#include "redis_bench.h"
#include "../../daemon-lite/log.h"

#define TTL 1000u
#define K "f:jobs/a"

static struct server server;
static struct loop *loop;
static struct host a, b;

/* A server with a namespace that is declared new, and two hosts not started. */
static int set_up(void **state)
{
	char text[512];

	(void)state;
	server = (struct server){ 0 };
	server_start(&server, "");
	assert_int_equal(loop_new(&loop), 0);
	host_make(&a, loop, &server, TTL);
	host_make(&b, loop, &server, TTL);
	assert_int_equal(store_redis_init(a.config, text, sizeof(text)), 0);
	return 0;
}

static int set_up_started(void **state)
{
	set_up(state);
	host_start(&a);
	host_start(&b);
	await_state(&a, STORE_UP, 5);
	await_state(&b, STORE_UP, 5);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	host_free(&a);
	host_free(&b);
	loop_free(loop);
	server_stop(&server);
	remove_tree(server.dir);
	return 0;
}

static uint64_t acquire(struct host *host, uint64_t req, enum lock_mode mode)
{
	store_acquire(host->store, K, req, mode, false, "1 test");
	return await_event(host, EV_GRANTED, K, req, 5)->fence;
}

static void wait_in_line(struct host *host, uint64_t req, enum lock_mode mode)
{
	store_acquire(host->store, K, req, mode, false, "1 test");
	await_event(host, EV_QUEUED, K, req, 5);
	snprintf(host->waits[host->wait_count].key, 64, "%s", K);
	host->waits[host->wait_count].req = req;
	host->waits[host->wait_count++].mode = mode;
}

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
	store_give_back(a.store, K, MODE_NONE, fence);
	event = await_event(&a, EV_COVER, K, 0, 1);
	assert_int_equal(event->mode, MODE_NONE);
	event = await_event(&b, EV_GRANTED, K, 1, 0.25);	/* by the push: a renewal could bring it only after T/3 */
	assert_int_equal(event->mode, MODE_EX);
	later = event->fence;
	assert_true(later > fence);
}

static void test_a_give_back_of_another_fence_frees_nothing(void **state)
{
	const struct event *event;
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	store_give_back(a.store, K, MODE_NONE, fence + 1);
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
	store_give_back(a.store, K, MODE_SH, fence);
	assert_int_equal(await_event(&a, EV_COVER, K, 0, 1)->mode, MODE_SH);
	assert_int_equal(await_event(&b, EV_GRANTED, K, 7, 1)->mode, MODE_SH);
}

static void test_a_try_is_refused_by_the_holder_and_granted_when_it_gives_back(void **state)
{
	const struct event *event;
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	store_acquire(b.store, K, 5, MODE_EX, true, "1 test");
	event = await_event(&a, EV_TRY, K, 5, 1);
	assert_int_equal(event->fence, fence);
	assert_string_equal(event->text, store_host_id(b.store));
	store_busy(a.store, K, event->text, event->req);
	await_event(&b, EV_BUSY, K, 5, 1);

	host_mark(&a);
	store_acquire(b.store, K, 6, MODE_EX, true, "1 test");
	await_event(&a, EV_TRY, K, 6, 1);
	store_give_back(a.store, K, MODE_NONE, fence);
	await_event(&b, EV_GRANTED, K, 6, 1);
}

static void test_a_withdrawn_request_is_not_granted(void **state)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	wait_in_line(&b, 2, MODE_EX);
	store_withdraw(b.store, K, 2);
	store_acquire(b.store, K, 3, MODE_SH, false, "1 test");
	await_event(&b, EV_QUEUED, K, 3, 1);
	store_give_back(a.store, K, MODE_NONE, fence);
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
		store_acquire(a.store, key, (uint64_t)i + 100, MODE_EX, false, "1 test");
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
	store_acquire(b.store, "f:other", 9, MODE_EX, true, "1 test");
	await_event(&b, EV_BUSY, "f:other", 9, 1);
	await_state(&a, STORE_UP, 4);
	assert_true(loop_now_ns() - begun >= TTL * MS);
	await_state(&b, STORE_UP, 4);
	assert_null(host_find(&b, EV_GRANTED, K, 0));
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	assert_null(host_find(&b, EV_LOST, NULL, 0));
	/* the request was re-asserted too: its recall comes with the end of the grace */
	assert_int_equal(await_event(&a, EV_RECALL, K, 0, 1)->fence, again);
	store_give_back(a.store, K, MODE_NONE, again);
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
	assert_int_equal(a.state, STORE_UP);
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

/* --- connections that end --- */

static void test_nothing_is_lost_when_every_connection_is_killed(void **state)
{
	static const char *const kinds[] = { "normal", "pubsub" };
	uint64_t req = 10;

	(void)state;
	for (int round = 0; round < 6; round++) {
		uint64_t fence = acquire(&a, req, MODE_EX);

		wait_in_line(&b, req, MODE_EX);
		host_mark(&a);
		host_mark(&b);
		for (int i = 0; i < 2; i++)
			server_do(&server, "CLIENT KILL TYPE %s", kinds[i]);
		store_give_back(a.store, K, MODE_NONE, fence);
		await_event(&a, EV_COVER, K, 0, 3);
		fence = await_event(&b, EV_GRANTED, K, req, 3)->fence;
		store_give_back(b.store, K, MODE_NONE, fence);
		await_event(&b, EV_COVER, K, 0, 3);
		assert_null(host_find(&a, EV_LOST, NULL, 0));
		assert_null(host_find(&b, EV_LOST, NULL, 0));
		req++;
	}
}

/* A message for host a as the scripts make it, but with the number and incarnation given (NULL: the present one). */
static void message(char *buf, size_t size, unsigned seq, const char *inc, const char *rest)
{
	char present[64] = "", *at;

	if (!inc) {
		snprintf(present, sizeof(present), "%s", strchr(server_do(&server, "HGET dlock:{test/0}:meta inc"), '\n') + 1);
		at = strchr(present, '\r');
		assert_non_null(at);
		*at = '\0';
		inc = present;
	}
	snprintf(buf, size, "\"%u\\x00%s\\x00%s\"", seq, inc, rest);
}

#define R_OF_X "R\\x00f:x\\x0077\\x002"

static void test_a_push_that_was_lost_comes_with_a_renewal_once(void **state)
{
	char text[512];

	(void)state;
	message(text, sizeof(text), 1, NULL, R_OF_X);
	server_do(&server, "HSET dlock:{test/0}:h:%s seq 1", store_host_id(a.store));
	server_do(&server, "ZADD dlock:{test/0}:o:%s 1 %s", store_host_id(a.store), text);
	assert_int_equal(await_event(&a, EV_RECALL, "f:x", 0, 0.6)->fence, 77);
	run_for(loop, 0.9);
	assert_int_equal(host_count(&a, EV_RECALL), 1);
	assert_int_equal(atoi(server_do(&server, "ZCARD dlock:{test/0}:o:%s", store_host_id(a.store)) + 1), 0);
}

static void publish(unsigned seq, const char *inc, const char *rest)
{
	char text[512];

	message(text, sizeof(text), seq, inc, rest);
	server_do(&server, "PUBLISH dlock:{test/0}:p:%s %s", store_host_id(a.store), text);
}

static void test_repeated_foreign_and_damaged_messages_do_no_harm(void **state)
{
	static const char *const damaged[] = {
		"R", "R\\x00", "R\\x00f:x\\x00", "R\\x00f:x\\x0077\\x009", "R\\x00f:x\\x00-7\\x002", "G\\x00f:x\\x001\\x002\\x003", "Q\\x00f:x",
		"T\\x00f:x\\x001\\x002\\x00host", "B\\x00f:x\\x00", "", "GG\\x00f:x", "R\\x00a\\x001\\x002\\x003\\x004\\x005\\x006\\x007\\x008",
		"C\\x00f:x\\x0099999999999999999999999\\x002\\x000",
	};
	char noise[64];

	(void)state;
	publish(1, "old-incarnation", R_OF_X);
	run_for(loop, 0.1);
	assert_int_equal(host_count(&a, EV_RECALL), 0);
	for (int i = 0; i < 3; i++)
		publish(1, NULL, R_OF_X);
	publish(3, NULL, R_OF_X);	/* leaves a gap: taken all the same */
	await_event(&a, EV_RECALL, "f:x", 0, 1);
	run_for(loop, 0.1);
	assert_int_equal(host_count(&a, EV_RECALL), 2);
	host_mark(&a);
	for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++)
		publish(100 + (unsigned)i, NULL, damaged[i]);
	for (int i = 0; i < 3; i++) {
		snprintf(noise, sizeof(noise), "%.*s", i * 9, "x\\x00\\x00\\x00\\x00yz");
		server_do(&server, "PUBLISH dlock:{test/0}:p:%s \"%s\"", store_host_id(a.store), noise);
	}
	run_for(loop, 0.2);
	assert_int_equal(host_count(&a, EV_RECALL) + host_count(&a, EV_GRANTED) + host_count(&a, EV_TRY) + host_count(&a, EV_BUSY), 0);
	acquire(&a, 5, MODE_EX);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
}

static void test_operations_without_a_server_are_kept_and_carried_out_later(void **state)
{
	(void)state;
	server_stop(&server);
	await_state(&a, STORE_CONNECTING, 2);
	assert_non_null(strstr(a.state_text, "127.0.0.1"));
	host_mark(&a);
	store_acquire(a.store, K, 5, MODE_EX, false, "1 test");
	store_acquire(a.store, "f:gone", 6, MODE_EX, false, "1 test");
	store_withdraw(a.store, "f:gone", 6);
	store_status(a.store, (void *)3, NULL);
	await_event(&a, EV_STATUS, "end", 3, 1);
	server_start(&server, "");
	await_event(&a, EV_GRANTED, K, 5, 6);
	run_for(loop, 0.3);
	assert_null(host_find(&a, EV_GRANTED, "f:gone", 6));
}

static void test_scripts_that_the_server_lost_are_sent_again(void **state)
{
	uint64_t fence;

	(void)state;
	for (uint64_t req = 1; req <= 5; req++) {
		server_do(&server, "SCRIPT FLUSH");
		fence = acquire(&a, req, MODE_EX);
		server_do(&server, "SCRIPT FLUSH");
		store_give_back(a.store, K, MODE_NONE, fence);
		await_event(&a, EV_COVER, K, 0, 1);
	}
	run_for(loop, 0.5);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	assert_int_equal(a.state, STORE_UP);
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
	store_give_back(a.store, K, MODE_NONE, fence);
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
	store_acquire(a.store, K, 9, MODE_EX, true, "1 test");
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

static void test_a_copied_state_directory_becomes_a_host_of_its_own(void **state)
{
	char command[256], id[64];

	(void)state;
	acquire(&a, 1, MODE_EX);
	snprintf(id, sizeof(id), "%s", store_host_id(a.store));
	host_stop(&b, true);
	snprintf(command, sizeof(command), "cp %s/session %s/session", a.dir, b.dir);
	assert_int_equal(system(command), 0);
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
	char command[256];

	(void)state;
	acquire(&a, 1, MODE_EX);
	host_stop(&b, true);
	snprintf(command, sizeof(command), "cp %s/session %s/session", a.dir, b.dir);
	assert_int_equal(system(command), 0);
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

/* --- stores that cannot be used --- */

static void test_a_wrong_password_is_refused_with_advice_and_tried_again(void **state)
{
	char path[128];
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/secret", a.dir);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("not this one\n", file);
	fclose(file);
	assert_int_equal(chmod(path, 0600), 0);
	server_do(&server, "CONFIG SET requirepass good");

	host_start(&b);
	await_state(&b, STORE_REFUSED, 2);
	assert_non_null(strstr(b.state_text, "password_file"));

	free(a.config->redis.password_file);
	a.config->redis.password_file = strdup(path);
	host_start(&a);
	await_state(&a, STORE_REFUSED, 2);
	assert_non_null(strstr(a.state_text, "password_file"));
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("good\n", file);
	fclose(file);
	await_state(&a, STORE_UP, 3);
}

static void test_a_policy_that_evicts_locks_is_refused_at_start_and_later(void **state)
{
	(void)state;
	server_do(&server, "CONFIG SET maxmemory-policy allkeys-lru");
	host_start(&a);
	await_state(&a, STORE_REFUSED, 2);
	assert_non_null(strstr(a.state_text, "noeviction"));
	server_do(&server, "CONFIG SET maxmemory-policy noeviction");
	await_state(&a, STORE_UP, 3);
	host_mark(&a);
	server_do(&server, "CONFIG SET maxmemory-policy allkeys-random");
	await_state(&a, STORE_REFUSED, 3);
	store_acquire(a.store, K, 9, MODE_EX, false, "1 test");
	run_for(loop, 1.5);
	assert_null(host_find(&a, EV_GRANTED, K, 9));
	assert_null(host_find(&a, EV_LOST, NULL, 0));	/* it is renewed all the same */
	server_do(&server, "CONFIG SET maxmemory-policy volatile-lru");
	await_event(&a, EV_GRANTED, K, 9, 3);
}

static void test_another_lease_time_is_refused(void **state)
{
	(void)state;
	host_start(&a);
	await_state(&a, STORE_UP, 3);
	b.config->ttl_ms = 2 * TTL;
	host_start(&b);
	await_state(&b, STORE_REFUSED, 3);
	assert_non_null(strstr(b.state_text, "1000ms"));
	assert_non_null(strstr(b.state_text, "2000ms"));
}

static void test_a_replica_is_refused(void **state)
{
	struct server primary = { 0 };

	(void)state;
	server_start(&primary, "");
	server_do(&server, "REPLICAOF 127.0.0.1 %d", primary.port);
	host_start(&a);
	await_state(&a, STORE_REFUSED, 3);
	assert_non_null(strstr(a.state_text, "replica"));
	server_stop(&primary);
	remove_tree(primary.dir);
}

static void test_a_key_of_another_type_fails_only_its_own_request(void **state)
{
	(void)state;
	server_do(&server, "SET dlock:{test/0}:n:f:bad x");
	store_acquire(a.store, "f:bad", 5, MODE_EX, false, "1 test");
	assert_non_null(strstr(await_event(&a, EV_FAILED, "f:bad", 5, 2)->text, "WRONGTYPE"));
	acquire(&a, 6, MODE_EX);
	assert_int_equal(a.state, STORE_UP);
}

static void test_a_record_of_another_type_is_an_error_and_not_a_crash(void **state)
{
	static const char *const keys[] = { "meta", "hosts", "h:", "k:", "o:" };
	char key[128];

	(void)state;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		snprintf(key, sizeof(key), "dlock:{test/0}:%s%s", keys[i], strchr(keys[i], ':') ? store_host_id(a.store) : "");
		server_do(&server, "SET %s x", key);
		store_acquire(a.store, "f:y", 20 + i, MODE_EX, false, "1 test");
		run_for(loop, 0.5);
		server_do(&server, "DEL %s", key);
		await_state(&a, STORE_UP, 6);
	}
}

static void test_a_full_store_fails_the_request_and_still_takes_locks_back(void **state)
{
	uint64_t fence = acquire(&a, 1, MODE_EX);

	(void)state;
	server_do(&server, "CONFIG SET maxmemory 1");
	store_acquire(a.store, "f:more", 5, MODE_EX, false, "1 test");
	assert_non_null(strstr(await_event(&a, EV_FAILED, "f:more", 5, 2)->text, "memory"));
	store_give_back(a.store, K, MODE_NONE, fence);
	assert_int_equal(await_event(&a, EV_COVER, K, 0, 1)->mode, MODE_NONE);
	run_for(loop, 1.5);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	server_do(&server, "CONFIG SET maxmemory 0");
	acquire(&a, 6, MODE_EX);
}

static void test_a_unix_socket_serves_as_well(void **state)
{
	char text[160];

	(void)state;
	snprintf(text, sizeof(text), "unix://%s/sock", server.dir);
	free(a.config->redis.servers[0]);
	a.config->redis.servers[0] = strdup(text);
	host_start(&a);
	await_state(&a, STORE_UP, 3);
	acquire(&a, 1, MODE_EX);
}

static void test_a_server_address_that_is_none_is_refused_at_once(void **state)
{
	static const char *const bad[] = {
		"", "127.0.0.1:6379", "redis://", "redis://:6379", "redis://h:0", "redis://h:99999", "redis://h:12x", "redis://h/x",
		"redis://u@h", "unix://relative", "http://h", "redis://[::1",
	};
	struct store_events events = { 0 };
	struct store *store;
	char text[512];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		free(a.config->redis.servers[0]);
		a.config->redis.servers[0] = strdup(bad[i]);
		assert_int_equal(store_redis_new(loop, a.config, a.dir, &events, NULL, &store, text, sizeof(text)), -EINVAL);
		assert_non_null(strstr(text, "redis://HOST"));
	}
}

/* --- a server that is not one --- */

struct liar {
	int fd, port;
	const char *answer;
	size_t len;
	_Atomic int served;
	pthread_t thread;
};

static void *liar_main(void *arg)
{
	struct liar *liar = arg;
	char bytes[4096];
	int fd;

	while ((fd = accept(liar->fd, NULL, NULL)) >= 0) {
		if (recv(fd, bytes, sizeof(bytes), 0) > 0)
			for (int i = 0; i < 40; i++)
				if (send(fd, liar->answer, liar->len, MSG_NOSIGNAL) < 0)
					break;
		shutdown(fd, SHUT_WR);
		close(fd);
		liar->served++;
	}
	return NULL;
}

static bool served(void *arg)
{
	return ((struct liar *)arg)->served >= 3;
}

static void lie(const char *answer, size_t len)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct liar liar = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .answer = answer, .len = len };
	socklen_t size = sizeof(addr);
	char text[64];

	assert_int_equal(bind(liar.fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(liar.fd, 16), 0);
	assert_int_equal(getsockname(liar.fd, (struct sockaddr *)&addr, &size), 0);
	assert_int_equal(pthread_create(&liar.thread, NULL, liar_main, &liar), 0);
	snprintf(text, sizeof(text), "redis://localhost:%d", ntohs(addr.sin_port));
	free(a.config->redis.servers[0]);
	a.config->redis.servers[0] = strdup(text);
	host_start(&a);
	assert_true(run_until(loop, served, &liar, 10));
	assert_true(a.state == STORE_CONNECTING || a.state == STORE_REFUSED);
	host_stop(&a, false);
	shutdown(liar.fd, SHUT_RDWR);
	pthread_join(liar.thread, NULL);
	close(liar.fd);
}

static void test_answers_that_are_not_redis_do_no_harm(void **state)
{
	static const struct { const char *text; size_t len; } answers[] = {
		{ "HTTP/1.1 400 Bad Request\r\n\r\n", 28 }, { "$99999999999999\r\n", 17 }, { "*2147483647\r\n", 13 }, { "*-7\r\n", 5 }, { "$-7\r\n", 5 },
		{ "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", 40 }, { "+OK\r\n", 5 }, { "-ERR no\r\n", 9 }, { ":1\r\n", 4 },
		{ "*0\r\n", 4 }, { "$0\r\n\r\n", 6 }, { "$3\r\nabc\r\n", 9 }, { "\0\0\0\0", 4 }, { "*1\r\n$-1\r\n", 9 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		lie(answers[i].text, answers[i].len);
}

/* A relay to the real server that damages one byte of what the server says. */
struct relay {
	int fd;
	unsigned seed;
	atomic_int stop;
	pthread_t thread;
};

struct relay_pair { int client, server; long damage_at; };

static bool relay_pass(struct relay *relay, struct relay_pair *pair, bool from_server)
{
	char bytes[8192];
	ssize_t n = recv(from_server ? pair->server : pair->client, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n <= 0)
		return n < 0 && errno == EAGAIN;
	if (from_server) {
		if (pair->damage_at < n && pair->damage_at >= 0)
			bytes[pair->damage_at] = (char)(rand_r(&relay->seed) % 3 ? "\r\n*$:+-019"[rand_r(&relay->seed) % 10] : rand_r(&relay->seed));
		pair->damage_at -= n;
	}
	return send(from_server ? pair->client : pair->server, bytes, (size_t)n, MSG_NOSIGNAL) == n;
}

static void *relay_main(void *arg)
{
	struct relay *relay = arg;
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct relay_pair pairs[64];
	struct pollfd fds[1 + 2 * 64];
	int count = 0;

	while (!relay->stop) {
		fds[0] = (struct pollfd){ .fd = relay->fd, .events = POLLIN };
		for (int i = 0; i < count; i++) {
			fds[1 + 2 * i] = (struct pollfd){ .fd = pairs[i].client, .events = POLLIN };
			fds[2 + 2 * i] = (struct pollfd){ .fd = pairs[i].server, .events = POLLIN };
		}
		if (poll(fds, (nfds_t)(1 + 2 * count), 20) <= 0)
			continue;
		for (int i = count - 1; i >= 0; i--) {
			if ((!fds[1 + 2 * i].revents || relay_pass(relay, &pairs[i], false)) && (!fds[2 + 2 * i].revents || relay_pass(relay, &pairs[i], true)))
				continue;
			close(pairs[i].client);
			close(pairs[i].server);
			pairs[i] = pairs[--count];
		}
		if (fds[0].revents && count < 64) {
			pairs[count].client = accept(relay->fd, NULL, NULL);
			pairs[count].server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			pairs[count].damage_at = rand_r(&relay->seed) % 9000;	/* the first replies are 5 kB, the rest the session */
			if (connect(pairs[count].server, (struct sockaddr *)&addr, sizeof(addr)) < 0)
				pairs[count].damage_at = -1;
			count++;
		}
	}
	while (count-- > 0) {
		close(pairs[count].client);
		close(pairs[count].server);
	}
	return NULL;
}

static void test_damaged_answers_never_end_the_agent(void **state)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct relay relay = { .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .seed = 4711 };
	socklen_t size = sizeof(addr);
	char text[64];
	uint64_t req = 1000;

	(void)state;
	assert_int_equal(bind(relay.fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(relay.fd, 64), 0);
	assert_int_equal(getsockname(relay.fd, (struct sockaddr *)&addr, &size), 0);
	assert_int_equal(pthread_create(&relay.thread, NULL, relay_main, &relay), 0);
	snprintf(text, sizeof(text), "redis://127.0.0.1:%d", ntohs(addr.sin_port));
	free(a.config->redis.servers[0]);
	a.config->redis.servers[0] = strdup(text);
	host_start(&b);
	for (int round = 0; round < 12; round++) {
		host_start(&a);
		for (int i = 0; i < 20; i++) {
			store_acquire(a.store, K, req++, MODE_EX, i % 3 == 0, "1 test");
			store_acquire(b.store, K, req++, MODE_EX, i % 2 == 0, "1 test");
			store_status(a.store, NULL, NULL);
			run_for(loop, 0.01);
			if (a.cover_count)
				store_give_back(a.store, K, MODE_NONE, a.covers[0].fence);
			if (b.cover_count)
				store_give_back(b.store, K, MODE_NONE, b.covers[0].fence);
		}
		host_stop(&a, true);
	}
	relay.stop = 1;
	pthread_join(relay.thread, NULL);
	close(relay.fd);
	assert_true(host_count(&a, EV_GRANTED) > 0);
}

static void test_a_store_can_end_in_the_middle_of_connecting(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++) {
		host_start(&a);
		run_for(loop, i * 0.0005);
		host_stop(&a, i % 2);
	}
}

#define STARTED(test) cmocka_unit_test_setup_teardown(test, set_up_started, tear_down)
#define BARE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		STARTED(test_a_waiting_host_is_granted_when_the_holder_gives_back),
		STARTED(test_a_give_back_of_another_fence_frees_nothing),
		STARTED(test_a_holder_can_lower_its_cover_for_a_reader),
		STARTED(test_a_try_is_refused_by_the_holder_and_granted_when_it_gives_back),
		STARTED(test_a_withdrawn_request_is_not_granted),
		STARTED(test_many_operations_in_a_row_are_answered_in_order),
		STARTED(test_status_shows_hosts_covers_and_waiters),
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
		STARTED(test_nothing_is_lost_when_every_connection_is_killed),
		STARTED(test_a_push_that_was_lost_comes_with_a_renewal_once),
		STARTED(test_repeated_foreign_and_damaged_messages_do_no_harm),
		STARTED(test_operations_without_a_server_are_kept_and_carried_out_later),
		STARTED(test_scripts_that_the_server_lost_are_sent_again),
		STARTED(test_an_agent_that_starts_again_resumes_its_covers),
		STARTED(test_an_agent_that_starts_in_a_grace_claims_what_its_predecessor_held),
		STARTED(test_an_agent_that_starts_in_a_grace_too_late_has_lost_what_its_predecessor_held),
		STARTED(test_after_a_reboot_the_old_session_ends_at_once),
		STARTED(test_a_copied_state_directory_becomes_a_host_of_its_own),
		STARTED(test_an_agent_whose_session_another_took_over_is_told),
		STARTED(test_the_session_file_is_private),
		BARE(test_a_wrong_password_is_refused_with_advice_and_tried_again),
		BARE(test_a_policy_that_evicts_locks_is_refused_at_start_and_later),
		BARE(test_another_lease_time_is_refused),
		BARE(test_a_replica_is_refused),
		STARTED(test_a_key_of_another_type_fails_only_its_own_request),
		STARTED(test_a_record_of_another_type_is_an_error_and_not_a_crash),
		STARTED(test_a_full_store_fails_the_request_and_still_takes_locks_back),
		BARE(test_a_unix_socket_serves_as_well),
		BARE(test_a_server_address_that_is_none_is_refused_at_once),
		BARE(test_answers_that_are_not_redis_do_no_harm),
		BARE(test_damaged_answers_never_end_the_agent),
		BARE(test_a_store_can_end_in_the_middle_of_connecting),
	};

	log_set_level(getenv("TEST_VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
