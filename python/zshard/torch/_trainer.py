"""`TrainerMixin`: Transformers' Trainer, and what inherits from it, on sharded models.

Trainer leaves distribution to its accelerator, which becomes zshard's here. What Trainer does itself with weights,
gradients and checkpoints is overridden below.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import transformers
from torch import nn
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.utils import logging

from . import _announce, _sources, _train_state
from ._accelerate import Accelerator, adopt
from ._init import context
from ._train_state import handle_of

_Base: Any = object
logger = logging.get_logger(__name__)


def _has_adapters(model: Any) -> bool:
    """Whether only adapters are saved: a model of peft, or one of Transformers with add_adapter()."""
    return (
        hasattr(model, "get_base_model")
        and hasattr(model, "peft_config")
        or bool(getattr(model, "_hf_peft_config_loaded", False))
    )


class TrainerMixin(_Base):
    """Makes a Trainer of Transformers, or of a library that builds on it, train a sharded model.

        class SFT(zt.TrainerMixin, SFTTrainer):
            pass

        trainer = SFT(model, args=SFTConfig(...), train_dataset=data, shard={"offload": "nvme"})
        trainer.train(resume_from_checkpoint=True)

    The mixin is named first. `train()` shards the model in place; a model of `zshard.torch.from_pretrained` is read by
    slices, so that no rank ever holds it. All other arguments are the trainer's own. Start several ranks with torchrun;
    all of them must call the trainer's methods.

    A checkpoint has the weights as `zshard.torch.save_pretrained` writes them, and masters, moments and step counts in
    its folder `zshard`. It is resumed exactly, on any number of ranks. Weights and `optimizer.pt` of a checkpoint of
    the same trainer without the mixin can be resumed, too.

    Args:
        *args, **kwargs: the trainer's.
        shard: arguments of `zshard.torch.shard`, such as `offload`, `units` or `accumulate`.

    Raises:
        TypeError: the class is no Trainer. NotImplementedError: arguments of other ways of distribution (`deepspeed`,
            `fsdp`, `parallelism_config`). ValueError: several GPUs in one process.
    """

    def __init__(self, *args: Any, shard: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not isinstance(self, transformers.Trainer):
            name = type(self).__name__
            raise TypeError(f"{name} is no Trainer: class {name}(zshard.torch.TrainerMixin, transformers.Trainer)")
        self._zshard_options = shard
        self._zshard_resume: str | None = None  # a checkpoint whose weights are read after the model is sharded
        super().__init__(*args, **kwargs)

    # ---- preparation

    def create_accelerator_and_postprocess(self) -> None:
        """As Trainer's; the accelerator is one of zshard."""
        for name in ("deepspeed", "fsdp", "parallelism_config"):
            if getattr(self.args, name, None):
                raise NotImplementedError(f"TrainingArguments({name}=): TrainerMixin shards the model; leave it out")
        super().create_accelerator_and_postprocess()
        if self.args.n_gpu > 1:
            raise ValueError(
                f"this process has {self.args.n_gpu} GPUs: start one process per GPU with torchrun, or set "
                "CUDA_VISIBLE_DEVICES to one"
            )
        self.accelerator: Accelerator = adopt(self.accelerator, self._zshard_early(self._zshard_options or {}))

    def _zshard_early(self, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of shard(), with what Trainer knows about steps that begin during the backward pass: it puts
        all passes but a step's last into no_sync(), and `max_grad_norm` is the limit of the warm-up."""
        if not _announce.early_mode(options) or "gradient_accumulation_steps" in options:
            return options
        if options.get("offload") in ("none", "host"):
            return options  # there is nothing to begin early
        if self.accelerator.scaler is not None:
            return options  # an overflow is known too late
        limit = float(self.args.max_grad_norm or 0.0)
        if _announce.clip_mode(options) == "none" and limit > 0:
            raise ValueError(
                f'shard={{"clip_mode": "none"}} clips nothing, and max_grad_norm={limit:g} clips: set max_grad_norm=0, '
                'or shard={"clip_mode": "tensor"}'
            )
        passes: int | str = self.args.gradient_accumulation_steps
        if passes != 1 and not self.accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
            passes = _announce.NO_SYNC
        return {"clip": limit, "gradient_accumulation_steps": passes} | options

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """As Trainer's; a model without values, or one that is sharded, is moved by shard()."""
        if handle_of(model) is None and not any(p.device.type == "meta" for p in model.parameters()):
            super()._move_model_to_device(model, device)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        before = handle_of(self.model)
        made = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        handle = handle_of(self.model)
        if before is None and handle is not None and handle.resumed and resume_from_checkpoint is None:
            handle.close()
            raise ValueError(
                f"the job was resumed after its step {handle.step_number}, and the trainer begins at step 0: give "
                "train(resume_from_checkpoint=...), or do not resume the job (zshard.torch.init(resume=))"
            )
        return made

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """As Trainer's. The sharded model that the new one replaces is closed, and has no values then."""
        handle = handle_of(self.model) if isinstance(self.model, nn.Module) else None
        if handle is not None:
            handle.close()
        return super().call_model_init(trial)

    def add_callback(self, callback: Any) -> None:
        """As Trainer's. Raises NotImplementedError for TRL's SyncRefModelCallback, which writes parameters itself."""
        name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
        if name == "SyncRefModelCallback":
            raise NotImplementedError(
                "sync_ref_model=True with TrainerMixin: the reference model would be mixed with released parameters; "
                "set sync_ref_model=False"
            )
        super().add_callback(callback)

    # ---- gradients

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor | None:
        if _announce.said(model):
            return None  # the step clips
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if grad_norm is None and _announce.said(model):
            return None  # it is known after the step
        if grad_norm is None:
            grad_norm = self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        return grad_norm

    # ---- evaluation

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's. Where ranks gather together, they generate equally many tokens."""
        handle = handle_of(self.model)
        if handle is not None and handle.engine.world > 1 and not handle.engine.options.get("gather_alone"):
            if getattr(self, "_gen_kwargs", None) is not None:
                self._gen_kwargs.setdefault("synced_gpus", True)
        return super().prediction_step(model, inputs, *args, **kwargs)

    # ---- checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As Trainer's: the model (of peft: its adapters), tokenizer and arguments. Collective."""
        if handle_of(self.model) is None:
            super().save_model(output_dir, _internal_call)
            return
        folder = self.args.output_dir if output_dir is None else output_dir
        if self.args.save_on_each_node and self.args.world_size > 1 and not context().one_node(str(self.args.device)):
            raise NotImplementedError("save_on_each_node=True on several nodes: rank 0 writes, to a shared file system")
        adapters = _has_adapters(self.model)
        values = _train_state.adapter_values(self.model) if adapters else {}
        if self.args.should_save:
            self._save(folder, state_dict=values)  # what goes with the weights
        if not adapters:
            _train_state.save_weights(self.model, folder)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if handle_of(self.model) is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        _train_state.save_model(self.model, output_dir)
        _train_state.save_optimizer(self.optimizer, output_dir)
        if self.args.should_save:
            with warnings.catch_warnings():  # that the optimizer should be saved with it
                warnings.filterwarnings("ignore", message=".*save or load the optimizer.*")
                torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights. Trainer asks for them before the model is sharded: then they are read when it is."""
        own = self.model if model is None else model
        if handle_of(own) is not None:
            self._zshard_load(resume_from_checkpoint)
            return
        if not _has_adapters(own):
            _sources.Checkpoint(resume_from_checkpoint)  # raises where there are no weights
        self._zshard_resume = resume_from_checkpoint

    def _zshard_load(self, folder: str) -> None:
        logger.info(f"Loading model from {folder}.")
        if _has_adapters(self.model):
            super()._load_from_checkpoint(folder, self.model)
        else:
            self._issue_warnings_after_load(_train_state.load_weights(self.model, folder))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        waiting, self._zshard_resume = self._zshard_resume, None
        if handle_of(self.model) is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        if waiting is not None:
            self._zshard_load(waiting)
        plain = os.path.join(checkpoint, OPTIMIZER_NAME)
        if _train_state.has_state(checkpoint):
            _train_state.load_model(self.model, checkpoint)
            _train_state.load_optimizer(self.optimizer, checkpoint)
        elif os.path.isfile(plain):
            _train_state.load_plain_optimizer(self.optimizer, plain)
        else:
            logger.warning(f"{checkpoint} has no optimizer's state (save_only_model): moments begin at zero.")
            return
        state = torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*save or load the optimizer.*")
            self.lr_scheduler.load_state_dict(state)

    def _load_best_model(self) -> None:
        if handle_of(self.model) is None or _has_adapters(self.model):
            super()._load_best_model()
            return
        folder = self.state.best_model_checkpoint
        logger.info(f"Loading best model from {folder} (score: {self.state.best_metric}).")
        self._issue_warnings_after_load(_train_state.load_weights(self.model, folder))
