/* SPDX-License-Identifier: MIT */
/*
 * What a name's cover wants from the kernel: probes and waits on the name's files.
 *
 * A name has one file in the ordinary case; more when the file was deleted and
 * made anew, or when several paths map to one name. "Free" means all of them. A file
 * whose probe fails counts as held exclusively: not knowing is no licence.
 *
 * Lock calls on a file that is not local run in helper threads only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent.h"
#include "klock.h"
#include "log.h"
#include "name.h"

#define RETRY_NS 200000000u

bool name_is_local(const struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++)
		if (!name->files[i].local)
			return false;
	return true;
}

bool name_is_asking(const struct name *name)
{
	for (size_t i = 0; i < name->wait_count; i++)
		if (name->waits[i]->running || name->waits[i]->wanted)
			return true;
	return name->probe_running;
}

/* --- probes --- */

struct probe {			/* what is asked, of what */
	bool records;
	const struct name_file *files;
	size_t file_count;
	struct cover_question *questions;
	size_t question_count;
	struct lock_spans held;
	struct lock_spans coarse; /* one for each question, in order: if there was too much to ask, the strongest mode in all of it */
	size_t where;		/* the file where the strongest flock is */
	size_t closely;		/* behind so many questions none was asked closely */
	bool failed;		/* out of memory */
};

static void add(struct probe *probe, struct extent at, enum lock_mode mode)
{
	if (lock_spans_add(&probe->held, at, mode))
		probe->failed = true;
}

static void probe_flock(struct probe *probe)
{
	enum lock_mode want = MODE_SH, held = MODE_NONE;

	for (size_t i = 0; i < probe->question_count; i++) {
		probe->questions[i].seen = probe->questions[i].bounds;
		want = mode_max(want, probe->questions[i].want);
	}
	for (size_t i = 0; i < probe->file_count; i++) {
		int got = klock_probe(probe->files[i].fd, want);

		if (got < 0)
			got = MODE_EX;
		if (got <= (int)held)
			continue;
		held = (enum lock_mode)got;
		probe->where = i;
	}
	if (held != MODE_NONE)
		add(probe, EXTENT_ALL, held);
}

/* One question to one file; narrows `seen` to what was looked at in every file. */
static void probe_records(struct probe *probe, struct cover_question *q, int fd, struct klock_brief *brief, enum lock_mode *most)
{
	enum lock_mode all = MODE_NONE;
	struct extent seen = q->at;
	struct lock_span lock;
	int err, pid;

	if (q->any) {
		err = klock_getlk(fd, q->at, MODE_EX, &lock, &pid);
		if (!err && lock.mode != MODE_NONE)
			add(probe, q->at, MODE_EX);
	} else {
		err = klock_probe_briefly(fd, q->at, q->bounds, brief, &probe->held, &seen, &all);
	}
	if (err) {
		add(probe, q->at, MODE_EX);
		seen = q->at;
	}
	q->seen = extent_common(q->seen, seen);
	*most = mode_max(*most, all);
}

static void note_coarse(struct probe *probe, const struct cover_question *q, enum lock_mode mode)
{
	if (lock_spans_append(&probe->coarse, (struct lock_span){ .at = q->at, .mode = mode }))
		probe->failed = true;
}

/* Questions from the i-th on that are about one thing, asked as one of all their parts and what lies between. Returns the next one's index. */
static size_t probe_together(struct probe *probe, size_t i)
{
	const struct cover_question *first = &probe->questions[i];
	struct extent at = first->at;
	enum lock_mode most = MODE_NONE;
	size_t end = i;

	for (; end < probe->question_count; end++) {
		struct cover_question *q = &probe->questions[end];

		if (q->any || q->want != first->want || q->demand != first->demand)
			break;
		q->seen = q->at;
		at.start = q->at.start < at.start ? q->at.start : at.start;
		at.end = q->at.end > at.end ? q->at.end : at.end;
	}
	for (size_t k = 0; k < probe->file_count; k++) {
		enum lock_mode mode = MODE_EX;

		klock_strongest(probe->files[k].fd, at, &mode);
		most = mode_max(most, mode);
	}
	for (; i < end; i++)
		note_coarse(probe, &probe->questions[i], most);
	return end;
}

/* Up to where the point was looked at closely by any question; the point itself if by none, then *ret_next is where one begins. */
static uint64_t looked_at(const struct probe *probe, uint64_t point, uint64_t *ret_next)
{
	for (size_t i = 0; i < probe->closely; i++) {
		const struct cover_question *q = &probe->questions[i];

		if (q->any || probe->coarse.at[i].mode != MODE_NONE)
			continue;
		if (q->at.start <= point && point < q->at.end)
			return q->at.end;
		if (q->at.start > point && q->at.start < *ret_next)
			*ret_next = q->at.start;
	}
	return point;
}

