/*
 * quantize_priv.h - blockwise int8: the arithmetic of one element (zk.h has the format). CUDA's
 * compiler compiles this file, too.
 *
 * MODEL. Adding 3 * 2^22 to a number below 2^21 in magnitude leaves no room for a fraction: the sum
 * is rounded to an integer, which is in the low bits. With fma that is the only rounding.
 */
#ifndef ZK_QUANTIZE_PRIV_H
#define ZK_QUANTIZE_PRIV_H

#include "kernels/ref/elem_priv.h"

#define QUANTIZE_MAGIC     UINT32_C(0x4b400000) /* 3 * 2^22 */
#define QUANTIZE_SCALE_MIN UINT32_C(0x00800000) /* 2^-126 */

/* The scale of a group, from the bits of its largest magnitude. Infinities and NaNs have the
 * largest bits of all. */
ELEM_FN float quantize_scale(uint32_t most)
{
    float scale = elem_div(elem_float(most), 127.0f);
    uint32_t b = elem_bits(scale);

    b = b < QUANTIZE_SCALE_MIN ? QUANTIZE_SCALE_MIN : b;
    return elem_float(elem_is_nonfinite(most) ? ELEM_NAN : b);
}

/* The factor for elements. */
ELEM_FN float quantize_inverse(float scale)
{
    return elem_div(1.0f, scale);
}

ELEM_FN int8_t quantize_code(float x, float inverse)
{
    uint32_t b = elem_bits(elem_fma(x, inverse, elem_float(QUANTIZE_MAGIC)));
    int32_t code = (int32_t)(b - QUANTIZE_MAGIC);

    return (int8_t)(elem_is_nan(b) ? 0 : code);
}

/* The code becomes a float by the same sum, which is exact: on a GPU, conversions are slower. */
ELEM_FN float quantize_value(int8_t code, float scale)
{
    float f = elem_float(QUANTIZE_MAGIC + (uint32_t)(int32_t)code);

    return elem_canonical(elem_mul(elem_sub(f, elem_float(QUANTIZE_MAGIC)), scale));
}

#endif
