#!/usr/bin/env python3
"""test_zctl_table.py [COMMAND...] - every command of zctl in every form of output, as scripts and people use them.

MODEL. A row of COMMANDS is a command line with which a command works, and what is done before. Each line runs once per
form: plain, --json, -H, -p, -o list, -o COLUMNS, and with a column that does not exist, which must change nothing.
"{n}" is another number each time. A command that prints no rows must refuse the forms that are about rows. A command of
zctl without a row here fails the test, and so does one without a man page.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import DEADLINE, Daemon, Failure, check, program
from test_man import MAN, commands
from test_man_examples import PAGES, World

ROWS, TEXT, OWN_JSON = "rows", "text", "rows, with a JSON of its own"
# Command: (what it prints, its line, what is run before it)
COMMANDS = {
    "clone": (ROWS, "clone demo fork{n}", ""),
    "completion": (TEXT, "completion bash", ""),
    "config": (ROWS, "config show", ""),
    "destroy": (ROWS, "destroy --force victim{n}", "clone demo victim{n}"),
    "df": (ROWS, "df", ""),
    "doctor": (OWN_JSON, "doctor", ""),
    "drive": (ROWS, "drive", ""),
    "events": (TEXT, "events -n 3", ""),
    "export": (ROWS, "export demo out{n}", ""),
    "fsck": (ROWS, "fsck", ""),
    "help": (TEXT, "help", ""),
    "import": (ROWS, "import copy{n} models/demo", ""),
    "jobs": (ROWS, "jobs", ""),
    "log-level": (ROWS, "log-level info", ""),
    "ls": (ROWS, "ls", ""),
    "metrics": (TEXT, "metrics", ""),
    "ping": (ROWS, "ping", ""),
    "plan": (TEXT, "plan --params 1M", ""),
    "quota": (ROWS, "quota", "quota set 1001 nvme=2T"),
    "restart": (ROWS, "restart --dry-run", ""),
    "rollback": (ROWS, "rollback back best", ""),
    "scrub": (ROWS, "scrub status", ""),
    "share": (TEXT, "share demo 50", ""),
    "snapshot": (ROWS, "snapshot demo snap{n}", ""),
    "snapshots": (ROWS, "snapshots demo", ""),
    "stat": (ROWS, "stat", ""),
    "status": (TEXT, "status", ""),
    "tier": (TEXT, "tier set host 48M", ""),
    "tiers": (ROWS, "tiers", ""),
    "top": (TEXT, "top --once --interval 0.1", ""),
    "version": (TEXT, "version", ""),
}
STATUSES = {"doctor": (0, 1)}


class Run:
    """One command in its forms."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.kind, self.line, self.before = COMMANDS[name]
        self.n = 0

    def zctl(self, *words):
        return subprocess.run([program("zctl"), *words], env=self.world.daemon.env(), cwd=self.world.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False)

    def form(self, *words):
        """What the command prints in a form."""
        self.n += 1
        if self.before:
            done = self.zctl(*self.before.format(n=self.n).split())
            check(done.returncode == 0, f"'{self.before}': {done}")
        done = self.zctl(*self.line.format(n=self.n).split(), *words)
        check(done.returncode in STATUSES.get(self.name, (0,)) and done.stderr == "", f"{words}: {done}")
        return done.stdout

    def refuses(self, part, *words):
        self.n += 1
        before = self.zctl("-H", "snapshots").stdout, self.zctl("-H", "jobs", "-o", "name").stdout
        done = self.zctl(*self.line.format(n=self.n).split(), *words)
        check(done.returncode == 2 and done.stdout == "" and part in done.stderr, f"{words}: {done}")
        check(before == (self.zctl("-H", "snapshots").stdout, self.zctl("-H", "jobs", "-o", "name").stdout),
              f"{words} was refused, and changed something")

    def keys(self):
        """The columns' names, and the rows of the JSON."""
        answer = json.loads(self.form("--json"))
        check(answer["schema"] == 2, f"{answer}")
        if self.kind == OWN_JSON:
            return ["check", "result", "found"], []
        check(list(answer)[:2] == ["schema", "rows"] and answer["rows"], f"there is no row: {answer}")
        return list(answer["rows"][0]), answer["rows"]


def is_exact(value, text):
    """Whether a text of -p has the form of a JSON value."""
    if isinstance(value, bool):
        return text in ("yes", "no")
    if isinstance(value, int):
        return re.fullmatch(r"\d+", text)
    if isinstance(value, float):
        return re.fullmatch(r"-|[0-9.e+-]+", text)
    return text and (text == "-" or not re.search("[\t\n]", text))


def rows(run):
    keys, values = run.keys()
    shown = run.zctl(run.name, "--help").stdout.partition("Columns, for -o:\n")[2].partition("\n\n")[0]
    check(" ".join(shown.split()).split(", ")[:len(keys)] == keys, f"--help names the columns {shown}, not {keys}")
    table = run.form().splitlines()
    check(table[0] == table[0].upper(), f"the headings: {table[0]}")
    bare = run.form("-H").splitlines()
    check(len({line.count("\t") for line in bare}) == 1, f"another number of columns in each row: {bare}")
    if values:
        check(len(bare) == len(values), f"-H: not {len(values)} rows: {bare}")
    headed = run.form("-p").splitlines()[0].split()
    check(headed == table[0].split(), f"-p: other headings: {headed}")
    exact = [line.split("\t") for line in run.form("-Hpo", ",".join(keys)).splitlines()]
    check(all(len(line) == len(keys) for line in exact), f"-Hp -o all columns: {exact}")
    for row, line in zip(values, exact):
        for key, cell in zip(keys, line):
            check(is_exact(row[key], cell), f"{key}: {cell} for {row[key]!r}")
    one = run.form("-o", keys[-1].upper()).splitlines()
    check("\t" not in one[0] and one[0] == one[0].upper(), f"-o {keys[-1]}: {one}")
    listed = [line.split()[0] for line in run.form("-o", "list").splitlines() if line]
    check(listed[:len(keys)] == keys, f"-o list: {listed}, not {keys}")
    run.refuses(f"zctl: {run.name} has no column 'nothing'", "-o", f"{keys[0]},nothing")


def text(run):
    run.form()
    for words in (["-H"], ["-p"], ["-o", "list"]):
        run.refuses(f"is for commands that print rows: {run.name} does not", *words)
    run.refuses(f"--output must be table or json for {run.name}, not 'name'", "-o", "name")


def works(world, name):
    run = Run(world, name)
    shown = run.zctl(name, "--help").stdout
    check(f"usage: zctl {name}" in shown and f"Man page: zctl-{name}(1)" in shown, shown)
    check(os.path.exists(os.path.join(MAN, f"zctl-{name}.1")), f"there is no docs/man/zctl-{name}.1")
    (text if run.kind == TEXT else rows)(run)


def main():
    failed = 0
    check(sorted(COMMANDS) == sorted(commands()), f"not in the table, or only there: {set(COMMANDS) ^ set(commands())}")
    with Daemon(*PAGES) as daemon, tempfile.TemporaryDirectory() as folder:
        world = World(daemon, folder)
        for name in sys.argv[1:] or COMMANDS:
            world.reset()
            for line in ("import back models/demo", "snapshot back best"):
                subprocess.run([program("zctl"), *line.split()], env=daemon.env(), cwd=folder, check=True,
                               stdout=subprocess.DEVNULL, timeout=DEADLINE)
            try:
                works(world, name)
            except Failure as error:
                failed += 1
                print(f"FAIL  {name}: {error}", flush=True)
    print(f"{len(sys.argv[1:] or COMMANDS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
