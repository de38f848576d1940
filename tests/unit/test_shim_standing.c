/* SPDX-License-Identifier: MIT */
/*
 * LINK: tests/unit/fake_agent.c shim/entry.c shim/lock.c shim/flock.c shim/record.c shim/record_args.c shim/getlk.c shim/talk.c shim/cancel.c shim/before.c shim/range.c
 *       shim/decide.c shim/reach.c shim/spawn.c shim/standing.c shim/state.c
 *       shim/connect.c shim/left.c shim/held.c shim/fd.c shim/log.c shim/wire.c daemon-lite/publish.c
 *       config/rules.c config/pattern.c config/runtime_dir.c config/lex.c
 */
/* Standing GOs: what the agent publishes and what a program makes of it, also when it ends in the middle of a call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../daemon-lite/publish.h"
#include "fake_agent.h"

#define A "locks/a"
#define FAR UINT64_MAX

static struct standing_table *table;
static struct fake_agent agent;

static struct inode_id id_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return (struct inode_id){ .dev = st.st_dev, .ino = st.st_ino };
}

/* For the slot's kind of lock. */
static void publish(struct publish_slot *slot, int fd, const char *name, enum lock_mode mode)
{
	struct inode_id id = id_of(fd);
	const char *path = fake_path(name);

	standing_hash(path, strlen(path), slot->path_hash);
	publish_set(table, slot, &id, mode);
}

static int fresh(void **state)
{
	(void)state;
	publish_reset(table);
	publish_valid_until(table, FAR);
	return 0;
}

static void script_nobody(struct fake_agent *a)
{
	(void)fake_await_stage(a, 1);
	if (accept4(a->path_fd, NULL, NULL, SOCK_NONBLOCK) >= 0)
		fake_blame(a, "somebody connected");
}

static void start_unvisited(void)
{
	fake_start(&agent, script_nobody);
	fcntl(agent.path_fd, F_SETFL, O_NONBLOCK);
}

static void finish_unvisited(void)
{
	fake_reach_stage(&agent, 1);
	fake_finish(&agent);
}

static void script_busy(struct fake_agent *a)
{
	int s = fake_accept(a);

	if (s < 0 || fake_expect(a, s, WIRE_REQUEST, NULL, NULL) < 0)
		return;
	fake_send(s, WIRE_BUSY, 0, NULL);
	fake_expect_end(a, s);
}

static void test_a_published_name_is_locked_without_asking(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A);

	(void)state;
	publish(&slot, fd, A, MODE_EX);
	start_unvisited();
	errno = 77;
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(errno, 77);
	assert_false(fake_is_free_for(A, LOCK_SH));
	assert_int_equal(flock(fd, LOCK_SH), 0);
	assert_true(fake_is_free_for(A, LOCK_SH));
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	finish_unvisited();
	publish_drop(&slot);
	close(fd);
}

static void test_a_holder_of_this_host_refuses_a_try_without_asking(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A), other = fake_open(A);

	(void)state;
	publish(&slot, fd, A, MODE_EX);
	start_unvisited();
	assert_int_equal(flock(other, LOCK_EX), 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	finish_unvisited();
	publish_drop(&slot);
	close(fd);
	close(other);
}

/* Each of these must ask: the fake agent says busy. */
static void expect_asks(int fd, int operation)
{
	fake_start(&agent, script_busy);
	assert_int_equal(flock(fd, operation | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	fake_finish(&agent);
	assert_true(fake_is_free_for(A, LOCK_EX));
}

static void test_a_shared_cover_does_not_stand_for_exclusive(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A);

	(void)state;
	publish(&slot, fd, A, MODE_SH);
	expect_asks(fd, LOCK_EX);
	start_unvisited();
	assert_int_equal(flock(fd, LOCK_SH), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	finish_unvisited();
	publish_drop(&slot);
	close(fd);
}

static void test_a_closed_or_dropped_name_asks(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A);

	(void)state;
	expect_asks(fd, LOCK_EX);
	publish(&slot, fd, A, MODE_EX);
	publish(&slot, fd, A, MODE_NONE);
	expect_asks(fd, LOCK_EX);
	publish(&slot, fd, A, MODE_EX);
	publish_drop(&slot);
	expect_asks(fd, LOCK_EX);
	publish(&slot, fd, A, MODE_EX);
	publish_reset(table);
	publish_valid_until(table, FAR);
	expect_asks(fd, LOCK_EX);
	publish_drop(&slot);
	close(fd);
}

static void test_a_failing_lease_asks(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A);

	(void)state;
	publish(&slot, fd, A, MODE_EX);
	publish_valid_until(table, 1);
	expect_asks(fd, LOCK_EX);
	publish_drop(&slot);
	close(fd);
}

