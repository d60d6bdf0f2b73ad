#!/usr/bin/env python3
"""Prints golden_adamw.inc: steps of AdamW in exact arithmetic, rounded where kernels/zk.h rounds.

Every operation is carried out on fractions and its result rounded to the nearest float, ties to
even, so nothing here depends on a compiler, a processor or a mathematics library. With --check
FILE, compares instead of printing.
"""
import math
import struct
import sys
from fractions import Fraction


def f32(x):
    """The float nearest to the fraction x, as a fraction; ties to even; denormals kept."""
    if x == 0:
        return Fraction(0)
    exponent = max(x.numerator.bit_length() - x.denominator.bit_length() - 25, -149)
    while abs(x) >= Fraction(2) ** (exponent + 24):  # at most twice
        exponent += 1
    rounded = round(x / Fraction(2) ** exponent) * Fraction(2) ** exponent  # round(): ties to even
    assert abs(rounded) < Fraction(2) ** 128, "choose inputs without overflow"
    return rounded


def f32_sqrt(x):
    """The square root of a float is never a tie, so 80 bits and a mark for the rest decide."""
    scaled = x * Fraction(2) ** 400  # x is a multiple of 2^-149
    root = math.isqrt(int(scaled))
    exact = root * root == scaled
    return f32(Fraction(2 * root + (0 if exact else 1), 2) / Fraction(2) ** 200)


def bits(x):
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def powi(b, t):
    power = 1.0
    while t:
        if t & 1:
            power *= b
        b *= b
        t >>= 1
    return power


def prepare(lr, beta1, beta2, eps, weight_decay, scale, t):
    """Python's floats are doubles with IEEE operations; then one rounding to float."""
    c1, c2 = 1.0 - powi(beta1, t), 1.0 - powi(beta2, t)
    values = (scale, 1.0 - lr * weight_decay, beta2, 1.0 - beta1, 1.0 - beta2, lr / c1,
              1.0 / math.sqrt(c2), eps)
    return [f32(Fraction(v)) for v in values]


def step(s, p, m, v, grad):
    scale, decay, beta2, one_minus_beta1, one_minus_beta2, step_size, rsqrt_c2, eps = s
    g = f32(grad * scale)
    p = f32(p * decay)
    m = f32(one_minus_beta1 * f32(g - m) + m)
    v = f32(f32(one_minus_beta2 * g) * g + f32(beta2 * v))
    d = f32(f32_sqrt(v) * rsqrt_c2 + eps)
    p = f32(-step_size * f32(m / d) + p)
    return p, m, v


PARAMS = (  # lr, beta1, beta2, eps, weight_decay, scale, t
    (1e-3, 0.9, 0.999, 1e-8, 0.01, 1.0, 1),
    (6e-4, 0.9, 0.95, 1e-8, 0.1, 0.125, 17),
    (3e-5, 0.9, 0.999, 1e-8, 0.0, 1.0 / 65536, 123457),
    (0.1, 0.0, 0.9, 1e-3, 0.5, 3.0, 2),
    (1e-38, 0.99, 0.9999, 1e-30, 0.01, 1.0, 1000),
)


class Draw:
    """splitmix64, as in tests/ztest.h: the same numbers in every version of Python."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def value(self, low, high):
        """A float, 2^low to 2^(high + 1) in magnitude, of either sign."""
        r = self.bits()
        sign = -1 if r & 1 else 1
        mantissa = 2**23 + (r >> 1 & 0x7FFFFF)
        exponent = low + (r >> 32) % (high - low + 1)
        return f32(sign * mantissa * Fraction(2) ** (exponent - 23))


def rows(draw):
    """p, m, v, grad of usual sizes; then first steps, zeros, and both ends of the range."""
    value = draw.value
    for _ in range(8):
        yield value(-8, 1), value(-14, -4), abs(value(-24, -10)), value(-12, 4)
    zero = Fraction(0)
    yield value(-8, 1), zero, zero, value(-12, 0)
    yield zero, zero, zero, value(-12, 0)
    yield value(-8, 1), value(-14, -4), abs(value(-24, -10)), zero
    yield value(-130, -126), value(-145, -127), abs(value(-148, -130)), value(-80, -60)
    yield value(100, 120), value(20, 40), abs(value(60, 80)), value(20, 40)


def words(values):
    return ", ".join("0x%08x" % bits(x) for x in values)


def text():
    draw = Draw(20240520)
    params, steps = [], []
    for i, param in enumerate(PARAMS):
        s = prepare(*param)
        params.append("    { { %s }, %d, { %s } }," % (
            ", ".join(x.hex() for x in param[:6]), param[6], words(s)))
        for before in rows(draw):
            steps.append("    { %d, { %s }, { %s } }," % (i, words(before), words(step(s, *before))))
    return "\n".join(
        ["/* Made by golden_adamw.py. */",
         "/* lr, beta1, beta2, eps, weight decay, scale; t; what zk_prepare() makes of them */",
         "static const struct golden_params golden_params[] = {", *params, "};",
         "/* index of the above; p, m, v, grad; p, m, v after the step */",
         "static const struct golden_step golden_steps[] = {", *steps, "};", ""])


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        with open(sys.argv[2], encoding="ascii") as f:
            return 0 if f.read() == text() else "golden_adamw.inc is not what the script prints"
    sys.stdout.write(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
