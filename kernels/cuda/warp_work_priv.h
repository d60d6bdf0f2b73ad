/*
 * warp_work_priv.h - all kernels for GPUs, and the form in which the host passes a work to them.
 */
#ifndef ZK_WARP_WORK_PRIV_H
#define ZK_WARP_WORK_PRIV_H

#include "kernels/cuda/warp_array_priv.h"
#include "kernels/cuda/warp_step_priv.h"
#include "kernels/cuda/warp_sums_priv.h"

/* The number of warps that a work takes; of an array, spans. */
static inline uint64_t warp_chunks(const struct zk_gpu_work *w)
{
    if (w->op == ZK_GPU_STEP)
        return w->step.page.count / WARP_CHUNK;
    if (w->op == ZK_GPU_INGEST)
        return zb_div_up(w->ingest.page.count / WARP_B, WARP_BLOCKS);
    if (w->op == ZK_GPU_NORM)
        return zb_div_up(zb_div_up(w->array.n, WARP_B), WARP_BLOCKS);
    return zb_div_up(w->array.n, WARP_CHUNK * array_span(w->op));
}

static inline struct warp_step warp_step_of(const struct zk_gpu_step *w)
{
    uint32_t moment_bytes = zb_moment_block_bytes(w->layout.moments);
    struct warp_step a;

    a.param = (unsigned char *)w->page.param;
    a.state = (unsigned char *)w->page.state;
    a.grad = (unsigned char *)w->page.grad;
    a.first = w->page.first;
    a.count = w->page.count;
    a.segments = w->segments;
    a.by_group = w->by_group;
    a.nsegments = w->nsegments;
    a.block_bytes = w->layout.block_bytes[ZB_STATE];
    a.grad_dtype = w->layout.grad_dtype;
    for (uint32_t i = 0; i < ZB_MOMENTS_MAX; i++) {
        bool is = i < w->layout.nmoments;

        a.moment_at[i] = is ? a.block_bytes - (w->layout.nmoments - i) * moment_bytes : 0;
        a.moment_signed[i] = is && zb_moment_signed(w->layout.optimizer, i);
    }
    return a;
}

static inline bool warp_aligned(const void *array, size_t elem_bytes)
{
    return (uintptr_t)array % (4 * elem_bytes) == 0;
}

static inline struct warp_sums warp_sums_of(const struct zk_gpu_work *w)
{
    bool ingest = w->op == ZK_GPU_INGEST;
    struct warp_sums a;

    a.from = ingest ? w->ingest.from : w->array.from;
    a.grad = ingest ? w->ingest.page.grad : NULL;
    a.norms = ingest ? w->ingest.norms : w->array.norms;
    a.n = ingest ? w->ingest.page.count : w->array.n;
    a.vector =
        warp_aligned(a.from, zb_dtype_bytes(ingest ? w->ingest.from_dtype : w->array.from_dtype));
    return a;
}

static inline struct sums_kind warp_sums_kind(const struct zk_gpu_work *w)
{
    struct sums_kind kind;

    kind.ingest = w->op == ZK_GPU_INGEST;
    kind.from = kind.ingest ? w->ingest.from_dtype : w->array.from_dtype;
    kind.grad = kind.ingest ? w->ingest.layout.grad_dtype : ZB_F32;
    kind.add = kind.ingest && w->ingest.add;
    return kind;
}

/* Whether all arrays of a work on arrays are aligned for quads. */
static inline bool warp_vector(enum zk_gpu_op op, const struct zk_gpu_array *a)
{
    size_t from = zb_dtype_bytes(a->from_dtype), to = zb_dtype_bytes(a->to_dtype), side = 1;

    if (op == ZK_GPU_SPLIT || op == ZK_GPU_SCALE || op == ZK_GPU_ENCODE_BF16 ||
        op == ZK_GPU_ENCODE_Q8)
        from = sizeof(float);
    else if (op == ZK_GPU_MERGE)
        from = sizeof(uint16_t);
    else if (op == ZK_GPU_DECODE_Q8 || op == ZK_GPU_DEQUANTIZE_I8)
        from = 1;
    if (op == ZK_GPU_MERGE || op == ZK_GPU_ADD || op == ZK_GPU_SCALE || op == ZK_GPU_DECODE_Q8)
        to = sizeof(float);
    else if (op == ZK_GPU_SPLIT || op == ZK_GPU_ENCODE_BF16)
        to = sizeof(uint16_t);
    else if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_QUANTIZE_I8)
        to = 1;
    if (op == ZK_GPU_SPLIT || op == ZK_GPU_MERGE)
        side = sizeof(int16_t);
    return warp_aligned(a->from, from) && warp_aligned(a->to, to) && warp_aligned(a->side, side);
}

#endif
