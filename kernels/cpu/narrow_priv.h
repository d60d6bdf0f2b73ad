/*
 * narrow_priv.h - integers of 32 bits to bytes, NARROW_ROW at a time.
 *
 * gcc 12 masks and packs each vector of such a loop; values that are known to be bytes need no
 * mask. Where a variant has no instructions for it, the loop is what the compiler makes of it.
 */
#ifndef ZK_NARROW_PRIV_H
#define ZK_NARROW_PRIV_H

#include <stddef.h>
#include <stdint.h>

#define NARROW_ROW 32

#if defined(__AVX2__) && !defined(ZK_PLAIN)
#include <immintrin.h>

/* Packing works within halves of a vector, so groups of four bytes are put in order at the end. */
static inline void narrow_row(const uint32_t from[NARROW_ROW], uint8_t *to)
{
    const __m256i *v = (const __m256i *)(const void *)from;
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i low = _mm256_packus_epi32(v[0], v[1]), high = _mm256_packus_epi32(v[2], v[3]);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);

    _mm256_storeu_si256((__m256i *)(void *)to, bytes);
}
#else
static inline void narrow_row(const uint32_t from[NARROW_ROW], uint8_t *to)
{
    for (size_t i = 0; i < NARROW_ROW; i++)
        to[i] = (uint8_t)from[i];
}
#endif

#endif
