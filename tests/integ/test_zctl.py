#!/usr/bin/env python3
"""test_zctl.py - zctl and a real daemon: what people and programs are shown, and exit statuses.

    ZSHARD_BUILD=build tests/integ/test_zctl.py [NAME...]
"""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from harness import BUILD, Daemon, check, main, program, wait_until

SMALL = ("--host-bytes", "8M", "--nvme-bytes", "8M", "--page-elems", "4096", "--ring-bytes", "64K")
LARGE = ("--host-bytes", "64M", "--nvme-bytes", "64M", "--page-elems", "4096", "--ring-bytes", "64K")
SHARD_KEYS = ["job", "unit", "rank", "first", "count", "dtype", "version", "tier", "bytes",
              "host_bytes", "nvme_bytes", "pins", "id", "tiers", "uid"]
JOB_KEYS = ["name", "state", "uid", "world", "attached", "share", "optimizer", "moments",
            "muon", "muon_engine", "muon_gpu_bytes", "muon_params", "muon_bytes", "muon_most_bytes",
            "clip", "clip_warm_left", "early", "frozen_tensors", "frozen_bytes", "keep",
            "iterations", "applied", "shards", "params", "host_bytes", "host_state", "host_state_target",
            "gpu_bytes", "nvme_bytes", "grads_nvme_bytes", "grad_ring", "grad_ring_keep", "grads_ringed", "fetched_bytes",
            "pushed_bytes", "nvme_read_bytes",
            "nvme_written_bytes", "durable", "committed",
            "committed_iterations", "committed_applied", "snapshots", "epoch", "id", "error", "owner"]
TIER_KEYS = ["name", "budget", "used", "target", "moving", "device_free", "stranded", "stranded_by", "params", "grads", "state", "staging", "rings",
             "read_bytes_s", "write_bytes_s", "node_bytes", "spilled_bytes", "nodes", "numa",
             "detail"]


def zctl(path, *words, **more):
    """A finished run of zctl."""
    return subprocess.run([program("zctl"), *words], env=os.environ | {"ZSHARD_SOCKET": path},
                          text=True, capture_output=True, timeout=150, check=False,
                          **{"stdin": subprocess.DEVNULL} | more)


def rows(daemon, *words):
    done = zctl(daemon.socket, "-o", "json", *words)
    check(done.returncode == 0 and done.stderr == "", f"{words}: {done}")
    answer = json.loads(done.stdout)
    check(list(answer) == ["schema", "rows"] and answer["schema"] == 2, f"{words}: {answer}")
    return answer["rows"]


def refused(done, status, *parts):
    check(done.returncode == status and done.stdout == "", f"wanted {status}: {done}")
    check(done.stderr.startswith("zctl: ") and done.stderr.count("\n") == 1, f"{done.stderr!r}")
    for part in parts:
        check(part in done.stderr, f"'{part}' is not in {done.stderr!r}")


