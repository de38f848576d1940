/* SPDX-License-Identifier: MIT */
/*
 * The renewal thread. Every T/3 one `renew`, which also brings messages that a lost
 * push would have brought and the counters of the other hosts; T/12 after a failure
 * the next try, every wait for the server bounded by T/12.
 *
 * Invariants. last_good_ns is the time at which a renewal was *sent* that the store
 * answered well for the present session; it is written under the mutex, and only
 * while that session is the present one, so nothing is renewed behind the loop's
 * back. A lease that had passed its kill deadline is never revived: the holders
 * are being ended, and the loop is told instead. The mutex is never held across I/O.
 */
#include "redis_renew.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "../log.h"
#include "../loop.h"
#include "redis_watch.h"

#define MS 1000000ull

void redis_lease_fill(uint64_t last_good_ns, uint32_t ttl_ms, struct store_lease *ret_lease)
{
	*ret_lease = (struct store_lease){ .last_good_ns = last_good_ns, .ttl_ms = ttl_ms };
	if (last_good_ns) {
		ret_lease->failing_ns = last_good_ns + ttl_ms * MS * 2 / 3;
		ret_lease->kill_ns = last_good_ns + ttl_ms * MS * 5 / 6;
	}
}

/* --- mail to the loop --- */

static void news_discard(struct mail *mail)
{
	struct redis_news_mail *news = (struct redis_news_mail *)mail;

	redis_value_free(news->reply);
	free(news);
}

void redis_renewal_tell(struct redis_renewal *renewal, enum redis_news what, enum redis_answer answer, const struct redis_header *header,
		 struct redis_value *reply, const char *text)
{
	struct redis_news_mail *news = calloc(1, sizeof(*news));

	if (!news) {
		redis_value_free(reply);
		return;
	}
	news->mail.deliver = renewal->deliver;
	news->mail.discard = news_discard;
	news->serial = renewal->session.serial;
	news->news = what;
	news->answer = answer;
	if (header)
		news->header = *header;
	news->reply = reply;
	redis_say(news->text, sizeof(news->text), "%s", text ? text : "");
	redis_mail_put(renewal->shared, &news->mail);
}

/* --- calls --- */

static uint64_t io_deadline(const struct redis_renewal *renewal)
{
	uint64_t ms = renewal->shared->ttl_ms / 12;

	return loop_now_ns() + (ms > 100 ? ms : 100) * MS;
}

static void begin(struct redis_renewal *renewal, enum lua_script_id script, bool full, size_t extra)
{
	struct redis_caller caller = {
		.prefix = renewal->shared->prefix,
		.host = renewal->session.host,
		.token = renewal->session.token,
		.role = "renew",
		.inc = renewal->session.inc,
		.gen = renewal->gen,
		.ttl_ms = renewal->shared->ttl_ms,
		.ack = atomic_load(&renewal->shared->seen),
	};

	redis_script_begin(&renewal->link.out, script, renewal->shas[script], full, &caller, extra);
}

/* One script with up to three arguments. 0 and the reply (the caller's), or -errno with link.error. */
int redis_renewal_call(struct redis_renewal *renewal, enum lua_script_id script, const char *const *args, size_t count,
		enum redis_answer *ret_answer, struct redis_header *ret_header, struct redis_value **ret_reply)
{
	uint64_t deadline = io_deadline(renewal);
	struct redis_value *reply;
	int err;

	for (int full = 0; full < 2; full++) {
		begin(renewal, script, full, count);
		for (size_t i = 0; i < count; i++)
			redis_buf_text(&renewal->link.out, args[i]);
		err = redis_link_flush(&renewal->link, deadline);
		if (!err)
			err = redis_link_read(&renewal->link, deadline, &reply);
		if (err)
			return err;
		*ret_answer = redis_script_answer(reply, ret_header);
		if (*ret_answer != ANSWER_NOSCRIPT || full)
			break;
		redis_value_free(reply);
	}
	*ret_reply = reply;
	return 0;
}

