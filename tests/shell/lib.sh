# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2120,SC2013,SC2015,SC2086,SC2048
#
# The frame of the shell tests: a store, hosts, and programs that lock on command.
#
# A test file sources this, defines functions test_…, and ends with `. shunit2`.
# Each test gets a namespace of its own in the store and two new hosts, A and B
# (more by host_new). What kind of hosts, HOSTS says:
#   a  two runtime directories and two directories of lock files on one machine
#   b  (root) a network, mount, UTS, IPC and pid namespace for each, one veth to
#      the store's network, a private tmpfs at the same lock path /srv/locks
#   k  the control: no library, one directory for all; what a test of semantics
#      says must be true of Linux itself
# The same test body runs on all.
#
# Everything lives below one mktemp directory, $WORK, whose random name is in the
# environment or the command line of every process started here; that is how what
# is left is found and ended. Nothing else is ever signalled.

HOSTS=${HOSTS:-a}
T_MS=${T_MS:-3000}			# the lease time, for the tests that count it
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$(cd "$ROOT" && realpath "${BUILD:-build}")
PROGS=$BUILD/progs
PYTHON=$(PATH=/usr/bin:$PATH command -v python3)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/dlocktest-XXXXXXXX")
RESULTS=${RESULTS:-/dev/null}		# one line for each test, read by tests/run.sh
# A sanitizer's findings in dlockd or dlock (make test SAN=…): tearDown looks for them.
# (Memory that a process has at its end is no leak worth a test.)
export ASAN_OPTIONS=log_path=$WORK/sanitizer:detect_leaks=0:verify_asan_link_order=0 UBSAN_OPTIONS=log_path=$WORK/sanitizer:print_stacktrace=1 TSAN_OPTIONS=log_path=$WORK/sanitizer
unset LD_PRELOAD DLOCKSHIM_CONFIG DLOCKSHIM_RUNTIME_DIR DLOCKSHIM_LOG

declare -A HOST_INIT HOST_EXTRA RULE_EXTRA HOST_CUT	# by host
declare -A ACTOR_IN ACTOR_OUT ACTOR_PID ACTOR_HOST	# by actor
HOST_LIST=
NAMESPACE=
REDIS_PID='' REDIS_PORT='' REDIS_HOST='' NET_INIT=''

# ---- waiting ----

now_us() { echo "${EPOCHREALTIME/[.,]/}"; }

exec {NAP_FD}<> <(:)			# never readable: a sleep without a process
nap() { read -r -t "${1:-0.01}" -u "$NAP_FD" || :; }

# wait_until SECONDS COMMAND…: whether the command succeeded within the time.
wait_until() {
	local end=$(($(now_us) + $(awk "BEGIN { print int($1 * 1000000) }")))
	shift
	while ! "$@"; do
		[ "$(now_us)" -lt "$end" ] || return 1
		nap 0.01
	done
}

gone() { ! [ -d "/proc/$1" ] || grep -qs '^State:.Z' "/proc/$1/status"; }

# ---- the store ----

# Runs a command in the store's network.
at_store() {
	if [ -n "$NET_INIT" ]; then
		nsenter -t "$NET_INIT" -n -- "$@"
	else
		"$@"
	fi
}

redis_cli() { at_store timeout 10 redis-cli -h "$REDIS_HOST" -p "$REDIS_PORT" "$@"; }

redis_answers() { [ "$(redis_cli ping 2>/dev/null)" = PONG ] || redis_cli ping 2>&1 | grep -q 'NOAUTH'; }

# The store's network for hosts of kind b: a namespace with a bridge.
net_new() {
	[ "$HOSTS" = b ] && [ -z "$NET_INIT" ] || return 0
	unshare --net --fork --kill-child "$PROGS/host_init" "$WORK" 2>"$WORK/net.err" &
	local parent=$!
	disown $parent
	wait_until 5 child_of $parent >/dev/null || return 1
	NET_INIT=$(child_of $parent)
	# An address of its own: else the bridge takes that of a port, and another one when the port goes with its host;
	# the other hosts would send to the old one for seconds.
	at_store sh -c 'ip link set lo up && ip link add br0 address 02:00:00:00:00:01 type bridge && ip address add 10.213.0.1/16 dev br0 && ip link set br0 up'
}

