"""zero_table.py - one training in every mode of ZeRO: bytes of model states on a rank, traffic, time, loss.

Each row is a run of zgpt under mpirun, with a daemon of its own where something is offloaded. What is
measured is in zgpt's --jsonl: on the CPU the engine's own accounting, exact; with --device the bytes that
are allocated on the device. Beside it stands what the formulas say: with P parameters, N ranks and p, g, k
bytes of each for parameter, gradient and optimizer state,

    DDP (p + g + k) P      ZeRO-1 (p + g + k/N) P      ZeRO-2 (p + (g + k)/N) P      ZeRO-3 (p + g + k) P / N

The engine pads units to equal slices of whole blocks; by that the measured bytes must equal the formula
exactly, or the row fails, and so must the losses of all fp32 rows, bit for bit.
"""
import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from html import escape

BLOCK = 4096  # elements
LAYOUTS = {"fp32": (4, 4, 8), "bf16": (2, 4, 10), "fp16": (2, 4, 12)}
PLANES = ("param", "grad", "optimizer")
PHASES = ("forward", "backward", "step")
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "LICENSE")  # which nobody edits meanwhile
DEADLINE = 900  # seconds of one run

# name, stage, dtype, offloaded to, further flags
ROWS = (
    ("DDP", 0, "fp32", None, ()),
    ("ZeRO-1", 1, "fp32", None, ()),
    ("ZeRO-2", 2, "fp32", None, ()),
    ("ZeRO-2 + offload", 2, "fp32", "host", ()),
    ("ZeRO-3", 3, "fp32", None, ()),
    ("ZeRO-3 + offload", 3, "fp32", "host", ()),
    ("ZeRO-3 + NVMe", 3, "fp32", "nvme", ()),
    ("ZeRO-3 + fp16", 3, "fp16", None, ()),
    ("ZeRO-3 + bf16", 3, "bf16", None, ()),
    ("ZeRO-3 + int8 gathers", 3, "fp32", None, ("--quantize-gather",)),
)
SIZES = {  # layers, heads, width, tokens of a sequence, sequences of a rank
    "usual": (4, 8, 256, 128, 4),
    "short": (2, 2, 64, 32, 2),
}


class Wrong(Exception):
    """A run failed, or did not do what it must."""


def program(name):
    return os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin", name)


