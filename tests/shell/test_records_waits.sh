#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs that wait for a range: their order, what ends a wait, and that a wait which ended has dropped nothing.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B C'

test_first_come_first_served_over_hosts() {
	local name order
	open_on a A && open_on b B && open_on c C && open_on a2 A && open_on b2 B
	has a setlk w 0 10
	for name in b c a2 b2; do fc_queue $name setlkw w 5 10; done
	for order in 'a b' 'b c' 'c a2' 'a2 b2'; do
		for name in b c a2 b2; do [ "$name" = "${order#* }" ] && break; still_waits $name "before ${order% *} unlocks"; done
		has "${order% *}" setlk u 0 0
		got "${order#* }" 10
		expect "after ${order% *}: ${order#* }" 'ok 0' "$ANSWER"
	done
	has b2 setlk u 0 0
	is C w 0 0 free 'all are through'
}

test_waiters_of_different_ranges_do_not_wait_for_each_other() {
	open_on a A && open_on b B && open_on c C && open_on a2 A
	has a setlk w 0 10
	has a setlk w 50 10
	fc_queue b setlkw w 0 20
	fc_queue c setlkw w 50 20
	expect 'between the two' 'ok 0' "$(LIMIT=5 fc a2 setlkw w 25 20)"
	expect 'on the right' 'ok 0' "$(LIMIT=5 fc a2 setlkw w 80 0)"
	has a setlk u 50 10
	got c 10
	expect 'only the right one is free' 'ok 0' "$ANSWER"
	still_waits b 'the left one is held'
	has a setlk u 0 10
	got b 10
	expect 'the left one' 'ok 0' "$ANSWER"
}

test_waiter_needs_all_of_its_range() {
	open_on a A && open_on b B && open_on c C
	has a setlk w 0 10
	has b setlk w 10 10
	fc_queue c setlkw w 5 10
	has a setlk u 0 10
	still_waits c 'the other half is held'
	is A w 0 5 free 'what nobody wants'
	has b setlk u 10 3
	still_waits c 'two bytes are held'
	has b setlk u 13 2
	got c 10
	expect 'now' 'ok 0' "$ANSWER"
	is A w 15 5 busy 'the part that was not given'
}

test_writer_is_not_starved_by_readers_of_other_hosts() {
	local n
	skip_unless 'Linux lets readers pass a waiting writer' not_control && return
	open_on a A && open_on b B && open_on c C
	has a setlk r 0 100
	fc_queue b setlkw w 50 10
	fc_queue c setlkw r 0 100
	expect 'a part that nobody waits for' 'ok 0' "$(probe C; LIMIT=5 fc "$PROBE" setlkw r 90 10)"
	has a setlk u 0 0
	got b 10
	expect 'the writer is first' 'ok 0' "$ANSWER"
	still_waits c 'the writer has it'
	has b setlk u 0 0
	got c 10
	expect 'then the reader' 'ok 0' "$ANSWER"
}

test_writer_gets_its_turn_while_readers_of_two_hosts_come_and_go() {
	local host pids='' began took
	skip_unless 'Linux may starve it' not_control && return
	for host in A C; do
		: >"$(seen $host f)"
		LIMIT=60 on $host "$PYTHON" -c 'import fcntl, os, sys, time
f = open(sys.argv[1], "r+")
open(sys.argv[2], "w").close()
while not os.path.exists(sys.argv[3]):
    fcntl.lockf(f, fcntl.LOCK_SH, 100)
    time.sleep(0.02)
    fcntl.lockf(f, fcntl.LOCK_UN, 100)' "$(path_on $host f)" "$WORK/reads$host" "$WORK/stop" &
		pids="$pids $!"
	done
	open_on b B
	wait_until 10 test -e "$WORK/readsA" && wait_until 10 test -e "$WORK/readsC" || fail 'the readers'
	began=$(now_us)
	expect 'the writer' 'ok 0' "$(fc b setlkw w 0 100)"
	took=$(($(now_us) - began))
	echo "    $took µs until the writer had it"
	assertTrue "in $took µs" "[ $took -lt 2000000 ]"
	has b setlk u 0 0
	touch "$WORK/stop"
	# shellcheck disable=SC2086 # a list
	wait $pids
	rm -f "$WORK"/reads? "$WORK/stop"
}

# ---- signals ----

