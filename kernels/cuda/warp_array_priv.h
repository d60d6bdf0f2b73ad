/*
 * warp_array_priv.h - works on arrays, as what one warp does: warp_priv.h has the model.
 *
 * SPANS. A warp does a span of array_span() chunks, and reads all of it before it writes. The fewer
 * bytes an element has, the more of them a warp must read at a time to keep the memory busy.
 */
#ifndef ZK_WARP_ARRAY_PRIV_H
#define ZK_WARP_ARRAY_PRIV_H

#include "kernels/cuda/warp_priv.h"

#define ARRAY_SPAN_MAX 4u /* chunks */

/* Chunks that a warp does at a time. */
WARP_BOTH unsigned array_span(enum zk_gpu_op op)
{
    switch (op) {
    case ZK_GPU_DECODE_Q8:
    case ZK_GPU_DEQUANTIZE_I8:
        return 4;
    case ZK_GPU_ENCODE_Q8:
    case ZK_GPU_QUANTIZE_I8:
        return 2;
    default:
        return 1;
    }
}

/* Codes and scales are stored by block: the codes of the block that contains element i, and its
 * scale. */
WARP_FN unsigned char *block_codes(const void *blocks, uint64_t i)
{
    return (unsigned char *)(uintptr_t)blocks + i / WARP_B * ZB_Q8_BLOCK_BYTES;
}

WARP_FN elem32 *block_scale(const void *blocks, uint64_t i)
{
    return (elem32 *)(void *)(block_codes(blocks, i) + WARP_B) + i % WARP_B / ZB_Q8_GROUP;
}

/* The values that a work reads from a quad. */
struct array_raw {
    struct raw from, more;
    struct quad8 code;
    uint32_t scale;
};

/* The quad at element i. A chunk's scale is read with its first quad (half 0) only. */
WARP_FN struct array_raw array_read(const struct zk_gpu_array *a, enum zk_gpu_op op, uint64_t i,
                                    unsigned half, bool whole)
{
    struct array_raw r;

    memset(&r, 0, sizeof(r));
    switch (op) {
    case ZK_GPU_CAST:
        r.from = raw_get(a->from_dtype, a->from, i, a->n, whole);
        break;
    case ZK_GPU_ADD:
        r.from = raw_get(a->from_dtype, a->from, i, a->n, whole);
        r.more = raw_get(ZB_F32, a->to, i, a->n, whole);
        break;
    case ZK_GPU_SPLIT:
    case ZK_GPU_SCALE:
    case ZK_GPU_ENCODE_BF16:
        r.from = raw_get(ZB_F32, a->from, i, a->n, whole);
        break;
    case ZK_GPU_MERGE:
        r.from = raw_get(ZB_BF16, a->from, i, a->n, whole);
        r.more = raw_get(ZB_BF16, a->side, i, a->n, whole);
        break;
    case ZK_GPU_DECODE_Q8:
        r.code = quad_get8(a->from, i, a->n, whole);
        if (half == 0 && i < a->n)
            r.scale = ((const elem32 *)a->side)[i / ZB_Q8_GROUP];
        break;
    case ZK_GPU_DEQUANTIZE_I8:
        r.code = quad_get8(block_codes(a->from, i), i % WARP_B, WARP_B, whole);
        if (half == 0)
            r.scale = *block_scale(a->from, i);
        break;
    default: /* not element by element */
        break;
    }
    return r;
}

WARP_FN void array_cast(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                        bool whole)
{
    if (a->from_dtype != a->to_dtype)
        quad_put(a->to_dtype, a->to, i, a->n, whole,
                 quad_canonical(raw_values(a->from_dtype, r->from)));
    else if (a->from_dtype == ZB_F32) /* as it is, NaNs too */
        quad_put32(a->to, i, a->n, whole, r->from.wide);
    else
        quad_put16(a->to, i, a->n, whole, r->from.half);
}

WARP_FN void array_split(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                         bool whole)
{
    struct quad16 hi, lo;

    WARP_FOR (k, 4) {
        int16_t low;

        elem_split(elem_float(r->from.wide.x[k]), &hi.x[k], &low);
        lo.x[k] = (uint16_t)low;
    }
    quad_put16(a->to, i, a->n, whole, hi);
    quad_put16(a->side, i, a->n, whole, lo);
}

WARP_FN void array_merge(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                         bool whole)
{
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = elem_merge(r->from.half.x[k], (int16_t)r->more.half.x[k]);
    quad_put(ZB_F32, a->to, i, a->n, whole, values);
}

WARP_FN void array_scale(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                         bool whole)
{
    struct quad values = raw_values(ZB_F32, r->from);

    WARP_FOR (k, 4)
        values.x[k] = elem_mul(values.x[k], a->factor);
    quad_put(ZB_F32, a->to, i, a->n, whole, quad_canonical(values));
}

WARP_FN void array_encode_bf16(const struct zk_gpu_array *a, const struct array_raw *r, uint64_t i,
                               bool whole)
{
    struct quad16 q;

    WARP_FOR (k, 4)
        q.x[k] =
            moment_to_bf16(elem_float(r->from.wide.x[k]), moment_noise(a->key, (uint32_t)(i + k)));
    quad_put16(a->to, i, a->n, whole, q);
}

WARP_FN struct quad quad_dequantize_i8(struct quad8 code, uint32_t scale)
{
    struct quad values;

    WARP_FOR (k, 4)
        values.x[k] = quantize_value((int8_t)code.x[k], elem_float(scale));
    return values;
}

