#!/bin/bash
# SPDX-License-Identifier: MIT
# Record locks as `dlock status` and F_GETLK show them of hosts that answer, and of hosts that do not.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B'

# json_on HOST EXPRESSION: of its status, as `s`; flocks(name), records(name): one lock of it.
json_on() {
	dlock "$1" status --json | "$PYTHON" -c "import json, sys
s = json.load(sys.stdin)
def one(name, family): return [l for l in s['locks'] if l['name'] == name and l['family'] == family][0]
def flocks(name): return one(name, 'flock')
def records(name): return one(name, 'record')
print($2)"
}
json_on_is() { [ "$(json_on "$1" "$2" 2>&1)" = "$3" ]; }
agent_on() { on "$1" flock "$(path_on "$1" first)" true; }
pid_there() { awk '/^NSpid:/ { print $NF }' "/proc/$1/status"; }
rows() { dlock "$@" | tr -s ' '; }
lingering() {				# HOST…: hosts that keep an idle cover for a minute
	local host
	end_world 2>/dev/null
	for host in "$@"; do HOST_EXTRA[$host]='linger = "60s";'; done
	T_MS=60000 new_world "$@"
}

test_each_record_lock_is_shown_with_kind_range_and_holder_on_every_host() {
	local host p o
	open_on a A && open_on b A && agent_on B
	has a setlk w 100 50
	has a setlk r 1000 0
	has b osetlk r 2000 10
	p=$(pid_there "${ACTOR_PID[a]}") o=$(pid_there "${ACTOR_PID[b]}")
	for host in A B; do
		expect "$host" "[('EX', 'record', 100, 150, $p), ('SH', 'record', 1000, None, $p), ('SH', 'ofd', 2000, 2010, $o)]" \
			"$(json_on $host "[(h['mode'], h['kind'], h['start'], h['end'], h['pid']) for h in records('t/f')['holders']]")"
		assertContains "$host: a range" "$(rows $host status)" "t/f EX record 100-150"
		assertContains "$host: to the end" "$(rows $host status)" "t/f SH record 1000-EOF"
		assertContains "$host: of a description" "$(rows $host status)" "t/f SH ofd 2000-2010"
	done
}

test_what_a_host_covers_beside_its_locks_is_one_row() {
	local host
	lingering A B
	open_on a A && agent_on B
	has a setlk w 100 50
	for host in A B; do
		expect "$host: rows" 2 "$(dlock $host status t/f | grep -c '^t/f ')"
		assertContains "$host: idle" "$(rows $host status t/f)" 't/f EX record 0-EOF (2 parts)'
	done
}

test_both_families_of_a_name_are_shown_by_name_and_by_path() {
	local host out
	open_on a A && agent_on B
	take b A f sh
	has a setlk w 5 1
	take c A g ex
	for host in A B; do
		for what in t/f "$(path_on $host f)"; do
			out=$(rows $host status "$what")
			assertContains "$host $what: flock" "$out" 't/f SH flock - '
			assertContains "$host $what: record lock" "$out" 't/f EX record 5-6 '
			assertNotContains "$host $what: nothing else" "$out" 't/g'
		done
		out=$(rows $host check "$(path_on $host f)")
		assertContains "$host check: flock" "$out" 't/f SH flock - '
		assertContains "$host check: record lock" "$out" 't/f EX record 5-6 '
		assertContains "$host: a free one" "$(dlock $host status t/nothing)" 'Nobody holds it'
	done
}

test_waiters_are_shown_with_what_they_wait_for() {
	open_on a A && open_on b A && open_on c B
	has a setlk w 0 10
	fc_queue b setlkw w 5 10
	fc_queue c setlkw r 7 1
	assertTrue 'in the kernel' "wait_until 5 json_on_is B \"[(w['kind'], w['start'], w['end'], w['mode']) for w in records('t/f')['waiters'] if w['where'] == 'kernel']\" \"[('record', 5, 15, 'EX')]\""
	assertTrue 'in the store' "wait_until 5 json_on_is A \"[(w['kind'], w['start'], w['end'], w['mode'], w['try']) for w in records('t/f')['waiters'] if w['where'] == 'store']\" \"[('record', 7, 8, 'SH', False)]\""
	assertContains 'a row' "$(rows A status)" 't/f SH record 7-8'
	expect 'the holder' "['recalled']" "$(json_on B "sorted(set(c['state'] for c in records('t/f')['covers'] if c['start'] <= 7 and (c['end'] or 99) > 7 and c['mode'] == 'EX'))")"
}

