/* SPDX-License-Identifier: MIT */
/*
 * Blocking connections: sockets, deadlines, requests and replies. We connect
 * ourselves because a descriptor must be close-on-exec from birth and every wait
 * must end at a deadline or at the store's end; the packaged hiredis can do neither.
 */
#include "redis_link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "../loop.h"
#include "redis_open.h"

void redis_say(char *buf, size_t size, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(buf, size, format, ap);
	va_end(ap);
}

/* --- the target --- */

static int target_parse_tcp(const char *rest, struct redis_target *target)
{
	const char *slash = strchr(rest, '/');
	size_t len = slash ? (size_t)(slash - rest) : strlen(rest);
	const char *host = rest, *end, *port = NULL;
	uint64_t number;
	size_t host_len;

	if (len > 0 && rest[0] == '[') {
		end = memchr(rest, ']', len);
		if (!end)
			return -EINVAL;
		host = rest + 1;
		host_len = (size_t)(end - host);
		if (end + 1 < rest + len) {
			if (end[1] != ':')
				return -EINVAL;
			port = end + 2;
		}
	} else {
		end = memchr(rest, ':', len);
		host_len = end ? (size_t)(end - rest) : len;
		if (end)
			port = end + 1;
	}
	if (host_len == 0 || host_len >= sizeof(target->host) || memchr(host, '@', host_len))
		return -EINVAL;
	memcpy(target->host, host, host_len);
	strcpy(target->port, "6379");
	if (port) {
		if (!redis_parse_u64(port, (size_t)(rest + len - port), &number) || number == 0 || number > 65535)
			return -EINVAL;
		snprintf(target->port, sizeof(target->port), "%u", (unsigned)number);
	}
	if (slash && slash[1]) {
		if (!redis_parse_u64(slash + 1, strlen(slash + 1), &number) || number > 65535)
			return -EINVAL;
		target->db = (unsigned)number;
	}
	snprintf(target->label, sizeof(target->label), strchr(target->host, ':') ? "[%s]:%s" : "%s:%s", target->host, target->port);
	return 0;
}

int redis_target_parse(const char *server, struct redis_target *ret_target, char *ret_text, size_t text_size)
{
	struct redis_target target = { 0 };
	int err = -EINVAL;

	if (!strncmp(server, "redis://", 8)) {
		err = target_parse_tcp(server + 8, &target);
	} else if (!strncmp(server, "unix:///", 8) && strlen(server + 7) < sizeof(target.path)) {
		target.is_unix = true;
		strcpy(target.path, server + 7);
		strcpy(target.label, target.path);
		err = 0;
	}
	if (err) {
		redis_say(ret_text, text_size, "`%s` is not a server; write redis://HOST[:PORT][/DB] or unix:///PATH", server);
		return err;
	}
	*ret_target = target;
	return 0;
}

/* --- waiting with a deadline --- */

