#!/usr/bin/env python3
"""blocks_test.py - blocks.py fails where a page does: each row is a README, and whether it is good. No daemon is started."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = "```sh\n%s\n```\n"
LEFT_OUT = "<!-- not run: %s -->\n" + BLOCK

ROWS = [
    ("one block", BLOCK % "true", True),
    ("blocks are one session", BLOCK % "x=1" + "text\n" + BLOCK % 'test "$x" = 1', True),
    ("a command that fails", BLOCK % "false", False),
    ("a command that fails in the middle", BLOCK % "false\ntrue", False),
    ("a program that does not exist", BLOCK % "zshard-no-such-program", False),
    ("a variable that is not set", BLOCK % "echo $nothing_sets_this", False),
    ("a block that is left out", BLOCK % "true" + LEFT_OUT % ("needs root", "false"), True),
    ("left out without a reason", BLOCK % "true" + LEFT_OUT % (" ", "true"), False),
    ("five are left out", BLOCK % "true" + LEFT_OUT % ("needs root", "false") * 5, True),
    ("six are left out", BLOCK % "true" + LEFT_OUT % ("needs root", "false") * 6, False),
    ("what a page leaves running does not hold it up", BLOCK % "sleep 300 &", True),
]


def main():
    wrong = 0
    for name, text, good in ROWS:
        with tempfile.TemporaryDirectory(prefix="zshard-blocks-") as root:
            with open(os.path.join(root, "README.md"), "w", encoding="utf-8") as file:
                file.write(text)
            done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "blocks.py"), root], check=False, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        if (done.returncode == 0) != good:
            print(f"{name}: status {done.returncode}: {done.stdout}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
