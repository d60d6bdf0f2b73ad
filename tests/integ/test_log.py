#!/usr/bin/env python3
"""test_log.py - the log: its events and their ids, and its formats.

    ZSHARD_BUILD=build tests/integ/test_log.py [table | formats | NAME...]
    tests/integ/test_log.py --journald      with a journald of its own: needs root and namespaces
    tests/integ/test_log.py --new EVENT...  adds events: to the table, the list of the manual, and the record

log_ids.txt is the record of all ids that there ever were. What is there stays: an id may not change, and the id of an event
that is gone is not used again.
"""

import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid

from harness import Daemon, check, main, program, skip, wait_until

SOURCE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TABLE = os.path.join(SOURCE, "daemon/run/events.c")
MANUAL = os.path.join(SOURCE, "docs/reference/log.md")
RECORD = os.path.join(SOURCE, "tests/integ/log_ids.txt")
CALLS = re.compile(r"\b(?P<function>zb_log|zsd_conn_log|link_log|zb_log_begin)\((?P<words>[^;]*?)\);", re.S)
# What zsd_conn_log() writes before the format.
CLIENT = r'pid=%ld uid=%u program=\"%s\" job=\"%s\" lines_dropped=%u '
# Keys that a format has itself: those of JSON, and what MESSAGE_ID is about.
RESERVED = {"time", "level", "event", "message", "cut"}
JOURNALD = "/lib/systemd/systemd-journald"


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


# ---- the table of events


def table():
    """The rows of events.c: (event, id)."""
    return re.findall(r'{ "([a-z-]+)", "(.*)" },', text_of(TABLE))


def record():
    return [tuple(line.split()) for line in text_of(RECORD).splitlines()]


def manual_ids():
    return re.findall(r"^\| `([a-z-]+)` \| `([0-9a-f]+)` \|$", text_of(MANUAL), re.M)


def calls():
    """Events and formats of all calls in the daemon's source."""
    for name in [*glob.glob(SOURCE + "/daemon/**/*.c", recursive=True), SOURCE + "/base/log.c"]:
        for call in CALLS.finditer(text_of(name)):
            words = re.sub(r'"\s*"', "", call["words"])
            strings = re.findall(r'"((?:[^"\\]|\\.)*)"', words)
            events = [s for s in strings if re.fullmatch(r"[a-z]+(-[a-z]+)*", s)]
            choice = re.search(r'\? "([a-z-]+)" : "([a-z-]+)",', words)
            if choice or events:
                formats = [s for s in strings if "=" in s]
                begin = CLIENT if call["function"] in ("zsd_conn_log", "link_log") else ""
                yield name, choice.groups() if choice else (events[0],), begin + (formats[0] if formats else "")


def events_have_ids():
    """Each event of the source has an id in the table, and the table has no others; the manual has the same."""
    rows = table()
    source = {event for _, events, _ in calls() for event in events}
    check(len(rows) > 80 and "job-open" in source and "log-dropped" in source, f"{len(rows)} rows, {source}")
    check([event for event, _ in rows] == sorted({event for event, _ in rows}), "the table is not sorted")
    check(all(re.fullmatch("[0-9a-f]{32}", number) for _, number in rows), "an id is not of 32 hex digits")
    check(len({number for _, number in rows}) == len(rows), "two events have one id")
    check(source == {event for event, _ in rows}, f"source or table only: {source ^ {event for event, _ in rows}}")
    check(manual_ids() == rows, f"the manual differs: {set(manual_ids()) ^ set(rows)}")
    about = text_of(MANUAL).split("## Ids")[0]
    check([event for event in sorted(source) if f"`{event}`" not in about] == [], "the manual explains not all events")


def ids_stay():
    """An id that was ever recorded belongs to its event."""
    old, rows = record(), table()
    check(len({number for _, number in old}) == len(old) == len(dict(old)), "the record has something twice")
    for event, number in rows:
        check((event, number) in old, f"{event}, {number}: the record (log_ids.txt) has {dict(old).get(event)}")


