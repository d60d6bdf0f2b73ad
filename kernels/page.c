/*
 * page.c - block by block over a page.
 *
 * MODEL. Everything walks a page in blocks of ZB_BLOCK_ELEMS elements, because state is interleaved
 * by block and one block's planes fit the second-level cache. Conversions that need room use
 * a block on the stack (16 KiB). Moments of bf16 are stepped as they are; those of 8 bits are
 * decoded, stepped and encoded group by group, since a group shares a scale.
 */
#include "kernels/zk_page.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "kernels/ref/moment_priv.h"
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

/* Stores the master of one block: parameters, and the master in state. */
static void page_set_master(const struct zk_ops *ops, const struct zb_layout *layout,
                            const struct zk_page *page, uint64_t at, const float *master)
{
    int16_t unused_lo[B];
    void *param = page_at(page->param, layout, ZB_PARAM, at);
    struct zk_state_block state = { 0 };

    if (!layout->frozen)
        state = zk_state_block(layout, page->state, at / B);
    if (layout->quantized)
        zk_q8_write(ops, ZB_F32, master, B, param);
    else if (layout->dtype == ZB_BF16)
        ops->split(master, param, layout->frozen ? unused_lo : state.master, B);
    else
        page_from_f32(ops, layout->dtype, master, param, B);
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

/* A block that is stepped, and its position. */
struct block {
    const struct zk_ops *ops;
    const struct zb_layout *layout;
    char *param;
    const char *grad;
    struct zk_state_block state;
    uint64_t first;                          /* of the unit's elements */
    const struct zk_segment *segments, *end; /* those that end after its first element */
    const struct zk_scalars *by_group;
    uint32_t rounding;
    const struct zk_matrix *matrices, *last;
};

/* Moments of a run of elements that begins with element `begin` of the block. */
struct moment_run {
    uint64_t begin;
    size_t bytes;                 /* of an element */
    void *old[ZB_MOMENTS_MAX];    /* NULL: there is only one */
    float *apart[ZB_MOMENTS_MAX]; /* of step_q8; NULL in others */
};

static void *moment_at(const struct moment_run *m, unsigned i, uint64_t elem)
{
    return m->old[i] ? (char *)m->old[i] + (elem - m->begin) * m->bytes : NULL;
}

static float *apart_at(const struct moment_run *m, unsigned i, uint64_t elem)
{
    return m->apart[i] ? m->apart[i] + (elem - m->begin) : NULL;
}

/* The matrix of element `elem`. */
static const struct zk_matrix *matrix_of(const struct block *b, uint64_t elem)
{
    const struct zk_matrix *m = b->matrices;

    while (m < b->last && m->first + m->count <= elem)
        m++;
    assert(m < b->last && m->first <= elem);
    return m;
}

static zk_step_fn *step_of(const struct zk_ops *ops, const struct zb_layout *l,
                           enum zb_optimizer optimizer, enum zb_dtype dtype)
{
    return (l->moments == ZB_MOMENTS_Q8     ? ops->step_q8
            : l->moments == ZB_MOMENTS_BF16 ? ops->step_bf16
                                            : ops->step)[optimizer][dtype][l->grad_dtype];
}

/* The first pass of Muon over elements [from, to), all of one matrix. */
static void block_matrix_run(const struct block *b, uint64_t from, uint64_t to,
                             const struct moment_run *m, const struct zk_scalars *scalars)
{
    const struct zb_layout *l = b->layout;
    const struct zk_matrix *matrix = matrix_of(b, b->first + from);
    zk_step_fn *step = step_of(b->ops, l, ZB_MUON, ZB_F32);
    struct zk_step_arrays arrays = {
        .param = matrix->at + (b->first + from - matrix->first),
        .m = moment_at(m, 0, from),
        .to_m = apart_at(m, 0, from),
        .grad = b->grad + from * zb_dtype_bytes(l->grad_dtype),
        .key = moment_key(b->rounding, 0, b->first / B),
        .first = (uint32_t)from,
    };

    step(scalars, &arrays, to - from);
}

/* Steps elements [from, to), all of one group. */
static void block_step_run(const struct block *b, zk_step_fn *step, uint64_t from, uint64_t to,
                           const struct moment_run *m, const struct zk_scalars *scalars)
{
    const struct zb_layout *l = b->layout;
    size_t master_bytes = l->dtype == ZB_BF16 ? sizeof(int16_t) : sizeof(float);
    struct zk_step_arrays arrays = {
        .param = b->param + from * zb_dtype_bytes(l->dtype),
        .master = b->state.master ? (char *)b->state.master + from * master_bytes : NULL,
        .m = moment_at(m, 0, from),
        .v = moment_at(m, 1, from),
        .to_m = apart_at(m, 0, from),
        .to_v = apart_at(m, 1, from),
        .grad = b->grad + from * zb_dtype_bytes(l->grad_dtype),
        .key = moment_key(b->rounding, 0, b->first / B),
        .first = (uint32_t)from,
    };

    if (scalars->matrix)
        block_matrix_run(b, from, to, m, scalars);
    else
        step(scalars, &arrays, to - from);
}

/* The scalars of a segment: those of its group, or a copy with the segment's own scale. */
static const struct zk_scalars *segment_scalars(const struct block *b, const struct zk_segment *s,
                                                struct zk_scalars *own)
{
    if (s->scale == 0)
        return &b->by_group[s->group];
    *own = b->by_group[s->group];
    own->scale = s->scale;
    return own;
}

/* Steps those elements of a block that are in segments, up to element `end`. */
static void block_step(const struct block *b, zk_step_fn *step, const struct moment_run *m,
                       uint64_t end)
{
    struct zk_scalars own;

    for (const struct zk_segment *s = b->segments; s < b->end && s->first < b->first + end; s++) {
        uint64_t from = zb_max_u64(s->first > b->first ? s->first - b->first : 0, m->begin);
        uint64_t to = zb_min_u64(s->first + s->count - b->first, end);

        if (from < to)
            block_step_run(b, step, from, to, m, segment_scalars(b, s, &own));
    }
}

/* ---- steps with moments of 8 bits: group by group, so that decoded ones stay in the first-level
 * cache */

struct q8_scratch {
    uint16_t old[ZB_MOMENTS_MAX][ZB_Q8_GROUP];
    float stepped[ZB_MOMENTS_MAX][ZB_Q8_GROUP];
};

/* Decodes the moments of the group that begins with element m->begin; where segments do not cover
 * all of it, also to where the stepped ones go. */
static void q8_load(const struct block *b, const struct moment_run *m, struct zk_q8_group *g,
                    struct q8_scratch *scratch)
{
    uint64_t first = b->first + m->begin;
    const struct zk_segment *s = b->segments;
    bool covered = s < b->end && s->first <= first &&
                   s->count - (first - s->first) >= ZB_Q8_GROUP &&
                   !b->by_group[s->group].matrix; /* which has one moment, of two in this layout */

    g->first = (uint32_t)m->begin;
    for (uint32_t i = 0; i < g->n; i++) {
        uint8_t *codes = b->state.moment[i];

        g->code[i] = codes + m->begin;
        g->scale[i] = (float *)(void *)(codes + B) + m->begin / ZB_Q8_GROUP;
        b->ops->decode_q8_bf16(g->code[i], g->scale[i], scratch->old[i], g->is_signed[i],
                               ZB_Q8_GROUP);
        if (!covered)
            b->ops->bf16_to_f32(scratch->old[i], scratch->stepped[i], ZB_Q8_GROUP);
    }
}

static void block_step_q8(struct block b, zk_step_fn *step)
{
    struct q8_scratch scratch;
    struct moment_run m = { .bytes = sizeof(uint16_t) };
    struct zk_q8_group g = { .n = b.layout->nmoments,
                             .key = moment_key(b.rounding, 0, b.first / B) };

    for (uint32_t i = 0; i < g.n; i++) {
        m.old[i] = scratch.old[i];
        g.value[i] = m.apart[i] = scratch.stepped[i];
        g.is_signed[i] = zb_moment_signed(b.layout->optimizer, i);
    }
    for (; m.begin < B; m.begin += ZB_Q8_GROUP) {
        while (b.segments < b.end && b.segments->first + b.segments->count <= b.first + m.begin)
            b.segments++;
        q8_load(&b, &m, &g, &scratch);
        block_step(&b, step, &m, m.begin + ZB_Q8_GROUP);
        b.ops->encode_q8_group(&g);
    }
}

/* Steps a block that begins in a segment, or has one. */
static void block_step_any(const struct block *b)
{
    const struct zb_layout *l = b->layout;
    zk_step_fn *step = step_of(b->ops, l, l->optimizer, l->dtype);
    struct moment_run stored = { .bytes = l->moments == ZB_MOMENTS_BF16 ? sizeof(uint16_t)
                                                                        : sizeof(float),
                                 .old = { b->state.moment[0], b->state.moment[1] } };

    if (l->moments == ZB_MOMENTS_Q8)
        block_step_q8(*b, step);
    else
        block_step(b, step, &stored, B);
}

/* Muon's last pass over the elements of a block. */
static void block_weight(const struct block *b)
{
    enum zb_dtype dtype = b->layout->dtype;

    for (const struct zk_segment *s = b->segments; s < b->end && s->first < b->first + B; s++) {
        uint64_t from = s->first > b->first ? s->first - b->first : 0;
        uint64_t to = zb_min_u64(s->first + s->count - b->first, B);
        struct zk_scalars scalars = b->by_group[s->group];
        const struct zk_matrix *m;
        const float *by;
        void *param;

        if (!scalars.matrix || from >= to)
            continue;
        m = matrix_of(b, b->first + from);
        by = m->at + (b->first + from - m->first);
        scalars.step_size = m->step_size;
        param = b->param + from * zb_dtype_bytes(dtype);
        if (dtype == ZB_BF16)
            b->ops->weight_bf16(&scalars, param, (int16_t *)b->state.master + from, by, to - from);
        else
            b->ops->weight_f32(&scalars, dtype == ZB_F32 ? param : (float *)b->state.master + from,
                               by, to - from);
        if (dtype == ZB_F16)
            b->ops->f32_to_f16((float *)b->state.master + from, param, to - from);
    }
}

/* Calls do_() for each block that begins in a segment, or has one. */
static void page_blocks(const struct zk_ops *ops, const struct zb_layout *layout,
                        const struct zk_page *page, const struct zk_segment *segments,
                        size_t nsegments, const struct zk_scalars *by_group,
                        void (*do_)(const struct block *b))
{
    struct block b = { .ops = ops,
                       .layout = layout,
                       .segments = segments,
                       .end = segments + nsegments,
                       .by_group = by_group,
                       .matrices = page->matrices,
                       .last = page->matrices + page->nmatrices };

    page_check(page);
    assert(!layout->frozen && page->state);
    for (uint64_t at = 0; at < page->count; at += B) {
        b.first = page->first + at;
        while (b.segments < b.end && b.segments->first + b.segments->count <= b.first)
            b.segments++;
        if (b.segments == b.end || b.segments->first >= b.first + B)
            continue;
        b.param = page_at(page->param, layout, ZB_PARAM, at);
        b.grad = page->grad ? page_at(page->grad, layout, ZB_GRAD, at) : NULL;
        b.state = zk_state_block(layout, page->state, at / B);
        b.rounding = by_group[b.segments->group].rounding;
        do_(&b);
    }
}

void zk_page_step(const struct zk_ops *ops, const struct zb_layout *layout,
                  const struct zk_page *page, const struct zk_segment *segments, size_t nsegments,
                  const struct zk_scalars *by_group)
{
    assert(page->grad);
    page_blocks(ops, layout, page, segments, nsegments, by_group, block_step_any);
}

void zk_page_weight(const struct zk_ops *ops, const struct zb_layout *layout,
                    const struct zk_page *page, const struct zk_segment *segments, size_t nsegments,
                    const struct zk_scalars *by_group)
{
    page_blocks(ops, layout, page, segments, nsegments, by_group, block_weight);
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
