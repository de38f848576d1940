/* SPDX-License-Identifier: MIT */
/* See fake_agent.h. Asserts nothing in the thread: it writes down what went wrong, and fake_finish fails the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../../config/rules.h"
#include "fake_agent.h"

#define PATIENCE_MS 10000

char fake_dir[64], fake_runtime[96], fake_config[96], fake_log[96];

/* ---- the world ---- */

const char *fake_path(const char *name)
{
	static char paths[8][4400];
	static unsigned turn;
	char *path = paths[turn++ % 8];

	snprintf(path, sizeof paths[0], "%s/%s", fake_dir, name);
	return path;
}

void fake_write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file)
		abort();
	fputs(text, file);
	fclose(file);
}

static uint32_t put(char *buf, uint32_t *at, const char *text)
{
	uint32_t off = *at;

	strcpy(buf + off, text);
	*at += (uint32_t)strlen(text) + 1;
	return off;
}

void fake_write_rules(const char *pattern, bool attended)
{
	static _Alignas(8) char buf[8192];
	struct rules_header *header = (void *)buf;
	struct rules_entry *entry = (void *)(buf + sizeof *header);
	uint32_t at = sizeof *header + sizeof *entry;
	char own[128], temporary[160], path[160];
	struct stat st;
	int fd;

	memset(buf, 0, sizeof buf);
	snprintf(own, sizeof own, "%s/locks/**", fake_dir);
	if (!pattern)
		pattern = own;
	if (stat(fake_config, &st) < 0)
		abort();
	*header = (struct rules_header){
		.magic = RULES_MAGIC, .version = RULES_VERSION, .attended = attended,
		.stamp = rules_stamp(&st), .count = 1, .config_len = (uint32_t)strlen(fake_config),
	};
	header->config_off = put(buf, &at, fake_config);
	entry->pattern_len = (uint32_t)strlen(pattern);
	entry->pattern_off = put(buf, &at, pattern);
	entry->name_len = 6;
	entry->name_off = put(buf, &at, "{path}");
	entry->on_lost_len = 4;
	entry->on_lost_off = put(buf, &at, "kill");
	entry->line = 1;
	entry->prefix_len = (uint32_t)strcspn(pattern, "*?[\\");
	header->size = at;
	header->checksum = rules_checksum(header + 1, at - sizeof *header);
	snprintf(temporary, sizeof temporary, "%s/rules.new", fake_runtime);
	snprintf(path, sizeof path, "%s/%s", fake_runtime, RULES_FILE);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, buf, at) != (ssize_t)at)
		abort();
	close(fd);
	/* As the agent does: rename, then say in the old file that it is old. */
	fd = open(path, O_RDWR);
	if (rename(temporary, path) < 0)
		abort();
	if (fd >= 0) {
		uint32_t one = 1;

		if (pwrite(fd, &one, sizeof one, offsetof(struct rules_header, stale)) != sizeof one)
			abort();
		close(fd);
	}
}

static void fill_names(const char *dir)
{
	snprintf(fake_dir, sizeof fake_dir, "%s", dir);
	snprintf(fake_runtime, sizeof fake_runtime, "%s/run", fake_dir);
	snprintf(fake_config, sizeof fake_config, "%s/dlockshim.conf", fake_dir);
	snprintf(fake_log, sizeof fake_log, "%s/log", fake_dir);
}

