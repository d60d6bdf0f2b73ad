"""`deepspeed.launcher.runner`: the `deepspeed` command for one node, on torchrun.

    python -m zshard.deepspeed.launcher --num_gpus 2 train.py --deepspeed --deepspeed_config ds.json

takes the command's arguments, and starts torch.distributed.run under zshard.run: `import deepspeed` gives
zshard.deepspeed in the ranks. Each rank's script gets --local_rank=N as its first argument, unless --no_local_rank.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
HOSTFILE = "/job/hostfile"
_SEVERAL = (
    "there is no start on several nodes here: start torchrun on each of them, python -m zshard.run "
    "-m torch.distributed.run --nnodes N --node-rank I --master-addr HOST --nproc-per-node GPUS SCRIPT"
)
_REFUSED = {  # arguments that raise, where they are given
    "--node_rank": _SEVERAL,
    "--no_ssh": _SEVERAL,
    "--force_multi": _SEVERAL,
    "--autotuning": "there is nothing to tune: zshard measures its tiers when it starts",
    "--save_pid": "write the pid down where the launcher is started (echo $!)",
    "--bind_cores_to_rank": "start python -m zshard.run -m torch.distributed.run --numa-binding=node SCRIPT",
    "--bind_core_list": "start python -m zshard.run -m torch.distributed.run --numa-binding=node SCRIPT",
}
_FLAGS = ("--no_ssh", "--force_multi", "--save_pid", "--bind_cores_to_rank")  # those of them without a value
_OF_NODES = ("--launcher", "--launcher_args", "--ssh_port", "--venv_script", "--log_level")


class LaunchError(ValueError):
    """An argument that is not possible here."""


def parser() -> argparse.ArgumentParser:
    """The command's arguments, with DeepSpeed's names."""
    about = "Starts a DeepSpeed script on zshard, on this node."
    p = argparse.ArgumentParser(prog="deepspeed", description=about, allow_abbrev=False)
    p.add_argument("-H", "--hostfile", default=HOSTFILE, help="a file with this host alone: 'localhost slots=4'")
    p.add_argument("-i", "--include", default="", help="devices: localhost:0,2")
    p.add_argument("-e", "--exclude", default="", help="all devices but these: localhost:0")
    p.add_argument("--num_nodes", type=int, default=-1, help="1")
    p.add_argument("--num_gpus", "--num_accelerators", type=int, default=-1, help="number of ranks")
    p.add_argument("--master_port", type=int, default=29500, help="port of the ranks' rendezvous")
    p.add_argument("--master_addr", default="", help="address of this node; 127.0.0.1 is used")
    p.add_argument("--module", action="store_true", help="the script is a module, as after python -m")
    p.add_argument("--no_python", action="store_true", help="the script is a program")
    p.add_argument("--no_local_rank", action="store_true", help="the script gets no --local_rank=N")
    p.add_argument("--enable_each_rank_log", default="None", metavar="DIR", help="each rank's output goes to a file")
    p.add_argument("-q", "--quiet", action="store_true", help="without effect: nothing is logged")
    p.add_argument("--no_ssh_check", action="store_true", help="without effect on one node, as with DeepSpeed")
    for name in _OF_NODES:
        p.add_argument(name, default=None, help="without effect on one node, as with DeepSpeed")
    for name, text in _REFUSED.items():
        if name in _FLAGS:
            p.add_argument(name, action="store_true", help=f"not supported: {text}")
        else:
            p.add_argument(name, help=f"not supported: {text}")
    p.add_argument("user_script", help="the script")
    p.add_argument("user_args", nargs=argparse.REMAINDER, help="its arguments")
    return p


# ---- which devices


def _host(path: str) -> tuple[str, int] | None:
    """The host of a hostfile and its slots; None: there is no such file. LaunchError: it has other hosts."""
    if not os.path.isfile(path):
        if path != HOSTFILE:
            print(f"deepspeed: there is no hostfile '{path}': this node alone is used", file=sys.stderr)
        return None
    found: dict[str, int] = {}
    with open(path, encoding="utf-8") as f:
        for line in (row.strip() for row in f):
            match = re.match(r"(\S+)\s+slots=(\d+)", line)
            if line and not line.startswith("#"):
                if match is None or match[1] in found:
                    raise LaunchError(f"--hostfile: '{path}' has '{line}'; lines are 'HOST slots=N', one for a host")
                found[match[1]] = int(match[2])
    if len(found) != 1 or not _is_here(next(iter(found))):
        raise LaunchError(f"--hostfile: '{path}' has {', '.join(found) or 'no host'}; {_SEVERAL}")
    return next(iter(found.items()))


def _is_here(name: str) -> bool:
    return name in ("localhost", "127.0.0.1", socket.gethostname())


def _filter(text: str, option: str, there: list[int], known: str) -> list[int]:
    """The devices that NAME[:SLOT,SLOT...] names."""
    host, _, slots = text.partition(":")
    if "@" in text or not (host == known or _is_here(host)):
        raise LaunchError(f"{option} {text}: {_SEVERAL}")
    if not slots:
        return there
    try:
        named = sorted({int(s) for s in slots.split(",")})
    except ValueError:
        raise LaunchError(f"{option} {text}: devices are numbers, as in localhost:0,2") from None
    if _gpus() and not set(named) <= set(there):
        raise LaunchError(f"{option} {text}: there are devices {', '.join(map(str, there))}")
    return named


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def devices(args: argparse.Namespace) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for the ranks, one each; without GPUs as many numbers as there are ranks."""
    host = _host(args.hostfile)
    filtered = args.include or args.exclude or args.num_gpus > 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible and not filtered and host is None:
        return visible.split(",")
    if args.num_gpus > 0 and (args.include or args.exclude) or args.include and args.exclude:
        raise LaunchError("--num_gpus, --include and --exclude: one of them")
    if visible:
        os.environ.pop("CUDA_VISIBLE_DEVICES")  # numbers of arguments are those of the node
        print(f"deepspeed: CUDA_VISIBLE_DEVICES={visible} is not used: devices were named", file=sys.stderr)
    name, slots = host if host is not None else ("localhost", _gpus() or 1)
    there = list(range(slots))
    if args.num_gpus > 0:
        there = list(range(args.num_gpus))
    elif args.include:
        there = _filter(args.include, "--include", there, name)
    elif args.exclude:
        gone = _filter(args.exclude, "--exclude", there, name)
        there = [n for n in there if n not in gone]
    if not there:
        raise LaunchError("no device is left")
    return [str(n) for n in there]


