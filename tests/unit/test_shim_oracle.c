/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/*
 * Record locks beside the bare kernel's: random calls, good and bad, are made twice, through the shim on one file
 * (with an agent that grants everything) and by the bare system call on another. Result, errno, the
 * structure and the locks that are there afterwards must be the same.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake_agent.h"

#define ROUNDS 4000
#define WAYS 5	/* a descriptor of each of these: O_RDWR, O_RDONLY, O_WRONLY, O_PATH, closed */

static struct fake_agent agent;
static unsigned seed;

static struct side {		/* one file */
	const char *name;
	int fd[WAYS];
	int other;		/* of another owner: OFD locks */
	int watcher;
	struct flock *arg;
} shim, kernel;

static unsigned any(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

static void open_side(struct side *side, const char *name)
{
	static const int flags[] = { O_RDWR, O_RDONLY, O_WRONLY, O_PATH };

	side->name = name;
	side->other = fake_open(name);
	side->watcher = fake_open(name);
	for (int i = 0; i < 4; i++)
		side->fd[i] = open(fake_path(name), flags[i] | O_CLOEXEC);
	side->fd[4] = 900;
}

static void close_side(struct side *side)
{
	for (int i = 0; i < 4; i++)
		close(side->fd[i]);
	close(side->other);
	close(side->watcher);
}

static int64_t any_offset(void)
{
	static const int64_t odd[] = {
		INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2, -1, 0, 1, INT64_C(1) << 32, INT64_C(0x7fffffff),
	};

	return any(5) ? (int64_t)any(40) - 8 : odd[any(sizeof odd / sizeof *odd)];
}

/* The locks that a third owner sees. */
static void picture(int fd, char *text, size_t size)
{
	static const int64_t points[] = { 100, INT64_C(0x7fffffff), INT64_C(1) << 32, INT64_MAX / 2, INT64_MAX - 1, INT64_MAX };
	size_t n = 0;

	for (int64_t i = 0; i < 80 && n + 1 < size; i++) {
		int64_t at = i < 70 ? i : points[i % 6];

		text[n++] = fake_range_is_free(fd, at, 1, F_WRLCK) ? '-' : fake_range_is_free(fd, at, 1, F_RDLCK) ? 'r' : 'w';
	}
	text[n] = '\0';
}

struct step {
	int cmd, way, how;
	struct flock lock;
	int64_t len;
};

static int lock_of(const struct step *step, struct side *side, bool bare)
{
	int fd = side->fd[step->way];

	*side->arg = step->lock;
	if (bare)
		return (int)syscall(SYS_fcntl, fd, step->cmd, side->arg);
	return step->how ? fcntl64(fd, step->cmd, side->arg) : fcntl(fd, step->cmd, side->arg);
}

/* lockf, by the kernel's means. */
static int lockf_bare(int fd, int cmd, int64_t len)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_len = len };

	if (cmd == F_TEST) {
		lock.l_type = F_RDLCK;
		if (syscall(SYS_fcntl, fd, F_GETLK, &lock) < 0)
			return -1;
		if (lock.l_type == F_UNLCK || lock.l_pid == getpid())
			return 0;
		errno = EACCES;
		return -1;
	}
	if (cmd != F_ULOCK && cmd != F_LOCK && cmd != F_TLOCK) {
		errno = EINVAL;
		return -1;
	}
	if (cmd == F_ULOCK)
		lock.l_type = F_UNLCK;
	return (int)syscall(SYS_fcntl, fd, cmd == F_LOCK ? F_SETLKW : F_SETLK, &lock);
}

