/* SPDX-License-Identifier: MIT */
/*
 * The answering side of F_GETLK across hosts: what the kernel here shows within what
 * this host covers. A lock outside of the cover does not stand against anybody: it is
 * not ours. Whoever asks is answered, also where there is nothing to tell: it may wait
 * for a host that has just given its cover back. A question that the kernel does
 * not answer is not answered either, and the asker assumes the worst.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"
#include "getlk.h"
#include "getlk_merge.h"
#include "klock.h"
#include "log.h"

#define JOBS_MAX 64	/* at once in helper threads: a filesystem that hangs must not collect descriptors */

static unsigned jobs;	/* loop's thread only */

struct job {
	struct agent *agent;
	char *host;
	uint64_t nonce;
	enum lock_mode mode;
	struct extent *parts;
	size_t part_count;
	int *files;
	size_t file_count;
	struct lock_span lock;	/* the answer */
	int pid, err;
};

static void job_free(struct job *job)
{
	free(job->host);
	free(job->parts);
	free(job->files);
	free(job);
}

static void look(void *arg)
{
	struct job *job = arg;

	job->lock = (struct lock_span){ .mode = MODE_NONE };
	for (size_t f = 0; f < job->file_count; f++)
		for (size_t i = 0; i < job->part_count; i++) {
			struct lock_span lock;
			int pid = 0, err = klock_getlk(job->files[f], job->parts[i], job->mode, &lock, &pid);

			if (err) {
				job->err = err;
				break;
			}
			if (lock.mode == MODE_NONE)
				continue;
			if (job->lock.mode == MODE_NONE || lock.at.start < job->lock.at.start) {
				job->lock = lock;
				job->pid = pid;
			}
			break;		/* the parts are in order */
		}
}

static void answer(struct job *job)
{
	char text[GETLK_ANSWER_MAX];

	if (!job->err) {
		getlk_answer_put(text, &job->lock, job->pid);
		store_tell(job->agent->store, job->host, job->nonce, 0, TELL_END, text);
	}
	job_free(job);
}

static void look_and_close(void *arg)
{
	struct job *job = arg;

	look(job);
	for (size_t i = 0; i < job->file_count; i++)
		close(job->files[i]);
}

static void looked(void *arg)
{
	jobs--;
	answer(arg);
}

/* On descriptors of its own: the name's may be closed meanwhile. */
static int look_in_helper(struct job *job)
{
	size_t n = 0;
	int err = 0;

	if (jobs == JOBS_MAX)
		return -EAGAIN;
	for (; !err && n < job->file_count; n++) {
		job->files[n] = fcntl(job->files[n], F_DUPFD_CLOEXEC, 3);
		if (job->files[n] < 0) {
			err = -errno;
			break;
		}
	}
	if (!err)
		err = helper_run(job->agent->loop, look_and_close, looked, job);
	if (!err)
		jobs++;
	else
		while (n)
			close(job->files[--n]);
	return err;
}

/* Those parts of `at` in which a lock here can conflict. Neighbours are one. */
static int note_parts(struct job *job, const struct name *name, struct extent at)
{
	const struct lock_spans *spans = &name->cover.spans;
	size_t first = lock_spans_find(spans, at.start);

	job->parts = reallocarray(NULL, spans->count - first + 1, sizeof *job->parts);
	if (!job->parts)
		return -ENOMEM;
	if (name->inherited || name->agent->lost) {	/* what is held does not go by the cover then */
		job->parts[job->part_count++] = at;
		return 0;
	}
	for (size_t i = first; i < spans->count && spans->at[i].at.start < at.end; i++) {
		struct extent *last = job->part_count ? &job->parts[job->part_count - 1] : NULL;
		struct extent part = extent_common(spans->at[i].at, at);

		if (!mode_conflicts(spans->at[i].mode, job->mode))
			continue;
		if (last && last->end == part.start)
			last->end = part.end;
		else
			job->parts[job->part_count++] = part;
	}
	return 0;
}

static int note_files(struct job *job, const struct name *name, bool *ret_local)
{
	job->files = reallocarray(NULL, name->file_count + 1, sizeof *job->files);
	if (!job->files)
		return -ENOMEM;
	*ret_local = true;
	for (size_t i = 0; job->part_count && i < name->file_count; i++) {
		job->files[job->file_count++] = name->files[i].fd;
		*ret_local &= name->files[i].local;
	}
	return 0;
}

void getlk_asked(struct agent *agent, const char *host, uint64_t nonce, const char *key, const char *question)
{
	const struct name *name = name_find(agent, key);
	struct extent at;
	struct job *job;
	bool local = true;
	int err;

	job = calloc(1, sizeof *job);
	if (!job)
		return;
	*job = (struct job){ .agent = agent, .nonce = nonce, .host = strdup(host) };
	err = !job->host ? -ENOMEM : key[0] != 'r' || !getlk_question_read(question, &at, &job->mode) ? -EINVAL : 0;
	if (!err && name)
		err = note_parts(job, name, at);
	if (!err && name)
		err = note_files(job, name, &local);
	if (!err && !local)
		err = look_in_helper(job);
	if (err) {
		log_warn("%s: host %s asked who holds it and gets no answer: %s", key, host, strerror(-err));
		job_free(job);
	} else if (local) {
		look(job);
		answer(job);
	}
}
