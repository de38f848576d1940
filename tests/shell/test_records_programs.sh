#!/bin/bash
# SPDX-License-Identifier: MIT
# Real programs on two hosts that share their data but not the kernel's locks. Each is kept out by a holder on the other
# host; without the library it is not. Where only the data tell, the run without the library loses some.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/programs.sh"
WORLD='A B'
RESULT=
BSH=/usr/share/java/bsh.jar

# The control: RUN without the library, up to five times, until the result that it leaves in RESULT is not the right one.
control_loses() {			# RUN RIGHT
	local n
	not_control || return 0
	for n in 1 2 3 4 5; do
		$1
		echo "    without the library: $RESULT"
		[ "$RESULT" != "$2" ] && return 0
	done
	fail "the control must lose something: $RESULT"
}

setUp_data() {
	skip_unless 'no bindfs, or mounts are not allowed here' mount_data && return 1
	return 0
}
tearDown_data() { unmount_data; rm -rf "$WORK/data" "$HAS"; }

# ---- data ----

# sqlite_run on|off TRANSACTIONS: four writers, two on each host. Each takes its turn with BEGIN IMMEDIATE and waits for it.
sqlite_run() {
	local how=$1 count=$2 n=0 host pids=
	rm -f "$WORK"/data/db*
	off A sqlite3 "$(there A db)" 'create table t (writer, number); create table c (n); insert into c values (0);'
	for host in A A B B; do
		n=$((n + 1))
		awk -v n=$n -v count="$count" 'BEGIN { print ".timeout 60000"; print "pragma synchronous=off;"
			for (i = 0; i < count; i++) printf "begin immediate; insert into t values (%d, %d); update c set n = n + 1; commit;\n", n, i }' >"$WORK/sql.$n"
		LIMIT=90 $how $host sqlite3 "$(there $host db)" <"$WORK/sql.$n" >"$WORK/said.$n" 2>&1 &
		pids="$pids $!"
	done
	# shellcheck disable=SC2086 # a list
	wait $pids
	RESULT=$(off A sqlite3 "$(there A db)" 'select count(*), count(distinct writer || " " || number), (select n from c) from t; pragma integrity_check;' 2>&1 | head -3 | tr '\n' ' ')
}

test_sqlite_loses_no_row() {
	local began
	setUp_data || return 0
	began=$(now_us)
	sqlite_run on 500
	echo "    4 writers, 2,000 transactions in $((($(now_us) - began) / 1000)) ms: $RESULT"
	expect 'rows, different rows, counter, integrity' '2000|2000|2000 ok ' "$RESULT"
	expect 'no writer has anything to say' '' "$(cat "$WORK"/said.?)"
	control_loses 'sqlite_run off 100' '400|400|400 ok '
	rm -f "$WORK"/said.? "$WORK"/sql.?
	tearDown_data
}

test_sqlite_busy_handler_works() {
	local began took
	setUp_data || return 0
	off A sqlite3 "$(there A db)" 'create table t (a)'
	mkfifo "$WORK/sql"
	# shellcheck disable=SC2016
	spawn A sh -c 'exec sqlite3 "$1" <"$2"' x "$(there A db)" "$WORK/sql" >"$WORK/hold.log" 2>&1
	HOLDER=$SPAWNED
	exec 8>"$WORK/sql"
	printf 'begin exclusive;\ninsert into t values (1);\n.shell echo has >%s\n' "$HAS" >&8
	wait_until 10 test -s "$HAS" || fail "the holder: $(cat "$WORK/hold.log")"
	outcome on B sqlite3 "$(there B db)" 'insert into t values (2)'
	expect 'without patience' 'database is locked' "$(grep -o 'database is locked' "$WORK/said")"
	began=$(now_us)
	outcome on B sqlite3 -cmd '.timeout 500' "$(there B db)" 'insert into t values (2)'
	took=$(($(now_us) - began))
	expect 'after its patience' 'database is locked' "$(grep -o 'database is locked' "$WORK/said")"
	assertTrue "it waited $took µs" "[ $took -ge 400000 ]"
	if not_control; then
		outcome off B sqlite3 "$(there B db)" 'select count(*) from t'
		expect 'the control reads under an exclusive lock' 0 "$OUTCOME"
	fi
	LIMIT=20 on B sqlite3 -cmd '.timeout 10000' "$(there B db)" 'insert into t values (3)' >"$WORK/said" 2>&1 &
	nap 0.3
	echo 'commit;' >&8
	wait $!
	expect "when the holder commits: $(cat "$WORK/said")" 0 $?
	exec 8>&-
	expect 'both rows' 1,3 "$(off A sqlite3 "$(there A db)" 'select group_concat(a) from (select a from t order by a)')"
	rm -f "$WORK/sql"
	tearDown_data
}

