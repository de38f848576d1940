/* SPDX-License-Identifier: MIT */
/* STATE_DIR/session: who this host is in the store, across restarts of the agent and of the machine. */
#ifndef DLOCK_REDIS_FILE_H
#define DLOCK_REDIS_FILE_H

#include <stdbool.h>

#include "redis_script.h"

struct redis_identity {
	char host[REDIS_ID_SIZE];	/* made once for a state directory */
	char token[REDIS_ID_SIZE];	/* the store has said yes to this one; empty = none yet */
	char pending[REDIS_ID_SIZE];	/* written before it was sent: the store may know it; empty = none */
	char boot[64];			/* the machine's boot id when the token was taken */
};

/* Reads the file, or makes up a new host if there is none, it is damaged, or a copy of another host's (the file says where it lies). 0 or -errno. May block on the state directory. */
int redis_file_load(const char *path, struct redis_identity *ret_identity);
/* On disk (file and directory synced) when it returns 0. */
int redis_file_save(const char *path, const struct redis_identity *identity);
void redis_new_id(char ret_id[REDIS_ID_SIZE]);
void redis_boot_id(char *buf, size_t size);	/* empty if the kernel does not tell */

#endif
