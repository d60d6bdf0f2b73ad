"""DeepSpeed's configuration, as a dict or a file, as settings of an engine.

The C library reads it (zc_config.h): every key is applied, ignored with a reason, or rejected with its path. The keys
are in docs/CONFIG.md. Here are the values that the trainer needs, in torch's terms.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import _c, _lib
from ..errors import error

_DTYPES = {_c.F32: torch.float32, _c.BF16: torch.bfloat16, _c.F16: torch.float16}
_KINDS = {_c.ADAMW: "adamw", _c.ADAM: "adam", _c.LION: "lion", _c.SGD: "sgd", _c.ADAGRAD: "adagrad",
          _c.MUON: "muon"}  # fmt: skip
_LEFT = {"batch": 1, "micro_batch": 2, "micro_steps": 4, "dtype": 8, "optimizer": 16, "lr": 32, "clip": 128}
# Hints that are passed to the engine where the file has them: DeepSpeed's defaults would keep whole models gathered.
_HINTS = {
    "stage3_prefetch_bucket_size": "prefetch_elems",
    "stage3_param_persistence_threshold": "persist_elems",
    "stage3_max_live_parameters": "live_elems",
    "stage3_max_reuse_distance": "reuse_elems",
    "reduce_bucket_size": "reduce_elems",
}
_OP = "gradient_allreduce_op"
_BOOLS = frozenset(
    """
    adam_w_mode allgather_partitions amsgrad auto_cast bf16_master_weights_and_grads bf16_optimizer_states
    bias_correction check_grad_overflow check_overflow compute_grad_norm consecutive_hysteresis contiguous_gradients
    contiguous_memory_optimization cpu_checkpointing cpu_offload cpu_offload_param cpu_offload_use_pin_memory
    dataloader_drop_last disable_allgather disable_python_gc dump_state elastic_checkpoint enable_sanity_checks enabled
    fast_init foreach fp16_master_weights_and_grads fp32_optimizer_states fused gather_16bit_weights_on_model_save
    grad_ring graph_harvesting ignore_unused_parameters immediate_grad_update legacy_fusion legacy_stage1
    load_from_fp32_weights load_universal_checkpoint log_trace_cache_warnings managed_gradient_accumulation maximize
    memory_breakdown memory_efficient_linear mics_hierarchical_params_gather nesterov overlap_comm overlap_events
    override_module_apply partition_activations pin_memory pipeline_loading_checkpoint pipeline_read pipeline_write
    prescale_gradients profile reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
    set_grad_none single_submit sparse_gradients stage3_allgather_sequential
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
    stage3_use_all_reduce_for_fetch_params super_offload synchronize_checkpoint_boundary torch_adam
    use_data_before_expert_parallelism use_gds use_multi_rank_bucket_allreduce wall_clock_breakdown
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_quantized_gradients
    zero_quantized_nontrainable_weights zero_quantized_weights
    """.split()
)  # keys that are true or false wherever they stand: DeepSpeed takes 1 and 0 as well

Given = str | os.PathLike[str] | Mapping[str, Any]


class DeepSpeedConfigError(ValueError):
    """A configuration that is not possible; the message begins with the key's path."""


@dataclass
class Settings:
    """What a configuration says.

    Attributes:
        raw: the configuration as it was given.
        train_batch, micro_batch: samples of a step over all ranks, and of a rank at a time; 0: not given.
        accumulation: micro-steps of a step.
        offload: "none", "host" or "nvme".
        dtype: of parameters.
        clip: limit of the gradient's norm, 0: none. clip_given: the configuration has it.
        optimizer: the engine's name of the optimizer, and its arguments; "" if the configuration has none.
        scheduler: the scheduler's class name and arguments; "" if the configuration has none.
        loss_scale: struct zc_loss_scale as a dict; {}: none.
        engine: further options of the engine.
        summed: gradients of ranks are added and not averaged.
        quantize_frozen: frozen parameters are stored as int8.
        data: folder of the daemon's data (nvme_path), or None.
        ignored: keys that have no effect, with the reason.
    """

    raw: dict[str, Any]
    train_batch: int = 0
    micro_batch: int = 0
    accumulation: int = 1
    stage: int = 0
    offload: str = "none"
    dtype: torch.dtype = torch.float32
    clip: float = 0.0
    clip_given: bool = False
    optimizer: str = ""
    optimizer_args: dict[str, Any] = field(default_factory=dict)
    scheduler: str = ""
    scheduler_args: dict[str, Any] = field(default_factory=dict)
    loss_scale: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    summed: bool = False
    quantize_frozen: bool = False
    data: str | None = None
    ignored: list[tuple[str, str]] = field(default_factory=list)


