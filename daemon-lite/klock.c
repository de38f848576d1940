/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait so that the loop need not: in the kernel's queue for a
 * flock, and in calls on somebody's filesystem.
 *
 * Invariants:
 * - A wait ends by exactly one `done` on the loop's thread, and with an error
 *   or a cancellation nothing is held.
 * - A cancellation is a flag and then a signal. The signal may come just before
 *   the thread enters flock() and be spent for nothing; so it is sent again each
 *   millisecond until the thread is out. An EINTR without the flag means nothing.
 * - A thread is signalled only between `running` and the end of its wait, both
 *   under the wait's mutex: threads are used again.
 * - Every signal but that one is blocked in these threads.
 */
#include "klock.h"

#include <errno.h>
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
	struct sigaction action = { .sa_handler = on_cancel_signal };	/* no SA_RESTART: flock() has to return */
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

/* --- waiting for a lock ------------------------------------------------ */

struct klock_wait {
	struct task task;
	struct loop *loop;
	struct loop_timer again;
	int fd;
	int operation;
	int err;
	void (*done)(void *arg, int err);
	void *arg;
	atomic_bool cancelled;
	pthread_mutex_t lock;	/* guards thread and running */
	pthread_t thread;
	bool running;
};

static void wait_done(void *arg)
{
	struct klock_wait *wait = arg;

	loop_timer_stop(wait->loop, &wait->again);
	wait->done(wait->arg, wait->err);
	/* The thread posted this while it still had the mutex: wait until it has let go. */
	pthread_mutex_lock(&wait->lock);
	pthread_mutex_unlock(&wait->lock);
	pthread_mutex_destroy(&wait->lock);
	free(wait);
}

static void wait_task(struct task *task)
{
	struct klock_wait *wait = (struct klock_wait *)task;
	int err = 0;

	pthread_mutex_lock(&wait->lock);
	wait->thread = pthread_self();
	wait->running = true;
	pthread_mutex_unlock(&wait->lock);

	for (;;) {
		if (atomic_load(&wait->cancelled)) {
			err = -ECANCELED;
			break;
		}
		if (flock(wait->fd, wait->operation) == 0)
			break;
		if (errno != EINTR) {
			err = -errno;
			break;
		}
	}
	if (err)	/* a lock that was to be converted is not "nothing held" */
		flock(wait->fd, LOCK_UN);
	wait->err = err;

	pthread_mutex_lock(&wait->lock);
	wait->running = false;
	while (loop_post(wait->loop, wait_done, wait) < 0)
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	pthread_mutex_unlock(&wait->lock);
}

static int flock_operation(enum lock_mode mode)
{
	return mode == MODE_SH ? LOCK_SH : LOCK_EX;
}

int klock_wait_start(struct loop *loop, int fd, enum lock_mode mode, void (*done)(void *arg, int err), void *arg,
		     struct klock_wait **ret_wait)
{
	struct klock_wait *wait;
	int r;

	if (mode != MODE_SH && mode != MODE_EX)
		return -EINVAL;
	wait = calloc(1, sizeof(*wait));
	if (!wait)
		return -ENOMEM;
	wait->task.run = wait_task;
	wait->loop = loop;
	wait->fd = fd;
	wait->operation = flock_operation(mode);
	wait->done = done;
	wait->arg = arg;
	atomic_init(&wait->cancelled, false);
	pthread_mutex_init(&wait->lock, NULL);
	r = pool_run(&wait->task);
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

void klock_wait_cancel(struct klock_wait *wait)
{
	if (atomic_exchange(&wait->cancelled, true))
		return;
	wait_signal(wait);
	wait->again.fn = on_again;
	wait->again.arg = wait;
	loop_timer_set(wait->loop, &wait->again, loop_now_ns() + CANCEL_AGAIN_NS);
}

/* --- probing ----------------------------------------------------------- */

void klock_unlock(int fd)
{
	flock(fd, LOCK_UN);
}

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
