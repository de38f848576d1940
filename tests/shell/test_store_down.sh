#!/bin/bash
# SPDX-License-Identifier: MIT
# The store is away, comes back, or has lost its memory; no agent, no
# configuration: nothing succeeds that is not certain, and a path without a rule
# is never disturbed.
. "$(dirname "$0")/lib.sh"
WORLD='A B'

unmanaged_works() {			# HOST: a file that no rule names
	mkdir -p "$WORK/free"
	LIMIT=5 on "$1" flock -n "$WORK/free/x" true
	expect "a path without a rule on $1 ($2)" 0 $?
	rm -rf "$WORK/free"
}
refuses() {				# HOST SECONDS WHY: a try fails with ENOLCK in time
	local begin said took
	begin=$(now_us)
	said=$(try "$1" g)
	took=$((($(now_us) - begin) / 1000))
	case $said in
	error*'No locks available'*) ;;
	*) fail "$3: a try says $said" ;;
	esac
	assertTrue "$3: it took $took ms" "[ $took -le $(($2 * 1000)) ]"
}

test_without_the_store_blocking_waits_and_a_try_fails() {
	take warm A warm ex
	kill_redis
	refuses A 3 'the agent runs, the store is gone'
	refuses B 4 'no agent yet, the store is gone'
	unmanaged_works A 'no store'
	actor b B
	ask b open rw "$(path_on B f)" >/dev/null
	tell b ex 0
	got b 1.5 && fail "it must wait: $ANSWER"
	start_redis
	got b $((T_MS * 3 / 1000))
	expect 'it recovers' 'ok 0' "$ANSWER"
	expect_busy A f
}

# A name's time without use runs out while its only requests wait for the store.
test_a_wait_for_the_store_may_outlast_linger() {
	local agent
	sed -i 's/^ttl/linger = "0s";\nttl/' "$WORK/A/conf"
	expect_free A f
	agent=$(agent_pid A)
	kill_redis
	assertTrue 'the lease fails' "wait_until $((T_MS / 1000)) eval 'agent_log A | grep -q two.thirds'"
	actor a A
	ask a open rw "$(path_on A f)" >/dev/null
	tell a ex 0
	got a 2 && fail "it must wait: $ANSWER"
	start_redis
	got a $((T_MS * 3 / 1000))
	expect 'it recovers' 'ok 0' "$ANSWER"
	expect 'the same agent' "$agent" "$(agent_pid A)"
	expect_busy B f
}

# CAUSE: what makes the store forget. a of A holds before and after; b of B waits.
memory_is_lost() {
	local lost took
	take a A f ex
	take a2 A shared sh
	take b2 B shared sh
	queue b B f ex
	lost=$(now_us)
	"$@"
	got b 1 && fail "it is held by A: $ANSWER"
	case $(try B g) in busy | error*) ;; *) fail 'in grace a new lock is given' ;; esac
	tell a2 un 0
	got a2
	take new B new ex
	expect 'a new lock' 'ok 0' "$ANSWER"
	took=$(((AT - lost) / 1000))
	assertTrue "a new lock after $took ms, not before T" "[ $took -ge $((T_MS * 95 / 100)) ]"
	assertTrue "a new lock after $took ms" "[ $took -le $((T_MS * 3)) ]"
	expect 'the holder lives' ok "$(ask a now)"
	expect_busy B f
	expect_free A shared -s
	expect_busy A shared
	ask a un 0 >/dev/null
	got b 10
	expect 'the waiter gets it' 'ok 0' "$ANSWER"
}
restart_empty() { kill_redis; start_redis; }
flush_all() { redis_cli flushall >/dev/null; }
replica_that_missed_all() { redis_cli flushall >/dev/null; redis_cli debug change-repl-id >/dev/null; }

test_restart_without_data_begins_a_grace_period() { memory_is_lost restart_empty; }
test_flushall_begins_a_grace_period() { memory_is_lost flush_all; }
test_new_replication_id_begins_a_grace_period() { memory_is_lost replica_that_missed_all; }

