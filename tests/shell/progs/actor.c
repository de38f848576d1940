/* SPDX-License-Identifier: MIT */
/*
 * A program that locks on command, for the shell tests. Each line on standard
 * input is one command; each is answered by one line on standard output:
 * "ok …", "jumped …" or the name of an errno, and the time in µs of
 * CLOCK_REALTIME when the call returned. Standard output never carries a stop:
 * a command that blocks answers when it is over.
 *
 * Locks go through flock(), fcntl() and lockf() by name, so that a preloaded
 * library sees them. Record locks:
 *   fc CMD SLOT TYPE WHENCE START LEN [PID]
 *     CMD setlk, setlkw, getlk, and the same with o in front (F_OFD_*); TYPE r, w, u; WHENCE s, c, e; or their numbers.
 *     getlk answers "ok u" or the lock that is in the way: "ok w START LEN PID".
 *   lockf SLOT lock|tlock|test|ulock LEN
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 64

extern char **environ;

static int slots[SLOTS];	/* descriptors by the number that the commands use */
static int slot_count;
static int flight[2] = { -1, -1 };
static void *mapping = MAP_FAILED;
static sigjmp_buf jump;
static volatile sig_atomic_t alarms;

static long long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...)
{
	long long us = now_us();
	char line[512];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(line, sizeof line - 32, format, args);
	va_end(args);
	n += snprintf(line + n, sizeof line - (size_t)n, " %lld\n", us);
	if (write(1, line, (size_t)n) != n)
		_exit(9);
}

/* "ok" and a number, or the errno's name. */
static void answer_call(long rc)
{
	if (rc >= 0)
		answer("ok %ld", rc);
	else
		answer("%s", strerrorname_np(errno));
}

static int slot_add(int fd)
{
	if (fd < 0)
		return -1;
	if (slot_count == SLOTS) {
		errno = EMFILE;
		return -1;
	}
	slots[slot_count] = fd;
	return slot_count++;
}

static void on_alarm(int sig)
{
	(void)sig;
	alarms++;
}

static void on_alarm_jump(int sig)
{
	(void)sig;
	siglongjmp(jump, 1);
}

static void handle_alarm(void (*fn)(int), int flags)
{
	struct sigaction action = { .sa_handler = fn, .sa_flags = flags };

	sigaction(SIGALRM, &action, NULL);
}

