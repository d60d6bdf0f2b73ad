/*
 * moments.c - moments in fewer bits than 32: the loops around moment_priv.h.
 */
#include <assert.h>

#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

static inline void encode_bf16(const float *restrict from, uint16_t *restrict to, uint32_t key,
                               uint32_t moment, size_t n)
{
    uint32_t place = 0;

    for (size_t i = 0; i < n; i++, place += MOMENT_PLACE)
        to[i] = moment_to_bf16(from[i], moment_noise_of(moment_random(key, place), moment));
}

void ZK_NAME(encode_bf16)(const float *restrict from, uint16_t *restrict to, uint32_t key, size_t n)
{
    if ((key & 1) == 0)
        encode_bf16(from, to, key, 0, n);
    else
        encode_bf16(from, to, key, 1, n);
}

/* The pattern of the scale of one group. */
static uint32_t group_scale(const float *restrict from)
{
    int32_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        int32_t a = (int32_t)moment_finite(elem_bits(from[i]));

        most = a > most ? a : most;
    }
    return moment_pattern((uint32_t)most);
}

/* The codes of one group, which begins with element `first` of the block. */
static inline void group_encode(const float *restrict from, uint8_t *restrict code,
                                uint32_t pattern, bool is_signed, uint32_t key, uint32_t moment,
                                uint32_t first)
{
    uint32_t place = first * MOMENT_PLACE;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++, place += MOMENT_PLACE) {
        uint32_t noise = moment_noise_of(moment_random(key, place), moment);

        code[i] = moment_code(from[i], pattern, noise, is_signed);
    }
}

void ZK_NAME(encode_q8)(const float *restrict from, uint8_t *restrict code, float *restrict scale,
                        bool is_signed, uint32_t key, size_t n)
{
    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint32_t pattern = group_scale(from + at), first = (uint32_t)at;

        /* A separate loop for each case, so that none tests for each element. */
        if (is_signed && (key & 1) == 0)
            group_encode(from + at, code + at, pattern, true, key, 0, first);
        else if (is_signed)
            group_encode(from + at, code + at, pattern, true, key, 1, first);
        else if ((key & 1) == 0)
            group_encode(from + at, code + at, pattern, false, key, 0, first);
        else
            group_encode(from + at, code + at, pattern, false, key, 1, first);
        scale[at / ZB_Q8_GROUP] = moment_scale(pattern);
    }
}

/* The values of one group. */
static inline void group_decode(const uint8_t *restrict code, float *restrict to, uint32_t pattern,
                                uint32_t sign, uint32_t top)
{
    uint16_t value[ZB_Q8_GROUP];

    for (size_t i = 0; i < ZB_Q8_GROUP; i++)
        value[i] = moment_decode_bf16(code[i], pattern, sign, top);
    for (size_t i = 0; i < ZB_Q8_GROUP; i++)
        to[i] = elem_value_of_bf16(value[i]);
}

void ZK_NAME(decode_q8)(const uint8_t *restrict code, const float *restrict scale,
                        float *restrict to, bool is_signed, size_t n)
{
    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        uint32_t pattern = elem_bits(scale[at / ZB_Q8_GROUP]) >> MOMENT_CUT;

        if (is_signed)
            group_decode(code + at, to + at, pattern, MOMENT_SIGN, MOMENT_SIGNED_TOP);
        else
            group_decode(code + at, to + at, pattern, 0, MOMENT_UNSIGNED_TOP);
    }
}
