/* SPDX-License-Identifier: MIT */
/* Times with units. No locale, no floating point, no guessing: a number alone is refused. */
#include "duration.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct { const char *name; uint32_t ms; } units[] = {
	{ "h", 3600000 }, { "m", 60000 }, { "s", 1000 }, { "ms", 1 },
};

int duration_parse(const char *text, uint32_t *ret_ms)
{
	uint64_t n = 0;
	size_t i;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	for (; *text >= '0' && *text <= '9'; text++) {
		n = n * 10 + (uint64_t)(*text - '0');
		if (n > UINT32_MAX)
			n = (uint64_t)UINT32_MAX + 1;	/* the unit is still to be judged */
	}
	if (!*text)
		return -ENODATA;
	for (i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcmp(text, units[i].name))
			continue;
		n *= units[i].ms;
		if (n > UINT32_MAX)
			return -ERANGE;
		*ret_ms = (uint32_t)n;
		return 0;
	}
	return -EINVAL;
}

const char *duration_format(uint32_t ms, char buf[DURATION_TEXT_MAX])
{
	size_t i = 0;

	while (ms % units[i].ms)
		i++;
	if (ms == 0)
		i = 2;
	snprintf(buf, DURATION_TEXT_MAX, "%u%s", ms / units[i].ms, units[i].name);
	return buf;
}
