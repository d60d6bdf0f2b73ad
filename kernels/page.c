/*
 * page.c - block by block over a page.
 *
 * MODEL. Everything walks a page in blocks of ZB_BLOCK_ELEMS elements, because state is interleaved
 * by block and one block's planes fit the second-level cache. Conversions that need room use
 * a block on the stack (16 KiB). Steps are in page_step.c.
 */
#include "kernels/zk_page.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/page_priv.h"
#include "kernels/ref/moment_priv.h"

/* fp32 values of `n` elements of `dtype` at `from`: from itself, or converted into scratch. */
static const float *page_as_f32(const struct zk_ops *ops, enum zb_dtype dtype, const void *from,
                                size_t n, float *scratch)
{
    if (dtype == ZB_F32)
        return from;
    (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(from, scratch, n);
    return scratch;
}

static void page_from_f32(const struct zk_ops *ops, enum zb_dtype dtype, const float *from,
                          void *to, size_t n)
{
    if (dtype == ZB_F32)
        memcpy(to, from, n * sizeof(float));
    else
        (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(from, to, n);
}

/* Stores the master of one block: parameters, and the master in state. */
static void page_set_master(const struct zk_ops *ops, const struct zb_layout *layout,
                            const struct zk_page *page, uint64_t at, const float *master)
{
    int16_t lo[B]; /* where state has no such array */
    void *param = page_at(page->param, layout, ZB_PARAM, at);
    struct zk_state_block state = { 0 };

    if (!layout->frozen)
        state = zk_state_block(layout, page->state, at / B);
    if (layout->quantized)
        zk_q8_write(ops, ZB_F32, master, B, param);
    else if (layout->dtype == ZB_BF16)
        ops->split(master, param, layout->frozen || layout->low8 ? lo : state.master, B);
    else
        page_from_f32(ops, layout->dtype, master, param, B);
    if (layout->low8)
        ops->nearest_lo(param, lo, state.master, B);
    if (layout->dtype == ZB_F16 && !layout->frozen)
        memcpy(state.master, master, B * sizeof(float));
}

void zk_page_init(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const float *master)
{
    page_check(page);
    for (uint64_t at = 0; at < page->count; at += B) {
        if (!layout->frozen) {
            struct zk_state_block state = zk_state_block(layout, page->state, at / B);

            for (uint32_t i = 0; i < layout->nmoments; i++)
                memset(state.moment[i], 0, zb_moment_block_bytes(layout->moments));
        }
        page_set_master(ops, layout, page, at, master + at);
    }
}

/* ---- moments */

static void moment_load(const struct zk_ops *ops, const struct zb_layout *layout, uint32_t i,
                        const void *stored, float *to)
{
    const uint8_t *codes = stored;

    switch (layout->moments) {
    case ZB_MOMENTS_BF16:
        ops->bf16_to_f32(stored, to, B);
        return;
    case ZB_MOMENTS_Q8:
    case ZB_MOMENTS_Q8_LO:
        ops->decode_q8(codes, (const float *)(const void *)(codes + B), to,
                       zb_moment_signed(layout->optimizer, i), B);
        return;
    case ZB_MOMENTS_F32:
    case ZB_MOMENTS_END:
        break;
    }
    memcpy(to, stored, B * sizeof(float));
}

static void moment_store(const struct zk_ops *ops, const struct zb_layout *layout, uint32_t i,
                         const float *from, void *stored, uint32_t key)
{
    uint8_t *codes = stored;

    switch (layout->moments) {
    case ZB_MOMENTS_BF16:
        ops->encode_bf16(from, stored, key, B);
        return;
    case ZB_MOMENTS_Q8:
    case ZB_MOMENTS_Q8_LO:
        ops->encode_q8(from, codes, (float *)(void *)(codes + B),
                       zb_moment_signed(layout->optimizer, i), key, B);
        return;
    case ZB_MOMENTS_F32:
    case ZB_MOMENTS_END:
        break;
    }
    memcpy(stored, from, B * sizeof(float));
}

bool zk_page_has(const struct zb_layout *layout, enum zk_what what)
{
    switch (what) {
    case ZK_PARAM:
        return true;
    case ZK_MASTER:
        return !layout->frozen || layout->dtype == ZB_F32;
    case ZK_EXP_AVG_SQ:
        return !layout->frozen && layout->nmoments > 1;
    case ZK_EXP_AVG:
    case ZK_GRAD:
        return !layout->frozen;
    }
    return false;
}

void zk_q8_write(const struct zk_ops *ops, enum zb_dtype dtype, const void *from, uint64_t count,
                 void *blocks)
{
    size_t bytes = zb_dtype_bytes(dtype);
    float scratch[B];

    for (uint64_t at = 0; at < count; at += B) {
        char *codes = (char *)blocks + zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, at);

        ops->quantize_i8(page_as_f32(ops, dtype, (const char *)from + at * bytes, B, scratch),
                         (int8_t *)codes, (float *)(void *)(codes + B), B);
    }
}

void zk_q8_read(const struct zk_ops *ops, enum zb_dtype dtype, const void *blocks, uint64_t count,
                void *out)
{
    size_t bytes = zb_dtype_bytes(dtype);
    float scratch[B];

    for (uint64_t at = 0; at < count; at += B) {
        const char *codes = (const char *)blocks + zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, at);
        void *to = (char *)out + at * bytes;
        float *f32 = dtype == ZB_F32 ? to : scratch;

        ops->dequantize_i8((const int8_t *)codes, (const float *)(const void *)(codes + B), f32, B);
        if (dtype != ZB_F32)
            page_from_f32(ops, dtype, scratch, to, B);
    }
}

