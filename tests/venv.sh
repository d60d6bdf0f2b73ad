#!/usr/bin/env bash
# tests/venv.sh - the Python of the tests: a virtual environment with the packages of tests/python/requirements.txt.
#
#   tests/venv.sh make       makes it, or says that it exists. Takes seconds, or minutes where PyTorch must be downloaded
#   tests/venv.sh path       prints its path, whether or not it has been made
#   tests/venv.sh exec WORDS...   runs its python with these arguments, with the sources' package in its path. Where there is no
#                            Python with the packages, the exit status is 77, with the reason: a skipped test
#
# It is kept between runs, in ~/.cache/zshard (ZSHARD_CACHE), and made again when the requirements or the Python change.
# Packages that the machine's own Python has in the right version are not installed again. PyTorch is the CPU build where one is
# found.
#
# Environment:
#   ZSHARD_TEST_PYTHON  an interpreter that has the packages; then nothing is made
#   ZSHARD_CACHE        where environments are kept
#   ZSHARD_REQUIREMENTS other requirements, with an environment of their own (bench/torch)
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=${ZSHARD_REQUIREMENTS:-tests/python/requirements.txt}
cpu_index=https://download.pytorch.org/whl/cpu

base_python() { # the interpreter that environments are made of: not one of our own environments, even if it is in PATH
    python3 -c 'import os, sys; print(os.path.realpath(os.path.join(sys.base_prefix, "bin", "python3")))'
}

venv_path() {
    local key python
    python=$(base_python)
    key=$({ echo "$python"; "$python" --version; cat "$requirements"; } | sha256sum | cut -c1-12)
    echo "${ZSHARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/zshard}/venv-$key"
}

has_torch() { # INTERPRETER: whether its own PyTorch is the requested one
    "$1" -c "
import importlib.metadata, sys
sys.exit(importlib.metadata.version('torch').split('+')[0] != '$(sed -n 's/^torch==//p' "$requirements")')" 2>/dev/null
}

install() { # VENV
    local pip=("$1/bin/python" -m pip --disable-pip-version-check --retries 2 install -q) torch
    export PIP_ROOT_USER_ACTION=ignore
    torch=$(grep '^torch==' "$requirements")
    if ! has_torch "$1/bin/python"; then
        "${pip[@]}" "$torch+cpu" 2>/dev/null || "${pip[@]}" --extra-index-url "$cpu_index" "$torch+cpu" ||
            "${pip[@]}" "$torch" || return 1
    fi
    "${pip[@]}" -r "$requirements"
}

make() {
    local venv python log options=()
    if [ -n "${ZSHARD_TEST_PYTHON:-}" ]; then
        echo "python: $ZSHARD_TEST_PYTHON, as ZSHARD_TEST_PYTHON says"
        return
    fi
    venv=$(venv_path) python=$(base_python)
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9
    if [ -e "$venv/made" ]; then
        echo "python: $venv is there"
        return
    fi
    rm -rf "$venv"
    log=$(mktemp)
    has_torch "$python" && options=(--system-site-packages)
    if "$python" -m venv "${options[@]}" "$venv" >"$log" 2>&1 && install "$venv" >>"$log" 2>&1; then
        touch "$venv/made"
        echo "python: $venv is made"
        rm -f "$log"
    else
        rm -rf "$venv"
        tail -n 5 "$log" >&2
        rm -f "$log"
        echo "python: no environment could be made: the tests of Python will be skipped" >&2
        return 1
    fi
}

run() {
    local python=${ZSHARD_TEST_PYTHON:-}
    if [ -z "$python" ]; then
        python=$(venv_path)/bin/python
        [ -e "$(dirname "$python")/../made" ] || { echo "skipped: no Python environment (tests/venv.sh make)"; exit 77; }
    fi
    PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -B "$@"
}

case "${1:-}" in
make) make ;;
path) venv_path ;;
exec) shift && run "$@" ;;
*) echo "usage: tests/venv.sh make | path | exec WORDS..." >&2; exit 2 ;;
esac
