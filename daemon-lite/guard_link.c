/* SPDX-License-Identifier: MIT */
/*
 * The line between agent and guard: the agent hands over a copy of each of its
 * descriptions, and says when it needs it no more. The next agent needs no
 * message: it is the guard's child and inherits the table as it is.
 *
 * Invariants: messages keep their order, also those the socket had no room for;
 * the guard forgets a predecessor's copy only when the new agent has kept the
 * same inode itself or has said that it has taken over.
 */
#include "guard_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "log.h"

enum guard_msg_type { GUARD_KEEP = 1, GUARD_DROP, GUARD_TAKEN };

struct guard_msg {		/* followed by key and on_lost, each with its NUL */
	uint32_t type;
	uint32_t key_size, on_lost_size;
	uint32_t reserved;
	uint64_t handle;
	struct inode_id id;
};

#define TEXT_MAX 8192
#define LINK_BUFFER (4 << 20)
#define TAKE_OVER_MS 1000

struct guard_out {
	struct guard_out *next;
	int fd;			/* -1 = none; a copy of our own */
	struct guard_msg msg;
	char text[];
};

int guard_link_pair(int ret_fds[2])
{
	int size = LINK_BUFFER;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_fds) < 0)
		return -errno;
	/* Room for bursts. Without the privilege it is what the system allows. */
	if (setsockopt(ret_fds[1], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		setsockopt(ret_fds[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	return 0;
}

/* --- the agent's side ---------------------------------------------------- */

static int send_msg(int link, const struct guard_msg *msg, const char *key, const char *on_lost, int fd)
{
	struct iovec iov[3] = {
		{ .iov_base = (void *)(uintptr_t)msg, .iov_len = sizeof(*msg) },
		{ .iov_base = (void *)(uintptr_t)key, .iov_len = msg->key_size },
		{ .iov_base = (void *)(uintptr_t)on_lost, .iov_len = msg->on_lost_size },
	};
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr mh = { .msg_iov = iov, .msg_iovlen = 3 };

	if (fd >= 0) {
		struct cmsghdr *cmsg;

		mh.msg_control = control.buf;
		mh.msg_controllen = sizeof(control.buf);
		cmsg = CMSG_FIRSTHDR(&mh);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	}
	if (sendmsg(link, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return -errno;
	return 0;
}

static bool is_full(int r)
{
	return r == -EAGAIN || r == -ENOBUFS || r == -ETOOMANYREFS || r == -EINTR;
}

static void out_free(struct guard_out *out)
{
	if (out->fd >= 0)
		close(out->fd);
	free(out);
}

void guard_flush(struct guard_link *link)
{
	while (link->out_first) {
		struct guard_out *out = link->out_first;
		int r = send_msg(link->fd, &out->msg, out->text, out->text + out->msg.key_size, out->fd);

		if (is_full(r))
			return;
		link->out_first = out->next;
		if (!link->out_first)
			link->out_last = NULL;
		out_free(out);
	}
}

static int put(struct guard_link *link, const struct guard_msg *msg, const char *key, const char *on_lost, int fd)
{
	struct guard_out *out;
	int r;

	guard_flush(link);
	if (!link->out_first) {
		r = send_msg(link->fd, msg, key, on_lost, fd);
		if (!is_full(r))
			return r;
	}
	out = calloc(1, sizeof(*out) + msg->key_size + msg->on_lost_size);
	if (!out)
		return -ENOMEM;
	out->fd = -1;
	if (fd >= 0) {
		out->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		if (out->fd < 0) {
			r = -errno;
			free(out);
			return r;
		}
	}
	out->msg = *msg;
	if (msg->key_size)
		memcpy(out->text, key, msg->key_size);
	if (msg->on_lost_size)
		memcpy(out->text + msg->key_size, on_lost, msg->on_lost_size);
	if (link->out_last)
		link->out_last->next = out;
	else
		link->out_first = out;
	link->out_last = out;
	return 0;
}

int guard_keep(struct guard_link *link, uint64_t handle, int fd, const struct inode_id *id, const char *key, const char *on_lost)
{
	struct guard_msg msg = { .type = GUARD_KEEP, .handle = handle, .id = *id };

	msg.key_size = (uint32_t)strlen(key) + 1;
	msg.on_lost_size = (uint32_t)strlen(on_lost) + 1;
	if (msg.key_size + msg.on_lost_size > TEXT_MAX)
		return -ENAMETOOLONG;
	return put(link, &msg, key, on_lost, fd);
}

/* A copy that has not left yet needs not be sent at all: what a stopped guard makes us queue is bounded by what is open. */
static bool take_back(struct guard_link *link, uint64_t handle)
{
	struct guard_out *before = NULL;

	for (struct guard_out *out = link->out_first; out; before = out, out = out->next) {
		if (out->msg.type != GUARD_KEEP || out->msg.handle != handle)
			continue;
		if (before)
			before->next = out->next;
		else
			link->out_first = out->next;
		if (link->out_last == out)
			link->out_last = before;
		out_free(out);
		return true;
	}
	return false;
}

int guard_drop(struct guard_link *link, uint64_t handle)
{
	struct guard_msg msg = { .type = GUARD_DROP, .handle = handle };

	if (take_back(link, handle))
		return 0;
	return put(link, &msg, NULL, NULL, -1);
}

int guard_take_over(struct guard_link *link, void (*fn)(void *arg, int fd, const struct inode_id *id, const char *key, const char *on_lost), void *arg)
{
	struct guard_msg msg = { .type = GUARD_TAKEN };
	struct guard_file *file = NULL;
	int count = 0, r;

	if (!link->kept)
		return 0;
	while ((file = guard_kept_walk(link->kept, file)) != NULL) {
		int fd = file->fd;

		file->fd = -1;	/* now the caller's */
		fn(arg, fd, &file->id, file->key, file->on_lost);
		count++;
	}
	guard_kept_free(link->kept);
	link->kept = NULL;

	r = put(link, &msg, NULL, NULL, -1);
	for (int ms = 0; r == 0 && link->out_first && ms < TAKE_OVER_MS; ms += 50) {
		struct pollfd p = { .fd = link->fd, .events = POLLOUT };

		poll(&p, 1, 50);
		guard_flush(link);
	}
	return r < 0 ? r : count;
}

/* --- the guard's side ---------------------------------------------------- */

static uint64_t inode_hash(const struct inode_id *id)
{
	return hash_u64(id->ino) ^ hash_u64(id->dev);
}

static void file_free(struct guard_file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	free(file);
}

static void file_remove(struct guard_kept *kept, struct guard_file *file)
{
	hash_remove(&kept->by_handle, &file->by_handle);
	hash_remove(&kept->by_inode, &file->by_inode);
	file_free(file);
}

size_t guard_kept_count(const struct guard_kept *kept)
{
	return kept->by_handle.count;
}

struct guard_file *guard_kept_walk(const struct guard_kept *kept, const struct guard_file *file)
{
	struct hash_node *node = hash_walk(&kept->by_handle, file ? &file->by_handle : NULL);

	return node ? hash_entry(node, struct guard_file, by_handle) : NULL;
}

static struct guard_file *find_handle(struct guard_kept *kept, uint64_t handle)
{
	struct hash_node *node;

	for (node = hash_first(&kept->by_handle, hash_u64(handle)); node; node = hash_next(node)) {
		struct guard_file *file = hash_entry(node, struct guard_file, by_handle);

		if (file->handle == handle && !file->is_old)
			return file;
	}
	return NULL;
}

/* The predecessor's copy of the same inode under the same key. */
static struct guard_file *find_old(struct guard_kept *kept, const struct inode_id *id, const char *key)
{
	struct hash_node *node;

	for (node = hash_first(&kept->by_inode, inode_hash(id)); node; node = hash_next(node)) {
		struct guard_file *file = hash_entry(node, struct guard_file, by_inode);

		if (file->is_old && file->id.dev == id->dev && file->id.ino == id->ino && strcmp(file->key, key) == 0)
			return file;
	}
	return NULL;
}

static void drop_old(struct guard_kept *kept)
{
	struct guard_file *file = guard_kept_walk(kept, NULL), *next;

	for (; file; file = next) {
		next = guard_kept_walk(kept, file);
		if (file->is_old)
			file_remove(kept, file);
	}
}

static int keep(struct guard_kept *kept, const struct guard_msg *msg, const char *key, const char *on_lost, int fd)
{
	struct guard_file *file = find_handle(kept, msg->handle), *old;
	char *text;

	if (file)
		file_remove(kept, file);
	file = calloc(1, sizeof(*file) + msg->key_size + msg->on_lost_size);
	if (!file)
		return -ENOMEM;
	text = (char *)(file + 1);
	memcpy(text, key, msg->key_size);
	memcpy(text + msg->key_size, on_lost, msg->on_lost_size);
	file->key = text;
	file->on_lost = text + msg->key_size;
	file->handle = msg->handle;
	file->id = msg->id;
	file->fd = -1;
	old = find_old(kept, &msg->id, file->key);
	if (hash_insert(&kept->by_handle, &file->by_handle, hash_u64(file->handle)) < 0) {
		free(file);
		return -ENOMEM;
	}
	if (hash_insert(&kept->by_inode, &file->by_inode, inode_hash(&file->id)) < 0) {
		hash_remove(&kept->by_handle, &file->by_handle);
		free(file);
		return -ENOMEM;
	}
	file->fd = fd;
	if (old)
		file_remove(kept, old);
	return 0;
}

static void handle_msg(struct guard_kept *kept, const char *buf, size_t n, int fd)
{
	const char *text = buf + sizeof(struct guard_msg);
	struct guard_file *file;
	struct guard_msg msg;
	int r;

	if (n < sizeof(msg))
		goto bad;
	memcpy(&msg, buf, sizeof(msg));
	if (n - sizeof(msg) != (size_t)msg.key_size + msg.on_lost_size)
		goto bad;
	switch (msg.type) {
	case GUARD_KEEP:
		if (msg.key_size == 0 || msg.on_lost_size == 0 || text[msg.key_size - 1] != '\0' || buf[n - 1] != '\0')
			goto bad;
		if (fd < 0) {
			log_error("%s: the guard got no descriptor (too many open files?); a restarted agent will have to look for its holders", text);
			return;
		}
		r = keep(kept, &msg, text, text + msg.key_size, fd);
		if (r == 0)
			return;
		log_error("%s: the guard cannot keep the descriptor: %s", text, strerror(-r));
		break;
	case GUARD_DROP:
		file = find_handle(kept, msg.handle);
		if (file)
			file_remove(kept, file);
		break;
	case GUARD_TAKEN:
		drop_old(kept);
		break;
	default:
		goto bad;
	}
	if (fd >= 0)
		close(fd);
	return;
bad:
	log_error("the guard got a message it does not know from its agent");
	if (fd >= 0)
		close(fd);
}

int guard_kept_receive(struct guard_kept *kept, int link)
{
	char buf[sizeof(struct guard_msg) + TEXT_MAX];
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;

	for (;;) {
		struct iovec iov = { .iov_base = buf, .iov_len = sizeof(buf) };
		struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = CMSG_LEN(sizeof(int)) };
		ssize_t n = recvmsg(link, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		struct cmsghdr *cmsg;
		int fd = -1;

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return errno == EAGAIN ? 0 : -EPIPE;
		}
		if (n == 0)
			return -EPIPE;
		cmsg = CMSG_FIRSTHDR(&mh);
		if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(cmsg), sizeof(int));
		handle_msg(kept, buf, (size_t)n, fd);
	}
}

/*
 * A helper thread's flock was on the agent's description, of which this is a
 * copy: it has outlived the thread. These descriptions are the agent's alone,
 * so no program's lock is touched.
 */
void guard_kept_orphan(struct guard_kept *kept)
{
	struct flock all = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
	struct guard_file *file = NULL;

	while ((file = guard_kept_walk(kept, file)) != NULL) {
		flock(file->fd, LOCK_UN);
		fcntl(file->fd, F_OFD_SETLK, &all);
		file->is_old = true;
	}
}

void guard_kept_free(struct guard_kept *kept)
{
	struct guard_file *file = guard_kept_walk(kept, NULL), *next;

	for (; file; file = next) {
		next = guard_kept_walk(kept, file);
		file_remove(kept, file);
	}
	hash_free(&kept->by_handle);
	hash_free(&kept->by_inode);
}
