#!/usr/bin/env python3
"""nccl.py - 2 and 4 ranks of zgpt on one GPU, through NCCL, follow 1 rank.

    ZSHARD_BUILD=build ZSHARD_GPU=cuda tests/oracle/nccl.py

Ranks add the same gradients in another order, so losses differ by rounding: 1e-5 relative over 20 steps in
fp32. Ranks find each other over TCP, by the environment that torchrun would set. NCCL lets several ranks
share a GPU only when it is told to (docs/GPU.md). Exits 77, and says why, without ZSHARD_GPU=cuda or NCCL;
ZSHARD_GPU=emulated rehearses it, with collectives over TCP.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile

TOLERANCE = 1e-5
STEPS = 20
DEADLINE = 200  # seconds for one run: NCCL over sockets is slow


def version():
    """NCCL's, or 0."""
    found = ctypes.c_int()
    try:
        ctypes.CDLL(os.environ.get("ZSHARD_NCCL_LIB", "libnccl.so.2")).ncclGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return 0
    return found.value


def environment(rank, ranks, port, device, nccl):
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port), "OPENBLAS_NUM_THREADS": "1"}
    if device == "cuda" and ranks > 1:
        env |= {"ZSHARD_COMM": "nccl", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0"}
        env |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if nccl >= 23000 else {"NCCL_HOSTID": f"zshard-{rank}"}
    return env


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1] - 1  # ranks meet at the next port


def run(zgpt, ranks, device, nccl, log):
    command = [zgpt, "--seed", "3", "--batch", "8", "--micro-batch", "2", "--seq", "40", "--layers", "3", "--heads", "2",
               "--width", "48", "--data", "LICENSE", "--steps", str(STEPS), "--device", device, "--jsonl", log]
    port = free_port()
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=environment(rank, ranks, port, device, nccl)) for rank in range(ranks)]
    said = []
    try:
        for p in started:
            said.append(p.communicate(timeout=DEADLINE)[0])
    finally:
        for p in started:
            if p.poll() is None:
                p.kill()
    if any(p.returncode != 0 for p in started):
        sys.exit(f"{ranks} ranks ended with {[p.returncode for p in started]}:\n" + "\n".join(said))
    with open(log, encoding="utf-8") as f:
        return [json.loads(line)["loss"] for line in f]


def main():
    zgpt = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin", "zgpt")
    device, nccl = os.environ.get("ZSHARD_GPU", ""), version()
    if device not in ("cuda", "emulated"):
        print("skipped: ZSHARD_GPU does not say that there is a GPU")
        return 77
    if device == "cuda" and nccl == 0:
        print("skipped: there is no NCCL (ZSHARD_NCCL_LIB names the library)")
        return 77
    with tempfile.TemporaryDirectory(prefix="zshard-nccl-") as folder:
        losses = {ranks: run(zgpt, ranks, device, nccl, os.path.join(folder, str(ranks))) for ranks in (1, 2, 4)}
    errors = {ranks: max(abs(a - b) / a for a, b in zip(losses[1], losses[ranks], strict=True)) for ranks in (2, 4)}
    how = f"NCCL {nccl}" if device == "cuda" else "TCP, a rehearsal"
    print(f"{how}: " + ", ".join(f"{ranks} ranks follow 1 to {e:.1e}" for ranks, e in errors.items()) +
          f" (allowed {TOLERANCE:.0e}), {STEPS} steps")
    return 0 if all(e <= TOLERANCE for e in errors.values()) and len(losses[1]) == STEPS else 1


if __name__ == "__main__":
    sys.exit(main())
