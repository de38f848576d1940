#!/bin/bash
# SPDX-License-Identifier: MIT
# Byte ranges and errors of fcntl and lockf: what Linux does on one host, on three.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B C'

# ---- ranges ----

MAX=9223372036854775807			# the largest offset

test_locks_conflict_where_they_overlap_and_only_there() {
	local held tried verdict
	open_on a A
	probe B
	while read -r held tried verdict; do
		[ -n "$held" ] || continue
		# shellcheck disable=SC2086 # lists of words
		{
			set -- ${held//,/ } ${tried//,/ }
			expect "a holds $1 $2 $3" 'ok 0' "$(fc a setlk "$1" "$2" "$3")"
			is B "$4" "$5" "$6" "$verdict" "while $1 $2 $3 is held"
			fc a setlk u 0 0 >/dev/null
		}
	done <<-END
	w,0,10 w,0,10 busy
	w,0,10 w,9,1 busy
	w,0,10 r,9,5 busy
	w,0,10 w,10,1 free
	w,10,10 w,0,10 free
	w,10,10 w,0,11 busy
	w,10,10 w,20,0 free
	w,10,10 w,19,0 busy
	r,0,10 r,5,10 free
	r,0,10 w,5,10 busy
	w,0,0 r,$MAX,1 busy
	w,100,0 w,0,100 free
	w,100,0 w,0,0 busy
	w,$MAX,1 w,0,$MAX free
	w,$MAX,1 w,0,0 busy
	w,$MAX,0 w,$MAX,1 busy
	w,4294967296,10 w,0,10 free
	w,4294967295,2 w,4294967296,1 busy
	w,1073741824,1 r,1073741825,1 free
	w,1073741824,1 w,1073741826,510 free
	w,1073741826,510 r,1073741826,510 busy
	w,50,-20 w,30,1 busy
	w,50,-20 w,49,1 busy
	w,50,-20 w,29,1 free
	w,50,-20 w,50,1 free
	w,5,-5 w,0,1 busy
	w,0,10 w,20,-10 free
	w,0,10 w,20,-11 busy
	END
}

test_offsets_count_from_the_position_and_from_the_end() {
	local host
	open_on a A
	for host in A B; do ask a size 0 1000 >/dev/null; done
	ask a seek 0 500 >/dev/null
	expect 'from the position' 'ok 0' "$(ask a fc setlk 0 w c -10 5)"
	expect 'from the end, to the end' 'ok 0' "$(ask a fc setlk 0 w e -100 0)"
	expect 'backwards from the position' 'ok 0' "$(ask a fc setlk 0 r c -100 -100)"
	expect 'behind the end' 'ok 0' "$(ask a fc osetlk 0 r e -700 10)"
	is B w 489 1 free 'before'
	is B w 490 5 busy 'from the position'
	is B w 495 100 free 'after'
	is B r 899 1 free 'before the end'
	is B r 900 1 busy 'from the end'
	is B r 5000 1 busy 'to the end'
	is B w 299 1 free 'below them'
	is B w 300 10 busy 'backwards from 400'
	is B w 399 1 busy 'backwards from 400'
	is B w 400 1 free 'backwards from 400'
	fc a setlk u 0 0 >/dev/null
	is B w 300 1 busy 'the OFD lock is still there'
	is B w 310 0 free 'behind the OFD lock'
	expect 'lockf from the position' 'ok 0' "$(ask a lockf 0 tlock 10)"
	is B w 500 10 busy 'lockf'
	is B r 510 0 free 'lockf'
	expect 'lockf backwards' 'ok 0' "$(ask a lockf 0 lock -10)"
	is B w 490 1 busy 'lockf backwards'
	expect 'lockf to the end' 'ok 0' "$(ask a lockf 0 tlock 0)"
	is B w 100000 1 busy 'lockf 0'
	expect 'lockf unlocks' 'ok 0' "$(ask a lockf 0 ulock 20)"
	is B w 500 20 free 'unlocked'
	is B w 520 1 busy 'the rest is locked'
}

test_unlocking_a_part_splits_the_lock_and_locking_it_again_merges_it() {
	open_on a A
	has a setlk w 0 100
	probe B
	expect 'one lock' "ok w 0 100 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	has a setlk u 40 20
	is B w 40 20 free 'the hole'
	is B r 39 1 busy 'left of it'
	is B r 60 1 busy 'right of it'
	expect 'the left part' "ok w 0 40 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	expect 'the right part' "ok w 60 40 $(pid_for B a)" "$(fc "$PROBE" getlk w 40 0)"
	has "$PROBE" setlk w 40 20
	refused a setlk w 0 100
	is A r 0 40 busy 'the failed call has changed nothing'
	is A r 60 40 busy 'the failed call has changed nothing'
	has "$PROBE" setlk u 40 20
	has a setlk w 40 20
	expect 'merged' "ok w 0 100 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	has a setlk u 90 0
	expect 'cut at the end' "ok w 0 90 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	has a setlk u 0 10
	expect 'cut at the beginning' "ok w 10 80 $(pid_for B a)" "$(fc "$PROBE" getlk w 0 0)"
	has a setlk u 10 80
	is B w 0 0 free 'all is unlocked'
}

test_part_of_a_lock_is_downgraded_and_upgraded() {
	open_on a A
	has a setlk w 0 100
	has a setlk r 20 10
	is B r 20 10 free 'the downgraded part'
	is B w 25 1 busy 'the downgraded part'
	is B r 19 1 busy 'left of it'
	is B r 30 1 busy 'right of it'
	probe B
	expect 'its left' "ok w 0 20 $(pid_for B a)" "$(fc "$PROBE" getlk r 0 0)"
	expect 'itself' "ok r 20 10 $(pid_for B a)" "$(fc "$PROBE" getlk w 20 5)"
	has "$PROBE" setlk r 20 10
	refused a setlk w 20 10
	refused a setlk w 0 100
	has a setlk w 15 5
	has "$PROBE" setlk u 0 0
	has a setlk w 22 3
	is B r 22 1 busy 'upgraded again'
	is B r 20 2 free 'the rest is for reading'
	is B r 25 5 free 'the rest is for reading'
	has a setlk w 20 10
	expect 'one lock again' "ok w 0 100 $(pid_for B a)" "$(fc "$PROBE" getlk r 0 0)"
}

test_readers_of_three_hosts_share_and_a_failed_upgrade_keeps_the_old_lock() {
	local cmd
	for cmd in setlk osetlk; do
		open_on a$cmd A && open_on b$cmd B && open_on c$cmd C
		has a$cmd $cmd r 0 100
		has b$cmd $cmd r 50 10
		has c$cmd $cmd r 0 0
		refused a$cmd $cmd w 0 100
		refused b$cmd $cmd w 50 10
		has c$cmd $cmd u 0 0
		refused a$cmd $cmd w 0 100
		has a$cmd $cmd w 0 50
		refused c$cmd $cmd r 49 1
		has c$cmd $cmd r 50 1
		refused c$cmd $cmd w 70 1
		has c$cmd $cmd u 0 0
		has b$cmd $cmd u 50 5
		refused a$cmd $cmd w 50 50
		has a$cmd $cmd w 50 5
		has b$cmd $cmd u 0 0
		refused b$cmd $cmd w 99 1
		has a$cmd $cmd w 0 100
		refused b$cmd $cmd r 99 1
		has a$cmd $cmd u 0 0
	done
}

test_hosts_work_in_their_own_ranges_side_by_side() {
	local n
	open_on a A && open_on b B && open_on c C
	for n in 0 30 60 90 120; do
		has a setlk w $n 10
		has b setlk w $((n + 10)) 10
		has c osetlk w $((n + 20)) 10
	done
	refused a setlk r 10 1
	refused b setlk r 20 1
	refused c osetlk r 30 1
	for n in 0 60 120; do has a setlk u $n 10; done
	has b setlk w 0 20
	refused b setlk w 30 1
	has c osetlk r 55 15
	expect 'the last byte' 'ok 0' "$(fc c osetlk w 120 10)"
}

test_posix_and_ofd_locks_meet_flock_and_record_locks_do_not() {
	local x
	open_on a A
	open_on b B
	has a setlk w 0 10
	expect 'an OFD lock of the same process' EAGAIN "$(fc a osetlk w 5 1)"
	refused b osetlk r 0 10
	has a osetlk w 10 10
	expect 'a POSIX lock over its own OFD lock' EAGAIN "$(fc a setlk r 0 0)"
	refused b setlk r 19 1
	expect 'flock on the other host' 'ok 0' "$(ask b tryex 0)"
	expect 'flock is held' EAGAIN "$(ask a trysh 0)"
	has b setlk w 20 10
	refused a setlk w 20 1
	expect 'unlocking the flock' 'ok 0' "$(ask b un 0)"
	refused a setlk w 20 1
	expect 'flock here' 'ok 0' "$(ask a tryex 0)"
	has a setlk u 0 0
	has a osetlk u 0 0
	is B w 0 20 free 'only flock is held'
	expect 'flock is still held' EAGAIN "$(ask b trysh 0)"
}

test_many_ranges_of_one_program() {
	local n answers
	open_on a A
	probe B
	for ((n = 0; n < 100; n++)); do tell a fc setlk 0 w s $((n * 10)) 5; done
	for ((n = 0; n < 100; n++)); do answers+=$(answer a); done
	expect 'a hundred locks' "$(printf 'ok 0%.0s' {1..100})" "$answers"
	is B w 495 5 free 'between two'
	is B r 490 1 busy 'one of them'
	is B w 504 1 busy 'the last byte of one'
	has a setlk r 0 600
	is B r 0 600 free 'lowered in one call'
	is B w 595 5 busy 'one lock over the gaps'
	is B r 600 1 busy 'the rest is as it was'
	has a setlk u 0 0
	is B w 0 0 free 'unlocked in one call'
}

# ---- errors ----

# The answer to each call must be the same wherever somebody else holds what.
test_errors_are_those_of_the_manual() {
	local wanted call
	open_on holder A
	has holder setlk w 100000 10
	open_on a B
	ask a open r "$(path_on B f)" >/dev/null	# slot 1
	ask a open w "$(path_on B f)" >/dev/null	# slot 2
	ask a size 0 1000 >/dev/null
	ask a seek 0 10 >/dev/null
	while read -r wanted call; do
		[ -n "$wanted" ] || continue
		expect "$call" "${wanted/_/ }" "$(ask a "$call")"
	done <<-END
	EAGAIN fc setlk 0 w s 100005 1
	EAGAIN fc setlk 0 r s 0 0
	EAGAIN fc osetlk 0 w s 100005 1
	EAGAIN fc osetlk 2 w s 100005 1
	EAGAIN lockf 0 tlock 0
	EACCES lockf 0 test 0
	ok_0 lockf 0 test 50
	EBADF fc setlk 60 w s 0 1
	EBADF fc setlkw 60 w s 0 1
	EBADF fc getlk 60 w s 0 1
	EBADF fc osetlk 60 u s 0 1
	EBADF fc setlk 1 w s 0 1
	EBADF fc setlkw 1 w s 0 1
	EBADF fc osetlk 1 w s 0 1
	EBADF fc setlk 2 r s 0 1
	EBADF fc osetlkw 2 r s 0 1
	EBADF lockf 1 tlock 1
	ok_0 lockf 1 ulock 1
	ok_0 fc setlk 1 u s 0 1
	ok_0 fc setlk 2 u s 0 1
	ok_u fc getlk 1 w s 0 1
	ok_u fc getlk 2 r s 0 1
	ok_u fc ogetlk 1 w s 0 1
	ok_u fc ogetlk 2 r s 0 1
	EINVAL fc setlk 0 w 7 0 1
	EINVAL fc getlk 0 w 7 0 1
	EINVAL fc osetlk 0 w 7 0 1
	EINVAL fc setlk 0 9 s 0 1
	EINVAL fc getlk 0 9 s 0 1
	EINVAL fc osetlkw 0 9 s 0 1
	EINVAL fc getlk 0 u s 0 1
	EINVAL fc setlk 0 w s -1 1
	EINVAL fc setlk 0 w s 5 -6
	EINVAL fc setlk 0 w c -11 1
	EINVAL fc setlk 0 w e -1001 1
	EINVAL fc getlk 0 w s -1 1
	ok_0 fc setlk 0 w s 5 -5
	ok_0 fc setlk 0 u s 0 100
	EOVERFLOW fc setlk 0 w s $MAX 2
	EOVERFLOW fc osetlk 0 r s 2 $MAX
	EOVERFLOW fc setlk 0 w c $MAX 0
	EOVERFLOW fc setlk 0 u e $MAX 1
	EOVERFLOW fc getlk 0 w s $MAX 2
	ok_0 fc setlk 0 u s 1 $MAX
	EINVAL fc osetlk 0 w s 0 1 77
	EINVAL fc osetlkw 0 w s 0 1 77
	EINVAL fc ogetlk 0 w s 0 1 77
	ok_0 fc setlk 0 w s 0 1 77
	ok_0 fc setlk 0 u s 0 0
	ok_u fc ogetlk 0 u s 0 0
	EFAULT badptr 0 setlk
	EFAULT badptr 0 setlkw
	EFAULT badptr 0 getlk
	EFAULT badptr 0 osetlk
	EFAULT badptr 0 osetlkw
	EFAULT badptr 0 ogetlk
	EBADF badptr 60 setlk
	EINVAL lockf 0 17 0
	EINVAL lockf 0 tlock -11
	END
	is A w 0 1000 free 'the errors have locked nothing'
	is C r 100000 1 busy 'the holder has kept its lock'
}

# F_DUPFD 0, F_GETFD 1, F_SETFD 2, F_GETFL 3, F_SETOWN 8, F_GETOWN 9, F_SETSIG 10, F_SETLEASE 1024, F_GETLEASE 1025, F_SETPIPE_SZ 1031.
test_other_commands_of_fcntl_pass_untouched() {
	local rest
	open_on a A
	has a setlk w 0 1
	ask a open rw "$(path_on A other)" >/dev/null
	expect 'F_DUPFD takes a number' 'ok 40' "$(ask a fcntl 1 0 40)"
	expect 'F_SETFD' 'ok 0' "$(ask a fcntl 1 2 1)"
	expect 'F_GETFD' 'ok 1' "$(ask a fcntl 1 1 0)"
	expect 'F_GETFL' 2 "$(($(ask a fcntl 1 3 0 | cut -d' ' -f2) & 3))"
	expect 'F_SETOWN' 'ok 0' "$(ask a fcntl 1 8 1)"
	expect 'F_GETOWN' 'ok 1' "$(ask a fcntl 1 9 0)"
	expect 'F_SETSIG' 'ok 0' "$(ask a fcntl 1 10 12)"
	expect 'F_GETLEASE' 'ok 2' "$(ask a fcntl 1 1025 0)"
	expect 'F_SETPIPE_SZ on a file' EBADF "$(ask a fcntl 1 1031 4096)"
	expect 'a command that nobody knows' EINVAL "$(ask a fcntl 1 9999 1)"
	expect 'a closed descriptor' EBADF "$(ask a fcntl 60 1 0)"
}

test_no_descriptor_is_left() {
	open_on a A && open_on b B
	is A w 0 1 free 'the agent runs'	# without a descriptor none can be started
	has b setlk w 100 1
	expect 'the soft limit' 'ok 0' "$(ask a nofile 0)"
	has a setlk w 0 10
	refused a setlk w 100 1
	is B r 0 1 busy 'locked'
	has a osetlk w 10 10
	is B r 10 1 busy 'locked'
}

. shunit2
