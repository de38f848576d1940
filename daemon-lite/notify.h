/* SPDX-License-Identifier: MIT */
/* Three lines of the protocol of sd_notify(3), so that the agent needs no libsystemd. */
#ifndef DLOCK_NOTIFY_H
#define DLOCK_NOTIFY_H

#include <stdint.h>

/* Sends "READY=1", "WATCHDOG=1"… to $NOTIFY_SOCKET. 0 (also when nobody asked for it) or -errno. Never blocks. */
int notify_send(const char *state);
/* How often the service manager wants WATCHDOG=1 from this process, in ns; 0 = not at all. */
uint64_t notify_watchdog_ns(void);

#endif