test_sqlite_wal_and_lmdb_are_said_to_be_unsafe() {
	skip_unless 'no dlock there' not_control && return
	off A sqlite3 "$(path_on A wal)" 'pragma journal_mode=wal; create table t (a)' >/dev/null
	expect 'WAL' unsafe "$(dlock A doctor "$(path_on A wal)" 2>&1 | grep -om1 unsafe)"
	# LMDB's first page: 16 bytes, then the magic number.
	printf '\0\0\0\0\0\0\0\0\0\0\10\0\0\0\0\0\336\300\357\276\1\0\0\0' >"$(seen A lmdb)"
	head -c 8000 /dev/zero >>"$(seen A lmdb)"
	expect 'LMDB' unsafe "$(dlock A doctor "$(path_on A lmdb)" 2>&1 | grep -om1 unsafe)"
}

# counter_run on|off: two Python programs on each host add one, 100 times each.
counter_run() {
	local how=$1 host pids=
	echo 0 >"$(data counter)"
	for host in A A B B; do
		LIMIT=60 $how $host "$PYTHON" -c 'import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
for _ in range(100):
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 100)
    n = int(os.pread(fd, 20, 0))
    time.sleep(0.0005)
    os.pwrite(fd, b"%d\n" % (n + 1), 0)
    fcntl.lockf(fd, fcntl.LOCK_UN, 10, 100)' "$(there $host counter)" &
		pids="$pids $!"
	done
	# shellcheck disable=SC2086
	wait $pids
	RESULT=$(cat "$(data counter)")
}

test_python_programs_count_together() {
	setUp_data || return 0
	counter_run on
	expect 'the counter' 400 "$RESULT"
	control_loses 'counter_run off' 400
	tearDown_data
}

# Two programs on each host insert 100 keys each.
tdb_run() {
	local how=$1 n=0 host pids=
	rm -f "$(data t.tdb)"
	echo "create $(there A t.tdb)" | off A tdbtool >/dev/null 2>&1
	for host in A A B B; do
		n=$((n + 1))
		awk -v n=$n 'BEGIN { for (i = 0; i < 100; i++) printf "insert key%d-%d value\n", n, i }' >"$WORK/tdb.$n"
		LIMIT=60 $how $host tdbtool "$(there $host t.tdb)" <"$WORK/tdb.$n" >/dev/null 2>&1 &
		pids="$pids $!"
	done
	# shellcheck disable=SC2086
	wait $pids
	rm -f "$WORK"/tdb.?
	RESULT="$(off A timeout 10 tdbtool "$(there A t.tdb)" keys </dev/null 2>/dev/null | grep -ac '^key.*key') $(off A timeout 10 tdbtool "$(there A t.tdb)" check 2>&1 </dev/null | grep -aom1 'Database integrity is OK')"
}

test_tdb_loses_no_key() {
	setUp_data && have tdbtool || return 0
	tdb_run on
	expect 'keys' '400 Database integrity is OK' "$RESULT"
	control_loses 'tdb_run off' '400 Database integrity is OK'
	tearDown_data
}

