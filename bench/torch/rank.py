"""One rank of a contestant of `zbench torch`: trains a Llama and says when things happened, one JSON object a line.

    rank.py SPEC    (JSON: the members of Spec)

Events of rank 0: {"event": "first_step"}, {"event": "begin"} after the warm steps, {"event": "end", "steps", "seconds",
"losses", "python", "nvme"}, {"event": "saved", "seconds", "step"}, and of a run that resumes {"event": "resumed",
"step"} after its first step. Each rank ends with {"event": "bye", "rank"}. A rank that fails ends at once: threads of
libraries would keep it, and the other ranks would wait.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, TextIO

from sizes import SIZES


@dataclass
class Spec:
    """What to run. `folder` is this slice's own; what is saved goes below it, so that the next run finds it."""

    who: str  # ddp, fsdp2, ds-cpu, ds-nvme, host, nvme
    model: str  # a key of SIZES
    dtype: str  # fp32 or bf16
    batch: int
    seq: int
    clip: bool
    warm: int
    steps: int  # at least,
    seconds: float  # and until so long has passed
    save: bool
    resume: bool
    folder: str
    threads: int
    socket: str = ""


LR, WEIGHT_DECAY, BETAS, EPS = 1e-4, 0.1, (0.9, 0.95), 1e-8


class Contestant:
    """A way to train. step() makes one whole step and returns the loss: here, the usual loop on `model` and `opt`."""

    model: Any
    opt: Any

    def __init__(self, spec: Spec, rank: int, world: int) -> None:
        self.spec, self.rank, self.world = spec, rank, world
        self.done = 0  # steps, those of a run before included

    def step(self, batch: Any) -> float:
        import torch

        loss = self.model(input_ids=batch, labels=batch).loss
        loss.backward()
        if self.spec.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        return float(loss.detach())

    def save(self) -> None:
        raise NotImplementedError

    def python_seconds(self) -> float:
        """So far, in code of the contestant's own in Python, without what it calls. 0: not counted."""
        return 0.0

    def settle(self) -> None:
        """Returns when the last step is made: what works on after step() is in the time of its step."""

    def nvme_part(self) -> float:
        """Of model states that this rank's node keeps, the part on NVMe; NaN: not known."""
        return float("nan")

    def close(self) -> None:
        """Gives back what outlives the process."""

    def path(self, *words: str) -> str:
        return os.path.join(self.spec.folder, *words)


def make_model(spec: Spec, dtype: Any) -> Any:
    """The same weights for everybody: seeded, in fp32, then cast."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    size = SIZES[spec.model]
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=spec.seq,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(dtype)


def batches(spec: Spec, rank: int, first: int) -> Any:
    """Tokens [batch, seq] of step `first`, first + 1 ...: the same ones in each run."""
    import torch

    step = first
    while True:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        yield torch.randint(0, SIZES[spec.model].vocab, (spec.batch, spec.seq), generator=generator)
        step += 1


class Ddp(Contestant):
    """DistributedDataParallel with fused AdamW; in bf16 on fp32 masters that this loop keeps."""

    def __init__(self, spec: Spec, rank: int, world: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        super().__init__(spec, rank, world)
        self.model = make_model(spec, torch.bfloat16 if spec.dtype == "bf16" else torch.float32)
        self.wrapped = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.params = list(self.model.parameters())
        self.masters = self.params
        if spec.dtype == "bf16":
            self.masters = [torch.nn.Parameter(p.detach().float()) for p in self.params]
        self.opt = torch.optim.AdamW(self.masters, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True)
        if spec.resume:
            kept = torch.load(self.path("ddp.pt"), weights_only=True)
            self.model.load_state_dict(kept["model"])
            self.opt.load_state_dict(kept["opt"])
            for to, of in zip(self.masters, kept["masters"], strict=True):
                to.data.copy_(of)
            self.done = kept["step"]

    def step(self, batch: Any) -> float:
        import torch

        loss = self.wrapped(input_ids=batch, labels=batch).loss
        loss.backward()
        if self.masters is not self.params:
            for master, param in zip(self.masters, self.params, strict=True):
                assert param.grad is not None
                master.grad = param.grad.float()
        if self.spec.clip:
            torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.opt.step()
        self.opt.zero_grad()
        if self.masters is not self.params:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.masters)
            self.wrapped.zero_grad()
        return float(loss.detach())

    def save(self) -> None:
        import torch

        if self.rank == 0:
            kept = {
                "model": self.model.state_dict(),
                "opt": self.opt.state_dict(),
                "masters": [m.detach() for m in self.masters],
                "step": self.done,
            }
            torch.save(kept, self.path("ddp.pt"))


class Fsdp2(Contestant):
    """fully_shard() by block with CPUOffloadPolicy and fused AdamW; saved by torch.distributed.checkpoint."""

    def __init__(self, spec: Spec, rank: int, world: int) -> None:
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

        super().__init__(spec, rank, world)
        self.model = make_model(spec, torch.float32)
        policy = MixedPrecisionPolicy()
        if spec.dtype == "bf16":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        how: dict[str, Any] = {
            "mesh": init_device_mesh("cpu", (world,)),
            "mp_policy": policy,
            "offload_policy": CPUOffloadPolicy(pin_memory=False),
        }
        for block in self.model.model.layers:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        self.opt = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True
        )
        if spec.resume:
            self.load()

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, opt = get_state_dict(self.model, self.opt)
        return {"model": model, "opt": opt, "step": self.done}

    def load(self) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        kept = self.state()
        dcp.load(kept, checkpoint_id=self.path("fsdp2"))
        set_state_dict(self.model, self.opt, model_state_dict=kept["model"], optim_state_dict=kept["opt"])
        self.done = int(kept["step"])

    def save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(), checkpoint_id=self.path("fsdp2"))


class DeepSpeed(Contestant):
    """deepspeed.initialize() with ZeRO-3, the optimizer's state in host memory or on NVMe."""

    def __init__(self, spec: Spec, rank: int, world: int) -> None:
        import deepspeed  # type: ignore[import-not-found,unused-ignore]
        import torch

        super().__init__(spec, rank, world)
        with deepspeed.zero.Init(dtype=torch.bfloat16 if spec.dtype == "bf16" else torch.float32, enabled=False):
            model = make_model(spec, torch.float32)
        self.engine = deepspeed.initialize(model=model, config=self.config())[0]
        if spec.resume:
            self.engine.load_checkpoint(self.path("deepspeed"))
            self.done = self.engine.global_steps

    def config(self) -> dict[str, Any]:
        spec = self.spec
        offload: dict[str, Any] = {"device": "cpu", "pin_memory": False}
        more: dict[str, Any] = {}
        if spec.who == "ds-nvme":
            swap = self.path("swap")
            offload = {
                "device": "nvme",
                "nvme_path": swap,
                "pin_memory": True,
                "buffer_count": 12,
                "pipeline_read": True,
                "pipeline_write": True,
            }
            more["aio"] = {
                "block_size": 1 << 20,
                "queue_depth": 32,
                "intra_op_parallelism": 4,
                "single_submit": False,
                "overlap_events": True,
            }
        return {
            "train_micro_batch_size_per_gpu": spec.batch,
            "bf16": {"enabled": spec.dtype == "bf16"},
            "gradient_clipping": 1.0 if spec.clip else 0.0,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": WEIGHT_DECAY},
            },
            "zero_optimization": {
                "stage": 3,
                "sub_group_size": 1 << 25,
                "offload_optimizer": offload,
            },
            **more,
        }

    def step(self, batch: Any) -> float:
        loss = self.engine(input_ids=batch, labels=batch).loss
        self.engine.backward(loss)
        self.engine.step()
        return float(loss.detach())

    def save(self) -> None:
        self.engine.save_checkpoint(self.path("deepspeed"))