@contextlib.contextmanager
def holding(daemon, *words):
    """Jobs on the daemon, of a process of their own (hold.c)."""
    with subprocess.Popen([os.path.join(BUILD, "tests", "hold"), daemon.socket, *words], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hold:
        check(hold.stdout.readline() == "held\n", "hold did not get its job")
        yield hold
        hold.stdin.close()
        check(hold.wait(30) == 0, "hold failed")


def no_daemon():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        for words in (["ls"], ["jobs"], ["tiers"], ["stat"], ["ping"], ["destroy", "job"],
                      ["snapshots"], ["scrub"], ["fsck"], ["df"], ["status"]):
            for how in ([], ["-o", "json"]):
                refused(zctl(path, *how, *words), 3, path, "Is zshardd running?")
        with socket.socket(socket.AF_UNIX) as dead: # a socket without a listener
            dead.bind(path)
        refused(zctl(path, "ping"), 3, "Is zshardd running?")


def empty_daemon():
    with Daemon(*SMALL) as d:
        check(rows(d, "ls") == [] and rows(d, "jobs") == [], "there is nothing yet")
        for command in ("ls", "jobs"):
            table = zctl(d.socket, command)
            check(table.returncode == 0 and table.stdout.count("\n") == 1, f"only a head: {table}")
        tiers = rows(d, "tiers")
        check([list(t) for t in tiers] == [TIER_KEYS, TIER_KEYS], f"{tiers}")
        check([t["name"] for t in tiers] == ["host", "nvme"], f"{tiers}")
        for t in tiers:
            parts = sum(t[k] for k in ("params", "grads", "state", "staging", "rings"))
            check(t["used"] == parts <= t["budget"], f"{t}")
        check(tiers[0]["budget"] == 8 << 20, f"{tiers}")
        stat = {row["name"]: row["value"] for row in rows(d, "stat")}
        check(stat["clients"] == 1 and stat["uptime_ms"] >= 0, f"{stat}")
        ping = rows(d, "ping")
        check(len(ping) == 1 and ping[0]["pid"] == d.process.pid, f"{ping}")
        check(ping[0]["page_elems"] == 4096 and 0 < ping[0]["round_trip_us"] < 1e6, f"{ping}")
        refused(zctl(d.socket, "ls", "nothing"), 4, "no job 'nothing'")
        refused(zctl(d.socket, "-o", "json", "jobs", "nothing"), 4, "no job 'nothing'")
        refused(zctl(d.socket, "destroy", "nothing"), 4, "no job 'nothing'")
        # a socket given on the command line takes precedence over the environment
        done = zctl("/nowhere", "--socket", d.socket, "ping")
        check(done.returncode == 0, f"{done}")


def a_job():
    with Daemon(*SMALL) as d:
        with holding(d, "one", "3"):
            shards = rows(d, "ls", "one")
            check(shards == rows(d, "ls"), "it is the only job")
            check([list(s) for s in shards] == [SHARD_KEYS] * 3, f"{shards}")
            check([s["unit"] for s in shards] == ["unit-0", "unit-1", "unit-2"], f"{shards}")
            check([s["dtype"] for s in shards] == ["fp32", "bf16", "fp32"], f"{shards}")
            check([s["pins"] for s in shards] == [1, 0, 0], f"{shards}")
            for s in shards:
                check((s["job"], s["first"], s["count"], s["version"]) == ("one", 0, 12288, 0), f"{s}")
                check(s["bytes"] == s["host_bytes"] + s["nvme_bytes"] == 12288 * 16, f"{s}")
                check(s["tier"] == ("nvme" if s["nvme_bytes"] else "host"), f"{s}")
                want = [t for t in ("host", "nvme") if s[f"{t}_bytes"]]
                check(s["tiers"] == "+".join(want), f"all tiers of a shard: {s}")
            jobs = rows(d, "jobs")
            check([list(j) for j in jobs] == [JOB_KEYS], f"{jobs}")
            want = {"name": "one", "state": "ready", "uid": os.getuid(), "world": 1, "attached": 1,
                    "keep": False, "iterations": 0, "applied": 0, "shards": 3, "params": 36000,
                    "error": "", "fetched_bytes": 12288 * 4}
            check(want.items() <= jobs[0].items(), f"{jobs}")
            done = zctl(d.socket, "share", "one", "250")
            check((done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done}")
            check([j["share"] for j in rows(d, "jobs")] == [250], "the share is not what was asked")
            refused(zctl(d.socket, "share", "one", "10001"), 2, "zctl: share must be 1 to 10000, not 10001")
            refused(zctl(d.socket, "share", "one", "1x"), 2, "zctl: share must be a whole number, not '1x'")
            refused(zctl(d.socket, "share", "two", "1"), 4, "no job 'two'")
            used = {t["name"]: t for t in rows(d, "tiers")}
            check(used["host"]["staging"] == 65536, f"{used}")
            refused(zctl(d.socket, "destroy", "one"), 4, "1 ranks attached")
            table_is_aligned(zctl(d.socket, "ls").stdout, 4)
            table_is_aligned(zctl(d.socket, "jobs").stdout, 2)
            table_is_aligned(zctl(d.socket, "stat").stdout, None)
            check("192 KiB" in zctl(d.socket, "ls").stdout, "sizes are for people")
            check("196608" not in zctl(d.socket, "ls").stdout, "sizes are for people")
        wait_until("the job's end", lambda: rows(d, "jobs") == [], 2)


def table_is_aligned(text, lines):
    """Every cell begins or ends where its heading does, and nothing stands behind the last."""
    table = [[(m.start(), m.end()) for m in re.finditer(r"\S+( \S+)*", line)]
             for line in text.splitlines()]
    check(lines is None or len(table) == lines, f"{lines} lines:\n{text}")
    head = text.splitlines()[0]
    check(head == head.upper(), f"the head is in upper case:\n{text}")
    for cells in table:
        check(len(cells) == len(table[0]), f"a cell is missing:\n{text}")
        for (begin, end), (head_begin, head_end) in zip(cells, table[0]):
            check(begin == head_begin or end == head_end, f"a cell is not aligned:\n{text}")
    check(all(line == line.rstrip() for line in text.splitlines()), f"blanks at an end:\n{text}")


def tables_are_fixed():
    """The same headings whatever there is, at most 100 wide; what is cut in a table is whole in the JSON."""
    name = "a-name-of-many-characters-" * 3
    commands = ("ls", "jobs", "tiers", "stat", "snapshots", "df", "scrub", "fsck")
    with Daemon(*SMALL) as d:
        before = {c: zctl(d.socket, c).stdout.splitlines()[0].split() for c in commands}
        with holding(d, name[:60], "3"):
            for c in commands:
                lines = zctl(d.socket, c).stdout.splitlines()
                check(lines[0].split() == before[c], f"{c}: {lines[0]} after {before[c]}")
                if c != "tiers": # its details are below the table
                    check(all(len(line) <= 100 for line in lines), f"{c}: {lines}")
                check(all(len(line) <= 100 for line in lines[:3]), f"{c}: {lines}")
                check(json.loads(zctl(d.socket, c, "--json").stdout)["schema"] == 2, c)
            check(rows(d, "jobs")[0]["name"] == name[:60], "JSON has the whole name")
            check("..." in zctl(d.socket, "ls").stdout, zctl(d.socket, "ls").stdout)


def nodes():
    """Where memory is: on the node that was asked for, if the machine lets us ask."""
    with Daemon(*SMALL, "--numa", "off") as d:
        host, nvme = rows(d, "tiers")
        check((host["numa"], host["nodes"], host["node_bytes"]) == ("off", "", 0), f"{host}")
        check((nvme["numa"], nvme["nodes"]) == ("", ""), f"{nvme}")
    try:
        with Daemon(*SMALL, "--numa", "0") as d, holding(d, "one", "3"):
            host = rows(d, "tiers")[0]
            check(host["numa"] == "node 0, preferred; spills", f"{host}")
            check(host["node_bytes"] + host["spilled_bytes"] >= host["params"] + host["staging"] > 0
                  and host["node_bytes"] > 0 and host["nodes"].startswith("0:"), f"{host}")
    except Exception as e: # a container may refuse it: then the daemon reports that and ends
        if "memory cannot be bound" not in str(e):
            raise


def gpu_nodes():
    """The NUMA node of each GPU, and whether memory is placed there: nodes of `numa`, unless near is off."""
    gpus = ("--gpu-bytes", "4M", "--gpus", "emulated*3/3:16M:::4K,emulated:16M:::4K")
    for options, nodes in ((("--numa", "off"), ["node 0", "node 1", "node 2", ""]),
                           (("--numa", "off", "--near", "off"),
                            [f"node {n}, no memory is placed there" for n in range(3)] + [""])):
        with Daemon(*SMALL, *gpus, *options) as d:
            check([row["numa"] for row in rows(d, "tiers")[2:]] == nodes, f"{rows(d, 'tiers')}")
            check("numa node 1" in zctl(d.socket, "tiers").stdout, zctl(d.socket, "tiers").stdout)
            said = [line.split(" node=")[1] for line in d.log().splitlines() if " lanes=" in line]
            check(said == ["0", "1", "2", "-1"], f"{said}")
            counters = {row["name"]: row["value"] for row in rows(d, "stat")}
            check(counters["near_bytes"] == counters["near_refused_bytes"] == 0, f"{counters}")


def kept_jobs():
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "0", "--page-elems", "4096") as d:
        idle = d.used()
        with holding(d, "kept", "1", "60"):
            pass
        jobs = rows(d, "jobs") # more than one reply can hold
        wait_until("ranks to leave", lambda: all(j["attached"] == 0 for j in rows(d, "jobs")), 2)
        check([j["name"] for j in jobs] == [f"kept-{i}" for i in range(60)], f"{jobs}")
        check(all(j["keep"] for j in jobs), f"{jobs}")
        check(all(j["state"] == "idle" for j in rows(d, "jobs")), "nobody is attached: the jobs are idle")
        check(len(rows(d, "ls")) == 60 and len(rows(d, "ls", "kept-7")) == 1, "shards")
        for i in range(60):
            done = zctl(d.socket, "destroy", f"kept-{i}")
            check((done.returncode, done.stderr) == (0, "") and f"kept-{i} " in done.stdout, f"{done}")
        refused(zctl(d.socket, "destroy", "kept-0"), 4, "no job 'kept-0'")
        wait_until("the bytes", lambda: d.used() == idle, 1)


def many_shards():
    with Daemon("--host-bytes", "256M", "--nvme-bytes", "0", "--page-elems", "4096") as d:
        with holding(d, "many", "650"): # more than three replies can hold
            shards = rows(d, "ls", "many")
            check([s["unit"] for s in shards] == [f"unit-{i}" for i in range(650)], "rows are lost")
            check(len({s["id"] for s in shards}) == 650, "ids are not one each")


def a_daemon_that_hangs():
    with Daemon(*SMALL) as d:
        d.process.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            refused(zctl(d.socket, "ping"), 3)
            check(time.monotonic() - begin < 15, "it was waited for too long")
        finally:
            d.process.send_signal(signal.SIGCONT)


def something_else_that_answers():
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"zsh\1" + bytes(20)):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            path = os.path.join(folder, "s")
            server.bind(path)
            server.listen()

            def serve(server=server, answer=answer):
                peer, _ = server.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            refused(zctl(path, "ping"), 3)
            thread.join(10)


