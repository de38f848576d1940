/* SPDX-License-Identifier: MIT */
/* LINK: tests/model/test_store_model.c tests/model/model_choose.c tests/model/model_text.c tests/model/store_server.c daemon-lite/store/store_model.c daemon-lite/store/store_model_lock.c daemon-lite/store/store_model_tell.c daemon-lite/store/store_model_check.c build/lua_scripts.c */
/* LIBS: hiredis */
/*
 * The store's rules twice: random sequences of operations, with every kind of
 * late, repeated and wrong packet, a server that forgets, and hosts that come
 * back, run through the Lua scripts on a real redis-server and through the
 * model. Every reply, every push and the whole state after each operation must
 * be the same, and sm_check() must be content. Every second sequence runs with
 * scripts that put three spans of a cover into a set already.
 *
 * DLOCK_SEED  the first seed (printed at the start, and by a failure)
 * DLOCK_RUNS  how many sequences, default 60
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "model_choose.h"
#include "model_text.h"
#include "store_server.h"

#define OPS_PER_RUN 400

static struct store_server server;

static void fail_run(struct run *run, const char *what, const char *why)
{
	fclose(run->trace);
	fail_msg("%s differ after step %u (%s): %s\n  again: DLOCK_SEED=%llu DLOCK_RUNS=1; what was done: %s", what, run->done, run->what,
		 why, (unsigned long long)run->seed, run->trace_name);
}

/* --- one operation on both sides ------------------------------------------- */

static void run_model(struct run *run, const struct op *op, struct sm_reply *r)
{
	struct sm_store *s = &run->model;
	const struct sm_caller *c = &op->caller;

	switch (op->id) {
	case LUA_INIT: sm_init(s, c->ttl, r); break;
	case LUA_ATTACH: sm_attach(s, c, op->token[0], op->token[1], op->info, r); break;
	case LUA_LEAVE: sm_leave(s, c, r); break;
	case LUA_ACQUIRE: sm_acquire(s, c, op->key, op->req, op->start, op->end, op->mode, op->flags, op->info, r); break;
	case LUA_WITHDRAW: sm_withdraw(s, c, op->key, op->req, r); break;
	case LUA_GIVEBACK: sm_giveback(s, c, op->key, op->parts.span, op->parts.count, r); break;
	case LUA_BUSY: sm_busy(s, c, op->key, op->host, op->req, r); break;
	case LUA_RENEW: sm_renew(s, c, r); break;
	case LUA_EXPIRE: sm_expire(s, c, op->host, op->counter, r); break;
	case LUA_ENDGRACE: sm_endgrace(s, c, r); break;
	case LUA_REASSERT:
		sm_reassert(s, c, op->token[0], op->info, op->fence, op->seq, op->covers, op->cover_count,
			    op->requests, op->request_count, r);
		break;
	default:
		fail_msg("no such operation");
	}
}

struct words {
	char text[56][59 * SM_PARTS + 1];
	const char *argv[56];
	int argc;
};

static void word(struct words *w, const char *text)
{
	snprintf(w->text[w->argc], sizeof(w->text[0]), "%s", text);
	w->argv[w->argc] = w->text[w->argc];
	w->argc++;
}

static void word_number(struct words *w, uint32_t number)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", number);
	word(w, text);
}

static void word_spans(struct words *w, const struct sm_list *list)
{
	char *text = text_spans(list);

	word(w, text);
	free(text);
}

static void word_range(struct words *w, uint8_t start, uint8_t end)
{
	word(w, text_point(start));
	word(w, text_point(end));
}

static void reassert_words(struct words *w, const struct op *op)
{
	word(w, text_token(op->token[0]));
	word(w, text_info(op->info));
	word_number(w, op->fence);
	word_number(w, op->seq);
	word_number(w, op->cover_count);
	for (unsigned i = 0; i < op->cover_count; i++) {
		word(w, text_key(op->covers[i].key));
		word_spans(w, &op->covers[i].spans);
		word(w, text_info(op->covers[i].info));
	}
	word_number(w, op->request_count);
	for (unsigned i = 0; i < op->request_count; i++) {
		word(w, text_key(op->requests[i].key));
		word(w, text_req(op->requests[i].req));
		word_range(w, op->requests[i].start, op->requests[i].end);
		word_number(w, op->requests[i].mode);
		word_number(w, op->requests[i].flags);
		word(w, text_info(op->requests[i].info));
	}
}

