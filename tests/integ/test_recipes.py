#!/usr/bin/env python3
"""test_recipes.py - the files for Slurm and Kubernetes, with a real daemon. squeue, scontrol and logger are stand-ins that
write down how they were called; no cluster is needed. Users are made-up uids, so most of it needs root.

    test_recipes.py [TEST...]
"""

import os
import re
import subprocess
import sys

from harness import BUILD, check, main, program, skip, wait_until
from test_users import ALICE, BOB, GROUP, SHARED, Node

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SLURM = os.path.join(ROOT, "deploy/slurm")
KUBERNETES = os.path.join(ROOT, "deploy/kubernetes")
GIB = 1 << 30


class Cluster(Node):
    """A daemon for several users, and a PATH with stand-ins for Slurm's programs."""

    def __init__(self):
        super().__init__()
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        self.calls = os.path.join(self.folder, "calls")
        self.stand_in("squeue", 'echo "$SQUEUE"')
        self.stand_in("scontrol", "")
        self.stand_in("logger", "")

    def stand_in(self, name, does):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="ascii") as f:
            f.write(f'#!/bin/sh\necho "{name} $*" >>{self.calls}\n{does}\n')
        os.chmod(path, 0o755)

    def called(self):
        """What was called since the last call."""
        text = ""
        if os.path.exists(self.calls):
            with open(self.calls, encoding="utf-8") as f:
                text = f.read()
            os.unlink(self.calls)
        return text

    def script(self, name, **env):
        done = subprocess.run(["sh", os.path.join(SLURM, name)], text=True, capture_output=True, timeout=120, check=False,
                              env={"PATH": f"{self.bin}:{BUILD}/bin:/usr/bin:/bin", "ZSHARD_SOCKET": self.socket,
                                   "SLURMD_NODENAME": "node1", "SQUEUE": "", "ZSHARD_WAIT": "1", **env})
        return done.returncode, done.stdout, done.stderr

    def hold(self, uid, name, *more):
        """Makes kept jobs NAME-0 ... of this user."""
        done = subprocess.run([os.path.join(BUILD, "tests", "hold"), self.socket, name, "2", *more], check=False, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, user=uid, group=uid, extra_groups=[SHARED])
        check(done.returncode == 0, f"hold: {done.stderr}")

    def jobs(self):
        return sorted(f"{row['owner']}/{row['name']}" for row in self.zctl("jobs"))


def root_only():
    if os.getuid() != 0:
        skip("only root can be other users")


def syntax():
    """The scripts are POSIX sh, but for train.sbatch."""
    for name in os.listdir(SLURM):
        shell = "bash" if name.endswith(".sbatch") else "sh"
        done = subprocess.run([shell, "-n", os.path.join(SLURM, name)], text=True, capture_output=True, check=False)
        check(done.returncode == 0, f"{name}: {done.stderr}")


def prolog():
    """It waits for the daemon, and fails where there is none."""
    with Cluster() as d:
        check(d.script("zshard-prolog.sh") == (0, "", ""), "a healthy node")
        socket = d.socket
        d.socket = os.path.join(d.folder, "none")
        code, _, err = d.script("zshard-prolog.sh", ZSHARD_WAIT="0")
        check(code == 1 and "zshard: " in err and "none" in err, f"{code} {err!r}")
        d.socket = socket


LONG_NAME = "a-job-with-a-name-of-sixty-characters-which-is-allowed-here"


