"""`deepspeed.utils.zero_to_fp32`: the fp32 weights of a checkpoint, of this engine's or of DeepSpeed's, without ranks
or a daemon. `python -m zshard.convert` does the same between files, piece by piece."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from ...convert._content import FP32, Content, values_of
from ...convert._folder import open_
from ...convert._offline import convert


def _content(folder: Any, tag: Any) -> Content:
    path = os.path.abspath(os.fspath(folder))
    if tag is None and not os.path.isfile(os.path.join(path, "latest")):
        raise ValueError(f"'{path}' has no file 'latest': name the checkpoint with tag=")
    if tag is not None and not os.path.isdir(os.path.join(path, str(tag))):
        raise FileNotFoundError(f"there is no checkpoint '{tag}' in '{path}'")
    return open_(path, None if tag is None else str(tag))


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Any, tag: Any = None, exclude_frozen_parameters: bool = False, lazy_mode: bool = False
) -> OrderedDict[str, torch.Tensor]:
    """The state dict of the whole model, in host memory: fp32, but for tensors that are no floating-point numbers.

    Args:
        checkpoint_dir: the folder that save_checkpoint() was given.
        tag: the checkpoint in it; None: what the file "latest" names.

    Raises:
        ValueError: "latest" is missing, or the checkpoint cannot be read. FileNotFoundError: no such tag.
        NotImplementedError: lazy_mode.
    """
    if lazy_mode:
        raise NotImplementedError(
            "get_fp32_state_dict_from_zero_checkpoint(lazy_mode=True): zshard.convert.convert() writes files piece by "
            "piece"
        )
    found = _content(checkpoint_dir, tag)
    made: OrderedDict[str, torch.Tensor] = OrderedDict()
    for t in found.tensors.values():
        if exclude_frozen_parameters and t.kind == "frozen":
            continue
        if t.kind == "buffer" and not t.dtype.is_floating_point:
            made[t.name] = t.planes[FP32].tensor()
        else:
            made[t.name] = values_of(t.planes[FP32])
    for alias, name in found.aliases.items():
        if name in made:
            made[alias] = made[name]
    return made


def load_state_dict_from_zero_checkpoint(model: nn.Module, checkpoint_dir: Any, tag: Any = None) -> nn.Module:
    """The model, on the CPU, with the checkpoint's weights in its own dtype. Names that it does not have are left out.

    A model that an engine has is taken out of it: the engine ends. Collective then; else each rank reads for itself.
    """
    values = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    handle = model.__dict__.get("_zshard")
    if handle is not None:
        handle.close(gather=True)
    model = model.cpu()
    model.load_state_dict(values, strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: Any,
    output_dir: Any,
    max_shard_size: int | str | None = "5GB",
    safe_serialization: bool = False,
    tag: Any = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes the fp32 weights to a folder: model.safetensors, in several files and an index where it is large, or
    pytorch_model.bin where safe_serialization is False. max_shard_size: of a file of safetensors; None: one file."""
    if safe_serialization:
        if exclude_frozen_parameters:
            raise NotImplementedError("exclude_frozen_parameters needs safe_serialization=False")
        found = _content(checkpoint_dir, tag)
        limit = 1 << 62 if max_shard_size is None else max_shard_size
        convert(found.path, output_dir, "safetensors16", dtype=torch.float32, max_shard_size=limit)
        return
    values = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    os.makedirs(output_dir, exist_ok=True)
    path = os.path.join(output_dir, "pytorch_model.bin")
    torch.save(values, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint",
    "load_state_dict_from_zero_checkpoint",
]
