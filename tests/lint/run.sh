#!/bin/bash
# SPDX-License-Identifier: MIT
# What can be said of the sources without running them. Each check prints what is
# wrong with file and line; the end is "N passed, N failed", counted by check.
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build}
passed=0 failed=0

mapfile -t files < <(git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './.git/*' -not -path './build*' -printf '%P\n')
existing=()
for file in "${files[@]}"; do [ -f "$file" ] && existing+=("$file"); done
files=("${existing[@]}")
of() { printf '%s\n' "${files[@]}" | grep -E "$1"; }	# files whose name matches

check() {				# SENTENCE FUNCTION: passes if the function prints nothing
	local said
	said=$($2 2>&1)
	if [ -z "$said" ]; then
		echo "ok      $1"
		passed=$((passed + 1))
	else
		echo "not ok  $1"
		sed 's/^/        /' <<<"$said" | head -60
		failed=$((failed + 1))
	fi
}

warnings() {
	make -s BUILD="$BUILD/lint" DEPS=no WERROR=1 -k all tests 2>&1 | grep -vE '^(ar|make)[: ]' | grep -E 'error|warning|multiple|undefined' | grep -v jobserver || :
	make -s BUILD="$BUILD/lint" DEPS=no WERROR=1 -q all tests >/dev/null 2>&1 || echo 'it does not build'
}

shell_scripts() {
	command -v shellcheck >/dev/null || { echo 'shellcheck is not installed' >&2; return; }
	local scripts
	mapfile -t scripts < <(of '\.sh$|^\.ci/run$|^tests/bench/run$')
	shellcheck -x -P SCRIPTDIR -P /usr/share/shunit2 -S warning -e SC2034,SC2115 "${scripts[@]}"
}

static_analysis() {
	command -v cppcheck >/dev/null || return
	local sources
	mapfile -t sources < <(of '^(shim|config|daemon-lite)/.*\.c$')
	cppcheck -q -j 2 --std=c11 -D_GNU_SOURCE -D__linux__ --enable=portability --inline-suppr \
		--suppress=missingIncludeSystem --suppress=normalCheckLevelMaxBranches --error-exitcode=0 "${sources[@]}" 2>&1 | grep -E ': (error|portability|warning):'
}

# Layers only look down.
layers() {
	local file include target
	while read -r file; do
		while read -r include; do
			target=$(realpath -m --relative-to=. "$(dirname "$file")/$include")
			case $file in
			shim/*) case $target in shim/* | config/rules.h | config/pattern.h | config/config.h) ;; *) echo "$file includes $include" ;; esac ;;
			config/*) case $target in config/*) ;; *) echo "$file includes $include" ;; esac ;;
			daemon-lite/*) case $target in shim/* | config/* | daemon-lite/*) ;; *) echo "$file includes $include" ;; esac ;;
			esac
			[ -e "$target" ] || echo "$file includes $include, which is not there"
		done < <(sed -n 's/^#include "\([^"]*\)".*/\1/p' "$file")
	done < <(of '^(shim|config|daemon-lite)/.*\.[ch]$')
	of '^(shim|config|daemon-lite)/.*\.[ch]$' | xargs grep -nE '^#include <libconfig' | grep -v '^config/config\.c:'
	of '^(shim|config|daemon-lite)/.*\.[ch]$' | xargs grep -nE '^#include <hiredis' | grep -vE '^daemon-lite/store/redis[^/]*\.[ch]:'
}

licence_lines() {
	local file
	while read -r file; do
		head -3 "$file" | grep -q 'SPDX-License-Identifier: MIT' || echo "$file has no SPDX line"
	done < <(of '\.(c|h|sh|lua|map|py)$|^Makefile$|^\.ci/run$|^tests/bench/run$')
}

lengths() {
	local file lines
	while read -r file; do
		lines=$(wc -l <"$file")
		[ "$lines" -le 500 ] || echo "$file has $lines lines"
	done < <(of '\.(c|h|sh|lua)$')
}

no_machine_paths() {
	printf '%s\n' "${files[@]}" | grep -v '^tests/lint/' | xargs -d '\n' grep -nIE '(^|[[:space:]"'\''=(:])/(work|root|home/[a-z]+)/' | grep -v '/home/someone/'
}

no_trailing_blanks() {
	of '\.(c|h|sh|lua|md)$|^Makefile$' | xargs -d '\n' grep -nE '[[:blank:]]+$'
}

tests_are_run() {
	local file
	while read -r file; do
		grep -qE '^test_[A-Za-z0-9_]+\(\)' "$file" || echo "$file has no test"
		[ -x "$file" ] || echo "$file is not executable"
	done < <(of '^tests/shell/test_.*\.sh$')
	while read -r file; do
		grep -q 'LINK:' "$file" || echo "$file has no LINK: line"
	done < <(of '^tests/(unit|model)/test_.*\.c$')
}

# What the library shows to a program: its entry points, nothing else; what it needs: libc.
exports() {
	local lib=$BUILD/lint/libdlockshim.so
	[ -e "$lib" ] || { echo 'the library was not built'; return; }
	local names
	names=$(nm -D --defined-only "$lib" | awk '$2 ~ /[A-Z]/ && $2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort | tr '\n' ' ')
	[ "$names" = 'fcntl fcntl64 flock lockf lockf64 ' ] || echo "exported: $names"
	readelf -d "$lib" | grep NEEDED | grep -vF '[libc.so.6]'
}

# The shim is a guest: calls that a hook must not make.
guest_manners() {
	of '^shim/.*\.c$' | xargs grep -nE '[^_a-z](exit|abort|assert|malloc|calloc|realloc|fopen|fprintf|printf|system|popen|pthread_create|signal)\(' | grep -vE '^[^:]*:[0-9]*:[[:blank:]]*(\*|/\*|//)'
}

check 'builds without a warning' warnings
check 'shell scripts pass shellcheck' shell_scripts
check 'cppcheck finds no error' static_analysis
check 'layers only look down; hiredis and libconfig stay behind their doors' layers
check 'the library exports the lock calls alone and needs libc alone' exports
check 'the library makes no call that a guest must not make' guest_manners
check 'every source has its licence line' licence_lines
check 'no path of a machine' no_machine_paths
check 'no blanks at the end of lines' no_trailing_blanks
check 'every test file has tests and can be run' tests_are_run
lengths | sed 's/^/note    longer than 500 lines: /'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
