/*
 * codes_priv.h - codes of 8 bits of regular groups (kernels/ref/moments.c), in vectors of the
 * processor (vec_priv.h). That file has the same arithmetic in portable C, which other variants use,
 * and the reference.
 *
 * Written by hand, because gcc 12 widens bytes to 32 bits early, and narrows them late. Included by
 * kernels/ref/moments.c, after moment_priv.h.
 */
#ifndef ZK_CODES_PRIV_H
#define ZK_CODES_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/plan.h"
#include "kernels/cpu/vec_priv.h"

#define CODES_MAGNITUDE UINT32_C(0x7fffffff)

/* moment_random() of a vector of elements. */
VEC_FN vec_i codes_random(vec_i place, vec_i key)
{
    vec_i x = vec_xor(place, key);

    x = vec_mul(vec_xor(x, VEC_SRL(x, 16)), vec_all(UINT32_C(0x7feb352d)));
    x = vec_mul(vec_xor(x, VEC_SRL(x, 15)), vec_all(UINT32_C(0x846ca68b)));
    return vec_xor(x, VEC_SRL(x, 16));
}

/* moment_noise_of() the second moment. */
VEC_FN vec_i codes_second(vec_i random)
{
    return vec_swap16(random);
}

/* The codes of a vector of values, 32 bits each. */
VEC_FN vec_i codes_of(const float *from, vec_i random, uint32_t moment, bool is_signed, vec_i below)
{
    vec_i noise = moment == 0 ? random : codes_second(random);
    vec_i b = vec_load(from), a = vec_and(b, vec_all(CODES_MAGNITUDE));
    vec_i c = VEC_SRL(vec_add(a, VEC_SRL(noise, 32 - MOMENT_CUT)), MOMENT_CUT);

    c = vec_sub(c, below);
    if (is_signed)
        return vec_or(vec_max(c, vec_zero()), vec_and(VEC_SRL(b, 24), vec_all(MOMENT_SIGN)));
    return vec_min(a, vec_max(c, vec_all(1)));
}

/* Encodes a regular group, whose scale's pattern is `below` above the top code. */
static inline void group_encode_regular(const float *restrict from, uint8_t *restrict code,
                                        bool is_signed, int32_t below,
                                        const uint32_t *restrict random, uint32_t moment)
{
    const vec_i under = vec_all((uint32_t)below);

    for (size_t at = 0; at < ZB_Q8_GROUP; at += 4 * VEC_LANES) {
        vec_i v[4];

        for (size_t i = 0; i < 4; i++) {
            size_t first = at + i * VEC_LANES;

            v[i] = codes_of(from + first, vec_load(random + first), moment, is_signed, under);
        }
        vec_store_bytes(code + at, v);
    }
}

/* moment_random() of a group. */
static inline void group_random(uint32_t key, uint32_t first, uint32_t *restrict random)
{
    const vec_i step = vec_all(VEC_LANES * MOMENT_PLACE), every = vec_all(key & ~UINT32_C(1));
    vec_i place = vec_mul(vec_add(vec_all(first), vec_ramp()), vec_all(MOMENT_PLACE));

    for (size_t at = 0; at < ZB_Q8_GROUP; at += VEC_LANES) {
        vec_store(random + at, codes_random(place, every));
        place = vec_add(place, step);
    }
}

/* The largest magnitude of a group. */
static inline uint32_t group_most(const float *restrict from)
{
    vec_i most = vec_zero();

    for (size_t at = 0; at < ZB_Q8_GROUP; at += VEC_LANES)
        most = vec_max_unsigned(most, vec_and(vec_all(CODES_MAGNITUDE), vec_load(from + at)));
    return vec_largest(most);
}

/* 2 VEC_LANES elements of a regular group, in bf16; off: the scale's pattern less the top code. */
VEC_FN vec_i codes_value(const uint8_t *code, vec_i off, uint16_t sign)
{
    const vec_i is_sign = vec_all16(sign);
    vec_i u = vec_widen8(code), c = vec_and_not(is_sign, u);
    vec_i h = vec_where16(c, VEC_SLL16(vec_add16(c, off), MOMENT_CUT - 16));

    return vec_or(h, VEC_SLL16(vec_and(u, is_sign), 8));
}

/* Decodes a regular group to bf16. */
static inline void group_decode_regular(const uint8_t *restrict code, uint16_t *restrict to,
                                        uint16_t off, uint16_t sign)
{
    const vec_i add = vec_all16(off);

    for (size_t at = 0; at < ZB_Q8_GROUP; at += 2 * VEC_LANES)
        vec_store(to + at, codes_value(code + at, add, sign));
}

#endif
