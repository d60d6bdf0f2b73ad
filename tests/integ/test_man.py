#!/usr/bin/env python3
"""test_man.py [--write] - the man pages contain what --help prints.

Each page of docs/man has parts between two comments that are made from a program's --help, line by line; --write
updates them. What pages name below /usr/share/doc/zshard is installed, and zshardd accepts the options of their
examples. Each command of zctl has a page of its own: --write makes a new one, whose DESCRIPTION and EXAMPLES are
then written by hand. test_man_examples.py runs the examples. Where man is installed, it must have no warnings for a page.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

from harness import check, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAN = os.path.join(ROOT, "docs", "man")
BEGIN, END = '.\\" What --help says: tests/integ/test_man.py --write', '.\\" The end of what --help says'
PART = re.compile(re.escape(BEGIN) + r"\n.*?" + re.escape(END) + r"\n", re.DOTALL)
PAGES = {"zshardd.8": "zshardd", "zshardd.conf.5": "zshardd", "zctl.1": "zctl", "zgpt.1": "zgpt",
         "zbench.1": "zbench"}
SECTIONS = ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO")
NEW = f"""{BEGIN}
{END}
.SH DESCRIPTION
{BEGIN}
{END}
.SH EXAMPLES
.SH SEE ALSO
.BR zctl (1)
"""


def escaped(text):
    return text.replace("\\", "\\e").replace("-", "\\-")


def lines(text):
    """A text as it is, line by line."""
    plain = ["\\&" + line if line[:1] in (".", "'") else line for line in escaped(text.rstrip("\n")).split("\n")]
    return "\n".join([".nf", *plain, ".fi"])


def helped(name, *words):
    return subprocess.run([program(name), *words, "--help"], stdin=subprocess.DEVNULL, check=True, text=True,
                          stdout=subprocess.PIPE, timeout=150).stdout


def commands():
    """The commands of zctl, with what its list says about them."""
    text = helped("zctl").split("\nCommands:\n")[1].split("\n\n")[0]
    found = {line.split()[0]: re.split(r"\s{2,}", line.strip(), maxsplit=1)[1] for line in text.splitlines()}
    check(len(found) > 20, f"the list of commands cannot be read: {text}")
    return found


def whole(page):
    """The parts of a page of a program: what --help says; for zctl also the pages of its commands."""
    text = helped(PAGES[page])
    # Paths of the build mean nothing to a reader.
    text = text.replace(ROOT, "...")
    if page == "zshardd.conf.5":  # options as named in the file
        text = text[text.index("  --socket"):]
        text = re.sub(r"^  --([a-z0-9-]+)", lambda m: "  " + m[1].replace("-", "_") + " =", text, flags=re.M)
        text = text.replace("paths = DIR:DIR...      ", 'paths = {"DIR", ...}    ')
        text = text[:text.index("\nExit status:")]
    if page != "zctl.1":
        return [lines(text)]
    return [lines(text), "\n".join(f".BR zctl\\-{escaped(name)} (1)," for name in commands())]


def of_command(name, what):
    """The parts of a command's page: its name and synopsis; its options and columns."""
    text = helped("zctl", name)
    check(f"\nMan page: zctl-{name}(1)\n" in text, f"zctl {name} --help does not name its man page: {text}")
    usage, rest = text.split("\nMan page:")[0].split("\n\n", 1)
    rest, _, columns = rest.partition("\nColumns, for -o:\n")
    at = re.search(r"^  -", rest, re.MULTILINE)
    options = rest[at.start():] if at else ""
    return [f'.TH ZCTL\\-{escaped(name).upper()} 1 "November 2026" "zshard 0.1.0" "zshard"\n.SH NAME\n'
            f"zctl\\-{escaped(name)} \\- {escaped(what)}\n.SH SYNOPSIS\n{lines(usage.removeprefix('usage: '))}",
            ".SH OPTIONS\n" + (lines(options) + "\n.PP\n" if options else "") +
            ".BR zctl (1)\nhas the options that all commands have, such as\n.B \\-\\-socket\nand\n.BR \\-\\-json ,\n"
            "and the exit statuses." + (f"\n.PP\nThe columns, for\n.BR \\-o :\n.nh\n{escaped(' '.join(columns.split()))}.\n.hy"
                                        if columns else "")]


def made(page, text, parts):
    """A page with its generated parts as they should be."""
    left = list(parts)
    check(len(PART.findall(text)) == len(parts), f"{page} must have {len(parts)} generated parts")
    return PART.sub(lambda _: f"{BEGIN}\n{left.pop(0)}\n{END}\n", text)