child_of() {
	local child=
	read -r child _ <"/proc/$1/task/$1/children"	# no newline at its end: read fails
	[ -n "$child" ] && echo "$child"
} 2>/dev/null

# start_redis [ARGS…]: a new one on a free port, or again on the port it had (REDIS_PORT).
start_redis() {
	local try port
	net_new || return 1
	REDIS_HOST=127.0.0.1
	[ "$HOSTS" = b ] && REDIS_HOST=10.213.0.1
	mkdir -p "$WORK/redis"
	for try in 1 2 3 4 5 6 7 8; do
		: >"$WORK/redis/log"
		port=${REDIS_PORT:-$((20000 + RANDOM % 12000))}
		at_store redis-server --bind "$REDIS_HOST" --port "$port" --dir "$WORK/redis" --daemonize no \
			--save '' --appendonly no --unixsocket "$WORK/redis/sock" --unixsocketperm 700 \
			--protected-mode no --pidfile "$WORK/redis/pid" "$@" >"$WORK/redis/log" 2>&1 &
		REDIS_PID=$!
		disown $!
		while ! grep -q 'Ready to accept' "$WORK/redis/log" && ! gone $REDIS_PID; do nap; done
		if ! gone $REDIS_PID; then
			REDIS_PORT=$port
			wait_until 5 redis_answers && return 0
		fi
		REDIS_PID=
		[ "$try" -lt 8 ] && nap 0.1
	done
	echo "the test's redis-server does not start:" >&2
	tail -5 "$WORK/redis/log" >&2
	return 1
}

redis_process() { [ -n "$REDIS_PID" ] && pgrep -f "redis-server $REDIS_HOST:$REDIS_PORT" | head -1; }

