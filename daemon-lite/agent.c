/* SPDX-License-Identifier: MIT */
/*
 * The agent's life: start, session, lease, end. What a call needs is in
 * client.c, what a name needs in name.c; what happens to all of them at once is here.
 *
 *   program ──(unix socket)── client ── name ── cover rules ── store ──(Redis)── other hosts
 *                                        └── the kernel: probe, helper that waits, ladder
 *
 * The store module says what has become of the session; the lease says until
 * when covers may be relied on. Past `failing` no GO is given, past `kill` the
 * holders are ended; if this process cannot, the guard does it (guard.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../config/config.h"
#include "agent.h"
#include "holders.h"
#include "klock.h"
#include "ladder_job.h"
#include "log.h"
#include "runtime.h"

#define SECOND_NS 1000000000u
#define ACCEPT_PAUSE_NS 20000000u
#define CONFIG_CHECK_NS 2000000u	/* a stat() of the configuration holds for so long; it costs as much as a lock in a tight loop */
#define CROWDED_NS (60ull * SECOND_NS)	/* how often it is said that descriptors run out */
#define SILENT_NS (5ull * SECOND_NS)	/* a client that sends nothing is dropped after so long; ACCEPT_PAUSE_NS when descriptors run out */
#define EXIT_AGAIN 76		/* the configuration needs a new session: the guard starts an agent again */

uint64_t agent_next_id(struct agent *agent)
{
	return agent->next_id++;
}

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

static void for_each_name(struct agent *agent, void (*fn)(struct name *name))
{
	struct hash_node *node = hash_walk(&agent->names, NULL), *next;

	for (; node; node = next) {
		next = hash_walk(&agent->names, node);
		fn(hash_entry(node, struct name, node));
	}
}

static void ask_again(struct name *name)
{
	cover_ask_again(&name->cover);
}

static void known_now(struct name *name)
{
	name->inherited = false;
}

/* Programs may rely on standing GOs as long as the lease is good. */
static void extend_standing(struct agent *agent)
{
	struct store_lease lease;

	store_lease(agent->store, &lease);
	publish_valid_until(agent->options.standing, agent->lost || !lease.last_good_ns ? 0 : lease.failing_ns);
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
	if (state != STORE_UP && state != STORE_GRACE)
		return;
	for_each_name(agent, known_now);
	extend_standing(agent);
	if (agent->rejoining) {
		agent->rejoining = false;
		for_each_name(agent, ask_again);
	}
	clients_unpark(agent);
}

static void on_granted(void *arg, const char *key, uint64_t req, enum lock_mode mode, uint64_t fence, enum lock_mode waiting)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	name->granted_ns = loop_now_ns();
	cover_granted(&name->cover, req, mode, fence, waiting);
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

static void on_recall(void *arg, const char *key, uint64_t fence, enum lock_mode mode)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	cover_recalled(&name->cover, fence, mode);
	name_settle(name);
}

static void on_try(void *arg, const char *key, uint64_t fence, enum lock_mode mode, const char *host, uint64_t req)
{
	struct name *name = name_get(arg, key, NULL);

	if (!name)
		return;
	clients_hear(name);
	if (cover_tried(&name->cover, fence, mode, host, req))
		log_error("%s: out of memory for a try of host %s", key, host);
	name_settle(name);
}

static void on_cover(void *arg, const char *key, enum lock_mode mode, uint64_t fence, enum lock_mode waiting)
{
	struct name *name = mode != MODE_NONE ? name_get(arg, key, NULL) : NULL;

	if (!name)
		return;
	cover_granted(&name->cover, 0, mode, fence, waiting);
	name_settle(name);
}