def section(text, name):
    """What a page has below a heading; "" if it has none."""
    m = re.search(rf"^\.SH {name}\n(.*?)(?=^\.SH |\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in m[1].splitlines() if not line.startswith('.\\"')).strip() if m else ""


def compare(page, parts, write):
    """Whether a page has what it must; updates it."""
    path = os.path.join(MAN, page)
    if not os.path.exists(path) and not write:
        print(f"there is no docs/man/{page}: tests/integ/test_man.py --write makes one")
        return False
    text = open(path, encoding="utf-8").read() if os.path.exists(path) else NEW
    new = made(page, text, parts)
    if write:
        open(path, "w", encoding="utf-8").write(new)
    elif new != text:
        print(f"{page} does not say what --help says: tests/integ/test_man.py --write")
        return False
    return True


def complete(page):
    """Whether all sections of a command's page have a text."""
    text = open(os.path.join(MAN, page), encoding="utf-8").read()
    empty = [name for name in SECTIONS if not section(text, name)]
    if empty:
        print(f"{page}: nothing is written below {', '.join(empty)}")
    return not empty


def formatted(pages):
    """Whether man has no warnings for the pages."""
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", *pages], cwd=MAN,
                          env=os.environ | {"LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "100"},
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          check=False, timeout=150)
    if done.returncode == 0 and not done.stderr.strip():
        return True
    if len(pages) > 1:
        return all([formatted([page]) for page in pages])
    print(f"{pages[0]}: {done.stderr}")
    return False


def installed(names):
    """Whether the package of zctl has the page of each command."""
    listed = open(os.path.join(ROOT, "deploy", "debian", "zctl.install"), encoding="utf-8").read().split()
    if "usr/share/man/man1/zctl*.1" in listed:
        return True
    print(f"deploy/debian/zctl.install does not have the pages of {', '.join(names)}")
    return False


def documented(page):
    """Whether what a page names below /usr/share/doc/zshard is installed there, as deploy/CMakeLists.txt does it."""
    text = open(os.path.join(MAN, page), encoding="utf-8").read().replace("\\-", "-")
    rules = open(os.path.join(ROOT, "deploy", "CMakeLists.txt"), encoding="utf-8").read()
    good = True
    for folder, rest in re.findall(r"/usr/share/doc/zshard/([a-z-]+)(/[A-Za-z_.-]+[A-Za-z_*])?", text):
        sources = {"how-to": "docs/how-to", "reference": "docs/reference", "examples": "deploy"}.get(folder, f"deploy/{folder}")
        if not glob.glob(os.path.join(ROOT, sources) + rest) or folder not in rules:
            print(f"{page}: /usr/share/doc/zshard/{folder}{rest} is not installed")
            good = False
    return good


def configured(page):
    """Whether zshardd accepts the lines of a configuration file that a page shows. Its users are not those of this machine."""
    text = open(os.path.join(MAN, page), encoding="utf-8").read().replace("\\-", "-")
    blocks = re.findall(r"^\.nf\n(.*?)^\.fi$", text, re.MULTILINE | re.DOTALL)
    shown = [block for block in blocks if re.search(r"^data = ", block, re.MULTILINE)]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        for name, here in (("alice", "2001"), ("bob", "2002"), ("= zshard", '= ""')):
            shown = [block.replace(name, here) for block in shown]
        file.write("".join(shown))
        file.flush()
        done = subprocess.run([program("zshardd"), "--check-config", "--config", file.name], check=False, text=True,
                              stderr=subprocess.STDOUT, stdout=subprocess.PIPE, timeout=150)
    if len(shown) != 1 or done.returncode != 0:
        print(f"{page}: {len(shown)} configurations; {done.stdout}")
    return len(shown) == 1 and done.returncode == 0


def main():
    write = sys.argv[1:] == ["--write"]
    of_commands = {f"zctl-{name}.1": (name, what) for name, what in commands().items()}
    good = [compare(page, whole(page), write) for page in PAGES]
    good += [compare(page, of_command(*row), write) for page, row in of_commands.items()]
    there = sorted(os.path.basename(path) for path in glob.glob(os.path.join(MAN, "*.[158]")))
    for page in set(there) - set(PAGES) - set(of_commands):
        print(f"{page} is the page of no program and no command")
        good.append(False)
    good += [complete(page) for page in there if page in of_commands]
    good.append(installed(of_commands))
    good += [documented(page) for page in there]
    good += [configured(page) for page in ("zshardd.8", "zshardd.conf.5")]
    if shutil.which("man"):
        good.append(formatted(there))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
