#!/usr/bin/env bash
# tests/run.sh [quick|full|nightly [STAGE...]] - install what is needed, build, and run the tests. Works as root on a
# fresh Debian 12 without a GPU. Without root it uses what is installed and names what is missing. The nightly run can
# be limited to some of its stages.
#
#   stage     quick          full (default)              nightly
#   release   label quick    label full, not sanitized   labels full and long
#   asan                     label asan                  label full
#   tsan                     label tsan                  label threads
#   clang                    compiled, without -O        built; labels unit and quick, both
#   aarch64                  label unit, run by qemu     label unit, long forms too
#
# full is what CI runs: about half an hour on two processors. nightly takes hours. Both end with the line "all stages
# passed".
#
# The Python tests have an environment of their own, which tests/venv.sh makes during the first build and keeps between
# runs. If it cannot be made, these tests are skipped, with that reason. They are forked from one process that has
# imported PyTorch (tests/python/zygote.py).
#
# The next stages are built while the tests of a stage run, at the lowest priority, because most tests wait for
# something. For the same reason, more tests run at a time than there are processors. Each stage ends with its time and
# its slowest tests, the run with a table of the stages and of what was skipped. A skip that tests/skips.txt does not
# name fails the run, and so does a slow test with the label quick.
#
# One test: ctest --test-dir build -R NAME --output-on-failure      (CONTRIBUTING.md has more)
# Environment:
#   ZSHARD_JOBS    files to compile at a time; default: the number of processors
#   ZSHARD_TESTS   tests to run at a time; default: three times ZSHARD_JOBS
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-full}
[ $# -eq 0 ] || shift
stages=(release asan tsan clang aarch64) # of the nightly run
usage() { echo "usage: tests/run.sh [quick|full|nightly [STAGE...]], STAGE of: ${stages[*]}" >&2; exit 2; }
case "$mode" in
quick | full) [ $# -eq 0 ] || usage ;;
nightly)
    for stage in "$@"; do
        [[ " ${stages[*]} " == *" $stage "* ]] || usage
    done
    [ $# -eq 0 ] || stages=("$@")
    ;;
*) usage ;;
esac
jobs=${ZSHARD_JOBS:-$(nproc)}
at_a_time=${ZSHARD_TESTS:-$((3 * jobs))}
logs=$(mktemp -d)
builder=
python_maker=
one_cuda=OFF
linker=

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }

