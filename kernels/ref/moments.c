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

#if defined(__AVX2__) && !defined(ZK_PLAIN)
#include "kernels/cpu/codes_priv.h" /* the same by hand */
#else
/* The largest magnitude of a group; not finite if any is not. */
static inline uint32_t group_most(const float *restrict from)
{
    int32_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        int32_t a = (int32_t)(elem_bits(from[i]) & 0x7fffffff);

        most = a > most ? a : most;
    }
    return (uint32_t)most;
}

/* The random bits of one group. */
static inline void group_random(uint32_t key, uint32_t first, uint32_t *restrict random)
{
    uint32_t place = first * MOMENT_PLACE;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++, place += MOMENT_PLACE)
        random[i] = moment_random(key, place);
}

/* Encodes a regular group, whose scale's pattern is `below` above the top code. */
static inline void group_encode_regular(const float *restrict from, uint8_t *restrict code,
                                        bool is_signed, int32_t below,
                                        const uint32_t *restrict random, uint32_t moment)
{
    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t noise = moment_noise_of(random[i], moment);
        uint32_t b = elem_bits(from[i]), a = b & 0x7fffffff;
        int32_t c = (int32_t)((a + (noise >> (32 - MOMENT_CUT))) >> MOMENT_CUT) - below;

        if (is_signed) {
            code[i] = (uint8_t)((uint32_t)(c < 0 ? 0 : c) | (b >> 24 & MOMENT_SIGN));
        } else {
            c = c < 1 ? 1 : c;
            code[i] = (uint8_t)((int32_t)a < c ? (int32_t)a : c);
        }
    }
}

/* Decodes a regular group to bf16. `off`: the scale's pattern less the top code. */
static inline void group_decode_regular(const uint8_t *restrict code, uint16_t *restrict to,
                                        uint16_t off, uint16_t sign)
{
    const uint16_t mask = (uint16_t)~sign;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint16_t u = code[i], c = u & mask;
        uint16_t h = (uint16_t)((uint16_t)(c + off) << (MOMENT_CUT - 16));

        to[i] = (uint16_t)((c == 0 ? 0 : h) | (uint16_t)((u & sign) << 8));
    }
}
#endif

/* The pattern of the scale of a group whose largest magnitude is `most`, which is not finite. */
static uint32_t group_pattern_finite(const float *restrict from)
{
    int32_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        int32_t a = (int32_t)moment_finite(elem_bits(from[i]));

        most = a > most ? a : most;
    }
    return moment_pattern((uint32_t)most);
}

/* The codes of one group, which begins with element `first` of the block. */
static inline void group_encode_any(const float *restrict from, uint8_t *restrict code,
                                    uint32_t pattern, bool is_signed, uint32_t key, uint32_t moment,
                                    uint32_t first)
{
    uint32_t place = first * MOMENT_PLACE;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++, place += MOMENT_PLACE) {
        uint32_t noise = moment_noise_of(moment_random(key, place), moment);

        code[i] = moment_code(from[i], pattern, noise, is_signed);
    }
}

/* Encodes one group as moment `moment`; returns its scale. */
static inline float group_encode(const float *restrict from, uint8_t *restrict code, bool is_signed,
                                 uint32_t key, uint32_t moment, uint32_t first,
                                 const uint32_t *restrict random)
{
    uint32_t most = group_most(from), top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;
    uint32_t pattern = moment_pattern(most);

    if (moment_regular(pattern, top) && most <= MOMENT_FINITE_MAX << MOMENT_CUT) {
        group_encode_regular(from, code, is_signed, (int32_t)(pattern - top), random, moment);
    } else {
        pattern = group_pattern_finite(from);
        group_encode_any(from, code, pattern, is_signed, key, moment, first);
    }
    return moment_scale(pattern);
}

/* The same with a loop for each case, so that none tests for each element. */
static float encode_one(const float *restrict from, uint8_t *restrict code, bool is_signed,
                        uint32_t key, uint32_t moment, uint32_t first,
                        const uint32_t *restrict random)
{
    if (is_signed)
        return moment == 0 ? group_encode(from, code, true, key, 0, first, random)
                           : group_encode(from, code, true, key, 1, first, random);
    return moment == 0 ? group_encode(from, code, false, key, 0, first, random)
                       : group_encode(from, code, false, key, 1, first, random);
}

void ZK_NAME(encode_q8)(const float *restrict from, uint8_t *restrict code, float *restrict scale,
                        bool is_signed, uint32_t key, size_t n)
{
    uint32_t random[ZB_Q8_GROUP];

    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        group_random(key, (uint32_t)at, random);
        scale[at / ZB_Q8_GROUP] =
            encode_one(from + at, code + at, is_signed, key, key & 1, (uint32_t)at, random);
    }
}

void ZK_NAME(encode_q8_group)(const struct zk_q8_group *g)
{
    uint32_t random[ZB_Q8_GROUP];

    group_random(g->key, g->first, random);
    for (unsigned i = 0; i < g->n; i++)
        *g->scale[i] =
            encode_one(g->value[i], g->code[i], g->is_signed[i], g->key, i, g->first, random);
}

/* The values of one group in bf16, which is exact. */
static inline void group_decode_any(const uint8_t *restrict code, uint16_t *restrict to,
                                    uint32_t pattern, uint32_t sign, uint32_t top)
{
    for (size_t i = 0; i < ZB_Q8_GROUP; i++)
        to[i] = moment_decode_bf16(code[i], pattern, sign, top);
}

static inline uint8_t group_most_code(const uint8_t *restrict code, uint8_t mask)
{
    uint8_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint8_t c = code[i] & mask;

        most = c > most ? c : most;
    }
    return most;
}

static inline void group_decode(const uint8_t *restrict code, uint16_t *restrict to,
                                uint32_t pattern, uint32_t sign, uint32_t top)
{
    if (moment_regular(pattern, top) && group_most_code(code, (uint8_t)~sign) <= top)
        group_decode_regular(code, to, (uint16_t)(pattern - top), (uint16_t)sign);
    else
        group_decode_any(code, to, pattern, sign, top);
}

void ZK_NAME(decode_q8_bf16)(const uint8_t *restrict code, const float *restrict scale,
                             uint16_t *restrict to, bool is_signed, size_t n)
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

void ZK_NAME(decode_q8)(const uint8_t *restrict code, const float *restrict scale,
                        float *restrict to, bool is_signed, size_t n)
{
    uint16_t value[ZB_Q8_GROUP];

    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        ZK_NAME(decode_q8_bf16)(code + at, scale + at / ZB_Q8_GROUP, value, is_signed, ZB_Q8_GROUP);
        for (size_t i = 0; i < ZB_Q8_GROUP; i++)
            to[at + i] = elem_value_of_bf16(value[i]);
    }
}