static redisReply *run_lua(struct run *run, const struct op *op)
{
	static struct words w;

	w.argc = 0;
	word(&w, text_host(op->caller.host));
	word(&w, text_token(op->caller.token));
	word(&w, op->caller.role == SM_CMD ? "cmd" : "renew");
	word_number(&w, op->caller.gen);
	word(&w, inc_name(&run->incs, op->caller.inc));
	word_number(&w, op->caller.ttl);
	word_number(&w, op->caller.ack);
	switch (op->id) {
	case LUA_ATTACH:
		word(&w, text_token(op->token[0]));
		word(&w, text_token(op->token[1]));
		word(&w, text_info(op->info));
		break;
	case LUA_ACQUIRE:
		word(&w, text_key(op->key));
		word(&w, text_req(op->req));
		word_range(&w, op->start, op->end);
		word_number(&w, op->mode);
		word_number(&w, op->flags);
		word(&w, text_info(op->info));
		break;
	case LUA_WITHDRAW:
		word(&w, text_key(op->key));
		word(&w, text_req(op->req));
		break;
	case LUA_GIVEBACK:
		word(&w, text_key(op->key));
		word_spans(&w, &op->parts);
		break;
	case LUA_BUSY:
		word(&w, text_key(op->key));
		word(&w, text_host(op->host));
		word(&w, text_req(op->req));
		break;
	case LUA_EXPIRE:
		word(&w, text_host(op->host));
		word_number(&w, op->counter);
		break;
	case LUA_REASSERT:
		reassert_words(&w, op);
		break;
	default:
		break;
	}
	return store_server_run(run->server, op->id, w.argc, w.argv);
}

/* The order of HGETALL is the server's own: the host counters behind a renewal are sorted on both sides. */
static void sort_counters(struct lines *lines)
{
	struct lines tail = { 0 };
	size_t from = 6;

	if (lines->count < 6 || strcmp(lines->text[0], "ok") || strcmp(lines->text[3], "renewed"))
		return;
	from += strtoul(lines->text[5], NULL, 10);
	for (size_t i = from; i + 1 < lines->count; i += 2)
		lines_add(&tail, "%s %s", lines->text[i], lines->text[i + 1]);
	while (lines->count > from)
		free(lines->text[--lines->count]);
	lines_sort(&tail);
	for (size_t i = 0; i < tail.count; i++)
		lines_add(lines, "%s", tail.text[i]);
	lines_free(&tail);
}

static void compare_reply(struct run *run, const redisReply *lua, const struct sm_reply *model)
{
	struct lines a = { 0 }, b = { 0 };
	const char *why;

	lines_of_lua_reply(lua, &a);
	if (model->inc && model->inc < TEXT_INCS && !run->incs.name[model->inc] && a.count > 2)
		run->incs.name[model->inc] = strdup(a.text[strcmp(a.text[0], "ok") ? 2 : 1]);
	lines_of_model_reply(model, &run->model, &run->incs, &b);
	sort_counters(&a);
	sort_counters(&b);
	why = lines_differ(&a, &b);
	if (why)
		fail_run(run, "replies", why);
	lines_free(&a);
	lines_free(&b);
}

static void compare_pushes(struct run *run, const struct sm_reply *model)
{
	struct lines a = { 0 }, b = { 0 };
	const char *why;

	for (uint32_t i = 0; i < model->push_count; i++) {
		redisReply *reply = store_server_next_push(run->server);
		struct lines text = { 0 };

		lines_of_lua_reply(reply, &text);
		assert_int_equal(text.count, 4);
		lines_add(&a, "%s|%s", text.text[2] + strlen(TEST_PREFIX "p:"), text.text[3]);
		lines_free(&text);
		freeReplyObject(reply);
		lines_of_push(&model->push[i], &run->incs, &b);
	}
	lines_sort(&a);
	lines_sort(&b);
	why = lines_differ(&a, &b);
	if (why)
		fail_run(run, "pushes", why);
	lines_free(&a);
	lines_free(&b);
}

