# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034
#
# What the tests of record locks share; sourced after lib.sh. Unless said otherwise the file is f, the slot is 0, and START
# counts from the file's beginning. TYPE is r, w or u; LEN 0 means to the end of all files.

# Lock hand-overs across hosts must take less than this (µs). The promise is 50 ms on a quiet machine; a test machine may be
# loaded, so the limit is generous and the figures are printed.
HANDOVER_US=${HANDOVER_US:-250000}

# open_on NAME HOST [FILE [r|w|rw]]: a new actor that has the file open in slot 0.
open_on() {
	actor "$1" "$2" || return 1
	ask "$1" open "${4:-rw}" "$(path_on "$2" "${3:-f}")" >/dev/null
}

# An actor that is not needed any more; its name is free again.
dismiss() {
	local name in out
	for name in "$@"; do
		kill_actor "$name"
		wait_until 5 gone "${ACTOR_PID[$name]}"
		in=${ACTOR_IN[$name]} out=${ACTOR_OUT[$name]}
		exec {in}<&- {out}<&-
		unset "ACTOR_IN[$name]" "ACTOR_OUT[$name]" "ACTOR_PID[$name]" "ACTOR_HOST[$name]"
	done
}

# fc NAME CMD TYPE START LEN [SLOT]: one call and its answer. fc_queue: one that has to wait.
fc() { ask "$1" fc "$2" "${6:-0}" "$3" s "$4" "$5"; }
fc_queue() {
	tell "$1" fc "$2" "${6:-0}" "$3" s "$4" "$5"
	wait_until 5 waits "$1" || fail "$1 should wait for $3 $4 $5"
}
has() { expect "$1 gets $3 $4 $5" 'ok 0' "$(fc "$@")"; }		# NAME CMD TYPE START LEN
refused() { expect "$1 must not get $3 $4 $5" EAGAIN "$(fc "$@")"; }

# An actor on a host whose only job is to ask and to try, as an owner of its own.
probe() {				# HOST [FILE]: PROBE is its name
	PROBE=probe_$1_${2:-f}
	[ -n "${ACTOR_PID[$PROBE]:-}" ] || open_on "$PROBE" "$1" "${2:-f}"
}
# is HOST TYPE START LEN free|busy SENTENCE…: what F_GETLK and F_SETLK say there, of POSIX and of OFD locks.
is() {
	local host=$1 type=$2 start=$3 len=$4 wanted=$5 what seen cmd PROBE
	shift 5
	what="$* ($type $start $len on $host)"
	probe "$host"
	for cmd in getlk ogetlk; do
		seen=$(fc "$PROBE" $cmd "$type" "$start" "$len")
		case $seen in
		'ok u') expect "$cmd: $what" "$wanted" free ;;
		'ok '*) expect "$cmd: $what: $seen" "$wanted" busy ;;
		*) fail "$cmd: $what: $seen" ;;
		esac
	done
	for cmd in setlk osetlk; do
		seen=$(fc "$PROBE" $cmd "$type" "$start" "$len")
		case $seen in
		'ok 0')
			expect "$cmd: $what" "$wanted" free
			fc "$PROBE" $cmd u 0 0 >/dev/null
			;;
		EAGAIN) expect "$cmd: $what" "$wanted" busy ;;
		*) fail "$cmd: $what: $seen" ;;
		esac
	done
}
becomes_free() { local PROBE; probe "$1"; wait_until "${5:-5}" tries "$PROBE" "$2" "$3" "$4"; }	# HOST TYPE START LEN [SECONDS]
tries() { [ "$(fc "$1" osetlk "$2" "$3" "$4")" = 'ok 0' ] && fc "$1" osetlk u 0 0 >/dev/null; }

# pid_for HOST NAME: the pid that F_GETLK on this host must show for an actor: its own, or the negative of it from another host.
pid_for() {
	local there
	there=$(pid_there "${ACTOR_PID[$2]}")
	if [ "$HOSTS" = k ] || [ "$1" = "${ACTOR_HOST[$2]}" ]; then echo "$there"; else echo "-$there"; fi
}

# handed NAME RELEASED SENTENCE…: the waiter gets its lock, in time, counted from RELEASED (µs).
handed() {
	local name=$1 released=$2 took
	shift 2
	got "$name" 10
	expect "$name gets the lock: $*" 'ok 0' "$ANSWER"
	took=$((AT - released))
	echo "    $took µs from one host to the other: $*"
	assertTrue "$took µs: $*" "[ $took -lt $HANDOVER_US ]"
}
still_waits() {				# NAME SENTENCE…
	local name=$1
	shift
	got "$name" 0.1 && fail "$name must still wait: $*: $ANSWER"
	return 0
}
