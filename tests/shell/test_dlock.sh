#!/bin/bash
# SPDX-License-Identifier: MIT
# The dlock command: what `run` refuses and how it protects, what `check` and
# `status` say, and that `init` says it only once.
. "$(dirname "$0")/lib.sh"
WORLD='A B'

# run_on HOST ARGS…: dlock run on a host. Its exit code is RC, what it said on stderr is SAID, on stdout OUT.
run_on() {
	local host=$1
	shift
	OUT=$(dlock "$host" run "$@" 2>"$WORK/said")
	RC=$?
	SAID=$(cat "$WORK/said")
}
refused() {				# SENTENCE CODE WORDS: the last run_on
	expect "$1: exit code ($SAID)" "$2" "$RC"
	case $SAID in
	*"$3"*) ;;
	*) fail "$1: said '$SAID', not '$3'" ;;
	esac
	expect "$1: one sentence" 1 "$(grep -c '' "$WORK/said")"
}
program() { cp /bin/true "$WORK/$1" && chmod 755 "$WORK/$1"; }
script() { printf '%s\n' "$2" >"$WORK/$1" && chmod 755 "$WORK/$1"; }

# json EXPRESSION: of the status of host A, as `s`; `lock(name)` is one lock of it. json_on HOST: of another one's.
json_on() {
	dlock "$1" status --json | "$PYTHON" -c "import json, sys
s = json.load(sys.stdin)
def lock(name): return [l for l in s['locks'] if l['name'] == name][0]
print($2)"
}
json() { json_on A "$1"; }
json_on_is() { [ "$(json_on "$1" "$2" 2>&1)" = "$3" ]; }
agent_on() { on "$1" flock "$(path_on "$1" first)" true; }
lingering() {				# [HOST…]: hosts that keep an idle cover for a minute
	local host
	end_world 2>/dev/null
	for host in "$@"; do HOST_EXTRA[$host]='linger = "60s";'; done
	T_MS=60000 new_world "$@"
}
pid_there() { awk '/^NSpid:/ { print $NF }' "/proc/$1/status"; }	# as the process's own host numbers it
stopped() { grep -qs '^State:.T' "/proc/$1/status"; }

test_a_command_under_dlock_run_is_protected() {
	take b B f ex
	run_on A flock -n "$(path_on A f)" true
	expect "excluded by B ($SAID)" 1 "$RC"
	ask b un 0 >/dev/null
	run_on A flock -n "$(path_on A f)" sh -c 'exit 7'
	expect "free again, and the command's own code ($SAID)" 7 "$RC"
}

test_run_passes_arguments_and_keeps_an_earlier_preload() {
	run_on A -- printf '%s|' a 'b c' ''
	expect 'arguments' 'a|b c||' "$OUT"
	run_on A sh -c 'exit 42'
	expect 'exit code' 42 "$RC"
	OUT=$(LD_PRELOAD=libc.so.6 dlock A run sh -c 'echo "$LD_PRELOAD"')
	expect 'preload' "$BUILD/libdlockshim.so:libc.so.6" "$OUT"
	run_on A env "$BUILD/dlock" run sh -c 'echo "$LD_PRELOAD"'
	expect 'once is enough' "$BUILD/libdlockshim.so" "$OUT"
}

test_run_refuses_what_cannot_be_protected() {
	run_on A "$PROGS/static_sleep"
	refused 'static' 122 'statically linked'
	program owned
	chown 65534 "$WORK/owned" && chmod 4755 "$WORK/owned"
	skip_unless 'a set-user-id file needs root' [ "$(id -u)" = 0 ] || {
		run_on A "$WORK/owned"
		refused 'set-user-id' 122 'set-user-id'
	}
	script static_script "#!$PROGS/static_sleep"
	run_on A "$WORK/static_script"
	refused 'a script for a static interpreter' 122 'statically linked'
	script clears '#!/usr/bin/env -S -i sh'
	run_on A "$WORK/clears"
	refused 'a script that clears the environment' 122 'clears the environment'
	cp "$BUILD/libdlockshim.so" "$WORK/a b.so"
	OUT=$(DLOCKSHIM_LIBRARY="$WORK/a b.so" dlock A run true 2>"$WORK/said")
	RC=$? SAID=$(cat "$WORK/said")
	refused 'a library with a blank in its path' 122 'LD_PRELOAD cannot carry'
}

