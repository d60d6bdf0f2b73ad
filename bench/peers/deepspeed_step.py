#!/usr/bin/env python3
"""DeepSpeed's optimizer step whose state is swapped to NVMe, as a peer of `zbench step`: see README.md beside this file.

  deepspeed_step.py DIR PARAMS THREADS

Its lines: "ready NAME WHAT..."; then each "step" makes gradients (forward and backward), then times engine.step() and is
answered by "SECONDS GRADIENT_SECONDS". The bytes are in /proc/PID/io, whoever asks looks there before and behind.

It is the real engine: deepspeed.initialize() with ZeRO-3, offload_optimizer to NVMe, DeepSpeedCPUAdam, on the CPU
accelerator, of a stack of linear layers in bf16 that has PARAMS parameters."""

import json
import os
import shutil
import subprocess
import sys
import time

folder, params, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

# Before torch is loaded. Huge pages, as ours are on them: it does not ask for them by itself.
HUGE = os.environ.get("PEER_HUGE", "1") == "1"
os.environ["OMP_NUM_THREADS"] = str(threads)
if HUGE and "THP_MEM_ALLOC_ENABLE" not in os.environ:
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable] + sys.argv)
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")

# Answers alone go to standard output: what the libraries print there goes to standard error.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

WIDTH = 2048  # of the layers: 4 M parameters each, and one of what is left
SEARCH_PARAMS = 1 << 26
TRY_STEPS = 2
START = {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 4, "single_submit": False,
         "overlap_events": True, "pipeline": True, "sub_group": 1 << 24}  # the aio section; pipeline_read and pipeline_write; sub_group_size
TRY = {  # one knob after the other, the others at the best that was found
    "pipeline": [True, False],
    "sub_group": [1 << 23, 1 << 24, 1 << 25],
    "intra_op_parallelism": [1, 2, 4, 8],
    "block_size": [1 << 20, 1 << 22, 1 << 23],
    "queue_depth": [8, 32, 128],
    "single_submit": [False, True],
    "overlap_events": [True, False],
}
LR, BETAS, EPS, WEIGHT_DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1


def buffers(knobs):
    """Parameters, two moments and gradients of a sub-group; with the pipeline of those that are read, in use, written."""
    return 12 if knobs["pipeline"] else 4


def config(knobs, where):
    pipeline = knobs["pipeline"]
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": list(BETAS), "eps": EPS,
                                                  "weight_decay": WEIGHT_DECAY}},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": knobs["sub_group"],
            "stage3_param_persistence_threshold": 0,
            "offload_optimizer": {"device": "nvme", "nvme_path": where, "pin_memory": True,
                                  "buffer_count": buffers(knobs),
                                  "pipeline_read": pipeline, "pipeline_write": pipeline},
        },
        "aio": {k: knobs[k] for k in ("block_size", "queue_depth", "intra_op_parallelism", "single_submit",
                                      "overlap_events")},
    }


class Peer:
    def __init__(self, knobs, total):
        import deepspeed
        import torch

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        torch.set_num_threads(threads)
        self.where = os.path.join(folder, f"deepspeed-{os.getpid()}")
        os.makedirs(self.where)

        class Linear(torch.nn.Module):  # torch.nn.Linear would draw its numbers, for minutes
            def __init__(self, rows):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.full((rows, WIDTH), 0.01))

            def forward(self, x):
                return torch.nn.functional.linear(x, self.weight)

        whole, rest = divmod(total // WIDTH, WIDTH)
        rows = [WIDTH] * whole + [rest] * (rest > 0)
        with deepspeed.zero.Init(dtype=torch.bfloat16, config_dict_or_path=config(knobs, self.where)):
            layers = torch.nn.ModuleList(Linear(r) for r in rows)
        self.params = sum(p.ds_numel for p in layers.parameters())

        class Stack(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = layers

            def forward(self, x):
                return sum(layer(x).float().square().mean() for layer in self.layers)

        self.engine = deepspeed.initialize(model=Stack(), config=config(knobs, self.where))[0]
        self.x = torch.randn(1, WIDTH, dtype=torch.bfloat16)

    def step(self):
        """Seconds of the step, from where its gradients are ready; and of these."""
        t0 = time.monotonic()
        self.engine.backward(self.engine(self.x))
        t1 = time.monotonic()
        self.engine.step()
        t2 = time.monotonic()
        return t2 - t1, t1 - t0

    def close(self):
        self.engine.destroy()
        shutil.rmtree(self.where, ignore_errors=True)


def measure(knobs):
    """Seconds of a step of a smaller model."""
    peer = Peer(knobs, min(params, SEARCH_PARAMS))
    try:
        peer.step()
        return min(peer.step()[0] for _ in range(TRY_STEPS))
    finally:
        peer.close()


def search():
    """The best that was found, one knob after the other, and how many were tried. Each in a process of its own: an
    engine does not give all of its memory back."""
    best, tried = dict(START), {}

    def of(knobs):
        key = json.dumps(knobs)
        if key not in tried:
            tried[key] = float(subprocess.run([sys.executable, *sys.argv, key], stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, check=True, text=True).stdout)
            print(f"deepspeed: {tried[key]:.3f} s: {key}", flush=True)
        return tried[key]

    for knob, values in TRY.items():
        best = min(({**best, knob: v} for v in values), key=of)
    return best, len(tried)


def serve(knobs, tried):
    import deepspeed
    import torch

    peer = Peer(knobs, params)
    for _ in range(2):  # the first makes the moments
        peer.step()
    print(f"ready deepspeed deepspeed.initialize() of DeepSpeed {deepspeed.__version__}, torch {torch.__version__}, on the "
          f"CPU: ZeRO-3, bf16, offload_optimizer to NVMe, DeepSpeedCPUAdam; {torch.get_num_threads()} threads; "
          f"{peer.params} parameters in linear layers of {WIDTH} x {WIDTH}; {json.dumps(knobs)}, "
          f"{f'the best of {tried} settings' if tried else 'as told'}; buffer_count {buffers(knobs)}; huge pages "
          f"{'asked for' if HUGE else 'not asked for'}", file=answers, flush=True)
    try:
        for line in sys.stdin:
            if line.strip() != "step":
                raise SystemExit(f"'{line.strip()}' is not a request")
            print("%.9f %.9f" % peer.step(), file=answers, flush=True)
    finally:
        peer.close()


def main():
    if len(sys.argv) > 4:
        print(measure(json.loads(sys.argv[4])), file=answers, flush=True)
    elif "PEER_KNOBS" in os.environ:
        serve({**START, **json.loads(os.environ["PEER_KNOBS"])}, 0)
    else:
        serve(*search())


main()
