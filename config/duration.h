/* SPDX-License-Identifier: MIT */
/* Times as people write them: a whole number and a unit, "500ms", "30s", "5m", "1h". Pure. */
#ifndef DLOCK_DURATION_H
#define DLOCK_DURATION_H

#include <stddef.h>
#include <stdint.h>

#define DURATION_TEXT_MAX 32

/* Milliseconds of text. 0; -EINVAL for anything but number and unit, -ENODATA for a number without a unit, -ERANGE beyond 32 bits. */
int duration_parse(const char *text, uint32_t *ret_ms);

/* Writes ms with the largest unit that fits exactly; returns buf. */
const char *duration_format(uint32_t ms, char buf[DURATION_TEXT_MAX]);

#endif
