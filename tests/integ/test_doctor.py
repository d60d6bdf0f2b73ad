#!/usr/bin/env python3
"""test_doctor.py - zctl doctor: each fault of a machine is named by its check, with its fix, and a healthy machine has
none.

MODEL. A machine is a tree of files (/proc, /sys, /dev, /etc) in a temporary folder, which ZSHARD_DOCTOR_ROOT names.
What the kernel and libraries would answer is in its file `probes`. FAULTS changes a healthy machine, one change each.

    ZSHARD_BUILD=build tests/integ/test_doctor.py [NAME...]
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from harness import PATIENCE, SANITIZED, Daemon, check, main, program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ME = os.geteuid()
SHARD = ME or 990  # the daemon's user: not root, for whom every mode is right
ALICE = ME + 1000  # the session's
UNIT = "/usr/lib/systemd/system/zshardd.service"
DROP = "/etc/systemd/system/zshardd.service.d/gpu.conf"
CONF = "/etc/zshard/zshardd.conf"
DATA = "/mnt/nvme/zshard"
LIBS = "/usr/lib/x86_64-linux-gnu/"
GPU = "0 0 0 9.0 85899345920\n"
SMALL = ("--host-bytes", "64M", "--nvme-bytes", "8M", "--page-elems", "4096")


def unit():
    with open(os.path.join(ROOT, "deploy", "zshardd.service"), encoding="utf-8") as f:
        return f.read().replace("@ZSHARD_BINDIR@", "/usr/bin").replace("@ZSHARD_SYSCONFDIR@", "/etc")


class Machine:
    """A node with two GPUs, where the service is installed, and a user may use it."""

    def __init__(self, folder):
        self.root = folder
        self.conf = {"socket_group": "zshard", "data": f'"{DATA}"', "host_bytes": "64G", "nvme_bytes": "256G",
                     "gpu_bytes": "8G"}
        self.drop = ["PrivateDevices=no", "DeviceAllow=char-nvidia-uvm rw", f"ReadWritePaths={DATA}"]
        self.probes = {"config": "ok", "uring": "ok", "data": f"{1 << 40} direct", "build": "13.0",
                       "driver": LIBS + "libcuda.so.580.95.05", "plugin": "/usr/lib/zshard/zk_cuda.so",
                       "cublaslt": LIBS + "libcublasLt.so.13", "nccl": LIBS + "libnccl.so.2", "gpus": 2 * GPU}
        self.users = {"root": 0, "zshard": SHARD, "alice": ALICE}
        self.groups = {"zshard": (990, "alice"), "alice": (ALICE, "")}
        self.session = [ALICE, 990]
        self.mount = "259:6 / /mnt/nvme rw,noatime shared:1 - xfs /dev/nvme1n1p6"
        self.cpus, self.mems = "0-31", "0-1"
        self.env, self.words, self.user, self.open = {}, [], None, []
        self.put("/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  unlimited  unlimited  "
                 "bytes\nMax open files  1024  1048576  files\n")
        self.put("/proc/self/cgroup", "0::/user.slice\n")
        self.put("/sys/fs/cgroup/user.slice/memory.max", "max\n")
        self.put("/proc/meminfo", f"MemTotal: {512 << 20} kB\nMemAvailable: {400 << 20} kB\n"
                 f"CommitLimit: {100 << 20} kB\nCommitted_AS: {90 << 20} kB\n")
        self.put("/proc/sys/vm/overcommit_memory", "0\n")
        self.put("/proc/sys/vm/memfd_noexec", "0\n")
        self.put("/proc/sys/kernel/io_uring_disabled", "0\n")
        self.put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  "
                 "Release Build\nGCC version: 12.2.0\n")
        self.put("/sys/bus/pci/devices/0000:17:00.0/vendor", "0x10de\n")
        self.put("/sys/bus/pci/devices/0000:17:00.0/class", "0x030200\n")
        self.put("/sys/devices/system/node/has_memory", "0-1\n")
        self.put("/sys/devices/system/node/has_cpu", "0-1\n")
        self.put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        self.put("/sys/devices/nvme1n1/queue/rotational", "0\n")
        self.put("/sys/devices/nvme1n1/queue/scheduler", "[none] mq-deadline\n")
        self.put("/sys/devices/nvme1n1/nvme1n1p6/partition", "6\n")
        self.folder("/sys/dev/block")
        os.symlink("../../devices/nvme1n1/nvme1n1p6", self.path("/sys/dev/block/259:6"))
        for device in ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"):
            self.put("/dev/" + device, "")
            os.chmod(self.path("/dev/" + device), 0o666)
        self.folder(DATA, 0o700, SHARD)
        self.folder("/run/zshard")
        self.folder("/var/tmp", 0o1777)
        self.put(UNIT, unit())

    def path(self, name):
        return self.root + name

    def folder(self, name, mode=0o755, owner=ME):
        os.makedirs(self.path(name), exist_ok=True)
        os.chmod(self.path(name), mode)
        os.chown(self.path(name), owner, -1)

    def put(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def remove(self, name):
        os.remove(self.path(name))

    def process(self, pid, *words):
        self.put(f"/proc/{pid}/comm", "zshardd\n")
        self.put(f"/proc/{pid}/cmdline", "".join(w + "\0" for w in ("zshardd", *words)))

    def write(self):
        """The files that hold what the members say."""
        if self.conf is not None:
            self.put(CONF, "".join(f"{k} = {v}\n" for k, v in self.conf.items()))
        self.put(DROP, "[Service]\n" + "".join(line + "\n" for line in self.drop))
        self.put("/etc/passwd", "".join(f"{name}:x:{uid}:{uid}::/:/bin/sh\n" for name, uid in self.users.items()))
        self.put("/etc/group", "".join(f"{name}:x:{gid}:{who}\n" for name, (gid, who) in self.groups.items()))
        self.put("/proc/self/status", f"Name:\tzctl\nUid:\t{ALICE}\t{ALICE}\t{ALICE}\t{ALICE}\n"
                 f"Gid:\t{ALICE}\t{ALICE}\t{ALICE}\t{ALICE}\nGroups:\t{' '.join(map(str, self.session))} \n"
                 f"Cpus_allowed_list:\t{self.cpus}\nMems_allowed_list:\t{self.mems}\n")
        self.put("/proc/self/mountinfo", f"7 1 {self.mount} rw\n"
                 "1 0 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n"
                 "9 1 0:5 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.put("/probes", "".join(f'{k} = "{v}"\n' for k, v in self.probes.items()))

    def doctor(self):
        self.write()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ZSHARD_", "XDG_")) and k != "TMPDIR"}
        return doctor(*self.words, env=clean | {"ZSHARD_DOCTOR_ROOT": self.root} | self.env, user=self.user)


def doctor(*words, env=None, user=None):
    """A finished run with -o json: exit status, and the object."""
    done = subprocess.run([program("zctl"), "doctor", "-o", "json", *words], env=env, text=True, capture_output=True,
                          timeout=60, user=user, check=False)
    check(done.returncode in (0, 1) and done.stderr == "", f"{words}: {done}")
    answer = json.loads(done.stdout)
    check(list(answer) == ["schema", "ok", "failed", "advice", "checks"] and answer["schema"] == 2, f"{answer}")
    for row in answer["checks"]:
        check(list(row) == ["name", "ok", "fix", "level", "found"], f"{row}")
        check(row["ok"] == (row["level"] != "failed"), f"{row}")
        check((row["fix"] != "") == (row["level"] in ("failed", "advice")), f"{row}")
        check(row["found"] != "", f"{row}")
    failed = sum(not row["ok"] for row in answer["checks"])
    check(answer["failed"] == failed and answer["ok"] == (failed == 0), f"{answer}")
    check(done.returncode == (1 if failed else 0), f"status {done.returncode}: {answer}")
    return done.returncode, answer


def bad(answer):
    return [row for row in answer["checks"] if row["level"] in ("failed", "advice")]


def stale(m):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(m.path("/run/zshard/zshard.sock"))


def hangs(m):
    """A daemon that accepts connections and never answers."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(m.path("/run/zshard/zshard.sock"))
    server.listen()
    m.open.append(server)


