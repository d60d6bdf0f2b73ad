#!/usr/bin/env python3
"""outputs.py [--write] - what a page shows as output is what its shell blocks print.

MODEL. The `sh` blocks of a page are one session, as for blocks.py, which runs more pages and ignores what they print. A `text` block
that follows an `sh` block, with nothing but blank lines between them, is the output of that block, byte by byte. Files that the session
writes and the page's folder also has (pictures) are equal to those. --write puts into the repository what was printed and written.

Only pages whose output depends on nothing but their own text are in PAGES: no times, no daemons, no machine.
"""
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("ZSHARD_BUILD", "build"))
PAGES = ["docs/how-to/scale.md"]
PICTURES = {"docs/how-to/scale.md": ["scale.svg"]}
LIMIT = 60  # seconds for a page
END = "==== end of a block ===="
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:\n*```text\n(.*?)```\n)?", re.DOTALL)


def outputs(text, folder):
    """What each block of a page prints."""
    script = ["set -eu"]
    for m in BLOCK.finditer(text):
        script += [m[1], f"echo '{END}'"]
    env = os.environ | {"PATH": os.path.join(BUILD, "bin") + os.pathsep + os.environ["PATH"]}
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=folder, env=env, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=LIMIT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"a block ends with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout.split(END + "\n")[:-1]


def page(path, write):
    """What is wrong with a page."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        printed = outputs(text, folder)
        blocks = list(BLOCK.finditer(text))
        for m, got in reversed(list(zip(blocks, printed, strict=True))):
            if m[2] is None or m[2] == got:
                continue
            wrong.append(f"{path}: after\n{m[1]}it shows\n{m[2]}but the output is\n{got}")
            text = text[:m.start(2)] + got + text[m.end(2):]
        if not any(m[2] for m in blocks) and not write:
            wrong.append(f"{path} shows no output at all")
        for name in PICTURES.get(path, []):
            ours, theirs = os.path.join(ROOT, os.path.dirname(path), name), os.path.join(folder, name)
            if not os.path.exists(ours) or not filecmp.cmp(ours, theirs, shallow=False):
                wrong.append(f"{os.path.dirname(path)}/{name} is not what the page's blocks write")
                if write:
                    shutil.copyfile(theirs, ours)
    if write:
        with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
            file.write(text)
    return wrong


def main():
    write = sys.argv[1:] == ["--write"]
    wrong = [w for path in PAGES for w in page(path, write)]
    if not write:
        print("\n".join(wrong + ["tests/docs/outputs.py --write makes them equal"] if wrong else ["as printed"]))
    return 1 if wrong and not write else 0


if __name__ == "__main__":
    sys.exit(main())
