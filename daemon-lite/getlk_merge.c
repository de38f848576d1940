/* SPDX-License-Identifier: MIT */
/*
 * Which lock a getlk reports. What a host said of itself counts before what is only
 * feared of one that said nothing; among equals the lowest start. What another host
 * sent is believed only in the form it must have; else the host counts as silent.
 */
#include "getlk_merge.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "records.h"

#define HOSTS_MAX 4096
#define FIELDS_MAX 12

struct getlk_host {
	char *id;
	struct lock_span part;	/* the first part of its cover that conflicts, within `at`; NONE: no such part */
	bool reached, awaited;
	bool answered, broken;
	struct lock_span lock;	/* what it answered; NONE: no lock */
	int pid;		/* 0: not known */
};

static const struct lock_span nothing = { { 0, 0 }, MODE_NONE, 0 };

void getlk_merge_init(struct getlk_merge *merge, struct extent at, enum lock_mode mode, const char *self)
{
	*merge = (struct getlk_merge){ .at = at, .mode = mode, .self = self };
}

void getlk_merge_clear(struct getlk_merge *merge)
{
	for (size_t i = 0; i < merge->count; i++)
		free(merge->hosts[i].id);
	free(merge->hosts);
	merge->hosts = NULL;
	merge->count = merge->size = 0;
}

static struct getlk_host *host_of(struct getlk_merge *merge, const char *id)
{
	struct getlk_host *host;

	for (size_t i = 0; i < merge->count; i++)
		if (!strcmp(merge->hosts[i].id, id))
			return &merge->hosts[i];
	if (merge->count == merge->size) {
		size_t size = merge->size ? 2 * merge->size : 8;
		struct getlk_host *hosts = size <= HOSTS_MAX ? reallocarray(merge->hosts, size, sizeof *hosts) : NULL;

		if (!hosts)
			return NULL;
		merge->hosts = hosts;
		merge->size = size;
	}
	host = &merge->hosts[merge->count];
	*host = (struct getlk_host){ .id = strdup(id) };
	if (!host->id)
		return NULL;
	merge->count++;
	return host;
}

/* --- texts --- */

/* A decimal number up to max; *at moves behind it. */
static bool read_number(const char **at, uint64_t max, uint64_t *ret)
{
	const char *c = *at;
	uint64_t n = 0;

	if (*c < '0' || *c > '9')
		return false;
	for (; *c >= '0' && *c <= '9'; c++) {
		unsigned digit = (unsigned)(*c - '0');

		if (digit > max || n > (max - digit) / 10)
			return false;
		n = 10 * n + digit;
	}
	*at = c;
	*ret = n;
	return true;
}

static bool is_number(const char *text, uint64_t max, uint64_t *ret)
{
	return record_number(text, ret) && *ret <= max;
}

void getlk_question_put(char buf[GETLK_QUESTION_MAX], struct extent at, enum lock_mode mode)
{
	snprintf(buf, GETLK_QUESTION_MAX, "getlk %d %llu %llu", (int)mode, (unsigned long long)at.start, (unsigned long long)at.end);
}

bool getlk_question_read(const char *question, struct extent *ret_at, enum lock_mode *ret_mode)
{
	uint64_t mode, start, end;

	if (strncmp(question, "getlk ", 6))
		return false;
	question += 6;
	if (!read_number(&question, MODE_EX, &mode) || mode == MODE_NONE || *question++ != ' ' ||
	    !read_number(&question, EXTENT_END, &start) || *question++ != ' ' ||
	    !read_number(&question, EXTENT_END, &end) || *question || start >= end)
		return false;
	*ret_at = (struct extent){ start, end };
	*ret_mode = (enum lock_mode)mode;
	return true;
}

void getlk_answer_put(char buf[GETLK_ANSWER_MAX], const struct lock_span *lock, int pid)
{
	char number[16] = "";

	buf[0] = 0;
	if (lock->mode == MODE_NONE)
		return;
	if (pid > 0)
		snprintf(number, sizeof number, "%d", pid);
	snprintf(buf, GETLK_ANSWER_MAX, "record=lock\tmode=%s\tstart=%llu\tend=%llu\tpid=%s\n", lock->mode == MODE_SH ? "SH" : "EX",
		 (unsigned long long)lock->at.start, (unsigned long long)lock->at.end, number);
}