static int wait_ready(const struct redis_link *link, short events, uint64_t deadline_ns)
{
	struct pollfd fds[2] = {
		{ .fd = link->fd, .events = events },
		{ .fd = link->cancel_fd, .events = POLLIN },
	};

	for (;;) {
		uint64_t now = loop_now_ns();
		struct timespec left = { 0 };
		int n;

		if (now < deadline_ns) {
			left.tv_sec = (time_t)((deadline_ns - now) / 1000000000u);
			left.tv_nsec = (long)((deadline_ns - now) % 1000000000u);
		}
		n = ppoll(fds, 2, &left, NULL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (fds[1].revents)
			return -ECANCELED;
		if (fds[0].revents)
			return 0;
		if (loop_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}

static void tune_socket(int fd, uint32_t silence_ms)
{
	int one = 1, probes = 3;
	int idle = (int)(silence_ms / 2000u) > 0 ? (int)(silence_ms / 2000u) : 1;
	int interval = idle / 3 > 0 ? idle / 3 : 1;
	unsigned timeout = silence_ms;

	/* Not one of these is needed for correctness: a failure costs latency or a later notice of a dead peer. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
}

static int connect_address(struct redis_link *link, const struct sockaddr *addr, socklen_t len, uint32_t silence_ms, uint64_t deadline_ns)
{
	socklen_t size = sizeof(int);
	int err;

	link->fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (link->fd < 0)
		return -errno;
	if (addr->sa_family != AF_UNIX)
		tune_socket(link->fd, silence_ms);
	if (connect(link->fd, addr, len) < 0) {
		err = -errno;
		if (err == -EINPROGRESS) {
			err = wait_ready(link, POLLOUT, deadline_ns);
			if (!err && getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &err, &size) == 0)
				err = -err;
		}
		if (err) {
			close(link->fd);
			link->fd = -1;
			return err;
		}
	}
	return 0;
}

/* Asks the name server; may block for as long as the resolver is configured to. */
static int resolve(const struct redis_door *door, struct redis_addresses *addresses, char *error, size_t size)
{
	const struct redis_target *target = &door->target;
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
	struct addrinfo *list = NULL;
	int err;

	addresses->count = 0;
	if (target->is_unix) {
		struct sockaddr_un *un = (struct sockaddr_un *)&addresses->addr[0];

		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, target->path);
		addresses->len[0] = sizeof(*un);
		addresses->count = 1;
		return 0;
	}
	err = getaddrinfo(target->host, target->port, &hints, &list);
	if (err == EAI_NONAME || err == EAI_ADDRFAMILY) {
		/* AI_ADDRCONFIG hides loopback addresses on a machine without a network. */
		hints.ai_flags = 0;
		err = getaddrinfo(target->host, target->port, &hints, &list);
	}
	if (err) {
		redis_say(error, size, "the address of `%s` cannot be found: %s", target->host,
			 err == EAI_SYSTEM ? strerrordesc_np(errno) : gai_strerror(err));
		return -EHOSTUNREACH;
	}
	for (struct addrinfo *ai = list; ai && addresses->count < REDIS_ADDRESSES_MAX; ai = ai->ai_next) {
		memcpy(&addresses->addr[addresses->count], ai->ai_addr, ai->ai_addrlen);
		addresses->len[addresses->count++] = ai->ai_addrlen;
	}
	freeaddrinfo(list);
	return 0;
}

static int connect_any(struct redis_link *link, const struct redis_door *door, struct redis_addresses *addresses, uint64_t deadline_ns)
{
	int err = -EHOSTUNREACH;

	for (size_t i = 0; i < addresses->count; i++) {
		err = connect_address(link, (struct sockaddr *)&addresses->addr[i], addresses->len[i], door->silence_ms, deadline_ns);
		if (!err || err == -ECANCELED)
			return err;
	}
	return err;
}

int redis_link_connect(struct redis_link *link, const struct redis_door *door, struct redis_addresses *addresses, uint64_t deadline_ns)
{
	int err = -EHOSTUNREACH;

	link->fd = -1;
	if (addresses->count > 0)
		err = connect_any(link, door, addresses, deadline_ns);
	if (err && err != -ECANCELED) {
		if (resolve(door, addresses, link->error, sizeof(link->error)) < 0)
			return -EHOSTUNREACH;
		err = connect_any(link, door, addresses, deadline_ns);
	}
	if (!err)
		err = redis_reader_new(&link->reader);
	if (err) {
		redis_say(link->error, sizeof(link->error), "cannot connect to Redis at %s: %s (is it running, and is `redis.servers` right?)",
			 door->target.label, strerrordesc_np(-err));
		redis_link_close(link);
	}
	return err;
}

void redis_link_close(struct redis_link *link)
{
	if (link->fd >= 0)
		close(link->fd);
	link->fd = -1;
	redis_reader_free(link->reader);
	link->reader = NULL;
	redis_buf_free(&link->out);
}

/* --- requests and replies --- */

static int link_failed(struct redis_link *link, int err)
{
	if (err == -EPROTO)
		redis_say(link->error, sizeof(link->error), "the server's answer is not Redis' protocol, or too large");
	else if (err == -EPIPE || err == -ECONNRESET)
		redis_say(link->error, sizeof(link->error), "the server closed the connection");
	else if (err == -ETIMEDOUT)
		redis_say(link->error, sizeof(link->error), "the server does not answer");
	else
		redis_say(link->error, sizeof(link->error), "%s", strerrordesc_np(-err));
	return err;
}

int redis_link_flush(struct redis_link *link, uint64_t deadline_ns)
{
	size_t done = 0;
	int err;

	if (link->fd < 0)
		return link_failed(link, -ENOTCONN);
	if (link->out.failed)
		return link_failed(link, -ENOMEM);
	while (done < link->out.len) {
		ssize_t n = send(link->fd, link->out.data + done, link->out.len - done, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n >= 0) {
			done += (size_t)n;
			continue;
		}
		if (errno == EINTR)
			continue;
		err = errno == EAGAIN ? wait_ready(link, POLLOUT, deadline_ns) : -errno;
		if (err)
			return link_failed(link, err);
	}
	link->out.len = 0;
	return 0;
}

int redis_link_read(struct redis_link *link, uint64_t deadline_ns, struct redis_value **ret_value)
{
	char bytes[16384];
	int err;

	if (link->fd < 0)
		return link_failed(link, -ENOTCONN);
	for (;;) {
		ssize_t n;

		err = redis_reader_next(link->reader, ret_value);
		if (err > 0)
			return 0;
		if (err < 0)
			return link_failed(link, err);
		err = wait_ready(link, POLLIN, deadline_ns);
		if (err)
			return link_failed(link, err);
		n = recv(link->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return link_failed(link, n == 0 ? -EPIPE : -errno);
		err = redis_reader_feed(link->reader, bytes, (size_t)n);
		if (err)
			return link_failed(link, err);
	}
}
