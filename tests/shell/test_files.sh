#!/bin/bash
# SPDX-License-Identifier: MIT
# What is locked: kinds of descriptors and files, odd names, odd programs.
. "$(dirname "$0")/lib.sh"

am_root() { [ "$(id -u)" = 0 ]; }
not_control_root() { not_control && am_root; }
kind_b() { [ "$HOSTS" = b ]; }
held() { expect "$1" busy "$(try B "${2:-f}")"; }
freed() { expect "$1" free "$(try B "${2:-f}")"; }

# hold_name NAME: a flock(1) on A holds a file of that name (any bytes); HOLDER is its pid.
hold_name() {
	rm -f "$WORK/A/has"
	spawn A flock "$(path_on A "$1")" sh -c 'echo >"$0"; exec sleep 100' "$WORK/A/has"
	HOLDER=$SPAWNED
	wait_until 10 test -s "$WORK/A/has" || fail "no lock on '$1'"
}
drop_name() {
	local all
	all="$(pgrep -P "$HOLDER") $HOLDER"
	kill -KILL $all
	for HOLDER in $all; do wait_until 5 gone "$HOLDER"; done
}

test_descriptor_of_each_open_mode_can_be_locked() {
	local mode
	touch "$(seen A f)"
	for mode in r w rw; do
		actor $mode A
		ask $mode open $mode "$(path_on A f)" >/dev/null
		expect "opened $mode" 'ok 0' "$(ask $mode ex 0)"
		held "opened $mode"
		ask $mode close 0 >/dev/null
		freed "opened $mode, closed"
	done
}

test_directory_can_be_locked() {
	mkdir -p "$(seen A d)" "$(seen B d)"
	hold_name d
	held 'the directory' d
	freed 'a file in it is another name' d/x
	drop_name
	freed 'the directory' d
}

test_symlink_is_the_file_it_leads_to() {
	mkdir -p "$WORK/aside"
	touch "$(seen A f)"
	ln -s f "$(seen A link)"
	hold_name link
	held 'through a symlink'
	[ "$HOSTS" = k ] || freed 'the symlink has no name of its own' link
	drop_name
	ln -s "$(path_on A '')" "$WORK/aside/dir"
	on A flock "$WORK/aside/dir/f" true
	spawn A flock "$WORK/aside/dir/f" sleep 100
	HOLDER=$SPAWNED
	assertTrue 'through a directory that is a symlink' "wait_until 5 is_busy B f"
	drop_name
	rm -rf "$WORK/aside"
}

test_hard_links_exclude_each_other_on_their_host() {
	touch "$(seen A f)"
	ln "$(seen A f)" "$(seen A g)"
	hold_name g
	held 'the name that was opened' g
	expect_busy A f
	drop_name
	expect_free A f
}

test_bind_mount_on_a_managed_path_counts_by_that_path() {
	skip_unless 'needs a mount namespace' kind_b && return
	off A sh -c "mkdir /srv/other /srv/locks/sub && mount --bind /srv/other /srv/locks/sub"
	mkdir "$(seen B sub)"
	hold_name sub/f
	held 'on the bind mount' sub/f
	expect 'the same file by its other path has no rule: the kernel excludes' 1 "$(on A flock -n /srv/other/f true; echo $?)"
	drop_name
	freed 'gone' sub/f
}

test_deleted_and_created_again_is_the_same_name() {
	take a A f ex
	rm "$(seen A f)"
	touch "$(seen A f)"
	[ "$HOSTS" = k ] || held 'the deleted file is locked'
	take a2 A f ex			# another inode: Linux does not exclude it here
	expect 'the new file on the same host' 'ok 0' "$ANSWER"
	ask a un 0 >/dev/null
	[ "$HOSTS" = k ] || held 'the new one still is'
	ask a2 un 0 >/dev/null
	freed 'both are free'
}

test_deleted_file_can_be_locked() {
	skip_unless 'Linux knows inodes, not names' not_control && return
	actor a A
	ask a open rw "$(path_on A f)" >/dev/null
	rm "$(seen A f)"
	expect 'the lock' 'ok 0' "$(ask a ex 0)"
	held 'by the name it had'
	ask a un 0 >/dev/null
	freed 'unlocked'
}

test_names_of_any_bytes() {
	local name
	for name in 'with space' $'with\nnewline' $'with\ttab' 'grüße-日本' 'live (deleted)' "quote'\"\\" $'bad\xff\xfeutf' '-n' '{tail}' '*'; do
		hold_name "$name"
		held "<$name>" "$name"
		freed "<$name> is not x$name" "x$name"
		drop_name
		freed "<$name> is free" "$name"
	done
}

