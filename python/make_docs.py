"""Writes docs/pytorch/API.md from the docstrings of zshard.torch; --check: exit 1 where it is not up to date."""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(os.path.dirname(HERE), "docs", "pytorch", "API.md")
HEAD = """# API of zshard.torch

Generated from the docstrings by `python/make_docs.py`: change the docstrings, and run it. All ranks must make the calls
that are marked *collective*, in the same order.
"""


def signature(thing: Any) -> str:
    """The arguments, without the names of this package's modules."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    words: list[str] = []
    star = False
    for p in found.parameters.values():
        if p.name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty or p.annotation in ("Any", Any) else f": {p.annotation}"
        default = "" if p.default is p.empty else f" = {p.default!r}" if kind else f"={p.default!r}"
        words.append(f"{mark}{p.name}{kind}{default}")
    back = found.return_annotation
    made = "" if back is found.empty or inspect.isclass(thing) else f" -> {back}"
    return f"({', '.join(words)}){made}"


def section(name: str, thing: Any, level: int) -> list[str]:
    """A function or a class with its public methods, as Markdown."""
    lines = [f"{'#' * level} `{name}{'' if isinstance(thing, property) else signature(thing)}`", ""]
    text = inspect.getdoc(thing) or ""
    lines += [*body(text), ""]
    if inspect.isclass(thing):
        for short, member in vars(thing).items():
            plain = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            public = not short.startswith("_") and (callable(plain) or isinstance(member, property))
            if public and inspect.getdoc(plain):
                lines += section(f"{name}.{short}", plain, level + 1)
    return lines


def parsed(name: str, module: str) -> list[str]:
    """A class that is imported only where other libraries are there: the same from its source."""
    path = os.path.join(HERE, "zshard", "torch", f"{module}.py")
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read())
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    functions = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    inits = [node for node in functions if node.name == "__init__"]
    lines = [f"## `{name}{written(inits[0], False)}`", "", *body(ast.get_docstring(cls) or ""), ""]
    for node in functions:
        text = ast.get_docstring(node)
        if text and not node.name.startswith("_"):
            lines += [f"### `{name}.{node.name}{written(node)}`", "", *body(text), ""]
    return lines


def written(node: ast.FunctionDef, result: bool = True) -> str:
    """The arguments in the source, without self."""
    node.args.args = [a for a in node.args.args if a.arg != "self"]
    for arg in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
        if arg is not None and isinstance(arg.annotation, ast.Name) and arg.annotation.id == "Any":
            arg.annotation = None
    back = f" -> {ast.unparse(node.returns)}" if result and node.returns is not None else ""
    return f"({ast.unparse(node.args)}){back}"


def body(text: str) -> list[str]:
    """A docstring: its lists of arguments as they are, indented examples as code."""
    if re.search(r"^ {4}\S", text, re.MULTILINE):
        return ["```text", *text.splitlines(), "```"]
    return text.splitlines()


def page() -> str:
    """The whole page."""
    sys.path.insert(0, HERE)
    import zshard.torch as zt

    names = sorted([*zt.__all__, *zt._LAZY], key=lambda n: (n[0].isupper(), n.lower()))
    lines = [HEAD, "", " · ".join(f"`{n}`" for n in names), ""]
    for name in names:
        if name in zt._LAZY:
            lines += parsed(name, zt._LAZY[name][0])
            continue
        thing = getattr(zt, name)
        if name == "FSDP":
            lines += ["## `FSDP`", "", "`FullyShardedDataParallel`.", ""]
            continue
        lines += section(name, thing, 2)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Writes or checks the page."""
    made = page()
    if "--check" in sys.argv[1:]:
        with open(PAGE, encoding="utf-8") as f:
            if f.read() != made:
                print(f"{PAGE} is not what the docstrings say: run python/make_docs.py", file=sys.stderr)
                return 1
        return 0
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
