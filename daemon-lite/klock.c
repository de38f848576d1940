/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait so that the loop need not: in the kernel's queue for a
 * lock, and in calls on somebody's filesystem.
 *
 * Invariants:
 * - A wait ends by exactly one `done` on the loop's thread, and nothing is held
 *   then: the thread itself drops what it got, at once. Several waits may share a
 *   description. The kernel takes their locks for one owner's, so one may drop or
 *   weaken what another has just got; as each ends by dropping, that harms nobody.
 * - A cancellation is a flag and then a signal. The signal may come just before
 *   the thread enters the call and be spent for nothing; so it is sent again each
 *   millisecond until the thread is out. An EINTR without the flag means nothing.
 * - A thread is signalled only between `running` and the end of its wait, both
 *   under the wait's mutex: threads are used again.
 * - Every signal but that one is blocked in these threads.
 */
#include "klock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "loop.h"

#define HELPERS_MAX 64		/* helper calls at once; waits are not counted */
#define IDLE_SECONDS 30		/* an idle thread ends after so long */
#define IDLE_MAX 16
#define STACK_SIZE (256 * 1024)
#define CANCEL_AGAIN_NS 1000000ull
#define ASK_AGAIN_NS 10000000	/* a wait that the kernel has no queue for */
#define ASK_CROWD_NS 200000		/* … and later by this for each that asks */
#define ASK_MOST_NS 40000000
#define ASIDE_NS 5000000	/* so long it is out of the queue that stepped aside */

static int cancel_signal(void)
{
	return SIGRTMIN + 3;
}

/* --- threads, kept for reuse ------------------------------------------- */

struct task {
	void (*run)(struct task *task);	/* owns the task */
	struct task *next;
};

static struct {
	pthread_mutex_t lock;	/* guards all that follows */
	pthread_cond_t work;
	struct task *first, *last; /* for the threads that idle */
	unsigned idle, waiting;	/* idle threads; tasks in the list */
	unsigned helpers;	/* helper calls that run or are in the list */
	struct task *line_first, *line_last; /* helper calls above HELPERS_MAX */
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void on_cancel_signal(int sig)
{
	(void)sig;
}

static void pool_init(void)
{
	struct sigaction action = { .sa_handler = on_cancel_signal };	/* no SA_RESTART: the call has to return */
	pthread_condattr_t attr;

	sigaction(cancel_signal(), &action, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool.work, &attr);
	pthread_condattr_destroy(&attr);
}

static struct task *list_take(struct task **first, struct task **last)
{
	struct task *task = *first;

	if (task) {
		*first = task->next;
		if (!*first)
			*last = NULL;
	}
	return task;
}

static void list_put(struct task **first, struct task **last, struct task *task)
{
	task->next = NULL;
	if (*last)
		(*last)->next = task;
	else
		*first = task;
	*last = task;
}

static void *pool_thread(void *arg)
{
	struct task *task = arg;
	struct timespec until;

	for (;;) {
		int r = 0;

		task->run(task);
		pthread_mutex_lock(&pool.lock);
		if (pool.idle >= IDLE_MAX && !pool.first)
			break;
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += IDLE_SECONDS;
		pool.idle++;
		while (!pool.first && r == 0)
			r = pthread_cond_timedwait(&pool.work, &pool.lock, &until);
		pool.idle--;
		task = list_take(&pool.first, &pool.last);
		if (!task)
			break;
		pool.waiting--;
		pthread_mutex_unlock(&pool.lock);
	}
	pthread_mutex_unlock(&pool.lock);
	return NULL;
}

/* Starts the task at once, on an idle thread or a new one. 0 or -errno (the task is still the caller's). */
static int pool_run(struct task *task)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;
	int r;

