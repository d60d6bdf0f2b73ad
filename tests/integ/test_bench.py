#!/usr/bin/env python3
"""test_bench.py - zbench fetch, commit and catalog: they run, say what README.md of bench/ says, and leave nothing behind.
The figures themselves are judged by people.

    ZSHARD_BUILD=build tests/integ/test_bench.py [NAME...]
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from harness import check, main, program, wait_until


def zbench(*args, path=None, bench="fetch"):
    return subprocess.run([path or program("zbench"), bench, *args], text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def rows():
    before = set(glob.glob("/tmp/zbench-*"))
    done = zbench("--json", "--rounds", "2", "--ops", "20")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    said = json.loads(done.stdout)
    check(said["bench"] == "fetch", f"{said}")
    one = ["fetch/resident/pingpong", "fetch/resident-64/pingpong"]
    two = ["fetch/resident/2cpu/pingpong", "fetch/resident-64/2cpu/pingpong"]
    check([row["case"] for row in said["rows"]] ==
          (one + two if len(os.sched_getaffinity(0)) > 1 else one), f"{said['rows']}")
    for row in said["rows"]:
        check(row["unit"] == "us" and row["better"] == "lower", f"{row}")
        check(row["value"] > 0 and row["reference"] > 0, f"{row}")
        check(abs(row["ratio"] - row["value"] / row["reference"]) < 0.01 * row["ratio"], f"{row}")
    left = set(glob.glob("/tmp/zbench-*")) - before
    check(not left, f"{left} were left behind")


def gpu():
    """On the emulated GPU, which it says; bytes from NVMe come from there."""
    before = set(glob.glob("/tmp/zbench-*"))
    done = zbench("--gpu", "--device", "emulated", "--size", "8M", "--rounds", "2", "--rate", "200M", "--json")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    said = json.loads(done.stdout)["rows"]
    check([row["case"].replace("nvme-buffered", "nvme") for row in said] ==
          ["fetch/gpu/copy/copy", "fetch/gpu/pageable/copy", "fetch/gpu/client/copy", "fetch/gpu/daemon/copy",
           "fetch/gpu/nvme-fixed/least", "fetch/gpu/nvme/least"], f"{said}")
    check(all(row["value"] > 0 and row["reference"] > 0 and row["unit"] == "GB/s" for row in said), f"{said}")
    check("EMULATED" in done.stderr, done.stderr)
    from_device = [int(part.split()[-1]) for part in done.stderr.split(" % of the bytes came from it")[:-1]]
    check(len(from_device) == 2 and min(from_device) >= 50, done.stderr)
    check(set(glob.glob("/tmp/zbench-*")) == before, "something was left behind")
    for args, code in ((["--size", "4M"], 2), (["--device", "abacus"], 2), (["--device", "emulated:2M"], 1),
                       (["--rounds", "0"], 2), (["--what"], 2), (["word"], 2)):
        done = zbench("--gpu", *args)
        check(done.returncode == code and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def commits():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--params", "512K", "--dir", d, bench="commit")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases == ["commit/resident/plain-step", "commit/streamed/plain-step"], f"{cases}")
    check("commits writes 12.00, one that does not 0.00" in done.stderr, done.stderr)
    check("commits writes 12.00, one that does not 12.00" in done.stderr, done.stderr)


def killed():
    """It leaves nothing behind, however it ends."""
    with tempfile.TemporaryDirectory() as d:
        with subprocess.Popen([program("zbench"), "commit", "--params", "512K", "--dir", d],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
            try:
                wait_until("a data file", lambda: glob.glob(f"{d}/*/data/*"), 30)
            finally:
                bench.kill()
        wait_until("nothing is left behind", lambda: os.listdir(d) == [], 30)


def shares():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--params", "512K", "--page-elems", "4K", "--rate", "100M",
                      "--window-ms", "200", "--dir", d, bench="share")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases == ["share/8-clients/1-client", "share/8-clients/1-client/resident", "share/two-jobs/min",
                    "share/two-jobs/3-to-1", "share/two-jobs/3-to-1/with-pushes"], f"{cases}")
    check(all(row["value"] > 0 for row in json.loads(done.stdout)["rows"]), done.stdout)


def hostile():
    """Every attack runs beside a job, whose values are those of a run alone; or the bench fails."""
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--window-ms", "1", "--params", "256K", "--page-elems", "4K",
                      "--rate", "400M", "--dir", d, bench="hostile")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    attacks = ["releases", "answers", "descriptors", "scans", "hellos", "registrations", "definitions", "notes"]
    rows_ = json.loads(done.stdout)["rows"]
    check([row["case"] for row in rows_] ==
          [f"hostile/{name}/step" for name in ("control", *attacks)] +
          [f"hostile/{name}/commit" for name in ("control", *attacks)] +
          [f"hostile/{name}/{what}" for name in ("readers", "snapshots") for what in ("step", "commit")], f"{rows_}")
    check(all(row["value"] > 0 and row["reference"] > 0 for row in rows_), f"{rows_}")
    check(done.stderr.count("bit for bit") == 2, done.stderr)
    for args in (["--params", "4K"], ["--page-elems", "4M"], ["--rounds", "0"], ["--what"], ["word"]):
        done = zbench(*args, bench="hostile")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def snapshots():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "2", "--params", "512K", "--dir", d, bench="snapshot")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases == ["snapshot/streamed/plain-step"], f"{cases}")
    check("a snapshot without a step took" in done.stderr, done.stderr)


def ready():
    """Starts with a store are timed, with and without the page cache."""
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--pages", "1000", "--dir", d, bench="ready")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    rows_ = json.loads(done.stdout)["rows"]
    check([row["case"] for row in rows_] == ["ready/896/warm", "ready/896/cold"], f"{rows_}")
    check(all(0 < row["reference"] < row["value"] for row in rows_), f"{rows_}")


def turns():
    """Every phase runs, and its longest turn is counted."""
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--pages", "600", "--shard-pages", "7", "--dir", d, bench="turns")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    rows_ = json.loads(done.stdout)["rows"]
    phases = ["define", "write", "push", "step", "commit", "leave", "stream", "return", "snapshot", "fsck", "df", "attach",
              "destroy"]
    check([row["case"] for row in rows_] ==
          [f"turns/{phase}/{what}" for phase in phases for what in ("units", "cpu", "p999")], f"{rows_}")
    check(all(row["value"] > 0 for row in rows_), f"{rows_}")
    units = [row for row in rows_ if row["unit"] == "units"]
    check(all(row["reference"] == 4096 and row["value"] <= 4096 for row in units), f"{units}")
    check("600 pages in 86 shards" in done.stderr, done.stderr)


def catalog():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--pages", "1000", "--dir", d, bench="catalog")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        said = json.loads(done.stdout)
        check([row["case"] for row in said["rows"]] ==
              ["commit/1000/first", "commit/1000/all", "commit/1000/row", "open/1000", "space/1000"],
              f"{said['rows']}")
        check(all(row["value"] > 0 and row["reference"] > 0 for row in said["rows"]), f"{said}")
        check(not os.listdir(d), f"{os.listdir(d)} were left behind")
    for args in (["--pages", "0"], ["--rounds", "x"], ["--what"], ["word"]):
        done = zbench(*args, bench="catalog")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def steady():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        done = zbench("--json", "--seconds", "2", "--phase", "1", "--size", "512M", "--rest", "0", "--dir", d, bench="steady")
        if done.returncode == 1 and ("frees no part" in done.stderr or "cannot reserve" in done.stderr):
            print(f"not run: {done.stderr}")
            return
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        (row,) = json.loads(done.stdout)["rows"]
        check(row["case"] == "steady/write/discard" and row["value"] > 0 and row["reference"] > 0, f"{row}")
        said = [line.split() for line in done.stderr.splitlines() if line.endswith("MB/s")]
        check({words[2] for words in said} == {"plain", "discard"}, done.stderr)
        check(not os.listdir(d), f"{os.listdir(d)} were left behind")
    done = zbench("--size", "256M", "--fill", "95", bench="steady")
    check(done.returncode == 2 and "too small" in done.stderr, f"{done.returncode} {done.stderr}")


def plans():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--params", "2M", "--dir", d, "--only", "plan/fixed",
                      bench="plan")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases == ["plan/fixed-1G/step-time", "plan/fixed-1G-half/step-time"], f"{cases}")


def nodes():
    """Gathers inside a node; the bench itself compares bits and bytes."""
    done = zbench("--json", "--only", "node", "--rounds", "1", "--elems", "32K", "--units", "3", "--ranks", "3", bench="comm")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stdout}{done.stderr}")
    rows_ = json.loads(done.stdout)["rows"]
    check([row["case"] for row in rows_] == ["comm/node/shared/all-gather", "comm/node/auto/better"], f"{rows_}")
    check(all(row["value"] > 0 and row["reference"] > 0 for row in rows_), f"{rows_}")
    check("3 ranks of one daemon" in done.stderr and "ms from host memory" in done.stderr, done.stderr)


def boxes():
    """Gathers of a simulated node: the ratios of the formulas."""
    def run(*args):
        done = zbench("--json", "--only", "box", *args, bench="comm")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        return {row["case"]: row["ratio"] for row in json.loads(done.stdout)["rows"]}, done.stderr

    ratios, notes = run()
    check("25.0 GB/s" in notes and "200.0 GB/s" in notes, notes)
    check(len(ratios) == 12, f"{ratios}")
    for r, expected in ((2, 1), (4, 1), (8, 1.875)):  # below 8 the links are the limit
        check(abs(ratios[f"comm/box/{r}/shared/all-gather"] - expected) < 1e-3, f"{r}: {ratios}")
        check(abs(ratios[f"comm/box-unlimited/{r}/shared/all-gather"] - 1) < 1e-3, f"{r}: {ratios}")
    check(all(ratio > 0.97 for case, ratio in ratios.items() if case.endswith("auto/better")), f"{ratios}")
    slow, _ = run("--memory", "1000000000")  # the memory is the limit everywhere: 2 - 1/R
    for r in (2, 4, 8):
        check(abs(slow[f"comm/box/{r}/shared/all-gather"] - (2 - 1 / r)) < 1e-3, f"{r}: {slow}")


def sockets():
    """Fetches into emulated GPUs on simulated links: formulas, and never faster than these."""
    before = set(glob.glob("/tmp/zbench-*"))
    done = zbench("--json", "--rounds", "1", "--size", "512K", "--gpu-link", "20M", "--memory", "100M", "--socket-link", "24M",
                  bench="node")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stdout}{done.stderr}")
    check("SIMULATED" in done.stderr, done.stderr)
    said = {row["case"]: row for row in json.loads(done.stdout)["rows"]}
    ways = ["near/links", "again/near", "off/formula", "off/near", "far/formula", "far/near"]
    check(list(said) == [f"node/{n}/{way}" for n in (1, 2, 4, 8) for way in ways], f"{list(said)}")
    m = 2**20 / 1e6
    for n, off, far in ((1, 20, 20), (2, 40, 40), (4, 80, 48), (8, 96, 48)):  # both directions between the sockets: 48
        for case, expected in ((f"node/{n}/near/links", 20 * n), (f"node/{n}/off/formula", off), (f"node/{n}/far/formula", far)):
            row = said[case]
            check(abs(row["reference"] - expected * m) < 0.01, f"{case}: {row}")
            check(0 < row["value"] <= 1.001 * row["reference"], f"{case}: {row}")
    few = {row["case"]: row for row in json.loads(
        zbench("--json", "--rounds", "1", "--size", "512K", "--gpu-link", "20M", "--memory", "16M", "--socket-link", "1G",
               bench="node").stdout)["rows"]}  # the memories are the limit: both give half
    check(abs(few["node/8/off/formula"]["reference"] - 32 * m) < 0.01, f"{few}")
    check(few["node/8/near/links"]["value"] <= 1.001 * 32 * m, f"{few}")
    check(set(glob.glob("/tmp/zbench-*")) == before, "something was left behind")
    for args in (["--size", "0"], ["--gpu-link", "0"], ["--rounds", "0"], ["--what"], ["word"]):
        done = zbench(*args, bench="node")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def steps():
    if not shutil.which("fio"):
        print("skipped: steps has no fio")
        return
    args = ("--params", "4M", "--rounds", "1", "--page-elems", "65536")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        done = zbench("--json", *args, "--dir", d, bench="step")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    rows = {row["case"]: row for row in json.loads(done.stdout)["rows"]}
    check(list(rows) == ["step/fixed-1G/floor", "step/fixed-3G/floor", "step/fixed-10G/floor", "step/muon/slow-drive/floor",
                         "step/muon/fast-drive/floor",
                         "step/half-resident/fixed-3G", "step/drive/floor", "step/drive/fio",
                         "step/drive/bytes-per-param"], f"{list(rows)}")
    # Only bytes of the layout cross the drive, and the kernel has counted a step that reads and writes all of its
    # state. Without a drive, the kernel counts nothing.
    check(rows["step/drive/bytes-per-param"]["value"] < 20.2, f"{rows}")
    # 84 MB at 1 GB/s take 84 ms, and never less: the device's contents are real, and so is its time
    check(rows["step/fixed-1G/floor"]["value"] >= 83.8, f"{rows}")
    check(rows["step/half-resident/fixed-3G"]["value"] >= 13.9, f"{rows}")
    said = re.search(r"step/muon/slow-drive/floor: 4 million .* a drive of (\d+) MB/s takes (\d+) ms", done.stderr)
    check(said, done.stderr)
    megabytes = 12 * 4.194304  # not 20 for each parameter
    check(int(said[2]) >= 0.95 * megabytes / (int(said[1]) + 0.5) * 1e3, said[0])
    check(rows["step/muon/slow-drive/floor"]["value"] >= 0.95 * megabytes / (int(said[1]) + 0.5) * 1e3, f"{said[0]}: {rows}")
    check("4 million parameters, 0.04 GB of state" in done.stderr, done.stderr)
    for args in (["--params", "4K"], ["--rounds", "0"], ["--page-elems", "5000"], ["--what"], ["word"]):
        done = zbench(*args, bench="step")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def peers():
    """A step of ours beside one of another program's; one that fails says how."""
    args = ("--params", "1M", "--rounds", "1", "--page-elems", "65536")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as d:
        script = os.path.join(d, "peer.sh")
        for body, code, part in (
                ("echo ready other of $2 $3; mkdir $1/x && while read -r line; do echo 0.5 0.25; done", 0,
                 "peer: of 1048576 "),
                ("exit 3", 1, "the peer has ended with status 3"),
                ("echo hello", 1, "the peer is not ready: hello"),
                ("echo ready other x; read -r line; echo fast 1", 1, "the peer answered: fast 1"),
                ("echo ready other x; read -r line; echo 0 1", 1, "the peer answered: 0 1"),
                ("echo ready other x; read -r line; kill -9 $$", 1, "the peer has ended by signal 9")):
            with open(script, "w", encoding="ascii") as f:
                f.write(body)
            done = zbench("--json", *args, "--dir", d, "--peer", f"sh {script}", bench="step")
            check(done.returncode == code and part in done.stderr, f"{body}: {done.returncode} {done.stderr}")
            check(os.listdir(d) == ["peer.sh"], f"{body}: {os.listdir(d)} were left behind")
            if code != 0:
                continue
            step, *moved = json.loads(done.stdout)["rows"]  # moved: a row if the kernel counts the peer's folder
            check(step["case"] == "step/drive/ours/other" and step["reference"] == 500 and step["better"] == "lower",
                  f"{step}")
            check(bool(moved) != ("the kernel counted no transfers" in done.stderr), f"{moved} {done.stderr}")


