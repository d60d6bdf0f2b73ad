/*
 * moments.c - moments in fewer bits than 32: zk.h has the formats.
 *
 * MODEL. A magnitude of 4 significant bits is the upper 12 bits of its fp32 pattern (the sign's is
 * 0), and such patterns are as ordered as the values, denormals too: a code is a difference of two
 * of them.
 */
#include <assert.h>

#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

#define FINITE_MAX   UINT32_C(0x7f7) /* pattern of the largest finite magnitude */
#define CUT          20              /* bits of fp32 that a pattern drops */
#define UNSIGNED_TOP 254u            /* code of the scale itself; one above it is NaN */
#define SIGNED_TOP   126u
#define SIGN         0x80u

static inline uint32_t noise(uint32_t key, uint32_t i)
{
    uint32_t x = (i * UINT32_C(0x9e3779b9)) ^ key;

    x = (x ^ x >> 16) * UINT32_C(0x7feb352d);
    x = (x ^ x >> 15) * UINT32_C(0x846ca68b);
    return x ^ x >> 16;
}

void ZK_NAME(encode_bf16)(const float *restrict from, uint16_t *restrict to, uint32_t key, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t b = elem_bits(from[i]);
        uint32_t rounded = (b + (noise(key, (uint32_t)i) >> 16)) >> 16;

        to[i] = (uint16_t)(elem_is_nan(b) ? ELEM_BF16_NAN : rounded);
    }
}

/* The pattern of the scale of one group. */
static uint32_t group_scale(const float *restrict from)
{
    uint32_t most = 0, pattern;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t a = elem_bits(from[i]) & 0x7fffffff;

        a = a >= UINT32_C(0x7f800000) ? 0 : a;
        most = a > most ? a : most;
    }
    pattern = (most + ((UINT32_C(1) << CUT) - 1)) >> CUT;
    return pattern > FINITE_MAX ? FINITE_MAX : pattern;
}

static inline uint32_t magnitude(uint32_t a, uint32_t scale, uint32_t random)
{
    uint32_t r = (a + (random >> (32 - CUT))) >> CUT;

    return r > scale ? scale : r;
}

static void group_unsigned(const float *restrict from, uint8_t *restrict code, uint32_t scale,
                           uint32_t key, uint32_t first)
{
    for (uint32_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t a = elem_bits(from[i]) & 0x7fffffff;
        uint32_t below = scale - magnitude(a, scale, noise(key, first + i));
        uint32_t c = below < UNSIGNED_TOP ? UNSIGNED_TOP - below : 1;

        c = a == 0 ? 0 : c;
        code[i] = (uint8_t)(a >= UINT32_C(0x7f800000) ? UNSIGNED_TOP + 1 : c);
    }
}

static void group_signed(const float *restrict from, uint8_t *restrict code, uint32_t scale,
                         uint32_t key, uint32_t first)
{
    for (uint32_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t b = elem_bits(from[i]), a = b & 0x7fffffff;
        uint32_t below = scale - magnitude(a, scale, noise(key, first + i));
        uint32_t c = below < SIGNED_TOP ? SIGNED_TOP - below : 0;

        c = a == 0 ? 0 : c;
        c = a >= UINT32_C(0x7f800000) ? SIGNED_TOP + 1 : c;
        code[i] = (uint8_t)(c | (b >> 24 & SIGN));
    }
}

void ZK_NAME(encode_q8)(const float *restrict from, uint8_t *restrict code, float *restrict scale,
                        bool is_signed, uint32_t key, size_t n)
{
    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint32_t pattern = group_scale(from + at);

        if (is_signed)
            group_signed(from + at, code + at, pattern, key, (uint32_t)at);
        else
            group_unsigned(from + at, code + at, pattern, key, (uint32_t)at);
        scale[at / ZB_Q8_GROUP] = elem_float(pattern << CUT);
    }
}

void ZK_NAME(decode_q8)(const uint8_t *restrict code, const float *restrict scale,
                        float *restrict to, bool is_signed, size_t n)
{
    uint32_t sign = is_signed ? SIGN : 0, top = is_signed ? SIGNED_TOP : UNSIGNED_TOP;

    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint32_t pattern = elem_bits(scale[at / ZB_Q8_GROUP]) >> CUT;

        for (size_t i = at; i < at + ZB_Q8_GROUP; i++) {
            uint32_t c = code[i] & ~sign;
            uint32_t a = c == 0 ? 0 : (pattern - (top - c)) << CUT;

            a |= (uint32_t)(code[i] & sign) << 24;
            to[i] = elem_canonical(elem_float(c > top ? ELEM_NAN : a));
        }
    }
}
