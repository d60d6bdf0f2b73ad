#!/usr/bin/env python3
"""test_dashboard.py - the dashboard's queries and the alerts on a real Prometheus (Debian: prometheus), which scrapes a real
daemon while a job trains. Without it the test is skipped. Everything listens on loopback.

    test_dashboard.py            each query is answered, and those that can have values here have some
    test_dashboard.py --plot DIR  also writes each panel as a picture (matplotlib), to be looked at
"""

import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

from harness import Daemon, Failure, check, main, program, skip, wait_until
from test_metrics import PROMETHEUS, dashboard_panels

TRAIN = ("--seed", "1", "--batch", "4", "--micro-batch", "4", "--seq", "32", "--layers", "4", "--heads", "2", "--width", "192",
         "--offload", "nvme", "--keep", "--commit-every", "5", "--steps", "1000000")
SECONDS = 15
# Nothing of these happens here: no GPU, no failure.
MAY_BE_EMPTY = {"Reasons"}
MAY_LACK = ("DCGM_", 'tier="gpu"')


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Exporter(http.server.ThreadingHTTPServer):
    """zctl metrics at a port."""

    def __init__(self, daemon):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802
                done = subprocess.run([program("zctl"), "metrics"], env=daemon.env(), capture_output=True, timeout=60, check=False)
                self.send_response(200 if done.returncode == 0 else 503)
                self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
                self.end_headers()
                self.wfile.write(done.stdout)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Prometheus:
    def __init__(self, folder, target):
        self.port = free_port()
        shutil.copy(os.path.join(PROMETHEUS, "zshard_alerts.yml"), folder)
        path = os.path.join(folder, "prometheus.yml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [zshard_alerts.yml]\n"
                    "scrape_configs:\n  - job_name: zshard\n    honor_labels: true\n    static_configs:\n"
                    f"      - targets: ['127.0.0.1:{target}']\n")
        self.log = open(os.path.join(folder, "prometheus.log"), "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=subprocess.STDOUT)
        wait_until("Prometheus is ready", self.ready, 30)

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def ready(self):
        check(self.process.poll() is None, "Prometheus has ended")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5).close()
            return True
        except OSError:
            return False

    def series(self, expr):
        end = time.time()
        expr = expr.replace("$__rate_interval", "4s").replace("$instance", ".*").replace("[2m]", "[4s]").replace("[5m]", "[10s]")
        found = self.get("/api/v1/query_range", query=expr, start=end - SECONDS, end=end, step=1)["result"]
        # A quantile of no observations is NaN.
        return [s for s in found if any(value != "NaN" for _, value in s["values"])]

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def label(text, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), text)


def plot(panel, series, folder):
    import matplotlib  # noqa: PLC0415

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    figure, axes = pyplot.subplots(figsize=(6, 3))
    for legend, found in series:
        for s in found:
            axes.plot([float(t) for t, _ in s["values"]], [float(v) for _, v in s["values"]], label=label(legend, s["metric"]))
    axes.set_title(f"{panel['title']} ({panel['fieldConfig']['defaults']['unit']})")
    axes.legend(fontsize=5)
    figure.savefig(os.path.join(folder, f"{panel['id']:02}.png"), dpi=80)
    pyplot.close(figure)


def look(prometheus, folder):
    """Asks every query; returns those without values, and plots into the folder."""
    empty = []
    for panel in dashboard_panels():
        if panel["type"] == "row":
            continue
        series = [(t["legendFormat"], prometheus.series(t["expr"])) for t in panel["targets"]]
        for target, (_, found) in zip(panel["targets"], series):
            if not found and panel["title"] not in MAY_BE_EMPTY and not any(w in target["expr"] for w in MAY_LACK):
                empty.append(f"{panel['title']}: {target['expr']}")
            for s in found:
                names = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
                check(all(name in s["metric"] for name in names), f"{panel['title']}: {target['legendFormat']} of {s['metric']}")
        if folder:
            plot(panel, series, folder)
    return empty


def queries(folder=None):
    if not shutil.which("prometheus"):
        skip("prometheus is not installed (Debian: prometheus)")
    with Daemon("--host-bytes", "24M", "--nvme-bytes", "256M", "--page-elems", "8192") as d:
        exporter = Exporter(d)
        prometheus = Prometheus(d.folder, exporter.server_address[1])
        trainer = subprocess.Popen([program("zgpt"), *TRAIN], env=d.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if folder:
                time.sleep(SECONDS)
            try:
                wait_until("each query has values", lambda: not look(prometheus, folder), 60)
            except Failure as e:
                raise Failure(f"{e}: {look(prometheus, None)}") from e
            check(trainer.poll() is None, f"zgpt ended with {trainer.poll()}")
            bad = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
            check(not bad, f"rules that fail: {bad}")
            firing = [alert["labels"]["alertname"] for alert in prometheus.get("/api/v1/alerts")["alerts"]
                      if alert["state"] == "firing" and alert["labels"]["severity"] == "critical"]
            check(not firing, f"alerts fire on a healthy machine: {firing}")
        finally:
            trainer.terminate()
            trainer.wait(60)
            prometheus.close()
            exporter.shutdown()
            exporter.server_close()


TESTS = {"queries": queries}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--plot"]:
        try:
            queries(sys.argv[2])
        except Failure as e:
            sys.exit(f"test_dashboard: {e}")
    else:
        sys.exit(main(TESTS))
