/*
 * adam_q8_priv.h - Adam and AdamW over regular groups of moments in 8 bits (kernels/ref/adam_q8.c),
 * in AVX2: decoded, stepped and encoded without a copy in between, and one hash for both moments.
 *
 * MODEL. 16 elements are two vectors of floats: those with even numbers, and those with odd ones.
 * So an array of 16 bits is split by a shift and a mask, and two vectors become one by a shift and a
 * blend, all without moving anything between lanes. The new moments of a group wait on the stack,
 * in that order, until its largest are known.
 *
 * Each result has the bits of kernels/ref/elem_priv.h and moment_priv.h, operation by operation.
 */
#ifndef ZK_ADAM_Q8_PRIV_H
#define ZK_ADAM_Q8_PRIV_H

#include "kernels/cpu/codes_priv.h"
#include "kernels/zk.h"

#define ADAM_Q8_ROW 16 /* elements of a pair of vectors */
#define ADAM_Q8_FN  static inline __attribute__((always_inline))

/* 16 floats: the even ones, and the odd ones. */
struct adam_q8_pair {
    __m256 even, odd;
};

/* What is the same for all elements of a group. */
struct adam_q8_factors {
    __m256 decay, scale, l2, one_minus_beta1, one_minus_beta2, beta2, rsqrt_c2, eps, step_size;
};

/* New moments of a group, and the bits of the largest magnitude in each lane. */
struct adam_q8_new {
    __m256i m[ZB_Q8_GROUP / 8], v[ZB_Q8_GROUP / 8];
    __m256i most_m, most_v;
};

ADAM_Q8_FN struct adam_q8_factors adam_q8_factors(const struct zk_scalars *s)
{
    return (struct adam_q8_factors){
        .decay = _mm256_set1_ps(s->decay),
        .scale = _mm256_set1_ps(s->scale),
        .l2 = _mm256_set1_ps(s->l2),
        .one_minus_beta1 = _mm256_set1_ps(s->one_minus_beta1),
        .one_minus_beta2 = _mm256_set1_ps(s->one_minus_beta2),
        .beta2 = _mm256_set1_ps(s->beta2),
        .rsqrt_c2 = _mm256_set1_ps(s->rsqrt_c2),
        .eps = _mm256_set1_ps(s->eps),
        .step_size = _mm256_set1_ps(s->step_size),
    };
}

ADAM_Q8_FN __m256i adam_q8_load(const void *from)
{
    return _mm256_loadu_si256(from);
}

/* ---- 16 elements from memory, and back */

/* Of 16 bf16. */
ADAM_Q8_FN struct adam_q8_pair adam_q8_of_bf16(__m256i h)
{
    return (struct adam_q8_pair){
        _mm256_castsi256_ps(_mm256_slli_epi32(h, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(h, codes_all(0xffff0000))),
    };
}

ADAM_Q8_FN struct adam_q8_pair adam_q8_of_f32(const float *from)
{
    __m256 a = _mm256_loadu_ps(from), b = _mm256_loadu_ps(from + 8);
    __m256 even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);

    return (struct adam_q8_pair){
        _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8)),
        _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8)),
    };
}

ADAM_Q8_FN void adam_q8_to_f32(float *to, struct adam_q8_pair x)
{
    __m256 a = _mm256_unpacklo_ps(x.even, x.odd), b = _mm256_unpackhi_ps(x.even, x.odd);

    _mm256_storeu_ps(to, _mm256_permute2f128_ps(a, b, 0x20));
    _mm256_storeu_ps(to + 8, _mm256_permute2f128_ps(a, b, 0x31));
}

/* elem_value_of_split() */
ADAM_Q8_FN struct adam_q8_pair adam_q8_of_split(const uint16_t *hi, const int16_t *lo)
{
    __m256i l = adam_q8_load(lo), h = _mm256_add_epi16(adam_q8_load(hi), _mm256_srai_epi16(l, 15));

    return (struct adam_q8_pair){
        _mm256_castsi256_ps(_mm256_blend_epi16(l, _mm256_slli_epi32(h, 16), 0xaa)),
        _mm256_castsi256_ps(_mm256_blend_epi16(_mm256_srli_epi32(l, 16), h, 0xaa)),
    };
}