	pthread_once(&pool_once, pool_init);
	pthread_mutex_lock(&pool.lock);
	if (pool.idle > pool.waiting) {
		list_put(&pool.first, &pool.last, task);
		pool.waiting++;
		pthread_cond_signal(&pool.work);
		pthread_mutex_unlock(&pool.lock);
		return 0;
	}
	pthread_mutex_unlock(&pool.lock);

	sigfillset(&all);
	sigdelset(&all, cancel_signal());
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_SIZE);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, &attr, pool_thread, task);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

/* --- helper calls ------------------------------------------------------ */

struct helper {
	struct task task;
	struct loop *loop;
	void (*fn)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

/* This thread's call is over: it takes the next in line, if one waits. */
static void helper_task(struct task *task)
{
	while (task) {
		struct helper *helper = (struct helper *)task;

		helper->fn(helper->arg);
		if (helper->done)
			/* Without memory for the post there is nobody to tell; the loop would wait for ever: try on. */
			while (loop_post(helper->loop, helper->done, helper->arg) < 0)
				nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
		free(helper);
		pthread_mutex_lock(&pool.lock);
		task = list_take(&pool.line_first, &pool.line_last);
		if (!task)
			pool.helpers--;
		pthread_mutex_unlock(&pool.lock);
	}
}

int helper_run(struct loop *loop, void (*fn)(void *arg), void (*done)(void *arg), void *arg)
{
	struct helper *helper = calloc(1, sizeof(*helper));
	int r;

	if (!helper)
		return -ENOMEM;
	helper->task.run = helper_task;
	helper->loop = loop;
	helper->fn = fn;
	helper->done = done;
	helper->arg = arg;

	pthread_mutex_lock(&pool.lock);
	if (pool.helpers >= HELPERS_MAX) {
		list_put(&pool.line_first, &pool.line_last, &helper->task);
		pthread_mutex_unlock(&pool.lock);
		return 0;
	}
	pool.helpers++;
	pthread_mutex_unlock(&pool.lock);

	r = pool_run(&helper->task);
	if (r < 0) {
		pthread_mutex_lock(&pool.lock);
		if (pool.helpers > 1) {	/* no new thread to be had: one of those that run will do it */
			list_put(&pool.line_first, &pool.line_last, &helper->task);
			pool.helpers--;
			pthread_mutex_unlock(&pool.lock);
			return 0;
		}
		pool.helpers--;
		pthread_mutex_unlock(&pool.lock);
		free(helper);
	}
	return r;
}

static void close_job(void *arg)
{
	close((int)(intptr_t)arg);
}

void helper_close(struct loop *loop, int fd, bool local)
{
	if (fd >= 0 && (local || helper_run(loop, close_job, NULL, (void *)(intptr_t)fd)))
		close(fd);
}

/* --- asking about record locks ----------------------------------------- */

static struct flock flock_of(struct extent at, short type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at.start, .l_len = (off_t)extent_len(at) };
}

static short type_of(enum lock_mode mode)
{
	return mode == MODE_SH ? F_RDLCK : F_WRLCK;
}

int klock_getlk(int fd, struct extent at, enum lock_mode mode, struct lock_span *ret_lock, int *ret_pid)
{
	struct flock lock = flock_of(at, type_of(mode));
	struct lock_span found = { .at = at, .mode = MODE_NONE };

	if ((mode != MODE_SH && mode != MODE_EX) || at.start >= at.end || at.end > EXTENT_END)
		return -EINVAL;
	if (fcntl(fd, F_OFD_GETLK, &lock) < 0)
		return -errno;
	if (lock.l_type != F_UNLCK) {
		found.mode = lock.l_type == F_WRLCK ? MODE_EX : MODE_SH;
		/* A filesystem may answer itself: what makes no sense would keep the callers asking for ever. */
		if (!extent_from_len(lock.l_start, lock.l_len, &found.at) || !extent_overlaps(found.at, at))
			return -EIO;
	}
	*ret_lock = found;
	*ret_pid = lock.l_pid;
	return 0;
}

