/*
 * quantize.c - blockwise int8: the loops around quantize_priv.h.
 */
#include <assert.h>

#include "kernels/ref/quantize_priv.h"
#include "kernels/zk_priv.h"

static uint32_t group_most(const float *restrict from)
{
    uint32_t most = 0;

    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t a = elem_bits(from[i]) & 0x7fffffff;

        most = a > most ? a : most;
    }
    return most;
}

static void group_codes(const float *restrict from, int8_t *restrict code, float inverse)
{
    for (size_t i = 0; i < ZB_Q8_GROUP; i++)
        code[i] = quantize_code(from[i], inverse);
}

void ZK_NAME(quantize_i8)(const float *restrict from, int8_t *restrict code, float *restrict scale,
                          size_t n)
{
    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        float of_group = quantize_scale(group_most(from + at));

        group_codes(from + at, code + at, quantize_inverse(of_group));
        scale[at / ZB_Q8_GROUP] = of_group;
    }
}

void ZK_NAME(dequantize_i8)(const int8_t *restrict code, const float *restrict scale,
                            float *restrict to, size_t n)
{
    assert(n % ZB_Q8_GROUP == 0);
    for (size_t at = 0; at < n; at += ZB_Q8_GROUP) {
        float of_group = scale[at / ZB_Q8_GROUP];

        for (size_t i = at; i < at + ZB_Q8_GROUP; i++)
            to[i] = quantize_value(code[i], of_group);
    }
}
