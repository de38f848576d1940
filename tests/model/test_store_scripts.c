/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/test_store_scripts.c tests/model/model_text.c tests/model/store_server.c daemon-lite/store/store_model.c daemon-lite/store/store_model_lock.c daemon-lite/store/store_model_check.c build/lua_scripts.c */
/* LIBS: hiredis */
/*
 * The scripts on a real server where the model has nothing to say: keys of a
 * wrong type, damaged records, no memory left, numbers near 2^53, status; and,
 * as readable examples, the rules of covers and queue one by one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_text.h"
#include "store_server.h"

static struct store_server server;
static char inc[64];

/* --- helpers ---------------------------------------------------------------- */

static char *joined(const redisReply *reply)
{
	static char text[8192];
	struct lines lines = { 0 };
	size_t len = 0;

	text[0] = 0;
	lines_of_lua_reply(reply, &lines);
	for (size_t i = 0; i < lines.count && len < sizeof(text); i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s", i ? " " : "", lines.text[i]);
	lines_free(&lines);
	return text;
}

/* Runs a script as host "A", "B"… (token tA…, generation 1), and gives its reply without "ok inc grace". */
static const char *as(const char *host, enum lua_script_id id, const char *const *words)
{
	const char *argv[40];
	char token[8];
	redisReply *reply;
	const char *text;
	int argc = 0;

	snprintf(token, sizeof(token), "t%s", host);
	argv[argc++] = host;
	argv[argc++] = token;
	argv[argc++] = id == LUA_RENEW ? "renew" : "cmd";
	argv[argc++] = id == LUA_ATTACH ? "0" : "1";
	argv[argc++] = inc;
	argv[argc++] = "30000";
	argv[argc++] = "0";
	for (; *words; words++)
		argv[argc++] = *words;
	reply = store_server_run(&server, id, argc, argv);
	text = joined(reply);
	if (!strncmp(text, "ok ", 3)) {
		text += 3 + strcspn(text + 3, " ");
		text += strlen(" 0 ");
	}
	freeReplyObject(reply);
	return text;
}

#define AS(host, id, ...) as(host, id, (const char *const[]){ __VA_ARGS__, NULL })
#define ACQUIRE(host, key, req, mode) AS(host, LUA_ACQUIRE, key, req, mode, "0", "1 cmd")
#define TRY(host, key, req, mode) AS(host, LUA_ACQUIRE, key, req, mode, "1", "1 cmd")
#define GIVEBACK(host, key, keep, fence) AS(host, LUA_GIVEBACK, key, keep, fence)

static const char *command(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *command(const char *format, ...)
{
	char line[512];
	va_list args;
	redisReply *reply;
	const char *text;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	reply = store_server_command(&server, line);
	if (reply->type == REDIS_REPLY_INTEGER) {
		static char number[32];

		snprintf(number, sizeof(number), "%lld", reply->integer);
		text = number;
	} else if (reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_NIL) {
		text = reply->type == REDIS_REPLY_NIL ? "(nil)" : "status";
	} else {
		text = joined(reply);
	}
	freeReplyObject(reply);
	return text;
}

/* The next push: "HOST: fields" without number and incarnation. */
static const char *next_push(void)
{
	static char text[8192];
	redisReply *reply = store_server_next_push(&server);
	const char *host = reply->element[2]->str + strlen(TEST_PREFIX "p:");
	const char *message = reply->element[3]->str;
	size_t len = (size_t)reply->element[3]->len, from = strlen(message) + 1;
	int n;

	from += strlen(message + from) + 1;
	n = snprintf(text, sizeof(text), "%s:", host);
	while (from < len) {
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s", message + from);
		from += strlen(message + from) + 1;
	}
	freeReplyObject(reply);
	return text;
}

/* Everything on the server, as one text: to see that nothing changed. */
static char *whole_state(void)
{
	redisReply *reply = store_server_command(&server, "EVAL %s 1 %s", dump_script, TEST_PREFIX);
	struct lines lines = { 0 };
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	lines_of_lua_reply(reply, &lines);
	lines_sort(&lines);
	for (size_t i = 0; i < lines.count; i++)
		fprintf(out, "%s\n", lines.text[i]);
	fclose(out);
	lines_free(&lines);
	freeReplyObject(reply);
	return text;
}

static void learn_inc(void)
{
	redisReply *reply = store_server_command(&server, "HGET %smeta inc", TEST_PREFIX);

	snprintf(inc, sizeof(inc), "%s", reply->str ? reply->str : "");
	freeReplyObject(reply);
}

static void attach(const char *host)
{
	char token[8];

	snprintf(token, sizeof(token), "t%s", host);
	assert_non_null(strstr(AS(host, LUA_ATTACH, token, "", "a host"), "joined 1 1"));
}

/* An empty, initialized store with the hosts A, B and C. */
static int fresh_store(void **state)
{
	(void)state;
	command("FLUSHALL");
	AS("A", LUA_INIT, "");
	learn_inc();
	attach("A");
	attach("B");
	attach("C");
	return 0;
}

/* --- the rules, one by one ---------------------------------------------------- */

static void test_exclusive_excludes_another_host_and_its_recall_names_the_fence(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted 2 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x 1 2");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(next_push(), "B: G f:x 1 2 2 0");
}

static void test_shared_covers_stand_together_and_hold_an_exclusive_request_back(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted 1 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "1"), "granted 1 2 0");
	assert_string_equal(ACQUIRE("C", "f:x", "1", "2"), "queued");
	next_push();
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover 0 0 0");
	assert_string_equal(next_push(), "C: G f:x 1 2 3 0");
}

