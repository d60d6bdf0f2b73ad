/*
 * moments.c - moments in fewer bits than 32: the loops around moment_priv.h.
 */
#include <assert.h>

#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

void ZK_NAME(encode_bf16)(const float *restrict from, uint16_t *restrict to, uint32_t key, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = moment_to_bf16(from[i], moment_noise(key, (uint32_t)i));
}

/* The pattern of the scale of one group. */
static uint32_t group_scale(const float *restrict from)
{
    uint32_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t a = moment_finite(elem_bits(from[i]));

        most = a > most ? a : most;
    }
    return moment_pattern(most);
}

static void group_unsigned(const float *restrict from, uint8_t *restrict code, uint32_t pattern,
                           uint32_t key, uint32_t first)
{
    for (uint32_t i = 0; i < ZB_Q8_GROUP; i++)
        code[i] = moment_code_unsigned(from[i], pattern, moment_noise(key, first + i));
}

static void group_signed(const float *restrict from, uint8_t *restrict code, uint32_t pattern,
                         uint32_t key, uint32_t first)
{
    for (uint32_t i = 0; i < ZB_Q8_GROUP; i++)
        code[i] = moment_code_signed(from[i], pattern, moment_noise(key, first + i));
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
        scale[at / ZB_Q8_GROUP] = moment_scale(pattern);
    }
}

void ZK_NAME(decode_q8)(const uint8_t *restrict code, const float *restrict scale,
                        float *restrict to, bool is_signed, size_t n)
{
    uint32_t sign = is_signed ? MOMENT_SIGN : 0;
    uint32_t top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;

    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint32_t pattern = elem_bits(scale[at / ZB_Q8_GROUP]) >> MOMENT_CUT;

        for (size_t i = at; i < at + ZB_Q8_GROUP; i++)
            to[i] = moment_decode(code[i], pattern, sign, top);
    }
}
