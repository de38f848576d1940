/* SPDX-License-Identifier: MIT */
/*
 * turns LOCK STATE WHO ROUNDS: two of these, WHO 0 and 1, take turns by a shared
 * page: in its turn each tries LOCK without waiting, unlocks, and now and then
 * lets the lock lie idle for a while. Nobody ever holds in the other's turn, so
 * no try may be refused. Prints "N refused"; exit 1 if N is not 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	_Atomic unsigned *turn;
	unsigned who, rounds, refused = 0, seed;
	int state, lock, err = 0;

	if (argc != 5)
		return 2;
	who = (unsigned)atoi(argv[3]);
	rounds = (unsigned)atoi(argv[4]);
	seed = who + 1;
	lock = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	state = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (lock < 0 || state < 0 || ftruncate(state, 4096))
		return 2;
	turn = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, state, 0);
	if (turn == MAP_FAILED)
		return 2;
	for (unsigned n = who; n < 2 * rounds; n += 2) {
		unsigned now;

		while ((now = atomic_load(turn)) != n)
			syscall(SYS_futex, turn, FUTEX_WAIT, now, NULL);
		if (flock(lock, (rand_r(&seed) % 2 ? LOCK_EX : LOCK_SH) | LOCK_NB)) {
			refused++;
			err = errno;
		} else {
			flock(lock, LOCK_UN);
		}
		if (rand_r(&seed) % 50 == 0)
			usleep((useconds_t)rand_r(&seed) % 100000);
		atomic_store(turn, n + 1);
		syscall(SYS_futex, turn, FUTEX_WAKE, 2);
	}
	printf("%u refused%s%s\n", refused, refused ? ": " : "", refused ? strerror(err) : "");
	return refused != 0;
}
