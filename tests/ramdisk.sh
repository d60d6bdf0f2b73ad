#!/usr/bin/env bash
# tests/ramdisk.sh COMMAND... - runs a command with $TMPDIR on a file system in memory, because most tests wait for the
# disk. It is ext4 on a loop device, so files behave as on a drive: O_DIRECT, a full file system, flushes. It is
# mounted in a mount namespace of the command, and is gone when the command and its children have ended.
#
# Without root, without a loop device, or with too little memory, the command runs with its own $TMPDIR. Tests that need
# the disk have DISK in their CMakeLists.txt: they do not get this $TMPDIR.
#
# Environment: ZSHARD_RAMDISK   its size in GiB; 0: none; default: 8
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: tests/ramdisk.sh COMMAND..." >&2; exit 2; }
size=${ZSHARD_RAMDISK:-8}

plain() { echo "ramdisk: none ($1): the tests use the disk" >&2; }

if [ "$size" = 0 ]; then
    plain "ZSHARD_RAMDISK=0"
    exec "$@"
fi
if [ "$(id -u)" -ne 0 ]; then
    plain "not root"
    exec "$@"
fi
free=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
if [ "$free" -lt $((2 * size)) ]; then
    plain "$free GiB of memory are available, and twice $size are needed"
    exec "$@"
fi
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" != tmpfs ]; then
    plain "/dev/shm is no tmpfs"
    exec "$@"
fi

image=$(mktemp /dev/shm/zshard-ramdisk.XXXXXX)
folder=$(mktemp -d /tmp/r.XXXXXX)
chmod 1777 "$folder"
trap 'rm -f "$image"; rmdir "$folder" 2>/dev/null || true' EXIT
truncate -s "${size}G" "$image"
# shellcheck disable=SC2016 # expanded by the inner shell
inner='
image=$1 folder=$2
shift 2
if mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=1,nodiscard "$image" && mount -o loop,noatime,discard "$image" "$folder"; then
    chmod 1777 "$folder"
    export TMPDIR=$folder
else
    echo "ramdisk: none (mkfs.ext4 or mount failed): the tests use the disk" >&2
fi
rm -f "$image"
exec "$@"'
status=0
unshare --mount --propagation private true 2>/dev/null || { plain "no mount namespaces"; "$@" || status=$?; exit "$status"; }
unshare --mount --propagation private bash -c "$inner" ramdisk "$image" "$folder" "$@" || status=$?
exit "$status"