def as_dict(given: Given) -> dict[str, Any]:
    """A configuration as a dict: from a dict, a file's path, JSON text, or JSON in base64 (as launchers pass it).

    Raises DeepSpeedConfigError: it is none of these.
    """
    if isinstance(given, Mapping):
        return dict(given)
    text = os.fspath(given)
    try:
        if os.path.exists(text):
            with open(text, encoding="utf-8") as f:
                made = json.load(f)
        elif text.lstrip().startswith("{"):
            made = json.loads(text)
        else:
            made = json.loads(base64.urlsafe_b64decode(text))
    except (ValueError, binascii.Error) as e:
        raise DeepSpeedConfigError(f"the configuration '{text[:80]}' is not a file, a dict or JSON: {e}") from None
    if not isinstance(made, dict):
        raise DeepSpeedConfigError(f"the configuration '{text[:80]}' is JSON, but not an object")
    return made


def read(given: Given, world: int) -> Settings:
    """Reads a configuration for so many ranks.

    Raises DeepSpeedConfigError, whose message begins with the path of the key.
    """
    raw = _unfolded(as_dict(given))
    lib = _lib.load()
    summed = str(raw.get(_OP, "mean")).lower() == "sum"  # the C engine averages; DeepSpeedEngine scales the loss
    text = _text({k: v for k, v in raw.items() if k != _OP} if summed else raw)
    ret = ctypes.POINTER(_c.zc_zero_config)()
    why = ctypes.create_string_buffer(512)
    rc = lib.zc_zero_config_parse(ctypes.byref(ret), text, len(text), world, why, len(why))
    if rc == -22:
        raise DeepSpeedConfigError(why.value.decode(errors="replace"))
    if rc < 0:
        raise error(rc, why.value.decode(errors="replace"))
    try:
        made = _settings(raw, ret.contents, world)
        made.summed = summed
        return made
    finally:
        lib.zc_zero_config_free(ret)


def _switches(value: Any) -> Any:
    """1 and 0 of keys that are true or false, as such."""
    if not isinstance(value, Mapping):
        return value
    return {k: bool(v) if k in _BOOLS and type(v) is int and v in (0, 1) else _switches(v) for k, v in value.items()}


def _finite(value: Any) -> Any:
    """JSON has no infinity, and Accelerate sets steps_per_print to it: a large number instead."""
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return 1 << 53 if isinstance(value, float) and value == math.inf else value