static void set_alarm(int ms)
{
	struct itimerval timer = { .it_value = { ms / 1000, ms % 1000 * 1000 } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

static int do_lock(const char *word, int fd)
{
	int op = 0;

	if (strstr(word, "ex"))
		op = LOCK_EX;
	else if (strstr(word, "sh"))
		op = LOCK_SH;
	else
		op = LOCK_UN;
	if (!strncmp(word, "try", 3))
		op |= LOCK_NB;
	return flock(fd, op);
}

/* The value of a word in a table, or the number that it is. */
struct word_value { const char *word; int value; };

static int value_of(const struct word_value *table, const char *word)
{
	for (; table->word; table++)
		if (!strcmp(table->word, word))
			return table->value;
	return atoi(word);
}

static const struct word_value commands[] = { { "setlk", F_SETLK }, { "setlkw", F_SETLKW }, { "getlk", F_GETLK },
	{ "osetlk", F_OFD_SETLK }, { "osetlkw", F_OFD_SETLKW }, { "ogetlk", F_OFD_GETLK }, { NULL, 0 } };
static const struct word_value types[] = { { "r", F_RDLCK }, { "w", F_WRLCK }, { "u", F_UNLCK }, { NULL, 0 } };
static const struct word_value whences[] = { { "s", SEEK_SET }, { "c", SEEK_CUR }, { "e", SEEK_END }, { NULL, 0 } };
static const struct word_value lockfs[] = { { "lock", F_LOCK }, { "tlock", F_TLOCK }, { "test", F_TEST }, { "ulock", F_ULOCK }, { NULL, 0 } };

/* One record lock call: "TYPE WHENCE START LEN [PID]". ret_lock is what the kernel left in the structure. */
static int do_record(int fd, int cmd, const char *words, struct flock *ret_lock)
{
	char type[8] = "", whence[8] = "";
	long long start = 0, len = 0;
	int pid = 0;

	if (sscanf(words, "%7s %7s %lld %lld %d", type, whence, &start, &len, &pid) < 4) {
		errno = ENOMSG;
		return -1;
	}
	*ret_lock = (struct flock){ .l_type = (short)value_of(types, type), .l_whence = (short)value_of(whences, whence),
		.l_start = start, .l_len = len, .l_pid = pid };
	return fcntl(fd, cmd, ret_lock);
}

static void answer_record(int fd, int cmd, const char *words)
{
	struct flock lock, asked;
	int rc = do_record(fd, cmd, words, &lock);

	if (rc || (cmd != F_GETLK && cmd != F_OFD_GETLK)) {
		answer_call(rc);
	} else if (lock.l_type == F_UNLCK) {	/* nothing else may have changed */
		do_record(-1, F_GETFD, words, &asked);
		answer(asked.l_start == lock.l_start && asked.l_len == lock.l_len && asked.l_whence == lock.l_whence && asked.l_pid == lock.l_pid ?
			"ok u" : "ok u, and changed more");
	} else {
		answer("ok %c%s %lld %lld %d", lock.l_type == F_RDLCK ? 'r' : lock.l_type == F_WRLCK ? 'w' : '?', lock.l_whence == SEEK_SET ? "" : " whence",
			(long long)lock.l_start, (long long)lock.l_len, (int)lock.l_pid);
	}
}

/* fopen and fclose: what a library does behind a program's back. */
static int open_and_close(const char *path)
{
	FILE *file = fopen(path, "r");

	return file ? fclose(file) : -1;
}

/* The same program once more in this process: its slots stay, and so do the process's locks. */
static int exec_self(void)
{
	char numbers[SLOTS * 12], *argv[] = { "actor", numbers, NULL };
	int i, n = 0;

	for (i = 0; i < slot_count; i++)
		n += snprintf(numbers + n, sizeof numbers - (size_t)n, "%d ", slots[i]);
	return execv("/proc/self/exe", argv);
}

/* What a child of fork sees of its parent's locks: it tries for the whole file, and exits with the errno. */
static int try_whole(int fd, int cmd)
{
	struct flock lock = { .l_type = F_WRLCK };

	return fcntl(fd, cmd, &lock) ? errno : 0;
}

static long child_of_fork(const char *what, int fd)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	if (!strcmp(what, "setlk"))
		_exit(try_whole(fd, F_SETLK));
	if (!strcmp(what, "osetlk"))
		_exit(try_whole(fd, F_OFD_SETLK));
	if (!strcmp(what, "close"))
		_exit(close(fd) ? errno : 0);
	if (!strcmp(what, "unlock"))
		_exit(flock(fd, LOCK_UN) ? 1 : 0);
	if (!strcmp(what, "closerange"))
		close_range(3, ~0u, 0);
	if (!strcmp(what, "closefrom"))
		closefrom(3);
	if (!strcmp(what, "daemon")) {	/* the second fork; the middle ends */
		setsid();
		if (fork())
			_exit(0);
	}
	/* The child must not read commands, nor write answers. */
	close(0);
	close(1);
	for (;;)
		pause();
}

static long child_of_exec(const char *how, char *path)
{
	char seconds[] = "1000";
	char *argv[] = { path, seconds, NULL };
	pid_t pid;
	int err;

	if (!strcmp(how, "spawn")) {
		err = posix_spawn(&pid, path, NULL, NULL, argv, environ);
		if (err) {
			errno = err;
			return -1;
		}
		return pid;
	}
	pid = vfork();
	if (!pid) {
		execv(path, argv);
		_exit(127);
	}
	return pid;
}

static long send_to_self(int fd)
{
	union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = { 0 };
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

	if (flight[0] < 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, flight))
		return -1;
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
	return sendmsg(flight[0], &msg, 0);
}

static long receive_from_self(void)
{
	union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control;
	char byte;
	int fd;
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };

	if (recvmsg(flight[1], &msg, 0) < 0)
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof fd);
	return slot_add(fd);
}

/* word: of flock, or "CMD TYPE WHENCE START LEN" of fcntl. own_table: the thread has a descriptor table, and so record locks, of its own. */
struct thread_call { pthread_t thread; int fd; char word[80]; bool async, own_table; long rc; int err; };

static void *thread_main(void *arg)
{
	struct thread_call *call = arg;
	char *space = strchr(call->word, ' ');
	struct flock lock;

	if (call->async)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	if (call->own_table)
		unshare(CLONE_FILES);
	if (space)
		*space = 0;
	call->rc = space ? do_record(call->fd, value_of(commands, call->word), space + 1, &lock) : do_lock(call->word, call->fd);
	call->err = errno;
	if (call->own_table && !call->rc)
		pause();	/* its end would drop the locks */
	pthread_testcancel();
	return NULL;
}