def data_file(m):
    m.conf["nvme_bytes"] = "1G"
    with open(m.path(DATA + "/pages.zsd"), "wb") as f:
        f.truncate(2 << 30)


def both(*steps):
    def change(m):
        for step in steps:
            step(m)
    return change


def conf(**values):
    return lambda m: m.conf.update(values)


def probe(**values):
    return lambda m: m.probes.update(values)


def put(name, text):
    return lambda m: m.put(name, text)


def drop(line):
    return lambda m: m.drop.append(line)


def mount(old, new):
    return lambda m: setattr(m, "mount", m.mount.replace(old, new))


def without(line):
    return lambda m: m.drop.remove(line)


def env(**values):
    return lambda m: m.env.update(values)


def member(**values):
    return lambda m: vars(m).update(values)


# (what, change, its check, level, part of what was found, part of the fix)
FAULTS = [
    ("a line that is none", put(CONF, "host_bytes 64G\n"), "config", "failed", "zshardd.conf:1: ", "Correct"),
    ("no such file", member(words=["--config", "/none"], conf=None), "config", "failed", "/none", "--config"),
    ("zshardd rejects it", probe(config="!zshardd.conf:3: io: is no word"), "config", "failed", ":3: io", "Correct"),
    ("no user zshard", lambda m: m.users.pop("zshard"), "user", "failed", "'zshard'", "systemd-sysusers"),
    ("a directory of another user", lambda m: m.users.update(zshard=SHARD + 77), "data-directory", "failed", DATA,
     f"chown zshard '{DATA}'"),
    ("others may write to it", lambda m: m.folder(DATA, 0o777, SHARD), "data-directory", "failed", "mode 0777",
     "chmod go-w"),
    ("its user may not write to it", lambda m: m.folder(DATA, 0o550, SHARD), "data-directory", "failed",
     "user 'zshard' may not write", "chown zshard"),
    ("its user may not make it", both(lambda m: m.folder("/srv", 0o555), conf(data='"/srv/zshard"'),
                                      drop("ReadWritePaths=/srv")), "data-directory", "failed", "may not make it",
     "install -d"),
    ("no directory above it", both(conf(data='"/mnt/nvme/a/b"'), drop("ReadWritePaths=/mnt/nvme")), "data-directory",
     "failed", "does not exist", "install -d -m 0700 -o zshard"),
    ("a file in its place", both(conf(data='"/mnt/nvme/file"'), drop("ReadWritePaths=/mnt/nvme"),
                                 put("/mnt/nvme/file", "")), "data-directory", "failed", "not a directory", "data ="),
    ("a path that is not whole", both(conf(data='"here"'), without(f"ReadWritePaths={DATA}"),
                                      drop("ReadWritePaths=here")), "data-directory", "failed", "relative",
     "full path"),
    ("a directory that the unit hides", without(f"ReadWritePaths={DATA}"), "unit-paths", "failed", DATA,
     f"ReadWritePaths={DATA}"),
    ("two directories that the unit hides", both(conf(paths='{"/mnt/nvme/b"}'), without(f"ReadWritePaths={DATA}"),
                                                 lambda m: m.folder("/mnt/nvme/b", 0o700, SHARD)), "unit-paths", "failed",
     DATA, f"ReadWritePaths={DATA} /mnt/nvme/b"),
    ("a drive that is not mounted", both(lambda m: m.folder("/srv", 0o555), conf(data='"/srv/zshard"'),
                                         drop("ReadWritePaths=/srv")), "data-directory", "failed", "may not make it",
     "If a drive belongs there, mount it first."),
    ("tmpfs", mount("xfs", "tmpfs"), "file-system", "failed", "tmpfs", "ext4 or xfs"),
    ("NFS", mount("xfs", "nfs4"), "file-system", "failed", "remote", "local drive"),
    ("overlay", mount("xfs", "overlay"), "file-system", "failed", "lost with its container", "Mount"),
    ("read-only", mount("rw,noatime", "ro,noatime"), "file-system", "failed", "read-only", "remount,rw '/mnt/nvme'"),
    ("btrfs", mount("xfs", "btrfs"), "file-system", "advice", "btrfs", "ext4 or xfs"),
    ("a full drive", probe(data=f"{10 << 30} direct"), "space", "failed", "256 GiB", "nvme_bytes"),
    ("two files on one drive", both(conf(paths='{"/mnt/nvme/b"}'), drop("ReadWritePaths=/mnt/nvme/b"),
                                    lambda m: m.folder("/mnt/nvme/b", 0o700, SHARD),
                                    probe(data=2 * f"{400 << 30} direct\n")), "space", "failed", "512 GiB", "paths"),
    ("a full drive, auto", both(conf(nvme_bytes="auto"), probe(data="4096 direct")), "space", "failed", "full",
     "another drive"),
    ("a larger data file", data_file, "data-file", "failed", "2.00 GiB", "never cut"),
    ("no O_DIRECT", probe(data=f"{1 << 40} buffered"), "o-direct", "advice", "O_DIRECT", "ext4"),
    ("a disk", put("/sys/devices/nvme1n1/queue/rotational", "1\n"), "drive", "advice", "rotating", "NVMe"),
    ("a scheduler", put("/sys/devices/nvme1n1/queue/scheduler", "none [mq-deadline]\n"), "scheduler", "advice",
     "nvme1n1", "echo none > /sys/block/nvme1n1/queue/scheduler"),
    ("too much host_bytes", conf(host_bytes="1T"), "memory", "failed", "512 GiB", "host_bytes"),
    ("more than is available", conf(host_bytes="450G"), "memory", "advice", "400 GiB", "host_bytes"),
    ("MemoryMax", drop("MemoryMax=32G"), "cgroup", "failed", "MemoryMax of the unit allows 32.0 GiB", "Raise"),
    ("MemoryMax, percent", drop("MemoryMax=10%"), "cgroup", "failed", "51.2 GiB", "Raise"),
    ("a cgroup", put("/sys/fs/cgroup/user.slice/memory.max", f"{16 << 30}\n"), "cgroup", "failed",
     "the memory cgroup allows 16.0 GiB", "Raise"),
    ("version 1", both(put("/proc/self/cgroup", "4:memory:/a\n"),
                       put("/cg/a/memory.limit_in_bytes", f"{8 << 30}\n"),
                       mount("259:6", "0:9 / /cg rw - cgroup cgroup rw,memory\n8 1 259:6")), "cgroup", "failed",
     "8.00 GiB", "Raise"),
    ("two daemons", lambda m: m.process(4242, "--host-bytes", "480G"), "budgets", "failed", "2 daemons promise 544 GiB",
     "host_bytes of its own"),
    ("auto twice", both(conf(host_bytes="auto"), lambda m: m.process(4242, "--socket=/tmp/s")), "budgets", "advice",
     "2 daemons have host_bytes = auto", "host_bytes of its own"),
    ("overcommit", put("/proc/sys/vm/overcommit_memory", "2\n"), "overcommit", "failed", "10.0 GiB",
     "vm.overcommit_memory=0"),
    ("no memfd", put("/proc/sys/vm/memfd_noexec", "2\n"), "memfd", "failed", "vm.memfd_noexec",
     "sysctl vm.memfd_noexec=1"),
    ("no huge pages", put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"), "huge-pages",
     "advice", "[never]", "echo madvise"),
    ("locked memory", drop("LimitMEMLOCK=8M"), "memlock", "advice", "the GPU should be pinned",
     "LimitMEMLOCK=infinity"),
    ("locked memory, no GPU", both(conf(gpu_bytes="0"), drop("LimitMEMLOCK=8M")), "memlock", "advice", "io_uring",
     "LimitMEMLOCK=infinity"),
    ("locked memory of a session", both(
        lambda m: m.remove(UNIT), put("/proc/self/limits", "Max locked memory  8 8 bytes\n"), conf(gpu_bytes="0"),
        lambda m: (m.conf.pop("data"), m.conf.pop("socket_group"))), "memlock", "advice", "this session may lock 8 B",
     "limits.conf"),
    ("few files", drop("LimitNOFILE=1024"), "nofile", "advice", "1024", "LimitNOFILE"),
    ("no files", drop("LimitNOFILE=1:32"), "nofile", "failed", "32 files", "LimitNOFILE"),
    ("io_uring off", put("/proc/sys/kernel/io_uring_disabled", "2\n"), "io-uring", "advice", "io_uring_disabled is 2",
     "sysctl kernel.io_uring_disabled=0"),
    ("io_uring for a group", put("/proc/sys/kernel/io_uring_disabled", "1\n"), "io-uring", "advice", "io_uring_group",
     "sysctl kernel.io_uring_disabled=0"),
    ("io_uring forbidden", both(conf(io="uring"), probe(uring="!Operation not permitted")), "io-uring", "failed",
     "Operation not permitted", "seccomp"),
    ("no such node", conf(numa='"0-3"'), "numa", "failed", "node 2 has no memory", "numa"),
    ("a node of another set", both(conf(numa='"0-1"'), member(mems="0")), "numa", "failed", "does not allow node 1",
     "numa"),
    ("a node without memory", both(put("/sys/devices/system/node/has_memory", "0\n"), member(mems="0")), "numa",
     "advice", "node 1 has CPUs and no memory", "memory modules"),
    ("a node that is not allowed", member(mems="0"), "numa", "advice", "memory of node 1", "cpuset.mems"),
    ("no such CPU", conf(cpus='"0-63"'), "cpus", "failed", "CPU 32", "cpus"),
    ("no driver", lambda m: m.remove("/proc/driver/nvidia/version"), "gpu-driver", "failed",
     "there is an NVIDIA GPU", "modprobe nvidia"),
    ("no GPU", both(lambda m: m.remove("/proc/driver/nvidia/version"),
                    lambda m: m.remove("/sys/bus/pci/devices/0000:17:00.0/vendor")), "gpu-driver", "failed",
     "gpu_bytes is set", "gpu_bytes = 0"),
    ("an old driver", both(put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64  570.10.01\n"),
                           probe(driver=LIBS + "libcuda.so.570.10.01")), "gpu-driver", "failed", "570.10.01",
     "Install driver 580"),
    ("a driver not loaded again", probe(driver=LIBS + "libcuda.so.590.1.2"), "gpu-library", "failed", "590.1.2",
     "Restart"),
    ("no libcuda", probe(driver="!libcuda.so.1: cannot open"), "gpu-library", "failed", "cannot open", "--gpus all"),
    ("no device", both(lambda m: m.remove("/dev/nvidia0"), lambda m: m.remove("/dev/nvidia1")), "gpu-devices", "failed",
     "/dev/nvidia0", "--gpus all"),
    ("a device of root", lambda m: os.chmod(m.path("/dev/nvidia1"), 0o600), "gpu-devices", "failed",
     "'alice' may not read and write /dev/nvidia1", "chmod 0666"),
    ("no uvm", lambda m: m.remove("/dev/nvidia-uvm"), "gpu-uvm", "failed", "missing", "nvidia-modprobe -u"),
    ("a unit that hides devices", without("PrivateDevices=no"), "gpu-unit", "failed", "PrivateDevices=yes",
     "systemctl edit"),
    ("a unit without devices", without("DeviceAllow=char-nvidia-uvm rw"), "gpu-unit", "failed", "DeviceAllow",
     "DeviceAllow="),
    ("exclusive", probe(gpus=GPU + "3" + GPU[1:]), "gpu-mode", "failed", "GPU 1", "nvidia-smi -c DEFAULT"),
    ("exclusive, no tier", both(conf(gpu_bytes="0"), probe(gpus="3" + GPU[1:])), "gpu-mode", "advice", "one rank",
     "nvidia-smi -c DEFAULT"),
    ("prohibited", probe(gpus="2" + GPU[1:]), "gpu-mode", "failed", "PROHIBITED", "nvidia-smi -c DEFAULT"),
    ("MIG without an instance", probe(gpus="0 1 0 9.0 85899345920"), "gpu-mig", "failed", "no instance",
     "nvidia-smi -i 0 -mig 0"),
    ("MIG", probe(gpus="0 1 7 9.0 85899345920"), "gpu-mig", "advice", "7 instances", "CUDA_VISIBLE_DEVICES"),
    ("an old GPU", probe(gpus="0 -1 0 7.0 34359738368"), "gpu-arch", "failed", "7.0", "8.0"),
    ("no such GPU", conf(gpu='"cuda:2"'), "gpu-budget", "failed", "before GPU 2", "gpu"),
    ("a small GPU", conf(gpu_bytes="96G"), "gpu-budget", "failed", "80.0 GiB", "gpu_bytes"),
    ("a small GPU of two", conf(gpu="all", gpu_bytes='{"40G", "96G"}'), "gpu-budget", "failed",
     "gpu_bytes is 96.0 GiB, and GPU 1 has 80.0 GiB", "gpu_bytes"),
    ("a list of another length", conf(gpu='{"0", "cuda:1"}', gpu_bytes='"1G,2G,3G"'), "gpu-budget", "failed",
     "gpu_bytes has 3 sizes", "gpu_bytes"),
    ("a build without CUDA", probe(build="none", plugin=""), "gpu-build", "failed", "without CUDA", "ZSHARD_CUDA=ON"),
    ("no plugin", probe(plugin="!no 'zk_cuda.so'"), "gpu-plugin", "failed", "zk_cuda.so", "ZSHARD_PLUGINS"),
    ("no cuBLASLt", probe(cublaslt="!libcublasLt.so.12: cannot open"), "cublaslt", "advice", "cannot open",
     "ZSHARD_CUBLASLT"),
    ("a wrong cuBLASLt", both(probe(cublaslt="!/x: cannot open"), env(ZSHARD_CUBLASLT="/x")), "cublaslt", "failed",
     "/x", "Set ZSHARD_CUBLASLT"),
    ("no NCCL", probe(nccl="!libnccl.so.2: cannot open"), "nccl", "advice", "cannot open", "ZSHARD_NCCL_LIB"),
    ("no socket_group", lambda m: m.conf.pop("socket_group"), "socket-group", "failed", "empty",
     "socket_group = zshard"),
    ("no such group", conf(socket_group="shards"), "socket-group", "failed", "'shards'", "Create the group 'shards'"),
    ("not a member", both(lambda m: m.groups.update(zshard=(990, "bob")), member(session=[ALICE])), "group-member",
     "failed", "'alice' is not in group", "usermod -aG zshard alice"),
    ("an old session", member(session=[ALICE]), "group-session", "failed", "began before", "Log in again"),
    ("a daemon that hangs", hangs, "socket", "failed", "/run/zshard/zshard.sock' does not", "journalctl"),
    ("a dead socket", stale, "socket-stale", "advice", "/run/zshard/zshard.sock", "journalctl"),
    ("a dead socket in a folder of others", both(stale, lambda m: m.remove(UNIT), conf(data='"/var/tmp/mine"'),
                                                 lambda m: m.conf.pop("socket_group")), "socket-stale", "failed",
     "'alice' may not replace it", "rm '/run/zshard/zshard.sock'"),
    ("a socket elsewhere", conf(socket='"/run/other"'), "socket", "failed", "/run/other", "ZSHARD_SOCKET=/run/other"),
    ("a long path", env(ZSHARD_SOCKET="/" + 107 * "s"), "socket", "failed", "107", "shorter"),
]