test_first_lock_of_a_store_not_declared_new_waits_the_grace() {
	local begin took
	redis_cli flushall >/dev/null
	begin=$(now_us)
	take a A f ex
	took=$((($(now_us) - begin) / 1000))
	expect 'the lock' 'ok 0' "$ANSWER"
	assertTrue "after $took ms" "[ $took -ge $((T_MS * 9 / 10)) ] && [ $took -le $((T_MS * 3)) ]"
	assertTrue 'the log says why and how to skip it' "agent_log A | grep -q 'dlock init'"
}

test_no_agent_to_be_had_is_enolck_with_a_reason() {
	local lib=$BUILD
	mkdir "$WORK/lonely"
	cp "$lib/libdlockshim.so" "$WORK/lonely/"
	printf '#!/bin/sh\nexit 1\n' >"$WORK/lonely/dlockd"	# found beside the library, useless
	chmod +x "$WORK/lonely/dlockd"
	take warm A warm ex			# rules were compiled once on A
	kill_actor warm
	kill_dlockds A
	BUILD=$WORK/lonely refuses A 5 'no agent'
	assertTrue 'the log says why' "shim_log A | grep -qi agent"
	BUILD=$WORK/lonely unmanaged_works A 'no agent'
	rm -rf "$WORK/lonely"
}
kill_dlockds() {
	local pids
	pids=$(dlockds "$1")
	[ -z "$pids" ] || { kill -STOP $pids; kill -KILL $pids; }
	wait_until 5 no_dlockd "$1"
}
no_dlockd() { [ -z "$(dlockds "$1")" ]; }

test_broken_configuration_is_enolck_with_a_reason() {
	echo 'namespace = ' >"$WORK/A/conf"
	refuses A 5 'broken from the start'
	assertTrue 'the log says why' "{ shim_log A; agent_log A; } | grep -q 'conf:[0-9]'"
}

test_configuration_broken_later_keeps_rules_apart() {
	take a A f ex
	echo 'namespace = ' >"$WORK/A/conf"
	unmanaged_works A 'configuration broken later'
	expect_busy B f
	rm "$WORK/A/conf"
	unmanaged_works A 'configuration gone'
	expect_busy B f
}

test_compiled_rules_deleted_or_damaged_are_made_anew() {
	local rules agent
	rules=$(runtime_seen A)/rules
	expect_free A f
	agent=$(agent_pid A)
	rm "$rules"
	expect_free A f
	head -c 3000 /dev/urandom >"$rules.new"
	mv "$rules.new" "$rules"
	expect_free A f
	expect 'the same agent' "$agent" "$(agent_pid A)"
}

test_runtime_directory_deleted_under_a_living_agent() {
	not_control || return 0
	take a A f ex
	expect 'locked' 'ok 0' "$ANSWER"
	rm -r "$(runtime_seen A)"/*
	expect_free A g
	expect_busy A f
	expect_busy B f
	expect 'the holder lives' ok "$(ask a now)"
	ask a un 0 >/dev/null
	assertTrue 'released' "wait_until 5 is_free B f"
	expect_free A f
}

test_configuration_that_others_may_write_is_refused() {
	chmod 666 "$WORK/A/conf"
	refuses A 5 'writable by others'
	assertTrue 'the log says why' "{ shim_log A; agent_log A; } | grep -qi 'writ'"
}

test_runtime_directory_that_others_may_write_is_refused() {
	chmod 777 "$(runtime_seen A)"
	refuses A 5 'writable by others'
	assertTrue 'the log says why' "{ shim_log A; agent_log A; } | grep -q '$(runtime_on A)'"
}

test_other_lease_time_is_refused() {
	take b B f ex
	sed -i 's/^ttl.*/ttl = "7s";/' "$WORK/A/conf"
	refuses A 5 'another T'
	assertTrue 'the log says why' "agent_log A | grep -q ttl"
}

. shunit2
