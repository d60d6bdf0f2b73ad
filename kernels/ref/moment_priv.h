/*
 * moment_priv.h - the arithmetic of one element of a moment in fewer bits than 32: zk.h has the
 * formats. CUDA's compiler takes this file, too.
 *
 * MODEL. A magnitude of 4 significant bits is the upper 12 bits of its fp32 pattern (the sign's is
 * 0), and such patterns are as ordered as the values, denormals too: a code is a difference of two
 * of them.
 */
#ifndef ZK_MOMENT_PRIV_H
#define ZK_MOMENT_PRIV_H

#include "kernels/ref/elem_priv.h"

#define MOMENT_FINITE_MAX   UINT32_C(0x7f7) /* pattern of the largest finite magnitude */
#define MOMENT_CUT          20              /* bits of fp32 that a pattern drops */
#define MOMENT_UNSIGNED_TOP 254u            /* code of the scale itself; one above it is NaN */
#define MOMENT_SIGNED_TOP   126u
#define MOMENT_SIGN         0x80u

ELEM_FN uint32_t moment_noise(uint32_t key, uint32_t i)
{
    uint32_t x = (i * UINT32_C(0x9e3779b9)) ^ key;

    x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

ELEM_FN uint16_t moment_to_bf16(float f, uint32_t noise)
{
    uint32_t b = elem_bits(f);
    uint32_t rounded = (b + (noise >> 16)) >> 16;

    return (uint16_t)(elem_is_nan(b) ? ELEM_BF16_NAN : rounded);
}

/* What an element of bits b adds to the search for the largest finite magnitude of its group. */
ELEM_FN uint32_t moment_finite(uint32_t b)
{
    uint32_t a = b & 0x7fffffff;

    return a >= UINT32_C(0x7f800000) ? 0 : a;
}

/* The pattern of the scale of a group of which `most` is the largest. */
ELEM_FN uint32_t moment_pattern(uint32_t most)
{
    uint32_t pattern = (most + ((UINT32_C(1) << MOMENT_CUT) - 1)) >> MOMENT_CUT;

    return pattern > MOMENT_FINITE_MAX ? MOMENT_FINITE_MAX : pattern;
}

ELEM_FN float moment_scale(uint32_t pattern)
{
    return elem_float(pattern << MOMENT_CUT);
}

ELEM_FN uint32_t moment_magnitude(uint32_t a, uint32_t pattern, uint32_t noise)
{
    uint32_t r = (a + (noise >> (32 - MOMENT_CUT))) >> MOMENT_CUT;

    return r > pattern ? pattern : r;
}

ELEM_FN uint8_t moment_code_unsigned(float f, uint32_t pattern, uint32_t noise)
{
    uint32_t a = elem_bits(f) & 0x7fffffff;
    uint32_t below = pattern - moment_magnitude(a, pattern, noise);
    uint32_t c = below < MOMENT_UNSIGNED_TOP ? MOMENT_UNSIGNED_TOP - below : 1;

    c = a == 0 ? 0 : c;
    return (uint8_t)(a >= UINT32_C(0x7f800000) ? MOMENT_UNSIGNED_TOP + 1 : c);
}

ELEM_FN uint8_t moment_code_signed(float f, uint32_t pattern, uint32_t noise)
{
    uint32_t b = elem_bits(f), a = b & 0x7fffffff;
    uint32_t below = pattern - moment_magnitude(a, pattern, noise);
    uint32_t c = below < MOMENT_SIGNED_TOP ? MOMENT_SIGNED_TOP - below : 0;

    c = a == 0 ? 0 : c;
    c = a >= UINT32_C(0x7f800000) ? MOMENT_SIGNED_TOP + 1 : c;
    return (uint8_t)(c | (b >> 24 & MOMENT_SIGN));
}

/* The value of a code; sign and top are those of its kind. */
ELEM_FN float moment_decode(uint8_t code, uint32_t pattern, uint32_t sign, uint32_t top)
{
    uint32_t c = code & ~sign;
    uint32_t a = c == 0 ? 0 : (pattern - (top - c)) << MOMENT_CUT;

    a |= (uint32_t)(code & sign) << 24;
    return elem_canonical(elem_float(c > top ? ELEM_NAN : a));
}

#endif
