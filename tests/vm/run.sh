#!/usr/bin/env bash
# tests/vm/run.sh [cgroup|cgroup1|unit|all] - tests that need a kernel and a service manager of their own, in an emulated machine.
#
#   cgroup   test_cgroup under version 2 of the memory controller; before that with a limit that is too low: the test must
#            fail
#   cgroup1  the same under version 1
#   unit     deploy/zshardd.service, as installed, under systemd (guest_unit.py)
#   all      cgroup and unit (default)
#
# Needs root and a Debian 12 mirror: installs QEMU and mmdebstrap, builds a Debian 12 root in BUILD/vm (kept until its
# list of packages changes), installs build/ into it, and boots it with QEMU. QEMU emulates the processor, so nested
# virtualization is not needed. Takes about 10 minutes on two processors, and 4 GiB of memory. Exit status: 0 passed,
# 1 failed, 77 not root.
#
# Environment:
#   ZSHARD_BUILD       release build to test; default: build
#   ZSHARD_VM_SECONDS  limit for one machine; default: 900
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=${1:-all}
case "$mode" in
cgroup | cgroup1 | unit | all) ;;
*) echo "usage: tests/vm/run.sh [cgroup|cgroup1|unit|all]" >&2; exit 2 ;;
esac
if [ "$(id -u)" -ne 0 ]; then
    echo "skipped: only root can build the root of the machine"
    exit 77
fi
build=$(realpath "${ZSHARD_BUILD:-build}")
limit=${ZSHARD_VM_SECONDS:-900}
vm=$build/vm
tools=(qemu-system-x86 mmdebstrap e2fsprogs)
packages=(linux-image-cloud-amd64 systemd systemd-sysv dbus procps python3 libuv1 libprotobuf-c1 liburing2 libsqlite3-0
    libjansson4 libisal2 libhwloc15 libcmocka0 libopenblas0-pthread)

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

install_tools() {
    local tool missing=()
    for tool in "${tools[@]}"; do
        dpkg-query -W -f='${Status}' "$tool" 2>/dev/null | grep -q 'install ok installed' || missing+=("$tool")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# debian_root: $vm/debian, unless it was made with the same packages.
debian_root() {
    [ "$(cat "$vm/packages" 2>/dev/null)" != "${packages[*]}" ] || return 0
    say "Debian 12 with ${#packages[@]} packages"
    rm -rf "$vm/debian" "$vm/packages"
    mmdebstrap --quiet --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
        --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        bookworm "$vm/debian"
    echo "${packages[*]}" >"$vm/packages"
}

# images: the root with this build, and an empty drive. test_cgroup starts build/bin/zshardd by its full path.
images() {
    say "images"
    rm -rf "$vm/root"
    cp -a "$vm/debian" "$vm/root"
    DESTDIR=$vm/root cmake --install "$build" --prefix /usr >/dev/null
    mkdir -p "$vm/root$build/tests" "$vm/root/vm" "$vm/root/mnt/nvme"
    cp -a "$build/bin" "$build/lib" "$vm/root$build/"
    cp -a "$build/tests/test_cgroup" "$vm/root$build/tests/"
    cp tests/vm/guest_*.* "$vm/root/vm/"
    echo "$build" >"$vm/root/vm/build"
    cat >"$vm/root/etc/systemd/system/guest-unit.service" <<'UNIT'
[Unit]
Description=guest_unit.py
After=multi-user.target dbus.service
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -B -u /vm/guest_unit.py
StandardOutput=file:/dev/ttyS0
StandardError=inherit
UNIT
    rm -f "$vm/root.img" "$vm/drive.img"
    mke2fs -q -t ext4 -d "$vm/root" "$vm/root.img" 1500M
    mke2fs -q -t ext4 -E lazy_itable_init=0 "$vm/drive.img" 3G
    rm -rf "$vm/root"
}

# boot NAME OPTIONS...: runs a machine with these options of the kernel. Its last line has the exit status.
boot() {
    local name=$1 log=$vm/$1.log begin=$SECONDS
    shift
    say "$name: boot, with a console in $log"
    timeout --foreground "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max,la57=off -smp 2 -m 4096 \
        -nodefaults -no-user-config -display none -no-reboot -serial "file:$log" \
        -kernel "$(echo "$vm"/debian/boot/vmlinuz-*)" -initrd "$(echo "$vm"/debian/boot/initrd.img-*)" \
        -append "console=ttyS0 root=/dev/vda rw panic=1 loglevel=4 systemd.show_status=no net.ifnames=0 $*" \
        -drive "file=$vm/root.img,format=raw,if=virtio,snapshot=on" \
        -drive "file=$vm/drive.img,format=raw,if=virtio,snapshot=on,cache=unsafe" || true
    tr -d '\r' <"$log" | sed -n '/^vm: begin/,$p'
    if ! tr -d '\r' <"$log" | grep -qx 'vm: status 0'; then
        tail -n 40 "$log"
        say "$name: FAILED"
        return 1
    fi
    say "$name: passed in $((SECONDS - begin)) s"
}

mkdir -p "$vm"
install_tools
debian_root
images
failed=0
case "$mode" in
cgroup | all) boot cgroup init=/vm/guest_cgroup.sh zshard_cgroup=2 || failed=1 ;;
cgroup1) boot cgroup1 init=/vm/guest_cgroup.sh zshard_cgroup=1 || failed=1 ;;
esac
case "$mode" in
unit | all) boot unit systemd.wants=guest-unit.service systemd.mask=serial-getty@ttyS0.service || failed=1 ;;
esac
exit "$failed"
