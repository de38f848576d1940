#!/bin/bash
# SPDX-License-Identifier: MIT
# LOCK_EX, LOCK_SH, LOCK_UN, LOCK_NB in all pairs; order of waiting; what a
# non-blocking attempt may and must not be told.
. "$(dirname "$0")/lib.sh"
WORLD='A B C'

pairs() {				# HOST: A holds, HOST tries
	local held want expected
	for held in ex sh; do
		actor "a-$held" A
		ask "a-$held" open rw "$(path_on A "f-$held")" >/dev/null
		expect "A takes $held" 'ok 0' "$(ask "a-$held" $held 0)"
		for want in ex sh; do
			expected=EAGAIN
			[ $held$want = shsh ] && expected='ok 0'
			actor "t-$held-$want" "$1"
			ask "t-$held-$want" open rw "$(path_on "$1" "f-$held")" >/dev/null
			expect "A has $held, $1 tries $want" "$expected" "$(ask "t-$held-$want" try$want 0)"
			ask "t-$held-$want" un 0 >/dev/null
		done
		expect 'unlock' 'ok 0' "$(ask "a-$held" un 0)"
		expect "free again: $1 tries ex" 'ok 0' "$(ask "t-$held-ex" tryex 0)"
		expect "and A is excluded" EAGAIN "$(ask "a-$held" trysh 0)"
	done
}
test_all_pairs_on_one_host() { pairs A; }
test_all_pairs_on_two_hosts() { pairs B; }

test_blocking_pairs_wait_exactly_when_they_conflict() {
	take a A f sh
	take b B f sh
	expect 'readers of two hosts together' 'ok 0' "$ANSWER"
	queue c C f ex
	ask a un 0 >/dev/null
	expect 'the writer waits for the other reader' true "$(waits c && echo true)"
	ask b un 0 >/dev/null
	got c 5
	expect 'the writer is let in' 'ok 0' "$ANSWER"
	queue a2 A f sh
	queue b2 B f sh
	ask c un 0 >/dev/null
	got a2 5
	expect 'a reader of A is let in' 'ok 0' "$ANSWER"
	got b2 5
	expect 'and one of B with it' 'ok 0' "$ANSWER"
}

test_many_readers_of_three_hosts_hold_at_once() {
	local host n
	for host in A B C; do
		for n in 1 2 3 4; do
			take "$host$n" $host f sh
			expect "reader $n of $host" 'ok 0' "$ANSWER"
		done
	done
	expect_busy A f
	expect_busy B f
	for host in A B C; do for n in 1 2 3 4; do ask "$host$n" un 0 >/dev/null; done; done
	expect_free B f
}

test_waiting_writer_is_not_starved_by_readers_of_other_hosts() {
	skip_unless 'Linux lets readers pass a waiting writer' not_control && return
	take a A f sh
	queue b B f ex
	queue c C f sh			# comes behind the writer
	ask a un 0 >/dev/null
	got b 5
	expect 'the writer is first' 'ok 0' "$ANSWER"
	expect 'the later reader still waits' true "$(waits c && echo true)"
	ask b un 0 >/dev/null
	got c 5
	expect 'then the reader' 'ok 0' "$ANSWER"
}

test_nested_readers_do_not_deadlock_while_a_writer_waits() {
	local f
	f=$(path_on A f)
	take a A f sh
	queue b B f ex
	LIMIT=5 on A flock -s "$f" flock -s "$f" true
	expect 'readers of a host that reads go on' 0 $?
	ask a un 0 >/dev/null
	got b 5
	expect 'the writer after them' 'ok 0' "$ANSWER"
}

test_reader_s_try_is_not_refused_because_a_writer_waits() {
	take a A f sh
	queue b B f ex
	expect_free C f -s
	expect_free A f -s
	expect_busy C f
}

test_first_come_first_served_across_hosts() {
	local who last=0
	skip_unless 'Linux wakes all waiters' not_control && return
	take a A f ex
	queue b1 B f ex
	queue a1 A f ex
	queue c1 C f ex
	queue b2 B f ex
	queue a2 A f ex
	tell a un 0
	for who in b1 a1 c1 b2 a2; do
		got $who 5
		expect "$who gets it in its turn" 'ok 0' "$ANSWER"
		assertTrue "$who comes after the one before" "[ $AT -gt $last ]"
		last=$AT
		tell $who un 0
	done
}

test_try_is_never_refused_when_nobody_holds() {
	local n refused=0 host
	actor a A; actor b B
	ask a open rw "$(path_on A f)" >/dev/null
	ask b open rw "$(path_on B f)" >/dev/null
	for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		for host in a b; do		# straight after the other's unlock: an idle cover there
			[ "$(ask $host tryex 0)" = 'ok 0' ] || refused=$((refused + 1))
			ask $host un 0 >/dev/null
		done
	done
	expect 'refused' 0 $refused
}