test_path_of_4095_bytes() {
	local base code
	base=$(path_on A '')
	base=${base%/}
	# shellcheck disable=SC2016
	code='
import os, sys, fcntl
base, want, mode = sys.argv[1], 4095, sys.argv[2]
if sys.argv[3:]: want = int(sys.argv[3])
os.chdir(base)
left = want - len(base)
while left > 201:
    os.makedirs("d" * 99, exist_ok=True); os.chdir("d" * 99); left -= 100
f = open("f" * (left - 1), "w")
try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(1)
except OSError as e:
    print(e); sys.exit(2)
if mode == "hold":
    open(sys.argv[4], "w").write("has")
    import time; time.sleep(100)'
	spawn A "$PYTHON" -c "$code" "$base" hold 4095 "$WORK/A/has"
	HOLDER=$SPAWNED
	assertTrue 'locked' "wait_until 10 test -s '$WORK/A/has'"
	base=$(path_on B '')
	on B "$PYTHON" -c "$code" "${base%/}" try 4095
	expect 'the same path on the other host' 1 $?
	drop_name
	on B "$PYTHON" -c "$code" "${base%/}" try 4095
	expect 'free' 0 $?
	rm -rf "$(seen A d*)" "$(seen B d*)"
}

# The filesystem hangs at the moment at which the agent would open the file: what can be told from caches has been told.
test_filesystem_that_hangs_holds_up_nobody_else() {
	local agent n
	skip_unless 'no bindfs, or mounts of users are not allowed' mount_bindfs && return
	actor a A
	ask a open rw "$(path_on A m/f)" >/dev/null
	take c A held ex
	agent=$(agent_pid A)
	stat "$(path_on A m/f)" >/dev/null
	kill -STOP "$FUSE"
	tell a ex 0
	for n in 1 2 3 4 5 6; do
		expect_free A other
		expect_free B other
		nap 0.2
	done
	got c 0.1 && fail "the holder: $ANSWER"
	expect 'it is the same agent' "$agent" "$(agent_pid A)"
	kill -CONT "$FUSE"
	got a 5
	expect 'once the filesystem answers' 'ok 0' "$ANSWER"
	expect_busy B m/f
	kill_actor a
	fusermount -uz "$WORK/A/locks/m"
}
mount_bindfs() {
	[ "$HOSTS" = a ] && [ -e /dev/fuse ] && command -v bindfs >/dev/null || return 1
	mkdir -p "$WORK/A/back" "$WORK/A/locks/m" "$WORK/B/locks/m"
	bindfs -f --no-allow-other -o attr_timeout=60,entry_timeout=60 "$WORK/A/back" "$WORK/A/locks/m" >/dev/null 2>&1 &
	FUSE=$!
	disown $!
	wait_until 5 mountpoint -q "$WORK/A/locks/m"
}

test_program_in_a_chroot_is_excluded() {
	skip_unless 'needs root' not_control_root && return
	take warm A warm ex		# from inside a chroot no agent can be started
	actor a A
	ask a chroot "$(path_on A '')" >/dev/null
	ask a open rw /f >/dev/null
	expect 'the lock' 'ok 0' "$(ask a ex 0)"
	held 'locked in the chroot'
	ask a un 0 >/dev/null
	freed 'unlocked'
	take b B f ex
	expect 'and it is excluded' EAGAIN "$(ask a tryex 0)"
}

test_what_is_no_file_is_left_to_the_kernel() {
	skip_unless 'no library' not_control && return
	kill_redis			# whatever asked for the store would fail now
	actor a A
	expect 'memfd' 'ok 0' "$(ask a memfd >/dev/null; ask a tryex 0)"
	expect 'O_TMPFILE' 'ok 0' "$(ask a tmpfile "$(path_on A '')" >/dev/null; ask a tryex 1)"
	off A mkfifo "$(path_on A fifo)"
	expect 'FIFO' 'ok 0' "$(ask a open rw "$(path_on A fifo)" >/dev/null; ask a tryex 2)"
	expect 'device' 'ok 0' "$(ask a open r /dev/null >/dev/null; ask a tryex 3)"
	# shellcheck disable=SC2016
	expect 'socket' ok "$(on A "$PYTHON" -c 'import fcntl, socket
fcntl.flock(socket.socket(), fcntl.LOCK_EX | fcntl.LOCK_NB); print("ok")')"
	# shellcheck disable=SC2016
	expect 'pipe' ok "$(on A "$PYTHON" -c 'import fcntl, os
fcntl.flock(os.pipe()[0], fcntl.LOCK_EX | fcntl.LOCK_NB); print("ok")')"
}

