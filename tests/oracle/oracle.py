#!/usr/bin/env python3
"""oracle.py - zgpt against PyTorch: the same GPT, the same weights, the same batches, the same losses.

    ZSHARD_BUILD=build tests/oracle/oracle.py [--ranks N] [--gpu]

zgpt exports the weights it begins with and trains; then this script builds the model again from its
description (examples/gpt/model/gpt.h), draws the batches again from theirs (examples/gpt/data.h), trains
with torch.optim.AdamW and torch.nn.utils.clip_grad_norm_, and compares every loss. Nothing but the
exported file and the losses comes from zgpt. Exits 77, and says why, where torch is not installed.

TOLERANCES, relative, over 20 steps.

    fp32  1e-5. Both sides compute the same formulas and round differently: 6e-8 for each operation.

    bf16  3e-6. Masters are fp32 here too; weights are what they round to (half away from zero), and
          gradients are rounded (half to even) once for each micro-step, before they are added. Both
          sides do that, so they differ only where fp32's noise carries a value over a rounding
          boundary. With noise of e = 1e-6 of a gradient that happens to a share s = e / 2^-8 = 3e-4
          of the elements, whose step then changes by up to lr / 2^8. That carries a master of about
          w = 0.02 over a boundary in a share lr / w of those cases, and each changes a weight by
          2^-8 w. Signs are random and the gradient's norm is at most 1 by clipping, so the loss
          moves by about sqrt(s * lr / w) * 2^-8 * w = 1.6e-7 in a step with lr = 3e-4, and in 20
          steps by at most 20 times that. (Seen over three seeds: 2e-7 to 1.3e-6.) That this is tight
          enough to mean something is tested, too: computing with the masters themselves makes 4e-4,
          adding gradients that were not rounded makes 4.4e-6, and both must be seen. A larger
          learning rate or width makes the run itself so sensitive that no tolerance would tell.

    On a device (--gpu: the one that ZSHARD_GPU names; PyTorch is on it, too, where it is CUDA's) fp32
    is held to 1e-4, for products are summed in another order there, and bf16 to the bound that
    docs/GPU.md derives: a device rounds activations as well. What is too fine for that is not looked for.

    Norms of gradients are held to 1e-3: a wrong average, scale or norm is seen, noise is not.
"""

import argparse
import json
import math
import os
import shutil
import struct
import sys
import tempfile

from launch import run

SKIPPED = 77
STEPS = 20
BETAS = (0.9, 0.999)
EPS = 1e-8
NORM_TOLERANCE = 1e-3

try:
    import torch
    import torch.nn.functional as F
except ImportError as why:
    print(f"skipped: PyTorch cannot be imported ({why})")
    sys.exit(SKIPPED)


# ---- the batches: a second implementation of examples/gpt/model/rng.h and data.h

def philox(seed, stream, position):
    c = [position & 0xffffffff, position >> 32, stream & 0xffffffff, stream >> 32]
    k = [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xffffffff, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xffffffff]
        k = [(k[0] + 0x9e3779b9) & 0xffffffff, (k[1] + 0xbb67ae85) & 0xffffffff]
    return c


def stream_of(name):
    h = 0xcbf29ce484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def sequence(tokens, seed, step, index, window):
    w = philox(seed, stream_of("batches"), step << 32 | index)
    at = (w[1] << 32 | w[0]) * (len(tokens) - window + 1) >> 64
    return tokens[at:at + window]


def tokens_of(paths):
    tokens = []
    for path in paths:
        with open(path, "rb") as f:
            data = f.read()
        if path.endswith(".bin"):
            count = struct.unpack_from("<i", data, 8)[0]
            tokens += struct.unpack_from(f"<{count}H", data, 1024)
        else:
            tokens += data
    return tokens


# ---- the weights and the model

