#!/bin/bash
# SPDX-License-Identifier: MIT
# The files in examples/, as they stand there: only paths, the server and the namespace are put in.
. "$(dirname "$0")/lib.sh"

# use EXAMPLE LOCKDIR: its configuration on both hosts, with their lock directory in the place of LOCKDIR.
use() {
	local host server
	for host in A B; do
		server=$(sed -n 's/.*"\(redis:[^"]*\)".*/\1/p' "$WORK/$host/conf")
		sed -e "s|redis://[^\"]*|$server|" -e "s|\"prod\"|\"$NAMESPACE\"|" -e "s|\"30s\"|\"${T_MS}ms\"|" \
			-e "s|$2/|$(path_on $host '')|" "$ROOT/examples/$1/dlockshim.conf" >"$WORK/$host/conf"
	done
}
lines() { grep -c "^$1" "$WORK/out"; }

test_cron_job_runs_on_one_of_two_hosts() {
	local host line rc_a rc_b first second
	use cron /var/lock/jobs
	# The command of the crontab line: behind five fields of time and the user.
	line=$(sed -n 's/^\*[^#]* root //p' "$ROOT/examples/cron/report.cron")
	assertNotNull 'the crontab line' "$line"
	for host in A B; do
		sed -e "s|/var/lock/jobs/|$(path_on $host '')|" -e "s|/usr/local/bin|$ROOT/examples/cron|" -e "s|^dlock|$BUILD/dlock|" <<<"$line" >"$WORK/$host/line"
	done
	: >"$WORK/out"
	off A env REPORT="$WORK/out" REPORT_SECONDS=1.5 sh "$WORK/A/line" & first=$!
	off B env REPORT="$WORK/out" REPORT_SECONDS=1.5 sh "$WORK/B/line" & second=$!
	wait $first; rc_a=$?
	wait $second; rc_b=$?
	expect 'one run has begun' 1 "$(lines begin)"
	expect 'and it came to its end' 1 "$(lines end)"
	expect 'one host ran it, the other ended with 1' '0 1' "$(printf '%s\n' $rc_a $rc_b | sort | xargs)"
	off B env REPORT="$WORK/out" REPORT_SECONDS=0 sh "$WORK/B/line"
	expect 'the next turn runs' 0 $?
}

test_deploy_script_runs_one_after_the_other() {
	local host all=()
	use shell-exec9 /srv/deploy
	: >"$WORK/out"
	for host in A B; do
		sed "s|/srv/deploy/|$(path_on $host '')|" "$ROOT/examples/shell-exec9/deploy.sh" >"$WORK/$host/deploy.sh"
		chmod +x "$WORK/$host/deploy.sh"
	done
	for host in A B A B; do
		off $host env DEPLOY_LOG="$WORK/out" DEPLOY_SECONDS=0.3 "$BUILD/dlock" run -- "$WORK/$host/deploy.sh" & all+=($!)
	done
	wait "${all[@]}"
	expect 'four runs' 4 "$(lines end)"
	expect 'each ends before the next begins' 'begin end begin end begin end begin end' "$(cut -d' ' -f1 "$WORK/out" | xargs)"
}

test_deploy_script_gives_up_after_its_time() {
	use shell-exec9 /srv/deploy
	sed "s|/srv/deploy/|$(path_on B '')|" "$ROOT/examples/shell-exec9/deploy.sh" >"$WORK/B/deploy.sh"
	take a A site.lock ex
	off B env DEPLOY_LOG="$WORK/out" DEPLOY_WAIT=0.4 "$BUILD/dlock" run -- sh "$WORK/B/deploy.sh" 2>"$WORK/said"
	expect 'its own exit code' 75 $?
	assertTrue 'it says why' "grep -q 'somebody else deploys' '$WORK/said'"
}

. shunit2
