/*
 * fma_priv.h - a vector of floats, and its fused multiply-add by a number: one instruction of the
 * processor. Compilers do not make one of the plain loop if the sums are in registers.
 */
#ifndef ZK_FMA_PRIV_H
#define ZK_FMA_PRIV_H

#include <math.h>

#define FMA_FN static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include <immintrin.h>

#define FMA_LANES     16
#define FMA_REGISTERS 32

typedef __m512 fma_vector;

/* c + a * b, one rounding for each lane */
FMA_FN fma_vector fma_by(float a, fma_vector b, fma_vector c)
{
    return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
}
#elif defined(__FMA__)
#include <immintrin.h>

#define FMA_LANES     8
#define FMA_REGISTERS 16

typedef __m256 fma_vector;

FMA_FN fma_vector fma_by(float a, fma_vector b, fma_vector c)
{
    return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
}
#elif defined(__ARM_NEON) && !defined(ZK_PLAIN)
#include <arm_neon.h>

#define FMA_LANES     4
#define FMA_REGISTERS 32

typedef float32x4_t fma_vector;

FMA_FN fma_vector fma_by(float a, fma_vector b, fma_vector c)
{
    return vfmaq_n_f32(c, b, a);
}
#else
#define FMA_LANES     4
#define FMA_REGISTERS 16

typedef float fma_vector __attribute__((vector_size(FMA_LANES * sizeof(float))));

FMA_FN fma_vector fma_by(float a, fma_vector b, fma_vector c)
{
    for (int i = 0; i < FMA_LANES; i++)
        c[i] = fmaf(a, b[i], c[i]);
    return c;
}
#endif

#endif
