#!/usr/bin/env python3
"""optimizers.py - 1,000 steps of each optimizer in fp32 against PyTorch's, within a derived bound.

    ZSHARD_BUILD=build tests/oracle/optimizers.py

Random parameters and gradients; each setting is made by our kernels (steps.c), by torch.optim in fp32
and by torch.optim in float64, which is the truth. Lion, which torch.optim lacks, by its published
update. After every step, of every element,

    |ours - truth| <= B,    |torch's - truth| <= B,    and so |ours - torch's| <= 2 B

where B is the bound of docs/OPTIMIZERS.md, "Against PyTorch", computed along the truth: what any order
of rounding can do. That is the worst case, so besides our root mean square error may not be more than
NEARNESS times torch's. That the bound means something is tested too: with any one number of a setting
off by CHANGE the truth leaves 2 B (but with an eps that is itself smaller than what rounding does). Exits
77, and says why, where torch is not installed.
"""

import math
import os
import subprocess
import sys

SKIPPED = 77
STEPS = 1000
ELEMS = 400
NEARNESS = 1.25
CHANGE = 0.1
EPS_SEEN = 1e-6
LOOK = 8  # steps; STEPS is a multiple
SLACK = 1.001  # for second-order terms: errors are below a thousandth of their value
U = 2.0**-24

try:
    import torch
except ImportError as why:
    print(f"skipped: PyTorch cannot be imported ({why})")
    sys.exit(SKIPPED)

SETTINGS = [
    ("adamw", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}),
    ("adamw", {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}),
    ("adamw", {"lr": 1e-2, "beta1": 0.0, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.0}),
    ("adam", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}),
    ("adam", {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}),
    ("adam", {"lr": 3e-4, "beta1": 0.4, "beta2": 0.99, "eps": 1e-2, "weight_decay": 0.1}),
    ("lion", {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}),
    ("lion", {"lr": 3e-4, "beta1": 0.95, "beta2": 0.98, "weight_decay": 1.0}),
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.01, "momentum": 0.9}),
    ("sgd", {"lr": 0.01, "momentum": 0.8, "dampening": 0.5, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.003, "momentum": 0.95, "nesterov": 1, "weight_decay": 0.01}),
    ("adagrad", {"lr": 0.01, "eps": 1e-10}),
    ("adagrad", {"lr": 0.1, "eps": 1e-3, "lr_decay": 0.01}),
    ("adagrad", {"lr": 0.03, "eps": 1e-10, "lr_decay": 0.001, "weight_decay": 0.01}),
]


# ---- steps by our kernels and by PyTorch

def ours(name, k, p, grads):
    """The parameters after each step, by our kernels."""
    binary = os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "tests", "steps")
    words = [f"{key}={value!r}" for key, value in k.items()]
    done = subprocess.run([binary, name, str(STEPS), str(ELEMS), *words], timeout=60,
                          input=p.numpy().tobytes() + grads.numpy().tobytes(), capture_output=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{binary} ended with {done.returncode}: {done.stderr.decode()}")
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).reshape(STEPS, ELEMS)


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., 2023, as its authors wrote it for PyTorch."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                m = state.setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                update = m * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def optimizer_of(name, k, p):
    rest = {key: value for key, value in k.items() if key not in ("beta1", "beta2")}
    if name in ("adamw", "adam", "lion"):
        rest["betas"] = (k["beta1"], k["beta2"])
    if name == "lion":
        return Lion([p], rest)
    if name == "sgd":
        rest["nesterov"] = bool(k.get("nesterov"))
    return {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD,
            "adagrad": torch.optim.Adagrad}[name]([p], **rest, foreach=False)


def theirs(name, k, p, grads, dtype):
    """The parameters after each step, by PyTorch."""
    p = p.to(dtype, copy=True).requires_grad_()
    grads = grads.to(dtype)
    optimizer = optimizer_of(name, k, p)
    after = torch.empty(STEPS, ELEMS, dtype=dtype)
    for t in range(STEPS):
        p.grad = grads[t].clone()
        optimizer.step()
        after[t] = p.detach()
    return after


