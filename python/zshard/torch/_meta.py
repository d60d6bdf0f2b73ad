"""Initial values of parameters on the meta device, drawn one by one: no rank ever holds a model.

    with torch.device("meta"):
        model = MyModel()
    zt.shard(model, opt, init_fn=my_init)

Each parameter says where its values are (`_sources.py`); buffers are real. Values are drawn from a generator that is
seeded by the run's seed and the parameter's name, so that any number of ranks begins with the same model.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ._sources import Whole, attach, attached, forget

_SEED_MASK = (1 << 63) - 1


def names_text(names: list[str]) -> str:
    return ", ".join(sorted(names)[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _seed(seed: int, name: str) -> int:
    return ((seed & 0xFFFFFFFF) << 31 ^ zlib.crc32(name.encode())) & _SEED_MASK


@contextmanager
def drawn_from(seed: int, name: str) -> Iterator[None]:
    """Random numbers of the host's generator are those of this name; the generator is as before afterwards."""
    state = torch.get_rng_state()
    torch.manual_seed(_seed(seed, name))
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_rng_state(state)


def owners(model: nn.Module) -> dict[int, tuple[str, nn.Module, str]]:
    """By id of each Parameter: its first full name, the module that has it, and its name there."""
    found: dict[int, tuple[str, nn.Module, str]] = {}
    for prefix, module in model.named_modules():
        for leaf, p in module._parameters.items():
            if p is not None and id(p) not in found:
                found[id(p)] = (f"{prefix}.{leaf}" if prefix else leaf, module, leaf)
    return found


@contextmanager
def swapped(module: nn.Module, values: Mapping[str, nn.Parameter]) -> Iterator[None]:
    kept = {leaf: module._parameters[leaf] for leaf in values}
    module._parameters.update(values)
    try:
        yield
    finally:
        module._parameters.update(kept)


def empty_of(p: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cpu"), requires_grad=False)


def _init_by_module(
    name: str,
    module: nn.Module,
    leaf: str,
    like: torch.Tensor,
    seed: int,
    init_fn: Callable[[nn.Module], object] | None,
) -> torch.Tensor:
    """The module's own parameters, all of them, as init_fn (else reset_parameters) makes them; `leaf` is returned."""
    call: Callable[[Any], object] = init_fn or (lambda m: m.reset_parameters())
    prefix = name.removesuffix(leaf)
    fresh = {n: empty_of(p) for n, p in module._parameters.items() if p is not None}
    for p in fresh.values():
        p.data.fill_(torch.nan)
    with swapped(module, fresh), drawn_from(seed, prefix):
        call(module)
        value = module._parameters[leaf]
    if value is None or tuple(value.shape) != tuple(like.shape) or value.device.type == "meta":
        raise ValueError(f"the initialisation of '{prefix}' left no values of shape {list(like.shape)} in '{leaf}'")
    if value.is_floating_point() and value.numel() > 0 and bool(value.isnan().any()):
        raise ValueError(f"the initialisation of '{prefix}' wrote no values to '{leaf}', or not all of them")
    return value.detach()


def initialise(model: nn.Module, init_fn: Callable[[nn.Module], object] | None = None, seed: int = 0) -> None:
    """Says where the values of a model on the meta device come from, for parameters where nothing else says it.

    init_fn is called with one module at a time, whose own parameters are real and hold nothing; it writes all of them.
    Without it the module's reset_parameters() does, as torch's own modules have it. Nothing is computed now.

    Raises ValueError, naming the parameters, for modules that have no reset_parameters() where init_fn is None.
    """
    missing = []
    for name, module, leaf in owners(model).values():
        p = module._parameters[leaf]
        if p is None or p.device.type != "meta" or attached(p) is not None:
            continue
        if init_fn is None and not hasattr(module, "reset_parameters"):
            missing.append(f"{name} ({type(module).__name__})")
            continue
        attach(p, Whole(functools.partial(_init_by_module, name, module, leaf, p, seed, init_fn), p.shape, p.dtype))
    if missing:
        raise ValueError(
            "parameters on the meta device whose modules have no reset_parameters(); give shard() an "
            f"init_fn: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}"
        )


def buffers_are_real(model: nn.Module) -> None:
    """Raises ValueError, naming them, where buffers are on the meta device: their values are lost."""
    lost = [name for name, b in model.named_buffers() if b.device.type == "meta"]
    if lost:
        raise ValueError(
            "buffers on the meta device have no values: compute them after the model is built, or build "
            f"it under zshard.torch.meta_parameters(): {names_text(lost)}"
        )


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Modules that are built inside have their parameters on the meta device, but their buffers on their own device.

    This is like `with torch.device("meta")`, but keeps the buffers' values. Meanwhile Module.register_parameter is
    replaced, in all threads.
    """
    original = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(self, name, param)
        p = self._parameters[name]
        if p is not None and p.device.type != "meta":
            fresh = type(p)(p.detach().to("meta"), requires_grad=p.requires_grad)
            fresh.__dict__.update(p.__dict__)
            self._parameters[name] = fresh

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def land(params: Iterable[nn.Parameter], device: torch.device) -> None:
    """Parameters whose values the engine has now are on the device that they will be on: NaN until they are gathered.
    The Parameter objects stay the same."""
    for p in params:
        attach(p, None)
        if p.device.type != "meta":
            continue
        nan = torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)
        fresh = type(p)(nan, requires_grad=p.requires_grad)
        fresh.__dict__.update(p.__dict__)
        torch.utils.swap_tensors(p, fresh)
    forget()
