#!/bin/sh
# SPDX-License-Identifier: MIT
# A script that holds its lock on descriptor 9 from here to its end.
set -eu

exec 9>/srv/deploy/site.lock
if ! flock -w "${DEPLOY_WAIT:-60}" 9; then
	echo 'somebody else deploys and does not come to an end' >&2
	exit 75
fi

# From here on no other host, and nobody else here, is past that line.
log=${DEPLOY_LOG:-/var/log/deploy.log}
echo "begin $(hostname) $$" >>"$log"
sleep "${DEPLOY_SECONDS:-1}"	# build, copy, switch over
echo "end $(hostname) $$" >>"$log"
# No unlock: the kernel frees the lock when the last copy of descriptor 9 is closed.