# ---- the bound: E_x is how far fp32's x can be from the exact value

class Walk:
    """The textbook's formulas in float64, and with bounds how far fp32 can be off them."""

    def __init__(self, name, k, p, bounds):
        self.name, self.k, self.bounds = name, k, bounds
        self.p, self.m, self.v = p.double(), torch.zeros(ELEMS).double(), torch.zeros(ELEMS).double()
        self.e_p, self.e_m, self.e_v = (torch.zeros(ELEMS).double() for _ in range(3))

    def step(self, t, grad):
        g, e_g = grad, torch.zeros(())
        l2 = self.k.get("weight_decay", 0.0) if self.name in ("adam", "sgd", "adagrad") else 0.0
        if l2 != 0:
            g = grad + l2 * self.p
            if self.bounds:
                e_g = l2 * self.e_p + 2 * U * l2 * self.p.abs() + U * g.abs()
        {"adamw": self.adam, "adam": self.adam, "lion": self.lion, "sgd": self.sgd,
         "adagrad": self.adagrad}[self.name](t, g, e_g)

    def decayed(self):
        """Of the parameter that decays by a factor: it, and its bound."""
        decay = 1 - self.k["lr"] * self.k["weight_decay"] if self.name in ("adamw", "lion") else 1.0
        p = decay * self.p
        return p, decay * self.e_p + (2 * U * p.abs() if decay != 1 else 0)

    def move(self, p, e_p, z, q, e_q):
        """p - z q; z is rounded, and there are at most two more roundings on the way to the sum."""
        self.p = p - z * q
        if self.bounds:
            self.e_p = e_p + z * (e_q + 3 * U * q.abs()) + U * self.p.abs()

    def root(self, v, e_v):
        r = v.sqrt()
        return r, e_v / (r + (v - e_v).clamp(min=0).sqrt()) + U * r if self.bounds else 0

    def adam(self, t, g, e_g):
        k, a, b = self.k, 1 - self.k["beta1"], 1 - self.k["beta2"]
        m, v = self.m + a * (g - self.m), k["beta2"] * self.v + b * g * g
        c = 1 / math.sqrt(1 - k["beta2"]**t)
        if self.bounds:
            self.e_m = (k["beta1"] * self.e_m + a * e_g + 3 * U * max(a, 1 - a) * (g - self.m).abs()
                        + U * m.abs())
            self.e_v = k["beta2"] * self.e_v + b * (2 * g.abs() * e_g + e_g * e_g) + 4 * U * v
        self.m, self.v = m, v
        r, e_r = self.root(v, self.e_v)
        d = r * c + k["eps"]
        q = m / d
        e_q = 0
        if self.bounds:
            e_d = e_r * c + 2 * U * r * c + 2 * U * d
            e_q = (self.e_m + q.abs() * e_d) / (d - e_d)
        self.move(*self.decayed(), k["lr"] / (1 - k["beta1"]**t), q, e_q)

    def lion(self, t, g, e_g):
        k, m = self.k, self.m

        def blend(beta):
            x = beta * m + (1 - beta) * g
            return x, beta * self.e_m + 3 * U * (beta * m.abs() + (1 - beta) * g.abs())

        u, e_u = blend(k["beta1"])
        p, e_p = self.decayed()
        self.move(p, e_p, k["lr"], u.sign(), 2.0 * (u.abs() <= e_u))
        self.m, self.e_m = blend(k["beta2"])

    def sgd(self, t, g, e_g):
        mu, tau = self.k.get("momentum", 0.0), 1 - self.k.get("dampening", 0.0)
        d, e_d = g, e_g
        if mu != 0:
            m = g if t == 1 else mu * self.m + tau * g
            if self.bounds:
                self.e_m = (e_g if t == 1 else mu * self.e_m + tau * e_g + 2 * U *
                            (mu * self.m.abs() + tau * g.abs()) + U * m.abs())
            self.m = m
            d, e_d = m, self.e_m
            if self.k.get("nesterov"):
                d = g + mu * m
                e_d = e_g + mu * self.e_m + 2 * U * mu * m.abs() + U * d.abs()
        self.move(self.p, self.e_p, self.k["lr"], d, e_d)

    def adagrad(self, t, g, e_g):
        k = self.k
        self.v = self.v + g * g
        if self.bounds:
            self.e_v = self.e_v + 2 * g.abs() * e_g + e_g * e_g + U * g * g + U * self.v
        r, e_r = self.root(self.v, self.e_v)
        d = r + k["eps"]
        q = g / d
        e_d = e_r + 2 * U * d if self.bounds else 0
        e_q = (e_g + q.abs() * e_d) / (d - e_d) if self.bounds else 0
        self.move(self.p, self.e_p, k["lr"] / (1 + (t - 1) * k.get("lr_decay", 0.0)), q, e_q)


