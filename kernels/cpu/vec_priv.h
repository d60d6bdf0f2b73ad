/*
 * vec_priv.h - one vector of the processor: 8 lanes of 32 bits with AVX2, 16 with AVX-512. The code by hand
 * (codes_priv.h, adam_q8_priv.h) is written once, in these words.
 *
 * MODEL. vec_i holds integers, vec_f floats. A name that ends with 16 or 8 treats a vec_i as lanes of
 * so many bits. Instructions that narrow or interleave work within parts of a vector; the functions
 * here put their results in the order of memory.
 */
#ifndef ZK_VEC_PRIV_H
#define ZK_VEC_PRIV_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define VEC_FN static inline __attribute__((always_inline))

/* Shifts are macros: their instructions have the count in themselves. */
#if defined(__AVX512BW__)
#define VEC_LANES          16
#define VEC_SLL(x, bits)   _mm512_slli_epi32(x, bits)
#define VEC_SRL(x, bits)   _mm512_srli_epi32(x, bits)
#define VEC_SLL16(x, bits) _mm512_slli_epi16(x, bits)
#define VEC_SRL16(x, bits) _mm512_srli_epi16(x, bits)
#define VEC_SRA16(x, bits) _mm512_srai_epi16(x, bits)
/* Functions of immintrin.h. */
#define VEC_OP(name)    _mm512_##name
#define VEC_WHOLE(name) _mm512_##name##_si512

typedef __m512i vec_i;
typedef __m512 vec_f;
typedef __m256i vec_half;

VEC_FN vec_half vec_load_half(const void *from)
{
    return _mm256_loadu_si256(from);
}

VEC_FN vec_i vec_ramp(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

VEC_FN vec_f vec_float(vec_i bits)
{
    return _mm512_castsi512_ps(bits);
}

/* The even lanes of 16 bits from a, the odd ones from b. */
VEC_FN vec_i vec_weave16(vec_i a, vec_i b)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, a, b);
}

/* Exchanges the halves of each lane. */
VEC_FN vec_i vec_swap16(vec_i x)
{
    return _mm512_rol_epi32(x, 16);
}

/* x where v is not 0, else 0. v is not negative. */
VEC_FN vec_i vec_where(vec_i v, vec_i x)
{
    return _mm512_maskz_mov_epi32(_mm512_test_epi32_mask(v, v), x);
}

VEC_FN vec_i vec_where16(vec_i v, vec_i x)
{
    return _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(v, v), x);
}

VEC_FN vec_f vec_replace_nan(vec_f x, vec_f nan)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

/* The even, or the odd, of the floats of a and then b. */
VEC_FN vec_f vec_evens(vec_f a, vec_f b)
{
    return _mm512_permutex2var_ps(a, _mm512_slli_epi32(vec_ramp(), 1), b);
}

VEC_FN vec_f vec_odds(vec_f a, vec_f b)
{
    const vec_i odd = _mm512_or_si512(_mm512_slli_epi32(vec_ramp(), 1), _mm512_set1_epi32(1));

    return _mm512_permutex2var_ps(a, odd, b);
}

/* Even and odd floats in turn: the first VEC_LANES of them, and the rest. */
VEC_FN vec_f vec_zip_low(vec_f even, vec_f odd)
{
    const vec_i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);

    return _mm512_permutex2var_ps(even, order, odd);
}

VEC_FN vec_f vec_zip_high(vec_f even, vec_f odd)
{
    const vec_i order =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);

    return _mm512_permutex2var_ps(even, order, odd);
}

VEC_FN vec_i vec_in_order(vec_i packed)
{
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}

/* Bytes of four vectors whose lanes are 0 to 255. */
VEC_FN void vec_store_bytes(uint8_t *to, const vec_i v[4])
{
    for (size_t i = 0; i < 4; i++)
        _mm_storeu_si128((__m128i *)(void *)(to + i * VEC_LANES), _mm512_cvtepi32_epi8(v[i]));
}

VEC_FN uint32_t vec_largest(vec_i v)
{
    return _mm512_reduce_max_epu32(v);
}
#else
#define VEC_LANES          8
#define VEC_SLL(x, bits)   _mm256_slli_epi32(x, bits)
#define VEC_SRL(x, bits)   _mm256_srli_epi32(x, bits)
#define VEC_SLL16(x, bits) _mm256_slli_epi16(x, bits)
#define VEC_SRL16(x, bits) _mm256_srli_epi16(x, bits)
#define VEC_SRA16(x, bits) _mm256_srai_epi16(x, bits)
#define VEC_OP(name)       _mm256_##name
#define VEC_WHOLE(name)    _mm256_##name##_si256

typedef __m256i vec_i;
typedef __m256 vec_f;
typedef __m128i vec_half;

VEC_FN vec_half vec_load_half(const void *from)
{
    return _mm_loadu_si128(from);
}

VEC_FN vec_i vec_ramp(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}

VEC_FN vec_f vec_float(vec_i bits)
{
    return _mm256_castsi256_ps(bits);
}

VEC_FN vec_i vec_weave16(vec_i a, vec_i b)
{
    return _mm256_blend_epi16(a, b, 0xaa);
}

VEC_FN vec_i vec_swap16(vec_i x)
{
    const vec_i halves = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2,
                                          3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);

    return _mm256_shuffle_epi8(x, halves);
}

VEC_FN vec_i vec_where(vec_i v, vec_i x)
{
    return _mm256_sign_epi32(x, v);
}

