/*
 * page.c - block by block over a page.
 *
 * MODEL. Everything walks a page in blocks of ZB_BLOCK_ELEMS elements, because state is interleaved
 * by block and one block's planes fit the second-level cache. Conversions that need room use
 * a block on the stack (16 KiB, and as much again for a second moment). Reduced moments are decoded
 * before a block is stepped and encoded after it, here and nowhere else.
 */
#include "kernels/zk_page.h"

#include <assert.h>
#include <string.h>

#include "kernels/zk_priv.h"

#define B ZB_BLOCK_ELEMS

static void *page_at(void *plane, const struct zb_layout *layout, enum zb_plane which,
                     uint64_t elem)
{
    return (char *)plane + zb_blocks_bytes(layout->block_bytes[which], elem);
}

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

static void page_check(const struct zk_page *page)
{
    assert(page->first % B == 0 && page->count % B == 0 && page->param);
}

void zk_page_init(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const float *master)
{
    int16_t unused_lo[B];

    page_check(page);
    for (uint64_t at = 0; at < page->count; at += B) {
        void *param = page_at(page->param, layout, ZB_PARAM, at);
        struct zk_state_block state = { 0 };

        if (!layout->frozen) {
            state = zk_state_block(layout, page->state, at / B);
            for (uint32_t i = 0; i < layout->nmoments; i++)
                memset(state.moment[i], 0, zb_moment_block_bytes(layout->moments));
        }
        if (layout->dtype == ZB_BF16)
            ops->split(master + at, param, layout->frozen ? unused_lo : state.master, B);
        else
            page_from_f32(ops, layout->dtype, master + at, param, B);
        if (layout->dtype == ZB_F16 && !layout->frozen)
            memcpy(state.master, master + at, B * sizeof(float));
    }
}

/* ---- moments */

struct moments {
    float of[ZB_MOMENTS_MAX][B];
};

/* Which random bits a moment of a block is rounded by; `block` counts from the unit's first. */
static uint32_t moment_key(uint32_t rounding, uint32_t i, uint64_t block)
{
    return (uint32_t)zk_mix64(zk_mix64(rounding + ((uint64_t)i << 32)) ^ block);
}

static void moment_load(const struct zk_ops *ops, const struct zb_layout *layout, uint32_t i,
                        const void *stored, float *to)
{
    const uint8_t *codes = stored;

    switch (layout->moments) {
    case ZB_MOMENTS_BF16:
        ops->bf16_to_f32(stored, to, B);
        return;
    case ZB_MOMENTS_Q8:
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
        ops->encode_q8(from, codes, (float *)(void *)(codes + B),
                       zb_moment_signed(layout->optimizer, i), key, B);
        return;
    case ZB_MOMENTS_F32:
    case ZB_MOMENTS_END:
        break;
    }
    memcpy(stored, from, B * sizeof(float));
}

/* ---- steps */

/* Elements [from, to) of the block at `at`, all of one group; its moments are at m and v. */
static void page_step_run(const struct zk_ops *ops, const struct zb_layout *layout,
                          const struct zk_page *page, uint64_t at, uint64_t from, uint64_t to,
                          float *m, float *v, const struct zk_scalars *scalars)
{
    struct zk_state_block state = zk_state_block(layout, page->state, at / B);
    size_t param_bytes = zb_dtype_bytes(layout->dtype);
    size_t grad_bytes = zb_dtype_bytes(layout->grad_dtype);
    size_t master_bytes = layout->dtype == ZB_BF16 ? sizeof(int16_t) : sizeof(float);
    struct zk_step_arrays arrays = {
        .param = (char *)page_at(page->param, layout, ZB_PARAM, at) + from * param_bytes,
        .master = state.master ? (char *)state.master + from * master_bytes : NULL,
        .m = m + from,
        .v = v ? v + from : NULL,
        .grad = (char *)page_at(page->grad, layout, ZB_GRAD, at) + from * grad_bytes,
    };

    ops->step[layout->optimizer][layout->dtype][layout->grad_dtype](scalars, &arrays, to - from);
}

/* The segments [s, end) that begin in the block at `at` or before it. */
static void page_step_block(const struct zk_ops *ops, const struct zb_layout *layout,
                            const struct zk_page *page, uint64_t at, const struct zk_segment *s,
                            const struct zk_segment *end, const struct zk_scalars *by_group,
                            struct moments *scratch)
{
    struct zk_state_block state = zk_state_block(layout, page->state, at / B);
    bool reduced = layout->moments != ZB_MOMENTS_F32;
    uint64_t first = page->first + at; /* of the unit */
    float *moment[ZB_MOMENTS_MAX] = { NULL };

    for (uint32_t i = 0; i < layout->nmoments; i++) {
        moment[i] = reduced ? scratch->of[i] : state.moment[i];
        if (reduced)
            moment_load(ops, layout, i, state.moment[i], moment[i]);
    }
    for (const struct zk_segment *t = s; t < end && t->first < first + B; t++) {
        uint64_t from = t->first > first ? t->first - first : 0;
        uint64_t to = t->first + t->count < first + B ? t->first + t->count - first : B;

        page_step_run(ops, layout, page, at, from, to, moment[0], moment[1], &by_group[t->group]);
    }
    for (uint32_t i = 0; i < layout->nmoments && reduced; i++)
        moment_store(ops, layout, i, moment[i], state.moment[i],
                     moment_key(by_group[s->group].rounding, i, first / B));
}

void zk_page_step(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const struct zk_segment *segments, size_t nsegments,
                  const struct zk_scalars *by_group)
{
    const struct zk_segment *s = segments, *end = segments + nsegments;
    struct moments scratch;

    page_check(page);
    assert(!layout->frozen && page->state && page->grad);
    for (uint64_t at = 0; at < page->count; at += B) {
        while (s < end && s->first + s->count <= page->first + at)
            s++;
        if (s < end && s->first < page->first + at + B)
            page_step_block(ops, layout, page, at, s, end, by_group, &scratch);
    }
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

static void page_read_block(const struct zk_ops *ops, const struct zb_layout *layout,
                            const struct zk_page *page, enum zk_what what, uint64_t at, float *out)
{
    struct zk_state_block state = { 0 };

    if (!layout->frozen && what != ZK_GRAD)
        state = zk_state_block(layout, page->state, at / B);
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

/* One block; returns the sum of squares of what is in grad then. */
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

void zk_page_ingest(const struct zk_ops *ops, const struct zb_layout *layout,
                    const struct zk_page *page, const void *from, enum zb_dtype from_dtype,
                    bool add, struct zk_xsum *sum, uint64_t *nonfinite)
{
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
    }
}