def _unfolded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that are paths ("zero_optimization.reduce_bucket_size", as TRL passes them) in their blocks. What a block
    has itself counts. TRL computes sizes that are not whole numbers: they are rounded down."""
    made = {k: dict(v) if isinstance(v, Mapping) else v for k, v in raw.items() if "." not in k}
    for key, value in raw.items():
        block, _, rest = key.partition(".")
        if rest and isinstance(made.setdefault(block, {}), dict) and made[block].get(rest, "auto") == "auto":
            size = isinstance(value, float) and rest.endswith("_size")
            made[block][rest] = int(value) if size else value
    return made


def _text(raw: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(_switches(_finite(raw)), allow_nan=False).encode()
    except (TypeError, ValueError) as e:
        raise DeepSpeedConfigError(f"the configuration has a value that JSON does not have: {e}") from None


def _settings(raw: dict[str, Any], c: Any, world: int) -> Settings:
    o = c.options

    def left(name: str) -> bool:
        return bool(c.left & _LEFT[name])

    made = Settings(raw, int(c.train_batch), int(c.micro_batch), max(1, int(o.micro_steps)))
    if left("micro_steps") and made.train_batch and made.micro_batch:
        made.accumulation = max(1, made.train_batch // (made.micro_batch * world))
    if not made.train_batch and made.micro_batch:
        made.train_batch = made.micro_batch * made.accumulation * world
    made.stage = int(o.stage)
    tiers = {o.offload_param, o.offload_optimizer}
    made.offload = "nvme" if _c.ZERO_NVME in tiers else "host" if _c.ZERO_HOST in tiers else "none"
    made.dtype = _DTYPES[c.dtype]
    made.clip, made.clip_given = float(o.clip), "gradient_clipping" in raw
    if not left("optimizer"):
        made.optimizer = _KINDS[o.optimizer]
        made.optimizer_args = _optimizer_args(made.optimizer, o, c)
    block = raw.get("scheduler") or {}
    if block.get("type"):
        made.scheduler = str(block["type"])
        made.scheduler_args = {k: v for k, v in (block.get("params") or {}).items() if v not in (None, "auto")}
    if made.dtype == torch.float16:
        made.loss_scale = {name: getattr(c.loss_scale, name) for name, _ in _c.zc_loss_scale._fields_}
    made.engine = _engine_options(raw, o, made.stage)
    made.quantize_frozen = bool(c.quantize_frozen)
    made.data = _nvme_path(raw)
    for i in range(c.nlines):
        if c.lines[i].ignored:
            made.ignored.append((c.lines[i].key.decode(), c.lines[i].text.decode()))
    return made


def _optimizer_args(kind: str, o: Any, c: Any) -> dict[str, Any]:
    args: dict[str, Any] = {"lr": float(c.lr), "weight_decay": float(o.weight_decay[0])}
    if kind in ("adamw", "adam", "lion", "muon"):
        args["betas"] = (float(o.beta1), float(o.beta2))
    if kind in ("adamw", "adam", "adagrad", "muon"):
        args["eps"] = float(o.eps)
    if kind == "sgd":
        args |= {"momentum": float(o.momentum), "dampening": float(o.dampening), "nesterov": bool(o.nesterov)}
    if kind == "muon":
        args |= {"momentum": float(o.momentum), "nesterov": bool(o.nesterov), "scale": "shape"}  # as DeepSpeed's
    if kind == "adagrad":
        args["lr_decay"] = float(o.lr_decay)
    return args


def _engine_options(raw: Mapping[str, Any], o: Any, stage: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    zero = raw.get("zero_optimization") or {}
    for key, option in _HINTS.items():
        value = zero.get(key, zero.get(key.removeprefix("stage3_")))
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            if stage == 3 or option == "reduce_elems":
                made[option] = int(getattr(o, option))
    if o.group_ranks:
        made |= {"group_ranks": int(o.group_ranks), "gather_alone": False}
    if o.quantize_gather:
        made |= {"quantize_gather": True, "gather_alone": False}
    if o.reduce_waits:
        made["reduce_waits"] = True
    ours = raw.get("zshard") or {}
    made |= {key: getattr(o, key) for key in ours if ours[key] is not None}
    return made


def _nvme_path(raw: Mapping[str, Any]) -> str | None:
    zero = raw.get("zero_optimization") or {}
    for name in ("offload_optimizer", "offload_param"):
        block = zero.get(name) or {}
        path = block.get("nvme_path") if block.get("device") == "nvme" else None
        if path not in (None, "auto"):
            return os.path.join(os.path.expanduser(str(path)), "zshard")
    return None


class DeepSpeedConfig:
    """DeepSpeed's class of that name, as far as scripts read it: the batch sizes, the ZeRO stage, the dtype."""

    def __init__(self, config: Given, mpu: Any = None, mesh_device: Any = None) -> None:
        if mpu is not None or mesh_device is not None:
            raise NotImplementedError("DeepSpeedConfig(mpu=, mesh_device=): model parallelism is not supported")
        world = 1
        with contextlib.suppress(Exception):
            world = torch.distributed.get_world_size()
        self._settings = read(config, world)
        s = self._settings
        self.train_batch_size = s.train_batch
        self.train_micro_batch_size_per_gpu = s.micro_batch
        self.gradient_accumulation_steps = s.accumulation
        self.gradient_clipping = s.clip
        self.zero_optimization_stage = s.stage
        self.zero_enabled = s.stage > 0
        self.float16_enabled = self.fp16_enabled = s.dtype == torch.float16
        self.bfloat16_enabled = s.dtype == torch.bfloat16
        self.optimizer_name = s.optimizer or None
        self.optimizer_params = s.optimizer_args or None
        self.scheduler_name = s.scheduler or None
        self.scheduler_params = s.scheduler_args or None
        self._param_dict = s.raw