waiting() {				# HOW COMMAND…: b on B holds a part for reading and waits; the alarm comes in 400 ms
	local how=$1
	shift
	open_on a A && open_on b B
	has a setlk r 0 100
	has b "$CMD" r 50 50
	ask b alarm 400 "$how" >/dev/null
	tell b "$@"
}
b_still_has_its_part() {
	refused a setlk w 50 1
	is C w 99 1 busy 'b holds what it held'
	is C r 50 50 free 'for reading'
	has a setlk u 0 0
	is C w 0 50 free 'nothing is left of the wait'
	is A w 50 1 busy 'b holds what it held'
	[ "$HOSTS" = k ] || assertTrue 'no request is left' 'wait_until 4 waiters_are f 0 r'
	dismiss a b
}

test_handler_without_sa_restart_interrupts_and_drops_nothing() {
	local CMD call
	while read -r CMD call; do
		waiting interrupt "$call"
		got b 5
		expect "$call" EINTR "$ANSWER"
		expect 'the handler ran' 'ok 1' "$(ask b alarms)"
		b_still_has_its_part
	done <<-END
	setlk fc setlkw 0 w s 0 0
	setlk lockf 0 lock 0
	osetlk fc osetlkw 0 w s 0 60
	END
}

test_handler_with_sa_restart_does_not_interrupt() {
	local CMD
	for CMD in setlk osetlk; do
		waiting restart fc ${CMD}w 0 w s 0 70
		assertTrue 'it waits' 'wait_until 0.4 waits b'
		got b 0.8 && fail "it should still wait: $ANSWER"
		refused a setlk w 50 1
		has a setlk u 0 0
		got b 10
		expect "$CMD: it gets the lock" 'ok 0' "$ANSWER"
		expect 'the handler ran' 'ok 1' "$(ask b alarms)"
		is C r 0 70 busy 'upgraded'
		is C r 70 30 free 'the rest is for reading'
		is C w 99 1 busy 'the rest is held'
		dismiss a b
	done
}

test_cancelled_thread_drops_nothing_that_its_process_holds() {
	local CMD
	for CMD in setlk osetlk; do
		open_on a A && open_on b B
		has a setlk r 0 100
		has b $CMD r 50 50
		ask b thread 0 "${CMD}w w s 0 60" >/dev/null
		[ "$HOSTS" = k ] || assertTrue 'the thread waits' 'wait_until 5 waiters_are f 1 r'
		nap 0.2
		ask b cancel >/dev/null
		tell b join
		got b 5
		expect "$CMD: the wait is a cancellation point" cancelled "$ANSWER"
		b_still_has_its_part
	done
}

test_wait_ends_with_its_process_and_the_next_is_served() {
	open_on a A && open_on b B && open_on c C
	has a setlk w 0 10
	fc_queue b setlkw w 0 10
	fc_queue c setlkw r 5 1
	kill_actor b
	[ "$HOSTS" = k ] || assertTrue 'the dead one has left the queue' 'wait_until 5 waiters_are f 1 r'
	still_waits c 'a holds it'
	has a setlk u 0 0
	got c 10
	expect 'the next' 'ok 0' "$ANSWER"
	is A w 0 5 free 'nothing is left of the dead one'
}

test_stopped_waiter_does_not_hold_up_the_next() {
	skip_unless 'Linux gives it to a stopped program' not_control && return
	open_on a A && open_on b B && open_on c C
	has a setlk w 0 10
	fc_queue b setlkw w 0 10
	fc_queue c setlkw w 5 10
	kill -STOP "${ACTOR_PID[b]}"
	wait_until 2 grep -q '^State:.T' "/proc/${ACTOR_PID[b]}/status"
	has a setlk u 0 0
	got c 8
	expect 'the next has it' 'ok 0' "$ANSWER"
	kill -CONT "${ACTOR_PID[b]}"
	still_waits b 'c has it'
	has c setlk u 0 0
	got b 10
	expect 'and b after it' 'ok 0' "$ANSWER"
}

test_waiting_upgrade_gets_the_lock_when_the_other_reader_goes() {
	local cmd
	for cmd in setlk osetlk; do
		open_on a A && open_on b B
		has a $cmd r 0 100
		has b $cmd r 20 10
		fc_queue a ${cmd}w w 0 100
		is C r 0 0 free 'while it waits everybody may read'
		has b $cmd u 0 0
		got a 10
		expect "$cmd: upgraded" 'ok 0' "$ANSWER"
		is B r 99 1 busy 'upgraded'
		dismiss a b
	done
}

. shunit2
