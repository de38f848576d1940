#!/bin/bash
# SPDX-License-Identifier: MIT
# Cycles of programs that wait for each other's record locks over hosts: one is refused, nobody else ever.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B C'

DEADLOCK_US=${DEADLOCK_US:-1000000}	# a victim must be found within this
DEADLOCK_RUNS=${DEADLOCK_RUNS:-1000}	# random runs; the long form has 10,000

open_files() {				# NAME HOST: files f, g, h in slots 0, 1, 2
	open_on "$1" "$2" f
	ask "$1" open rw "$(path_on "$2" g)" >/dev/null
	ask "$1" open rw "$(path_on "$2" h)" >/dev/null
}
wants() {				# NAME TYPE START LEN SLOT [CMD]: asks and must wait
	fc_queue "$1" "${6:-setlkw}" "$2" "$3" "$4" "$5"
}
# Those who wait in a cycle: one is the victim, within a second of BEGAN; the others go on waiting until it lets go.
one_victim() {
	local began=$1 name end took
	shift
	VICTIM=
	end=$((began + 5000000))
	while [ -z "$VICTIM" ] && [ "$(now_us)" -lt $end ]; do
		for name in "$@"; do
			got "$name" 0.02 || continue
			VICTIM=$name took=$((AT - began))
			break
		done
	done
	if [ -z "$VICTIM" ]; then
		fail "nobody of $* was refused in 5 s"
		return 1
	fi
	echo "    $took µs until a victim was found"
	expect "what $VICTIM is told" EDEADLK "$ANSWER"
	assertTrue "it took $took µs" "[ $took -lt $DEADLOCK_US ]"
	for name in "$@"; do
		[ "$name" = "$VICTIM" ] || still_waits "$name" "the victim $VICTIM still holds its lock"
	done
}
lets_go() { local slot; for slot in 0 1 2; do expect "$1 unlocks" 'ok 0' "$(fc "$1" setlk u 0 0 $slot)"; done; }
# Then everybody gets what it waits for, one after the other.
others_go_on() {
	local name left=" $* " last
	left=${left/ $VICTIM / }
	lets_go "$VICTIM"
	while [ -n "${left// /}" ]; do
		last=
		for end in 1 2 3 4 5 6 7 8 9 10 11 12; do
			for name in $left; do got "$name" 0.3 && last=$name && break 2; done
		done
		[ -n "$last" ] || { fail "nobody of$left goes on"; return; }
		expect "$last goes on" 'ok 0' "$ANSWER"
		lets_go "$last"
		left=${left/ $last / }
	done
}
# cycle NAME HOST SLOT…: each holds its own range of that file and waits for the next one's.
cycle() {
	local names=() hosts=() slots=() n i next began
	while [ $# -gt 0 ]; do names+=("$1") hosts+=("$2") slots+=("$3"); shift 3; done
	n=${#names[@]}
	for ((i = 0; i < n; i++)); do
		open_files "${names[i]}" "${hosts[i]}"
		expect "${names[i]} holds" 'ok 0' "$(fc "${names[i]}" setlk w $((i * 10)) 10 "${slots[i]}")"
	done
	for ((i = 0; i < n - 1; i++)); do
		next=$(((i + 1) % n))
		wants "${names[i]}" w $((next * 10 + 3)) 5 "${slots[next]}"
	done
	for ((i = 0; i < n - 1; i++)); do still_waits "${names[i]}" 'no cycle yet'; done
	began=$(now_us)
	tell "${names[n - 1]}" fc setlkw "${slots[0]}" w s 3 5
	one_victim "$began" "${names[@]}" && others_go_on "${names[@]}"
	dismiss "${names[@]}"
}

test_cycle_through_two_hosts() { cycle a A 0 b B 0; }
test_cycle_through_two_files() { cycle a A 0 b B 1; }
test_cycle_through_three_hosts() { cycle a A 0 b B 0 c C 0; }
test_cycle_through_three_hosts_and_files() { cycle a A 0 b B 1 c C 2; }
test_cycle_with_local_and_remote_edges() {
	cycle a A 0 a2 A 0 b B 0
	cycle a A 0 b B 1 b2 B 1 a2 A 2
	cycle a A 0 a2 A 1 b B 2 b2 B 0 c C 1 c2 C 2
}
test_cycle_is_closed_by_any_of_its_programs() {
	cycle b B 1 a A 0 a2 A 0
	cycle a2 A 0 b B 1 a A 0
}

test_local_cycle_is_refused_at_once() {
	local DEADLOCK_US=200000
	cycle a A 0 a2 A 0
	cycle a A 0 a2 A 1 a3 A 2
}

test_lockf_waits_are_checked() {
	local began
	open_files a A && open_files b B
	has a setlk w 0 10
	expect 'b holds' 'ok 0' "$(fc b setlk w 0 10 1)"
	tell a lockf 1 lock 5
	wait_until 5 waits a || fail 'a should wait'
	began=$(now_us)
	tell b lockf 0 lock 5
	one_victim "$began" a b && others_go_on a b
}

test_two_upgraders_are_a_cycle() {
	local began
	open_on a A && open_on b B
	has a setlk r 0 100
	has b setlk r 50 100
	tell a fc setlkw 0 w s 0 100
	wait_until 5 waits a
	still_waits a 'b reads'
	began=$(now_us)
	tell b fc setlkw 0 w s 50 100
	if one_victim "$began" a b; then
		is C w 0 10 busy 'the victim has kept what it held'
		is C w 140 10 busy 'the victim has kept what it held'
		has "$VICTIM" setlk u 0 0
		[ "$VICTIM" = a ] && set -- b || set -- a
		got "$1" 10
		expect 'the other one writes' 'ok 0' "$ANSWER"
	fi
}

test_three_upgraders_end_with_one_writer() {
	local began first
	open_on a A && open_on b B && open_on c C
	has a setlk r 0 10
	has b setlk r 0 10
	has c setlk r 0 10
	fc_queue a setlkw w 0 10
	began=$(now_us)
	tell b fc setlkw 0 w s 0 10
	one_victim "$began" a b || return
	first=$VICTIM
	has "$first" setlk u 0 0
	[ "$first" = a ] && set -- b || set -- a
	still_waits "$1" 'c reads'
	began=$(now_us)
	tell c fc setlkw 0 w s 0 10
	one_victim "$began" "$1" c || return
	has "$VICTIM" setlk u 0 0
	[ "$VICTIM" = c ] || set -- c
	got "$1" 10
	expect 'the last one writes' 'ok 0' "$ANSWER"
}

test_threads_of_one_process_are_one_owner() {
	local began
	open_files a A && open_files b B
	has a setlk w 0 10
	expect 'b holds' 'ok 0' "$(fc b setlk w 0 10 1)"
	expect 'a thread of a' 'ok 0' "$(ask a thread 1 'setlkw w s 0 10')"
	[ "$HOSTS" = k ] || assertTrue 'the thread waits' 'wait_until 5 waiters_are g 1 r'
	nap 0.1
	began=$(now_us)
	tell b fc setlkw 0 w s 0 10
	if [ "$HOSTS" = k ]; then
		got b 5
		expect 'the kernel' EDEADLK "$ANSWER"
	else
		tell a join
		one_victim "$began" a b
	fi
}

# ---- what is no deadlock ----

nobody_is_refused() {			# SECONDS NAME…
	local seconds=$1 name
	shift
	nap "$seconds"
	for name in "$@"; do got "$name" 0.01 && fail "$name must wait, as on Linux: $ANSWER"; done
}

test_ofd_waits_are_not_checked() {
	open_files a A && open_files b B
	expect 'a' 'ok 0' "$(fc a osetlk w 0 10 0)"
	expect 'b' 'ok 0' "$(fc b osetlk w 0 10 1)"
	ask a alarm 3000 interrupt >/dev/null
	wants a w 0 10 1 osetlkw
	wants b w 0 10 0 osetlkw
	nobody_is_refused 2 a b
	got a 5
	expect 'the alarm ends its wait' EINTR "$ANSWER"
	expect 'a lets go' 'ok 0' "$(fc a osetlk u 0 0 0)"
	got b 5
	expect 'b goes on' 'ok 0' "$ANSWER"
}

test_flock_waits_are_not_checked() {
	open_files a A && open_files b B
	ask a ex 0 >/dev/null
	ask b ex 1 >/dev/null
	ask a alarm 3000 interrupt >/dev/null
	tell a ex 1
	tell b ex 0
	nobody_is_refused 2 a b
	got a 5
	expect 'the alarm ends its wait' EINTR "$ANSWER"
	ask a un 0 >/dev/null
	got b 5
	expect 'b goes on' 'ok 0' "$ANSWER"
}

test_posix_wait_for_an_ofd_lock_is_not_a_cycle() {
	open_files a A && open_files b B
	has a setlk w 0 10
	expect 'b' 'ok 0' "$(fc b osetlk w 0 10 1)"
	ask a alarm 3000 interrupt >/dev/null
	wants a w 0 10 1
	wants b w 0 10 0 osetlkw
	nobody_is_refused 2 a b
	got a 5
	expect 'the alarm ends its wait' EINTR "$ANSWER"
	has a setlk u 0 0
	got b 5
	expect 'b goes on' 'ok 0' "$ANSWER"
}

test_long_wait_without_a_cycle_is_not_refused() {
	open_files a A && open_files b B && open_files c C && open_files a2 A
	has a setlk w 0 10
	expect 'b' 'ok 0' "$(fc b setlk w 0 10 1)"
	expect 'c' 'ok 0' "$(fc c setlk w 0 10 2)"
	wants c w 0 10 1
	wants b w 0 10 0
	wants a2 w 0 10 2
	nobody_is_refused 1.5 b c a2
	VICTIM=a
	others_go_on a b c a2
}

test_cycle_that_a_signal_has_ended_refuses_nobody() {
	open_files a A && open_files b B
	has a setlk w 0 10
	expect 'b' 'ok 0' "$(fc b setlk w 0 10 1)"
	ask a alarm 150 interrupt >/dev/null
	tell a fc setlkw 1 w s 0 10
	got a 5
	expect 'its wait is over' EINTR "$ANSWER"
	wants b w 0 10 0
	nobody_is_refused 1 b
	has a setlk u 0 0
	got b 5
	expect 'b goes on' 'ok 0' "$ANSWER"
}

# On Linux a reader passes a waiting writer, so this is no cycle: c's read lock of f is compatible with a's.
test_reader_is_not_refused_because_a_writer_waits_before_it() {
	open_files a A && open_files b B && open_files c C
	has a setlk r 0 10
	expect 'c holds g' 'ok 0' "$(fc c setlk w 0 10 1)"
	wants b w 0 10 0
	wants a w 0 10 1
	expect 'c reads what a reads' 'ok 0' "$(LIMIT=8 fc c setlkw r 0 10 0)"
	lets_go c
	got a 5
	expect 'a goes on' 'ok 0' "$ANSWER"
	lets_go a
	got b 5
	expect 'b goes on' 'ok 0' "$ANSWER"
}

test_random_owners_that_lock_in_one_order_are_never_refused() {
	local host pids='' rc worst=0 n=0 seed=${SEED:-$RANDOM} began
	echo "    SEED=$seed DEADLOCK_RUNS=$DEADLOCK_RUNS"
	began=$(now_us)
	for host in A B C; do
		n=$((n + 1))
		LIMIT=$((60 + DEADLOCK_RUNS / 20)) on $host "$PROGS/order" "$(path_on $host o)" "$WORK/state" $(((DEADLOCK_RUNS + 2) / 3)) $((seed + n)) >"$WORK/order.$n" 2>&1 &
		pids="$pids $!"
	done
	for n in $pids; do wait "$n"; rc=$?; [ $rc -le $worst ] || worst=$rc; done
	sed 's/^/    /' "$WORK"/order.? | tail -12
	echo "    $((($(now_us) - began) / 1000)) ms"
	expect '0 fine, 1 refused or overlap, 124 hang' 0 $worst
	expect 'each says how many' 3 "$(cat "$WORK"/order.? | grep -c '^[0-9].* 0 deadlocks 0 overlaps 0 errors')"
	rm -f "$WORK"/order.? "$WORK/state"
}

. shunit2
