/* SPDX-License-Identifier: MIT */
/*
 * The agent's life: start, the loop's own events, end.
 *
 *   program ──(unix socket)── client ── call ── name ── cover rules ── session ── store ──(Redis)── other hosts
 *                                                └── the kernel: probe, helper that waits, ladder
 *
 * What the store says and what the lease asks for is in session.c, the
 * configuration in reload.c, a call in call.c, a name in name.c.
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
#define CROWDED_NS (60ull * SECOND_NS)	/* how often it is said that descriptors run out */
#define SILENT_NS (5ull * SECOND_NS)	/* a client that sends nothing is dropped after so long; ACCEPT_PAUSE_NS when descriptors run out */
#define EXIT_AGAIN 76		/* the configuration needs a new session: the guard starts an agent again */

uint64_t agent_next_id(struct agent *agent)
{
	return agent->next_id++;
}
bool agent_any_held(struct agent *agent)
{
	struct hash_node *node = NULL;

	while ((node = hash_walk(&agent->names, node))) {
		struct name *name = hash_entry(node, struct name, node);

		if (cover_has_requests(&name->cover))
			return true;
		/* Of what a predecessor left, the store's word is still to come. */
		if ((cover_mode(&name->cover) != MODE_NONE || name->inherited) && name_is_held(name))
			return true;
	}
	return false;
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
	reload_close_standing(agent);
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
		reload_close_standing(agent);
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
	session_check_lease(agent);
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
	bool any_held;

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
	if (reload_rules(&agent, text, sizeof text))
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
			    agent.options.runtime_dir, &session_events, &agent, &agent.store, text, sizeof text))
		return refuse_start(&agent, text, GUARD_EXIT_CONFIG);
	store_on_renewed(agent.store, session_renewed, &agent);
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
	any_held = agent_any_held(&agent);
	store_free(agent.store, !any_held);
	if (atomic_load(&link->page->quit) || !any_held)
		atomic_store(&link->page->last_good_ns, 0);	/* the session has ended, and needs nobody who watches it */
	log_info("dlockd ends");
	return agent.exit_code;
}
