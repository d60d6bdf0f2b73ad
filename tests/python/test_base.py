# ctest: LABELS full COST 4
"""The package without torch: what importing it does, the library it finds, errors, and the engine in one process."""

import array
import ctypes
import errno
import os
import re
import subprocess
import sys
from typing import Any

import pytest

import zshard
from zshard import _c, _lib
from zshard._engine import Comm, Engine

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def test_import_opens_nothing() -> None:
    """Neither torch nor the library nor a descriptor."""
    code = (
        "import os, sys; before = os.listdir('/proc/self/fd'); import zshard, zshard._engine;"
        "assert os.listdir('/proc/self/fd') == before; assert 'torch' not in sys.modules;"
        "assert 'numpy' not in sys.modules; assert 'zclient' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version() -> None:
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        assert f"VERSION {zshard.__version__} " in file.read()


def test_library_is_named_and_missing(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("ZSHARD_LIB", str(tmp_path / "none.so"))
    assert _lib.find() == str(tmp_path / "none.so")
    with pytest.raises(OSError, match="ZSHARD_BUILD"):
        _lib.load(_lib.find())


def test_program_is_found(monkeypatch: Any, tmp_path: Any) -> None:
    assert _lib.program("zshardd")
    monkeypatch.setenv("ZSHARD_BIN", str(tmp_path))
    assert _lib.program("zshardd") is None


def test_library_that_lacks_a_function(monkeypatch: Any) -> None:
    monkeypatch.setitem(_c.PROTOTYPES, "zc_no_such", (None, ()))
    with pytest.raises(OSError, match=r"zc_no_such\(\): it is older than this package"):
        _lib.load(_lib.find())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOTCONN, zshard.NotConnected),
        (errno.ENOSPC, zshard.NoSpace),
        (errno.EINVAL, zshard.Invalid),
        (errno.EBUSY, zshard.Refused),
        (errno.EOWNERDEAD, zshard.PeerLost),
        (errno.ESTALE, zshard.TakenOver),
        (errno.EBADMSG, zshard.Corrupt),
        (errno.ETIMEDOUT, zshard.TimedOut),
        (errno.EINTR, zshard.Interrupted),
    ],
)
def test_families(code: Any, kind: Any) -> None:
    e = zshard.errors.error(-code, "why")
    assert type(e) is kind and isinstance(e, zshard.Error)
    assert (e.code, e.rc, e.name, str(e)) == (-code, -code, errno.errorcode[code], "why")


def test_nobody_answers() -> None:
    with pytest.raises(zshard.NotConnected, match="no-such-socket"):
        zshard.Client("/tmp/zshard-no-such-socket")


@pytest.fixture
def engine() -> Any:
    with Comm("self") as comm:
        e = Engine(comm, job="base", optimizer="adamw", beta2=0.999, weight_decay=0.0)
        yield e
        e.close(False)


def declare(e: Any) -> None:
    e.add_unit("a", 1000, [("w", 0, (10, 100), 0)], dtype="bf16")
    e.add_unit("b", 100, [("w", 0, (10, 5, 2), 0), ("v", 10, (), 0)][:1])


def values(address: Any, count: Any) -> Any:
    return list((ctypes.c_float * count).from_address(address))


def test_a_step(engine: Any) -> None:
    declare(engine)

    def init(unit: Any, first: Any, count: Any, out: Any) -> None:
        ctypes.memmove(out, array.array("f", [1.0 + unit] * count).tobytes(), 4 * count)

    engine.start(init)
    assert engine.progress() == (0, 0) and engine.trainable == 2
    assert values(engine.gather(1), 3) == [2.0] * 3
    engine.release(1)
    for unit in (1, 0):
        grad = engine.grad(unit)
        ctypes.memmove(grad, array.array("f", [1.0] * 10).tobytes(), 40)
        engine.reduce(unit)
    done = engine.step(0.5)
    assert (done.iterations, done.applied, done.skipped) == (1, 1, False)
    assert abs(done.grad_norm - 20**0.5) < 1e-6
    assert abs(values(engine.gather(1), 1)[0] - 1.5) < 1e-6  # the length of AdamW's first step is lr
    engine.release(1)
    assert list(engine.read(1, "master", 0, 12))[10:] == [2.0, 2.0]
    assert engine.sum([1.0, 2.0]) == [1.0, 2.0] and engine.loss_scale == 1.0
    assert engine.bytes()["state"] > 0 and engine.stats()["host_bytes"] > 0


def test_init_that_raises(engine: Any) -> None:
    declare(engine)
    with pytest.raises(ZeroDivisionError):
        engine.start(lambda *_: 1 // 0)


def test_refused(engine: Any) -> None:
    declare(engine)
    engine.start(lambda *_: None)
    with pytest.raises(zshard.Invalid, match="unit 7"):
        engine.gather(7)
    with Comm("self") as comm:
        with pytest.raises(TypeError, match="no option 'colour'"):
            Engine(comm, colour=1)
        with pytest.raises(ValueError, match="'adamx'"):
            Engine(comm, optimizer="adamx")
        with pytest.raises(ValueError, match="'nvlink'"):
            Engine(comm, node_gather="nvlink")
        with Engine(comm, node_gather="auto") as e:
            e.add_unit("a", 8, [("w", 0, (8,), 0)])
            e.start(lambda *_: None)
            assert (e.stats()["node_gather"], e.stats()["node_gather_why"]) == (0, "each rank has whole units")
        with pytest.raises(zshard.ZshardError):
            Engine(comm, groups=65)


def test_closed(engine: Any) -> None:
    engine.close(False)
    engine.close(False)
    with pytest.raises(zshard.Refused, match="EBADF|closed"):
        engine.stats()


def test_no_words_of_the_machine() -> None:
    """Nothing in the package names a home or a build folder."""
    package = os.path.dirname(zshard.__file__)
    for folder, _, files in os.walk(package):
        for name in files:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    assert not re.search(r"/(home|root|work)/", file.read()), name
