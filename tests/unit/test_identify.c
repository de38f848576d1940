/* SPDX-License-Identifier: MIT */
/* LINK: daemon-lite/identify.c */
/* Paths of descriptors against a real kernel; what needs mount namespaces is skipped without the privilege. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../daemon-lite/identify.h"

static char dir[256];
static struct identity got;	/* too large for many stacks */

static const char *in_dir(const char *name)
{
	static char path[4][512];
	static int next;

	next = (next + 1) % 4;
	snprintf(path[next], sizeof(path[next]), "%s/%s", dir, name);
	return path[next];
}

static int make(const char *name)
{
	int fd = open(in_dir(name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void assert_managed(int fd, const char *path, bool deleted)
{
	struct stat st;

	assert_int_equal(identify_fd(fd, &got), IDENTIFY_MANAGED);
	assert_string_equal(got.path, path);
	assert_int_equal(got.deleted, deleted);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true(got.id.dev == st.st_dev && got.id.ino == st.st_ino);
	assert_int_equal(got.directory, S_ISDIR(st.st_mode));
	assert_string_equal(got.reason, "");
}

static void assert_refused(int fd)
{
	assert_int_equal(identify_fd(fd, &got), IDENTIFY_REFUSED);
	assert_true(strlen(got.reason) > 10);
	assert_null(strchr(got.reason, '\n'));
}

static void assert_local(int fd)
{
	assert_int_equal(identify_fd(fd, &got), IDENTIFY_LOCAL);
}

static int set_up(void **state)
{
	char template[] = "/tmp/test_identify.XXXXXX";

	(void)state;
	if (!mkdtemp(template) || !realpath(template, dir))
		return -1;
	return 0;
}

static int tear_down(void **state)
{
	char command[300];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

/* --- a program in another world ------------------------------------------ */

static void send_fd(int sock, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&mh);

	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
	if (sendmsg(sock, &mh, 0) != 1)
		_exit(3);
}

static int recv_fd(int sock)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(sock, &mh, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&mh))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&mh)), sizeof(int));
	return fd;
}

static struct { pid_t pid; int sock; } program;

/* Runs fn in a child of its own mount namespace; returns the descriptor it opened there. The child lives until program_end. */
static int program_start(int (*fn)(void))
{
	int pair[2], fd;

	if (geteuid() != 0)
		skip();
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	program.pid = fork();
	if (program.pid == 0) {
		char byte;

		close(pair[0]);
		if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
			_exit(2);
		fd = fn();
		if (fd < 0)
			_exit(2);
		send_fd(pair[1], fd);
		if (read(pair[1], &byte, 1) < 0)
			_exit(3);
		_exit(0);
	}
	close(pair[1]);
	program.sock = pair[0];
	fd = recv_fd(pair[0]);
	if (fd < 0) {
		close(program.sock);
		waitpid(program.pid, NULL, 0);
		skip();
	}
	return fd;
}

/* The kernel shows the files of another mount namespace from its own root, which an agent within a chroot does not have. */
static void skip_in_a_chroot(void)
{
	struct stat here, root;
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);

		if (stat("/", &here) < 0 || setns(fd, CLONE_NEWNS) < 0 || stat("/", &root) < 0)
			_exit(0);
		_exit(here.st_dev != root.st_dev || here.st_ino != root.st_ino);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != 0)
		skip();
}

static void program_end(int fd)
{
	close(fd);
	close(program.sock);
	assert_int_equal(waitpid(program.pid, NULL, 0), program.pid);
}

/* --- what has a path ------------------------------------------------------ */

static void test_a_live_file_and_a_directory_are_managed(void **state)
{
	int fd = make("plain"), d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	(void)state;
	assert_managed(fd, in_dir("plain"), false);
	assert_true(got.id.btime_ns > 0);
	assert_managed(d, dir, false);
	close(fd);
	close(d);
}

static void test_a_symbolic_link_gives_the_file_behind_it(void **state)
{
	int fd = make("target"), fd2;

	(void)state;
	assert_int_equal(symlink("target", in_dir("link")), 0);
	fd2 = open(in_dir("link"), O_RDONLY | O_CLOEXEC);
	assert_managed(fd2, in_dir("target"), false);
	close(fd);
	close(fd2);
}

