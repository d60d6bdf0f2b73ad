#!/usr/bin/env python3
"""DeepSpeed's async_io op as a peer of `zbench io`: see README.md beside this file.

Its lines: "ready NAME WHAT..."; then each "read|write BLOCK_BYTES SECONDS" is answered by
"MIB_S CPU_US_PER_BLOCK". The file's bytes are read and written from front to back, through one
pinned buffer of the op (new_cpu_locked_tensor), one synchronous parallel call for each buffer, which
is how DeepSpeed's own swapper uses it."""

import itertools
import os
import resource
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")

TRY_S = float(os.environ.get("PEER_TRY_S", "0.15"))  # of each setting in the search
BUFFER_BYTES = [int(x) << 20 for x in os.environ.get("PEER_BUFFERS_MIB", "64,256").split(",")]
KNOBS = {  # the aio section of DeepSpeed's configuration
    "block_size": [1 << 20, 4 << 20],
    "queue_depth": [8, 32, 128],
    "intra_op_parallelism": [1, 2, 4, 8],
    "single_submit": [False, True],
    "overlap_events": [True, False],
}


def load():
    """The op, built at the first use."""
    import deepspeed
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return deepspeed, torch, AsyncIOBuilder().load(verbose=False)


def cpu_s():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


class Peer:
    def __init__(self, path, first, length):
        self.path, self.first, self.length = path, first, length
        self.deepspeed, self.torch, self.op = load()
        self.buffers, self.handles, self.best, self.at = {}, {}, {}, 0

    def handle(self, knobs):
        if knobs not in self.handles:
            block, depth, parallel, single, overlap = knobs
            self.handles[knobs] = self.op.aio_handle(block, depth, single, overlap, parallel)
        return self.handles[knobs]

    def buffer(self, handle, size):
        if size not in self.buffers:
            example = self.torch.empty(0, dtype=self.torch.uint8)
            self.buffers[size] = handle.new_cpu_locked_tensor(size, example)
            self.buffers[size].random_(0, 256)
        return self.buffers[size]

    def run(self, way, knobs, size, seconds):
        """(MiB/s, CPU seconds per byte)."""
        h = self.handle(knobs)
        buffer = self.buffer(h, size)
        call = h.sync_pread if way == "read" else h.sync_pwrite
        moved, begin, cpu = 0, time.monotonic(), cpu_s()
        while time.monotonic() - begin < seconds:
            if self.at + size > self.length:
                self.at = 0
            if call(buffer, self.path, self.first + self.at) < 1:
                raise OSError("the op moved nothing")
            self.at += size
            moved += size
        wall = time.monotonic() - begin
        return moved / wall / (1 << 20), (cpu_s() - cpu) / moved

    def search(self, way, block):
        """The fastest setting: all once, the best eight three times more, by their medians."""
        sizes = [s for s in BUFFER_BYTES if s <= self.length]
        knobs = [k for k in itertools.product(*KNOBS.values())]
        tried = [(self.run(way, k, s, TRY_S)[0], k, s) for s in sizes for k in knobs]
        tried.sort(key=lambda t: -t[0])
        final = []
        for _, k, s in tried[:8]:
            speeds = sorted(self.run(way, k, s, 2 * TRY_S)[0] for _ in range(3))
            final.append((speeds[1], k, s))
        speed, k, s = max(final, key=lambda t: t[0])
        self.best[way, block] = (k, s)
        names = ", ".join(f"{name}={value}" for name, value in zip(KNOBS, k))
        print(f"deepspeed {way} {block}: of {len(tried)} settings {names}, buffer {s >> 20} MiB "
              f"({speed:.0f} MiB/s in the search)", file=sys.stderr, flush=True)

    def serve(self, answers):
        print(f"ready deepspeed async_io of DeepSpeed {self.deepspeed.__version__}, torch "
              f"{self.torch.__version__}, libaio, pinned buffers of the op; every combination of "
              f"{KNOBS} and buffers of {[s >> 20 for s in BUFFER_BYTES]} MiB is tried first",
              file=answers, flush=True)
        for line in sys.stdin:
            way, block, seconds = line.split()
            block = int(block)
            if (way, block) not in self.best:
                self.search(way, block)
            mib_s, cpu = self.run(way, *self.best[way, block], float(seconds))
            print(f"{mib_s:.3f} {cpu * block * 1e6:.3f}", file=answers, flush=True)


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: deepspeed_aio.py FILE FIRST_BYTE BYTES (zbench io --peer runs it)")
    # Answers alone go to standard output: what DeepSpeed prints there goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    Peer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).serve(answers)


main()