static void page_read_block(const struct zk_ops *ops, const struct zb_layout *layout,
                            const struct zk_page *page, enum zk_what what, uint64_t at, float *out)
{
    struct zk_state_block state = { 0 };
    int16_t lo[B];

    if (!layout->frozen && what != ZK_GRAD)
        state = zk_state_block(layout, page->state, at / B);
    if (layout->low8 && what == ZK_MASTER) {
        ops->widen_lo(state.master, lo, B);
        state.master = lo;
    }
    if (what == ZK_GRAD) {
        const float *grad =
            page_as_f32(ops, layout->grad_dtype, page_at(page->grad, layout, ZB_GRAD, at), B, out);

        if (grad != out)
            memcpy(out, grad, B * sizeof(float));
    } else if (what == ZK_EXP_AVG) {
        moment_load(ops, layout, 0, state.moment[0], out);
    } else if (what == ZK_EXP_AVG_SQ) {
        moment_load(ops, layout, 1, state.moment[1], out);
    } else if (layout->dtype == ZB_BF16) {
        ops->merge(page_at(page->param, layout, ZB_PARAM, at), state.master, out, B);
    } else if (layout->dtype == ZB_F16) {
        memcpy(out, state.master, B * sizeof(float));
    } else {
        memcpy(out, page_at(page->param, layout, ZB_PARAM, at), B * sizeof(float));
    }
}

void zk_page_read(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, enum zk_what what, void *out)
{
    page_check(page);
    assert(zk_page_has(layout, what));
    if (layout->quantized) { /* parameters, or of fp32 masters: the same */
        zk_q8_read(ops, layout->dtype, page->param, page->count, out);
        return;
    }
    if (what == ZK_PARAM) {
        memcpy(out, page->param, zb_blocks_bytes(layout->block_bytes[ZB_PARAM], page->count));
        return;
    }
    for (uint64_t at = 0; at < page->count; at += B)
        page_read_block(ops, layout, page, what, at, (float *)out + at);
}

void zk_page_set(const struct zk_ops *ops, const struct zb_layout *layout,
                 const struct zk_page *page, enum zk_what what, const float *values)
{
    uint32_t i = (uint32_t)what - ZK_EXP_AVG;

    page_check(page);
    for (uint64_t at = 0; at < page->count && what == ZK_MASTER; at += B)
        page_set_master(ops, layout, page, at, values + at);
    if (what == ZK_MASTER)
        return;
    assert(zk_page_has(layout, what) && (what == ZK_EXP_AVG || what == ZK_EXP_AVG_SQ));
    for (uint64_t at = 0; at < page->count; at += B) {
        struct zk_state_block state = zk_state_block(layout, page->state, at / B);

        moment_store(ops, layout, i, values + at, state.moment[i],
                     moment_key(0, i, (page->first + at) / B));
    }
}

static void page_add(const struct zk_ops *ops, float *acc, const void *x, enum zb_dtype dtype)
{
    if (dtype == ZB_F32)
        ops->add_f32(acc, x, B);
    else
        (dtype == ZB_BF16 ? ops->add_bf16 : ops->add_f16)(acc, x, B);
}

