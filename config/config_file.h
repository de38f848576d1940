/* SPDX-License-Identifier: MIT */
/* Reads the files of the configuration: only what can be trusted, as a whole, and what libconfig would pass over is refused. */
#ifndef DLOCK_CONFIG_FILE_H
#define DLOCK_CONFIG_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "config.h"

/* Fills *error with one sentence, without control characters. Returns err. */
int config_fail(struct config_error *error, int err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A file's path for use in a sentence: the last 200 bytes of it. */
const char *config_path_text(const char *path);

/*
 * Reads the whole file at an absolute path, NUL-terminated, to be freed. It
 * must be a regular file of root or the effective user that others cannot write.
 * Returns 0 or a negative errno.
 */
int config_file_read(const char *path, char **ret_text, size_t *ret_len, uint64_t *ret_stamp, struct config_error *error);

/* Looks for what libconfig would not tell, or not where: an include, a NUL, a string, comment or bracket without end. 0 or -EINVAL. */
int config_text_check(const char *path, const char *text, size_t len, struct config_error *error);

/* The first key that stands in its group a second time: its line, and the name in buf. 0 if there is none. */
unsigned config_text_duplicate(const char *text, size_t len, char *buf, size_t size);

#endif
