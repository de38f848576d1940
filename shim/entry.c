/* SPDX-License-Identifier: MIT */
/*
 * The exported symbols, and nothing else: unit tests link all the rest without
 * preloading anything. errno is assigned here alone; a call that succeeds
 * leaves it as it was.
 */
#include <errno.h>
#include <sys/file.h>

#include "lock.h"

__attribute__((visibility("default"))) int flock(int fd, int operation)
{
	int saved = errno;
	int err = lock_flock(fd, operation);

	errno = err < 0 ? -err : saved;
	return err < 0 ? -1 : 0;
}