static void test_another_file_or_path_asks(void **state)
{
	struct publish_slot slot = { 0 };
	int fd = fake_open(A), other = fake_open("locks/b");

	(void)state;
	publish(&slot, other, A, MODE_EX);	/* the path's former file */
	expect_asks(fd, LOCK_EX);
	publish(&slot, fd, "locks/c", MODE_EX);	/* the file's former path */
	expect_asks(fd, LOCK_EX);
	publish_drop(&slot);
	close(fd);
	close(other);
}

static void test_a_file_made_anew_has_a_place_beside_the_old_one(void **state)
{
	struct publish_slot old = { 0 }, new = { 0 };
	int fd = fake_open(A), other = fake_open("locks/b");

	(void)state;
	publish(&old, other, A, MODE_EX);
	publish(&new, fd, A, MODE_EX);
	assert_ptr_not_equal(old.entry, new.entry);
	start_unvisited();
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(flock(fd, LOCK_UN), 0);
	finish_unvisited();
	publish_drop(&old);
	publish_drop(&new);
	close(fd);
	close(other);
}

static void test_more_names_than_places_ask_and_lose_nothing(void **state)
{
	struct publish_slot slots[STANDING_WAYS + 2];
	struct inode_id id = { .dev = 1, .ino = 1 };
	unsigned placed = 0;

	(void)state;
	memset(slots, 0, sizeof slots);
	for (size_t i = 0; i < STANDING_WAYS + 2; i++) {
		slots[i].path_hash[0] = 8;	/* all want the same places */
		slots[i].path_hash[1] = i;
		publish_set(table, &slots[i], &id, MODE_EX);
		placed += slots[i].entry != NULL;
	}
	assert_int_equal(placed, STANDING_WAYS);
	publish_drop(&slots[0]);
	publish_set(table, &slots[STANDING_WAYS], &id, MODE_EX);
	assert_non_null(slots[STANDING_WAYS].entry);
	for (size_t i = 0; i < STANDING_WAYS + 2; i++)
		publish_drop(&slots[i]);
}

static int range(int fd, int cmd, short type, int64_t start, int64_t len)
{
	struct flock lock = { .l_type = type, .l_start = start, .l_len = len };

	return fcntl(fd, cmd, &lock);
}

static void test_a_file_has_an_entry_for_flock_and_one_for_record_locks(void **state)
{
	struct publish_slot flocks = { 0 }, records = { .records = true };
	int fd = fake_open(A), other = fake_open(A);

	(void)state;
	publish(&flocks, fd, A, MODE_EX);
	fake_start(&agent, script_busy);
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 5), -1);
	assert_int_equal(errno, EAGAIN);
	fake_finish(&agent);
	publish(&records, fd, A, MODE_EX);
	assert_ptr_not_equal(flocks.entry, records.entry);
	publish(&flocks, fd, A, MODE_NONE);
	expect_asks(fd, LOCK_EX);

	start_unvisited();
	errno = 77;
	assert_int_equal(range(fd, F_SETLK, F_WRLCK, 0, 5), 0);
	assert_int_equal(range(fd, F_SETLKW, F_WRLCK, 10, 5), 0);
	assert_int_equal(range(other, F_OFD_SETLK, F_RDLCK, 20, 0), 0);
	assert_int_equal(lockf(fd, F_TLOCK, 3), 0);
	assert_int_equal(errno, 77);
	assert_int_equal(range(other, F_OFD_SETLK, F_WRLCK, 4, 1), -1);
	assert_int_equal(errno, EAGAIN);
	assert_false(fake_range_is_free(other, 4, 1, F_WRLCK));
	assert_true(fake_range_is_free(other, 5, 5, F_WRLCK));
	assert_false(fake_range_is_free(other, 10, 1, F_WRLCK));
	assert_int_equal(range(-1, F_SETLK, F_WRLCK, 4, 1), -1);
	assert_int_equal(errno, EBADF);
	finish_unvisited();

	publish(&records, fd, A, MODE_SH);
	fake_start(&agent, script_busy);
	assert_int_equal(range(fd, F_OFD_SETLK, F_WRLCK, 100, 5), -1);
	assert_int_equal(errno, EAGAIN);
	fake_finish(&agent);
	publish_drop(&flocks);
	publish_drop(&records);
	close(fd);
	close(other);
}

