#!/usr/bin/env python3
"""test_users.py - several users of one daemon: names of jobs, limits, who may what. Users are made-up uids, so it needs root.

    test_users.py [TEST...]
"""

import json
import os
import pwd
import re
import struct
import subprocess
import sys

from harness import Daemon, check, main, program, skip

ALICE, BOB, CAROL = 61001, 61002, 61003
SHARED, ADMINS = 100, 4  # groups that every system has
GROUP, ADMIN_GROUP = "users", "adm"
MIB = 1 << 20
PERMISSIONS = os.path.join(os.path.dirname(__file__), "../../docs/reference/permissions.md")


class Node(Daemon):
    """A daemon that members of a group may connect to."""

    def __init__(self, *flags):
        super().__init__("--host-bytes", "64M", "--nvme-bytes", "96M", "--page-elems", "8192", "--ring-bytes", "1M",
                         "--socket-group", GROUP, *flags)
        os.chmod(self.folder, 0o755)
        os.chmod(os.path.dirname(self.folder), os.stat(os.path.dirname(self.folder)).st_mode | 0o1)
        self.file = os.path.join(self.folder, "model.safetensors")
        self.model(1)

    def model(self, mib):
        """Writes a model of so many MiB of fp32 parameters."""
        head = json.dumps({"w": {"dtype": "F32", "shape": [mib * MIB // 4], "data_offsets": [0, mib * MIB]}}).encode()
        with open(self.file, "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + bytes(mib * MIB))
        os.chmod(self.file, 0o644)

    def run(self, uid, *words, admin=False):
        """zctl as this user: exit status, output, error message."""
        done = subprocess.run([program("zctl"), *words], env=self.env(), text=True, capture_output=True, timeout=120,
                              stdin=subprocess.DEVNULL, check=False, user=uid, group=uid,
                              extra_groups=[SHARED] + [ADMINS] * admin, cwd="/")
        return done.returncode, done.stdout, done.stderr

    def done(self, uid, *words, admin=False):
        status, out, err = self.run(uid, *words, admin=admin)
        check(status == 0, f"zctl {words} as {uid} ended with {status}: {err}")
        return out

    def rows(self, uid, *words, admin=False, status=0):
        """The rows of a command; with status None, none where it fails."""
        if status is None and self.run(uid, *words, admin=admin)[0] != 0:
            return []
        return json.loads(self.done(uid, "-o", "json", *words, admin=admin))["rows"]

    def refused(self, uid, code, text, *words, admin=False):
        status, _, err = self.run(uid, *words, admin=admin)
        check(status == code and text in err, f"zctl {words} as {uid}: {status} {err!r}, not {code} {text!r}")
        return err

    def quota(self, uid):
        (row,) = [r for r in self.rows(0, "quota") if r["uid"] == uid]
        return row


def names():
    """Two users have a job of the same name, and an administrator names either of them."""
    with Node("--admin-group", ADMIN_GROUP) as d:
        for uid in (ALICE, BOB):
            d.done(uid, "import", "zgpt", d.file)
            d.refused(uid, 4, "exists already", "import", "zgpt", d.file)
        d.done(ALICE, "snapshot", "zgpt", "one")
        for uid in (ALICE, BOB):
            rows = d.rows(uid, "jobs", "zgpt")
            check([(r["name"], r["uid"]) for r in rows] == [("zgpt", uid)], f"jobs of {uid}: {rows}")
        check("OWNER" not in d.done(ALICE, "jobs"), "an owner sees a column of owners")
        table = d.done(CAROL, "jobs", admin=True).splitlines()
        check(table[0].split()[-1] == "OWNER" and str(BOB) in table[2], f"the administrator's table: {table}")
        check(len(d.rows(CAROL, "jobs")) == 0, "others see jobs")
        d.refused(CAROL, 4, "there is no job 'zgpt'", "snapshots", f"{ALICE}/zgpt")
        d.refused(BOB, 4, "there is no job 'zgpt'", "destroy", "--force", f"{ALICE}/zgpt")
        err = d.refused(CAROL, 2, "several users have a job 'zgpt'", "destroy", "--force", "zgpt", admin=True)
        check(f"{ALICE}/zgpt" in err and f"{BOB}/zgpt" in err, f"the owners are not listed: {err}")
        for words in (["snapshots"], ["ls"], ["jobs"]):
            for uid in (ALICE, BOB):
                found = d.rows(CAROL, *words, f"{uid}/zgpt", admin=True)
                check({r["uid"] for r in found} <= {uid}, f"{words} of {uid}: {found}")
        check({r["uid"] for r in d.rows(CAROL, "df", admin=True) if r["kind"] == "job"} == {ALICE, BOB}, "df")
        d.done(CAROL, "clone", f"{ALICE}/zgpt@one", "mine", admin=True)
        d.done(CAROL, "import", "zgpt", d.file)  # own job first
        check([r["uid"] for r in d.rows(CAROL, "jobs", "zgpt", admin=True)] == [CAROL], "own job first")
        d.done(CAROL, "destroy", "--force", f"{BOB}/zgpt", admin=True)
        check([r["name"] for r in d.rows(ALICE, "jobs")] == ["zgpt"], "the other's job is gone")
        d.stop()
        d.again()
        check([r["uid"] for r in d.rows(ALICE, "jobs", "zgpt")] == [ALICE], "after a restart")
        check([r["name"] for r in d.rows(ALICE, "snapshots", "zgpt")] == ["one"], "snapshots after a restart")
        check([r["uid"] for r in d.rows(CAROL, "jobs", "mine")] == [CAROL], "the clone after a restart")
        check(d.rows(0, "fsck")[0].get("problems_total", 0) == 0, "fsck")
        out = d.done(ALICE, "metrics")
        check(f'uid="{BOB}"' not in out, "metrics show another user")


def limits():
    """A limit refuses a job, a snapshot and a clone before anything is allocated; nothing is lost, also over a restart."""
    with Node("--user-nvme-bytes", "40M", "--quotas", f"{BOB} nvme=2M jobs=2") as d:
        check(d.quota(BOB)["nvme_max"] == 2 * MIB and d.quota(BOB)["own"], f"bob's limits: {d.quota(BOB)}")
        d.done(ALICE, "import", "a", d.file)
        held = d.quota(ALICE)["nvme_bytes"]
        check(0 < held < 40 * MIB and d.quota(ALICE)["nvme_max"] == 40 * MIB, f"alice holds {held}")
        err = d.refused(BOB, 4, f"user {BOB} holds 0 B of nvme", "import", "b", d.file)
        check("limit of 2.00 MiB" in err and "more" in err, f"the numbers: {err}")
        check(d.quota(BOB)["nvme_bytes"] == 0 and d.rows(BOB, "jobs") == [], "a refused job holds something")
        check([r["uid"] for r in d.rows(ALICE, "quota")] == [ALICE], "others than administrators see others")
        d.refused(ALICE, 4, "only an administrator", "quota", "set", str(ALICE), "nvme=none")
        # a clone shares its pages with its origin: they count once
        d.done(ALICE, "clone", "a", "twin")
        rows = {r["name"]: r for r in d.rows(ALICE, "df") if r["kind"] == "job"}
        shared = max(r["shared"] for r in rows.values())
        both = sum(r["nvme_bytes"] for r in d.rows(ALICE, "jobs"))
        check(shared > 0, f"the clone shares nothing: {rows}")
        check(d.quota(ALICE)["nvme_bytes"] == both - shared, f"{d.quota(ALICE)} is not {both} - {shared}")
        d.stop()
        d.again()
        both = sum(r["nvme_bytes"] for r in d.rows(ALICE, "jobs"))
        check(d.quota(ALICE)["nvme_bytes"] == both - shared, f"{d.quota(ALICE)} is not {both} - {shared} after a restart")
        d.done(ALICE, "destroy", "--force", "twin")
        held = d.quota(ALICE)["nvme_bytes"]
        check(held == d.rows(ALICE, "jobs", "a")[0]["nvme_bytes"], f"{held} is not what is left")
        # a snapshot needs room for one more version
        d.done(0, "quota", "set", str(ALICE), f"nvme={held}")
        err = d.refused(ALICE, 4, f"user {ALICE} holds", "snapshot", "a", "one")
        check(d.rows(ALICE, "snapshots") == [], f"a refused snapshot exists: {err}")
        d.refused(ALICE, 4, f"user {ALICE} holds", "clone", "a", "more")
        d.done(0, "quota", "set", str(ALICE), "nvme=none")
        d.done(ALICE, "snapshot", "a", "one")
        check(d.quota(ALICE)["nvme_bytes"] > held, "the snapshot does not count")
        # lower than what is held: nothing is lost, and after a restart nothing is, either
        d.done(0, "quota", "set", str(ALICE), "nvme=1M")
        check(d.rows(ALICE, "jobs", "a")[0]["committed"], "the commit is lost")
        d.stop()
        d.flags = [f if f != "40M" else "1M" for f in d.flags]
        d.again()
        check(d.rows(ALICE, "jobs", "a")[0]["committed"], "the commit is lost over a restart")
        d.refused(ALICE, 4, f"user {ALICE} holds", "import", "c", d.file)
        d.done(ALICE, "destroy", "--force", "a")
        check(d.quota(ALICE)["nvme_bytes"] == 0, f"{d.quota(ALICE)} after everything was destroyed")


def groups():
    """A limit of a group is one of each member, unless a user has one of its own."""
    gid = pwd.getpwuid(1).pw_gid
    with Node("--user-nvme-bytes", "40M", "--quotas", f"@{gid} nvme=1M") as d:
        d.refused(1, 4, "quotas: nvme", "import", "a", d.file)
        check(d.quota(1)["nvme_max"] == MIB and d.quota(1)["own"], f"{d.quota(1)}")
        d.done(ALICE, "import", "a", d.file)
        check(d.quota(ALICE)["nvme_max"] == 40 * MIB, f"{d.quota(ALICE)}")
        d.done(0, "quota", "set", "1", "nvme=30M")
        d.done(1, "import", "a", d.file)


def host():
    """Host memory of a user: streamed to NVMe as far as it goes, then refused."""
    with Node("--quotas", f"{ALICE} host=1M,{BOB} host=4M") as d:
        err = d.refused(ALICE, 4, f"user {ALICE} holds", "import", "a", d.file)
        check("of host" in err and "limit of 1.00 MiB" in err, err)
        check(d.quota(ALICE)["host_bytes"] == 0, "a refused job holds memory")
        d.model(4)
        status, _, err = d.run(BOB, "import", "b", d.file)
        check(status in (0, 4), err)
        check(d.quota(BOB)["host_bytes"] <= 4 * MIB, f"{d.quota(BOB)}")
        check(d.quota(0)["exempt"], "root is not exempt")


def roots():
    """root_is_admin = no: uid 0 is a user like others; members of admin_group are administrators."""
    with Node("--root-is-admin", "no", "--admin-group", ADMIN_GROUP) as d:
        d.done(ALICE, "import", "a", d.file)
        check(d.rows(0, "jobs") == [], "root sees a job")
        for words in (["destroy", "--force", "a"], ["destroy", "--force", f"{ALICE}/a"], ["share", "a", "7"]):
            d.refused(0, 4, "there is no job", *words)
        d.refused(0, 4, "only an administrator", "tier", "set", "host", "32M")
        check([r["uid"] for r in d.rows(0, "quota")] == [0], "root sees quotas of others")
        check([r["uid"] for r in d.rows(CAROL, "jobs", admin=True)] == [ALICE], "an administrator sees nothing")
        d.done(CAROL, "destroy", "--force", f"{ALICE}/a", admin=True)


def permissions():
    """Each row of docs/reference/permissions.md, as the owner of a job, another user, and an administrator."""
    with open(PERMISSIONS, encoding="utf-8") as f:
        rows = re.findall(r"^\| `zctl ([^`]+)` \| (\w+) \| (\w+) \| (\w+) \|", f.read(), re.M)
    check(len(rows) > 15, f"{PERMISSIONS} has {len(rows)} rows")
    with Node("--admin-group", ADMIN_GROUP) as d:
        out = os.path.join(d.folder, "out")
        for words, *columns in rows:
            for who, uid, want in zip(("owner", "another", "administrator"), (ALICE, BOB, CAROL), columns, strict=True):
                if not d.rows(ALICE, "jobs", "job", status=None):
                    d.done(ALICE, "import", "job", d.file)
                snapshots = {row["name"] for row in d.rows(ALICE, "snapshots", "job")}
                if "snap" not in snapshots:
                    d.done(ALICE, "snapshot", "job", "snap")
                if "more" in snapshots:
                    d.done(ALICE, "destroy", "--force", "job@more")
                os.makedirs(out, exist_ok=True)
                os.chmod(out, 0o777)
                line = words.replace("FILE", d.file).replace("OUT", f"{out}/{uid}-{words.count(' ')}").split()
                status, text, err = d.run(uid, *line, admin=who == "administrator")
                shown = "yes" if status in (0, 8) else "no" if status == 4 else f"status {status}"
                if want in ("own", "all"):
                    shown = "all" if "job" in text.split("\n", 1)[-1] else "own" if status == 0 else shown
                    want = "all" if who == "owner" else want
                check(shown == want, f"zctl {line} as the {who}: {status} {text}{err}, not {want}")


if __name__ == "__main__":
    if os.geteuid() != 0:
        skip("made-up users need root")
    sys.exit(main({f.__name__: f for f in (names, limits, groups, host, roots, permissions)}))
