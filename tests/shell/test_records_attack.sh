#!/bin/bash
# SPDX-License-Identifier: MIT
# Record locks of programs that do what one hopes no program does.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B'

# Whether a thread of an actor waits: in the kernel's fcntl or flock, or for the agent's answer.
thread_waits() {
	local file number rest
	for file in /proc/"${ACTOR_PID[$1]}"/task/*/syscall; do
		read -r number rest 2>/dev/null <"$file" || continue
		case "$number $rest" in
		73\ * | 72\ 0x*\ 0x7\ * | 72\ 0x*\ 0x26\ *) return 0 ;;
		47\ *) not_control && waiters_are f 1 "$2" && return 0 ;;
		esac
	done
	return 1
}

# While a thread waits, its descriptor becomes that of the file g: g must not be locked by that.
replaced() {				# CALL… (of a thread); FAMILY is f or r
	local family=$1
	shift
	open_on a A
	ask a open rw "$(path_on A g)" >/dev/null
	open_on b B
	if [ "$family" = f ]; then ask b ex 0 >/dev/null; else has b setlk w 0 10; fi
	tell a thread 0 "$@"
	got a
	wait_until 5 thread_waits a "$family" || fail "$* should wait"
	ask a dup2 1 0 >/dev/null
	dismiss b
	tell a join
	got a
	expect "$*" EBADF "$ANSWER"
	open_on c A g
	has c setlk w 0 0
	expect 'flock of the other file' 'ok 0' "$(ask c tryex 0)"
	dismiss a c
	becomes_free B w 0 0 || fail "$*: f must be free again"
}
test_descriptor_that_becomes_another_files_during_a_wait_locks_nothing() { replaced r setlkw w s 0 10; }
test_ofd_descriptor_that_becomes_another_files_during_a_wait_locks_nothing() {
	skip_unless 'the kernel locks the file that it was' not_control && return
	replaced r osetlkw w s 0 10
}
test_flock_descriptor_that_becomes_another_files_during_a_wait_locks_nothing() {
	skip_unless 'the kernel locks the file that it was' not_control && return
	replaced f ex
}

test_more_locks_than_can_be_looked_at_one_by_one() {
	local count=8000 agent far=15001
	open_on b B
	on A "$PYTHON" -c '
import fcntl, sys
f = open(sys.argv[1], "w+")
for i in range(int(sys.argv[2])): fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 2 * i)
print("locked", flush=True)
sys.stdin.readline()
fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB, 2 * int(sys.argv[2]), 0)
print("shared", flush=True)
sys.stdin.readline()
' "$(path_on A f)" "$count" < <(wait_until 20 test -e "$WORK/go1" && echo; wait_until 20 test -e "$WORK/go2") >"$WORK/many" &
	wait_until 20 grep -qs locked "$WORK/many" || fail 'they should be locked'
	not_control && agent=$(agent_pid A)
	has b setlk w 1 1
	refused b setlk w 0 0
	refused b setlk r 0 0
	has b setlk w 3 1
	has b osetlk w $far 1
	refused b setlk w $far 2
	refused b setlk w 2 1
	refused b setlk r 5 $far
	has b setlk w $((2 * count)) 0
	has b setlk u 0 0
	has b osetlk u 0 0
	: >"$WORK/go1"
	wait_until 20 grep -qs shared "$WORK/many" || fail 'they should be shared'
	has b setlk r 0 0
	refused b setlk w 5 $far
	has b setlk u 0 0
	fc_queue b setlkw w 0 0
	: >"$WORK/go2"
	got b
	expect 'it gets all when they have gone' 'ok 0' "$ANSWER"
	not_control && expect 'the agent is the same' "$agent" "$(agent_pid A)"
	rm -f "$WORK/go1" "$WORK/go2" "$WORK/many"
	wait
}

test_holder_gets_more_though_others_wait_for_what_it_has() {
	local cmd
	for cmd in setlk osetlk; do
		open_on a A && open_on b B && open_on c A
		has a $cmd w 10 10
		fc_queue b ${cmd}w w 0 0
		fc_queue c ${cmd}w w 12 100
		tell a fc ${cmd}w 0 w s 15 40
		got a 5
		expect "$cmd: what lies beside its lock" 'ok 0' "$ANSWER"
		tell a fc ${cmd}w 0 w s 5 10
		got a 5
		expect "$cmd: also on the other side" 'ok 0' "$ANSWER"
		has a $cmd u 0 0
		got b 5
		expect "$cmd: then the next" 'ok 0' "$ANSWER"
		has b $cmd u 0 0
		got c 5
		expect "$cmd: and the last" 'ok 0' "$ANSWER"
		dismiss a b c
	done
}

# The kernel looks for deadlocks when a wait begins, and not among those that queue behind a wait of an open file description.
test_local_deadlock_is_seen_though_another_host_waits_for_the_same() {
	local first
	open_on a A && open_on b A && open_on c B
	has a setlk w 8 10
	has b setlk w 60 10
	fc_queue c setlkw w 8 5
	fc_queue b setlkw w 2 20
	tell a fc setlkw 0 w s 60 5
	got a 3
	if [ "$ANSWER" = EDEADLK ]; then
		first=a
	else
		got b 3
		first=b
		expect 'one of the two is refused' EDEADLK "$ANSWER"
	fi
	has $first setlk u 0 0
	[ $first = a ] || { got a 5; expect 'the other has its lock' 'ok 0' "$ANSWER"; has a setlk u 0 0; }
	got c 5
	expect 'the waiter of the other host' 'ok 0' "$ANSWER"
	has c setlk u 0 0
	[ $first = b ] || { got b 5; expect 'the other has its lock' 'ok 0' "$ANSWER"; }
}

# ---- storms: many owners on both hosts, random ranges of one file; never is anybody inside who must not be ----

STORM_SECONDS=${STORM_SECONDS:-5} STORM_OWNERS=${STORM_OWNERS:-3}
T_MS=10000				# an owner that is told of a lost lease would be an owner less

storm() {				# MIX…
	local seed=${SEED:-$RANDOM} host first=0 jobs='' job
	echo "    SEED=$seed: $*"
	on A true && on B true
	for host in A B; do
		LIMIT=$((STORM_SECONDS + 60)) on $host "$PROGS/storm" "$(path_on $host f)" "$WORK/table" $first "$STORM_OWNERS" $((2 * STORM_OWNERS)) \
			"$STORM_SECONDS" $((seed + first)) "$@" >"$WORK/storm.$host" 2>&1 &
		jobs="$jobs $!"
		first=$((first + STORM_OWNERS))
	done
	for job in $jobs; do wait "$job"; done
	for host in A B; do
		sed "s/^/    $host: /" "$WORK/storm.$host"
		assertTrue "SEED=$seed $*" "grep -q ' 0 odd, 0 overlaps, 0 hangs$' $WORK/storm.$host"
	done
	rm -f "$WORK/table"
	not_control || return 0
	becomes_free A w 0 0 && becomes_free B w 0 0 || fail "SEED=$seed $*: all are gone, and it must be free"
	dismiss probe_A_f probe_B_f
	wait_until 10 covers_are f 0 r || fail "SEED=$seed $*: after the linger time nothing is left in the store"
	expect 'nor a waiter' 0 "$(waiters f r)"
}
test_storm_of_tries() { storm both small multi closes forks; }
test_storm_of_waits() { storm both blocking large closes; }
test_storm_of_waits_and_deadlocks() { storm blocking multi readers small; }
test_storm_of_signals() { storm blocking alarms jumps small; }
test_storm_of_deaths() { storm both blocking kills closes forks; }
test_storm_of_stops() { storm blocking stops readers; }

. shunit2
