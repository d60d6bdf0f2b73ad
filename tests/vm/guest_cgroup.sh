#!/bin/bash
# guest_cgroup.sh - process 1 of the machine: test_cgroup under the version of cgroups that the kernel's option
# zshard_cgroup names: with a limit so low that the test must fail, then with the promised one. Ends the machine.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mountpoint -q /proc || mount -t proc none /proc
mountpoint -q /sys || mount -t sysfs none /sys
mountpoint -q /run || mount -t tmpfs none /run
mount /dev/vdb /mnt/nvme
export TMPDIR=/mnt/nvme ZSHARD_PATIENCE=10
read -r uptime _ </proc/uptime
version=$(sed -n 's/.*zshard_cgroup=\([12]\).*/\1/p' /proc/cmdline)
echo
echo "vm: begin"
echo "vm: Linux $(uname -r), cgroup v$version, booted in $uptime s"
if [ "$version" = 2 ]; then
    mount -t cgroup2 none /sys/fs/cgroup
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
else
    mount -t tmpfs none /sys/fs/cgroup
    mkdir /sys/fs/cgroup/memory
    mount -t cgroup -o memory none /sys/fs/cgroup/memory
fi
test=$(cat /vm/build)/tests/test_cgroup
status=0

echo "vm: with a limit of 96 MiB, the test must fail:"
if ZSHARD_LIMIT=$((96 << 20)) "$test" >/run/out 2>&1; then
    echo "vm: the test passed, so it would not notice a daemon that needs too much"
    status=1
fi
grep -v '^\[' /run/out | tail -n 6
# Under version 2 the daemon may hang at the limit instead: the kernel reclaims page cache for longer than the test waits.
dmesg | grep 'Memory cgroup out of memory' || echo "vm: the kernel has killed nothing"

echo "vm: with the limit that is promised:"
"$test" 2>&1 | tee /run/out
[ "${PIPESTATUS[0]}" -eq 0 ] || status=1
grep -q "^cgroup v$version: .* killed 0$" /run/out || { echo "vm: no result for version $version"; status=1; }
echo "vm: status $status"
sync
exec poweroff -ff
