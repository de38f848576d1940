/* SPDX-License-Identifier: MIT */
/*
 * The agent's parts and how they hang together. One thread, the loop's, owns
 * everything here; helper threads and the renewal thread reach it by loop_post().
 *
 *   client.c   one connection = one lock call of a program: messages, credentials, the process's end
 *   name.c     one lock: its cover (cover.c decides), its files on this host; name_kernel.c: probes and waits
 *   call.c     what the lock call comes to; call_go.c: when its program is told GO
 *   session.c  the session in the store, the lease, the ladder
 *   reload.c   the configuration while it runs
 *   agent.c    start, idling, end
 *   query.c    what the dlock command asks
 *   ask.c      questions between agents
 *   survey*.c  what all hosts hold, asked and answered; look*.c: what the kernel here shows
 *   getlk*.c   who on another host stands against a record lock
 *   deadlock*.c  cycles of waits over hosts
 */
#ifndef DLOCK_AGENT_H
#define DLOCK_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../config/rules.h"
#include "../shim/wire.h"
#include "cover.h"
#include "guard.h"
#include "hash.h"
#include "identify.h"
#include "loop.h"
#include "publish.h"
#include "store/store.h"

struct client;
struct config;
struct name_wait;

struct list {			/* a ring; the head is a member too */
	struct list *next, *prev;
};

#define list_entry(l, type, member) ((type *)(void *)((char *)(l) - offsetof(type, member)))

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}

static inline void list_remove(struct list *l)
{
	l->next->prev = l->prev;
	l->prev->next = l->next;
	list_init(l);
}

static inline void list_append(struct list *head, struct list *l)
{
	l->prev = head->prev;
	l->next = head;
	head->prev->next = l;
	head->prev = l;
}

struct agent_options {
	const char *config_file;	/* NULL = default */
	const char *runtime_dir;	/* in force */
	bool on_demand;
	int lock_fd;			/* of agent.lock in the runtime directory */
	struct standing_table *standing;	/* NULL = every call asks */
};

struct agent {
	struct agent_options options;
	struct loop *loop;
	struct guard_link *link;
	struct config *config;
	struct rules rules;		/* the compiled ones, as the shims see them */
	char config_error[600];		/* not empty: the configuration of now cannot be used, and why */
	struct store *store;
	enum store_state state;
	char state_text[512];
	bool lost;			/* the session is gone; holders are being ended */
	unsigned session;		/* rises when a session is lost */
	bool replaced;			/* the runtime directory is not ours any more: drains, another agent serves */
	bool draining;			/* told to end; waits for holders */
	bool failing;			/* past last good + 2T/3 */
	uint64_t void_floor;		/* the highest fence of any name that was forgotten */
	struct hash names;		/* struct name by key */
	struct hash clients;		/* struct client by request id */
	size_t client_count;		/* connections */
	struct list parked;		/* clients that wait for the lease or the session */
	struct list answers;		/* clients with an answer to be sent by clients_answer() */
	struct list silent;		/* clients that have sent nothing yet, oldest first */
	uint64_t crowded_ns;		/* when it was said last that descriptors run out */
	struct list dead;		/* clients to be freed after this round */
	uint64_t next_id;
	uint64_t busy_ns;		/* when there was work last (idle_exit) */
	uint64_t config_checked_ns;
	bool config_restart;		/* the change needs a new session: the agent ends when nothing is held */
	struct loop_timer tick, accept_again;
	struct loop_io listen_io, abstract_io, link_io, signal_io;
	bool rejoining;			/* after a lost session: requests have to be asked anew */
	uint64_t config_error_stamp;
	bool ladder_running;
	bool scanned;			/* /proc was searched for locks of a predecessor */
	int exit_code;
	struct looks *looks;		/* look.c */
	struct surveys *surveys;	/* survey.c */
	struct hash asks;		/* ask.c: struct ask by nonce */
	struct getlk *getlks;		/* getlk.c: that wait for the store */
	struct deadlock *deadlock;	/* deadlock.c */
	struct deadlock_looks *deadlock_looks;	/* deadlock_look.c */
	struct asker *askers;		/* survey_answer.c */
	unsigned asker_count;
};

/* --- name.c --- */

struct name;

struct name_file {		/* one inode that programs here lock under a name */
	int fd;			/* a description of the agent's own */
	struct inode_id id;
	bool local;		/* lock calls on it never wait for a network */
	bool kept;		/* the guard has a copy */
	struct publish_slot standing; /* its place among the standing GOs */
};

struct name {
	struct hash_node node;
	struct agent *agent;
	char *key;		/* "f:NAME" (flock) or "r:NAME" (record locks) */
	bool records;
	char *on_lost;
	struct on_lost_rule on_lost_rule;
	struct cover cover;
	struct name_file *files;
	size_t file_count;
	size_t held_file;	/* the one that was seen locked last */
	size_t clients;		/* that have it as theirs; a parked one is not known to the cover */
	bool probe_due;
	bool probe_running;	/* in a helper thread */
	struct name_wait **waits;	/* by the cover's slots */
	unsigned wait_count;
	bool inherited;		/* a predecessor's; whether the store has a cover for it is not known yet */
	char info[96];		/* "PID COMMAND" of the program that asked last */
	uint64_t active_ns;	/* last request's beginning or end */
	uint64_t granted_ns;
	uint64_t held_ns;	/* when a program here took the lock last (by DONE); 0 = not known */
	enum lock_mode held_mode;
	pid_t held_pid;
	struct loop_timer idle, retry;
};

