"""`deepspeed.runtime.zero.partition_parameters`: models that no rank ever holds, before and after `initialize`.

Parameters keep their true shapes. Under Init their values wait in a file (../../_spool.py); after `initialize` they are
the engine's. Outside of a pass and of GatheredParameters they read as NaN.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import nn

from ....torch import _state, _step
from ... import _config, _spool
from ...accelerator import get_accelerator
from ...comm import init_distributed

_EXTERNAL = "_zshard_external"
_orig_torch_arange = torch.arange
_active: list[Init] = []  # nested contexts, the innermost last
_process_spool: _spool.Spool | None = None


class ZeroParamType(Enum):
    """What a parameter is: always REMOTE here."""

    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


class ZeroParamStatus(Enum):
    """Whether a parameter shows its value."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def status_of(p: torch.Tensor) -> ZeroParamStatus:
    """Of a parameter outside of a pass and of GatheredParameters: below stage 3 it has its value."""
    runtime = _step.runtime_of(p)
    return ZeroParamStatus.AVAILABLE if runtime is not None and runtime.kept else ZeroParamStatus.NOT_AVAILABLE


def is_zero_param(p: Any) -> bool:
    """Whether a parameter is of a model under Init or `initialize`."""
    return isinstance(p, torch.Tensor) and hasattr(p, "ds_id")


def zero_wrapper_for_fp_tensor_constructor(fn: Callable[..., Any], target_fp_dtype: Any = None, **_: Any) -> Any:
    """The constructor as it is: Init changes no tensor constructors. Transformers reads and sets this name."""
    return fn


def _the_spool(folder: str | None) -> _spool.Spool:
    global _process_spool
    if _process_spool is None:
        _process_spool = _spool.Spool(folder)
    return _process_spool


