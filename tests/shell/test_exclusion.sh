#!/bin/bash
# SPDX-License-Identifier: MIT
# The main job: unmodified programs on two hosts exclude each other.
. "$(dirname "$0")/lib.sh"

test_exclusive_lock_excludes_second_host() {
	take a A f ex
	expect 'the first host gets the lock' 'ok 0' "$ANSWER"
	expect_busy B f
	expect_busy B f -s
	expect 'unlock' 'ok 0' "$(ask a un 0)"
	expect_free B f
}

test_blocked_program_goes_on_when_the_other_host_unlocks() {
	local released
	take a A f ex
	queue b B f ex
	ask a now >/dev/null
	tell a un 0
	got a
	released=$AT
	got b 5
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertTrue "handed over in $((AT - released)) µs" "[ $((AT - released)) -lt 200000 ]"
	expect_busy A f
}

test_without_the_library_the_two_copies_do_not_exclude_each_other() {
	skip_unless 'the control has one copy' not_control && return
	take a A f ex
	off B flock -n "$(path_on B f)" true
	expect 'the control run must not be excluded' 0 $?
}

test_files_of_other_names_do_not_exclude_each_other() {
	take a A f ex
	expect_free B g
	expect_free A g
	expect_busy B f
}

test_flock_command_shell_and_python_exclude_each_other() {
	local holder
	mkfifo "$WORK/go"
	# shellcheck disable=SC2016
	spawn A bash -c 'exec 9>"$1"; flock 9; echo has >"$2"; read -r _ <"$3"' x "$(path_on A f)" "$WORK/has" "$WORK/go"
	holder=$SPAWNED
	assertTrue 'the script gets the lock' "wait_until 10 grep -qs has '$WORK/has'"
	on B "$PYTHON" -c 'import fcntl,sys
try:
    fcntl.flock(open(sys.argv[1], "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(11)' "$(path_on B f)"
	expect 'python is refused while the script holds' 11 $?
	expect_busy B f
	echo >"$WORK/go"
	assertTrue 'the script ends' "wait_until 10 gone $holder"
	on B "$PYTHON" -c 'import fcntl,sys
fcntl.flock(open(sys.argv[1], "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)' "$(path_on B f)"
	expect 'python has it when the script is over' 0 $?
	rm -f "$WORK/go" "$WORK/has"
}

test_path_that_no_rule_names_is_left_to_the_kernel() {
	mkdir "$WORK/elsewhere"
	off A flock "$WORK/elsewhere/f" sh -c "echo has >'$WORK/elsewhere/has'; exec sleep 30" &
	disown $!
	assertTrue 'a holder without the library' "wait_until 5 grep -qs has '$WORK/elsewhere/has'"
	on A flock -n "$WORK/elsewhere/f" true
	expect 'the kernel excludes' 1 $?
	expect 'no agent was started for it' '' "$(agent_pid B)"
	rm -rf "$WORK/elsewhere"
}

. shunit2