# With more to run than the machine has processors: messages are read late and many at a time.
test_try_is_never_refused_under_load() {
	local host n=0 pids='' load_pids=''
	for _ in 1 2 3; do
		timeout 40 sh -c 'while :; do :; done' "$WORK" & load_pids="$load_pids $!"
	done
	for host in A B; do
		LIMIT=30 on $host "$PROGS/turns" "$(path_on $host f)" "$WORK/turns" $n 2000 >"$WORK/turns.$host" 2>&1 &
		pids="$pids $!"
		n=$((n + 1))
	done
	wait $pids
	kill $load_pids 2>/dev/null
	expect 'on A' '0 refused' "$(cat "$WORK/turns.A")"
	expect 'on B' '0 refused' "$(cat "$WORK/turns.B")"
	rm -f "$WORK"/turns*
}

test_try_is_never_refused_straight_after_the_holder_s_close() {
	local n refused=0
	for n in 1 2 3 4 5 6 7 8 9 10; do
		take a$n A f ex
		ask a$n close 0 >/dev/null
		[ "$(try B f)" = free ] || refused=$((refused + 1))
		on A flock "$(path_on A f)" true
		[ "$(try B f -s)" = free ] || refused=$((refused + 1))
	done
	expect 'refused' 0 $refused
}

test_try_is_refused_while_the_lock_goes_from_program_to_program() {
	local n granted=0 now=a next=b swap
	skip_unless 'Linux frees the lock before the next in line takes it' not_control && return
	actor a A; actor b A; actor t B
	ask a open rw "$(path_on A f)" >/dev/null
	ask b open rw "$(path_on A f)" >/dev/null
	ask t open rw "$(path_on B f)" >/dev/null
	ask a ex 0 >/dev/null
	for n in 1 2 3 4 5 6 7 8 9 10; do
		tell $next ex 0
		wait_until 5 waits $next
		tell $now un 0			# next has it from here on: no moment without a holder
		tell t tryex 0
		got t 10
		[ "$ANSWER" = EAGAIN ] || { granted=$((granted + 1)); [ "$ANSWER" = 'ok 0' ] && ask t un 0 >/dev/null; }
		got $now
		got $next
		swap=$now now=$next next=$swap
	done
	expect 'granted although held' 0 $granted
}

test_try_is_answered_at_once_when_a_program_waits_in_the_kernel_there() {
	local begin
	take a A f ex
	queue a2 A f ex
	begin=$(now_us)
	expect_busy B f
	assertTrue "took $(($(now_us) - begin)) µs" "[ $(($(now_us) - begin)) -lt 700000 ]"
	tell a un 0
	got a2 5
	expect 'and the waiter is not disturbed' 'ok 0' "$ANSWER"
}

test_own_try_is_not_refused_by_the_agent_s_wait_for_the_other_host() {
	local n refused=0
	actor a A; actor b B
	ask a open rw "$(path_on A f)" >/dev/null
	ask b open rw "$(path_on B f)" >/dev/null
	for n in 1 2 3 4 5 6 7 8; do
		ask a ex 0 >/dev/null
		tell b ex 0
		wait_until 5 waits b
		tell a un 0			# A's agent, which waited in the kernel, wins and gives it to B
		got a
		got b 5
		ask b un 0 >/dev/null
		[ "$(ask a tryex 0)" = 'ok 0' ] || refused=$((refused + 1))
		ask a un 0 >/dev/null
	done
	expect 'refused' 0 $refused
}

test_lock_given_up_by_a_child_is_not_kept_by_locking_again() {
	take a A f ex
	queue b B f ex
	ask a fork 0 unlock >/dev/null
	got b 5
	expect 'the other host has it' 'ok 0' "$ANSWER"
	expect 'a try of the former holder' EAGAIN "$(ask a tryex 0)"
	tell a ex 0
	wait_until 5 waits a || fail 'the former holder has to wait'
	ask b un 0 >/dev/null
	got a 5
	expect 'then it is let in' 'ok 0' "$ANSWER"
}

test_cover_asked_for_by_two_hosts_at_once_reaches_both() {
	local n
	actor a A; actor b B; actor c C
	for n in 1 2 3 4 5 6 7 8; do
		ask a open rw "$(path_on A "g$n")" >/dev/null
		ask b open rw "$(path_on B "g$n")" >/dev/null
		ask c open rw "$(path_on C "g$n")" >/dev/null
		tell a ex $((n - 1)); tell b ex $((n - 1)); tell c sh $((n - 1))
		first_and_rest a b c || { fail "round $n: not all were let in"; return; }
	done
}
# Each of the actors gets an answer and unlocks, in whatever order.
first_and_rest() {
	local left="$*" who line end=$(($(now_us) + 8000000))
	while [ -n "${left// /}" ]; do
		[ "$(now_us)" -lt $end ] || return 1
		for who in $left; do
			got "$who" 0.02 || continue
			[ "$ANSWER" = 'ok 0' ] || return 1
			ask "$who" un $((n - 1)) >/dev/null
			left=$(printf '%s\n' $left | grep -vx "$who" | xargs)
		done
	done
}

. shunit2
