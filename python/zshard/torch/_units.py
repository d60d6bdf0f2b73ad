"""Plans units: which parameters of a module are gathered and released together.

A unit is a row of parameters of one dtype, all trained or all frozen, all stepped by Muon or none,
that belong to one module; hooks of that module gather it. One Parameter is in one unit, however
many names it has: the first name in `named_modules()` order owns it, the others are aliases. Pure
planning: nothing here opens a daemon, allocates or changes the model, and parameters may be on the
meta device.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

ALIGN = 32  # elements: 64 bytes of bf16, 128 of fp32
SMALL = 1 << 20  # elements: modules outside of blocks with fewer than that join the root unit
MAX_UNIT = 1 << 28  # elements: a larger block is cut at its children
NAME_MAX = 63  # bytes of a unit's name
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)

Wish = str | Callable[[str, nn.Module], bool] | Iterable[str | type | nn.Module]
Leaf = Iterable[str | type | nn.Module]


@dataclass(eq=False)
class Piece:
    """One parameter in its unit: elements [first, first + numel) of it, in row-major order."""

    name: str  # as in named_parameters()
    param: nn.Parameter
    shape: torch.Size
    first: int
    numel: int


@dataclass(eq=False)
class Unit:
    """What is gathered together; `index` is its number in the engine."""

    index: int
    name: str
    dtype: torch.dtype
    frozen: bool
    pieces: list[Piece] = field(default_factory=list)
    elems: int = 0
    module: nn.Module | None = None  # whose hooks gather it
    muon: bool = False  # matrices that Muon steps: they have one moment

    def add(self, name: str, param: nn.Parameter) -> Piece:
        """Appends a parameter; its first element is aligned to ALIGN elements."""
        first = -(-self.elems // ALIGN) * ALIGN
        piece = Piece(name, param, param.shape, first, param.numel())
        self.pieces.append(piece)
        self.elems = first + piece.numel
        return piece


@dataclass(eq=False)
class Plan:
    """All units of a model, in order of the forward pass."""

    units: list[Unit]
    of_param: dict[int, tuple[Unit, Piece]]  # by id(parameter)
    aliases: dict[str, str]  # second names of tied parameters: the name that owns them
    ignored: list[str] = field(default_factory=list)  # names: not floating point, or empty

    def find(self, param: torch.Tensor) -> tuple[Unit, Piece] | None:
        """The unit and place of a parameter; None: it is not of this plan."""
        return self.of_param.get(id(param))


def plan(
    model: nn.Module,
    units: Wish = "auto",
    *,
    leaf: Leaf = (),
    muon: frozenset[int] = frozenset(),
    max_unit: int = MAX_UNIT,
    small: int = SMALL,
) -> Plan:
    """Plans the units of `model`.

    units: "auto" (classes named by `_no_split_modules`, else the repeated children of ModuleLists),
    a predicate of (name, module), or an iterable of module names, classes or modules.
    leaf: names, classes or modules that are not cut, whatever `units` says of what is in them, and however long they
    are. One that is inside of a block that is gathered whole is gathered with it.
    muon: ids of the parameters that Muon steps. They are units of their own.

    Raises ValueError where a trained parameter has a dtype that cannot be stepped or memory that another tensor of the
    model has, too, where a wish names a module that is
    not there, or a leaf is a list, which is never called.
    """
    owners = _owners(model, _blocks(model, units), _leaves(model, leaf), max_unit, small)
    result = Plan([], {}, {})
    rows: dict[int, dict[tuple[torch.dtype, bool, bool], Unit]] = {}
    names = {id(m): n for n, m in model.named_modules()}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for short, param in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{short}" if prefix else short
            _place(result, rows, owners[id(module)], names, name, param, id(param) in muon)
    _check_memory(model, result)
    # The root's parameters are needed first and are complete last: reductions go by falling number.
    result.units.sort(key=lambda u: (u.module is not model, u.index))
    for index, unit in enumerate(result.units):
        unit.index = index
    _name(result.units)
    return result


def _place(
    result: Plan,
    rows: dict[int, dict[tuple[torch.dtype, bool, bool], Unit]],
    owner: nn.Module,
    names: dict[int, str],
    name: str,
    param: nn.Parameter,
    muon: bool,
) -> None:
    """Puts one named parameter where it belongs."""
    known = result.of_param.get(id(param))
    if known is not None:
        result.aliases[name] = known[1].name
        return
    if param.dtype not in DTYPES and param.requires_grad:
        raise ValueError(f"parameter '{name}' is {param.dtype}; trained parameters are float32, bfloat16 or float16")
    if param.dtype not in DTYPES or param.numel() == 0:
        result.ignored.append(name)
        return
    row = rows.setdefault(id(owner), {})
    if muon and param.ndim != 2:
        raise ValueError(f"parameter '{name}' has {param.ndim} dimensions: Muon steps matrices, which have 2")
    key = (param.dtype, not param.requires_grad, muon and param.requires_grad)
    unit = row.get(key)
    if unit is None:
        unit = row[key] = Unit(len(result.units), names[id(owner)], *key[:2], module=owner, muon=key[2])
        result.units.append(unit)
    result.of_param[id(param)] = (unit, unit.add(name, param))


def _check_memory(model: nn.Module, result: Plan) -> None:
    """ValueError: two tensors of the model are different objects in the same memory. torch trains them as one, and here
    each would have memory of its own."""
    spans = []
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, t in tensors:
            if t.numel() and t.device.type != "meta" and t.layout is torch.strided:
                last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
                trained = result.find(t) is not None and t.requires_grad
                spans.append((t.device.type, t.data_ptr(), t.data_ptr() + (last + 1) * t.itemsize, name, trained))
    spans.sort()
    for one, other in zip(spans, spans[1:], strict=False):
        if one[0] == other[0] and other[1] < one[2] and (one[4] or other[4]):
            raise ValueError(
                f"'{one[3]}' and '{other[3]}' are two tensors in the same memory, and one of them is trained: they "
                "would no longer have the same values. Use one Parameter in both places, or give one of them a clone"
            )


def _numel(module: nn.Module, recurse: bool = True) -> int:
    return sum(p.numel() for p in module.parameters(recurse=recurse))


def _owners(model: nn.Module, blocks: set[int], leaves: set[int], max_unit: int, small: int) -> dict[int, nn.Module]:
    """By id of each module: the module whose hooks gather its own parameters."""
    owners: dict[int, nn.Module] = {}

    def take(module: nn.Module, owner: nn.Module) -> None:
        for sub in module.modules():
            owners.setdefault(id(sub), owner)

    def cut(module: nn.Module, above: nn.Module) -> None:
        """A block: one unit, or, where it is too long, its own parameters and its children."""
        if id(module) in owners:
            return
        callable_ = not isinstance(module, CONTAINERS)
        if callable_ and (_numel(module) <= max_unit or id(module) in leaves):
            take(module, module)
            return
        owners[id(module)] = module if callable_ else above
        for child in module.children():
            cut(child, owners[id(module)])

    def walk(module: nn.Module, above: nn.Module) -> None:
        if id(module) in owners:
            return
        if id(module) in blocks or id(module) in leaves:
            cut(module, above)
            return
        own = _numel(module, recurse=False)
        alone = module is not model and own >= small and not isinstance(module, CONTAINERS)
        owners[id(module)] = module if alone else model
        for child in module.children():
            walk(child, model)

    if id(model) in blocks:
        cut(model, model)
    else:
        walk(model, model)
    return owners


def _blocks(model: nn.Module, wish: Wish) -> set[int]:
    """Ids of the modules that are blocks."""
    if isinstance(wish, str):
        if wish != "auto":
            raise ValueError(f"units='{wish}': give \"auto\", names, classes, modules or a predicate")
        return _no_split(model) or _repeated(model)
    if callable(wish):
        return {id(m) for n, m in model.named_modules() if wish(n, m)}
    return {id(m) for m in _named(model, wish, "units")}


def _named(model: nn.Module, wish: Iterable[str | type | nn.Module], argument: str) -> list[nn.Module]:
    """The modules that are meant by names, classes or themselves. ValueError: one is not there."""
    found: list[nn.Module] = []
    for item in wish:
        hits = [
            m
            for n, m in model.named_modules()
            if (
                m is item
                if isinstance(item, nn.Module)
                else n == item or type(m).__name__ == item
                if isinstance(item, str)
                else isinstance(m, item)
            )
        ]
        if not hits:
            name = type(item).__name__ if isinstance(item, nn.Module) else item
            raise ValueError(f"{argument}: the model has no module '{name}'")
        found += hits
    return found


def _leaves(model: nn.Module, leaf: Leaf) -> set[int]:
    """Ids of the modules that are gathered at once."""
    found = _named(model, leaf, "leaf")
    for module in found:
        if isinstance(module, CONTAINERS):
            raise ValueError(f"leaf: a {type(module).__name__} is never called; name the module that calls its parts")
    return {id(m) for m in found}


def _no_split(model: nn.Module) -> set[int]:
    """Modules of the classes that Transformers' models say are not to be split."""
    classes: set[str] = set()
    for module in model.modules():
        classes |= set(getattr(module, "_no_split_modules", None) or ())
    return {id(m) for m in model.modules() if type(m).__name__ in classes and m is not model}