def walk(name, k, p, grads, bounds=False):
    """The parameters after each step in float64, and their bounds."""
    w = Walk(name, k, p, bounds)
    after, bound = torch.empty(STEPS, ELEMS).double(), torch.zeros(STEPS, ELEMS).double()
    for t, grad in enumerate(grads.double(), 1):
        w.step(t, grad)
        after[t - 1], bound[t - 1] = w.p, w.e_p
    return after, SLACK * bound


# ---- the comparison

def rms(x):
    return x.double().square().mean().sqrt().item()


def leaves(name, k, p, grads, truth, bound):
    """Whether this setting leaves 2 B. Most do within some steps, so not all of them are made."""
    w = Walk(name, k, p, False)
    for t, grad in enumerate(grads.double(), 1):
        w.step(t, grad)
        if t % LOOK == 0 and ((w.p - truth[t - 1]).abs() > 2 * bound[t - 1]).any():
            return True
    return False


def unseen(name, k, p, grads, truth, bound):
    """Numbers of the setting that could be off without being seen."""
    names = []
    for key, value in k.items():
        if value and key != "nesterov" and not (key == "eps" and value < EPS_SEEN):
            # values close to 1 are changed in their distance from 1
            other = 1 - (1 - value) * (1 + CHANGE) if key.startswith("beta") else value * (1 + CHANGE)
            if not leaves(name, k | {key: other}, p, grads, truth, bound):
                names.append(key)
    return names


def compare(name, k, generator):
    scale = 10 ** (3 * torch.rand(ELEMS, generator=generator) - 2)
    p = torch.randn(ELEMS, generator=generator)
    drift = torch.randn(ELEMS, generator=generator) / 4
    grads = scale * (torch.randn(STEPS, ELEMS, generator=generator) + drift)
    truth = theirs(name, k, p, grads, torch.float64)
    torch_error = (theirs(name, k, p, grads, torch.float32).double() - truth).abs()
    our_error = (ours(name, k, p, grads).double() - truth).abs()
    again, bound = walk(name, k, p, grads, bounds=True)

    formulas = ((again - truth).abs() / truth.abs().clamp(min=1)).max().item()
    share, torch_share = (our_error / bound).max().item(), (torch_error / bound).max().item()
    nearness = rms(our_error) / rms(torch_error)
    blind = unseen(name, k, p, grads, truth, bound)
    good = (share <= 1 and torch_share <= 1 and nearness <= NEARNESS and formulas <= 1e-9
            and not blind)
    print(f"{name}, {', '.join(f'{key} {value:g}' for key, value in k.items())}: bound at most "
          f"{bound.max().item():.1e}, of it ours {share:.3f}, torch's {torch_share:.3f}; rms error "
          f"{rms(our_error):.2e}, {nearness:.2f} of torch's"
          f"{f'; NOT SEEN: {blind}' if blind else ''}"
          f"{f'; the formulas are off by {formulas:.1e}' if formulas > 1e-9 else ''}"
          f"{'' if good else '  <-- WRONG'}")
    return good


def main():
    if not os.access(os.path.join(os.environ.get("ZSHARD_BUILD", "build"), "tests", "steps"), os.X_OK):
        print("skipped: tests/steps is not built")
        return SKIPPED
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(20261121)
    good = [compare(name, k, generator) for name, k in SETTINGS]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
