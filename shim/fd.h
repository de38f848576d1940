/* SPDX-License-Identifier: MIT */
/* Descriptors inside somebody's program: making our own, and asking /proc about the program's. No malloc, any thread. */
#ifndef DLOCK_SHIM_FD_H
#define DLOCK_SHIM_FD_H

#include <stddef.h>

#define FD_PROC_PATH_MAX 40

/*
 * make(arg) opens a descriptor (close on exec) or returns -errno. Here it comes
 * out above 2, whatever of 0 to 2 the program has closed, and a program at its
 * RLIMIT_NOFILE still gets it if the hard limit is higher. Returns it or -errno.
 */
int fd_new(int (*make)(const void *arg), const void *arg);

/* "/proc/…/fd/N" (what = "fd/") or "/proc/…/fdinfo/N" of the calling thread's own table. */
void fd_proc_path(char buf[FD_PROC_PATH_MAX], const char *what, int fd);

/* The path the kernel gives for fd, NUL-terminated. Its length or -errno; -ENAMETOOLONG from PATH_MAX on. */
int fd_path(int fd, char *buf, size_t size);

#endif
