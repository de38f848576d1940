/* SPDX-License-Identifier: MIT */
/*
 * Owners that lock random ranges of one file, and see whether anybody is inside who must not be.
 *
 *   storm FILE TABLE FIRST OWNERS TOTAL SECONDS SEED MIX…
 *
 * TABLE is a file that all hosts map: a row for each of TOTAL owners, who writes there what it holds of each cell. It
 * writes it after the lock is there, and takes it out before the lock goes; so two rows that conflict are two programs inside. This process runs
 * the owners FIRST… of its host. Mixes: ofd (description locks), both (every second owner ofd), blocking, multi
 * (several ranges at a time), small, large (cells of 2^57 bytes, the last one to the end), readers, closes, forks, alarms, jumps (siglongjmp), kills, stops.
 * Prints one line; exits with 1 after an overlap, a wait of more than 10 s, or an errno that is not one of the lock calls'.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CELLS 64
#define ROWS 64
#define HANG_US 10000000

enum { NONE, SHARED, EXCLUSIVE };

struct row {
	_Atomic unsigned char cell[CELLS];
	atomic_bool dying;	/* it is about to be killed: its locks go before its row */
	_Atomic long long waits_since;
	atomic_long holds, busy, deadlocks, interrupted, jumped, odd, overlaps, kills, hangs, longest;
};

static const char *const mixes[] = { "ofd", "both", "blocking", "multi", "small", "large", "readers", "closes", "forks", "alarms",
				     "jumps", "kills", "stops", NULL };
enum { OFD, BOTH, BLOCKING, MULTI, SMALL, LARGE, READERS, CLOSES, FORKS, ALARMS, JUMPS, KILLS, STOPS, MIXES };

static bool mix[MIXES];
static struct row *rows;
static int total;
static const char *path;
static sigjmp_buf jump;
static volatile sig_atomic_t may_jump;

static long long now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static int below(int n)
{
	return (int)(random() % n);
}

static void on_alarm(int sig)
{
	(void)sig;
	if (mix[JUMPS] && may_jump) {
		may_jump = 0;
		siglongjmp(jump, 1);
	}
}

static void set_alarm(int us)
{
	struct itimerval timer = { .it_value = { 0, us } };

	if (mix[ALARMS] || mix[JUMPS])
		setitimer(ITIMER_REAL, &timer, NULL);
}

static void write_row(struct row *row, int from, int to, int mode)
{
	for (int i = from; i < to; i++)
		atomic_store(&row->cell[i], (unsigned char)mode);
}

static void look_around(struct row *mine, int from, int to, const char *when)
{
	for (int k = 0; k < total; k++) {
		for (int i = from; i < to && &rows[k] != mine; i++) {
			int here = atomic_load(&mine->cell[i]), there = atomic_load(&rows[k].cell[i]);

			if (here == NONE || there == NONE || here + there < SHARED + EXCLUSIVE || rows[k].dying || mine->dying)
				continue;
			mine->overlaps++;
			fprintf(stderr, "owner %ld has cell %d in mode %d %s, and owner %d in mode %d\n", (long)(mine - rows), i, here, when, k, there);
			return;
		}
	}
}

static int lock(int fd, bool ofd, bool wait, int type, int from, int to)
{
	long long size = mix[LARGE] ? 1LL << 57 : 1;
	struct flock lock = { .l_type = (short)type, .l_whence = SEEK_SET, .l_start = from * size, .l_len = to == CELLS ? 0 : (to - from) * size };

	return fcntl(fd, ofd ? wait ? F_OFD_SETLKW : F_OFD_SETLK : wait ? F_SETLKW : F_SETLK, &lock);
}

static void unlock(struct row *row, int fd, bool ofd, int from, int to)
{
	write_row(row, from, to, NONE);
	if (lock(fd, ofd, false, F_UNLCK, from, to))
		row->odd++;
}

/* A close that ends the locks: of the description's last descriptor, or of any descriptor of the file. */
static int close_it(struct row *row, int fd, bool ofd)
{
	int other;

	write_row(row, 0, CELLS, NONE);
	other = ofd || below(2) ? open(path, O_RDWR | O_CLOEXEC) : dup(fd);
	if (!ofd) {
		close(other);
		return fd;
	}
	close(fd);
	return other;
}

