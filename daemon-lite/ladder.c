/* SPDX-License-Identifier: MIT */
/*
 * What happens to holders at the end of a lease. The same code runs in the
 * agent and, when no agent is up, in the guard.
 *
 * Only holders that the kernel shows are signalled, each checked once more
 * behind its pidfd (holder_signal). A file that stays locked though nobody is
 * found is an error said aloud: it can only be a descriptor in flight, a lock in
 * a pid namespace that /proc does not show, or a process in exit.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "holders.h"
#include "klock.h"
#include "log.h"

/* --- pure ---------------------------------------------------------------- */

static int signal_parse(const char *name)
{
	char *end;
	long number;

	if (*name >= '0' && *name <= '9') {
		number = strtol(name, &end, 10);
		return *end == '\0' && number >= 1 && number <= SIGRTMAX ? (int)number : -EINVAL;
	}
	if (strncmp(name, "SIG", 3) == 0)
		name += 3;
	for (int sig = 1; sig < SIGRTMIN; sig++) {
		const char *known = sigabbrev_np(sig);

		if (known && strcmp(known, name) == 0)
			return sig;
	}
	return -EINVAL;
}

int on_lost_parse(const char *text, struct on_lost_rule *ret_rule)
{
	struct on_lost_rule rule = { .what = ON_LOST_KILL };

	if (strcmp(text, "log") == 0) {
		rule.what = ON_LOST_LOG;
	} else if (strncmp(text, "signal:", 7) == 0) {
		rule.what = ON_LOST_SIGNAL;
		rule.sig = signal_parse(text + 7);
		if (rule.sig < 0)
			return -EINVAL;
	} else if (strcmp(text, "kill") != 0) {
		return -EINVAL;
	}
	*ret_rule = rule;
	return 0;
}

enum ladder_step ladder_at(uint64_t now_ns, uint64_t last_good_ns, uint32_t ttl_ms)
{
	uint64_t ttl_ns = ttl_ms * 1000000ull, age;

	if (last_good_ns == 0 || ttl_ns == 0 || now_ns <= last_good_ns)
		return LADDER_GOOD;
	age = now_ns - last_good_ns;
	if (age >= ttl_ns / 6 * 5)
		return LADDER_KILL;
	return age >= ttl_ns / 3 * 2 ? LADDER_FAILING : LADDER_GOOD;
}

/* --- who was signalled --------------------------------------------------- */

/* A process is known by its pid and its start time: pids are used again. */
struct mark {
	pid_t pid;
	int sig;		/* 0 = the line in the log */
	uint64_t start;
};

#define MARKS_MAX 4096		/* beyond it the oldest is forgotten: a second SIGTERM does no harm */

static struct {
	pthread_mutex_t lock;	/* guards all that follows; held for a whole pass */
	pid_t skip;
	struct mark marks[MARKS_MAX];
	size_t count, next;
	time_t said;		/* when "no holder found" was last said */
} ladder = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Field 22 of /proc/PID/stat; 0 if the process is gone. */
static uint64_t start_time(pid_t pid)
{
	char path[32], text[1024], *p;
	unsigned long long start = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return 0;
	text[n] = '\0';
	p = strrchr(text, ')');	/* the command may contain anything */
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &start) != 1)
		return 0;
	return start;
}

static bool marked(const struct mark *mark)
{
	for (size_t i = 0; i < ladder.count; i++)
		if (ladder.marks[i].pid == mark->pid && ladder.marks[i].sig == mark->sig && ladder.marks[i].start == mark->start)
			return true;
	return false;
}

static void mark_put(const struct mark *mark)
{
	ladder.marks[ladder.next] = *mark;
	ladder.next = (ladder.next + 1) % MARKS_MAX;
	if (ladder.count < MARKS_MAX)
		ladder.count++;
}

/* --- a pass -------------------------------------------------------------- */

struct pass {
	enum ladder_step step;
	struct ladder_file **held;	/* the files that are locked, in the order of the holder_files */
	bool *found;			/* by the same index */
	pid_t last_pid;			/* the holder before this one, and its file: a process may have thousands of record locks */
	size_t last_file;
};

static bool is_records(const struct ladder_file *file)
{
	return strncmp(file->key, "r:", 2) == 0;
}

static struct holder_file holder_file_of(const struct ladder_file *file)
{
	return (struct holder_file){ .id = file->id, .records = is_records(file) };
}

/* What is held anywhere in the file: MODE_NONE, a mode, or -errno. */
static int probe(const struct ladder_file *file)
{
	struct lock_span lock;
	int pid, r;

	if (!is_records(file))
		return klock_probe(file->fd, MODE_EX);
	r = klock_getlk(file->fd, EXTENT_ALL, MODE_EX, &lock, &pid);
	return r < 0 ? r : (int)lock.mode;
}

/* What this step asks for, for a holder of this file. */
static int signal_of(enum ladder_step step, const struct on_lost_rule *rule)
{
	switch (rule->what) {
	case ON_LOST_KILL:
		return step == LADDER_KILL ? SIGKILL : SIGTERM;
	case ON_LOST_SIGNAL:
		return rule->sig;
	case ON_LOST_LOG:
		break;
	}
	return 0;
}