test_a_thousand_locks_are_read_at_once_and_summed_up() {
	local i
	agent_on B
	spawn A "$PYTHON" -c 'import fcntl, os, signal, sys
f = open(sys.argv[1], "w")
for n in range(1000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 10 * n)
os.kill(os.getpid(), signal.SIGSTOP)' "$(path_on A f)"
	wait_until 20 grep -qs '^State:.T' "/proc/$SPAWNED/status" || fail 'the program does not get that far'
	for host in A B; do
		expect "$host: all of them" 1000 "$(json_on $host "len(records('t/f')['holders'])")"
		i=$(dlock $host status t/f | grep -c '^t/f ')
		assertTrue "$host: $i rows" "[ $i -le 22 ]"
		assertContains "$host: the others" "$(rows $host status t/f)" '+ 980 (more)'
	done
}

test_a_lock_kept_by_a_mapping_alone_is_shown() {
	agent_on B
	echo x >>"$(seen A f)"
	spawn A "$PYTHON" -c 'import fcntl, mmap, os, signal, struct, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 1)
fcntl.fcntl(f, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 3, 4, 0))
os.closerange(3, 100)
os.kill(os.getpid(), signal.SIGSTOP)' "$(path_on A f)"
	wait_until 10 grep -qs '^State:.T' "/proc/$SPAWNED/status" || fail 'the program does not get that far'
	for host in A B; do
		expect "$host" "[('EX', 'ofd', 3, 7, $(pid_there "$SPAWNED"))]" \
			"$(json_on $host "[(h['mode'], h['kind'], h['start'], h['end'], h['pid']) for h in records('t/f')['holders']]")"
	done
	open_on b B
	expect 'and F_GETLK' 'ok w 3 4 -1' "$(fc b getlk r 0 0)"
}

test_getlk_fears_what_a_silent_host_covers_and_does_not_wait_for_long() {
	local from to
	open_on a A && open_on b B && open_on c B
	has c setlk w 500 10		# so that A is given no more than it asks for
	has a setlk w 0 10
	has c setlk u 0 0
	freeze_host A
	from=$(now_us)
	expect 'somebody may hold it' 'ok w 0 10 -1' "$(fc b getlk w 0 0)"
	to=$(now_us)
	assertTrue "it took $(((to - from) / 1000)) ms" "[ $((to - from)) -lt 1000000 ]"
	expect 'beside it' 'ok u' "$(fc b getlk w 10 10)"
	thaw_host A
	assertTrue 'who it is, when it answers again' "wait_until 5 getlk_is b 'ok w 0 10 $(pid_for B a)'"
}
getlk_is() { [ "$(fc "$1" getlk w 0 0)" = "$2" ]; }

test_who_asks_and_dies_leaves_nothing_behind() {
	local agent
	open_on a A && open_on b B && open_on c B && agent_on B
	has a setlk w 0 10
	agent=$(agent_pid B)
	freeze_host A
	tell b fc getlk 0 w s 0 0
	nap 0.1
	dismiss b
	thaw_host A
	assertTrue 'another one is answered' "wait_until 5 getlk_is c 'ok w 0 10 $(pid_for B a)'"
	expect 'by the same agent' "$agent" "$(agent_pid B)"
}

test_getlk_names_the_lowest_lock_of_several_hosts() {
	open_on a A && open_on b B
	host_new C && open_on c C
	has a setlk r 0 10
	has b setlk r 5 10
	expect 'the lowest one' "ok r 0 10 $(pid_for C a)" "$(fc c getlk w 0 0)"
	expect 'the other one' "ok r 5 10 $(pid_for C b)" "$(fc c getlk w 12 0)"
	expect 'no reader is in the way' 'ok u' "$(fc c getlk r 0 0)"
	expect 'beside them' 'ok u' "$(fc c getlk w 15 0)"
}

. shunit2
