/*
 * adam_q8_priv.h - Adam and AdamW over regular groups of moments in 8 bits (kernels/ref/adam_q8.c),
 * in vectors of the processor (vec_priv.h): decoded, stepped and encoded without a copy in between,
 * and one hash for both moments.
 *
 * MODEL. A row of elements is two vectors of floats: those with even numbers, and those with odd
 * ones. So an array of 16 bits is split by a shift and a mask, and two vectors become one by a shift
 * and a blend, all without moving anything between lanes. The new moments of a group wait on the
 * stack, in that order, until its largest are known.
 *
 * Each result has the bits of kernels/ref/elem_priv.h and moment_priv.h, operation by operation.
 */
#ifndef ZK_ADAM_Q8_PRIV_H
#define ZK_ADAM_Q8_PRIV_H

#include "kernels/cpu/codes_priv.h"
#include "kernels/zk.h"

#define ADAM_Q8_ROW     (2 * VEC_LANES)
#define ADAM_Q8_VECTORS (ZB_Q8_GROUP / VEC_LANES) /* of a group */

/* The even elements of a row, and the odd ones. */
struct adam_q8_pair {
    vec_f even, odd;
};

/* What is the same for all elements of a group. */
struct adam_q8_factors {
    vec_f decay, scale, l2, one_minus_beta1, one_minus_beta2, beta2, rsqrt_c2, eps, step_size;
};

/* New moments of a group, and the bits of the largest magnitude in each lane. */
struct adam_q8_new {
    vec_i m[ADAM_Q8_VECTORS], v[ADAM_Q8_VECTORS];
    vec_i most_m, most_v;
};

VEC_FN struct adam_q8_factors adam_q8_factors(const struct zk_scalars *s)
{
    return (struct adam_q8_factors){
        .decay = vec_all_f(s->decay),
        .scale = vec_all_f(s->scale),
        .l2 = vec_all_f(s->l2),
        .one_minus_beta1 = vec_all_f(s->one_minus_beta1),
        .one_minus_beta2 = vec_all_f(s->one_minus_beta2),
        .beta2 = vec_all_f(s->beta2),
        .rsqrt_c2 = vec_all_f(s->rsqrt_c2),
        .eps = vec_all_f(s->eps),
        .step_size = vec_all_f(s->step_size),
    };
}

/* ---- a row from memory, and back */

/* Of bf16. */
VEC_FN struct adam_q8_pair adam_q8_of_bf16(vec_i h)
{
    return (struct adam_q8_pair){
        vec_float(VEC_SLL(h, 16)),
        vec_float(vec_and(h, vec_all(0xffff0000))),
    };
}

VEC_FN struct adam_q8_pair adam_q8_of_f32(const float *from)
{
    vec_f a = vec_load_f(from), b = vec_load_f(from + VEC_LANES);

    return (struct adam_q8_pair){ vec_evens(a, b), vec_odds(a, b) };
}

VEC_FN void adam_q8_to_f32(float *to, struct adam_q8_pair x)
{
    vec_store_f(to, vec_zip_low(x.even, x.odd));
    vec_store_f(to + VEC_LANES, vec_zip_high(x.even, x.odd));
}

/* elem_value_of_split() */
VEC_FN struct adam_q8_pair adam_q8_of_split(const uint16_t *hi, const int16_t *lo)
{
    vec_i l = vec_load(lo), h = vec_add16(vec_load(hi), VEC_SRA16(l, 15));

    return (struct adam_q8_pair){
        vec_float(vec_weave16(l, VEC_SLL(h, 16))),
        vec_float(vec_weave16(VEC_SRL(l, 16), h)),
    };
}

/* The lower halves of a row in order, and the upper ones. */
VEC_FN vec_i adam_q8_lower(vec_i even, vec_i odd)
{
    return vec_weave16(even, VEC_SLL(odd, 16));
}

