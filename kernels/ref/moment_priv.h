/*
 * moment_priv.h - the arithmetic of one element of a moment in fewer bits than 32: zk.h has the
 * formats. CUDA's compiler compiles this file, too.
 *
 * MODEL. A magnitude of 4 significant bits is the upper 12 bits of its fp32 pattern (the sign bit
 * is 0). Such patterns have the same order as the values, denormals included: a code is a
 * difference of two of them.
 */
#ifndef ZK_MOMENT_PRIV_H
#define ZK_MOMENT_PRIV_H

#include "kernels/ref/elem_priv.h"

#define MOMENT_FINITE_MAX   UINT32_C(0x7f7) /* pattern of the largest finite magnitude */
#define MOMENT_CUT          20              /* bits of fp32 that a pattern drops */
#define MOMENT_UNSIGNED_TOP 254             /* code of the scale itself; one above it is NaN */
#define MOMENT_SIGNED_TOP   126
#define MOMENT_SIGN         0x80u

/* splitmix64: mixes the bits of a number. */
ELEM_FN uint64_t moment_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Selects the random bits for rounding moment i of a block. `block` is its number in the unit. */
ELEM_FN uint32_t moment_key(uint32_t rounding, uint32_t i, uint64_t block)
{
    return ((uint32_t)moment_mix64(moment_mix64(rounding) ^ block) & ~UINT32_C(1)) | i;
}

/* The random bits of element i, from which both moments take their noise. `place` is i *
 * MOMENT_PLACE, which a loop computes by additions. */
#define MOMENT_PLACE UINT32_C(0x9e3779b9)

ELEM_FN uint32_t moment_random(uint32_t key, uint32_t place)
{
    uint32_t x = place ^ (key & ~UINT32_C(1));

    x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

/* The noise of moment i (0 or 1) from these bits. */
ELEM_FN uint32_t moment_noise_of(uint32_t random, uint32_t i)
{
    return i == 0 ? random : random << 16 | random >> 16;
}

ELEM_FN uint32_t moment_noise(uint32_t key, uint32_t i)
{
    return moment_noise_of(moment_random(key, i * MOMENT_PLACE), key & 1);
}

/* The noise of the low half of a split master in 8 bits, from the same bits: those that count least for the
 * rounding of moments. */
ELEM_FN uint32_t moment_noise_lo(uint32_t random)
{
    return random >> 16 & 0xff;
}

/* f is canonical, and so is the bf16: noise does not carry out of the lower half of such a NaN. */
ELEM_FN uint16_t moment_of_canonical(float f, uint32_t noise)
{
    return (uint16_t)((elem_bits(f) + (noise >> 16)) >> 16);
}

ELEM_FN uint16_t moment_to_bf16(float f, uint32_t noise)
{
    return moment_of_canonical(elem_canonical(f), noise);
}

/* The magnitude of an element with bits b, in the search for a group's largest; 0: not finite. */
ELEM_FN uint32_t moment_finite(uint32_t b)
{
    uint32_t a = b & 0x7fffffff;

    return a >= UINT32_C(0x7f800000) ? 0 : a;
}

/* The pattern of the scale of a group whose largest magnitude is `most`. */
ELEM_FN uint32_t moment_pattern(uint32_t most)
{
    uint32_t pattern = (most + ((UINT32_C(1) << MOMENT_CUT) - 1)) >> MOMENT_CUT;

    return pattern > MOMENT_FINITE_MAX ? MOMENT_FINITE_MAX : pattern;
}

ELEM_FN float moment_scale(uint32_t pattern)
{
    return elem_float(pattern << MOMENT_CUT);
}

/*
 * REGULAR GROUPS of 8 bits are almost all: their values are finite, and the scale is neither so
 * small that a code stands for less than the smallest pattern, nor limited by the largest. Then
 *
 *     decode   no code is NaN, so that two operations make the bits of a magnitude
 *     encode   the rounded pattern never exceeds the scale's, and zero needs no test of its own: it
 *              is 0 or less in signed codes, and in unsigned ones the smaller of code and bits
 *
 * with the same results as moment_code() and moment_decode_bf16(), which do all other groups. This
 * tests the pattern of the scale alone.
 */
ELEM_FN bool moment_regular(uint32_t pattern, uint32_t top)
{
    return pattern >= top && pattern <= MOMENT_FINITE_MAX;
}

/* The code of f in a group whose scale has this pattern. It is r - (pattern - top), and at least
 * `least`; r is the pattern of the rounded magnitude, and at most that of the scale. */
ELEM_FN uint8_t moment_code(float f, uint32_t pattern, uint32_t noise, bool is_signed)
{
    int32_t top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP, least = is_signed ? 0 : 1;
    uint32_t b = elem_bits(f), a = b & 0x7fffffff;
    int32_t most = (int32_t)pattern;
    int32_t r = (int32_t)((a + (noise >> (32 - MOMENT_CUT))) >> MOMENT_CUT);
    int32_t c = (r > most ? most : r) - (most - top);

    c = c < least ? least : c;
    c = a == 0 ? 0 : c;
    c = a >= UINT32_C(0x7f800000) ? top + 1 : c;
    return (uint8_t)(is_signed ? (uint32_t)c | (b >> 24 & MOMENT_SIGN) : (uint32_t)c);
}

ELEM_FN uint8_t moment_code_unsigned(float f, uint32_t pattern, uint32_t noise)
{
    return moment_code(f, pattern, noise, false);
}

ELEM_FN uint8_t moment_code_signed(float f, uint32_t pattern, uint32_t noise)
{
    return moment_code(f, pattern, noise, true);
}

/* The value of a code, which is exact in bf16; vectors hold twice as many of those. sign and top
 * are those of its kind. */
ELEM_FN uint16_t moment_decode_bf16(uint8_t code, uint32_t pattern, uint32_t sign, uint32_t top)
{
    const uint16_t off = (uint16_t)(pattern - top), mask = (uint16_t)~sign;
    uint16_t u = code, c = (uint16_t)(u & mask);
    uint16_t h = (uint16_t)((uint16_t)(off + c) << (MOMENT_CUT - 16));

    h = (uint16_t)((c == 0 ? 0 : h) | (uint16_t)((u & (uint16_t)sign) << 8));
    h = (uint16_t)((h & 0x7fff) > 0x7f80 ? ELEM_BF16_NAN : h);
    return (uint16_t)(c > (uint16_t)top ? ELEM_BF16_NAN : h);
}

ELEM_FN float moment_decode(uint8_t code, uint32_t pattern, uint32_t sign, uint32_t top)
{
    return elem_value_of_bf16(moment_decode_bf16(code, pattern, sign, top));
}

#endif
