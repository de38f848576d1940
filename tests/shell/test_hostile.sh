#!/bin/bash
# SPDX-License-Identifier: MIT
# Clients that lie or do not keep to the rules; a store that is touched by others.
. "$(dirname "$0")/lib.sh"

am_root() { [ "$(id -u)" = 0 ]; }
hostile() { LIMIT=60 off A "$PYTHON" "$ROOT/tests/shell/progs/hostile.py" "$(runtime_on A)" "$@"; }
# The agent is the same as before and serves as before; a of A still holds f.
unharmed() {
	expect "$1: the agent" "$AGENT" "$(agent_pid A)"
	expect "$1: what was held is held" busy "$(try B f)"
	expect "$1: a new lock" free "$(try A g)"
	expect "$1: a new lock of the other host" free "$(try B g)"
}
begin() {
	take a A f ex
	expect 'locked' 'ok 0' "$ANSWER"
	AGENT=$(agent_pid A)
}

test_garbage_and_half_messages() {
	begin
	hostile garbage
	unharmed garbage
	hostile malformed
	unharmed malformed
}

test_request_without_a_descriptor_or_with_a_hundred() {
	begin
	expect 'it is told so' answered "$(hostile without_descriptor)"
	unharmed 'no descriptor'
	hostile many_descriptors "$(path_on A many)"
	unharmed 'a hundred descriptors'
	expect 'descriptors left open in the agent' '' "$(find "/proc/$AGENT/fd" -lname "$(path_on A many)")"
}

test_every_message_in_every_state() {
	begin
	hostile states "$(path_on A s)" >/dev/null
	unharmed states
	assertTrue 'nothing is left locked' "wait_until 5 is_free B s"
}

test_client_that_never_reads() {
	local stuck
	begin
	mkfifo "$WORK/A/end"
	hostile never_reads <>"$WORK/A/end" >"$WORK/A/stuck" 2>&1 &
	stuck=$!
	assertTrue 'clients that do not read' "wait_until 20 grep -qs stuck '$WORK/A/stuck'"
	unharmed 'clients that never read'
	echo >"$WORK/A/end"
	wait $stuck
	unharmed 'after them'
}

test_silent_clients_do_not_use_up_the_descriptors() {
	local stuck
	off A sh -c "ulimit -n 256; exec '$BUILD/dlockd'"
	begin
	expect 'the lock file names the guard' "$(pid_there "$(guard_pid A)")" "$(cat "$(runtime_seen A)/agent.lock")"
	mkfifo "$WORK/A/end"
	hostile silent <>"$WORK/A/end" >"$WORK/A/stuck" 2>&1 &
	stuck=$!
	assertTrue 'all can connect' "wait_until 20 grep -qs stuck '$WORK/A/stuck'"
	unharmed 'a thousand silent clients'
	assertTrue 'it is said, and not again and again' "[ $(agent_log A | grep -c 'no more clients') = 1 ]"
	echo >"$WORK/A/end"
	wait $stuck
}

test_a_thousand_clients_at_once() {
	begin
	expect 'all are served' 'answered 1000' "$(hostile thousand)"
	unharmed 'a thousand'
}

test_faked_mount_cannot_lock_a_path() {
	local rc
	skip_unless 'needs root' am_root && return
	begin
	on A flock "$(path_on A fake)" true
	# A file system of the client's own at the managed path: another inode under the same name.
	# shellcheck disable=SC2016
	on A unshare -m --propagation private sh -c 'mount -t tmpfs x "$1" && exec flock -n "$1/fake" sleep 1' x "$(path_on A '')" 2>/dev/null
	rc=$?
	expect 'the liar gets ENOLCK' 71 $rc
	expect_free B fake
	unharmed 'a faked mount'
}

