#!/usr/bin/env python3
"""test_quality.py - bench/quality.py --short: each row is trained, and a study that was interrupted resumes.

    ZSHARD_BUILD=build tests/integ/test_quality.py [NAME...]
"""

import json
import os
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from harness import BUILD, DEADLINE, check, main

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FLAGS = ["--short", "--data", os.path.join(ROOT, "LICENSE"), "--seeds", "1"]


def quality(*args):
    return subprocess.run([sys.executable, "-B", os.path.join(ROOT, "bench", "quality.py"), *FLAGS, *args], text=True,
                          timeout=DEADLINE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=False, env=os.environ | {"ZSHARD_BUILD": BUILD})


def rows():
    with tempfile.TemporaryDirectory() as d:
        done = quality("--steps", "4", "--out", d)
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        path = os.path.join(d, "quality.json")
        with open(path, encoding="utf-8") as f:
            said = json.load(f)
        lines = len(ElementTree.parse(os.path.join(d, "quality.svg")).findall("{*}polyline"))
        with open(os.path.join(d, "table.txt"), encoding="utf-8") as f:
            check(f.read() == done.stdout, "the table in the file is another one")
        runs = said["runs"]
        check(len(runs) == 12 and lines == 12, f"{len(runs)} runs, {lines} lines in the plot")
        first = {losses[0] for losses in runs.values()}  # weights of 16 bits are rounded
        check(all(len(losses) == 4 for losses in runs.values()) and max(first) - min(first) < 1e-4, f"{runs}")
        check(len({losses[-1] for losses in runs.values()}) > 5, f"the rows are trained alike: {runs}")
        gone = sorted(runs)[3]
        said["runs"] = {key: losses for key, losses in runs.items() if key != gone}
        with open(path, "w", encoding="utf-8") as f:
            json.dump(said, f)
        again = quality("--steps", "4", "--out", d)
        check(again.returncode == 0 and again.stdout == done.stdout, f"{done.stdout}{again.stdout}{again.stderr}")
        check(again.stderr.count("quality: ") == 1, f"more than one run was repeated: {again.stderr}")
        other = quality("--steps", "5", "--out", d)
        check(other.returncode == 1 and "another study" in other.stderr, f"{other.returncode}: {other.stderr}")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (rows,)}))