def _lists(model: nn.Module) -> Iterator[Sequence[nn.Module]]:
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and module is not model:
            yield list(module.children())


def _repeated(model: nn.Module) -> set[int]:
    """Children of ModuleLists and Sequentials of which there are several of one class, with
    parameters in children of their own (a list of Linears is no list of blocks)."""
    found: set[int] = set()
    for children in _lists(model):
        count = Counter(type(c) for c in children)
        for child in children:
            if count[type(child)] > 1 and any(True for _ in child.children()) and _numel(child) > 0:
                found.add(id(child))
    return found


def _name(units: list[Unit]) -> None:
    """Names of units: the module's path, unique, in the engine's letters and length."""
    shared = Counter((u.name, u.muon) for u in units)
    taken: set[str] = set()
    for unit in units:
        name = unit.name or "root"
        if shared[unit.name, unit.muon] > 1:
            name += "-" + str(unit.dtype).removeprefix("torch.") + ("-frozen" if unit.frozen else "")
        name += "-muon" if unit.muon else ""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".-") or "unit"
        if len(name) > NAME_MAX or name in taken:
            mark = hashlib.sha256(f"{unit.index} {name}".encode()).hexdigest()[:8]
            name = f"{name[-(NAME_MAX - 9) :].lstrip('.-')}-{mark}"
        unit.name = name
        taken.add(name)