static void test_giving_back_an_old_fence_frees_nothing_newer(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted 2 1 0");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(ACQUIRE("A", "f:x", "2", "2"), "granted 2 2 0");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 2 2 0");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover 0 0 0");
	assert_string_equal(TRY("B", "f:x", "1", "2"), "queued");
	next_push();
}

static void test_a_waiting_writer_is_not_passed_by_readers_of_a_third_host(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted 1 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	assert_string_equal(ACQUIRE("C", "f:x", "1", "1"), "queued");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(next_push(), "B: G f:x 1 2 2 1");	/* told that a reader waits */
}

static void test_a_try_passes_a_waiting_writer_and_is_told_of_it(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted 1 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	assert_string_equal(TRY("C", "f:x", "1", "1"), "granted 1 2 2");
}

static void test_a_try_is_refused_by_the_holder_or_granted_when_it_gives_back(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted 2 1 0");
	assert_string_equal(TRY("B", "f:x", "7", "1"), "queued");
	assert_string_equal(next_push(), "A: T f:x 1 1 B 7");
	assert_string_equal(AS("A", LUA_BUSY, "f:x", "B", "7"), "busy 1");
	assert_string_equal(next_push(), "B: B f:x 7");
	assert_string_equal(AS("A", LUA_BUSY, "f:x", "B", "7"), "busy 0");
	assert_string_equal(TRY("B", "f:x", "8", "1"), "queued");
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "1", "1"), "cover 1 2 0");
	assert_string_equal(next_push(), "B: G f:x 8 1 3 0");
}

static void test_an_upgrade_waits_for_other_hosts_only(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "1"), "granted 1 1 0");
	assert_string_equal(ACQUIRE("A", "f:x", "2", "2"), "granted 2 2 0");
	assert_string_equal(GIVEBACK("A", "f:x", "1", "2"), "cover 1 3 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "1"), "granted 1 4 0");
	assert_string_equal(ACQUIRE("A", "f:x", "3", "2"), "queued");
	assert_string_equal(next_push(), "B: R f:x 4 2");
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x 3 2");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "4"), "cover 0 0 0");
	assert_string_equal(next_push(), "A: G f:x 3 2 5 2");
}

static void test_each_request_has_its_own_place_and_repeating_it_keeps_that_place(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted 2 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x 1 2");
	assert_string_equal(ACQUIRE("C", "f:x", "1", "2"), "queued");	/* A was told already */
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");	/* a repeated packet */
	assert_string_equal(next_push(), "A: R f:x 1 2");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(next_push(), "B: G f:x 1 2 2 2");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "2"), "withdrawn 1");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "2"), "withdrawn 0");
	assert_string_equal(GIVEBACK("B", "f:x", "0", "2"), "cover 0 0 0");
	assert_string_equal(next_push(), "C: G f:x 1 2 3 0");
}

static void test_a_host_expires_only_with_the_counter_that_was_seen(void **state)
{
	(void)state;
	assert_string_equal(ACQUIRE("A", "f:x", "1", "2"), "granted 2 1 0");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	next_push();
	command("HINCRBY " TEST_PREFIX "hosts A 1");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 0");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 1");
	assert_string_equal(next_push(), "B: G f:x 1 2 2 0");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "2", "2"), "refused token"));
	assert_string_equal(command("EXISTS " TEST_PREFIX "h:A " TEST_PREFIX "k:A " TEST_PREFIX "o:A"), "0");
}

