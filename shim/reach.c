/* SPDX-License-Identifier: MIT */
/*
 * See reach.h. What ends the tries:
 *
 *  - a bounded call: REACH_BOUNDED_NS without an agent;
 *  - an agent that was started and said that it cannot run (a broken
 *    configuration), or three in a row that just ended;
 *  - an agent cannot be started from here and none has answered in this call for
 *    REACH_START_NS.
 *
 * A call that waits for its lock and loses its agent waits on, as long as it
 * takes: the guard or systemd starts another; and it gives them a moment before
 * it starts one itself.
 *
 * Pauses are reads of a timerfd. nanosleep, poll and futex with a timeout give
 * EINTR after any handler; a read of a timerfd is restarted after one with
 * SA_RESTART and goes on to the same moment, as the kernel's flock would.
 */
#include "reach.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "cancel.h"
#include "connect.h"
#include "fd.h"
#include "log.h"
#include "sys.h"

#define MS UINT64_C(1000000)
#define NAP_FIRST (2 * MS)
#define NAP_MOST (100 * MS)
#define OTHERS_TURN (300 * MS)	/* a guard or service manager starts the next agent within that time, mostly */
#define STARTS_MAX 3
#define REASON_MAX 320

void reach_begin(struct reach *reach, const struct shim_state *state, int fd, bool bounded, uintptr_t frame)
{
	memset(reach, 0, sizeof *reach);
	reach->state = state;
	reach->fd = fd;
	reach->bounded = bounded;
	reach->frame = frame;
	reach->open_fd = -1;
}

void reach_end(struct reach *reach)
{
	spawn_forget(&reach->spawn);
}

void reach_close(struct reach *reach)
{
	left_restore(reach->before);
	sys_close(reach->open_fd);
	reach->open_fd = -1;
}

void reach_abandon(struct reach *reach)
{
	if (reach->open_fd >= 0)
		reach_close(reach);
	reach_end(reach);
}

__attribute__((noinline)) void reach_complain(const struct reach *reach, const char *why, const char *more)
{
	char path[512];
	int n = fd_path(reach->fd, path, sizeof path);

	if (reach->fd < 0)
		shim_log("the rules cannot be compiled: ", why, more);
	else
		shim_log("cannot lock ", n < 0 && n != -ENAMETOOLONG ? "a file" : path, n == -ENAMETOOLONG ? "…: " : ": ", why, more);
}

static int make_timer(const void *unused)
{
	(void)unused;
	return (int)sys_call(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC);
}

static int nap(struct reach *reach, uint64_t ns)
{
	static _Atomic uint32_t count;
	/* The interval is never waited for: its length is the timer's name. */
	uint64_t name = UINT64_C(3600000000000) + atomic_fetch_add(&count, 1) % 999999937;
	struct itimerspec spec = {
		.it_value = { (time_t)(ns / UINT64_C(1000000000)), (long)(ns % UINT64_C(1000000000)) },
		.it_interval = { (time_t)(name / UINT64_C(1000000000)), (long)(name % UINT64_C(1000000000)) },
	};
	uint64_t expired;
	int fd, err, type;

	fd = fd_new(make_timer, NULL);
	if (fd < 0)
		return (int)sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &spec.it_value, NULL);
	reach->before = left_note_timer(fd, name, reach->frame);
	reach->open_fd = fd;
	err = timerfd_settime(fd, 0, &spec, NULL) < 0 ? -errno : 0;
	if (err == 0) {
		type = cancel_open(reach->cancellable);
		err = (int)sys_call(SYS_read, fd, &expired, sizeof expired);
		cancel_close(reach->cancellable, type);
	}
	reach_close(reach);
	return err < 0 ? err : 0;
}

static void note_trouble(struct reach *reach)
{
	if (!reach->trouble_ns)
		reach->trouble_ns = sys_now_ns(CLOCK_MONOTONIC);
}

int reach_pause(struct reach *reach)
{
	int err;

	note_trouble(reach);
	reach->nap_ns = reach->nap_ns ? reach->nap_ns * 2 : NAP_FIRST;
	if (reach->nap_ns > NAP_MOST)
		reach->nap_ns = NAP_MOST;
	err = nap(reach, reach->nap_ns);
	return err == -EINTR && !reach->bounded ? -EINTR : 0;
}