# ---- the command


def words(args: argparse.Namespace, ranks: int) -> list[str]:
    """Arguments of torch.distributed.run. After "--" it does not take the script's for its own."""
    made = ["--nnodes", "1", "--nproc-per-node", str(ranks)]
    made += ["--master-addr", "127.0.0.1", "--master-port", str(args.master_port)]
    if args.enable_each_rank_log != "None":
        made += ["--log-dir", args.enable_each_rank_log, "--redirects", "3"]
    if args.no_local_rank:
        kind = ["--module"] if args.module else ["--no-python"] if args.no_python else []
        return [*made, *kind, "--", args.user_script, *args.user_args]
    program = [] if args.no_python else [sys.executable, "-u", *(["-m"] if args.module else [])]
    # Each rank has its own argument: the shell puts it there, and becomes the script's process.
    line = f'exec {shlex.join([*program, args.user_script])} "--local_rank=$LOCAL_RANK" "$@"'
    return [*made, "--no-python", "--", "/bin/sh", "-c", line, "sh", *args.user_args]


def main(args: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with those of the process. Returns an exit status."""
    from ... import run

    p = parser()
    given = p.parse_args(args)
    try:
        for name, text in _REFUSED.items():
            if getattr(given, name.lstrip("-")):
                raise LaunchError(f"{name}: {text}")
        if given.num_nodes > 1:
            raise LaunchError(f"--num_nodes {given.num_nodes}: {_SEVERAL}")
        if given.module and given.no_python:
            raise LaunchError("--module and --no_python: one of them")
        found = devices(given)
    except LaunchError as e:
        p.error(str(e))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(found)
    os.environ["LOCAL_SIZE"] = str(len(found))
    return run.main(["-m", "torch.distributed.run", *words(given, len(found))])