struct name *name_find(struct agent *agent, const char *key);
/* Finds or makes it. NULL when out of memory. on_lost may be NULL (resumed; set when a rule is known). */
struct name *name_get(struct agent *agent, const char *key, const char *on_lost);
bool name_has_file(const struct name *name, const struct inode_id *id);
/*
 * Makes sure that the inode is among the name's files. *own: the agent's own description of it, or the -errno of its
 * opening; taken (-1) if it is needed. path: as programs see it, or NULL. 0 or -errno.
 */
int name_add_file(struct name *name, int *own, const struct inode_id *id, bool local, const char *path);
/* The same with a descriptor of the agent's own, which the name takes over. */
int name_adopt_file(struct name *name, int own_fd, const struct inode_id *id, bool local);
/* Gives the guard a copy of each file it has not got yet. */
void name_keep_files(struct name *name);
/* To be called after cover events: does what the cover has asked for in the kernel. */
void name_settle(struct name *name);
/* Opens or closes the name's standing GOs as its cover and the agent's state say; part of name_settle(). */
void name_publish(struct name *name);
/* True while a probe, or a helper of the agent's own, may hold a lock for an instant. */
bool name_is_asking(const struct name *name);
/* Whether lock calls on all of its files never wait for a network. */
bool name_is_local(const struct name *name);
/* Whether anybody here holds a lock on one of its files, as far as that can be asked without waiting (else yes). */
bool name_is_held(const struct name *name);
/* The strongest POSIX lock that this process holds in `at` and in what is recalled; its files must be local. */
enum lock_mode name_owner_mode(const struct name *name, struct extent at, pid_t pid);
void name_free(struct name *name);

/* --- client.c --- */

void client_accept(struct agent *agent, int listen_fd);
struct client *client_find(struct agent *agent, uint64_t id);
/* Notes the cover's answer; clients_answer() sends it (name_settle() calls it). */
void client_answer(struct client *client, enum cover_answer answer);
void clients_hear(struct name *name);	/* reads what those with a GO have sent */
void clients_answer(struct agent *agent);
void clients_release_dead(struct agent *agent);
/* The request is in the store's hands: watch the process, bound a try. */
void client_asked(struct client *client);
/* "PID COMMAND" for the store. */
const char *client_info(const struct client *client, char *buf, size_t size);
void client_fail(struct client *client, int err, const char *text);
/* Sends what was held back, once the lease and session allow it. */
void clients_unpark(struct agent *agent);
/* Every request whose GO belongs to a lost session begins anew. */
void clients_session_lost(struct agent *agent);
/* A store that refuses for good: every waiting request fails. */
void clients_fail_waiting(struct agent *agent, const char *text);

struct client_view {		/* for status */
	int pid;
	const char *key;
	enum wire_family family;
	struct extent at;
	enum lock_mode mode;
	bool try, waits_in_kernel;
	uint64_t since_ns, go_ns;	/* asked; was given a GO */
	char command[16];
};
void clients_each(struct agent *agent, void (*fn)(void *arg, const struct client_view *view), void *arg);

void names_each(struct agent *agent, void (*fn)(struct name *name));	/* fn may free its name, no other */

/* --- session.c --- */

extern const struct store_events session_events;
/* Whether a GO may be given now; if not, why (one sentence). */
bool agent_may_go(struct agent *agent, const char **ret_why);
uint64_t agent_valid_until(const struct agent *agent);
void session_check_lease(struct agent *agent);	/* each tick: the ladder, or what waited for a good lease */
void session_renewed(void *agent, const struct store_lease *lease);	/* on the renewal thread */

/* --- reload.c --- */

/* Reads the configuration again if its file has changed. */
void agent_check_config(struct agent *agent);
/* The compiled rules as programs find them; made anew if need be. */
void agent_check_rules(struct agent *agent);
/* Compiles the configuration's rules and maps them. 0, or -errno with a sentence. */
int reload_rules(struct agent *agent, char *ret_text, size_t size);
void reload_close_standing(struct agent *agent);

/* --- agent.c --- */

int agent_main(void *options, struct guard_link *link);
bool agent_is_replaced(struct agent *agent);	/* looks at the runtime directory */
void agent_pause_accepting(struct agent *agent, int err);	/* no client can be taken: again in a moment */
void clients_drop_silent(struct agent *agent, uint64_t since_ns); /* those that have sent nothing since then */
uint64_t agent_next_id(struct agent *agent);
/* Whether a program here holds a lock or waits for one. */
bool agent_any_held(struct agent *agent);
void agent_end(struct agent *agent, int exit_code);

/* --- query.c --- */

struct record_buf;
/* Answers a query; client_query_done() is called now or later. */
void query_start(struct agent *agent, struct client *client, const char *text);
void client_query_done(struct client *client, const struct record_buf *records, int err, const char *text);
uint64_t client_id(const struct client *client);
uid_t client_uid(const struct client *client);

/* --- ask.c: store events --- */

void ask_record(void *agent, void *call, const char *record, size_t len, int err);
void ask_reached(void *agent, uint64_t nonce, const char *host, int err);
void ask_told(void *agent, const char *host, uint64_t nonce, uint64_t part, enum store_last last, const char *text, size_t len);
void ask_asked(void *agent, const char *host, uint64_t nonce, const char *key, const char *question);

/* --- survey_answer.c --- */

/* Another host wants to see what the kernel here shows (key "": of all locks). */
void survey_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key);

#endif