VEC_FN vec_i adam_q8_upper(vec_i even, vec_i odd)
{
    return vec_weave16(VEC_SRL(even, 16), odd);
}

/* elem_split_canonical() */
VEC_FN void adam_q8_to_split(uint16_t *hi, int16_t *lo, struct adam_q8_pair x)
{
    vec_i even = vec_bits(x.even), odd = vec_bits(x.odd), l = adam_q8_lower(even, odd);

    vec_store(lo, l);
    vec_store(hi, vec_add16(adam_q8_upper(even, odd), VEC_SRL16(l, 15)));
}

/* The largest code of a group, of its bits in mask. */
VEC_FN uint32_t adam_q8_most_code(const uint8_t *code, uint8_t mask)
{
    const vec_i bits = vec_all8(mask), low = vec_all(0xff);
    vec_i most = vec_zero();

    for (size_t i = 0; i < ZB_Q8_GROUP; i += 4 * VEC_LANES)
        most = vec_max8_unsigned(most, vec_and(bits, vec_load(code + i)));
    most = vec_max8_unsigned(most, VEC_SRL16(most, 8)); /* in the low byte of each pair */
    return vec_largest(vec_max16_unsigned(vec_and(most, low), vec_and(VEC_SRL(most, 16), low)));
}

/* New moments in the order of their elements. */
VEC_FN void adam_q8_in_order(const vec_i from[ADAM_Q8_VECTORS], float *to)
{
    for (size_t i = 0; i < ADAM_Q8_VECTORS; i += 2)
        adam_q8_to_f32(to + VEC_LANES * i,
                       (struct adam_q8_pair){ vec_float(from[i]), vec_float(from[i + 1]) });
}

/* ---- the step */

/* elem_adam() of a vector, without making moments canonical. */
VEC_FN vec_f adam_q8_step(const struct adam_q8_factors *k, bool decoupled, vec_f param, vec_f grad,
                          vec_f *m, vec_f *v)
{
    vec_f g = vec_mul_f(grad, k->scale), p = param, d;

    if (decoupled)
        p = vec_mul_f(param, k->decay);
    else
        g = vec_fma(k->l2, param, g);
    *m = vec_fma(k->one_minus_beta1, vec_sub_f(g, *m), *m);
    *v = vec_fma(vec_mul_f(k->one_minus_beta2, g), g, vec_mul_f(k->beta2, *v));
    d = vec_fma(vec_sqrt_f(*v), k->rsqrt_c2, k->eps);
    return vec_replace_nan(vec_fma_minus(k->step_size, vec_div_f(*m, d), p),
                           vec_float(vec_all(ELEM_NAN)));
}

/* Puts away the new moments of a vector. */
VEC_FN void adam_q8_keep(struct adam_q8_new *to, size_t i, vec_f m, vec_f v)
{
    to->m[i] = vec_bits(m);
    to->v[i] = vec_bits(v);
    to->most_m = vec_max_unsigned(to->most_m, vec_and(to->m[i], vec_all(CODES_MAGNITUDE)));
    to->most_v = vec_max_unsigned(to->most_v, to->v[i]);
}

/* Steps a group; its moments before are decoded with these offsets of regular groups. */
VEC_FN void adam_q8_pass(const struct adam_q8_factors *k, const struct zk_q8_run *r, size_t at,
                         bool decoupled, bool split, bool grad_bf16, const uint32_t off[2],
                         struct adam_q8_new *to)
{
    const vec_i off_m = vec_all16((uint16_t)off[0]), off_v = vec_all16((uint16_t)off[1]);
    const uint8_t *code_m = r->code[0] + at, *code_v = r->code[1] + at;
    const char *grad = (const char *)r->grad + at * (grad_bf16 ? 2 : 4);
    uint16_t *hi = (uint16_t *)r->param + at;
    int16_t *lo = (int16_t *)r->master + (split ? at : 0);
    float *value = (float *)r->param + at;

