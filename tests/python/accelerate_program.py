"""One rank of test_accelerate.py: loops with Accelerate's Accelerator and with zshard's. Arguments: hf_models.py."""

from __future__ import annotations

import errno
import os
from typing import Any

import accelerate
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DDPCommunicationHookType
from hf_models import RANK, WORLD, Data, apart, build, main

import zshard.torch as zt
from zshard.torch import _st_file, _train_state


def fresh(cls: Any, **more: Any) -> Any:
    """An accelerator; what another one in this process agreed on is forgotten."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return cls(cpu=True, **more)


def loop(
    accelerator: Any, kind: str = "llama", n: int = 10, seed: int = 0, steps: int = 99, clip: float = 0.5, **at: Any
) -> dict[str, Any]:
    """Two epochs with accumulation, clipping and a scheduler.

    at: save=folder, save_at=passes; load=folder, done=passes.
    """
    model = build(kind, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
    loader = torch.utils.data.DataLoader(Data(n * WORLD), batch_size=2)
    torch.manual_seed(7)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses: list[float] = []
    norms: list[float] = []
    done = 0
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            if done < at.get("done", 0):
                done += 1
                if done == at["done"]:
                    accelerator.load_state(at["load"])
                continue
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), clip)))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(float(accelerator.gather(loss.detach().reshape(1)).mean()))
            done += 1
            if done == at.get("save_at"):
                accelerator.save_state(at["save"])
            if done == steps:
                break
    return {"loss": losses, "norm": norms, "model": model, "lr": scheduler.get_last_lr()}


def parity(folder: str, kind: str = "llama", shard: Any = None, **more: Any) -> dict[str, Any]:
    """The same loop with both."""
    found: dict[str, Any] = {}
    states = []
    for name, cls, given in (("plain", accelerate.Accelerator, {}), ("ours", zt.Accelerator, {"shard": shard})):
        accelerator = fresh(cls, **given, **more)
        made = loop(accelerator, kind)
        model = made.pop("model")
        own = accelerator.unwrap_model(model)
        whole = accelerator.get_state_dict(model)
        states.append({k: v.clone() for k, v in own.state_dict().items()})
        found[name] = made
        if name == "ours":
            assert own is model and (RANK > 0) == (not whole)
            own._zshard.close()
    return found | {"apart": apart(states[1], states[0])}


def resumed(folder: str, **more: Any) -> dict[str, Any]:
    """save_state() in the middle of an accumulation's neighbours; load_state() into another model."""
    there = os.path.join(folder, "state")
    found: dict[str, Any] = {}
    end: dict[str, torch.Tensor] = {}
    for name, seed, at in (
        ("whole", 0, {"save_at": 4, "save": there}), ("again", 5, {"load": there, "done": 4})
    ):  # fmt: skip
        accelerator = fresh(zt.Accelerator, gradient_accumulation_steps=2)
        counter = Counter()
        accelerator.register_for_checkpointing(counter)
        made = loop(accelerator, "gpt2", seed=seed, **at)
        model = made.pop("model")
        found[name] = made | {"counter": counter.n}
        state = model.state_dict()
        found["equal"] = end.keys() == state.keys() and all(torch.equal(v, end[k]) for k, v in state.items())
        end = {k: v.clone() for k, v in state.items()}
        model._zshard.close()
    found["files"] = sorted(os.listdir(there))
    opened = transformers.AutoModelForCausalLM.from_pretrained(there)
    assert all(p.isfinite().all() for p in opened.parameters())
    return found


