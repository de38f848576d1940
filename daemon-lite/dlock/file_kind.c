/* SPDX-License-Identifier: MIT */
/*
 * Known kinds of files. SQLite: the database header of its file format, bytes 18
 * and 19 (write and read version: 1 rollback journal, 2 write-ahead log). LMDB: the
 * magic number 0xBEEFC0DE, in the first page of the data file behind the page's
 * header (16 or 8 bytes), and at the beginning of the lock file.
 */
#include "file_kind.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool has_lmdb_magic(const unsigned char *head, size_t n, size_t at)
{
	static const uint32_t magic = 0xbeefc0de;	/* in the byte order of the machine that made it */

	return n >= at + sizeof magic && memcmp(head + at, &magic, sizeof magic) == 0;
}

enum file_kind file_kind(const unsigned char *head, size_t n)
{
	static const char sqlite[16] = "SQLite format 3";

	if (n >= 20 && memcmp(head, sqlite, sizeof sqlite) == 0)
		return head[18] == 2 || head[19] == 2 ? FILE_SQLITE_WAL : FILE_SQLITE;
	if (has_lmdb_magic(head, n, 0) || has_lmdb_magic(head, n, 8) || has_lmdb_magic(head, n, 16))
		return FILE_LMDB;
	return FILE_ORDINARY;
}
