/* SPDX-License-Identifier: MIT */
/* LINK: tests/unit/redis_pair.c tests/unit/redis_bench.c daemon-lite/loop.c daemon-lite/log.c daemon-lite/store/redis_conn.c daemon-lite/store/redis_dial.c
 * daemon-lite/store/redis_file.c daemon-lite/store/redis_init.c daemon-lite/store/redis_link.c daemon-lite/store/redis_observe.c
 * daemon-lite/store/redis_open.c daemon-lite/store/redis_ops.c daemon-lite/store/redis_push.c daemon-lite/store/redis_renew.c
 * daemon-lite/store/redis_script.c daemon-lite/store/redis_session.c daemon-lite/store/redis_shared.c daemon-lite/store/redis_spans.c daemon-lite/store/redis_store.c
 * daemon-lite/store/redis_news.c daemon-lite/store/redis_reassert.c daemon-lite/store/redis_value.c daemon-lite/store/redis_watch.c build/lua_scripts.c
 * config/check.c config/config.c config/config_file.c config/duration.c config/lex.c config/links.c config/pattern.c config/rules.c config/rules_write.c config/runtime_dir.c config/suggest.c */
/* LIBS: hiredis libconfig uuid */
/* The Redis store against a real server: connections that end, servers that cannot be used, answers that are wrong. */
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
		give_back(&a, MODE_NONE, fence);
		await_event(&a, EV_COVER, K, 0, 3);
		fence = await_event(&b, EV_GRANTED, K, req, 3)->fence;
		give_back(&b, MODE_NONE, fence);
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

#define SPAN(start, end, mode, fence) "00000000000000" start " 00000000000000" end " " mode " 00000000000000" fence ","
#define R_OF_X "R\\x00f:x\\x00" SPAN("00000", "00009", "2", "77")
#define ONE SPAN("00000", "00009", "1", "77")
#define TWO SPAN("00007", "00019", "1", "78")	/* overlaps the first */

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
		"R", "R\\x00", "R\\x00f:x", "R\\x00f:x\\x00", "R\\x00f:x\\x00" SPAN("00000", "00009", "0", "77"), "R\\x00f:x\\x00" SPAN("00009", "00009", "1", "77"),
		"R\\x00f:x\\x00" TWO ONE, "R\\x00f:x\\x00" ONE "x", "R\\x00f:x\\x00" ONE "\\x00", "R\\x00f:x\\x0077\\x002",
		"Q\\x00f:x\\x00" ONE, "RR\\x00f:x\\x00" ONE,
		"G\\x00f:x\\x001\\x002\\x003\\x000", "G\\x00f:x\\x001\\x00\\x00", "G\\x00f:x\\x00x\\x00" ONE "\\x00", "G\\x00f:x\\x001\\x00" ONE,
		"G\\x00f:x\\x001\\x00" ONE TWO "\\x00", "G\\x00f:x\\x001\\x00" ONE SPAN("00009", "00019", "1", "78") "\\x00",
		"G\\x00f:x\\x001\\x00" ONE "\\x00" TWO ONE, "G\\x00f:x\\x001\\x00" ONE "\\x00" ONE "\\x00",
		"T\\x00f:x\\x00" ONE "\\x00host", "T\\x00f:x\\x00" ONE "\\x00host\\x00x", "T\\x00f:x\\x00\\x00host\\x001", "T\\x00f:x\\x00" ONE TWO "\\x00host\\x001",
		"B\\x00f:x\\x00", "B\\x00f:x\\x001\\x00", "", "R\\x00a\\x001\\x002\\x003\\x004\\x005\\x006\\x007\\x008",
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
	store_acquire(a.store, K, 5, EXTENT_ALL, MODE_EX, 0, "1 test");
	store_acquire(a.store, "f:gone", 6, EXTENT_ALL, MODE_EX, 0, "1 test");
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
		give_back(&a, MODE_NONE, fence);
		await_event(&a, EV_COVER, K, 0, 1);
	}
	run_for(loop, 0.5);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	assert_int_equal(a.state, STORE_UP);
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
	store_acquire(a.store, K, 9, EXTENT_ALL, MODE_EX, 0, "1 test");
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