def another_user():
    if os.geteuid() != 0:
        print("skipped: another_user needs root")
        return
    with Daemon(*SMALL) as d:
        os.chmod(d.folder, 0o711)
        refused(zctl(d.socket, "ping", user=65534, group=65534, extra_groups=[]), 4, "not allowed")


def output_that_breaks():
    with Daemon(*SMALL) as d, open("/dev/full", "wb") as full:
        for words in (["tiers"], ["-o", "json", "tiers"], ["help"], ["stat"]):
            done = subprocess.run([program("zctl"), *words], env=d.env(), stdout=full, text=True,
                                  stderr=subprocess.PIPE, timeout=150, check=False)
            check(done.returncode == 1 and "write the output" in done.stderr, f"{words}: {done}")
            reads, writes = os.pipe()
            os.close(reads)  # like `zctl tiers | head`
            done = subprocess.run([program("zctl"), *words], env=d.env(), stdout=writes, text=True,
                                  stderr=subprocess.PIPE, timeout=150, check=False)
            os.close(writes)
            check(done.returncode == 1 and done.stderr == "", f"{words}: {done}")


# Words, the answer (None: standard input is no terminal), what is asked, exit status, whether it is still there.
QUESTIONS = (
    (["destroy", "demo@snap"], "y\n", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 0, False),
    (["destroy", "demo@snap"], "yes\n", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 0, False),
    (["destroy", "demo@snap"], "n\n", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 1, True),
    (["destroy", "demo@snap"], "\n", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 1, True),
    (["destroy", "demo@snap"], "yess\n", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 1, True),
    (["destroy", "demo@snap"], "\4", "Destroy snapshot 'snap' of job 'demo'? [y/N] ", 1, True),
    (["destroy", "demo@snap", "--yes"], "", "", 0, False),
    (["destroy", "-y", "demo@snap"], "", "", 0, False),
    (["destroy", "demo@snap"], None, "", 0, False),
    (["destroy", "demo@other"], "y\n", "", 4, True),
    (["destroy", "demo"], "y\n", "", 8, True),
    (["destroy", "demo", "--yes"], "", "", 8, True),
    (["destroy", "demo", "--force"], "no\n",
     "Destroy job 'demo', with a commit of step 0 and 1 snapshot (snap)? [y/N] ", 1, True),
    (["destroy", "demo", "--force", "--json"], "y\n",
     "Destroy job 'demo', with a commit of step 0 and 1 snapshot (snap)? [y/N] ", 0, False),
    (["destroy", "demo", "--force", "--yes"], "", "", 0, False),
    (["destroy", "demo", "--force"], None, "", 0, False),
    (["destroy", "nothing"], "y\n", "", 4, True),
)


