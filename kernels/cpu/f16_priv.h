/*
 * f16_priv.h - fp16 by the processor's own conversions, where a variant has them.
 *
 * MODEL. F16_ROW elements at a time, with the bits of elem_to_f16() and elem_from_f16(): hardware
 * rounds to nearest, ties to even, and keeps denormals; zk_thread_init() sets both modes. It
 * converts a NaN to some NaN, so each is made canonical as fp32 (by a test of its bits: clang
 * compiles a comparison of the converted values to 16 comparisons of fp16, one by one). Where a
 * variant has no such instructions, F16_ROW is not defined and only the loops over elements are
 * used. "ref" is such a variant: it is compiled without these instructions, or with ZK_PLAIN where
 * every processor has them.
 */
#ifndef ZK_F16_PRIV_H
#define ZK_F16_PRIV_H

#include <stdint.h>

#if defined(__AVX512F__) && !defined(ZK_PLAIN)
#include <immintrin.h>
#define F16_ROW 16

static inline __m512 f16_row_canonical(__m512 x)
{
    __m512i b = _mm512_castps_si512(x), a = _mm512_and_si512(b, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(a, _mm512_set1_epi32(0x7f800000));

    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(b, nan, _mm512_set1_epi32(0x7fc00000)));
}

static inline void f16_row_to_f32(const uint16_t *from, float *to)
{
    __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));

    _mm512_storeu_ps(to, f16_row_canonical(x));
}

static inline void f16_row_from_f32(const float *from, uint16_t *to)
{
    __m512 x = f16_row_canonical(_mm512_loadu_ps(from));

    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__) && !defined(ZK_PLAIN)
#include <immintrin.h>
#define F16_ROW 8

static inline __m256 f16_row_canonical(__m256 x)
{
    __m256i b = _mm256_castps_si256(x), a = _mm256_and_si256(b, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000));

    return _mm256_castsi256_ps(_mm256_blendv_epi8(b, _mm256_set1_epi32(0x7fc00000), nan));
}

static inline void f16_row_to_f32(const uint16_t *from, float *to)
{
    __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));

    _mm256_storeu_ps(to, f16_row_canonical(x));
}

static inline void f16_row_from_f32(const float *from, uint16_t *to)
{
    __m256 x = f16_row_canonical(_mm256_loadu_ps(from));

    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__) && !defined(ZK_PLAIN)
#include <arm_neon.h>
#define F16_ROW 4

static inline float32x4_t f16_row_canonical(float32x4_t x)
{
    return vbslq_f32(vceqq_f32(x, x), x, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000)));
}

static inline void f16_row_to_f32(const uint16_t *from, float *to)
{
    vst1q_f32(to, f16_row_canonical(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)))));
}

static inline void f16_row_from_f32(const float *from, uint16_t *to)
{
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(f16_row_canonical(vld1q_f32(from)))));
}
#endif

#endif
