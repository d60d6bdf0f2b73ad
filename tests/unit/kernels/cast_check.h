/*
 * cast_check.h - rounding to bf16 and fp16 by definition, and a check of all implementations on a
 * list of fp32 patterns.
 *
 * The definition uses no bit tricks: it finds the two neighbours of a value among the 16-bit
 * numbers and the distance to each (exact in double), and applies the rule for ties. Beyond the
 * largest finite bf16, the next number of the same spacing, 2^128, stands for infinity, as in IEEE
 * 754.
 */
#ifndef ZTEST_KERNELS_CAST_CHECK_H
#define ZTEST_KERNELS_CAST_CHECK_H

#include <math.h>

#include "tests/unit/kernels/data.h"

enum cast_tie { TIE_TO_EVEN, TIE_AWAY };

/* The magnitude of a finite bf16, or 2^128 for infinity's pattern. */
static inline double cast_magnitude(uint16_t h)
{
    unsigned exponent = h >> 7 & 0xff, fraction = h & 0x7f;

    if (exponent == 0)
        return ldexp(fraction, -126 - 7);
    return ldexp(128 + fraction, (int)exponent - 127 - 7);
}

static inline uint16_t cast_to_bf16(uint32_t bits, enum cast_tie tie)
{
    uint16_t below = bits >> 16 & 0x7fff, sign = bits >> 16 & 0x8000;
    double x, down, up;

    if (data_is_nan(bits))
        return 0x7fc0;
    if (below == 0x7f80)
        return sign | below;
    x = fabs((double)data_float(bits));
    down = x - cast_magnitude(below);
    up = cast_magnitude(below + 1) - x;
    if (up < down || (up == down && (tie == TIE_AWAY || below % 2 == 1)))
        below++;
    return sign | below;
}

/* The magnitude of a finite fp16, or 2^16 for infinity's pattern. */
static inline double cast_magnitude_f16(uint16_t h)
{
    unsigned exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;

    if (exponent == 0)
        return ldexp(fraction, -14 - 10);
    return ldexp(1024 + fraction, (int)exponent - 15 - 10);
}

/* The nearest fp16, ties to even; bisection finds the neighbours. */
static inline uint16_t cast_to_f16(uint32_t bits)
{
    uint16_t below = 0, above = 0x7c00, sign = bits >> 16 & 0x8000;
    double x = fabs((double)data_float(bits)), down, up;

    if (data_is_nan(bits))
        return 0x7e00;
    if (x >= 0x1p16)
        return sign | 0x7c00;
    while (above - below > 1) {
        uint16_t middle = (uint16_t)((below + above) / 2);

        if (cast_magnitude_f16(middle) <= x)
            below = middle;
        else
            above = middle;
    }
    down = x - cast_magnitude_f16(below);
    up = cast_magnitude_f16(above) - x;
    return sign | (up < down || (up == down && below % 2 == 1) ? above : below);
}

#define CAST_N ZB_BLOCK_ELEMS

/** Compares every implementation with the definitions on `n` patterns, at most CAST_N. */
static inline void cast_check(const uint32_t *patterns, size_t n)
{
    static float from[CAST_N], merged[CAST_N];
    static uint16_t want_hi[CAST_N], want_even[CAST_N], hi[CAST_N], even[CAST_N];
    static uint16_t want_f16[CAST_N], f16[CAST_N];
    static int16_t want_lo[CAST_N], lo[CAST_N];
    static uint32_t want_merged[CAST_N];

    assert_true(n <= CAST_N);
    memcpy(from, patterns, n * sizeof(*patterns));
    for (size_t i = 0; i < n; i++) {
        bool nan = data_is_nan(patterns[i]);
        int64_t rest;

        want_even[i] = cast_to_bf16(patterns[i], TIE_TO_EVEN);
        want_hi[i] = cast_to_bf16(patterns[i], TIE_AWAY);
        want_f16[i] = cast_to_f16(patterns[i]);
        rest = (int64_t)patterns[i] - ((int64_t)want_hi[i] << 16);
        if (!nan && (rest < INT16_MIN || rest > INT16_MAX))
            fail_msg("pattern %08x: lo is %lld, not 16 bits", patterns[i], (long long)rest);
        want_lo[i] = (int16_t)(nan ? 0 : rest);
        want_merged[i] = nan ? 0x7fc00000 : patterns[i];
    }
    data_each_ops(ops)
    {
        ops->split(from, hi, lo, n);
        ops->merge(hi, lo, merged, n);
        ops->f32_to_bf16(from, even, n);
        ops->f32_to_f16(from, f16, n);
        for (size_t i = 0; i < n; i++)
            if (f16[i] != want_f16[i])
                fail_msg("%s, pattern %08x: fp16 %04x (want %04x)", ops->name, patterns[i], f16[i],
                         want_f16[i]);
        if (memcmp(hi, want_hi, n * sizeof(*hi)) == 0 &&
            memcmp(lo, want_lo, n * sizeof(*lo)) == 0 &&
            memcmp(even, want_even, n * sizeof(*even)) == 0 &&
            memcmp(merged, want_merged, n * sizeof(*merged)) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            if (hi[i] != want_hi[i] || lo[i] != want_lo[i] || even[i] != want_even[i] ||
                data_bits(merged[i]) != want_merged[i])
                fail_msg("%s, pattern %08x: split %04x %d (want %04x %d), merged %08x, cast %04x "
                         "(want %04x)",
                         ops->name, patterns[i], hi[i], lo[i], want_hi[i], want_lo[i],
                         data_bits(merged[i]), even[i], want_even[i]);
    }
}

#endif
