"""Notes: what a resumed run wants back besides the model: the states of random number generators, and what the user
gives to commit().

With each step goes a note of each rank: the generators' states at that moment, and a mark of its own. The daemon keeps
it with the step, so that a run that resumes from any step, committed or not, draws the numbers that the uninterrupted
one drew. Buffers that training has changed go with it, too, or, if they are large, into a file beside, at commit().
What commit(note=...) is given comes after the step; it is kept in a file beside, under the step's mark, and
is found again only with that step of that run.

HostOptimizer writes weights between two steps. The file `writing` says after which step (its mark), in which daemon. A
run that resumes from just that step of that daemon would find weights of which some are a step ahead: it is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pickle
import random
import secrets
import sys
import warnings
import zlib
from typing import TYPE_CHECKING, Any

import torch

from .._client import Client
from ..errors import Refused
from . import _buffers
from ._ranks import same_buffers

if TYPE_CHECKING:
    from ._runtime import Runtime

NOTE_MAX = 65536 - 32  # ZC_ZERO_NOTE_MAX
KEPT = 8  # files of commit() that are kept for a job and rank


# ---- random numbers


def rng_state() -> dict[str, Any]:
    """The states of Python's, torch's and, where it is loaded, NumPy's generators, and of the devices in use."""
    made: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state().numpy().tobytes()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        made["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        made["cuda"] = {i: torch.cuda.get_rng_state(i).numpy().tobytes() for i in range(torch.cuda.device_count())}
    return made


def set_rng_state(state: dict[str, Any]) -> None:
    """Sets what rng_state() returned; devices that are not there are left out."""
    random.setstate(state["python"])
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    for i, raw in state.get("cuda", {}).items():
        if i < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8), i)


# ---- files of commit()


def folder() -> str:
    """Where commit()'s notes are: $ZSHARD_NOTES, else a folder of the user's state."""
    named = os.environ.get("ZSHARD_NOTES")
    if named:
        return named
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "zshard", "notes")


def _path(job: str, rank: int, mark: str, what: str = "rank") -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in job)[:80]
    tag = hashlib.sha256(job.encode()).hexdigest()[:8]
    return os.path.join(folder(), f"{name}-{tag}", f"{what}{rank}-{mark}")