def overlap():
    """Every switch has its case; the bytes of a step are what they are, whenever they move."""
    done = zbench("--json", "--rounds", "1", "--params", "2M", "--rate", "200M", bench="overlap")
    check(done.returncode == 0, f"overlap: {done.stdout}{done.stderr}")
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases == ["overlap/none", "overlap/serve", "overlap/early", "overlap/all"], f"{cases}")
    done = zbench("--json", "--rounds", "1", "--params", "2M", "--rate", "200M", "--muon", bench="overlap")
    check(done.returncode == 0 and len(json.loads(done.stdout)["rows"]) == 4, f"overlap: {done.stdout}{done.stderr}")


def comm():
    """Four ways to wait for a slow link, and a real one where that can be made."""
    small = ("--json", "--rounds", "1", "--elems", "32K", "--rate", "20M", "--units", "3")
    ways = ["none/compute", "prefetch/none", "overlap/none", "both/none"]
    for args, worlds in ((("--only", "delayed", "--ranks", "3"), 3), ((), 2)):
        done = zbench(*small, *args, bench="comm")
        check(done.returncode == 0, f"comm {args}: {done.returncode} {done.stdout}{done.stderr}")
        said = [row for row in json.loads(done.stdout)["rows"] if not row["case"].startswith(("comm/box", "comm/node"))]
        links = ["delayed"] if args or "skipped: comm/tbf" in done.stderr else ["delayed", "tbf"]
        check([row["case"] for row in said] == [f"comm/{link}/{way}" for link in links for way in ways], f"{said}")
        check(all(row["value"] > 0 and row["better"] == "lower" for row in said), f"{said}")
        # each unit is gathered twice and reduced: slices of whole blocks of 16 KiB
        check(f"delayed: {worlds} ranks" in done.stderr, done.stderr)
        sent = float(done.stderr.split("sends ")[1].split()[0])
        check(abs(sent - 3 * 3 * -(-8 // worlds) * 16384 * (worlds - 1) / 1e6) < 0.06, done.stderr)
    for args in (["--ranks", "1"], ["--units", "1"], ["--elems", "4K"], ["--rounds", "0"], ["--what"], ["word"]):
        done = zbench(*args, bench="comm")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def refused():
    for args in (["--params", "4K"], ["--rounds", "0"], ["--what"], ["word"]):
        done = zbench(*args, bench="commit")
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")
    done = zbench("--params", "4K", bench="plan")
    check(done.returncode == 2 and done.stderr, f"plan: {done.returncode} {done.stderr}")
    for args in (["--ops", "0"], ["--ops", "many"], ["--rounds", "-1"], ["--rounds"], ["--what"],
                 ["word"]):
        done = zbench(*args)
        check(done.returncode == 2 and done.stderr, f"{args}: {done.returncode} {done.stderr}")


def no_daemon():
    """A zbench that stands alone finds no zshardd beside it."""
    with tempfile.TemporaryDirectory() as d:
        alone = shutil.copy(program("zbench"), d)
        done = zbench(path=alone)
        check(done.returncode == 1 and "zshardd (in the directory of this program)" in done.stderr,
              f"{done.returncode} {done.stderr}")


def trains():
    with tempfile.TemporaryDirectory() as d:
        done = zbench("--json", "--rounds", "1", "--dir", d, "--layers", "2", "--heads", "2", "--width", "32", "--seq", "32",
                      "--tokens", "64,128", "--micro-steps", "1,2", bench="train")
        check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
        check(os.listdir(d) == [], f"{os.listdir(d)} were left behind")
        odd = zbench("--dir", d, "--seq", "32", "--tokens", "100", bench="train")
        check(odd.returncode == 2 and "not a whole number of sequences" in odd.stderr, f"{odd.returncode} {odd.stderr}")
    rows_ = json.loads(done.stdout)["rows"]
    check([row["case"] for row in rows_] == [f"train/{t}/{m}/resident" for t in (64, 128) for m in (1, 2)], f"{rows_}")
    check(all(row["value"] > 0 and row["reference"] > 0 for row in rows_), f"{rows_}")


def gpu_kernels():
    done = zbench("--json", "--device", "emulated:64M", "--elems", "64K", "--rounds", "1", bench="gpu")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    check("EMULATED" in done.stderr, done.stderr)
    cases = [row["case"] for row in json.loads(done.stdout)["rows"]]
    check(cases[0] == "gpu/copy/copy" and len(cases) == 21 and "gpu/step/adamw-bf16/copy" in cases, f"{cases}")
    full = zbench("--device", "emulated:4M", "--elems", "1M", "--rounds", "1", bench="gpu")
    check(full.returncode == 1 and "memory" in full.stderr, f"{full.returncode} {full.stderr}")


def ortho():
    done = zbench("--json", "--device", "emulated:64M", "--rows", "40", "--cols", "72", "--rounds", "1", bench="ortho")
    check(done.returncode == 0, f"ended with {done.returncode}: {done.stderr}")
    rows_ = json.loads(done.stdout)["rows"]
    check([row["case"] for row in rows_] == ["ortho/fp32/40x72", "ortho/bf16/40x72"], f"{rows_}")
    check(all(row["value"] > 0 and row["reference"] > 0 for row in rows_), f"{rows_}")
    full = zbench("--device", "emulated:32M", "--rows", "40", "--cols", "72", "--rounds", "1", bench="ortho")
    check(full.returncode == 1 and "memory" in full.stderr, f"{full.returncode} {full.stderr}")


TESTS = {f.__name__: f for f in (rows, gpu, catalog, steady, ready, commits, killed, shares, hostile, snapshots, turns, plans,
                                 overlap, comm, nodes, boxes, sockets, steps,
                                 peers, trains, gpu_kernels, ortho, refused, no_daemon)}

if __name__ == "__main__":
    sys.exit(main(TESTS))