/* Takes in one block; returns the sum of squares of the resulting gradient. */
static double page_ingest_block(const struct zk_ops *ops, enum zb_dtype grad_dtype, void *grad,
                                enum zb_dtype from_dtype, const void *from, bool add, uint64_t *bad)
{
    float scratch[B];

    if (!add && from_dtype == grad_dtype && grad_dtype == ZB_F32)
        return ops->set_f32(grad, from, B, bad);
    if (!add && from_dtype == grad_dtype && grad_dtype == ZB_BF16)
        return ops->set_bf16(grad, from, B, bad);
    if (add)
        page_add(ops, grad, from, from_dtype);
    else if (from_dtype == grad_dtype)
        memcpy(grad, from, B * zb_dtype_bytes(from_dtype));
    else if (grad_dtype == ZB_F32)
        (void)page_as_f32(ops, from_dtype, from, B, grad);
    else
        page_from_f32(ops, grad_dtype, page_as_f32(ops, from_dtype, from, B, scratch), grad, B);
    return ops->sumsq(page_as_f32(ops, grad_dtype, grad, B, scratch), B, bad);
}

/* Adds the runs of one block, of n elements from element `first` of the unit on. `*at`: the first
 * tensor that may reach into the block. whole: the sum of the block's squares, if it is finite;
 * else NaN. */
static void block_by_tensor(const struct zk_ops *ops, const float *x, uint64_t first, uint64_t n,
                            double whole, const struct zk_by_tensor *by, size_t *at,
                            uint64_t *nonfinite)
{
    while (*at < by->n && by->tensors[*at].first + by->tensors[*at].count <= first)
        ++*at;
    for (size_t t = *at; t < by->n && by->tensors[t].first < first + n; t++) {
        uint64_t from = zb_max_u64(by->tensors[t].first, first);
        uint64_t to = zb_min_u64(by->tensors[t].first + by->tensors[t].count, first + n);
        uint64_t bad = 0;
        double squares = whole;

        if (to - from < B || isnan(whole))
            squares = ops->sumsq(x + (from - first), to - from, &bad);
        *nonfinite += bad;
        if (bad == 0)
            zk_xsum_add(&by->sums[t], squares);
    }
}

void zk_sums_by_tensor(const struct zk_ops *ops, const float *x, uint64_t first, uint64_t n,
                       const struct zk_by_tensor *by, uint64_t *nonfinite)
{
    size_t tensor = 0;

    assert(first % B == 0);
    for (uint64_t at = 0; at < n; at += B)
        block_by_tensor(ops, x + at, first + at, zb_min_u64(B, n - at), (double)NAN, by, &tensor,
                        nonfinite);
}

void zk_page_ingest(const struct zk_ops *ops, const struct zb_layout *layout,
                    const struct zk_page *page, const void *from, enum zb_dtype from_dtype,
                    bool add, struct zk_xsum *sum, uint64_t *nonfinite)
{
    const struct zk_by_tensor none = { 0 };

    zk_page_ingest_by(ops, layout, page, from, from_dtype, add, sum, nonfinite, &none);
}

void zk_page_ingest_by(const struct zk_ops *ops, const struct zb_layout *layout,
                       const struct zk_page *page, const void *from, enum zb_dtype from_dtype,
                       bool add, struct zk_xsum *sum, uint64_t *nonfinite,
                       const struct zk_by_tensor *by)
{
    uint64_t ignored = 0; /* counted block by block */
    float scratch[B];
    size_t tensor = 0;
    size_t from_bytes = zb_dtype_bytes(from_dtype);

    page_check(page);
    assert(!layout->frozen && page->grad && !(add && layout->grad_dtype != ZB_F32));
    for (uint64_t at = 0; at < page->count; at += B) {
        void *grad = page_at(page->grad, layout, ZB_GRAD, at);
        uint64_t bad = 0;
        double squares = page_ingest_block(ops, layout->grad_dtype, grad, from_dtype,
                                           (const char *)from + at * from_bytes, add, &bad);

        *nonfinite += bad;
        if (bad == 0)
            zk_xsum_add(sum, squares);
        if (by->n > 0)
            block_by_tensor(ops, page_as_f32(ops, layout->grad_dtype, grad, B, scratch),
                            page->first + at, B, bad == 0 ? squares : (double)NAN, by, &tensor,
                            &ignored);
    }
}
