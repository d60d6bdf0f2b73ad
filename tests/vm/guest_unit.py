#!/usr/bin/env python3
"""guest_unit.py - tests of the installed zshardd.service under systemd, in the machine of tests/vm/run.sh. Ends it."""
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
import traceback

CONF = "/etc/zshard/zshardd.conf"
DROPS = "/etc/systemd/system/zshardd.service.d"
EXAMPLE = "/usr/share/doc/zshard/examples/gpu.conf"
SOCKET = "/run/zshard/zshard.sock"
DATA = "/var/lib/zshard"
BUDGETS = {"host_bytes = auto": "host_bytes = 64M", "nvme_bytes = auto": "nvme_bytes = 128M",
           "page_elems = 262144": "page_elems = 4096"}
MODEL = ("--seed 5 --batch 2 --micro-batch 1 --seq 16 --layers 2 --heads 2 --width 32 --offload host --keep "
         "--data /usr/share/common-licenses/GPL-3").split()
SECONDS = 90  # for what must happen soon: the processor is emulated
SHIPPED = ""  # the installed configuration, with small budgets


def check(what, text):
    if not what:
        raise AssertionError(text)


def run(*words):
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False)


def good(*words):
    done = run(*words)
    check(done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stdout}")
    return done.stdout


def as_user(user, *words):
    return ("runuser", "-u", user, "--", *words)


def prop(name):
    return good("systemctl", "show", "zshardd", "-P", name).strip()


def main_pid():
    return int(prop("MainPID"))


def journal(since="@0"):
    return good("journalctl", "-u", "zshardd", "-o", "cat", "--since", since)


def wait_until(what, ready):
    end = time.monotonic() + SECONDS
    while not ready():
        check(time.monotonic() < end, f"not within {SECONDS} s: {what}\n{journal()[-3000:]}")
        time.sleep(0.1)


def answers():
    return prop("ActiveState") == "active" and run("zctl", "ping").returncode == 0


