#!/usr/bin/env bash
# floors.sh [BUILD] - builds all of zshard with the oldest tools that it supports, those of Ubuntu 22.04, on a Debian 12; and
# runs tests of what depends on them. BUILD: default build-floors.
#
#   CMake 3.22       from PyPI
#   gcc 11           Debian's gcc-11
#   liburing 2.1     its headers (tests/floors/), with the installed library: version 2 has one ABI
#   Python 3.10      its grammar, for every script
#
# libuv, SQLite, jansson, hwloc and protobuf-c have a minimum in CMakeLists.txt; here they are those of Debian 12. Needs the
# network for CMake, and the packages of `deploy/install-deps.sh build` and gcc-11. By hand, and before a release.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-floors}
command -v gcc-11 >/dev/null || { echo "floors.sh: no gcc-11 (Debian: gcc-11)" >&2; exit 2; }
mkdir -p "$build"
build=$(cd "$build" && pwd)

venv=$build/cmake-3.22
if [ ! -x "$venv/bin/cmake" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" --disable-pip-version-check -q install 'cmake==3.22.*'
fi
headers=$build/liburing-2.1
mkdir -p "$headers"
tar xzf tests/floors/liburing-2.1.tar.gz -C "$headers"

PATH="$venv/bin:$PATH"
cmake --version | head -n 1
gcc-11 --version | head -n 1
CFLAGS="-isystem $headers" cmake --preset release -B "$build" -DCMAKE_C_COMPILER=gcc-11 -DZSHARD_CUDA=OFF \
    ${ZSHARD_LAUNCHER:+-DCMAKE_C_COMPILER_LAUNCHER="$ZSHARD_LAUNCHER"} >"$build/configure.log" ||
    { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -- -k 0 -j "$(nproc)" >"$build/build.log" || { tail -n 40 "$build/build.log" >&2; exit 1; }
grep -q 'liburing-2.1/liburing.h' <(ninja -C "$build" -t deps nvme/CMakeFiles/zn.dir/engine_uring.c.o) ||
    { echo "floors.sh: engine_uring.c was not compiled with the headers of liburing 2.1" >&2; exit 1; }

git ls-files -z '*.py' | python3 -c '
import ast, sys
for name in filter(None, sys.stdin.read().split("\0")):
    with open(name, encoding="utf-8") as file:
        ast.parse(file.read(), name, feature_version=(3, 10))'

ctest --test-dir "$build" --output-on-failure -j "$(nproc)" -R '^(test_engine|test_engine_memory|test_engine_open|test_life|abi_.*|examples)$'
echo "floors.sh: all of it builds and works"