class Init:
    """Modules that are built inside give their parameters away as soon as each of them is complete. Collective: all
    ranks build the same modules. Each parameter begins with the value of rank 0.

    Args:
        module: a module that was built before; its parameters are taken now.
        config_dict_or_path: DeepSpeed's configuration, for the dtype and nvme_path.
        enabled: False: nothing is done.
        dtype: of floating-point parameters; None: the configuration's, without one that of each parameter.

    Arguments that only tune DeepSpeed's own memory (mem_efficient_linear, pin_memory, remote_device) have no effect.
    Buffers keep their values and dtypes. Meanwhile nn.Module.__init__ is replaced, in all threads.

    Raises NotImplementedError: parameters are to be partitioned among fewer than all ranks.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: Any = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: Any = None,
        param_swapper: Any = None,
        **_: Any,
    ) -> None:
        self.enabled = enabled
        self.dtype, self.folder = dtype, None
        self.suspended = False
        self._pending: list[nn.Module] = []
        self._taken: list[tuple[nn.Parameter, int]] = []  # and the address of the view that it became
        self._original: Any = None
        if not enabled:
            return
        for name, value in (("mpu", mpu), ("zero_param_parallel_group", zero_param_parallel_group)):
            if value is not None:
                raise NotImplementedError(f"zero.Init({name}=): parameters are partitioned among all ranks")
        init_distributed()
        for group in (data_parallel_group, sequence_data_parallel_group):
            if group is not None and torch.distributed.get_world_size(group) != torch.distributed.get_world_size():
                raise NotImplementedError("zero.Init(data_parallel_group=) of fewer than all ranks")
        given = config_dict_or_path if config_dict_or_path is not None else config
        if given is not None:
            settings = _config.read(given, torch.distributed.get_world_size())
            self.folder = settings.data
            self.dtype = dtype or settings.dtype
        self.device = torch.device(get_accelerator().current_device_name())
        if module is not None:
            self.spool = _the_spool(self.folder)
            for part in module.modules():
                self._take(part)
            self._close()

    def __enter__(self) -> Init:
        if not self.enabled:
            return self
        self.spool = _the_spool(self.folder)
        original = self._original = nn.Module.__init__

        def begin(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            if _active and _active[-1] is self and not self.suspended:
                self._finish(_under_construction())
                self._pending.append(module)

        nn.Module.__init__ = begin  # type: ignore[assignment, method-assign]
        _active.append(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self.enabled:
            return
        _active.remove(self)
        nn.Module.__init__ = self._original  # type: ignore[method-assign]
        if kind is None:
            self._finish(set())
            self._close()

    def _close(self) -> None:
        """The parameters that were taken have no values from now on. Collective."""
        for p, address in self._taken:
            source = _spool.spooled(p)
            assert source is not None
            if not source.hidden and p.data_ptr() != address and self.spool.rank == self.spool.leader:
                self.spool.write(source, p.data)  # `p.data = ...` of an outer module's constructor
            if len(self.spool.leaders) > 1:
                mine = self.spool.rank == 0
                self.spool.share(source, source.tensor() if mine else torch.empty(source.shape, dtype=source.dtype), 0)
            _spool.hide(p, self.device)
        self._taken.clear()
        self.spool.wait()

    def _finish(self, building: set[int]) -> None:
        """Takes the parameters of modules whose constructors have returned."""
        left = []
        for module in self._pending:
            if id(module) in building:
                left.append(module)
            else:
                self._take(module)
        self._pending = left

    def _take(self, module: nn.Module) -> None:
        for p in module._parameters.values():
            if p is not None and p.device.type != "meta" and _spool.spooled(p) is None:
                if _step.runtime_of(p) is not None:
                    raise ValueError("zero.Init: a parameter is of a model that is sharded already")
                view = _spool.take(p, self.spool, self.dtype or p.dtype)
                self._taken.append((p, view.data_ptr()))
                p.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]


def _under_construction() -> set[int]:
    """Ids of objects whose __init__ runs in this thread."""
    found: set[int] = set()
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            found.add(id(frame.f_locals.get(code.co_varnames[0])))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def shutdown_init_context() -> None:
    """Modules that are built from now on are left alone, although a context is open."""
    for context in _active:
        context.suspended = True


def restore_init_context() -> None:
    """The counterpart of shutdown_init_context()."""
    for context in _active:
        context.suspended = False


class GatheredParameters:
    """Inside, parameters have their values. Collective; blocks nest.

    Args:
        params: a parameter, or several. Those that are not of ZeRO are left alone.
        modifier_rank: what this rank writes inside is the value on all ranks afterwards. None: nothing may be written.
        fwd_module: a module that uses the parameters outside of their own module's forward.
        enabled: False: nothing is done.

    Raises RuntimeError where a parameter was written inside and modifier_rank is None.
    """

    def __init__(
        self,
        params: Any,
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        several = isinstance(params, Iterable) and not isinstance(params, torch.Tensor)
        found = [p for p in (list(params) if several else [params]) if is_zero_param(p)]
        self.params = sorted({id(p): p for p in found}.values(), key=lambda p: p.ds_id)
        self.enabled = enabled and bool(self.params)
        self.root = modifier_rank
        self._block: Any = None
        self._mine: list[Any] = []
        if fwd_module is not None:
            for p in self.params:
                register_external_parameter(fwd_module, p)

    def __enter__(self) -> None:
        if not self.enabled:
            return
        waiting = [p for p in self.params if _spool.spooled(p) is not None]
        if waiting:
            self._mine = [p for p in waiting if not _depth.get(id(p))]
            for p in waiting:
                _depth[id(p)] = _depth.get(id(p), 0) + 1
            if self._mine:
                _spool.spooled(self._mine[0]).spool.wait()  # type: ignore[union-attr]
            for p in self._mine:
                _spool.show(p)
                _versions[id(p)] = p._version
        sharded = [p for p in self.params if _step.runtime_of(p) is not None]
        if sharded:
            self._block = _state.gathered(sharded, write_rank=self.root)
            self._block.__enter__()
        self._status(ZeroParamStatus.AVAILABLE)

    def __exit__(self, *exc: Any) -> None:
        if not self.enabled:
            return
        waiting = [p for p in self.params if _spool.spooled(p) is not None and _depth.get(id(p))]
        lost = None
        for p in waiting:
            _depth[id(p)] -= 1
            source = _spool.spooled(p)
            assert source is not None
            if self.root is not None and exc[0] is None:
                source.spool.share(source, p.data, self.root)
                _versions[id(p)] = p._version
        for p in waiting:
            if _depth[id(p)] == 0:
                del _depth[id(p)]
                if _versions.pop(id(p)) != p._version and exc[0] is None:
                    lost = lost or p
                _spool.hide(p, p.device)
        if waiting and self.root is not None:
            _spool.spooled(waiting[0]).spool.wait()  # type: ignore[union-attr]
        if self._block is not None:
            block, self._block = self._block, None
            block.__exit__(*exc)
        self._status(None)
        if lost is not None:
            raise RuntimeError(
                f"GatheredParameters: in-place modification of a parameter of shape {list(lost.shape)} without "
                "modifier_rank: the change is dropped; name the rank whose values count"
            )

    def _status(self, status: ZeroParamStatus | None) -> None:
        for p in self.params:
            p.ds_status = status or status_of(p)


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """Inside, all parameters of an engine's model are gathered, so that each token gathers nothing. Collective."""
    with GatheredParameters(list(model.parameters())):
        yield model


# Of spooled parameters that are shown, by id:
_depth: dict[int, int] = {}  # the blocks that show them
_versions: dict[int, int] = {}  # p._version when they were shown, or were last sent to all ranks


def register_external_parameter(module: nn.Module, parameter: Any) -> None:
    """Says that a module uses a parameter outside of its own module's forward. Needed before `initialize`, if at all:
    such parameters are found in the first forward pass."""
    if not isinstance(parameter, nn.Parameter):
        raise RuntimeError(f"register_external_parameter: a {type(parameter).__name__} is not an nn.Parameter")
    known = module.__dict__.setdefault(_EXTERNAL, [])
    if not any(p is parameter for p in known):
        known.append(parameter)


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Reverses register_external_parameter(), before `initialize`. RuntimeError: it was not registered."""
    known = module.__dict__.get(_EXTERNAL, [])
    if not any(p is parameter for p in known):
        raise RuntimeError("unregister_external_parameter: the parameter is not registered with this module")
    module.__dict__[_EXTERNAL] = [p for p in known if p is not parameter]


def external_of(model: nn.Module) -> dict[nn.Module, list[nn.Parameter]]:
    """What was registered, by module."""
    return {m: list(m.__dict__[_EXTERNAL]) for m in model.modules() if m.__dict__.get(_EXTERNAL)}