# ---- one holds, one is kept out ----

test_record_lock_programs_are_kept_out() {
	local key
	setUp_data || return 0
	hold_python A lockf f
	excluded 'Python lockf' BlockingIOError B "$PYTHON" -c 'import fcntl, sys
fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)' "$(there B f)"
	printf 'From a Thu Jan  1 00:00:00 2026\nSubject: x\n\nx\n\n' >"$(data mbox)"
	hold_python A lockf mbox
	excluded 'Python mailbox' ExternalClashError B "$PYTHON" -c 'import mailbox, sys
box = mailbox.mbox(sys.argv[1]); box.lock(); box.unlock()' "$(there B mbox)"
	hold_python B lockf f
	# shellcheck disable=SC2016
	excluded 'Perl fcntl' 'not now' A perl -MFcntl -e 'open my $f, "+<", shift or die; my $l = pack("s s x4 q q i x4", F_WRLCK, 0, 0, 0, 0); fcntl($f, F_SETLK, $l) or die "not now"' "$(there A f)"
	if have dpkg; then
		mkdir -p "$(data dpkg/info)" "$(data dpkg/updates)" "$(data dpkg/triggers)"
		touch "$(data dpkg/status)" "$(data dpkg/available)"
		hold_python A lockf dpkg/lock-frontend
		excluded dpkg 2 B dpkg --admindir="$(there B dpkg)" --clear-selections
		hold_python B lockf dpkg/lock
		excluded 'dpkg, the inner lock' 2 A dpkg --admindir="$(there A dpkg)" --clear-selections
	fi
	if have apt-get; then
		mkdir -p "$(data archives/partial)"
		hold_python A lockf archives/lock
		excluded apt-get 100 B apt-get -o Dir::Cache::archives="$(there B archives)" clean
	fi
	if have tdbtool; then
		printf 'create %s\ninsert a b\n' "$(there A x.tdb)" | off A tdbtool >/dev/null 2>&1
		hold_python A lockf x.tdb
		PATIENCE=1 excluded tdbtool waits B tdbtool "$(there B x.tdb)" insert c d
	fi
	if have s-nail; then
		hold_python A lockf mbox
		PATIENCE=1 excluded s-nail waits B env MAILRC=/dev/null s-nail -n -H -f "$(there B mbox)"
	fi
	tearDown_data
}

