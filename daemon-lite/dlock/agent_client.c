/* SPDX-License-Identifier: MIT */
/*
 * Talking to the agent: one connection for each question. What comes back was
 * written by a process whose uid the kernel vouched for, but it is still parsed
 * as foreign bytes.
 */
#include "agent_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../shim/wire.h"
#include "../query.h"
#include "dlock.h"

#define ANSWER_TIMEOUT_S 15
#define ANSWER_MAX (64u << 20)

static const char no_agent[] = "no agent answers in the runtime directory %s (%s); start one with `dlockd`, or run a program by `dlock run`";

int agent_connect(const char *runtime_dir, struct refusal *refusal)
{
	const struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct ucred peer;
	socklen_t len = sizeof peer;
	int fd, n;

	n = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", runtime_dir, WIRE_SOCKET_NAME);
	if ((size_t)n >= sizeof address.sun_path) {
		refuse(refusal, EXIT_TROUBLE, "the runtime directory %s is too long for a socket; name one of less than %zu bytes", runtime_dir,
		       sizeof address.sun_path - sizeof WIRE_SOCKET_NAME);
		return -ENAMETOOLONG;
	}
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		goto fail;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		goto fail;
	if (peer.uid != 0 && peer.uid != geteuid()) {
		refuse(refusal, EXIT_TROUBLE, "the agent at %s runs as user %u, neither as root nor as you, and is not trusted; "
		       "name a runtime directory of your own", address.sun_path, (unsigned)peer.uid);
		close(fd);
		return -EPERM;
	}
	return fd;
fail:
	n = -errno;
	if (fd >= 0)
		close(fd);
	if (n == -ENOENT || n == -ECONNREFUSED) {
		refuse(refusal, EXIT_TROUBLE, no_agent, runtime_dir, strerror(-n));
		return -ENOENT;
	}
	if (n == -EACCES || n == -EPERM)
		refuse(refusal, EXIT_TROUBLE, "you may not talk to the agent at %s (%s); use a runtime directory of your own, or ask for permission",
		       address.sun_path, strerror(-n));
	else
		refuse(refusal, EXIT_TROUBLE, "the agent at %s cannot be reached (%s); restart it", address.sun_path, strerror(-n));
	return n;
}

static int send_message(int fd, struct wire_msg *msg, const char *text)
{
	char packet[sizeof *msg + QUERY_VERB_MAX];
	size_t len = strlen(text);

	if (len > QUERY_VERB_MAX)
		return -ENAMETOOLONG;
	msg->text_len = (uint32_t)len;
	memcpy(packet, msg, sizeof *msg);
	memcpy(packet + sizeof *msg, text, len);
	while (send(fd, packet, sizeof *msg + len, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* The next message; packet has room for the largest one. */
static int receive(int fd, char *packet, struct wire_msg *ret_msg, const char **ret_text)
{
	struct iovec iov = { packet, sizeof(struct wire_msg) + WIRE_TEXT_MAX };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	do {
		/* No room for descriptors: the kernel closes any that come. */
		n = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? -ETIMEDOUT : -errno;
	if (n == 0)
		return -ECONNRESET;
	if (header.msg_flags & MSG_TRUNC)
		return -EPROTO;
	return wire_parse(packet, (size_t)n, ret_msg, ret_text);
}

static int refuse_exchange(const char *runtime_dir, int err, struct refusal *refusal)
{
	if (err == -ETIMEDOUT)
		refuse(refusal, EXIT_TROUBLE, "the agent in %s did not answer within %d s; look at its log and restart it", runtime_dir, ANSWER_TIMEOUT_S);
	else if (err == -EPROTO)
		refuse(refusal, EXIT_TROUBLE, "the agent in %s speaks another version of the protocol; install dlock and dlockd of one version and restart the agent",
		       runtime_dir);
	else if (err == -ENAMETOOLONG)
		refuse(refusal, EXIT_TROUBLE, "the path is too long to ask the agent about it");
	else
		refuse(refusal, EXIT_TROUBLE, "the agent in %s ended the conversation (%s); try again, and look at its log if it happens again", runtime_dir, strerror(-err));
	return err;
}

static int refuse_answer(const char *runtime_dir, const struct wire_msg *msg, const char *text, struct refusal *refusal)
{
	int err = msg->err > 0 && msg->err < 4096 ? msg->err : EIO;

	if (msg->text_len)
		refuse(refusal, EXIT_TROUBLE, "the agent refused: %.*s", (int)msg->text_len, text);
	else
		refuse(refusal, EXIT_TROUBLE, "the agent in %s refused the question (%s); look at its log", runtime_dir, strerror(err));
	return -err;
}

/* Takes messages until the answer is complete. */
static int collect(int fd, const char *runtime_dir, char *packet, struct record_buf *answer, struct refusal *refusal)
{
	for (;;) {
		struct wire_msg msg;
		const char *text;
		int n = receive(fd, packet, &msg, &text);

		if (n < 0)
			return refuse_exchange(runtime_dir, n, refusal);
		if (msg.type == WIRE_ERROR || (msg.type == WIRE_END && msg.err))
			return refuse_answer(runtime_dir, &msg, text, refusal);
		if (msg.type == WIRE_END || msg.type == WIRE_RULES_OK)
			return 0;
		if (msg.type != WIRE_RECORD || answer->len > ANSWER_MAX)
			return refuse_exchange(runtime_dir, -EPROTO, refusal);
		records_append(answer, text, msg.text_len);
		if (answer->err) {
			refuse(refusal, EXIT_TROUBLE, "there is not enough memory for the agent's answer");
			return answer->err;
		}
	}
}

static int exchange(const char *runtime_dir, struct wire_msg *msg, const char *text, struct record_buf *ret_answer, struct refusal *refusal)
{
	struct record_buf answer = { 0 };
	char *packet;
	int fd, n;

	fd = agent_connect(runtime_dir, refusal);
	if (fd < 0)
		return fd;
	packet = malloc(sizeof(struct wire_msg) + WIRE_TEXT_MAX);
	if (!packet) {
		refuse(refusal, EXIT_TROUBLE, "there is not enough memory");
		n = -ENOMEM;
		goto out;
	}
	n = send_message(fd, msg, text);
	if (n < 0)
		refuse_exchange(runtime_dir, n, refusal);
	else
		n = collect(fd, runtime_dir, packet, &answer, refusal);
	free(packet);
out:
	close(fd);
	if (ret_answer)
		*ret_answer = answer;
	else
		record_buf_free(&answer);
	return n;
}

int agent_query(const char *runtime_dir, const char *verb, struct record_buf *ret_answer, struct refusal *refusal)
{
	struct wire_msg msg;

	wire_init(&msg, WIRE_QUERY);
	return exchange(runtime_dir, &msg, verb, ret_answer, refusal);
}

int agent_compile_rules(const char *runtime_dir, uint64_t stamp, struct refusal *refusal)
{
	struct wire_msg msg;

	wire_init(&msg, WIRE_RULES);
	msg.stamp = stamp;
	return exchange(runtime_dir, &msg, "", NULL, refusal);
}