test_bad_descriptors_and_operations_get_linux_s_answers() {
	# shellcheck disable=SC2016
	expect 'errnos' 'EBADF EINVAL EBADF' "$(on A "$PYTHON" -c 'import ctypes, os, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(fd, op):
    return errno.errorcode[ctypes.get_errno()] if libc.flock(fd, op) else "ok"
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
p = os.open(sys.argv[1], os.O_PATH)
print(call(999, 2), call(f, 64 | 3), call(p, 2))' "$(path_on A f)")"
}

test_program_without_a_free_descriptor_is_not_lied_to() {
	local how
	take warm A warm ex
	for how in soft hard; do
		actor $how A
		ask $how open rw "$(path_on A "$how")" >/dev/null
		ask $how nofile 0 $how >/dev/null
		case $(ask $how ex 0) in
		'ok 0') held "$how limit: locked" $how ;;
		ENOLCK) [ $how = hard ] || fail 'the soft limit can be raised' ;;
		*) fail "$how limit: $(ask $how ex 0)" ;;
		esac
	done
}

test_program_with_standard_input_closed() {
	# shellcheck disable=SC2016
	spawn A bash -c 'exec 0<&- 9>"$1"; flock 9; echo >"$2"; exec sleep 100' x "$(path_on A f)" "$WORK/A/has"
	HOLDER=$SPAWNED
	assertTrue 'locked' "wait_until 10 test -s '$WORK/A/has'"
	held 'descriptor 0 is closed'
	drop_name
	# The lock file itself becomes descriptor 0.
	# shellcheck disable=SC2016
	on A sh -c 'exec 0<&- 1>&- 2>&-; exec flock -n "$1" true' x "$(path_on A f)"
	expect 'all three closed' 0 $?
	take b B f ex
	# shellcheck disable=SC2016
	on A sh -c 'exec 0<&- 1>&- 2>&-; exec flock -n "$1" true' x "$(path_on A f)"
	expect 'all three closed, excluded' 1 $?
}

no_socket_result() { [ -s "$WORK/A/has" ] || gone "$HOLDER"; }
test_program_under_a_seccomp_filter_without_sockets() {
	skip_unless 'no library' not_control && return
	on A flock "$(path_on A other)" true	# rules are there
	on A "$PROGS/no_socket" flock -n "$(path_on A f)" true 2>/dev/null
	expect 'ENOLCK, by flock(1)' 71 $?
	# A name that the host may lock without asking (a standing GO): if it succeeds, it excludes.
	on B flock "$(path_on B g)" true
	on A flock "$(path_on A g)" true
	rm -f "$WORK/A/has"
	spawn A "$PROGS/no_socket" flock -n "$(path_on A g)" sh -c 'echo >"$0"; exec sleep 100' "$WORK/A/has"
	HOLDER=$SPAWNED
	wait_until 5 no_socket_result
	if [ -s "$WORK/A/has" ]; then
		held 'locked without asking' g
		drop_name
	fi
	freed 'nothing is left' g
	mkdir -p "$WORK/aside"
	on A "$PROGS/no_socket" flock -n "$WORK/aside/f" true
	expect 'a path without a rule' 0 $?
	rm -rf "$WORK/aside"
}

test_program_that_is_not_dumpable() {
	actor a A
	ask a undumpable >/dev/null
	ask a open rw "$(path_on A f)" >/dev/null
	expect 'the lock' 'ok 0' "$(ask a ex 0)"
	held 'locked'
	expect 'again' 'ok 0' "$(ask a ex 0)"
	expect 'EX to SH' 'ok 0' "$(ask a sh 0)"
	ask a un 0 >/dev/null
	freed 'unlocked'
}

test_program_of_another_user_is_served_by_root_s_agent() {
	skip_unless 'needs root' not_control_root && return
	chmod 711 "$WORK" "$WORK/A"
	chmod 755 "$(runtime_seen A)"
	chmod 644 "$WORK/A/conf"
	chmod 777 "$(seen A '')"
	on A flock "$(path_on A x)" true	# the agent is root's
	rm -f "$WORK/A/has"
	mkdir -m 777 "$WORK/A/out"
	# shellcheck disable=SC2016
	spawn A setpriv --reuid 65534 --regid 65534 --clear-groups flock "$(path_on A f)" sh -c 'echo >"$0"; exec sleep 100' "$WORK/A/out/has"
	HOLDER=$SPAWNED
	assertTrue 'the lock' "wait_until 10 test -s '$WORK/A/out/has'"
	held 'held by another user'
	drop_name
	freed 'ended'
}

. shunit2
