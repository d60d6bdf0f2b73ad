/*
 * data.h - test values for kernels, and iteration over implementations.
 */
#ifndef ZTEST_KERNELS_DATA_H
#define ZTEST_KERNELS_DATA_H

#include "tests/ztest.h"

#include <string.h>

#include "base/util.h"
#include "kernels/zk.h"

static inline float data_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t data_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static inline bool data_is_nan(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* Zeros, denormals, infinities, NaNs of every kind, and the ties of both roundings to bf16 with
 * their neighbours, also at the ends of exponents, where rounding carries into the exponent. */
static const uint32_t data_special[] = {
    0x00000000, 0x00000001, 0x00007fff, 0x00008000, 0x00008001, 0x00018000, 0x007f8000, 0x007fffff,
    0x00800000, 0x3f7f7fff, 0x3f7f8000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f807fff, 0x3f808000,
    0x3f808001, 0x3f817fff, 0x3f818000, 0x3f818001, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000,
    0x7f800001, 0x7f808000, 0x7fbfffff, 0x7fc00000, 0x7fc00001, 0x7fff7fff, 0x7fff8000, 0x7fffffff,
};

/** One of the special values, of either sign. */
static inline uint32_t data_draw_special(uint64_t *seed)
{
    uint64_t r = ztest_random(seed);

    return data_special[r % ZB_COUNT(data_special)] | (uint32_t)(r >> 32 & 0x80000000);
}

/** A finite value of either sign, from 2^-low to 2^high in magnitude. */
static inline float data_draw_range(uint64_t *seed, int low, int high)
{
    uint64_t r = ztest_random(seed);
    uint32_t exponent = (uint32_t)(127 + low + (int)((r >> 32) % (uint64_t)(high - low)));

    return data_float((uint32_t)(r & 0x807fffff) | exponent << 23);
}

#ifdef ZTEST_CUDA_HOST
/* The kernels for GPUs, compiled for the processor: cuda_host.c. The last implementation. */
extern const struct zk_ops ztest_cuda_host;
#define DATA_LAST (&ztest_cuda_host)
#else
#define DATA_LAST NULL
#endif

/** The next implementation after `ops` (NULL: the first) that runs on this processor, or NULL. */
static inline const struct zk_ops *data_next_ops(const struct zk_ops *ops)
{
    size_t count, i = 0;
    const struct zk_ops *const *all = zk_all(&count);

    if (ops && ops == DATA_LAST)
        return NULL;
    if (ops)
        while (all[i++] != ops)
            ;
    while (i < count && !all[i]->supported())
        i++;
    return i < count ? all[i] : DATA_LAST;
}

#define data_each_ops(ops) \
    for (const struct zk_ops *ops = data_next_ops(NULL); ops; ops = data_next_ops(ops))

#endif