static void say_failed(struct redis_renewal *renewal, const char *why)
{
	struct store_lease lease;
	uint64_t now = loop_now_ns();

	if (!renewal->failing) {
		renewal->failing = true;
		redis_lease_fill(atomic_load(&renewal->shared->last_good_ns), renewal->shared->ttl_ms, &lease);
		if (lease.failing_ns > now)
			log_warn("the lease cannot be renewed: %s; holders are ended in %.1f s if it stays so", why,
				 (double)(lease.failing_ns - now) / 1e9);
		else
			log_warn("the lease cannot be renewed: %s", why);
	}
	redis_renewal_tell(renewal, NEWS_FAILED, ANSWER_FAILED, NULL, NULL, why);
}

/* A connection that has attached. 0; -EAGAIN refused (the loop knows); another -errno with link.error. */
static int connect_and_attach(struct redis_renewal *renewal)
{
	const char *args[] = { renewal->session.token, renewal->session.token, "" };
	uint64_t deadline = io_deadline(renewal), gen;
	uint64_t longest = loop_now_ns() + renewal->shared->door->connect_timeout_ms * MS;
	enum redis_answer answer;
	struct redis_header header;
	struct redis_value *reply;
	int err;

	if (renewal->link.fd < 0) {
		renewal->link = (struct redis_link){ .fd = -1, .cancel_fd = renewal->shared->stop_fd };
		renewal->attached = false;
		if (redis_link_open(&renewal->link, renewal->shared->door, &renewal->addresses, OPEN_RENEWALS, NULL,
				    deadline < longest ? deadline : longest, renewal->shas) != OPEN_OK)
			return -ENOTCONN;
	}
	if (renewal->attached)
		return 0;
	err = redis_renewal_call(renewal, LUA_ATTACH, args, 3, &answer, &header, &reply);
	if (err)
		return err;
	if (answer == ANSWER_OK && redis_value_u64(reply, ANSWER_ITEMS + 1, &gen)) {
		renewal->gen = gen;
		renewal->attached = true;
	} else if (answer == ANSWER_OK || answer == ANSWER_RETRY || answer == ANSWER_DENIED || answer == ANSWER_FAILED) {
		redis_say(renewal->link.error, sizeof(renewal->link.error), "%s", header.text);
		err = -EPROTO;
	} else {
		redis_renewal_tell(renewal, NEWS_REFUSED, answer, &header, NULL, NULL);
		err = -EAGAIN;
	}
	redis_value_free(reply);
	return err;
}

/* --- a renewal --- */

/* Whether the lease is good now; it is not if its deadline has passed meanwhile. */
static bool record_good(struct redis_renewal *renewal, uint64_t sent_ns)
{
	struct store_lease before, lease;
	bool present, lapsed = false;

	pthread_mutex_lock(&renewal->mutex);
	present = renewal->wanted.serial == renewal->session.serial;
	if (present) {
		redis_lease_fill(atomic_load(&renewal->shared->last_good_ns), renewal->shared->ttl_ms, &before);
		lapsed = before.last_good_ns && loop_now_ns() >= before.kill_ns;
		if (!lapsed)
			atomic_store(&renewal->shared->last_good_ns, sent_ns);
	}
	pthread_mutex_unlock(&renewal->mutex);
	if (!present)
		return false;
	if (lapsed) {
		redis_renewal_tell(renewal, NEWS_LAPSED, ANSWER_OK, NULL, NULL, NULL);
		return false;
	}
	redis_lease_fill(sent_ns, renewal->shared->ttl_ms, &lease);
	if (renewal->on_renewed)
		renewal->on_renewed(renewal->on_renewed_arg, &lease);
	return true;
}

