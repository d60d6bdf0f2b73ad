/*
 * reduce.c - adding and setting arrays, and the sum of squares of a block.
 */
#include <assert.h>

#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

#define LANES     16
#define ADD_CHUNK 512 /* of fp16, converted to fp32 in the first-level cache */

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
    float chunk[ADD_CHUNK];

    for (size_t at = 0; at < n; at += ADD_CHUNK) {
        size_t count = n - at < ADD_CHUNK ? n - at : ADD_CHUNK;

        ZK_NAME(f16_to_f32)(x + at, chunk, count);
        ZK_NAME(add_f32)(acc + at, chunk, count);
    }
}

/*
 * Loops over rows of LANES elements, which add the square of each element to its lane. They are
 * separate functions, so that the tree at the end does not make the compiler split up the lanes.
 */
static __attribute__((noinline)) void lanes_add_squares(double *restrict lane,
                                                        const float *restrict x, size_t rows)
{
    double sum[LANES];

    memcpy(sum, lane, sizeof(sum));
    for (; rows > 0; rows--, x += LANES)
        for (size_t j = 0; j < LANES; j++)
            sum[j] = elem_add_square(sum[j], x[j]);
    memcpy(lane, sum, sizeof(sum));
}

static __attribute__((noinline)) void lanes_set_f32(double *restrict lane, float *restrict to,
                                                    const float *restrict x, size_t rows)
{
    double sum[LANES];

    memcpy(sum, lane, sizeof(sum));
    for (; rows > 0; rows--, x += LANES, to += LANES)
        for (size_t j = 0; j < LANES; j++) {
            float f = x[j];

            to[j] = f;
            sum[j] = elem_add_square(sum[j], f);
        }
    memcpy(lane, sum, sizeof(sum));
}

static __attribute__((noinline)) void lanes_set_bf16(double *restrict lane, uint16_t *restrict to,
                                                     const uint16_t *restrict x, size_t rows)
{
    double sum[LANES];

    memcpy(sum, lane, sizeof(sum));
    for (; rows > 0; rows--, x += LANES, to += LANES)
        for (size_t j = 0; j < LANES; j++) {
            uint16_t h = x[j];

            to[j] = h;
            sum[j] = elem_add_square(sum[j], elem_float((uint32_t)h << 16));
        }
    memcpy(lane, sum, sizeof(sum));
}

static double lanes_sum(double *lane)
{
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/*
 * 4,096 squares of finite fp32 add up to less than 2^268, and squares do not cancel: the sum is
 * finite exactly when every element is. So single elements are tested only if it is not. A partial
 * row is padded with zeros: adding +0 changes no sum of squares.
 */
static uint64_t count_nonfinite(const float *x, size_t n)
{
    uint64_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += (uint64_t)elem_is_nonfinite(elem_bits(x[i]));
    return count;
}

double ZK_NAME(sumsq)(const float *restrict x, size_t n, uint64_t *nonfinite)
{
    float tail[LANES] = { 0 };
    double lane[LANES] = { 0 }, sum;
    size_t rows = n / LANES, left = n % LANES;

    assert(n <= ZB_BLOCK_ELEMS);
    lanes_add_squares(lane, x, rows);
    if (left > 0) {
        memcpy(tail, x + rows * LANES, left * sizeof(*x));
        lanes_add_squares(lane, tail, 1);
    }
    sum = lanes_sum(lane);
    if (!isfinite(sum))
        *nonfinite += count_nonfinite(x, n);
    return sum;
}

double ZK_NAME(set_f32)(float *restrict to, const float *restrict x, size_t n, uint64_t *nonfinite)
{
    float tail[LANES] = { 0 };
    double lane[LANES] = { 0 }, sum;
    size_t rows = n / LANES, left = n % LANES;

    assert(n <= ZB_BLOCK_ELEMS);
    lanes_set_f32(lane, to, x, rows);
    if (left > 0) {
        memcpy(tail, x + rows * LANES, left * sizeof(*x));
        memcpy(to + rows * LANES, tail, left * sizeof(*x));
        lanes_add_squares(lane, tail, 1);
    }
    sum = lanes_sum(lane);
    if (!isfinite(sum))
        *nonfinite += count_nonfinite(to, n);
    return sum;
}

double ZK_NAME(set_bf16)(uint16_t *restrict to, const uint16_t *restrict x, size_t n,
                         uint64_t *nonfinite)
{
    uint16_t tail[LANES] = { 0 }, tail_to[LANES];
    double lane[LANES] = { 0 }, sum;
    size_t rows = n / LANES, left = n % LANES;

    assert(n <= ZB_BLOCK_ELEMS);
    lanes_set_bf16(lane, to, x, rows);
    if (left > 0) {
        memcpy(tail, x + rows * LANES, left * sizeof(*x));
        lanes_set_bf16(lane, tail_to, tail, 1);
        memcpy(to + rows * LANES, tail_to, left * sizeof(*x));
    }
    sum = lanes_sum(lane);
    for (size_t i = 0; i < n && !isfinite(sum); i++)
        *nonfinite += (to[i] & 0x7f80) == 0x7f80;
    return sum;
}
