# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034
#
# Two hosts that share the data but not the locks, and ways to ask a real program whether it is kept out; sourced after
# lib.sh. The data are one directory, $WORK/data; each host has a bindfs mount of its own of it at the path `m`, and kernel
# locks of two such mounts do not meet. On hosts of kind k both see the directory itself: the kernel excludes.

# there HOST FILE: a shared file as programs on that host call it.
there() { path_on "$1" "m/$2"; }
data() { echo "$WORK/data/$1"; }

mount_data() {
	local host
	mkdir -p "$WORK/data"
	for host in $HOST_LIST; do
		if [ "$HOSTS" = k ]; then
			[ -e "$(seen "$host" m)" ] || ln -s "$WORK/data" "$(seen "$host" m)"
			continue
		fi
		[ -e /dev/fuse ] && command -v bindfs >/dev/null || return 1
		mkdir -p "$(seen "$host" m)"
		(exec_bare "$host" bindfs -f --no-allow-other -o direct_io,attr_timeout=0,entry_timeout=0,negative_timeout=0 \
			"$WORK/data" "$(path_on "$host" m)" >"$WORK/$host/bindfs.log" 2>&1) &
		disown $!
		wait_until 5 is_mounted "$host" || { cat "$WORK/$host/bindfs.log"; return 1; }
	done
}
is_mounted() { awk -v at="$(path_on "$1" m)" '$2 == at { found = 1 } END { exit !found }' "$(mounts_of "$1")"; }
mounts_of() { if [ "$HOSTS" = b ]; then echo "/proc/${HOST_INIT[$1]}/mounts"; else echo /proc/mounts; fi; }
unmount_data() {
	local host
	for host in $HOST_LIST; do
		[ "$HOSTS" != a ] || fusermount -uz "$(seen "$host" m)" 2>/dev/null
	done
}

# hold HOST COMMAND…: a program that says "has" in the file $HAS once it has the lock, and keeps it; `let_go` ends it.
HAS=$WORK/has
hold() {
	rm -f "$HAS"
	spawn "$@" >"$WORK/hold.log" 2>&1
	HOLDER=$SPAWNED
	wait_until 15 test -s "$HAS" || fail "the holder does not get its lock: $* $(tail -3 "$WORK/hold.log")"
}
let_go() {
	local pid
	for pid in $HOLDER; do kill -KILL "$pid" 2>/dev/null; done
	for pid in $HOLDER; do wait_until 5 gone "$pid"; done
}
# A Python program that holds a file: hold_python HOST flock|lockf FILE.
hold_python() {
	[ -e "$(data "$3")" ] || : >"$(data "$3")"
	hold "$1" "$PYTHON" -c 'import fcntl, sys, time
f = open(sys.argv[2], "r+b")
getattr(fcntl, sys.argv[1])(f, fcntl.LOCK_EX)
open(sys.argv[3], "w").write("has")
time.sleep(1000)' "$2" "$(there "$1" "$3")" "$HAS"
}

# How a program ended: `waits` (it had to be stopped), or its exit code; what it said is in $WORK/said.
outcome() {				# on|off HOST COMMAND…
	local how=$1 host=$2 rc
	shift 2
	LIMIT=20 $how "$host" timeout -s KILL "${PATIENCE:-2}" "$@" </dev/null >"$WORK/said" 2>&1
	rc=$?
	if [ $rc = 137 ]; then OUTCOME=waits; else OUTCOME=$rc; fi
}
kept_out() {				# WANTED: a number, `waits`, or a text that must have been said
	case $1 in
	waits | [0-9]*) [ "$OUTCOME" = "$1" ] ;;
	*) grep -qaF -- "$1" "$WORK/said" ;;
	esac
}
lets_in() { outcome on "$1" "${@:3}"; ! kept_out "$2"; }

# excluded SENTENCE WANTED HOST COMMAND…: somebody on the other host holds the lock: the program is kept out; without the
# library it is not (the control); and it is not once the holder has gone.
excluded() {
	local sentence=$1 wanted=$2 host=$3
	shift 3
	outcome on "$host" "$@"
	kept_out "$wanted" || fail "$sentence: it must be kept out ($wanted): $OUTCOME, $(tail -2 "$WORK/said")"
	if [ "$HOSTS" != k ]; then
		outcome off "$host" "$@"
		! kept_out "$wanted" || fail "$sentence: the control must not be kept out: $OUTCOME, $(tail -2 "$WORK/said")"
	fi
	let_go
	wait_until 5 lets_in "$host" "$wanted" "$@" || fail "$sentence: it must be let in: $OUTCOME, $(tail -2 "$WORK/said")"
	echo "    $sentence"
}
# Whether the programs are here; else the row is left out, and said.
have() {
	local program
	for program; do
		command -v "$program" >/dev/null || [ -e "$program" ] || { echo "    left out, not installed: $program"; return 1; }
	done
}
