#!/bin/bash
# SPDX-License-Identifier: MIT
# Random sequences of lock calls by several processes: on the bare kernel, all on one host, and spread over hosts with the
# library, step by step; the answers agree. (On hosts of kind k both are the bare kernel: the test tests itself.)
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/records.sh"
WORLD='A B C'

SEQUENCES=${SEQUENCES:-40}
STEPS=${STEPS:-60}

# A sequence that differs is kept, made shorter, in a file of TMPDIR; REPLAY=FILE runs that one alone.

# What a worker is called by progs/random_locks.py: NAME HOST DIRECTORY SEEN PARTNER.
worker() { echo "$1=$WORK/$1.in:$WORK/$1.out:${ACTOR_PID[$1]}:$(pid_there "${ACTOR_PID[$1]}"):$2:$3:$4:${5:-}"; }

LIBRARY=				# or bare: the spread ones run without it
compare() {				# HOST…: a worker on each
	worlds "$@"
	expect 'the two agree' 0 $?
}
worlds() {
	local n=0 host words=() seed=${SEED:-$RANDOM} keep=${REPLAY:-}
	keep=${keep:-${TMPDIR:-/tmp}/dlockshim-sequence-$seed.$HOSTS.json}
	mkdir -p "$WORK/kernel"
	for host; do
		n=$((n + 1))
		actor k$n A bare && actor s$n "$host" $LIBRARY || return
		words+=("$(worker k$n k "$WORK/kernel" "$WORK/kernel" s$n)" "$(worker s$n "$([ "$HOSTS" = k ] && echo s || echo "$host")" "$(path_on "$host" .)" "$(seen "$host" .)")")
	done
	echo "    SEED=$seed SEQUENCES=$SEQUENCES STEPS=$STEPS hosts $*"
	timeout -k 2 280 "$PYTHON" "$ROOT/tests/shell/progs/random_locks.py" "$WORK" "$seed" "$SEQUENCES" "$STEPS" "$keep" "${words[@]}"
}

test_three_processes_on_three_hosts() { compare A B C; }
test_five_processes_on_two_hosts() { compare A A B B B; }
test_two_processes_on_two_hosts() { compare A B; }

test_without_the_library_a_difference_is_found() {
	local LIBRARY=bare SEED=1 keep
	skip_unless 'the control has one copy' not_control && return
	export SHRINK_S=2
	worlds A B >"$WORK/found"
	expect 'the two differ' 1 $?
	unset SHRINK_S
	keep=$(sed -n 's/.* kept in \([^:]*\):.*/\1/p' "$WORK/found")
	assertTrue 'the sequence is kept' "[ -s '$keep' ]"
	end_actors
	REPLAY=$keep worlds A B >"$WORK/found"
	expect 'and differs again' 1 $?
	rm -f "$keep"
}

. shunit2
