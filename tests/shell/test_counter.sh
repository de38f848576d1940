#!/bin/bash
# SPDX-License-Identifier: MIT
# Many processes on four hosts: one counter, random traffic, fence numbers.
. "$(dirname "$0")/lib.sh"
WORLD='A B C D'

test_a_hundred_processes_on_four_hosts_count_to_2000() {
	local host failed=0 pids=
	# shellcheck disable=SC2016
	for host in A B C D; do
		LIMIT=100 on $host bash -c 'for ((i = 0; i < 25; i++)); do "$1" "$2" "$3" 20 & all="$all $!"; done
			for pid in $all; do wait $pid || exit 1; done' x "$PROGS/counter" "$(path_on $host f)" "$WORK/count" & pids="$pids $!"
	done
	for host in $pids; do wait $host || failed=$((failed + 1)); done
	expect 'hosts on which a process failed' 0 $failed
	expect 'the counter' 2000 "$(cat "$WORK/count")"
	rm -f "$WORK/count"
}

test_random_traffic_on_four_hosts_never_overlaps_and_never_hangs() {
	local host n=0 rc worst=0 pids=
	for host in A B C D A B C D; do
		n=$((n + 1))
		LIMIT=30 on $host "$PROGS/traffic" "$(path_on $host f)" "$WORK/state" 6000 $((RANDOM + n)) >"$WORK/traffic.$n" 2>&1 & pids="$pids $!"
	done
	for n in $pids; do wait $n; rc=$?; [ $rc -le $worst ] || worst=$rc; done
	expect "0 fine, 1 overlap, 3 a call failed, 124 hang: $(cat "$WORK"/traffic.*)" 0 $worst
	for n in 1 2 3 4 5 6 7 8; do
		assertTrue "process $n got locks: $(cat "$WORK/traffic.$n")" "[ $(awk '/locks/ { print $1 + 0 }' "$WORK/traffic.$n") -ge 5 ]"
	done
	rm -f "$WORK/state" "$WORK"/traffic.*
}

# The fence of the present exclusive cover of f.
cover_fence() {
	redis_cli hgetall "$(store_key f)" | awk '/^c\// { getline; print $2; exit }'
}

test_fence_numbers_rise_from_host_to_host() {
	local host last=0 fence
	skip_unless 'no store' not_control && return
	for host in A B C D; do
		actor $host $host
		ask $host open rw "$(path_on $host f)" >/dev/null
	done
	for host in A B C D B A C; do
		expect 'locked' 'ok 0' "$(ask $host ex 0)"
		fence=$(cover_fence)
		assertTrue "$host has fence $fence after $last" "[ '${fence:-0}' -gt $last ]"
		last=${fence:-0}
		ask $host un 0 >/dev/null
	done
}
test_fence_numbers_never_fall_on_one_host() {
	local n last=0 fence
	skip_unless 'no store' not_control && return
	actor a A
	ask a open rw "$(path_on A f)" >/dev/null
	for n in 1 2 3 4 5; do
		ask a ex 0 >/dev/null
		fence=$(cover_fence)
		assertTrue "fence $fence after $last" "[ '${fence:-0}' -ge $last ]"
		last=${fence:-0}
		ask a un 0 >/dev/null
	done
}

. shunit2
