#!/usr/bin/env python3
"""Resuming, by DeepSpeed and by zshard, side by side: see README.md beside this file.

  deepspeed_resume.py --deepspeed PYTHON --zshard PYTHON [--only PATTERN] [--dir FOLDER]

One training program, which imports deepspeed, is run by both interpreters: as it is, and by `python -m zshard.run`. Each
row of the table is one configuration. It trains STEPS steps without a stop; then half of them, save_checkpoint(), new
processes, load_checkpoint(), and the other half. Losses, fp32 parameters and moments are compared bit for bit.
The rows "killed ..." end a rank by SIGKILL, and start again from the newest checkpoint.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from deepspeed_tests import clear_shared

STEPS, MIDDLE = 8, 4
VOCAB, WIDTH, HEADS, LAYERS, SEQ, BATCH = 256, 64, 2, 2, 32, 2
LEFT_SECONDS = 20  # for the other ranks of one that was killed

# ---- configurations

CPU = {"device": "cpu"}
WARM = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 3, "total_num_steps": STEPS + 2}}
FP16 = {"enabled": True, "initial_scale_power": 22, "loss_scale_window": 2, "hysteresis": 1}


def config(stage, dtype, opt=None, par=None, **more):
    """A configuration; "NVME" becomes the folder of the run."""
    zero = {"stage": stage}
    for key, device in (("offload_optimizer", opt), ("offload_param", par)):
        if device:
            zero[key] = {"device": device} | ({"nvme_path": "NVME"} if device == "nvme" else {})
    made = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "gradient_clipping": 1.0,
        "steps_per_print": 1000000,
        "zero_optimization": zero,
    }
    if dtype == "bf16":
        made["bf16"] = {"enabled": True}
    if dtype == "fp16":
        made["fp16"] = FP16
    return made | more


ROWS = {
    "stage 1, fp32": config(1, "fp32"),
    "stage 1, bf16": config(1, "bf16"),
    "stage 2, fp32": config(2, "fp32"),
    "stage 2, bf16, optimizer cpu": config(2, "bf16", "cpu"),
    "stage 2, bf16, 3 micro-steps, schedule": config(2, "bf16", gradient_accumulation_steps=3, scheduler=WARM),
    "stage 3, fp32": config(3, "fp32"),
    "stage 3, bf16": config(3, "bf16"),
    "stage 3, bf16, 3 micro-steps, schedule": config(3, "bf16", gradient_accumulation_steps=3, scheduler=WARM),
    "stage 3, bf16, optimizer cpu, param cpu": config(3, "bf16", "cpu", "cpu"),
    "stage 3, fp32, optimizer nvme": config(3, "fp32", "nvme"),
    "stage 3, bf16, optimizer nvme": config(3, "bf16", "nvme"),
    "stage 3, bf16, optimizer nvme, param cpu": config(3, "bf16", "nvme", "cpu"),
    "stage 3, bf16, optimizer nvme, param nvme": config(3, "bf16", "nvme", "nvme"),
    "stage 3, bf16, optimizer nvme, schedule": config(3, "bf16", "nvme", scheduler=WARM),
    "stage 1, fp16": config(1, "fp16"),
    "stage 2, fp16, optimizer cpu": config(2, "fp16", "cpu"),
    "stage 3, fp16": config(3, "fp16"),
}
KILLED = ["stage 2, bf16, optimizer cpu", "stage 3, bf16", "stage 3, bf16, optimizer nvme, param nvme"]
OTHER_RANKS = ["stage 2, bf16, optimizer cpu", "stage 3, bf16"]
ONE_RANK = ["stage 1, bf16", "stage 2, bf16, optimizer cpu", "stage 3, fp32", "stage 3, bf16, optimizer nvme, param nvme",
            "stage 2, fp16, optimizer cpu"]
WHO = ("deepspeed", "zshard")


# ---- the program: one rank


class Kills:
    """Ends the process by SIGKILL when it is pickled."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_in_backward(engine):
    """SIGKILL in the middle of the next backward pass."""

    def die(_):
        os.kill(os.getpid(), signal.SIGKILL)

    def forward(module, inputs, out):
        (out[0] if isinstance(out, tuple) else out).register_hook(die)

    engine.module.blocks[0].register_forward_hook(forward)