/* --- waiting for a lock ------------------------------------------------ */

struct klock_wait {
	struct task task;
	struct klock_wait *next_in_kernel; /* on the list below; loop's thread only */
	bool by_asking;
	struct loop *loop;
	struct loop_timer again;
	int fd;
	bool records;
	struct extent at;
	enum lock_mode mode;
	int err;
	void (*done)(void *arg, int err);
	void *arg;
	atomic_bool cancelled, aside;
	pthread_mutex_t lock;	/* guards thread and running */
	pthread_t thread;
	bool running;
};

/*
 * Record locks: those that wait in the kernel, one at most for a description. To the kernel's deadlock detection a description is an
 * owner: one that has got a lock here and waits for another one there would make it refuse (EDEADLK) a program that holds
 * there and comes here, though the lock here is dropped at once. All further ones on the description ask.
 */
static struct klock_wait *in_kernel;
static atomic_uint askers;

static bool is_in_kernel(int fd)
{
	const struct klock_wait *wait = in_kernel;

	while (wait && wait->fd != fd)
		wait = wait->next_in_kernel;
	return wait;
}

static void list_remove(struct klock_wait *wait)
{
	struct klock_wait **at = &in_kernel;

	while (*at && *at != wait)
		at = &(*at)->next_in_kernel;
	if (*at)
		*at = wait->next_in_kernel;
}

static void wait_done(void *arg)
{
	struct klock_wait *wait = arg;

	if (wait->by_asking)
		atomic_fetch_sub(&askers, 1);
	else
		list_remove(wait);
	loop_timer_stop(wait->loop, &wait->again);
	wait->done(wait->arg, wait->err);
	/* The thread posted this while it still had the mutex: wait until it has let go. */
	pthread_mutex_lock(&wait->lock);
	pthread_mutex_unlock(&wait->lock);
	pthread_mutex_destroy(&wait->lock);
	free(wait);
}

/* A record lock can be taken only on a description that is open for it: F_WRLCK for writing, F_RDLCK for reading. */
static bool can_take(const struct klock_wait *wait)
{
	int access_mode = fcntl(wait->fd, F_GETFL) & O_ACCMODE;

	return access_mode == O_RDWR || access_mode == (wait->mode == MODE_EX ? O_WRONLY : O_RDONLY);
}

/* Asks; if it is not free, pauses (a signal ends the pause) and says -EINTR. */
static int ask_and_pause(const struct klock_wait *wait)
{
	struct lock_span lock;
	int pid, r = klock_getlk(wait->fd, wait->at, wait->mode, &lock, &pid);

	if (r == 0 && lock.mode != MODE_NONE) {
		/* A crowd asks less often: it must not cost a processor. */
		long pause = ASK_AGAIN_NS + (long)atomic_load(&askers) * ASK_CROWD_NS;

		nanosleep(&(struct timespec){ .tv_nsec = pause < ASK_MOST_NS ? pause : ASK_MOST_NS }, NULL);
		r = -EINTR;
	}
	return r;
}

/* Waits once: 0, or -errno; -EINTR after any signal. */
static int take(const struct klock_wait *wait)
{
	struct flock lock = flock_of(wait->at, type_of(wait->mode));

	if (wait->by_asking)
		return ask_and_pause(wait);
	if ((wait->records ? fcntl(wait->fd, F_OFD_SETLKW, &lock) : flock(wait->fd, wait->mode == MODE_SH ? LOCK_SH : LOCK_EX)) == 0)
		return 0;
	return -errno;
}

