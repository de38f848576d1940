#!/bin/bash
# SPDX-License-Identifier: MIT
# The lock lives as long as the open file description: whoever has a copy of the
# descriptor, a mapping or a message in flight holds it; nobody else does.
. "$(dirname "$0")/lib.sh"

held() { expect "$1" busy "$(try B f)"; }
freed() { expect "$1" free "$(try B f)"; }
script() {				# a bash script on A with the lock file as $1; it ends when $WORK/go is written to
	rm -f "$WORK/go" "$WORK/has"
	mkfifo "$WORK/go"
	spawn A bash -c "$1" script "$(path_on A f)" "$WORK/has" "$WORK/go"
	wait_until 10 test -s "$WORK/has" || fail 'the script does not get its lock'
}
let_go() { echo >"$WORK/go"; wait_until 5 gone "$SPAWNED" || fail 'the script does not end'; }
kill_and_wait() { kill -KILL "$1"; wait_until 5 gone "$1" || fail "process $1 does not end"; }
# The pid, as the test sees it, of the actor's only child that lives.
child_pid() { pgrep -P "${ACTOR_PID[$1]}"; }

# shellcheck disable=SC2016 # the scripts' own variables
test_shell_holds_what_flock_took_on_its_descriptor() {
	script 'exec 9>"$1"; flock 9; echo >"$2"; read -r _ <"$3"'
	held 'flock(1) has ended, the shell holds'
	let_go
	freed 'the shell has ended'
}

# shellcheck disable=SC2016
test_shell_lets_go_by_closing_the_descriptor() {
	script 'exec 9>"$1"; flock 9; exec 9>&-; echo >"$2"; read -r _ <"$3"'
	freed 'closed'
	let_go
}

# shellcheck disable=SC2016
test_shell_lets_go_by_flock_u() {
	script 'exec 9>"$1"; flock -s 9; flock -u 9; echo >"$2"; read -r _ <"$3"'
	freed 'unlocked by another process through the inherited descriptor'
	let_go
}

# shellcheck disable=SC2016
test_flock_command_holds_while_its_command_runs() {
	local how
	for how in '' -F -o; do
		script "exec flock $how"' "$1" sh -c "echo >\"\$0\"; read -r _ <\"\$1\"" "$2" "$3"'
		held "flock $how"
		let_go
		freed "flock $how is over"
	done
}

# shellcheck disable=SC2016
test_background_child_that_keeps_the_descriptor_holds() {
	local child
	script 'exec 9>"$1"; flock 9; sleep 100 & echo $! >"$2"; read -r _ <"$3"'
	child=$(pgrep -P "$SPAWNED" sleep)
	let_go
	held 'the child has the descriptor'
	kill_and_wait "$child"
	freed 'the child has ended'
}

test_daemon_of_two_forks_holds() {
	local daemon
	take a A f ex
	ask a fork 0 daemon >/dev/null
	wait_until 5 daemon_is_there
	daemon=$(host_pids A | while read -r pid; do grep -qs '^actor' "/proc/$pid/comm" && [ "$pid" != "${ACTOR_PID[a]}" ] && ! gone "$pid" && echo "$pid"; done | tail -1)
	kill_and_wait "${ACTOR_PID[a]}"
	held 'the daemon holds'
	kill_and_wait "$daemon"
	freed 'the daemon has ended'
}
daemon_is_there() { [ "$(host_pids A | while read -r pid; do grep -qs '^actor' "/proc/$pid/comm" && ! gone "$pid" && echo x; done | wc -l)" = 2 ]; }

test_duplicate_holds() {
	take a A f ex
	ask a dup 0 >/dev/null
	ask a close 0 >/dev/null
	held 'the duplicate'
	ask a close 1 >/dev/null
	freed 'the last is closed'
}

test_unlock_through_an_inherited_descriptor_frees() {
	take a A f ex
	ask a fork 0 unlock >/dev/null
	ask a reap >/dev/null
	freed 'the child has unlocked it for all'
	expect 'and it can be had again' 'ok 0' "$(ask a tryex 0)"
	held 'again'
}

test_descriptor_in_flight_over_a_socket_holds() {
	take a A f ex
	ask a send 0 >/dev/null
	ask a close 0 >/dev/null
	held 'in flight'
	ask a receive >/dev/null
	held 'received'
	ask a close 1 >/dev/null
	freed 'closed'
}

test_mapping_that_outlives_the_descriptor_holds() {
	actor a A
	ask a open rw "$(path_on A f)" >/dev/null
	dd if=/dev/zero of="$(seen A f)" bs=4096 count=1 2>/dev/null
	ask a ex 0 >/dev/null
	expect 'mapped' 'ok 0' "$(ask a map 0)"
	ask a close 0 >/dev/null
	held 'the mapping'
	ask a unmap >/dev/null
	freed 'no mapping any more'
}

test_child_that_closes_everything_does_not_disturb() {
	local how
	for how in closerange closefrom; do
		take "$how" A f ex
		ask "$how" fork 0 $how >/dev/null
		held "$how in the child"
		ask "$how" close 0 >/dev/null
		freed "closed in the parent after $how in the child"
	done
}

test_child_of_each_way_of_starting_holds() {
	local how program child
	for how in 'fork 0 hold' "spawn $PROGS/static_sleep" "vfork $PROGS/static_sleep" 'spawn /bin/sleep' 'vfork /bin/sleep'; do
		program=${how// /_}
		program=${program//\//_}
		take "$program" A f ex
		ask "$program" $how >/dev/null
		wait_until 5 child_pid "$program" >/dev/null
		child=$(child_pid "$program")
		kill_and_wait "${ACTOR_PID[$program]}"
		held "$how: the child"
		kill_and_wait "$child"
		freed "$how: the child has ended"
	done
}

test_threads_of_one_program_lock_at_once() {
	actor a A
	actor b B
	tell a churn 8 "$(path_on A f)"
	tell b churn 8 "$(path_on B f)"
	got a 60
	expect 'calls that failed on A' 'ok 0' "$ANSWER"
	got b 60
	expect 'calls that failed on B' 'ok 0' "$ANSWER"
	freed 'nothing is left'
}

test_program_does_not_notice_the_agent_s_start() {
	local before
	actor a A
	ask a open rw "$(path_on A f)" >/dev/null
	before=$(ask a fds)
	expect 'the lock that starts the agent' 'ok 0' "$(ask a ex 0)"
	expect 'no descriptor more' "$before" "$(ask a fds)"
	expect 'no child' ECHILD "$(ask a children)"
	[ "$HOSTS" = k ] || expect 'an agent' yes "$(agent_pid A >/dev/null && echo yes)"
}

. shunit2
