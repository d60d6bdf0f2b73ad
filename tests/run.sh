#!/usr/bin/env bash
# tests/run.sh [quick|full] - install what is needed, build, and run the tests. Works as root on a fresh
# Debian 12 without a GPU; without root it uses what is installed and names what is missing.
#
#   full (default)   release build with gcc: label full     the sentence "all stages passed" ends it
#                    ASan + UBSan build:     label quick
#                    TSan build:             label threads
#                    clang build:            labels unit and quick, both
#                    aarch64 build, kernels: label unit, run by qemu
#   quick            only the release build's label quick
#
# Long campaigns (label long) are run by hand: ctest --preset long
# One test: ctest --test-dir build -R NAME --output-on-failure      (CONTRIBUTING.md has more)
# Environment: ZSHARD_JOBS, how many things are built, and tests run, at a time (default: the number of CPUs).
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-full}
case "$mode" in quick | full) ;; *) echo "usage: tests/run.sh [quick|full]" >&2; exit 2 ;; esac
jobs=${ZSHARD_JOBS:-$(nproc)}

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

# stage PRESET LABEL...: configure, build, run the tests that have all of these labels.
stage() {
    local labels=()
    for label in "${@:2}"; do labels+=(-L "$label"); done
    say "$1: build"
    cmake --preset "$1" >"$logs/configure-$1.log" 2>&1 || { cat "$logs/configure-$1.log"; return 1; }
    cmake --build --preset "$1" -j "$jobs" >"$logs/build-$1.log" 2>&1 || { tail -n 60 "$logs/build-$1.log"; return 1; }
    say "$1: tests labelled ${*:2}"
    ctest --preset "$1" "${labels[@]}" -LE long -j "$jobs"
}

say "dependencies"
deploy/install-deps.sh test
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

say "format"
git ls-files '*.c' '*.h' '*.cu' | xargs clang-format --dry-run -Werror

if [ "$mode" = quick ]; then
    stage release quick
else
    stage release full
    stage asan quick
    stage tsan threads
    stage clang unit quick
    stage aarch64 unit
fi
say "all stages passed"