def formats_can_be_read():
    """Conversions are those of log.h; a key occurs once, and is none that the formats have themselves."""
    for name, events, fmt in calls():
        where = f"{name}: {events[0]}: {fmt}"
        check(re.sub(r"%(s|d|u|ld|lu|lld|llu|zu)", "", fmt).count("%") == 0, f"{where}: conversions")
        plain = re.sub(r'\\".*?\\"', '""', fmt)
        keys = [pair.partition("=")[0] for pair in plain.split()]
        check(all(re.fullmatch(r"[a-z][a-z0-9_]*", key) for key in keys), f"{where}: {keys}")
        check(len(keys) == len(set(keys)) <= 18 and not RESERVED & set(keys), f"{where}: {keys}")


def jobs_have_users():
    """An event that names a job says whose; one that has the number of a data file says where that is."""
    for name, events, fmt in calls():
        keys = {pair.partition("=")[0] for pair in re.sub(r'\\".*?\\"', '""', fmt).split()}
        check("job" not in keys or "uid" in keys, f"{name}: {events[0]}: a job without its user")
        if events[0] != "job-lost":  # that data file is missing
            check("number" not in keys or "directory" in keys, f"{name}: {events[0]}: a data file without its directory")


def new(events):
    """Adds events to table, manual and record."""
    rows = table() + [(event, uuid.uuid4().hex) for event in events if event not in dict(table())]
    rows.sort()
    for path, pattern, row in ((TABLE, r'(    { "[a-z-]+", ".*" },\n)+', '    {{ "{}", "{}" }},\n'),
                               (MANUAL, r"(\| `[a-z-]+` \| `[0-9a-f]+` \|\n)+", "| `{}` | `{}` |\n")):
        text = re.sub(pattern, "".join(row.format(*r) for r in rows), text_of(path), count=1)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write("".join(f"{event} {number}\n" for event, number in sorted({*record(), *rows})))


# ---- the formats