static void test_a_namespace_of_another_protocol_is_refused(void **state)
{
	(void)state;
	host_start(&a);
	await_state(&a, STORE_UP, 3);
	server_do(&server, "HSET dlock:{test/0}:meta proto 1");
	host_start(&b);
	await_state(&b, STORE_REFUSED, 3);
	assert_non_null(strstr(b.state_text, "stop all agents"));
	assert_non_null(strstr(b.state_text, "dlock:{test/0}:"));
	assert_non_null(strstr(b.state_text, "`dlock init`"));
	await_state(&a, STORE_REFUSED, 3);	/* it stood already: the next renewal says it */
	server_do(&server, "HSET dlock:{test/0}:meta proto 2");
	await_state(&b, STORE_UP, 6);
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
	store_acquire(a.store, "f:bad", 5, EXTENT_ALL, MODE_EX, 0, "1 test");
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
		store_acquire(a.store, "f:y", 20 + i, EXTENT_ALL, MODE_EX, 0, "1 test");
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
	store_acquire(a.store, "f:more", 5, EXTENT_ALL, MODE_EX, 0, "1 test");
	assert_non_null(strstr(await_event(&a, EV_FAILED, "f:more", 5, 2)->text, "memory"));
	give_back(&a, MODE_NONE, fence);
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

/* A relay to the real server that damages one byte of what the server says, or swallows what a client says from one word on. */
struct relay {
	int fd;
	const char *_Atomic swallow;
	unsigned seed;
	atomic_int stop;
	pthread_t thread;
};

struct relay_pair { int client, server; long damage_at; bool muted; };

static bool relay_pass(struct relay *relay, struct relay_pair *pair, bool from_server)
{
	char bytes[8192];
	ssize_t n = recv(from_server ? pair->server : pair->client, bytes, sizeof(bytes), MSG_DONTWAIT);

	if (n <= 0)
		return n < 0 && errno == EAGAIN;
	if (!from_server && relay->swallow && memmem(bytes, (size_t)n, relay->swallow, strlen(relay->swallow))) {
		relay->swallow = NULL;
		pair->muted = true;
	}
	if (!from_server && pair->muted)
		return true;
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
			pairs[count].damage_at = relay->seed ? rand_r(&relay->seed) % 9000 : -1;	/* the first replies are 5 kB, the rest the session */
			pairs[count].muted = false;
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

static void relay_start(struct relay *relay)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(addr);
	char text[64];

	relay->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(relay->fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(relay->fd, 64), 0);
	assert_int_equal(getsockname(relay->fd, (struct sockaddr *)&addr, &size), 0);
	assert_int_equal(pthread_create(&relay->thread, NULL, relay_main, relay), 0);
	snprintf(text, sizeof(text), "redis://127.0.0.1:%d", ntohs(addr.sin_port));
	free(a.config->redis.servers[0]);
	a.config->redis.servers[0] = strdup(text);
}

static void relay_stop(struct relay *relay)
{
	relay->stop = 1;
	pthread_join(relay->thread, NULL);
	close(relay->fd);
}

static void test_a_connection_that_leads_nowhere_is_made_anew(void **state)
{
	struct relay relay = { .seed = 0 };

	(void)state;
	relay_start(&relay);
	host_start(&a);
	await_state(&a, STORE_UP, 5);
	host_mark(&a);
	relay.swallow = "f:nowhere";
	store_acquire(a.store, "f:nowhere", 5, EXTENT_ALL, MODE_EX, 0, "1 test");
	await_event(&a, EV_GRANTED, "f:nowhere", 5, 6);
	assert_null(host_find(&a, EV_LOST, NULL, 0));
	host_stop(&a, true);
	relay_stop(&relay);
}

static void test_damaged_answers_never_end_the_agent(void **state)
{
	struct relay relay = { .seed = 4711 };
	uint64_t req = 1000;

	(void)state;
	relay_start(&relay);
	host_start(&b);
	for (int round = 0; round < 12; round++) {
		host_start(&a);
		for (int i = 0; i < 20; i++) {
			store_acquire(a.store, K, req++, EXTENT_ALL, MODE_EX, (i % 3 == 0) ? STORE_TRY : 0, "1 test");
			store_acquire(b.store, K, req++, EXTENT_ALL, MODE_EX, (i % 2 == 0) ? STORE_TRY : 0, "1 test");
			store_status(a.store, NULL, NULL);
			run_for(loop, 0.01);
			if (a.cover_count)
				give_back(&a, MODE_NONE, a.covers[0].spans[0].fence);
			if (b.cover_count)
				give_back(&b, MODE_NONE, b.covers[0].spans[0].fence);
		}
		host_stop(&a, true);
	}
	relay_stop(&relay);
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
		STARTED(test_nothing_is_lost_when_every_connection_is_killed),
		STARTED(test_a_push_that_was_lost_comes_with_a_renewal_once),
		STARTED(test_repeated_foreign_and_damaged_messages_do_no_harm),
		STARTED(test_operations_without_a_server_are_kept_and_carried_out_later),
		STARTED(test_scripts_that_the_server_lost_are_sent_again),
		BARE(test_a_wrong_password_is_refused_with_advice_and_tried_again),
		BARE(test_a_policy_that_evicts_locks_is_refused_at_start_and_later),
		BARE(test_another_lease_time_is_refused),
		BARE(test_a_namespace_of_another_protocol_is_refused),
		BARE(test_a_replica_is_refused),
		STARTED(test_a_key_of_another_type_fails_only_its_own_request),
		STARTED(test_a_record_of_another_type_is_an_error_and_not_a_crash),
		STARTED(test_a_full_store_fails_the_request_and_still_takes_locks_back),
		BARE(test_a_unix_socket_serves_as_well),
		BARE(test_a_server_address_that_is_none_is_refused_at_once),
		BARE(test_answers_that_are_not_redis_do_no_harm),
		BARE(test_a_connection_that_leads_nowhere_is_made_anew),
		BARE(test_damaged_answers_never_end_the_agent),
		BARE(test_a_store_can_end_in_the_middle_of_connecting),
	};

	log_set_level(getenv("TEST_VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
