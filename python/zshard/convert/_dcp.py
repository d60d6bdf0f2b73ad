"""torch.distributed.checkpoint folders (DCP), read by ranges.

    .metadata      which tensors there are, and where their chunks are: a pickle of torch's classes
    *.distcp       chunks one after the other, each as torch.save() writes a tensor

The metadata are read without their classes. Names are as get_state_dict() gives them, below two roots of the user's
choice such as "model" and "optim", in one folder or in two (APART): ROOT.NAME, ROOT.state.NAME.exp_avg,
ROOT.param_groups.I.lr; also flattened optimizer states, ROOT.param_groups.NAME.lr. What is below neither root is the
client state.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..torch._sources import Source, _cached
from ._content import FP32, MOMENTS, Content, ConvertError, Problems, Tensor, number
from ._pickle import Foreign, Unpickler, load_plain, loads_pt

METADATA = ".metadata"
APART = ("pytorch_model_fsdp_0", "optimizer_0")  # of Accelerate and Trainer
SLOTS = (*MOMENTS, "step", "max_exp_avg_sq")


def parts_of(path: str) -> list[str]:
    """Folders with metadata, below `path`: [""], or those in which Accelerate keeps the model and the optimizer."""
    if os.path.isfile(os.path.join(path, METADATA)):
        return [""]
    found = [p for p in APART if os.path.isfile(os.path.join(path, p, METADATA))]
    return found if APART[0] in found else []


def is_here(path: str) -> bool:
    """Whether the folder is one of DCP's."""
    return bool(parts_of(path))


# ---- chunks


