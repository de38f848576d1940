/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c daemon-lite/publish.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* A standing GO that ends between the real call and the second look: shim/range.c is linked with a hook behind the real call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../shim/range.h"
#define range_set real_range_set
static int real_range_set(int fd, enum wire_family family, struct extent at, enum lock_mode mode, bool wait);
#include "../../shim/range.c"
#undef range_set

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "../../daemon-lite/publish.h"
#include "fake_agent.h"

#define A "locks/a"

static struct fake_agent agent;
static struct standing_table *table;
static struct publish_slot slot = { .records = true };
static bool ends;

int range_set(int fd, enum wire_family family, struct extent at, enum lock_mode mode, bool wait)
{
	int err = real_range_set(fd, family, at, mode, wait);

	if (ends && mode != MODE_NONE) {
		publish_valid_until(table, 1);
		ends = false;
	}
	return err;
}

static int range(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &lock);
}

static void publish(int fd)
{
	const char *path = fake_path(A);
	struct inode_id id;
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	id = (struct inode_id){ .dev = st.st_dev, .ino = st.st_ino };
	standing_hash(path, strlen(path), slot.path_hash);
	publish_valid_until(table, UINT64_MAX);
	publish_set(table, &slot, &id, MODE_EX);
}

/* number: what STANDS is answered; a lock undone is asked for anew, and refused. */
static void script_stands(struct fake_agent *a)
{
	struct wire_msg msg = { .len = 0 };
	int s = fake_accept(a), answer = a->number;

	if (fake_expect(a, s, WIRE_STANDS, &msg, NULL) < 0)
		return;
	a->number = (int)msg.len;
	fake_send(s, WIRE_STANDING, answer, NULL);
	if (!answer)
		fake_expect(a, s, WIRE_DONE, NULL, NULL);
	fake_expect_end(a, s);
	close(s);
	if (!answer)
		return;
	s = fake_accept(a);
	fake_expect(a, s, WIRE_REQUEST, NULL, NULL);
	fake_send(s, WIRE_ERROR, EDEADLK, NULL);
	fake_expect_end(a, s);
	close(s);
}

static void test_a_lock_whose_go_has_ended_is_undone_and_what_was_held_stays(void **state)
{
	static const struct { int cmd, set; } ways[] = {
		{ F_SETLK, F_SETLK }, { F_SETLKW, F_SETLK }, { F_OFD_SETLK, F_OFD_SETLK }, { F_OFD_SETLKW, F_OFD_SETLK },
	};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		int fd = fake_open(A), watcher = fake_open(A);

		publish(fd);
		assert_int_equal(range(fd, ways[i].set, F_RDLCK, 0, 2), 0);
		assert_int_equal(range(fd, ways[i].set, F_WRLCK, 5, 1), 0);
		ends = true;
		fake_start_with(&agent, script_stands, ENOLCK);
		assert_int_equal(range(fd, ways[i].cmd, F_WRLCK, 0, 10), -1);
		assert_int_equal(errno, EDEADLK);
		fake_finish(&agent);
		assert_int_equal(agent.number, 10);
		assert_false(fake_range_is_free(watcher, 0, 2, F_WRLCK));
		assert_true(fake_range_is_free(watcher, 0, 2, F_RDLCK));
		assert_true(fake_range_is_free(watcher, 2, 3, F_WRLCK));
		assert_false(fake_range_is_free(watcher, 5, 1, F_RDLCK));
		assert_true(fake_range_is_free(watcher, 6, 0, F_WRLCK));
		close(fd);
		close(watcher);
	}
}

static void test_a_lock_that_is_confirmed_stays(void **state)
{
	int fd = fake_open(A), watcher = fake_open(A);

	(void)state;
	publish(fd);
	ends = true;
	fake_start(&agent, script_stands);
	errno = 77;
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 10), 0);
	assert_int_equal(errno, 77);
	fake_finish(&agent);
	assert_false(fake_range_is_free(watcher, 9, 1, F_RDLCK));
	close(fd);
	close(watcher);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_lock_whose_go_has_ended_is_undone_and_what_was_held_stays),
		cmocka_unit_test(test_a_lock_that_is_confirmed_stays),
	};
	int failed;

	fake_world(argc, argv);
	/* No agent is started from a subreaper: the scripts are the only agents here. */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	table = publish_map(fake_runtime);
	if (!table) {
		perror("standing");
		return 1;
	}
	publish_reset(table);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	fake_remove();
	return failed;
}
