/* SPDX-License-Identifier: MIT */
/*
 * The agent's session in the store: what the store says, passed on to names and
 * clients; the lease and what happens when it ends.
 *
 * The store module says what has become of the session; the lease says until
 * when covers may be relied on. Past `failing` no GO is given, past `kill` the
 * holders are ended; if this process cannot, the guard does it (guard.h). After
 * a session is lost nothing else happens until every holder is ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "getlk.h"
#include "holders.h"
#include "klock.h"
#include "ladder_job.h"
#include "log.h"

bool agent_may_go(struct agent *agent, const char **ret_why)
{
	struct store_lease lease;

	store_lease(agent->store, &lease);
	if (agent->lost)
		*ret_why = "the session in the store is lost and its holders are being ended";
	else if (!lease.last_good_ns)
		*ret_why = agent->state_text;
	else if (loop_now_ns() >= lease.failing_ns)
		*ret_why = agent->state_text[0] ? agent->state_text : "the lease could not be renewed in time";
	else
		return true;
	return false;
}

uint64_t agent_valid_until(const struct agent *agent)
{
	struct store_lease lease;

	store_lease(agent->store, &lease);
	return lease.failing_ns;
}

/* --- what the store says --- */

static void ask_again(struct name *name)
{
	cover_ask_again(&name->cover);
}

static void known_now(struct name *name)
{
	name->inherited = false;
}

/*
 * Programs may rely on standing GOs as long as the lease is good, and no longer than
 * an agent may be silent: without one nobody would end those who lock meanwhile.
 */
static void extend_standing(struct agent *agent)
{
	uint64_t until = loop_now_ns() + (uint64_t)agent->config->ttl_ms * 1000000u / 6;
	struct store_lease lease;

	store_lease(agent->store, &lease);
	if (agent->lost || !lease.last_good_ns)
		until = 0;
	else if (until > lease.failing_ns)
		until = lease.failing_ns;
	publish_valid_until(agent->options.standing, until);
}

static void on_state(void *arg, enum store_state state, const char *text)
{
	static const char *const names[] = { "connecting", "refused", "up", "grace" };
	struct agent *agent = arg;

	if (state != agent->state || strcmp(text, agent->state_text))
		log_line(state == STORE_UP ? LOG_LEVEL_INFO : LOG_LEVEL_WARN, "store %s%s%s", names[state],
			 *text ? ": " : "", text);
	agent->state = state;
	snprintf(agent->state_text, sizeof agent->state_text, "%s", text);
	if (state == STORE_REFUSED)
		clients_fail_waiting(agent, agent->state_text);
	getlk_go_on(agent);
	if (state != STORE_UP && state != STORE_GRACE)
		return;
	names_each(agent, known_now);
	extend_standing(agent);
	if (agent->rejoining) {
		agent->rejoining = false;
		names_each(agent, ask_again);
	}
	clients_unpark(agent);
}

static void on_granted(void *arg, const char *key, uint64_t req, const struct lock_span *spans, size_t count,
		       const struct lock_span *waiting, size_t waiting_count)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	name->granted_ns = loop_now_ns();
	cover_granted(&name->cover, req, spans, count, waiting, waiting_count);
	name_settle(name);
}

static void on_queued(void *arg, const char *key, uint64_t req, bool again)
{
	struct agent *agent = arg;
	struct name *name = name_find(agent, key);

	if (name)
		cover_queued(&name->cover, req, again);
	else if (again)
		store_withdraw(agent->store, key, req);
}

static void on_busy(void *arg, const char *key, uint64_t req)
{
	struct name *name = name_find(arg, key);

	if (!name)
		return;
	cover_refused(&name->cover, req);
	name_settle(name);
}

static void on_failed(void *arg, const char *key, uint64_t req, const char *text)
{
	static struct log_limit limit;
	struct client *client = req ? client_find(arg, req) : NULL;
	char line[600];

	snprintf(line, sizeof line, "the store refuses this name (%.200s): %.350s", key, text);
	if (log_allowed(&limit))
		log_error("%s", line);
	if (client)
		client_fail(client, ENOLCK, line);
}

