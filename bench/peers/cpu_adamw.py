#!/usr/bin/env python3
"""AdamW on the CPU by others, as peers of `zbench adam`: see README.md beside this file.

  cpu_adamw.py deepspeed|pytorch PARAMS THREADS FILE LR BETA1 BETA2 EPS WEIGHT_DECAY

FILE holds bf16 parameters, then bf16 gradients. Its lines: "ready NAME WHAT..."; then each "step" is
answered by "SECONDS NORM_SECONDS NORM" (of all passes, of the first, and what that found), and "write",
which puts the bf16 parameters into FILE, by "written".

A step is what a user of mixed precision does with bf16 gradients in hand: their norm, which also says
whether all are finite; the gradients in fp32; the optimizer on fp32 masters; the parameters in bf16."""

import os
import sys
import time

which, params, threads, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
lr, beta1, beta2, eps, weight_decay = map(float, sys.argv[5:10])

# Before torch is loaded. Huge pages, as ours are on them: neither asks for them by itself.
HUGE = os.environ.get("PEER_HUGE", "1") == "1"
os.environ["OMP_NUM_THREADS"] = str(threads)
if HUGE and "THP_MEM_ALLOC_ENABLE" not in os.environ:
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable] + sys.argv)
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")

# Answers alone go to standard output: what the libraries print there goes to standard error.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402

TENSOR_ELEMS = [int(x) for x in os.environ.get("PEER_TENSORS", "0,67108864,4194304").split(",")]

# Ways to the norm of all gradients: from bf16 or from fp32, by one call for each tensor or by one for all.
NORMS = {
    "vector_norm of bf16, in fp32":
        lambda p: torch.stack([torch.linalg.vector_norm(g, dtype=torch.float32) for g in p.grads]).norm(),
    "_foreach_norm of bf16": lambda p: torch.stack(
        [n.float() for n in torch._foreach_norm(p.grads)]).norm(),
    "dot of bf16 in fp32 pieces": lambda p: torch.stack(
        [sum(torch.dot(c, c) for c in (x.float() for x in g.split(1 << 16))) for g in p.grads]).sum().sqrt(),
}


class Peer:
    def __init__(self, tensor_elems):
        """All parameters in tensors of so many elements; 0: in one."""
        flat = torch.from_file(path, shared=True, size=2 * params, dtype=torch.bfloat16)
        cuts = tensor_elems or params
        self.tensor_elems = tensor_elems
        self.param = [x.clone() for x in flat[:params].split(cuts)]
        self.grads = [x.clone() for x in flat[params:].split(cuts)]
        self.master = [torch.nn.Parameter(x.float()) for x in self.param]
        for m in self.master:
            m.grad = torch.zeros_like(m)
        self.norm = NORMS[min(NORMS)]
        knobs = dict(lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
        if which == "deepspeed":
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            self.optimizer = DeepSpeedCPUAdam(self.master, adamw_mode=True, fp32_optimizer_states=True, **knobs)
        else:
            self.optimizer = torch.optim.AdamW(self.master, fused=True, **knobs)

    @torch.no_grad()
    def step(self):
        """(seconds of all, of the norm, of the gradients, of the optimizer; the norm)"""
        t0 = time.monotonic()
        norm = float(self.norm(self))
        if norm != norm or norm == float("inf"):
            raise SystemExit("gradients are not finite")
        t1 = time.monotonic()
        for m, g in zip(self.master, self.grads):
            m.grad.copy_(g)
        t2 = time.monotonic()
        self.optimizer.step()
        t3 = time.monotonic()
        for p, m in zip(self.param, self.master):
            p.copy_(m)
        t4 = time.monotonic()
        return t4 - t0, t1 - t0, t2 - t1, t3 - t2, norm

    @torch.no_grad()
    def fastest_norm(self):
        best = {}
        for name, norm in NORMS.items():
            norm(self)
            begin = time.monotonic()
            norm(self)
            best[name] = time.monotonic() - begin
        return min(best, key=best.get)

    def write(self):
        flat = torch.from_file(path, shared=True, size=2 * params, dtype=torch.bfloat16)
        at = 0
        for p in self.param:
            flat[at:at + p.numel()] = p
            at += p.numel()


def search():
    """The fastest cut into tensors and way to the norm, by three steps of each."""
    tried = []
    for elems in TENSOR_ELEMS:
        peer = Peer(elems)
        name = peer.fastest_norm()
        peer.norm = NORMS[name]
        peer.step()
        took = sorted(peer.step() for _ in range(3))[1]
        print(f"{which}: tensors of {elems or params}: {took[0]:.3f} s: norm ({name}) {took[1]:.3f}, "
              f"gradients to fp32 {took[2]:.3f}, step {took[3]:.3f}, parameters to bf16 "
              f"{took[0] - sum(took[1:4]):.3f}", file=sys.stderr, flush=True)
        tried.append((took[0], elems, name))
        del peer
    return min(tried)[1:]


def version():
    if which == "deepspeed":
        import deepspeed
        return f"DeepSpeedCPUAdam of DeepSpeed {deepspeed.__version__}, adamw_mode, fp32 states, torch {torch.__version__}"
    return f"torch.optim.AdamW(fused=True) of torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})"


def main():
    torch.set_num_threads(threads)
    elems, norm = search()
    peer = Peer(elems)
    peer.norm = NORMS[norm]
    print(f"ready {which} {version()}; {torch.get_num_threads()} threads; masters, moments and gradients in fp32 in "
          f"tensors of {elems or params}, the fastest of {[e or params for e in TENSOR_ELEMS]}; norm by {norm}, the "
          f"fastest of {len(NORMS)}; huge pages {'asked for' if HUGE else 'not asked for'}",
          file=answers, flush=True)
    for line in sys.stdin:
        if line.strip() == "write":
            peer.write()
            print("written", file=answers, flush=True)
        else:
            took = peer.step()
            print(f"{took[0]:.9f} {took[1]:.9f} {took[4]:.9g}", file=answers, flush=True)


main()
