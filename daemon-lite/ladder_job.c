/* SPDX-License-Identifier: MIT */
/*
 * See ladder_job.h. The pass works on duplicates of the descriptors, so names
 * may come and go meanwhile. Only names with a cover (or inherited ones, of
 * which the store's opinion is not known yet) are included: who locks a file
 * without a cover is no program of ours.
 */
#include "ladder_job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "klock.h"

#define PASS_GAP_US 20000	/* between two passes that follow one another */

struct job {
	struct agent *agent;
	enum ladder_step step;
	void (*done)(void *agent, size_t held);
	struct ladder_file *files;
	size_t count, held;
};

static void job_free(struct job *job)
{
	for (size_t i = 0; i < job->count; i++) {
		close(job->files[i].fd);
		free((char *)job->files[i].key);
	}
	free(job->files);
	free(job);
}

static void job_run(void *arg)
{
	struct job *job = arg;

	ladder_pass(job->step, job->files, job->count);
	/* Who is only told (on_lost) and goes on holding is not waited for: `done` says so, and the next job has new files. */
	for (size_t i = 0; i < job->count; i++)
		job->held += !job->files[i].done;
	if (job->held)
		usleep(PASS_GAP_US);	/* the signalled need a moment; a lost session runs pass after pass */
}

static void job_done(void *arg)
{
	struct job *job = arg;
	struct agent *agent = job->agent;
	void (*done)(void *, size_t) = job->done;
	size_t held = job->held;

	job_free(job);
	agent->ladder_running = false;
	done(agent, held);
}

static int add_name(struct job *job, const struct name *name)
{
	struct ladder_file *files = realloc(job->files, (job->count + name->file_count + 1) * sizeof *files);

	if (!files)
		return -ENOMEM;
	job->files = files;
	for (size_t i = 0; i < name->file_count; i++) {
		int fd = fcntl(name->files[i].fd, F_DUPFD_CLOEXEC, 3);
		char *key = strdup(name->key);

		if (fd < 0 || !key) {
			free(key);
			return fd < 0 ? -errno : -ENOMEM;
		}
		files[job->count++] = (struct ladder_file){ .fd = fd, .id = name->files[i].id, .key = key,
							    .on_lost = name->on_lost_rule };
	}
	return 0;
}

int ladder_job_start(struct agent *agent, enum ladder_step step, void (*done)(void *agent, size_t held))
{
	struct job *job = calloc(1, sizeof *job);
	struct hash_node *node = NULL;
	int err = job ? 0 : -ENOMEM;

	while (!err && (node = hash_walk(&agent->names, node))) {
		struct name *name = hash_entry(node, struct name, node);

		if (cover_mode(&name->cover) != MODE_NONE || name->inherited)
			err = add_name(job, name);
	}
	if (err) {
		if (job)
			job_free(job);
		return err;
	}
	job->agent = agent;
	job->step = step;
	job->done = done;
	agent->ladder_running = true;
	err = helper_run(agent->loop, job_run, job_done, job);
	if (err) {
		agent->ladder_running = false;
		job_free(job);
	}
	return err;
}
