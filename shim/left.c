/* SPDX-License-Identifier: MIT */
/*
 * See left.h. The difficulty: a signal handler that interrupts a wait may call
 * flock itself. The outer call is alive then and goes on after the handler, so
 * its socket must stay. A live outer call has its frame further up the stack;
 * an abandoned one whose frame is at or below ours cannot be alive. Where the
 * stacks differ (a handler on an alternate stack, a far frame), nothing is
 * closed: a descriptor more for a while is better than a wrong one closed.
 *
 * A vfork child writes its parent's thread-local memory; each call puts back
 * what it found, so nothing changes for the parent.
 */
#include "left.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "sys.h"

#define SAME_STACK (UINT64_C(1) << 20)	/* bytes two frames of one stack are at most apart, for our purpose */

static _Thread_local struct left left __attribute__((tls_model("initial-exec")));

static uint64_t socket_cookie(int fd)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof cookie;

	if (sys_call(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return 0;
	return cookie;
}

static struct left note(struct left now)
{
	struct left before = left;

	left = now;
	return before;
}

struct left left_note_socket(int fd, uintptr_t frame)
{
	return note((struct left){ .fd = fd, .timer = false, .cookie = socket_cookie(fd), .frame = frame });
}

struct left left_note_timer(int fd, uint64_t interval_ns, uintptr_t frame)
{
	return note((struct left){ .fd = fd, .timer = true, .cookie = interval_ns, .frame = frame });
}

void left_restore(struct left before)
{
	left = before;
}

static bool on_alternate_stack(void)
{
	stack_t stack = { .ss_flags = 0 };

	return sys_call(SYS_sigaltstack, NULL, &stack) == 0 && (stack.ss_flags & SS_ONSTACK);
}

static bool still_ours(void)
{
	struct itimerspec spec = { .it_value = { 0, 0 } };

	if (!left.cookie)
		return false;
	if (!left.timer)
		return socket_cookie(left.fd) == left.cookie;
	return timerfd_gettime(left.fd, &spec) == 0 &&
	       (uint64_t)spec.it_interval.tv_sec * UINT64_C(1000000000) + (uint64_t)spec.it_interval.tv_nsec == left.cookie;
}

void left_close(uintptr_t frame)
{
	if (!left.fd || frame < left.frame || frame - left.frame > SAME_STACK || on_alternate_stack())
		return;
	if (still_ours())
		sys_close(left.fd);
	left.fd = 0;
}