def _write(path: str, data: bytes, durable: bool = True) -> None:
    """durable: also after the machine has lost power."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    beside = f"{path}.tmp-{os.getpid()}"
    with open(beside, "wb") as f:
        f.write(data)
        f.flush()
        if durable:
            os.fsync(f.fileno())
    os.replace(beside, path)
    if not durable:
        return
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _trim(path: str) -> None:
    """Only the newest files of a rank are kept."""
    where, mine = os.path.dirname(path), os.path.basename(path).split("-")[0] + "-"
    with contextlib.suppress(OSError):
        found = [os.path.join(where, n) for n in os.listdir(where) if n.startswith(mine)]
        for old in sorted(found, key=os.path.getmtime)[:-KEPT]:
            os.unlink(old)


class Notes:
    """The notes of one rank of one job.

    Attributes:
        note: what the last commit() of this rank was given, also before a resume; None: nothing.
        note_step: the step that it was given after.
    """

    def __init__(self, runtime: Runtime, job: str | None, kept: bool) -> None:
        self.runtime, self.job, self.kept = runtime, job, kept
        self.note: Any = None
        self.note_step = 0
        self._instance = ""  # of the daemon, where it was asked for
        self._mark = ""
        self._last = ""  # the mark of the step that `note` was given after
        assert runtime.root is not None
        self._buffers = _buffers.Buffers(runtime.root) if kept else None
        self._saved = ""  # the mark of the step that has a file of buffers

    def before_step(self) -> None:
        """Sends the note that goes with the step that begins now. Nothing is sent of a job that ends with its ranks."""
        if not self.kept:
            return
        self._mark = secrets.token_hex(8)
        made: dict[str, Any] = {"mark": self._mark, "last": self._last, "rng": rng_state()}
        changed = self._buffers.changed() if self._buffers is not None else {}
        small = _buffers.size(changed) <= _buffers.STEP_MAX
        if changed:
            made |= {"buffers": _buffers.pack(changed) if small else None, "saved": self._saved}
        data = zlib.compress(pickle.dumps(made), 1)
        if len(data) <= NOTE_MAX:
            self.runtime.call(self.runtime.engine.note_put, data)

    def commit_buffers(self) -> None:
        """Keeps large buffers with the newest step."""
        if self._buffers is None or not self._mark or self.job is None:
            return
        changed = self._buffers.changed()
        if _buffers.size(changed) > _buffers.STEP_MAX:
            path = _path(self.job, self.runtime.engine.rank, self._mark, "buffers")
            _write(path, pickle.dumps({"buffers": _buffers.pack(changed), "step": self.runtime.steps}))
            _trim(path)
            self._saved = self._mark

    def _resume_buffers(self, kept: dict[str, Any], there: bool) -> None:
        """Buffers as they were. there: this rank had a note. Collective."""
        engine = self.runtime.engine
        if self._buffers is not None and "buffers" in kept:
            packed, self._saved = kept["buffers"], kept["saved"]
            if packed is None:
                exact = self._file(self._mark, "buffers")
                found = exact or self._file(self._saved, "buffers")
                packed = found.get("buffers", [])
                if not exact:
                    of = f"those of step {found['step']}" if found else "those that the model was built with"
                    warnings.warn(
                        f"the model's buffers of step {self.runtime.steps} were not saved, as there was no commit() "
                        f"after it: they are {of}",
                        stacklevel=2,
                    )
            self._buffers.restore(packed)
        if self._buffers is not None and engine.world > 1 and b"" in engine.comm.all_gather(b"1" if there else b""):
            same_buffers(engine, self._buffers.model)

    def begin(self) -> None:
        """No step was made yet. Of a job that is new, what one of the same name left does not count. Collective."""
        options = self.runtime.engine.options
        if options.get("resume") or options.get("resume_if_there"):
            self._check_whole("")
        elif self.kept and self.job is not None:
            with contextlib.suppress(OSError):
                os.unlink(_path(self.job, self.runtime.engine.rank, "writing"))

    def writing(self) -> None:
        """From now until the next step, weights in the daemon are of neither step. Does nothing for a job that ends
        with its ranks, or has no daemon."""
        if self.kept and self.job is not None and self.runtime.engine.options.get("socket"):
            mark = {"mark": self._mark, "daemon": self._daemon()}
            _write(_path(self.job, self.runtime.engine.rank, "writing"), json.dumps(mark).encode(), durable=False)

    def _daemon(self) -> str:
        """What changes with every start of the daemon."""
        if not self._instance:
            with Client(self.runtime.engine.options["socket"], lib=self.runtime.engine.lib) as client:
                self._instance = bytes(client.server()["instance"]).hex()
        return self._instance

    def _check_whole(self, mark: str) -> None:
        """Raises Refused on all ranks where one died, or failed, while it wrote weights after this very step."""
        engine, torn = self.runtime.engine, b""
        if self.job is not None and engine.options.get("socket"):
            path = _path(self.job, engine.rank, "writing")
            with contextlib.suppress(FileNotFoundError, ValueError), open(path, encoding="utf-8") as f:
                if json.load(f) == {"mark": mark, "daemon": self._daemon()}:
                    torn = path.encode()
        found = engine.comm.all_gather(torn) if engine.world > 1 else [torn]
        files = [path.decode() for path in found if path]
        if files:
            raise Refused(
                -errno.EUCLEAN,
                "",
                f"job '{self.job}': a run ended while HostOptimizer wrote weights after step {self.runtime.steps}, and "
                "some weights are a step ahead of others. Roll the job back to a snapshot (zctl rollback), or restart "
                "the daemon, which then has the last commit. After a rollback to this very step, or to resume all the "
                f"same, remove {', '.join(files)}",
            )

    def commit(self, note: Any) -> None:
        """Keeps the note with the newest step. Raises ValueError before the first step; what pickle and files raise."""
        if not self._mark or self.job is None:
            raise ValueError(
                "commit(note=...) before the first step, or of a job that is not kept: there is no step "
                "that the note could go with"
            )
        path = _path(self.job, self.runtime.engine.rank, self._mark)
        self.note, self.note_step, self._last = note, self.runtime.steps, self._mark
        _write(path, pickle.dumps({"note": note, "step": self.note_step, "rng": rng_state()}))
        _trim(path)

    def resume(self) -> bool:
        """Sets the generators as they were, and `note`. Collective. Returns whether this rank's were found; a rank
        that the world did not have before takes rank 0's note, and leaves its generators alone."""
        engine = self.runtime.engine
        data = engine.note_get()
        kept: dict[str, Any] = pickle.loads(zlib.decompress(data)) if data else {}
        self._mark = kept.get("mark", "")
        self._check_whole(self._mark)
        self._resume_buffers(kept, bool(data))
        mine = self._file(self._mark)
        last = mine or self._file(kept.get("last", ""))
        self.note, self.note_step = last.get("note"), last.get("step", 0)
        self._last = self._mark if mine else kept.get("last", "")
        if engine.world > 1:
            theirs = engine.comm.all_gather(pickle.dumps((self.note, self.note_step)) if data else b"")
            if not data and theirs[0]:
                self.note, self.note_step = pickle.loads(theirs[0])
        state = mine.get("rng") or kept.get("rng")
        if state is None:
            return False
        set_rng_state(state)
        return True

    def again(self) -> Any:
        """After the job was attached to another daemon: as resume(). Returns this rank's note. Collective."""
        self._instance = ""
        if self.runtime.steps > 0:
            self.resume()
        else:
            self.note, self.note_step, self._mark, self._last = None, 0, "", ""
        return self.note

    def _file(self, mark: str, what: str = "rank") -> dict[str, Any]:
        """What commit() wrote after the step of that mark; {}: nothing."""
        if not mark or self.job is None:
            return {}
        path = _path(self.job, self.runtime.engine.rank, mark, what)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
            return dict(pickle.loads(f.read()))
        return {}
