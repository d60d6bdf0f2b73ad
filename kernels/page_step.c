/*
 * page_step.c - the steps of a page, block by block.
 *
 * MODEL. Moments of fp32 and bf16 are stepped as they are. A group of those of 8 bits shares a scale:
 * whole groups are stepped in one pass where there is one for them (zk_ops.step_q8_groups); others are
 * decoded, stepped and encoded one by one.
 */
#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "kernels/page_priv.h"
#include "kernels/ref/moment_priv.h"
#include "kernels/zk_page.h"

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
    return (zb_moments_q8(l->moments)       ? ops->step_q8
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

/* The arrays of a block from element `from` on, without moments. */
static struct zk_step_arrays block_arrays(const struct block *b, uint64_t from)
{
    const struct zb_layout *l = b->layout;
    size_t master_bytes = l->dtype == ZB_BF16 ? sizeof(int16_t) : sizeof(float);

    return (struct zk_step_arrays){
        .param = b->param + from * zb_dtype_bytes(l->dtype),
        .master = b->state.master ? (char *)b->state.master + from * master_bytes : NULL,
        .grad = b->grad + from * zb_dtype_bytes(l->grad_dtype),
        .key = moment_key(b->rounding, 0, b->first / B),
        .first = (uint32_t)from,
    };
}

/* Steps elements [from, to), all of one group. */
static void block_step_run(const struct block *b, zk_step_fn *step, uint64_t from, uint64_t to,
                           const struct moment_run *m, const struct zk_scalars *scalars)
{
    struct zk_step_arrays arrays = block_arrays(b, from);

    arrays.m = moment_at(m, 0, from);
    arrays.v = moment_at(m, 1, from);
    arrays.to_m = apart_at(m, 0, from);
    arrays.to_v = apart_at(m, 1, from);
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

/* How many elements from m->begin on are whole groups in the first segment, and not of a matrix, which
 * has one moment, of two in this layout. */
static uint64_t q8_covered(const struct block *b, const struct moment_run *m)
{
    uint64_t first = b->first + m->begin;
    const struct zk_segment *s = b->segments;

    if (s == b->end || s->first > first || b->by_group[s->group].matrix)
        return 0;
    return zb_min_u64(s->first + s->count - first, B - m->begin) / ZB_Q8_GROUP * ZB_Q8_GROUP;
}

/* Decodes the moments of the group that begins with element m->begin; where segments do not cover
 * all of it, also to where the stepped ones go. */
static void q8_load(const struct block *b, const struct moment_run *m, struct zk_q8_group *g,
                    struct q8_scratch *scratch)
{
    bool covered = q8_covered(b, m) > 0;

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

/* Steps groups from m->begin on in one pass, where there is one for them; returns how many elements
 * that were. */
static uint64_t q8_step_groups(const struct block *b, const struct moment_run *m, uint32_t key)
{
    const struct zb_layout *l = b->layout;
    uint64_t n = q8_covered(b, m);
    struct zk_step_arrays arrays;
    struct zk_scalars own;
    struct zk_q8_run run = { .optimizer = l->optimizer,
                             .dtype = l->dtype,
                             .grad_dtype = l->grad_dtype,
                             .key = key,
                             .first = (uint32_t)m->begin };

    if (n == 0)
        return 0;
    arrays = block_arrays(b, m->begin);
    run.scalars = segment_scalars(b, b->segments, &own);
    run.param = arrays.param;
    run.master = arrays.master;
    run.grad = arrays.grad;
    for (uint32_t i = 0; i < l->nmoments; i++) {
        run.code[i] = (uint8_t *)b->state.moment[i] + m->begin;
        run.scale[i] = (float *)(void *)((uint8_t *)b->state.moment[i] + B) +
                       m->begin / ZB_Q8_GROUP;
    }
    return b->ops->step_q8_groups(&run, n);
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
    while (m.begin < B) {
        uint64_t stepped;

        while (b.segments < b.end && b.segments->first + b.segments->count <= b.first + m.begin)
            b.segments++;
        stepped = q8_step_groups(&b, &m, g.key);
        if (stepped == 0) {
            q8_load(&b, &m, &g, &scratch);
            block_step(&b, step, &m, m.begin + ZB_Q8_GROUP);
            b.ops->encode_q8_group(&g);
            stepped = ZB_Q8_GROUP;
        }
        m.begin += stepped;
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

    if (zb_moments_q8(l->moments))
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

/* Calls do_() with the block's lo in 16 bits, and rounds it after. What was not stepped keeps its bits. */
static void block_widened(struct block b, void (*do_)(const struct block *b))
{
    int8_t *lo8 = b.state.master;
    int16_t lo[B];

    b.ops->widen_lo(lo8, lo, B);
    b.state.master = lo;
    do_(&b);
    b.ops->round_lo((uint16_t *)(void *)b.param, lo, lo8, moment_key(b.rounding, 0, b.first / B),
                    B);
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
        if (layout->low8)
            block_widened(b, do_);
        else
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