/* Each of `count` threads locks and unlocks a description of its own; errors are counted. */
static void *churn_main(void *arg)
{
	const char *path = arg;
	long bad = 0;
	int i, fd;

	for (i = 0; i < 20; i++) {
		fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
		if (fd < 0 || flock(fd, i % 3 ? LOCK_SH : LOCK_EX) || flock(fd, LOCK_UN))
			bad++;
		close(fd);
	}
	return (void *)bad;
}

static long churn(int count, char *path)
{
	pthread_t threads[64];
	void *bad;
	long total = 0;
	int i;

	for (i = 0; i < count && i < 64; i++)
		pthread_create(&threads[i], NULL, churn_main, path);
	for (i = 0; i < count && i < 64; i++) {
		pthread_join(threads[i], &bad);
		total += (long)bad;
	}
	return total;
}

static void command(char *line)
{
	static struct thread_call call;
	char *save = NULL, *word = strtok_r(line, " ", &save), *arg = strtok_r(NULL, " ", &save);
	int number = arg ? atoi(arg) : 0;
	int fd = number >= 0 && number < slot_count ? slots[number] : -1;
	void *result;

	if (!word)
		return;
	if (!strcmp(word, "open")) {		/* open r|w|rw PATH…: the slot's number */
		int flags = !strcmp(arg, "r") ? O_RDONLY : !strcmp(arg, "w") ? O_WRONLY | O_CREAT : O_RDWR | O_CREAT;

		answer_call(slot_add(open(save, flags, 0666)));
	} else if (!strcmp(word, "tmpfile")) {	/* tmpfile DIR */
		answer_call(slot_add(open(arg, O_TMPFILE | O_RDWR, 0600)));
	} else if (!strcmp(word, "memfd")) {
		answer_call(slot_add(memfd_create("x", 0)));
	} else if (!strcmp(word, "ex") || !strcmp(word, "sh") || !strcmp(word, "un") || !strcmp(word, "tryex") || !strcmp(word, "trysh")) {
		answer_call(do_lock(word, fd));
	} else if (!strcmp(word, "jumpex")) {	/* jumpex SLOT MS: out of the wait by siglongjmp */
		handle_alarm(on_alarm_jump, 0);
		if (sigsetjmp(jump, 1)) {
			answer("jumped");
			return;
		}
		set_alarm(atoi(save));
		answer_call(flock(fd, LOCK_EX));
	} else if (!strcmp(word, "alarm")) {	/* alarm MS restart|interrupt: for the next blocking command */
		handle_alarm(on_alarm, strcmp(save, "restart") ? 0 : SA_RESTART);
		alarms = 0;
		set_alarm(number);
		answer("ok");
	} else if (!strcmp(word, "alarms")) {
		answer("ok %d", (int)alarms);
	} else if (!strcmp(word, "fc")) {
		number = atoi(strtok_r(NULL, " ", &save));
		answer_record(number >= 0 && number < slot_count ? slots[number] : -1, value_of(commands, arg), save);
	} else if (!strcmp(word, "lockf")) {
		char *how = strtok_r(NULL, " ", &save);

		answer_call(lockf(fd, value_of(lockfs, how), atoll(save)));
	} else if (!strcmp(word, "seek")) {
		answer_call(lseek(fd, atoll(save), SEEK_SET) < 0 ? -1 : 0);
	} else if (!strcmp(word, "size")) {
		answer_call(ftruncate(fd, atoll(save)));
	} else if (!strcmp(word, "badptr")) {	/* badptr SLOT CMD */
		answer_call(fcntl(fd, value_of(commands, save), (void *)8));
	} else if (!strcmp(word, "fcntl")) {	/* fcntl SLOT NUMBER ARGUMENT: any command, untouched */
		char *cmd = strtok_r(NULL, " ", &save);

		answer_call(fcntl(fd, atoi(cmd), atol(save)));
	} else if (!strcmp(word, "fopen")) {
		answer_call(open_and_close(arg));
	} else if (!strcmp(word, "exec")) {	/* answers "ready" when it runs again */
		answer_call(exec_self());
	} else if (!strcmp(word, "closeall")) {	/* and forgets the slots */
		while (slot_count)
			close(slots[--slot_count]);
		answer("ok");
	} else if (!strcmp(word, "close")) {
		answer_call(close(fd));
	} else if (!strcmp(word, "dup")) {
		answer_call(slot_add(dup(fd)));
	} else if (!strcmp(word, "dup2")) {	/* dup2 FROM TO: slots; TO's descriptor becomes another's */
		int to = atoi(save);

		answer_call(to >= 0 && to < slot_count ? dup2(fd, slots[to]) : -1);
	} else if (!strcmp(word, "fork")) {	/* fork SLOT hold|unlock|closerange|closefrom|daemon: the child's pid */
		answer_call(child_of_fork(save, fd));
	} else if (!strcmp(word, "spawn") || !strcmp(word, "vfork")) {	/* spawn PROGRAM: run with the argument 1000 */
		answer_call(child_of_exec(word, arg));
	} else if (!strcmp(word, "reap")) {
		int status = 0;

		answer_call(wait(&status) < 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	} else if (!strcmp(word, "killchild")) {
		answer_call(kill(number, SIGKILL) ? -1 : waitpid(number, NULL, 0) < 0 ? -1 : 0);
	} else if (!strcmp(word, "send")) {
		answer_call(send_to_self(fd));
	} else if (!strcmp(word, "receive")) {
		answer_call(receive_from_self());
	} else if (!strcmp(word, "map")) {
		mapping = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
		answer_call(mapping == MAP_FAILED ? -1 : 0);
	} else if (!strcmp(word, "unmap")) {
		answer_call(munmap(mapping, 4096));
	} else if (!strcmp(word, "thread")) {	/* thread SLOT ex|sh…|setlkw TYPE …[ async]: lock in another thread, do not wait for it */
		call = (struct thread_call){ .fd = fd, .async = strstr(save, "async"), .own_table = strstr(save, "unshared") };
		snprintf(call.word, sizeof call.word, "%.79s", save);
		answer_call(-pthread_create(&call.thread, NULL, thread_main, &call));
	} else if (!strcmp(word, "cancel")) {
		answer_call(-pthread_cancel(call.thread));
	} else if (!strcmp(word, "join")) {
		pthread_join(call.thread, &result);
		answer("%s", result == PTHREAD_CANCELED ? "cancelled" : call.rc ? strerrorname_np(call.err) : "ok");
	} else if (!strcmp(word, "churn")) {	/* churn THREADS PATH: number of failures */
		answer_call(churn(number, save));
	} else if (!strcmp(word, "chroot")) {
		answer_call(chroot(arg) ? -1 : chdir("/"));
	} else if (!strcmp(word, "nofile")) {	/* no descriptor is left but `arg` more */
		struct rlimit limit;
		int free_fd = dup(0);

		getrlimit(RLIMIT_NOFILE, &limit);
		close(free_fd);
		limit.rlim_cur = (rlim_t)(free_fd + number);
		if (save && !strcmp(save, "hard"))
			limit.rlim_max = limit.rlim_cur;
		answer_call(setrlimit(RLIMIT_NOFILE, &limit));
	} else if (!strcmp(word, "undumpable")) {
		answer_call(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
	} else if (!strcmp(word, "fds")) {	/* how many descriptors are open */
		int i, n = 0;

		for (i = 0; i < 1024; i++)
			n += fcntl(i, F_GETFD) >= 0;
		answer("ok %d", n);
	} else if (!strcmp(word, "children")) {	/* ECHILD when there is none */
		answer_call(waitpid(-1, NULL, WNOHANG | __WALL));
	} else if (!strcmp(word, "now")) {
		answer("ok");
	} else if (!strcmp(word, "exit")) {
		exit(number);
	} else {
		answer("what is %s?", word);
	}
}

int main(int argc, char **argv)
{
	char line[8192], c, *save = NULL, *word;
	size_t n = 0;
	ssize_t got;

	for (word = argc > 1 ? strtok_r(argv[1], " ", &save) : NULL; word; word = strtok_r(NULL, " ", &save))
		slot_add(atoi(word));

	answer("ready %d", (int)getpid());
	for (;;) {	/* byte by byte: a child made by fork shares nothing unread */
		got = read(0, &c, 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return 0;
		if (c != '\n' && n < sizeof line - 1) {
			line[n++] = c;
			continue;
		}
		line[n] = 0;
		n = 0;
		command(line);
	}
}
