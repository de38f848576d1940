#!/bin/sh
# SPDX-License-Identifier: MIT
# Turns the Lua scripts of a folder into one C file on standard output:
#   embed.sh daemon-lite/store/lua > build/lua_scripts.c
# A script is its lines, in which a line --#NAME (common, plain, spans, rules, recall, change, pump, hosts) stands for
# NAME.lua; without a --#common, that comes behind the first line.
# The order is that of enum lua_script_id in lua_scripts.h.
set -eu

dir=${1:?usage: embed.sh DIRECTORY}
names="init attach leave acquire withdraw giveback busy renew expire endgrace reassert status ask tell"
tab=$(printf '\t')

for name in $names common plain spans rules change pump recall hosts; do
	[ -r "$dir/$name.lua" ] || { echo "embed.sh: $dir/$name.lua cannot be read" >&2; exit 1; }
done

echo '/* Made by daemon-lite/store/embed.sh from the Lua scripts; do not edit. */'
echo '#include "daemon-lite/store/lua_scripts.h"'
for name in $names; do
	case $(head -n 1 "$dir/$name.lua") in
	'#!lua'*) ;;
	*) echo "embed.sh: $dir/$name.lua does not begin with #!lua" >&2; exit 1 ;;
	esac
	echo
	echo "static const char text_${name}[] ="
	{
		head -n 1 "$dir/$name.lua"
		grep -q '^--#common$' "$dir/$name.lua" || echo '--#common'
		tail -n +2 "$dir/$name.lua"
	} | awk -v dir="$dir" '
		/^--#(common|plain|spans|rules|change|pump|recall|hosts)$/ {
			file = dir "/" substr($0, 4) ".lua"
			while ((getline line < file) > 0)
				print line
			close(file)
			next
		}
		{ print }' |
		LC_ALL=C sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" -e "s/^/$tab\"/" -e 's/$/\\n"/'
	echo ';'
done
echo
echo 'const struct lua_script lua_scripts[] = {'
for name in $names; do
	echo "$tab{ \"$name\", text_$name, sizeof(text_$name) - 1 },"
done
echo '};'
