"""Which modules get hooks, and which units each of them needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from ._runtime import Runtime
from ._unit_state import Group


def build(runtime: Runtime, model: nn.Module, external: Mapping[nn.Module, Iterable[nn.Parameter]]) -> list[Group]:
    """The groups of a runtime, outer modules first: owners of units; modules that have a tied parameter of a unit whose
    owner does not enclose them; modules of which a part is the root unit's, for calls that go around the root's
    forward; the root itself, whose outputs begin the backward pass.

    Raises ValueError where `external` names a parameter that is not sharded.
    """
    made = runtime.groups
    names = {id(m): n for n, m in model.named_modules()}
    owned: dict[int, list[int]] = {}
    for state in runtime.units:
        owned.setdefault(id(state.unit.module), []).append(state.index)

    def group_of(module: nn.Module) -> Group:
        if id(module) not in made:
            made[id(module)] = Group(module, names.get(id(module), type(module).__name__))
        return made[id(module)]

    runtime.root = model
    root = group_of(model)
    for module in model.modules():
        for index in owned.get(id(module), ()):
            group_of(module).add(runtime.units[index])
    _tied(runtime, model, group_of, root)
    for module, params in external.items():
        for param in params:
            found = runtime.plan.find(param)
            if found is None:
                raise ValueError(
                    f"external: module '{names.get(id(module), '?')}' names a parameter that is not sharded"
                )
            group_of(module).add(runtime.units[found[0].index])
    for group in made.values():
        inside = [made[id(m)] for m in group.module.modules() if m is not group.module and id(m) in made]
        group.encloses = any(u.trainable and u not in group.units for g in inside for u in g.units)
    return [made[id(m)] for m in model.modules() if id(m) in made]


def _tied(runtime: Runtime, model: nn.Module, group_of: object, root: Group) -> None:
    """Modules with parameters of units that are gathered elsewhere."""
    assert callable(group_of)

    def walk(module: nn.Module, above: tuple[nn.Module, ...]) -> None:
        path = (*above, module)
        for param in module.parameters(recurse=False):
            found = runtime.plan.find(param)
            if found is None:
                continue
            owner = found[0].module
            if owner is model:
                known = runtime.groups.get(id(module))
                if known is None or known.owner is root:
                    part = group_of(module)
                    part.owner = root
                    part.add(runtime.units[found[0].index])
            elif not any(a is owner for a in path):
                group_of(module).add(runtime.units[found[0].index])
        for child in module.children():
            walk(child, path)

    walk(model, ())
