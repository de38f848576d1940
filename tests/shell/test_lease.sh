#!/bin/bash
# SPDX-License-Identifier: MIT
# A host that cannot renew: its holders end before anybody else gets the lock.
. "$(dirname "$0")/lib.sh"
WORLD='A:cut B'

child_pid() { pgrep -P "${ACTOR_PID[$1]}"; }
ended_at() { wait_until "$2" gone "$1" && now_us; }

test_holder_and_heirs_end_before_the_waiter_gets_the_lock() {
	local cut child ended_a ended_child
	take a A f ex
	ask a fork 0 hold >/dev/null			# an heir of the descriptor
	child=$(child_pid a)
	actor bystander A
	ask bystander open rw "$(path_on A f)" >/dev/null	# has the file open, holds nothing
	queue b B f ex
	cut=$(now_us)
	cut_off A
	ended_a=$(ended_at "${ACTOR_PID[a]}" 10) || { fail 'the holder lives'; return; }
	ended_child=$(ended_at "$child" 10) || { fail 'the heir lives'; return; }
	assertTrue "the holder ended after $(((ended_a - cut) / 1000)) ms, before T" "[ $(((ended_a - cut) / 1000)) -lt $T_MS ]"
	assertTrue "the heir ended after $(((ended_child - cut) / 1000)) ms, before T" "[ $(((ended_child - cut) / 1000)) -lt $T_MS ]"
	got b $((T_MS * 2 / 1000))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertTrue "the holder has ended $(((AT - ended_a) / 1000)) ms earlier" "[ $AT -gt $ended_a ]"
	assertTrue "the heir has ended $(((AT - ended_child) / 1000)) ms earlier" "[ $AT -gt $ended_child ]"
	assertTrue "after $(((AT - cut) / 1000)) ms, not before 2T/3" "[ $(((AT - cut) / 1000)) -ge $((T_MS * 2 / 3)) ]"
	expect 'who merely has the file open lives' 'ok' "$(ask bystander now)"
	join_again A
	ask b un 0 >/dev/null
	assertTrue 'the host is back' "wait_until $((T_MS * 3 / 1000)) is_free A f"
}

test_holder_that_ignores_sigterm_is_ended_too() {
	local cut ended
	# shellcheck disable=SC2016
	spawn A bash -c 'trap "" TERM; exec 9>"$1"; flock 9; echo >"$2"; while :; do sleep 100; done' x "$(path_on A f)" "$WORK/A/has"
	wait_until 10 test -s "$WORK/A/has"
	queue b B f ex
	cut=$(now_us)
	cut_off A
	ended=$(ended_at "$SPAWNED" 10) || { fail 'it lives'; return; }
	assertTrue "it ended after $(((ended - cut) / 1000)) ms, before T" "[ $(((ended - cut) / 1000)) -lt $T_MS ]"
	got b $((T_MS * 2 / 1000))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertTrue 'later than the holder ended' "[ $AT -gt $ended ]"
}

test_stopped_holder_is_ended_too() {
	local ended
	take a A f ex
	queue b B f ex
	kill -STOP "${ACTOR_PID[a]}"
	cut_off A
	ended=$(ended_at "${ACTOR_PID[a]}" 10) || { fail 'it lives'; return; }
	got b $((T_MS * 2 / 1000))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertTrue 'later than the holder ended' "[ $AT -gt $ended ]"
}

test_holder_is_ended_when_the_agent_is_frozen_and_the_guard_alone_is_left() {
	local ended old
	take a A f ex
	queue b B f ex
	cut_off A
	# An agent that is killed as often as it comes: the guard must do it itself.
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
		old=$(agent_pid A) && kill -STOP "$old" 2>/dev/null
		gone "${ACTOR_PID[a]}" && break
		nap 0.1
	done
	ended=$(ended_at "${ACTOR_PID[a]}" 5) || { fail 'the holder lives'; return; }
	got b $((T_MS * 2 / 1000))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertTrue 'later than the holder ended' "[ $AT -gt $ended ]"
}

test_short_outage_disturbs_nobody() {
	take a A f ex
	queue b B f ex
	cut_off A
	nap 0.$((T_MS / 6))		# T/6
	join_again A
	got b $((T_MS / 1000 + 1)) && fail "the holder is still there: $ANSWER"
	expect 'the holder lives' 'ok 0' "$(ask a un 0)"
	got b 10
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
}

test_cut_off_host_gives_no_lock() {
	take a A f ex
	ask a un 0 >/dev/null
	cut_off A
	nap $((T_MS / 1000))
	case $(try A g) in error*) ;; *) fail "a new lock: $(try A g)" ;; esac
	case $(try A f) in error*) ;; *) fail "the lock that lay idle here: $(try A f)" ;; esac
	assertTrue 'the other host has it after T' "wait_until $((T_MS * 2 / 1000)) is_free B f"
	join_again A
	assertTrue 'and the host is back' "wait_until $((T_MS * 3 / 1000)) is_free A f"
}

again_with() { RULE_EXTRA[A]=$1; host_again A; }
# The host's configuration is written anew, before anything runs on it.
host_again() {
	local server
	server=$(sed -n 's/.*"\(redis:[^"]*\)".*/\1/p' "$WORK/$1/conf")
	host_config "$1" "$server" >"$WORK/$1/conf"
}

test_on_lost_log_leaves_the_holder_alone() {
	again_with 'on_lost = "log";'
	take a A f ex
	queue b B f ex
	cut_off A
	got b $((T_MS * 2 / 1000 + 1))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	expect 'the holder lives' ok "$(ask a now)"
	assertTrue 'the log says so' "agent_log A | grep -q ${ACTOR_PID[a]} || agent_log A | grep -qi 'f:t/f'"
}

test_on_lost_signal_sends_that_signal_alone() {
	again_with 'on_lost = "signal:USR1";'
	# shellcheck disable=SC2016
	spawn A bash -c 'trap "echo usr1 >>$2" USR1; trap "echo term >>$2" TERM; exec 9>"$1"; flock 9; echo has >"$2"; while :; do sleep 0.1 9>&-; done' x "$(path_on A f)" "$WORK/A/has"
	wait_until 10 test -s "$WORK/A/has"
	queue b B f ex
	cut_off A
	got b $((T_MS * 2 / 1000 + 1))
	expect 'the waiter gets the lock' 'ok 0' "$ANSWER"
	assertFalse 'the holder lives' "gone $SPAWNED"
	assertTrue 'it got the signal' "grep -q usr1 '$WORK/A/has'"
	assertFalse 'and no other' "grep -q term '$WORK/A/has'"
}

. shunit2