/* A call that waits and would: the kernel is asked by the one that does not. */
static bool would_block(const struct step *step, struct flock lock)
{
	int fd = kernel.fd[step->way];
	bool posix = step->cmd == F_SETLKW;

	return (lock.l_type == F_RDLCK || lock.l_type == F_WRLCK) &&
	       syscall(SYS_fcntl, fd, posix ? F_GETLK : F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static void test_random_calls_end_as_the_kernels_own_do(void **state)
{
	static const int commands[] = { F_SETLK, F_SETLKW, F_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_OFD_GETLK };
	static const int lockfs[] = { F_LOCK, F_TLOCK, F_ULOCK, F_TEST, 99 };
	unsigned results[2] = { 0 }, asked;
	char seen[2][128];

	(void)state;
	seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)getpid();
	print_message("SEED=%u\n", seed);
	fake_start(&agent, fake_say_yes);
	open_side(&shim, "locks/oracle");
	open_side(&kernel, "bare");
	for (int i = 0; i < ROUNDS; i++) {
		static const short types[] = { F_RDLCK, F_WRLCK, F_RDLCK, F_WRLCK, F_RDLCK, F_WRLCK, F_UNLCK, F_UNLCK, 3, -1, 77 };
		static const short whences[] = { SEEK_SET, SEEK_SET, SEEK_SET, SEEK_CUR, SEEK_END, 3, -1 };
		struct step step = {
			.cmd = commands[any(6)], .way = any(4) ? 0 : (int)any(WAYS), .how = (int)any(2),
			.lock = {
				.l_type = types[any(11)], .l_whence = whences[any(7)],
				.l_start = any_offset(), .l_len = any_offset(), .l_pid = any(20) ? 0 : (pid_t)any(3),
			},
		};
		int ret[2], err[2];

		if (any(10) == 0) {		/* the offset, the size, another owner */
			int64_t where = any(50);
			short type = types[any(8)];
			struct flock lock = { .l_type = type, .l_start = any(30), .l_len = any(6) };

			lseek(shim.fd[0], where, SEEK_SET);
			lseek(kernel.fd[0], where, SEEK_SET);
			where = any(50);
			if (ftruncate(shim.other, where) < 0 || ftruncate(kernel.other, where) < 0)
				fail();
			lock.l_pid = 0;
			assert_int_equal(syscall(SYS_fcntl, shim.other, F_OFD_SETLK, &lock),
					 syscall(SYS_fcntl, kernel.other, F_OFD_SETLK, &lock));
		}
		errno = 0;
		if (any(6) == 0) {
			int cmd = lockfs[any(5)];

			step.cmd = F_SETLKW;
			step.lock = (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_CUR, .l_len = step.lock.l_len };
			if (cmd == F_LOCK && would_block(&step, step.lock))
				continue;
			ret[0] = step.how ? lockf64(shim.fd[step.way], cmd, step.lock.l_len) : lockf(shim.fd[step.way], cmd, step.lock.l_len);
			err[0] = errno;
			errno = 0;
			ret[1] = lockf_bare(kernel.fd[step.way], cmd, step.lock.l_len);
			err[1] = errno;
			step.cmd = -cmd;
		} else {
			if ((step.cmd == F_SETLKW || step.cmd == F_OFD_SETLKW) && would_block(&step, step.lock))
				continue;
			ret[0] = lock_of(&step, &shim, false);
			err[0] = errno;
			errno = 0;
			ret[1] = lock_of(&step, &kernel, true);
			err[1] = errno;
			if (memcmp(shim.arg, kernel.arg, sizeof *shim.arg))
				fail_msg("round %d: the structures differ: type %d/%d start %lld/%lld len %lld/%lld pid %d/%d", i, shim.arg->l_type,
					 kernel.arg->l_type, (long long)shim.arg->l_start, (long long)kernel.arg->l_start,
					 (long long)shim.arg->l_len, (long long)kernel.arg->l_len, shim.arg->l_pid, kernel.arg->l_pid);
		}
		picture(shim.watcher, seen[0], sizeof seen[0]);
		picture(kernel.watcher, seen[1], sizeof seen[1]);
		if (ret[0] != ret[1] || err[0] != err[1] || strcmp(seen[0], seen[1]))
			fail_msg("round %d: command %d, descriptor %d, type %d, whence %d, start %lld, len %lld, pid %d: %d/%s and bare %d/%s\n%s\n%s",
				 i, step.cmd, step.way, step.lock.l_type, step.lock.l_whence, (long long)step.lock.l_start,
				 (long long)step.lock.l_len, step.lock.l_pid, ret[0], strerror(err[0]), ret[1], strerror(err[1]), seen[0], seen[1]);
		results[ret[0] < 0]++;
	}
	asked = (unsigned)agent.number;
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
	close_side(&shim);
	close_side(&kernel);
	print_message("%u succeeded, %u failed, %u asked the agent\n", results[0], results[1], asked);
	assert_true(results[0] > ROUNDS / 10 && results[1] > ROUNDS / 10 && asked > ROUNDS / 20);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_calls_end_as_the_kernels_own_do),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the script is the only agent here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	shim.arg = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	kernel.arg = shim.arg + 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
