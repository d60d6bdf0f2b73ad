#!/usr/bin/env bash
# tests/coverage.sh - line coverage of the quick and full tests, by folder. Builds in build-coverage/.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake -S . -B build-coverage -G Ninja -DCMAKE_BUILD_TYPE=Debug -DZSHARD_COVERAGE=ON >/dev/null
cmake --build build-coverage
find build-coverage -name '*.gcda' -delete
# A test that runs a program as another user fails, because that program cannot write its counters. Coverage
# is that of the code that did run.
ctest --test-dir build-coverage -L full || echo "coverage: some tests failed when instrumented"
lcov --quiet --capture --directory build-coverage --output-file build-coverage/all.info --rc geninfo_unexecuted_blocks=1
lcov --quiet --extract build-coverage/all.info "$PWD/base/*" "$PWD/proto/*" "$PWD/nvme/*" \
    "$PWD/kernels/*" "$PWD/daemon/*" "$PWD/client/*" "$PWD/examples/*" \
    --output-file build-coverage/zshard.info
lcov --list build-coverage/zshard.info