test_agent_of_a_pid_namespace_refuses_programs_outside_it() {
	local rc
	skip_unless 'needs root' am_root && return
	skip_unless 'no agent' not_control && return
	begin
	# It could not end them when the lease fails.
	# shellcheck disable=SC2016
	on B unshare --pid --fork --mount-proc --kill-child sh -c 'flock -n "$1" echo in >"$2"; until [ -e "$3" ]; do sleep 0.05; done' \
		x "$(path_on B inner)" "$WORK/inner" "$WORK/end" &
	assertTrue 'inside its namespace it serves' "wait_until 10 grep -qs in '$WORK/inner'"
	on B flock -n "$(path_on B outer)" true 2>/dev/null
	rc=$?
	expect 'a program outside gets ENOLCK' 71 $rc
	assertTrue 'and is told why' "shim_log B | grep -q 'another pid namespace'"
	touch "$WORK/end"
	wait $!
	expect 'the agent of the other host' "$AGENT" "$(agent_pid A)"
}

test_store_key_of_the_wrong_type() {
	begin
	redis_cli set "$(store_key w)" nonsense >/dev/null
	case $(try A w) in error*) ;; *) fail "a lock whose record is broken: $(try A w)" ;; esac
	unharmed 'a key of the wrong type'
	redis_cli del "$(store_key w)" >/dev/null
	expect_free A w
}

test_script_flush() {
	begin
	redis_cli script flush >/dev/null
	unharmed 'SCRIPT FLUSH'
	ask a un 0 >/dev/null
	expect_free B f
}

test_client_kill() {
	begin
	queue b B f ex
	for _ in 1 2 3; do
		redis_cli client kill type normal skipme yes >/dev/null
		redis_cli client kill type pubsub >/dev/null
	done
	expect 'the holder lives' ok "$(ask a now)"
	assertTrue 'locks are given again' "wait_until 5 is_free A g"
	ask a un 0 >/dev/null
	got b $((T_MS / 1000 + 5))
	expect 'the waiter gets it' 'ok 0' "$ANSWER"
}

test_full_store_still_takes_locks_back() {
	begin
	queue b B f ex
	redis_cli config set maxmemory 1 >/dev/null
	case $(try A new) in error*) ;; *) fail "a new lock in a full store: $(try A new)" ;; esac
	ask a un 0 >/dev/null
	got b $((T_MS / 1000 + 3))
	expect 'the waiter gets it' 'ok 0' "$ANSWER"
	redis_cli config set maxmemory 0 >/dev/null
	assertTrue 'locks are given again' "wait_until 5 is_free A new"
}

test_eviction_of_keys_is_refused() {
	redis_cli config set maxmemory-policy allkeys-lru >/dev/null
	case $(try A f) in error*) ;; *) fail "a lock in a store that evicts: $(try A f)" ;; esac
	assertTrue 'the log says why' "agent_log A | grep -q allkeys"
	redis_cli config set maxmemory-policy noeviction >/dev/null
	assertTrue 'and it recovers' "wait_until $((T_MS / 1000 + 5)) is_free A f"
}

test_another_namespace_on_the_same_server_is_another_world() {
	begin
	sed -i "s/^namespace.*/namespace = \"other$NAMESPACE\";/" "$WORK/B/conf"
	off B "$BUILD/dlock" init >/dev/null
	expect_free B f
	expect_busy A f
}

test_password() {
	local host
	redis_cli config set requirepass 'geheim wort' >/dev/null
	case $(try A f) in error*) ;; *) fail "without the password: $(try A f)" ;; esac
	assertTrue 'the log says why' "agent_log A | grep -qi password"
	for host in A B; do
		echo 'geheim wort' >"$WORK/$host/secret"
		chmod 600 "$WORK/$host/secret"
		sed -i "s|^redis = {|redis = { password_file = \"$WORK/$host/secret\";|" "$WORK/$host/conf"
	done
	assertTrue 'with it' "wait_until 10 is_free B f"
	take b B f ex
	expect 'locked' 'ok 0' "$ANSWER"
	assertTrue 'A sees it' "wait_until 10 is_busy A f"
	echo wrong >"$WORK/A/secret"
	chmod 644 "$WORK/A/secret"
	REDISCLI_AUTH='geheim wort' redis_cli config set requirepass '' >/dev/null
}

test_server_on_a_unix_socket() {
	sed -i "s|redis://[^\"]*|unix://$WORK/redis/sock|" "$WORK/A/conf"
	take a A f ex
	expect 'locked' 'ok 0' "$ANSWER"
	expect_busy B f
}

. shunit2
