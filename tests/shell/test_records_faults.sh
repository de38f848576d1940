#!/bin/bash
# SPDX-License-Identifier: MIT
# Record locks when things die, stop, are cut off or lie: several ranges of several programs on three hosts, POSIX and OFD, with waiters.
T_MS=${T_MS:-2400}
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A:cut B C'

# What is held, and who waits for it:
#   A  p w 0 10   o w 20 10   o r 40 10   p2 w 60 10     waiters: wp r 100 5
#   B  q w 100 10  q2 r 40 10                            waiters: wq w 5 20 (p and o stand against it)
#   C  s r 40 10                                         waiters: ws w 60 5
parts_are_held() {
	open_on p A && open_on o A && open_on p2 A && open_on q B && open_on q2 B && open_on s C || return 1
	has p setlk w 0 10
	has o osetlk w 20 10
	has o osetlk r 40 10
	has p2 setlk w 60 10
	has q setlk w 100 10
	has q2 osetlk r 40 10
	has s setlk r 40 10
}
waiters_come() {
	open_on wp A && open_on wq B && open_on ws C || return 1
	fc_queue wp osetlkw r 100 5
	fc_queue wq setlkw w 5 20
	fc_queue ws setlkw w 60 5
}
# What must be true as long as nobody has let go of anything, asked everywhere.
all_is_as_it_was() {
	local host name
	for name in wp wq ws; do [ -z "${ACTOR_PID[$name]:-}" ] || still_waits $name "$*"; done
	for host in A B C; do
		is $host w 9 1 busy "$*: p has it"
		is $host r 29 1 busy "$*: o has it"
		is $host w 45 1 busy "$*: three read"
		is $host r 69 1 busy "$*: p2 has it"
		is $host r 109 1 busy "$*: q has it"
		is $host w 12 6 free "$*: between"
		is $host w 200 0 free "$*: behind"
	done
}
# The ranges become free one by one, and whoever waits gets his, and nobody else's.
all_is_handed_over() {
	has p setlk u 0 0
	still_waits wq "$*: o still stands against it"
	is C w 0 5 free "$*: what p had and nobody wants"
	has o osetlk u 20 10
	got wq 10
	expect "$*: wq" 'ok 0' "$ANSWER"
	is A w 24 1 busy "$*: wq has it"
	is A w 25 5 free "$*: the rest of what o had"
	kill_actor p2
	got ws 10
	expect "$*: ws" 'ok 0' "$ANSWER"
	is B r 60 1 busy "$*: ws has it"
	is B w 65 5 free "$*: the rest of what p2 had"
	has q setlk u 0 0
	got wp 10
	expect "$*: wp" 'ok 0' "$ANSWER"
	is C r 100 5 free "$*: wp reads"
	is C w 100 5 busy "$*: wp reads"
	has o osetlk u 0 0
	is A w 45 1 busy "$*: two read"
	kill_actor q2
	dismiss s
	becomes_free A w 40 10 || fail "$*: the readers are gone"
}

agent_is_replaced() {			# HOST SIGNAL: another one within T/6 + 1 s
	local old
	old=$(agent_pid "$1") || { fail "no agent on $1"; return; }
	kill -"$2" "$old"
	wait_until 10 agent_is_new "$1" "$old" || { fail "no new agent on $1 after SIG$2"; return; }
	wait_until 2 gone "$old" || fail 'the old one is still there'
}

test_agents_killed_while_ranges_are_held() {
	parts_are_held
	waiters_come
	agent_is_replaced A KILL
	all_is_as_it_was 'the agent of A was killed'
	agent_is_replaced B KILL
	agent_is_replaced A KILL
	all_is_as_it_was 'the agents of A and B were killed'
	all_is_handed_over 'after that'
}

test_stopped_agent_while_ranges_are_held() {
	parts_are_held
	waiters_come
	agent_is_replaced A STOP
	all_is_as_it_was 'the agent of A was stopped'
	agent_is_replaced C STOP
	all_is_handed_over 'the agent of C too'
}

# What is released while no agent is there is noticed by the next one.
test_ranges_released_while_there_is_no_agent() {
	local agent
	parts_are_held
	waiters_come
	agent=$(agent_pid A)
	kill -STOP "$agent"
	has p setlk u 0 0
	ask o close 0 >/dev/null
	kill_actor p2
	got wq 10
	expect 'wq' 'ok 0' "$ANSWER"
	got ws 10
	expect 'ws' 'ok 0' "$ANSWER"
	agent_is_new A "$agent" || fail 'the same agent'
	is C w 0 5 free 'the rest'
	is C w 65 5 free 'the rest'
	is A w 45 1 busy 'the readers of B and C'
}