static void test_names_with_newlines_spaces_and_utf8_come_back_as_they_are(void **state)
{
	const char *const names[] = { "new\nline", "two words", "schl\xc3\xb6sser", "\xff\xfe", "tab\t" };

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		int fd = make(names[i]);

		assert_managed(fd, in_dir(names[i]), false);
		close(fd);
	}
}

static void test_a_live_file_called_deleted_is_not_deleted(void **state)
{
	int fd = make("job (deleted)");

	(void)state;
	assert_managed(fd, in_dir("job (deleted)"), false);
	assert_int_equal(unlink(in_dir("job (deleted)")), 0);
	assert_managed(fd, in_dir("job (deleted)"), true);
	close(fd);
}

static void test_a_deleted_file_keeps_its_path(void **state)
{
	int fd = make("gone"), again;

	(void)state;
	assert_int_equal(unlink(in_dir("gone")), 0);
	assert_managed(fd, in_dir("gone"), true);
	again = make("gone");
	assert_managed(fd, in_dir("gone"), true);
	assert_managed(again, in_dir("gone"), false);
	close(fd);
	close(again);
}

static void test_a_file_replaced_by_rename_is_deleted(void **state)
{
	int fd = make("victim"), other = make("winner");

	(void)state;
	assert_int_equal(rename(in_dir("winner"), in_dir("victim")), 0);
	assert_managed(fd, in_dir("victim"), true);
	assert_managed(other, in_dir("victim"), false);
	close(fd);
	close(other);
}