class Ours(Contestant):
    """zshard.torch: a plain loop with torch.optim.AdamW."""

    def __init__(self, spec: Spec, rank: int, world: int) -> None:
        import torch

        import zshard.torch as zt

        super().__init__(spec, rank, world)
        zt.init(job=f"bench-{spec.who}", socket=spec.socket, durable=True, resume=spec.resume)
        self.model = make_model(spec, torch.bfloat16 if spec.dtype == "bf16" else torch.float32)
        self.opt = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.engine = zt.shard(self.model, self.opt, offload=spec.who, commit_every=0)  # saves are asked for
        self.done = int(self.engine.step_number)

    def python_seconds(self) -> float:
        return float(self.engine.stats()["python_seconds"])

    def settle(self) -> None:
        self.engine.stats()  # waits for the step in progress

    def nvme_part(self) -> float:
        stats = self.engine.stats()
        return float(stats["nvme_bytes"] / max(1, stats["nvme_bytes"] + stats["host_bytes"]))

    def save(self) -> None:
        self.engine.commit()

    def close(self) -> None:
        self.engine.close(clean=True)


WHO: dict[str, type[Contestant]] = {
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "ds-cpu": DeepSpeed,
    "ds-nvme": DeepSpeed,
    "host": Ours,
    "nvme": Ours,
}


def group(spec: Spec) -> None:
    import torch

    torch.set_num_threads(spec.threads)
    if spec.who.startswith("ds-"):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    else:
        torch.distributed.init_process_group("gloo")


def agreed(value: bool) -> bool:
    """Whether rank 0 says so: ranks stop after the same step."""
    import torch
    import torch.distributed as dist

    flag = torch.tensor([value], dtype=torch.int32)
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main(spec: Spec, answers: TextIO) -> None:
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def say(event: str, **more: Any) -> None:
        if rank == 0 or event == "bye":
            print(json.dumps({"event": event, **more}), file=answers, flush=True)

    group(spec)
    it = WHO[spec.who](spec, rank, world)
    data = batches(spec, rank, it.done)

    def step() -> float:
        loss = it.step(next(data))
        it.done += 1
        return loss

    first = step()
    if spec.resume:
        say("resumed", step=it.done, loss=first)
    else:
        say("first_step", loss=first)
        losses = [first] + [step() for _ in range(spec.warm)]
        it.settle()
        python, made = it.python_seconds(), 0
        dist.barrier()
        say("begin")
        begin = time.monotonic()
        while agreed(made < spec.steps or time.monotonic() - begin < spec.seconds):
            losses.append(step())
            made += 1
        it.settle()
        dist.barrier()
        seconds = time.monotonic() - begin
        python = it.python_seconds() - python
        say("end", steps=made, seconds=seconds, losses=losses, python=python, nvme=it.nvme_part())
        if spec.save:
            dist.barrier()
            begin = time.monotonic()
            it.save()
            dist.barrier()
            say("saved", seconds=time.monotonic() - begin, step=it.done)
    it.close()
    dist.barrier()
    say("bye", rank=rank)
    sys.stderr.flush()
    os._exit(0)  # libraries' threads may take their time to end


if __name__ == "__main__":
    # What libraries print to standard output goes to standard error: answers alone are read.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(Spec(**json.loads(sys.argv[1])), out)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
