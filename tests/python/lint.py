"""Checks the Python package and its tests with ruff (rules and format), and the package's types with mypy, as
python/pyproject.toml says. Only in the nightly run mypy also reads what is imported: PyTorch alone takes a minute.
Otherwise what comes from there has any type, and some comments "type: ignore" are unused."""

from __future__ import annotations

import os
import subprocess
import sys

CONFIG = "python/pyproject.toml"
PLACES = ["python/zshard", "tests/python", "bench/torch"]
LONG = bool(os.environ.get("ZSHARD_LONG"))
ALONE = [] if LONG else ["--follow-imports=skip", "--no-warn-unused-ignores"]
CHECKS = {
    "ruff check": ["ruff", "check", "--no-cache", "--config", CONFIG],
    "ruff format": ["ruff", "format", "--no-cache", "--check", "--diff", "--config", CONFIG],
    "mypy": ["mypy", "--config-file", CONFIG, "--cache-dir", os.path.join(sys.prefix, "mypy"), *ALONE],
}


def main() -> int:
    failed = []
    env = os.environ | {"MYPYPATH": "python"}
    places = [place for place in PLACES if os.path.isdir(place)]
    for name, words in CHECKS.items():
        where = places[:1] if name == "mypy" else places
        done = subprocess.run([sys.executable, "-m", *words, *where], env=env, check=False)
        if done.returncode != 0:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "ruff and mypy are content")
    return 1 if failed else 0


sys.exit(main())