class Counter:
    """Something that a user registers."""

    def __init__(self) -> None:
        self.n = 3

    def state_dict(self) -> dict[str, int]:
        return {"n": 8}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def several(folder: str) -> dict[str, Any]:
    """A model that is trained, a frozen one, one that is not sharded, and hooks of the user's, in one state."""
    there = os.path.join(folder, "state")
    accelerator = fresh(zt.Accelerator)
    student, teacher = build("llama"), build("llama", 2).requires_grad_(False)
    whole = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    student, optimizer = accelerator.prepare(student, optimizer)
    teacher = accelerator.prepare_model(teacher, evaluation_mode=True)
    whole = accelerator.prepare_model(whole, evaluation_mode=True)
    x = Data(4).rows

    def step() -> float:
        with torch.no_grad():
            target = teacher(input_ids=x).logits.softmax(-1)
        loss = torch.nn.functional.kl_div(student(input_ids=x).logits.log_softmax(-1), target, reduction="batchmean")
        accelerator.backward(loss / 100)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    for _ in range(2):
        step()
    accelerator.save_state(there)
    first = [step() for _ in range(3)]
    with torch.no_grad():
        whole.weight.zero_()
    accelerator.load_state(there)
    found = {
        "first": first,
        "second": [step() for _ in range(3)],
        "whole": float(whole.weight.detach().abs().sum()),
        "files": sorted(os.listdir(there)),
        "sharded": ["_zshard" in m.__dict__ for m in (student, teacher, whole)],
    }
    student._zshard.close()
    teacher._zshard.close()
    return found


def hooks(folder: str) -> dict[str, Any]:
    """Hooks of the user's save and load weights in their own way, and see values."""
    there = os.path.join(folder, "state")
    accelerator = fresh(zt.Accelerator)
    model = build("gpt2")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    seen: dict[str, Any] = {}

    def save(models: list[Any], weights: list[Any], output_dir: str) -> None:
        seen["values"] = len(accelerator.get_state_dict(models[0])) > 0
        zt.save_pretrained(models[0], os.path.join(output_dir, "mine"), background=False)
        weights.pop()

    def load(models: list[Any], input_dir: str) -> None:
        zt.load_state_dict(models.pop(), values_of(os.path.join(input_dir, "mine")))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    row = {k: v[None] for k, v in Data(1)[0].items()}

    def step() -> float:
        torch.manual_seed(3)
        loss = model(**row).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    step()
    accelerator.save_state(there)
    found = {"first": [step(), step()], "files": sorted(os.listdir(there))}
    accelerator.load_state(there)
    found |= {"second": [step(), step()], "values": seen["values"] == (RANK == 0)}
    model._zshard.close()
    return found


def values_of(folder: str) -> dict[str, torch.Tensor]:
    """A state dict of a folder, tied weights under both names."""
    made = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return {k: v.clone() for k, v in made.items()}


def apart_in_time(folder: str) -> dict[str, Any]:
    """The model is prepared before its optimizer, and the optimizer before its model."""
    found = {}
    for name in ("plain", "model first", "optimizer first"):
        accelerator = fresh(accelerate.Accelerator if name == "plain" else zt.Accelerator)
        model = build("gpt2")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if name == "optimizer first":
            optimizer = accelerator.prepare(optimizer)
            model = accelerator.prepare(model)
        else:
            model = accelerator.prepare(model)
            optimizer = accelerator.prepare(optimizer)
        torch.manual_seed(3)
        losses = []
        for _ in range(3):
            loss = model(**{k: v[None] for k, v in Data(1)[0].items()}).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        found[name] = losses
        if name != "plain":
            model._zshard.close()
    return found


def late(folder: str) -> dict[str, Any]:
    """A state of SGD goes into an engine that was started without an optimizer, and has not stepped."""
    there = os.path.join(folder, "state")
    found: dict[str, list[float]] = {}
    for name in ("first", "second"):
        accelerator = fresh(zt.Accelerator)
        model = accelerator.prepare(build("llama", seed=len(found)))
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        losses = found[name] = []
        for i in range(3):
            if i == 1 and name == "first":
                accelerator.save_state(there)
            if i == 0 and name == "second":
                accelerator.load_state(there)
                continue
            loss = model(**{k: v[None] for k, v in Data(1)[0].items()}).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        model._zshard.close()
    return found