test_killed_guard_and_then_the_agent() {
	local guard agent
	parts_are_held
	waiters_come
	guard=$(guard_pid A)
	kill -KILL "$guard"
	wait_until 3 gone "$guard"
	all_is_as_it_was 'the guard was killed'
	agent=$(agent_pid A) || agent=$(dlockds A | tail -1)
	kill -KILL $agent
	wait_until 3 gone "$agent"
	is A w 200 1 free 'a lock starts another agent'
	all_is_as_it_was 'the agent was killed too'
	all_is_handed_over 'after that'
}


# Nobody keeps the descriptions then: who holds is found in /proc, for every name.
test_guard_and_agent_killed_at_once() {
	local file guard agent
	for file in e f g; do
		open_on p$file A $file && open_on w$file B $file
		has p$file setlk w 0 10
		fc_queue w$file setlkw w 5 1
	done
	open_on o A h && open_on wo B h
	has o osetlk w 0 10
	fc_queue wo setlkw w 5 1
	take l A i ex
	queue wl B i ex
	guard=$(guard_pid A) agent=$(agent_pid A)
	kill -KILL "$guard" "$agent"
	wait_until 3 gone "$agent"
	open_on x A x
	expect 'a lock starts another agent' 'ok 0' "$(fc x setlk w 0 1)"
	for file in e f g o l; do still_waits w$file 'it is held'; done
	for file in e f g; do
		has p$file setlk u 0 0
		got w$file 5
		expect "w$file" 'ok 0' "$ANSWER"
	done
	has o osetlk u 0 0
	got wo 5
	expect 'wo' 'ok 0' "$ANSWER"
	ask l un 0 >/dev/null
	got wl 5
	expect 'wl' 'ok 0' "$ANSWER"
}

