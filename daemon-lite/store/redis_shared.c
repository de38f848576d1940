/* SPDX-License-Identifier: MIT */
/*
 * The mailbox between the store's threads and the loop. Its mutex is held for a few
 * instructions only: the renewal thread must never wait for the loop's.
 */
#include "redis_shared.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

int redis_shared_new(struct redis_shared **ret_shared)
{
	struct redis_shared *shared = calloc(1, sizeof(*shared));
	int err;

	if (!shared)
		return -ENOMEM;
	atomic_init(&shared->refs, 1);
	pthread_mutex_init(&shared->mutex, NULL);
	shared->last = &shared->first;
	shared->mail_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	shared->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (shared->mail_fd < 0 || shared->stop_fd < 0) {
		err = -errno;
		redis_shared_unref(shared);
		return err;
	}
	*ret_shared = shared;
	return 0;
}

struct redis_shared *redis_shared_ref(struct redis_shared *shared)
{
	atomic_fetch_add(&shared->refs, 1);
	return shared;
}

void redis_shared_unref(struct redis_shared *shared)
{
	if (!shared || atomic_fetch_sub(&shared->refs, 1) != 1)
		return;
	redis_door_free(shared->door);
	if (shared->mail_fd >= 0)
		close(shared->mail_fd);
	if (shared->stop_fd >= 0)
		close(shared->stop_fd);
	pthread_mutex_destroy(&shared->mutex);
	free(shared);
}

static void ring(int fd)
{
	uint64_t one = 1;

	while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void redis_shared_close(struct redis_shared *shared)
{
	struct mail *list, *next;

	pthread_mutex_lock(&shared->mutex);
	shared->closed = true;
	list = shared->first;
	shared->first = NULL;
	shared->last = &shared->first;
	pthread_mutex_unlock(&shared->mutex);
	ring(shared->stop_fd);
	for (; list; list = next) {
		next = list->next;
		list->discard(list);
	}
}

void redis_mail_put(struct redis_shared *shared, struct mail *mail)
{
	bool closed;

	mail->next = NULL;
	pthread_mutex_lock(&shared->mutex);
	closed = shared->closed;
	if (!closed) {
		*shared->last = mail;
		shared->last = &mail->next;
	}
	pthread_mutex_unlock(&shared->mutex);
	if (closed)
		mail->discard(mail);
	else
		ring(shared->mail_fd);
}

struct mail *redis_mail_take(struct redis_shared *shared)
{
	struct mail *list;
	uint64_t count;

	while (read(shared->mail_fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
	pthread_mutex_lock(&shared->mutex);
	list = shared->first;
	shared->first = NULL;
	shared->last = &shared->first;
	pthread_mutex_unlock(&shared->mutex);
	return list;
}

int redis_thread_start(void *(*fn)(void *arg), void *arg, pthread_t *ret_thread)
{
	sigset_t all, before;
	int err;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(ret_thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -err;
}