/* A child that has the descriptor for a moment: then the description's lock is the child's, and the process's is not. */
static int fork_it(struct row *row, int fd, bool ofd)
{
	pid_t pid = fork();

	if (!pid) {
		usleep((useconds_t)below(2000));
		if (ofd)
			write_row(row, 0, CELLS, NONE);
		else
			lock(fd, false, false, F_WRLCK, 0, CELLS);
		_exit(0);
	}
	if (ofd) {
		close(fd);
		fd = open(path, O_RDWR | O_CLOEXEC);
	}
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (!ofd)
		unlock(row, fd, ofd, 0, CELLS);
	return fd;
}

/* The call; 1: it was jumped out of. Nothing that was changed since is looked at after a jump. */
__attribute__((noinline)) static int lock_or_jump(int fd, bool ofd, bool wait, int mode, int from, int to)
{
	int rc;

	if (mix[JUMPS] && sigsetjmp(jump, 1))
		return 1;
	may_jump = wait;
	rc = lock(fd, ofd, wait, mode == SHARED ? F_RDLCK : F_WRLCK, from, to);
	may_jump = 0;
	return rc;
}

static void one_lock(struct row *row, int fd, bool ofd)
{
	int from = below(CELLS), to = from + 1 + below(mix[SMALL] ? 3 : CELLS);
	int mode = below(100) < (mix[READERS] ? 80 : 50) ? SHARED : EXCLUSIVE, rc, err;
	bool wait = mix[BLOCKING] && (!mix[BOTH] || below(2)), any = false;
	unsigned char old[CELLS];
	long long began = now_us();

	if (to > CELLS)
		to = CELLS;
	for (int i = 0; i < CELLS; i++) {
		old[i] = row->cell[i];
		any |= old[i] != NONE;
		if (i >= from && i < to && mode < old[i])	/* a downgrade shows before the call */
			row->cell[i] = (unsigned char)mode;
	}
	if (any && (ofd || !mix[MULTI]))	/* nobody looks for deadlocks of descriptions */
		wait = false;
	set_alarm(1 + below(20000));
	if (wait)
		row->waits_since = began;
	rc = lock_or_jump(fd, ofd, wait, mode, from, to);
	err = errno;
	row->waits_since = 0;
	set_alarm(0);
	if (rc == 1) {
		row->jumped++;
		unlock(row, fd, ofd, 0, CELLS);
		return;
	}
	if (wait && now_us() - began > row->longest)
		row->longest = now_us() - began;
	if (!rc) {
		row->holds++;
		write_row(row, from, to, mode);
		look_around(row, from, to, "just locked");
		if (!below(3))
			usleep((useconds_t)below(1500));
		look_around(row, from, to, "still locked");
		return;
	}
	for (int i = from; i < to; i++)		/* a call that fails takes nothing away */
		row->cell[i] = old[i];
	look_around(row, from, to, "kept");
	if (err == EAGAIN) {
		row->busy++;
	} else if (err == EINTR) {
		row->interrupted++;
	} else if (err == EDEADLK) {
		row->deadlocks++;
		unlock(row, fd, ofd, 0, CELLS);
	} else {
		fprintf(stderr, "owner %ld: %s\n", (long)(row - rows), strerrorname_np(err));
		row->odd++;
	}
}

static void owner(int index, unsigned seed, long long end)
{
	struct sigaction action = { .sa_handler = on_alarm };
	struct row *row = &rows[index];
	bool ofd = mix[OFD] || (mix[BOTH] && index % 2);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), what;

	if (fd < 0)
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGALRM, &action, NULL);
	srandom(seed);
	write_row(row, 0, CELLS, NONE);
	row->waits_since = 0;
	row->dying = false;
	while (now_us() < end) {
		one_lock(row, fd, ofd);
		what = below(100);
		if (mix[CLOSES] && what < 5)
			fd = close_it(row, fd, ofd);
		else if (mix[FORKS] && what < 10)
			fd = fork_it(row, fd, ofd);
		else if (!mix[MULTI] ? what < 85 : what < 20)
			unlock(row, fd, ofd, 0, CELLS);
		else if (mix[MULTI] && what < 60)
			unlock(row, fd, ofd, below(CELLS / 2), CELLS / 2 + below(CELLS / 2));
	}
	unlock(row, fd, ofd, 0, CELLS);
	_exit(0);
}

