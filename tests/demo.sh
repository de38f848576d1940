#!/bin/bash
# SPDX-License-Identifier: MIT
# The demonstration: two hosts, each with its own copy of a lock file, one
# throw-away Redis, and unmodified programs that exclude each other across them.
# Called by `make demo`; as root it shows it a second time on two hosts that have
# nothing in common but the network. Exit code 0 only if it was seen to work.

if [ -z "${1:-}" ]; then
	bash "$0" a || exit
	[ "$(id -u)" = 0 ] || exit 0
	if why=$("$(dirname "$0")/namespaces.sh"); then
		bash "$0" b
	else
		echo "(The second part, on hosts made of namespaces, is left out: $why.)"
	fi
	exit
fi

HOSTS=$1
. "$(dirname "$0")/shell/lib.sh"
trap oneTimeTearDown EXIT
trap 'exit 130' INT TERM

say() { printf '\n%s\n' "$*"; }
give_up() { echo "The demonstration could not be run: $*" >&2; exit 2; }

# The work that must not be done twice at once: it writes down when it begins and ends.
cat >"$WORK/work" <<'END'
#!/bin/sh
echo "$(date +%s%N) $1 begins $2" >>"$3"
sleep 0.25
echo "$(date +%s%N) $1 ends $2" >>"$3"
END
# A script with the lock on descriptor 9, as in many cron jobs.
cat >"$WORK/script" <<'END'
#!/bin/sh
exec 9>"$1"
flock 9
"$2" "$3" "script, exec 9>" "$4"
END
cat >"$WORK/program.py" <<'END'
import fcntl, subprocess, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    subprocess.run([sys.argv[2], sys.argv[3], "python3 fcntl.flock", sys.argv[4]])
END
chmod +x "$WORK/work" "$WORK/script"

# Three programs on each host, all started at once. $1 is `on` (with the library) or `off`.
run_all() {
	local host file pids=''
	: >"$WORK/events"
	for host in A B; do
		file=$(path_on $host job.lock)
		$1 $host flock "$file" "$WORK/work" $host 'flock(1)' "$WORK/events" & pids="$pids $!"
		$1 $host "$WORK/script" "$file" "$WORK/work" $host "$WORK/events" & pids="$pids $!"
		$1 $host "$PYTHON" "$WORK/program.py" "$file" "$WORK/work" $host "$WORK/events" & pids="$pids $!"
	done
	# shellcheck disable=SC2086 # a list of pids
	wait $pids
}

# Prints the events and counts: RUNS finished, OVERLAPS seen.
show() {
	sort -n "$WORK/events" | awk '
		NR == 1 { first = $1 }
		{ what = $0; sub(/^[^ ]* [^ ]* [^ ]* /, "", what); mark = "" }
		$3 == "begins" { inside++; if (inside > 1) { overlaps++; mark = "   <-- somebody else is at work" } }
		$3 == "ends" { inside--; runs++ }
		{ line = sprintf("  %6.2f s  host %s  %-6s  %-22s%s", ($1 - first) / 1e9, $2, $3, what, mark); sub(/ +$/, "", line); print line }
		END { print runs + 0, overlaps + 0 >"/dev/stderr" }' 2>"$WORK/count"
	read -r RUNS OVERLAPS <"$WORK/count"
}

if [ "$HOSTS" = a ]; then
	echo '=== Two hosts on this machine: two runtime directories, two directories of lock files, one Redis'
else
	echo '=== Two hosts with network, mount, UTS, IPC and pid namespaces of their own, the same path, one Redis'
fi
start_redis || give_up 'no Redis'
new_world A B || give_up 'no hosts'
echo "  host A locks $(path_on A job.lock)"
echo "  host B locks $(path_on B job.lock)$([ "$HOSTS" = a ] || echo '   (another file: each has a tmpfs of its own)')"

say 'Without the library each host has its own lock, and the work overlaps:'
run_all off
show
without=$OVERLAPS

say 'The same programs with LD_PRELOAD=libdlockshim.so:'
run_all on
show
with=$OVERLAPS runs=$RUNS

say 'dlock status, while host A holds the lock and a program on host B waits for it:'
spawn A flock "$(path_on A job.lock)" sh -c 'echo >"$0"; exec sleep 20' "$WORK/has"
holder=$SPAWNED
wait_until 5 test -s "$WORK/has" || give_up 'host A does not get the lock'
on B flock "$(path_on B job.lock)" true &
waiter=$!
wait_until 5 waiters_are job.lock 1
dlock A status
status=$?

# Killing the holder (and the command that inherited its lock) must let the waiter in at once.
begin=$(now_us)
kill -KILL $(pgrep -P "$holder") "$holder"
wait $waiter
handed=$(($(now_us) - begin))
say "The holder is killed by SIGKILL: host B has the lock and is done $((handed / 1000)) ms later."

if [ "$without" = 0 ]; then
	say 'NOT SHOWN: the work did not overlap even without the library; the machine is too busy to tell.'
	exit 1
elif [ "$with" = 0 ] && [ "$runs" = 6 ] && [ $status = 0 ] && [ $handed -lt 2000000 ]; then
	say "IT WORKS: without the library the work overlapped $without times, with it never, in $runs runs on two hosts."
	exit 0
fi
say "IT FAILED: $runs of 6 runs were completed, $with times the work overlapped."
for host in A B; do
	echo "--- the agent's log on host $host:"
	agent_log $host | tail -20
done
exit 1
