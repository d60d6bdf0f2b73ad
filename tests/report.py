#!/usr/bin/env python3
"""report.py - what tests/run.sh says about the time of a stage and about skipped tests. Standard library only.

    tests/report.py stage NAME JUNIT TESTS STAGES   after the tests of a stage: its ten slowest, and what it skipped
    tests/report.py end STAGES SKIPS                at the end: a table of the stages, and all that was skipped

JUNIT is what ctest --output-junit wrote, TESTS what ctest --show-only=json-v1 printed. STAGES collects the rows
of the table. SKIPS names what may be skipped. The exit status is 1 where a test of the label quick is slow, or
something was skipped that SKIPS does not name.
"""

import fnmatch
import json
import os
import re
import statistics
import sys
import xml.etree.ElementTree

SLOWEST = 10
QUICK = 2.0  # seconds that a test of the label quick may take on an idle machine
QUICK_MOST = 15.0  # and on one that is busy with other tests and builds,
QUICK_TIMES = 40  # or so many times as long as half of them take: then it is the machine that is slow
SKIPPED = re.compile(r"\bskipped(: | ').+")  # a line of ours, or of Python's unittest
CMOCKA = re.compile(r"\[  SKIPPED \] (\w+)$")
SILENT = "it does not say why"


def tests_of(junit):
    """Name, seconds, state ("run", "fail", "notrun", "disabled") and output of each test."""
    for case in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        yield case.get("name"), float(case.get("time")), case.get("status"), output


def skips_of(name, status, output):
    """What was skipped, a test or a case of it, and why."""
    found, said = {}, None
    for line in output.splitlines():
        match = CMOCKA.match(line)
        if match:  # the reason of a case is in a line before
            found.setdefault(f"{name}/{match[1]}", said or SILENT)
            said = None
        elif SKIPPED.search(line):
            if said:
                found.setdefault(name, said)
            said = line.strip().removeprefix("skipped: ")
    if said:
        found.setdefault(name, said)
    if status == "notrun":
        found.setdefault(name, SILENT)
    return found.items()


def labels_of(path):
    with open(path, encoding="utf-8") as f:
        tests = json.load(f)["tests"]
    return {t["name"]: next((p["value"] for p in t["properties"] if p["name"] == "LABELS"), []) for t in tests}


def stage(name, junit, tests, stages):
    ran = list(tests_of(junit))
    labels = labels_of(tests)
    print(f"\n{name}: the slowest of {len(ran)} tests, {sum(t[1] for t in ran):.0f} s one after the other")
    for test, seconds, _, _ in sorted(ran, key=lambda t: -t[1])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {test}")
    slow = [(t[0], t[1]) for t in ran if "quick" in labels.get(t[0], []) and t[1] > QUICK] if name == "release" else []
    if slow:
        print(f"{name}: over {QUICK:g} s, and labelled quick: " + ", ".join(f"{t} {s:.1f} s" for t, s in slow))
    failed = [t[0] for t in ran if t[2] == "fail"]
    with open(stages, "a", encoding="utf-8") as f:
        f.write(f"{name}\tran\t{len(ran)}\t{len(failed)}\n")
        for test, _, status, output in ran:
            for what, why in skips_of(test, status, output):
                f.write(f"{name}\tskip\t{what}\t{why}\n")
    quick = [t[1] for t in ran if "quick" in labels.get(t[0], [])]
    most = max(QUICK_MOST, QUICK_TIMES * statistics.median(quick)) if quick else QUICK_MOST
    too_slow = [t for t, s in slow if s > most]
    for test in too_slow:
        print(f"{name}: {test} is labelled quick and took more than {most:.0f} s")
    return 1 if too_slow else 0


def known_skips(path):
    """Pairs of a pattern and words."""
    known = []
    with open(path, encoding="utf-8") as f:
        for line in f:
            row = line.split("#")[0].split(maxsplit=1)
            if row[:1] == ["user"]:
                if os.geteuid() == 0:
                    continue
                row = row[1].split(maxsplit=1)
            if row:
                known.append((row[0], row[1].strip()))
    return known


def is_known(known, what, why):
    return any(fnmatch.fnmatchcase(what, pattern) and words in why for pattern, words in known)


def end(stages, skips):
    known = known_skips(skips)
    rows, skipped = [], []
    with open(stages, encoding="utf-8") as f:
        for line in f:
            row = line.rstrip("\n").split("\t")
            if row[1] == "skip":
                skipped.append((row[0], row[2], row[3]))
            elif row[1] == "ran":
                rows[-1] += [row[2], row[3]]
            else:
                rows.append(row)
    print(f"{'stage':<14}{'':<28}{'seconds':>8}{'tests':>8}{'failed':>8}{'skips':>8}")
    for name, what, seconds, *ran in rows:
        tail = "".join(f"{n:>8}" for n in ran)
        if ran:
            tail += f"{sum(1 for s in skipped if s[0] == name):>8}"
        print(f"{name:<14}{what:<28}{seconds:>8}{tail}")
    if skipped:
        print(f"\nskipped, {len(skipped)} in all:")
    unknown = 0
    for name, what, why in skipped:
        fine = is_known(known, what, why)
        unknown += not fine
        print(f"  {name:<10}{what}: {why}" + ("" if fine else f"   NOT IN {os.path.relpath(skips)}"))
    if unknown:
        print(f"{unknown} of these are not known")
    return 1 if unknown else 0


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["stage"] and len(words) == 5:
        sys.exit(stage(*words[1:]))
    if words[:1] == ["end"] and len(words) == 3:
        sys.exit(end(*words[1:]))
    print(__doc__, file=sys.stderr)
    sys.exit(2)