def machine(change=None):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # 50 small files for each machine
    folder = tempfile.mkdtemp(prefix="zshard-doctor-", dir=memory)
    try:
        m = Machine(folder)
        if change:
            change(m)
        if change and os.path.exists(m.path(CONF)):  # a change that wrote the file itself
            m.conf = None
        return m.doctor()
    finally:
        shutil.rmtree(folder)


def healthy():
    """No finding, and every check applies but those that need a second daemon or another setting."""
    status, answer = machine()
    check(status == 0 and bad(answer) == [], f"{bad(answer)}")
    skipped = {row["name"] for row in answer["checks"] if row["level"] == "skipped"}
    check(skipped == {"cpus", "version"}, f"{skipped}")


def no_gpu():
    """A machine without a GPU, and without the service: nothing of a GPU is asked."""
    def change(m):
        m.remove("/proc/driver/nvidia/version")
        m.remove("/sys/bus/pci/devices/0000:17:00.0/vendor")
        m.remove(UNIT)
        m.put(CONF, "host_bytes = 64G\ndata = \"/tmp/mine\"\n")
        m.folder("/tmp", 0o1777)
        m.probes.update(build="none", plugin="", cublaslt="!", nccl="!", gpus="")
    status, answer = machine(change)
    check(status == 0 and bad(answer) == [], f"{bad(answer)}")
    gpu = [row["level"] for row in answer["checks"] if row["name"].startswith("gpu-") or
           row["name"] in ("nccl", "cublaslt", "user", "unit-paths")]
    check(len(gpu) == 15 and set(gpu) == {"skipped"}, f"{answer}")


