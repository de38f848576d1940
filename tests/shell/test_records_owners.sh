#!/bin/bash
# SPDX-License-Identifier: MIT
# Whose record locks are, and what ends them; the waiter is on another host.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B'

# What ends a lock: HOW is what the owner is told. The waiter waits for the same byte; the time is counted from just before the end.
ends() {				# SENTENCE CMD HOW…
	local sentence=$1 cmd=$2 released
	shift 2
	open_on a A
	has a "$cmd" w 0 10
	open_on b B
	fc_queue b "${cmd}w" w 5 1
	ask a now >/dev/null
	released=$(now_us)
	if [ "$1" = KILL ]; then kill_actor a; else tell a "$@"; fi
	handed b "$released" "$sentence"
	dismiss a b
}

test_waiter_of_another_host_has_the_lock_soon_after_whatever_ended_it() {
	ends 'unlock' setlk fc setlk 0 u s 0 0
	ends 'unlock of a part' setlk fc setlk 0 u s 5 1
	ends 'unlock of more than it' setlk fc setlk 0 u s 3 6
	ends 'lockf' setlk lockf 0 ulock 0
	ends 'close' setlk close 0
	ends 'close of a second descriptor' setlk fopen "$(path_on A f)"
	ends 'exit' setlk exit 0
	ends 'kill -9' setlk KILL
	ends 'OFD unlock' osetlk fc osetlk 0 u s 0 0
	ends 'OFD close' osetlk close 0
	ends 'OFD exit' osetlk exit 0
	ends 'OFD kill -9' osetlk KILL
}

test_reader_of_another_host_has_the_lock_soon_after_a_downgrade() {
	local released cmd
	for cmd in setlk osetlk; do
		open_on a A && open_on b B
		has a $cmd w 0 10
		fc_queue b ${cmd}w r 3 4
		released=$(now_us)
		tell a fc $cmd 0 r s 0 10
		handed b "$released" "$cmd: downgrade of the whole"
		answer a >/dev/null	# of its own call, before the next one's
		has b $cmd u 0 0
		has a $cmd w 0 10
		fc_queue b ${cmd}w r 3 4
		released=$(now_us)
		tell a fc $cmd 0 r s 2 6
		handed b "$released" "$cmd: downgrade of a part"
		answer a >/dev/null
		is B r 0 1 busy 'the rest is locked'
		dismiss a b
	done
}

# ---- POSIX locks ----

test_close_of_any_descriptor_drops_all_posix_locks_of_the_process() {
	open_on a A
	ask a dup 0 >/dev/null				# slot 1
	ask a open r "$(path_on A f)" >/dev/null	# slot 2
	has a setlk w 0 10
	has a osetlk w 20 10
	fc a setlk r 40 10 2 >/dev/null
	is B w 0 10 busy 'locked'
	ask a close 1 >/dev/null
	assertTrue 'a dup was closed' 'becomes_free B w 0 10'
	is B r 20 10 busy 'the OFD lock stays'
	is B w 40 10 free 'locked through another descriptor'
	has a setlk w 0 10
	ask a close 2 >/dev/null
	assertTrue 'a second open was closed' 'becomes_free B w 0 10'
	has a setlk w 0 10
	ask a fopen "$(path_on A f)" >/dev/null
	assertTrue 'a stream was opened and closed' 'becomes_free B w 0 10'
	is B r 20 10 busy 'the OFD lock stays'
	ask a close 0 >/dev/null
	assertTrue 'the last one' 'becomes_free B w 0 0'
}