@contextlib.contextmanager
def held(daemon, name):
    """A job that is held meanwhile."""
    process = subprocess.Popen([os.path.join(os.path.dirname(program("")), "../tests/hold"), daemon.socket, name, "2"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        check(process.stdout.readline() == "held\n", "no job is held")
        yield
    finally:
        process.communicate(timeout=60)


class Journal:
    """A socket in place of the journal's. Entries are dicts, in order."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="zshard-test-")
        self.path = os.path.join(self.folder, "journal")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        os.environ["ZSHARD_JOURNAL_SOCKET"] = self.path
        self.entries = []
        return self

    def __exit__(self, *exception):
        del os.environ["ZSHARD_JOURNAL_SOCKET"]
        self.socket.close()
        shutil.rmtree(self.folder)

    def read(self):
        """Reads on; the number of entries, so that it can be a condition."""
        with contextlib.suppress(BlockingIOError):
            while True:
                fields = [line.split("=", 1) for line in self.socket.recv(65536).decode().splitlines()]
                check(len(dict(fields)) == len(fields), f"a field occurs twice: {fields}")
                self.entries.append(dict(fields))
        return len(self.entries)

    def of(self, event, **fields):
        """The entries of an event with these fields."""
        self.read()
        return [e for e in self.entries if e["ZSHARD_EVENT"] == event and fields.items() <= e.items()]


def to_the_journal():
    """log_format = journal: each line is an entry with id, priority and a field for each value. Not with level debug: a
    socket may have room for ten entries only, until they are read."""
    ids = dict(table())
    with Journal() as journal, Daemon("--host-bytes", "64M", "--nvme-bytes", "8M", "--log-format", "journal") as d:
        wait_until("serving", lambda: journal.of("serving"), 10)
        with held(d, "j-1"):
            wait_until("the job", lambda: journal.of("job-ready", ZSHARD_JOB="j-1"), 10)
        wait_until("its end", lambda: journal.of("job-end", ZSHARD_JOB="j-1"), 10)
        entry, = journal.of("job-open")
        check(entry["ZSHARD_UID"] == str(os.geteuid()) and entry["ZSHARD_WORLD"] == "1", f"{entry}")
        check(entry["MESSAGE"].startswith('info job-open job="j-1" '), f"{entry}")
        check((entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("6", "zshardd"), f"{entry}")
        check(journal.of("path")[0]["ZSHARD_DIRECTORY"] == d.data, f"{journal.of('path')}")
        check(journal.of("serving")[0]["ZSHARD_SOCKET"] == d.socket, f"{journal.of('serving')}")
        check(d.stop() == 0 and journal.of("ended", ZSHARD_STATUS="0"), "the end")
        for e in journal.entries:
            check(e["MESSAGE_ID"] == ids[e["ZSHARD_EVENT"]], f"{e}")


def as_json():
    """log_format = json: each line is an object, with numbers as numbers."""
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "8M", "--log-format", "json", "--log-level", "debug") as d:
        with held(d, "j-1"):
            pass
        wait_until("the job's end", lambda: '"job-end"' in d.log(), 10)
        check(d.stop() == 0, "the end")
        lines = [json.loads(line) for line in d.log().splitlines()]
    for line in lines:
        check({"time", "level", "event", "message"} <= line.keys(), f"{line}")
        check(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"]), f"{line}")
        check(line["message"].startswith(f"{line['level']} {line['event']}"), f"{line}")
    opened, = [line for line in lines if line["event"] == "job-open"]
    check(opened["job"] == "j-1" and opened["uid"] == os.geteuid() and opened["world"] == 1, f"{opened}")


def events(daemon, *words, run=None):
    """The rows of `zctl events`."""
    words = [*(run or []), program("zctl"), "-s", daemon.socket, "-o", "json", "events", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{done}")
    return json.loads(done.stdout)["rows"]


def last_events():
    """`zctl events`: the last lines of the log; a user sees those with its uid. A reader that falls behind is told."""
    flags = ["--host-bytes", "64M", "--nvme-bytes", "8M", "--log-level", "info", "--socket-group", "nogroup"]
    with Daemon(*flags if os.geteuid() == 0 else flags[:-2]) as d:
        with held(d, "j-1"):
            rows = events(d)
            check([r["number"] for r in rows] == list(range(1, len(rows) + 1)), f"{rows}")
            row, = [r for r in rows if r["event"] == "job-open"]
            check((row["level"], row["job"], row["uid"], row["lost"]) == ("info", "j-1", os.geteuid(), False), f"{row}")
            check(row["text"].startswith('job="j-1" id=1 ') and abs(row["time_ms"] / 1000 - time.time()) < 600, f"{row}")
            row, = [r for r in rows if r["event"] == "serving"]
            check((row["job"], row["uid"]) == ("", None), f"{row}")
            check([r["number"] for r in events(d, "-n", "2")] == [len(rows) - 1, len(rows)], "the last two")
            said = subprocess.run([program("zctl"), "-s", d.socket, "events"], capture_output=True, text=True, check=True)
            check(re.search(r'^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info job-open job="j-1" id=1 ', said.stdout, re.M), f"{said}")
        if os.geteuid() == 0:
            os.chmod(d.folder, 0o755)
            nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            check(events(d, run=nobody) == [], "another user sees the events of a job")
            d.zctl("quota", "set", "65534", "jobs=3")
            check([(r["event"], r["uid"]) for r in events(d, run=nobody)] == [("quota-set", 65534)], "its own")


def levels(daemon, n):
    """Changes the level of the log n times, which is an event each: frames of the protocol, without a program."""

    def frame(method, tag, body):
        return b"zsh\1" + struct.pack("<IHBBiQ", len(body), method, 1, 0, 0, tag) + body

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(daemon.socket)
        client.settimeout(60)
        client.sendall(frame(1, 1, b"\x08\1\x10\1"))
        for i in range(n):
            client.sendall(frame(50, 2, b"\x0a\x04" + (b"warn", b"info")[i % 2]))
            if i % 100 == 99:
                client.recv(65536)
        client.sendall(frame(50, 3, b""))
        data = b""
        while b"\3\0\0\0\0\0\0\0" not in data[-40:]:
            data = data[-40:] + client.recv(65536)


def following():
    """`zctl events -f` prints events as they come, and ends with the daemon."""
    with Daemon("--host-bytes", "64M", "--nvme-bytes", "8M") as d:
        words = [program("zctl"), "-s", d.socket, "-o", "json", "events", "-f", "-n", "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            row = json.loads(process.stdout.readline())
            check(row["event"] == "serving", f"{row}")
            with held(d, "j-1"):
                rows = [json.loads(process.stdout.readline()) for _ in range(2)]
                check([r["event"] for r in rows] == ["job-open", "job-ready"], f"{rows}")
            wait_until("the job's end", lambda: "job-end" in d.log(), 10)
            check(json.loads(process.stdout.readline())["event"] == "job-end", "the job's end")
            process.send_signal(signal.SIGSTOP)
            levels(d, 1100)  # more events than the daemon keeps
            process.send_signal(signal.SIGCONT)
            rows = [json.loads(process.stdout.readline()) for _ in range(1000)]
            check([r["lost"] for r in rows] == [True] + 999 * [False], f"{rows[:2]}")
            check({r["event"] for r in rows} == {"log-level"}, f"{rows[:2]}")
            check(rows[-1]["number"] - rows[0]["number"] == 999, f"{rows[0]} {rows[-1]}")
            check(d.stop() == 0, "the end")
            out, err = process.communicate(timeout=60)
            check(process.returncode != 0 and err, f"{out} {err}")


def refused():
    """log_format = journal without a journal: status 2, and the path."""
    with Journal() as journal:
        os.unlink(journal.path)
        for flags in ["--log-format", "journal"], ["--log-format", "journal", "--fsck"]:
            done = subprocess.run([program("zshardd"), "--data", journal.folder, *flags], capture_output=True, text=True,
                                  check=False)
            check(done.returncode == 2 and done.stderr.startswith("zshardd: log_format = journal: ") and
                  journal.path in done.stderr and done.stderr.count("\n") == 1, f"{done}")
    done = subprocess.run([program("zshardd"), "--log-format", "xml"], capture_output=True, text=True, check=False)
    check(done.returncode == 2 and "auto, text, json or journal" in done.stderr, f"{done}")


# ---- a real journal


def journald():
    """Runs in a mount namespace of its own: `journalctl ZSHARD_JOB=x` has the job's events, as an operator reads them."""
    ours, theirs = (os.readlink(f"/proc/{pid}/ns/mnt") for pid in ("self", os.getppid()))
    check(ours != theirs, "not in a mount namespace of its own: use --journald")
    for folder in "/run", "/var/log":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    os.makedirs("/run/systemd/journald.conf.d")
    os.makedirs("/run/log/journal")
    with open("/run/systemd/journald.conf.d/test.conf", "w", encoding="ascii") as conf:
        conf.write("[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nForwardToSyslog=no\n")
    process = subprocess.Popen([JOURNALD], stdin=subprocess.DEVNULL)
    try:
        wait_until("journald", lambda: os.path.exists("/run/systemd/journal/socket"), 20)
        with Daemon("--host-bytes", "64M", "--nvme-bytes", "8M", "--log-format", "journal") as d:
            with held(d, "x"):
                pass

            def entries(*matches):
                out = subprocess.run(["journalctl", "-D", "/run/log/journal", "-o", "json", *matches], text=True,
                                     capture_output=True, check=False).stdout
                return [json.loads(line) for line in out.splitlines()]

            wait_until("the job's end", lambda: entries("ZSHARD_JOB=x", "ZSHARD_EVENT=job-end"), 20)
            events = [e["ZSHARD_EVENT"] for e in entries("ZSHARD_JOB=x")]
            check(events == ["job-open", "job-ready", "job-end"], f"{events}")
            entry, = entries("MESSAGE_ID=" + dict(table())["job-open"])
            check(entry["ZSHARD_UID"] == "0" and entry["_COMM"] == "zshardd" and entry["PRIORITY"] == "6", f"{entry}")
    finally:
        process.terminate()
        process.wait(20)


def in_namespace():
    """Starts journald() in a namespace, if there can be one."""
    if os.geteuid() != 0 or not os.path.exists(JOURNALD) or not shutil.which("journalctl"):
        skip("no journald, or not root")
    inside = ["unshare", "--mount", "--propagation", "private", sys.executable, "-B", os.path.abspath(__file__)]
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, check=False)
    if probe.returncode != 0 or not os.path.exists("/etc/machine-id"):
        skip("no journald: no mount namespace, or no machine-id")
    return subprocess.run([*inside, "journald"], check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--new"]:
        sys.exit(new(sys.argv[2:]))
    if sys.argv[1:] == ["--journald"]:
        sys.exit(in_namespace())
    PARTS = {
        "table": (events_have_ids, ids_stay, formats_can_be_read, jobs_have_users),
        "formats": (to_the_journal, as_json, last_events, following, refused),
    }
    TESTS = {f.__name__: f for part in PARTS.values() for f in part} | {"journald": journald}
    if sys.argv[1:] in ([], ["table"], ["formats"]):  # not journald, which must be in a namespace
        sys.argv[1:] = [f.__name__ for part in sys.argv[1:] or PARTS for f in PARTS[part]]
    sys.exit(main(TESTS))
