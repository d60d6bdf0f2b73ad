/*
 * work.c - what every backend needs to know about a work: whether it is valid, which memory it
 * uses, and what it does, in terms of zk.h. The last part defines the results of the CUDA kernels,
 * and is what the emulated GPU runs.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/gpu/gpu_priv.h"

/* The arrays of a work on arrays. */
struct shape {
    uint32_t from_bytes, to_bytes; /* of an element; 0: there is no such array */
    uint64_t side_bytes;           /* of all of it */
    bool side_written;
    uint32_t group; /* n is a multiple of it */
};

/* In place of the bytes of an element: codes and their scales, by block. */
#define Q8_BLOCKS UINT32_MAX

static bool dtype_known(enum zb_dtype dtype)
{
    return zb_dtype_bytes(dtype) > 0;
}

/* false: there is no such work. */
static bool work_shape(enum zk_gpu_op op, const struct zk_gpu_array *a, struct shape *ret)
{
    uint32_t from = (uint32_t)zb_dtype_bytes(a->from_dtype);
    uint32_t to = (uint32_t)zb_dtype_bytes(a->to_dtype);
    uint64_t scales = a->n / ZB_Q8_GROUP * sizeof(float);

    switch (op) {
    case ZK_GPU_CAST:
        *ret = (struct shape){ .from_bytes = from, .to_bytes = to, .group = 1 };
        return dtype_known(a->from_dtype) && dtype_known(a->to_dtype) &&
               (a->from_dtype == ZB_F32 || a->to_dtype == ZB_F32 || a->from_dtype == a->to_dtype);
    case ZK_GPU_SPLIT:
        *ret = (struct shape){ 4, 2, a->n * 2, true, 1 };
        return true;
    case ZK_GPU_MERGE:
        *ret = (struct shape){ 2, 4, a->n * 2, false, 1 };
        return true;
    case ZK_GPU_ADD:
        *ret = (struct shape){ .from_bytes = from, .to_bytes = 4, .group = 1 };
        return dtype_known(a->from_dtype);
    case ZK_GPU_SCALE:
        *ret = (struct shape){ .from_bytes = 4, .to_bytes = 4, .group = 1 };
        return true;
    case ZK_GPU_NORM:
        *ret = (struct shape){ .from_bytes = from, .group = 1 };
        return dtype_known(a->from_dtype);
    case ZK_GPU_ENCODE_BF16:
        *ret = (struct shape){ .from_bytes = 4, .to_bytes = 2, .group = 1 };
        return a->n <= UINT64_C(1) << 32;
    case ZK_GPU_ENCODE_Q8:
        *ret = (struct shape){ 4, 1, scales, true, ZB_Q8_GROUP };
        return a->n <= UINT64_C(1) << 32;
    case ZK_GPU_DECODE_Q8:
        *ret = (struct shape){ 1, 4, scales, false, ZB_Q8_GROUP };
        return true;
    case ZK_GPU_QUANTIZE_I8:
        *ret = (struct shape){ .from_bytes = from, .to_bytes = Q8_BLOCKS, .group = ZB_BLOCK_ELEMS };
        return dtype_known(a->from_dtype);
    case ZK_GPU_DEQUANTIZE_I8:
        *ret = (struct shape){ .from_bytes = Q8_BLOCKS, .to_bytes = to, .group = ZB_BLOCK_ELEMS };
        return dtype_known(a->to_dtype);
    case ZK_GPU_STEP:
    case ZK_GPU_INGEST:
    case ZK_GPU_OP_END:
        break;
    }
    return false;
}

static bool aligned(const void *at, uint64_t to)
{
    return (uintptr_t)at % to == 0;
}

static bool array_aligned(const void *at, uint32_t elem_bytes)
{
    return elem_bytes == 0 || aligned(at, elem_bytes == Q8_BLOCKS ? sizeof(float) : elem_bytes);
}

static uint64_t array_len(uint32_t elem_bytes, uint64_t n)
{
    return elem_bytes == Q8_BLOCKS ? zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, n) : n * elem_bytes;
}

static int page_check(const struct zb_layout *layout, const struct zk_page *page,
                      struct zb_err *err)
{
    if (layout->frozen || page->first % ZB_BLOCK_ELEMS != 0 || page->count % ZB_BLOCK_ELEMS != 0)
        return zb_fail(err, -EINVAL, "a page of the GPU is %s",
                       layout->frozen ? "frozen" : "no whole number of blocks");
    if (!aligned(page->param, 64) || !aligned(page->state, 64) || !aligned(page->grad, 64))
        return zb_fail(err, -EINVAL, "a plane in GPU memory is not aligned to 64 bytes");
    return 0;
}

static int step_check(const struct zk_gpu_step *w, struct zb_err *err)
{
    if (!aligned(w->segments, 8) || !aligned(w->by_group, 4))
        return zb_fail(err, -EINVAL, "the tables of a step in GPU memory are not aligned");
    return page_check(&w->layout, &w->page, err);
}

