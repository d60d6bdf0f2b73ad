"""One rank of convert_launch.py. Arguments: "deepspeed", "fsdp2" or "zshard"; a JSON file of cases; an output file.

Each case builds a model, loads a checkpoint where it names one, trains `before` steps, saves where it says so, and
trains `after` steps. Rank 0 writes the ranks' mean losses of each case. "deepspeed" runs in another environment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import nn
from torch_models import Net, batch, loss_of

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def make(seed: int = 0, tied: bool = True, frozen: bool = True) -> Net:
    """A model with a tied head, a frozen part with values of its own, and a buffer."""
    torch.manual_seed(seed)
    model = Net(tied=tied)
    model.register_buffer("seen", torch.tensor([3, (1 << 40) + seed]))
    if frozen:
        model.blocks[0].norm.requires_grad_(False)
        with torch.no_grad():
            model.blocks[0].norm.weight.copy_(torch.linspace(0.5, 1.5, model.norm.weight.numel()))  # type: ignore[union-attr,operator]
    return model


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices with decay, the rest without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, **more: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(model), **{"lr": 1e-2, "eps": 1e-4, **more})


def decay(step: int) -> float:
    return 1.0 / (1.0 + 0.1 * step)


def mean(loss: torch.Tensor) -> float:
    """Of the ranks' losses."""
    value = loss.detach().double().clone()
    if WORLD > 1:
        torch.distributed.all_reduce(value)
    return float(value) / WORLD


def deepspeed_case(case: dict[str, Any]) -> list[float]:
    import deepspeed  # type: ignore[import-not-found,unused-ignore]

    model = make(case.get("seed", 0), frozen=not case.get("all"))
    optimizer = adamw(model)
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "bf16": {"enabled": bool(case.get("bf16"))},
        "zero_optimization": {"stage": case["stage"], **case.get("zero", {})},
        "checkpoint": {"load_universal": bool(case.get("universal"))},
    }
    if "grad_accum" in case:
        config["data_types"] = {"grad_accum_dtype": case["grad_accum"]}
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)[0]
    if case.get("load"):
        path, client = engine.load_checkpoint(case["load"], tag=case.get("tag"))
        assert path is not None and client.get("note") == [1, "two"], client
        if case.get("universal") and case["stage"] == 3:  # what DeepSpeed makes the same for all groups
            for group, decay_ in zip(engine.optimizer.param_groups, (0.1, 0.0), strict=True):
                group["weight_decay"] = decay_
            for entry in engine.optimizer.optimizer.state.values():
                entry["step"] = entry["step"].clone()
    losses = []
    for step in range(case.get("first", 0), case.get("first", 0) + case["before"] + case["after"]):
        if case.get("save") and step == case.get("first", 0) + case["before"]:
            engine.save_checkpoint(case["save"], client_state={"note": [1, "two"]})
        loss = loss_of(engine, batch(step, RANK))
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss))
    engine.destroy()
    return losses


def fsdp2_case(case: dict[str, Any]) -> list[float]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    model = make(case.get("seed", 0), tied=False)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    if case.get("load"):
        # A state that is loaded needs tensors of its own first.
        own, state = get_state_dict(model, optimizer)
        words: dict[str, Any] = {"model": own, "optim": state, "note": [0]}
        dcp.load(words, checkpoint_id=case["load"])
        assert words["note"] == [1, "two"], words["note"]
        set_state_dict(model, optimizer, model_state_dict=own, optim_state_dict=state)
        scheduler.last_epoch = case["first"]
    losses = []
    for step in range(case.get("first", 0), case.get("first", 0) + case["before"] + case["after"]):
        if case.get("save") and step == case.get("first", 0) + case["before"]:
            own, state = get_state_dict(model, optimizer)
            words = {"model": own, "optim": state, "note": [1, "two"], "lr_scheduler": scheduler.state_dict()}
            dcp.save(words, checkpoint_id=case["save"])
        loss = loss_of(model, batch(step, RANK))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(mean(loss))
    return losses


def zshard_case(case: dict[str, Any]) -> list[float]:
    import zshard.convert as zc
    import zshard.torch as zt

    model = make(case.get("seed", 7), tied=case.get("tied", True), frozen=not case.get("all"))
    if case.get("bf16"):
        model.to(torch.bfloat16)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    handle = zt.shard(model, optimizer, offload=case.get("offload", "none"))
    if case.get("refused"):
        try:
            zc.load(model, optimizer, case["load"])
        except zc.ConvertError as e:
            assert case["refused"] in str(e), e
            handle.close()
            return []
        raise AssertionError("it was loaded")
    loaded = zc.load(model, optimizer, case["load"])
    assert loaded.step == case["first"] and loaded.client_state["note"] == [1, "two"], loaded
    scheduler.load_state_dict(loaded.lr_scheduler)
    losses = []
    for step in range(case["first"], case["first"] + case["before"] + case["after"]):
        if step == case["first"] + case["before"]:
            for path, how in case.get("saves", {}).items():
                more = {} if how["form"] == "dcp" else {"lr_scheduler": scheduler}
                zc.save(handle, optimizer, path, client_state=loaded.client_state, **how, **more)
        loss = loss_of(model, batch(step, RANK))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(handle.engine.sum([float(loss.detach())])[0] / WORLD)
    handle.close()
    return losses


def main(role: str, cases: str, out: str) -> None:
    torch.set_num_threads(1)
    if role == "deepspeed":
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    elif role == "fsdp2":
        torch.distributed.init_process_group("gloo")
    with open(cases, encoding="utf-8") as f:
        todo = json.load(f)
    work = {"deepspeed": deepspeed_case, "fsdp2": fsdp2_case, "zshard": zshard_case}[role]
    losses = [work(case) for case in todo]
    if RANK == 0:
        with open(out, "w", encoding="utf-8") as f:
            json.dump(losses, f)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