/* elem_split_canonical() */
ADAM_Q8_FN void adam_q8_to_split(uint16_t *hi, int16_t *lo, struct adam_q8_pair x)
{
    __m256i even = _mm256_castps_si256(x.even), odd = _mm256_castps_si256(x.odd);
    __m256i l = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    __m256i h = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);

    h = _mm256_add_epi16(h, _mm256_srli_epi16(l, 15));
    _mm256_storeu_si256((__m256i *)(void *)lo, l);
    _mm256_storeu_si256((__m256i *)(void *)hi, h);
}

/* The largest code of a group, of its bits in mask. */
ADAM_Q8_FN uint32_t adam_q8_most_code(const uint8_t *code, uint8_t mask)
{
    const __m256i bits = _mm256_set1_epi8((char)mask);
    __m256i most = _mm256_setzero_si256();

    for (size_t i = 0; i < ZB_Q8_GROUP; i += 32)
        most = _mm256_max_epu8(most, _mm256_and_si256(bits, adam_q8_load(code + i)));
    most = _mm256_max_epu8(most, _mm256_srli_epi16(most, 8)); /* in the low byte of each pair */
    return codes_largest(
        _mm256_max_epu16(_mm256_and_si256(most, codes_all(0xff)),
                         _mm256_and_si256(_mm256_srli_epi32(most, 16), codes_all(0xff))));
}

/* New moments in the order of their elements. */
ADAM_Q8_FN void adam_q8_in_order(const __m256i from[ZB_Q8_GROUP / 8], float *to)
{
    for (size_t i = 0; i < ZB_Q8_GROUP / 8; i += 2)
        adam_q8_to_f32(to + 8 * i, (struct adam_q8_pair){ _mm256_castsi256_ps(from[i]),
                                                          _mm256_castsi256_ps(from[i + 1]) });
}

/* ---- the step */

/* elem_adam() of 8 elements, without making moments canonical. */
ADAM_Q8_FN __m256 adam_q8_step(const struct adam_q8_factors *k, bool decoupled, __m256 param,
                               __m256 grad, __m256 *m, __m256 *v)
{
    __m256 g = _mm256_mul_ps(grad, k->scale), p = param, d, to;

    if (decoupled)
        p = _mm256_mul_ps(param, k->decay);
    else
        g = _mm256_fmadd_ps(k->l2, param, g);
    *m = _mm256_fmadd_ps(k->one_minus_beta1, _mm256_sub_ps(g, *m), *m);
    *v = _mm256_fmadd_ps(_mm256_mul_ps(k->one_minus_beta2, g), g, _mm256_mul_ps(k->beta2, *v));
    d = _mm256_fmadd_ps(_mm256_sqrt_ps(*v), k->rsqrt_c2, k->eps);
    to = _mm256_fnmadd_ps(k->step_size, _mm256_div_ps(*m, d), p);
    return _mm256_blendv_ps(to, _mm256_castsi256_ps(codes_all(ELEM_NAN)),
                            _mm256_cmp_ps(to, to, _CMP_UNORD_Q));
}

/* Puts away the new moments of 8 elements. */
ADAM_Q8_FN void adam_q8_keep(struct adam_q8_new *to, size_t i, __m256 m, __m256 v)
{
    to->m[i] = _mm256_castps_si256(m);
    to->v[i] = _mm256_castps_si256(v);
    to->most_m = _mm256_max_epu32(to->most_m, _mm256_and_si256(to->m[i], codes_all(0x7fffffff)));
    to->most_v = _mm256_max_epu32(to->most_v, to->v[i]);
}

/* Steps a group; its moments before are decoded with these offsets of regular groups. */
ADAM_Q8_FN void adam_q8_pass(const struct adam_q8_factors *k, const struct zk_q8_run *r, size_t at,
                             bool decoupled, bool split, bool grad_bf16, const uint32_t off[2],
                             struct adam_q8_new *to)
{
    const __m256i off_m = _mm256_set1_epi16((int16_t)off[0]);
    const __m256i off_v = _mm256_set1_epi16((int16_t)off[1]);
    const uint8_t *code_m = r->code[0] + at, *code_v = r->code[1] + at;
    const char *grad = (const char *)r->grad + at * (grad_bf16 ? 2 : 4);
    uint16_t *hi = (uint16_t *)r->param + at;
    int16_t *lo = (int16_t *)r->master + (split ? at : 0);
    float *value = (float *)r->param + at;