bool reach_is_late(const struct reach *reach)
{
	return reach->bounded && reach->trouble_ns &&
	       sys_now_ns(CLOCK_MONOTONIC) - reach->trouble_ns >= REACH_BOUNDED_NS;
}

/* Whether fd is of a kind that distributed locks are never taken on. */
static bool is_kernels_own(int fd)
{
	struct stat st;

	return fd >= 0 && (fstat(fd, &st) < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)));
}

static int refuse(struct reach *reach, const char *why, const char *more)
{
	reach_complain(reach, why, more);
	return -ENOLCK;
}

/* What became of the agent that this call started. 0: go on trying. */
static int look_after_start(struct reach *reach)
{
	char reason[REASON_MAX];

	if (!reach->spawn.pid || !spawn_ended(&reach->spawn))
		return 0;
	if (spawn_reason(reach->state, &reach->spawn, reason, sizeof reason))
		return refuse(reach, "dlockd was started and could not run: ", reason);
	spawn_forget(&reach->spawn);
	/* Another agent may have been faster; then somebody answers soon. */
	if (++reach->starts >= STARTS_MAX && !reach->was_connected)
		return refuse(reach, "dlockd was started and ended at once, in the runtime directory ", reach->state->runtime_dir);
	return 0;
}

/* Nobody answers: starts an agent if that is our part. 0: go on trying. */
static int nobody_answers(struct reach *reach)
{
	uint64_t now = sys_now_ns(CLOCK_MONOTONIC);
	bool cannot = false;
	char reason[REASON_MAX];
	int err;

	note_trouble(reach);
	if (!reach->since_ns) {
		reach->since_ns = now;
		if (is_kernels_own(reach->fd))
			return -ENOTSUP;
	}
	err = look_after_start(reach);
	if (err < 0)
		return err;
	if (!reach->spawn.pid && !(reach->was_connected && now - reach->since_ns < OTHERS_TURN)) {
		switch (spawn_agent(reach->state, &reach->spawn, reason, sizeof reason)) {
		case SPAWN_STARTED:
		case SPAWN_OTHERS:
			break;
		case SPAWN_FAILED:
			return refuse(reach, "dlockd was started and could not run: ", reason);
		case SPAWN_CANNOT:
			cannot = true;
			break;
		}
	}
	if (cannot && (reach_is_late(reach) || (!reach->was_connected && now - reach->since_ns >= REACH_START_NS)))
		return refuse(reach, "no agent answers, and ", reason);
	if (reach_is_late(reach))
		return refuse(reach, "no agent answers in the runtime directory ", reach->state->runtime_dir);
	if (!reach->complained && now - reach->since_ns >= REACH_START_NS) {
		reach->complained = true;
		reach_complain(reach, "still waiting for an agent in the runtime directory ", reach->state->runtime_dir);
	}
	return 0;
}

int reach_agent(struct reach *reach, int *ret_socket)
{
	unsigned uid = 0;
	int err;

	for (;;) {
		err = connect_agent(reach->state->runtime_dir, reach->bounded, ret_socket, &uid);
		if (err == 0) {
			reach->was_connected = true;
			reach->since_ns = 0;
			reach->before = left_note_socket(*ret_socket, reach->frame);
			reach->open_fd = *ret_socket;
			return 0;
		}
		if (err == -ESRCH) {
			err = nobody_answers(reach);
			if (err < 0)
				return err;
			err = reach_pause(reach);
			if (err < 0)
				return err;
		} else if (err == -EINTR) {
			if (!reach->bounded)
				return -EINTR;
		} else if (err == -EPERM) {
			return refuse(reach, "whoever answers for the agent is not to be trusted, it runs as user ",
				      shim_number((long)uid).text);
		} else if (err == -EAGAIN) {
			return refuse(reach, "the agent does not answer", NULL);
		} else {
			return refuse(reach, "no connection to the agent: ", shim_error(err));
		}
	}
}