kill_redis() {				# as a crash: nothing is saved
	local pid
	pid=$(redis_process)
	[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null
	[ -z "$pid" ] || wait_until 5 gone "$pid"
	REDIS_PID=
	rm -f "$WORK/redis/sock"
}

stop_redis() { kill_redis; REDIS_PORT=; rm -rf "$WORK/redis"; }

# ---- hosts ----

host_dir() { echo "$WORK/$1"; }

# Where programs on the host see a lock file, and where the test sees it.
path_on() {
	if [ "$HOSTS" = b ]; then echo "/srv/locks/$2"; else echo "$WORK/$1/locks/$2"; fi
}
seen() {
	if [ "$HOSTS" = b ]; then echo "/proc/${HOST_INIT[$1]}/root/srv/locks/$2"; else echo "$WORK/$1/locks/$2"; fi
}
runtime_on() { if [ "$HOSTS" = b ]; then echo /run/dlockshim; else echo "$WORK/$1/run"; fi; }
runtime_seen() {
	if [ "$HOSTS" = b ]; then echo "/proc/${HOST_INIT[$1]}/root/run/dlockshim"; else echo "$WORK/$1/run"; fi
}

# host_new NAME [cut]: with `cut`, its traffic to the store can be stopped by cut_off.
host_new() {
	local dir=$WORK/$1 port=$REDIS_PORT address=$REDIS_HOST number
	mkdir "$dir" "$dir/locks" && mkdir -m 700 "$dir/run"
	HOST_LIST="$HOST_LIST $1"
	if [ "$HOSTS" = k ]; then
		[ "$1" = A ] || { rmdir "$dir/locks" && ln -s ../A/locks "$dir/locks"; }
	elif [ "$HOSTS" = b ]; then
		host_new_namespaces "$1" || return 1
	elif [ "${2:-}" = cut ]; then
		for number in 1 2 3 4 5; do
			port=$((32000 + RANDOM % 760))
			"$PROGS/relay" $port "$REDIS_HOST" "$REDIS_PORT" "$WORK" >"$dir/relay" 2>&1 &
			HOST_CUT[$1]=$!
			disown $!
			wait_until 5 test -s "$dir/relay"
			grep -q ready "$dir/relay" && break
		done
		address=127.0.0.1
	fi
	host_config "$1" "redis://$address:$port" >"$dir/conf"
	chmod 600 "$dir/conf"
}

host_config() {
	cat <<-END
	namespace = "$NAMESPACE";
	ttl = "${T_MS}ms";
	redis = { servers = [ "$2" ]; ${REDIS_EXTRA:-} };
	${HOST_EXTRA[$1]:-}
	rules = (
	  { path = "$(path_on "$1" '**')"; name = "t/{tail}"; ${RULE_EXTRA[$1]:-} }
	);
	END
}

host_new_namespaces() {
	local parent number init
	unshare --net --mount --uts --ipc --pid --fork --mount-proc --propagation private --kill-child \
		"$PROGS/host_init" "$WORK/$1" 2>"$WORK/$1/init.err" &
	parent=$!
	disown $parent
	wait_until 5 grep -qs '^unshare' "/proc/$parent/comm" && wait_until 5 child_of $parent >/dev/null || return 1
	init=$(child_of $parent)
	wait_until 5 grep -qs '^proc /proc' "/proc/$init/mounts" || return 1
	wait_until 5 grep -qs host_init "/proc/$init/comm" || return 1
	HOST_INIT[$1]=$init
	number=$((1 + RANDOM % 250)).$((2 + RANDOM % 250))
	at_store sh -c "ip link add v$1 type veth peer name eth0 netns $init && ip link set v$1 master br0 up" || return 1
	nsenter -t "$init" -m -u -n -p -- sh -c "hostname host$1 && ip link set lo up && ip address add 10.213.$number/16 dev eth0 &&
		ip link set eth0 up && mount -t tmpfs -o mode=755 srv /srv && mkdir /srv/locks &&
		mount -t tmpfs -o mode=755 run /run && mkdir -m 700 /run/dlockshim"
}

# Runs a command on a host as its last act (in a subshell): with the library preloaded, or without (bare).
exec_on() {
	local host=$1 enter=()
	[ "$HOSTS" != k ] || exec_bare "$@"
	shift
	[ "$HOSTS" = b ] && enter=(nsenter -t "${HOST_INIT[$host]}" -m -u -i -n -p --)
	exec "${enter[@]}" env DLOCKSHIM_CONFIG="$WORK/$host/conf" DLOCKSHIM_RUNTIME_DIR="$(runtime_on "$host")" \
		DLOCKSHIM_LOG="$WORK/$host/shim.log" LD_PRELOAD="$BUILD/libdlockshim.so" "$@"
}
exec_bare() {
	local host=$1 enter=()
	shift
	[ "$HOSTS" = b ] && enter=(nsenter -t "${HOST_INIT[$host]}" -m -u -i -n -p --)
	exec "${enter[@]}" env DLOCKSHIM_CONFIG="$WORK/$host/conf" DLOCKSHIM_RUNTIME_DIR="$(runtime_on "$host")" \
		DLOCKSHIM_LOG="$WORK/$host/shim.log" "$@"
}

# on HOST COMMAND…: an unmodified program with the library; off: the same without.
on() {
	local host=$1
	shift
	(exec_on "$host" timeout -k 2 "${LIMIT:-30}" "$@")
}
off() {
	local host=$1
	shift
	(exec_bare "$host" timeout -k 2 "${LIMIT:-30}" "$@")
}
dlock() { local host=$1; shift; off "$host" "$BUILD/dlock" "$@"; }

# spawn HOST COMMAND…: in the background; SPAWNED is the program's own pid, also when the host has a pid namespace.
# Whether it is over: `gone PID`. (For an exit code: on HOST … & and wait.)
spawn() {
	(exec_on "$@") &
	disown $!
	own_pid $!
}
own_pid() {
	SPAWNED=$1
	[ "$HOSTS" = b ] || return 0
	# Before it becomes nsenter, the subshell has children of its own.
	wait_until 10 grep -qs '^nsenter' "/proc/$1/comm" && wait_until 10 child_of "$1" >/dev/null || return 1
	SPAWNED=$(child_of "$1")
}

# Pids of a host's processes, whoever started them; the test's own are never among them.
host_pids() {
	if [ "$HOSTS" = b ]; then
		[ -n "${HOST_INIT[$1]:-}" ] || return 0
		stat -L -c '%i %n' /proc/[0-9]*/ns/pid 2>/dev/null |
			awk -v space="$(stat -L -c %i "/proc/${HOST_INIT[$1]}/ns/pid" 2>/dev/null)" '$1 == space { split($2, part, "/"); print part[3] }'
		return 0
	fi
	pids_of "$WORK/$1/"
}
pids_of() {
	local file pid
	for file in $(grep -lasF -- "$1" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null); do
		pid=${file#/proc/}
		pid=${pid%/*}
		[ "$pid" = $$ ] || [ "$pid" = "$BASHPID" ] || gone "$pid" || echo "$pid"
	done | sort -un
}

# The agent's and the guard's pid (the guard is the agent's parent).
dlockds() {
	local pid
	for pid in $(host_pids "$1"); do
		[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dlockd ] || tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q '^[^ ]*dlockd ' && echo "$pid"
	done
}
parent_of() { awk '/^PPid:/ { print $2 }' "/proc/$1/status" 2>/dev/null; }
agent_pid() {
	local pid all
	all=" $(dlockds "$1" | tr '\n' ' ')"
	for pid in $all; do
		case $all in *" $(parent_of "$pid") "*) echo "$pid"; return 0 ;; esac
	done
	return 1
}
guard_pid() {
	local agent
	agent=$(agent_pid "$1") && parent_of "$agent"
}
# A process's pid as its own host sees it.
pid_there() { awk '/^NSpid:/ { print $NF }' "/proc/$1/status"; }
agent_is_new() { local pid; pid=$(agent_pid "$1") && [ "$pid" != "$2" ]; }

# As when the machine loses power: nothing of it runs any more, at one moment.
kill_host() {
	local pids
	if [ "$HOSTS" = b ]; then	# its PID 1 takes all with it. (No SIGSTOP: nsenter would stop itself too, and stay so.)
		[ -z "${HOST_INIT[$1]:-}" ] || kill -KILL "${HOST_INIT[$1]}" 2>/dev/null
	else
		pids=$(host_pids "$1")
		[ -z "$pids" ] || { kill -STOP $pids; kill -KILL $pids; } 2>/dev/null
	fi
	[ -z "${HOST_CUT[$1]:-}" ] || kill -KILL "${HOST_CUT[$1]}" 2>/dev/null
	# The kernel takes the link away too, but later.
	[ "$HOSTS" != b ] || at_store ip link delete "v$1" 2>/dev/null
	unset "HOST_INIT[$1]" "HOST_CUT[$1]"
	return 0
}
freeze_host() {
	local pids
	pids=$(host_pids "$1")
	[ -z "$pids" ] || kill -STOP $pids 2>/dev/null
}
thaw_host() {
	local pids
	pids=$(host_pids "$1")
	[ -z "$pids" ] || kill -CONT $pids 2>/dev/null
}

# The cable between a host (made with `cut`) and the store.
cut_off() {
	if [ "$HOSTS" = b ]; then at_store ip link set "v$1" down; else kill -STOP "${HOST_CUT[$1]}"; fi
}
join_again() {
	if [ "$HOSTS" = b ]; then at_store ip link set "v$1" up; else kill -CONT "${HOST_CUT[$1]}"; fi
}

agent_log() { cat "$(runtime_seen "$1")/dlockd.log" 2>/dev/null; }
shim_log() { cat "$WORK/$1/shim.log" 2>/dev/null; }

# ---- programs that lock on command (progs/actor.c) ----

# actor NAME HOST [bare]: starts one.
actor() {
	local in=$WORK/$1.in out=$WORK/$1.out in_fd out_fd how=exec_on SPAWNED
	[ "${3:-}" = bare ] && how=exec_bare
	rm -f "$in" "$out"
	mkfifo "$in" "$out"
	exec {in_fd}<>"$in" {out_fd}<>"$out"
	($how "$2" "$PROGS/actor" <"$in" >"$out" 2>"$WORK/$1.err" {in_fd}<&- {out_fd}<&- {NAP_FD}<&-) &
	disown $!
	own_pid $! || return 1
	ACTOR_IN[$1]=$in_fd ACTOR_OUT[$1]=$out_fd ACTOR_PID[$1]=$SPAWNED ACTOR_HOST[$1]=$2
	answer "$1" 10 >/dev/null
}
tell() { local who=$1; shift; printf '%s\n' "$*" >&"${ACTOR_IN[$who]}"; }

# answer NAME [SECONDS]: its next answer on stdout, "nothing" after the time. `got` NAME sets ANSWER and AT (µs) without a subshell.
got() {
	local line='' rest
	ANSWER=nothing AT=0
	if ! read -r -t "${2:-10}" -u "${ACTOR_OUT[$1]}" line; then
		[ -n "$line" ] || return 1
		read -r -t 10 -u "${ACTOR_OUT[$1]}" rest	# the time was over in the middle of the line
		line=$line$rest
	fi
	AT=${line##* }
	ANSWER=${line% *}
}
answer() { got "$@"; echo "$ANSWER"; }
ask() { local who=$1; tell "$@"; answer "$who" "${LIMIT:-15}"; }

# take NAME HOST FILE MODE: a new actor that has the file open in slot 0 and asked for the mode; its answer is in ANSWER.
take() {
	actor "$1" "$2" || return 1
	ask "$1" open rw "$(path_on "$2" "$3")" >/dev/null
	tell "$1" "$4" 0
	got "$1" "${LIMIT:-15}"
}
# queue NAME HOST FILE MODE: the same, and it has to wait; returns when it waits.
queue() {
	actor "$1" "$2" || return 1
	ask "$1" open rw "$(path_on "$2" "$3")" >/dev/null
	tell "$1" "$4" 0
	wait_until 5 waits "$1" || fail "$1 on $2 should wait for $4 of $3"
}
# Whether an actor waits: in the kernel's flock or fcntl, or with its request in the store's or the agent's queue.
waits() {
	local number rest
	read -r number rest 2>/dev/null <"/proc/${ACTOR_PID[$1]}/syscall" || return 1
	case "$number $rest" in
	73\ *) return 0 ;;			# flock
	72\ 0x*\ 0x7\ * | 72\ 0x*\ 0x26\ *) grep -q '^State:.S' "/proc/${ACTOR_PID[$1]}/status"; return ;;	# fcntl: F_SETLKW, F_OFD_SETLKW (D: for a reader of /proc/locks)
	esac
	case $number in
	45 | 47 | 7 | 271 | 23 | 270) waits_long "$1" "$number $rest" ;;
	*) return 1 ;;
	esac
}
# The same socket wait, twice 80 ms apart (a call without contention takes less than one).
waits_long() {
	local line
	nap 0.08
	read -r line 2>/dev/null <"/proc/${ACTOR_PID[$1]}/syscall" && [ "$line" = "$2" ]
}
kill_actor() { kill -KILL "${ACTOR_PID[$1]}" 2>/dev/null; }
end_actors() {
	local fd
	for fd in "${ACTOR_IN[@]}" "${ACTOR_OUT[@]}"; do
		exec {fd}<&-
	done
	ACTOR_IN=() ACTOR_OUT=() ACTOR_PID=() ACTOR_HOST=()
}

# ---- what the store has ----

store_key() { echo "dlock:{$NAMESPACE/0}:n:${2:-f}:t/$1"; }	# FILE [f|r]: flock or record locks
waiters() { redis_cli hkeys "$(store_key "$1" "${2:-f}")" | grep -ca '^w/'; }	# requests queued for a file
waiters_are() { [ "$(waiters "$1" "${3:-f}")" = "$2" ]; }	# FILE NUMBER [f|r]
covers() { redis_cli hkeys "$(store_key "$1" "${2:-f}")" | grep -ca '^c/'; }
covers_are() { [ "$(covers "$1" "${3:-f}")" = "$2" ]; }
fence() { redis_cli hget "dlock:{$NAMESPACE/0}:meta" fence; }

# ---- assertions ----

# try HOST FILE [-s]: flock(1)'s verdict: free, busy, or error N.
try() {
	local host=$1 file=$2 rc
	shift 2
	on "$host" flock -n "$@" "$(path_on "$host" "$file")" true 2>"$WORK/try.err"
	rc=$?
	case $rc in 0) echo free ;; 1) echo busy ;; *) echo "error $rc $(head -1 "$WORK/try.err")" ;; esac
}
expect() { assertEquals "$1" "$2" "$3"; }	# SENTENCE EXPECTED SEEN
expect_free() { expect "${*:3} $2 must be free for $1" free "$(try "$@")"; }
expect_busy() { expect "${*:3} $2 must be busy for $1" busy "$(try "$@")"; }
is_free() { [ "$(try "$@")" = free ]; }
is_busy() { [ "$(try "$@")" = busy ]; }

not_control() { [ "$HOSTS" != k ]; }
skip_unless() {				# skip_unless WHY COMMAND…
	local why=$1
	shift
	"$@" && return 1
	echo "skipped: $why"
	[ "$RESULTS" = /dev/null ] || echo "skip ${_shunit_test_:-?}" >>"$RESULTS"
	SKIPPED=1
	return 0
}

# ---- shunit2's frame ----

new_world() {				# [HOST…]: a fresh namespace and hosts; the store is declared new
	local host
	NAMESPACE=t$RANDOM$RANDOM
	for host in ${*:-A B}; do
		host_new "${host%:cut}" "$([ "$host" = "${host%:cut}" ] || echo cut)" || return 1
	done
	host=${1:-A}
	[ "$HOSTS" = k ] || dlock "${host%:cut}" init >"$WORK/init.log" 2>&1 || { cat "$WORK/init.log" >&2; return 1; }
}

end_world() {
	local host pids
	end_actors
	for host in $HOST_LIST; do kill_host "$host"; done
	[ -z "$HOST_LIST" ] || { pids=$(pids_of_hosts); [ -z "$pids" ] || kill -KILL $pids 2>/dev/null; }
	for host in $HOST_LIST; do rm -rf "${WORK:?}/$host"; done
	HOST_LIST=
	HOST_INIT=() HOST_EXTRA=() RULE_EXTRA=() HOST_CUT=()
	REDIS_EXTRA=
}
pids_of_hosts() { local host; for host in $HOST_LIST; do pids_of "$WORK/$host"; done; }

oneTimeSetUp() { start_redis || exit 1; }
setUp() {
	SKIPPED=
	[ -n "$REDIS_PID" ] && redis_answers || start_redis || return 1
	new_world ${WORLD:-A B} || { echo 'no hosts could be made' >&2; return 1; }
}
# shellcheck disable=SC2154 # shunit2's own variables
tearDown() {
	local host
	if compgen -G "$WORK/sanitizer.*" >/dev/null; then
		fail "a sanitizer found: $(head -40 "$WORK"/sanitizer.*)"
		rm -f "$WORK"/sanitizer.*
	fi
	if [ -n "${_shunit_test_:-}" ]; then
		if [ "$__shunit_testSuccess" = 0 ]; then
			[ -n "$SKIPPED" ] || echo "ok $_shunit_test_" >>"$RESULTS"
		else
			echo "not ok $_shunit_test_" >>"$RESULTS"
			for host in $HOST_LIST; do
				echo "--- the agent's log on $host:"
				agent_log "$host" | tail -n "${LOG_LINES:-25}"
				[ ! -s "$WORK/$host/shim.log" ] || { echo "--- the library's log on $host:"; shim_log "$host" | tail -n 5; }
			done
		fi
		_shunit_test_=
	fi
	end_world 2>/dev/null
	return 0
}
oneTimeTearDown() {
	local pids
	[ -d "$WORK" ] || return 0
	end_world 2>/dev/null
	stop_redis 2>/dev/null
	[ -z "$NET_INIT" ] || kill -KILL "$NET_INIT" 2>/dev/null
	pids=$(pids_of "$WORK")
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null
	rm -rf "$WORK"
	return 0
}
