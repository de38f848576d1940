#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs the tests: run.sh full|quick [PART OF A NAME]. Unit tests and models, then
# the shell tests on hosts of kind a and, as root, on hosts of kind b. Counts what
# the runs printed, and ends with "N passed, N failed".
set -u
cd "$(dirname "$0")/.." || exit 2
how=${1:-full} part=${2:-}
BUILD=$(realpath "${BUILD:-build}")
export BUILD
out=$BUILD/results
JOBS=${JOBS:-2}		# most tests wait rather than work
mkdir -p "$out"
rm -f "$out"/*

quick_shell=' test_exclusion test_modes test_conversions test_examples '

# One run. Its output goes to NAME.log, its counted results ("ok …", "not ok …", "skip …") to NAME.res.
run_cmocka() {
	local name=$1 program=$2 rc
	: >"$out/$name.res"
	CMOCKA_MESSAGE_OUTPUT=TAP QUICK=$([ "$how" = quick ] && echo 1) timeout -k 5 "$3" "$program" >"$out/$name.log" 2>&1
	rc=$?
	# cmocka says "not ok 3 # SKIP test" of a test that is left out.
	sed -nE 's/^(not )?ok [0-9]+ # SKIP /skip /; /^(not ok|ok|skip)[ 0-9-]/p' "$out/$name.log" >>"$out/$name.res"
	if [ ! -s "$out/$name.res" ]; then	# a program of another kind is one test
		if [ $rc = 0 ]; then echo "ok $name" >"$out/$name.res"; else echo "not ok $name: exit $rc" >"$out/$name.res"; fi
	elif [ $rc != 0 ] && ! grep -q '^not ok' "$out/$name.res"; then
		echo "not ok $name: exit $rc" >>"$out/$name.res"
	fi
}
run_shell() {
	local name=$1 file=$2 kind=$3 rc
	: >"$out/$name.res"
	RESULTS=$out/$name.res HOSTS=$kind SHUNIT_COLOR=none timeout -k 45 "$4" bash "$file" >"$out/$name.log" 2>&1 </dev/null
	rc=$?
	if [ $rc != 0 ] && ! grep -q '^not ok' "$out/$name.res"; then
		echo "not ok $name: exit $rc" >>"$out/$name.res"
	elif [ ! -s "$out/$name.res" ]; then
		echo "not ok $name: no test was run" >>"$out/$name.res"
	fi
}
report() {
	local name=$1 passed failed skipped
	passed=$(grep -c '^ok' "$out/$name.res")
	failed=$(grep -c '^not ok' "$out/$name.res")
	skipped=$(grep -c '^skip' "$out/$name.res")
	printf '%-28s %3d passed, %d failed%s  (%s s)\n' "$name" "$passed" "$failed" \
		"$([ "$skipped" = 0 ] || echo ", $skipped skipped")" "$2"
	if [ "$failed" != 0 ]; then
		grep '^not ok' "$out/$name.res" | sed 's/^/    /'
		echo "    --- $out/$name.log"
		grep -aE 'ASSERT|^---|ERROR|error|Sanitizer|FATAL|expected' "$out/$name.log" | head -40 | sed 's/^/    /'
	fi
	total_passed=$((total_passed + passed)) total_failed=$((total_failed + failed))
}

total_passed=0 total_failed=0
names=()
running() { jobs -rp | wc -l; }
launch() {				# FUNCTION NAME …: at most JOBS at once, reports in order
	case $2 in *"$part"*) ;; *) return ;; esac
	while [ "$(running)" -ge "$JOBS" ]; do wait -n; collect; done
	{ local start=$SECONDS; "$@"; echo $((SECONDS - start)) >"$out/$2.time"; } &
	names+=("$2")
}
collect() {
	while [ ${#names[@]} -gt 0 ] && [ -s "$out/${names[0]}.time" ]; do
		report "${names[0]}" "$(cat "$out/${names[0]}.time")"
		names=("${names[@]:1}")
	done
}
stop() { trap - INT TERM; for pid in $(jobs -p); do kill -TERM "$pid" 2>/dev/null; done; wait; exit 130; }
trap stop INT TERM

for program in "$BUILD"/tests/unit/test_* "$BUILD"/tests/model/test_*; do
	case $program in *.d | *.o) continue ;; esac
	[ -f "tests/${program#"$BUILD/tests/"}.c" ] || continue
	launch run_cmocka "$(basename "$program")" "$program" 180
done
kinds=a left_out=
if [ "$how" = full ]; then
	if left_out=$(tests/namespaces.sh); then kinds='a b'; fi
fi
for kind in $kinds; do
	for file in tests/shell/test_*.sh; do
		name=$(basename "$file" .sh)
		[ "$how" = full ] || case $quick_shell in *" $name "*) ;; *) continue ;; esac
		launch run_shell "$name.$kind" "$file" "$kind" 300
	done
done
wait
collect
[ -z "$left_out" ] || echo "Left out: the shell tests on hosts of kind b, with namespaces of their own: $left_out."
echo "$total_passed passed, $total_failed failed"
[ $total_failed = 0 ] && [ $total_passed != 0 ]
