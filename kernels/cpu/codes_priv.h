/*
 * codes_priv.h - codes of 8 bits of regular groups (kernels/ref/moments.c), in AVX2. That file has
 * the same arithmetic in portable C, which other variants use, and the reference.
 *
 * Written by hand, because gcc 12 widens bytes to 32 bits early, and narrows them late. Included by
 * kernels/ref/moments.c, after moment_priv.h.
 */
#ifndef ZK_CODES_PRIV_H
#define ZK_CODES_PRIV_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/plan.h"

#define CODES_ROW 32 /* elements that one store of codes has */

static inline __m256i codes_all(uint32_t value)
{
    return _mm256_set1_epi32((int32_t)value);
}

/* moment_random() of 8 elements. */
static inline __m256i codes_random(__m256i place, __m256i key)
{
    __m256i x = _mm256_xor_si256(place, key);

    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, codes_all(UINT32_C(0x7feb352d)));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    x = _mm256_mullo_epi32(x, codes_all(UINT32_C(0x846ca68b)));
    return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

/* moment_noise_of() the second moment. */
static inline __m256i codes_second(__m256i random)
{
    const __m256i halves = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2,
                                            3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);

    return _mm256_shuffle_epi8(random, halves);
}

/* The codes of 8 values, 32 bits each. */
static inline __m256i codes_of(const float *from, __m256i random, uint32_t moment, bool is_signed,
                               __m256i below)
{
    __m256i noise = moment == 0 ? random : codes_second(random);
    __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)from);
    __m256i a = _mm256_and_si256(b, codes_all(0x7fffffff));
    __m256i c = _mm256_add_epi32(a, _mm256_srli_epi32(noise, 32 - MOMENT_CUT));

    c = _mm256_sub_epi32(_mm256_srli_epi32(c, MOMENT_CUT), below);
    if (is_signed)
        return _mm256_or_si256(_mm256_max_epi32(c, _mm256_setzero_si256()),
                               _mm256_and_si256(_mm256_srli_epi32(b, 24), codes_all(MOMENT_SIGN)));
    return _mm256_min_epi32(a, _mm256_max_epi32(c, codes_all(1)));
}

/* Packing works within halves of a vector, so groups of four bytes are put in order at the end. */
static inline void codes_store(uint8_t *to, const __m256i v[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packus_epi32(v[0], v[1]), high = _mm256_packus_epi32(v[2], v[3]);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);

    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
}

/* Encodes a regular group, whose scale's pattern is `below` above the top code. */
static inline void group_encode_regular(const float *restrict from, uint8_t *restrict code,
                                        bool is_signed, int32_t below,
                                        const uint32_t *restrict random, uint32_t moment)
{
    const __m256i under = _mm256_set1_epi32(below);

    for (size_t at = 0; at < ZB_Q8_GROUP; at += CODES_ROW) {
        __m256i v[4];

        for (size_t i = 0; i < 4; i++)
            v[i] =
                codes_of(from + at + 8 * i,
                         _mm256_loadu_si256((const __m256i *)(const void *)(random + at + 8 * i)),
                         moment, is_signed, under);
        codes_store(code + at, v);
    }
}

/* moment_random() of a group. */
static inline void group_random(uint32_t key, uint32_t first, uint32_t *restrict random)
{
    const __m256i step = codes_all(8 * MOMENT_PLACE), every = codes_all(key & ~UINT32_C(1));
    __m256i place = _mm256_mullo_epi32(
        _mm256_add_epi32(codes_all(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        codes_all(MOMENT_PLACE));

    for (size_t at = 0; at < ZB_Q8_GROUP; at += 8) {
        _mm256_storeu_si256((__m256i *)(void *)(random + at), codes_random(place, every));
        place = _mm256_add_epi32(place, step);
    }
}

/* The largest of 8 lanes. */
static inline uint32_t codes_largest(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* The largest magnitude of a group. */
static inline uint32_t group_most(const float *restrict from)
{
    const __m256i mask = codes_all(0x7fffffff);
    __m256i most = _mm256_setzero_si256();

    for (size_t at = 0; at < ZB_Q8_GROUP; at += 8)
        most = _mm256_max_epi32(
            most,
            _mm256_and_si256(mask, _mm256_loadu_si256((const __m256i *)(const void *)(from + at))));
    return codes_largest(most);
}

/* 16 elements of a regular group, in bf16; off: the scale's pattern less the top code. */
static inline __m256i codes_value(const uint8_t *code, __m256i off, uint16_t sign)
{
    const __m256i is_sign = _mm256_set1_epi16((int16_t)sign);
    __m256i u = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)code));
    __m256i c = _mm256_andnot_si256(is_sign, u);
    __m256i h = _mm256_slli_epi16(_mm256_add_epi16(c, off), MOMENT_CUT - 16);

    h = _mm256_andnot_si256(_mm256_cmpeq_epi16(c, _mm256_setzero_si256()), h);
    return _mm256_or_si256(h, _mm256_slli_epi16(_mm256_and_si256(u, is_sign), 8));
}

/* Decodes a regular group to bf16. */
static inline void group_decode_regular(const uint8_t *restrict code, uint16_t *restrict to,
                                        uint16_t off, uint16_t sign)
{
    const __m256i add = _mm256_set1_epi16((int16_t)off);

    for (size_t at = 0; at < ZB_Q8_GROUP; at += 16)
        _mm256_storeu_si256((__m256i *)(void *)(to + at), codes_value(code + at, add, sign));
}

#endif