void fake_world(int argc, char **argv)
{
	char template[] = "/tmp/dlockshim-test-XXXXXX";
	const char *dir = getenv("FAKE_WORLD");

	(void)argc;
	if (dir) {
		fill_names(dir);
		return;
	}
	umask(022);
	if (!mkdtemp(template))
		abort();
	fill_names(template);
	if (mkdir(fake_runtime, 0755) < 0 || mkdir(fake_path("locks"), 0755) < 0)
		abort();
	fake_write_text(fake_config, "namespace = \"test\";\n");
	fake_write_rules(NULL, true);
	setenv("FAKE_WORLD", fake_dir, 1);
	setenv("DLOCKSHIM_CONFIG", fake_config, 1);
	setenv("DLOCKSHIM_RUNTIME_DIR", fake_runtime, 1);
	setenv("DLOCKSHIM_LOG", fake_log, 1);
	execv("/proc/self/exe", argv);
	abort();
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void fake_remove(void)
{
	nftw(fake_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

bool fake_log_has(const char *text)
{
	static char buf[65536];
	FILE *file = fopen(fake_log, "r");
	size_t n;

	if (!file)
		return false;
	n = fread(buf, 1, sizeof buf - 1, file);
	buf[n] = '\0';
	fclose(file);
	return strstr(buf, text) != NULL;
}

void fake_clear_log(void)
{
	unlink(fake_log);
}

int fake_open(const char *name)
{
	int fd = open(fake_path(name), O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	if (fd < 0)
		abort();
	return fd;
}

bool fake_range_is_free(int fd, int64_t start, int64_t len, short type)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	/* An owner of its own, and nothing is opened or closed. */
	return syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

bool fake_is_free_for(const char *name, int operation)
{
	int fd = open(fake_path(name), O_RDONLY | O_CLOEXEC);
	bool is_free = syscall(SYS_flock, fd, operation | LOCK_NB) == 0;

	close(fd);
	return is_free;
}

/* ---- the agent ---- */

void fake_blame(struct fake_agent *agent, const char *format, ...)
{
	va_list args;

	if (agent->why[0])
		return;
	va_start(args, format);
	vsnprintf(agent->why, sizeof agent->why, format, args);
	va_end(args);
}

static int listen_at(const struct sockaddr_un *addr, size_t len)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (const void *)addr, (socklen_t)len) < 0 || listen(fd, 16) < 0)
		abort();
	return fd;
}

void fake_listen(struct fake_agent *agent)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int n;

	snprintf(addr.sun_path, sizeof addr.sun_path, "%s/%s", fake_runtime, WIRE_SOCKET_NAME);
	unlink(addr.sun_path);
	agent->path_fd = listen_at(&addr, sizeof addr);
	memset(addr.sun_path, 0, sizeof addr.sun_path);
	n = snprintf(addr.sun_path + 1, sizeof addr.sun_path - 1, WIRE_ABSTRACT_PREFIX "%s", fake_runtime);
	agent->abstract_fd = listen_at(&addr, offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

void fake_unlisten(struct fake_agent *agent)
{
	char path[160];

	if (agent->path_fd < 0)
		return;
	snprintf(path, sizeof path, "%s/%s", fake_runtime, WIRE_SOCKET_NAME);
	unlink(path);
	close(agent->path_fd);
	close(agent->abstract_fd);
	agent->path_fd = agent->abstract_fd = -1;
}

static void *run(void *arg)
{
	struct fake_agent *agent = arg;

	agent->script(agent);
	return NULL;
}

void fake_start_with(struct fake_agent *agent, void (*script)(struct fake_agent *agent), int number)
{
	sigset_t all, old;

	memset(agent, 0, sizeof *agent);
	pthread_mutex_init(&agent->mutex, NULL);
	pthread_cond_init(&agent->cond, NULL);
	agent->script = script;
	agent->number = number;
	fake_listen(agent);
	/* Signals are for the thread that locks. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&agent->thread, NULL, run, agent))
		abort();
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void fake_start(struct fake_agent *agent, void (*script)(struct fake_agent *agent))
{
	fake_start_with(agent, script, 0);
}

void fake_finish(struct fake_agent *agent)
{
	pthread_join(agent->thread, NULL);
	fake_unlisten(agent);
	if (agent->why[0])
		fail_msg("the agent: %s", agent->why);
}

int fake_accept(struct fake_agent *agent)
{
	struct pollfd fds[2] = { { agent->path_fd, POLLIN, 0 }, { agent->abstract_fd, POLLIN, 0 } };

	if (poll(fds, 2, PATIENCE_MS) <= 0) {
		fake_blame(agent, "nobody connected");
		return -1;
	}
	return accept4(fds[0].revents ? agent->path_fd : agent->abstract_fd, NULL, NULL, SOCK_CLOEXEC);
}

/*
 * ret_fd NULL: the passed descriptor is not received, and the kernel drops it. To receive and
 * close it here would end the POSIX locks that this very process has on the file.
 */
static ssize_t receive(int socket, void *buf, size_t size, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { buf, size };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cmsg;
	ssize_t n;

	if (ret_fd) {
		*ret_fd = -1;
		header.msg_control = &control;
		header.msg_controllen = sizeof control;
	}
	if (poll(&(struct pollfd){ socket, POLLIN, 0 }, 1, PATIENCE_MS) <= 0)
		return -1;
	n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	cmsg = n > 0 && ret_fd ? CMSG_FIRSTHDR(&header) : NULL;
	if (cmsg && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(ret_fd, CMSG_DATA(cmsg), sizeof *ret_fd);
	return n;
}

int fake_expect(struct fake_agent *agent, int socket, enum wire_type type, struct wire_msg *ret_msg, int *ret_fd)
{
	struct wire_msg msg;
	const char *text;
	char buf[512];
	ssize_t n;

	n = receive(socket, buf, sizeof buf, ret_fd);
	if (n <= 0 || wire_parse(buf, (size_t)n, &msg, &text) < 0) {
		fake_blame(agent, "expected message %d, got %s", type, n == 0 ? "the end" : n < 0 ? "nothing" : "rubbish");
		return -1;
	}
	if (msg.type != type) {
		fake_blame(agent, "expected message %d, got %d", type, msg.type);
		return -1;
	}
	if (ret_msg)
		*ret_msg = msg;
	return 0;
}

void fake_expect_end(struct fake_agent *agent, int socket)
{
	char buf[512];
	ssize_t n = receive(socket, buf, sizeof buf, NULL);

	if (n > 0)
		fake_blame(agent, "expected the end, got message %d", ((struct wire_msg *)(void *)buf)->type);
	else if (n < 0 && errno != ECONNRESET)
		fake_blame(agent, "expected the end, got nothing");
}

void fake_send(int socket, enum wire_type type, int err, const char *text)
{
	struct wire_msg msg;
	struct iovec iov[2] = { { &msg, sizeof msg }, { (void *)(uintptr_t)text, text ? strlen(text) : 0 } };
	struct msghdr header = { .msg_iov = iov, .msg_iovlen = 2 };

	wire_init(&msg, type);
	msg.err = err;
	msg.text_len = (uint32_t)iov[1].iov_len;
	(void)!sendmsg(socket, &header, MSG_NOSIGNAL);
}

void fake_go(int socket, long long valid_for_ms)
{
	struct timespec now;
	struct wire_msg msg;

	clock_gettime(CLOCK_BOOTTIME, &now);
	wire_init(&msg, WIRE_GO);
	msg.valid_until_ns = (uint64_t)((long long)now.tv_sec * 1000000000 + now.tv_nsec + valid_for_ms * 1000000);
	msg.fence = 1;
	(void)!send(socket, &msg, sizeof msg, MSG_NOSIGNAL);
}

void fake_lock(int socket, int mode, int64_t start, int64_t len, int pid)
{
	struct wire_msg msg;

	wire_init(&msg, WIRE_LOCK);
	msg.mode = (uint16_t)mode;
	msg.start = start;
	msg.len = len;
	msg.fd_number = pid;
	(void)!send(socket, &msg, sizeof msg, MSG_NOSIGNAL);
}

static bool stage_is_reached(struct fake_agent *agent, int stage)
{
	bool reached;

	pthread_mutex_lock(&agent->mutex);
	reached = agent->stage >= stage;
	pthread_mutex_unlock(&agent->mutex);
	return reached;
}

static void say_yes(struct fake_agent *agent, int s)
{
	const struct wire_msg *msg;
	char buf[512];

	while (receive(s, buf, sizeof buf, NULL) > 0) {
		msg = (const void *)buf;
		switch (msg->type) {
		case WIRE_REQUEST:
			agent->number++;
			fake_go(s, 10000);
			break;
		case WIRE_GETLK:
			agent->number++;
			fake_lock(s, 0, 0, 0, 0);
			break;
		case WIRE_STANDS:
			fake_send(s, WIRE_STANDING, 0, NULL);
			break;
		}
	}
	close(s);
}

void fake_say_yes(struct fake_agent *agent)
{
	while (!stage_is_reached(agent, 1)) {
		struct pollfd fds[2] = { { agent->path_fd, POLLIN, 0 }, { agent->abstract_fd, POLLIN, 0 } };

		if (poll(fds, 2, 20) > 0)
			say_yes(agent, accept4(fds[0].revents ? agent->path_fd : agent->abstract_fd, NULL, NULL, SOCK_CLOEXEC));
	}
}

void fake_be_alone(struct fake_agent *agent)
{
	struct pollfd fds[2] = { { agent->path_fd, POLLIN, 0 }, { agent->abstract_fd, POLLIN, 0 } };

	(void)fake_await_stage(agent, 1);
	if (poll(fds, 2, 0) != 0)
		fake_blame(agent, "somebody connected");
}

void fake_reach_stage(struct fake_agent *agent, int stage)
{
	pthread_mutex_lock(&agent->mutex);
	agent->stage = stage;
	pthread_cond_broadcast(&agent->cond);
	pthread_mutex_unlock(&agent->mutex);
}

bool fake_await_stage(struct fake_agent *agent, int stage)
{
	struct timespec until;
	int err = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_MS / 1000;
	pthread_mutex_lock(&agent->mutex);
	while (agent->stage < stage && err == 0)
		err = pthread_cond_timedwait(&agent->cond, &agent->mutex, &until);
	pthread_mutex_unlock(&agent->mutex);
	return err == 0;
}
