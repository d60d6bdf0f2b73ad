#!/usr/bin/env bash
# package.sh [--version V] [--no-cuda] [OUT] - makes the Debian packages, and those with debug symbols (-dbgsym), in OUT
# (default: out/packages). Uses no network.
#
# Needs the packages of `deploy/install-deps.sh package`. The plugin of CUDA is packaged where nvcc is found. The version is
# that of CMakeLists.txt; --version replaces it, such as 0.1.0+local1. Only files that git knows are packaged, as they are in
# the working tree. Dates are those of the last commit (SOURCE_DATE_EPOCH), so a second run makes the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

version=
cuda=AUTO
out=
while [ $# -gt 0 ]; do
    case "$1" in
    --version) version=${2:?--version needs a version}; shift ;;
    --no-cuda) cuda=OFF ;;
    -*) echo "usage: package.sh [--version V] [--no-cuda] [OUT]" >&2; exit 2 ;;
    *) out=$1 ;;
    esac
    shift
done
out=${out:-out/packages}
: "${version:=$(sed -n 's/^project(zshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
ZSHARD_COMMIT=$(git describe --always --dirty --abbrev=40 '--exclude=*') # for zbench; the copy below has no git
export SOURCE_DATE_EPOCH ZSHARD_COMMIT

profiles=
if [ "$cuda" = AUTO ] && { command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]; } >/dev/null; then
    profiles=pkg.zshard.cuda
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$out/work
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
source=$work/zshard
mkdir -p "$source"
git ls-files -z | tar --null -T - -c | tar x -C "$source"
cp -r deploy/debian "$source/debian"
cat >"$source/debian/changelog" <<CHANGELOG
zshard ($version) unstable; urgency=medium

  * Version $version: see CHANGELOG.md of the sources.

 -- $(sed -n 's/^Maintainer: //p' deploy/debian/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG

log=$out/build.log
echo "package.sh: zshard $version${profiles:+, with CUDA} (log: $log)"
if ! (cd "$source" && DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-} parallel=$(nproc)" \
    dpkg-buildpackage -b -us -uc ${profiles:+-P"$profiles"}) >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
fi
rm -f "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$out/"
ls "$out"/*.deb
