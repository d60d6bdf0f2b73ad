#!/usr/bin/env python3
"""zbench io runs, answers in the documented JSON, refuses bad words and leaves nothing behind.

The figures of so short a run mean nothing and are not looked at."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

ZBENCH = os.path.join(os.environ["ZSHARD_BUILD"], "bin", "zbench")
ROW = {"case": str, "unit": str, "value": float, "reference": float, "reference_name": str,
       "ratio": float, "better": str, "spread": float}


def run(*words, env=None):
    return subprocess.run([ZBENCH, *words], capture_output=True, text=True, env=env)


def check_usage(folder):
    for words, part in ((["io", "--slices", "x"], "--slices must be a whole number, not 'x'"),
                        (["io", "--slices", "100000"], "--slices must be 2 to 1024, not 100000"),
                        (["io", "--seconds", "nan"], "--seconds must be a number, not 'nan'"),
                        (["io", "--size", "1M"], "--size must be 8M to"),
                        (["io", "--size", "much"], "much"),
                        (["io", "--nonsense"], "unknown option '--nonsense'"),
                        (["io", "word"], "'word'"),
                        (["nothing"], "unknown command 'nothing'"),
                        ([], "unknown command ''")):
        r = run(*words)
        assert r.returncode == 2 and part in r.stderr and not r.stdout, (words, r)
    r = run("io", "--smoke", env={"PATH": folder})
    assert r.returncode == 1 and "fio, the reference, does not run here" in r.stderr, r
    for words in (["help"], ["--help"], ["io", "--help"], ["--json", "io", "--smoke", "--help"]):
        r = run(*words)
        assert r.returncode == 0 and "bandwidth of the I/O engines" in r.stdout, (words, r)


def check_json(folder):
    r = run("io", "--smoke", "--json", "--dir", folder)
    if "io_uring is refused" in r.stderr:
        print("skipped:", r.stderr.strip())
        sys.exit(77)
    assert r.returncode == 0, r.stderr
    answer = json.loads(r.stdout)
    assert set(answer) == {"bench", "commit", "machine", "rows"}, set(answer)
    assert answer["bench"] == "io" and answer["commit"] and answer["machine"]
    cases = set()
    for row in answer["rows"]:
        for key, kind in ROW.items():
            assert isinstance(row[key], kind), (key, row)
        assert row["better"] == ("lower" if row["case"].startswith("cpu/") else "higher"), row
        assert abs(row["ratio"] - row["value"] / row["reference"]) < 1e-6 * row["ratio"], row
        assert row["reference"] > 0, row
        assert row["value"] > 0 or row["case"].endswith("/crc/limit"), row
        cases.add(row["case"])
    want = {f"{mix}/{block}/{who}/fio" for mix in ("read", "write", "mix")
            for block in ("1M", "4M") for who in ("uring", "threads", "fio")}
    want |= {f"{mix}/{block}/{pair}" for mix in ("read", "write", "mix") for block in ("1M", "4M")
             for pair in ("sim-1G/fixed-rate", "sim-3G/fixed-rate", "sim-10G/fixed-rate",
                          "huge-pages/small-pages")}
    assert want <= cases and all(c.startswith("cpu/") for c in cases - want), cases ^ want
    assert r.stderr.count("--ioengine=io_uring") == 6, r.stderr
    assert os.listdir(folder) == [], os.listdir(folder)


def check_peer(folder):
    peer = os.path.join(folder, "peer.sh")
    with open(peer, "w", encoding="ascii") as f:
        f.write("echo ready twin 1.0, of \"$2\" \"$3\"\n"
                "while read -r way block seconds; do echo 100.5 20; done\n")
    r = run("io", "--smoke", "--json", "--dir", folder, "--only", "write/4M", "--against", "peer",
            "--peer", f"sh {peer}")
    assert r.returncode == 0 and "peer: 1.0, of 65536 29360128" in r.stderr, r.stderr
    rows = {row["case"]: row for row in json.loads(r.stdout)["rows"]}
    assert set(rows) == {"write/4M/ours/twin", "cpu/write/4M/ours/twin"}, rows
    assert rows["write/4M/ours/twin"]["reference"] == 100.5, rows
    for script, part in (("exit 0", "the peer has ended"), ("echo hello", "is not ready: hello"),
                         ("echo ready x y; read -r line; echo no idea", "the peer answered: no idea"),
                         ("echo ready x y", "the peer has ended")):
        with open(peer, "w", encoding="ascii") as f:
            f.write(script + "\n")
        r = run("io", "--smoke", "--dir", folder, "--against", "peer", "--peer", f"sh {peer}")
        assert r.returncode == 1 and part in r.stderr, (script, r)
    os.unlink(peer)


def check_failure(folder):
    r = run("io", "--smoke", "--dir", os.path.join(folder, "none"))
    assert r.returncode == 1 and "its directory does not exist" in r.stderr, r


def main():
    if not shutil.which("fio"):
        print("skipped: fio is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        check_usage(folder)
        check_failure(folder)
        check_json(folder)
        check_peer(folder)


main()
