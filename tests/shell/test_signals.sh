#!/bin/bash
# SPDX-License-Identifier: MIT
# What ends a wait, what does not, and that a wait which ended leaves nothing behind.
. "$(dirname "$0")/lib.sh"
WORLD='A B C'

# Nobody queues any more, and once a lets go the lock is there for a third host.
nothing_left() {
	[ "$HOSTS" = k ] || assertTrue "$1: the request has left the queue" "wait_until 4 waiters_are f 0"
	lock_is_free "$1"
}
# A program that lives but has left its wait without a word (a jump, a thread that was
# cancelled) is found out when its turn comes: it does not take what it is offered.
lock_is_free() {
	ask a un 0 >/dev/null
	assertTrue "$1: the lock is free for the others" "wait_until 4 is_free C f"
}

test_flock_w_ends_after_its_time() {
	local begin took
	take a A f ex
	on B flock -n "$(path_on B other)" true		# the agent's start is not measured
	begin=$(now_us)
	on B flock -w 0.3 "$(path_on B f)" true
	expect 'its exit code' 1 $?
	took=$(($(now_us) - begin))
	assertTrue "it took $took µs" "[ $took -ge 290000 ] && [ $took -lt 700000 ]"
	nothing_left 'flock -w'
}

test_handler_with_sa_restart_does_not_interrupt() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	ask b alarm 1500 restart >/dev/null
	tell b ex 0
	wait_until 1.2 waits b || fail 'b does not wait'
	got b 1 && fail "it should still wait: $ANSWER"
	kill -ALRM "${ACTOR_PID[b]}"
	got b 0.5 && fail "it should still wait: $ANSWER"
	ask a un 0 >/dev/null
	got b 5
	expect 'it gets the lock' 'ok 0' "$ANSWER"
	expect 'the handler ran' 'ok 2' "$(ask b alarms)"
}

test_handler_without_sa_restart_interrupts() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	ask b alarm 400 interrupt >/dev/null
	tell b ex 0
	got b 3
	expect 'the call' EINTR "$ANSWER"
	nothing_left 'EINTR'
}

test_wait_in_the_kernel_is_interrupted_too() {
	take a A f ex
	actor b A
	ask b open rw "$(path_on A f)" >/dev/null
	ask b alarm 400 interrupt >/dev/null
	tell b ex 0
	got b 3
	expect 'the call' EINTR "$ANSWER"
	nothing_left 'EINTR on the holder'\''s host'
}

test_stopped_and_continued_waiter_still_waits() {
	take a A f ex
	queue b B f ex
	kill -STOP "${ACTOR_PID[b]}"
	wait_until 2 grep -q '^State:.T' "/proc/${ACTOR_PID[b]}/status"
	kill -CONT "${ACTOR_PID[b]}"
	got b 0.3 && fail "it should still wait: $ANSWER"
	ask a un 0 >/dev/null
	got b 5
	expect 'it gets the lock' 'ok 0' "$ANSWER"
}

test_stopped_waiter_does_not_hold_up_the_next() {
	take a A f ex
	queue b B f ex
	queue c C f ex
	kill -STOP "${ACTOR_PID[b]}"
	wait_until 2 grep -q '^State:.T' "/proc/${ACTOR_PID[b]}/status"
	ask a un 0 >/dev/null
	got c 5
	expect 'the next has it' 'ok 0' "$ANSWER"
	kill -CONT "${ACTOR_PID[b]}"
	got b 0.3 && fail "b goes on waiting: $ANSWER"
	ask c un 0 >/dev/null
	got b 5
	expect 'and b after it' 'ok 0' "$ANSWER"
}

test_cancelled_waiter_leaves_nothing_behind() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	ask b thread 0 ex-async >/dev/null
	[ "$HOSTS" = k ] || assertTrue 'the thread waits' "wait_until 5 waiters_are f 1"
	nap 0.2
	ask b cancel >/dev/null
	expect 'the thread' cancelled "$(ask b join)"
	lock_is_free 'cancelled'
}