def weights_of(path):
    """The tensors of a safetensors file of fp32."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    weights = {}
    for name, t in header.items():
        assert t["dtype"] == "F32", (name, t)
        count = math.prod(t["shape"])
        flat = torch.frombuffer(bytearray(data), dtype=torch.float32, count=count,
                                offset=8 + n + t["data_offsets"][0]) if count else torch.empty(0)
        weights[name] = flat.clone().reshape(t["shape"])
    return weights


def loss_of(w, tokens, layers, heads):
    """Mean cross-entropy of GPT-2's decoder over a batch [n, T + 1]."""
    x, targets = tokens[:, :-1], tokens[:, 1:]
    n, t = x.shape
    p = "transformer."
    x = w[p + "wte.weight"][x] + w[p + "wpe.weight"][:t]
    width = x.shape[-1]

    def norm(x, name):
        return F.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    for i in range(layers):
        h = f"{p}h.{i}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn")
        q, k, v = (y.reshape(n, t, heads, width // heads).transpose(1, 2)
                   for y in qkv.split(width, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width)
        x = x + linear(y, h + "attn.c_proj")
        y = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(y, h + "mlp.c_proj")
    logits = norm(x, p + "ln_f") @ w[p + "wte.weight"].T
    return F.cross_entropy(logits.reshape(n * t, -1), targets.reshape(-1))


def round_half_away(x):
    bits = x.contiguous().view(torch.int32) + 0x8000
    return (bits & ~0xffff).view(torch.float32)


def train(case, masters, tokens, round_weights, round_gradients):
    """The losses and gradient norms of PyTorch."""
    where = "cuda" if case["device"].startswith("cuda") else "cpu"
    masters = {name: w.to(where) for name, w in masters.items()}
    frozen = tuple(f"transformer.h.{layer}." for layer in range(case.get("freeze", 0)))
    trained = {name: w.requires_grad_() for name, w in masters.items() if not name.startswith(frozen)}
    optimizer = torch.optim.AdamW(
        [{"params": [w for w in trained.values() if w.ndim >= 2],
          "weight_decay": case["weight_decay"]},
         {"params": [w for w in trained.values() if w.ndim < 2], "weight_decay": 0.0}],
        lr=case["lr"], betas=BETAS, eps=EPS)
    losses, norms = [], []
    for step in range(1, STEPS + 1):
        total = 0.0
        sums = {name: torch.zeros_like(w) for name, w in trained.items()}
        micro = range(0, case["batch"], case["micro_batch"])
        for first in micro:
            batch = torch.tensor([sequence(tokens, case["seed"], step, i, case["seq"] + 1)
                                  for i in range(first, first + case["micro_batch"])], device=where)
            used = {name: (round_half_away(w.detach()) if round_weights else w.detach())
                    .requires_grad_(name in trained) for name, w in masters.items()}
            loss = loss_of(used, batch, case["layers"], case["heads"])
            loss.backward()
            total += loss.item()
            for name, sum_ in sums.items():
                sum_ += used[name].grad.bfloat16().float() if round_gradients else used[name].grad
        for name, w in trained.items():
            w.grad = sums[name] / len(micro)
        norms.append(sum((w.grad.double() ** 2).sum() for w in trained.values()).sqrt().item())
        torch.nn.utils.clip_grad_norm_(list(trained.values()), case["clip"] or math.inf)
        optimizer.step()
        losses.append(total / len(micro))
    return losses, norms


# ---- the comparison

def zgpt_command(case):
    binary = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "bin", "zgpt")
    if not os.access(binary, os.X_OK):
        print(f"skipped: {binary} is not built")
        sys.exit(SKIPPED)
    flags = []
    for name in ("seed", "batch", "micro_batch", "seq", "layers", "heads", "width", "lr",
                 "weight_decay", "clip", "dtype", "device"):
        flags += ["--" + name.replace("_", "-"), str(case[name])]
    flags += ["--freeze", str(case.get("freeze", 0))]
    return [binary] + flags + ["--data"] + case["data"]


def worst(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def compare(case, ranks, folder):
    weights, log = os.path.join(folder, "weights"), os.path.join(folder, "log")
    command = zgpt_command(case)
    run(command + ["--steps", "0", "--export", weights], ranks)
    run(command + ["--steps", str(STEPS), "--jsonl", log], ranks)
    with open(log, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    ours = [row["loss"] for row in rows]
    tokens = tokens_of(case["data"])

    bf16 = case["dtype"] == "bf16"
    losses, norms = train(case, weights_of(weights), tokens, bf16, bf16)
    error, norm_error = worst(ours, losses), worst([row["grad_norm"] for row in rows], norms)
    good = error <= case["tolerance"] and norm_error <= case["norm_tolerance"]
    print(f"{case['name']}: losses {losses[0]:.6f} to {losses[-1]:.6f}, norms {max(norms):.3f} to "
          f"{min(norms):.3f}; largest relative error of a loss {error:.1e} (allowed "
          f"{case['tolerance']:.0e}), of a norm {norm_error:.1e} (allowed {case['norm_tolerance']:.0e})"
          f"{'' if good else '  <-- TOO MUCH'}")
    rounded_too = [("weights", (False, True)), ("gradients", (True, False))]
    for what, rounded in rounded_too if bf16 and case["device"] == "cpu" else []:
        error = worst(ours, train(case, weights_of(weights), tokens, *rounded)[0])
        seen = error > case["tolerance"]
        print(f"{case['name']}: without the rounding of {what} it would be {error:.1e}"
              f"{'' if seen else '  <-- NOT SEEN'}")
        good = good and seen
    return good


def token_file(path):
    """4,000 tokens of GPT-2's vocabulary that repeat themselves enough to be learned."""
    state, tokens = 1, []
    for i in range(4000):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append(tokens[i - 7] if i > 100 and state >> 62 else (state >> 33) % 50257)
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        f.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def on_device(case, device):
    """The same case there, with the tolerances of there."""
    case = case | {"device": device, "norm_tolerance": NORM_TOLERANCE}
    if device != "cpu" and case["dtype"] == "bf16":
        bound = 2**-8 * math.sqrt((18 * case["layers"] + 2) / (case["batch"] * case["seq"]))
        case |= {"tolerance": bound, "norm_tolerance": 10 * bound}
    elif device != "cpu":
        case |= {"tolerance": 1e-4}
    return case


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    ranks, device = args.ranks, os.environ.get("ZSHARD_GPU") if args.gpu else "cpu"
    if not device:
        print("skipped: ZSHARD_GPU names no device")
        return SKIPPED
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="zshard-oracle-")
    text = {"seed": 5, "batch": 12, "micro_batch": 2, "seq": 48, "layers": 3, "heads": 4, "width": 64,
            "lr": 1e-3, "weight_decay": 0.1, "clip": 1.0, "data": ["LICENSE"]}
    try:
        cases = [
            text | {"name": "fp32", "dtype": "fp32", "tolerance": 1e-5},
            text | {"name": "fp32, no clipping, no decay", "dtype": "fp32", "tolerance": 1e-5,
                    "clip": 0, "weight_decay": 0, "layers": 1, "heads": 1},
            text | {"name": "fp32, tokens", "dtype": "fp32", "tolerance": 1e-5, "seq": 33, "layers": 1, "heads": 3, "width": 24,
                    "data": [token_file(os.path.join(folder, "tokens.bin"))]},
            text | {"name": "fp32, the first 2 blocks frozen", "dtype": "fp32", "tolerance": 1e-5, "freeze": 2},
            text | {"name": "bf16", "dtype": "bf16", "tolerance": 3e-6, "lr": 3e-4},
        ]
        good = [compare(on_device(case, device), ranks, folder) for case in cases]
    finally:
        shutil.rmtree(folder)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
