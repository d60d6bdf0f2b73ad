#!/usr/bin/env python3
"""exports.py LIBRARY - the names that leave the library are those of exports.txt, and those that the
public headers declare. A name that is taken from the list breaks programs that were linked."""
import os
import subprocess
import sys

import headers

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exports.txt")


def exported(library):
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    names = {line.split()[-1].split("@")[0] for line in out.splitlines()}
    return {n for n in names if n != "ZCLIENT_0"}  # the version node itself


def differ(what, have, want):
    for name in sorted(have - want):
        print(f"{name} is in {what[0]}, not in {what[1]}")
    for name in sorted(want - have):
        print(f"{name} is in {what[1]}, not in {what[0]}")
    return have != want


def main():
    library = exported(sys.argv[1])
    listed = {line.strip() for line in open(LIST) if line.strip() and not line.startswith("#")}
    bad = [n for n in sorted(library) if not n.startswith("zc_")]
    for name in bad:
        print(f"{name} leaves the library, and is not zc_*")
    wrong = differ(("the library", "tests/abi/exports.txt"), library, listed)
    wrong |= differ(("the library", "the public headers"), library, set(headers.functions()))
    return 1 if bad or wrong else 0


sys.exit(main())
