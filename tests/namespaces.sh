#!/bin/sh
# SPDX-License-Identifier: MIT
# Whether hosts can be made of namespaces here (kind b). Prints why not, and then fails.
set -u
cd "$(dirname "$0")/.." || exit 2

[ "$(id -u)" = 0 ] || { echo 'only root may make namespaces'; exit 1; }
if ! said=$(unshare --net --mount --uts --ipc --pid --fork --mount-proc --propagation private \
	sh -c 'ip link set lo up && ip link add br0 type bridge' 2>&1); then
	echo "namespaces, or a bridge in one, cannot be made ($(echo "$said" | head -1)); in a container, run it privileged"
	exit 1
fi
# A mount namespace is entered at its root, and that is not the root of a chroot.
if ! nsenter -t $$ -m -- test "$PWD/tests/namespaces.sh" -ef /proc/self/fd/3 3<tests/namespaces.sh; then
	echo 'this is a chroot, and namespaces are entered outside it; boot it, or run it in a container'
	exit 1
fi