    to->most_m = to->most_v = _mm256_setzero_si256();
    for (size_t i = 0; i < ZB_Q8_GROUP; i += ADAM_Q8_ROW) {
        struct adam_q8_pair p = split ? adam_q8_of_split(hi + i, lo + i)
                                      : adam_q8_of_f32(value + i);
        struct adam_q8_pair g =
            grad_bf16 ? adam_q8_of_bf16(adam_q8_load((const uint16_t *)(const void *)grad + i))
                      : adam_q8_of_f32((const float *)(const void *)grad + i);
        struct adam_q8_pair m = adam_q8_of_bf16(codes_value(code_m + i, off_m, MOMENT_SIGN));
        struct adam_q8_pair v = adam_q8_of_bf16(codes_value(code_v + i, off_v, 0));

        p.even = adam_q8_step(k, decoupled, p.even, g.even, &m.even, &v.even);
        p.odd = adam_q8_step(k, decoupled, p.odd, g.odd, &m.odd, &v.odd);
        adam_q8_keep(to, i / 8, m.even, v.even);
        adam_q8_keep(to, i / 8 + 1, m.odd, v.odd);
        if (split)
            adam_q8_to_split(hi + i, lo + i, p);
        else
            adam_q8_to_f32(value + i, p);
    }
}

/* ---- new codes */

/* Packing works within halves of a vector. */
ADAM_Q8_FN void adam_q8_store(uint8_t *to, __m256i packed)
{
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(packed, 0xd8));
}

/* The upper halves of 16 elements, in order. */
ADAM_Q8_FN __m256i adam_q8_upper(__m256i even, __m256i odd)
{
    return _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
}

/* One of 8 elements of v, with its noise: 0 if it is 0, else at least `least`. */
ADAM_Q8_FN __m256i adam_q8_noisy_v(__m256i v, __m256i random, __m256i least)
{
    __m256i t = _mm256_add_epi32(v, _mm256_srli_epi32(codes_second(random), 32 - MOMENT_CUT));

    return _mm256_sign_epi32(_mm256_max_epi32(t, least), v);
}

/* Encodes a group, with the scales' patterns `below` above the top codes. place: of its first
 * elements, the even and the odd ones. */
ADAM_Q8_FN void adam_q8_encode(const struct adam_q8_new *from, uint8_t *code_m, uint8_t *code_v,
                               const uint32_t below[2], uint32_t key, uint32_t first)
{
    const __m256i every = codes_all(key & ~UINT32_C(1)), step = codes_all(16 * MOMENT_PLACE);
    const __m256i under_m = _mm256_set1_epi16((int16_t)below[0]);
    const __m256i under_v = _mm256_set1_epi16((int16_t)below[1]);
    const __m256i least = codes_all((below[1] + 1) << MOMENT_CUT);
    __m256i place = _mm256_mullo_epi32(
        _mm256_add_epi32(codes_all(first), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
        codes_all(MOMENT_PLACE));
    __m256i place_odd = _mm256_add_epi32(place, codes_all(MOMENT_PLACE));

    for (size_t i = 0; i < ZB_Q8_GROUP / 8; i += 4) {
        __m256i sign[2], m[2], v[2];

        for (size_t j = 0; j < 2; j++) {
            const __m256i *of_m = from->m + i + 2 * j, *of_v = from->v + i + 2 * j;
            __m256i even = codes_random(place, every), odd = codes_random(place_odd, every);

            sign[j] =
                adam_q8_upper(_mm256_add_epi32(of_m[0], _mm256_srli_epi32(even, 32 - MOMENT_CUT)),
                              _mm256_add_epi32(of_m[1], _mm256_srli_epi32(odd, 32 - MOMENT_CUT)));
            m[j] = _mm256_subs_epu16(
                _mm256_srli_epi16(_mm256_add_epi16(sign[j], sign[j]), MOMENT_CUT - 15), under_m);
            v[j] = adam_q8_upper(adam_q8_noisy_v(of_v[0], even, least),
                                 adam_q8_noisy_v(of_v[1], odd, least));
            v[j] = _mm256_subs_epu16(_mm256_srli_epi16(v[j], MOMENT_CUT - 16), under_v);
            place = _mm256_add_epi32(place, step);
            place_odd = _mm256_add_epi32(place_odd, step);
        }
        m[0] = _mm256_packus_epi16(m[0], m[1]);
        sign[0] = _mm256_and_si256(_mm256_packs_epi16(sign[0], sign[1]), codes_all(0x80808080));
        adam_q8_store(code_m + 8 * i, _mm256_or_si256(m[0], sign[0]));
        adam_q8_store(code_v + 8 * i, _mm256_packus_epi16(v[0], v[1]));
    }
}

#endif
