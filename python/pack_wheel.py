"""pack_wheel.py BUILD OUT: writes the wheel of python/zshard with the build's library and programs in zshard/_native/.

Called by build-wheel.sh, which repairs it afterwards. It needs nothing but Python: the metadata is pyproject.toml's.
The archive has the same bytes for the same files."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TAG = "py3-none-linux_x86_64"
NATIVE = {  # in the build: (in _native/, whether it must be there)
    "lib/libzclient.so.0": ("libzclient.so.0", True),
    "bin/zshardd": ("zshardd", True),
    "bin/zctl": ("zctl", True),
    "lib/zk_cuda.so": ("zk_cuda.so", False),
}


def version() -> str:
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        found = re.search(r"^project\(zshard VERSION ([\d.]+)", file.read(), re.M)
    assert found, "CMakeLists.txt names no version"
    return found[1]


def native(build: str, folder: str) -> dict[str, bytes]:
    """{path in the wheel: bytes}, stripped, and looking for libraries beside itself."""
    made = {}
    for source, (name, needed) in NATIVE.items():
        path, out = os.path.join(build, source), os.path.join(folder, name)
        if not os.path.exists(path):
            if needed:
                sys.exit(f"{path} is not there: build zclient, zshardd and zctl first")
            print(f"without {name}: this build has none")
            continue
        shutil.copyfile(os.path.realpath(path), out)
        subprocess.run(["strip", "--strip-unneeded", out], check=True)
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", out], check=True)
        with open(out, "rb") as file:
            made[f"zshard/_native/{name}"] = file.read()
    return made


def python_files() -> dict[str, bytes]:
    made = {}
    for folder, folders, files in os.walk(os.path.join(HERE, "zshard")):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "_native") and not f.startswith("."))
        for name in sorted(files):
            if name.endswith(".py") or name == "py.typed":
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    made[os.path.relpath(path, HERE)] = file.read()
    return made


def metadata(number: str) -> dict[str, bytes]:
    with open(os.path.join(HERE, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {number}",
        f"Summary: {project['description']}",
        "License: Apache-2.0",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {c}" for c in project["classifiers"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {need}; extra == "{extra}"' for need in needs]
    lines.append("Description-Content-Type: text/markdown")
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        text = "\n".join(lines) + "\n\n" + readme.read()
    with open(os.path.join(ROOT, "LICENSE"), "rb") as license_file:
        licence = license_file.read()
    scripts = "".join(f"{name} = {where}\n" for name, where in project["scripts"].items())
    info = f"zshard-{number}.dist-info"
    return {
        f"{info}/METADATA": text.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: zshard\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(),
        f"{info}/entry_points.txt": f"[console_scripts]\n{scripts}".encode(),
        f"{info}/top_level.txt": b"zshard\n",
        f"{info}/LICENSE": licence,
    }


def record(files: dict[str, bytes], path: str) -> bytes:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return ("".join(lines) + f"{path},,\n").encode()


def main() -> None:
    build, out = sys.argv[1:3]
    number = version()
    with tempfile.TemporaryDirectory() as folder:
        files = python_files() | native(build, folder) | metadata(number)
    path = f"zshard-{number}.dist-info/RECORD"
    files[path] = record(files, path)
    os.makedirs(out, exist_ok=True)
    wheel = os.path.join(out, f"zshard-{number}-{TAG}.whl")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            mode = 0o755 if name.startswith("zshard/_native/") else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    main()
