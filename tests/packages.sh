#!/usr/bin/env bash
# packages.sh [PACKAGES] - the Debian packages in a clean Debian 12: installed, used, upgraded, removed.
#
# Builds them (deploy/package.sh), unless PACKAGES is a folder that has them; checks them with lintian; makes two roots with
# mmdebstrap, and runs tests/packages_inside.sh in one. In the other it runs what deploy/Containerfile runs, and the daemon.
# Needs root, a Debian mirror, and the packages of `deploy/install-deps.sh package`; takes a few minutes. Not in CI: by hand,
# and before a release. Nothing is started in the system, and no network is used once the packages are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "packages.sh: only root can make a root file system with its users" >&2; exit 2; }
mirror=${ZSHARD_MIRROR:-http://deb.debian.org/debian}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/zshard-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

packages=${1:-}
if [ -z "$packages" ]; then
    say "packages"
    packages=$work/packages
    deploy/package.sh "$packages"
fi
say "lintian"
lintian --allow-root --fail-on error,warning "$packages"/*.changes

# The next version: the same files.
mkdir "$work/debs" "$work/next"
cp "$packages"/*.deb "$work/debs/"
rm -f "$work"/debs/*-dbgsym_*
for package in "$work"/debs/*.deb; do
    name=$(basename "$package")
    version=${name#*_}
    version=${version%_*}
    dpkg-deb -R "$package" "$work/tree"
    sed -i "s/^Version: .*/&+next/; s/(= $version)/(= $version+next)/g" "$work/tree/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$work/tree" "$work/next" >/dev/null
    rm -rf "$work/tree"
done

# make_root NAME INCLUDE HOOK...: a root file system in $work/NAME.
make_root() {
    local name=$1 include=$2 hooks=() hook
    shift 2
    for hook in "$@"; do
        hooks+=("--customize-hook=$hook")
    done
    mmdebstrap --quiet --variant=minbase --include="$include" "${hooks[@]}" bookworm "$work/$name" "deb $mirror bookworm main"
}

# in_root NAME COMMAND...: with /proc, and a PID namespace that ends with the command and a network that is only a loopback.
in_root() {
    local root=$work/$1
    shift
    unshare --mount --pid --net --ipc --fork --kill-child -- sh -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mkdir -p "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"
        ip link set lo up 2>/dev/null || true
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            chroot "$root" "$@"' sh "$root" "$@"
}

say "a clean root: install"
# Services are not started: there is no systemd. policy-rc.d says so to the packages' scripts.
policy='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"; chmod +x "$1/usr/sbin/policy-rc.d"'
make_root all ca-certificates,cmake,gcc,libc6-dev,make,man-db,pkg-config "$policy" "cp -r '$work/debs' '$work/next' \"\$1/\"" \
    'chroot "$1" sh -c "apt-get install -y -qq --no-install-recommends /debs/*.deb"' >"$work/all.log" 2>&1 ||
    { tail -n 40 "$work/all.log"; exit 1; }
say "a clean root: use, upgrade, remove"
cp tests/packages_inside.sh "$work/all/inside.sh"
in_root all sh /inside.sh

say "what deploy/Containerfile runs"
make_root image ca-certificates "mkdir \"\$1/packages\"; cp '$work'/debs/*.deb \"\$1/packages/\"" >"$work/image.log" 2>&1 ||
    { tail -n 40 "$work/image.log"; exit 1; }
# The RUN of the last stage, as the file has it.
awk '/^FROM/ { run = "" } /^RUN/ { take = 1; sub(/^RUN /, "") } take { run = run $0 "\n"; if (!/\\$/) take = 0 } END { printf "%s", run }' \
    deploy/Containerfile >"$work/image/run.sh"
grep -q 'apt-get install' "$work/image/run.sh"
cp /etc/resolv.conf "$work/image/etc/resolv.conf"
chroot "$work/image" sh -euc 'export DEBIAN_FRONTEND=noninteractive; . /run.sh' >"$work/image.log" 2>&1 ||
    { tail -n 40 "$work/image.log"; exit 1; }
in_root image sh -euc '
    STATE_DIRECTORY=/var/lib/zshard setpriv --reuid zshard --regid zshard --init-groups \
        zshardd --config /etc/zshard/zshardd.conf --host-bytes 32M --nvme-bytes 64M &
    zctl --wait 60 --socket /run/zshard/zshard.sock ping
    kill -TERM $!; wait $!'

say "all of it works"