static void compare_state(struct run *run)
{
	struct lines a = { 0 }, b = { 0 };
	redisReply *reply = store_server_command(run->server, "EVAL %s 1 %s", dump_script, TEST_PREFIX);
	const char *why;

	lines_of_lua_reply(reply, &a);
	lines_sort(&a);
	lines_of_model_state(&run->model, &run->incs, &b);
	why = lines_differ(&a, &b);
	if (why)
		fail_run(run, "states", why);
	why = sm_check(&run->model);
	if (why)
		fail_run(run, "rules and state", why);
	lines_free(&a);
	lines_free(&b);
	freeReplyObject(reply);
}

static void describe(struct run *run, const struct op *op)
{
	size_t size = sizeof(run->what);
	int n = snprintf(run->what, size, "%s host %u role %u token %u gen %u inc %u ack %u key %u", lua_scripts[op->id].name,
			 op->caller.host, op->caller.role, op->caller.token, op->caller.gen, op->caller.inc, op->caller.ack, op->key);

	switch (op->id) {
	case LUA_ACQUIRE:
		snprintf(run->what + n, size - (size_t)n, " req %u [%u, %u) mode %u flags %u", op->req, op->start, op->end, op->mode, op->flags);
		break;
	case LUA_GIVEBACK:
		for (uint32_t i = 0; i < op->parts.count && (size_t)n < size; i++)
			n += snprintf(run->what + n, size - (size_t)n, " [%u, %u) keep %u fence %u", op->parts.span[i].start,
				      op->parts.span[i].end, op->parts.span[i].mode, op->parts.span[i].fence);
		break;
	case LUA_WITHDRAW:
	case LUA_BUSY:
	case LUA_EXPIRE:
		snprintf(run->what + n, size - (size_t)n, " req %u host %u", op->req, op->host);
		break;
	case LUA_REASSERT:
		for (unsigned i = 0; i < op->cover_count && (size_t)n < size; i++)
			n += snprintf(run->what + n, size - (size_t)n, " cover %u: %u spans", op->covers[i].key, op->covers[i].spans.count);
		break;
	default:
		break;
	}
}

static void do_op(struct run *run, const struct op *op)
{
	struct sm_reply model;
	redisReply *lua;

	describe(run, op);
	fprintf(run->trace, "%u %s\n", run->done, run->what);
	if (getenv("DLOCK_TRACE"))
		fprintf(stderr, "%u %s\n", run->done, run->what);
	run_model(run, op, &model);
	assert_int_equal(run->model.overflow, 0);
	lua = run_lua(run, op);
	compare_reply(run, lua, &model);
	freeReplyObject(lua);
	compare_state(run);	/* first: the outboxes show a push that is missing */
	compare_pushes(run, &model);
	run->counts[op->id][model.verb != SM_REFUSED]++;
	for (uint32_t i = 0; i < model.push_count; i++)
		run->pushes[model.push[i].kind]++;
	run->history[run->done % HISTORY] = *op;
	run->done++;
}

/* What happens to the server itself. */
static void server_command(struct run *run, const char *command)
{
	redisReply *reply = store_server_command(run->server, command);

	assert_int_not_equal(reply->type, REDIS_REPLY_ERROR);
	freeReplyObject(reply);
}

static const char copy_script[] =
	"for _, name in ipairs(redis.call('KEYS', ARGV[2] .. '*')) do redis.call('DEL', name) end "
	"for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do "
	"redis.call('COPY', name, ARGV[2] .. string.sub(name, #ARGV[1] + 1)) end return 1";

static void copy_keys(struct run *run, const char *from, const char *to)
{
	redisReply *reply = store_server_command(run->server, "EVAL %s 0 %s %s", copy_script, from, to);

	assert_int_equal(reply->type, REDIS_REPLY_INTEGER);
	freeReplyObject(reply);
}

static void trouble(struct run *run)
{
	switch (random_below(run, 5)) {
	case 0:
		snprintf(run->what, sizeof(run->what), "flush");
		server_command(run, "FLUSHALL");
		run->has_snapshot = false;
		sm_flush(&run->model);
		break;
	case 1:
		snprintf(run->what, sizeof(run->what), "snapshot");
		copy_keys(run, "dlock:", "snap:");
		run->snapshot = run->model;
		run->has_snapshot = true;
		break;
	case 2:
		if (!run->has_snapshot)
			break;
		snprintf(run->what, sizeof(run->what), "restart with old data");
		server_command(run, "DEBUG CHANGE-REPL-ID");
		copy_keys(run, "snap:", "dlock:");
		sm_restart(&run->model, &run->snapshot);
		break;
	default:
		snprintf(run->what, sizeof(run->what), "restart with all data");
		server_command(run, "DEBUG CHANGE-REPL-ID");
		sm_restart(&run->model, &run->model);
	}
	compare_state(run);
}

