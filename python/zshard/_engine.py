"""The engine (zc_zero.h) for Python, without torch: `Engine`, and `Comm` of _comm.py.

Addresses are ints, elements are counted as in C, and every call that fails raises the exception of errors.py. Calls
release the GIL. One thread at a time may use an engine, but for `interrupt()`.

The methods do no more than the C functions of their names, whose comments in zc_zero.h say what they mean.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, byref, c_double, c_float, c_size_t, c_uint32, c_uint64, c_void_p, cast
from typing import Any, NamedTuple

from . import _c, _interrupt
from ._client import plain
from ._comm import Comm
from .errors import Refused, ZshardError, error

__all__ = ["DTYPES", "MOMENTS", "OPTIMIZERS", "Comm", "Engine", "Norm", "Stepped", "Tensor"]

DTYPES = {"f32": _c.F32, "bf16": _c.BF16, "f16": _c.F16}
OPTIMIZERS = {"adamw": _c.ADAMW, "adam": _c.ADAM, "lion": _c.LION, "sgd": _c.SGD, "adagrad": _c.ADAGRAD,
              "muon": _c.MUON}  # fmt: skip
MUON_SCALE = {"rms": _c.MUON_RMS, "shape": _c.MUON_SHAPE}
MUON_ENGINE = {"cpu": _c.MUON_CPU, "gpu": _c.MUON_GPU, "gpu-bf16": _c.MUON_GPU_BF16}
MOMENTS = {"f32": _c.MOMENTS_F32, "bf16": _c.MOMENTS_BF16, "q8": _c.MOMENTS_Q8, "q8_lo": _c.MOMENTS_Q8_LO}
NODE_GATHER = {"comm": _c.NODE_GATHER_COMM, "host": _c.NODE_GATHER_HOST, "auto": _c.NODE_GATHER_AUTO,
               "nccl": _c.NODE_GATHER_COMM}  # fmt: skip
CLIP_MODE = {"global": _c.CLIP_GLOBAL, "tensor": _c.CLIP_TENSOR, "none": _c.CLIP_NONE}
OFFLOAD = {"none": _c.ZERO_NONE, "host": _c.ZERO_HOST, "nvme": _c.ZERO_NVME, "gpu": _c.ZERO_GPU}
WHAT = {"param": _c.PARAM, "master": _c.MASTER, "exp_avg": _c.EXP_AVG, "exp_avg_sq": _c.EXP_AVG_SQ, "grad": _c.GRAD}

_GROUP_FIELDS = frozenset(name for name, _ in _c.zc_group._fields_)


def _number(table: Mapping[str, int], value: str | int) -> int:
    """The C constant of a name; a number is one already."""
    if isinstance(value, str):
        if value not in table:
            raise ValueError(f"'{value}' is not one of {', '.join(table)}")
        return table[value]
    return value


class Tensor(NamedTuple):
    """A tensor of a unit: `group` is below the options' `groups`, or GROUP_FROZEN. `muon`: a matrix that the optimizer
    "muon" steps by Muon; it steps all others by AdamW."""

    name: str
    first: int
    dims: Sequence[int]
    group: int = 0
    muon: bool = False


class Stepped(NamedTuple):
    """What a step says; grad_norm is NaN where it was skipped."""

    iterations: int
    applied: int
    grad_norm: float
    clip_scale: float
    skipped: bool
    loss_scale: float
    left_alone: int


class Norm(NamedTuple):
    """Of one trainable tensor's reduced gradient."""

    sum_of_squares: float
    most: float
    nonfinite: int