test_many_waiters_and_a_new_agent() {
	local i waiter
	open_on p A
	for i in 0 1 2 3 4 5 6 7 8 9; do has p setlk w $((i * 10)) 5; done
	: >"$(seen B f)"
	spawn B "$PYTHON" -c 'import fcntl, os, struct, sys, threading
def wait(i):
    file = open(sys.argv[1], "r+")
    fcntl.fcntl(file, 38, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, i % 10 * 10 + i // 10, 1, 0))
    os.write(1, b"got\n")
for i in range(50):
    threading.Thread(target=wait, args=(i,)).start()' "$(path_on B f)" >"$WORK/many" 2>&1
	waiter=$SPAWNED
	assertTrue 'all wait' 'wait_until 10 waiters_are f 50 r'
	agent_is_replaced A KILL
	expect 'nobody has got anything' '' "$(cat "$WORK/many")"
	for i in 0 2 4 6 8; do has p setlk u $((i * 10)) 5; done
	assertTrue 'half of them' 'wait_until 5 have_got 25'
	has p setlk u 0 0
	assertTrue 'all of them' 'wait_until 5 have_got 50'
	wait_until 5 gone "$waiter"
	is A w 0 0 free 'all are gone'
}
have_got() { [ "$(grep -c got "$WORK/many")" = "$1" ]; }

# ---- the store ----

# A new range is granted, which a grace has to have ended for.
new_range() {				# HOST
	open_on n "$1"
	tell n fc setlkw 0 w s 300 10
	got n $((T_MS * 4 / 1000))
	expect 'a new range' 'ok 0' "$ANSWER"
	dismiss n
	becomes_free "$1" w 300 10
}

test_store_that_forgot_is_told_each_range_again() {
	parts_are_held
	waiters_come
	kill_redis
	start_redis
	new_range C
	all_is_as_it_was 'the store was empty'
	all_is_handed_over 'after the grace'
}

test_ranges_released_in_grace() {
	parts_are_held
	waiters_come
	redis_cli flushall >/dev/null
	wait_until 5 eval 'agent_log A | grep -q re-asserting' || fail 'no grace'
	has p setlk u 0 0
	has o osetlk u 20 10
	kill_actor p2
	got wq $((T_MS * 3 / 1000))
	expect 'wq' 'ok 0' "$ANSWER"
	got ws 10
	expect 'ws' 'ok 0' "$ANSWER"
	is A w 24 1 busy 'wq has it'
	is C w 0 5 free 'what p had'
	is C w 45 1 busy 'three read'
	still_waits wp 'q has it'
}

test_snapshot_of_earlier_times() {
	parts_are_held
	waiters_come
	redis_cli save >/dev/null
	cp "$WORK/redis/dump.rdb" "$WORK/old.rdb"
	has p setlk u 0 0
	open_on x C && open_on y B
	has x setlk w 0 5
	has y setlk w 300 10
	has o osetlk u 40 10
	kill_redis
	mv "$WORK/old.rdb" "$WORK/redis/dump.rdb"
	start_redis
	rm -f "$WORK/redis/dump.rdb"
	open_on n C
	tell n fc setlkw 0 w s 400 10
	got n $((T_MS * 4 / 1000))
	expect 'a new range' 'ok 0' "$ANSWER"
	for name in wp wq ws; do still_waits $name 'as before'; done
	is A w 0 5 busy 'x has it, the snapshot says p'
	is B w 0 5 busy 'x has it, the snapshot says p'
	is C w 5 5 free 'p has let go, the snapshot says it holds'
	is A w 300 1 busy 'y has it, the snapshot says nobody'
	is A w 45 1 busy 'q2 and s read'
	has o osetlk u 20 10
	got wq 10
	expect 'wq' 'ok 0' "$ANSWER"
	is A w 25 5 free 'the rest of what o had'
}

# What the dead agent held nobody can tell the new store; the holders end before anybody else has their ranges.
test_store_forgets_and_the_agent_dies() {
	local name
	parts_are_held
	waiters_come
	kill_redis
	kill -KILL "$(agent_pid A)"
	start_redis
	for name in wq ws; do
		got $name $((T_MS * 4 / 1000))
		expect "$name" 'ok 0' "$ANSWER"
		assertTrue "$name has it after the holders' end" "gone ${ACTOR_PID[p]} && gone ${ACTOR_PID[o]} && gone ${ACTOR_PID[p2]}"
	done
	still_waits wp 'q has it, its agent lives'
	expect 'q' 'ok' "$(ask q now)"
	is A w 24 1 busy 'wq has it'
}

lose_connections() { redis_cli client kill type normal skipme yes >/dev/null; redis_cli client kill type pubsub >/dev/null; }
test_connections_lost_at_each_step() {
	parts_are_held
	lose_connections
	waiters_come
	lose_connections
	has p setlk u 0 0
	lose_connections
	has o osetlk u 20 10
	lose_connections
	got wq 10
	expect 'wq' 'ok 0' "$ANSWER"
	kill_actor p2
	lose_connections
	got ws 10
	expect 'ws' 'ok 0' "$ANSWER"
	has q setlk u 0 0
	lose_connections
	got wp 10
	expect 'wp' 'ok 0' "$ANSWER"
	becomes_free A w 25 5 || fail 'the rest of what o had'
	is C w 100 5 busy 'wp reads'
	is C w 24 1 busy 'wq has it'
	is C r 45 1 free 'three read'
}

test_full_store_still_takes_ranges_back() {
	parts_are_held
	waiters_come
	redis_cli config set maxmemory 1 >/dev/null
	open_on n C
	expect 'a new range in a full store' ENOLCK "$(fc n setlk w 300 10)"
	has p setlk u 0 0
	has o osetlk u 20 10
	got wq 10
	expect 'wq' 'ok 0' "$ANSWER"
	has q setlk u 0 0
	got wp 10
	expect 'wp' 'ok 0' "$ANSWER"
	redis_cli config set maxmemory 0 >/dev/null
	becomes_free C w 25 5 || fail 'new ranges again'
	is A w 24 1 busy 'wq has it'
}

test_store_that_pauses_for_a_quarter_of_the_lease() {
	local pid
	parts_are_held
	waiters_come
	pid=$(redis_process)
	kill -STOP "$pid"
	has p setlk u 0 0
	nap "$(awk "BEGIN { print $T_MS / 4000 }")"
	kill -CONT "$pid"
	has o osetlk u 20 10
	got wq 10
	expect 'wq' 'ok 0' "$ANSWER"
	for name in o p2 q q2 s; do expect "$name lives" ok "$(ask $name now)"; done
	is A w 24 1 busy 'wq has it'
	is A w 25 5 free 'the rest of what o had'
}

# ---- the lease ----

test_holders_and_heirs_end_before_others_have_their_ranges() {
	local heir child cut last name
	parts_are_held
	waiters_come
	ask p fork 0 hold >/dev/null			# inherits no POSIX lock
	child=$(pgrep -P "${ACTOR_PID[p]}")
	ask o fork 0 hold >/dev/null			# an heir of the description
	heir=$(pgrep -P "${ACTOR_PID[o]}")
	kill_actor o
	kill -STOP "${ACTOR_PID[p2]}"
	open_on bystander A
	cut=$(now_us)
	cut_off A
	assertTrue 'the holders end' "wait_until $((T_MS / 1000 + 1)) eval 'gone ${ACTOR_PID[p]} && gone ${ACTOR_PID[p2]} && gone $heir'"
	last=$(now_us)
	assertTrue "after $(((last - cut) / 1000)) ms, before T" "[ $(((last - cut) / 1000)) -lt $T_MS ]"
	for name in wq ws; do
		got $name $((T_MS * 2 / 1000))
		expect "$name" 'ok 0' "$ANSWER"
		assertTrue "$name has it $(((AT - last) / 1000)) ms later" "[ $AT -gt $last ]"
	done
	expect 'who merely has the file open lives' ok "$(ask bystander now)"
	assertFalse 'so does the child of the POSIX holder' "gone $child"
	still_waits wp 'q has it'
	join_again A
	has q setlk u 0 0
	got wp $((T_MS * 3 / 1000))
	expect 'wp, in the new session' 'ok 0' "$ANSWER"
	is C w 100 5 busy 'wp reads'
	is A w 24 1 busy 'wq has it'
	is A w 25 5 free 'nobody has it'
}

# A holder that lives on must not keep its host from a new session.
test_host_of_a_holder_that_is_only_told_comes_back() {
	local server
	server=$(sed -n 's/.*"\(redis:[^"]*\)".*/\1/p' "$WORK/A/conf")
	RULE_EXTRA[A]='on_lost = "log";'
	host_config A "$server" >"$WORK/A/conf"
	parts_are_held
	waiters_come
	cut_off A
	got wq $((T_MS * 2 / 1000 + 1))
	expect 'wq' 'ok 0' "$ANSWER"
	for name in p o p2; do expect "$name lives" ok "$(ask $name now)"; done
	expect 'the log names each' 3 "$(agent_log A | grep -c 'on_lost is "log"')"
	join_again A
	has q setlk u 0 0
	got wp $((T_MS * 3 / 1000))
	expect 'wp, in the new session' 'ok 0' "$ANSWER"
	is C w 100 5 busy 'wp reads'
	is A w 300 10 free 'a new range'
}

# ---- files and rules ----

test_file_made_anew_while_ranges_are_held() {
	open_on p A && open_on o A
	has p setlk w 0 10
	has o osetlk w 20 10
	rm "$(seen A f)"
	open_on p2 A && open_on w1 B && open_on w2 B && open_on w3 B
	has p2 setlk w 5 10				# another inode of the same name
	fc_queue w1 setlkw w 0 5
	fc_queue w2 setlkw r 7 6
	fc_queue w3 osetlkw w 20 1
	agent_is_replaced A KILL
	for name in w1 w2 w3; do still_waits $name 'held on one of the inodes'; done
	has p setlk u 0 0
	got w1 5
	expect 'w1' 'ok 0' "$ANSWER"
	still_waits w2 'held on the new inode'
	has p2 setlk u 0 0
	got w2 5
	expect 'w2' 'ok 0' "$ANSWER"
	kill_actor o
	got w3 5
	expect 'w3' 'ok 0' "$ANSWER"
	is A w 0 5 busy 'w1 has it'
}

test_rule_renamed_and_removed_while_ranges_are_held() {
	local agent
	parts_are_held
	waiters_come
	agent=$(agent_pid A)
	sed -i 's|name = "t/{tail}"|name = "u/{tail}"|' "$WORK/A/conf"
	open_on n A
	expect 'under the new name' 'ok 0' "$(fc n setlk w 400 5)"
	for name in wp wq ws; do still_waits $name 'the old name'; done
	has p setlk u 0 0
	has o osetlk u 20 10
	got wq 5
	expect 'wq' 'ok 0' "$ANSWER"
	sed -i 's|path = "[^"]*"|path = "/nowhere/**"|' "$WORK/A/conf"
	expect 'no rule: the kernel alone' 'ok 0' "$(fc n setlk w 700 5)"
	is C w 700 5 free 'no rule on A'
	has p2 setlk u 0 0
	got ws 5
	expect 'ws' 'ok 0' "$ANSWER"
	kill_actor q2
	dismiss s
	is C w 45 1 busy 'o has it under the old name'
	kill_actor o
	becomes_free C w 40 10 || fail 'what o had'
	expect 'the agent' "$agent" "$(agent_pid A)"
}

can_mount_fuse() { [ "$HOSTS" = a ] && [ "$(id -u)" = 0 ] && [ -c /dev/fuse ] && command -v bindfs >/dev/null; }
test_filesystem_that_hangs_stops_no_other_name() {
	local mounted fuse agent
	skip_unless 'needs bindfs, root and hosts of kind a' can_mount_fuse && return
	mkdir "$WORK/shared" "$(seen A fuse)" "$(seen B fuse)"
	mounted=$(seen A fuse)
	bindfs -o direct_io -f "$WORK/shared" "$mounted" >/dev/null 2>&1 &
	fuse=$!
	disown $fuse
	assertTrue 'mounted' "wait_until 5 grep -q ' $mounted ' /proc/mounts"
	open_on x A fuse/f && open_on y B fuse/f
	has x setlk w 0 10
	fc_queue y setlkw w 5 10
	parts_are_held
	waiters_come
	agent=$(agent_pid A)
	kill -STOP $fuse
	tell x fc setlk 0 w s 20 10			# and the agent has to look at the file
	open_on z B fuse/f
	expect 'a try of what hangs' EAGAIN "$(fc z setlk w 0 1)"
	all_is_as_it_was 'a filesystem hangs'
	expect 'the agent' "$agent" "$(agent_pid A)"
	agent_is_replaced A KILL
	all_is_handed_over 'a filesystem hangs, and the agent is another'
	kill -CONT $fuse
	has x setlk u 0 0
	got y 10
	expect 'y' 'ok 0' "$ANSWER"
	dismiss x y z
	kill $fuse
	wait_until 5 gone $fuse
	! grep -q " $mounted " /proc/mounts || umount -l "$mounted"
	rm -rf "$WORK/shared"
}

# ---- who lies ----

hostile() { LIMIT=60 off A "$PYTHON" "$ROOT/tests/shell/progs/hostile.py" "$(runtime_on A)" "$@"; }

test_hostile_clients_of_record_locks() {
	local agent
	parts_are_held
	waiters_come
	agent=$(agent_pid A)
	expect 'ranges that cannot be' refused "$(hostile bad_ranges "$(path_on A f)")"
	hostile record_states "$(path_on A f)"
	hostile record_states "$(path_on A other)"
	expect 'questions without end' 'answered 250' "$(hostile getlk_flood "$(path_on A f)")"
	expect 'the agent' "$agent" "$(agent_pid A)"
	open_on x B other
	assertTrue 'nothing is left of them' 'wait_until 5 tries x w 0 0'
	all_is_as_it_was 'hostile clients'
	all_is_handed_over 'hostile clients'
}

span() { printf '%019d %019d %s %016d,' "$1" "$2" "$3" "${4:-7}"; }
test_damaged_records_of_other_locks() {
	local n=0 value host agents=''
	parts_are_held
	waiters_come
	for host in A B C; do agents="$agents $(agent_pid $host)"; done
	while read -r value; do
		n=$((n + 1))
		redis_cli hset "$(store_key "d$n" r)" c/ghost "$value" >/dev/null
		redis_cli sadd "dlock:{$NAMESPACE/0}:k:ghost" "r:t/d$n" >/dev/null
		open_on d A "d$n"
		case $(fc d setlk w 0 5) in EAGAIN | ENOLCK) ;; *) fail "a lock with the record $value" ;; esac
		dismiss d
	done <<-END
	nonsense
	1 0
	2 0 $(span 0 10 2) x
	1 0 $(span 0 10 2)$(span 5 20 2) x
	2 0 $(span 0 10 2)$(span 5 20 2) x
	1 0 $(span 0 10 7) x
	1 0 $(span 0 10 2 9999999999999999) x
	999999999 0 $(span 0 10 2) x
	-1 0 x
	END
	agent_is_replaced A KILL
	all_is_as_it_was 'damaged records of other locks'
	expect 'the other agents' "${agents#* * }" "$(agent_pid B) $(agent_pid C)"
	all_is_handed_over 'damaged records of other locks'
}

test_namespace_of_another_protocol_is_refused_in_one_sentence() {
	redis_cli hset "dlock:{$NAMESPACE/0}:meta" proto 1 >/dev/null
	open_on p A
	expect 'a lock' ENOLCK "$(fc p setlk w 0 1)"
	expect 'the reason' 1 "$(shim_log A | grep -c 'another protocol (1)')"
	redis_cli hset "dlock:{$NAMESPACE/0}:meta" proto 2 >/dev/null
	becomes_free A w 0 1 "$((T_MS * 2 / 1000))" || fail 'it recovers'
}

. shunit2