static void test_a_file_deleted_with_its_directory_keeps_its_path(void **state)
{
	int fd, d;

	(void)state;
	assert_int_equal(mkdir(in_dir("sub"), 0700), 0);
	fd = make("sub/f");
	d = open(in_dir("sub"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(unlink(in_dir("sub/f")), 0);
	assert_int_equal(rmdir(in_dir("sub")), 0);
	assert_managed(fd, in_dir("sub/f"), true);
	assert_managed(d, in_dir("sub"), true);
	close(fd);
	close(d);
}

static void test_a_hard_link_is_known_by_the_name_it_was_opened_by(void **state)
{
	int fd = make("one"), fd2;

	(void)state;
	assert_int_equal(link(in_dir("one"), in_dir("two")), 0);
	fd2 = open(in_dir("two"), O_RDWR | O_CLOEXEC);
	assert_managed(fd, in_dir("one"), false);
	assert_managed(fd2, in_dir("two"), false);
	assert_int_equal(unlink(in_dir("one")), 0);
	assert_managed(fd, in_dir("one"), true);
	assert_managed(fd2, in_dir("two"), false);
	close(fd);
	close(fd2);
}

/* Directories of 200 bytes until the path has `want` bytes with its last component. Returns the descriptor. */
static int make_long(size_t want, char *path)
{
	size_t len = strlen(dir);
	char name[256];
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;

	strcpy(path, dir);
	while (want - len > 255) {
		int next;

		memset(name, 'd', 200);
		name[200] = '\0';
		mkdirat(at, name, 0700);
		next = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(next >= 0);
		close(at);
		at = next;
		len += (size_t)sprintf(path + len, "/%s", name);
	}
	memset(name, 'f', want - len - 1);
	name[want - len - 1] = '\0';
	sprintf(path + len, "/%s", name);
	fd = openat(at, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(at);
	return fd;
}

static void test_a_path_of_4095_bytes_is_managed_and_a_longer_one_refused(void **state)
{
	char path[5000];
	int fd = make_long(4095, path);

	(void)state;
	assert_int_equal(strlen(path), 4095);
	assert_managed(fd, path, false);
	close(fd);
	fd = make_long(4096, path);
	assert_refused(fd);
	close(fd);
	fd = make_long(4700, path);
	assert_refused(fd);
	close(fd);
}

static void test_a_rename_is_followed(void **state)
{
	int fd = make("before");

	(void)state;
	assert_managed(fd, in_dir("before"), false);
	assert_int_equal(rename(in_dir("before"), in_dir("after")), 0);
	assert_managed(fd, in_dir("after"), false);
	close(fd);
}

/* --- what is the kernel's alone ------------------------------------------- */

static void test_what_is_no_file_with_a_name_is_local(void **state)
{
	int pair[2], fd;

	(void)state;
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	assert_local(pair[0]);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_local(pair[0]);
	close(pair[0]);
	close(pair[1]);
	fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_local(fd);
	close(fd);
	assert_int_equal(mkfifo(in_dir("fifo"), 0600), 0);
	fd = open(in_dir("fifo"), O_RDWR | O_CLOEXEC);
	assert_local(fd);
	close(fd);
	fd = memfd_create("x", MFD_CLOEXEC);
	assert_local(fd);
	close(fd);
	fd = memfd_create("a/b (deleted)", MFD_CLOEXEC);
	assert_local(fd);
	close(fd);
}

static void test_an_unnamed_temporary_file_is_local(void **state)
{
	const char *const dirs[] = { dir, "/dev/shm" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		int fd = open(dirs[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

		if (fd < 0)
			continue;
		assert_local(fd);
		close(fd);
	}
}

static void test_a_temporary_file_named_later_is_refused(void **state)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char link_path[64];

	(void)state;
	if (fd < 0)
		skip();
	snprintf(link_path, sizeof(link_path), "/proc/self/fd/%d", fd);
	assert_int_equal(linkat(AT_FDCWD, link_path, AT_FDCWD, in_dir("named"), AT_SYMLINK_FOLLOW), 0);
	assert_refused(fd);
	close(fd);
}

static void test_a_file_called_like_a_temporary_one_is_no_temporary_one(void **state)
{
	int fd = make("#12");

	(void)state;
	assert_managed(fd, in_dir("#12"), false);
	assert_int_equal(unlink(in_dir("#12")), 0);
	assert_managed(fd, in_dir("#12"), true);
	close(fd);
}

static void test_a_descriptor_without_access_is_local(void **state)
{
	int made = make("path"), fd = open(in_dir("path"), O_PATH | O_CLOEXEC);

	(void)state;
	assert_local(fd);
	close(fd);
	close(made);
}

static void test_a_closed_descriptor_is_refused(void **state)
{
	int fd = make("closed");

	(void)state;
	close(fd);
	assert_refused(fd);
}

/* --- namespaces ------------------------------------------------------------ */

static int in_chroot(void)
{
	if (chroot(dir) < 0 || chdir("/") < 0)
		return -1;
	return open("/inside", O_RDWR | O_CREAT, 0600);
}

static void test_a_program_in_a_chroot_is_known_by_the_outside_path(void **state)
{
	int fd;

	(void)state;
	skip_in_a_chroot();
	fd = program_start(in_chroot);
	assert_managed(fd, in_dir("inside"), false);
	program_end(fd);
}

static int in_own_namespace(void)
{
	return open(in_dir("shared"), O_RDWR | O_CREAT, 0600);
}

static void test_a_mount_namespace_that_shows_the_same_file_is_believed(void **state)
{
	int fd;

	(void)state;
	skip_in_a_chroot();
	fd = program_start(in_own_namespace);
	assert_managed(fd, in_dir("shared"), false);
	program_end(fd);
}

static int in_own_namespace_deleted(void)
{
	int fd = open(in_dir("shared-gone"), O_RDWR | O_CREAT, 0600);

	unlink(in_dir("shared-gone"));
	return fd;
}

static void test_a_deleted_file_of_another_mount_namespace_is_refused(void **state)
{
	int fd = program_start(in_own_namespace_deleted);

	(void)state;
	assert_refused(fd);
	program_end(fd);
}

static int in_faked_tmpfs(void)
{
	if (mount("fake", in_dir("real"), "tmpfs", 0, NULL) < 0)
		return -1;
	return open(in_dir("real/job"), O_RDWR | O_CREAT, 0600);
}

static int in_faked_tmpfs_deleted(void)
{
	int fd = in_faked_tmpfs();

	unlink(in_dir("real/job"));
	return fd;
}

static int in_faked_tmpfs_called_deleted(void)
{
	if (mount("fake", in_dir("real"), "tmpfs", 0, NULL) < 0)
		return -1;
	return open(in_dir("real/job (deleted)"), O_RDWR | O_CREAT, 0600);
}

static int in_faked_tmpfs_memfd(void)
{
	if (in_faked_tmpfs() < 0 || chroot(in_dir("real")) < 0 || chdir("/") < 0)
		return -1;
	return open("/memfd:x", O_RDWR | O_CREAT, 0600);
}

static int in_faked_tmpfs_tmpfile(void)
{
	if (mount("fake", in_dir("real"), "tmpfs", 0, NULL) < 0)
		return -1;
	return open(in_dir("real"), O_TMPFILE | O_RDWR, 0600);
}

static void test_a_faked_mount_at_the_path_is_refused(void **state)
{
	int (*const fakes[])(void) = { in_faked_tmpfs, in_faked_tmpfs_deleted, in_faked_tmpfs_called_deleted, in_faked_tmpfs_memfd };

	(void)state;
	assert_int_equal(mkdir(in_dir("real"), 0755), 0);
	/* First nothing is there in our namespace, then another file is. */
	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < sizeof(fakes) / sizeof(fakes[0]); i++) {
			int fd = program_start(fakes[i]);

			assert_refused(fd);
			program_end(fd);
		}
		close(make("real/job"));
	}
	int fd = program_start(in_faked_tmpfs_tmpfile);

	assert_local(fd);
	program_end(fd);
}

static int in_own_bind_mount(void)
{
	if (mount(in_dir("mine"), in_dir("theirs"), NULL, MS_BIND, NULL) < 0)
		return -1;
	return open(in_dir("theirs/job"), O_RDWR | O_CREAT, 0600);
}

static int in_own_bind_mount_deleted(void)
{
	int fd = in_own_bind_mount();

	unlink(in_dir("theirs/job"));
	return fd;
}

static void test_a_private_bind_mount_over_the_path_is_refused(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(mkdir(in_dir("mine"), 0755), 0);
	assert_int_equal(mkdir(in_dir("theirs"), 0755), 0);
	close(make("theirs/job"));
	fd = program_start(in_own_bind_mount);
	assert_refused(fd);
	program_end(fd);
	fd = program_start(in_own_bind_mount_deleted);
	assert_refused(fd);
	program_end(fd);
}

/* Runs fn, which checks by itself, in a child with a mount namespace: agent and program see the same. */
static void in_namespace(void (*fn)(void))
{
	pid_t pid;
	int status;

	if (geteuid() != 0)
		skip();
	pid = fork();
	if (pid == 0) {
		if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
			_exit(77);
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); _exit(1); } } while (0)

static void bind_mount_of_the_agent_too(void)
{
	int fd;

	mkdir(in_dir("from"), 0755);
	mkdir(in_dir("to"), 0755);
	if (mount(in_dir("from"), in_dir("to"), NULL, MS_BIND, NULL) < 0)
		_exit(77);
	fd = make("to/f");
	CHECK(identify_fd(fd, &got) == IDENTIFY_MANAGED && strcmp(got.path, in_dir("to/f")) == 0 && !got.deleted);
	unlink(in_dir("to/f"));
	CHECK(identify_fd(fd, &got) == IDENTIFY_MANAGED && strcmp(got.path, in_dir("to/f")) == 0 && got.deleted);
	/* Another mount on top: the path is not that file's any more. */
	CHECK(mount("top", in_dir("to"), "tmpfs", 0, NULL) == 0);
	CHECK(identify_fd(fd, &got) == IDENTIFY_REFUSED);
}

static void test_a_bind_mount_that_the_agent_sees_too_is_managed(void **state)
{
	(void)state;
	in_namespace(bind_mount_of_the_agent_too);
}

static void overlay(void)
{
	char options[1500];
	int ro, rw, fd;
	struct inode_id id;

	CHECK(mount("o", in_dir("base"), "tmpfs", 0, NULL) == 0);
	mkdir(in_dir("base/lower"), 0755);
	mkdir(in_dir("base/upper"), 0755);
	mkdir(in_dir("base/work"), 0755);
	mkdir(in_dir("base/merged"), 0755);
	close(make("base/lower/f"));
	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s", in_dir("base/lower"), in_dir("base/upper"), in_dir("base/work"));
	if (mount("overlay", in_dir("base/merged"), "overlay", 0, options) < 0)
		_exit(77);
	ro = open(in_dir("base/merged/f"), O_RDONLY | O_CLOEXEC);
	CHECK(identify_fd(ro, &got) == IDENTIFY_MANAGED);
	id = got.id;
	rw = open(in_dir("base/merged/f"), O_RDWR | O_CLOEXEC);	/* copied up */
	CHECK(identify_fd(rw, &got) == IDENTIFY_MANAGED && got.id.ino == id.ino && got.id.dev == id.dev);
	CHECK(identify_fd(ro, &got) == IDENTIFY_MANAGED && got.id.ino == id.ino && got.id.dev == id.dev);
	CHECK(identify_is_local(rw));
	unlink(in_dir("base/merged/f"));
	CHECK(identify_fd(rw, &got) == IDENTIFY_MANAGED && got.deleted);
	fd = open(in_dir("base/merged"), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	CHECK(fd < 0 || identify_fd(fd, &got) == IDENTIFY_LOCAL);
}

static void test_an_overlay_keeps_the_inode_over_the_copy_up(void **state)
{
	(void)state;
	mkdir(in_dir("base"), 0755);
	in_namespace(overlay);
}

/* --- local filesystems, reopening, price ----------------------------------- */

static void local_or_not(void)
{
	int fd;

	mkdir(in_dir("mnt"), 0755);
	fd = make("mnt/f");
	CHECK(identify_is_local(fd));
	CHECK(mount("t", in_dir("mnt"), "tmpfs", 0, NULL) == 0);
	fd = make("mnt/f");
	CHECK(identify_is_local(fd));
	CHECK(umount2(in_dir("mnt"), MNT_DETACH) == 0);
	CHECK(!identify_is_local(fd));	/* on no mount any more: nobody knows */
}

/* Before anybody has asked in this process: the table watched is that of the namespace of the first question. */
static void test_a_change_of_the_mount_table_is_noticed(void **state)
{
	(void)state;
	in_namespace(local_or_not);
}

static void test_only_known_filesystems_are_local(void **state)
{
	int fd = make("local"), pair[2];

	(void)state;
	assert_true(identify_is_local(fd));
	close(fd);
	fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	assert_false(identify_is_local(fd));
	close(fd);
	assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
	assert_false(identify_is_local(pair[0]));
	close(pair[0]);
	close(pair[1]);
	assert_false(identify_is_local(-1));
}

static void test_reopening_gives_another_description_also_of_a_deleted_file(void **state)
{
	int fd = make("again"), own;

	(void)state;
	assert_int_equal(unlink(in_dir("again")), 0);
	own = identify_reopen(fd, false);
	assert_true(own >= 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	assert_int_equal(flock(own, LOCK_SH | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	assert_true(fcntl(own, F_GETFD) & FD_CLOEXEC);
	close(own);
	close(fd);
	assert_int_equal(identify_reopen(fd, false), -ENOENT);
}

static volatile sig_atomic_t lease_broken;

static int access_of_reopened(int fd, bool records)
{
	int own = identify_reopen(fd, records), flags;

	assert_true(own >= 0);
	flags = fcntl(own, F_GETFL);
	assert_true(flags & O_NONBLOCK);
	assert_true(fcntl(own, F_GETFD) & FD_CLOEXEC);
	close(own);
	return flags & O_ACCMODE;
}

static void test_for_record_locks_a_file_is_reopened_for_writing_where_nobody_can_notice(void **state)
{
	int rw = make("w"), ro = open(in_dir("w"), O_RDONLY | O_CLOEXEC), wo = open(in_dir("w"), O_WRONLY | O_APPEND | O_CLOEXEC);
	int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path_only = open(in_dir("w"), O_PATH | O_CLOEXEC);
	struct stat st;

	(void)state;
	assert_int_equal(write(rw, "text", 4), 4);
	assert_int_equal(access_of_reopened(rw, true), O_RDWR);
	assert_int_equal(access_of_reopened(wo, true), O_RDWR);
	assert_int_equal(access_of_reopened(ro, true), O_RDONLY);
	assert_int_equal(access_of_reopened(path_only, true), O_RDONLY);
	assert_int_equal(access_of_reopened(d, true), O_RDONLY);
	assert_int_equal(access_of_reopened(rw, false), O_RDONLY);
	/* A program that is open for writing cannot be executed. */
	assert_int_equal(fchmod(rw, 0755), 0);
	assert_int_equal(access_of_reopened(rw, true), O_RDONLY);
	assert_int_equal(fchmod(rw, 0600), 0);
	assert_int_equal(fstat(rw, &st), 0);
	assert_int_equal(st.st_size, 4);
	assert_int_equal(unlink(in_dir("w")), 0);
	assert_int_equal(access_of_reopened(rw, true), O_RDWR);
	close(rw);
	close(ro);
	close(wo);
	close(d);
	close(path_only);
}

static void on_lease(int sig)
{
	(void)sig;
	lease_broken = 1;
}

/* A reader's lease stands while nobody has the file open for writing: the agent must not be the one who breaks it. */
static void test_a_read_lease_is_not_broken_by_the_agent(void **state)
{
	struct sigaction action = { .sa_handler = on_lease };
	int fd, own;

	(void)state;
	close(make("leased"));
	fd = open(in_dir("leased"), O_RDONLY | O_CLOEXEC);
	sigaction(SIGIO, &action, NULL);
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
		skip();
	own = identify_reopen(fd, true);
	assert_true(own >= 0);
	assert_int_equal(fcntl(fd, F_GETLEASE), F_RDLCK);
	assert_int_equal(lease_broken, 0);
	close(own);
	close(fd);
}

static void test_a_live_file_is_identified_quickly(void **state)
{
	int fd = make("quick"), rounds = 20000;
	struct timespec a, b;
	double us;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < rounds; i++)
		assert_int_equal(identify_fd(fd, &got), IDENTIFY_MANAGED);
	clock_gettime(CLOCK_MONOTONIC, &b);
	us = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 1000 / rounds;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int i = 0; i < rounds; i++)
		identify_is_local(fd);
	clock_gettime(CLOCK_MONOTONIC, &b);
	print_message("identify_fd %.2f us, identify_is_local %.2f us\n", us,
		      ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / 1000 / rounds);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_live_file_and_a_directory_are_managed),
		cmocka_unit_test(test_a_symbolic_link_gives_the_file_behind_it),
		cmocka_unit_test(test_names_with_newlines_spaces_and_utf8_come_back_as_they_are),
		cmocka_unit_test(test_a_live_file_called_deleted_is_not_deleted),
		cmocka_unit_test(test_a_deleted_file_keeps_its_path),
		cmocka_unit_test(test_a_file_replaced_by_rename_is_deleted),
		cmocka_unit_test(test_a_file_deleted_with_its_directory_keeps_its_path),
		cmocka_unit_test(test_a_hard_link_is_known_by_the_name_it_was_opened_by),
		cmocka_unit_test(test_a_path_of_4095_bytes_is_managed_and_a_longer_one_refused),
		cmocka_unit_test(test_a_rename_is_followed),
		cmocka_unit_test(test_what_is_no_file_with_a_name_is_local),
		cmocka_unit_test(test_an_unnamed_temporary_file_is_local),
		cmocka_unit_test(test_a_temporary_file_named_later_is_refused),
		cmocka_unit_test(test_a_file_called_like_a_temporary_one_is_no_temporary_one),
		cmocka_unit_test(test_a_descriptor_without_access_is_local),
		cmocka_unit_test(test_a_closed_descriptor_is_refused),
		cmocka_unit_test(test_a_program_in_a_chroot_is_known_by_the_outside_path),
		cmocka_unit_test(test_a_mount_namespace_that_shows_the_same_file_is_believed),
		cmocka_unit_test(test_a_deleted_file_of_another_mount_namespace_is_refused),
		cmocka_unit_test(test_a_faked_mount_at_the_path_is_refused),
		cmocka_unit_test(test_a_private_bind_mount_over_the_path_is_refused),
		cmocka_unit_test(test_a_bind_mount_that_the_agent_sees_too_is_managed),
		cmocka_unit_test(test_an_overlay_keeps_the_inode_over_the_copy_up),
		cmocka_unit_test(test_a_change_of_the_mount_table_is_noticed),
		cmocka_unit_test(test_only_known_filesystems_are_local),
		cmocka_unit_test(test_reopening_gives_another_description_also_of_a_deleted_file),
		cmocka_unit_test(test_for_record_locks_a_file_is_reopened_for_writing_where_nobody_can_notice),
		cmocka_unit_test(test_a_read_lease_is_not_broken_by_the_agent),
		cmocka_unit_test(test_a_live_file_is_identified_quickly),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