test_child_of_fork_has_no_posix_lock_and_takes_none_away() {
	local child released
	open_on a A
	has a setlk w 0 10
	child=$(ask a fork 0 setlk)
	expect 'the child is refused' 'ok 11' "$(ask a reap)"
	child=$(ask a fork 0 close)
	expect 'the child closes it' 'ok 0' "$(ask a reap)"
	child=$(ask a fork 0 unlock)
	ask a reap >/dev/null
	is B r 0 10 busy 'the parent still has its lock'
	child=$(ask a fork 0 hold)
	open_on b B
	fc_queue b setlkw w 0 10
	still_waits b 'the parent lives'
	released=$(now_us)
	kill_actor a
	handed b "$released" 'the parent is dead, its child has the descriptor'
	kill -KILL "$(child_on A "${child#ok }")"
}
# The pid here of a process with this pid on its host (an orphan of kind b has another pid here).
child_on() {
	local pid
	[ "$HOSTS" = b ] || { echo "$2"; return; }
	for pid in $(host_pids "$1"); do [ "$(pid_there "$pid")" != "$2" ] || echo "$pid"; done
}

test_exec_keeps_the_locks() {
	open_on a A
	has a setlk w 0 10
	has a osetlk r 20 10
	is B r 0 10 busy 'before'
	expect 'it runs again' "ready $(pid_there "${ACTOR_PID[a]}")" "$(ask a exec)"
	is B r 0 10 busy 'the POSIX lock after exec'
	is B w 20 10 busy 'the OFD lock after exec'
	is B r 20 10 free 'the OFD lock is for reading'
	has a setlk w 5 10
	has a setlk u 0 5
	is B w 0 5 free 'it is still its owner'
	is B r 14 1 busy 'it is still its owner'
	ask a close 0 >/dev/null
	assertTrue 'closed' 'becomes_free B w 0 0'
}

test_thread_with_a_descriptor_table_of_its_own_is_another_owner() {
	open_on a A
	has a setlk w 0 10
	ask a thread 0 'setlk w s 20 10 unshared' >/dev/null
	assertTrue 'the thread has it' 'wait_until 5 no_free_range'
	expect 'the first owner is refused' EAGAIN "$(fc a setlk w 25 1)"
	is B r 0 10 busy 'the first owner'
	is B r 20 10 busy 'the other owner'
	has a setlk u 0 0
	is B w 0 10 free 'the first owner has unlocked'
	is B r 20 10 busy 'the other owner has not'
	kill_actor a
	assertTrue 'both are dead' 'becomes_free B w 0 0'
}
no_free_range() { [ "$(fc a setlk w 20 10)" = EAGAIN ]; }

test_mapping_does_not_keep_a_posix_lock_but_an_ofd_lock() {
	open_on a A
	ask a size 0 4096 >/dev/null
	has a setlk w 0 10
	has a osetlk w 20 10
	expect 'mapped' 'ok 0' "$(ask a map 0)"
	ask a close 0 >/dev/null
	assertTrue 'the POSIX lock is gone' 'becomes_free B w 0 10'
	is B r 20 10 busy 'the OFD lock lives with the mapping'
	ask a unmap >/dev/null
	assertTrue 'the OFD lock is gone with the mapping' 'becomes_free B w 20 10'
}

# ---- OFD locks ----

test_ofd_lock_follows_the_description() {
	open_on a A
	ask a dup 0 >/dev/null				# slot 1: the same description
	ask a open rw "$(path_on A f)" >/dev/null	# slot 2: another
	has a osetlk w 0 10
	expect 'the same description' 'ok 0' "$(fc a osetlk w 0 20 1)"
	expect 'another one of the same process' EAGAIN "$(fc a osetlk r 0 1 2)"
	ask a close 0 >/dev/null
	ask a close 2 >/dev/null
	is B r 0 20 busy 'a descriptor is left'
	expect 'a part is unlocked through it' 'ok 0' "$(fc a osetlk u 0 5 1)"
	is B w 0 5 free 'the part'
	is B r 5 1 busy 'the rest'
	ask a close 1 >/dev/null
	assertTrue 'the last descriptor is closed' 'becomes_free B w 0 0'
}

test_ofd_lock_is_inherited_by_fork_and_lives_with_the_child() {
	local child released
	open_on a A
	has a osetlk w 0 10
	child=$(ask a fork 0 osetlk)
	expect 'the child has the same lock' 'ok 0' "$(ask a reap)"
	child=$(ask a fork 0 hold)
	ask a close 0 >/dev/null
	is B r 0 10 busy 'the child has it'
	open_on b B
	fc_queue b osetlkw r 0 0
	still_waits b 'the child has the lock'
	released=$(now_us)
	ask a killchild "${child#ok }" >/dev/null
	handed b "$released" 'the child that had an OFD lock is killed'
}

test_ofd_lock_lives_in_a_message_in_flight() {
	open_on a A
	has a osetlk w 0 10
	ask a send 0 >/dev/null
	ask a close 0 >/dev/null
	is B r 0 10 busy 'in flight'
	expect 'received' 'ok 1' "$(ask a receive)"
	is B r 0 10 busy 'received'
	ask a close 1 >/dev/null
	assertTrue 'closed' 'becomes_free B w 0 10'
}

# ---- F_GETLK ----

test_getlk_names_the_holder_the_range_and_the_type() {
	local cmd
	open_on a A && open_on a2 A && open_on b B
	has a setlk w 100 50
	has a setlk r 200 0
	for cmd in getlk ogetlk; do
		expect "$cmd: a local holder" "ok w 100 50 $(pid_for A a)" "$(fc a2 $cmd w 0 0)"
		expect "$cmd: a holder of another host" "ok w 100 50 $(pid_for B a)" "$(fc b $cmd w 0 0)"
		expect "$cmd: for reading" "ok w 100 50 $(pid_for B a)" "$(fc b $cmd r 120 1)"
		expect "$cmd: one byte of a reader's" "ok r 200 0 $(pid_for B a)" "$(fc b $cmd w 1000 1)"
		expect "$cmd: readers share" 'ok u' "$(fc b $cmd r 200 0)"
		expect "$cmd: between them" 'ok u' "$(fc b $cmd w 150 50)"
		expect "$cmd: from the right" "ok w 100 50 $(pid_for B a)" "$(fc b $cmd w 150 -1)"
	done
	expect 'lockf of another host' EACCES "$(ask b seek 0 100 >/dev/null; ask b lockf 0 test 1)"
	expect 'lockf of another host between them' 'ok 0' "$(ask b seek 0 150 >/dev/null; ask b lockf 0 test 50)"
	expect 'lockf of the owner' 'ok 0' "$(ask a lockf 0 test 0)"
	expect 'the owner' 'ok u' "$(fc a getlk w 0 0)"
	expect 'the owner as an OFD' "ok w 100 50 $(pid_for A a)" "$(fc a ogetlk w 0 0)"
	has a2 osetlk w 0 50
	expect 'an OFD holder here' 'ok w 0 50 -1' "$(fc a getlk w 0 10)"
	expect 'an OFD holder of another host' 'ok w 0 50 -1' "$(fc b getlk w 0 10)"
	expect 'an OFD holder, asked as an OFD' 'ok w 0 50 -1' "$(fc b ogetlk r 49 1)"
	expect 'its own lock, by F_UNLCK' "$(if own_by_unlck; then echo 'ok w 0 50 -1'; else echo EINVAL; fi)" "$(fc a2 ogetlk u 0 0)"
	expect 'not its own, by F_UNLCK' "$(if own_by_unlck; then echo 'ok u'; else echo EINVAL; fi)" "$(fc b ogetlk u 0 0)"
}
# Linux 6.13 and later.
own_by_unlck() { printf '6.13\n%s\n' "$(uname -r | cut -d- -f1)" | sort -CV; }

test_getlk_of_a_child_shows_the_parent() {
	open_on a A
	has a setlk w 0 10
	probe B
	expect 'before' "ok w 0 10 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	ask a exec >/dev/null
	expect 'after exec' "ok w 0 10 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
}

test_getlk_takes_nothing_and_disturbs_nobody() {
	local n answers=
	open_on a A && open_on a2 A && open_on b B
	has a setlk w 0 10
	has a setlk u 0 10
	expect 'only an idle cover' 'ok u' "$(fc b getlk w 0 0)"
	expect 'lockf: only an idle cover' 'ok 0' "$(ask b lockf 0 test 0)"
	has a setlk r 0 10
	expect 'a reader' "ok r 0 10 $(pid_for B a)" "$(fc b getlk w 0 0)"
	[ "$HOSTS" = k ] || expect 'the one who asked has no cover' 1 "$(covers f r)"
	fc_queue a2 setlkw w 0 10
	for n in 1 2 3 4 5 6 7 8 9 10; do
		tell b fc getlk 0 w s 0 0
		answers+=$(fc a setlk r $((n * 20)) 10)
		got b
		expect 'asked' ok "${ANSWER%% *}"
		answers+=$(fc a setlk u $((n * 20)) 10)
	done
	expect 'no lock call of the holder fails meanwhile' "$(printf 'ok 0%.0s' {1..20})" "$answers"
	still_waits a2 'somebody asked'
	has a setlk u 0 0
	got a2
	expect 'the waiter' 'ok 0' "$ANSWER"
	expect 'now that one' "ok w 0 10 $(pid_for B a2)" "$(fc b getlk r 0 0)"
}

. shunit2
