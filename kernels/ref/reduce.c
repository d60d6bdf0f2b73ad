/*
 * reduce.c - adding arrays, and the sum of squares of a block.
 */
#include <assert.h>

#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

#define LANES 16

void ZK_NAME(add_f32)(float *restrict acc, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = elem_canonical(elem_add(acc[i], x[i]));
}

void ZK_NAME(add_bf16)(float *restrict acc, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = elem_canonical(elem_add(acc[i], elem_from_bf16(x[i])));
}

void ZK_NAME(add_f16)(float *restrict acc, const uint16_t *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = elem_canonical(elem_add(acc[i], elem_from_f16(x[i])));
}

/* Adds the squares of x, a whole number of rows of LANES, to the lanes. A function of its own, so
 * that the tree below does not make the compiler take this loop apart. A product is exact, so it is
 * the same with and without fma. */
static __attribute__((noinline)) void lanes_add_squares(double *restrict lane,
                                                        const float *restrict x, size_t rows)
{
    double sum[LANES];

    memcpy(sum, lane, sizeof(sum));
    for (; rows > 0; rows--, x += LANES)
        for (size_t j = 0; j < LANES; j++)
            sum[j] += (double)x[j] * (double)x[j];
    memcpy(lane, sum, sizeof(sum));
}

static uint64_t count_nonfinite(const float *x, size_t n)
{
    uint64_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += (elem_bits(x[i]) & 0x7f800000) == 0x7f800000;
    return count;
}

/* 4,096 squares of finite fp32 are below 2^268, and squares do not cancel: the sum is finite
 * exactly when every element is. So elements are looked at one by one only where it is not. */
double ZK_NAME(sumsq)(const float *restrict x, size_t n, uint64_t *nonfinite)
{
    float tail[LANES] = { 0 }; /* adding +0 changes no sum of squares */
    double lane[LANES] = { 0 };
    size_t rows = n / LANES, left = n % LANES;

    assert(n <= ZB_BLOCK_ELEMS);
    lanes_add_squares(lane, x, rows);
    if (left > 0) {
        memcpy(tail, x + rows * LANES, left * sizeof(*x));
        lanes_add_squares(lane, tail, 1);
    }
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++)
            lane[j] += lane[j + width];
    if (!isfinite(lane[0]))
        *nonfinite += count_nonfinite(x, n);
    return lane[0];
}
