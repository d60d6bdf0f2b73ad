"""A training state in files: weights, fp32 masters, moments and step counts of sharded models, exact, for any number of
ranks. Used by Accelerator.save_state() and by the checkpoints of Trainer.

    FOLDER/model.safetensors ...          weights, as save_pretrained() writes them
    FOLDER/zshard/model_0.safetensors     "exp_avg/NAME", "exp_avg_sq/NAME" of each trained parameter, and "master/NAME"
                                          of those that are not fp32; all fp32, of the parameter's shape
    FOLDER/zshard/model_0.pt              the optimizer's kind, and each parameter's step count
    FOLDER/zshard/optimizer_0.pt          hyperparameters of the optimizer's groups

Rank 0 writes, and reads the values piece by piece. When a state is loaded each rank reads its own slices from the
files. No rank ever holds a model's weights, masters or moments.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import ZshardError
from . import _load, _optim, _plain, _save, _sources, _state, _step
from ._host import HostOptimizer
from ._st_file import Entry, Guarded

if TYPE_CHECKING:
    from ._handle import Handle
    from ._runtime import Runtime
    from ._unit_state import UnitState
    from ._units import Piece, Unit

FOLDER = "zshard"
_FORMAT = 1
_MOMENTS = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adam": ("exp_avg", "exp_avg_sq"),
    "lion": ("exp_avg",),
    "adagrad": ("exp_avg",),
    "sgd": ("exp_avg",),
    "muon": ("exp_avg", "exp_avg_sq"),  # its matrices have the first one
}

Row = tuple["Piece", Callable[[int, torch.Tensor], None]]  # a parameter, and what reads its elements from `first` on


# ---- what is sharded


def handle_of(model: nn.Module) -> Handle | None:
    """The handle of a sharded model; None: it is not sharded, or closed."""
    handle: Handle | None = model.__dict__.get("_zshard")
    return handle if handle is not None and not handle.runtime.closed else None


def bare(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside of Accelerate's."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def runtimes_of(optimizer: Any) -> list[Runtime]:
    """The sharded models whose parameters the optimizer has."""
    return [r for r in _optim.params_by_runtime(bare(optimizer)) if r is not None]


def _runtime(model: nn.Module) -> Runtime:
    handle = handle_of(model)
    if handle is None:
        raise ValueError(f"this {type(model).__name__} is not sharded")
    _state._check_open(handle.runtime)
    _state._check_whole(handle.runtime)
    return handle.runtime


def _agree(runtime: Runtime, mine: BaseException | None, what: str) -> None:
    """Raises on all ranks where one failed. Collective."""
    failed = runtime.call(runtime.engine.sum, [float(mine is not None)])[0] if runtime.world > 1 else 0.0
    if mine is not None:
        raise mine
    if failed:
        raise RuntimeError(f"{what}: another rank failed, and says why")


# ---- saved


def _kept_moments(runtime: Runtime) -> tuple[str, ...]:
    """What the engine's optimizer keeps. SGD without momentum keeps nothing."""
    if runtime.kind == "sgd" and not any(g.get("momentum") for s in runtime.steppers if s.alive for g in s.groups()):
        return ()
    return _MOMENTS[runtime.kind]


def _of_unit(moments: Sequence[str], unit: Unit) -> tuple[str, ...]:
    """Which of them the parameters of a unit have."""
    return tuple(moments[:1] if unit.muon else moments)


def _by_muon(runtime: Runtime) -> list[str]:
    return [p.name for s in runtime.units if s.unit.muon for p in s.unit.pieces]


def _stream(runtime: Runtime, unit: int, what: str, piece: Piece) -> Iterator[torch.Tensor]:
    """The values on rank 0, in pieces; nothing on others. Collective."""
    for first in range(0, piece.numel, _save.PIECE):
        count = min(_save.PIECE, piece.numel - first)
        yield _state._read(runtime, unit, what, piece.first + first, count, root=0)


def _trained(runtime: Runtime) -> Iterator[tuple[UnitState, list[int]]]:
    """Units that were trained when the model was sharded, and the step counts of their parameters."""
    for state in runtime.units:
        if state.trainable:
            yield state, runtime.call(runtime.engine.tensor_steps, state.index)


