/* SPDX-License-Identifier: MIT */
/* A Redis server and hosts for tests; see redis_bench.h. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "redis_bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- the server --- */

int free_port(void)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	close(fd);
	return ntohs(addr.sin_port);
}

static int server_connect(const struct server *server)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons((uint16_t)server->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

const char *server_do(const struct server *server, const char *format, ...)
{
	static char answer[4096];
	char command[1024];
	va_list ap;
	ssize_t n;
	int fd = server_connect(server), len;

	answer[0] = '\0';
	if (fd < 0)
		return answer;
	va_start(ap, format);
	len = vsnprintf(command, sizeof(command) - 2, format, ap);
	va_end(ap);
	memcpy(command + len, "\r\n", 2);
	if (write(fd, command, (size_t)len + 2) == len + 2) {
		n = read(fd, answer, sizeof(answer) - 1);
		answer[n > 0 ? n : 0] = '\0';
	}
	close(fd);
	return answer;
}

void server_start(struct server *server, const char *options)
{
	char command[512];
	uint64_t end = loop_now_ns() + 10000 * MS;

	if (!server->port) {
		strcpy(server->dir, "/tmp/dlockshim-test-XXXXXX");
		assert_non_null(mkdtemp(server->dir));
		server->port = free_port();
	}
	snprintf(command, sizeof(command), "exec redis-server --bind 127.0.0.1 --port %d --dir %s --save '' --appendonly no "
		 "--unixsocket %s/sock %s >%s/log 2>&1", server->port, server->dir, server->dir, options, server->dir);
	server->pid = fork();
	if (server->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	for (;;) {
		const char *answer = server_do(server, "PING");

		if (!strncmp(answer, "+PONG", 5) || strstr(answer, "NOAUTH"))
			return;
		assert_true(loop_now_ns() < end);
		usleep(5000);
	}
}

void server_stop(struct server *server)
{
	if (server->pid <= 0)
		return;
	kill(server->pid, SIGKILL);
	waitpid(server->pid, NULL, 0);
	server->pid = 0;
}

void server_signal(struct server *server, int sig)
{
	kill(server->pid, sig);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void remove_tree(const char *dir)
{
	if (dir[0])
		nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* --- what a host hears --- */

static struct event *note(struct host *host, enum event_type type, const char *key)
{
	struct event *event;

	if (host->count == host->size) {
		host->size = host->size ? 2 * host->size : 64;
		host->events = realloc(host->events, host->size * sizeof(*host->events));
		assert_non_null(host->events);
	}
	event = &host->events[host->count++];
	*event = (struct event){ .type = type, .at_ns = loop_now_ns() };
	if (key)
		snprintf(event->key, sizeof(event->key), "%s", key);
	return event;
}

static struct lock_span *copy_spans(const struct lock_span *spans, size_t count)
{
	struct lock_span *copy = calloc(count + 1, sizeof(*copy));

	assert_non_null(copy);
	for (size_t i = 0; i < count; i++) {
		assert_true(spans[i].at.start < spans[i].at.end && spans[i].at.end <= EXTENT_END);
		copy[i] = spans[i];
	}
	return copy;
}

static struct event *note_spans(struct host *host, enum event_type type, const char *key, const struct lock_span *spans, size_t count,
				const struct lock_span *waits, size_t wait_count)
{
	struct event *event = note(host, type, key);

	event->spans = copy_spans(spans, count);
	event->span_count = count;
	event->waits = copy_spans(waits, wait_count);
	event->wait_count = wait_count;
	if (count) {
		event->at = spans[0].at;
		event->mode = spans[0].mode;
		event->fence = spans[0].fence;
	}
	for (size_t i = 0; i < wait_count; i++)
		event->waiting = mode_max(event->waiting, waits[i].mode);
	return event;
}

/* --- what a host has --- */

const struct host_cover *host_cover(const struct host *host, const char *key)
{
	for (size_t i = 0; i < host->cover_count; i++)
		if (!strcmp(host->covers[i].key, key))
			return &host->covers[i];
	return NULL;
}

/* Takes out what lies in these parts (by start, disjoint); leaves room for so many more. Linear: there are tests with long lists. */
static void cover_cut(struct host_cover *cover, const struct lock_span *parts, size_t part_count)
{
	struct lock_span *kept = calloc(cover->count + 2 * part_count + 1, sizeof(*kept));
	size_t count = 0, first = 0;

	assert_non_null(kept);
	for (size_t i = 0; i < cover->count; i++) {
		struct lock_span rest = cover->spans[i];

		while (first < part_count && parts[first].at.end <= rest.at.start)
			first++;
		for (size_t p = first; p < part_count && parts[p].at.start < rest.at.end; p++) {
			if (rest.at.start < parts[p].at.start)
				kept[count++] = (struct lock_span){ { rest.at.start, parts[p].at.start }, rest.mode, rest.fence };
			rest.at.start = parts[p].at.end;
		}
		if (rest.at.start < rest.at.end)
			kept[count++] = rest;
	}
	free(cover->spans);
	cover->spans = kept;
	cover->count = count;
}

/* Whatever was there, now it is this, unless what was there is of a higher fence. */
static void cover_put(struct host_cover *cover, const struct lock_span *spans, size_t count)
{
	struct lock_span *add = copy_spans(spans, count);
	size_t added = 0, first = 0, from, to;

	for (size_t i = 0; i < count; i++) {
		bool older = false;

		while (first < cover->count && cover->spans[first].at.end <= add[i].at.start)
			first++;
		for (size_t c = first; c < cover->count && cover->spans[c].at.start < add[i].at.end; c++)
			older |= cover->spans[c].fence > add[i].fence;
		if (!older)
			add[added++] = add[i];
	}
	cover_cut(cover, add, added);
	from = cover->count;
	to = cover->count += added;
	while (added > 0) {	/* from behind, in place */
		if (from > 0 && cover->spans[from - 1].at.start > add[added - 1].at.start)
			cover->spans[--to] = cover->spans[--from];
		else
			cover->spans[--to] = add[--added];
	}
	free(add);
}

static void forget_empty(struct host *host)
{
	for (size_t i = 0; i < host->cover_count; i++)
		if (!host->covers[i].count) {
			free(host->covers[i].spans);
			host->covers[i--] = host->covers[--host->cover_count];
		}
}

static void forget_all(struct host *host)
{
	while (host->cover_count > 0)
		free(host->covers[--host->cover_count].spans);
	host->wait_count = 0;
}

/* More locks than fit are not remembered: such a test does not re-assert. */
static void put_covers(struct host *host, const char *key, const struct lock_span *spans, size_t count)
{
	struct host_cover *cover = (struct host_cover *)host_cover(host, key);

	if (!cover && host->cover_count < 16) {
		cover = &host->covers[host->cover_count++];
		*cover = (struct host_cover){ 0 };
		snprintf(cover->key, sizeof(cover->key), "%s", key);
	}
	if (cover)
		cover_put(cover, spans, count);
	forget_empty(host);
}

void host_give_back(struct host *host, const char *key, const struct lock_span *parts, size_t count)
{
	struct host_cover *cover = (struct host_cover *)host_cover(host, key);

	if (cover)
		cover_cut(cover, parts, count);
	forget_empty(host);
	store_give_back(host->store, key, parts, count);
}

/* --- events --- */

static void on_state(void *arg, enum store_state state, const char *text)
{
	struct host *host = arg;
	struct event *event = note(host, EV_STATE, NULL);

	event->state = host->state = state;
	host->state_known = true;
	snprintf(event->text, sizeof(event->text), "%s", text);
	snprintf(host->state_text, sizeof(host->state_text), "%s", text);
	if (getenv("TEST_VERBOSE"))
		printf("%.4s state %d: %s\n", store_host_id(host->store), state, text);
}

static void on_granted(void *arg, const char *key, uint64_t req, const struct lock_span *spans, size_t span_count,
		       const struct lock_span *waiting, size_t waiting_count)
{
	struct host *host = arg;

	note_spans(host, EV_GRANTED, key, spans, span_count, waiting, waiting_count)->req = req;
	for (size_t i = 0; i < host->wait_count; i++)
		if (host->waits[i].req == req)
			host->waits[i--] = host->waits[--host->wait_count];
	put_covers(host, key, spans, span_count);
}

static void on_queued(void *arg, const char *key, uint64_t req, bool again)
{
	(void)again;
	note(arg, EV_QUEUED, key)->req = req;
}

static void on_busy(void *arg, const char *key, uint64_t req)
{
	note(arg, EV_BUSY, key)->req = req;
}

static void on_failed(void *arg, const char *key, uint64_t req, const char *text)
{
	struct event *event = note(arg, EV_FAILED, key);

	event->req = req;
	snprintf(event->text, sizeof(event->text), "%s", text);
}

static void on_recall(void *arg, const char *key, const struct lock_span *waiting, size_t waiting_count)
{
	note_spans(arg, EV_RECALL, key, waiting, waiting_count, NULL, 0);
}

static void on_try(void *arg, const char *key, const struct lock_span *wanted, const char *from, uint64_t req)
{
	struct event *event = note_spans(arg, EV_TRY, key, wanted, 1, NULL, 0);

	event->req = req;
	snprintf(event->text, sizeof(event->text), "%s", from);
}

static void on_cover(void *arg, const char *key, const struct lock_span *spans, size_t span_count,
		     const struct lock_span *waiting, size_t waiting_count)
{
	note_spans(arg, EV_COVER, key, spans, span_count, waiting, waiting_count);
	put_covers(arg, key, spans, span_count);
}

static void on_resumed(void *arg, const char *key, const struct lock_span *spans, size_t span_count)
{
	note_spans(arg, EV_RESUMED, key, spans, span_count, NULL, 0);
	put_covers(arg, key, spans, span_count);
}

static void on_reassert(void *arg)
{
	struct host *host = arg;
	struct store_cover covers[16];
	struct store_request requests[16];
	uint64_t most = 0;

	note(host, EV_REASSERT, NULL);
	for (size_t i = 0; i < host->cover_count; i++) {
		const struct host_cover *cover = &host->covers[i];

		covers[i] = (struct store_cover){ cover->key, cover->spans, cover->count, "1 test" };
		for (size_t s = 0; s < cover->count; s++)
			if (cover->spans[s].fence > most)
				most = cover->spans[s].fence;
	}
	for (size_t i = 0; i < host->wait_count; i++)
		requests[i] = (struct store_request){ host->waits[i].key, host->waits[i].req, host->waits[i].at, host->waits[i].mode, 0, "1 test" };
	store_reassert(host->store, covers, host->cover_count, requests, host->wait_count, most);
}

static void on_reasserted(void *arg, const char *key, const struct lock_span *spans, size_t span_count)
{
	note_spans(arg, EV_REASSERTED, key, spans, span_count, NULL, 0);
	put_covers(arg, key, spans, span_count);
}

static void on_lost(void *arg, const char *why)
{
	struct host *host = arg;

	snprintf(note(host, EV_LOST, NULL)->text, 512, "%s", why);
	forget_all(host);
	if (host->rejoin_at_once)
		store_rejoin(host->store);
}

static void on_status(void *arg, void *call, const char *record, size_t len, int err)
{
	struct event *event = note(arg, EV_STATUS, record ? "record" : "end");

	event->req = (uintptr_t)call;
	event->fence = (uint64_t)-err;
	for (size_t i = 0; record && i < len && i < sizeof(event->text) - 1; i++)
		event->text[i] = record[i] ? record[i] : '|';
}

static void on_asked(void *arg, const char *from, uint64_t nonce, const char *key, const char *question)
{
	struct event *event = note(arg, EV_ASKED, from);

	event->req = nonce;
	snprintf(event->text, sizeof(event->text), "%s", key);
	snprintf(event->question, sizeof(event->question), "%s", question);
}

static void on_reached(void *arg, uint64_t nonce, const char *id, int err)
{
	struct event *event = note(arg, EV_REACHED, id ? id : "end");

	event->req = nonce;
	event->fence = (uint64_t)-err;
}

static void on_told(void *arg, const char *from, uint64_t nonce, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct event *event = note(arg, EV_TOLD, from);

	event->req = nonce;
	event->fence = part;
	event->waiting = (enum lock_mode)last;
	snprintf(event->text, sizeof(event->text), "%.*s", (int)(len < 500 ? len : 500), text);
}

static const struct store_events event_table = {
	.state = on_state, .granted = on_granted, .queued = on_queued, .busy = on_busy, .failed = on_failed, .recall = on_recall,
	.try = on_try, .cover = on_cover, .resumed = on_resumed, .reassert = on_reassert, .reasserted = on_reasserted,
	.lost = on_lost, .status = on_status,
	.asked = on_asked, .reached = on_reached, .told = on_told,
};

/* --- a host's life --- */

void host_make(struct host *host, struct loop *loop, const struct server *server, uint32_t ttl_ms)
{
	char text[64];

	*host = (struct host){ .loop = loop, .rejoin_at_once = true };
	strcpy(host->dir, "/tmp/dlockshim-test-XXXXXX");
	assert_non_null(mkdtemp(host->dir));
	host->config = config_defaults();
	assert_non_null(host->config);
	free(host->config->name_space);
	host->config->name_space = strdup("test");
	host->config->ttl_ms = ttl_ms;
	host->config->redis.servers = calloc(1, sizeof(char *));
	host->config->redis.server_count = 1;
	snprintf(text, sizeof(text), "redis://127.0.0.1:%d", server->port);
	host->config->redis.servers[0] = strdup(text);
}

void host_start(struct host *host)
{
	char text[512];
	int err = store_redis_new(host->loop, host->config, host->dir, &event_table, host, &host->store, text, sizeof(text));

	if (err)
		fail_msg("store_redis_new: %s", text);
	host->state_known = false;
	store_inherit_lease(host->store, host->inherited_good_ns);
	store_start(host->store);
}

void host_stop(struct host *host, bool leave)
{
	store_free(host->store, leave);
	host->store = NULL;
	forget_all(host);
	host->state_known = false;
}

void host_free(struct host *host)
{
	if (host->store)
		host_stop(host, false);
	if (host->config)
		config_free(host->config);
	for (size_t i = 0; i < host->count; i++) {
		free(host->events[i].spans);
		free(host->events[i].waits);
	}
	free(host->events);
	remove_tree(host->dir);
	*host = (struct host){ 0 };
}

void host_mark(struct host *host)
{
	host->mark = host->count;
}

const struct event *host_find(const struct host *host, enum event_type type, const char *key, uint64_t req)
{
	for (size_t i = host->mark; i < host->count; i++) {
		const struct event *event = &host->events[i];

		if (event->type == type && (!key || !strcmp(event->key, key)) && (!req || event->req == req))
			return event;
	}
	return NULL;
}

size_t host_count(const struct host *host, enum event_type type)
{
	size_t count = 0;

	for (size_t i = host->mark; i < host->count; i++)
		count += host->events[i].type == type;
	return count;
}

/* --- running the loop --- */

struct runner {
	struct loop *loop;
	struct loop_timer timer;
	bool (*done)(void *arg);
	void *arg;
	uint64_t end_ns;
	bool met;
};

/* Looks every millisecond: events may also come from threads that post nothing. */
static void runner_look(struct loop_timer *timer)
{
	struct runner *runner = timer->arg;

	runner->met = runner->done && runner->done(runner->arg);
	if (runner->met || loop_now_ns() >= runner->end_ns)
		loop_stop(runner->loop);
	else
		loop_timer_set(runner->loop, timer, loop_now_ns() + MS);
}

bool run_until(struct loop *loop, bool (*done)(void *arg), void *arg, double seconds)
{
	struct runner runner = { .loop = loop, .done = done, .arg = arg, .end_ns = loop_now_ns() + (uint64_t)(seconds * 1e9) };

	runner.timer.fn = runner_look;
	runner.timer.arg = &runner;
	loop_timer_set(loop, &runner.timer, 0);
	assert_int_equal(loop_run(loop), 0);
	return runner.met;
}

void run_for(struct loop *loop, double seconds)
{
	run_until(loop, NULL, NULL, seconds);
}

struct wanted { struct host *host; enum event_type type; const char *key; uint64_t req; enum store_state state; };

static bool event_there(void *arg)
{
	const struct wanted *wanted = arg;

	return host_find(wanted->host, wanted->type, wanted->key, wanted->req) != NULL;
}

const struct event *await_event(struct host *host, enum event_type type, const char *key, uint64_t req, double seconds)
{
	struct wanted wanted = { .host = host, .type = type, .key = key, .req = req };

	if (!run_until(host->loop, event_there, &wanted, seconds))
		fail_msg("no event %d of %s (request %llu) within %g s; state: %s", type, key ? key : "any key", (unsigned long long)req, seconds, host->state_text);
	return host_find(host, type, key, req);
}

static bool state_there(void *arg)
{
	const struct wanted *wanted = arg;

	return wanted->host->state_known && wanted->host->state == wanted->state;
}

void await_state(struct host *host, enum store_state state, double seconds)
{
	struct wanted wanted = { .host = host, .state = state };

	if (!run_until(host->loop, state_there, &wanted, seconds))
		fail_msg("no state %d within %g s; it is %d: %s", state, seconds, host->state, host->state_text);
}