def _options(lib: ctypes.CDLL, comm: Comm, given: Mapping[str, Any]) -> Any:
    """struct zc_zero_options from keyword arguments; names of enums may be strings, weight_decay a list."""
    o = _c.zc_zero_options()
    lib.zc_zero_defaults(byref(o))
    o.comm = comm.handle
    known = {name for name, _ in _c.zc_zero_options._fields_}
    tables = {
        "optimizer": OPTIMIZERS,
        "moments": MOMENTS,
        "offload_param": OFFLOAD,
        "offload_optimizer": OFFLOAD,
        "offload_grad": OFFLOAD,
        "node_gather": NODE_GATHER,
        "clip_mode": CLIP_MODE,
        "muon_scale": MUON_SCALE,
        "muon_engine": MUON_ENGINE,
    }
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"the engine has no option '{name}'")
        if name == "weight_decay":
            decays = [value] * 64 if isinstance(value, (int, float)) else list(value)
            o.weight_decay[: len(decays)] = decays
        elif name == "loss_scale":
            for field, v in value.items():
                setattr(o.loss_scale, field, v)
        elif name in tables:
            setattr(o, name, _number(tables[name], value))
        elif name in ("alloc", "free"):
            setattr(o, name, ctypes.cast(value, c_void_p))
        else:
            setattr(o, name, value.encode() if isinstance(value, str) else value)
    return o


