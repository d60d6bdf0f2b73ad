"""What `p.grad` is after a backward pass: a tensor without elements that stands for the gradient.

The gradient itself lies in the engine, reduced and sliced. What clips, scales and clears gradients works: norms
(torch.nn.utils.clip_grad_norm_ in all foreach modes, `p.grad.norm()`), multiplication by a number, GradScaler's
unscaling, `zero_()`. They are remembered as a factor that the step applies. All else raises RuntimeError and names
zshard.torch.grad_of, which reads the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._runtime import Runtime
    from ._unit_state import UnitState

aten = torch.ops.aten


class Gradient(torch.Tensor):
    """The gradient of one parameter, of its shape.

    Attributes:
        factor: what the step multiplies it by (clipped, unscaled).
        zeroed: zero_() was called on it.
    """

    factor: float
    zeroed: bool
    runtime: Runtime
    state: UnitState
    place: int

    @staticmethod
    def __new__(cls, runtime: Runtime, state: UnitState, place: int, param: torch.Tensor, dtype: torch.dtype) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, param.shape, dtype=dtype, device=state.memory.device)
        made.runtime, made.state, made.place = runtime, state, place
        made.factor, made.zeroed = 1.0, False
        return made

    def __init__(self, *_: object) -> None:
        pass

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    def begin(self) -> None:
        """A gradient came: what was done to an earlier step's is forgotten."""
        if self.zeroed or self.runtime.micros == 0 or not self.state.had[self.place]:
            self.factor, self.zeroed = 1.0, False

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.state.unit.pieces[self.place].name

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"zshard.torch.Gradient('{self.name}', shape={tuple(self.shape)}; zshard.torch.grad_of reads it)"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise RuntimeError(f"the gradient of '{self.name}' cannot be copied; zshard.torch.grad_of(p) reads it")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(f"the gradient of '{self.name}' cannot be saved; zshard.torch.grad_of(p) reads it")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        answer = _ANSWERS.get(func)
        if answer is None:
            raise _refusal(func, args)
        return answer(func, args, kwargs or {})


def _gradients(args: Iterable[Any]) -> list[Gradient]:
    found: list[Gradient] = []
    for a in args:
        if isinstance(a, Gradient):
            found.append(a)
        elif isinstance(a, (list, tuple)):
            found += _gradients(a)
    return found


def _refusal(func: Any, args: Sequence[Any]) -> RuntimeError:
    found = _gradients(args)
    whose = f"'{found[0].name}'" if found else "a parameter"
    return RuntimeError(
        f"{func} on the gradient of {whose}: it is sharded in the engine; zshard.torch.grad_of(p) reads "
        "it. Norms, multiplication by a number, unscaling and zero_() work as they are"
    )


# ---- norms


def norm(gradient: Gradient, order: float) -> float:
    """Of the averaged gradient with its factor, over all ranks. Collective the first time in a step."""
    runtime = gradient.runtime
    if gradient.zeroed:
        return 0.0
    row = norms(runtime)[index_of(runtime, gradient)]
    scale = gradient.factor / runtime.world
    if row.nonfinite:
        return math.nan
    if order == 2.0:
        return abs(scale) * math.sqrt(row.sum_of_squares)
    if order == math.inf:
        return abs(scale) * float(row.most)
    raise RuntimeError(
        f"the {order}-norm of a sharded gradient: there are 2 and inf; zshard.torch.grad_of(p) reads the gradient"
    )


def index_of(runtime: Runtime, gradient: Gradient) -> int:
    """The gradient's number among the trainable tensors."""
    return runtime.first_trainable[gradient.state.index] + gradient.place


def norms(runtime: Runtime) -> list[Any]:
    """The engine's rows of this step's gradient, asked for once until another gradient comes."""
    if runtime.norms is None:
        if runtime.micro_open or runtime.in_backward:
            raise RuntimeError("norms of gradients can be read after the backward pass, not inside of it")
        if runtime.micros == 0:
            raise RuntimeError("the gradient was stepped or dropped: it has no norm any more")
        runtime.norms = runtime.call(runtime.engine.norms)
    return runtime.norms


def _scalar(value: float, gradient: Gradient, kwargs: Any = None) -> torch.Tensor:
    dtype = (kwargs or {}).get("dtype") or gradient.dtype
    return torch.tensor(value, dtype=dtype, device=gradient.device)


def _order(args: Sequence[Any]) -> float:
    return float(args[1]) if len(args) > 1 and args[1] is not None else 2.0


