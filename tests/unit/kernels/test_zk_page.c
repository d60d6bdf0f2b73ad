/*
 * Compares pages with flat arrays: the same arithmetic element by element, without blocks,
 * interleaving or segments. Compared with the kernels, page.c only adds the positions of data; that
 * is checked here.
 */
#include "tests/ztest.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/zk_page.h"

#define ELEMS (3u * ZB_BLOCK_ELEMS)
#define FIRST (7u * ZB_BLOCK_ELEMS) /* of the unit */

/* Groups of single elements, of whole blocks, across block bounds; gaps; outside of the page. */
static const struct zk_segment segments[] = {
    { 0, 100, 1, 0 },
    { FIRST - 5, 6, 2, 0.5F },
    { FIRST + 1, 4094, 0, 0 },
    { FIRST + 4095, 2, 1, -3 },
    { FIRST + 4100, 1, 2, 0 },
    { FIRST + 2 * 4096, 4096, 1, 0.125F },
    { FIRST + ELEMS, 50, 0, 7 },
};

#define CUT      (2u * ZB_BLOCK_ELEMS)
#define SEGMENTS (sizeof(segments) / sizeof(segments[0]))

struct flat {
    float master[ELEMS], m[ELEMS], v[ELEMS], grad[ELEMS];
    uint16_t hi[ELEMS];
    int16_t lo[ELEMS];
};

struct fixture {
    const struct zk_ops *ops;
    struct zb_layout layout;
    struct zk_page page;
    struct flat *flat;
};

static float random_float(uint64_t *seed)
{
    return (float)(int64_t)ztest_random(seed) * 0x1p-63f;
}

/* The parameters for these masters, in this dtype. */
static void flat_param(struct fixture *x)
{
    if (x->layout.dtype == ZB_BF16)
        x->ops->split(x->flat->master, x->flat->hi, x->flat->lo, ELEMS);
    else if (x->layout.dtype == ZB_F16)
        x->ops->f32_to_f16(x->flat->master, x->flat->hi, ELEMS);
}

/* Where lo has 8 bits: each master must be within `limit` units of fp32 of what it was before rounding. */
static void flat_round(struct fixture *x, int64_t limit)
{
    float *was = memcpy(malloc(ELEMS * sizeof(float)), x->flat->master, ELEMS * sizeof(float));
    const int32_t *got = (const void *)x->flat->master, *want = (const void *)was;

    zk_page_read(x->ops, &x->layout, &x->page, ZK_MASTER, x->flat->master);
    for (size_t i = 0; i < ELEMS; i++)
        if ((got[i] & 0xff) != 0 || llabs((int64_t)got[i] - want[i]) > limit)
            fail_msg("%s: master %zu is %08x, and was %08x", x->ops->name, i, got[i], want[i]);
    flat_param(x);
    free(was);
}

static struct fixture fixture_new(const struct zk_ops *ops, enum zb_dtype dtype,
                                  enum zb_dtype grad_dtype, enum zb_optimizer optimizer,
                                  enum zb_moments moments, bool frozen)
{
    struct fixture x = { .ops = ops, .flat = calloc(1, sizeof(struct flat)) };
    uint64_t seed = 42;

    assert_int_equal(zb_layout_of(dtype, grad_dtype, optimizer, moments, frozen, &x.layout, NULL),
                     0);
    x.page.first = FIRST;
    x.page.count = ELEMS;
    x.page.param = aligned_alloc(64, zb_page_bytes(x.layout.block_bytes[ZB_PARAM], ELEMS));
    if (!frozen) {
        x.page.state = aligned_alloc(64, zb_page_bytes(x.layout.block_bytes[ZB_STATE], ELEMS));
        x.page.grad = aligned_alloc(64, zb_page_bytes(x.layout.block_bytes[ZB_GRAD], ELEMS));
        memset(x.page.state, 0xa5, zb_page_bytes(x.layout.block_bytes[ZB_STATE], ELEMS));
    }
    for (size_t i = 0; i < ELEMS; i++)
        x.flat->master[i] = random_float(&seed);
    zk_page_init(ops, &x.layout, &x.page, x.flat->master);
    flat_param(&x);
    if (x.layout.low8)
        flat_round(&x, 0x80);
    return x;
}

