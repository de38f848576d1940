#!/bin/bash
# SPDX-License-Identifier: MIT
# Conversions between LOCK_SH and LOCK_EX, as Linux does them: the old lock goes
# before the new one is asked for, and a failed attempt has lost it.
. "$(dirname "$0")/lib.sh"
WORLD='A B C'

test_two_readers_of_two_hosts_that_both_want_to_write_do_not_hang() {
	local first=a second=b
	take a A f sh
	take b B f sh
	tell a ex 0
	tell b ex 0
	got a 1 || { first=b second=a; got b 5; }
	expect 'one is let in' 'ok 0' "$ANSWER"
	expect 'the other waits' true "$(wait_until 2 waits $second && echo true)"
	ask $first un 0 >/dev/null
	got $second 5
	expect 'then the other' 'ok 0' "$ANSWER"
	expect_busy C f -s
}

test_failed_try_to_convert_loses_the_old_lock() {
	take a A f sh
	take b B f sh
	expect 'a reader is in the way' EAGAIN "$(ask a tryex 0)"
	expect 'the shared lock of a is gone' 'ok 0' "$(ask b tryex 0)"
	expect 'b has it for itself' busy "$(try C f -s)"
	ask b un 0 >/dev/null
	expect_free A f
}

test_locking_again_in_the_same_mode_does_nothing() {
	take a A f ex
	queue b B f ex
	expect 'again, blocking, while another host waits' 'ok 0' "$(LIMIT=3 ask a ex 0)"
	expect 'again, non-blocking' 'ok 0' "$(ask a tryex 0)"
	expect_busy C f -s
	ask a un 0 >/dev/null
	got b 5
	expect 'one unlock is enough' 'ok 0' "$ANSWER"
}

test_reading_again_does_nothing_while_a_writer_waits() {
	take a A f sh
	queue b B f ex
	expect 'again' 'ok 0' "$(LIMIT=3 ask a sh 0)"
	expect 'again, non-blocking' 'ok 0' "$(ask a trysh 0)"
	ask a un 0 >/dev/null
	got b 5
	expect 'the writer' 'ok 0' "$ANSWER"
}

test_downgrade_lets_readers_of_other_hosts_in() {
	take a A f ex
	queue b B f sh
	expect 'EX to SH' 'ok 0' "$(ask a sh 0)"
	got b 5
	expect 'a reader comes in' 'ok 0' "$ANSWER"
	expect_busy C f
	expect_free C f -s
}

test_downgrade_passes_although_a_writer_waits() {
	take a A f ex
	queue b B f ex
	expect 'EX to SH' 'ok 0' "$(LIMIT=3 ask a sh 0)"
	expect 'the writer still waits' true "$(waits b && echo true)"
	ask a un 0 >/dev/null
	got b 5
	expect 'then the writer' 'ok 0' "$ANSWER"
}

test_only_reader_becomes_writer_at_once() {
	take a A f sh
	expect 'SH to EX' 'ok 0' "$(ask a ex 0)"
	expect_busy B f -s
	expect 'EX to SH, non-blocking' 'ok 0' "$(ask a trysh 0)"
	expect_free B f -s
	expect 'SH to EX, non-blocking, over a cover of another host that lies idle' 'ok 0' "$(ask a tryex 0)"
	expect_busy B f -s
}

test_upgrade_waits_for_a_reader_of_its_own_host() {
	take a A f sh
	take a2 A f sh
	tell a ex 0
	wait_until 5 waits a || fail 'it has to wait'
	ask a2 un 0 >/dev/null
	got a 5
	expect 'the upgrade' 'ok 0' "$ANSWER"
	expect_busy B f -s
}

test_upgrade_waits_for_a_reader_of_another_host() {
	take a A f sh
	take b B f sh
	tell a ex 0
	wait_until 5 waits a || fail 'it has to wait'
	expect_free C f -s
	ask b un 0 >/dev/null
	got a 5
	expect 'the upgrade' 'ok 0' "$ANSWER"
	expect_busy B f -s
}

test_upgrade_with_a_writer_of_another_host_waiting_lets_both_write() {
	local first=a second=b
	take a A f sh
	queue b B f ex
	tell a ex 0
	got b 1 && first=b second=a || got a 5
	expect 'one writes' 'ok 0' "$ANSWER"
	ask $first un 0 >/dev/null
	got $second 5
	expect 'then the other' 'ok 0' "$ANSWER"
}

. shunit2