/* 0 good or refused, -errno with link.error: the connection is no longer good. */
static int renew(struct redis_renewal *renewal)
{
	uint64_t sent = loop_now_ns(), now, messages;
	enum redis_answer answer;
	struct redis_header header;
	struct redis_value *reply;
	int err = redis_renewal_call(renewal, LUA_RENEW, NULL, 0, &answer, &header, &reply);

	if (err)
		return err;
	now = loop_now_ns();
	if (answer == ANSWER_OK && (!redis_value_u64(reply, ANSWER_ITEMS + 2, &messages) ||
				    messages > reply->count - (ANSWER_ITEMS + 3))) {
		redis_say(header.text, sizeof(header.text), "the answer to a renewal has another form than expected");
		answer = ANSWER_FAILED;
	}
	switch (answer) {
	case ANSWER_OK:
		redis_watch_grace(renewal, &header, now);
		redis_watch_others(renewal, reply, ANSWER_ITEMS + 3 + (size_t)messages, now);
		if (record_good(renewal, sent)) {
			if (renewal->failing)
				log_info("the lease is renewed again");
			renewal->failing = false;
			redis_renewal_tell(renewal, NEWS_GOOD, answer, &header, reply, NULL);
			reply = NULL;
		}
		break;
	case ANSWER_NOSCRIPT:
	case ANSWER_RETRY:
	case ANSWER_DENIED:
	case ANSWER_FAILED:
		redis_say(renewal->link.error, sizeof(renewal->link.error), "Redis at %s: %s", renewal->shared->door->target.label, header.text);
		err = -EPROTO;
		break;
	default:
		if (answer == ANSWER_GEN)
			renewal->attached = false;	/* a late packet of an older connection; attach again */
		else
			redis_renewal_tell(renewal, NEWS_REFUSED, answer, &header, NULL, NULL);
		err = -EAGAIN;
	}
	redis_value_free(reply);
	return err;
}

static void check_policy(struct redis_renewal *renewal, uint64_t now)
{
	uint64_t deadline = io_deadline(renewal);
	char text[REDIS_TEXT_MAX];
	struct redis_value *info;

	if (now < renewal->policy_due_ns)
		return;
	redis_buf_command(&renewal->link.out, 2);
	redis_buf_text(&renewal->link.out, "INFO");
	redis_buf_text(&renewal->link.out, "memory");
	if (redis_link_flush(&renewal->link, deadline) < 0 || redis_link_read(&renewal->link, deadline, &info) < 0) {
		redis_link_close(&renewal->link);
		return;
	}
	if (redis_check_policy(info, renewal->shared->door->target.label, text, sizeof(text)))
		redis_renewal_tell(renewal, NEWS_UNUSABLE, ANSWER_OK, NULL, NULL, text);
	redis_value_free(info);
	renewal->policy_due_ns = now + renewal->shared->ttl_ms * MS;
}

static void renewal_round(struct redis_renewal *renewal)
{
	bool was_open = renewal->link.fd >= 0;
	uint64_t now;
	int err;

	for (;;) {
		err = connect_and_attach(renewal);
		if (!err)
			err = renew(renewal);
		if (err && err != -EAGAIN) {
			redis_link_close(&renewal->link);
			if (err == -ECANCELED)
				return;
			/* A connection that died while nobody used it says nothing about the server. */
			if (was_open) {
				was_open = false;
				continue;
			}
			say_failed(renewal, renewal->link.error);
		}
		break;
	}
	now = loop_now_ns();
	renewal->due_ns = now + renewal->shared->ttl_ms * MS / (err ? 12 : 3);
	if (!err)
		check_policy(renewal, now);
}

/* --- the thread --- */

