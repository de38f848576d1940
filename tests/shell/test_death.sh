#!/bin/bash
# SPDX-License-Identifier: MIT
# Deaths: of the holder, of a waiter, of the agent, of a whole host.
. "$(dirname "$0")/lib.sh"
WORLD='A B C'

test_killed_holder_s_lock_goes_to_the_waiting_host_at_once() {
	local killed
	take a A f ex
	queue b B f ex
	killed=$(now_us)
	kill_actor a
	got b 5
	expect 'the waiter' 'ok 0' "$ANSWER"
	assertTrue "it took $((AT - killed)) µs" "[ $((AT - killed)) -lt 50000 ]"
}

test_killed_shared_holder_counts_alone() {
	take a A f sh
	take a2 A f sh
	queue b B f ex
	kill_actor a
	got b 0.5 && fail "a2 still reads: $ANSWER"
	kill_actor a2
	got b 5
	expect 'the waiter' 'ok 0' "$ANSWER"
}

test_killed_waiter_is_skipped() {
	local released
	take a A f ex
	queue b B f ex
	queue c C f ex
	kill_actor b
	[ "$HOSTS" = k ] || assertTrue 'its request leaves the queue' "wait_until 2 waiters_are f 1"
	released=$(now_us)
	ask a un 0 >/dev/null
	got c 5
	expect 'the next' 'ok 0' "$ANSWER"
	assertTrue "it took $((AT - released)) µs" "[ $((AT - released)) -lt 500000 ]"
}

# The renewal counter of the host that has a cover on f.
counter() {
	local host
	host=$(redis_cli hkeys "$(store_key f)" | sed -n 's|^c/||p' | head -1)
	redis_cli hget "dlock:{$NAMESPACE/0}:hosts" "$host"
}
counter_moves() { [ "$(counter)" != "$1" ]; }

test_dead_host_s_lock_is_free_after_the_lease() {
	local died took
	skip_unless 'no library, no lease' not_control && return
	take a A f ex
	queue b B f ex
	wait_until 5 counter_moves "$(counter)"		# it dies straight after a renewal
	died=$(now_us)
	kill_host A
	got b $((T_MS * 3 / 1000))
	expect 'the waiter' 'ok 0' "$ANSWER"
	took=$(((AT - died) / 1000))
	assertTrue "not before the lease is over: $took ms" "[ $took -ge $((T_MS * 95 / 100)) ]"
	# Observers look every T/3, and the last renewal may be up to T/3 younger than what they saw.
	assertTrue "not much later: $took ms" "[ $took -le $((T_MS * 5 / 3 + 300)) ]"
}

test_killed_guard_leaves_everything_as_it_is() {
	local guard
	skip_unless 'no guard' not_control && return
	take a A f ex
	queue b B f ex
	guard=$(guard_pid A) || { fail 'no guard'; return; }
	kill -KILL "$guard"
	got b 1 && fail "the holder is still there: $ANSWER"
	expect 'the holder lives' ok "$(ask a now)"
	assertTrue 'the log says so' "wait_until 3 guard_is_missed"
	ask a un 0 >/dev/null
	got b 10
	expect 'the waiter gets it' 'ok 0' "$ANSWER"
}
guard_is_missed() { agent_log A | grep -qi guard; }

test_nobody_locks_for_long_without_an_agent_that_watches() {
	local agent guard
	skip_unless 'no agent' not_control && return
	expect_free A f		# from now on the name is free to every program here, without asking
	agent=$(agent_pid A) guard=$(guard_pid A)
	kill -KILL "$guard" "$agent"
	wait_until 5 gone "$agent"
	# The permission ends when an agent would be late with its sign of life: T/6.
	assertTrue 'a lock starts another agent' "wait_until $((T_MS / 2000 + 2)) agent_after_try A f '$agent'"
}
agent_after_try() { try "$1" "$2" >/dev/null; agent_is_new "$1" "$3"; }

test_host_that_comes_back_can_lock_again() {
	skip_unless 'no library, no lease' not_control && return
	take a A f ex
	kill_host A
	rm -rf "$WORK/A"
	host_new A
	LIMIT=$((T_MS * 3 / 1000)) take a2 A g ex
	expect 'another lock at once' 'ok 0' "$ANSWER"
	assertTrue 'the old lock after the lease' "wait_until $((T_MS * 2 / 1000)) is_free A f"
}

agent_is_replaced() {			# HOST SIGNAL: another one within T/6 + 1 s
	local old begin took
	old=$(agent_pid "$1") || { fail "no agent on $1"; return; }
	begin=$(now_us)
	kill -"$2" "$old"
	wait_until 10 agent_is_new "$1" "$old" || { fail "no new agent on $1 after SIG$2"; return; }
	took=$((($(now_us) - begin) / 1000))
	assertTrue "a new agent on $1 after SIG$2 took $took ms" "[ $took -le $((T_MS / 6 + 1000)) ]"
	assertTrue 'the old one is gone' "wait_until 2 gone $old"
}

nothing_changes_hands() {		# SIGNAL HOST…: a of A holds, b of B waits, c of C comes later
	local signal=$1 host
	shift
	take a A f ex
	queue b B f ex
	for host in "$@"; do
		agent_is_replaced "$host" "$signal"
		got b 1 && fail "b must go on waiting: $ANSWER"
		expect_busy C f -s
	done
	queue a2 A f ex
	ask a un 0 >/dev/null
	got b 10
	expect 'the waiter gets it' 'ok 0' "$ANSWER"
	ask b un 0 >/dev/null
	got a2 10
	expect 'then the next' 'ok 0' "$ANSWER"
	expect_busy C f
}

test_killed_agent_of_the_holder_changes_nothing() {
	skip_unless 'no agent' not_control && return
	nothing_changes_hands KILL A
}
test_killed_agent_of_the_waiter_changes_nothing() {
	skip_unless 'no agent' not_control && return
	nothing_changes_hands KILL B
}
test_stopped_agent_of_the_holder_is_replaced() {
	skip_unless 'no agent' not_control && return
	nothing_changes_hands STOP A
}
test_stopped_agent_of_the_waiter_is_replaced() {
	skip_unless 'no agent' not_control && return
	nothing_changes_hands STOP B
}
test_agents_killed_again_and_again_change_nothing() {
	skip_unless 'no agent' not_control && return
	nothing_changes_hands KILL A B A
}

test_two_starts_at_once_leave_one_agent() {
	local n pids=
	skip_unless 'no agent' not_control && return
	for n in 1 2 3 4 5 6 7 8; do
		on A flock "$(path_on A "f$n")" true & pids="$pids $!"
	done
	wait $pids
	assertTrue 'one agent and its guard' "wait_until 5 two_dlockds A"
	take a A f ex
	expect_busy B f
}
two_dlockds() { [ "$(dlockds "$1" | wc -l)" = 2 ]; }

. shunit2
