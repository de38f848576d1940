/* SPDX-License-Identifier: MIT */
/*
 * What the worker does with record locks, by F_SETLK as most programs take
 * them. A lock that is refused is tried again and counted: nobody here asks for what
 * somebody else holds, so a count that is not 0 shows a false refusal.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

/* SQLite's places (its os_unix.c, and strace of its shell). */
#define PENDING 0x40000000
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_LEN 510

static const struct bench_self *self;
static uint64_t refused;

static void set(int fd, short type, uint64_t start, uint64_t len)
{
	for (;;) {
		struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)len };

		if (fcntl(fd, F_SETLK, &lock) == 0)
			return;
		if (errno != EAGAIN && errno != EACCES)
			self->fail("F_SETLK");
		refused++;
	}
}

static void set_raw(int fd, short type, uint64_t start, uint64_t len)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)len };

	if (syscall(SYS_fcntl, fd, F_SETLK, &lock) != 0)
		self->fail("F_SETLK, the system call");
}

static void get(int fd, short type, uint64_t start, uint64_t len)
{
	struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)len };

	if (fcntl(fd, F_GETLK, &lock) != 0)
		self->fail("F_GETLK");
	if (lock.l_type == F_UNLCK)
		refused++;	/* the caller expects a holder */
}

/* One write transaction with a rollback journal, as SQLite 3.40 locks it. */
static void transaction(int fd)
{
	set(fd, F_RDLCK, PENDING, 1);		/* SHARED: nobody may begin to write now … */
	set(fd, F_RDLCK, SHARED, SHARED_LEN);
	set(fd, F_UNLCK, PENDING, 1);		/* … but from here on they may wait for us */
	set(fd, F_WRLCK, RESERVED, 1);		/* RESERVED: the one that will write */
	set(fd, F_WRLCK, PENDING, 1);		/* PENDING: no new readers; at the commit */
	set(fd, F_WRLCK, SHARED, SHARED_LEN);	/* EXCLUSIVE: no readers */
	set(fd, F_RDLCK, SHARED, SHARED_LEN);
	set(fd, F_UNLCK, PENDING, 2);
	set(fd, F_UNLCK, 0, 0);
}

static void wait_turn(void)
{
	_Atomic uint32_t *turn = &self->shared->turn_of;
	uint32_t whose;

	while ((whose = atomic_load(turn)) != self->index)
		if (syscall(SYS_futex, turn, FUTEX_WAIT, whose, NULL, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR)
			self->fail("futex");
}

static void give_turn(uint32_t other)
{
	atomic_store(&self->shared->turn_of, other);
	syscall(SYS_futex, &self->shared->turn_of, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void worker_records(const struct bench_self *worker, const struct bench_command *command)
{
	short type = command->shared ? F_RDLCK : F_WRLCK;
	uint64_t len = command->len;

	self = worker;
	refused = 0;
	for (uint32_t i = 0; i < command->arg; i++) {
		bool turns = command->verb == BENCH_ALTERNATE, transacts = turns || command->verb == BENCH_TRANSACTIONS;
		int fd = self->files[transacts ? 0 : command->first + i * command->file_step];
		uint64_t start = command->start + i * command->step, from;

		if (turns)
			wait_turn();
		from = bench_now_ns();
		switch (command->verb) {
		case BENCH_RECORD_PAIRS:
			set(fd, type, start, len);
			set(fd, F_UNLCK, start, len);
			break;
		case BENCH_RECORD_HOLD:
			set(fd, type, start, len);
			break;
		case BENCH_RECORD_RAW:
			set_raw(fd, type, start, len);
			set_raw(fd, F_UNLCK, start, len);
			break;
		case BENCH_RECORD_GET:
			get(fd, type, start, len);
			break;
		case BENCH_TRANSACTIONS:
		case BENCH_ALTERNATE:
			transaction(fd);
			break;
		default:
			self->fail("a command that does not exist");
		}
		self->add_sample(bench_now_ns() - from);
		if (turns)
			give_turn(command->first);
	}
	self->shared->count[self->index] = refused;
}