test_run_follows_scripts() {
	script good '#!/usr/bin/env -S sh -e'
	run_on A "$WORK/good"
	expect "a script by env ($SAID)" 0 "$RC"
	script twice "#!$WORK/good"
	run_on A "$WORK/twice"
	expect "a script by a script ($SAID)" 0 "$RC"
	script loop "#!$WORK/loop"
	run_on A "$WORK/loop"
	refused 'a script by itself' 126 'by a script by a script'
	script nobody '#!/nonexistent/sh'
	run_on A "$WORK/nobody"
	refused 'no interpreter' 126 'cannot be executed'
	script plain 'echo hello'
	run_on A "$WORK/plain"
	refused 'no first line' 126 'neither an ELF program nor a script'
}

test_run_says_what_it_cannot_find_or_execute() {
	run_on A no-such-command-here
	refused 'not in PATH' 127 'was not found in PATH'
	run_on A /nonexistent/program
	refused 'no such path' 127 'does not exist'
	run_on A /
	refused 'a directory' 126 'is a directory'
	: >"$WORK/data"
	run_on A "$WORK/data"
	refused 'not executable' 126 'check its mode'
	dlock A run 2>/dev/null
	expect 'no command' 120 $?
	dlock A run --unknown true 2>/dev/null
	expect 'an unknown option' 120 $?
}

test_a_broken_configuration_is_one_sentence() {
	echo 'nonsense = 1;' >>"$WORK/A/conf"
	run_on A true
	refused 'run' 121 "$WORK/A/conf"
	dlock A status >/dev/null 2>&1
	expect 'status' 121 $?
	dlock A check / >/dev/null 2>&1
	expect 'check' 121 $?
	dlock A init >/dev/null 2>&1
	expect 'init' 121 $?
}

test_a_runtime_directory_of_others_is_refused() {
	chmod 777 "$(runtime_seen A)"
	run_on A true
	refused 'run' 121 'cannot be trusted'
	chmod 700 "$(runtime_seen A)"
}

test_without_an_agent_status_says_so_and_check_knows_the_rule() {
	local out
	dlock A status >/dev/null 2>"$WORK/said"
	expect 'status' 121 $?
	assertContains "$(cat "$WORK/said")" 'no agent answers'
	out=$(dlock A check "$(path_on A f)" 2>/dev/null)
	expect 'check' 121 $?
	assertContains "$out" 't/f'
}

# As /var/lock, which is /run/lock on Debian: the rule is written with the one, the program has the other.
test_rule_written_with_a_symbolic_link_manages_what_lies_behind_it() {
	local host
	for host in A B; do
		off $host ln -s "$(path_on $host '')" "$(path_on $host link)"
		sed -i "s|$(path_on $host '')|$(path_on $host link)/|" "$WORK/$host/conf"
	done
	take a A link/f ex
	expect 'one host gets the lock' 'ok 0' "$ANSWER"
	expect_busy B link/f
	assertContains "$(dlock B check "$(path_on B link/f)" 2>&1)" 'name    t/f'
}

test_check_names_rule_holder_and_waiter() {
	local out rc
	take a A f ex
	queue b B f ex
	out=$(dlock A check "$(path_on A f)" 2>&1)
	rc=$?
	expect 'managed' 0 $rc
	assertContains "$out" 'name    t/f'
	assertContains "$out" "$WORK/A/conf:"
	assertContains 'the holder' "$(echo "$out" | tr -s ' ')" "t/f EX"
	assertContains 'the waiter' "$out" 'waits 1'
	out=$(dlock A check "$(path_on A g)" 2>&1)
	expect 'a free one' 0 $?
	assertContains "$out" 'Nobody holds it'
	dlock A check /etc/passwd >/dev/null 2>&1
	expect 'no rule' 1 $?
	dlock A check /dev/null >/dev/null 2>&1
	expect 'a device' 1 $?
}

test_status_shows_every_lock_of_every_host() {
	take a A held ex
	take b B shared sh
	queue c B held ex
	take d A idle ex
	ask d un 0 >/dev/null
	expect 'names' "['t/held', 't/idle', 't/shared']" "$(json "sorted(l['name'] for l in s['locks'] if l['covers'])")"
	expect 'the holder' "[('EX', 'held')]" "$(json "[(c['mode'], c['state']) for l in s['locks'] if l['name'] == 't/held' for c in l['covers']]" | sed s/recalled/held/)"
	expect 'its command' "['actor']" "$(json "[h['command'] for l in s['locks'] if l['name'] == 't/held' for h in l['holders']]")"
	expect 'the waiter' "[('EX', 'actor', False)]" "$(json "[(w['mode'], w['command'], w['try']) for l in s['locks'] if l['name'] == 't/held' for w in l['waiters']]")"
	expect 'idle' "['idle']" "$(json "[c['state'] for l in s['locks'] if l['name'] == 't/idle' for c in l['covers']]")"
	expect 'two hosts' 2 "$(json "len(s['hosts'])")"
	expect 'no grace' False "$(json "s['store']['grace']")"
	assertContains "$(dlock A status)" 't/shared'
	assertContains "$(dlock A status)" 'waits 1'
}