static int ingest_check(const struct zk_gpu_ingest *w, struct zb_err *err)
{
    if (!dtype_known(w->from_dtype) || (w->add && w->layout.grad_dtype != ZB_F32))
        return zb_fail(err, -EINVAL, "gradients of dtype %d cannot be %s dtype %d", w->from_dtype,
                       w->add ? "added to" : "stored in", w->layout.grad_dtype);
    if (!aligned(w->from, zb_dtype_bytes(w->from_dtype)) || !aligned(w->norms, 8))
        return zb_fail(err, -EINVAL, "an array in GPU memory is not aligned");
    return page_check(&w->layout, &w->page, err);
}

static int array_check(enum zk_gpu_op op, const struct zk_gpu_array *a, struct zb_err *err)
{
    struct shape s = { 0 };

    if (!work_shape(op, a, &s) || a->n % s.group != 0 || a->n >= UINT64_C(1) << 40)
        return zb_fail(err, -EINVAL, "no kernel %d from dtype %d to %d of %llu elements", op,
                       a->from_dtype, a->to_dtype, (unsigned long long)a->n);
    if (!array_aligned(a->from, s.from_bytes) || !array_aligned(a->to, s.to_bytes) ||
        !aligned(a->side, s.group > 1 ? sizeof(float) : sizeof(int16_t)) || !aligned(a->norms, 8))
        return zb_fail(err, -EINVAL, "an array in GPU memory is not aligned");
    return 0;
}

int zk_gpu_work_check(const struct zk_gpu_work *w, struct zb_err *err)
{
    if (w->op == ZK_GPU_STEP)
        return step_check(&w->step, err);
    if (w->op == ZK_GPU_INGEST)
        return ingest_check(&w->ingest, err);
    return array_check(w->op, &w->array, err);
}

static unsigned span_add(struct zk_gpu_span *spans, unsigned n, void *at, uint64_t len_bytes,
                         bool writes)
{
    if (len_bytes == 0)
        return n;
    assert(n < ZK_GPU_SPANS_MAX);
    spans[n] = (struct zk_gpu_span){ at, len_bytes, writes };
    return n + 1;
}

static uint64_t plane_bytes(const struct zb_layout *layout, enum zb_plane plane, uint64_t elems)
{
    return zb_blocks_bytes(layout->block_bytes[plane], elems);
}

static unsigned step_spans(struct zk_gpu_step *w, struct zk_gpu_span *spans)
{
    uint64_t elems = w->page.count;
    unsigned n = 0;

    n = span_add(spans, n, &w->page.param, plane_bytes(&w->layout, ZB_PARAM, elems), true);
    n = span_add(spans, n, &w->page.state, plane_bytes(&w->layout, ZB_STATE, elems), true);
    n = span_add(spans, n, &w->page.grad, plane_bytes(&w->layout, ZB_GRAD, elems), false);
    n = span_add(spans, n, &w->segments, w->nsegments * sizeof(*w->segments), false);
    return span_add(spans, n, &w->by_group, w->ngroups * sizeof(*w->by_group), false);
}

static unsigned ingest_spans(struct zk_gpu_ingest *w, struct zk_gpu_span *spans)
{
    uint64_t elems = w->page.count;
    unsigned n = 0;

    n = span_add(spans, n, &w->page.grad, plane_bytes(&w->layout, ZB_GRAD, elems), true);
    n = span_add(spans, n, &w->from, elems * zb_dtype_bytes(w->from_dtype), false);
    return span_add(spans, n, &w->norms, elems / ZB_BLOCK_ELEMS * sizeof(*w->norms), true);
}

static unsigned array_spans(enum zk_gpu_op op, struct zk_gpu_array *a, struct zk_gpu_span *spans)
{
    struct shape s = { 0 };
    uint64_t blocks = op == ZK_GPU_NORM ? zb_div_up(a->n, ZB_BLOCK_ELEMS) : 0;
    unsigned n = 0;

    (void)work_shape(op, a, &s);
    n = span_add(spans, n, &a->from, array_len(s.from_bytes, a->n), false);
    n = span_add(spans, n, &a->to, array_len(s.to_bytes, a->n), true);
    n = span_add(spans, n, &a->side, s.side_bytes, s.side_written);
    return span_add(spans, n, &a->norms, blocks * sizeof(*a->norms), true);
}

unsigned zk_gpu_work_spans(struct zk_gpu_work *w, struct zk_gpu_span spans[ZK_GPU_SPANS_MAX])
{
    if (w->op == ZK_GPU_STEP)
        return step_spans(&w->step, spans);
    if (w->op == ZK_GPU_INGEST)
        return ingest_spans(&w->ingest, spans);
    return array_spans(w->op, &w->array, spans);
}

/* ---- execution */

static int step_run(const struct zk_ops *ops, const struct zk_gpu_step *w)
{
    for (uint32_t i = 0; i < w->nsegments; i++)
        if (w->segments[i].group >= w->ngroups)
            return -EFAULT;
    if (w->page.count > 0)
        zk_page_step(ops, &w->layout, &w->page, w->segments, w->nsegments, w->by_group);
    return 0;
}

