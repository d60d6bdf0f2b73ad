"""torch.distributed.checkpoint folders (DCP), read by ranges and written.

    .metadata      which tensors there are, and where their chunks are: a pickle of torch's classes
    *.distcp       chunks one after the other, each as torch.save() writes a tensor

The metadata are read without their classes. Names as get_state_dict() gives them below two roots of the user's choice,
such as "model" and "optim": ROOT.NAME, ROOT.state.NAME.exp_avg, ROOT.param_groups.I.lr; also flattened optimizer
states, ROOT.param_groups.NAME.lr. What is below neither root is the client state.
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
from ._content import FP32, MOMENTS, Content, ConvertError, Problems, Tensor, Writing, number, settings
from ._pickle import Foreign, Unpickler, load_plain, loads_pt

METADATA = ".metadata"
CHUNK = 1 << 23  # elements of a chunk that is written: 32 MiB of fp32
SLOTS = (*MOMENTS, "step", "max_exp_avg_sq")


def is_here(path: str) -> bool:
    """Whether the folder is one of DCP's."""
    return os.path.isfile(os.path.join(path, METADATA))


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


class _Folder:
    """The metadata: tensors, bytes, and where they are."""

    def __init__(self, path: str, problems: Problems) -> None:
        self.path, self.problems = path, problems
        try:
            whole = load_plain(os.path.join(path, METADATA))
        except ValueError as e:
            problems.add(str(e))
            problems.check()
        self.entries: dict[str, Any] = dict(_field(whole, "state_dict_metadata") or {})
        self.paths: dict[str, Any] = dict(_field(whole, "planner_data") or {})
        self.where: dict[tuple[str, tuple[int, ...] | None], Any] = {}
        for index, info in (_field(whole, "storage_data") or {}).items():
            offset = _field(index, "offset")
            self.where[(_field(index, "fqn"), None if offset is None else tuple(offset))] = info
        if not self.entries or not self.where:
            problems.add(f"{METADATA} names no tensors of files")
        self._check_files()
        problems.check()

    def _check_files(self) -> None:
        ends: dict[str, int] = {}
        for info in self.where.values():
            name = str(_field(info, "relative_path"))
            ends[name] = max(ends.get(name, 0), number(_field(info, "offset")) + number(_field(info, "length")))
            if _field(info, "transform_descriptors"):
                self.problems.add(f"{name} is compressed or encrypted by an extension")
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
            info = self.where.get((key, offsets))
            if info is None and len(_field(entry, "chunks")) == 1:
                info = self.where.get((key, None))
            if info is None:
                self.problems.add(f"'{key}': {METADATA} does not say where the chunk at {list(offsets)} is")
                return None
            if math.prod(sizes):
                file = os.path.join(self.path, str(_field(info, "relative_path")))
                at, length = number(_field(info, "offset")), number(_field(info, "length"))
                boxes.append((offsets, Chunk(file, at, length, sizes, dtype)))
        if sum(c.numel for _, c in boxes) != math.prod(shape):
            self.problems.add(f"'{key}': its chunks do not have all elements of shape {list(shape)}")
            return None
        return Boxes(shape, dtype, boxes)

    def value(self, key: str) -> Any:
        """What is not a tensor, or a small one."""
        if self.is_tensor(key):
            source = self.tensor(key)
            return None if source is None else source.tensor()
        info = self.where.get((key, None))
        if info is None:
            self.problems.add(f"'{key}': {METADATA} does not say where it is")
            return None
        with open(os.path.join(self.path, str(_field(info, "relative_path"))), "rb") as f:
            f.seek(number(_field(info, "offset")))
            try:
                return loads_pt(f.read(number(_field(info, "length"))), f"{self.path}: {key}")
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


# ---- writing


def write(content: Content, folder: str | None, model_key: str = "model", optim_key: str = "optim") -> Writing:
    """Writes a folder of DCP's; folder None: only says what is read, in the same order. The keys are the roots."""
    out = _Out(folder) if folder is not None else None
    for t in content.tensors.values():
        key = (*model_key.split("."), t.name)
        if t.kind == "buffer":
            if out is not None:
                out.whole(key, t.planes[FP32].tensor())
            continue
        yield from _write_plane(key, t, FP32, out)
        for plane in t.planes:
            if plane != FP32:
                yield from _write_plane((*optim_key.split("."), "state", t.name, plane), t, plane, out)
        if out is not None and t.kind == "trained" and len(t.planes) > 1:
            out.whole((*optim_key.split("."), "state", t.name, "step"), torch.tensor(float(t.step)))
    if out is None:
        return
    for alias, name in content.aliases.items():
        out.alias((*model_key.split("."), alias), (*model_key.split("."), name))
    defaults = _defaults(content.optimizer)
    for i, (own, mine) in enumerate(content.grouped() if content.groups else []):
        for field, value in {**defaults, **own, "params": [t.name for t in mine]}.items():
            out.bytes((*optim_key.split("."), "param_groups", i, field), value)
    for name, value in content.client_state.items():
        out.any((name,), value)
    if content.lr_scheduler is not None:
        out.any(("lr_scheduler",), content.lr_scheduler)
    out.finish()