VEC_FN vec_i vec_where16(vec_i v, vec_i x)
{
    return _mm256_andnot_si256(_mm256_cmpeq_epi16(v, _mm256_setzero_si256()), x);
}

VEC_FN vec_f vec_replace_nan(vec_f x, vec_f nan)
{
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

VEC_FN vec_f vec_in_order_f(vec_f packed)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(packed), 0xd8));
}

VEC_FN vec_f vec_evens(vec_f a, vec_f b)
{
    return vec_in_order_f(_mm256_shuffle_ps(a, b, 0x88));
}

VEC_FN vec_f vec_odds(vec_f a, vec_f b)
{
    return vec_in_order_f(_mm256_shuffle_ps(a, b, 0xdd));
}

VEC_FN vec_f vec_zip_low(vec_f even, vec_f odd)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x20);
}

VEC_FN vec_f vec_zip_high(vec_f even, vec_f odd)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd),
                                  0x31);
}

VEC_FN vec_i vec_in_order(vec_i packed)
{
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

VEC_FN void vec_store_bytes(uint8_t *to, const vec_i v[4])
{
    const vec_i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    vec_i low = _mm256_packus_epi32(v[0], v[1]), high = _mm256_packus_epi32(v[2], v[3]);
    vec_i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);

    _mm256_storeu_si256((vec_i *)(void *)to, bytes);
}

VEC_FN uint32_t vec_largest(vec_i v)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}
#endif

/* ---- the same text for both widths */

#define VEC_1(name, type, of, function) \
    VEC_FN type name(of x)              \
    {                                   \
        return function(x);             \
    }
#define VEC_2(name, type, function)  \
    VEC_FN type name(type a, type b) \
    {                                \
        return function(a, b);       \
    }
#define VEC_3(name, function)                    \
    VEC_FN vec_f name(vec_f a, vec_f b, vec_f c) \
    {                                            \
        return function(a, b, c);                \
    }

VEC_FN vec_i vec_all(uint32_t value)
{
    return VEC_OP(set1_epi32)((int32_t)value);
}

VEC_FN vec_i vec_all16(uint16_t value)
{
    return VEC_OP(set1_epi16)((int16_t)value);
}

VEC_FN vec_i vec_all8(uint8_t value)
{
    return VEC_OP(set1_epi8)((char)value);
}

VEC_1(vec_all_f, vec_f, float, VEC_OP(set1_ps))

VEC_FN vec_i vec_zero(void)
{
    return VEC_WHOLE(setzero)();
}

VEC_FN vec_i vec_load(const void *from)
{
    return VEC_WHOLE(loadu)(from);
}

VEC_FN void vec_store(void *to, vec_i x)
{
    VEC_WHOLE(storeu)(to, x);
}

VEC_1(vec_load_f, vec_f, const float *, VEC_OP(loadu_ps))

VEC_FN void vec_store_f(float *to, vec_f x)
{
    VEC_OP(storeu_ps)(to, x);
}

VEC_1(vec_bits, vec_i, vec_f, VEC_WHOLE(castps))

VEC_2(vec_and, vec_i, VEC_WHOLE(and))
VEC_2(vec_or, vec_i, VEC_WHOLE(or))
VEC_2(vec_xor, vec_i, VEC_WHOLE(xor))
VEC_2(vec_and_not, vec_i, VEC_WHOLE(andnot)) /* not a, and b */
VEC_2(vec_add, vec_i, VEC_OP(add_epi32))
VEC_2(vec_sub, vec_i, VEC_OP(sub_epi32))
VEC_2(vec_mul, vec_i, VEC_OP(mullo_epi32))
VEC_2(vec_min, vec_i, VEC_OP(min_epi32))
VEC_2(vec_max, vec_i, VEC_OP(max_epi32))
VEC_2(vec_max_unsigned, vec_i, VEC_OP(max_epu32))
VEC_2(vec_add16, vec_i, VEC_OP(add_epi16))
VEC_2(vec_sub16_or_0, vec_i, VEC_OP(subs_epu16))
VEC_2(vec_max16_unsigned, vec_i, VEC_OP(max_epu16))
VEC_2(vec_max8_unsigned, vec_i, VEC_OP(max_epu8))

VEC_2(vec_sub_f, vec_f, VEC_OP(sub_ps))
VEC_2(vec_mul_f, vec_f, VEC_OP(mul_ps))
VEC_2(vec_div_f, vec_f, VEC_OP(div_ps))
VEC_1(vec_sqrt_f, vec_f, vec_f, VEC_OP(sqrt_ps))
VEC_3(vec_fma, VEC_OP(fmadd_ps))        /* a b + c */
VEC_3(vec_fma_minus, VEC_OP(fnmadd_ps)) /* c - a b */

/* 2 VEC_LANES bytes, 16 bits each. */
VEC_FN vec_i vec_widen8(const uint8_t *from)
{
    return VEC_OP(cvtepu8_epi16)(vec_load_half(from));
}

/* Lanes of 16 bits, of a and then b, as bytes: at most 255, or -128 to 127. */
VEC_FN vec_i vec_narrow16_unsigned(vec_i a, vec_i b)
{
    return vec_in_order(VEC_OP(packus_epi16)(a, b));
}

VEC_FN vec_i vec_narrow16(vec_i a, vec_i b)
{
    return vec_in_order(VEC_OP(packs_epi16)(a, b));
}

#undef VEC_1
#undef VEC_2
#undef VEC_3
#endif