static void drop(const struct klock_wait *wait)
{
	struct flock lock = flock_of(wait->at, F_UNLCK);

	if (!wait->records) {
		flock(wait->fd, LOCK_UN);
		return;
	}
	/* Where it splits the lock of another wait it needs memory. */
	while (fcntl(wait->fd, F_OFD_SETLK, &lock) < 0 && (errno == ENOLCK || errno == EINTR))
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void wait_task(struct task *task)
{
	struct klock_wait *wait = (struct klock_wait *)task;
	int err;

	pthread_mutex_lock(&wait->lock);
	wait->thread = pthread_self();
	wait->running = true;
	pthread_mutex_unlock(&wait->lock);

	do {
		if (atomic_exchange(&wait->aside, false))
			nanosleep(&(struct timespec){ .tv_nsec = ASIDE_NS }, NULL);
		err = atomic_load(&wait->cancelled) ? -ECANCELED : take(wait);
	} while (err == -EINTR);
	/* Also after an error: a flock that was to be converted is not "nothing held". */
	if (!wait->by_asking && (err == 0 || !wait->records))
		drop(wait);
	wait->err = err;

	pthread_mutex_lock(&wait->lock);
	wait->running = false;
	while (loop_post(wait->loop, wait_done, wait) < 0)
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	pthread_mutex_unlock(&wait->lock);
}

int klock_wait_start(struct loop *loop, int fd, bool records, struct extent at, enum lock_mode mode, void (*done)(void *arg, int err), void *arg,
		     struct klock_wait **ret_wait)
{
	struct klock_wait *wait;
	int r;

	if ((mode != MODE_SH && mode != MODE_EX) || (records && (at.start >= at.end || at.end > EXTENT_END)))
		return -EINVAL;
	wait = calloc(1, sizeof(*wait));
	if (!wait)
		return -ENOMEM;
	wait->task.run = wait_task;
	wait->loop = loop;
	wait->fd = fd;
	wait->records = records;
	wait->at = at;
	wait->mode = mode;
	wait->done = done;
	wait->arg = arg;
	wait->by_asking = records && (!can_take(wait) || is_in_kernel(fd));
	atomic_init(&wait->cancelled, false);
	atomic_init(&wait->aside, false);
	pthread_mutex_init(&wait->lock, NULL);
	r = pool_run(&wait->task);
	if (r == 0 && wait->by_asking) {
		atomic_fetch_add(&askers, 1);
	} else if (r == 0) {
		wait->next_in_kernel = in_kernel;
		in_kernel = wait;
	}
	if (r < 0) {
		pthread_mutex_destroy(&wait->lock);
		free(wait);
		return r;
	}
	*ret_wait = wait;
	return 0;
}

static void wait_signal(struct klock_wait *wait)
{
	pthread_mutex_lock(&wait->lock);
	if (wait->running)
		pthread_kill(wait->thread, cancel_signal());
	pthread_mutex_unlock(&wait->lock);
}

static void on_again(struct loop_timer *timer)
{
	struct klock_wait *wait = timer->arg;

	wait_signal(wait);
	loop_timer_set(wait->loop, timer, loop_now_ns() + CANCEL_AGAIN_NS);
}

void klock_wait_step_aside(struct klock_wait *wait)
{
	atomic_store(&wait->aside, true);
	wait_signal(wait);
}

void klock_wait_cancel(struct klock_wait *wait)
{
	if (atomic_exchange(&wait->cancelled, true))
		return;
	wait_signal(wait);
	wait->again.fn = on_again;
	wait->again.arg = wait;
	loop_timer_set(wait->loop, &wait->again, loop_now_ns() + CANCEL_AGAIN_NS);
}

/* --- probing a flock --------------------------------------------------- */

/* A failed conversion has lost the SH as well: nothing is left behind either way. */
int klock_probe(int fd, enum lock_mode want)
{
	if (want != MODE_SH && want != MODE_EX)
		return -EINVAL;
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? (int)MODE_EX : -errno;
	if (want == MODE_EX && flock(fd, LOCK_EX | LOCK_NB) < 0) {
		int err = errno;

		flock(fd, LOCK_UN);
		return err == EWOULDBLOCK ? (int)MODE_SH : -err;
	}
	flock(fd, LOCK_UN);
	return MODE_NONE;
}