def make_model():
    """A GPT of two blocks, with dropout and a tied head: model(tokens) is the loss."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down, self.dropout = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)

        def forward(self, x):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
            return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(SEQ))
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x)).float()
            return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    return Model()


def values_of(engine, moments=("exp_avg", "exp_avg_sq")):
    """fp32 parameters and moments by name, on every rank."""
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    made = {}
    for name, p in engine.module.named_parameters():
        made[name] = safe_get_full_fp32_param(p)
        for moment in moments:
            try:
                made[f"{moment}/{name}"] = safe_get_full_optimizer_state(p, moment)
            except (KeyError, TypeError):  # DeepSpeed, where every step so far was skipped
                made[f"{moment}/{name}"] = torch.zeros(p.ds_shape if hasattr(p, "ds_shape") else p.shape)
    return {name: value.detach().float().cpu().clone() for name, value in made.items() if value is not None}


def train(spec):
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    rank = deepspeed.comm.get_rank()
    torch.manual_seed(0)
    model = make_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=spec["config"])
    made, first = {"losses": {}, "values": {}}, 0
    if spec["load"]:
        path, client = engine.load_checkpoint(spec["folder"])
        if path is None:
            raise RuntimeError("load_checkpoint() found no checkpoint")
        first = client["step"]
        made["loaded"] = values_of(engine, ())  # DeepSpeed's moments cannot be read before the first step
    engine.train()
    for step in range(first, spec["until"]):
        if [rank, step] == spec["kill"]:
            kill_in_backward(engine)
        row = []
        for micro in range(engine.gradient_accumulation_steps()):
            torch.manual_seed(1000 * step + 100 * micro + rank)
            batch = torch.randint(0, VOCAB, (BATCH, SEQ))
            loss = engine(batch)
            engine.backward(loss)
            engine.step()
            row.append(float(loss.detach()))
        made["losses"][step] = row
        if step + 1 in spec["save"]:
            state = {"step": step + 1}
            if spec["die_in_save"] == step + 1:
                state["last"] = Kills()
            engine.save_checkpoint(spec["folder"], tag=spec["tag"], client_state=state)
    made["values"] = values_of(engine)
    lr, scaler = engine.optimizer.param_groups[0]["lr"], getattr(engine.optimizer, "loss_scaler", None)
    scale = float(scaler.cur_scale) if scaler is not None else 1.0
    made["state"] = [engine.global_steps, engine.skipped_steps, float(lr), scale]
    torch.save(made, f"{spec['out']}.{rank}")
    deepspeed.comm.barrier()
    sys.stderr.flush()
    os._exit(0)  # how a process group is torn down is not compared


# ---- starting it


class Failed(Exception):
    """The run did not end well; the message is for the table."""


def last_line(text):
    """The line that says what went wrong: the last exception's of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [re.sub(r"^\[rank\d+\]:\s*", "", line) for line in lines]
    said = [line for line in lines if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))]
    return (said or lines or ["nothing was said"])[-1][:120]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Runner:
    """Starts ranks of one of the two systems, in folders of one row."""

    made = {}  # straight runs

    def __init__(self, options, who, folder):
        self.options, self.who, self.folder = options, who, folder
        self.number = 0

    def straight(self, row, world):
        """Of a run without a stop, which is made once."""
        key = (self.who, row, world)
        if key not in self.made:
            self.made[key] = self.run(row, world, "straight")
        return self.made[key]

    def environment(self, rank, world, port, place):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        python = getattr(self.options, self.who)
        made = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "LOCAL_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1",
            "PATH": os.path.dirname(python) + os.pathsep + os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "",
        }
        made.pop("PYTHONPATH", None)
        if self.who == "zshard":
            made |= {
                "PYTHONPATH": os.path.join(root, "python"), "XDG_RUNTIME_DIR": os.path.join(place, "run"),
                "ZSHARD_DATA": os.path.join(place, "data"), "ZSHARD_HOST_BYTES": "256M", "ZSHARD_NVME_BYTES": "512M",
            }
            os.makedirs(made["XDG_RUNTIME_DIR"], mode=0o700, exist_ok=True)
        else:
            made["LD_PRELOAD"] = "libaio.so.1"  # its async_io op is linked without it
        return python, made

    def run(self, row, world, place, until=STEPS, save=(), load=False, kill=None, tag=None, die_in_save=None):
        """What each rank wrote. Failed: a rank failed, or they took too long; with kill, that is meant."""
        place = os.path.join(self.folder, place)
        os.makedirs(os.path.join(place, "nvme"), exist_ok=True)
        self.number += 1
        out, port, ranks, logs = os.path.join(place, f"out{self.number}"), free_port(), [], []
        spec = {"folder": os.path.join(place, "checkpoint"), "out": out, "until": until, "save": list(save),
                "load": load, "kill": kill, "tag": tag, "die_in_save": die_in_save,
                "config": json.loads(json.dumps(ROWS[row]).replace('"NVME"', json.dumps(os.path.join(place, "nvme"))))}
        words = ["-m", "zshard.run"] if self.who == "zshard" else []
        for rank in range(world):
            python, env = self.environment(rank, world, port, place)
            logs.append(open(f"{out}.log{rank}", "w+"))
            ranks.append(subprocess.Popen([python, "-B", *words, os.path.abspath(__file__), json.dumps(spec)],
                                          env=env, stdin=subprocess.DEVNULL, stdout=logs[-1], stderr=logs[-1],
                                          start_new_session=True))
        try:
            self.wait(ranks, logs, kill is not None or die_in_save is not None)
        finally:
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            clear_shared(port)
        import torch

        return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(world)]

    def wait(self, ranks, logs, killed):
        end = time.monotonic() + self.options.seconds
        while any(process.poll() is None for process in ranks):
            bad = [i for i, process in enumerate(ranks) if process.poll() not in (None, 0)]
            if bad:
                end = min(end, time.monotonic() + LEFT_SECONDS)
            if time.monotonic() > end:
                raise Failed("hangs" if not bad or killed else self.said(ranks, logs))
            time.sleep(0.1)
        if any(process.returncode for process in ranks):
            raise Failed(self.said(ranks, logs))

    @staticmethod
    def said(ranks, logs):
        """Of the first rank that says why."""
        texts = []
        for process, log in zip(ranks, logs):
            log.seek(0)
            if process.poll() not in (None, 0):
                texts.append(log.read())
        best = [t for t in texts if "Error" in t and not re.search("gloo|Connection|PeerLost", last_line(t))]
        return "fails: " + last_line((best or texts or [""])[0])