static void on_holder(void *arg, const struct holder *holder)
{
	struct pass *pass = arg;
	const struct ladder_file *file = pass->held[holder->inode];
	const struct holder_file which = holder_file_of(file);
	const char *how = holder->mapping ? " (by a mapping)" : "";
	int sig = signal_of(pass->step, &file->on_lost), r;
	bool is_kill_rule = file->on_lost.what == ON_LOST_KILL;
	struct mark mark = { .pid = holder->pid, .sig = sig };

	pass->found[holder->inode] = true;
	if (holder->pid == pass->last_pid && holder->inode == pass->last_file)
		return;
	pass->last_pid = holder->pid;
	pass->last_file = holder->inode;
	/* SIGKILL is sent in each pass; the line about it is written once. */
	mark.start = start_time(holder->pid);
	if (marked(&mark)) {
		if (is_kill_rule && sig == SIGKILL)
			holder_signal(holder, &which, sig);
		return;
	}
	if (sig == 0) {
		log_error("%s: the lease is lost, process %d (%s)%s goes on as if it held the lock: on_lost is \"log\"", file->key,
			  (int)holder->pid, holder->command, how);
		mark_put(&mark);
		return;
	}
	r = holder_signal(holder, &which, sig);
	if (r == -ESRCH)	/* it has let go or has ended in this moment */
		return;
	if (r < 0)
		log_error("%s: the lease is lost, SIG%s cannot be sent to holder %d (%s)%s: %s", file->key,
			  sigabbrev_np(sig) ? sigabbrev_np(sig) : "RT", (int)holder->pid, holder->command, how, strerror(-r));
	else
		log_warn("%s: the lease %s, SIG%s sent to holder %d (%s)%s", file->key,
			 pass->step == LADDER_KILL ? "is lost" : "cannot be renewed", sigabbrev_np(sig) ? sigabbrev_np(sig) : "RT",
			 (int)holder->pid, holder->command, how);
	mark_put(&mark);
}

/* Leaves only the files with nobody found. Returns how many. */
static size_t not_found(struct pass *pass, struct holder_file *which, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++) {
		if (pass->found[i])
			continue;
		which[n] = which[i];
		pass->held[n++] = pass->held[i];
	}
	return n;
}

static void say_nobody(const struct ladder_file *file)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec == ladder.said)
		return;
	ladder.said = now.tv_sec;
	log_error("%s: the lease is lost and the file is still locked here, but no holder can be found; end it by hand", file->key);
}

/* Probes all files; sets done, fills which and held. Returns how many are locked. */
static size_t probe_all(struct ladder_file *files, size_t count, struct holder_file *which, struct ladder_file **held)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++) {
		int mode;

		if (files[i].done)
			continue;
		mode = probe(&files[i]);
		if (mode == MODE_NONE) {
			files[i].done = true;
			continue;
		}
		if (mode < 0)	/* cannot tell, so as if it were locked: the holders say */
			log_error("%s: the kernel cannot be asked who holds it: %s", files[i].key, strerror(-mode));
		which[n] = holder_file_of(&files[i]);
		held[n++] = &files[i];
	}
	return n;
}

/*
 * Three rounds, each for the files where the one before found nobody: the second
 * one because holders_find looks thoroughly only when it finds nobody at all.
 */
static void find_and_signal(struct pass *pass, struct holder_file *which, size_t count)
{
	for (int round = 0; round < 3 && count > 0; round++) {
		memset(pass->found, 0, count * sizeof(*pass->found));
		pass->last_pid = 0;
		if (round < 2)
			holders_find(which, count, ladder.skip, on_holder, pass);
		else
			holders_find_mappings(which, count, ladder.skip, on_holder, pass);
		count = not_found(pass, which, count);
	}
	for (size_t i = 0; i < count; i++) {
		/* It may have been let go since the probe. */
		if (probe(pass->held[i]) == MODE_NONE)
			pass->held[i]->done = true;
		else
			say_nobody(pass->held[i]);
	}
}

void ladder_set_skip(pid_t pid)
{
	pthread_mutex_lock(&ladder.lock);
	ladder.skip = pid;
	pthread_mutex_unlock(&ladder.lock);
}

size_t ladder_pass(enum ladder_step step, struct ladder_file *files, size_t count)
{
	struct pass pass = { .step = step };
	struct holder_file *which;
	size_t held = 0;

	pthread_mutex_lock(&ladder.lock);
	if (step == LADDER_GOOD) {
		ladder.count = ladder.next = 0;
		pthread_mutex_unlock(&ladder.lock);
		return 0;
	}
	which = calloc(count + 1, sizeof(*which));
	pass.held = calloc(count + 1, sizeof(*pass.held));
	pass.found = calloc(count + 1, sizeof(*pass.found));
	if (!which || !pass.held || !pass.found) {
		log_error("the lease is lost and there is no memory to look for its holders; trying again");
		held = count;
		goto out;
	}
	held = probe_all(files, count, which, pass.held);
	find_and_signal(&pass, which, held);
	held = 0;
	for (size_t i = 0; i < count; i++) {
		if (!files[i].done)
			held++;
		if (step == LADDER_KILL && files[i].on_lost.what != ON_LOST_KILL)
			files[i].done = true;
	}
out:
	free(which);
	free(pass.held);
	free(pass.found);
	pthread_mutex_unlock(&ladder.lock);
	return held;
}
