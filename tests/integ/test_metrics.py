#!/usr/bin/env python3
"""test_metrics.py - zctl status and zctl metrics of a real daemon: their form, their cost, their documents, and the alerts.

    ZSHARD_BUILD=build tests/integ/test_metrics.py [NAME...]
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import openmetrics
from harness import BUILD, Daemon, check, main, program, skip

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROMETHEUS = os.path.join(ROOT, "deploy", "prometheus")
SMALL = ("--host-bytes", "24M", "--nvme-bytes", "64M", "--page-elems", "4096", "--ring-bytes", "64K", "--io", "threads")
GPU = ("--gpu-bytes", "8M", "--gpu", "emulated/1:16M:::4K")
SERIES_MAX = 1000
TURN_NS = 5_000_000  # of the daemon's loop, for a scrape
STATUS_KEYS = ["schema", "verdict", "reasons", "server", "pid", "uptime_s", "clients", "clients_max", "jobs", "saved", "tiers",
               "last_commit", "scrub", "last_scrub", "turn_max_s", "turn_p999_s"]


def zctl(daemon, *words, **more):
    return subprocess.run([program("zctl"), "-s", daemon.socket, *words], text=True, capture_output=True, timeout=150,
                          check=False, **more)


def text_of(daemon, *words):
    done = zctl(daemon, "metrics", *words)
    check(done.returncode == 0 and done.stderr == "", f"metrics {words}: {done.returncode} {done.stderr}")
    return done.stdout


def hold(daemon, *words):
    """Kept jobs of a process that has ended."""
    done = subprocess.run([os.path.join(BUILD, "tests", "hold"), daemon.socket, *words], stdin=subprocess.DEVNULL,
                          text=True, capture_output=True, timeout=150, check=False)
    check(done.stdout == "held\n", f"hold: {done}")


def value_of(families, name, **labels):
    found = [v for _, have, v in families[name].samples if labels.items() <= have.items()]
    check(len(found) == 1, f"{name} {labels}: {found}")
    return found[0]


def documented():
    """{name of a sample, without _bucket: (type, labels)} of docs/reference/metrics.md."""
    with open(os.path.join(ROOT, "docs", "reference", "metrics.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| `(zshard_\w+)` \| (\w+) \| ([^|]*)\|", file.read(), re.M)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def in_the_source():
    """{name of a sample: type} of the tables of families."""
    found = {}
    for source in ("metrics_node.c", "metrics_jobs.c"):
        with open(os.path.join(ROOT, "daemon", "show", source), encoding="utf-8") as file:
            for name, kind in re.findall(r'\{ "(\w+)", ZSD_(\w+),', file.read()):
                suffix = openmetrics.SUFFIXES[kind.lower()][0]
                found["zshard_" + name + suffix.replace("_bucket", "")] = kind.lower()
    return found


# ---- tests


def status():
    with Daemon(*SMALL) as d:
        hold(d, "kept", "2", "2")
        done = zctl(d, "-o", "json", "status")
        answer = json.loads(done.stdout)
        check(done.returncode == 0 and list(answer) == STATUS_KEYS, f"{done}")
        check(answer["schema"] == 2 and answer["verdict"] == "healthy", f"{answer}")
        check(all(list(r) == ["id", "level", "text", "fix"] and r["level"] == "advice" for r in answer["reasons"]),
              f"{answer}")
        check(answer["jobs"] == 2 and answer["saved"] == 0 and answer["clients"] == 1, f"{answer}")
        check([t["name"] for t in answer["tiers"]] == ["host", "nvme"] and answer["last_commit"] is None, f"{answer}")
        table = zctl(d, "status")
        check(table.returncode == 0 and table.stdout.startswith("healthy"), f"{table}")
        heads = [line.split()[0] for line in table.stdout.splitlines()]
        for head in ("daemon", "clients", "jobs", "host", "nvme", "commit", "scrub", "turn"):
            check(heads.count(head) == 1, f"{head}: {table.stdout}")
        check(max(len(line) for line in table.stdout.splitlines()) <= 100, table.stdout)
        check(len(table.stdout.splitlines()) <= 40, "more than a screen")
    gone = zctl(d, "status")
    check(gone.returncode == 3 and gone.stdout == "", f"{gone}")


def is_strict():
    """The parser rejects what it must."""
    good = '# TYPE a gauge\n# HELP a x\na{b="c"} 1\n# EOF\n'
    openmetrics.parse(good)
    for old, new in (("# EOF\n", ""), ("gauge", "meter"), ("} 1", "} 1\na{b=\"c\"} 2"), ("} 1", "} x"), ("a{", "z{"), ("} 1", "} 1\n"),
                     ("# HELP a x\n", ""), ('b="c"', 'b="c",'), ('b="c"', 'b=c'), ('"c"', '"\\c"'), ("a{b=\"c\"} 1\n", ""),
                     ("TYPE a", "TYPE a_seconds"), ("# HELP", "# UNIT a seconds\n# HELP"), ("} 1", "} NaN"), ("} 1", "} -1")):
        check(old in good, old)
        try:
            openmetrics.parse(good.replace(old, new, 1))
        except openmetrics.Wrong:
            continue
        check(False, f"accepted: {good.replace(old, new, 1)}")


def form():
    """With a GPU, saved jobs, and more jobs than are shown."""
    with Daemon(*SMALL, *GPU) as d:
        hold(d, "k", "1", "18")
        hold(d, "saved", "1", "1", "durable")
        families = openmetrics.parse(text_of(d))
        series = sum(len(f.samples) for f in families.values())
        check(200 < series < SERIES_MAX, f"{series} series")
        check(len(families["zshard_job_ranks"].samples) == 16, "the first 16 jobs")
        check(value_of(families, "zshard_job_ranks", job="k-0", uid=str(os.getuid())) == 1, "k-0")
        check(value_of(families, "zshard_gpu", UUID="emulated", node="1") == 1, "the GPU")
        check(value_of(families, "zshard_tier_budget_bytes", tier="gpu", UUID="emulated") == 8 << 20, "its tier")
        check(value_of(families, "zshard_path_read_bytes", path=d.data) >= 0, "the path")
        check(value_of(families, "zshard_degraded") == 0, "healthy")
        check(value_of(families, "zshard_clients") == 1 and value_of(families, "zshard_open_files") > 5, "clients, files")
        check(sum(v for _, _, v in families["zshard_jobs"].samples) == 19, "jobs")
        docs = documented()
        for name, family in families.items():
            shown = name + openmetrics.SUFFIXES[family.kind][0].replace("_bucket", "")
            check(shown in docs, f"{shown} is not in docs/reference/metrics.md")
            kind, labels = docs[shown]
            have = {label for _, labels, _ in family.samples for label in labels} - {"le"}
            check(kind == family.kind and have <= labels, f"{shown}: {family.kind} {have}; documented {kind} {labels}")
        check({n: k for n, (k, _) in docs.items()} == in_the_source(), "docs/reference/metrics.md and the daemon's tables differ: "
              f"{set(docs) ^ set(in_the_source())}")
        reasons = {labels["id"] for _, labels, _ in families["zshard_reason_level"].samples}
        with open(os.path.join(ROOT, "docs", "reference", "health.md"), encoding="utf-8") as file:
            check(reasons == set(re.findall(r"^\| `([a-z-]+)` \|", file.read(), re.M)), f"docs/reference/health.md: {reasons}")


def in_prometheus_format():
    """The same numbers of the same names; counters and infos as that format wants them."""
    with Daemon(*SMALL) as d:
        text = text_of(d, "--format", "prometheus")
        check("# EOF" not in text and "# UNIT" not in text and " info\n" not in text, text)
        check("# TYPE zshard_requests_total counter\n" in text and "# TYPE zshard_build_info gauge\n" in text, text)
        names = set(re.findall(r"^(\w+)[{ ]", text, re.M))
        check(names == set(re.findall(r"^(\w+)[{ ]", text_of(d), re.M)), "the same names")
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=60,
                                  check=False)
            check(done.returncode == 0 and done.stderr == "", f"promtool: {done}")


def histograms_count():
    """A fetch and turns are in the histograms; test_health.c has the others."""
    with Daemon(*SMALL) as d:
        hold(d, "k", "1", "1")
        families = openmetrics.parse(text_of(d))
        for name, least in (("fetch_wait", 1), ("turn_cpu", 5), ("turn", 5)):
            counts = [v for s, _, v in families[f"zshard_{name}_seconds"].samples if s == "_count"]
            check(len(counts) == 1 and counts[0] >= least, f"{name}: {counts}")


def cost():
    """A scrape, with as many series as there may be, is cheap for the loop."""
    with Daemon(*SMALL, *GPU) as d:
        hold(d, "k", "1", "18")
        text_of(d)
        worst = []
        for _ in range(5):
            zctl(d, "stat")  # the counters of recent turns start over
            text_of(d)
            recent = {row["name"]: row["value"] for row in d.zctl("stat")}
            worst.append(recent["turn_recent_ns"])
        check(min(worst) < TURN_NS, f"turns of {worst} ns")


def http():
    with Daemon(*SMALL) as d:
        def ask(request, status):
            done = zctl(d, "metrics", "--http", input=request)
            head, _, body = done.stdout.partition("\n\n")  # text=True makes \n of \r\n
            check(head.startswith(f"HTTP/1.0 {status} "), f"{request!r}: {done}")
            check(f"Content-Length: {len(body.encode())}" in head, f"{head} {len(body)}")
            return head, body

        head, body = ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200)
        check("application/openmetrics-text; version=1.0.0; charset=utf-8" in head, head)
        openmetrics.parse(body)
        ask("POST / HTTP/1.1\r\n\r\n", 400)
        ask("GET / HTTP/1.1\r\n", 400)
        ask("GET /" + "x" * 9000, 400)
        done = subprocess.run([program("zctl"), "-s", d.folder + "/nothing", "metrics", "--http"], input="GET / HTTP/1.0\r\n\r\n",
                              text=True, capture_output=True, timeout=60, check=False)
        check(done.returncode == 3 and done.stdout.startswith("HTTP/1.0 503 "), f"{done}")


def dashboard_panels():
    with open(os.path.join(PROMETHEUS, "zshard_dashboard.json"), encoding="utf-8") as file:
        return json.load(file)["panels"]


def alerts():
    """Alerts use metrics that there are, have a test, and are explained."""
    def read(*path):
        with open(os.path.join(*path), encoding="utf-8") as file:
            return file.read()

    rules, tests, page = (read(PROMETHEUS, "zshard_alerts.yml"), read(PROMETHEUS, "zshard_alerts_test.yml"),
                          read(ROOT, "docs", "how-to", "watch.md"))
    docs = documented()
    used = set(re.findall(r"\bzshard_\w+", re.sub(r"#.*", "", rules)))
    for name in used:
        check(re.sub(r"_bucket\Z", "", name) in docs, f"{name} is not a metric")
    names = re.findall(r"- alert: (\w+)", rules)
    check(len(names) > 10 and len(set(names)) == len(names), f"{names}")
    for name in names:
        check(f"alertname: {name}\n" in tests, f"{name} has no test")
        check(f"`{name}`" in page, f"{name} is not in docs/how-to/watch.md")


def dashboard():
    """Every query of the dashboard uses metrics that there are; panels have names, and do not overlap."""
    docs = documented()
    panels = [panel for panel in dashboard_panels() if panel["type"] != "row"]
    check(len(panels) > 15 and len({panel["id"] for panel in panels}) == len(panels), f"{len(panels)} panels")
    taken = set()
    for panel in panels:
        check(panel["title"] and panel["description"].endswith("."), f"{panel['title']}")
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        check(not cells & taken and at["x"] + at["w"] <= 24, f"{panel['title']} overlaps")
        taken |= cells
        for target in panel["targets"]:
            names = re.findall(r"\bzshard_\w+", target["expr"])
            check(names or "DCGM" in target["expr"], target["expr"])
            for name in names:
                check(re.sub(r"_bucket\Z", "", name) in docs, f"{name} is not a metric")


TESTS = {f.__name__: f for f in (dashboard, status, is_strict, form, in_prometheus_format, histograms_count, cost, http,
                                 alerts)}


def promtool():
    """For a test of its own, which is skipped where there is no promtool."""
    if not shutil.which("promtool"):
        skip("promtool is not installed (Debian: prometheus)")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("zshard_alerts.yml", "zshard_alerts_test.yml"):
            shutil.copy(os.path.join(PROMETHEUS, name), folder)
        for words in (["check", "rules", "zshard_alerts.yml"], ["test", "rules", "zshard_alerts_test.yml"]):
            done = subprocess.run(["promtool", *words], cwd=folder, text=True, capture_output=True, timeout=120, check=False)
            check(done.returncode == 0, f"promtool {words}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--promtool"]:
        del sys.argv[1:]
        sys.exit(main({"promtool": promtool}))
    sys.exit(main(TESTS))