def configure(option=None, drop=None):
    """The shipped configuration with another line for one option, and a drop-in or none."""
    lines = SHIPPED.split("\n")
    if option:
        key = option.split(" ")[0] + " ="
        lines = [line for line in lines if not line.startswith(key)] + [option, ""]
    with open(CONF, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    os.makedirs(DROPS, exist_ok=True)
    for name in os.listdir(DROPS):
        os.unlink(os.path.join(DROPS, name))
    if drop:
        with open(os.path.join(DROPS, "test.conf"), "w", encoding="utf-8") as f:
            f.write(drop)
    good("systemctl", "daemon-reload")
    run("systemctl", "reset-failed", "zshardd")


def started(drop=None):
    run("systemctl", "stop", "zshardd")
    configure(None, drop)
    good("systemctl", "start", "zshardd")
    check(answers(), "systemctl start returned before the daemon was ready")


class Run:
    """A run of zgpt by alice."""

    def __init__(self, *flags):
        self.jsonl = f"/home/alice/{time.monotonic_ns()}.jsonl"
        self.log = open(self.jsonl + ".log", "w+", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            as_user("alice", "zgpt", *MODEL, "--steps", "1000000", "--jsonl", self.jsonl, *flags),
            stdout=self.log, stderr=self.log)

    def steps(self):
        try:
            with open(self.jsonl, encoding="utf-8") as f:
                return [json.loads(line)["step"] for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def goes_on(self, n=3):
        """Waits for n more steps."""
        have = len(self.steps())
        wait_until("steps", lambda: len(self.steps()) >= have + n or self.process.poll() is not None)
        self.log.seek(0)
        check(self.process.poll() is None, f"zgpt ended with {self.process.poll()}: {self.log.read()}")

    def end(self, number):
        good("pkill", f"-{number}", "-x", "-u", "alice", "zgpt")
        self.process.wait(SECONDS)


def job():
    rows = json.loads(good("zctl", "-o", "json", "jobs"))["rows"]
    return rows[0] if rows else None


# ---- the tests, in this order

def exposure():
    """systemd's own judgement of the sandbox: at most 0.8 of 10, with and without GPUs."""
    for drop in (None, EXAMPLE):
        configure(drop=drop and open(drop, encoding="utf-8").read())
        said = good("systemd-analyze", "verify", "--man=no", "zshardd.service")
        check("zshard" not in said, said)
        done = run("systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=8", "zshardd.service")
        print("   ", "gpu.conf:" if drop else "shipped:", done.stdout.strip().split("\n")[-1].strip())
        check(done.returncode == 0, done.stdout)


def start():
    begin = time.monotonic()
    started()
    said = journal()
    print(f"    ready in {time.monotonic() - begin:.1f} s")
    ready = [line for line in said.split("\n") if line.startswith("ready ")][-1]
    print("   ", ready)
    check(" io=uring " in ready and f"socket={SOCKET} data={DATA} " in ready, ready)
    for word in ("refused", "failed", "io-", "few-"):
        check(word not in said, said)
    check(prop("StatusText") == "" and prop("NRestarts") == "0", "it is not as after a first start")


def access():
    for user, status in (("root", 0), ("alice", 0), ("bob", 4)):
        done = run(*as_user(user, "zctl", "ping"))
        check(done.returncode == status, f"zctl ping as {user}: {done}")
    check("not allowed to connect" in done.stdout, f"{done}")
    for user in ("root", "alice"):
        good(*as_user(user, "zctl", "status"))
    done = run("zctl", "doctor")
    print("    zctl doctor as root:", done.returncode, [line for line in done.stdout.split("\n") if "fail" in line])


def permissions():
    for path, mode, owner in (("/run/zshard", 0o755, "zshard"), (SOCKET, 0o660, "zshard"), (DATA, 0o700, "zshard")):
        s = os.stat(path)
        have = (oct(stat.S_IMODE(s.st_mode)), pwd.getpwuid(s.st_uid).pw_name)
        check(have == (oct(mode), owner), f"{path}: {have}")
    for name in os.listdir(DATA):
        s = os.lstat(os.path.join(DATA, name))
        check(name == "lost+found" or s.st_mode & 0o077 == 0, f"{name}: {oct(s.st_mode)}")


def limits():
    pid = main_pid()
    with open(f"/proc/{pid}/limits", encoding="utf-8") as f:
        have = {line[:25].strip(): line[25:].split()[0] for line in f}
    want = {"Max core file size": "0", "Max locked memory": "unlimited", "Max open files": "65536"}
    check(want.items() <= have.items(), f"{have}")
    with open(f"/proc/{pid}/oom_score_adj", encoding="utf-8") as f:
        check(f.read() == "-500\n", "oom_score_adj")
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
    for key, value in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapBnd", "0" * 16), ("CapEff", "0" * 16)):
        check(status[key] == value, f"{key}: {status[key]}")
    group = "/sys/fs/cgroup" + prop("ControlGroup")
    marks = os.listxattr(group)
    check(any(mark.endswith(".oomd_omit") for mark in marks), f"systemd-oomd would kill it: {marks}")
    networks = good("nsenter", "-t", str(pid), "-n", "cat", "/proc/net/dev").strip().split("\n")[2:]
    check(len(networks) == 1 and "lo:" in networks[0], f"{networks}")


def hangup():
    """`systemctl reload` makes the same process read its configuration again. A file with a mistake fails it."""
    pid = main_pid()
    good("systemctl", "reload", "zshardd")
    wait_until("the reload", lambda: " reload file=" in journal())
    with open(CONF, encoding="utf-8") as file:
        text = file.read()
    with open(CONF, "a", encoding="utf-8") as file:
        file.write("no_such_option = 1\n")
    done = run("systemctl", "reload", "zshardd")
    with open(CONF, "w", encoding="utf-8") as file:
        file.write(text)
    check(done.returncode != 0, f"a wrong file was applied: {journal()[-2000:]}")
    check(main_pid() == pid and prop("ActiveState") == "active", f"{prop('ActiveState')}, process {main_pid()}, not {pid}")


def dirty_stop():
    """A stop commits the steps that are only in memory. It removes /run/zshard."""
    started()
    kept = Run("--job", "kept", "--commit-every", "100000")
    kept.goes_on(5)
    kept.end(signal.SIGKILL)
    wait_until("the rank is gone", lambda: job()["attached"] == 0)
    before = job()
    check(before["iterations"] > before["committed_iterations"], f"it is not dirty: {before}")
    good("systemctl", "stop", "zshardd")
    check((prop("Result"), prop("ExecMainStatus")) == ("success", "0"), journal()[-2000:])
    check(not os.path.exists("/run/zshard"), "/run/zshard is still there")
    good("systemctl", "start", "zshardd")
    after = job()
    print(f"    {before['iterations']} steps, {before['committed_iterations']} of them committed before the stop; "
          f"{after['iterations']} after it")
    check(after["iterations"] == after["committed_iterations"] == before["iterations"], f"{before}\n{after}")
    good("zctl", "destroy", "--force", "kept")


def restart():
    """A run goes on over a restart and over a kill, and containers keep /run/zshard."""
    started()
    inode = os.stat("/run/zshard").st_ino
    kept = Run("--job", "restarted", "--commit-every", "5")
    kept.goes_on()
    for how in (("systemctl", "restart", "zshardd"), ("systemctl", "kill", "-s", "KILL", "zshardd")):
        pid, begin = main_pid(), time.monotonic()
        good(*how)
        wait_until("another process answers", lambda p=pid: main_pid() not in (0, p) and answers())
        print(f"    {how[1]}: answers after {time.monotonic() - begin:.1f} s, {prop('NRestarts')} automatic restarts")
        check(os.stat("/run/zshard").st_ino == inode, f"{how}: another /run/zshard")
        kept.goes_on(7)
    check(prop("NRestarts") == "1", "the kill was one automatic restart")
    steps = kept.steps()
    check(set(steps) == set(range(1, max(steps) + 1)), f"{steps}")
    kept.end(signal.SIGTERM)
    good("zctl", "destroy", "--force", "restarted")


def watchdog():
    """A busy daemon is left alone; one that hangs is ended, without a core, and restarted."""
    started("[Service]\nWatchdogSec=5\n")
    pid = main_pid()
    kept = Run("--job", "watched")
    until = time.monotonic() + 15
    while time.monotonic() < until:
        kept.goes_on(1)
    check(main_pid() == pid and prop("NRestarts") == "0", "it was restarted though it did not hang")
    kept.end(signal.SIGKILL)
    begin = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    wait_until("a restart", lambda: main_pid() not in (0, pid) and answers())
    said = journal()
    check("Watchdog timeout" in said and "status=6/ABRT" in said, said[-2000:])
    print(f"    a stopped process was replaced after {time.monotonic() - begin:.1f} s")


def no_restart():
    """An exit status that a restart would not change."""
    os.makedirs("/srv/others", exist_ok=True)
    good("chown", "bob", "/srv/others")
    rows = ((2, "nonsense = 1", None), (2, "io_depth = lots", None), (4, "gpu_bytes = 64M", None),
            (5, 'data = "/srv/others"', "[Service]\nReadWritePaths=/srv/others\n"))
    run("systemctl", "stop", "zshardd")
    for status, option, drop in rows:
        configure(option, drop)
        fails_once(status)
    configure()
    other = subprocess.Popen(as_user("zshard", "zshardd", "--data", DATA, "--socket", "/tmp/other.sock",
                                     "--host-bytes", "64M", "--page-elems", "4096"), stdout=subprocess.PIPE, text=True)
    check(other.stdout.readline().startswith("ready "), "the other daemon is not ready")
    fails_once(3)
    good("pkill", "-TERM", "-x", "-u", "zshard", "zshardd")
    other.wait(SECONDS)


def fails_once(status):
    """The start fails with this exit status, and is not tried again."""
    done = run("systemctl", "start", "zshardd")
    check(done.returncode != 0, f"it has started, where status {status} was expected")
    time.sleep(4)  # RestartSec is 2
    have = (prop("ActiveState"), prop("ExecMainStatus"), prop("NRestarts"))
    check(have == ("failed", str(status), "0"), f"{have}: {journal()[-1500:]}")


def gpu_drop():
    """The drop-in for GPUs starts on a machine without any. With another driver in the place of NVIDIA's, which is not
    loaded yet, either: the service may open that device, and no other."""
    with open(EXAMPLE, encoding="utf-8") as f:
        text = f.read()
    started(text)
    check(prop("PrivateDevices") == "no" and prop("DevicePolicy") == "closed", "the drop-in is not in use")
    run("systemctl", "stop", "zshardd")
    check(run("grep", "-w", "sg", "/proc/devices").returncode != 0, "the driver is loaded already")
    good("mknod", "/dev/zsg", "c", "21", "0")  # it is not allowed, or allowed but there is no such device
    text = text.replace("nvidia_uvm", "sg").replace("char-nvidia-uvm", "char-sg")
    since = f"@{time.time():.0f}"
    started(text + "".join(f"ExecStartPre=-+/bin/sh -c ': <{path}'\n" for path in ("/dev/zsg", "/dev/vda")))
    said = journal(since)
    check("/dev/zsg: No such device" in said and "/dev/vda: Operation not permitted" in said, said)
    good("systemctl", "stop", "zshardd")


TESTS = (exposure, start, access, permissions, limits, hangup, dirty_stop, restart, watchdog, no_restart, gpu_drop)


def prepare():
    global SHIPPED
    good("systemd-sysusers")
    os.makedirs(DATA, exist_ok=True)
    good("mount", "/dev/vdb", DATA)
    good("useradd", "-m", "-G", "zshard", "alice")
    good("useradd", "-m", "bob")
    with open(CONF, encoding="utf-8") as f:
        SHIPPED = f.read()
    for old, new in BUDGETS.items():
        check(old in SHIPPED, old)
        SHIPPED = SHIPPED.replace(old, new)


def main():
    with open("/proc/uptime", encoding="utf-8") as f:
        uptime = f.read().split()[0]
    print("\nvm: begin")
    print(f"vm: Linux {os.uname().release}, {good('systemctl', '--version').split(chr(10))[0]}, booted in {uptime} s")
    status = 0
    try:
        prepare()
        for test in TESTS:
            begin = time.monotonic()
            print(f"{test.__name__}:")
            try:
                test()
                print(f"    ok ({time.monotonic() - begin:.0f} s)")
            except Exception:  # the next tests are independent
                status = 1
                print(f"    FAILED\n{traceback.format_exc()}")
    except Exception:
        status = 1
        traceback.print_exc()
    print(f"vm: status {status}")
    sys.stdout.flush()
    subprocess.run(["systemctl", "poweroff", "-ff"], check=False)


if __name__ == "__main__":
    main()