class Daemon:
    """A zshardd in a folder of its own, both gone at the end."""

    def __init__(self, host_bytes, log):
        self.folder = tempfile.mkdtemp(prefix="zshard-table-")
        self.socket = os.path.join(self.folder, "s")
        self.command = [program("zshardd"), "--socket", self.socket, "--data", os.path.join(self.folder, "data"),
                        "--host-bytes", str(host_bytes), "--nvme-bytes", "1G", "--page-elems", "8192",
                        "--ring-bytes", "4K"]
        self.log = log
        self.process = None

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=log, text=True)
        if not self.process.stdout.readline().startswith("ready "):
            self.__exit__()
            raise Wrong(f"the daemon did not start: {self.log}")
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Table:
    def __init__(self, args):
        self.args = args
        self.layers, self.heads, self.width, self.seq, self.batch = SIZES["short" if args.short else "usual"]
        self.params = self.vocabulary = 0

    def zgpt(self, row, steps, socket=None):
        """(exit status, what it said, its steps)"""
        _, stage, dtype, offload, more = row
        jsonl = os.path.join(self.args.out, "steps.jsonl")
        command = [program("zgpt"), "--stage", str(stage), "--dtype", dtype, "--steps", str(steps), "--seed", "1",
                   "--layers", str(self.layers), "--heads", str(self.heads), "--width", str(self.width),
                   "--seq", str(self.seq), "--batch", str(self.batch * self.args.ranks), "--micro-batch",
                   str(self.batch), "--data", DATA, "--lr", "1e-3", "--weight-decay", "0.1", "--jsonl", jsonl, *more]
        if offload:
            command += ["--offload", offload, "--offload-grad", "host", "--socket", socket]
        if self.args.device:
            command += ["--device", self.args.device]
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(self.args.ranks)]
        env = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "PMIX_MCA_gds": "hash"}
        done = subprocess.run(mpirun + command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=DEADLINE, env=env, check=False)
        if done.returncode != 0:
            return done.returncode, done.stdout, []
        with open(jsonl, encoding="utf-8") as f:
            lines = [json.loads(line) for line in f]
        os.unlink(jsonl)
        return 0, done.stdout, lines

    def least_host_bytes(self, row, log):
        """The smallest budget that the daemon takes the job with, as its refusal says."""
        budget = 2 << 20
        while budget < 1 << 40:
            with Daemon(budget, log) as d:
                status, said, _ = self.zgpt(row, 0, d.socket)
            found = re.search(r"smallest host_bytes that would work is (\d+)", said)
            if found:
                return int(found.group(1))
            if status == 0:
                return budget
            budget += budget // 4
        raise Wrong("no budget of host memory would do")

    def run(self, row):
        log = os.path.join(self.args.out, "zshardd.log")
        if not row[3]:
            return self.zgpt(row, self.args.steps)
        host = self.least_host_bytes(row, log) if row[3] == "nvme" else 32 * self.params + (256 << 20)
        with Daemon(host, log) as d:
            return self.zgpt(row, self.args.steps, d.socket)

    # ---- what the formulas say

    def units(self):
        c = self.width
        return [(self.vocabulary + self.seq) * c] + [12 * c * c + 13 * c] * self.layers + [2 * c]

    def padded(self, ranks):
        return sum(-(-(-(-u // ranks)) // BLOCK) * BLOCK * ranks for u in self.units())

    def planes(self, row, elems):
        """Of each plane: its bytes on a rank."""
        cut = [self.args.ranks if row[1] >= least else 1 for least in (3, 2, 1)]
        return [size * elems / n for size, n in zip(LAYOUTS[row[2]], cut)]

    def expected(self, row):
        """(own, daemon's): of this rank, padded, exact."""
        want = self.planes(row, self.padded(1 if row[1] == 0 else self.args.ranks))
        if not row[3]:
            return want, [0, 0, 0]
        slices = self.planes(("", 3, *row[2:]), self.padded(self.args.ranks))
        whole = [w if row[1] < least else 0 for w, least in zip(want, (3, 2, 1))]
        return whole, slices

    def check(self, row, r):
        own, daemon = self.expected(row)
        if r["own"] != own or r["daemon"] != daemon:
            raise Wrong(f"{row[0]}: {r['own']} and {r['daemon']} bytes; the formulas say {own} and {daemon}")
        self.check_comm(row, r)

    def check_comm(self, row, r):
        """Of all steps together: the gather that is begun ahead of the next step counts in one or the other."""
        ranks, size = self.args.ranks, LAYOUTS[row[2]][0]
        once = size * self.padded(ranks) * (ranks - 1) / ranks * self.args.steps
        ahead = size * (max(self.units()) + BLOCK * ranks)
        comm = r["sent"]
        if row[1] == 0:
            good = comm["across"] == 2 * once and comm["gather"] == comm["reduce"] == 0
        elif row[1] < 3:
            good = once <= comm["gather"] <= once + ahead and comm["reduce"] == once and comm["across"] == 0
        elif row[4]:  # int8 and scales
            good = comm["gather"] < once and comm["reduce"] == once and comm["across"] == 0
        else:  # twice, but for what stays between forward and backward
            good = once <= comm["gather"] <= 2 * once + ahead and comm["reduce"] == once and comm["across"] == 0
        if not good:
            raise Wrong(f"{row[0]}: {comm} sent in all steps; all parameters once per step would be {once}")

    # ---- a row

    def row(self, row):
        if row[4] and row[4][0] not in self.help:
            return {"mode": row[0], "skipped": f"zgpt has no {row[4][0]}"}
        status, said, steps = self.run(row)
        if status in (2, 4) and self.args.device:
            return {"mode": row[0], "skipped": said.strip().splitlines()[-1]}
        if status != 0 or len(steps) != self.args.steps:
            raise Wrong(f"{row[0]}: zgpt ended with {status}:\n{said}")
        if not self.params:
            self.params = int(re.search(r"(\d+) parameters", said).group(1))
            self.vocabulary = int(re.search(r"vocabulary (\d+)", said).group(1))
        last, states = steps[-1], steps[-1]["state_bytes"]
        most = {phase: max(s["buffer_bytes"][phase] for s in steps) for phase in PHASES}
        own = [states[plane] for plane in PLANES]
        r = {
            "mode": row[0], "stage": row[1], "dtype": row[2], "offload": row[3] or "none",
            "formula": round(sum(self.planes(row, self.params))),
            "own": own, "daemon": [states["daemon_" + plane] for plane in PLANES],
            "phases": {phase: sum(own) + most[phase] for phase in PHASES},
            "activations": max(s["activation_bytes"] for s in steps),
            "comm": {name: statistics.median_low(s["comm_bytes"][name] for s in steps) for name in last["comm_bytes"]},
            "sent": {name: sum(s["comm_bytes"][name] for s in steps) for name in last["comm_bytes"]},
            "tiers": last["tier_bytes"],
            "seconds": sum(self.batch * self.args.ranks * self.seq / s["tokens_per_s"] for s in steps),
            "losses": [s["loss"] for s in steps],
        }
        r["peak"] = max(r["phases"].values()) + r["activations"]
        if "device_bytes" in last:  # all that is allocated there: activations are in it
            r["phases"] = {phase: max(s["device_bytes"][phase] for s in steps) for phase in PHASES}
            r["peak"] = max(r["phases"].values())
        self.check(row, r)
        return r

    def rows(self):
        self.help = subprocess.run([program("zgpt"), "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        first, rows = None, []
        for row in ROWS:
            print(f"zero_table: {row[0]} ...", file=sys.stderr, flush=True)
            r = self.row(row)
            if "skipped" not in r and r["dtype"] == "fp32" and not row[4]:
                first = first or r
                if r["losses"] != first["losses"]:
                    raise Wrong(f"{row[0]}: the losses differ from those of {first['mode']}")
            rows.append(r)
        return rows


# ---- what is printed

def mib(n):
    return f"{n / 2**20:.2f}"


def text(table, rows):
    args = table.args
    lines = [
        f"{table.params} parameters, {args.ranks} ranks, {args.steps} steps of {table.batch * args.ranks} sequences of "
        f"{table.seq} tokens; {args.device or 'cpu'}; {machine()}, commit {commit()}",
        "MiB of one rank. formula: of the model states, by hand; states: measured, padded to equal slices of whole blocks, "
        "in the rank itself and in the daemon.",
        ("At the end of each phase: allocated on the device." if args.device else
         "forward, backward, step: states and the engine's buffers of the rank itself, by its accounting; peak: the most of "
         "them and activations.") + " Sent in one step: by collective.",
        "",
        f"{'mode':<22} {'dtype':<5} {'formula':>8} {'states':>8} {'daemon':>8} {'forward':>8} {'backward':>8} {'step':>8} "
        f"{'peak':>8} {'gather':>8} {'reduce':>8} {'allred.':>8} {'NVMe':>8} {'seconds':>8} {'loss':>8}",
    ]
    for r in rows:
        if "skipped" in r:
            lines.append(f"{r['mode']:<22} skipped: {r['skipped']}")
            continue
        numbers = [r["formula"], sum(r["own"]), sum(r["daemon"]), *(r["phases"][p] for p in PHASES), r["peak"],
                   r["comm"]["gather"], r["comm"]["reduce"], r["comm"]["across"], r["tiers"]["nvme"] / args.ranks]
        lines.append(f"{r['mode']:<22} {r['dtype']:<5} " + " ".join(f"{mib(n):>8}" for n in numbers) +
                     f" {r['seconds']:8.2f} {r['losses'][-1]:8.4f}")
    lines += ["", "Measured states equal the formulas over padded units, byte for byte, in every row; the losses of all "
              "fp32 rows (int8 gathers apart) are the same bits."]
    return "\n".join(lines) + "\n"


COLORS = (("parameters", "#4269d0"), ("gradients", "#efb118"), ("optimizer state", "#ff725c"),
          ("buffers, at most", "#9c9c9c"), ("activations", "#d7d7d7"))
SENT = (("gather", "#4269d0"), ("reduce", "#efb118"), ("across", "#6cc5b0"))


def bar(x, y, parts, scale, faint=False):
    out = []
    for size, color in parts:
        if size > 0:
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{size * scale:.1f}" height="16" fill="{color}"'
                       f'{" fill-opacity=" + chr(34) + "0.45" + chr(34) if faint else ""}/>')
            x += size * scale
    return out


def svg(table, rows):
    """Two panels: bytes on a rank (faint: its part of the daemon), and bytes sent in a step."""
    done = [r for r in rows if "skipped" not in r]
    left, panel, gap = 170, 520, 60
    memory = panel / max(max(r["peak"], sum(r["own"])) + sum(r["daemon"]) for r in done)
    sent = 260 / max(1, max(sum(r["comm"][name] for name, _ in SENT) for r in done))
    height = 110 + 24 * len(done)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + panel + gap + 340}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="10" y="22" font-size="15">Memory of one of {table.args.ranks} ranks, {table.params} parameters</text>',
           f'<text x="{left + panel + gap}" y="22" font-size="15">Sent by it in one step</text>']
    x = 10
    for name, color in COLORS:
        out.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{color}"/><text x="{x + 16}" y="44">{name}</text>')
        x += 28 + 7 * len(name)
    out.append(f'<text x="{x}" y="44">faint: its part of the daemon</text>')
    x = left + panel + gap
    for name, color in SENT:
        label = "all-reduce" if name == "across" else name
        out.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{color}"/><text x="{x + 16}" y="44">{label}</text>')
        x += 32 + 7 * len(label)
    for i, r in enumerate(done):
        y = 60 + 24 * i
        states = sum(r["own"])
        device = bool(table.args.device)
        rest = max(0, r["peak"] - states - (0 if device else r["activations"]))
        own = list(zip(r["own"], (c for _, c in COLORS))) + [(rest, COLORS[3][1])]
        if not device:
            own.append((r["activations"], COLORS[4][1]))
        total = sum(size for size, _ in own)
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(r["mode"])}</text>')
        out += bar(left, y, own, memory)
        out += bar(left + total * memory, y, zip(r["daemon"], (c for _, c in COLORS)), memory, faint=True)
        out.append(f'<text x="{left + (total + sum(r["daemon"])) * memory + 4:.1f}" y="{y + 13}">{mib(total)}</text>')
        x = left + panel + gap
        parts = [(r["comm"][name], color) for name, color in SENT]
        out += bar(x, y, parts, sent)
        out.append(f'<text x="{x + sum(p for p, _ in parts) * sent + 4:.1f}" y="{y + 13}">'
                   f'{mib(sum(p for p, _ in parts))}</text>')
    out.append(f'<text x="10" y="{height - 14}">MiB. Peak of the rank itself; losses of all fp32 rows are the same bits.</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def machine():
    name = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {os.cpu_count()} processors"


def commit():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        done = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def main():
    p = argparse.ArgumentParser(prog="zero_table.sh", description="One training in every mode of ZeRO: memory, "
                                "traffic, time, loss; as a table, as JSON and as a plot.")
    p.add_argument("--ranks", type=int, default=2, help="of each run, under mpirun [2]")
    p.add_argument("--steps", type=int, default=20, help="of each run [20]")
    p.add_argument("--device", help="as zgpt's: cuda, or emulated; bytes are the device's then [the CPU]")
    p.add_argument("--out", default="out/zero_table", help="folder for table.txt, table.json, table.svg [out/zero_table]")
    p.add_argument("--short", action="store_true", help="a small model and 4 steps")
    args = p.parse_args()
    if args.ranks < 1 or args.steps < 1:
        p.error("--ranks and --steps are at least 1")
    if not shutil.which("mpirun"):
        p.error("mpirun was not found")
    if args.short:
        args.steps = min(args.steps, 4)
    os.makedirs(args.out, exist_ok=True)
    table = Table(args)
    try:
        rows = table.rows()
    except Wrong as why:
        print(f"zero_table: {why}", file=sys.stderr)
        return 1
    said = text(table, rows)
    print(said, end="")
    with open(os.path.join(args.out, "table.txt"), "w", encoding="utf-8") as f:
        f.write(said)
    with open(os.path.join(args.out, "table.json"), "w", encoding="utf-8") as f:
        json.dump({"commit": commit(), "machine": machine(), "params": table.params, "ranks": args.ranks,
                   "steps": args.steps, "device": args.device or "cpu", "rows": rows}, f, indent=2)
        f.write("\n")
    with open(os.path.join(args.out, "table.svg"), "w", encoding="utf-8") as f:
        f.write(svg(table, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
