/*
 * ops_priv.h - the IEEE operations that elem_priv.h is made of, one rounding each. They have names
 * so that a compiler that fuses or approximates on its own (CUDA's) can be given its exact ones.
 */
#ifndef ZK_OPS_PRIV_H
#define ZK_OPS_PRIV_H

#include <float.h>
#include <math.h>

/* "The same bits" needs arithmetic in the operands' own format; x87 has none. */
_Static_assert(FLT_EVAL_METHOD == 0, "float arithmetic is done in float, double in double");

static inline float elem_add(float a, float b)
{
    return a + b;
}

static inline float elem_sub(float a, float b)
{
    return a - b;
}

static inline float elem_mul(float a, float b)
{
    return a * b;
}

static inline float elem_div(float a, float b)
{
    return a / b;
}

static inline float elem_sqrt(float a)
{
    return sqrtf(a);
}

/* a * b + c, rounded once. */
static inline float elem_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}

#endif