test_deferred_cancellation_waits_for_the_lock_as_flock_does() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	ask b thread 0 ex >/dev/null
	[ "$HOSTS" = k ] || assertTrue 'the thread waits' "wait_until 5 waiters_are f 1"
	nap 0.2
	ask b cancel >/dev/null
	tell b join
	got b 0.3 && fail "flock is no cancellation point: $ANSWER"
	ask a un 0 >/dev/null
	got b 5
	expect 'the thread' cancelled "$ANSWER"
	expect_busy C f
	ask b close 0 >/dev/null
	expect_free C f
}

test_longjmp_out_of_the_wait_leaves_nothing_behind() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	tell b jumpex 0 400
	got b 5
	expect 'the program jumped' jumped "$ANSWER"
	lock_is_free 'jumped'
	expect 'and the program can lock again' 'ok 0' "$(ask b ex 0)"
	expect_busy A f
}

# After GO, in the kernel: the host must not keep its right for a program that queues nowhere.
test_longjmp_out_of_the_kernel_leaves_nothing_behind() {
	take a A f ex
	actor b A
	ask b open rw "$(path_on A f)" >/dev/null
	tell b jumpex 0 300
	got b 5
	expect 'the program jumped' jumped "$ANSWER"
	ask a un 0 >/dev/null
	LIMIT=6 on B flock "$(path_on B f)" true
	expect 'another host gets it' 0 $?
	expect_free C f
	expect 'and the program can lock again' 'ok 0' "$(ask b ex 0)"
	expect_busy B f
}

test_waiter_stopped_in_the_kernel_does_not_hold_up_another_host() {
	take a A f ex
	queue b A f ex
	kill -STOP "${ACTOR_PID[b]}"
	wait_until 2 grep -q '^State:.T' "/proc/${ACTOR_PID[b]}/status"
	ask a un 0 >/dev/null
	LIMIT=6 take c B f ex
	expect 'another host gets it' 'ok 0' "$ANSWER"
	kill -CONT "${ACTOR_PID[b]}"
	got b 0.5 && fail "b holds together with c: $ANSWER"
	expect_busy A f
	ask c un 0 >/dev/null
	got b 5
	expect 'and b after it' 'ok 0' "$ANSWER"
	expect_busy C f
}

test_waiter_in_the_kernel_keeps_its_place() {
	take a A f ex
	queue b A f ex
	nap 2.5					# longer than its GO counts
	queue c B f ex
	ask a un 0 >/dev/null
	got b 5
	expect 'b was first' 'ok 0' "$ANSWER"
	got c 0.3 && fail "c holds together with b: $ANSWER"
	ask b un 0 >/dev/null
	got c 5
	expect 'c is next' 'ok 0' "$ANSWER"
}

test_waiter_killed_while_its_child_lives_leaves_nothing_behind() {
	take a A f ex
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	ask b thread 0 ex >/dev/null
	[ "$HOSTS" = k ] || assertTrue 'the thread waits' "wait_until 5 waiters_are f 1"
	nap 0.2
	ask b fork 0 hold >/dev/null		# the child has the waiting thread's socket
	kill_actor b
	nothing_left 'killed'
}

test_grant_that_races_with_a_signal_is_not_lost() {
	local n
	actor a A; actor b B
	ask a open rw "$(path_on A f)" >/dev/null
	ask b open rw "$(path_on B f)" >/dev/null
	for n in 1 2 3 4 5 6 7 8 9 10 11 12; do
		ask a ex 0 >/dev/null
		ask b alarm 100 interrupt >/dev/null
		tell b ex 0
		nap 0.0$((90 + n))		# about when the alarm comes
		tell a un 0
		got a
		got b 5 || { fail "round $n: b hangs"; return; }
		case $ANSWER in
		'ok 0') ask b un 0 >/dev/null ;;
		EINTR) ;;
		*) fail "round $n: $ANSWER" ;;
		esac
		wait_until 3 is_free C f || { fail "round $n: the lock is lost"; return; }
	done
}

. shunit2
