#!/usr/bin/env python3
"""test_man.py [--write] - the man pages contain what --help prints. Each page of docs/man has a part between
two comments that is made from a program's --help, line by line; --write updates it. Where man is
installed, it must have no warnings for a page."""
import os
import re
import shutil
import subprocess
import sys

from harness import check, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEGIN, END = '.\\" What --help says: tests/integ/test_man.py --write', '.\\" The end of what --help says'
PAGES = {"zshardd.8": "zshardd", "zshardd.conf.5": "zshardd", "zctl.1": "zctl", "zgpt.1": "zgpt",
         "zbench.1": "zbench"}


def helped(page):
    text = subprocess.run([program(PAGES[page]), "--help"], stdin=subprocess.DEVNULL, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=150).stdout
    # Paths of the build mean nothing to a reader.
    text = text.replace(ROOT, "...")
    if page == "zshardd.conf.5":  # options as named in the file
        text = text[text.index("  --socket"):]
        text = re.sub(r"^  --([a-z0-9-]+)", lambda m: "  " + m[1].replace("-", "_") + " =", text, flags=re.M)
        text = text.replace("paths = DIR:DIR...      ", 'paths = {"DIR", ...}    ')
        text = text[:text.index("\nExit status:")]
    escaped = text.rstrip("\n").replace("\\", "\\e").replace("-", "\\-")
    lines = ["\\&" + line if line[:1] in (".", "'") else line for line in escaped.split("\n")]
    return "\n".join([".nf", *lines, ".fi"])


def made(page, text):
    before, rest = text.split(BEGIN + "\n", 1)
    after = rest.split(END + "\n", 1)[1]
    return before + BEGIN + "\n" + helped(page) + "\n" + END + "\n" + after


def main():
    wrong = 0
    for page in PAGES:
        path = os.path.join(ROOT, "docs", "man", page)
        text = open(path, encoding="utf-8").read()
        new = made(page, text)
        if sys.argv[1:] == ["--write"]:
            open(path, "w", encoding="utf-8").write(new)
        elif new != text:
            print(f"{page} does not say what {PAGES[page]} --help says: tests/integ/test_man.py --write")
            wrong += 1
        if shutil.which("man"):
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path],
                                  env=os.environ | {"LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "100"},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, check=False, timeout=150)
            check(done.returncode == 0 and not done.stderr.strip(), f"{page}: {done.stderr}")
    return 1 if wrong else 0


sys.exit(main())
