"""Models of Transformers whose values come from files, or from _init_weights: no rank ever holds a model.

    model = zt.from_pretrained(AutoModelForCausalLM, "path/of/a/model", dtype=torch.bfloat16)
    model = zt.from_config(AutoModelForCausalLM, config, seed=1)

Parameters are on the meta device, and each says where its values are (`_sources.py`, `_meta.py`); buffers are real.
`shard` reads each rank's slices.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn

from ._meta import drawn_from, empty_of, names_text, owners, swapped
from ._sources import Cat, Checkpoint, Narrow, Source, Whole, attach, attached, stack


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as e:
        raise ImportError("from_pretrained and from_config need Transformers: pip install 'transformers>=5'") from e
    if int(transformers.__version__.split(".")[0]) < 5:
        raise ImportError(f"from_pretrained and from_config need Transformers 5, this is {transformers.__version__}")
    return transformers


def _concrete(cls: Any, config: Any) -> Any:
    """The model class that an Auto class stands for."""
    mapping = getattr(cls, "_model_mapping", None)
    if mapping is None:
        return cls
    if type(config) not in mapping:
        raise ValueError(f"{cls.__name__} has no model for {type(config).__name__}")
    from transformers.models.auto.auto_factory import _get_model_class

    return _get_model_class(config, mapping)


def _dtype_of(dtype: Any, config: Any, checkpoint: Checkpoint | None) -> torch.dtype:
    if isinstance(dtype, str) and dtype != "auto":
        dtype = getattr(torch, dtype.removeprefix("torch."), None)
    if dtype is None or dtype == "auto":
        dtype = getattr(config, "dtype", None)
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.removeprefix("torch."))
        if dtype is None and checkpoint is not None:
            dtype = next((checkpoint[n].dtype for n in checkpoint if checkpoint[n].dtype.is_floating_point), None)
        dtype = dtype or torch.get_default_dtype()
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype is torch.float32, torch.bfloat16 or torch.float16, not {dtype}")
    return dtype


def _on_meta(cls: Any, config: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The model, with all of its parameters and buffers on the meta device, its dtypes as Transformers chooses them."""
    config.dtype = dtype
    for key in getattr(config, "sub_configs", {}):
        sub = getattr(config, key, None)
        if sub is not None:
            sub.dtype = dtype
    with ExitStack() as contexts:
        for context in cls.get_init_context(dtype, False, False, None):
            contexts.enter_context(context)
        model = cls(config, *args, **kwargs)
    plan = model._get_dtype_plan(dtype)
    if plan:
        from transformers.core_model_loading import build_glob_alternation

        pattern, by_group = build_glob_alternation(list(plan))[:2]
        for name, p in model.named_parameters():
            match = pattern.search(name)
            if match is not None and match.lastgroup is not None:
                p.data = p.data.to(plan[by_group[match.lastgroup]])
    return model


def _init_by_transformers(
    model: Any, chain: list[tuple[nn.Module, Any]], name: str, leaf: str, like: torch.Tensor, seed: int
) -> torch.Tensor:
    """One parameter, by _init_weights of all modules from its own up to the model; all others are left alone."""
    from transformers import initialization as init

    module = chain[-1][0]
    fresh = empty_of(like)
    fresh.data.fill_(torch.nan)
    others: list[torch.Tensor] = [
        t for t in (*model.parameters(), *model.buffers()) if not getattr(t, "_is_hf_initialized", False)
    ]
    for t in others:
        t._is_hf_initialized = True  # type: ignore[attr-defined]
    try:
        with swapped(module, {leaf: fresh}), drawn_from(seed, name), init.guard_torch_init_functions():
            for m, rules in reversed(chain):
                rules._init_weights(m)
            if bool(fresh.isnan().any()) and hasattr(module, "reset_parameters"):
                cast(Any, module).reset_parameters()
    finally:
        for t in others:
            t.__dict__.pop("_is_hf_initialized", None)
    if bool(fresh.isnan().any()):
        raise ValueError(f"{type(model).__name__}._init_weights leaves '{name}' without values")
    return fresh.detach()


def _attach_init(model: Any, name: str, module: nn.Module, leaf: str, seed: int) -> None:
    """The parameter's values are computed by the rules of the submodels that it is in, when they are asked for."""
    from transformers import PreTrainedModel

    p = module._parameters[leaf]
    assert p is not None
    at, rules = model, model
    chain: list[tuple[nn.Module, Any]] = [(model, model)]  # modules from the model down, and whose rules hold there
    for part in name.split(".")[:-1]:
        at = getattr(at, part)
        if isinstance(at, PreTrainedModel):
            rules = at
        chain.append((at, rules))
    compute = functools.partial(_init_by_transformers, model, chain, name, leaf, p, seed)
    attach(p, Whole(compute, p.shape, p.dtype))


