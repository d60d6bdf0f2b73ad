/*
 * elem_priv.h - the arithmetic of one element: the one place where it is written.
 *
 * MODEL. Floats are looked at through their bits wherever a NaN may be involved: a test on bits
 * gives the same answer whatever the compiler believes about NaNs and whatever the mode of the
 * floating-point unit. Every choice is a select between two computed values, never a branch, and
 * so the loops over these functions become vector code.
 */
#ifndef ZK_ELEM_PRIV_H
#define ZK_ELEM_PRIV_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/zk.h"

/* "The same bits" needs arithmetic in the operands' own format; x87 has none. */
_Static_assert(FLT_EVAL_METHOD == 0, "float arithmetic is done in float, double in double");

#define ELEM_NAN      UINT32_C(0x7fc00000)
#define ELEM_BF16_NAN UINT32_C(0x7fc0)

static inline uint32_t elem_bits(float f)
{
    uint32_t b;

    memcpy(&b, &f, sizeof(b));
    return b;
}

static inline float elem_float(uint32_t b)
{
    float f;

    memcpy(&f, &b, sizeof(f));
    return f;
}

static inline int elem_is_nan(uint32_t b)
{
    return (b & 0x7fffffff) > 0x7f800000;
}

/* f as it is stored. */
static inline float elem_canonical(float f)
{
    uint32_t b = elem_bits(f);

    return elem_float(elem_is_nan(b) ? ELEM_NAN : b);
}

/* The nearest bf16, ties to even. Adding just under a half carries into the kept bits exactly when
 * the value rounds up, through the exponent too: beyond the largest bf16 that is infinity. */
static inline uint16_t elem_to_bf16(float f)
{
    uint32_t b = elem_bits(f);
    uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;

    return (uint16_t)(elem_is_nan(b) ? ELEM_BF16_NAN : rounded);
}

static inline float elem_from_bf16(uint16_t h)
{
    return elem_canonical(elem_float((uint32_t)h << 16));
}

/* The split master (zk.h): lo = b - (hi << 16) is the low half of b, read as a signed number. */
static inline void elem_split(float master, uint16_t *hi, int16_t *lo)
{
    uint32_t b = elem_bits(elem_canonical(master));

    *hi = (uint16_t)((b + 0x8000) >> 16);
    *lo = (int16_t)(uint16_t)b;
}

static inline float elem_merge(uint16_t hi, int16_t lo)
{
    return elem_canonical(elem_float(((uint32_t)hi << 16) + (uint32_t)(int32_t)lo));
}

/* One element of AdamW, as zk.h spells it. */
static inline void elem_adamw(const struct zk_adamw *s, float *param, float *m, float *v,
                              float grad)
{
    float g = grad * s->scale;
    float p = *param * s->decay;
    float new_m = fmaf(s->one_minus_beta1, g - *m, *m);
    float new_v = fmaf(s->one_minus_beta2 * g, g, s->beta2 * *v);
    float d = fmaf(sqrtf(new_v), s->rsqrt_c2, s->eps);

    *param = elem_canonical(fmaf(-s->step_size, new_m / d, p));
    *m = elem_canonical(new_m);
    *v = elem_canonical(new_v);
}

#endif