static bool read_lock(const struct getlk_merge *merge, const struct record *record, struct getlk_host *host)
{
	const char *mode = record_get(record, "mode", ""), *pid = record_get(record, "pid", "");
	struct lock_span lock = { .mode = !strcmp(mode, "SH") ? MODE_SH : !strcmp(mode, "EX") ? MODE_EX : MODE_NONE };
	uint64_t number = 0;

	if (strcmp(record->kind, "lock") || !is_number(record_get(record, "start", ""), EXTENT_END, &lock.at.start) ||
	    !is_number(record_get(record, "end", ""), EXTENT_END, &lock.at.end) || lock.at.start >= lock.at.end)
		return false;
	if (!extent_overlaps(lock.at, merge->at) || !mode_conflicts(lock.mode, merge->mode) || (*pid && !is_number(pid, INT_MAX, &number)))
		return false;
	host->lock = lock;
	host->pid = (int)number;
	return true;
}

/* --- what comes in --- */

static void cover_row(struct getlk_merge *merge, const char *const *f)
{
	struct lock_span span = { .mode = MODE_EX };
	struct getlk_host *host;

	if (!strcmp(f[2], merge->self))
		return;
	/* Of a record that cannot be read, the worst is assumed. */
	if (!strcmp(f[3], "1"))
		span.mode = MODE_SH;
	if (!is_number(f[7], EXTENT_END, &span.at.start) || !is_number(f[8], EXTENT_END, &span.at.end) || span.at.start >= span.at.end)
		span.at = EXTENT_ALL;
	if (!extent_overlaps(span.at, merge->at) || !mode_conflicts(span.mode, merge->mode))
		return;
	span.at = extent_common(span.at, merge->at);
	host = host_of(merge, f[2]);
	if (!host)
		merge->failed = true;
	else if (host->part.mode == MODE_NONE || span.at.start < host->part.at.start)
		host->part = span;
}

void getlk_merge_row(struct getlk_merge *merge, const char *record, size_t len)
{
	const char *f[FIELDS_MAX];
	char *copy = malloc(len + 1);
	size_t n = 0, at = 0;

	if (!copy) {
		merge->failed = true;
		return;
	}
	memcpy(copy, record, len);
	copy[len] = 0;
	while (at <= len && n < FIELDS_MAX) {
		f[n++] = copy + at;
		at += strlen(copy + at) + 1;
	}
	while (n < FIELDS_MAX)
		f[n++] = "";
	if (!strcmp(f[0], "cover"))
		cover_row(merge, f);
	else if (!strcmp(f[0], "meta"))		/* a server that is not the one that made the incarnation begins a grace as soon as it is written to */
		merge->grace |= !strcmp(f[3], "1") || !strcmp(f[9], "0");
	free(copy);
}

bool getlk_merge_must_ask(const struct getlk_merge *merge)
{
	return merge->grace || merge->count;
}

void getlk_merge_reached(struct getlk_merge *merge, const char *id, bool awaited)
{
	struct getlk_host *host = host_of(merge, id);

	if (!host) {
		merge->failed = true;
		return;
	}
	host->reached = true;
	host->awaited = awaited;
}

void getlk_merge_told(struct getlk_merge *merge, const char *id, uint64_t part, enum store_last last, const char *text, size_t len)
{
	struct getlk_host *host = host_of(merge, id);
	struct record *record = NULL;
	size_t pos = 0;
	int n;

	if (!host || host->answered || host->broken)
		return;
	n = records_next(text, len, &pos, &record);
	if (part != 0 || last != TELL_END || n < 0 || (n && (!read_lock(merge, record, host) || pos != len)))
		host->broken = true;
	else
		host->answered = true;
	record_free(record);
}

/* --- what follows --- */

static bool must_answer(const struct getlk_merge *merge, const struct getlk_host *host)
{
	return host->part.mode != MODE_NONE || (merge->grace && host->reached);
}

bool getlk_merge_complete(const struct getlk_merge *merge)
{
	bool waiting = !merge->asked_all;

	for (size_t i = 0; i < merge->count; i++) {
		const struct getlk_host *host = &merge->hosts[i];

		if (host->answered && host->lock.mode != MODE_NONE && host->lock.at.start <= merge->at.start)
			return true;	/* none begins earlier within what was asked for */
		waiting |= must_answer(merge, host) && host->awaited && !host->answered && !host->broken;
	}
	return merge->over || !waiting;
}

void getlk_merge_result(const struct getlk_merge *merge, struct lock_span *ret_lock, int *ret_l_pid)
{
	const struct getlk_host *best = NULL, *feared = NULL;

	for (size_t i = 0; i < merge->count; i++) {
		const struct getlk_host *host = &merge->hosts[i];

		if (host->answered && host->lock.mode != MODE_NONE) {
			if (!best || host->lock.at.start < best->lock.at.start)
				best = host;
		} else if (!host->answered && host->part.mode != MODE_NONE) {
			if (!feared || host->part.at.start < feared->part.at.start)
				feared = host;
		}
	}
	*ret_lock = best ? best->lock : feared ? feared->part : nothing;
	*ret_l_pid = best && best->pid ? -best->pid : best || feared ? -1 : 0;
}