def _real_buffers(model: Any, values: Mapping[str, Source]) -> None:
    """Buffers: those of the checkpoint, the others as _init_weights of their modules computes them."""
    loaded = set()
    for prefix, module in model.named_modules():
        for leaf, b in module._buffers.items():
            if b is None:
                continue
            name = f"{prefix}.{leaf}" if prefix else leaf
            if name in values:
                fresh = values[name].tensor()
                if b.dtype.is_floating_point and fresh.dtype != b.dtype:
                    fresh = fresh.to(b.dtype)
                loaded.add(id(fresh))
            elif b.device.type == "meta":
                fresh = torch.zeros(b.shape, dtype=b.dtype, device="cpu")
            else:
                continue
            fresh._is_hf_initialized = id(fresh) in loaded  # type: ignore[attr-defined]
            module._buffers[leaf] = fresh
    params = list(model.parameters())
    for p in params:
        p._is_hf_initialized = True
    try:
        with drawn_from(0, "buffers"):
            model.initialize_weights()
    finally:
        for t in (*params, *model.modules(), *model.buffers()):
            t.__dict__.pop("_is_hf_initialized", None)


class _Converted:
    """One group of tensors of a checkpoint that Transformers converts into others, computed as a whole."""

    def __init__(self, template: Any, first: str, parts: dict[str, list[Source]], model: Any) -> None:
        self.template, self.first, self.parts, self.model = template, first, parts, model

    def run(self, meta: bool) -> dict[str, torch.Tensor]:
        converter = copy.deepcopy(self.template)
        for pattern, sources in self.parts.items():
            for i, s in enumerate(sources):
                t = torch.empty(s.shape, dtype=s.dtype, device="meta") if meta else s.tensor()
                converter.add_tensor(self.first, f"{pattern}.{i}", pattern, t)
        made = converter.convert(self.first, model=self.model, config=self.model.config)
        return {name: t[0] if isinstance(t, list) else t for name, t in made.items()}

    def sources(self) -> dict[str, Source]:
        """By name of the target: composed from slices where the chain of operations is known, else computed."""
        targets = self.run(meta=True)
        slices = self._composed(targets)
        if slices is not None:
            return slices
        return {name: Whole(functools.partial(self._one, name), t.shape, t.dtype) for name, t in targets.items()}

    def _one(self, name: str) -> torch.Tensor:
        return self.run(meta=False)[name]

    def _composed(self, targets: dict[str, torch.Tensor]) -> dict[str, Source] | None:
        state: dict[str, list[Source]] = {
            k: list(self.parts[k]) for k in self.template.source_patterns if k in self.parts
        }
        names = list(targets)
        for op in self.template.operations:
            kind = type(op).__name__
            if kind == "MergeModulelist":
                state = {k: [stack(v, op.dim)] for k, v in state.items()}
            elif kind == "Concatenate" and len(names) == 1:
                state = {names[0]: [Cat([s for v in state.values() for s in v], op.dim)]}
            elif kind == "Chunk" and len(state) == 1 and op.num_shards_attribute is None:
                whole = next(iter(state.values()))[0]
                size = -(-whole.shape[op.dim] // len(names))
                state = {
                    n: [Narrow(whole, op.dim, i * size, min(size, whole.shape[op.dim] - i * size))]
                    for i, n in enumerate(names)
                }
            else:
                return None
        flat = [s for v in state.values() for s in v]
        if len(flat) != len(names) or any(s.shape != tuple(targets[n].shape) for n, s in zip(names, flat, strict=True)):
            return None
        return dict(zip(names, flat, strict=True))


def _map(model: Any, checkpoint: Checkpoint, key_mapping: dict[str, str] | None) -> tuple[dict[str, Source], list[str]]:
    """By key of the model's state dict: where its values are, and the checkpoint's keys that the model has not."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    mapping = get_model_conversion_mapping(model, key_mapping)
    renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    by_pattern = {k: c for c in converters for k in c.source_patterns}
    keys = model.state_dict()
    prefix = model.base_model_prefix
    values: dict[str, Source] = {}
    unexpected: list[str] = []
    groups: dict[str, tuple[Any, dict[str, list[Source]]]] = {}
    for key in sorted(checkpoint, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, prefix, keys)
        if name not in keys and key in keys:
            name, pattern = rename_source_key(key, [], [], base_model_prefix=prefix, meta_state_dict=keys)
        if name not in keys:
            unexpected.append(key)
        elif pattern is None:
            values[name] = checkpoint[key]
        else:
            parts = groups.setdefault(name, (by_pattern[pattern], {}))[1]
            parts.setdefault(pattern, []).append(checkpoint[key])
    for first, (template, parts) in groups.items():
        values.update(_Converted(template, first, parts, model).sources())
    model._weight_conversions = [m for m in mapping if m.was_used()]
    return values, unexpected


def _folder_of(name: str | os.PathLike[str], revision: str | None) -> str:
    path = os.fspath(name)
    if os.path.exists(path):
        return path
    from huggingface_hub import snapshot_download  # type: ignore[import-not-found,unused-ignore]

    return snapshot_download(path, revision=revision, allow_patterns=["*.safetensors", "*.json"])


def from_pretrained(
    cls: Any,
    name: str | os.PathLike[str],
    *args: Any,
    dtype: torch.dtype | str | None = "auto",
    config: Any = None,
    seed: int = 0,
    missing: str = "head",
    ignore_mismatched_sizes: bool = False,
    key_mapping: dict[str, str] | None = None,
    revision: str | None = None,
    variant: str | None = None,
    **kwargs: Any,
) -> Any:
    """A model of Transformers whose parameters are read from a folder of safetensors files by shard(), each rank its
    own slices.

    Args:
        cls: a model class, or an Auto class: `AutoModelForCausalLM`.
        name: a folder that save_pretrained() wrote (one file, or several with an index); anything else is a name on
            the Hugging Face Hub, which is downloaded first.
        dtype: of the parameters: torch.float32, torch.bfloat16, torch.float16, or "auto": the configuration's.
        config: instead of the folder's config.json.
        seed: of parameters that the files do not have.
        missing: which parameters may be missing in the files, and are initialised by the model's _init_weights:
            "head": those outside of the base model (a new classifier on a base checkpoint) and poolers, with a
            warning; "init": any; "error": none.
        ignore_mismatched_sizes: tensors with another shape are initialised instead of rejected.
        key_mapping: renames keys of the files, as in Transformers.
        revision, variant: as in Transformers.
        *args, **kwargs: those that the configuration knows change it; the others are passed to the class.

    Returns:
        The model in eval mode, as Transformers' from_pretrained; parameters on the meta device, buffers real, tied
        parameters one object. Before shard() it may be changed like any model (LoRA, frozen parts), but its values
        cannot be read.

    Raises:
        FileNotFoundError: no safetensors files, or some that the index lists are missing.
        KeyError: parameters that must be in the files are not; the message has their names.
        ValueError: tensors have other shapes than the model's; the message has names and shapes.
        NotImplementedError: quantised checkpoints, and code from the Hub (trust_remote_code).
    """
    if missing not in ("head", "init", "error"):
        raise ValueError(f"missing is 'head', 'init' or 'error', not {missing!r}")
    for key in ("trust_remote_code", "quantization_config", "device_map", "tp_plan", "gguf_file"):
        if kwargs.get(key):
            raise NotImplementedError(f"from_pretrained does not support {key}=")
        kwargs.pop(key, None)
    transformers = _transformers()
    path = _folder_of(name, revision)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if config is None:
        loader = transformers.AutoConfig if getattr(cls, "config_class", None) is None else cls.config_class
        config, kwargs = loader.from_pretrained(folder, return_unused_kwargs=True, **kwargs)
    else:
        config = copy.deepcopy(config)
    if getattr(config, "quantization_config", None) is not None:
        raise NotImplementedError("this checkpoint is quantised: parameters are trained in fp32, bf16 or fp16")
    for key in ("attn_implementation", "experts_implementation"):
        if key in kwargs:
            setattr(config, f"_{key}", kwargs.pop(key))
    concrete = _concrete(cls, config)
    checkpoint = Checkpoint(path, variant)
    model = _on_meta(concrete, config, _dtype_of(dtype, config, checkpoint), args, kwargs)
    values, unexpected = _map(model, checkpoint, key_mapping)
    config.name_or_path = os.fspath(name)
    _fill(model, values, unexpected, folder, seed, missing, ignore_mismatched_sizes)
    _generation(transformers, model, folder)
    return model.eval()


def _fill(
    model: Any,
    values: dict[str, Source],
    unexpected: list[str],
    folder: str,
    seed: int,
    missing: str,
    ignore_sizes: bool,
) -> None:
    """Attaches values to parameters, ties what is tied, makes buffers real."""
    wrong, absent = [], set()
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items()}
    for name, shape in shapes.items():
        if name in values and values[name].shape != shape:
            wrong.append(f"{name}: {list(values[name].shape)} in the files, {list(shape)} in the model")
            del values[name]
        if name not in values:
            absent.add(name)
    if wrong and not ignore_sizes:
        raise ValueError(
            f"tensors in '{folder}' have other shapes than the model: "
            + "; ".join(wrong[:12])
            + (f" and {len(wrong) - 12} more" if len(wrong) > 12 else "")
        )
    params = dict(model.named_parameters(remove_duplicate=False))
    for name, source in values.items():
        if name in params:
            attach(params[name], source)
    _tie(model, absent, values)
    _real_buffers(model, {n: s for n, s in values.items() if n in shapes and n not in params})
    owned = owners(model)
    need = [o for i, o in owned.items() if attached(o[1]._parameters[o[2]]) is None]  # type: ignore[arg-type]
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_missing", None) or []]
    report = [n for n, _, _ in need if not any(p.search(n) for p in ignored)]
    prefix = model.base_model_prefix + "."
    has_base = hasattr(model, model.base_model_prefix)
    refused = (
        report
        if missing == "error"
        else []
        if missing == "init"
        else [
            n
            for n in report
            if (not has_base or n.startswith(prefix)) and "pooler" not in n and not _was_mismatched(n, wrong)
        ]
    )
    if refused:
        raise KeyError(
            f"'{folder}' has no values for {len(refused)} parameters of {type(model).__name__}: "
            f'{names_text(refused)} (missing="init" initialises them)'
            + (f". Keys that the model does not have: {names_text(unexpected)}" if unexpected else "")
        )
    for name, module, leaf in need:
        _attach_init(model, name, module, leaf, seed)
    if report:
        warnings.warn(
            f"'{folder}' has no values for {names_text(report)}: they are initialised, and must be trained",
            stacklevel=4,
        )


def _was_mismatched(name: str, wrong: list[str]) -> bool:
    return any(w.startswith(f"{name}: ") for w in wrong)


def _tie(model: Any, absent: set[str], values: dict[str, Source]) -> None:
    """Ties as Transformers does: to the one that is in the files; both, where they are there, only where equal."""
    for target, source in list(getattr(model, "all_tied_weights_keys", {}).items()):
        if target in values and source in values and not _same(values[target], values[source]):
            model.all_tied_weights_keys.pop(target)
            warnings.warn(
                f"'{target}' and '{source}' are tied by the configuration, but the files have other values "
                "for each: they are not tied",
                stacklevel=5,
            )
        elif target in values and source in values:
            absent.add(target)
    model.tie_weights(missing_keys=set(absent), recompute_mapping=False)


def _same(a: Source, b: Source, piece: int = 1 << 20) -> bool:
    """Whether two sources have the same values, compared piece by piece."""
    if a.shape != b.shape:
        return False
    x, y = torch.empty(min(piece, a.numel)), torch.empty(min(piece, a.numel))
    for first in range(0, a.numel, piece):
        n = min(piece, a.numel - first)
        a.read(first, x[:n])
        b.read(first, y[:n])
        if not torch.equal(x[:n], y[:n]):
            return False
    return True


def _generation(transformers: Any, model: Any, folder: str) -> None:
    if model.can_generate() and os.path.isfile(os.path.join(folder, "generation_config.json")):
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)


def from_config(
    cls: Any, config: Any, *args: Any, dtype: torch.dtype | str | None = "auto", seed: int = 0, **kwargs: Any
) -> Any:
    """A new model of Transformers. shard() initialises its parameters slice by slice, with the model's _init_weights.

    Args:
        cls: a model class, or an Auto class.
        config: its configuration; it is copied.
        dtype: of the parameters; "auto": the configuration's, else torch's default.
        seed: the same on all ranks; the values of a parameter follow from it and from the parameter's name.

    Returns:
        The model in train mode; parameters on the meta device, buffers real, tied parameters one object.

    Raises:
        ValueError: the Auto class has no model for this configuration; a dtype that cannot be trained.
    """
    _transformers()
    config = copy.deepcopy(config)
    for key in ("attn_implementation", "experts_implementation"):
        if key in kwargs:
            setattr(config, f"_{key}", kwargs.pop(key))
    model = _on_meta(_concrete(cls, config), config, _dtype_of(dtype, config, None), args, kwargs)
    model.tie_weights(recompute_mapping=False)
    _real_buffers(model, {})
    for name, module, leaf in owners(model).values():
        _attach_init(model, name, module, leaf, seed)
    return model.train()
