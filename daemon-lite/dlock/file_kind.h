/* SPDX-License-Identifier: MIT */
/* Files whose users lock more than files: no lock on another host can make them safe. */
#ifndef DLOCK_FILE_KIND_H
#define DLOCK_FILE_KIND_H

#include <stddef.h>

enum file_kind {
	FILE_ORDINARY,
	FILE_SQLITE,		/* rollback journal: safe with record locks on every host */
	FILE_SQLITE_WAL,	/* an index in shared memory */
	FILE_LMDB,		/* mutexes and a table of readers in shared memory */
};

#define FILE_KIND_BYTES 100	/* so much of its beginning is looked at */

/* By its first n bytes. Pure. */
enum file_kind file_kind(const unsigned char *head, size_t n);

#endif
