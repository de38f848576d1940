/* SPDX-License-Identifier: MIT */
/*
 * The decision. The common case, a path that no rule names, must stay cheap:
 * readlink, a look at two words of shared memory, the match, stat("/").
 *
 * No verdict is kept: a rename of the file or of a directory above it would make
 * it wrong. The stat of "/" notices a chroot, after which the kernel gives paths
 * that begin elsewhere; then the agent is asked about everything, since it sees
 * the descriptor from outside. "(unreachable)/…" is such a path too.
 */
#include "decide.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "cancel.h"
#include "connect.h"
#include "fd.h"
#include "log.h"
#include "reach.h"
#include "sys.h"

static bool is_file_or_directory(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

struct question {		/* for rules */
	struct reach reach;
	uint64_t stamp;
	char text[256];		/* why not */
};

/* Asks the agent for rules that fit. 0, -EINTR or -ENOLCK (logged, or the text says why). */
static int ask_for_rules(void *arg)
{
	struct question *question = arg;
	struct reach *reach = &question->reach;
	struct wire_msg msg;
	int socket, err, type;

	do {
		err = reach_agent(reach, &socket);
		if (err < 0)
			return err;
		wire_init(&msg, WIRE_RULES);
		msg.stamp = question->stamp;
		err = connect_send(socket, &msg, NULL, -1);
		while (err == 0) {
			type = cancel_open(reach->cancellable);
			err = connect_receive(socket, &msg, question->text, sizeof question->text);
			cancel_close(reach->cancellable, type);
			if (err != -EINTR || !reach->bounded)
				break;
			err = 0;
		}
		reach_close(reach);
		if (err == 0)
			return msg.type == WIRE_RULES_OK ? 0 : -ENOLCK;
		if (err != -ECONNRESET && err != -EPIPE)
			return err == -EINTR ? -EINTR : -ENOLCK;
		err = reach_pause(reach);
		if (err < 0)
			return err;
	} while (!reach_is_late(reach));
	return -ENOLCK;
}

static void abandon_question(void *arg)
{
	reach_abandon(&((struct question *)arg)->reach);
}

/* Has rules made that fit the configuration, and maps them. 0, -EINTR, -ENOLCK (logged unless it was before). */
__attribute__((noinline)) static int renew_rules(struct shim_state *state, int fd, unsigned how, uintptr_t frame, uint64_t stamp)
{
	uint64_t now = 1 + sys_now_ns(CLOCK_MONOTONIC_COARSE) / UINT64_C(1000000000);
	struct question question;
	const char *text = question.text;
	int err;

	/* A newer file may be there already. */
	err = state_map_rules(state);
	if (err == 0 && state_rules_fresh(state))
		return 0;
	/* Old rules are better than none, and a configuration that stays broken is tried once a second. */
	if (stamp && atomic_exchange(&state->tried_s, now) == now)
		return -ENOLCK;

	/* With old rules it is not the lock that fails, and the log must not say so. */
	reach_begin(&question.reach, state, stamp ? -1 : fd, how & DECIDE_BOUNDED, frame);
	question.reach.cancellable = how & DECIDE_CANCELLABLE;
	question.stamp = stamp;
	question.text[0] = '\0';
	err = question.reach.cancellable ? cancel_scope(ask_for_rules, abandon_question, &question) : ask_for_rules(&question);
	reach_end(&question.reach);
	if (err == -ENOTSUP)
		return err;
	if (err == 0)
		err = state_map_rules(state);
	if (err == 0) {
		atomic_store(&state->complained, false);
		return 0;
	}
	if (err == -EINTR)
		return err;
	if (!atomic_exchange(&state->complained, true) || !stamp) {
		if (err == -ESTALE)
			shim_log("the agent of ", state->runtime_dir, " serves another configuration than ", state->config,
				 "; give each its own runtime directory");
		else if (err != -ENOLCK)
			shim_log("the compiled rules in ", state->runtime_dir, " cannot be used: ", shim_error(err));
		else if (*text)
			shim_log("no rules for ", state->config, ": ", text);
		if (stamp)
			shim_log("the rules compiled before stay in force");
	}
	return -ENOLCK;
}

static enum decision refuse_broken(const struct shim_state *state, int fd)
{
	if (!is_file_or_directory(fd))
		return DECIDE_KERNEL;
	shim_log(state->what, ": ", state->why, " (", shim_error(state->err), "); every lock call fails until it can be used");
	return DECIDE_REFUSE;
}

enum decision decide(int fd, enum lock_mode mode, unsigned how, uintptr_t frame, struct decided *ret_decided)
{
	struct shim_state *state = state_get();
	enum state_verdict verdict;
	char path[PATH_MAX + 32];	/* the kernel gives at most a page */
	int len, err;

	ret_decided->stamp = 0;
	ret_decided->standing = false;
	if (state->kind == STATE_BROKEN)
		state = state_again(state);
	ret_decided->state = state;
	if (state->kind == STATE_OFF)
		return DECIDE_KERNEL;
	len = fd_path(fd, path, sizeof path);
	if (len == -EBADF)
		return DECIDE_KERNEL;
	if (len >= 0 && path[0] != '/' && path[0] != '(')
		return DECIDE_KERNEL;	/* "pipe:[5]" */
	if (state->kind == STATE_BROKEN)
		return refuse_broken(state, fd);
	if (len < 0 || path[0] == '(')
		return is_file_or_directory(fd) ? DECIDE_AGENT : DECIDE_KERNEL;

	if (!state_rules_fresh(state)) {
		if (!is_file_or_directory(fd))
			return DECIDE_KERNEL;
		/* In a chroot neither the configuration nor the rules can be looked at. */
		if (state_root_moved(state))
			return DECIDE_AGENT;
		(void)state_match(state, path, 0, &ret_decided->stamp);
		err = renew_rules(state, fd, how, frame, ret_decided->stamp);
		if (err == -EINTR)
			return DECIDE_EINTR;
	}
	verdict = state_match(state, path, (size_t)len, &ret_decided->stamp);
	if (verdict == STATE_NO_RULES)
		return DECIDE_REFUSE;
	if (verdict == STATE_RULE) {
		const struct standing_table *table = state_standing(state);

		ret_decided->standing = table && standing_find(table, path, (size_t)len, fd, mode, how & DECIDE_RECORDS, &ret_decided->look);
		return DECIDE_AGENT;
	}
	return state_root_moved(state) && is_file_or_directory(fd) ? DECIDE_AGENT : DECIDE_KERNEL;
}
