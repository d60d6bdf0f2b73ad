"""Muon: the optimizer, and which parameters it steps.

Muon steps matrices of hidden layers; AdamW steps everything else in the same step. A parameter is Muon's by the
`use_muon` of its group, or by its own attribute of that name, as with DeepSpeed; else `muon_groups` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from .._engine import MUON_ENGINE
from ._optim import Optimizer
from ._step import MUON, Rule
from ._units import _blocks

Select = Callable[[str, nn.Parameter], bool]
_HEADS = ("lm_head", "embed_out", "head", "classifier", "score", "output", "output_projection")


def muon_groups(
    model: nn.Module, select: Select | None = None, params: Iterable[Any] | None = None
) -> list[dict[str, Any]]:
    """The groups of an optimizer `Muon`: {"params": matrices, "use_muon": True}, and all others with False.

    Args:
        model: its parameters that require a gradient.
        select: whether Muon steps (name, parameter). None: the parameter's attribute `use_muon` decides where it has
            one. Else Muon steps matrices (2 dimensions) of blocks: the repeated layers of the model, without
            embeddings in them. In a model without blocks it steps all matrices but those of embeddings and of the
            head, which is the module that Transformers' get_output_embeddings() says, or has the usual name of one.
        params: those of the model that are trained; None: all. Groups (dicts) with a `use_muon` stay as they are,
            others are cut in two.

    Raises:
        ValueError: a parameter is not of the model, or one that was selected is no matrix.
    """
    chosen = _selected(model, select)
    names = {id(p): n for n, p in model.named_parameters()}
    given: list[Any] = [p for p in model.parameters() if p.requires_grad] if params is None else list(params)
    if given and isinstance(given[0], tuple):
        given = [p for _, p in given]
    rows = given if given and isinstance(given[0], dict) else [{"params": given}]
    made = []
    for row in rows:
        if "use_muon" in row:
            made.append(dict(row))
            continue
        own = [row["params"]] if isinstance(row["params"], torch.Tensor) else list(row["params"])
        for p in own:
            if id(p) not in names:
                raise ValueError("muon_groups: a parameter is not of this model")
        for use in (True, False):
            some = [p for p in own if (id(p) in chosen) == use]
            if some:
                made.append({**row, "params": some, "use_muon": use})
    return made


def _selected(model: nn.Module, select: Select | None) -> set[int]:
    """Ids of the parameters that Muon steps."""
    default = _hidden(model) if select is None else set()
    chosen = set()
    for name, param in model.named_parameters():
        use = select(name, param) if select is not None else getattr(param, "use_muon", id(param) in default)
        if not use or not param.requires_grad:
            continue
        if param.ndim != 2:
            raise ValueError(f"parameter '{name}' has {param.ndim} dimensions: Muon steps matrices, which have 2")
        chosen.add(id(param))
    return chosen


def _hidden(model: nn.Module) -> set[int]:
    """Matrices of hidden layers."""
    blocks = _blocks(model, "auto")
    roots = [m for m in model.modules() if id(m) in blocks] or [model]
    outside = set()
    for name, module in model.named_modules():
        head = not blocks and name.rpartition(".")[2] in _HEADS
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or head:
            outside |= {id(p) for p in module.parameters()}
    output = getattr(model, "get_output_embeddings", None)
    if callable(output) and isinstance(module := output(), nn.Module):
        outside |= {id(p) for p in module.parameters()}
    return {id(p) for m in roots for p in m.parameters() if p.ndim == 2 and id(p) not in outside}


class Muon(Optimizer):
    """Muon for matrices, AdamW for everything else, as one optimizer. Give it to shard(): which parameters are Muon's
    cannot change later.

    Newton-Schulz is computed in fp32 on whole matrices, however they are sharded and offloaded
    (docs/OPTIMIZERS.md). `torch.optim.Muon` together with `torch.optim.AdamW` gives the same steps.

    Args:
        params: the model: `muon_groups(model, select)` makes the groups. Or groups, each with `use_muon`. Or
            parameters with an attribute `use_muon`.
        lr, weight_decay: of all groups that have none of their own. weight_decay is decoupled.
        momentum, nesterov: of groups with use_muon.
        scale: "rms": the learning rate is multiplied by 0.2 sqrt(max(rows, columns)), so that one of AdamW fits
            (torch's "match_rms_adamw"); "shape": by sqrt(max(1, rows / columns)) (torch's "original").
        betas, eps: of all others, AdamW's.
        engine: what orthogonalizes the matrices, if the optimizer is offloaded: "cpu", threads of the daemon; "gpu", a
            GPU of the daemon, in fp32; "gpu-bf16". A kept job keeps its engine.
        select: as of muon_groups(), with a model.
        adamw: what all others have instead, with a model: {"lr": 3e-4, "weight_decay": 0.0}.
    """

    zshard_rule: Rule = MUON

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        scale: str = "rms",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        engine: str = "cpu",
        select: Select | None = None,
        adamw: dict[str, Any] | None = None,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum={momentum}: from 0 to below 1")
        if engine not in MUON_ENGINE:
            raise ValueError(f"engine='{engine}': {', '.join(MUON_ENGINE)}")
        self.engine = engine
        groups = self._groups(params, select, adamw)
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "scale": scale,
            "betas": betas,
            "eps": eps,
            "use_muon": False,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            if group["scale"] not in ("rms", "shape"):
                raise ValueError(f'scale=\'{group["scale"]}\': "rms" or "shape"')

    @staticmethod
    def _groups(params: Any, select: Select | None, adamw: dict[str, Any] | None) -> list[dict[str, Any]]:
        if isinstance(params, nn.Module):
            groups = muon_groups(params, select)
            return [group if group["use_muon"] else {**group, **(adamw or {})} for group in groups]
        if select is not None or adamw is not None:
            raise ValueError("Muon(select=, adamw=) needs the model, Muon(model): groups say it themselves")
        given = list(params)
        if given and isinstance(given[0], tuple):
            given = [p for _, p in given]
        if given and isinstance(given[0], dict) and all("use_muon" in g for g in given):
            return given
        if not given or isinstance(given[0], dict) or not all(hasattr(p, "use_muon") for p in given):
            raise ValueError(
                "Muon has to know which matrices it steps: give the model, Muon(model), or groups with 'use_muon', as "
                "muon_groups(model) makes them"
            )
        made = [{"params": [p for p in given if bool(p.use_muon) == use], "use_muon": use} for use in (True, False)]
        return [g for g in made if g["params"]]


def engine_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, str]:
    """The option of the engine that says what orthogonalizes, if an optimizer does."""
    return next(({"muon_engine": o.engine} for o in optimizers if isinstance(o, Muon) and o.engine != "cpu"), {})


def chosen(optimizers: Sequence[torch.optim.Optimizer], rules: Sequence[Rule]) -> frozenset[int]:
    """Ids of the parameters that optimizers step by Muon."""
    return frozenset(
        id(p)
        for optimizer, rule in zip(optimizers, rules, strict=True)
        if rule.kind == "muon"
        for group in optimizer.param_groups
        if group.get("use_muon", True)
        for p in group["params"]
    )