    to->most_m = to->most_v = vec_zero();
    for (size_t i = 0; i < ZB_Q8_GROUP; i += ADAM_Q8_ROW) {
        struct adam_q8_pair p = split ? adam_q8_of_split(hi + i, lo + i)
                                      : adam_q8_of_f32(value + i);
        struct adam_q8_pair g =
            grad_bf16 ? adam_q8_of_bf16(vec_load((const uint16_t *)(const void *)grad + i))
                      : adam_q8_of_f32((const float *)(const void *)grad + i);
        struct adam_q8_pair m = adam_q8_of_bf16(codes_value(code_m + i, off_m, MOMENT_SIGN));
        struct adam_q8_pair v = adam_q8_of_bf16(codes_value(code_v + i, off_v, 0));

        p.even = adam_q8_step(k, decoupled, p.even, g.even, &m.even, &v.even);
        p.odd = adam_q8_step(k, decoupled, p.odd, g.odd, &m.odd, &v.odd);
        adam_q8_keep(to, i / VEC_LANES, m.even, v.even);
        adam_q8_keep(to, i / VEC_LANES + 1, m.odd, v.odd);
        if (split)
            adam_q8_to_split(hi + i, lo + i, p);
        else
            adam_q8_to_f32(value + i, p);
    }
}

/* ---- new codes */

/* A vector of v with its noise: 0 if it is 0, else at least `least`. */
VEC_FN vec_i adam_q8_noisy_v(vec_i v, vec_i random, vec_i least)
{
    vec_i t = vec_add(v, VEC_SRL(codes_second(random), 32 - MOMENT_CUT));

    return vec_where(v, vec_max(t, least));
}

/* Encodes a group, with the scales' patterns `below` above the top codes. first: of its elements in
 * the block. */
VEC_FN void adam_q8_encode(const struct adam_q8_new *from, uint8_t *code_m, uint8_t *code_v,
                           const uint32_t below[2], uint32_t key, uint32_t first)
{
    const vec_i every = vec_all(key & ~UINT32_C(1)), step = vec_all(ADAM_Q8_ROW * MOMENT_PLACE);
    const vec_i under_m = vec_all16((uint16_t)below[0]), under_v = vec_all16((uint16_t)below[1]);
    const vec_i least = vec_all((below[1] + 1) << MOMENT_CUT);
    vec_i place =
        vec_mul(vec_add(vec_all(first), vec_add(vec_ramp(), vec_ramp())), vec_all(MOMENT_PLACE));

    for (size_t i = 0; i < ADAM_Q8_VECTORS; i += 4) {
        vec_i sign[2], m[2], v[2];

        for (size_t j = 0; j < 2; j++) {
            const vec_i *of_m = from->m + i + 2 * j, *of_v = from->v + i + 2 * j;
            vec_i even = codes_random(place, every);
            vec_i odd = codes_random(vec_add(place, vec_all(MOMENT_PLACE)), every);

            sign[j] = adam_q8_upper(vec_add(of_m[0], VEC_SRL(even, 32 - MOMENT_CUT)),
                                    vec_add(of_m[1], VEC_SRL(odd, 32 - MOMENT_CUT)));
            m[j] = vec_sub16_or_0(VEC_SRL16(vec_add16(sign[j], sign[j]), MOMENT_CUT - 15), under_m);
            v[j] = adam_q8_upper(adam_q8_noisy_v(of_v[0], even, least),
                                 adam_q8_noisy_v(of_v[1], odd, least));
            v[j] = vec_sub16_or_0(VEC_SRL16(v[j], MOMENT_CUT - 16), under_v);
            place = vec_add(place, step);
        }
        vec_store(code_m + VEC_LANES * i,
                  vec_or(vec_narrow16_unsigned(m[0], m[1]),
                         vec_and(vec_narrow16(sign[0], sign[1]), vec_all8(MOMENT_SIGN))));
        vec_store(code_v + VEC_LANES * i, vec_narrow16_unsigned(v[0], v[1]));
    }
}

#endif