class Engine:
    """A sharded model. zc_zero.h ("COLLECTIVE") lists the collective calls: all ranks make them in the same order.

    Args:
        comm: stays open as long as the engine.
        **options: fields of struct zc_zero_options, as of zc_zero_defaults() where they are not given. `optimizer`,
            `moments`, `offload_*`, `node_gather`, `clip_mode`, `muon_scale` and `muon_engine` may be names ("adamw",
            "q8", "nvme", "auto", "tensor", "rms", "gpu"), `weight_decay` a number or a list by group, `loss_scale` a
            dict, `alloc` and `free` functions of ctypes.

    Raises:
        ZshardError: of the family of the code. TypeError: no such option.
    """

    def __init__(self, comm: Comm, **options: Any) -> None:
        lib = self.lib = comm.lib
        self.comm = comm
        self.rank, self.world = comm.rank, comm.world
        self._pid = os.getpid()
        self._life = threading.RLock()  # an engine that is closed is not interrupted
        self._z: int | None = None
        self.trainable = 0  # tensors, in order of declaration
        self.units: list[tuple[str, int, int, int]] = []  # name, elems, dtype, tensors
        self.options = dict(options)  # as given; functions among them must live as long as the engine
        o = _options(lib, comm, options)
        ret = c_void_p()
        rc = lib.zc_zero_open(byref(ret), byref(o))
        self._z = ret.value
        if rc < 0:
            text = lib.zc_zero_error(ret).decode(errors="replace") if ret else ""
            self.close(False)
            raise error(rc, text or lib.zc_strerror(rc).decode())
        # What is called for every unit: bound once, with buffers that are used again.
        self._out = c_void_p()
        self._out_ref = byref(self._out)
        self._grad_out = POINTER(c_float)()
        self._grad_ref = byref(self._grad_out)
        self._gather, self._release, self._grad = lib.zc_zero_gather, lib.zc_zero_release, lib.zc_zero_grad
        self._reduce, self._reduce_of = lib.zc_zero_reduce, lib.zc_zero_reduce_of
        self._grad_add, self._gather_into = lib.zc_zero_grad_add, lib.zc_zero_gather_into
        self._stepped = _c.zc_zero_stepped()
        self._groups: Any = None
        self._init_error: BaseException | None = None
        _interrupt.watch(self)

    # ---- life

    def _check(self, rc: int) -> None:
        if rc < 0:
            raise self._error(rc)

    def _error(self, rc: int) -> ZshardError:
        text = self.lib.zc_zero_error(self._z).decode(errors="replace") if self._z is not None else ""
        return error(rc, text or self.lib.zc_strerror(rc).decode())

    def close(self, clean: bool = True) -> None:
        """Closes the engine, not its comm; may be called again. clean: collective."""
        if self._pid != os.getpid():  # it is the parent's
            self._z = None
            self._forget()
            return
        with self._life:
            z, self._z = self._z, None
        if z is not None:
            _interrupt.unwatch(self)
            self.lib.zc_zero_close(z, clean)
        self._forget()

    def _forget(self) -> None:
        """After close(): calls of the library raise."""
        gone: Any = _Closed()
        self.lib = self._gather = self._release = self._grad = self._grad_add = self._gather_into = gone
        self._reduce = self._reduce_of = gone

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(kind is None)

    @property
    def closed(self) -> bool:
        return self._z is None

    @property
    def handle(self) -> int:
        """struct zc_zero *, for calls of `lib` that have no method here."""
        if self._z is None:
            raise Refused(-9, "EBADF", "the engine is closed")
        return self._z

    @property
    def failed(self) -> bool:
        """Whether the last failure was final: only close(False) is left."""
        return bool(self.lib.zc_zero_failed(self.handle))

    @property
    def error_message(self) -> str:
        """The message of the last failure; "" before the first."""
        return str(self.lib.zc_zero_error(self.handle).decode(errors="replace"))

    def interrupt(self) -> None:
        """From any thread or a signal handler: the call that waits raises Interrupted. Ctrl-C does so by itself."""
        with self._life:
            if self._z is not None:
                self.lib.zc_zero_interrupt(self._z)

    def poll(self) -> None:
        """Progress without waiting; reports a lost peer or daemon."""
        self._check(self.lib.zc_zero_poll(self._z))

    # ---- units

    def add_unit(
        self,
        name: str,
        elems: int,
        tensors: Iterable[Tensor | tuple[Any, ...]],
        *,
        dtype: str | int = "f32",
        frozen: bool = False,
        quantized: bool = False,
    ) -> int:
        """Declares the next unit and returns its number. tensors: ascending, (name, first, dims, group, muon)."""
        rows = [Tensor(*t) for t in tensors]
        array = (_c.zc_tensor * len(rows))()
        for c, t in zip(array, rows, strict=True):
            c.name, c.first, c.ndims, c.group = t.name.encode(), t.first, len(t.dims), t.group
            c.muon = t.muon
            if len(t.dims) <= _c.DIMS_MAX:
                c.dims[: len(t.dims)] = list(t.dims)
            else:  # only the number of elements matters
                c.ndims, c.dims[0] = 1, _product(t.dims)
        index = len(self.units)
        kind = _number(DTYPES, dtype)
        unit = _c.zc_unit(
            index=index,
            name=name.encode(),
            elems=elems,
            dtype=kind,
            grad_dtype=_c.F32,
            frozen=frozen,
            quantized=quantized,
            tensors=array,
            ntensors=len(rows),
        )
        self._check(self.lib.zc_zero_add_unit(self.handle, byref(unit)))
        self.units.append((name, elems, kind, len(rows)))
        self.trainable += 0 if frozen else len(rows)
        return index

    def start(self, init: Callable[[int, int, int, Any], None] | None = None) -> None:
        """Places and initialises the slices. Collective.

        init(unit, first, count, out) writes elements [first, first + count) of a unit to `out`, a ctypes array of
        count floats, which numpy.frombuffer(out, "f4") and torch.frombuffer(out, dtype=torch.float32) take as it is
        (ctypes.addressof(out): its address). It is valid during the call. What it raises comes out of start().
        """
        self._init_error = None

        def call(_: Any, unit: int, first: int, count: int, out: Any) -> int:
            try:
                assert init is not None
                init(unit, first, count, (c_float * count).from_address(cast(out, c_void_p).value or 0))
            except BaseException as e:  # it must not pass through C
                self._init_error = e
                return -22
            return 0

        callback = _c.ZERO_INIT(call if init else 0)
        rc = self.lib.zc_zero_start(self.handle, callback, None)
        raised, self._init_error = self._init_error, None
        if raised is not None:
            raise raised
        self._check(rc)

    def progress(self) -> tuple[int, int]:
        """(iterations, applied) so far: (0, 0) of a job that is new."""
        a, b = c_uint64(), c_uint64()
        self._check(self.lib.zc_zero_progress(self.handle, byref(a), byref(b)))
        return a.value, b.value

    def slice(self, unit: int) -> tuple[int, int]:
        """(first, count): the elements of a unit whose state this rank keeps."""
        first, count = c_uint64(), c_uint64()
        self._check(self.lib.zc_zero_slice(self.handle, unit, byref(first), byref(count)))
        return first.value, count.value

    def park(self) -> None:
        """Gives back this process's buffers, between two steps; who needs some takes them again. On all ranks."""
        self._check(self.lib.zc_zero_park(self.handle))

    # ---- a pass

    def gather(self, unit: int) -> int:
        """The address of the unit's parameters, read-only, until release()."""
        rc = self._gather(self._z, unit, self._out_ref)
        if rc < 0:
            raise self._error(rc)
        return self._out.value or 0

    def gather_into(self, unit: int, address: int) -> None:
        """As gather(), into elems of the unit's dtype at `address`, which stay the caller's until release()."""
        rc = self._gather_into(self._z, unit, address)
        if rc < 0:
            raise self._error(rc)

    def release(self, unit: int) -> None:
        rc = self._release(self._z, unit)
        if rc < 0:
            raise self._error(rc)

    def prefetch(self, unit: int) -> None:
        """A hint: the unit comes soon."""
        self._check(self.lib.zc_zero_prefetch(self._z, unit))

    def grad(self, unit: int) -> int:
        """The address of fp32[elems], which the trainer adds into until reduce()."""
        rc = self._grad(self._z, unit, self._grad_ref)
        if rc < 0:
            raise self._error(rc)
        return cast(self._grad_out, c_void_p).value or 0

    def grad_add(self, unit: int, first: int, count: int, dtype: str | int, address: int) -> None:
        """Adds count elements of `dtype` into the unit's gradient."""
        rc = self._grad_add(self._z, unit, first, count, _number(DTYPES, dtype), address)
        if rc < 0:
            raise self._error(rc)

    def reduce(self, unit: int) -> None:
        """This micro-step's gradient of the unit is complete."""
        rc = self._reduce(self._z, unit)
        if rc < 0:
            raise self._error(rc)

    def reduce_of(self, unit: int, has: Sequence[bool] | None = None) -> None:
        """As reduce(); `has` says which of the unit's tensors got a gradient. None: all."""
        if has is None:
            rc = self._reduce_of(self._z, unit, None, self.units[unit][3])
        else:
            rc = self._reduce_of(self._z, unit, (ctypes.c_bool * len(has))(*has), len(has))
        if rc < 0:
            raise self._error(rc)

    def micro(self, last: bool = False) -> None:
        """A micro-step begins (micro_steps 0). last: with accumulate_local, gradients leave in this one."""
        self._check(self.lib.zc_zero_micro(self._z, last))

    def micro_end(self) -> None:
        """The micro-step is over: what this rank did not reduce has no gradient here."""
        self._check(self.lib.zc_zero_micro_end(self._z))

    def abandon(self) -> None:
        """Drops this step's gradients on all ranks. Collective."""
        self._check(self.lib.zc_zero_abandon(self._z))

    def freeze(self, unit: int, frozen: bool = True) -> None:
        """From the next step on the unit is left alone, or trained again. Between two steps; collective. Not
        remembered by a job that is resumed."""
        self._check(self.lib.zc_zero_freeze(self._z, unit, frozen))

    # ---- the step

    def _result(self) -> Stepped:
        s = self._stepped
        return Stepped(
            s.iterations, s.applied, s.grad_norm, s.clip_scale, s.skipped, s.loss_scale, getattr(s, "left_alone", 0)
        )

    def step(self, lr: float) -> Stepped:
        """A step of all groups with one learning rate. Collective."""
        self._check(self.lib.zc_zero_step(self._z, lr, byref(self._stepped)))
        return self._result()

    def step_by(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        group_of: Sequence[int] | None = None,
        factors: Sequence[float] | None = None,
        divide: float = 0.0,
        clip: float = 0.0,
    ) -> Stepped:
        """A step with the groups' hyperparameters of now. Collective; the same values on all ranks.

        Args:
            groups: fields of struct zc_group (lr, beta1, beta2, eps, weight_decay, momentum, dampening, lr_decay,
                nesterov); what is missing is 0.
            group_of: [trainable] the group of each trainable tensor, or GROUP_NONE. None: the declared ones.
            factors: [trainable] that gradients are multiplied by. None: 1.
            divide: the sum is divided by world * divide * loss scale; 0: by the micro-steps made.
            clip: of the global norm; 0: off.
            group_of and factors may be ctypes arrays of uint32 and float, which are not copied.
        """
        how = self._how(groups, group_of, factors, divide, clip)
        self._check(self.lib.zc_zero_step_by(self._z, byref(how), byref(self._stepped)))
        return self._result()

    def announce_by(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        group_of: Sequence[int] | None = None,
        factors: Sequence[float] | None = None,
        divide: float = 0.0,
        clip: float = 0.0,
    ) -> None:
        """Says the arguments of the next step_by() ahead; with micro_steps 0 before its last micro-step. Collective."""
        how = self._how(groups, group_of, factors, divide, clip)
        self._check(self.lib.zc_zero_announce_by(self._z, byref(how)))

    def _how(
        self,
        groups: Sequence[Mapping[str, Any]],
        group_of: Sequence[int] | None,
        factors: Sequence[float] | None,
        divide: float,
        clip: float,
    ) -> Any:
        """struct zc_zero_step_how, valid until the next one."""
        n = len(groups)
        if self._groups is None or len(self._groups) != n:
            self._groups = (_c.zc_group * n)()
        for c, g in zip(self._groups, groups, strict=True):
            if not g.keys() <= _GROUP_FIELDS:
                raise TypeError(f"a group has no {', '.join(sorted(g.keys() - _GROUP_FIELDS))}")
            ctypes.memset(byref(c), 0, ctypes.sizeof(c))
            for name, value in g.items():
                setattr(c, name, _number(MUON_SCALE, value) if name == "muon_scale" else value)
        return _c.zc_zero_step_how(
            groups=self._groups,
            ngroups=n,
            group_of=self._array(c_uint32, group_of),
            factors=self._array(c_float, factors),
            divide=divide,
            clip=clip,
        )

    def _array(self, kind: Any, values: Sequence[float] | None) -> Any:
        if values is None or isinstance(values, ctypes.Array):
            return values
        if len(values) != self.trainable:
            raise ValueError(f"{len(values)} values for {self.trainable} trainable tensors")
        return (kind * len(values))(*values)

    def group_defaults(self, optimizer: str | int) -> dict[str, Any]:
        """A group with torch's defaults of an optimizer."""
        g = _c.zc_group()
        self.lib.zc_zero_group_defaults(_number(OPTIMIZERS, optimizer), byref(g))
        return plain(g)

    def tensor_steps(self, unit: int) -> list[int]:
        """[tensors of the unit]: steps applied to each."""
        out = (c_uint64 * self.units[unit][3])()
        self._check(self.lib.zc_zero_tensor_steps(self._z, unit, out))
        return list(out)

    def set_tensor_steps(self, unit: int, steps: Sequence[int]) -> None:
        """Sets them: [tensors of the unit]. Collective, between steps; the same on all ranks."""
        self._check(self.lib.zc_zero_set_tensor_steps(self._z, unit, (c_uint64 * len(steps))(*steps), len(steps)))

    def norms(self) -> list[Norm]:
        """[trainable]: of the reduced gradients so far, summed and not divided. Collective."""
        out = (_c.zc_zero_norm * self.trainable)()
        self._check(self.lib.zc_zero_norms(self._z, out, self.trainable))
        return [Norm(n.sum_of_squares, n.most, n.nonfinite) for n in out]

    def norm(self) -> float:
        """The global norm of the same; NaN where it is not finite. Collective."""
        out = c_double()
        self._check(self.lib.zc_zero_norm(self._z, byref(out)))
        return out.value

    def optimizer(self, kind: str | int, moments: str | int = "f32") -> None:
        """Before the first step. Collective."""
        self._check(self.lib.zc_zero_optimizer(self._z, _number(OPTIMIZERS, kind), _number(MOMENTS, moments)))

    @property
    def loss_scale(self) -> float:
        """What the loss of the next step is multiplied by."""
        return float(self.lib.zc_zero_loss_scale(self.handle))

    def announce(self, lr: float) -> None:
        """Says the next step's learning rate ahead. Collective."""
        self._check(self.lib.zc_zero_announce(self._z, lr))

    def commit(self) -> None:
        """Makes the newest step durable, and waits for that. Collective."""
        self._check(self.lib.zc_zero_commit(self._z))

    # ---- elements, notes, numbers

    def read(self, unit: int, what: str | int, first: int, count: int) -> Any:
        """Elements as fp32, on every rank: a ctypes array of count floats. Collective."""
        out = (c_float * count)()
        self._check(self.lib.zc_zero_read(self._z, unit, _number(WHAT, what), first, count, out))
        return out

    def read_on(
        self, root: int, unit: int, what: str | int, first: int, count: int, dtype: str | int, address: int | None
    ) -> None:
        """Elements to `address` on rank `root` (-1: on all)."""
        self._check(
            self.lib.zc_zero_read_on(
                self._z, root, unit, _number(WHAT, what), first, count, _number(DTYPES, dtype), address
            )
        )

    def write_on(
        self, root: int, unit: int, what: str | int, first: int, count: int, dtype: str | int, address: int | None
    ) -> None:
        """Writes elements as rank `root` has them (-1: as every rank has them), between steps. Collective."""
        self._check(
            self.lib.zc_zero_write_on(
                self._z, root, unit, _number(WHAT, what), first, count, _number(DTYPES, dtype), address
            )
        )

    def note_put(self, note: bytes, of_job: bool = False) -> None:
        """Bytes that are kept with the next step and those after it: this rank's, or the job's."""
        self._check(self.lib.zc_zero_note_put(self.handle, of_job, note, len(note)))

    def note_get(self, of_job: bool = False) -> bytes | None:
        """The note of the newest step; None: there is none."""
        buffer, n = ctypes.create_string_buffer(_c.NOTE_MAX), c_size_t()
        rc = self.lib.zc_zero_note_get(self.handle, of_job, buffer, byref(n))
        if rc == -2:
            return None
        self._check(rc)
        return buffer.raw[: n.value]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value added over the ranks, in rank order. Collective."""
        array = (c_double * len(values))(*values)
        self._check(self.lib.zc_zero_sum(self.handle, array, len(values)))
        return list(array)

    def stream(self) -> int:
        """The device's stream; 0 without a device."""
        return self.lib.zc_zero_stream(self.handle) or 0

    def device_bytes(self) -> int:
        """Bytes of the device that the engine has allocated now."""
        return int(self.lib.zc_zero_device_bytes(self.handle))

    def bytes(self) -> dict[str, int]:
        """struct zc_zero_bytes: model states of this rank."""
        out = _c.zc_zero_bytes()
        self.lib.zc_zero_bytes(self.handle, byref(out))
        return plain(out)

    def stats(self) -> dict[str, Any]:
        """struct zc_zero_stats. Waits for the step in progress."""
        out = _c.zc_zero_stats()
        self._check(self.lib.zc_zero_stats(self.handle, byref(out)))
        return plain(out)


class _Closed:
    """In place of the library once the engine is closed: calls of C would follow a pointer that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise Refused(-9, "EBADF", "the engine is closed")

    def __call__(self, *args: Any) -> Any:
        raise Refused(-9, "EBADF", "the engine is closed")


def _product(dims: Sequence[int]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n
