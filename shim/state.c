/* SPDX-License-Identifier: MIT */
/*
 * The shim's state. Invariants:
 *
 *  - The environment is read here alone, once; the values are copied.
 *  - Made without a lock: constructors of other libraries, their threads and
 *    signal handlers may come before ours. Each comer fills a slot of its own and
 *    the first to publish wins; all would have found the same.
 *  - Rules that were replaced are unmapped only when no thread can be reading
 *    them; if that cannot be shown at that moment, they stay mapped (a leak of a
 *    few pages for each change of the configuration).
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../config/config.h"
#include "fd.h"
#include "log.h"
#include "sys.h"

#define SLOTS 8
#define CONFIG_MAX_BYTES (4 << 20)

static struct shim_state slots[SLOTS];
static atomic_uint slots_taken;
static _Atomic(struct shim_state *) published;

static uint64_t now_s(void)
{
	/* From 1: zero means never. */
	return 1 + sys_now_ns(CLOCK_MONOTONIC_COARSE) / UINT64_C(1000000000);
}

static void copy_text(char *buf, size_t size, const char *text)
{
	size_t len = strlen(text);

	if (len >= size)
		len = size - 1;
	memcpy(buf, text, len);
	buf[len] = '\0';
}

/* Makes a relative path absolute, since the program may change its directory. False if it gets too long. */
static bool make_absolute(char *buf, size_t size, const char *path)
{
	size_t len = 0;
	long n;

	if (*path != '/') {
		n = sys_call(SYS_getcwd, buf, size);
		if (n <= 0 || *buf != '/')
			return false;
		len = strlen(buf);
		if (len > 1 && len + 1 < size)
			buf[len++] = '/';
		while (path[0] == '.' && path[1] == '/')
			path += 2 + strspn(path + 2, "/");
	}
	if (len + strlen(path) >= size)
		return false;
	strcpy(buf + len, path);
	return true;
}

static int broken(struct shim_state *state, int err, const char *what, const char *why)
{
	state->kind = STATE_BROKEN;
	state->err = err;
	state->what = what;
	state->why = why;
	return err;
}

