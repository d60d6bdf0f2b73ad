#!/usr/bin/env python3
"""test_reload.py - SIGHUP: a running daemon reads its configuration again.

    ZSHARD_BUILD=build tests/integ/test_reload.py [NAME...]
"""
import os
import re
import signal
import subprocess
import sys

from harness import Daemon, check, main, program, wait_until
from resume import PAGES, KeptRun, Reference

MIB = 1 << 20


class Configured(Daemon):
    """A daemon with a configuration file; `options` are its lines."""

    def __init__(self, *flags, **options):
        super().__init__("--config", "", *flags)
        self.path = os.path.join(self.folder, "zshardd.conf")
        self.flags = ("--config", self.path, *flags)
        self.options = {"log_level": "info"} | options
        self.write()

    def write(self, text=None, **options):
        """Writes the file, with these options changed; None removes one."""
        self.options = {k: v for k, v in (self.options | options).items() if v is not None}
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(text if text is not None else "".join(f"{k} = {v}\n" for k, v in self.options.items()))

    def reload(self, text=None, **options):
        """Writes the file and sends SIGHUP; the lines that the reload logged."""
        self.write(text, **options)
        before = len(self.log())
        self.process.send_signal(signal.SIGHUP)
        wait_until("the reload", lambda: re.search(r" reload(-failed)? .*\n", self.log()[before:]), 10)
        return self.log()[before:]

    def budget(self, tier="host"):
        return {row["name"]: row["target"] for row in self.zctl("tiers")}[tier]


def applied():
    """What can be changed is; what cannot waits for a restart, which brings it."""
    with Configured(host_bytes="64M", nvme_bytes="16M", jobs_max="8", io_depth="64") as d:
        said = d.reload(host_bytes="32M", jobs_max="1", io_depth="32", log_level="debug")
        check('reload-option option=host-bytes was="64M" now="32M"' in said, said)
        check('reload-option option=jobs-max was="8" now="1"' in said, said)
        check('reload-pending option=io-depth now="64" restart="32"' in said, said)
        check("applied=3 pending=1" in said, said)
        check(d.budget() == 32 * MIB, f"the budget is {d.budget()}")
        d.zctl("ping")
        check(" debug " in d.log(), "the level of the log did not change")
        said = d.reload()
        check("reload-option" not in said and "applied=0 pending=1" in said, f"nothing changed: {said}")
        said = d.reload(io_depth="64")
        check("applied=0 pending=0" in said, f"nothing waits any more: {said}")
        d.reload(io_depth="16")
        check(d.stop() == 0, "the stop")
        d.again()
        check("reload-pending" not in d.reload()[-400:], "the restart did not bring it")
        check(d.budget() == 32 * MIB, f"after the restart the budget is {d.budget()}")


def at_run_time():
    """What zctl has set stays until the file has another value. The command line takes precedence."""
    with Configured("--jobs-max", "7", host_bytes="64M", nvme_bytes="16M") as d:
        d.zctl("tier", "set", "host", "48M")
        d.zctl("quota", "set", "4711", "jobs=3")
        d.reload(jobs_max="5")
        check(d.budget() == 48 * MIB, f"a reload of the same value: {d.budget()}")
        check("option=jobs-max" not in d.log(), "the command line did not take precedence")
        d.reload(host_bytes="40M", quotas='"4712 host=1M"')
        check(d.budget() == 40 * MIB, f"a reload of another value: {d.budget()}")
        users = {row["uid"]: row for row in d.zctl("quota")}
        check(users[4712]["own"] and users[4712]["host_max"] == MIB, f"{users}")
        check(not users[4711]["own"], f"the limits of the file replace those of zctl: {users[4711]}")