static void fixture_free(struct fixture *x)
{
    free(x->page.param);
    free(x->page.state);
    free(x->page.grad);
    free(x->flat);
}

/* Compares every plane that can be read with the flat arrays. */
static void fixture_compare(const struct fixture *x)
{
    float *out = malloc(ELEMS * sizeof(float));

    zk_page_read(x->ops, &x->layout, &x->page, ZK_PARAM, out);
    if (x->layout.dtype != ZB_F32)
        assert_memory_equal(out, x->flat->hi, sizeof(x->flat->hi));
    else
        assert_memory_equal(out, x->flat->master, sizeof(x->flat->master));
    if (zk_page_has(&x->layout, ZK_MASTER)) {
        zk_page_read(x->ops, &x->layout, &x->page, ZK_MASTER, out);
        assert_memory_equal(out, x->flat->master, sizeof(x->flat->master));
    }
    assert_int_equal(zk_page_has(&x->layout, ZK_EXP_AVG), !x->layout.frozen);
    if (!x->layout.frozen) {
        zk_page_read(x->ops, &x->layout, &x->page, ZK_EXP_AVG, out);
        assert_memory_equal(out, x->flat->m, sizeof(x->flat->m));
    }
    assert_int_equal(zk_page_has(&x->layout, ZK_EXP_AVG_SQ),
                     !x->layout.frozen && zb_moment_name(x->layout.optimizer, 1) != NULL);
    if (zk_page_has(&x->layout, ZK_EXP_AVG_SQ)) {
        zk_page_read(x->ops, &x->layout, &x->page, ZK_EXP_AVG_SQ, out);
        assert_memory_equal(out, x->flat->v, sizeof(x->flat->v));
    }
    free(out);
}

static void to_16(const struct zk_ops *ops, enum zb_dtype dtype, const float *from, uint16_t *to)
{
    if (dtype != ZB_F32)
        (dtype == ZB_BF16 ? ops->f32_to_bf16 : ops->f32_to_f16)(from, to, ELEMS);
}