def epilog():
    """It frees what a killed user's job left, and nothing of anybody else, nor what can be resumed."""
    root_only()
    with Cluster() as d:
        d.hold(ALICE, "left", "2")
        d.hold(ALICE, LONG_NAME, "1")  # a table would cut it
        d.hold(BOB, "left", "1")
        with subprocess.Popen([os.path.join(BUILD, "tests", "hold"), d.socket, "running", "2"], stdin=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, user=ALICE, group=ALICE, extra_groups=[SHARED]) as running:
            subprocess.run([program("zctl"), "import", "saved", d.file], env=d.env(), check=True, timeout=60,
                           stdout=subprocess.DEVNULL, user=ALICE, group=ALICE, extra_groups=[SHARED])
            wait_until("a job that runs", lambda: f"{ALICE}/running" in d.jobs(), 20)
            everything = [f"{ALICE}/{LONG_NAME}-0", f"{ALICE}/left-0", f"{ALICE}/left-1", f"{ALICE}/running", f"{ALICE}/saved", f"{BOB}/left-0"]
            check(d.jobs() == everything, f"{d.jobs()}")
            mine = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(ALICE)}

            check(d.script("zshard-epilog.sh", SQUEUE="7\n8", **mine)[0] == 0, "another job of hers runs")
            check(d.jobs() == everything, f"{d.jobs()}")
            check(f"--user={ALICE} --nodelist=node1" in d.called(), "squeue was asked about her and this node")
            for bad in ("", "0; reboot", "alice"):
                check(d.script("zshard-epilog.sh", SLURM_JOB_ID="7", SLURM_JOB_UID=bad)[0] == 0, bad)
            d.stand_in("squeue", "exit 1")
            check(d.script("zshard-epilog.sh", **mine)[0] == 0, "squeue fails")
            check(d.jobs() == everything and "nothing is destroyed" in d.called(), f"{d.jobs()}")
            d.stand_in("squeue", 'echo "$SQUEUE"')

            check(d.script("zshard-epilog.sh", SQUEUE="7", **mine)[0] == 0, "the epilog failed")
            check(d.jobs() == [f"{ALICE}/running", f"{ALICE}/saved", f"{BOB}/left-0"], f"{d.jobs()}")
            said = d.called()
            check(said.count("destroyed job 'left-") == 2 and "saved'" not in said, said)
            check(f"destroyed job '{LONG_NAME}-0'" in said, said)
            running.stdin.close()
            running.wait(60)
        d.stop()
        check(d.script("zshard-epilog.sh", SQUEUE="", SLURM_JOB_ID="7", SLURM_JOB_UID=str(ALICE))[0] == 0, "no daemon")
        check("no daemon" in d.called(), "that is logged")


def health():
    """A node is drained with the reason, if the daemon is degraded or gone, and else left alone."""
    with Cluster() as d:
        check(d.script("zshard-health.sh")[0] == 0 and "scontrol" not in d.called(), "a healthy node is not drained")
        d.stop()
        d.script("zshard-health.sh")
        check(re.search(r"scontrol update nodename=node1 state=drain reason=zshard: .*no daemon", d.called()), "no daemon")


def kubernetes():
    """The configuration in the DaemonSet is valid, its memory limit follows the rule, and its probes work."""
    with open(os.path.join(KUBERNETES, "zshardd.yaml"), encoding="utf-8") as f:
        text = f.read()
    conf = "".join(line[4:] + "\n" for line in text.split("zshardd.conf: |\n")[1].split("---")[0].splitlines())
    with Cluster() as d:
        path = os.path.join(d.folder, "zshardd.conf")
        with open(path, "w", encoding="utf-8") as f:
            f.write(conf.replace("socket_group = zshard", f"socket_group = {GROUP}"))
        done = subprocess.run([program("zshardd"), "--config", path, "--check-config"], text=True, capture_output=True,
                              check=False, timeout=60)
        check(done.returncode == 0, done.stderr)
        host = int(re.search(r"host_bytes = (\d+)G", conf)[1]) * GIB
        limits = {int(n) * GIB for n in re.findall(r"memory: (\d+)Gi", text)}
        check(len(limits) == 1 and 0 <= limits.pop() - (host + max(host * 15 // 100, 128 << 20)) < GIB, "the memory limit")
        probes = re.findall(r'exec: \{command: \[(.*)\]\}', text)
        check(len(probes) == 3, f"{probes}")
        for probe in probes:
            words = re.findall(r'"([^"]*)"', probe)
            words = [program("zctl"), "--socket", d.socket, *words[3:]]
            check(subprocess.run(words, check=False, stdout=subprocess.DEVNULL, timeout=60).returncode == 0, f"{words}")
    yaml()


def yaml():
    """The files are YAML, where Python has a reader of it."""
    try:
        import yaml as reader
    except ImportError:
        return
    for name in os.listdir(KUBERNETES):
        with open(os.path.join(KUBERNETES, name), encoding="utf-8") as f:
            kinds = [document["kind"] for document in reader.safe_load_all(f)]
        check(kinds in (["ConfigMap", "DaemonSet"], ["Pod"]), f"{name}: {kinds}")


TESTS = {f.__name__: f for f in (syntax, prolog, epilog, health, kubernetes)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