def shown():
    """`zctl config show`: value, source, and what waits for a restart, for each option."""
    with Configured("--jobs-max", "7", host_bytes="64M", nvme_bytes="16M", io_depth="64") as d:
        rows = {row["option"]: row for row in d.zctl("config", "show")}
        check(set(rows) >= {"socket", "paths", "log_level", "user_gpu_bytes", "quotas"}, f"{list(rows)}")
        check(rows["socket"]["value"] == d.socket and rows["socket"]["source"] == "command line", f"{rows['socket']}")
        check((rows["jobs_max"]["value"], rows["jobs_max"]["source"]) == ("7", "command line"), f"{rows['jobs_max']}")
        check((rows["host_bytes"]["value"], rows["host_bytes"]["source"]) == ("64M", "file"), f"{rows['host_bytes']}")
        check((rows["timeout_ms"]["value"], rows["timeout_ms"]["source"]) == ("60000", "default"), f"{rows['timeout_ms']}")
        check(not any(row["pending"] for row in rows.values()), "something waits for a restart")
        d.zctl("tier", "set", "host", "48M")
        d.zctl("quota", "set", "4711", "jobs=3", "nvme=none")
        d.reload(io_depth="32", timeout_ms="70000")
        rows = {row["option"]: row for row in d.zctl("config", "show")}
        check((rows["host_bytes"]["value"], rows["host_bytes"]["source"]) == ("48M", "run time"), f"{rows['host_bytes']}")
        check((rows["quotas"]["value"], rows["quotas"]["source"]) == ("4711 nvme=none jobs=3", "run time"), f"{rows}")
        check((rows["timeout_ms"]["value"], rows["timeout_ms"]["source"]) == ("70000", "file"), f"{rows['timeout_ms']}")
        check([(o, row["value"], row["restart"]) for o, row in rows.items() if row["pending"]] ==
              [("io_depth", "64", "32")], f"{rows}")
        done = subprocess.run([program("zctl"), "config", "show"], env=d.env(), capture_output=True, text=True, check=True)
        check(re.search(r"^io_depth +64 +file +32$", done.stdout, re.M), done.stdout)
        d.reload(timeout_ms=None)
        rows = {row["option"]: row for row in d.zctl("config", "show")}
        check((rows["timeout_ms"]["value"], rows["timeout_ms"]["source"]) == ("60000", "default"), f"{rows['timeout_ms']}")


def level():
    """`zctl log-level` changes what is logged, until the file's value changes."""
    with Configured(host_bytes="64M", nvme_bytes="16M", log_level="warn") as d:
        check(d.zctl("log-level") == [{"level": "warn"}], f"{d.zctl('log-level')}")
        check(" info " not in d.log(), d.log())
        check(d.zctl("log-level", "debug") == [{"level": "debug"}], "set")
        check(f"info log-level was=warn now=debug by={os.geteuid()}" in d.log(), d.log())
        wait_until("a line of level debug", lambda: " debug " in d.log(), 10)
        row, = [r for r in d.zctl("config", "show") if r["option"] == "log_level"]
        check((row["value"], row["source"], row["pending"]) == ("debug", "run time", False), f"{row}")
        done = subprocess.run([program("zctl"), "log-level", "loud"], env=d.env(), capture_output=True, text=True, check=False)
        check(done.returncode == 2 and "error, warn, info or debug" in done.stderr, f"{done}")
        d.reload(host_bytes="32M")
        check(d.zctl("log-level") == [{"level": "debug"}], "a reload of the same value")
        d.write(log_level="error")
        d.process.send_signal(signal.SIGHUP)
        wait_until("the level of the file", lambda: d.zctl("log-level") == [{"level": "error"}], 10)


def bad():
    """A file with a mistake changes nothing, and the log has file and line."""
    with Configured(host_bytes="64M", nvme_bytes="16M") as d:
        for text, why in (("host_bytes = 32M\njobs_max = many\n", f"{d.path}:2: jobs_max"),
                          ("host_bytes = 32M\n\nhost_byte = 1\n", f"{d.path}:3: unknown option"),
                          ("host_bytes = 32M\nquotas = \"nobody-like-this host=1M\"\n", f"{d.path}:2: quotas")):
            said = d.reload(text)
            check("error reload-failed" in said and why in said, said)
            check("reload-option" not in said and d.budget() == 64 * MIB, f"something changed: {said}")
        os.unlink(d.path)
        before = len(d.log())
        d.process.send_signal(signal.SIGHUP)
        wait_until("the reload", lambda: "reload-failed" in d.log()[before:], 10)
        check("applied=1" in d.reload(host_bytes="32M"), "a good file after bad ones")
        d.write("jobs_max = many\n")
        done = subprocess.run([program("zshardd"), "--config", d.path, "--check-config"], capture_output=True,
                              text=True, check=False)
        check(done.returncode == 2, f"systemctl reload checks first: {done}")


