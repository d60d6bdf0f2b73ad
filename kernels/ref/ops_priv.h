/*
 * ops_priv.h - the IEEE operations that elem_priv.h consists of, with one rounding each. They are
 * functions, so that a compiler that fuses or approximates by default (CUDA's) gets its exact ones.
 */
#ifndef ZK_OPS_PRIV_H
#define ZK_OPS_PRIV_H

#include <assert.h>
#include <float.h>
#include <math.h>

/* How the functions of one element are declared. */
#ifdef __CUDACC__
#define ELEM_FN static __host__ __device__ __forceinline__
#else
#define ELEM_FN static inline
#endif

/* The same bits everywhere need arithmetic in the operands' own format, which x87 lacks. */
static_assert(FLT_EVAL_METHOD == 0, "float arithmetic is done in float, double in double");

/* The plain operation, and nvcc's intrinsic, which is never fused or approximated, and keeps
 * denormals whatever the flags. */
#ifdef __CUDA_ARCH__
#define ELEM_OP(plain, exact) (exact)
#else
#define ELEM_OP(plain, exact) (plain)
#endif

ELEM_FN float elem_add(float a, float b)
{
    return ELEM_OP(a + b, __fadd_rn(a, b));
}

ELEM_FN float elem_sub(float a, float b)
{
    return ELEM_OP(a - b, __fsub_rn(a, b));
}

ELEM_FN float elem_mul(float a, float b)
{
    return ELEM_OP(a * b, __fmul_rn(a, b));
}

ELEM_FN float elem_div(float a, float b)
{
    return ELEM_OP(a / b, __fdiv_rn(a, b));
}

ELEM_FN float elem_sqrt(float a)
{
    return ELEM_OP(sqrtf(a), __fsqrt_rn(a));
}

/* a * b + c, rounded once. */
ELEM_FN float elem_fma(float a, float b, float c)
{
    return ELEM_OP(fmaf(a, b, c), __fmaf_rn(a, b, c));
}

#endif