static void run_sequence(uint64_t seed, unsigned counts[LUA_SCRIPT_COUNT][2], unsigned pushes[128])
{
	static struct run run;

	memset(&run, 0, sizeof(run));
	run.server = &server;
	run.seed = seed;
	run.random = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
	snprintf(run.trace_name, sizeof(run.trace_name), "/tmp/dlock-model-%llu.trace", (unsigned long long)seed);
	run.trace = fopen(run.trace_name, "w");
	assert_non_null(run.trace);
	assert_int_equal(store_server_load(&server, seed % 2 ? 2 : 32, seed % 2 ? 1 : 16), 0);
	sm_reset(&run.model);
	server_command(&run, "FLUSHALL");
	if (chance(&run, 60))
		do_op(&run, &(struct op){ .id = LUA_INIT, .caller.ttl = TTL });
	while (run.done < OPS_PER_RUN) {
		struct op op;

		if (random_below(&run, 150) == 0)
			trouble(&run);
		choose_op(&run, &op);
		if (run.done && chance(&run, 10)) {	/* a packet comes again, now or much later */
			unsigned back = 1 + random_below(&run, chance(&run, 50) ? 3 : HISTORY);

			op = run.history[(run.done - (back < run.done ? back : run.done)) % HISTORY];
		}
		if (run.model.queue_count > SM_REQUESTS - 4 && (op.id == LUA_ACQUIRE || op.id == LUA_REASSERT)) {
			op.id = LUA_WITHDRAW;
			some_request(&run, op.caller.host, &op);
		}
		if (run.model.host[op.caller.host].outbox_count > SM_OUTBOX / 2)
			op.caller.ack = run.model.host[op.caller.host].seq;
		for (uint8_t h = 0; h < SM_HOSTS; h++)	/* nobody's outbox may fill */
			if (run.model.host[h].outbox_count > SM_OUTBOX - 20) {
				memset(&op, 0, sizeof(op));
				op.id = LUA_REASSERT;
				op.caller = (struct sm_caller){ .host = h, .token = run.model.host[h].token, .ttl = run.model.ttl,
					.gen = run.model.host[h].gen[SM_CMD], .inc = run.model.inc, .ack = run.model.host[h].seq };
				op.token[0] = op.caller.token;
				op.id = run.model.grace || run.model.replid_changed ? LUA_REASSERT : LUA_RENEW;
			}
		do_op(&run, &op);
	}
	for (int i = 0; i < LUA_SCRIPT_COUNT; i++) {
		counts[i][0] += run.counts[i][0];
		counts[i][1] += run.counts[i][1];
	}
	for (int i = 0; i < 128; i++)
		pushes[i] += run.pushes[i];
	inc_names_free(&run.incs);
	fclose(run.trace);
	unlink(run.trace_name);
}

/* --- tests ------------------------------------------------------------------ */

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

static void test_scripts_and_model_agree_on_random_sequences(void **state)
{
	const char *seed_text = getenv("DLOCK_SEED"), *runs_text = getenv("DLOCK_RUNS");
	uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : (uint64_t)time(NULL);
	unsigned long runs = runs_text ? strtoul(runs_text, NULL, 10) : 60;
	unsigned counts[LUA_SCRIPT_COUNT][2] = { { 0 } }, pushes[128] = { 0 };

	(void)state;
	print_message("DLOCK_SEED=%llu DLOCK_RUNS=%lu, %d operations each\n", (unsigned long long)seed, runs, OPS_PER_RUN);
	for (unsigned long i = 0; i < runs; i++)
		run_sequence(seed + i, counts, pushes);
	for (int i = 0; i < LUA_STATUS; i++)
		print_message("%9s: %6u taken, %6u refused\n", lua_scripts[i].name, counts[i][1], counts[i][0]);
	print_message("   pushes: G %u, R %u, T %u, B %u\n", pushes['G'], pushes['R'], pushes['T'], pushes['B']);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scripts_and_model_agree_on_random_sequences),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
