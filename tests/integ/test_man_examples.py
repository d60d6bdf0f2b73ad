#!/usr/bin/env python3
"""test_man_examples.py [COMMAND...] - each example in the man pages of zctl works.

MODEL. Each line below EXAMPLES is run by bash, in the order of the page, with a daemon that has a durable job "demo" with a
commit and a snapshot "best". Every page begins with that state. PLACES stands for the paths, users and sizes of the
examples, which this machine does not have. STATUS has the exit statuses that are not 0. A page that needs more has a
`with` in WORLDS.
"""
import contextlib
import functools
import glob
import json
import os
import pwd
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

from harness import DEADLINE, Daemon, Failure, check, program, wait_until
from test_man import MAN, section

PAGES = ("--host-bytes", "64M", "--nvme-bytes", "512M", "--page-elems", "4096", "--ring-bytes", "64K")
TENSORS = {"embed.weight": [512, 256], "layers.0.weight": [512, 256], "layers.1.weight": [512, 256]}
# Findings about this machine are no failure of the example.
STATUS = {"zctl destroy demo": (8,), "zctl doctor": (0, 1)}
# As in the examples: what it is here.
PLACES = {"/backup": "{folder}/backup", "/models": "{folder}/models", "/mnt/nvme/zshard": "{folder}/drive",
          "/var/lib/prometheus/node-exporter": "{folder}", "~": "{folder}", "/var/lib/zshard": "{data}", "alice": "{user}",
          "set host 48G": "set host 48M", "--rate 200M": "--rate 1M"}


def safetensors(path):
    head, at = {}, 0
    for name, shape in TENSORS.items():
        size = 4 * shape[0] * shape[1]
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(at))


def examples(path):
    """The lines of a page's EXAMPLES."""
    with open(path, encoding="utf-8") as file:
        blocks = re.findall(r"^\.nf\n(.*?)^\.fi$", section(file.read(), "EXAMPLES"), re.MULTILINE | re.DOTALL)
    plain = [("\\-", "-"), ("\\(aq", "'"), ("\\e", "\\")]
    return [functools.reduce(lambda text, pair: text.replace(*pair), plain, line)
            for block in blocks for line in block.splitlines()]


class World:
    """A daemon with a saved job, and a folder with the files of the examples."""

    def __init__(self, daemon, folder):
        self.daemon, self.folder = daemon, folder
        for name in ("backup", "models/demo", "drive", ".local/share/bash-completion/completions"):
            os.makedirs(os.path.join(folder, name))
        safetensors(os.path.join(folder, "models", "demo", "model.safetensors"))
        files = {"ds_config.json": {"train_batch_size": 64, "zero_optimization": {"stage": 3}},
                 "node.json": {"host_bytes": "64G", "nvme_bytes": "1T", "drive_read": 6, "drive_write": 4, "mem_bw": 300,
                               "link": 50, "gpu_link": 450}}
        for name, what in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                json.dump(what, file)
        with open(os.path.join(folder, "zshardd.conf"), "w", encoding="utf-8") as file:
            file.write("host_bytes = 64M\n")

    def text(self, line):
        for name, place in PLACES.items():
            line = line.replace(name, place.format(folder=self.folder, data=self.daemon.data,
                                                   user=pwd.getpwuid(os.getuid()).pw_name))
        return line

    def run(self, line, statuses):
        env = self.daemon.env(PATH=os.path.dirname(program("zctl")) + ":" + os.environ["PATH"])
        done = subprocess.run(["bash", "-o", "pipefail", "-c", self.text(line)], env=env, cwd=self.folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=False)
        check(done.returncode in statuses, f"'{line}' ended with {done.returncode}, not {statuses}:\n"
                                           f"{done.stdout}{done.stderr}")

    def reset(self):
        """The state with which each page begins."""
        shutil.rmtree(os.path.join(self.folder, "backup"))
        os.makedirs(os.path.join(self.folder, "backup"))
        for job in self.daemon.zctl("jobs"):
            self.run(f"zctl destroy --force {job['name']}", (0,))
        self.run("zctl import demo /models/demo", (0,))
        self.run("zctl snapshot demo best", (0,))


@contextlib.contextmanager
def training(world):
    """A run that commits each second step of the job "demo", instead of the saved one."""
    world.run("zctl destroy --force demo", (0,))
    words = ["--job", "demo", "--keep", "--commit-every", "2", "--steps", "1000000", "--seed", "1", "--batch", "4",
             "--micro-batch", "4", "--seq", "16", "--layers", "2", "--heads", "2", "--width", "32",
             "--data", os.path.join(MAN, "zctl.1"), "--offload", "nvme"]
    with subprocess.Popen([program("zgpt"), *words], env=world.daemon.env(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as run:
        try:
            wait_until("a commit of the run", lambda: run.poll() is not None or
                       any(job["committed"] for job in world.daemon.zctl("jobs")), 60)
            check(run.poll() is None, f"the run ended with {run.returncode}")
            yield
        finally:
            run.kill()
    wait_until("the end of the run", lambda: not any(job["attached"] for job in world.daemon.zctl("jobs")), 60)


@contextlib.contextmanager
def stopped(world):
    """The daemon does not run."""
    check(world.daemon.stop() == 0, world.daemon.log())
    yield
    world.daemon.again()


@contextlib.contextmanager
def restarted(world):
    """A daemon that ends with 75 is started again, as a service manager does it."""
    ends = []

    def again():
        ends.append(world.daemon.process.wait(DEADLINE))
        if ends == [75]:
            world.daemon.again()

    manager = threading.Thread(target=again, daemon=True)
    manager.start()
    yield
    manager.join(DEADLINE)
    check(ends == [75], f"the daemon ended with {ends}:\n{world.daemon.log()}")


WORLDS = {"zctl snapshot demo --next --timeout 600 --retain 5": training, "zctl fsck --data /var/lib/zshard": stopped,
          "zctl restart --wait 900": restarted}


def page_works(world, name, path):
    lines = examples(path)
    check(any(re.search(rf"\bzctl\b.* {name}\b", line) for line in lines) or name == "zctl", "no example has the command")
    world.reset()
    for line in lines:
        statuses = STATUS.get(line, STATUS.get(" ".join(line.split()[:2]), (0,)))
        with WORLDS[line](world) if line in WORLDS else contextlib.nullcontext():
            world.run(line, statuses)


def main():
    paths = sorted(glob.glob(os.path.join(MAN, "zctl*.1")))
    pages = {re.sub(r"^zctl-?|[.]1$", "", os.path.basename(path)) or "zctl": path for path in paths}
    names = sys.argv[1:] or list(pages)
    failed = 0
    with Daemon(*PAGES) as daemon, tempfile.TemporaryDirectory() as folder:
        daemon.stop()  # as a service, which a manager would start again; none listens at that socket
        daemon.under = ("env", f"NOTIFY_SOCKET={daemon.folder}/notify")
        daemon.again()
        world = World(daemon, folder)
        for name in names:
            try:
                page_works(world, name, pages[name])
            except Failure as error:
                failed += 1
                print(f"FAIL  {os.path.basename(pages[name])}: {error}", flush=True)
    unused = [line for line in [*WORLDS, *STATUS] if not any(line in text for text in map(all_lines, pages.values()))]
    check(not unused, f"no page has {unused}")
    print(f"{len(names) - failed} passed, {failed} failed")
    return 1 if failed else 0


def all_lines(path):
    return "\n".join(examples(path))


if __name__ == "__main__":
    sys.exit(main())
