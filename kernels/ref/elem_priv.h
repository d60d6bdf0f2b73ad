/*
 * elem_priv.h - the arithmetic of one element: the only place where it is defined.
 *
 * MODEL. Floats are tested by their bits: such a test gives the same result in every mode of the
 * floating-point unit. (`f == f`, as a test for NaN, does so too, with the flags that
 * CMakeLists.txt requires.) Every choice is a select between two computed values, never a branch,
 * so that the loops over these functions are vectorized. CUDA's compiler compiles this file, too.
 */
#ifndef ZK_ELEM_PRIV_H
#define ZK_ELEM_PRIV_H

#include <stdint.h>
#include <string.h>

#include "kernels/ref/ops_priv.h"
#include "kernels/zk.h"

#define ELEM_NAN      UINT32_C(0x7fc00000)
#define ELEM_BF16_NAN UINT32_C(0x7fc0)
#define ELEM_F16_NAN  UINT32_C(0x7e00)
#define ELEM_F16_INF  UINT32_C(0x7c00)

ELEM_FN uint32_t elem_bits(float f)
{
    uint32_t b;

    memcpy(&b, &f, sizeof(b));
    return b;
}

ELEM_FN float elem_float(uint32_t b)
{
    float f;

    memcpy(&f, &b, sizeof(f));
    return f;
}

ELEM_FN int elem_is_nan(uint32_t b)
{
    return (b & 0x7fffffff) > 0x7f800000;
}

/* f as it is stored. f == f is false only for NaNs, and takes an operation less than a bit test. */
ELEM_FN float elem_canonical(float f)
{
    return elem_float(f == f ? elem_bits(f) : ELEM_NAN);
}

/* The nearest bf16, ties to even. Adding just under a half carries into the kept bits exactly when
 * the value rounds up. The carry may change the exponent: beyond the largest bf16 is infinity. */
ELEM_FN uint16_t elem_to_bf16(float f)
{
    uint32_t b = elem_bits(f);
#ifdef __CUDA_ARCH__
    uint16_t rounded; /* the same, but for NaNs, in one instruction */

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(f));
#else
    uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
#endif
    return (uint16_t)(elem_is_nan(b) ? ELEM_BF16_NAN : rounded);
}

/* a where mask is all ones, b where it is 0: a choice that is the same for a whole loop, without a
 * branch. */
ELEM_FN float elem_choose(uint32_t mask, float a, float b)
{
    return elem_float((elem_bits(a) & mask) | (elem_bits(b) & ~mask));
}

/* For arithmetic: leaves NaNs as they are. The result is made canonical when it is stored. */
ELEM_FN float elem_value_of_bf16(uint16_t h)
{
    return elem_float((uint32_t)h << 16);
}

ELEM_FN float elem_from_bf16(uint16_t h)
{
    return elem_canonical(elem_value_of_bf16(h));
}

/* The exponents of fp16 are those of fp32 less 112; its denormals are multiples of 2^-24, which is
 * also the last place of a float in [0.5, 1): adding 0.5 rounds to them. */
#define ELEM_F16_REBIAS     (UINT32_C(112) << 23)
#define ELEM_F16_NORMAL_MIN UINT32_C(0x38800000) /* 2^-14 */
#define ELEM_HALF           UINT32_C(0x3f000000) /* 0.5 */

/* The nearest fp16, ties to even; values that round beyond the largest become infinity. */
ELEM_FN uint16_t elem_to_f16(float f)
{
    uint32_t b = elem_bits(f), a = b & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - ELEM_F16_REBIAS) >> 13;
    uint32_t denormal = elem_bits(elem_add(elem_float(a), 0.5f)) - ELEM_HALF;
    uint32_t h = a < ELEM_F16_NORMAL_MIN ? denormal : normal;

    h = h > ELEM_F16_INF ? ELEM_F16_INF : h;
    h |= b >> 16 & 0x8000;
    return (uint16_t)(elem_is_nan(b) ? ELEM_F16_NAN : h);
}

/* For arithmetic, as elem_value_of_bf16(). */
ELEM_FN float elem_value_of_f16(uint16_t h)
{
    uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (a << 13) + ELEM_F16_REBIAS;
    uint32_t denormal = elem_bits(elem_sub(elem_float(ELEM_HALF | a), 0.5f));
    uint32_t b = a < 0x400 ? denormal : a >= ELEM_F16_INF ? normal + ELEM_F16_REBIAS : normal;

    return elem_float(b | sign);
}

ELEM_FN float elem_from_f16(uint16_t h)
{
    return elem_canonical(elem_value_of_f16(h));
}

/* The split master (zk.h): lo = b - (hi << 16) is the low half of b, read as a signed number. A
 * canonical NaN becomes 0x7fc0 and 0. */
ELEM_FN void elem_split_canonical(float master, uint16_t *hi, int16_t *lo)
{
    uint32_t b = elem_bits(master);

    *hi = (uint16_t)((b + 0x8000) >> 16);
    *lo = (int16_t)(uint16_t)b;
}

ELEM_FN void elem_split(float master, uint16_t *hi, int16_t *lo)
{
    elem_split_canonical(elem_canonical(master), hi, lo);
}