@dataclass
class _Spec:
    """A tensor of a file of torch.save(): elements of a record."""

    dtype: torch.dtype
    key: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _spec(storage: tuple[torch.dtype, str], offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> _Spec:
    """torch._utils._rebuild_tensor_v2."""
    return _Spec(storage[0], storage[1], offset, tuple(size), tuple(stride))


class _SpecUnpickler(Unpickler):
    """Reads what a tensor is, and not its elements."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor"):
            return _spec
        if name.endswith("Storage"):
            return name
        return super().find_class(module, name)

    def persistent_load(self, saved: Any) -> tuple[torch.dtype, str]:
        kind, key = saved[1], saved[2]
        return torch.storage._storage_type_to_dtype_map().get(str(kind), torch.uint8), str(key)


class _View(io.RawIOBase):
    """Bytes [offset, offset + length) of a file."""

    def __init__(self, path: str, offset: int, length: int) -> None:
        self.file, self.offset, self.length, self.at = open(path, "rb"), offset, length, 0  # noqa: SIM115

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = 0) -> int:
        self.at = at + (0, self.at, self.length)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        n = max(0, min(len(buffer), self.length - self.at))
        data = os.pread(self.file.fileno(), n, self.offset + self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


class Chunk(Source):
    """One saved tensor inside of a file. Its place is looked up with the first read."""

    def __init__(self, path: str, offset: int, length: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.path, self.offset, self.length = path, offset, length
        self.shape, self.dtype = tuple(shape), dtype
        self._begin = -1  # of the elements in the file; -2: they are not in order

    def _find(self) -> int:
        if self._begin != -1:
            return self._begin
        name = f"{self.path}, bytes {self.offset} to {self.offset + self.length}"
        try:
            with _View(self.path, self.offset, self.length) as view, zipfile.ZipFile(view) as z:
                record = next(n for n in z.namelist() if n.endswith("/data.pkl"))
                spec = _SpecUnpickler(io.BytesIO(z.read(record))).load()
                info = z.getinfo(f"{record[: -len('data.pkl')]}data/{spec.key}")
                head = os.pread(view.file.fileno(), 30, self.offset + info.header_offset)
        except (zipfile.BadZipFile, StopIteration, OSError, pickle.UnpicklingError, AttributeError, KeyError) as e:
            raise ConvertError(f"{name}: no tensor can be read there: {e or type(e).__name__}") from None
        if spec.size != self.shape or spec.dtype != self.dtype:
            raise ConvertError(f"{name}: a tensor of shape {list(spec.size)}, {spec.dtype}; not {list(self.shape)}")
        data = self.offset + info.header_offset + 30 + int.from_bytes(head[26:28], "little")
        data += int.from_bytes(head[28:30], "little") + spec.offset * self.dtype.itemsize
        plain = info.compress_type == zipfile.ZIP_STORED and spec.stride == _strides(self.shape)
        self._begin = data if plain else -2
        return self._begin

    def read(self, first: int, out: torch.Tensor) -> None:
        out.copy_(self._elements(first, out.numel()))

    def _elements(self, first: int, count: int) -> torch.Tensor:
        begin = self._find()
        if begin < 0:
            return _cached(self, self._whole).reshape(-1)[first : first + count]
        size = self.dtype.itemsize
        data = bytearray(count * size)
        with open(self.path, "rb", buffering=0) as f:
            f.seek(begin + first * size)
            if f.readinto(data) != len(data):
                raise ConvertError(f"{self.path} ends within a tensor")
        return torch.frombuffer(data, dtype=self.dtype) if count else torch.empty(0, dtype=self.dtype)

    def _whole(self) -> torch.Tensor:
        with open(self.path, "rb") as f:
            f.seek(self.offset)
            return loads_pt(f.read(self.length), self.path)

    def tensor(self) -> torch.Tensor:
        return self._elements(0, self.numel).clone().view(self.shape)


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    made, n = [], 1
    for s in reversed(shape):
        made.append(n)
        n *= max(s, 1)
    return tuple(reversed(made))


class Boxes(Source):
    """A tensor of chunks at offsets. Rows that are whole are read by ranges; other cuts as one whole tensor."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, boxes: list[tuple[tuple[int, ...], Chunk]]) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.boxes = boxes
        inner = math.prod(self.shape[1:])
        self.rows = all(c.shape[1:] == self.shape[1:] for _, c in boxes) if self.shape else True
        self.starts = [o[0] * inner if o else 0 for o, _ in self.boxes]

    def place(self) -> Any:
        """Where its first chunk is."""
        return (self.boxes[0][1].path, self.boxes[0][1].offset) if self.boxes else None

    def read(self, first: int, out: torch.Tensor) -> None:
        if not self.rows:
            out.copy_(_cached(self, self.tensor).view(-1)[first : first + out.numel()])
            return
        for start, (_, chunk) in zip(self.starts, self.boxes, strict=True):
            begin, end = max(first, start), min(first + out.numel(), start + chunk.numel)
            if begin < end:
                chunk.read(begin - start, out[begin - first : end - first])

    def tensor(self) -> torch.Tensor:
        out = torch.empty(self.shape, dtype=self.dtype)
        for offsets, chunk in self.boxes:
            part = out
            for dim, (at, n) in enumerate(zip(offsets, chunk.shape, strict=True)):
                part = part.narrow(dim, at, n)
            part.copy_(chunk.tensor())
        return out


# ---- reading


def _field(thing: Any, name: str) -> Any:
    return thing.field(name) if isinstance(thing, Foreign) else getattr(thing, name, None)


@dataclass
class _Place:
    """Where something is: a file below the folder, and bytes of it."""

    file: str
    offset: int
    length: int


class _Folder:
    """The metadata: tensors, bytes, and where they are."""

    def __init__(self, path: str, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self.entries: dict[str, Any] = {}
        self.paths: dict[str, Any] = {}
        self.where: dict[tuple[str, tuple[int, ...] | None], _Place] = {}
        for part in parts_of(path):
            self._add(part)
        problems.check()
        if not self.entries or not self.where:
            problems.add(f"{METADATA} names no tensors of files")
        self._check_files()
        problems.check()

    def _add(self, part: str) -> None:
        """What the metadata of one folder say."""
        try:
            whole = load_plain(os.path.join(self.path, part, METADATA))
        except ValueError as e:
            self.problems.add(str(e))
            return
        entries = dict(_field(whole, "state_dict_metadata") or {})
        for key in entries.keys() & self.entries.keys():
            self.problems.add(f"'{key}' is in two folders")
        self.entries |= entries
        self.paths |= dict(_field(whole, "planner_data") or {})
        for index, info in (_field(whole, "storage_data") or {}).items():
            offset, name = _field(index, "offset"), os.path.join(part, str(_field(info, "relative_path")))
            place = _Place(name, number(_field(info, "offset")), number(_field(info, "length")))
            self.where[(_field(index, "fqn"), None if offset is None else tuple(offset))] = place
            if _field(info, "transform_descriptors"):
                self.problems.add(f"{name} is compressed or encrypted by an extension")

    def _check_files(self) -> None:
        ends: dict[str, int] = {}
        for place in self.where.values():
            ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
        for name, end in sorted(ends.items()):
            file = os.path.join(self.path, name)
            if not os.path.isfile(file):
                self.problems.add(f"{name} is missing")
            elif os.path.getsize(file) < end:
                self.problems.add(f"{name} is truncated: it has {os.path.getsize(file)} bytes of {end}")

    def tensor(self, key: str) -> Boxes | None:
        """The source of a tensor; None, with a problem, where chunks are missing."""
        entry = self.entries[key]
        shape = tuple(_field(entry, "size"))
        dtype = _dtype(_field(entry, "properties"))
        boxes: list[tuple[tuple[int, ...], Chunk]] = []
        for chunk in _field(entry, "chunks"):
            offsets, sizes = tuple(_field(chunk, "offsets")), tuple(_field(chunk, "sizes"))
            place = self.where.get((key, offsets))
            if place is None and len(_field(entry, "chunks")) == 1:
                place = self.where.get((key, None))
            if place is None:
                self.problems.add(f"'{key}': {METADATA} does not say where the chunk at {list(offsets)} is")
                return None
            if math.prod(sizes):
                file = os.path.join(self.path, place.file)
                boxes.append((offsets, Chunk(file, place.offset, place.length, sizes, dtype)))
        if sum(c.numel for _, c in boxes) != math.prod(shape):
            self.problems.add(f"'{key}': its chunks do not have all elements of shape {list(shape)}")
            return None
        return Boxes(shape, dtype, boxes)

    def value(self, key: str) -> Any:
        """What is not a tensor, or a small one."""
        if self.is_tensor(key):
            source = self.tensor(key)
            return None if source is None else source.tensor()
        place = self.where.get((key, None))
        if place is None:
            self.problems.add(f"'{key}': {METADATA} does not say where it is")
            return None
        with open(os.path.join(self.path, place.file), "rb") as f:
            f.seek(place.offset)
            try:
                return loads_pt(f.read(place.length), f"{self.path}: {key}")
            except ValueError as e:
                self.problems.add(str(e))
                return None

    def is_tensor(self, key: str) -> bool:
        return _field(self.entries[key], "chunks") is not None


def _dtype(properties: Any) -> torch.dtype:
    state = properties.state if isinstance(properties, Foreign) else None
    found = state[0] if isinstance(state, tuple) else (state or {}).get("dtype")
    return found if isinstance(found, torch.dtype) else torch.float32


def _slot(key: str) -> tuple[str, str, str] | None:
    """(root, name, slot) of ROOT.state.NAME.SLOT."""
    head, dot, slot = key.rpartition(".")
    if not dot or slot not in SLOTS:
        return None
    if head.startswith("state."):
        return "", head[len("state.") :], slot
    root, found, name = head.partition(".state.")
    return (root + ".", name, slot) if found else None


def read(path: str, tag: str | None = None) -> Content:
    """A folder of DCP's. Raises ConvertError with all that is wrong with it."""
    problems = Problems(f"'{path}' cannot be read as a folder of torch.distributed.checkpoint")
    folder = _Folder(path, problems)
    content = Content("dcp", path, tag)
    slots = {key: s for key in folder.entries if (s := _slot(key)) is not None}
    root, count = Counter(s[0] for s in slots.values()).most_common(1)[0] if slots else ("", 0)
    if len({s[0] for s in slots.values()}) > 1:
        problems.add(f"there are several optimizers: {', '.join(sorted({s[0] for s in slots.values()}))}")
    state: dict[str, dict[str, str]] = {}
    for key, (_, name, slot) in slots.items():
        state.setdefault(name, {})[slot] = key
    groups = {k for k in folder.entries if count and k.startswith(root + "param_groups.")}
    rest = [k for k in folder.entries if k not in slots and k not in groups]
    model = _model_root(rest, set(state), folder)
    content.groups = _groups(folder, root, groups, set(state))
    trained = set(state) | {n for g in content.groups for n in g["params"]}
    places: dict[Any, str] = {}  # names of one tensor are at one place, in files that this module writes
    rest.sort(key=lambda k: k[len(model) :] not in trained)
    for key in rest:
        if not folder.is_tensor(key) or not key.startswith(model):
            _put(content.client_state, folder.paths.get(key) or (key,), folder.value(key))
            continue
        name = key[len(model) :]
        source = folder.tensor(key)
        if source is not None and source.numel and name not in trained and source.place() in places:
            content.aliases[name] = places[source.place()]
        elif source is not None:
            kind = "trained" if name in trained else "frozen"
            content.tensors[name] = Tensor(name, source.shape, source.dtype, kind, {FP32: source})
            places.setdefault(source.place(), name)
    _read_state(folder, state, content)
    content.lr_scheduler = content.client_state.pop("lr_scheduler", None)
    content.about |= {"model": model.rstrip("."), "optimizer": root.rstrip(".") if count else None}
    content.step = max((t.step for t in content.tensors.values()), default=0)
    problems.check()
    return content


def _read_state(folder: _Folder, state: dict[str, dict[str, str]], content: Content) -> None:
    for name, slots in state.items():
        t = content.tensors.get(name)
        if t is None:
            folder.problems.add(f"there is state of the optimizer for '{name}', and no value")
            continue
        for slot, key in slots.items():
            if slot == "step":
                t.step = number(folder.value(key))
                continue
            if not folder.is_tensor(key):
                continue
            source = folder.tensor(key)
            if source is not None and source.shape != t.shape:
                folder.problems.add(f"'{key}' has shape {list(source.shape)}, '{name}' {list(t.shape)}")
            elif source is not None:
                t.planes[slot] = source
        if "step" not in slots and len(t.planes) > 1:
            t.step = 1  # torch's SGD has no count: a momentum says that there was a step


def _model_root(keys: list[str], trained: set[str], folder: _Folder) -> str:
    """The prefix of the model's names: the one under which each name that the optimizer knows is there."""
    tensors = [k for k in keys if folder.is_tensor(k)]
    if trained:
        sample = min(trained)
        for root in sorted({k[: -len(sample)] for k in tensors if k.endswith(sample)}, key=len):
            if (not root or root.endswith(".")) and all(root + n in folder.entries for n in trained):
                return root
        return ""
    first = {k.partition(".")[0] for k in tensors}
    return f"{first.pop()}." if first == {"model"} else ""


def _groups(folder: _Folder, root: str, keys: set[str], trained: set[str]) -> list[dict[str, Any]]:
    """param_groups: by number, or flattened by the parameters' names."""
    rows: dict[str, dict[str, Any]] = {}
    for key in keys:
        head, _, field = key[len(root + "param_groups.") :].rpartition(".")
        rows.setdefault(head, {})[field] = folder.value(key)
    numbered = {k: v for k, v in rows.items() if k.isdigit()}
    if numbered:
        return [
            {**{k: v for k, v in numbered[i].items() if k != "params"}, "params": list(numbered[i].get("params") or [])}
            for i in sorted(numbered, key=int)
        ]
    made: list[dict[str, Any]] = []
    for name in sorted(rows):
        same = next((g for g in made if {k: v for k, v in g.items() if k != "params"} == rows[name]), None)
        if same is None:
            made.append({**rows[name], "params": [name]})
        else:
            same["params"].append(name)
    return made if trained else []


def _put(target: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    """Puts a value where its path of keys says; lists become dicts by number."""
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value