static void test_push_numbers_of_a_host_go_on_when_it_comes_back(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "1", "2");
	next_push();
	assert_string_equal(AS("A", LUA_LEAVE, ""), "left");
	next_push();
	assert_string_equal(AS("A", LUA_ATTACH, "tA", "", "i"), "joined 1 1 1 2");
}

/* An observer saw A with 1, then with 1 again after A left and came back: it must not take them for one silent host. */
static void test_counter_of_a_host_that_comes_back_is_a_new_one(void **state)
{
	(void)state;
	assert_string_equal(command("HGET " TEST_PREFIX "hosts A"), "1");
	assert_string_equal(AS("A", LUA_LEAVE, ""), "left");
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "joined"));
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 0");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 1");
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "joined"));
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "2"), "expired 0");
}

static void test_emptied_store_grants_nothing_until_the_grace_ends(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	command("FLUSHALL");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "2", "2"), "refused inc"));
	learn_inc();
	AS("B", LUA_ATTACH, "tB", "", "i");
	assert_string_equal(TRY("B", "f:x", "1", "2"), "busy");
	assert_string_equal(ACQUIRE("B", "f:x", "2", "2"), "queued");
	assert_string_equal(AS("A", LUA_REASSERT, "tA", "i", "1", "0", "1", "f:x", "2", "1 cmd", "0"), "asserted 1 0 2");
	assert_string_equal(AS("B", LUA_ENDGRACE, ""), "ended 1");
	assert_string_equal(next_push(), "A: R f:x 2 2");	/* in grace nobody was recalled */
	assert_string_equal(AS("B", LUA_ENDGRACE, ""), "ended 0");
}

/* --- what must not do harm ------------------------------------------------------ */

static void test_lock_key_of_another_type_is_an_error_and_changes_nothing(void **state)
{
	static const enum lua_script_id ids[] = { LUA_ACQUIRE, LUA_WITHDRAW, LUA_GIVEBACK, LUA_BUSY };
	char *before, *after;

	(void)state;
	command("LPUSH " TEST_PREFIX "n:f:x a");
	command("DEL " TEST_PREFIX "none");
	before = strdup(command("LRANGE " TEST_PREFIX "n:f:x 0 -1"));
	for (size_t i = 0; i < 4; i++)
		assert_non_null(strstr(AS("A", ids[i], "f:x", "1", "1", "0", "i"), "WRONGTYPE"));
	assert_string_equal(command("LRANGE " TEST_PREFIX "n:f:x 0 -1"), before);
	assert_string_equal(command("EXISTS " TEST_PREFIX "k:A"), "0");
	free(before);

	command("DEL " TEST_PREFIX "n:f:x");
	command("SET " TEST_PREFIX "k:A a");
	before = strdup(command("HGETALL " TEST_PREFIX "meta"));
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), "WRONGTYPE"));
	assert_string_equal(command("EXISTS " TEST_PREFIX "n:f:x"), "0");
	after = strdup(command("HGET " TEST_PREFIX "meta grace"));
	assert_string_equal(after, "0");
	free(before);
	free(after);
}

