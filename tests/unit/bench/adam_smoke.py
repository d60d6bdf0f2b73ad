#!/usr/bin/env python3
"""zbench adam runs every case, answers in the documented JSON, works with a peer, refuses bad words.

The figures of so short a run mean nothing and are not looked at."""

import json
import os
import subprocess
import tempfile

ZBENCH = os.path.join(os.environ["ZSHARD_BUILD"], "bin", "zbench")
CASES = {"adamw/bf16": 26, "adamw/bf16/grad-fp32": 28, "adamw/fp32": 28, "adamw/fp16": 30, "adam/bf16": 26,
         "lion/bf16": 18, "sgd/bf16": 18, "adagrad/bf16": 18,
         "adamw/bf16/moments-bf16": 18, "adamw/bf16/moments-8bit": 14.0625, "adamw/bf16/moments-8bit-lo": 12.0625}


def run(*words):
    return subprocess.run([ZBENCH, "adam", *words], capture_output=True, text=True, timeout=500, check=False)


def check_usage():
    for words, part in ((["--rounds", "0"], "--rounds must be 1 to 512, not 0"), (["--threads", "x"], "--threads must be a whole number, not 'x'"),
                        (["--params", "1K"], "--params must be 256K to"), (["--params", "much"], "much"),
                        (["--kernels", "abacus"], "unknown kernels 'abacus'"),
                        (["--nonsense"], "unknown option '--nonsense'"), (["word"], "'word'"),
                        (["--peer", "a"] * 5, "--peer may be given at most 4 times")):
        r = run(*words)
        assert r.returncode != 0 and part in r.stderr and not r.stdout, (words, r)


def check_rows():
    r = run("--smoke", "--json")
    assert r.returncode == 0, r.stderr
    rows = json.loads(r.stdout)["rows"]
    assert [row["case"] for row in rows] == [f"{c}/{what}" for c in CASES for what in ("triad", "control")], rows
    for row in rows:
        assert row["value"] > 0 and row["reference"] > 0 and row["better"] == "higher", row
    for case, moved in CASES.items():
        assert f"{case}: {moved} bytes of each parameter\n" in r.stderr, (case, r.stderr)
    r = run("--smoke", "--json", "--only", "adamw/fp32/triad", "--kernels", "ref", "--threads", "1")
    assert r.returncode == 0 and "kernels ref, 1 threads" in r.stderr, r.stderr
    assert [row["case"] for row in json.loads(r.stdout)["rows"]] == ["adamw/fp32/triad", "adamw/fp32/control"], r


def check_peer():
    """One that never steps: nearly all parameters differ from ours in the end."""
    with tempfile.TemporaryDirectory() as folder:
        peer = os.path.join(folder, "peer.sh")
        with open(peer, "w", encoding="ascii") as f:
            f.write("[ $(stat -Lc %s \"$3\") = 4194304 ] && echo ready idle of $1 $2\n"
                    "while read -r word; do case $word in step) echo 0.5 0.25 1 ;; *) echo written ;; esac; done\n")
        r = run("--smoke", "--json", "--threads", "2", "--peer", f"sh {peer}")
        assert r.returncode == 0 and "peer: of 1048576 2" in r.stderr, r.stderr
        assert "after 2 steps" in r.stderr, r.stderr
        rows = {row["case"]: row["reference"] for row in json.loads(r.stdout)["rows"]}
        mparams = 1048576 / 1e6
        assert rows == {"adamw/bf16/idle": mparams / 0.5, "adamw/bf16/idle/no-norm": mparams / 0.25}, rows
        for script, part in (("exit 0", "the peer has ended"), ("echo hello", "is not ready: hello"),
                             ("echo ready x y; read -r line; echo no idea", "the peer answered: no idea")):
            with open(peer, "w", encoding="ascii") as f:
                f.write(script + "\n")
            r = run("--smoke", "--peer", f"sh {peer}")
            assert r.returncode == 1 and part in r.stderr, (script, r)


check_usage()
check_rows()
check_peer()
