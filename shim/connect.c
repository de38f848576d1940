/* SPDX-License-Identifier: MIT */
/*
 * The connection to the agent.
 *
 * A wait is a plain blocking recvmsg on a socket without SO_RCVTIMEO: only so
 * does the kernel restart it after a handler with SA_RESTART and give EINTR
 * after one without, as it does for flock. Non-blocking lock calls, which never
 * give EINTR, do have the timeouts.
 *
 * Whoever listens must be root or our own user: a name in the abstract
 * namespace, or in a directory that was another's, is no proof.
 */
#include "connect.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "fd.h"
#include "sys.h"

static int make_socket(const void *unused)
{
	(void)unused;
	return (int)sys_call(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
}

/* The path, or with an empty first byte the abstract name. Returns the address's length or -ENAMETOOLONG. */
static int make_address(struct sockaddr_un *addr, const char *dir, bool abstract)
{
	size_t dir_len = strlen(dir);
	char *at = addr->sun_path;
	size_t len;

	memset(addr, 0, sizeof *addr);
	addr->sun_family = AF_UNIX;
	len = abstract ? 1 + strlen(WIRE_ABSTRACT_PREFIX) + dir_len
		       : dir_len + 1 + strlen(WIRE_SOCKET_NAME) + 1;
	if (len > sizeof addr->sun_path)
		return -ENAMETOOLONG;
	if (abstract) {
		at = stpcpy(at + 1, WIRE_ABSTRACT_PREFIX);
		memcpy(at, dir, dir_len);
	} else {
		stpcpy(stpcpy(stpcpy(at, dir), "/"), WIRE_SOCKET_NAME);
	}
	return (int)(offsetof(struct sockaddr_un, sun_path) + len);
}

static bool nobody_listens(int err)
{
	return err == -ENOENT || err == -ECONNREFUSED || err == -ENOTDIR || err == -EACCES || err == -EPROTOTYPE ||
	       err == -ESRCH || err == -EPERM;
}

static int check_peer(int socket, unsigned *ret_uid)
{
	struct ucred peer = { 0, (uid_t)-1, 0 };
	socklen_t len = sizeof peer;
	int err;

	err = (int)sys_call(SYS_getsockopt, socket, SOL_SOCKET, SO_PEERCRED, &peer, &len);
	if (err < 0)
		return err;
	if (peer.uid == 0 || peer.uid == (uid_t)sys_call(SYS_geteuid))
		return 0;
	*ret_uid = peer.uid;
	return -EPERM;
}

static int try_address(int socket, const char *dir, bool abstract, unsigned *ret_uid)
{
	struct sockaddr_un addr;
	int len, err;

	len = make_address(&addr, dir, abstract);
	if (len < 0)
		return len;
	err = (int)sys_call(SYS_connect, socket, &addr, len);
	if (nobody_listens(err))
		return -ESRCH;
	return err < 0 ? err : check_peer(socket, ret_uid);
}

int connect_agent(const char *runtime_dir, bool bounded, int *ret_socket, unsigned *ret_uid)
{
	static const struct timeval timeout = { CONNECT_ANSWER_S, 0 };
	int err = -ESRCH;

	for (int abstract = 0; abstract < 2; abstract++) {
		unsigned uid = 0;
		int socket = fd_new(make_socket, NULL);
		int this_err;

		if (socket < 0)
			return socket;
		if (bounded) {
			(void)sys_call(SYS_setsockopt, socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
			(void)sys_call(SYS_setsockopt, socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
		}
		this_err = try_address(socket, runtime_dir, abstract, &uid);
		if (this_err == 0) {
			*ret_socket = socket;
			return 0;
		}
		sys_close(socket);
		/* Anybody can squat on the abstract name while no agent runs: that is nobody, not an impostor. */
		if (abstract)
			return err;
		err = this_err;
		if (err == -EPERM)
			*ret_uid = uid;
		if (err != -ESRCH)
			return err;
	}
	return err;
}

int connect_send(int socket, const struct wire_msg *msg, const char *text, int passed_fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov[2] = { { (void *)(uintptr_t)msg, sizeof *msg }, { (void *)(uintptr_t)text, msg->text_len } };
	struct msghdr header = { .msg_iov = iov, .msg_iovlen = text ? 2 : 1 };
	long n;

	if (passed_fd >= 0) {
		struct cmsghdr *cmsg;

		memset(&control, 0, sizeof control);
		header.msg_control = control.buf;
		header.msg_controllen = sizeof control.buf;
		cmsg = CMSG_FIRSTHDR(&header);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &passed_fd, sizeof passed_fd);
	}
	/* A few small packets in an empty queue: never waits. */
	do {
		n = sys_call(SYS_sendmsg, socket, &header, MSG_NOSIGNAL);
	} while (n == -EINTR);
	return n < 0 ? (int)n : 0;
}

int connect_receive(int socket, struct wire_msg *ret_msg, char *text, size_t size)
{
	struct {
		struct wire_msg msg;
		char text[400];
	} packet;
	struct iovec iov = { &packet, sizeof packet };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };
	const char *at;
	size_t len;
	long n;
	int err;

	/* No room for control data: the kernel drops descriptors that nobody asked for. */
	n = sys_call(SYS_recvmsg, socket, &header, MSG_CMSG_CLOEXEC);
	if (n == 0)
		return -ECONNRESET;
	if (n < 0)
		return (int)n;
	/* A long text is cut by the kernel; what arrived is still a message. */
	if ((header.msg_flags & MSG_TRUNC) && packet.msg.text_len > sizeof packet.text)
		packet.msg.text_len = sizeof packet.text;
	err = wire_parse(&packet, (size_t)n, ret_msg, &at);
	if (err < 0)
		return err;
	len = ret_msg->text_len < size ? ret_msg->text_len : size - 1;
	memcpy(text, at, len);
	text[len] = '\0';
	return 0;
}
