#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes sure that packages are installed: those for building and the demo, or with the argument
# `programs` those whose programs the tests try. As root it installs what is missing, otherwise it prints
# the one command and fails. Fast when nothing is missing (one dpkg-query); make calls it once per build directory.
set -eu

packages='build-essential pkg-config libhiredis-dev libconfig-dev uuid-dev
	libcmocka-dev shunit2 redis-server redis-tools
	util-linux iproute2 procps bindfs python3 perl shellcheck cppcheck'
programs='sqlite3 tdb-tools rrdtool php-cli ruby default-jre-headless bsh stress-ng logrotate daemonize
	gdbmtool s-nail subversion fontconfig procmail git'

# The library for 32-bit programs, where there are such programs.
[ "$(dpkg --print-architecture 2>/dev/null)" != amd64 ] || programs="$programs gcc-multilib"
[ "${1:-}" != programs ] || packages="$packages $programs"

if ! command -v dpkg-query >/dev/null; then
	echo 'deps: this is not Debian; make sure that you have the like of:' "$packages" >&2
	exit 0
fi

missing=
for package in $packages; do
	case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || :) in
	installed) ;;
	*) missing="$missing $package" ;;
	esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo 'deps: some packages are missing. Install them by this command, then run make again:' >&2
	if command -v sudo >/dev/null; then
		echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
	else
		echo "  su - -c 'apt-get update && apt-get install -y --no-install-recommends$missing'" >&2
	fi
	exit 1
fi

echo "deps: installing$missing" >&2
had_redis=$(command -v redis-server || :)
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
# shellcheck disable=SC2086 # a list of words
apt-get install -q -y --no-install-recommends $missing >&2
if [ -z "$had_redis" ] && [ -d /run/systemd/system ]; then
	echo 'deps: Debian has started the service redis-server; nothing here uses it (systemctl disable --now redis-server).' >&2
fi