static void start(pid_t *pid, int index, unsigned seed, long long end)
{
	*pid = fork();
	if (!*pid)
		owner(index, seed, end);
}

static void end_by_force(pid_t pid, struct row *row)
{
	row->dying = true;
	kill(pid, SIGKILL);
}

/* Whether any owner still runs. Starts those anew that were killed, and kills and stops some. */
static bool tend(pid_t *pid, int first, int count, long long end)
{
	bool any = false;
	int stopped;

	for (int i = 0; i < count; i++) {
		struct row *row = &rows[first + i];
		long long since = row->waits_since;

		if (!pid[i])
			continue;
		if (waitpid(pid[i], NULL, WNOHANG) == pid[i]) {
			pid[i] = 0;
			write_row(row, 0, CELLS, NONE);
			if (now_us() < end)
				start(&pid[i], first + i, (unsigned)random(), end);
		}
		any |= pid[i] != 0;
		if (since && now_us() - since > HANG_US) {
			fprintf(stderr, "owner %d (pid %d) waits for too long\n", first + i, (int)pid[i]);
			row->hangs++;
			row->waits_since = 0;
		}
	}
	stopped = below(count);
	if (mix[STOPS] && pid[stopped] && !below(10)) {
		kill(pid[stopped], SIGSTOP);
		usleep((useconds_t)below(100000));
		kill(pid[stopped], SIGCONT);
	}
	stopped = below(count);
	if (mix[KILLS] && pid[stopped] && now_us() < end && !below(20)) {
		rows[first + stopped].kills++;
		end_by_force(pid[stopped], &rows[first + stopped]);
	}
	return any;
}

int main(int argc, char **argv)
{
	struct row sum = { .holds = 0 };
	pid_t pid[ROWS] = { 0 };
	long long end;
	int fd, first, count;

	if (argc < 8)
		return 2;
	path = argv[1];
	first = atoi(argv[3]);
	count = atoi(argv[4]);
	total = atoi(argv[5]);
	for (int i = 8; i < argc; i++)
		for (int k = 0; mixes[k]; k++)
			mix[k] |= !strcmp(argv[i], mixes[k]);
	fd = open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (total > ROWS || fd < 0 || ftruncate(fd, ROWS * sizeof *rows))
		return 2;
	rows = mmap(NULL, ROWS * sizeof *rows, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (rows == MAP_FAILED)
		return 2;
	srandom((unsigned)atoi(argv[7]));
	end = now_us() + (long long)(atof(argv[6]) * 1e6);
	for (int i = 0; i < count; i++)
		start(&pid[i], first + i, (unsigned)random(), end);
	while (tend(pid, first, count, end) && now_us() < end + 2 * HANG_US)
		usleep(5000);
	for (int i = first; i < first + count; i++) {
		if (pid[i - first])
			end_by_force(pid[i - first], &rows[i]);
		sum.holds += rows[i].holds;
		sum.busy += rows[i].busy;
		sum.deadlocks += rows[i].deadlocks;
		sum.interrupted += rows[i].interrupted;
		sum.jumped += rows[i].jumped;
		sum.kills += rows[i].kills;
		sum.odd += rows[i].odd;
		sum.overlaps += rows[i].overlaps;
		sum.hangs += rows[i].hangs;
		if (rows[i].longest > sum.longest)
			sum.longest = rows[i].longest;
	}
	printf("%ld holds, %ld busy, %ld deadlocks, %ld interrupted, %ld jumped, %ld killed, longest wait %ld ms, %ld odd, %ld overlaps, %ld hangs\n",
	       sum.holds, sum.busy, sum.deadlocks, sum.interrupted, sum.jumped, sum.kills, sum.longest / 1000, sum.odd, sum.overlaps, sum.hangs);
	return sum.holds && !sum.odd && !sum.overlaps && !sum.hangs ? 0 : 1;
}