static void on_recall(void *arg, const char *key, const struct lock_span *waiting, size_t count)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	cover_recalled(&name->cover, waiting, count);
	name_settle(name);
}

static void on_try(void *arg, const char *key, const struct lock_span *wanted, const char *host, uint64_t req)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	clients_hear(name);
	if (cover_tried(&name->cover, wanted, host, req))
		log_error("%s: out of memory for a try of host %s", key, host);
	name_settle(name);
}

static void on_cover(void *arg, const char *key, const struct lock_span *spans, size_t count,
		     const struct lock_span *waiting, size_t waiting_count)
{
	struct name *name = count ? name_get(arg, key, NULL) : NULL;

	if (!name)
		return;
	cover_granted(&name->cover, 0, spans, count, waiting, waiting_count);
	name_settle(name);
}

/* What the kernel says without a call on the file's own filesystem, which may hang. */
static bool has_rule(const struct agent *agent, const char *fd_path)
{
	struct rules_match match;
	char path[4096 + sizeof " (deleted)"];
	ssize_t n = readlink(fd_path, path, sizeof path - 1);

	if (n <= 0)
		return false;
	if (n > 10 && !memcmp(path + n - 10, " (deleted)", 10))
		n -= 10;
	path[n] = 0;
	return rules_find(&agent->rules, path, (size_t)n, &match);
}

/*
 * A lock of a predecessor that the guard did not know: its file is found by its holder. All are looked for at once, so the
 * name may be one of which the store's word is still to come.
 */
static void scanned_lock(void *arg, pid_t pid, const char *fd_path, bool records, enum lock_mode mode)
{
	struct agent *agent = arg;
	struct identity *identity = malloc(sizeof *identity);
	struct rules_match match;
	char key[RULES_NAME_MAX + 2];
	struct name *name;
	int fd = has_rule(agent, fd_path) ? open(fd_path, O_PATH | O_CLOEXEC) : -1, own = -1;

	(void)mode;
	memcpy(key, records ? "r:" : "f:", 2);
	if (fd >= 0)
		own = identify_reopen(fd, records);
	if (identity && own >= 0 && identify_fd(own, identity) == IDENTIFY_MANAGED &&
	    rules_find(&agent->rules, identity->path, strlen(identity->path), &match) &&
	    rules_expand(match.name, match.pattern, identity->path, key + 2, sizeof key - 2) >= 0) {
		name = name_get(agent, key, match.on_lost);
		if (name && !name_add_file(name, &own, &identity->id, identify_is_local(own), NULL)) {
			name_keep_files(name);
			log_info("%s: held by pid %d", key, (int)pid);
		}
	}
	if (own >= 0)
		close(own);
	if (fd >= 0)
		close(fd);
	free(identity);
}

/* Recalls that a predecessor may have taken with it come again as events of their own. */
static void on_resumed(void *arg, const char *key, const struct lock_span *spans, size_t count)
{
	struct agent *agent = arg;
	struct name *name = name_get(agent, key, NULL);

	if (!name)
		return;
	if (!name->file_count && !agent->scanned) {
		agent->scanned = true;
		holders_scan_all(scanned_lock, agent);
	}
	cover_granted(&name->cover, 0, spans, count, NULL, 0);
	name_settle(name);
}

static size_t cover_state(struct agent *agent, struct store_cover *covers, struct store_request *requests,
			  size_t *ret_requests, uint64_t *ret_fence)
{
	struct hash_node *node = NULL;
	size_t n = 0, r = 0;
	uint64_t fence = agent->void_floor;

	while ((node = hash_walk(&agent->names, node))) {
		struct name *name = hash_entry(node, struct name, node);
		const struct cover *c = &name->cover;

		if (c->top_fence > fence)
			fence = c->top_fence;
		if (c->spans.count) {
			if (covers)
				covers[n] = (struct store_cover){ name->key, c->spans.at, c->spans.count, name->info };
			n++;
		}
		for (size_t i = 0; i < c->request_count; i++) {
			const struct cover_request *request = &c->requests[i];

			if (request->state != REQUEST_ASKED)
				continue;
			if (requests)
				requests[r] = (struct store_request){ name->key, request->id, request->at, request->mode,
								      cover_flags(request), name->info };
			r++;
		}
	}
	*ret_requests = r;
	*ret_fence = fence;
	return n;
}