static void test_a_wait_for_a_holder_of_this_host_is_the_agents_to_see(void **state)
{
	struct publish_slot slot = { .records = true };
	int fd = fake_open(A), other = fake_open(A);

	(void)state;
	publish(&slot, fd, A, MODE_EX);
	assert_int_equal(range(other, F_OFD_SETLK, F_WRLCK, 0, 5), 0);
	fake_start(&agent, script_busy);
	assert_int_equal(range(fd, F_SETLKW, F_WRLCK, 0, 5), -1);
	assert_int_equal(errno, ENOLCK);	/* busy is no answer to a call that waits */
	fake_finish(&agent);
	publish_drop(&slot);
	close(fd);
	close(other);
}

static void test_any_change_shows_in_the_state_word(void **state)
{
	struct publish_slot slot = { 0 };
	struct standing_look look;
	int fd = fake_open(A);
	const char *path = fake_path(A);

	(void)state;
	publish(&slot, fd, A, MODE_EX);
	assert_true(standing_find(table, path, strlen(path), fd, MODE_EX, false, &look));
	assert_true(standing_still(&look));
	publish(&slot, fd, A, MODE_NONE);
	assert_false(standing_still(&look));
	publish(&slot, fd, A, MODE_EX);
	assert_false(standing_still(&look));	/* closed and open again: a probe may have been in between */
	publish_drop(&slot);
	close(fd);
}

/* The agent's part: closes, probes, and gives the name to another host if it was free. */
struct race {
	struct publish_slot slot;
	int fd, probe;
	_Atomic int stop;
	_Atomic bool given_away;
	unsigned long times;
};

static void *close_and_probe(void *arg)
{
	struct race *race = arg;

	while (!atomic_load(&race->stop)) {
		atomic_store(&race->given_away, false);
		publish(&race->slot, race->fd, A, MODE_EX);
		for (volatile int i = 0; i < 200; i++)
			;
		publish(&race->slot, race->fd, A, MODE_NONE);
		if (syscall(SYS_flock, race->probe, LOCK_EX | LOCK_NB) == 0) {
			atomic_store(&race->given_away, true);
			race->times++;
		}
		flock(race->probe, LOCK_UN);
	}
	return NULL;
}

/*
 * The promise itself, many times at full speed: a program whose call has returned
 * without asking holds a name that has not been given away, and is not while it holds.
 */
static void test_a_lock_kept_without_asking_is_never_given_away(void **state)
{
	struct standing_look look;
	int fd = fake_open(A), probe = fake_open(A);
	char *path = strdup(fake_path(A));	/* a thread calls fake_path() too */
	struct race race = { .fd = fd, .probe = probe };
	unsigned long kept = 0, doubted = 0;
	pthread_t thread;

	(void)state;
	pthread_create(&thread, NULL, close_and_probe, &race);
	for (int i = 0; i < 1000000; i++) {
		if (!standing_find(table, path, strlen(path), fd, MODE_EX, false, &look))
			continue;
		if (syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) < 0)
			continue;
		if (standing_still(&look)) {
			kept++;
			for (volatile int k = 0; k < 300; k++)
				;
			assert_false(atomic_load(&race.given_away));
		} else {
			doubted++;
		}
		flock(fd, LOCK_UN);
	}
	atomic_store(&race.stop, 1);
	pthread_join(thread, NULL);
	print_message("kept %lu, doubted %lu, given away %lu\n", kept, doubted, race.times);
	assert_true(kept > 100 && race.times > 100);
	publish_drop(&race.slot);
	close(fd);
	close(probe);
	free(path);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_a_published_name_is_locked_without_asking, fresh),
		cmocka_unit_test_setup(test_a_holder_of_this_host_refuses_a_try_without_asking, fresh),
		cmocka_unit_test_setup(test_a_shared_cover_does_not_stand_for_exclusive, fresh),
		cmocka_unit_test_setup(test_a_closed_or_dropped_name_asks, fresh),
		cmocka_unit_test_setup(test_a_failing_lease_asks, fresh),
		cmocka_unit_test_setup(test_another_file_or_path_asks, fresh),
		cmocka_unit_test_setup(test_a_file_made_anew_has_a_place_beside_the_old_one, fresh),
		cmocka_unit_test_setup(test_more_names_than_places_ask_and_lose_nothing, fresh),
		cmocka_unit_test_setup(test_a_file_has_an_entry_for_flock_and_one_for_record_locks, fresh),
		cmocka_unit_test_setup(test_a_wait_for_a_holder_of_this_host_is_the_agents_to_see, fresh),
		cmocka_unit_test_setup(test_any_change_shows_in_the_state_word, fresh),
		cmocka_unit_test_setup(test_a_lock_kept_without_asking_is_never_given_away, fresh),
	};
	int failed;

	fake_world(argc, argv);
	fake_write_rules(NULL, true);
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
