/*
 * works.h - random works for a GPU (kernels/gpu.h): every kernel with every dtype, layout and
 * optimizer, on values of all kinds, in an arena of bytes that may be at any address.
 */
#ifndef ZTEST_KERNELS_WORKS_H
#define ZTEST_KERNELS_WORKS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gpu/gpu_priv.h"
#include "tests/unit/kernels/data.h"

#define WORKS_BYTES (512u * 1024)

struct works {
    unsigned char *mem; /* WORKS_BYTES, aligned to 64 */
    size_t used;
    uint64_t seed;
    struct zk_gpu_work work; /* its pointers lie in mem */
    char name[160];
};

/* ---- drawing */

static inline void works_words(struct works *x, void *to, size_t bytes)
{
    uint64_t kind = ztest_random(&x->seed) % 3;
    unsigned char *p = to;

    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits = kind == 0   ? (uint32_t)ztest_random(&x->seed)
                        : kind == 1 ? data_draw_special(&x->seed)
                                    : data_bits(data_draw_range(&x->seed, -30, 3));

        memcpy(p + i, &bits, zb_min_u64(4, bytes - i));
    }
}

/* Returns `bytes` bytes at an offset of `skew` from a multiple of 64. */
static inline void *works_take(struct works *x, size_t bytes, size_t skew)
{
    unsigned char *at = x->mem + zb_round_up(x->used, 64) + skew;

    x->used = (size_t)(at - x->mem) + bytes;
    assert_true(x->used <= WORKS_BYTES);
    works_words(x, at, bytes);
    return at;
}

static inline float works_scalar(struct works *x, float usual)
{
    return ztest_random(&x->seed) % 8 == 0 ? data_float(data_draw_special(&x->seed)) : usual;
}

static inline struct zk_scalars works_scalars(struct works *x)
{
    return (struct zk_scalars){ .scale = works_scalar(x, 0.25f),
                                .decay = works_scalar(x, 0.9999f),
                                .l2 = works_scalar(x, 0.01f),
                                .step_size = works_scalar(x, 0.01f),
                                .eps = works_scalar(x, 1e-8f),
                                .beta1 = works_scalar(x, 0.9f),
                                .one_minus_beta1 = works_scalar(x, 0.1f),
                                .beta2 = works_scalar(x, 0.999f),
                                .one_minus_beta2 = works_scalar(x, 0.001f),
                                .rsqrt_c2 = works_scalar(x, 31.6f),
                                .momentum = works_scalar(x, 0.9f),
                                .one_minus_dampening = works_scalar(x, 0.9f),
                                .fresh = ztest_random(&x->seed) % 2,
                                .nesterov = ztest_random(&x->seed) % 2,
                                .rounding = (uint32_t)ztest_random(&x->seed) };
}

static inline void *works_plane(struct works *x, const struct zb_layout *layout,
                                enum zb_plane plane, uint64_t elems)
{
    return works_take(x, zb_blocks_bytes(layout->block_bytes[plane], elems), 0);
}

/* Segments of all sizes, with gaps, also before and after the page. */
static inline void works_segments(struct works *x, struct zk_gpu_step *w)
{
    enum { MANY = 40 };
    struct zk_segment *s = works_take(x, MANY * sizeof(*s), 0);
    uint64_t span = w->page.count + 2 * ZB_BLOCK_ELEMS, at = w->page.first - ZB_BLOCK_ELEMS;
    uint64_t end = at + span, kind = ztest_random(&x->seed) % 4;

    w->ngroups = 3;
    memset(s, 0, MANY * sizeof(*s));
    w->segments = s;
    for (w->nsegments = 0; w->nsegments < MANY && at < end; w->nsegments++, s++) {
        uint64_t most = kind == 0 ? 30 : kind == 1 ? 700 : 9000;

        at += kind == 3 || ztest_random(&x->seed) % 2 ? 0 : ztest_random(&x->seed) % most;
        s->first = at;
        s->count = kind == 3 ? span : 1 + ztest_random(&x->seed) % most;
        s->group = (uint32_t)(ztest_random(&x->seed) % w->ngroups);
        s->scale = ztest_random(&x->seed) % 3 ? 0 : 0.25F * (float)(1 + ztest_random(&x->seed) % 7);
        at += s->count;
    }
}

