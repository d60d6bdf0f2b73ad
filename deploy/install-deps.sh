#!/usr/bin/env bash
# install-deps.sh [build|test|package] - install the Debian 12 packages that zshard needs.
#
# build  compiler, build tools and libraries (default): enough for deploy/quickstart.sh
# test   those, and what tests/run.sh also needs: ccache, mold, clang, fio, clang-format, iproute2 for nodes in network
#        namespaces, a cross compiler and an emulator for the aarch64 kernels, and packages from which
#        tests/venv.sh makes the environment of the Python tests
# package  those of build, and what deploy/package.sh and tests/packages.sh need
#
# As root the missing packages are installed with apt-get. Otherwise nothing is changed: the missing
# ones are named, and the exit status is 1 when there are any.
set -euo pipefail

build_packages=(
    gcc g++ cmake ninja-build pkg-config git
    libuv1-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler liburing-dev
    libsqlite3-dev libjansson-dev libisal-dev libhwloc-dev
    libopenmpi-dev openmpi-bin libopenblas-dev libcmocka-dev python3
)
test_packages=(ccache mold clang clang-format lcov fio openssh-client procps util-linux iproute2 python3-venv python3-dev
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
package_packages=(debhelper fakeroot lintian mmdebstrap)

case "${1:-build}" in
build) wanted=("${build_packages[@]}") ;;
test) wanted=("${build_packages[@]}" "${test_packages[@]}") ;;
package) wanted=("${build_packages[@]}" "${package_packages[@]}") ;;
*) echo "usage: install-deps.sh [build|test|package]" >&2; exit 2 ;;
esac

missing=()
for package in "${wanted[@]}"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
        missing+=("$package")
    fi
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "dependencies: all ${#wanted[@]} packages are installed"
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "dependencies: missing, and only root can install them: ${missing[*]}" >&2
    exit 1
fi
echo "dependencies: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "dependencies: installed ${#missing[@]} packages"