test_status_of_another_host_shows_who_holds_now() {		# inside the cover, without a word to the store
	local first second host
	lingering A B
	agent_on B
	take a A f ex
	first=$(pid_there "${ACTOR_PID[a]}")
	expect 'B sees the first' "[$first]" "$(json_on B "[h['pid'] for h in lock('t/f')['holders']]")"
	ask a un 0 >/dev/null
	take c A f ex
	second=$(pid_there "${ACTOR_PID[c]}")
	for host in A B; do
		expect "$host sees the second" "[($second, 'actor', 'EX')]" \
			"$(json_on $host "[(h['pid'], h['command'], h['mode']) for h in lock('t/f')['holders']]")"
		assertContains "$(dlock $host status | tr -s ' ')" " $second actor"
		assertContains "$(dlock $host check "$(path_on $host f)" | tr -s ' ')" " $second actor"
	done
}

test_status_shows_the_shell_that_keeps_a_lock_by_its_descriptor() {	# exec 9>f; flock 9: who took it has ended
	local host
	agent_on B
	spawn A sh -c 'exec 9>"$1"; flock 9 && kill -STOP $$' sh "$(path_on A f)"
	wait_until 10 stopped "$SPAWNED" || fail 'the shell does not get that far'
	for host in A B; do
		expect "$host sees the shell" "[($(pid_there "$SPAWNED"), 'sh')]" "$(json_on $host "[(h['pid'], h['command']) for h in lock('t/f')['holders']]")"
		expect "$host: state" "['held']" "$(json_on $host "[c['state'] for c in lock('t/f')['covers']]")"
	done
}

test_status_shows_who_holds_by_a_mapping_alone() {
	local host
	agent_on B
	on A flock "$(path_on A f)" true	# from now on taken without asking
	echo x >>"$(seen A f)"
	spawn A "$PYTHON" -c 'import fcntl, mmap, os, signal, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 1)
fcntl.flock(f, fcntl.LOCK_EX)
os.closerange(3, 100)
os.kill(os.getpid(), signal.SIGSTOP)' "$(path_on A f)"
	wait_until 10 stopped "$SPAWNED" || fail 'the program does not get that far'
	for host in A B; do
		expect "$host" "[($(pid_there "$SPAWNED"), 'EX')]" "$(json_on $host "[(h['pid'], h['mode']) for h in lock('t/f')['holders']]")"
	done
}

test_an_idle_cover_is_idle_on_every_host() {
	local host
	lingering A B
	on A flock "$(path_on A f)" true
	take b B other ex
	for host in A B; do
		expect "$host: state" "[('idle', False)]" "$(json_on $host "[(c['state'], 'pid' in c) for c in lock('t/f')['covers']]")"
		expect "$host: no holder" '[]' "$(json_on $host "lock('t/f')['holders']")"
		assertContains "$host: the table" "$(dlock $host status | tr -s ' ' | grep '^t/f ')" ' - - '
	done
}

test_all_readers_and_the_waiters_in_a_kernel_are_shown_on_every_host() {
	local host
	take r A f sh
	take s A f sh
	take t B f sh
	take w A g ex
	queue x A g ex
	for host in A B; do
		expect "$host: readers" "$(printf '%s\n' "$(pid_there "${ACTOR_PID[r]}")" "$(pid_there "${ACTOR_PID[s]}")" "$(pid_there "${ACTOR_PID[t]}")" | sort -n | xargs)" \
			"$(json_on $host "*sorted(h['pid'] for h in lock('t/f')['holders'] if h['mode'] == 'SH')")"
		expect "$host: the waiter" "[($(pid_there "${ACTOR_PID[x]}"), 'kernel')]" "$(json_on $host "[(w['pid'], w['where']) for w in lock('t/g')['waiters']]")"
		assertContains "$host: marked" "$(dlock $host status)" 'waits 1 (kernel)'
	done
}

