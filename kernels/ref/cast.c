/*
 * cast.c - between fp32 and the 16-bit types: the split master, and the casts for computing.
 */
#include "kernels/cpu/f16_priv.h"
#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

void ZK_NAME(split)(const float *restrict master, uint16_t *restrict hi, int16_t *restrict lo,
                    size_t n)
{
    for (size_t i = 0; i < n; i++)
        elem_split(master[i], &hi[i], &lo[i]);
}

void ZK_NAME(merge)(const uint16_t *restrict hi, const int16_t *restrict lo, float *restrict master,
                    size_t n)
{
    for (size_t i = 0; i < n; i++)
        master[i] = elem_merge(hi[i], lo[i]);
}

void ZK_NAME(widen_lo)(const int8_t *restrict lo8, int16_t *restrict lo, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lo[i] = (int16_t)(lo8[i] * 256);
}

void ZK_NAME(round_lo)(uint16_t *restrict hi, const int16_t *restrict lo, int8_t *restrict lo8,
                       uint32_t key, size_t n)
{
    uint32_t place = 0;

    for (size_t i = 0; i < n; i++, place += MOMENT_PLACE)
        elem_split_lo8(elem_value_of_split(hi[i], lo[i]),
                       moment_noise_lo(moment_random(key, place)), &hi[i], &lo8[i]);
}

void ZK_NAME(nearest_lo)(uint16_t *restrict hi, const int16_t *restrict lo, int8_t *restrict lo8,
                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        elem_split_lo8(elem_value_of_split(hi[i], lo[i]), 0x80, &hi[i], &lo8[i]);
}

void ZK_NAME(f32_to_bf16)(const float *restrict from, uint16_t *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = elem_to_bf16(from[i]);
}

void ZK_NAME(bf16_to_f32)(const uint16_t *restrict from, float *restrict to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = elem_from_bf16(from[i]);
}

void ZK_NAME(f32_to_f16)(const float *restrict from, uint16_t *restrict to, size_t n)
{
    size_t i = 0;

#ifdef F16_ROW
    for (; i + F16_ROW <= n; i += F16_ROW)
        f16_row_from_f32(from + i, to + i);
#endif
    for (; i < n; i++)
        to[i] = elem_to_f16(from[i]);
}

void ZK_NAME(f16_to_f32)(const uint16_t *restrict from, float *restrict to, size_t n)
{
    size_t i = 0;

#ifdef F16_ROW
    for (; i + F16_ROW <= n; i += F16_ROW)
        f16_row_to_f32(from + i, to + i);
#endif
    for (; i < n; i++)
        to[i] = elem_from_f16(from[i]);
}