static inline void works_step(struct works *x, const struct zb_layout *layout)
{
    struct zk_gpu_step *w = &x->work.step;
    struct zk_scalars *scalars;

    x->work.op = ZK_GPU_STEP;
    w->layout = *layout;
    w->page.count = (1 + ztest_random(&x->seed) % 3) * ZB_BLOCK_ELEMS;
    w->page.first = (1 + ztest_random(&x->seed) % 1000000) * ZB_BLOCK_ELEMS;
    w->page.param = works_plane(x, layout, ZB_PARAM, w->page.count);
    w->page.state = works_plane(x, layout, ZB_STATE, w->page.count);
    w->page.grad = works_plane(x, layout, ZB_GRAD, w->page.count);
    works_segments(x, w);
    scalars = works_take(x, w->ngroups * sizeof(*scalars), 0);
    for (uint32_t i = 0; i < w->ngroups; i++)
        scalars[i] = works_scalars(x);
    w->by_group = scalars;
    (void)snprintf(x->name, sizeof(x->name), "step %s, %s, gradients %s, moments %s, %u segments",
                   zb_optimizer_name(layout->optimizer), zb_dtype_name(layout->dtype),
                   zb_dtype_name(layout->grad_dtype), zb_moments_name(layout->moments),
                   w->nsegments);
}

static inline void works_ingest(struct works *x, enum zb_dtype grad, enum zb_dtype from, bool add)
{
    struct zk_gpu_ingest *w = &x->work.ingest;
    size_t from_bytes = zb_dtype_bytes(from);

    x->work.op = ZK_GPU_INGEST;
    assert_int_equal(zb_layout_of(ZB_BF16, grad, ZB_ADAMW, ZB_MOMENTS_F32, false, &w->layout, NULL),
                     0);
    w->page.count = (1 + ztest_random(&x->seed) % 9) * ZB_BLOCK_ELEMS;
    w->page.grad = works_plane(x, &w->layout, ZB_GRAD, w->page.count);
    w->from = works_take(x, w->page.count * from_bytes, ztest_random(&x->seed) % 2 * from_bytes);
    w->norms = works_take(x, w->page.count / ZB_BLOCK_ELEMS * sizeof(*w->norms), 0);
    w->from_dtype = from;
    w->add = add;
    (void)snprintf(x->name, sizeof(x->name), "%s %s to %s", add ? "add" : "set",
                   zb_dtype_name(from), zb_dtype_name(grad));
}

/* Any of the works on arrays, with a random n. */
static inline void works_array(struct works *x, enum zk_gpu_op op, enum zb_dtype from,
                               enum zb_dtype to, bool is_signed)
{
    static const uint64_t sizes[] = { 0,   1,   3,    4,    7,    63,   255,  256,
                                      257, 999, 1024, 4095, 4096, 4097, 8192, 12289 };
    struct zk_gpu_array *a = &x->work.array;
    struct zk_gpu_span spans[ZK_GPU_SPANS_MAX];
    unsigned nspans;

