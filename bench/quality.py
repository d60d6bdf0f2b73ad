#!/usr/bin/env python3
"""quality.py - how well the optimizers, moments and ways of clipping train: final losses of one GPT, with several seeds.

    ZSHARD_BUILD=build bench/quality.py --data TEXT [--steps N] [--seeds S...] [--jobs N] [--out FOLDER]

Each row of ROWS is trained by zgpt with every seed, with its state in a daemon. All rows of a seed start with the same
weights and see the same batches. The learning rate rises for a tenth of the steps, then falls to a tenth of its maximum,
as a cosine. The final loss is the mean over the last tenth of the steps.

--tune trains each optimizer with fp32 moments at several learning rates, with a seed that is not used otherwise. The best
ones are in LR, and its other rows use them, too.

zgpt computes with one thread, so --jobs runs are trained at a time. Load on the machine changes no loss. Writes
quality.json, with all losses, after each run; it resumes from there. At the end, table.txt and quality.svg.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html import escape

from zero_table import Daemon, Wrong, commit, machine, program

LR = {"adamw": 2e-3, "muon": 8e-3, "lion": 4e-4}
LRS = {"adamw": (1e-3, 2e-3, 4e-3), "muon": (4e-3, 8e-3, 1.6e-2, 3.2e-2), "lion": (2e-4, 4e-4, 8e-4, 1.6e-3)}
TUNING_SEED = 1000

# name, optimizer, flags; the first row is the one that others are compared with. {warmup}: a tenth of the steps
BY_TENSOR = ("--clip-mode", "tensor", "--clip-warmup", "{warmup}")
ROWS = (
    ("AdamW, fp32", "adamw", ()),
    ("AdamW, bf16 moments", "adamw", ("--moments", "bf16")),
    ("AdamW, 8-bit moments", "adamw", ("--moments", "8bit")),
    ("AdamW, bf16 weights", "adamw", ("--dtype", "bf16")),
    ("AdamW, bf16 weights, 8bit-lo", "adamw", ("--dtype", "bf16", "--moments", "8bit-lo")),
    ("AdamW, clipped by tensor", "adamw", BY_TENSOR),
    ("Muon, fp32", "muon", ()),
    ("Muon, bf16 momentum", "muon", ("--moments", "bf16")),
    ("Muon, 8-bit momentum", "muon", ("--moments", "8bit")),
    ("Muon, clipped by tensor", "muon", BY_TENSOR),
    ("Lion, fp32", "lion", ()),
    ("Lion, 8-bit momentum", "lion", ("--moments", "8bit")),
)
COLORS = {"adamw": "#4269d0", "muon": "#ff725c", "lion": "#3ca951"}
DASHES = ("", "7 3", "2 2", "10 3 2 3", "4 6", "1 4")
MODELS = {  # layers, heads, width, tokens of a sequence, sequences of a step
    "usual": (4, 4, 256, 128, 16),
    "short": (1, 2, 32, 32, 4),
}


class Study:
    def __init__(self, args):
        self.args = args
        layers, heads, width, seq, batch = MODELS["short" if args.short else "usual"]
        self.tokens = f"{batch} sequences of {seq} tokens"
        self.flags = ["--layers", str(layers), "--heads", str(heads), "--width", str(width), "--seq", str(seq),
                      "--batch", str(batch), "--micro-batch", str(batch)]
        self.path = os.path.join(args.out, "quality.json")
        self.runs = {}  # "row|lr|seed": losses
        self.model = ""
        self.seconds = 0.0  # of all runs, as if they were made one after another
        self.lock = threading.Lock()  # of these
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as f:
                saved = json.load(f)
            if saved["steps"] != args.steps or saved["flags"] != self.flags:
                raise Wrong(f"{self.path} is of another study: remove it, or use another --out")
            self.runs, self.model, self.seconds = saved["runs"], saved["model"], saved["seconds"]

    def save(self):
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump({"commit": commit(), "machine": machine(), "steps": self.args.steps, "flags": self.flags,
                       "model": self.model, "seconds": self.seconds, "runs": self.runs}, f)
        os.replace(self.path + ".new", self.path)

    def losses(self, row, lr, seed):
        """Of each step; from the file if this run was made before."""
        name, optimizer, flags = row
        key = f"{name}|{lr:g}|{seed}"
        if key not in self.runs:
            began = time.monotonic()
            model, losses = self.train(optimizer, flags, lr, seed)
            with self.lock:
                self.model, self.runs[key] = model, losses
                self.seconds += time.monotonic() - began
                self.save()
                print(f"quality: {name}, lr {lr:g}, seed {seed}: {self.final(losses):.4f}", file=sys.stderr, flush=True)
        return self.runs[key]

    def train(self, optimizer, flags, lr, seed):
        """(what zgpt says of its model and text, losses)"""
        folder = tempfile.mkdtemp(prefix="run-", dir=self.args.out)
        jsonl, config = (os.path.join(folder, name) for name in ("steps.jsonl", "schedule.json"))
        warmup = max(1, self.args.steps // 10)
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"scheduler": {"type": "WarmupCosineLR", "params": {
                "total_num_steps": self.args.steps, "warmup_num_steps": warmup,
                "warmup_min_ratio": 0.0, "cos_min_ratio": 0.1}}}, f)
        with Daemon(1 << 30, os.path.join(self.args.out, "zshardd.log")) as d:
            command = [program("zgpt"), *self.flags, "--config", config, "--stage", "3", "--steps",
                       str(self.args.steps), "--seed", str(seed), "--data", self.args.data, "--optimizer", optimizer,
                       "--lr", f"{lr:g}", "--weight-decay", "0.1", "--offload", "host", "--socket", d.socket,
                       "--jsonl", jsonl, *(flag.format(warmup=warmup) for flag in flags)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False)
        if done.returncode != 0:
            raise Wrong(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
        with open(jsonl, encoding="utf-8") as f:
            losses = [json.loads(line)["loss"] for line in f]
        shutil.rmtree(folder)
        model = " ".join(re.search(r"(\d+ parameters).*", done.stdout).group(1).split())
        return model + "; " + re.search(r"(\d+ tokens from .*)", done.stdout).group(1), losses

    def final(self, losses):
        return statistics.fmean(losses[-max(1, self.args.steps // 10):])

    def all(self, which):
        """Losses of each (row, learning rate, seed), --jobs at a time."""
        with ThreadPoolExecutor(self.args.jobs) as pool:
            asked = [pool.submit(self.losses, *one) for one in which]
            try:
                return [one.result() for one in asked]
            except Wrong:
                pool.shutdown(cancel_futures=True)
                raise

    def tune(self):
        first = {}  # of each optimizer
        for row in ROWS:
            first.setdefault(row[1], row)
        which = [(row, lr, TUNING_SEED) for row in first.values() for lr in LRS[row[1]]]
        for (row, lr, _), losses in zip(which, self.all(which)):
            print(f"{row[0]:<28} lr {lr:<8g} {self.final(losses):.4f}", flush=True)

    def rows(self):
        """(row, losses of each seed), seed by seed, so that an interrupted study has whole seeds."""
        which = [(row, LR[row[1]], seed) for seed in self.args.seeds for row in ROWS]
        found = {row: [] for row in ROWS}
        for (row, _, _), losses in zip(which, self.all(which)):
            found[row].append(losses)
        return found


def text(study, found):
    args = study.args
    lines = [f"{study.model}; {args.steps} steps of {study.tokens}, seeds {', '.join(map(str, args.seeds))}; "
             f"{machine()}, commit {commit()}",
             "final: mean loss of the last tenth of the steps, median of the seeds; spread: highest minus lowest; against: "
             "difference to the first row with the same seed, median, lowest and highest", "",
             f"{'':<28} {'lr':>7} {'final':>8} {'spread':>8} {'against':>9}"]
    base = [study.final(losses) for losses in found[ROWS[0]]]
    for row, runs in found.items():
        finals = [study.final(losses) for losses in runs]
        other = [b - a for a, b in zip(base, finals)]
        lines.append(f"{row[0]:<28} {LR[row[1]]:>7g} {statistics.median(finals):8.4f} {max(finals) - min(finals):8.4f} "
                     f"{statistics.median(other):+9.4f} ({min(other):+.4f} to {max(other):+.4f})")
    return "\n".join(lines) + "\n"


def smooth(losses, window):
    """Means of so many steps."""
    return [statistics.fmean(losses[i:i + window]) for i in range(0, len(losses) - window + 1, window)]


def svg(study, found):
    """One line of each row: the mean over seeds, of every fortieth of the steps."""
    window = max(1, study.args.steps // 40)
    lines = []
    for row, runs in found.items():
        lines.append((row, [statistics.fmean(at) for at in zip(*(smooth(losses, window) for losses in runs))]))
    left, top, width, height = 60, 20, 560, 380
    low = min(min(points) for _, points in lines)
    high = max(points[min(2, len(points) - 1)] for _, points in lines)
    scale = height / max(high - low, 1e-9)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 230}" height="{top + height + 50}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for i in range(6):
        value = low + (high - low) * i / 5
        y = top + height - (value - low) * scale
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    seen = {}
    for at, (row, points) in enumerate(lines):
        step = width / len(points)
        dash = DASHES[seen.setdefault(row[1], 0)]
        seen[row[1]] += 1
        path = " ".join(f"{left + (i + 0.5) * step:.1f},{top + height - (min(p, high) - low) * scale:.1f}"
                        for i, p in enumerate(points))
        style = f'fill="none" stroke="{COLORS[row[1]]}" stroke-width="1.6" stroke-dasharray="{dash}"'
        y = top + 10 + 20 * at
        out.append(f'<polyline points="{path}" {style}/>')
        out.append(f'<line x1="{left + width + 16}" x2="{left + width + 46}" y1="{y}" y2="{y}" {style}/>'
                   f'<text x="{left + width + 52}" y="{y + 4}">{escape(row[0])}</text>')
    for i in range(5):
        x = left + width * i / 4
        out.append(f'<text x="{x:.1f}" y="{top + height + 18}" text-anchor="middle">{study.args.steps * i // 4}</text>')
    out.append(f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">steps; training loss, '
               f'mean of {len(study.args.seeds)} seeds</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    p = argparse.ArgumentParser(description="Final losses of one GPT with each optimizer, form of moments and way of clipping.")
    p.add_argument("--data", required=True, help="a text file")
    p.add_argument("--steps", type=int, default=440, help="of each run [440]")
    p.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="[1 2 3]")
    p.add_argument("--jobs", type=int, default=2, help="runs at a time [2]")
    p.add_argument("--tune", action="store_true", help="only compare learning rates")
    p.add_argument("--out", default="out/quality", help="folder for results [out/quality]")
    p.add_argument("--short", action="store_true", help="a tiny model")
    args = p.parse_args()
    if args.steps < 1 or args.jobs < 1:
        p.error("--steps and --jobs are at least 1")
    os.makedirs(args.out, exist_ok=True)
    try:
        study = Study(args)
        if args.tune:
            study.tune()
            return 0
        found = study.rows()
    except Wrong as why:
        print(f"quality: {why}", file=sys.stderr)
        return 1
    for name, said in (("table.txt", text(study, found)), ("quality.svg", svg(study, found))):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            f.write(said)
    print(text(study, found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