/*
 * What was asked about as a whole counts as held throughout, and who asked for it needs all of it. But a part of it that another
 * question has looked at closely may be all that a try wants, and free.
 */
static void add_coarse(struct probe *probe)
{
	for (size_t i = 0; i < probe->coarse.count && !probe->failed; i++) {
		const struct lock_span *coarse = &probe->coarse.at[i];
		uint64_t point = coarse->at.start;

		while (coarse->mode != MODE_NONE && point < coarse->at.end) {
			uint64_t next = coarse->at.end, end = looked_at(probe, point, &next);

			if (end == point) {
				add(probe, (struct extent){ point, next }, coarse->mode);
				end = next;
			}
			point = end;
		}
	}
}

static void probe_run(struct probe *probe)
{
	struct klock_brief brief;
	size_t i = 0;

	if (!probe->records) {
		probe_flock(probe);
		return;
	}
	klock_brief_begin(&brief);
	while (i < probe->question_count && !probe->failed) {
		struct cover_question *q = &probe->questions[i];
		enum lock_mode most = MODE_NONE;

		if (!q->any && klock_brief_is_over(&brief)) {
			i = probe_together(probe, i);
			continue;
		}
		q->seen = q->bounds;
		for (size_t k = 0; k < probe->file_count; k++)
			probe_records(probe, q, probe->files[k].fd, &brief, &most);
		note_coarse(probe, q, most);
		probe->closely = ++i;
	}
	add_coarse(probe);
	lock_spans_free(&probe->coarse);
}

/* Drops files that nobody can lock any more: deleted, free, and not the only one. */
static void forget_deleted(struct name *name)
{
	for (size_t i = 0; name->file_count > 1 && i < name->file_count;) {
		struct stat st;

		if (name->files[i].local && !fstat(name->files[i].fd, &st) && st.st_nlink == 0) {
			name_close_file(name, &name->files[i]);
			name->files[i] = name->files[--name->file_count];
		} else {
			i++;
		}
	}
}

/* Whether the whole line was asked about and is free. */
static bool is_all_free(const struct probe *probe)
{
	return probe->question_count == 1 && extent_equal(probe->questions[0].at, EXTENT_ALL) &&
	       probe->questions[0].want == MODE_EX && !probe->held.count;
}

static void probed(struct name *name, struct probe *probe)
{
	if (probe->failed) {
		lock_spans_free(&probe->held);
		name_retry(name);
		return;
	}
	if (probe->held.count)
		name->held_file = probe->where;
	cover_probed(&name->cover, &probe->held);
	lock_spans_free(&probe->held);
}

struct probe_job {		/* a probe in a helper thread, on copies */
	struct name *name;
	struct probe probe;
	struct name_file *files;
};

static void probe_job_free(struct probe_job *job)
{
	if (!job)
		return;
	free(job->files);
	free(job->probe.questions);
	free(job);
}

static void probe_job_run(void *arg)
{
	struct probe_job *job = arg;

	probe_run(&job->probe);
}

static void probe_job_done(void *arg)
{
	struct probe_job *job = arg;
	struct name *name = job->name;
	struct cover *cover = &name->cover;

	name->probe_running = false;
	for (size_t i = 0; i < cover->question_count && i < job->probe.question_count; i++)
		cover->questions[i].seen = job->probe.questions[i].seen;
	probed(name, &job->probe);
	probe_job_free(job);
	name_settle(name);
}

static void *copy_of(const void *array, size_t count, size_t size)
{
	void *copy = malloc((count ? count : 1) * size);

	return copy ? memcpy(copy, array, count * size) : NULL;
}

/* Files that only ever disappear from a name do so while no probe runs: the copies stay valid. */
static void probe_in_helper(struct name *name)
{
	struct probe_job *job = calloc(1, sizeof *job);
	const struct cover *cover = &name->cover;

	if (job) {
		job->name = name;
		job->files = copy_of(name->files, name->file_count, sizeof *name->files);
		job->probe = (struct probe){ .records = name->records, .files = job->files, .file_count = name->file_count,
					     .questions = copy_of(cover->questions, cover->question_count, sizeof *cover->questions),
					     .question_count = cover->question_count };
	}
	if (!job || !job->files || !job->probe.questions ||
	    helper_run(name->agent->loop, probe_job_run, probe_job_done, job)) {
		probe_job_free(job);
		name_retry(name);
		return;
	}
	name->probe_running = true;
}

void name_probe_now(struct name *name)
{
	struct probe probe = { .records = name->records, .files = name->files, .file_count = name->file_count,
			       .questions = name->cover.questions, .question_count = name->cover.question_count };

	if (name->file_count && !name_is_local(name)) {
		probe_in_helper(name);
		return;
	}
	probe_run(&probe);
	if (is_all_free(&probe) && !name_is_asking(name) && !cover_has_requests(&name->cover))
		forget_deleted(name);
	probed(name, &probe);
}

