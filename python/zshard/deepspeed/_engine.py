"""DeepSpeedEngine: DeepSpeed's engine on a sharded model of zshard.torch.

A step consists of `accumulation` micro-steps: engine(x), engine.backward(loss), engine.step(). step() counts them, and
steps the optimizer at the boundary: clipping, the optimizer, zero_grad, the LR scheduler, in DeepSpeed's order. A bare
loss.backward() works as well: the step then divides the gradients by the number of micro-steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .. import torch as zt
from . import _checkpoint
from ._config import Settings
from ._scaler import LossScaler
from .comm import get_local_rank


class _Offload:
    """What `engine.optimizer.parameter_offload` is: hooks are the engine's own, so there is nothing to take away."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    def _register_deepspeed_module(self, module: nn.Module, count: Any = None) -> None:
        """Nothing: hooks stay."""

    def setup_zero_stage3_hooks(self) -> None:
        """Nothing: hooks stay."""


class DeepSpeedEngine(nn.Module):
    """A sharded model and its optimizer, with DeepSpeed's methods. Made by `initialize`.

    Attributes:
        module: the model, changed in place.
        optimizer, lr_scheduler, training_dataloader: as `initialize` returns them.
        handle: zshard.torch's handle of the model.
        global_steps, skipped_steps, micro_steps, global_samples: counts since the start, kept in checkpoints.
        config: the configuration, a dict.
        loss_scaler: the state of fp16's loss scale, kept in checkpoints.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        handle: zt.Handle,
        lr_scheduler: Any = None,
        training_dataloader: Any = None,
        waits: bool = False,
    ) -> None:
        """waits: all parameters are frozen, until there is a forward pass with gradients."""
        super().__init__()
        self.module = module
        self.optimizer, self.lr_scheduler, self.training_dataloader = optimizer, lr_scheduler, training_dataloader
        self.handle, self._settings = handle, settings
        self.config = settings.raw
        self.global_steps = self.skipped_steps = self.micro_steps = self.global_samples = 0
        self.loaded_checkpoint_tag: str | None = None
        self._accumulation = settings.accumulation
        self._boundary: bool | None = None
        self._ours = 0  # backward() calls of this step
        self._scaled = 0  # scale() calls of this step
        self._no_sync = False
        self._norm: float | None = None
        self.loss_scaler = LossScaler(settings.loss_scale)
        self._applied = False
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self.global_rank = dist.get_rank() if dist.is_initialized() else 0
        self.local_rank = get_local_rank()
        self.device = next((p.device for p in module.parameters()), torch.device("cpu"))
        self._trained = [id(p) for g in optimizer.param_groups for p in g["params"]] if waits else []
        self._dress()

    def _dress(self) -> None:
        """What other libraries read of a DeepSpeed optimizer."""
        extra: Any = self.optimizer
        extra.parameter_offload = _Offload(self.module)
        extra.loss_scaler = self.loss_scaler
        if not hasattr(extra, "overflow"):
            extra.overflow = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self.__dict__["_modules"].get("module")
            if module is not None and hasattr(module, name):
                return getattr(module, name)
            raise AttributeError(
                f"'{name}' is not of zshard.deepspeed's engine, nor of the module; docs/pytorch/DEEPSPEED.md lists "
                "what is there"
            ) from None

    # ---- passes

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """The module's forward pass."""
        if self._trained and torch.is_grad_enabled():
            self._begin_training()
        if torch.is_grad_enabled():
            self._begin_pass(self._ours > 0)
        return self.module(*inputs, **kwargs)

    def _begin_training(self) -> None:
        """The engine had no optimizer state, and is to train: it is made again. Collective."""
        from ._initialize import say, shard

        trained, self._trained = set(self._trained), []
        self.handle.close(gather=True)
        for p in self.module.parameters():
            p.requires_grad_(id(p) in trained)
        say(self._settings, None)
        self.handle = shard(self.module, self.optimizer, self._settings)

    def _needs_scale(self) -> bool:
        return self._settings.dtype == torch.float16

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times the loss scale, for a bare backward()."""
        _check_loss(loss, "scale")
        self._scaled += 1
        return loss * self.loss_scale() if self._needs_scale() else loss

    def backward(
        self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True, **others: Any
    ) -> torch.Tensor:
        """The backward pass of a scalar loss. Returns the loss divided by the number of micro-steps (as DeepSpeed)."""
        _refuse("engine.backward", others, {"allreduce_gradients": True, "release_loss": False})
        _check_loss(loss, "backward")
        self._check_optimizer()
        divided = loss / self._accumulation if scale_wrt_gas else loss
        self._begin_pass(True)
        scaled = divided * self.loss_scale() if self._needs_scale() else divided
        if self._settings.summed:
            scaled = scaled * self.world_size
        scaled.backward(retain_graph=retain_graph)
        self._ours += 1
        return divided

    def _begin_pass(self, ours: bool) -> None:
        """Before a backward pass, of backward() or a bare one: whether it is the step's last. If the step begins during
        it, it is announced with its clipping and its scale."""
        runtime = self.handle.runtime
        self.handle.set_boundary(self.is_gradient_accumulation_boundary())
        if runtime.announcer is not None and runtime.announcer.said is None:
            runtime.step_clip = self._settings.clip
            runtime.step_scale = (1.0 if ours else self._bare()) / self.loss_scale()

    def _bare(self) -> float:
        """What the gradient of a bare loss.backward() is multiplied by, without the loss scale."""
        return (self.world_size if self._settings.summed else 1.0) / self._accumulation

    def _check_optimizer(self) -> None:
        if self.handle.runtime.closed:
            raise RuntimeError(f"the engine is {self.handle.runtime.closed}")

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside are not the step's last. In all stages. step() inside is an error."""
        if self._no_sync:
            raise AssertionError("no_sync() inside of no_sync()")
        self._no_sync = True
        before, self._boundary = self._boundary, False
        try:
            yield
        finally:
            self._no_sync, self._boundary = False, before

    # ---- steps

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the current micro-step is the last one of its step."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets whether the micro-steps from now on are the last ones of their steps."""
        self._boundary = is_boundary

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-step; at the boundary also the step. Collective."""
        if self._no_sync:
            raise AssertionError("step() inside of no_sync()")
        self._applied = False
        if self.is_gradient_accumulation_boundary():
            self._step(lr_kwargs or {})
        self.micro_steps += 1

    def _step(self, lr_kwargs: dict[str, Any]) -> None:
        runtime, last = self.handle.runtime, self.handle.runtime.last
        runtime.step_clip = self._settings.clip
        runtime.step_scale = self._bare_scale(runtime.micros) / self.loss_scale()
        try:
            self.optimizer.step()
        finally:
            runtime.step_clip, runtime.step_scale = 0.0, 1.0
        self._ours = self._scaled = 0
        stepped = runtime.last if runtime.last is not last else None
        skipped = stepped is not None and stepped.skipped
        if stepped is not None:
            self._norm = float(stepped.grad_norm)
        self.optimizer.overflow = skipped  # type: ignore[attr-defined]
        self._applied = stepped is not None and not skipped
        self.optimizer.zero_grad()
        if stepped is not None:
            self.loss_scaler.update(skipped)
        if skipped:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step(**lr_kwargs)
        self.global_steps += 1
        self.global_samples += self.train_batch_size()

    def _bare_scale(self, micros: int) -> float:
        """What gradients of bare loss.backward() calls are multiplied by. micros: backward passes of this step."""
        bare = micros - self._ours
        if bare <= 0:
            return 1.0
        if self._ours:
            raise RuntimeError(
                f"{self._ours} micro-steps of this step called engine.backward(loss), and {bare} loss.backward(): only "
                "the former divide the loss by the number of micro-steps; use one of the two"
            )
        if self._needs_scale() and self._scaled < bare:
            raise RuntimeError(
                "fp16: backward() was called without the loss scale; use engine.backward(loss) or "
                "engine.scale(loss).backward()"
            )
        return self._bare()

    def was_step_applied(self) -> bool:
        """Whether the last step() changed the parameters."""
        return self._applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of this step."""
        self._ours = self._scaled = 0
        for p in self.module.parameters():
            p.grad = None

    def get_global_grad_norm(self) -> float | None:
        """Norm of the last step's averaged gradient before clipping; None before the first step."""
        return self._norm

    def loss_scale(self) -> float:
        """The factor by which the loss is multiplied in fp16; else 1."""
        return self.loss_scaler.cur_scale if self._needs_scale() else 1.0

    @property
    def cur_scale(self) -> float:
        """The loss scale."""
        return self.loss_scale()

    def get_lr(self) -> list[float]:
        """The learning rate of each group."""
        return [float(g["lr"]) for g in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Momentum, or the betas, of each group."""
        return [g.get("betas", g.get("momentum")) for g in self.optimizer.param_groups]

    # ---- the module

    def train(self, mode: bool = True) -> DeepSpeedEngine:
        """Training mode, also of the module."""
        self.training = mode
        self.module.train(mode)
        return self

    def eval(self) -> DeepSpeedEngine:
        """Evaluation mode."""
        return self.train(False)

    def module_state_dict(self, exclude_frozen_parameters: bool = False, **_: Any) -> dict[str, Any]:
        """The module's state dict with all values, in host memory, on every rank. Collective."""
        return _checkpoint.state_dict(self, exclude_frozen_parameters, rank0_only=False)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, without the prefix "module."."""
        return self.module.state_dict(*args, **kwargs)

    def load_module_state_dict(self, checkpoint: dict[str, Any], strict: bool = True, **others: Any) -> None:
        """Writes weights, from a dict with the key "module" or a plain state dict. Collective."""
        _refuse("load_module_state_dict", others, {"custom_load_fn": None, "fetch_z3_params": False})
        zt.load_state_dict(self.module, checkpoint.get("module", checkpoint), strict=strict)

    def compile(self, backend: Any = None, compile_kwargs: dict[str, Any] | None = None, **_: Any) -> None:
        """torch.compile of each block, in place."""
        from ..torch._handle import _compile

        _compile(self.handle.runtime, {**({"backend": backend} if backend else {}), **(compile_kwargs or {})})
        self.is_compiled = True

    def destroy(self) -> None:
        """Ends the engine; parameters have no values afterwards. May be called again."""
        self.handle.close()

    # ---- checkpoints

    def save_checkpoint(
        self,
        save_dir: str,
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes save_dir/TAG (global_stepN): weights, optimizer state, scheduler, counts and client_state. Collective.

        Every rank passes its own client_state; rank 0's is kept. Between the micro-steps of a step it is the state of
        the last step. Returns True; what cannot be written raises.
        """
        return _checkpoint.save(self, save_dir, tag, client_state or {}, save_latest, exclude_frozen_parameters)

    def load_checkpoint(
        self,
        load_dir: str,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Loads a checkpoint of this engine on any number of ranks, or one of DeepSpeed's. Collective.

        tag: None: what the file "latest" names. Returns (its path, client_state), (None, None) where there is none.
        """
        _refuse("load_checkpoint", {"custom_load_fn": custom_load_fn}, {"custom_load_fn": None})
        return _checkpoint.load(
            self,
            load_dir,
            tag,
            load_module_strict,
            load_optimizer_states and not load_module_only,
            load_lr_scheduler_states and not load_module_only,
            load_module_only,
        )

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Writes the weights, in the dtype of the parameters, to one file: torch.save's format, or safetensors by the
        file's name. Collective. Returns True."""
        return _checkpoint.save_16bit(self, save_dir, save_filename, exclude_frozen_parameters)

    def save_fp16_model(self, save_dir: str, save_filename: str = "pytorch_model.bin") -> bool:
        """The old name of save_16bit_model()."""
        return self.save_16bit_model(save_dir, save_filename)

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """All weights on rank 0, None on the others. Collective."""
        made = _checkpoint.state_dict(self, exclude_frozen_parameters, rank0_only=True)
        return made if self.global_rank == 0 else None

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def offload_states(self, *_: Any, **__: Any) -> None:
        """Frees temporary memory of this process; model states are in the daemon, where they are offloaded."""
        self.empty_partition_cache()

    def reload_states(self, non_blocking: bool = False) -> None:
        """Nothing: the next pass allocates what it needs."""
        self.handle.wake()

    def empty_partition_cache(self) -> None:
        """Frees temporary memory of this process; nothing in the middle of a step, which needs it."""
        if self.handle.runtime.micros == 0:
            self.handle.sleep()

    # ---- what the configuration says

    def train_batch_size(self) -> int:
        """Samples of a step, over all ranks."""
        return (
            self._settings.train_batch or self.train_micro_batch_size_per_gpu() * self._accumulation * self.world_size
        )

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a rank at a time; 1 where the configuration has none."""
        return self._settings.micro_batch or 1

    def gradient_accumulation_steps(self) -> int:
        """Micro-steps of a step."""
        return self._accumulation

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the number of micro-steps, between two steps. ValueError: it does not divide."""
        part = self.train_micro_batch_size_per_gpu() * self.world_size
        if train_batch_size % part != 0:
            raise ValueError(f"train_batch_size={train_batch_size}: a multiple of {part}, micro-batch times ranks")
        options = self.handle.engine.options
        if options.get("grad_ring") and train_batch_size > part and not options.get("accumulate_local"):
            raise ValueError(
                f"train_batch_size={train_batch_size}: zshard.grad_ring was set up for one micro-step in a step; begin "
                "with gradient_accumulation_steps above 1"
            )
        self._settings.train_batch, self._accumulation = train_batch_size, train_batch_size // part

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the micro-batch; the number of micro-steps stays."""
        self._settings.micro_batch = micro_batch_size
        self._settings.train_batch = micro_batch_size * self._accumulation * self.world_size

    def gradient_clipping(self) -> float:
        """Limit of the gradient's norm; 0: none."""
        return self._settings.clip

    def zero_optimization(self) -> bool:
        """Whether states are sharded."""
        return self._settings.stage > 0

    def zero_optimization_stage(self) -> int:
        """0 to 3."""
        return self._settings.stage

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether gradients are sharded."""
        return self._settings.stage >= 2

    def zero_optimization_partition_weights(self) -> bool:
        """Whether parameters are sharded."""
        return self._settings.stage >= 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Whether a model can be saved as a whole: always."""
        return True

    def zero_offload_optimizer(self) -> Any:
        """The configuration's block, or None."""
        return (self.config.get("zero_optimization") or {}).get("offload_optimizer")

    def zero_offload_param(self) -> Any:
        """The configuration's block, or None."""
        return (self.config.get("zero_optimization") or {}).get("offload_param")

    def fp16_enabled(self) -> bool:
        """Whether parameters are fp16."""
        return self._settings.dtype == torch.float16

    def bfloat16_enabled(self) -> bool:
        """Whether parameters are bf16."""
        return self._settings.dtype == torch.bfloat16

    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes."""
        return bool(self._settings.loss_scale.get("dynamic", False))

    def optimizer_name(self) -> str | None:
        """The configuration's optimizer, or the class of the one that was passed."""
        return self._settings.optimizer or type(self.optimizer).__name__

    def scheduler_name(self) -> str | None:
        """The configuration's scheduler, or None."""
        return self._settings.scheduler or None

    def steps_per_print(self) -> Any:
        """The configuration's value."""
        return self.config.get("steps_per_print")

    def wall_clock_breakdown(self) -> bool:
        """False: see handle.stats()."""
        return False


def _refuse(where: str, given: dict[str, Any], allowed: dict[str, Any]) -> None:
    for name, value in given.items():
        if name not in allowed:
            raise TypeError(f"{where}() has no argument '{name}'")
        if value != allowed[name] and value is not None:
            raise NotImplementedError(f"{where}({name}={value!r}) is not supported")


def _check_loss(loss: Any, name: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not (loss.requires_grad or loss.grad_fn is not None):
        raise AssertionError(
            f"engine.{name}: the loss must be a scalar that requires a gradient; for other tensors call backward() of "
            "theirs"
        )


__all__ = ["DeepSpeedEngine"]