static void test_a_damaged_record_is_an_error_and_changes_nothing(void **state)
{
	char *before, *after;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	command("HSET " TEST_PREFIX "n:f:x c/Z rubbish");
	before = whole_state();
	assert_non_null(strstr(ACQUIRE("B", "f:x", "1", "2"), "damaged"));
	assert_non_null(strstr(GIVEBACK("A", "f:x", "0", "1"), "damaged"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_outbox_of_another_type_is_made_anew(void **state)
{
	(void)state;
	command("SET " TEST_PREFIX "o:A rubbish");
	ACQUIRE("A", "f:x", "1", "2");
	assert_string_equal(ACQUIRE("B", "f:x", "1", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x 1 2");
	assert_string_equal(command("ZCARD " TEST_PREFIX "o:A"), "1");
}

static void test_one_bad_key_does_not_keep_a_dead_hosts_other_locks(void **state)
{
	(void)state;
	ACQUIRE("A", "f:a", "1", "2");
	ACQUIRE("A", "f:b", "2", "2");
	ACQUIRE("B", "f:b", "1", "2");
	next_push();
	command("SET " TEST_PREFIX "n:f:a rubbish");
	assert_string_equal(AS("B", LUA_EXPIRE, "A", "1"), "expired 1");
	assert_string_equal(next_push(), "B: G f:b 1 2 3 0");
}

static void test_at_maxmemory_nothing_new_is_granted_but_covers_are_given_back(void **state)
{
	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "1", "2");
	next_push();
	command("CONFIG SET maxmemory 1");
	assert_non_null(strstr(ACQUIRE("A", "f:y", "2", "2"), "OOM"));
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	assert_string_equal(next_push(), "B: G f:x 1 2 2 0");
	assert_non_null(strstr(AS("B", LUA_ATTACH, "tB", "", "i"), "resumed"));
	command("CONFIG SET maxmemory 0");
}

static void test_numbers_near_two_to_the_53_stay_exact(void **state)
{
	(void)state;
	command("HSET " TEST_PREFIX "meta fence 9007199254740980 ticket 9007199254740980");
	assert_string_equal(ACQUIRE("A", "f:x", "18446744073709551614", "2"), "granted 2 9007199254740981 0");
	assert_string_equal(ACQUIRE("B", "f:x", "18446744073709551615", "2"), "queued");
	assert_string_equal(next_push(), "A: R f:x 9007199254740981 2");
	assert_string_equal(ACQUIRE("B", "f:x", "18446744073709551614", "2"), "queued");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "18446744073709551614"), "withdrawn 1");
	assert_string_equal(AS("B", LUA_WITHDRAW, "f:x", "18446744073709551613"), "withdrawn 0");
	assert_string_equal(GIVEBACK("A", "f:x", "0", "9007199254740981"), "cover 0 0 0");
	assert_string_equal(next_push(), "B: G f:x 18446744073709551615 2 9007199254740982 0");
}

static void test_names_may_hold_any_byte_but_nul(void **state)
{
	char name[4300] = "f:\n \t\"\\%s{}\xc3\xa9\xff";

	(void)state;
	memset(name + strlen(name), 'x', 4095);
	assert_string_equal(ACQUIRE("A", name, "1", "2"), "granted 2 1 0");
	assert_string_equal(ACQUIRE("B", name, "1", "2"), "queued");
	assert_non_null(strstr(next_push(), name));
	assert_non_null(strstr(AS("A", LUA_STATUS, "0", name), name));
	assert_string_equal(GIVEBACK("A", name, "0", "1"), "cover 0 0 0");
	next_push();
}

static void test_a_queue_longer_than_a_listpack_keeps_its_order(void **state)
{
	char req[16], fence[16], expected[64];

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	for (int i = 100; i < 500; i++) {
		snprintf(req, sizeof(req), "%d", i);
		assert_string_equal(ACQUIRE(i % 2 ? "B" : "C", "f:x", req, "2"), "queued");
	}
	next_push();
	assert_string_equal(GIVEBACK("A", "f:x", "0", "1"), "cover 0 0 0");
	for (int i = 100; i < 500; i++) {
		const char *host = i % 2 ? "B" : "C";

		snprintf(expected, sizeof(expected), "%s: G f:x %d 2 %d %d", host, i, i - 98, i < 499 ? 2 : 0);
		assert_string_equal(next_push(), expected);
		snprintf(fence, sizeof(fence), "%d", i - 98);
		GIVEBACK(host, "f:x", "0", fence);
	}
}

static void test_status_shows_everything_and_needs_no_session(void **state)
{
	const char *text;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	ACQUIRE("B", "f:x", "5", "1");
	next_push();
	ACQUIRE("C", "f:y", "6", "1");
	command("SET " TEST_PREFIX "n:f:z rubbish");
	command("SADD " TEST_PREFIX "k:C f:z");
	text = AS("Z", LUA_STATUS, "0");
	assert_non_null(strstr(text, "status meta|1|"));
	assert_non_null(strstr(text, "|30000|2|1|"));
	assert_non_null(strstr(text, "|master|1"));
	assert_non_null(strstr(text, "host|A|1|"));
	assert_non_null(strstr(text, "|1|a host|1|1"));
	assert_non_null(strstr(text, "cover|f:x|A|2|1|"));
	assert_non_null(strstr(text, "wait|f:x|B|5|1|1|0|"));
	assert_non_null(strstr(text, "bad|f:z|string"));
	assert_non_null(strstr(text, "end|3|0"));
	assert_non_null(strstr(AS("Z", LUA_STATUS, "1"), "end|1|2"));
	text = AS("Z", LUA_STATUS, "0", "f:y");
	assert_non_null(strstr(text, "cover|f:y|C|1|2|"));
	assert_null(strstr(text, "f:x"));
	command("FLUSHALL");
	assert_non_null(strstr(AS("Z", LUA_STATUS, "0"), "status meta|||||||"));
	assert_string_equal(command("DBSIZE"), "0");
}

static void test_a_question_reaches_every_other_host_that_listens_and_changes_nothing(void **state)
{
	char *before, *after;

	(void)state;
	ACQUIRE("A", "f:x", "1", "2");
	before = whole_state();
	/* The test's server listens for all hosts. */
	assert_string_equal(AS("A", LUA_ASK, "77", "f:x"), "asked B C");
	assert_string_equal(next_push(), "B: D A 77 f:x");
	assert_string_equal(next_push(), "C: D A 77 f:x");
	assert_string_equal(AS("A", LUA_ASK, "78", ""), "asked B C");
	assert_string_equal(next_push(), "B: D A 78");
	next_push();
	assert_string_equal(AS("B", LUA_TELL, "A", "77", "0", "1", "record=holder\tkey=f:x\n"), "told 1");
	assert_non_null(strstr(next_push(), "A: A B 77 0 1 record=holder\tkey=f:x\n"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_only_a_host_of_the_session_may_ask_or_tell(void **state)
{
	char *before = whole_state(), *after;

	(void)state;
	assert_non_null(strstr(AS("Z", LUA_ASK, "77", ""), "refused token"));
	assert_non_null(strstr(AS("Z", LUA_TELL, "A", "77", "0", "1", ""), "refused token"));
	after = whole_state();
	assert_string_equal(before, after);
	free(before);
	free(after);
}

static void test_init_says_once_that_a_store_is_new(void **state)
{
	(void)state;
	assert_non_null(strstr(AS("A", LUA_INIT, ""), "refused exists"));
	assert_non_null(strstr(AS("A", LUA_ATTACH, "tA", "", "i"), "resumed"));
}

static void test_another_lease_time_is_refused(void **state)
{
	(void)state;
	command("HSET " TEST_PREFIX "meta ttl 10000");
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), "refused ttl"));
	assert_non_null(strstr(ACQUIRE("A", "f:x", "1", "2"), " 10000"));
}

static int start_server(void **state)
{
	(void)state;
	return store_server_start(&server);
}

static int stop_server(void **state)
{
	(void)state;
	store_server_stop(&server);
	return 0;
}

#define STORE_TEST(name) cmocka_unit_test_setup(name, fresh_store)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(test_exclusive_excludes_another_host_and_its_recall_names_the_fence),
		STORE_TEST(test_shared_covers_stand_together_and_hold_an_exclusive_request_back),
		STORE_TEST(test_giving_back_an_old_fence_frees_nothing_newer),
		STORE_TEST(test_a_waiting_writer_is_not_passed_by_readers_of_a_third_host),
		STORE_TEST(test_a_try_passes_a_waiting_writer_and_is_told_of_it),
		STORE_TEST(test_a_try_is_refused_by_the_holder_or_granted_when_it_gives_back),
		STORE_TEST(test_an_upgrade_waits_for_other_hosts_only),
		STORE_TEST(test_each_request_has_its_own_place_and_repeating_it_keeps_that_place),
		STORE_TEST(test_a_host_expires_only_with_the_counter_that_was_seen),
		STORE_TEST(test_counter_of_a_host_that_comes_back_is_a_new_one),
		STORE_TEST(test_push_numbers_of_a_host_go_on_when_it_comes_back),
		STORE_TEST(test_emptied_store_grants_nothing_until_the_grace_ends),
		STORE_TEST(test_lock_key_of_another_type_is_an_error_and_changes_nothing),
		STORE_TEST(test_a_damaged_record_is_an_error_and_changes_nothing),
		STORE_TEST(test_outbox_of_another_type_is_made_anew),
		STORE_TEST(test_one_bad_key_does_not_keep_a_dead_hosts_other_locks),
		STORE_TEST(test_at_maxmemory_nothing_new_is_granted_but_covers_are_given_back),
		STORE_TEST(test_numbers_near_two_to_the_53_stay_exact),
		STORE_TEST(test_names_may_hold_any_byte_but_nul),
		STORE_TEST(test_a_queue_longer_than_a_listpack_keeps_its_order),
		STORE_TEST(test_status_shows_everything_and_needs_no_session),
		STORE_TEST(test_a_question_reaches_every_other_host_that_listens_and_changes_nothing),
		STORE_TEST(test_only_a_host_of_the_session_may_ask_or_tell),
		STORE_TEST(test_init_says_once_that_a_store_is_new),
		STORE_TEST(test_another_lease_time_is_refused),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
