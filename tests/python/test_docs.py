# ctest: LABELS full COST 120
"""The pages of docs/pytorch: every snippet runs, and API.md is what the docstrings say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zygote

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p.name for p in (ROOT / "docs" / "pytorch").glob("*.md") if p.name != "API.md")
BLOCK = re.compile(r"(<!-- not run: [^\n]* -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def environment(folder: Path) -> dict[str, str]:
    """A daemon, notes and data of this test's own."""
    (folder / "run").mkdir(mode=0o700)
    (folder / "bin").mkdir()
    zygote.shim(folder / "bin", "trainer")
    build = os.environ.get("ZSHARD_BUILD") or str(ROOT / "build")
    return os.environ | {
        "PYTHONPATH": str(ROOT / "python"),
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{build}/bin:{os.environ['PATH']}",
        "ZSHARD_BUILD": build,
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "ZSHARD_DATA": str(folder / "data"),
        "ZSHARD_HOST_BYTES": "64M",
        "ZSHARD_NVME_BYTES": "256M",
        "ZSHARD_NOTES": str(folder / "notes"),
        "HF_HUB_OFFLINE": "1",
    }


def run(words: list[str], folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, f"{words[-1][-400:]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


SHORT = ("TUTORIAL.md", "FIRST-HOUR.md")  # the others run at night


@pytest.mark.parametrize("page", [p if p in SHORT else pytest.param(p, marks=pytest.mark.long) for p in PAGES])
def test_snippets(page: str, tmp_path: Path) -> None:
    """Blocks of Python are one program, but for those that begin with '# NAME.py'; blocks of sh run when they come."""
    pytest.importorskip("transformers")
    env = environment(tmp_path)
    program: list[str] = []
    for left_out, kind, text in BLOCK.findall((ROOT / "docs" / "pytorch" / page).read_text()):
        name = re.match(r"# (\w+\.py)\n", text)
        if left_out:
            continue
        if kind == "python" and name:
            (tmp_path / name[1]).write_text(text)
        elif kind == "python":
            program.append(text)
        elif kind == "sh":
            run(["bash", "-ec", text], tmp_path, env)
    if program:
        (tmp_path / "page.py").write_text("\n".join(program))
        done = zygote.run(
            [sys.executable, "page.py"],
            preload=zygote.TRAINER, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_reference_is_up_to_date(tmp_path: Path) -> None:
    run(["python", str(ROOT / "python" / "make_docs.py"), "--check"], tmp_path, environment(tmp_path))


def test_links() -> None:
    """Links between the pages lead somewhere."""
    folder = ROOT / "docs" / "pytorch"
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (folder / target).exists(), f"{page.name} links to {target}"
