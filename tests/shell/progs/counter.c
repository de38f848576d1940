/* SPDX-License-Identifier: MIT */
/*
 * counter LOCK COUNTER N: N times reads a number from COUNTER and writes it back
 * one higher, under an exclusive flock on LOCK. Without exclusion numbers get lost.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char text[32];
	ssize_t n;
	int lock, counter, i, len;

	if (argc != 4)
		return 2;
	lock = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	counter = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	for (i = 0; i < atoi(argv[3]); i++) {
		if (flock(lock, LOCK_EX)) {
			perror("flock");
			return 1;
		}
		n = pread(counter, text, sizeof text - 1, 0);
		text[n > 0 ? n : 0] = 0;
		sched_yield();		/* room for somebody who should not be here */
		len = snprintf(text, sizeof text, "%ld\n", strtol(text, NULL, 10) + 1);
		if (pwrite(counter, text, (size_t)len, 0) != len)
			return 3;
		if (flock(lock, LOCK_UN)) {
			perror("unlock");
			return 1;
		}
	}
	return 0;
}