def _defaults(kind: str) -> dict[str, Any]:
    """What torch's optimizer of that kind has in its groups: it asks for all of it."""
    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad
    }  # fmt: skip
    return settings(kinds[kind]([torch.zeros(1)], lr=1.0).defaults) if kind in kinds else {}


def _write_plane(key: tuple[Any, ...], t: Tensor, plane: str, out: _Out | None) -> Writing:
    """A tensor in chunks of whole rows, of about CHUNK elements each."""
    source = t.planes[plane]
    dtype = t.dtype if t.kind == "frozen" else torch.float32
    row = math.prod(t.shape[1:])
    rows = max(1, CHUNK // max(row, 1)) if t.shape else 1
    total = t.shape[0] if t.shape else 1
    for begin in range(0, total, rows):
        n = min(rows, total - begin)
        at = begin * row if t.shape else 0
        count = n * row if t.shape else source.numel
        flat = torch.empty(count if out is not None else 0, dtype=dtype)
        for first, m in ranges_of(at, count):
            values = yield source, first, m
            if out is not None and values is not None:
                flat[first - at : first - at + m] = values
        if out is not None:
            sizes = (n, *t.shape[1:]) if t.shape else ()
            out.chunk(key, t.shape, dtype, (begin, *[0] * (len(t.shape) - 1)) if t.shape else (), flat.view(sizes))


def ranges_of(begin: int, count: int) -> list[tuple[int, int]]:
    """(first, count) of each piece of some elements."""
    from ._content import PIECE

    return [(first, min(PIECE, begin + count - first)) for first in range(begin, begin + count, PIECE)]


class _Out:
    """The one file of chunks, and the metadata."""

    def __init__(self, folder: str) -> None:
        from torch.distributed.checkpoint import metadata

        self.kinds = metadata
        self.folder, self.name = folder, "__0_0.distcp"
        self.file = open(os.path.join(folder, self.name), "wb")  # noqa: SIM115
        self.entries: dict[str, Any] = {}
        self.paths: dict[str, tuple[Any, ...]] = {}
        self.where: dict[Any, Any] = {}

    def _save(self, value: Any) -> Any:
        from torch.distributed.checkpoint.filesystem import _StorageInfo

        at = self.file.tell()
        torch.save(value, self.file)
        return _StorageInfo(self.name, at, self.file.tell() - at)

    def _key(self, path: tuple[Any, ...]) -> str:
        key = ".".join(map(str, path))
        if key in self.paths:
            raise ConvertError(f"two values of the checkpoint are named '{key}': change the roots or the client state")
        self.paths[key] = path
        return key

    def chunk(
        self,
        path: tuple[Any, ...],
        shape: Sequence[int],
        dtype: torch.dtype,
        offsets: Sequence[int],
        value: torch.Tensor,
    ) -> None:
        kinds, key = self.kinds, ".".join(map(str, path))
        if key not in self.entries:
            self._key(path)
            properties = kinds.TensorProperties(dtype=dtype)
            self.entries[key] = kinds.TensorStorageMetadata(properties, torch.Size(shape), [])
        chunk = kinds.ChunkStorageMetadata(torch.Size(offsets), value.shape)
        self.where[kinds.MetadataIndex(key, chunk.offsets, len(self.entries[key].chunks))] = self._save(value)
        self.entries[key].chunks.append(chunk)

    def whole(self, path: tuple[Any, ...], value: torch.Tensor) -> None:
        self.chunk(path, value.shape, value.dtype, [0] * value.dim(), value.clone())

    def bytes(self, path: tuple[Any, ...], value: Any) -> None:
        key = self._key(path)
        self.entries[key] = self.kinds.BytesStorageMetadata()
        self.where[self.kinds.MetadataIndex(key)] = self._save(value)

    def any(self, path: tuple[Any, ...], value: Any) -> None:
        """A value of the client's; dicts entry by entry, as DCP flattens them."""
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                self.any((*path, str(key)), inner)
        elif isinstance(value, torch.Tensor):
            self.whole(path, value.detach().cpu())
        else:
            self.bytes(path, value)

    def alias(self, path: tuple[Any, ...], of: tuple[Any, ...]) -> None:
        """A second name of the same bytes."""
        key, other = self._key(path), ".".join(map(str, of))
        self.entries[key] = self.entries[other]
        for index in [i for i in self.where if i.fqn == other]:
            self.where[self.kinds.MetadataIndex(key, index.offset, index.index)] = self.where[index]

    def finish(self) -> None:
        self.file.close()
        made = self.kinds.Metadata(self.entries, self.paths, self.where, self.kinds.StorageMeta(), version="1.0.0")
        with open(os.path.join(self.folder, METADATA), "wb") as f:
            pickle.dump(made, f)