# ---- comparing


def different(a, b):
    """The largest difference of two dicts of tensors; None: equal bit for bit."""
    import torch

    if a.keys() != b.keys():
        return float("inf")
    worst = None
    for name, value in a.items():
        if value.shape != b[name].shape:
            return float("inf")
        if not torch.equal(value.view(torch.int32), b[name].view(torch.int32)):
            off = (value - b[name]).abs().max().item()
            worst = max(worst or 0.0, off if off == off else float("inf"))
    return worst


def compare(straight, resumed):
    """ "exact", or what differs."""
    words = []
    losses = [abs(x - y) for a, b in zip(straight, resumed) for step, row in b["losses"].items()
              for x, y in zip(a["losses"][step], row) if x != y]
    if losses:
        words.append(f"losses by {max(losses):.1e}")
    off = different(straight[0]["values"], resumed[0]["values"])
    if off is not None:
        words.append(f"parameters or moments by {off:.1e}")
    if straight[0]["state"] != resumed[0]["state"]:
        words.append(f"steps, skipped, lr, scale {resumed[0]['state']}, not {straight[0]['state']}")
    return "exact" if not words else "differs: " + ", ".join(words)


def row_resume(run, row, world):
    straight = run.straight(row, world)
    run.run(row, world, "resumed", until=MIDDLE, save=[MIDDLE])
    said = compare(straight, run.run(row, world, "resumed", load=True))
    if said != "exact":
        again = compare(straight, run.run(row, world, "again"))
        said += "" if again == "exact" else f" (two straight runs: {again})"
    return said


def row_killed(run, row, world):
    """Killed in a backward pass; saved every second step."""
    straight = run.straight(row, world)
    try:
        run.run(row, world, "killed", save=range(2, STEPS + 1, 2), kill=[world - 1, MIDDLE + 1])
    except Failed:
        pass
    return compare(straight, run.run(row, world, "killed", load=True))


def row_killed_saving(run, row, world):
    """Rank 0 is killed while it writes a checkpoint over the one with the same tag."""
    straight = run.straight(row, world)
    try:
        run.run(row, world, "saving", save=[2, MIDDLE], tag="last", die_in_save=MIDDLE)
    except Failed:
        pass
    return compare(straight, run.run(row, world, "saving", load=True))


def row_other_ranks(run, row, world):
    """Saved by two ranks, loaded by one, or the other way round: parameters after the load; training goes on."""
    saved = run.run(row, world, "ranks", until=MIDDLE, save=[MIDDLE])
    loaded = run.run(row, 3 - world, "ranks", load=True)
    values = {name: value for name, value in saved[0]["values"].items() if "exp_avg" not in name}
    off = different(values, loaded[0]["loaded"])
    return "exact" if off is None else f"differs: parameters by {off:.1e}"


def work(options):
    """(kind, row, ranks, function) of the table."""
    for row in ROWS:
        yield "resumed", row, 2, row_resume
    for row in ONE_RANK:
        yield "resumed", row, 1, row_resume
    for row in KILLED:
        yield "killed in backward", row, 2, row_killed
    for row in KILLED:
        yield "killed while saving", row, 2, row_killed_saving
    for world in (2, 1):
        for row in OTHER_RANKS:
            yield f"loaded by {3 - world}", row, world, row_other_ranks


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--deepspeed", required=True, help="an interpreter with torch and DeepSpeed")
    p.add_argument("--zshard", required=True, help="an interpreter with torch; ZSHARD_BUILD: the build")
    p.add_argument("--only", default="", help="rows whose text (kind, configuration, ranks) matches this")
    p.add_argument("--seconds", default=180, type=float, help="for a run, until it is killed")
    p.add_argument("--dir", default=None, help="where folders are made")
    options = p.parse_args()
    print(f"{'':20} {'':42} ranks  {'DeepSpeed':44} zshard", flush=True)
    for kind, row, world, function in work(options):
        if not re.search(options.only, f"{kind}, {row}, {world}"):
            continue
        said = []
        for who in WHO:
            folder = tempfile.mkdtemp(prefix=f"resume-{who}-", dir=options.dir)
            try:
                said.append(function(Runner(options, who, folder), row, world))
            except Failed as e:
                said.append(str(e))
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{kind:20} {row:42} {world:5}  {said[0]:44} {said[1]}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        train(json.loads(sys.argv[1]))
    else:
        main()