# At the end of the run, successful or not: ends the builds and prints the table.
finish() {
    local status=$?
    trap - EXIT
    if [ -n "$builder" ]; then
        kill -TERM -- "-$builder" 2>/dev/null || true
    fi
    if [ -n "$python_maker" ]; then
        kill -TERM -- "-$python_maker" 2>/dev/null || true
    fi
    find build*/zygote -type s -delete 2>/dev/null || true # which ends the processes that fork
    if [ -e "$logs/stages" ]; then
        say "stages"
        python3 -B tests/report.py end "$logs/stages" tests/skips.txt || status=1
    fi
    rm -rf "$logs"
    find build/zygote -type s -delete 2>/dev/null || true # the processes that fork end without their sockets
    if [ "$status" -eq 0 ]; then
        say "all stages passed"
    else
        say "FAILED"
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# note STAGE WHAT SECONDS: adds a row to the table.
note() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$logs/stages"; }

# cached: what the compilers made before is kept in ~/.cache/zshard (ZSHARD_CACHE) and used again, in other clones, too.
cached() {
    command -v ccache >/dev/null && [ -z "${CMAKE_C_COMPILER_LAUNCHER:-}" ] || return 0
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CCACHE_DIR="${ZSHARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/zshard}/ccache"
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=3G
}

# faster: a linker that takes a tenth of the time, and, where no GPU is, CUDA for one architecture.
faster() {
    if command -v mold >/dev/null; then
        linker=-fuse-ld=mold
    fi
    if [ "$mode" != nightly ] && [ ! -e /dev/nvidiactl ]; then
        one_cuda=ON
    fi
}

# build PRESET: configure and compile; the output goes into a file. A full run makes of a sanitizer's build what its tests
# need.
build() {
    local target=all flags="$linker ${LDFLAGS:-}"
    [ "$1" != aarch64 ] || flags=${LDFLAGS:-} # its compiler finds only linkers of its own
    [[ "$mode" != full || "$1" != ?san ]] || target=tests_$1
    LDFLAGS=$flags cmake --preset "$1" -DZSHARD_CUDA_ONE=$one_cuda >"$logs/configure-$1.log" 2>&1 &&
        cmake --build --preset "$1" -j "$jobs" --target "$target" >"$logs/build-$1.log" 2>&1
}

# build_all PRESET...: one after another, with a line "PRESET STATUS SECONDS" for each. The kernel may divide
# processors between sessions first (autogroup), so this session gets the lowest priority, too.
build_all() {
    local preset status begin
    echo 19 2>/dev/null >/proc/self/autogroup || true
    for preset in "$@"; do
        begin=$SECONDS status=0
        build "$preset" || status=$?
        echo "$preset $status $((SECONDS - begin))"
    done
}

# ahead PRESET...: starts these builds in the background, on processors that the tests leave idle.
ahead() {
    local idle=(nice -n 19)
    if chrt --idle 0 true 2>/dev/null; then
        idle=(chrt --idle 0)
    fi
    export logs jobs mode one_cuda linker
    export -f build build_all
    exec 3< <(exec setsid "${idle[@]}" bash -c 'build_all "$@"' builder "$@")
    builder=$!
}

# built PRESET: waits for its build, which is the next one of those started by ahead.
built() {
    local preset status seconds begin=$SECONDS
    say "$1: build"
    read -r -u 3 preset status seconds || { echo "the builds have ended"; return 1; }
    note "$1" "build" "$seconds"
    note "$1" "  of it with nothing beside" "$((SECONDS - begin))"
    if [ "$preset" != "$1" ] || [ "$status" -ne 0 ]; then
        tail -n 60 "$logs/configure-$1.log" "$logs/build-$1.log" 2>/dev/null || true
        echo "the build $1 failed"
        return 1
    fi
}

# python_ahead: begins to make the environment of the Python tests.
python_ahead() {
    setsid tests/venv.sh make >"$logs/python.log" 2>&1 </dev/null 3<&- &
    python_maker=$!
}

# python_made: waits for it. All tests use its python3, so that those of tests/oracle find PyTorch, too.
python_made() {
    local begin=$SECONDS
    say "environment of the Python tests"
    wait "$python_maker" || true
    python_maker=
    cat "$logs/python.log"
    note python "environment, waited for" "$((SECONDS - begin))"
    if [ -z "${ZSHARD_TEST_PYTHON:-}" ] && [ -x "$(tests/venv.sh path)/bin/python3" ]; then
        PATH="$(tests/venv.sh path)/bin:$PATH"
        export PATH
    fi
}

# run_tests PRESET LABELS... [-- MORE...]: runs the tests that have all of these labels, and prints their report.
run_tests() {
    local preset=$1 begin=$SECONDS status=0 labels=() words=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        labels+=(-L "$1") words+=("$1")
        shift
    done
    [ $# -eq 0 ] || shift
    say "$preset: tests labelled ${words[*]}"
    ctest --preset "$preset" "${labels[@]}" "$@" -j "$at_a_time" --no-label-summary \
        --output-junit "$logs/$preset.xml" --test-output-size-passed 1000000 3<&- || status=$?
    note "$preset" "tests" "$((SECONDS - begin))"
    ctest --preset "$preset" --show-only=json-v1 >"$logs/$preset.json"
    python3 -B tests/report.py stage "$preset" "$logs/$preset.xml" "$logs/$preset.json" "$logs/stages" || status=$?
    return "$status"
}

# go_on ...: run_tests for the nightly run, where a failed stage does not end the run.
failed=0
go_on() { run_tests "$@" || failed=1; }

# room: warns when the disk is nearly full, because tests that fail for that reason do not say so.
room() {
    local need=8 free
    [ "$mode" != nightly ] || need=24
    free=$(($(df --output=avail -B1G . | tail -n 1)))
    if [ "$free" -lt "$need" ]; then
        say "only $free GiB of disk are free here; this run may need $need"
    fi
}

room
say "dependencies"
deploy/install-deps.sh test
cached
faster

say "format"
git ls-files '*.c' '*.h' '*.cu' | xargs clang-format --dry-run -Werror

python_ahead
case "$mode" in
quick) ahead release ;;
full) ahead release asan tsan clang-check aarch64 ;;
nightly)
    export ZSHARD_LONG=1
    ahead "${stages[@]}"
    ;;
esac

case "$mode" in
quick)
    built release
    python_made
    run_tests release quick -- -LE long
    ;;
full)
    built release
    python_made
    run_tests release full -- -LE 'long|sanitized'
    built asan
    run_tests asan asan -- -LE long
    built tsan
    run_tests tsan tsan -- -LE long
    built clang-check
    built aarch64
    run_tests aarch64 unit -- -LE long
    ;;
nightly)
    for stage in "${stages[@]}"; do
        built "$stage"
        [ -z "$python_maker" ] || python_made
        case "$stage" in
        release) go_on release 'full|long' ;;
        asan) go_on asan full -- -LE long ;;
        tsan) go_on tsan threads -- -LE long ;;
        clang) go_on clang unit quick -- -LE long ;;
        aarch64) go_on aarch64 unit ;;
        esac
    done
    exit "$failed"
    ;;
esac
