/* SPDX-License-Identifier: MIT */
/*
 * Processes of the benchmark: Redis, agents, workers. Everything lives below
 * one temporary directory and is ended by its pid, also after a failure.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define CHILDREN_MAX 64

static char work[128], build_dir[256];
static struct bench_shared *memory;
static int port;
static pid_t children[CHILDREN_MAX];
static unsigned child_count;

static void add_child(pid_t pid)
{
	if (child_count < CHILDREN_MAX)
		children[child_count++] = pid;
}

/* SIGTERM, five seconds, SIGKILL. */
static void end_child(pid_t pid)
{
	unsigned i;

	for (i = 0; i < child_count && children[i] != pid; i++)
		;
	if (i == child_count)
		return;
	children[i] = children[--child_count];
	kill(pid, SIGTERM);
	for (i = 0; i < 500; i++) {
		if (waitpid(pid, NULL, WNOHANG) != 0)
			return;
		poll(NULL, 0, 10);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

void bench_cleanup(void)
{
	pid_t pid;

	/* Workers first (added last), then agents, then Redis. */
	while (child_count)
		end_child(children[child_count - 1]);
	if (!work[0])
		return;
	pid = fork();
	if (pid == 0) {
		execlp("rm", "rm", "-rf", work, (char *)NULL);
		_exit(1);
	}
	waitpid(pid, NULL, 0);
	work[0] = '\0';
}

void bench_fail(const char *format, ...)
{
	va_list args;

	fflush(stdout);
	va_start(args, format);
	fputs("bench: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	if (getenv("BENCH_KEEP"))
		work[0] = '\0';
	bench_cleanup();
	exit(1);
}

static void on_signal(int sig)
{
	(void)sig;
	bench_cleanup();	/* not async-signal-safe to the letter; the alternative is to leave servers behind */
	_exit(1);
}

static pid_t spawn(char *const argv[], const char *log, int in, int out, char *const extra_env[])
{
	pid_t pid = fork();

	if (pid < 0)
		bench_fail("fork: %s", strerror(errno));
	if (pid > 0) {
		add_child(pid);
		return pid;
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (log) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

		dup2(fd, 2);
		if (out < 0)
			dup2(fd, 1);
	}
	if (in >= 0)
		dup2(in, 0);
	if (out >= 0)
		dup2(out, 1);
	for (; extra_env && *extra_env; extra_env++)
		putenv(*extra_env);
	execvp(argv[0], argv);
	fprintf(stderr, "bench: %s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static void start_redis(void)
{
	for (int attempt = 0; attempt < 10; attempt++) {
		char text[16], log[200];
		char *argv[] = { (char *)"redis-server", (char *)"--bind", (char *)"127.0.0.1", (char *)"--port", text, (char *)"--save", (char *)"",
				 (char *)"--appendonly", (char *)"no", (char *)"--dir", work, (char *)"--daemonize", (char *)"no", NULL };
		pid_t pid;

		port = 20000 + (int)((bench_now_ns() / 1000 + (unsigned)attempt * 977u) % 12000);
		snprintf(text, sizeof text, "%d", port);
		snprintf(log, sizeof log, "%s/redis.log", work);
		pid = spawn(argv, log, -1, -1, NULL);
		for (int i = 0; i < 500; i++) {
			struct bench_store *store;

			if (waitpid(pid, NULL, WNOHANG) != 0) {
				child_count--;
				pid = 0;
				break;
			}
			store = bench_store_connect(port);
			if (store) {
				bench_store_free(store);
				return;
			}
			poll(NULL, 0, 10);
		}
		if (pid)
			end_child(pid);
	}
	bench_fail("redis-server does not start; is it installed?");
}

void bench_setup(const char *build)
{
	const char *tmp = getenv("TMPDIR");
	char path[200];
	int fd;

	if (!realpath(build, build_dir))
		bench_fail("%s: %s; run make first", build, strerror(errno));
	snprintf(work, sizeof work, "%s/dlockbench-XXXXXX", tmp && *tmp && strlen(tmp) < 64 ? tmp : "/tmp");
	if (!mkdtemp(work))
		bench_fail("%s: %s", work, strerror(errno));
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	signal(SIGPIPE, SIG_IGN);
	unsetenv("LD_PRELOAD");
	unsetenv("DLOCKSHIM_CONFIG");
	unsetenv("DLOCKSHIM_RUNTIME_DIR");
	snprintf(path, sizeof path, "%s/shared", work);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *memory) < 0)
		bench_fail("%s: %s", path, strerror(errno));
	memory = mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		bench_fail("mmap: %s", strerror(errno));
	close(fd);
	start_redis();
}

int bench_redis_port(void)
{
	return port;
}

struct bench_shared *bench_memory(void)
{
	return memory;
}

static void write_config(const struct bench_host *host, const char *name_space, const char *ttl)
{
	FILE *out = fopen(host->config, "we");

	if (!out)
		bench_fail("%s: %s", host->config, strerror(errno));
	/* A long linger: covers that lie idle must still be there when the other host comes. */
	fprintf(out, "namespace = \"%s\";\nttl = \"%s\";\nlinger = \"%s\";\nredis = { servers = [ \"redis://127.0.0.1:%d\" ]; };\n"
		"rules = ( { path = \"%s/locks/**\"; name = \"{tail}\"; } );\n", name_space, ttl, ttl, port, host->dir);
	if (fclose(out) != 0 || chmod(host->config, 0600) < 0)
		bench_fail("%s: %s", host->config, strerror(errno));
}

/* Whether somebody listens at the agent's socket. */
static int agent_answers(const struct bench_host *host)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), n;

	if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/agent.sock", host->runtime) >= sizeof address.sun_path)
		bench_fail("TMPDIR is too long for a socket");
	n = connect(fd, (struct sockaddr *)&address, sizeof address);
	close(fd);
	return n == 0;
}

void bench_host_start(struct bench_host *host, const char *name, const char *name_space, const char *ttl)
{
	static char declared[64];
	char log[300], program[300], config_env[340], runtime_env[340], path[340];
	char *init[] = { program, (char *)"init", NULL };
	char *agent[] = { program, (char *)"--foreground", NULL };
	char *env[] = { config_env, runtime_env, NULL };
	int status;
	pid_t pid;

	memset(host, 0, sizeof *host);
	snprintf(host->name, sizeof host->name, "%s", name);
	snprintf(host->dir, sizeof host->dir, "%s/%s", work, name);
	snprintf(host->config, sizeof host->config, "%s/conf", host->dir);
	snprintf(host->runtime, sizeof host->runtime, "%s/run", host->dir);
	if (mkdir(host->dir, 0700) < 0 || mkdir(host->runtime, 0700) < 0)
		bench_fail("%s: %s", host->dir, strerror(errno));
	snprintf(path, sizeof path, "%s/locks", host->dir);
	if (mkdir(path, 0700) < 0)
		bench_fail("%s: %s", path, strerror(errno));
	snprintf(path, sizeof path, "%s/free", host->dir);
	if (mkdir(path, 0700) < 0)
		bench_fail("%s: %s", path, strerror(errno));
	write_config(host, name_space, ttl);
	snprintf(config_env, sizeof config_env, "DLOCKSHIM_CONFIG=%s", host->config);
	snprintf(runtime_env, sizeof runtime_env, "DLOCKSHIM_RUNTIME_DIR=%s", host->runtime);
	snprintf(log, sizeof log, "%s/agent.log", host->dir);
	if (strcmp(declared, name_space) != 0) {
		snprintf(program, sizeof program, "%s/dlock", build_dir);
		pid = spawn(init, log, -1, -1, env);
		waitpid(pid, &status, 0);
		child_count--;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			bench_fail("dlock init failed (status %#x); see it by BENCH_KEEP=1 in %s", status, log);
		snprintf(declared, sizeof declared, "%s", name_space);
	}
	snprintf(program, sizeof program, "%s/dlockd", build_dir);
	host->agent = spawn(agent, log, -1, -1, env);
	for (int i = 0; !agent_answers(host); i++) {
		if (waitpid(host->agent, &status, WNOHANG) != 0 || i == 1000)
			bench_fail("the agent of host %s does not start; see why by BENCH_KEEP=1 in %s", name, log);
		poll(NULL, 0, 10);
	}
}

void bench_host_stop(struct bench_host *host)
{
	end_child(host->agent);
}

void bench_worker_start(struct bench_worker *worker, const struct bench_host *host, const char *directory, unsigned index)
{
	char program[300], shared_path[200], number[16], config_env[340] = "", runtime_env[340] = "", preload[340] = "", log[200];
	char *argv[] = { program, shared_path, (char *)directory, number, NULL };
	char *env[] = { config_env, runtime_env, preload, NULL };
	int in[2], out[2];

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		bench_fail("pipe: %s", strerror(errno));
	snprintf(program, sizeof program, "%s/bench/worker", build_dir);
	snprintf(shared_path, sizeof shared_path, "%s/shared", work);
	snprintf(number, sizeof number, "%u", index);
	snprintf(log, sizeof log, "%s/worker.log", work);
	if (host) {
		snprintf(config_env, sizeof config_env, "DLOCKSHIM_CONFIG=%s", host->config);
		snprintf(runtime_env, sizeof runtime_env, "DLOCKSHIM_RUNTIME_DIR=%s", host->runtime);
		snprintf(preload, sizeof preload, "LD_PRELOAD=%s/libdlockshim.so", build_dir);
	}
	worker->pid = spawn(argv, NULL, in[0], out[1], host ? env : NULL);
	close(in[0]);
	close(out[1]);
	worker->in = in[1];
	worker->out = out[0];
	worker->index = index;
}

void bench_worker_stop(struct bench_worker *worker)
{
	close(worker->in);
	close(worker->out);
	end_child(worker->pid);
}

void bench_send(struct bench_worker *worker, const struct bench_command *command)
{
	if (write(worker->in, command, sizeof *command) != sizeof *command)
		bench_fail("worker %u is gone", worker->index);
}

void bench_wait(struct bench_worker *worker)
{
	struct pollfd pollfd = { worker->out, POLLIN, 0 };
	char byte;

	if (poll(&pollfd, 1, 60000) <= 0)
		bench_fail("worker %u (pid %d) hangs", worker->index, (int)worker->pid);
	if (read(worker->out, &byte, 1) != 1)
		bench_fail("worker %u failed", worker->index);
}

void bench_do(struct bench_worker *worker, enum bench_verb verb, uint32_t first, uint32_t arg, const char *prefix)
{
	struct bench_command command = { .verb = verb, .first = first, .arg = arg };

	snprintf(command.prefix, sizeof command.prefix, "%s", prefix);
	bench_send(worker, &command);
	bench_wait(worker);
}