    x->work.op = op;
    a->n = sizes[ztest_random(&x->seed) % ZB_COUNT(sizes)];
    if (op == ZK_GPU_ENCODE_Q8 || op == ZK_GPU_DECODE_Q8)
        a->n = a->n / ZB_Q8_GROUP * ZB_Q8_GROUP;
    else if (op >= ZK_GPU_QUANTIZE_I8)
        a->n = a->n / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS;
    a->from_dtype = from;
    a->to_dtype = to;
    a->is_signed = is_signed;
    a->key = (uint32_t)ztest_random(&x->seed);
    a->factor = works_scalar(x, 0.37f);
    nspans = zk_gpu_work_spans(&x->work, spans);
    for (unsigned i = 0; i < nspans; i++) {
        size_t elem = spans[i].at == (void *)&a->norms ? 0 : 4; /* a multiple of any element size */
        void *at = works_take(x, spans[i].len_bytes, ztest_random(&x->seed) % 3 * elem);

        memcpy(spans[i].at, &at, sizeof(at));
    }
    (void)snprintf(x->name, sizeof(x->name), "array work %d, dtypes %d to %d, %s, %llu elements",
                   (int)op, (int)from, (int)to, is_signed ? "signed" : "unsigned",
                   (unsigned long long)a->n);
}

static inline bool works_draw_array(struct works *x, enum zk_gpu_op op, enum zb_dtype from,
                                    enum zb_dtype to, bool is_signed)
{
    struct zk_gpu_work probe = { .op = op, .array = { .from_dtype = from, .to_dtype = to } };

    if (zk_gpu_work_check(&probe, NULL) < 0)
        return false;
    works_array(x, op, from, to, is_signed);
    return true;
}

/* Draws the nth of all works. false: there are fewer, and nothing was drawn. Some numbers stand for
 * works that do not exist: *ret_none. */
static inline bool works_nth(struct works *x, size_t n, bool *ret_none)
{
    const size_t dtypes = ZB_DTYPE_END - 1, steps = (ZB_OPTIMIZER_END - 1) * 3 * dtypes * dtypes;
    const size_t ingests = 2 * dtypes * dtypes;
    const size_t arrays = (ZK_GPU_OP_END - ZK_GPU_CAST) * dtypes * dtypes * 2;
    enum zb_dtype a = (enum zb_dtype)(1 + n % dtypes), b = (enum zb_dtype)(1 + n / dtypes % dtypes);
    size_t rest = n / dtypes / dtypes;

    *ret_none = false;
    memset(&x->work, 0, sizeof(x->work));
    memset(x->mem, 0x5c, WORKS_BYTES);
    x->used = 0;
    if (n < steps) {
        struct zb_layout layout;

        *ret_none = zb_layout_of(a, b, (enum zb_optimizer)(1 + rest / 3),
                                 (enum zb_moments)(1 + rest % 4), false, &layout, NULL) < 0;
        if (!*ret_none)
            works_step(x, &layout);
        return true;
    }
    rest = (n -= steps) / dtypes / dtypes;
    if (n < ingests) {
        *ret_none = rest == 1 && a != ZB_F32;
        if (!*ret_none)
            works_ingest(x, a, b, rest == 1);
        return true;
    }
    rest = (n -= ingests) / dtypes / dtypes;
    if (n >= arrays)
        return false;
    *ret_none = !works_draw_array(x, (enum zk_gpu_op)(ZK_GPU_CAST + rest / 2), a, b, rest % 2);
    return true;
}

/** The work on a copy of the same bytes at another address, in host or device memory. */
static inline struct zk_gpu_work works_moved(const struct works *x, void *to)
{
    struct zk_gpu_work moved = x->work;
    struct zk_gpu_span spans[ZK_GPU_SPANS_MAX];
    unsigned n = zk_gpu_work_spans(&moved, spans);

    for (unsigned i = 0; i < n; i++) {
        unsigned char *at;

        memcpy(&at, spans[i].at, sizeof(at));
        at = (unsigned char *)to + (at - x->mem);
        memcpy(spans[i].at, &at, sizeof(at));
    }
    return moved;
}

static inline void works_compare(const struct works *x, const unsigned char *got,
                                 const unsigned char *want)
{
    for (size_t i = 0; i < WORKS_BYTES; i++)
        if (got[i] != want[i])
            fail_msg("%s: byte %zu of %zu is %02x and should be %02x", x->name, i, x->used, got[i],
                     want[i]);
}

#endif