def refused():
    """A value that cannot be applied now leaves the one in effect, and is tried again at the next reload."""
    with Configured(host_bytes="64M", nvme_bytes="64M", page_elems="4096") as d, KeptRun(6, ranks=1) as kept:
        kept.good(d, resume=False)
        said = d.reload(host_bytes="1M", gpu_bytes="64M")
        check("warn reload-refused option=gpu-bytes" in said and "without a GPU tier" in said, said)
        said = d.reload(host_bytes="auto")
        check("reload-refused option=host-bytes" in said and "when the daemon starts" in said, said)


def gpus():
    """Budgets of GPUs: a size for each. What zctl tier set changes is shown, and lost at a reload that changes the list."""
    size = {"host_bytes": "64M", "nvme_bytes": "16M"}
    with Configured(**size, gpus='"emulated*3:32M:::4K"', gpu_bytes='{"16M", "8M", "12M"}') as d:
        def budgets():
            return [d.budget(f"gpu{i}") // MIB for i in range(3)]

        def shown():
            row = next(row for row in d.zctl("config", "show") if row["option"] == "gpu_bytes")
            return row["value"], row["source"]

        check(budgets() == [16, 8, 12] and shown() == ("16M,8M,12M", "file"), f"{budgets()} {shown()}")
        said = d.reload(gpu_bytes='"8M,16M,12288K"')
        check('reload-option option=gpu-bytes was="16M,8M,12M" now="8M,16M,12M"' in said, said)
        check(budgets() == [8, 16, 12], f"{budgets()}")
        d.zctl("tier", "set", "gpu1", "10M")
        check(budgets() == [8, 10, 12] and shown() == ("8M,10M,12M", "run time"), f"{budgets()} {shown()}")
        said = d.reload(gpu_bytes='"8M,16M"')
        check("reload-failed" in said and "gpu_bytes has 2 sizes, and there are 3 GPUs" in said, said)
        check(budgets() == [8, 10, 12], f"{budgets()}")
        said = d.reload(gpu_bytes='"12M,1M,16M"')
        check("reload-refused option=gpu-bytes" in said and budgets() == [8, 10, 12], said)
        said = d.reload(gpu_bytes="8M")
        check("reload-option option=gpu-bytes" in said and budgets() == [8, 8, 8], said)
        check(shown() == ("8M", "file"), f"{shown()}")


def training():
    """Clients stay connected, and train on with the same bits."""
    with Configured(*PAGES[:2], host_bytes="64M", nvme_bytes="64M") as d, KeptRun(60, ranks=2) as kept:
        reference = Reference(kept)
        process = kept.start(d, resume=False)
        for turn in range(6):
            kept.wait_for_lines(5 + 7 * turn, process)
            check(process.poll() is None, f"the run ended: {kept.said()}")
            d.reload(host_bytes=("8M", "64M")[turn % 2], timeout_ms=str(50000 + turn), user_jobs_max=str(turn + 2))
        check(process.wait(300) == 0, kept.said())
        reference.check(kept, deaths=0)
        check("client-dropped" not in d.log(), d.log())


def administrators():
    """Groups and root's rights change for clients that are connected."""
    if os.geteuid() != 0:
        return
    with Configured(host_bytes="64M", nvme_bytes="16M") as d:
        d.zctl("tier", "set", "host", "48M")
        check("applied=1" in d.reload(root_is_admin="no"), d.log())
        done = subprocess.run([program("zctl"), "quota"], env=d.env(), capture_output=True, text=True, check=False)
        check(done.returncode == 0, f"{done}")
        check("applied=1" in d.reload(admin_group="adm"), d.log())
        check("reload-failed" in d.reload(admin_group="no-such-group"), d.log())


def without_a_file():
    """There is nothing to read again: SIGHUP ends it, as a terminal that closes does."""
    with Daemon("--host-bytes", "8M", "--nvme-bytes", "8M") as d:
        d.process.send_signal(signal.SIGHUP)
        check(d.process.wait(30) == 0, "SIGHUP")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (applied, at_run_time, shown, level, bad, refused, gpus, training, administrators, without_a_file)}))
