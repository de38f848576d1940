/* SPDX-License-Identifier: MIT */
/*
 * See cancel.h. The asynchronous type for the length of one system call is what
 * libc itself does in its cancellation points; there is no other way to be woken.
 */
#include "cancel.h"

#include <pthread.h>
#include <stddef.h>

int cancel_open(bool on)
{
	int type = PTHREAD_CANCEL_DEFERRED;

	if (on)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	return type;
}

void cancel_close(bool on, int type)
{
	if (on)
		pthread_setcanceltype(type, NULL);
}

void cancel_test(bool on)
{
	if (on)
		pthread_testcancel();
}

int cancel_scope(int (*run)(void *arg), void (*abandon)(void *arg), void *arg)
{
	int result;

	pthread_cleanup_push(abandon, arg);
	result = run(arg);
	pthread_cleanup_pop(0);
	return result;
}
