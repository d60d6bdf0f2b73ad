"""nodes.py - two nodes on one machine, as far as a network can tell.

Each is a network namespace, named by this process, and programs run in it under a host name of its
own. A pair of virtual Ethernet devices is the link between them, the only way from one to the other,
and the kernel counts its bytes. Open MPI sees two hosts; where it would call ssh, it calls a script
that enters the other node. Files are shared, so Unix sockets of both are reached from everywhere.

It needs root, iproute2, and a kernel or container that lets root make namespaces: else `with` raises
NoNodes with a message. At the end everything that was made is removed, and processes inside it end.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile

from harness import MPIRUN

LINK = "wire"  # both ends have this name
ADDRESSES = ["192.0.2.1", "192.0.2.2"]  # reserved for documentation
ENTER = 'hostname "$0" && '


class NoNodes(Exception):
    """There can be no nodes here, and this is why."""


def ip(*words):
    done = subprocess.run(["ip", *words], text=True, capture_output=True, timeout=30, check=False)
    if done.returncode != 0:
        raise NoNodes(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Nodes:
    """`with Nodes() as nodes:`"""

    def __init__(self):
        self.names = [f"zn{os.getpid()}{letter}" for letter in "ab"]
        self.folder = ""

    def enter(self, node, shell='exec "$@"'):
        """The words before a command that make it run on a node: no process is between."""
        name = self.names[node]
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", ENTER + shell, name]

    def mpirun(self, ranks, command):
        """mpirun on the first node, of ranks on both."""
        half = ranks // 2
        mca = {"plm_rsh_agent": f"sh {self.folder}/agent", "orte_tmpdir_base": self.folder,
               "btl": "tcp,self", "btl_tcp_if_include": LINK, "oob_tcp_if_include": LINK,
               "odls_base_sigkill_timeout": "0"}  # ranks that are told to end do not go on for seconds
        words = [word for key, value in mca.items() for word in ("--mca", key, value)]
        hosts = ",".join(f"{name}:{half}" for name in self.names)
        return [*self.enter(0), *MPIRUN, *words, "--host", hosts, "-n", str(ranks), *command]

    def link_bytes(self):
        """That went over the link, both ways, since it is there: with all headers."""
        counted = 0
        for name in self.names:
            link = json.loads(ip("-n", name, "-s", "-j", "link", "show", "dev", LINK))[0]
            counted += link["stats64"]["tx"]["bytes"]
        return counted

    def make(self):
        if os.geteuid() != 0:
            raise NoNodes("only root makes network namespaces")
        for tool in ("ip", "unshare", "hostname"):
            if not shutil.which(tool):
                raise NoNodes(f"there is no {tool}")
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.names[0], "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns",
           self.names[1])
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "addr", "add", address + "/30", "dev", LINK)
            ip("-n", name, "link", "set", LINK, "up")
        done = subprocess.run([*self.enter(1), "hostname"], text=True, capture_output=True, timeout=30,
                              check=False)
        if done.stdout.strip() != self.names[1]:
            raise NoNodes(f"a host name of its own: {done.stderr.strip()}")
        with open(os.path.join(self.folder, "agent"), "w", encoding="utf-8") as f:
            # Open MPI quotes for the shell that ssh would start
            f.write("name=$1\nshift\nexec ip netns exec \"$name\" unshare --uts "
                    f"sh -c '{ENTER}eval \"$*\"' \"$name\" \"$@\"\n")

    def __enter__(self):
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        self.folder = tempfile.mkdtemp(prefix="zshard-nodes-")
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            if not os.path.exists(f"/run/netns/{name}"):
                continue
            for pid in ip("netns", "pids", name).split():
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name)
        shutil.rmtree(self.folder, ignore_errors=True)
        return False