bool name_is_held(const struct name *name)
{
	for (size_t i = 0; i < name->file_count; i++) {
		const struct name_file *file = &name->files[i];
		struct lock_span lock;
		int pid;

		if (!file->local)
			return true;
		if (name->records ? klock_getlk(file->fd, EXTENT_ALL, MODE_EX, &lock, &pid) || lock.mode != MODE_NONE
				  : klock_probe(file->fd, MODE_EX) != MODE_NONE)
			return true;
	}
	return false;
}

enum lock_mode name_owner_mode(const struct name *name, struct extent at, pid_t pid)
{
	enum lock_mode most = MODE_NONE;

	for (size_t k = 0; k < name->file_count; k++) {
		most = mode_max(most, klock_owner_mode(name->files[k].fd, at, pid));
		for (size_t i = 0; i < name->cover.recall_count; i++)
			if (!name->cover.recalls[i].dropped)
				most = mode_max(most, klock_owner_mode(name->files[k].fd, name->cover.recalls[i].wanted.at, pid));
	}
	return most;
}

/* --- helpers that wait --- */

/* A name's waits are used again; they live as long as the name. */
static struct name_wait *wait_slot(struct name *name, unsigned slot)
{
	while (name->wait_count <= slot) {
		struct name_wait **waits = reallocarray(name->waits, name->wait_count + 1, sizeof *waits);

		if (!waits)
			return NULL;
		name->waits = waits;
		waits[name->wait_count] = calloc(1, sizeof **waits);
		if (!waits[name->wait_count])
			return NULL;
		waits[name->wait_count]->name = name;
		waits[name->wait_count]->slot = name->wait_count;
		name->wait_count++;
	}
	return name->waits[slot];
}

/* The file where a lock stands in the way. */
static size_t file_to_wait_on(const struct name *name, const struct name_wait *wait)
{
	struct lock_span lock;
	int pid;

	if (!name->records)
		return name->held_file < name->file_count ? name->held_file : 0;
	for (size_t i = 0; name->file_count > 1 && i < name->file_count; i++)
		if (!klock_getlk(name->files[i].fd, wait->at, wait->mode, &lock, &pid) && lock.mode != MODE_NONE)
			return i;
	return 0;
}

static void wait_done(void *arg, int err)
{
	struct name_wait *wait = arg;
	struct name *name = wait->name;

	wait->running = NULL;
	if (err && err != -ECANCELED && wait->wanted) {
		log_error("%s: waiting for the local holder: %s", name->key, strerror(-err));
		name_retry(name);
		return;
	}
	wait->wanted = false;
	cover_wait_ended(&name->cover, wait->slot);
	name_settle(name);
}

void name_wait_start(struct name *name, unsigned slot, struct extent at, enum lock_mode mode)
{
	struct name_wait *wait = wait_slot(name, slot);
	int err = -ENOMEM;

	if (wait) {
		wait->wanted = true;
		wait->at = at;
		wait->mode = mode;
		err = name->file_count ? klock_wait_start(name->agent->loop, name->files[file_to_wait_on(name, wait)].fd, name->records,
							  at, mode, wait_done, wait, &wait->running) : -ENOENT;
	}
	if (!err)
		return;
	log_error("%s: no thread to wait for the local holder: %s", name->key, strerror(-err));
	name_retry(name);
}

void name_wait_cancel(struct name *name, unsigned slot)
{
	struct name_wait *wait = slot < name->wait_count ? name->waits[slot] : NULL;

	if (!wait)
		return;
	wait->wanted = false;
	if (wait->running)
		klock_wait_cancel(wait->running);
}

void name_waits_step_aside(struct name *name)
{
	for (size_t i = 0; i < name->wait_count; i++)
		if (name->waits[i]->running)
			klock_wait_step_aside(name->waits[i]->running);
}

/* --- when something could not be started --- */

void name_retry(struct name *name)
{
	loop_timer_set(name->agent->loop, &name->retry, loop_now_ns() + RETRY_NS);
}

void name_retry_fired(struct loop_timer *timer)
{
	struct name *name = timer->arg;
	struct cover *cover = &name->cover;

	if (cover->probing && !name->probe_running)
		name->probe_due = true;
	for (size_t i = 0; i < cover->recall_count; i++) {
		unsigned slot = cover->recalls[i].slot;

		if (cover->recalls[i].wait == WAIT_NONE || (slot < name->wait_count && name->waits[slot]->running))
			continue;
		if (slot < name->wait_count)
			name->waits[slot]->wanted = false;
		cover_wait_ended(cover, slot);	/* may change the list: the rest comes with the next one */
		name_retry(name);
		break;
	}
	name_settle(name);
}

void name_free_waits(struct name *name)
{
	for (size_t i = 0; i < name->wait_count; i++)
		free(name->waits[i]);
	free(name->waits);
}
