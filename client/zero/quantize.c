/*
 * quantize.c - parameters as they travel with quantize_gather: a byte each, and scales.
 *
 * MODEL. A slice on the wire is int8_t code[slice], float scale[slice / ZB_Q8_GROUP]: blockwise
 * int8, as kernels/zk.h has it. Slices are whole blocks, so a group never lies in two of them, and
 * what a weight becomes does not depend on how many ranks there are. Every rank computes with what
 * comes out of the codes, the one whose slice it is, too; what is stepped stays with the store and
 * is never touched.
 */
#include <string.h>

#include "client/zero/zero_priv.h"

size_t zcz_wire_bytes(uint64_t slice)
{
    return slice + slice / ZB_Q8_GROUP * sizeof(float);
}

void zcz_quantize(const struct zk_ops *ops, enum zb_dtype dtype, const void *from, uint64_t count,
                  uint64_t slice, void *wire)
{
    int8_t *codes = wire;
    float *scales = (float *)(void *)(codes + slice);
    float block[ZB_BLOCK_ELEMS];

    for (uint64_t at = 0; at < count; at += ZB_BLOCK_ELEMS) {
        const uint16_t *half = (const uint16_t *)from + at;
        const float *f32 = block;

        if (dtype == ZB_F32)
            f32 = (const float *)from + at;
        else
            (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(half, block, ZB_BLOCK_ELEMS);
        ops->quantize_i8(f32, codes + at, scales + at / ZB_Q8_GROUP, ZB_BLOCK_ELEMS);
    }
    memset(codes + count, 0, slice - count);
    memset(scales + count / ZB_Q8_GROUP, 0, (slice - count) / ZB_Q8_GROUP * sizeof(*scales));
}

void zcz_dequantize(const struct zk_ops *ops, enum zb_dtype dtype, const void *wire, uint64_t slice,
                    void *to)
{
    const int8_t *codes = wire;
    const float *scales = (const float *)(const void *)(codes + slice);
    float block[ZB_BLOCK_ELEMS];

    for (uint64_t at = 0; at < slice; at += ZB_BLOCK_ELEMS) {
        uint16_t *half = (uint16_t *)to + at;
        float *f32 = dtype == ZB_F32 ? (float *)to + at : block;

        ops->dequantize_i8(codes + at, scales + at / ZB_Q8_GROUP, f32, ZB_BLOCK_ELEMS);
        if (dtype != ZB_F32)
            (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(block, half, ZB_BLOCK_ELEMS);
    }
}