def questions():
    """destroy asks a person at a terminal, and no script."""
    with Daemon(*LARGE) as d:
        path = a_model(d.folder, 1)
        for words, answer, asked, status, stays in QUESTIONS:
            there = [row["name"] for row in rows(d, "snapshots")]
            if not rows(d, "jobs"):
                check(zctl(d.socket, "import", "demo", path).returncode == 0, "import")
            if not there:
                check(zctl(d.socket, "snapshot", "demo", "snap").returncode == 0, "snapshot")
            master, slave = os.openpty()
            os.write(master, (answer or "").encode())
            done = zctl(d.socket, *words, stdin=subprocess.DEVNULL if answer is None else slave)
            os.close(slave)
            shown = ""
            with contextlib.suppress(OSError):  # EIO: everything is read
                while True:
                    shown += os.read(master, 4096).decode()
            os.close(master)
            check(done.returncode == status, f"{words}, '{answer}': {done}")
            check(asked in shown if asked else "?" not in shown, f"{words}: asked {shown!r}, not {asked!r}")
            check("[y/N]" not in done.stdout + done.stderr, f"the question is in the output: {done}")
            check(status != 1 or "nothing was changed" in done.stderr, f"{done}")
            check(stays == ("snap" in [row["name"] for row in rows(d, "snapshots")]), f"{words}, '{answer}'")


