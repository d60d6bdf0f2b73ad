#!/usr/bin/env python3
"""blocks.py [ROOT] - every shell block of README and of the how-to pages runs, against real daemons.

MODEL. The `sh` blocks of a page are one shell session, in a copy of what they read: block after block, in one directory, with
the programs of the build in PATH. A block that fails (set -e) fails the page. A page of BEFORE has a daemon, and jobs, that
its reader is told to have. A block behind a comment `<!-- not run: REASON -->` is left out: at most NOT_RUN of them, over
all pages. mpirun is told to be run as root and on any number of processors.

A line that a page has for people is replaced by one for a test (INSTEAD): the same programs, smaller sizes.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.abspath(os.environ.get("ZSHARD_BUILD", "build"))
LIMIT = 280  # seconds for a page
NOT_RUN = 5
PAGES = ["README.md", "docs/tutorial.md", "docs/how-to/install.md", "docs/how-to/configure.md", "docs/how-to/operate.md",
         "docs/how-to/watch.md", "docs/how-to/keep.md", "docs/how-to/share.md", "docs/how-to/troubleshoot.md",
         "docs/how-to/upgrade.md", "docs/how-to/drives.md", "docs/how-to/backup.md", "docs/how-to/slurm.md", "docs/how-to/kubernetes.md",
         "docs/how-to/scale.md", "docs/how-to/node.md"]
DAEMON = """zshardd --socket "$PWD/s" --data "$PWD/d" --host-bytes 48M --nvme-bytes 128M >ready 2>log &
export ZSHARD_SOCKET="$PWD/s"
timeout 60 sh -c 'until zctl ping >/dev/null 2>&1; do sleep 0.1; done'
"""
# What a reader of the page has before its first block.
# They start their own daemons, or need none.
OWN = ("docs/how-to/drives.md", "docs/how-to/backup.md", "docs/how-to/scale.md", "docs/how-to/node.md")
BEFORE = {page: DAEMON for page in PAGES if page.startswith("docs/how-to/") and page not in OWN}
BEFORE["docs/how-to/slurm.md"] += """cp deploy/slurm/*.sh .
mkdir bin && echo '#!/bin/sh' >bin/squeue && chmod +x bin/squeue # no jobs run
PATH="$PWD/bin:$PATH"
"""
BEFORE["docs/how-to/kubernetes.md"] += """sed 's/socket_group = zshard/socket_group = users/' \\
    deploy/kubernetes/zshardd.yaml >zshardd.yaml
"""
# Smaller runs: (page, the text of the page, what is run instead).
INSTEAD = [
    ("README.md", "--steps 100 ", "--steps 4 "),
    ("README.md", "--seq 128 ", "--seq 16 "),
    ("docs/how-to/troubleshoot.md", "zctl doctor\n", "zctl doctor || [ $? -eq 1 ]\n"),  # what it finds depends on the machine
]
BLOCK = re.compile(r"(<!-- not run: ([^\n]*) -->\n)?```sh\n(.*?)```", re.DOTALL)


class Failure(Exception):
    """A page is wrong, and this is why."""


def blocks(root, page):
    """[(reason or None, text)] of a page, and what is wrong with its marks."""
    with open(os.path.join(root, page), encoding="utf-8") as file:
        text = file.read()
    return [(m[2] if m[1] else None, m[3]) for m in BLOCK.finditer(text)]


def script(root, page):
    """The session of a page: its blocks in order, each shown before it runs."""
    lines = ["set -eu", BEFORE.get(page, "")]
    for number, (reason, text) in enumerate(blocks(root, page), 1):
        if reason is not None:
            continue
        for where, old, new in INSTEAD:
            if where == page:
                text = text.replace(old, new)
        lines += [f"echo '# {page}: block {number}' >&2", text]
    return "\n".join(lines)


def small(page, root):
    """Every line of INSTEAD is on its page: a text that has changed must not be run at its full size."""
    text = "".join(t for _, t in blocks(root, page))
    for where, old, _ in INSTEAD:
        if where == page and old not in text:
            raise Failure(f"{page}: INSTEAD has '{old}', which no block has")


def run(root, page, folder):
    for name in ("README.md", "deploy", "examples"):  # files that blocks read
        os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
    os.symlink(BUILD, os.path.join(folder, "build"))
    env = os.environ | {
        "PATH": f"{BUILD}/bin:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none", "TMPDIR": folder, "HOME": folder}
    env.pop("ZSHARD_SOCKET", None)
    # /tmp and /backup become this test's own folder.
    text = script(root, page).replace("/tmp/", folder + "/").replace("/backup/", folder + "/")
    # The session is a process group of its own, so that daemons that it leaves are ended with it, and nothing else.
    # Its output goes to a file: a daemon that is left would hold a pipe open.
    with open(os.path.join(folder, "output"), "w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(["bash", "-c", text], cwd=folder, env=env, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            status = process.wait(timeout=LIMIT * float(os.environ.get("ZSHARD_PATIENCE", "1")))
        except subprocess.TimeoutExpired:
            status = "none: it did not end in time"
        finally:
            end(process)
        output.seek(0)
        said = output.read().split("\n")
    if status != 0:
        raise Failure(f"{page}: status {status}\n" + "\n".join(said[-40:]))


def end(process):
    """Ends what a session has left."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else ROOT
    wrong = 0
    left_out = [(page, reason) for page in PAGES if os.path.exists(os.path.join(root, page))
                for reason, _ in blocks(root, page) if reason is not None]
    if len(left_out) > NOT_RUN or any(not reason.strip() for _, reason in left_out):
        print(f"{len(left_out)} blocks are not run, at most {NOT_RUN}, each with a reason: {left_out}")
        wrong += 1
    for page in PAGES:
        if not os.path.exists(os.path.join(root, page)) or all(reason is not None for reason, _ in blocks(root, page)):
            continue
        folder = tempfile.mkdtemp(prefix="zshard-docs-")
        try:
            if root == ROOT:
                small(page, root)
            run(root, page, folder)
            print(f"{page}: runs")
        except Failure as e:
            print(e)
            wrong += 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
