#!/usr/bin/env python3
"""PyTorch's FSDP2 with CPU offload, training the GPT of examples/gpt, as a peer of `zbench train`: see README.md beside this file.

  fsdp2_gpt.py LAYERS HEADS WIDTH SEQ fp32|bf16 cpu|cuda[:N]

Its lines: "ready NAME WHAT..."; then each "train TOKENS MICRO_STEPS WARM STEPS" makes WARM + STEPS optimizer steps and is answered
by the median of tokens a second of the last STEPS."""

import math
import os
import statistics
import sys
import time

layers, heads, width, seq = (int(x) for x in sys.argv[1:5])
dtype, device = sys.argv[5], sys.argv[6]

# Answers alone go to standard output: what the libraries print there goes to standard error.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one rank, and the machine may have no network

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

VOCAB = 256
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.01, 1.0
OFFLOAD = os.environ.get("PEER_OFFLOAD", "1") == "1"
RECOMPUTE = os.environ.get("PEER_RECOMPUTE", "1") == "1"
TF32 = os.environ.get("PEER_TF32", "0") == "1"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.c_fc, self.c_out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(VOCAB, width), torch.nn.Embedding(seq, width)
        self.h = torch.nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=0.02 if p.shape[-1] == width else 0.02 / math.sqrt(2 * layers))

    def forward(self, tokens):
        x = self.wte(tokens[:, :-1]) + self.wpe(torch.arange(seq, device=tokens.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if RECOMPUTE else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the head shares the embedding: both are of the root's group
        return F.cross_entropy(logits.float().view(-1, VOCAB), tokens[:, 1:].reshape(-1))


class Peer:
    def __init__(self):
        kind = device.split(":")[0]
        if kind == "cuda":
            torch.cuda.set_device(int(device.split(":")[1]) if ":" in device else 0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = TF32
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh(kind, (1,))
        torch.manual_seed(1)
        self.kind = kind
        self.model = Model()
        offload = OFFLOAD and kind == "cuda"
        how = {"mesh": mesh, "offload_policy": CPUOffloadPolicy(pin_memory=True) if offload else OffloadPolicy(),
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
               if dtype == "bf16" else MixedPrecisionPolicy()}
        if kind == "cuda" and not offload:
            self.model.to("cuda")
        for block in self.model.h:
            fully_shard(block, **how)
        fully_shard(self.model, **how)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        rest = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY},
                                            {"params": rest, "weight_decay": 0}],
                                           lr=LR, betas=BETAS, eps=EPS, fused=True)
        self.tokens = torch.randint(0, VOCAB, (1 << 16,))

    def step(self, batch, micros):
        begin = time.monotonic()
        for m in range(micros):
            last = m == micros - 1
            self.model.set_requires_gradient_sync(last)  # gradients are added up on the device until then
            at = torch.randint(0, len(self.tokens) - seq - 1, (batch // micros,))
            tokens = torch.stack([self.tokens[i:i + seq + 1] for i in at]).to(self.kind)
            (self.model(tokens) / micros).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.kind == "cuda":
            torch.cuda.synchronize()
        return batch * seq / (time.monotonic() - begin)

    def what(self):
        memory = f", {torch.cuda.get_device_name()}" if self.kind == "cuda" else ""
        return (f"FSDP2 (fully_shard by block, fused AdamW) of torch {torch.__version__} on {device}{memory}; "
                f"{dtype}, {'offloaded to the CPU' if OFFLOAD and self.kind == 'cuda' else 'not offloaded'}, "
                f"{'recomputed by block' if RECOMPUTE else 'activations kept'}, TF32 {'on' if TF32 else 'off'}, one rank, "
                f"{torch.get_num_threads()} threads")


peer = Peer()
print("ready fsdp2", peer.what(), file=answers, flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        total, micro_steps, warm, steps = (int(x) for x in words[1:])
        rates = [peer.step(total // seq, micro_steps) for _ in range(warm + steps)]
        print(statistics.median(rates[warm:]), file=answers, flush=True)
    except (RuntimeError, ValueError) as e:  # no memory, among others: it is said, and ends the case
        print(f"failed: {str(e).splitlines()[0]}", file=answers, flush=True)