def a_model(folder, mib, value=b"\0"):
    """A file of safetensors with one tensor of so many MiB, each byte the same."""
    path, size = os.path.join(folder, f"model{mib}.safetensors"), mib << 20
    head = json.dumps({"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + value * size)
    return path


def scrub_until_done():
    """scrub -w: it waits for the end, and the exit status says how it ended."""
    with Daemon(*LARGE) as d:
        check(zctl(d.socket, "import", "demo", a_model(d.folder, 1, b"\x3d")).returncode == 0, "import")
        for words in (["pause", "-w"], ["stop", "--until-done"]):
            refused(zctl(d.socket, "scrub", *words), 2, "--until-done is for scrub start, resume and status")
        done = scrub(d, "start", "-w", "--rate", "64M")
        check((done["state"], done["percent"], done["bad_pages"]) == ("done", 100, 0) and done["bytes"] > 1 << 20, f"{done}")
        check(zctl(d.socket, "scrub", "-w").returncode == 0, "it does not run: there is nothing to wait for")
        for action in ("pause", "stop"):
            with subprocess.Popen([program("zctl"), "scrub", "start", "-w", "--rate", "1M"], env=d.env(), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
                wait_until("the scrub", lambda: scrub_state(d) == "running", 10)
                check(zctl(d.socket, "scrub", action).returncode == 0, action)
                out, err = waits.communicate(timeout=60)
                check(waits.returncode == 1 and out and "not all pages are verified" in err, f"{action}: {out}{err}")
            zctl(d.socket, "scrub", "stop")
        damage(d, b"\x3d" * 64)
        bad = zctl(d.socket, "scrub", "start", "-w", "--rate", "64M")
        check(bad.returncode == 6 and "1 pages are bad" in bad.stderr and "demo" in bad.stdout, f"{bad}")
        with subprocess.Popen([program("zctl"), "scrub", "start", "-w", "--rate", "1M"], env=d.env(), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waits:
            wait_until("the scrub", lambda: scrub_state(d) == "running", 10)
            d.kill()
            waits.communicate(timeout=60)
            check(waits.returncode == 3, f"the daemon was killed: {waits.returncode}")


def scrub_state(daemon):
    """Also while the last scrub found bad pages, which is status 6."""
    return json.loads(zctl(daemon.socket, "--json", "scrub").stdout)["rows"][0]["state"]


def scrub(daemon, *words):
    done = zctl(daemon.socket, "--json", "scrub", *words)
    check(done.returncode == 0 and done.stderr == "", f"{words}: {done}")
    return json.loads(done.stdout)["rows"][0]


def damage(daemon, pattern):
    """Changes a byte of a saved page: the first place of a data file that has the pattern."""
    for folder, _, names in os.walk(daemon.data):
        for name in names:
            with open(os.path.join(folder, name), "r+b") as file:
                at = file.read().find(pattern)
                if at >= 0:
                    file.seek(at)
                    file.write(b"\x3e")
                    file.flush()
                    os.fsync(file.fileno())
                    return
    check(False, "no data file has these bytes")


if __name__ == "__main__":
    sys.exit(main({f.__name__: f for f in (
        no_daemon, empty_daemon, a_job, tables_are_fixed, nodes, gpu_nodes, kept_jobs, many_shards, a_daemon_that_hangs,
        something_else_that_answers, another_user, output_that_breaks, questions, scrub_until_done)}))