static void from_16(const struct zk_ops *ops, enum zb_dtype dtype, const uint16_t *from, float *to)
{
    if (dtype != ZB_F32)
        (dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(from, to, ELEMS);
}

/* The sums of the gradient by tensor (each segment is one) must be those of runs that end at a
 * tensor's end and at a block's. */
static void by_tensor_compare(const struct fixture *x, const struct zk_xsum *got)
{
    struct zk_xsum again[SEGMENTS] = { 0 };
    const struct zk_by_tensor by = { .tensors = segments, .n = SEGMENTS, .sums = again };
    uint64_t bad = 0;

    for (size_t s = 0; s < SEGMENTS; s++) {
        uint64_t end = segments[s].first + segments[s].count, to;
        struct zk_xsum want = { 0 };

        for (uint64_t at = segments[s].first; at < end; at = to) {
            uint64_t n = 0;
            double squares;

            to = (at / ZB_BLOCK_ELEMS + 1) * ZB_BLOCK_ELEMS;
            to = to < end ? to : end;
            if (at < FIRST || to > FIRST + ELEMS)
                continue; /* no segment crosses the ends of the page inside of a block */
            squares = x->ops->sumsq(x->flat->grad + (at - FIRST), to - at, &n);
            if (n == 0)
                zk_xsum_add(&want, squares);
        }
        assert_memory_equal(&got[s], &want, sizeof(want));
    }
    zk_sums_by_tensor(x->ops, x->flat->grad, FIRST, CUT, &by, &bad);
    zk_sums_by_tensor(x->ops, x->flat->grad + CUT, FIRST + CUT, ELEMS - CUT, &by, &bad);
    assert_memory_equal(again, got, sizeof(again));
}

/* Sets or adds a gradient of any dtype, on both sides; the sum and the count must be those of a
 * flat loop over blocks. */
static void fixture_ingest(struct fixture *x, enum zb_dtype from_dtype, bool add, uint64_t seed,
                           bool with_infinity)
{
    float *from = malloc(ELEMS * sizeof(float));
    uint16_t *from16 = malloc(ELEMS * sizeof(uint16_t));
    float *kept = malloc(ELEMS * sizeof(float));
    uint16_t *kept16 = malloc(ELEMS * sizeof(uint16_t));
    struct zk_xsum sum = { 0 }, want = { 0 }, by_tensor[SEGMENTS] = { 0 };
    const struct zk_by_tensor by = { .tensors = segments, .n = SEGMENTS, .sums = by_tensor };
    uint64_t bad = 3, want_bad = 3;
    float *out = malloc(ELEMS * sizeof(float));

    for (size_t i = 0; i < ELEMS; i++)
        from[i] = random_float(&seed);
    if (with_infinity)
        from[4096] = __builtin_inff(); /* in the second block */
    to_16(x->ops, from_dtype, from, from16);
    from_16(x->ops, from_dtype, from16, from);
    memcpy(kept, from, ELEMS * sizeof(float)); /* rounded to what the plane can hold */
    to_16(x->ops, x->layout.grad_dtype, kept, kept16);
    from_16(x->ops, x->layout.grad_dtype, kept16, kept);
    for (size_t i = 0; i < ELEMS; i++)
        x->flat->grad[i] = add ? x->flat->grad[i] + kept[i] : kept[i];
    for (size_t at = 0; at < ELEMS; at += ZB_BLOCK_ELEMS) {
        uint64_t n = 0;
        double squares = x->ops->sumsq(x->flat->grad + at, ZB_BLOCK_ELEMS, &n);

        want_bad += n;
        if (n == 0)
            zk_xsum_add(&want, squares);
    }
    zk_page_ingest_by(x->ops, &x->layout, &x->page,
                      from_dtype == ZB_F32 ? (const void *)from : (const void *)from16, from_dtype,
                      add, &sum, &bad, &by);
    by_tensor_compare(x, by_tensor);
    assert_memory_equal(&sum, &want, sizeof(sum));
    assert_int_equal(bad, want_bad);
    zk_page_read(x->ops, &x->layout, &x->page, ZK_GRAD, out);
    assert_memory_equal(out, x->flat->grad, sizeof(x->flat->grad));
    free(from);
    free(from16);
    free(kept);
    free(kept16);
    free(out);
}

static void flat_step(struct fixture *x, const struct zk_scalars *by_group)
{
    struct flat *f = x->flat;

    for (size_t s = 0; s < sizeof(segments) / sizeof(segments[0]); s++)
        for (uint64_t e = segments[s].first; e < segments[s].first + segments[s].count; e++) {
            size_t i = e - FIRST;
            struct zk_step_arrays a;
            struct zk_scalars scalars;

            if (e < FIRST || e >= FIRST + ELEMS)
                continue;
            a = (struct zk_step_arrays){
                .param = &f->master[i], .m = &f->m[i], .v = &f->v[i], .grad = &f->grad[i]
            };
            scalars = by_group[segments[s].group];
            if (segments[s].scale != 0)
                scalars.scale = segments[s].scale;
            x->ops->step[x->layout.optimizer][ZB_F32][ZB_F32](&scalars, &a, 1);
        }
    flat_param(x);
}

static void fixture_train(struct fixture *x)
{
    static const struct zk_params params[3] = {
        { .lr = 1e-2,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .scale = 0.5,
          .momentum = 0.9,
          .nesterov = true },
        { .lr = 1e-3,
          .beta1 = 0.8,
          .beta2 = 0.99,
          .eps = 1e-6,
          .scale = 0.5,
          .momentum = 0.8,
          .dampening = 0.1,
          .lr_decay = 0.01 },
        { .lr = 5e-3, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .scale = 0.5 },
    };
    struct zk_scalars by_group[3];

    fixture_compare(x);
    for (uint64_t t = 1; t <= 3; t++) {
        for (int g = 0; g < 3; g++)
            by_group[g] = zk_prepare(x->layout.optimizer, &params[g], t);
        for (enum zb_dtype from = ZB_F32; from < ZB_DTYPE_END; from++)
            fixture_ingest(x, from, false, 10 * t + from, false);
        for (enum zb_dtype from = ZB_F32; x->layout.grad_dtype == ZB_F32 && from < ZB_DTYPE_END;
             from++)
            fixture_ingest(x, from, true, 100 * t + from, false);
        zk_page_step(x->ops, &x->layout, &x->page, segments, sizeof(segments) / sizeof(segments[0]),
                     by_group);
        flat_step(x, by_group);
        fixture_compare(x);
    }
    fixture_ingest(x, ZB_F32, false, 9, true);
}

static void page_trains(void **state)
{
    size_t count;
    const struct zk_ops *const *all = zk_all(&count);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (enum zb_optimizer o = ZB_ADAMW; all[i]->supported() && o < ZB_MUON; o++)
            for (enum zb_dtype dtype = ZB_F32; dtype < ZB_DTYPE_END; dtype++)
                for (enum zb_dtype grad = ZB_F32; grad < ZB_DTYPE_END; grad++) {
                    struct fixture x = fixture_new(all[i], dtype, grad, o, ZB_MOMENTS_F32, false);

                    fixture_train(&x);
                    fixture_free(&x);
                }
}

/* Reads one moment, and compares it with the step's fp32 result. Rounding to the format changes it
 * by less than `error` of itself. 8 bits reach 15 powers of two below the largest of a group. */
static void moment_compare(const struct fixture *x, enum zk_what what, float *flat, float error)
{
    float *out = malloc(ELEMS * sizeof(float));

    zk_page_read(x->ops, &x->layout, &x->page, what, out);
    for (size_t i = 0; i < ELEMS; i++)
        if (fabsf(out[i] - flat[i]) > error * fabsf(flat[i]) + (error > 0x1p-7f ? 5e-5f : 0))
            fail_msg("%s, %s, %s: element %zu is %g and not %g", x->ops->name,
                     zb_optimizer_name(x->layout.optimizer), zb_moments_name(x->layout.moments), i,
                     (double)out[i], (double)flat[i]);
    memcpy(flat, out, ELEMS * sizeof(float)); /* the next step begins with it */
    free(out);
}

/* Steps the whole page; and on a copy its first block, then the others. */
static void fixture_train_reduced(struct fixture *x)
{
    const struct zk_params params = { .lr = 1e-2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .scale = 0.5,
                                      .momentum = 0.9 };
    float error = x->layout.moments == ZB_MOMENTS_BF16 ? 0x1p-7f : 0.125f;
    size_t state_bytes = zb_blocks_bytes(x->layout.block_bytes[ZB_STATE], ELEMS);
    size_t param_bytes = zb_blocks_bytes(x->layout.block_bytes[ZB_PARAM], ELEMS);
    size_t nsegments = sizeof(segments) / sizeof(segments[0]);
    char *state = aligned_alloc(64, state_bytes), *param = aligned_alloc(64, param_bytes);
    struct zk_scalars by_group[3];

    for (uint64_t t = 1; t <= 4; t++) {
        struct zk_page part = x->page;

        by_group[0] = by_group[1] = by_group[2] = zk_prepare(x->layout.optimizer, &params, t);
        fixture_ingest(x, ZB_F32, false, t, false);
        memcpy(state, x->page.state, state_bytes);
        memcpy(param, x->page.param, param_bytes);
        zk_page_step(x->ops, &x->layout, &x->page, segments, nsegments, by_group);
        for (uint64_t at = 0; at < ELEMS; at += part.count) {
            part.count = at == 0 ? ZB_BLOCK_ELEMS : ELEMS - ZB_BLOCK_ELEMS;
            part.first = FIRST + at;
            part.state = state + zb_blocks_bytes(x->layout.block_bytes[ZB_STATE], at);
            part.param = param + zb_blocks_bytes(x->layout.block_bytes[ZB_PARAM], at);
            part.grad = (char *)x->page.grad + zb_blocks_bytes(x->layout.block_bytes[ZB_GRAD], at);
            zk_page_step(x->ops, &x->layout, &part, segments, nsegments, by_group);
        }
        assert_memory_equal(x->page.state, state, state_bytes);
        assert_memory_equal(x->page.param, param, param_bytes);
        flat_step(x, by_group);
        if (x->layout.low8)
            flat_round(x, 0xff);
        moment_compare(x, ZK_EXP_AVG, x->flat->m, error);
        if (zk_page_has(&x->layout, ZK_EXP_AVG_SQ))
            moment_compare(x, ZK_EXP_AVG_SQ, x->flat->v, error);
        fixture_compare(x);
    }
    /* the values that were read are set again, unchanged */
    zk_page_set(x->ops, &x->layout, &x->page, ZK_EXP_AVG, x->flat->m);
    moment_compare(x, ZK_EXP_AVG, x->flat->m, 0);
    free(state);
    free(param);
}

static void page_reduced_moments(void **state)
{
    size_t count;
    const struct zk_ops *const *all = zk_all(&count);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (enum zb_optimizer o = ZB_ADAMW; all[i]->supported() && o < ZB_MUON; o++)
            for (enum zb_dtype dtype = ZB_F32; dtype < ZB_DTYPE_END; dtype++)
                for (enum zb_moments m = ZB_MOMENTS_BF16; m < ZB_MOMENTS_END; m++) {
                    struct fixture x = fixture_new(all[i], dtype, ZB_F32, o, m, false);

                    fixture_train_reduced(&x);
                    fixture_free(&x);
                }
}

/* ---- Muon: two matrices, of which the first begins before the page, and AdamW between and after them */

static const struct zk_segment muon_segments[] = {
    { FIRST - 60, 300, 1, 0 },
    { FIRST + 300, 3001, 0, 0 },
    { FIRST + 4000, 5000, 1, -2 },
    { FIRST + 9000, 2000, 0, 0 },
};
static float first_u[300], second_u[5000];
static const struct zk_matrix matrices[] = {
    { FIRST - 60, 300, 30, 10, first_u, 0.5F },
    { FIRST + 4000, 5000, 50, 100, second_u, 0.25F },
};

/* The place of element i of the page in its matrix, or NULL. */
static float *matrix_at(size_t i)
{
    for (size_t k = 0; k < 2; k++)
        if (FIRST + i >= matrices[k].first && FIRST + i < matrices[k].first + matrices[k].count)
            return matrices[k].at + (FIRST + i - matrices[k].first);
    return NULL;
}

/* The page in two parts, if `cut`. */
static void muon_pass(const struct fixture *x, const struct zk_scalars *by_group, bool cut,
                      void (*pass)(const struct zk_ops *, const struct zb_layout *,
                                   const struct zk_page *, const struct zk_segment *, size_t,
                                   const struct zk_scalars *))
{
    for (uint64_t at = 0, n; at < ELEMS; at += n) {
        struct zk_page part = x->page;

        n = !cut ? ELEMS : at == 0 ? ZB_BLOCK_ELEMS : ELEMS - ZB_BLOCK_ELEMS;
        part.first += at;
        part.count = n;
        part.param = (char *)part.param + zb_blocks_bytes(x->layout.block_bytes[ZB_PARAM], at);
        part.state = (char *)part.state + zb_blocks_bytes(x->layout.block_bytes[ZB_STATE], at);
        part.grad = (char *)part.grad + zb_blocks_bytes(x->layout.block_bytes[ZB_GRAD], at);
        part.matrices = matrices;
        part.nmatrices = 2;
        pass(x->ops, &x->layout, &part, muon_segments, 4, by_group);
    }
}

static void muon_check(struct fixture *x, const struct zk_scalars *by_group, bool cut)
{
    float *m = malloc(ELEMS * sizeof(float)), *to = malloc(ELEMS * sizeof(float));
    float *master = malloc(ELEMS * sizeof(float));
    bool reduced = x->layout.moments != ZB_MOMENTS_F32;

    zk_page_read(x->ops, &x->layout, &x->page, ZK_EXP_AVG, m);
    zk_page_read(x->ops, &x->layout, &x->page, ZK_MASTER, master);
    muon_pass(x, by_group, cut, zk_page_step);
    zk_page_read(x->ops, &x->layout, &x->page, ZK_EXP_AVG, to);
    for (size_t i = 0; i < ELEMS; i++) {
        struct zk_scalars scalars = by_group[1];
        float u = 0, new_m = m[i];
        const struct zk_step_arrays a = { .param = &u, .m = &new_m, .grad = &x->flat->grad[i] };

        if (!matrix_at(i))
            continue;
        scalars.scale = i < 300 ? scalars.scale : -2;
        x->ops->step[ZB_MUON][ZB_F32][ZB_F32](&scalars, &a, 1);
        assert_memory_equal(matrix_at(i), &u, sizeof(u));
        assert_true(fabsf(to[i] - new_m) <= (reduced ? 0.125F * fabsf(new_m) + 5e-5F : 0));
        *matrix_at(i) = u * 3 - 1; /* "orthogonalized" */
    }
    muon_pass(x, by_group, cut, zk_page_weight);
    zk_page_read(x->ops, &x->layout, &x->page, ZK_MASTER, to);
    for (size_t i = 0; i < ELEMS; i++) {
        struct zk_scalars scalars = by_group[1];

        if (!matrix_at(i))
            continue;
        scalars.step_size = i < 300 ? 0.5F : 0.25F;
        x->ops->weight_f32(&scalars, &master[i], matrix_at(i), 1);
        assert_true(fabsf(to[i] - master[i]) <= (x->layout.low8 ? fabsf(master[i]) * 0x1p-15F : 0));
    }
    free(m);
    free(to);
    free(master);
}

/* What AdamW steps in the page is as if there were no matrices. A group of 8 bits may be shared with one. */
static void muon_others(const struct fixture *x, const struct fixture *alone)
{
    float *got = malloc(ELEMS * sizeof(float)), *want = malloc(ELEMS * sizeof(float));

    for (enum zk_what what = ZK_MASTER; what <= ZK_EXP_AVG_SQ; what++) {
        zk_page_read(x->ops, &x->layout, &x->page, what, got);
        zk_page_read(x->ops, &x->layout, &alone->page, what, want);
        for (size_t i = 0; i < ELEMS; i++)
            if (!matrix_at(i) && memcmp(&got[i], &want[i], sizeof(float)) != 0)
                fail_msg("element %zu of what %d: %g, not %g", i, (int)what, (double)got[i],
                         (double)want[i]);
    }
    free(got);
    free(want);
}

static void muon_train(const struct zk_ops *ops, enum zb_dtype dtype, enum zb_moments moments)
{
    static const struct zk_segment others[] = { { FIRST + 300, 3001, 0, 0 },
                                                { FIRST + 9000, 2000, 0, 0 } };
    const struct zk_params params = { .lr = 1e-2,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .eps = 1e-8,
                                      .weight_decay = 0.1,
                                      .scale = 0.5,
                                      .momentum = 0.9,
                                      .nesterov = 1 };
    struct fixture x[3]; /* whole, cut, and AdamW alone */

    for (int f = 0; f < 3; f++)
        x[f] = fixture_new(ops, dtype, ZB_F32, ZB_ADAMW, moments, false);
    for (uint64_t t = 1; t <= 3; t++) {
        const struct zk_scalars by_group[] = { zk_prepare(ZB_ADAMW, &params, t),
                                               zk_prepare(ZB_MUON, &params, t) };

        for (int f = 0; f < 3; f++)
            fixture_ingest(&x[f], ZB_F32, false, t, false);
        muon_check(&x[0], by_group, false);
        muon_check(&x[1], by_group, true);
        assert_memory_equal(x[0].page.state, x[1].page.state,
                            zb_page_bytes(x[0].layout.block_bytes[ZB_STATE], ELEMS));
        assert_memory_equal(x[0].page.param, x[1].page.param,
                            zb_page_bytes(x[0].layout.block_bytes[ZB_PARAM], ELEMS));
        zk_page_step(ops, &x[2].layout, &x[2].page, others, 2, by_group);
        if (!zb_moments_q8(moments))
            muon_others(&x[0], &x[2]);
    }
    for (int f = 0; f < 3; f++)
        fixture_free(&x[f]);
}

static void page_muon(void **state)
{
    size_t count;
    const struct zk_ops *const *all = zk_all(&count);

    (void)state;
    for (size_t i = 0; i < count; i++)
        for (enum zb_dtype dtype = ZB_F32; all[i]->supported() && dtype < ZB_DTYPE_END; dtype++)
            for (enum zb_moments m = ZB_MOMENTS_F32; m < ZB_MOMENTS_END; m++)
                muon_train(all[i], dtype, m);
}

static void page_frozen(void **state)
{
    size_t count;
    const struct zk_ops *ops = zk_all(&count)[0];

    (void)state;
    for (enum zb_dtype dtype = ZB_F32; dtype < ZB_DTYPE_END; dtype++) {
        struct fixture x = fixture_new(ops, dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, true);

        assert_int_equal(zk_page_has(&x.layout, ZK_MASTER), dtype == ZB_F32);
        assert_false(zk_page_has(&x.layout, ZK_GRAD));
        fixture_compare(&x);
        fixture_free(&x);
    }
}

/* Frozen and in 8 bits: any run of blocks reads as what the kernels make of the masters, group by
 * group, within half a scale of them. */
static void page_quantized(void **state)
{
    static float back[ELEMS], wide[ELEMS];
    static int8_t codes[ELEMS];
    static float scales[ELEMS / ZB_Q8_GROUP];
    size_t count;
    const struct zk_ops *ops = zk_all(&count)[0];

    (void)state;
    for (enum zb_dtype dtype = ZB_F32; dtype < ZB_DTYPE_END; dtype++) {
        struct fixture x = fixture_new(ops, dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, true);
        const char *param;

        zb_layout_quantize(&x.layout);
        zk_page_init(ops, &x.layout, &x.page, x.flat->master);
        assert_int_equal(zk_page_has(&x.layout, ZK_MASTER), dtype == ZB_F32);
        ops->quantize_i8(x.flat->master, codes, scales, ELEMS);
        ops->dequantize_i8(codes, scales, wide, ELEMS);
        for (size_t i = 0; i < ELEMS; i++)
            assert_true(fabsf(wide[i] - x.flat->master[i]) <= 0.5001f * scales[i / ZB_Q8_GROUP]);
        memcpy(x.flat->master, wide, sizeof(wide));
        to_16(ops, dtype, wide, x.flat->hi);
        fixture_compare(&x);

        param = (const char *)x.page.param + x.layout.block_bytes[ZB_PARAM];
        zk_q8_read(ops, dtype, param, ZB_BLOCK_ELEMS, back);
        if (dtype == ZB_F32)
            assert_memory_equal(back, wide + ZB_BLOCK_ELEMS, ZB_BLOCK_ELEMS * sizeof(float));
        else
            assert_memory_equal(back, x.flat->hi + ZB_BLOCK_ELEMS,
                                ZB_BLOCK_ELEMS * sizeof(uint16_t));
        fixture_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_trains),    cmocka_unit_test(page_reduced_moments),
        cmocka_unit_test(page_muon),      cmocka_unit_test(page_frozen),
        cmocka_unit_test(page_quantized),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