test_fc_cache_is_kept_out() {
	local host cache
	setUp_data && have fc-cache || return 0
	mkdir "$(data fonts)"
	for host in A B; do
		printf '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig><dir>%s</dir><cachedir>%s</cachedir></fontconfig>' \
			"$(there B fonts)" "$(there $host cache)" >"$WORK/fonts.$host"
	done
	FONTCONFIG_FILE=$WORK/fonts.B off B fc-cache -f >/dev/null 2>&1
	cache=$(basename "$(compgen -G "$(data cache)/*.cache-*" | head -1)")
	[ -n "$cache" ] || fail "no cache was made: $(ls "$(data cache)" 2>&1)"
	hold_python A lockf "cache/$cache"
	# One that is killed leaves a lock file, which is nobody's but its own.
	# shellcheck disable=SC2016
	# It ends with a sleep of two seconds if it has done anything.
	PATIENCE=4 excluded fc-cache waits B env FONTCONFIG_FILE="$WORK/fonts.B" sh -c 'rm -f "$1"/*.LCK "$1"/*.NEW "$1"/*.TMP*; exec fc-cache -f' x "$(there B cache)"
	rm -f "$WORK"/fonts.?
	tearDown_data
}

# It maps its file shared, which a mount with direct_io does not allow: so it has a copy on each host, of one name.
test_rrdtool_is_kept_out() {
	local host
	have rrdtool || return
	for host in A B; do
		[ -e "$(seen $host x.rrd)" ] || off $host rrdtool create "$(path_on $host x.rrd)" --start 1700000000 DS:a:GAUGE:600:U:U RRA:AVERAGE:0.5:1:10
	done
	hold A "$PYTHON" -c 'import fcntl, sys, time
f = open(sys.argv[1], "r+b"); fcntl.lockf(f, fcntl.LOCK_EX); open(sys.argv[2], "w").write("has"); time.sleep(1000)' "$(path_on A x.rrd)" "$HAS"
	excluded rrdtool 'could not lock RRD' B rrdtool update "$(path_on B x.rrd)" N:1
}

test_java_file_channel_locks() {
	setUp_data && have java $BSH || return 0
	cat >"$WORK/try.bsh" <<-'END'
		import java.io.*;
		lock = new RandomAccessFile(bsh.args[0], "rw").getChannel().tryLock(10, 10, false);
		System.exit(lock == null ? 11 : 0);
	END
	cat >"$WORK/hold.bsh" <<-'END'
		import java.io.*;
		lock = new RandomAccessFile(bsh.args[0], "rw").getChannel().lock(0, 15, false);
		has = new FileWriter(bsh.args[1]); has.write("has"); has.close();
		Thread.sleep(1000000);
	END
	hold_python A lockf j
	PATIENCE=15 excluded 'Java FileChannel.tryLock' 11 B java -XX:TieredStopAtLevel=1 -cp $BSH bsh.Interpreter "$WORK/try.bsh" "$(there B j)"
	hold A java -XX:TieredStopAtLevel=1 -cp $BSH bsh.Interpreter "$WORK/hold.bsh" "$(there A j)" "$HAS"
	excluded 'Java FileChannel.lock holds' BlockingIOError B "$PYTHON" -c 'import fcntl, sys
fcntl.lockf(open(sys.argv[1], "r+"), fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 14)' "$(there B j)"
	rm -f "$WORK"/*.bsh
	tearDown_data
}

test_flock_programs_are_kept_out() {
	setUp_data || return 0
	hold A flock "$(there A f)" sh -c "echo has >'$HAS'; exec sleep 1000"
	kill_child_too
	excluded 'flock(1)' 1 B flock -n "$(there B f)" true
	hold_python B flock f
	# shellcheck disable=SC2016
	excluded 'Perl flock' 'not now' A perl -MFcntl=:flock -e 'open my $f, "+<", shift or die; flock($f, LOCK_EX | LOCK_NB) or die "not now"' "$(there A f)"
	hold A perl -MFcntl=:flock -e 'open my $f, "+<", shift or die; flock($f, LOCK_EX) or die; open my $h, ">", shift; print $h "has"; close $h; sleep 1000' "$(there A f)" "$HAS"
	excluded 'Python flock' BlockingIOError B "$PYTHON" -c 'import fcntl, sys
fcntl.flock(open(sys.argv[1]), fcntl.LOCK_SH | fcntl.LOCK_NB)' "$(there B f)"
	if have ruby; then
		hold A ruby -e 'f = File.open(ARGV[0], "r+"); f.flock(File::LOCK_EX); File.write(ARGV[1], "has"); sleep 1000' "$(there A f)" "$HAS"
		excluded 'Ruby flock' 9 B ruby -e 'exit(File.open(ARGV[0], "r+").flock(File::LOCK_EX | File::LOCK_NB) ? 0 : 9)' "$(there B f)"
	fi
	if have php; then
		hold_python A flock f
		# shellcheck disable=SC2016
		PATIENCE=1 excluded 'PHP file_put_contents' waits B php -r 'file_put_contents($argv[1], "x", LOCK_EX);' "$(there B f)"
		mkdir -p "$(data sess)"
		hold_python A flock sess/sess_abc
		PATIENCE=1 excluded 'PHP sessions' waits B php -d session.save_path="$(there B sess)" -d session.use_cookies=0 -d session.cache_limiter= -r 'session_id("abc"); session_start();'
	fi
	if have logrotate; then
		printf '/nonexistent {\n missingok\n}\n' >"$WORK/rotate.conf"
		chmod 644 "$WORK/rotate.conf"
		off A logrotate -s "$(there A state)" "$WORK/rotate.conf"
		hold_python A flock state
		excluded logrotate 3 B logrotate -s "$(there B state)" "$WORK/rotate.conf"
		rm -f "$WORK/rotate.conf"
	fi
	if have daemonize; then
		hold_python A flock pid
		excluded daemonize 1 B daemonize -l "$(there B pid)" /bin/true
	fi
	if have gdbmtool; then
		off A gdbmtool "$(there A g.db)" store a b >/dev/null 2>&1
		hold_python A flock g.db
		excluded gdbm "Can't be writer" B gdbmtool "$(there B g.db)" store c d
	fi
	if have svnadmin svn; then
		off A svnadmin create "$(there A repo)"
		printf '#!/bin/sh\n' >"$(data repo/hooks/pre-revprop-change)"
		chmod 755 "$(data repo/hooks/pre-revprop-change)"
		hold_python A flock repo/db/write-lock
		PATIENCE=1 excluded 'svn fsfs' waits B env HOME="$WORK" svn -q propset --revprop -r 0 svn:log x "file://$(there B repo)" --force
	fi
	tearDown_data
}
# The holder of flock(1) is its child as well.
kill_child_too() { HOLDER="$HOLDER $(cat "/proc/$HOLDER/task/$HOLDER/children" 2>/dev/null)"; HOLDER=${HOLDER% }; }

# ---- programs that must work, or be refused ----

test_stress_ng_verifies_its_locks_under_the_library() {
	local kinds='--lockf 2 --lockofd 2 --flock 2' host pids=
	have stress-ng || return
	stress-ng --help | grep -q -- --lockmix && kinds="$kinds --lockmix 2"
	for host in A B; do
		mkdir -p "$(seen $host s)"
		# shellcheck disable=SC2086
		LIMIT=60 on $host stress-ng $kinds --verify --temp-path "$(path_on $host s)" --timeout 4 >"$WORK/stress.$host" 2>&1 &
		pids="$pids $!"
	done
	for host in $pids; do wait "$host"; expect 'stress-ng' 0 $?; done
	grep -h 'fail:' "$WORK"/stress.?
	expect 'both are successful' 2 "$(cat "$WORK"/stress.? | grep -c 'successful run')"
	rm -f "$WORK"/stress.?
}

test_programs_with_lock_files_of_their_own_are_not_disturbed() {
	setUp_data || return 0
	if have git; then
		LIMIT=20 on A git init -q "$(there A git)" && LIMIT=20 on B env HOME="$WORK" git -c safe.directory='*' -c user.name=x -c user.email=x@x -C "$(there B git)" commit -q --allow-empty -m x
		expect 'git init on one host, commit on the other' 0 $?
		expect 'the commit' 1 "$(off A git -c safe.directory='*' -C "$(there A git)" rev-list --count HEAD)"
	fi
	if have start-stop-daemon; then
		on A start-stop-daemon --start --background --make-pidfile --pidfile "$(there A pid)" --exec /bin/sleep -- 1000
		expect 'start-stop-daemon' 0 $?
		wait_until 5 test -s "$(data pid)" || fail 'no pid file'
		on A start-stop-daemon --stop --quiet --pidfile "$(there A pid)" --exec /bin/sleep
		expect 'it stops what it started' 0 $?
	fi
	tearDown_data
}

test_programs_that_the_library_cannot_serve_are_refused() {
	local program n=0 rc
	skip_unless 'no dlock there' not_control && return
	for program in procmail maildrop dotlockfile at "$PROGS/static_sleep"; do
		program=$(command -v "$program") || continue
		n=$((n + 1))
		dlock A run "$program" -v >"$WORK/said" 2>&1
		rc=$?
		expect "$program: $(head -1 "$WORK/said")" 122 $rc
	done
	echo "    $n programs are refused"
}

. shunit2