/* The split of a canonical master whose lo has 8 bits, with noise from 0 to 0xff. */
ELEM_FN void elem_split_lo8(float master, uint32_t noise, uint16_t *hi, int8_t *lo8)
{
    uint32_t b = elem_bits(master) + noise;

    *lo8 = (int8_t)(uint8_t)(b >> 8);
    *hi = (uint16_t)((b + 0x8000) >> 16); /* the lower 8 bits carry nothing into it */
}

/* For arithmetic, as elem_value_of_bf16(). */
ELEM_FN float elem_value_of_split(uint16_t hi, int16_t lo)
{
    return elem_float(((uint32_t)hi << 16) + (uint32_t)(int32_t)lo);
}

ELEM_FN float elem_merge(uint16_t hi, int16_t lo)
{
    return elem_canonical(elem_value_of_split(hi, lo));
}

/* sum + x * x in double. The product is exact, so it is the same with and without fma. */
ELEM_FN double elem_add_square(double sum, float x)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDA_ARCH__)
    return fma((double)x, (double)x, sum);
#else
    return sum + (double)x * (double)x;
#endif
}

/* Infinite or NaN. */
ELEM_FN int elem_is_nonfinite(uint32_t b)
{
    return (b & 0x7f800000) == 0x7f800000;
}

/* The step of each optimizer for one element, as zk.h defines it. The master and the moments are
 * updated in place; optimizers with one moment do not use v. */

ELEM_FN void elem_adam(const struct zk_scalars *s, float p, float g, float *param, float *m,
                       float *v)
{
    float new_m = elem_fma(s->one_minus_beta1, elem_sub(g, *m), *m);
    float new_v = elem_fma(elem_mul(s->one_minus_beta2, g), g, elem_mul(s->beta2, *v));
    float d = elem_fma(elem_sqrt(new_v), s->rsqrt_c2, s->eps);

    *param = elem_canonical(elem_fma(-s->step_size, elem_div(new_m, d), p));
    *m = elem_canonical(new_m);
    *v = elem_canonical(new_v);
}

ELEM_FN void elem_step_ADAMW(const struct zk_scalars *s, float *param, float *m, float *v,
                             float grad)
{
    elem_adam(s, elem_mul(*param, s->decay), elem_mul(grad, s->scale), param, m, v);
}

ELEM_FN void elem_step_ADAM(const struct zk_scalars *s, float *param, float *m, float *v,
                            float grad)
{
    elem_adam(s, *param, elem_fma(s->l2, *param, elem_mul(grad, s->scale)), param, m, v);
}

/* 1 with the sign of f; f itself if it is 0 or NaN. */
ELEM_FN float elem_sign(float f)
{
    uint32_t b = elem_bits(f), a = b & 0x7fffffff;
    uint32_t one = (b & 0x80000000) | 0x3f800000;

    return elem_float(a - 1 < UINT32_C(0x7f800000) ? one : b);
}

ELEM_FN void elem_step_LION(const struct zk_scalars *s, float *param, float *m, float *v,
                            float grad)
{
    float g = elem_mul(grad, s->scale);
    float u = elem_fma(s->one_minus_beta1, g, elem_mul(s->beta1, *m));
    float new_m = elem_fma(s->one_minus_beta2, g, elem_mul(s->beta2, *m));

    (void)v;
    *param = elem_canonical(elem_fma(-s->step_size, elem_sign(u), elem_mul(*param, s->decay)));
    *m = elem_canonical(new_m);
}

ELEM_FN void elem_step_SGD(const struct zk_scalars *s, float *param, float *m, float *v, float grad)
{
    float g = elem_fma(s->l2, *param, elem_mul(grad, s->scale));
    float old = elem_fma(s->one_minus_dampening, g, elem_mul(s->momentum, *m));
    float new_m = elem_choose(0 - s->fresh, g, old);
    float ahead = elem_fma(s->momentum, new_m, g);
    float by = elem_choose(0 - s->nesterov, ahead, new_m);

    (void)v;
    *param = elem_canonical(elem_fma(-s->step_size, by, *param));
    *m = elem_canonical(new_m);
}

ELEM_FN void elem_step_ADAGRAD(const struct zk_scalars *s, float *param, float *m, float *v,
                               float grad)
{
    float g = elem_fma(s->l2, *param, elem_mul(grad, s->scale));
    float sum = elem_fma(g, g, *m);

    (void)v;
    *param = elem_canonical(
        elem_fma(-s->step_size, elem_div(g, elem_add(elem_sqrt(sum), s->eps)), *param));
    *m = elem_canonical(sum);
}

/* The first pass: `param` becomes the element of the matrix that is orthogonalized. */
ELEM_FN void elem_step_MUON(const struct zk_scalars *s, float *param, float *m, float *v,
                            float grad)
{
    float g = elem_mul(grad, s->scale);
    float new_m = elem_fma(s->one_minus_momentum, elem_sub(g, *m), *m);
    float ahead = elem_fma(s->momentum, elem_sub(new_m, g), g);

    (void)v;
    *param = elem_canonical(elem_choose(0 - s->nesterov, ahead, new_m));
    *m = elem_canonical(new_m);
}

/* The second pass: `by` is an element of the orthogonalized matrix. */
ELEM_FN float elem_weight(const struct zk_scalars *s, float param, float by)
{
    return elem_canonical(elem_fma(-s->step_size, by, elem_mul(param, s->decay)));
}

#endif
