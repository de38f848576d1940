#!/bin/sh
# SPDX-License-Identifier: MIT
# The job. It knows nothing of locks.
set -eu
out=${REPORT:-/var/log/report.log}
echo "begin $(hostname)" >>"$out"
sleep "${REPORT_SECONDS:-2}"
echo "end $(hostname)" >>"$out"