def faults():
    for what, change, name, level, found, fix in FAULTS:
        status, answer = machine(change)
        rows = bad(answer)
        check([row["name"] for row in rows] == [name], f"{what}: wanted {name}: {rows}")
        row = rows[0]
        check(row["level"] == level and status == (1 if level == "failed" else 0), f"{what}: {status}, {row}")
        check(found in row["found"], f"{what}: '{found}' is not in what was found: {row}")
        check(fix in row["fix"], f"{what}: '{fix}' is not in the fix: {row}")
    every = {row["name"] for row in machine()[1]["checks"]}
    missing = every - {fault[2] for fault in FAULTS} - {"version"}  # with_a_daemon() has that one
    check(not missing, f"no fault is seeded for {missing}")


class Relay:
    """A socket in front of a daemon's that changes the bytes of its replies."""

    def __init__(self, path, daemon, old, new):
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(path)
        self.server.listen()
        self.daemon, self.old, self.new = daemon, old, new
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.server.accept()
            up = socket.socket(socket.AF_UNIX)
            up.connect(self.daemon)
            for a, b, change in ((client, up, False), (up, client, True)):
                threading.Thread(target=self.copy, args=(a, b, change), daemon=True).start()

    def copy(self, a, b, change):
        try:
            while part := a.recv(65536):
                b.sendall(part.replace(self.old, self.new) if change else part)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def with_a_daemon():
    """One that answers is used: its budget, its version, and where it answers."""
    here = "/run/zshard/zshard.sock"
    with Daemon(*SMALL) as d:
        def link(name=here):
            return lambda m: (m.folder(os.path.dirname(name)), os.symlink(d.socket, m.path(name)))
        _, answer = machine(link())
        check(bad(answer) == [], f"{bad(answer)}")
        rows = {row["name"]: row for row in answer["checks"]}
        check(here in rows["socket"]["found"] and rows["version"]["level"] == "ok", f"{rows}")
        check("64.0 MiB" in rows["memory"]["found"] and "64.0 MiB" in rows["budgets"]["found"], f"{rows}")
        relay = lambda m: Relay(m.path(here), d.socket, b"zshardd 0.1.0", b"zshardd 0.0.9")
        for change, name, level, found, fix in (
                (both(link(), env(ZSHARD_SOCKET="/run/other")), "socket", "failed", "/run/other",
                 "Unset ZSHARD_SOCKET"),
                (both(link(), env(ZSHARD_SOCKET=here)), None, None, None, None),
                (both(link(), link("/run/user/1/zshard.sock"), env(XDG_RUNTIME_DIR="/run/user/1")), "socket", "advice",
                 "/run/user/1", "End one"),
                (relay, "version", "advice", "0.0.9", "Restart the daemon")):
            _, answer = machine(change)
            rows = bad(answer)
            check([row["name"] for row in rows] == ([name] if name else []), f"wanted {name}: {rows}")
            if name:
                check(rows[0]["level"] == level and found in rows[0]["found"] and fix in rows[0]["fix"], f"{rows}")


