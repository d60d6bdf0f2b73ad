#!/usr/bin/env bash
# zero_table.sh - the study that teaches ZeRO, as one command: the same training in every mode, and what
# each takes of memory, sends and costs. --help says more; bench/README.md says how it is measured.
#
# Builds what is missing into build/ (or $ZSHARD_BUILD).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export ZSHARD_BUILD=${ZSHARD_BUILD:-$root/build}
if [ ! -x "$ZSHARD_BUILD/bin/zgpt" ] || [ ! -x "$ZSHARD_BUILD/bin/zshardd" ]; then
    (cd "$root" && cmake --preset release -B "$ZSHARD_BUILD" &&
        cmake --build "$ZSHARD_BUILD" --target zshardd zgpt) >&2
fi
exec python3 -B "$root/bench/zero_table.py" "$@"
