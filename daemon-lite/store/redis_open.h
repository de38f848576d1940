/* SPDX-License-Identifier: MIT */
/* Between redis_link.c (sockets) and redis_open.c (the first words on one). */
#ifndef DLOCK_REDIS_OPEN_H
#define DLOCK_REDIS_OPEN_H

#include "redis_link.h"

/* Connects only. 0 or -errno with link->error. */
int redis_link_connect(struct redis_link *link, const struct redis_door *door, struct redis_addresses *addresses, uint64_t deadline_ns);

#endif