test_a_host_that_does_not_answer_is_named_and_does_not_delay_the_others() {
	local from to out
	take a A f ex
	take b B g ex
	freeze_host A
	from=$(now_us)
	out=$(dlock B status)
	to=$(now_us)
	assertTrue "it took $(((to - from) / 1000)) ms" "[ $((to - from)) -lt 1500000 ]"
	assertContains 'named' "$out" 'did not answer'
	assertContains 'whose request fetched the cover' "$(echo "$out" | grep '^t/f ')" "($(pid_there "${ACTOR_PID[a]}"))"
	assertContains 'not taken for known' "$(echo "$out" | grep '^t/f ')" unknown
	assertContains 'the others are known' "$(echo "$out" | grep '^t/g ')" held
	thaw_host A
	assertTrue 'it is known again' "wait_until 5 json_on_is B \"[h['live'] for h in s['hosts']]\" '[True, True]'"
	expect 'and who holds' "[$(pid_there "${ACTOR_PID[a]}")]" "$(json_on B "[h['pid'] for h in lock('t/f')['holders']]")"
}

test_many_questions_at_once_are_all_answered() {
	local i pids=()
	agent_on B
	take a A f ex
	for i in 1 2 3 4 5 6 7 8; do
		dlock B status >"$WORK/status.$i" &
		pids+=($!)
	done
	wait "${pids[@]}"
	for i in 1 2 3 4 5 6 7 8; do
		assertContains "question $i" "$(tr -s ' ' <"$WORK/status.$i")" " $(pid_there "${ACTOR_PID[a]}") actor"
	done
}

test_status_is_json_whatever_the_names() {
	local name=$'new\nline "quoted" \\ \t\xff \xc3\xa4'
	on A flock "$(path_on A "$name")" true
	expect 'the name' "$(printf 't/%s' "$name" | od -An -tx1 | tr -d ' \n')" "$(json "[l['name_hex'] for l in s['locks']][0]")"
	assertNotContains 'no raw bytes in the table' "$(dlock A status)" $'\xff'
}

test_many_locks_are_all_shown() {		# more than one packet, and more than a socket's buffer
	local shown
	lingering A
	on A "$PYTHON" -c 'import fcntl, sys
for n in range(2000):
	with open("%s-%d" % (sys.argv[1], n), "w") as f: fcntl.flock(f, fcntl.LOCK_EX)' "$(path_on A many)"
	shown=$(json "len(s['locks'])")
	expect 'locks' 2000 "$shown"
}

# A table without rows says that nobody has a lock only where the store can know.
test_a_store_that_is_away_or_forgetful_is_not_said_to_be_free() {
	local out
	take a A f ex
	dlock B run true		# its agent
	kill_redis
	wait_until 5 store_is B connecting || fail 'the agent should have noticed'
	out=$(dlock B status 2>&1)
	expect 'status' 121 $?
	assertContains "$out" 'cannot be told'
	assertNotContains "$out" 'No host has a lock'
	start_redis || fail 'Redis'
	wait_until 5 store_is B grace || fail "B should be in grace"
	out=$(dlock B check "$(path_on B g)" 2>&1)
	assertContains "$out" 'grace period'
	assertNotContains "$out" 'Nobody holds it'
}
store_is() { dlock "$1" status 2>/dev/null | grep -q "store $2"; }

test_doctor_knows_files_that_no_lock_makes_safe() {
	local out sql="import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('pragma journal_mode=' + sys.argv[2]); db.execute('create table t(x)'); db.commit()"
	off A "$PYTHON" -c "$sql" "$(path_on A journal.db)" delete
	off A "$PYTHON" -c "$sql" "$(path_on A wal.db)" wal
	out=$(dlock A doctor "$(path_on A journal.db)" 2>&1)
	expect "a rollback journal ($out)" 0 $?
	out=$(dlock A doctor "$(path_on A journal.db)" "$(path_on A wal.db)" 2>&1)
	expect "WAL ($out)" 1 $?
	assertContains "$out" 'PRAGMA journal_mode=DELETE'
	out=$(dlock A doctor /etc/passwd 2>&1)
	expect "no rule ($out)" 1 $?
	assertContains "$out" 'no rule'
	dlock A doctor "$(path_on A none)" >/dev/null 2>&1
	expect 'no such file' 121 $?
}

test_init_says_it_once() {
	dlock A init >/dev/null 2>"$WORK/said"
	expect 'the second time' 1 $?
	assertContains "$(cat "$WORK/said")" 'has data already'
	dlock A init more >/dev/null 2>&1
	expect 'an argument' 120 $?
}

test_help_lists_commands_and_exit_codes() {
	local word
	for word in init run check doctor status version help 120 121 122 126 127; do
		assertContains "$("$BUILD/dlock" --help)" " $word"
	done
	"$BUILD/dlock" nonsense 2>/dev/null
	expect 'no such command' 120 $?
	"$BUILD/dlock" status --config 2>/dev/null
	expect 'no value' 120 $?
}

not_control || exit 0
. shunit2
