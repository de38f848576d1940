/* SPDX-License-Identifier: MIT */
/*
 * See runtime.h. Only the holder of agent.lock may touch the socket: that lock,
 * not the socket's presence, says who the agent is. It is a lock of the open file
 * description, so it lives as long as the guard or any agent that inherited it.
 */
#include "runtime.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../config/config.h"
#include "../shim/wire.h"
#include "log.h"

static int path_of(char *buf, size_t size, const char *dir, const char *name)
{
	int n = snprintf(buf, size, "%s/%s", dir, name);

	return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

int runtime_prepare(const char *dir)
{
	mode_t mode = geteuid() == 0 ? 0755 : 0700;

	if (mkdir(dir, mode) == 0) {
		if (chmod(dir, mode) < 0)	/* the umask may have taken something */
			return -errno;
	} else if (errno != EEXIST) {
		return -errno;
	}
	return runtime_dir_check(dir);
}

/* --- the lock ------------------------------------------------------------ */

static pid_t read_owner(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return (pid_t)strtol(text, NULL, 10);
}

int runtime_lock_owner(int fd)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());

	if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
		return errno ? -errno : -EIO;
	return 0;
}

int runtime_lock(const char *dir, unsigned timeout_ms, pid_t *ret_owner)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char path[PATH_MAX];
	struct timespec from, now;
	int fd, r = path_of(path, sizeof(path), dir, RUNTIME_LOCK_FILE);

	if (r < 0)
		return r;
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);	/* who can open it can lock it */
	if (fd < 0)
		return -errno;
	clock_gettime(CLOCK_MONOTONIC, &from);
	while (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
		long long waited;

		if (errno != EAGAIN && errno != EACCES) {
			r = -errno;
			goto fail;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		waited = (now.tv_sec - from.tv_sec) * 1000LL + (now.tv_nsec - from.tv_nsec) / 1000000;
		if (waited >= timeout_ms) {
			if (ret_owner)
				*ret_owner = read_owner(fd);
			r = -EBUSY;
			goto fail;
		}
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	r = runtime_lock_owner(fd);
	if (r < 0)
		goto fail;
	return fd;
fail:
	close(fd);
	return r;
}

bool runtime_lock_stands(const char *dir, int lock_fd)
{
	struct stat ours, there;
	char path[PATH_MAX];

	if (path_of(path, sizeof(path), dir, RUNTIME_LOCK_FILE) < 0 || fstat(lock_fd, &ours) < 0)
		return true;
	if (stat(path, &there) < 0)
		return errno != ENOENT && errno != ENOTDIR;
	return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

/* --- the sockets --------------------------------------------------------- */

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

/* Binds beside the final name and renames, through the directory's descriptor: a path of any length fits. */
static int listen_on_path(const char *dir)
{
	static const char temporary[] = ".agent.sock.new";
	mode_t mode = geteuid() == 0 ? 0666 : 0600;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int dir_fd, fd, r;

	dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir_fd < 0)
		return -errno;
	fd = new_socket();
	if (fd < 0) {
		close(dir_fd);
		return fd;
	}
	unlinkat(dir_fd, temporary, 0);	/* of one who died here */
	snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/%s", dir_fd, temporary);
	r = bind(fd, (struct sockaddr *)&addr, sizeof(addr));
	if (r == 0)
		r = fchmodat(dir_fd, temporary, mode, 0);
	if (r == 0)
		r = listen(fd, SOMAXCONN);
	if (r == 0)
		r = renameat(dir_fd, temporary, dir_fd, WIRE_SOCKET_NAME);
	r = r < 0 ? -errno : fd;
	if (r < 0) {
		unlinkat(dir_fd, temporary, 0);
		close(fd);
	}
	close(dir_fd);
	return r;
}

/* For programs in a chroot. Anybody can take such a name first, so this one may fail; clients look who answers. */
static int listen_on_abstract(const char *dir)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd, n;

	n = snprintf(addr.sun_path + 1, sizeof(addr.sun_path) - 1, "%s%s", WIRE_ABSTRACT_PREFIX, dir);
	if (n < 0 || (size_t)n >= sizeof(addr.sun_path) - 1)
		return -ENAMETOOLONG;
	fd = new_socket();
	if (fd < 0)
		return fd;
	if (bind(fd, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) < 0 ||
	    listen(fd, SOMAXCONN) < 0) {
		n = -errno;
		close(fd);
		return n;
	}
	return fd;
}

int runtime_listen(const char *dir, int *ret_path_fd, int *ret_abstract_fd)
{
	int path_fd = listen_on_path(dir), abstract_fd;

	if (path_fd < 0)
		return path_fd;
	abstract_fd = listen_on_abstract(dir);
	if (abstract_fd < 0) {
		log_warn("programs in a chroot cannot reach the agent of %s: its abstract socket: %s", dir, strerror(-abstract_fd));
		abstract_fd = -1;
	}
	*ret_path_fd = path_fd;
	*ret_abstract_fd = abstract_fd;
	return 0;
}

/* --- why there is no agent ----------------------------------------------- */

int runtime_start_error(const char *dir, const char *text)
{
	char path[PATH_MAX], temporary[PATH_MAX];
	size_t len;
	int fd, r = path_of(path, sizeof(path), dir, RUNTIME_ERROR_FILE);

	if (r == 0)
		r = path_of(temporary, sizeof(temporary), dir, "." RUNTIME_ERROR_FILE ".new");
	if (r < 0)
		return r;
	if (!text)
		return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return -errno;
	len = strlen(text);
	if (write(fd, text, len) != (ssize_t)len || write(fd, "\n", 1) != 1)
		r = errno ? -errno : -EIO;
	close(fd);
	if (r == 0 && rename(temporary, path) < 0)
		r = -errno;
	if (r < 0)
		unlink(temporary);
	return r;
}
