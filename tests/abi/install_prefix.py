#!/usr/bin/env python3
"""install_prefix.py - cmake --install --prefix P of everything: all of it is below P and says P, and its programs start
with nothing in the environment. Under DESTDIR with --prefix /usr the configuration file is in /etc."""
import os
import subprocess
import sys
import tempfile

BUILD = os.environ["ZSHARD_BUILD"]
WRONG = []


def check(what, text):
    if not what:
        WRONG.append(text)


def install(*args, env=None):
    done = subprocess.run(["cmake", "--install", BUILD, *args], env=os.environ | (env or {}), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"cmake --install {args}: {done.stdout}")
    return [line.split(": ", 1)[1] for line in done.stdout.splitlines()
            if line.startswith(("-- Installing: ", "-- Up-to-date: ", "-- Kept: "))]


def run(*words):
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "ZSHARD_SOCKET")}
    return subprocess.run(words, env=clean, text=True, capture_output=True, timeout=150, check=False)


def programs(bin_folder):
    for words in (["zctl", "version"], ["zgpt", "--version"], ["zshardd", "--version"]):
        done = run(os.path.join(bin_folder, words[0]), *words[1:])
        check(done.returncode == 0 and words[0] in done.stdout, f"{words}: {done}")
        path = run("readelf", "-d", os.path.join(bin_folder, words[0])).stdout
        check("RPATH" not in path and BUILD not in path, f"{words[0]} has the path of its build: {path}")


def pages(prefix):
    """A man page is installed only with the program that it is of: section 1 in bin/, 8 in bin/ or sbin/.
    zctl-jobs(1) is of zctl."""
    found = [f for _, _, names in os.walk(os.path.join(prefix, "share", "man")) for f in names]
    check("zctl.1" in found and "zshardd.8" in found, f"man pages: {found}")
    for page, section in (f.rsplit(".", 1) for f in found):
        name = "zctl" if page.startswith("zctl-") else page
        there = any(os.path.exists(os.path.join(prefix, folder, name)) for folder in ("bin", "sbin"))
        check(section == "5" or there, f"{page}({section}) is installed, and {name} is not")


def main():
    with tempfile.TemporaryDirectory() as folder:
        p = os.path.join(os.path.realpath(folder), "p")
        files = install("--prefix", p)
        check([f for f in files if not f.startswith(p + "/")] == [], f"outside of {p}: {files}")
        conf = os.path.join(p, "etc", "zshard", "zshardd.conf")
        check(os.path.exists(conf), f"no {conf}")
        unit = open(os.path.join(p, "lib", "systemd", "system", "zshardd.service"), encoding="utf-8").read()
        check(f"ExecStart={p}/bin/zshardd --config {conf}\n" in unit, unit)
        check(f" file:{p}/share/doc/" in unit and "@" not in unit.split("SystemCallFilter")[0], unit)
        programs(os.path.join(p, "bin"))
        pages(p)
        moved = os.path.join(os.path.realpath(folder), "moved")
        os.rename(p, moved)  # an installation that finds its library relative to itself can be moved
        programs(os.path.join(moved, "bin"))
        gpt = "--steps 1 --seed 1 --batch 1 --micro-batch 1 --seq 8 --layers 1 --heads 1 --width 8".split()
        done = run(os.path.join(moved, "bin", "zgpt"), *gpt)
        check(done.returncode == 4 and "--data" in done.stderr, f"no text is installed: {done}")
        with open(os.path.join(moved, "text"), "w", encoding="utf-8") as text:
            text.write("a text to train on. " * 8)
        done = run(os.path.join(moved, "bin", "zgpt"), *gpt, "--data", text.name)
        check(done.returncode == 0, f"{done}")
    with tempfile.TemporaryDirectory() as folder:
        files = install("--prefix", "/usr", env={"DESTDIR": folder})
        check([f for f in files if not f.startswith(folder + "/")] == [], f"outside of DESTDIR: {files}")
        conf = os.path.join(folder, "etc", "zshard", "zshardd.conf")
        check(os.path.exists(conf), f"no {conf}")
        check("\nsocket_group = zshard\n" in open(conf, encoding="utf-8").read(), "the group of the service")
        unit = open(os.path.join(folder, "usr/lib/systemd/system/zshardd.service"), encoding="utf-8").read()
        check("ExecStart=/usr/bin/zshardd --config /etc/zshard/zshardd.conf\n" in unit, unit)
        with open(conf, "w", encoding="utf-8") as own:
            own.write("# mine\n")
        install("--prefix", "/usr", env={"DESTDIR": folder})
        check(open(conf, encoding="utf-8").read() == "# mine\n", "the administrator's file was overwritten")
    for text in WRONG:
        print(text)
    return 1 if WRONG else 0


sys.exit(main())