WARP_FN void array_write(const struct zk_gpu_array *a, enum zk_gpu_op op, const struct array_raw *r,
                         uint64_t i, bool whole)
{
    switch (op) {
    case ZK_GPU_CAST:
        array_cast(a, r, i, whole);
        break;
    case ZK_GPU_SPLIT:
        array_split(a, r, i, whole);
        break;
    case ZK_GPU_MERGE:
        array_merge(a, r, i, whole);
        break;
    case ZK_GPU_ADD:
        quad_put(ZB_F32, a->to, i, a->n, whole,
                 quad_sum(raw_values(ZB_F32, r->more), raw_values(a->from_dtype, r->from)));
        break;
    case ZK_GPU_SCALE:
        array_scale(a, r, i, whole);
        break;
    case ZK_GPU_ENCODE_BF16:
        array_encode_bf16(a, r, i, whole);
        break;
    case ZK_GPU_DECODE_Q8:
        quad_put(ZB_F32, a->to, i, a->n, whole, quad_decode_q8(r->code, r->scale, a->is_signed));
        break;
    case ZK_GPU_DEQUANTIZE_I8:
        quad_put(a->to_dtype, a->to, i, a->n, whole, quad_dequantize_i8(r->code, r->scale));
        break;
    default: /* not element by element */
        break;
    }
}

/* Of a lane in a group: its two quads, and their largest magnitude. */
struct lane_group {
    struct quad half[2];
    uint32_t most;
};

WARP_FN void lane_group_read(enum zb_dtype dtype, bool moments, const struct raw *r,
                             struct lane_group *st)
{
    st->most = 0;
    WARP_FOR (half, 2) {
        st->half[half] = raw_values(dtype, r[half]);
        WARP_FOR (k, 4) {
            uint32_t b = elem_bits(st->half[half].x[k]);
            uint32_t x = moments ? moment_finite(b) : b & 0x7fffffff;

            st->most = x > st->most ? x : st->most;
        }
    }
}

WARP_FN void group_write(const struct zk_gpu_array *a, bool moments, bool whole, uint64_t chunk,
                         const struct lane_group *st)
{
    uint32_t most[WARP_STATES], largest;
    float scale;

    WARP_EACH (w)
        most[w] = st[w].most;
    largest = warp_most(most);
    scale = moments ? moment_scale(moment_pattern(largest)) : quantize_scale(largest);
    WARP_EACH (w) {
        WARP_FOR (half, 2) {
            uint64_t i = lane_at(chunk, WARP_LANE(w), half);
            struct quad8 q;

            if (moments)
                q = quad_encode_q8(st[w].half[half], moment_pattern(largest), a->key, (uint32_t)i,
                                   a->is_signed);
            else {
                WARP_FOR (k, 4)
                    q.x[k] = (uint8_t)quantize_code(st[w].half[half].x[k], quantize_inverse(scale));
            }
            if (moments)
                quad_put8(a->to, i, a->n, whole, q);
            else
                quad_put8(block_codes(a->to, i), i % WARP_B, WARP_B, whole, q);
        }
        if (WARP_LANE(w) == 0)
            *(moments ? (elem32 *)a->side + chunk : block_scale(a->to, chunk * WARP_CHUNK)) =
                elem_bits(scale);
    }
}

/* Handles whole groups, since the scale of one depends on all of it: 8-bit moments, or int8. */
WARP_FN void warp_groups(const struct zk_gpu_array *a, bool moments, bool whole, uint64_t first,
                         unsigned count)
{
    enum zb_dtype dtype = moments ? ZB_F32 : a->from_dtype;
    struct lane_group st[ARRAY_SPAN_MAX][WARP_STATES];

    WARP_EACH (w) {
        struct raw r[ARRAY_SPAN_MAX][2];

        WARP_FOR (g, count)
            WARP_FOR (half, 2)
                r[g][half] =
                    raw_get(dtype, a->from, lane_at(first + g, WARP_LANE(w), half), a->n, whole);
        WARP_FOR (g, count)
            lane_group_read(dtype, moments, r[g], &st[g][w]);
    }
    WARP_FOR (g, count)
        group_write(a, moments, whole, first + g, st[g]);
}

/* A lane's part of `count` chunks. */
WARP_FN void lane_array(const struct zk_gpu_array *a, enum zk_gpu_op op, uint64_t first,
                        unsigned count, unsigned lane, bool whole)
{
    struct array_raw r[ARRAY_SPAN_MAX][2];

    WARP_FOR (c, count)
        WARP_FOR (half, 2)
            r[c][half] = array_read(a, op, lane_at(first + c, lane, half), half, whole);
    WARP_FOR (c, count) {
        r[c][1].scale = r[c][0].scale;
        WARP_FOR (half, 2)
            array_write(a, op, &r[c][half], lane_at(first + c, lane, half), whole);
    }
}

WARP_FN void warp_chunks_of(const struct zk_gpu_array *a, enum zk_gpu_op op, uint64_t first,
                            unsigned count, bool whole)
{
    if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_QUANTIZE_I8) {
        warp_groups(a, op == ZK_GPU_ENCODE_Q8, whole, first, count);
        return;
    }
    WARP_EACH (w)
        lane_array(a, op, first, count, WARP_LANE(w), whole);
}

/* Does one span of any work on arrays, except norms. */
WARP_FN void warp_array(const struct zk_gpu_array *a, enum zk_gpu_op op, bool vector, uint64_t span)
{
    unsigned count = array_span(op);
    uint64_t first = span * count;

    if (vector && (first + count) * WARP_CHUNK <= a->n) {
        warp_chunks_of(a, op, first, count, true);
        return;
    }
    WARP_ONCE
    for (unsigned c = 0; c < count && (first + c) * WARP_CHUNK < a->n; c++)
        warp_chunks_of(a, op, first + c, 1, false);
}

#endif