/* A lock of a predecessor that the guard did not know: its file is found by its holder. */
static void scanned_lock(void *arg, pid_t pid, const char *fd_path, enum lock_mode mode)
{
	struct agent *agent = arg;
	struct identity *identity = malloc(sizeof *identity);
	struct rules_match match;
	char key[RULES_NAME_MAX + 2] = "f:";
	struct name *name;
	int fd = open(fd_path, O_PATH | O_CLOEXEC), own = -1;

	(void)mode;
	if (fd >= 0)
		own = identify_reopen(fd);
	if (identity && own >= 0 && identify_fd(own, identity) == IDENTIFY_MANAGED &&
	    rules_find(&agent->rules, identity->path, strlen(identity->path), &match) &&
	    rules_expand(match.name, match.pattern, identity->path, key + 2, sizeof key - 2) >= 0) {
		name = name_find(agent, key);
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
static void on_resumed(void *arg, const char *key, enum lock_mode mode, uint64_t fence)
{
	struct agent *agent = arg;
	struct name *name = name_get(agent, key, NULL);

	if (!name)
		return;
	if (!name->file_count && !agent->scanned) {
		agent->scanned = true;
		holders_scan_all(scanned_lock, agent);
	}
	cover_granted(&name->cover, 0, mode, fence, MODE_NONE);
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

		if (c->fence > fence)
			fence = c->fence;
		if (c->mode != MODE_NONE) {
			if (covers)
				covers[n] = (struct store_cover){ name->key, c->mode, c->fence, name->info };
			n++;
		}
		for (size_t i = 0; i < c->request_count; i++) {
			if (c->requests[i].state != REQUEST_ASKED)
				continue;
			if (requests)
				requests[r] = (struct store_request){ name->key, c->requests[i].id, c->requests[i].mode,
								      c->requests[i].try, name->info };
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

static void on_reasserted(void *arg, const char *key, enum lock_mode mode, uint64_t fence)
{
	on_cover(arg, key, mode, fence, MODE_NONE);
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
	for_each_name(agent, lose_cover);
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
	for_each_name(agent, name_publish);
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

static void check_lease(struct agent *agent)
{
	enum ladder_step step = ladder_at(loop_now_ns(), atomic_load(&agent->link->page->last_good_ns),
					  agent->config->ttl_ms);

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
	for_each_name(agent, give_back_if_free);
	if (!agent->ladder_running && !agent->lost)
		ladder_job_start(agent, step, failing_done);
}

static void on_renewed(void *arg, const struct store_lease *lease)
{
	struct agent *agent = arg;	/* on the renewal thread: only shared pages are touched */

	atomic_store(&agent->link->page->last_good_ns, lease->last_good_ns);
	publish_valid_until(agent->options.standing, lease->failing_ns);
}

/* --- configuration --- */

static int load_rules(struct agent *agent, char *ret_text, size_t size)
{
	struct config_error error;
	struct rules rules;
	int err;

	err = config_write_rules(agent->config, agent->options.runtime_dir, &error);
	if (err) {
		snprintf(ret_text, size, "%s", error.text);
		return err;
	}
	err = rules_open(agent->options.runtime_dir, &rules);
	if (err) {
		snprintf(ret_text, size, "the compiled rules in %s cannot be read: %s", agent->options.runtime_dir,
			 strerror(-err));
		return err;
	}
	rules_close(&agent->rules);
	agent->rules = rules;
	return config_attend_rules(agent->options.runtime_dir, 1);
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

/* Whether two configurations speak to the same session. */
static bool same_store(const struct config *a, const struct config *b)
{
	if (strcmp(a->name_space, b->name_space) || a->ttl_ms != b->ttl_ms ||
	    a->redis.server_count != b->redis.server_count || !same_text(a->redis.user, b->redis.user) ||
	    !same_text(a->redis.password_file, b->redis.password_file) || !same_text(a->state_dir, b->state_dir))
		return false;
	for (size_t i = 0; i < a->redis.server_count; i++)
		if (strcmp(a->redis.servers[i], b->redis.servers[i]))
			return false;
	return true;
}

bool agent_any_held(struct agent *agent)
{
	struct hash_node *node = NULL;

	while ((node = hash_walk(&agent->names, node))) {
		struct name *name = hash_entry(node, struct name, node);

		if (cover_has_requests(&name->cover))
			return true;
		for (size_t i = 0; i < name->file_count && name->cover.mode != MODE_NONE; i++)
			if (!name->files[i].local || klock_probe(name->files[i].fd, MODE_EX) != MODE_NONE)
				return true;
	}
	return false;
}

static void forget_paths(struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++) {
		publish_drop(&name->files[i].standing);
		name->files[i].standing = (struct publish_slot){ 0 };
	}
}

static void close_standing(struct agent *agent)
{
	for_each_name(agent, name_publish);
}

void agent_check_rules(struct agent *agent)
{
	char text[sizeof agent->config_error];
	struct rules there;
	bool good;

	if (agent->config_restart || (agent->config_error[0] && agent->config_error_stamp))
		return;		/* the configuration itself is not usable */
	if (rules_open(agent->options.runtime_dir, &there) == 0) {
		good = there.header->stamp == agent->config->stamp && !there.header->stale;
		rules_close(&there);
		if (good && agent->rules.header->stamp == agent->config->stamp) {
			agent->config_error[0] = 0;
			return;
		}
	}
	if (load_rules(agent, text, sizeof text) == 0) {
		log_info("the compiled rules in %s are made anew", agent->options.runtime_dir);
		agent->config_error[0] = 0;
	} else if (strcmp(text, agent->config_error)) {
		snprintf(agent->config_error, sizeof agent->config_error, "%s", text);
		log_error("%s", text);
	}
}

void agent_check_config(struct agent *agent)
{
	struct config *config;
	struct config_error error;
	struct stat st;
	uint64_t stamp, now = loop_now_ns();
	int err;

	if (now - agent->config_checked_ns < CONFIG_CHECK_NS)
		return;
	agent->config_checked_ns = now;
	stamp = stat(agent->config->file, &st) ? 0 : rules_stamp(&st);
	if (stamp == agent->config->stamp) {
		agent->config_error_stamp = 0;
		agent->config_restart = false;
		if (agent->rules.header->stamp != stamp)
			agent_check_rules(agent);	/* they could not be written before */
		else
			agent->config_error[0] = 0;
		return;
	}
	if (agent->config_error[0] && stamp == agent->config_error_stamp)
		return;
	agent->config_error_stamp = stamp;
	agent->config_restart = false;
	if (config_load(agent->config->file, &config, &error)) {
		snprintf(agent->config_error, sizeof agent->config_error, "%s", error.text);
		log_error("%s", error.text);
		close_standing(agent);
		return;
	}
	if (!same_store(agent->config, config)) {
		config_free(config);
		agent->config_restart = true;
		snprintf(agent->config_error, sizeof agent->config_error,
			 "%s now names another store, namespace or ttl: that is used as soon as nothing is locked here any more",
			 agent->config->file);
		close_standing(agent);
		return;
	}
	/* Other rules may give a path another name: whoever asks anew learns it. */
	for_each_name(agent, forget_paths);
	config_free(agent->config);
	agent->config = config;
	agent->config_restart = false;
	agent->config_error[0] = 0;
	err = load_rules(agent, agent->config_error, sizeof agent->config_error);
	if (err)
		log_error("%s", agent->config_error);
	else
		log_info("%s read again: %zu rules", config->file, config->rule_count);
}

/* --- the loop's own events --- */

static void accept_event(struct loop_io *io, uint32_t events)
{
	(void)events;
	client_accept(io->arg, io->fd);
}

static void accept_again(struct loop_timer *timer)
{
	struct agent *agent = timer->arg;

	clients_drop_silent(agent, loop_now_ns() - ACCEPT_PAUSE_NS);
	loop_io_mod(agent->loop, &agent->listen_io, EPOLLIN);
	if (agent->abstract_io.fd >= 0)
		loop_io_mod(agent->loop, &agent->abstract_io, EPOLLIN);
}

void agent_pause_accepting(struct agent *agent, int err)
{
	if (agent->accept_again.slot)
		return;
	if (!agent->crowded_ns || loop_now_ns() - agent->crowded_ns > CROWDED_NS)
		log_warn("no more clients for a moment, %zu are here: %s; is the limit of open files high enough?",
			 agent->client_count, strerror(err));
	agent->crowded_ns = loop_now_ns();
	loop_io_mod(agent->loop, &agent->listen_io, 0);
	if (agent->abstract_io.fd >= 0)
		loop_io_mod(agent->loop, &agent->abstract_io, 0);
	loop_timer_set(agent->loop, &agent->accept_again, loop_now_ns() + ACCEPT_PAUSE_NS);
}

void agent_end(struct agent *agent, int exit_code)
{
	agent->exit_code = exit_code;
	if (exit_code == 0)
		atomic_store(&agent->link->page->quit, 1);
	loop_stop(agent->loop);
}

static void drain(struct agent *agent)
{
	if (!agent_any_held(agent))
		agent_end(agent, 0);
}

/*
 * Without its directory no new program finds this agent. It makes room: whoever
 * connects now is refused, so the next program starts an agent in the directory
 * that is there. What is held here stays this host's in the store, and stays
 * guarded, until it is released.
 */
bool agent_is_replaced(struct agent *agent)
{
	if (agent->replaced || runtime_lock_stands(agent->options.runtime_dir, agent->options.lock_fd))
		return agent->replaced;
	log_error("the runtime directory %s was removed or replaced: this agent gives no new locks and ends when none is held",
		  agent->options.runtime_dir);
	agent->replaced = agent->draining = true;
	close_standing(agent);
	loop_io_del(agent->loop, &agent->listen_io);
	shutdown(agent->link->listen_fd, SHUT_RDWR);	/* the guard's copies too */
	if (agent->abstract_io.fd >= 0) {
		loop_io_del(agent->loop, &agent->abstract_io);
		shutdown(agent->abstract_io.fd, SHUT_RDWR);
	}
	return true;
}

static void signal_event(struct loop_io *io, uint32_t events)
{
	struct agent *agent = io->arg;
	struct signalfd_siginfo info;

	(void)events;
	while (read(io->fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGHUP) {
			agent_check_config(agent);
			continue;
		}
		if (agent->draining && agent_any_held(agent)) {
			log_error("ending at once: locks are still held and nobody watches them any more");
			agent_end(agent, 0);
			return;
		}
		agent->draining = true;
		close_standing(agent);
		drain(agent);
		if (!atomic_load(&agent->link->page->quit))
			log_warn("told to end: waiting for the programs that hold locks; a second signal ends at once");
	}
}

static void link_event(struct loop_io *io, uint32_t events)
{
	struct agent *agent = io->arg;

	if (!(events & (EPOLLHUP | EPOLLERR)))
		return;
	loop_io_del(agent->loop, io);
	log_error("the guard is dead: if this process dies too, nobody ends the holders of its locks; restart dlockd");
}

static void round_event(void *arg)
{
	struct agent *agent = arg;

	clients_release_dead(agent);
	guard_flush(agent->link);
	atomic_store(&agent->link->page->alive_ns, loop_now_ns());
}

static void tick(struct loop_timer *timer)
{
	struct agent *agent = timer->arg;
	uint64_t now = loop_now_ns(), period = (uint64_t)agent->config->ttl_ms * 1000000u / 24;

	loop_timer_set(agent->loop, timer, now + (period < SECOND_NS ? period : SECOND_NS));
	atomic_store(&agent->link->page->alive_ns, now);
	atomic_store(&agent->link->page->held, (uint32_t)agent->names.count);
	check_lease(agent);
	agent_check_config(agent);
	agent_is_replaced(agent);
	if (agent->client_count)
		clients_drop_silent(agent, now - SILENT_NS);
	if (agent->config_restart && !agent_any_held(agent)) {
		log_info("starting again with the new configuration");
		agent_end(agent, EXIT_AGAIN);
	}
	if (agent->client_count || agent->names.count)
		agent->busy_ns = now;
	if (agent->draining)
		drain(agent);
	else if (agent->options.on_demand && now - agent->busy_ns > (uint64_t)agent->config->idle_exit_ms * 1000000u)
		agent_end(agent, 0);
}

/* --- start and end --- */

static void taken_over(void *arg, int fd, const struct inode_id *id, const char *key, const char *on_lost)
{
	struct agent *agent = arg;
	struct name *name = name_get(agent, key, on_lost);

	if (!name || name_adopt_file(name, fd, id, identify_is_local(fd))) {
		close(fd);
		return;
	}
	name_keep_files(name);
	name->inherited = true;
}

static const struct store_events events = {
	.state = on_state, .granted = on_granted, .queued = on_queued, .busy = on_busy, .failed = on_failed,
	.recall = on_recall, .try = on_try, .cover = on_cover, .resumed = on_resumed, .reassert = on_reassert,
	.reasserted = on_reasserted, .lost = on_lost, .status = survey_store_record,
	.asked = survey_asked, .reached = survey_reached, .told = survey_told,
};

static int refuse_start(struct agent *agent, const char *text, int exit_code)
{
	log_error("%s", text);
	runtime_start_error(agent->options.runtime_dir, text);
	return exit_code;
}

static int watch(struct agent *agent, struct loop_io *io, int fd, void (*fn)(struct loop_io *, uint32_t))
{
	*io = (struct loop_io){ .fd = fd, .events = EPOLLIN, .fn = fn, .arg = agent };
	return fd < 0 ? 0 : loop_io_add(agent->loop, io);
}

static int watch_all(struct agent *agent)
{
	sigset_t set;
	int err, fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);	/* before any thread is started: all inherit it */
	signal(SIGPIPE, SIG_IGN);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	err = watch(agent, &agent->signal_io, fd, signal_event);
	err = err ? err : watch(agent, &agent->link_io, agent->link->fd, link_event);
	err = err ? err : watch(agent, &agent->listen_io, agent->link->listen_fd, accept_event);
	return err ? err : watch(agent, &agent->abstract_io, agent->link->abstract_fd, accept_event);
}

int agent_main(void *options, struct guard_link *link)
{
	static struct agent agent;	/* threads may still look at it when the process ends */
	struct config_error error;
	char text[600];
	int err;

	agent.options = *(struct agent_options *)options;
	agent.link = link;
	list_init(&agent.parked);
	list_init(&agent.answers);
	list_init(&agent.silent);
	list_init(&agent.dead);
	publish_reset(agent.options.standing);
	if (config_load(agent.options.config_file, &agent.config, &error))
		return refuse_start(&agent, error.text, GUARD_EXIT_CONFIG);
	atomic_store(&link->page->ttl_ms, agent.config->ttl_ms);
	if (load_rules(&agent, text, sizeof text))
		return refuse_start(&agent, text, GUARD_EXIT_CONFIG);
	if (getrandom(&agent.next_id, sizeof agent.next_id, 0) != sizeof agent.next_id)
		agent.next_id = loop_now_ns();
	/* Ids are unique for ever: 32 random bits for this agent, then a counter. */
	agent.next_id = (agent.next_id << 32 | 1) & INT64_MAX;
	snprintf(agent.state_text, sizeof agent.state_text, "there is no connection to %s yet",
		 agent.config->redis.servers[0]);
	err = loop_new(&agent.loop);
	err = err ? err : watch_all(&agent);
	if (err) {
		snprintf(text, sizeof text, "the agent cannot start: %s", strerror(-err));
		return refuse_start(&agent, text, GUARD_EXIT_TEMPFAIL);
	}
	if (store_redis_new(agent.loop, agent.config, agent.config->state_dir ? agent.config->state_dir :
			    agent.options.runtime_dir, &events, &agent, &agent.store, text, sizeof text))
		return refuse_start(&agent, text, GUARD_EXIT_CONFIG);
	store_on_renewed(agent.store, on_renewed, &agent);
	store_inherit_lease(agent.store, atomic_load(&link->page->last_good_ns));
	agent.busy_ns = loop_now_ns();
	guard_take_over(link, taken_over, &agent);
	agent.tick = (struct loop_timer){ .fn = tick, .arg = &agent };
	agent.accept_again = (struct loop_timer){ .fn = accept_again, .arg = &agent };
	loop_timer_set(agent.loop, &agent.tick, 0);
	loop_on_round(agent.loop, round_event, &agent);
	runtime_start_error(agent.options.runtime_dir, NULL);
	log_info("dlockd: namespace %s, host %s, %s", agent.config->name_space, store_host_id(agent.store),
		 agent.options.runtime_dir);
	store_start(agent.store);
	loop_run(agent.loop);
	publish_reset(agent.options.standing);
	config_attend_rules(agent.options.runtime_dir, 0);
	store_free(agent.store, !agent_any_held(&agent));
	if (atomic_load(&link->page->quit))
		atomic_store(&link->page->last_good_ns, 0);
	log_info("dlockd ends");
	return agent.exit_code;
}