static void wait_until(struct redis_renewal *renewal, uint64_t when_ns)
{
	struct itimerspec at = { 0 };
	struct pollfd fds[] = {
		{ .fd = renewal->kick_fd, .events = POLLIN },
		{ .fd = renewal->shared->stop_fd, .events = POLLIN },
		{ .fd = renewal->timer_fd, .events = POLLIN },
	};
	uint64_t count;

	if (when_ns != UINT64_MAX) {
		at.it_value.tv_sec = (time_t)(when_ns / 1000000000u);
		at.it_value.tv_nsec = (long)(when_ns % 1000000000u) + 1;
		if (at.it_value.tv_nsec > 999999999)
			at.it_value.tv_nsec = 999999999;
	}
	/* CLOCK_BOOTTIME: after a suspend the renewal is late, and must not wait for the rest of its period. */
	timerfd_settime(renewal->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
	if (poll(fds, 3, -1) < 0)
		return;
	if (fds[0].revents && read(renewal->kick_fd, &count, sizeof(count)) > 0)
		renewal->due_ns = 0;
}

static bool stopped(struct redis_renewal *renewal)
{
	struct pollfd fd = { .fd = renewal->shared->stop_fd, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

static void take_session(struct redis_renewal *renewal)
{
	unsigned before = renewal->session.serial;

	pthread_mutex_lock(&renewal->mutex);
	renewal->session = renewal->wanted;
	pthread_mutex_unlock(&renewal->mutex);
	if (renewal->session.serial == before)
		return;
	renewal->attached = false;
	renewal->gen = 0;
	renewal->due_ns = 0;
	renewal->failing = false;
	pthread_mutex_lock(&renewal->mutex);
	observe_clear(&renewal->others);
	pthread_mutex_unlock(&renewal->mutex);
}

static void *renewal_main(void *arg)
{
	struct redis_renewal *renewal = arg;

	while (!stopped(renewal)) {
		uint64_t next = UINT64_MAX;

		take_session(renewal);
		if (renewal->session.serial) {
			if (loop_now_ns() >= renewal->due_ns)
				renewal_round(renewal);
			next = redis_watch(renewal);
			if (renewal->due_ns < next)
				next = renewal->due_ns;
		}
		wait_until(renewal, next);
	}
	redis_link_close(&renewal->link);
	observe_clear(&renewal->others);
	return NULL;
}

/* --- the loop's side --- */

static void kick(struct redis_renewal *renewal)
{
	uint64_t one = 1;

	while (write(renewal->kick_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

unsigned redis_renewal_begin(struct redis_renewal *renewal, const struct redis_session *session, uint64_t last_good_ns)
{
	unsigned serial;

	pthread_mutex_lock(&renewal->mutex);
	if (!renewal->wanted.serial || strcmp(renewal->wanted.host, session->host) != 0 ||
	    strcmp(renewal->wanted.token, session->token) != 0 || strcmp(renewal->wanted.inc, session->inc) != 0) {
		renewal->wanted = *session;
		renewal->wanted.serial = ++renewal->last_serial ? renewal->last_serial : ++renewal->last_serial;
	}
	if (last_good_ns)
		atomic_store(&renewal->shared->last_good_ns, last_good_ns);
	serial = renewal->wanted.serial;
	pthread_mutex_unlock(&renewal->mutex);
	kick(renewal);
	return serial;
}

void redis_renewal_end(struct redis_renewal *renewal)
{
	pthread_mutex_lock(&renewal->mutex);
	renewal->wanted.serial = 0;
	atomic_store(&renewal->shared->last_good_ns, 0);
	pthread_mutex_unlock(&renewal->mutex);
}

uint64_t redis_renewal_since(struct redis_renewal *renewal, const char *host)
{
	const struct observed *one;
	uint64_t since = 0;

	pthread_mutex_lock(&renewal->mutex);
	one = observe_find(&renewal->others, host, 0);
	if (one)
		since = one->since_ns;
	pthread_mutex_unlock(&renewal->mutex);
	return since;
}

void redis_renewal_poll(struct redis_renewal *renewal)
{
	kick(renewal);
}

int redis_renewal_start(struct redis_shared *shared, void (*on_renewed)(void *arg, const struct store_lease *lease), void *arg,
			void (*deliver)(struct store *store, struct mail *mail), struct redis_renewal **ret_renewal)
{
	struct redis_renewal *renewal = calloc(1, sizeof(*renewal));
	int err;

	if (!renewal)
		return -ENOMEM;
	renewal->shared = redis_shared_ref(shared);
	renewal->on_renewed = on_renewed;
	renewal->on_renewed_arg = arg;
	renewal->deliver = deliver;
	renewal->link.fd = -1;
	pthread_mutex_init(&renewal->mutex, NULL);
	renewal->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	renewal->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	err = renewal->kick_fd < 0 || renewal->timer_fd < 0 ? -errno : 0;
	if (!err)
		err = redis_thread_start(renewal_main, renewal, &renewal->thread);
	if (err) {
		if (renewal->kick_fd >= 0)
			close(renewal->kick_fd);
		if (renewal->timer_fd >= 0)
			close(renewal->timer_fd);
		redis_shared_unref(shared);
		free(renewal);
		return err;
	}
	*ret_renewal = renewal;
	return 0;
}

void redis_renewal_stop(struct redis_renewal *renewal)
{
	struct timespec deadline;

	if (!renewal)
		return;
	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += 2;
	if (pthread_timedjoin_np(renewal->thread, NULL, &deadline) != 0) {
		/* It waits for a name server, and ends after it; what it needs stays. */
		pthread_detach(renewal->thread);
		return;
	}
	close(renewal->kick_fd);
	close(renewal->timer_fd);
	pthread_mutex_destroy(&renewal->mutex);
	redis_shared_unref(renewal->shared);
	free(renewal);
}
