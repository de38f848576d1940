/* SPDX-License-Identifier: MIT */
/*
 * traffic LOCK STATE MS SEED: for MS milliseconds takes random locks on LOCK
 * (shared, exclusive, conversions, non-blocking, several descriptions) and
 * checks in STATE, a page shared by all processes of all hosts, that nobody is
 * there who must not be. Prints "N locks, M refused"; exit 1 for an overlap,
 * 3 for a call that failed as it should not.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct state { _Atomic int readers, writers, overlaps; };

static struct state *state;

static long long now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000LL + ts.tv_nsec / 1000000;
}

static void enter(int mode)
{
	if (mode == LOCK_EX) {
		if (atomic_fetch_add(&state->writers, 1) || atomic_load(&state->readers))
			atomic_fetch_add(&state->overlaps, 1);
	} else {
		atomic_fetch_add(&state->readers, 1);
		if (atomic_load(&state->writers))
			atomic_fetch_add(&state->overlaps, 1);
	}
}

static void leave(int mode)
{
	atomic_fetch_sub(mode == LOCK_EX ? &state->writers : &state->readers, 1);
}

int main(int argc, char **argv)
{
	long long end;
	long locks = 0, refused = 0;
	int lock, page, mode, held, rc;

	if (argc != 5)
		return 2;
	srandom((unsigned)atoi(argv[4]));
	page = open(argv[2], O_RDWR | O_CREAT, 0666);
	if (page < 0 || ftruncate(page, 4096))
		return 2;
	state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
	end = now_ms() + atoi(argv[3]);
	while (now_ms() < end) {
		lock = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		held = 0;
		do {
			mode = random() % 3 ? LOCK_SH : LOCK_EX;
			if (held && mode != held) {	/* a conversion loses the old lock first */
				leave(held);
				rc = flock(lock, mode | (random() % 2 ? LOCK_NB : 0));
			} else if (held) {
				rc = flock(lock, mode);
				if (rc)
					return 3;
				continue;
			} else {
				rc = flock(lock, mode | (random() % 3 ? 0 : LOCK_NB));
			}
			if (rc && errno != EWOULDBLOCK) {
				perror("flock");
				return 3;
			}
			held = rc ? 0 : mode;
			if (rc) {
				refused++;
				continue;
			}
			locks++;
			enter(mode);
			if (!(random() % 4))
				usleep((useconds_t)(random() % 2000));
		} while (random() % 3);
		if (held)
			leave(held);
		if (held && random() % 2 && flock(lock, LOCK_UN))
			return 3;
		close(lock);
	}
	printf("%ld locks, %ld refused\n", locks, refused);
	return atomic_load(&state->overlaps) ? 1 : 0;
}
