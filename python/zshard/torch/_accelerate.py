"""`Accelerator`: Accelerate's, whose prepare() shards models.

Accelerate has no place to register a way of distribution. It hands a model back as it is where it was marked as
prepared, so prepare_model() shards in place what others would wrap, and what touches gradients, weights and states is
overridden below. Everything else, data loaders, autocast, gather(), tracking, is Accelerate's own.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import accelerate
import torch
from accelerate.utils import AutocastKwargs, DistributedType, DynamoBackend, TorchDynamoPlugin
from safetensors.torch import load_model
from torch import nn

from . import _announce, _plain, _state, _step, _train_state
from ._clip import clip_grad_norm_
from ._handle import shard as shard_model
from ._train_state import bare, handle_of, runtimes_of

_Base: Any = accelerate.Accelerator
_OTHERS = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "megatron_lm_plugin",
    "torch_tp_plugin",
    "parallelism_config",
)
_PLACES = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class _Weights(dict[str, Any]):
    """A model's entry in save_state()'s list of weights; {} for a sharded one, which _zshard_write() writes."""

    def __init__(self, model: nn.Module, values: Any = ()) -> None:
        super().__init__(values)
        self.model = model


def _sharded(params: Iterable[torch.Tensor]) -> bool:
    return any(_step.runtime_of(p) is not None for p in params)


def _compile_arguments(plugin: Any) -> dict[str, Any] | None:
    """Arguments of torch.compile; None: it is off."""
    if plugin.backend == DynamoBackend.NO:
        return None
    return {k: v for k, v in plugin.to_kwargs().items() if k != "disable"}


class Accelerator(_Base):
    """Accelerate's Accelerator, whose `prepare` shards models with `zshard.torch.shard` instead of wrapping them.

        accelerator = zt.Accelerator(gradient_accumulation_steps=2, shard={"offload": "nvme"})
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    The loop stays as it is. `prepare` is collective; it changes the model in place, and returns the same object. Models
    without trained parameters are sharded too; those that `prepare_model(evaluation_mode=True)` is given are left whole
    as long as they have trained parameters.

    Args:
        *args, **kwargs: Accelerate's.
        shard: arguments of `zshard.torch.shard` for all models, such as `offload`, `units` or `accumulate`.

    Raises:
        NotImplementedError: plugins of other ways of distribution (DeepSpeed, FSDP, Megatron, parallelism_config), fp8,
            communication hooks of DDP.
    """

    autocast_handler: Any
    _optimizers: list[Any]

    def __init__(self, *args: Any, shard: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for name in _OTHERS:
            if kwargs.get(name) is not None:
                raise NotImplementedError(f"zshard.torch.Accelerator({name}=): it shards models itself; leave it out")
        super().__init__(*args, **kwargs)
        self._zshard_begin(shard)

    def _zshard_begin(self, shard: dict[str, Any] | None) -> None:
        """What __init__ adds."""
        self._zshard_options: dict[str, Any] = dict(shard or {})
        self._zshard_given: list[torch.optim.Optimizer] = []  # optimizers of the prepare() that is under way
        self._zshard_saving = False
        if self.distributed_type not in _PLACES:
            raise NotImplementedError(
                f"zshard.torch.Accelerator with {self.distributed_type}: it shards models itself; start the script "
                "with torchrun, and without a configuration for another way of distribution"
            )
        if self.mixed_precision == "fp8":
            raise NotImplementedError("zshard.torch.Accelerator(mixed_precision='fp8'): there are 'no', 'fp16', 'bf16'")
        hook = getattr(self.ddp_handler, "comm_hook", None)
        if hook is not None and str(getattr(hook, "value", hook)) != "no":
            raise NotImplementedError(f"DistributedDataParallelKwargs(comm_hook={hook}): the engine reduces gradients")
        if self.native_amp and self.autocast_handler is None:
            # The cache of autocast would hold all weights in the lower precision at once.
            self.autocast_handler = AutocastKwargs(cache_enabled=False)

    # ---- prepare

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """As Accelerate's; models are sharded with those of the optimizers that have their parameters. Collective."""
        self._zshard_given = [bare(o) for o in args if isinstance(o, torch.optim.Optimizer)]
        try:
            return super().prepare(*args, device_placement=device_placement)
        finally:
            self._zshard_given = []

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """As Accelerate's, and shards the model. Collective.

        Args:
            evaluation_mode: a model that has trained parameters with values is left whole.

        Raises ValueError where the model was given to torch.compile as a whole.
        """
        handle = handle_of(model)
        params = list(model.parameters())
        meta = any(p.device.type == "meta" for p in params)
        trained = any(p.requires_grad for p in params)
        wanted = handle is None and bool(params) and not _sharded(params)
        wanted = wanted and (not evaluation_mode or meta or not trained)
        if handle is None and not wanted:
            return super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)
        if hasattr(model, "_orig_mod"):
            raise ValueError(
                "a model that torch.compile() wrapped cannot be sharded: give prepare() the model itself, and "
                "Accelerator(dynamo_backend=...), which compiles it block by block"
            )
        plugin = self.state.dynamo_plugin
        self.state.dynamo_plugin = TorchDynamoPlugin(backend=DynamoBackend.NO)  # shard() compiles, block by block
        try:
            place = False if meta or handle is not None else device_placement
            model = super().prepare_model(model, device_placement=place, evaluation_mode=True)
        finally:
            self.state.dynamo_plugin = plugin
        if wanted:
            self._zshard_shard(model, _compile_arguments(plugin), meta)
        return model

    def _zshard_shard(self, model: nn.Module, compile: dict[str, Any] | None, meta: bool) -> None:
        own = {id(p) for p in model.parameters()}
        given = [o for o in self._zshard_given if any(id(p) in own for g in o.param_groups for p in g["params"])]
        options = {"compile": compile} | ({"device": self.device} if meta else {}) | self._zshard_options
        said = options.get("gradient_accumulation_steps")
        if self.scaler is not None and said is not None and _announce.early_mode(options):
            raise ValueError(f"gradient_accumulation_steps={said!r} with mixed_precision='fp16': {_announce.SCALER}")
        shard_model(model, given or None, **options)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """As Accelerate's; the engine takes on the optimizer's kind. Collective where the model is sharded.

        Raises TypeError, ValueError where the engine has no counterpart of the optimizer.
        """
        plain = bare(optimizer)
        for runtime in runtimes_of(plain):
            rule = _plain.check(plain)
            if not rule.fits(runtime.kind):
                _step.become(runtime, rule.kind)
            stepper = _plain.stepper_of(plain, runtime)
            if stepper not in runtime.steppers:
                runtime.steppers.append(stepper)
            device_placement = False  # its state is in the engine
        return super().prepare_optimizer(optimizer, device_placement=device_placement)

    # ---- passes

    @contextlib.contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Backward passes inside are not the step's last; with shard={"accumulate": "local"} they exchange nothing."""
        handle = handle_of(self.unwrap_model(model))
        with super().no_sync(model) if handle is None else handle.no_sync():
            yield

    @staticmethod
    @contextlib.contextmanager
    def trigger_sync_in_backward(model: nn.Module) -> Iterator[None]:
        """A backward pass inside is the step's last, also inside of no_sync()."""
        handle = handle_of(model)
        if handle is None:
            with accelerate.Accelerator.trigger_sync_in_backward(model):
                yield
            return
        before = handle.runtime.boundary
        handle.set_boundary(True)
        try:
            yield
        finally:
            handle.set_boundary(before)

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Iterator[Any]:
        """As Accelerate's. Raises NotImplementedError for a sharded model on several ranks."""
        if self.num_processes > 1 and any(isinstance(m, nn.Module) and handle_of(m) for m in joinables):
            raise NotImplementedError(
                "join_uneven_inputs() of a sharded model: all ranks make as many steps; let the data loader make even "
                "batches (DataLoaderConfiguration(even_batches=True))"
            )
        with super().join_uneven_inputs(joinables, even_batches) as made:
            yield made

    # ---- gradients

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scales gradients so that their norm over all ranks is at most `max_norm`. Collective. Returns that norm."""
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not _sharded(params):
            return super().clip_grad_norm_(params, max_norm, norm_type=norm_type)
        self.unscale_gradients()
        return clip_grad_norm_(params, max_norm, norm_type=float(norm_type))

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """As Accelerate's. Raises NotImplementedError for parameters of a sharded model."""
        params = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if _sharded(params):
            raise NotImplementedError(
                "clip_grad_value_() of a sharded model: gradients are in the engine; use clip_grad_norm_()"
            )
        super().clip_grad_value_(params, clip_value)

    # ---- weights

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """As Accelerate's. A sharded model is not wrapped: it is returned itself."""
        return super().unwrap_model(model, keep_fp32_wrapper, keep_torch_compile)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """As Accelerate's. Of a sharded model: all values on rank 0, in host memory; {} on the others. Collective."""
        own = self.unwrap_model(model)
        if _sharded(own.parameters()):
            return _Weights(own) if self._zshard_saving else _state.full_state_dict(own, rank0_only=True)
        values = super().get_state_dict(model, unwrap=unwrap)
        return _Weights(model, values) if self._zshard_saving else values

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """As Accelerate's. A sharded model is written piece by piece, by save_pretrained(). Collective.

        Raises ValueError for a sharded model with safe_serialization=False: there are only safetensors files.
        """
        own = self.unwrap_model(model)
        if handle_of(own) is None:
            super().save_model(model, save_directory, max_shard_size, safe_serialization)
            return
        if not safe_serialization:
            raise ValueError("save_model(safe_serialization=False) of a sharded model: it is saved as safetensors")
        _train_state.save_weights(own, save_directory, max_shard_size)

    # ---- states

    def save_state(
        self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> Any:
        """As Accelerate's: models, optimizers, schedulers, samplers, random numbers, registered objects. Collective.

        Weights of a sharded model are in the folder itself (further models: in model_1 ...), its masters, moments and
        step counts in the folder's zshard. No rank holds a model meanwhile. A state is loaded exactly, on any number of
        ranks.

        Raises ValueError for a sharded model with safe_serialization=False: there are only safetensors files.
        """
        if not any(handle_of(m) for m in self._models):
            return super().save_state(output_dir, safe_serialization, **save_model_func_kwargs)
        if not safe_serialization:
            raise ValueError("save_state(safe_serialization=False) of a sharded model: it is saved as safetensors")
        if save_model_func_kwargs:
            raise ValueError(f"save_state() of a sharded model has no {', '.join(save_model_func_kwargs)}")
        first = self.register_save_state_pre_hook(self._zshard_collected)
        self._save_model_state_pre_hook.move_to_end(first.id, last=False)
        self._zshard_saving = True
        with self._zshard_states(first, self.register_save_state_pre_hook(self._zshard_write)):
            return super().save_state(output_dir, safe_serialization)

    def load_state(
        self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any
    ) -> None:
        """Loads what save_state() wrote, into models that prepare() has sharded. Collective.

        Args:
            load_model_func_kwargs: map_location, and strict=False: weights may be missing or unexpected.

        Raises:
            ValueError: the state is of another model or optimizer; an unknown argument. RuntimeError: weights are
                missing or unexpected.
        """
        if not any(handle_of(m) for m in self._models):
            super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)
            return
        strict = load_model_func_kwargs.pop("strict", True)
        unknown = load_model_func_kwargs.keys() - {"map_location"}
        if unknown:
            raise ValueError(f"load_state() into a sharded model has no {', '.join(sorted(unknown))}")
        read = functools.partial(self._zshard_read, strict)
        with self._zshard_states(self.register_load_state_pre_hook(read)):
            super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)

    @contextlib.contextmanager
    def _zshard_states(self, *hooks: Any) -> Iterator[None]:
        """Accelerate itself saves or loads what is no model and no sharded optimizer; our last hook does the rest.

        Hooks of users come before it, and may take models out of its list.
        """
        every = self._optimizers
        self._zshard_optimizers = [o for o in every if runtimes_of(o)]
        self._optimizers = [o for o in every if not runtimes_of(o)]
        try:
            yield
        finally:
            self._zshard_saving, self._optimizers = False, every
            for hook in hooks:
                hook.remove()

    @staticmethod
    def _zshard_place(folder: str, i: int, sharded: bool) -> str:
        """Where the weights of model i are: the folder itself or one in it; of one that is not sharded, a file."""
        if sharded:
            return folder if i == 0 else os.path.join(folder, f"model_{i}")
        return os.path.join(folder, f"model_{i}.safetensors" if i else "model.safetensors")

    def _zshard_collected(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        self._zshard_saving = False  # hooks of users may ask for values

    def _zshard_write(self, models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        self.wait_for_everyone()  # before the folder is replaced by a whole one
        for i, model in enumerate(models):
            for entry in [w for w in weights if isinstance(w, _Weights) and w.model is model]:
                path = self._zshard_place(output_dir, i, handle_of(model) is not None)
                if handle_of(model) is not None:
                    _train_state.save_weights(model, path)
                else:
                    self.save(dict(entry), path, safe_serialization=True)
        weights[:] = [w for w in weights if not isinstance(w, _Weights)]
        for i, model in enumerate(models):
            if handle_of(model) is not None:
                _train_state.save_model(model, output_dir, i)
        for i, optimizer in enumerate(self._zshard_optimizers):
            _train_state.save_optimizer(optimizer, output_dir, i)

    def _zshard_read(self, strict: bool, models: list[nn.Module], input_dir: str) -> None:
        for i, model in enumerate(self._models):
            sharded = handle_of(model) is not None
            path = self._zshard_place(input_dir, i, sharded)
            if not sharded and any(m is model for m in models):
                load_model(model, path, strict=strict)
            elif any(m is model for m in models):
                missing, unexpected = _train_state.load_weights(model, path)
                missing = [n for n in missing if n not in (getattr(model, "_keys_to_ignore_on_save", None) or ())]
                if strict and (missing or unexpected):
                    raise RuntimeError(f"'{path}': weights are missing: {missing}, or unexpected: {unexpected}")
            if sharded:
                _train_state.load_model(model, input_dir, i)
        for i, optimizer in enumerate(self._zshard_optimizers):
            _train_state.load_optimizer(optimizer, input_dir, i)
        models.clear()


def adopt(made: Any, shard: dict[str, Any] | None) -> Accelerator:
    """Another library's new Accelerator becomes one of this class."""
    if not isinstance(made, Accelerator):
        kind = type(made)
        made.__class__ = Accelerator if kind is accelerate.Accelerator else type(kind.__name__, (Accelerator, kind), {})
    made._zshard_begin(shard)
    return made