static void on_reassert(void *arg)
{
	struct agent *agent = arg;
	struct store_cover *covers;
	struct store_request *requests;
	size_t cover_count, request_count;
	uint64_t fence;

	cover_count = cover_state(agent, NULL, NULL, &request_count, &fence);
	covers = calloc(cover_count + 1, sizeof *covers);
	requests = calloc(request_count + 1, sizeof *requests);
	if (covers && requests) {
		cover_state(agent, covers, requests, &request_count, &fence);
		log_info("re-asserting %zu covers and %zu requests", cover_count, request_count);
		store_reassert(agent->store, covers, cover_count, requests, request_count, fence);
	} else {
		log_error("out of memory: nothing can be re-asserted");
	}
	free(covers);
	free(requests);
}

static void on_reasserted(void *arg, const char *key, const struct lock_span *spans, size_t count)
{
	on_cover(arg, key, spans, count, NULL, 0);
}

/* --- the lease and its end --- */

static void lost_ladder_done(void *arg, size_t held);

static void lost_ladder(struct agent *agent)
{
	if (ladder_job_start(agent, LADDER_KILL, lost_ladder_done))
		log_error("out of memory: the holders are left to the guard");
}

static void lose_cover(struct name *name)
{
	cover_lost(&name->cover);
	name_settle(name);
}

/* Every holder is ended before a new session begins: others may hold the names by now. */
static void lost_ladder_done(void *arg, size_t held)
{
	struct agent *agent = arg;

	if (held) {
		lost_ladder(agent);
		return;
	}
	names_each(agent, lose_cover);
	clients_session_lost(agent);
	agent->lost = false;
	agent->rejoining = true;
	log_warn("all holders of the lost session are gone, joining anew");
	store_rejoin(agent->store);
}

static void on_lost(void *arg, const char *why)
{
	struct agent *agent = arg;

	log_error("the session is lost: %s", why);
	if (agent->lost)
		return;
	agent->lost = true;
	agent->session++;
	publish_valid_until(agent->options.standing, 0);
	names_each(agent, name_publish);
	lost_ladder(agent);
}

static void failing_done(void *arg, size_t held)
{
	(void)arg;
	(void)held;
}

/* Past `failing`: what nobody holds here is given back (the store hears of it when it can be reached). */
static void give_back_if_free(struct name *name)
{
	cover_idle(&name->cover);
	name_settle(name);
}

void session_check_lease(struct agent *agent)
{
	enum ladder_step step = ladder_at(loop_now_ns(), atomic_load(&agent->link->page->last_good_ns),
					  agent->config->ttl_ms);

	extend_standing(agent);
	if (step == LADDER_GOOD) {
		if (agent->failing) {
			agent->failing = false;
			log_info("the lease is good again");
			ladder_pass(LADDER_GOOD, NULL, 0);
		}
		clients_unpark(agent);
		return;
	}
	if (!agent->failing) {
		agent->failing = true;
		log_error("no renewal for two thirds of T: no lock is given any more, holders are asked to end");
	}
	names_each(agent, give_back_if_free);
	if (!agent->ladder_running && !agent->lost)
		ladder_job_start(agent, step, failing_done);
}

void session_renewed(void *arg, const struct store_lease *lease)
{
	struct agent *agent = arg;	/* on the renewal thread: only the shared page is touched */

	atomic_store(&agent->link->page->last_good_ns, lease->last_good_ns);
}

const struct store_events session_events = {
	.state = on_state, .granted = on_granted, .queued = on_queued, .busy = on_busy, .failed = on_failed,
	.recall = on_recall, .try = on_try, .cover = on_cover, .resumed = on_resumed, .reassert = on_reassert,
	.reasserted = on_reasserted, .lost = on_lost, .status = ask_record,
	.asked = ask_asked, .reached = ask_reached, .told = ask_told,
};