def saved(folder: str) -> dict[str, Any]:
    """save_model(), and save_pretrained() with the state dict of rank 0, as Accelerate's documents show it."""
    accelerator = fresh(zt.Accelerator)
    model = accelerator.prepare(build("gpt2"))
    a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
    accelerator.save_model(model, a)
    accelerator.unwrap_model(model).save_pretrained(
        b, is_main_process=accelerator.is_main_process, state_dict=accelerator.get_state_dict(model)
    )
    accelerator.wait_for_everyone()
    want = build("gpt2").state_dict()
    found = [apart(transformers.AutoModelForCausalLM.from_pretrained(f).state_dict(), want) for f in (a, b)]
    model._zshard.close()
    return {"apart": max(found)}


def full(folder: str) -> dict[str, Any]:
    """Rank 0 cannot write: all ranks hear of it, and train on."""
    found: dict[str, Any] = {}
    append = _st_file.StFile.append

    def no_space(self: Any, values: torch.Tensor) -> None:
        raise OSError(errno.ENOSPC, "no space")

    for offload in ("auto", "none"):
        accelerator = fresh(zt.Accelerator, shard={"offload": offload})
        model, optimizer = accelerator.prepare(model := build("gpt2"), torch.optim.AdamW(model.parameters()))
        for turn in range(2):
            accelerator.backward(model(**{k: v[None] for k, v in Data(1)[0].items()}).loss)
            optimizer.step()
            optimizer.zero_grad()
            if turn == 0:
                _st_file.StFile.append = no_space  # type: ignore[method-assign]
                for what in (_train_state.save_model, _train_state.save_weights):
                    try:
                        what(model, folder)
                    except (OSError, RuntimeError) as e:
                        found[f"{offload} {what.__name__}"] = f"{type(e).__name__}: {e}"
                _st_file.StFile.append = append  # type: ignore[method-assign]
        _train_state.save_model(model, folder)
        _train_state.save_weights(model, folder)
        assert "model.safetensors" in os.listdir(folder)
        model._zshard.close()
    return found


def mistakes(folder: str) -> dict[str, Any]:
    """What is refused, and how."""
    said: dict[str, str] = {}

    def raises(name: str, call: Any) -> None:
        try:
            call()
        except (TypeError, ValueError, NotImplementedError) as e:
            said[name] = f"{type(e).__name__}: {e}"

    hook = accelerate.DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    raises("hook", lambda: fresh(zt.Accelerator, kwargs_handlers=[hook]))
    raises("plugin", lambda: fresh(zt.Accelerator, fsdp_plugin=object()))
    accelerator = fresh(zt.Accelerator)
    model = build("gpt2")
    raises("kind", lambda: accelerator.prepare(model, torch.optim.RMSprop(model.parameters())))
    model = accelerator.prepare(build("gpt2"))
    raises("late kind", lambda: accelerator.prepare(torch.optim.RMSprop(model.parameters())))
    raises("value", lambda: accelerator.clip_grad_value_(model.parameters(), 1.0))
    raises("pickle", lambda: accelerator.save_state(folder, safe_serialization=False))
    model._zshard.close()
    return said


CASES = {
    "gpt2": lambda f: parity(f, "gpt2", gradient_accumulation_steps=2),
    "short": lambda f: parity(f, "llama", gradient_accumulation_steps=3),
    "local": lambda f: parity(f, "llama", {"accumulate": "local"}, gradient_accumulation_steps=3),
    "bf16": lambda f: parity(f, "llama", mixed_precision="bf16", gradient_accumulation_steps=2),
    "resume": resumed,
    "several": several,
    "hooks": hooks,
    "apart": apart_in_time,
    "late": late,
    "saved": saved,
    "full": full,
    "mistakes": mistakes,
}

if __name__ == "__main__":
    main(CASES)