def _entries(runtime: Runtime, moments: tuple[str, ...]) -> tuple[list[Entry], dict[str, int]]:
    entries, steps = [], {}
    for state, counts in _trained(runtime):
        for piece, n in zip(state.unit.pieces, counts, strict=True):
            steps[piece.name] = n
            whats = ("master",) * (state.unit.dtype != torch.float32) + (_of_unit(moments, state.unit) if n else ())
            for what in whats:
                stream = functools.partial(_stream, runtime, state.index, what, piece)
                entries.append(Entry(f"{what}/{piece.name}", tuple(piece.shape), torch.float32, stream))
    return entries, steps


def save_model(model: nn.Module, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Writes masters, moments and step counts of a sharded model to `folder`/zshard. Collective.

    Raises OSError, ZshardError where rank 0 cannot write; then RuntimeError on the others. Training may go on.
    """
    runtime = _runtime(model)
    moments = _kept_moments(runtime)
    entries, steps = _entries(runtime, moments)
    where = os.path.join(folder, FOLDER)
    stem = os.path.join(where, f"model_{number}")
    mine = runtime.engine.rank == 0
    failed: BaseException | None = None
    try:
        if mine:
            os.makedirs(where, exist_ok=True)
            for old in (f"{stem}.pt", f"{stem}.safetensors"):
                if os.path.exists(old):
                    os.unlink(old)
    except OSError as e:
        failed = e
    failed = Guarded(f"{stem}.safetensors" if mine and failed is None else None, entries).write(entries) or failed
    try:
        if mine and failed is None:
            head = {"format": _FORMAT, "kind": runtime.kind, "moments": list(moments), "steps": steps}
            if runtime.kind == "muon":
                head["muon"] = _by_muon(runtime)
            torch.save(head, f"{stem}.pt")
    except OSError as e:
        failed = e
    _agree(runtime, failed, f"the optimizer's state could not be saved in '{where}'")


def save_optimizer(optimizer: Any, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Writes the hyperparameters of an optimizer's groups; of a HostOptimizer also this rank's state. Collective."""
    optimizer = bare(optimizer)
    runtime = runtimes_of(optimizer)[0]
    where = os.path.join(folder, FOLDER)
    failed: BaseException | None = None
    try:
        os.makedirs(where, exist_ok=True)
        if runtime.engine.rank == 0:
            groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            sizes = [len(g["params"]) for g in optimizer.param_groups]
            torch.save({"format": _FORMAT, "groups": groups, "sizes": sizes}, _optimizer_file(where, number))
        if isinstance(optimizer, HostOptimizer):
            torch.save(optimizer.state_dict(), _rank_file(where, number, runtime))
    except OSError as e:
        failed = e
    _agree(runtime, failed, f"the optimizer's groups could not be saved in '{where}'")


def _optimizer_file(where: str, number: int) -> str:
    return os.path.join(where, f"optimizer_{number}.pt")


def _rank_file(where: str, number: int, runtime: Runtime) -> str:
    return os.path.join(where, f"optimizer_{number}-{runtime.engine.rank}-of-{runtime.world}.pt")


# ---- loaded


def has_state(folder: str | os.PathLike[str]) -> bool:
    """Whether save_model() wrote there."""
    return os.path.isfile(os.path.join(folder, FOLDER, "model_0.pt"))


def _put(runtime: Runtime, state: UnitState, what: str, begin: int, end: int, rows: Sequence[Row]) -> None:
    """Writes elements [begin, end) of a unit: this rank reads those of its slice. Collective."""
    first, count = runtime.engine.slice(state.index)
    low, high = max(first, begin), min(first + count, end)
    values = torch.empty(end - begin, dtype=torch.float32)  # what is not of the slice is never touched
    if low < high:
        values[low - begin : high - begin].zero_()
    for piece, read in rows:
        a, b = max(piece.first, low), min(piece.first + piece.numel, high)
        if a < b:
            read(a - piece.first, values[a - begin : b - begin])
    runtime.call(
        runtime.engine.write_on, -1, state.index, what, begin, end - begin, "f32", values.data_ptr()
    )  # fmt: skip


def _check_head(runtime: Runtime, head: dict[str, Any], stem: str) -> None:
    """Raises ValueError where the state is of another model or optimizer."""
    if head.get("format") != _FORMAT:
        raise ValueError(f"'{stem}.pt' has format {head.get('format')}; this version reads {_FORMAT}")
    late = runtime.engine.options.get("optimizer_late") and runtime.steps == 0
    if head["kind"] != runtime.kind and (not late or any(s.alive for s in runtime.steppers)):
        raise ValueError(f"the state in '{stem}.pt' is of {head['kind']}, and the optimizer is {runtime.kind}")
    if set(head.get("muon", ())) != set(_by_muon(runtime)):
        raise ValueError(f"Muon stepped other parameters of the state in '{stem}.pt' than of this model")
    names = {p.name for state in runtime.units if state.trainable for p in state.unit.pieces}
    missing, unknown = sorted(names - head["steps"].keys()), sorted(head["steps"].keys() - names)
    if missing or unknown:
        raise ValueError(
            f"the state in '{stem}.pt' is of other trained parameters: "
            + "; ".join(
                f"{text} {', '.join(some[:6])}{' ...' if len(some) > 6 else ''}"
                for text, some in (("it lacks", missing), ("the model lacks", unknown))
                if some
            )
        )


def _open(runtime: Runtime, stem: str) -> tuple[dict[str, Any], _sources.File | None]:
    """What save_model() wrote, checked on all ranks. Collective."""
    failed: BaseException | None = None
    head: dict[str, Any] = {}
    file = None
    try:
        head = torch.load(f"{stem}.pt", weights_only=True)
        _check_head(runtime, head, stem)
        if os.path.exists(f"{stem}.safetensors"):
            file = _sources.File(f"{stem}.safetensors")
        for unit, piece in ((s.unit, p) for s in runtime.units if s.trainable for p in s.unit.pieces):
            for what in _of_unit(head["moments"], unit) if head["steps"][piece.name] else ():
                found = None if file is None else file.tensors.get(f"{what}/{piece.name}")
                if found is None or found[2] != tuple(piece.shape):
                    has = "no such tensor" if found is None else f"shape {list(found[2])}"
                    raise ValueError(
                        f"'{stem}.safetensors', '{what}/{piece.name}': {has}; the model's has shape {list(piece.shape)}"
                    )
    except (OSError, ValueError, ZshardError) as e:
        failed = e
    _agree(runtime, failed, f"the state '{stem}.pt' cannot be loaded")
    return head, file


def load_model(model: nn.Module, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Reads what save_model() wrote, on any number of ranks; after load_weights(). Collective, between two steps.

    Raises ValueError where the state is of another model or optimizer, or files are damaged. Nothing is written then.
    """
    runtime = _runtime(model)
    runtime.let_go()
    head, file = _open(runtime, os.path.join(folder, FOLDER, f"model_{number}"))
    if head["kind"] != runtime.kind:
        _step.become(runtime, head["kind"])
    tensors = {} if file is None else file.tensors
    for state in (s for s in runtime.units if s.trainable):
        pieces = state.unit.pieces
        masters = ["master"] if all(f"master/{p.name}" in tensors for p in pieces) else []
        for what in (*masters, *_of_unit(head["moments"], state.unit)):
            rows: list[Row] = [
                (p, functools.partial(_read_tensor, file, f"{what}/{p.name}"))
                for p in pieces
                if f"{what}/{p.name}" in tensors
            ]
            _put(runtime, state, what, 0, state.unit.elems, rows)
        runtime.call(runtime.engine.set_tensor_steps, state.index, [head["steps"][p.name] for p in pieces])
    for stepper in runtime.steppers:
        if stepper.alive:
            _optim.show_state(stepper.optimizer, runtime, stepper.rule)


def _read_tensor(file: Any, name: str, first: int, out: torch.Tensor) -> None:
    file.read_f32(name, first, out)


def load_optimizer(optimizer: Any, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Reads what save_optimizer() wrote. Collective.

    Raises ValueError where the groups are others; for a HostOptimizer also on another number of ranks.
    """
    optimizer = bare(optimizer)
    runtime = runtimes_of(optimizer)[0]
    where = os.path.join(folder, FOLDER)
    failed: BaseException | None = None
    state = None
    try:
        head = torch.load(_optimizer_file(where, number), weights_only=True)
        sizes = [len(g["params"]) for g in optimizer.param_groups]
        if head["sizes"] != sizes:
            raise ValueError(
                f"'{_optimizer_file(where, number)}' has groups of {head['sizes']} parameters, the optimizer of {sizes}"
            )
        if isinstance(optimizer, HostOptimizer):
            path = _rank_file(where, number, runtime)
            if not os.path.exists(path):
                raise ValueError(f"'{path}' is not there: the state of a HostOptimizer is of as many ranks as it had")
            state = torch.load(path, weights_only=True)
    except (OSError, ValueError) as e:
        failed = e
    _agree(runtime, failed, f"the optimizer's groups cannot be loaded from '{where}'")
    for group, saved in zip(optimizer.param_groups, head["groups"], strict=True):
        group.update(saved)
    if state is not None:
        optimizer.load_state_dict(state)


def load_plain_optimizer(optimizer: Any, path: str | os.PathLike[str]) -> None:
    """Reads torch.save(optimizer.state_dict()) of the same model unsharded, tensor by tensor. Collective."""
    optimizer = bare(optimizer)
    optimizer.load_state_dict(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
    if not isinstance(optimizer, HostOptimizer):
        _optim.load_state(optimizer, _plain.check(optimizer))


# ---- weights


def save_weights(model: nn.Module, folder: str | os.PathLike[str], max_shard_size: int | str = "5GB") -> None:
    """save_pretrained(), which has ended when this returns. Collective."""
    _save.save_pretrained(model, folder, max_shard_size=max_shard_size, background=False)


def _values(model: nn.Module, checkpoint: _sources.Checkpoint) -> tuple[dict[str, _sources.Source], list[str]]:
    """By name of the model: where the files have its values, and the files' names that the model does not have."""
    with _state._keep_nan():
        names = model.state_dict()
        if _is_transformers(model):
            return _load._map(model, checkpoint, None)
    return {n: checkpoint[n] for n in checkpoint if n in names}, [n for n in checkpoint if n not in names]


def _is_transformers(model: nn.Module) -> bool:
    """Whether Transformers' conversions of names hold for the model's own names."""
    classes = type(model).__mro__
    return any(c.__name__ == "PreTrainedModel" and c.__module__.startswith("transformers.") for c in classes)


def load_weights(model: nn.Module, folder: str | os.PathLike[str]) -> Any:
    """Reads weights of a folder of safetensors files into a sharded model; moments stay. Collective, between two steps.

    Returns:
        missing_keys and unexpected_keys, as torch.nn.Module.load_state_dict().

    Raises:
        FileNotFoundError: there are no safetensors files. ValueError: shapes differ. Nothing is written then.
    """
    runtime = _runtime(model)
    runtime.let_go()
    failed: BaseException | None = None
    found: dict[int, _sources.Source] = {}
    unexpected: list[str] = []
    with _state._keep_nan():
        own = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
    try:
        values, unexpected = _values(model, _sources.Checkpoint(folder))
        for name, t in own.items():
            if name in values and values[name].shape != tuple(t.shape):
                raise ValueError(
                    f"'{name}' has shape {list(values[name].shape)} in '{folder}', and {list(t.shape)} in the model"
                )
            if name in values:
                found.setdefault(id(t), values[name])
    except (OSError, ValueError, ZshardError) as e:
        failed = e
    _agree(runtime, failed, f"the weights in '{folder}' cannot be loaded")
    _write_weights(runtime, found)
    with torch.no_grad():
        for t in own.values():
            if id(t) in found and _step.runtime_of(t) is None:
                t.copy_(found[id(t)].tensor())
    _sources.forget()
    missing = [n for n, t in own.items() if id(t) not in found]
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def _write_weights(runtime: Runtime, found: dict[int, _sources.Source]) -> None:
    """Masters as the files have them; parameters are rounded from them."""
    for state in runtime.units:
        rows: list[Row] = [(p, found[id(p.param)].read) for p in state.unit.pieces if id(p.param) in found]
        if len(rows) == len(state.unit.pieces):
            _put(runtime, state, "master", 0, state.unit.elems, rows)
            continue
        for piece, read in rows:
            _put(runtime, state, "master", piece.first, piece.first + piece.numel, [(piece, read)])


# ---- adapters of peft


def adapter_values(model: Any) -> dict[str, torch.Tensor]:
    """Of a sharded model with adapters: what its save_pretrained() writes, on rank 0; {} on others. Collective.

    Names are those of the model's state dict.
    """
    with _state._keep_nan():
        every = {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
    wanted = {id(t) for t in every.values() if t.requires_grad}
    if hasattr(model, "get_base_model"):
        from peft import get_peft_model_state_dict

        for name in model.peft_config:
            made = get_peft_model_state_dict(model, state_dict=dict(every), adapter_name=name)
            wanted |= {id(t) for t in made.values()}
    values: dict[str, torch.Tensor] = {}
    for name, t in every.items():
        if id(t) not in wanted:
            continue
        value = _state.value_of(t, root=0) if _step.runtime_of(t) is not None else t.detach()
        if value is not None:
            values[name] = value.cpu()
    runtime = _runtime(model)
    return values if runtime.engine.rank == 0 else {}