static void ingest_run(const struct zk_ops *ops, const struct zk_gpu_ingest *w)
{
    size_t from_bytes = zb_dtype_bytes(w->from_dtype);

    for (uint64_t at = 0; at < w->page.count; at += ZB_BLOCK_ELEMS) {
        struct zk_page block = { .count = ZB_BLOCK_ELEMS,
                                 .grad = (char *)w->page.grad +
                                         plane_bytes(&w->layout, ZB_GRAD, at) };
        struct zk_gpu_norm norm = { 0 };
        struct zk_xsum sum = { 0 };

        block.param = block.grad; /* not NULL; ingesting does not use it */
        zk_page_ingest(ops, &w->layout, &block, (const char *)w->from + at * from_bytes,
                       w->from_dtype, w->add, &sum, &norm.nonfinite);
        norm.sum = zk_xsum_value(&sum); /* of one block: exact */
        w->norms[at / ZB_BLOCK_ELEMS] = norm;
    }
}

/* n elements (at most a block) of any dtype as fp32. */
static const float *as_f32(const struct zk_ops *ops, enum zb_dtype dtype, const void *from,
                           size_t n, float *scratch)
{
    if (dtype == ZB_F32)
        return from;
    (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(from, scratch, n);
    return scratch;
}

static void norm_run(const struct zk_ops *ops, const struct zk_gpu_array *a)
{
    float scratch[ZB_BLOCK_ELEMS];
    size_t bytes = zb_dtype_bytes(a->from_dtype);

    for (uint64_t at = 0; at < a->n; at += ZB_BLOCK_ELEMS) {
        size_t n = zb_min_u64(a->n - at, ZB_BLOCK_ELEMS);
        struct zk_gpu_norm norm = { 0 };

        norm.sum =
            ops->sumsq(as_f32(ops, a->from_dtype, (const char *)a->from + at * bytes, n, scratch),
                       n, &norm.nonfinite);
        if (norm.nonfinite > 0)
            norm.sum = 0;
        a->norms[at / ZB_BLOCK_ELEMS] = norm;
    }
}

static void from_f32(const struct zk_ops *ops, enum zb_dtype dtype, const float *from, void *to,
                     size_t n)
{
    if (dtype == ZB_F32)
        memmove(to, from, n * sizeof(float));
    else
        (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(from, to, n);
}

static void cast_run(const struct zk_ops *ops, const struct zk_gpu_array *a)
{
    if (a->n == 0)
        return; /* memcpy() requires valid addresses even then */
    if (a->from_dtype == a->to_dtype)
        memcpy(a->to, a->from, a->n * zb_dtype_bytes(a->to_dtype));
    else if (a->from_dtype == ZB_F32)
        from_f32(ops, a->to_dtype, a->from, a->to, a->n);
    else
        (void)as_f32(ops, a->from_dtype, a->from, a->n, a->to);
}

static void add_run(const struct zk_ops *ops, const struct zk_gpu_array *a)
{
    if (a->from_dtype == ZB_F32)
        ops->add_f32(a->to, a->from, a->n);
    else
        (a->from_dtype == ZB_BF16 ? ops->add_bf16 : ops->add_f16)(a->to, a->from, a->n);
}

static void scale_run(const struct zk_gpu_array *a)
{
    const float *from = a->from;
    float *to = a->to;

    for (uint64_t i = 0; i < a->n; i++) {
        float v = from[i] * a->factor;

        to[i] = isnan(v) ? NAN : v;
    }
}

int zk_gpu_work_run(const struct zk_ops *ops, const struct zk_gpu_work *w)
{
    const struct zk_gpu_array *a = &w->array;

    switch (w->op) {
    case ZK_GPU_STEP:
        return step_run(ops, &w->step);
    case ZK_GPU_INGEST:
        ingest_run(ops, &w->ingest);
        return 0;
    case ZK_GPU_CAST:
        cast_run(ops, a);
        return 0;
    case ZK_GPU_SPLIT:
        ops->split(a->from, a->to, a->side, a->n);
        return 0;
    case ZK_GPU_MERGE:
        ops->merge(a->from, a->side, a->to, a->n);
        return 0;
    case ZK_GPU_ADD:
        add_run(ops, a);
        return 0;
    case ZK_GPU_SCALE:
        scale_run(a);
        return 0;
    case ZK_GPU_NORM:
        norm_run(ops, a);
        return 0;
    case ZK_GPU_ENCODE_BF16:
        ops->encode_bf16(a->from, a->to, a->key, a->n);
        return 0;
    case ZK_GPU_ENCODE_Q8:
        ops->encode_q8(a->from, a->to, a->side, a->is_signed, a->key, a->n);
        return 0;
    case ZK_GPU_DECODE_Q8:
        ops->decode_q8(a->from, a->side, a->to, a->is_signed, a->n);
        return 0;
    case ZK_GPU_QUANTIZE_I8:
        zk_q8_write(ops, a->from_dtype, a->from, a->n, a->to);
        return 0;
    case ZK_GPU_DEQUANTIZE_I8:
        zk_q8_read(ops, a->to_dtype, a->from, a->n, a->to);
        return 0;
    case ZK_GPU_OP_END:
        break;
    }
    return -EINVAL;
}
