"""python -m zshard.convert: what a checkpoint holds, and conversions between files. It needs no daemon."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch

from ..errors import ZshardError
from ._content import FORMS
from ._folder import open_
from ._offline import SAFETENSORS, convert, describe

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m zshard.convert", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="what a checkpoint holds")
    info.add_argument("folder")
    info.add_argument("--tag", help="its name in the folder")
    work = commands.add_parser("convert", help="writes it in another form")
    work.add_argument("source", metavar="IN")
    work.add_argument("out", metavar="OUT")
    work.add_argument("--to", choices=[*FORMS, SAFETENSORS], default="portable")
    work.add_argument("--tag", help="the name of the source in IN")
    work.add_argument("--out-tag", help="the name of the result in OUT")
    work.add_argument("--dtype", choices=DTYPES, help=f"of {SAFETENSORS}: bf16, fp16 or fp32")
    work.add_argument("--max-shard-size", default="5GB", help=f"of {SAFETENSORS}: maximum size of a file")
    work.add_argument("--stage", type=int, help="of zero: 1, 2 or 3")
    work.add_argument("--ranks", type=int, help="of zero: for how many ranks")
    work.add_argument("--step-as", choices=("tensor", "int"), help="of universal: int for DeepSpeed's own optimizers")
    return parser


def main(words: list[str] | None = None) -> int:
    """Runs a command; 1: it failed, and stderr says why."""
    given = arguments().parse_args(words)
    try:
        if given.command == "info":
            print(describe(open_(given.folder, given.tag)))
            return 0
        options: dict[str, Any] = {k: v for k in ("stage", "ranks", "step_as") if (v := getattr(given, k)) is not None}
        path = convert(
            given.source,
            given.out,
            given.to,
            tag=given.tag,
            out_tag=given.out_tag,
            dtype=DTYPES.get(given.dtype),
            max_shard_size=given.max_shard_size,
            **options,
        )
        print(path)
    except (ValueError, TypeError, OSError, ZshardError) as e:
        print(f"zshard.convert: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
