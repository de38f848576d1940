/* SPDX-License-Identifier: MIT */
/* Medians of samples, and the lines of the result. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

static unsigned missed;

void series_add(struct series *series, uint64_t ns)
{
	if (series->count == series->size) {
		series->size = series->size ? 2 * series->size : 4096;
		series->ns = realloc(series->ns, series->size * sizeof *series->ns);
		if (!series->ns)
			bench_fail("no memory");
	}
	series->ns[series->count++] = ns;
}

void series_add_samples(struct series *series, unsigned worker)
{
	for (uint32_t i = 0; i < bench_memory()->samples[worker]; i++)
		series_add(series, bench_memory()->sample_ns[worker][i]);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

double series_us(struct series *series, double quantile)
{
	if (!series->count)
		return 0;
	qsort(series->ns, series->count, sizeof *series->ns, compare);
	return (double)series->ns[(size_t)(quantile * (double)(series->count - 1))] / 1000;
}

void bench_row(const char *what, double value, const char *unit, bool at_least, double goal, const char *more)
{
	bool ok = at_least ? value >= goal : value <= goal;

	missed += !ok;
	printf("  %-58s %9.2f %-10s %s %-8g %-7s %s\n", what, value, unit, at_least ? ">=" : "<=", goal, ok ? "ok" : "MISSED", more);
	fflush(stdout);
}

void bench_row_free(const char *what, double value, const char *unit, const char *more)
{
	printf("  %-58s %9.2f %-10s %-11s %-7s %s\n", what, value, unit, "", "", more);
	fflush(stdout);
}

const char *bench_text(char *buf, size_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(buf, size, format, args);
	va_end(args);
	return buf;
}

unsigned bench_missed(void)
{
	return missed;
}