def _vector_norm(func: Any, args: Sequence[Any], kwargs: Any) -> torch.Tensor:
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    if dim is not None and len(dim) not in (0, args[0].dim()):
        raise _refusal(func, args)
    return _scalar(norm(args[0], _order(args)), args[0], kwargs)


def _plain_norm(func: Any, args: Sequence[Any], kwargs: Any) -> torch.Tensor:
    return _scalar(norm(args[0], _order(args)), args[0], kwargs)


def _foreach_norm(func: Any, args: Sequence[Any], kwargs: Any) -> list[torch.Tensor]:
    order = _order(args) if len(args) > 1 else float(kwargs.get("ord", 2))
    return [
        _scalar(norm(g, order), g, kwargs) if isinstance(g, Gradient) else torch.linalg.vector_norm(g, order)
        for g in args[0]
    ]


# ---- factors


def _times(gradient: Gradient, value: Any, func: Any, args: Sequence[Any]) -> None:
    if isinstance(value, Gradient) or isinstance(value, torch.Tensor) and value.numel() != 1:
        raise _refusal(func, args)
    gradient.factor *= float(value)


def _mul(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    if not isinstance(args[0], Gradient):
        raise _refusal(func, args)
    _times(args[0], args[1], func, args)
    return args[0]


def _div(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    if not isinstance(args[0], Gradient) or isinstance(args[1], torch.Tensor) and args[1].numel() != 1:
        raise _refusal(func, args)
    args[0].factor /= float(args[1])
    return args[0]


def _foreach(one: Callable[[float], float]) -> Callable[[Any, Sequence[Any], Any], None]:
    def apply(func: Any, args: Sequence[Any], kwargs: Any) -> None:
        given = args[1]
        if isinstance(given, torch.Tensor):
            given = float(given)
        for i, gradient in enumerate(args[0]):
            value = given[i] if isinstance(given, (list, tuple)) else given
            if isinstance(gradient, Gradient):
                _times(gradient, one(float(value)), func, args)
            else:
                gradient.mul_(one(float(value)))

    return apply


def _unscale(func: Any, args: Sequence[Any], kwargs: Any) -> None:
    """GradScaler: gradients are multiplied by inv_scale, found_inf becomes 1 where one is not finite."""
    gradients, found_inf, inv_scale = args
    inverse, bad = float(inv_scale), False
    for gradient in gradients:
        if not isinstance(gradient, Gradient):
            torch._amp_foreach_non_finite_check_and_unscale_([gradient], found_inf, inv_scale)
            continue
        row = norms(gradient.runtime)[index_of(gradient.runtime, gradient)]
        bad = bad or bool(row.nonfinite)
        gradient.factor *= inverse
    if bad:
        found_inf.fill_(1.0)


def _zero(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    args[0].zeroed = True
    return args[0]


def _foreach_zero(func: Any, args: Sequence[Any], kwargs: Any) -> None:
    for gradient in args[0]:
        if isinstance(gradient, Gradient):
            gradient.zeroed = True
        else:
            gradient.zero_()


def _same(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    return args[0]


def _answers() -> dict[Any, Callable[[Any, Sequence[Any], Any], Any]]:
    rows: list[tuple[str, str, Callable[[Any, Sequence[Any], Any], Any]]] = [
        ("linalg_vector_norm", "default", _vector_norm),
        ("norm", "Scalar", _plain_norm),
        ("norm", "ScalarOpt_dim", _vector_norm),
        ("_foreach_norm", "Scalar", _foreach_norm),
        ("mul_", "Tensor", _mul),
        ("mul_", "Scalar", _mul),
        ("div_", "Tensor", _div),
        ("div_", "Scalar", _div),
        ("_foreach_mul_", "Tensor", _foreach(lambda v: v)),
        ("_foreach_mul_", "Scalar", _foreach(lambda v: v)),
        ("_foreach_mul_", "ScalarList", _foreach(lambda v: v)),
        ("_foreach_div_", "Tensor", _foreach(lambda v: 1 / v)),
        ("_foreach_div_", "Scalar", _foreach(lambda v: 1 / v)),
        ("_amp_foreach_non_finite_check_and_unscale_", "default", _unscale),
        ("zero_", "default", _zero),
        ("_foreach_zero_", "default", _foreach_zero),
        ("detach", "default", _same),
        ("alias", "default", _same),
    ]
    table = {}
    for name, overload, answer in rows:
        packet = getattr(aten, name, None)
        if packet is not None and overload in packet.overloads():
            table[getattr(packet, overload)] = answer
    return table


_ANSWERS = _answers()