def denied():
    """A daemon that does not serve this user: the checks of its groups say what to do."""
    with Daemon(*SMALL) as d:
        os.chmod(d.folder, 0o755)
        os.chmod(d.socket, 0)

        def change(m):
            os.chmod(m.root, 0o755)
            os.symlink(d.socket, m.path("/run/zshard/zshard.sock"))
            m.user = 65534 if ME == 0 else None  # root may connect in any case
        try:
            status, answer = machine(change)
        except PermissionError:
            print("      denied: the user nobody cannot run programs of this build")
            return
    check(status == 1 and [row["name"] for row in bad(answer)] == ["socket"], f"{bad(answer)}")
    check("not allowed to connect" in bad(answer)[0]["found"] and "socket_group" in bad(answer)[0]["fix"], f"{answer}")


def on_this_machine():
    """Whatever is wrong here: it ends in time, and prints a table that fits a terminal. The daemon's own check of a
    configuration is asked."""
    begin = time.monotonic()
    _, answer = doctor()
    seconds = time.monotonic() - begin
    check(seconds < 2 * PATIENCE * (5 if SANITIZED else 1), f"it took {seconds:.1f} s")
    done = subprocess.run([program("zctl"), "doctor"], text=True, capture_output=True, timeout=60, check=False)
    check(done.returncode == (0 if answer["ok"] else 1) and done.stderr == "", f"{done}")
    lines = done.stdout.splitlines()
    check(lines[0].split() == ["CHECK", "RESULT", "FOUND"] and max(map(len, lines)) <= 100, done.stdout)
    for row in bad(answer):
        check(f"\n{row['name']} ({row['level']})\n    {row['fix'].split()[0]}" in done.stdout, done.stdout)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "conf")
        for text, ok in (("io = threads\n", True), ("log_level = loud\n", False)):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            row = doctor("--config", path, "--data", folder)[1]["checks"][0]
            check(row["name"] == "config" and row["ok"] == ok and (ok or "conf:1: log_level" in row["found"]), f"{row}")
        # What a GPU needs is looked for, also where there is none. A library that does not load in time is left behind.
        with open(path, "w", encoding="utf-8") as f:
            f.write("gpu_bytes = 1G\n")
        fifo = os.path.join(folder, "fifo")
        os.mkfifo(fifo)
        begin = time.monotonic()
        _, answer = doctor("--config", path, env=os.environ | {"ZSHARD_NCCL_LIB": fifo})
        seconds = time.monotonic() - begin
        check(1 < seconds < 4 * PATIENCE * (5 if SANITIZED else 1), f"it took {seconds:.1f} s")
        nccl = [row for row in answer["checks"] if row["name"] == "nccl"]
        check(nccl[0]["level"] == "skipped" and "could not be tried" in nccl[0]["found"], f"{nccl}")
    _, answer = doctor("--config", os.path.join(ROOT, "deploy", "zshardd.conf"))
    check(answer["checks"][0]["ok"], f"{answer['checks'][0]}")


def skip():
    """--skip leaves a check out, and must name one."""
    def change(m):
        m.put("/proc/sys/vm/memfd_noexec", "2\n")
        m.words = ["--skip", "memfd", "--skip", "numa"]
    status, answer = machine(change)
    names = [row["name"] for row in answer["checks"]]
    check(status == 0 and "memfd" not in names and "numa" not in names and "cpus" in names, f"{answer}")
    done = subprocess.run([program("zctl"), "doctor", "--skip", "none"], text=True, capture_output=True, timeout=60,
                          check=False)
    check(done.returncode == 2 and "unknown check" in done.stderr, f"{done}")


TESTS = {f.__name__: f for f in (healthy, no_gpu, faults, with_a_daemon, denied, on_this_machine, skip)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
