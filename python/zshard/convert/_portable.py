"""The portable form: a folder of safetensors files, one for each plane, and a JSON file (docs/pytorch/CONVERT.md)."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import torch

from ..torch._sources import File, FileTensor
from ..torch._st_file import Entry, StFile
from ._content import FP32, Content, Problems, Tensor, Writing, ranges
from ._pickle import load_pt, save_pt

INDEX = "zshard.json"
OTHERS = "values"  # frozen parameters and buffers, in their own dtype
STATE = "client_state.pt"  # what JSON cannot hold
FORMAT, VERSION = "zshard-portable", 1


def is_here(path: str) -> bool:
    """Whether the folder has the portable form."""
    return os.path.isfile(os.path.join(path, INDEX))


def exact(value: Any) -> bool:
    """Whether JSON gives back the same."""
    if isinstance(value, dict):
        return all(type(k) is str and exact(v) for k, v in value.items())
    if type(value) is list:
        return all(exact(v) for v in value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (str, int, bool)


def read(path: str, tag: str | None = None) -> Content:
    """A folder of the portable form. Raises ConvertError with all that is wrong with it."""
    problems = Problems(f"'{path}' cannot be read as the portable form")
    try:
        with open(os.path.join(path, INDEX), encoding="utf-8") as f:
            index = json.load(f)
    except (OSError, ValueError) as e:
        problems.add(f"{INDEX}: {e}")
        problems.check()
    if index.get("format") != FORMAT or index.get("version") != VERSION:
        problems.add(f"{INDEX} is of format {index.get('format')!r}, version {index.get('version')}; {VERSION} is read")
        problems.check()
    content = Content("portable", path, tag, int(index["step"]))
    content.aliases = dict(index["aliases"])
    content.groups = [
        {k: tuple(v) if isinstance(v, list) and k != "params" else v for k, v in g.items()} for g in index["groups"]
    ]
    content.optimizer, content.loss_scale = index.get("optimizer") or "", index.get("loss_scale")
    content.engine_state = index.get("engine_state") or {}
    planes = {}
    for plane in [*index["planes"], OTHERS]:
        file = os.path.join(path, f"{plane}.safetensors")
        try:
            if plane != OTHERS or os.path.isfile(file):
                planes[plane] = File(file)
        except Exception as e:  # ZshardError of several families
            problems.add(f"{plane}.safetensors: {e}")
    problems.check()
    for name, row in index["tensors"].items():
        _read_one(name, row, planes, content, problems)
    content.client_state, content.lr_scheduler = index.get("client_state") or {}, index.get("lr_scheduler")
    if index.get("state_file"):
        try:
            state = load_pt(os.path.join(path, STATE))
            content.client_state, content.lr_scheduler = state["client_state"], state["lr_scheduler"]
        except ValueError as e:
            problems.add(str(e))
    problems.check()
    return content


def _read_one(name: str, row: dict[str, Any], files: dict[str, File], content: Content, problems: Problems) -> None:
    shape, dtype = tuple(row["shape"]), getattr(torch, row["dtype"])
    wanted = row["planes"] if row["kind"] == "trained" else [OTHERS]
    sources: dict[str, Any] = {}
    for plane in wanted:
        file = files.get(plane)
        if file is None or name not in file.tensors:
            problems.add(f"'{name}' is not in {plane}.safetensors")
            continue
        source = FileTensor(file, name)
        if source.shape != shape:
            problems.add(f"'{name}', {plane}: {list(source.shape)} in the file, {list(shape)} in {INDEX}")
        sources[FP32 if plane == OTHERS else plane] = source
    if FP32 in sources:
        content.tensors[name] = Tensor(name, shape, dtype, row["kind"], sources, int(row.get("step", 0)))


def write(content: Content, folder: str | None) -> Writing:
    """Writes the portable form; folder None: only says what is read, in the same order."""
    trained = content.of_kind("trained")
    for plane in [FP32, *content.moments()]:
        some = [t for t in trained if plane in t.planes]
        out = None
        if folder is not None:
            entries = [Entry(t.name, t.shape, torch.float32, lambda: iter(())) for t in some]
            out = StFile(os.path.join(folder, f"{plane}.safetensors"), entries)
        try:
            for t in some:
                for first, n in ranges(t.planes[plane]):
                    values = yield t.planes[plane], first, n
                    if out is not None and values is not None:
                        out.append(values)
            if out is not None:
                out.commit()
        finally:
            if out is not None:
                out.discard()
    yield from _write_others(content, folder)
    if folder is not None:
        _write_index(content, folder)


def _write_others(content: Content, folder: str | None) -> Writing:
    others = content.of_kind("frozen", "buffer")
    if not others:
        return
    out = None
    if folder is not None:
        entries = [Entry(t.name, t.shape, t.dtype, lambda: iter(())) for t in others]
        out = StFile(os.path.join(folder, f"{OTHERS}.safetensors"), entries)
    try:
        for t in others:
            if t.kind == "buffer":
                if out is not None:
                    out.append(t.planes[FP32].tensor().to(t.dtype).reshape(-1))
                continue
            for first, n in ranges(t.planes[FP32]):
                values = yield t.planes[FP32], first, n
                if out is not None and values is not None:
                    out.append(values.to(t.dtype))
        if out is not None:
            out.commit()
    finally:
        if out is not None:
            out.discard()


def _write_index(content: Content, folder: str) -> None:
    state = {"client_state": content.client_state, "lr_scheduler": content.lr_scheduler}
    apart = not exact(state)
    if apart:
        save_pt(state, os.path.join(folder, STATE))
    tensors: dict[str, Any] = {}
    for t in content.tensors.values():
        row: dict[str, Any] = {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch."), "kind": t.kind}
        if t.kind == "trained":
            row |= {"planes": list(t.planes), "step": t.step}
        tensors[t.name] = row
    index = {
        "format": FORMAT,
        "version": VERSION,
        "step": content.step,
        "optimizer": content.optimizer or None,
        "loss_scale": content.loss_scale,
        "engine_state": content.engine_state,
        "planes": [FP32, *content.moments()],
        "groups": content.groups,
        "aliases": content.aliases,
        "tensors": tensors,
        "state_file": apart,
        **({} if apart else state),
    }
    with open(os.path.join(folder, INDEX), "w", encoding="utf-8") as f:
        f.write(json.dumps(index, indent=1) + "\n")
