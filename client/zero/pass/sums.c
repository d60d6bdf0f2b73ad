/*
 * sums.c - arithmetic of gradients: adding slices, rounding, masking.
 */
#include <string.h>

#include "client/zero/pass/pass_priv.h"

void zcz_add_slices(const struct zk_ops *ops, enum zb_dtype dtype, const void *slices,
                    uint32_t world, uint64_t slice, uint64_t first, uint64_t count, float *out)
{
    const uint16_t *half = (const uint16_t *)slices + first;
    const float *f32 = (const float *)slices + first;

    /* One block of all ranks at a time, so that out stays in the cache. */
    for (uint64_t at = 0; at < count; at += ZB_BLOCK_ELEMS) {
        uint64_t n = zb_min_u64(ZB_BLOCK_ELEMS, count - at);

        if (dtype == ZB_F32)
            memcpy(out + at, f32 + at, n * sizeof(*out));
        else
            (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(half + at, out + at, n);
        for (uint32_t r = 1; r < world; r++)
            if (dtype == ZB_F32)
                ops->add_f32(out + at, f32 + r * slice + at, n);
            else
                (dtype == ZB_BF16 ? ops->add_bf16 : ops->add_f16)(out + at, half + r * slice + at,
                                                                  n);
    }
}

/* Each element is read before it is overwritten. */
void zcz_round_in_place(const struct zk_ops *ops, enum zb_dtype dtype, void *data, uint64_t n)
{
    uint16_t block[ZB_BLOCK_ELEMS], *to = data;
    const float *from = data;

    for (uint64_t at = 0; at < n; at += ZB_BLOCK_ELEMS) {
        size_t m = zb_min_u64(ZB_BLOCK_ELEMS, n - at);

        (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(from + at, block, m);
        memcpy(to + at, block, m * sizeof(block[0]));
    }
}

void zcz_grad_mask(const struct zcz_unit *u, uint64_t padded, float *grad)
{
    uint64_t from = 0;

    for (uint32_t s = 0; s < u->nsegments; s++) {
        memset(grad + from, 0, (u->segments[s].first - from) * sizeof(*grad));
        from = u->segments[s].first + u->segments[s].count;
    }
    memset(grad + from, 0, (padded - from) * sizeof(*grad));
}