static int open_config(const void *path)
{
	return (int)sys_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* Checks who could have written the configuration, and finds its key runtime_dir. 0 or -errno with what and why set. */
static int read_config(struct shim_state *state, char *ret_dir, size_t size)
{
	struct stat st;
	void *text;
	int fd, err;

	fd = fd_new(open_config, state->config);
	if (fd < 0)
		return broken(state, fd, state->config, "the configuration cannot be opened");
	if (fstat(fd, &st) < 0)
		err = broken(state, -errno, state->config, "the configuration cannot be read");
	else if (!S_ISREG(st.st_mode))
		err = broken(state, -EINVAL, state->config, "the configuration is not a regular file");
	else if (st.st_uid != 0 && st.st_uid != (uid_t)sys_call(SYS_geteuid))
		err = broken(state, -EPERM, state->config, "the configuration belongs to another user");
	else if (st.st_mode & (S_IWGRP | S_IWOTH))
		err = broken(state, -EPERM, state->config, "the configuration can be written by group or others");
	else if (st.st_size > CONFIG_MAX_BYTES)
		err = broken(state, -EFBIG, state->config, "the configuration is too large");
	else
		err = 0;
	*ret_dir = '\0';
	if (err == 0 && st.st_size > 0) {
		text = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (text == MAP_FAILED) {
			err = broken(state, -errno, state->config, "the configuration cannot be read");
		} else {
			if (runtime_dir_scan(text, (size_t)st.st_size, ret_dir, size) < 0)
				*ret_dir = '\0';
			munmap(text, (size_t)st.st_size);
		}
	}
	sys_close(fd);
	return err;
}

static void fill(struct shim_state *state)
{
	const char *named = secure_getenv("DLOCKSHIM_CONFIG");
	const char *log = secure_getenv("DLOCKSHIM_LOG");
	char key[PATH_MAX];
	struct stat st;
	int err, config_err;

	/* An agent started by hand under LD_PRELOAD would ask itself, and wait for the answer. */
	if (program_invocation_short_name && strcmp(program_invocation_short_name, "dlockd") == 0) {
		state->kind = STATE_OFF;
		return;
	}
	state->kind = STATE_ON;
	if (log && strcmp(log, "stderr") && strcmp(log, "syslog") && *log) {
		if (!make_absolute(state->log, sizeof state->log, log))
			state->log[0] = '\0';
	} else {
		copy_text(state->log, sizeof state->log, log ? log : "");
	}
	shim_log_to(state->log);

	state->root_known = stat("/", &st) == 0;
	if (state->root_known) {
		state->root_dev = st.st_dev;
		state->root_ino = st.st_ino;
	}

	if (!named || !*named) {
		named = NULL;
		copy_text(state->config, sizeof state->config, CONFIG_DEFAULT_FILE);
	} else if (!make_absolute(state->config, sizeof state->config, named)) {
		copy_text(state->config, sizeof state->config, named);
	}
	config_err = read_config(state, key, sizeof key);
	if (config_err == -ENOENT && !named) {
		state->kind = STATE_OFF;
		return;
	}

	err = runtime_dir_find(config_err == 0 && *key ? key : NULL, state->runtime_dir, sizeof state->runtime_dir);
	if (err < 0) {
		broken(state, err, "DLOCKSHIM_RUNTIME_DIR or runtime_dir", "the runtime directory must be an absolute path");
		return;
	}
	err = runtime_dir_check(state->runtime_dir);
	if (err < 0 && err != -ENOENT) {
		broken(state, err, state->runtime_dir,
		       "the runtime directory must belong to root or to this user and not be writable by group or others");
		return;
	}
	/* Rules that were compiled for this configuration hold on while it cannot be read. */
	if (err == 0 && state_map_rules(state) == 0)
		state->kind = STATE_ON;
}

static struct shim_state *claim_slot(void)
{
	unsigned n = atomic_load(&slots_taken);

	do {
		if (n == SLOTS)
			return NULL;
	} while (!atomic_compare_exchange_weak(&slots_taken, &n, n + 1));
	return &slots[n];
}

struct shim_state *state_get(void)
{
	struct shim_state *state = atomic_load_explicit(&published, memory_order_acquire);
	struct shim_state *first = NULL;

	if (state)
		return state;
	state = claim_slot();
	if (!state) {
		/* SLOTS threads are at it already; none of them waits for us. */
		while (!(state = atomic_load(&published)))
			(void)syscall(SYS_sched_yield);
		return state;
	}
	fill(state);
	if (!atomic_compare_exchange_strong(&published, &first, state)) {
		shim_log_to(first->log);
		return first;
	}
	return state;
}

/* Everything is made before main(), before a chroot, with the directory the program was started in. */
__attribute__((constructor)) static void state_construct(void)
{
	int saved = errno;

	(void)state_get();
	errno = saved;
}

struct shim_state *state_again(struct shim_state *state)
{
	static struct shim_state spare;		/* filled by one thread at a time */
	static atomic_bool filling;
	struct shim_state *slot;
	uint64_t now = now_s();

	if (atomic_exchange(&state->tried_s, now) == now || atomic_exchange(&filling, true))
		return atomic_load(&published);
	memset(&spare, 0, sizeof spare);
	fill(&spare);
	shim_log_to(state->log);
	if (spare.kind != STATE_BROKEN && (slot = claim_slot())) {
		memcpy(slot, &spare, sizeof *slot);
		shim_log_to(slot->log);
		atomic_store(&published, slot);
	}
	atomic_store(&filling, false);
	return atomic_load(&published);
}

bool state_root_moved(const struct shim_state *state)
{
	struct stat st;

	return !state->root_known || stat("/", &st) < 0 || st.st_dev != state->root_dev || st.st_ino != state->root_ino;
}

static uint64_t config_stamp(const struct shim_state *state)
{
	struct stat st;

	return stat(state->config, &st) < 0 ? 0 : rules_stamp(&st);
}

bool state_rules_fresh(struct shim_state *state)
{
	const struct rules_header *header;
	bool fresh = false;

	atomic_fetch_add(&state->readers, 1);
	header = atomic_load(&state->rules);
	if (header && !__atomic_load_n(&header->stale, __ATOMIC_ACQUIRE)) {
		uint64_t now = now_s();

		/* An agent that was killed could not take its mark back: look at the file once a second all the same. */
		if (__atomic_load_n(&header->attended, __ATOMIC_ACQUIRE) &&
		    atomic_load_explicit(&state->compared_s, memory_order_relaxed) == now) {
			fresh = true;
		} else if (config_stamp(state) == header->stamp) {
			fresh = true;
			atomic_store_explicit(&state->compared_s, now, memory_order_relaxed);
		}
	}
	atomic_fetch_sub(&state->readers, 1);
	return fresh;
}

/* Whether rules were compiled from our configuration file: by its name, or by its identity where it has two names. */
static bool rules_are_ours(const struct shim_state *state, const struct rules_header *header)
{
	return (header->config_len == strlen(state->config) &&
		memcmp((const char *)header + header->config_off, state->config, header->config_len) == 0) ||
	       config_stamp(state) == header->stamp;
}

struct rules_place {
	const char *runtime_dir;
	struct rules *rules;
};

static int open_rules(const void *arg)
{
	const struct rules_place *place = arg;
	int err = rules_open(place->runtime_dir, place->rules);

	return err < 0 ? err : 3;	/* not a descriptor: one that fd_new() leaves alone */
}

int state_map_rules(struct shim_state *state)
{
	const struct rules_header *old;
	struct rules rules = { NULL, 0 };
	bool same;
	int err;

	err = runtime_dir_check(state->runtime_dir);
	if (err == 0)
		err = fd_new(open_rules, &(struct rules_place){ state->runtime_dir, &rules });	/* also at RLIMIT_NOFILE */
	if (err < 0)
		return err;
	if (!rules_are_ours(state, rules.header)) {
		rules_close(&rules);
		return -ESTALE;
	}
	atomic_fetch_add(&state->readers, 1);
	old = atomic_load(&state->rules);
	same = old && old->stamp == rules.header->stamp && !__atomic_load_n(&old->stale, __ATOMIC_ACQUIRE);
	atomic_fetch_sub(&state->readers, 1);
	if (same) {
		rules_close(&rules);
		return 0;
	}
	old = atomic_exchange(&state->rules, rules.header);
	/* No reader now means that whoever comes later sees the new ones. */
	if (old && atomic_load(&state->readers) == 0) {
		struct rules gone = { old, old->size };

		rules_close(&gone);
	}
	return 0;
}

const struct standing_table *state_standing(struct shim_state *state)
{
	const struct standing_table *table = atomic_load_explicit(&state->standing, memory_order_acquire), *none = NULL;

	if (table)
		return table;
	table = standing_map(state->runtime_dir);
	/* Another thread was first: both mappings are good, one stays unused. */
	if (table && !atomic_compare_exchange_strong(&state->standing, &none, table))
		return none;
	return table;
}

enum state_verdict state_match(struct shim_state *state, const char *path, size_t len, uint64_t *ret_stamp)
{
	static const char deleted[] = " (deleted)";
	enum state_verdict verdict = STATE_NO_RULES;
	const struct rules_header *header;
	struct rules_match match;

	*ret_stamp = 0;
	atomic_fetch_add(&state->readers, 1);
	header = atomic_load(&state->rules);
	if (header) {
		const struct rules rules = { header, header->size };
		size_t cut = sizeof deleted - 1;

		*ret_stamp = header->stamp;
		verdict = STATE_NO_RULE;
		if (rules_find(&rules, path, len, &match))
			verdict = STATE_RULE;
		/* Deleted, or a live file of that name: the agent finds out which. */
		else if (len > cut && memcmp(path + len - cut, deleted, cut) == 0 &&
			 rules_find(&rules, path, len - cut, &match))
			verdict = STATE_RULE;
	}
	atomic_fetch_sub(&state->readers, 1);
	return verdict;
}
