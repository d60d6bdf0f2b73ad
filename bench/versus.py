#!/usr/bin/env python3
"""versus.py - two builds of zbench, one against the other.

    bench/versus.py [--rounds N] BEFORE AFTER -- SUBCOMMAND [OPTION...]

BEFORE and AFTER are build folders. Each round runs `zbench SUBCOMMAND --json` of them in the order A B B A. For each
row that both print it shows, by the medians over the rounds,

    after/before  the value of B (the mean of its two runs in a round) over that of A
    control       the second run of a build over its first: what the machine does to equal programs. The lowest and the
                  highest of all rounds and of both builds; where there are more than ten, the second of each end

and "worse" where B is worse than A by more than the control ever was. Exit status: 0, 1 where a row is worse, 2 where
something cannot be run. Standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def run(build, words):
    """{case: (value, unit, better)} of one run."""
    command = [os.path.join(build, "bin", "zbench"), *words, "--json"]
    got = subprocess.run(command, text=True, capture_output=True, check=False)
    if got.returncode != 0:
        sys.exit(f"versus.py: {' '.join(command)} ended with {got.returncode}:\n{got.stderr[-2000:]}")
    rows = json.loads(got.stdout)["rows"]
    return {row["case"]: (row["value"], row["unit"], row["better"]) for row in rows}


def row_of(case, rounds):
    """What is printed of one case: ratio, lowest and highest control, "worse" or ""."""
    ratios, control = [], []
    for a1, b1, b2, a2 in rounds:
        before, after = (a1[case][0] + a2[case][0]) / 2, (b1[case][0] + b2[case][0]) / 2
        if before == 0 or a1[case][0] == 0 or b1[case][0] == 0:
            return None
        ratios.append(after / before)
        control += [a2[case][0] / a1[case][0], b2[case][0] / b1[case][0]]
    control = sorted(control + [1 / c for c in control if c > 0])  # which came first says nothing
    if len(control) > 20:
        control = control[1:-1]
    ratio = statistics.median(ratios)
    better = rounds[0][0][case][2]
    worse = ratio > control[-1] if better == "lower" else ratio < control[0]
    return ratio, control[0], control[-1], "worse" if worse else ""


def main():
    parser = argparse.ArgumentParser(usage="versus.py [--rounds N] BEFORE AFTER -- SUBCOMMAND [OPTION...]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    rounds = []
    for _ in range(args.rounds):
        rounds.append([run(build, args.words) for build in (args.before, args.after, args.after, args.before)])
    cases = [c for c in rounds[0][0] if all(c in one for r in rounds for one in r)]
    if not cases:
        print("versus.py: the two builds have no row in common", file=sys.stderr)
        return 2
    print(f"zbench {' '.join(args.words)}: {args.rounds} rounds of A B B A, load {os.getloadavg()[0]:.2f}")
    print(f"{'case':<44}{'unit':>10}{'after/before':>14}{'control':>18}")
    worse = 0
    for case in cases:
        row = row_of(case, rounds)
        if row is None:
            continue
        ratio, low, high, word = row
        worse += bool(word)
        print(f"{case:<44}{rounds[0][0][case][1]:>10}{ratio:>14.3f}   [{low:.3f}, {high:.3f}]  {word}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
