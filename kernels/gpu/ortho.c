/*
 * ortho.c - see gpu_ortho.h. Which device it is, is asked in two places: to open it, and for a product.
 *
 * MODEL. Device memory holds X and the next X, both squares and, with bf16, X and a square as factors.
 * An iteration is three products, in the form that cuBLASLt has (what is added is not changed):
 *
 *     gram = X X^T          poly = c gram gram + b gram          X = poly X + a X
 *
 * or, if there are more rows than columns, X^T X and X poly. All of it is one stream's works, in order.
 * With bf16 what a product gives is rounded: from fp32 to a factor, and back to what is added.
 */
#include "kernels/gpu_ortho.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/gpu/gpu_priv.h"
#include "kernels/lt.h"

#define ALIGN 256u

struct zk_gpu_ortho {
    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_mem *mem;
    struct zk_lt *lt;         /* cuda */
    const struct zk_ops *ops; /* emulated; NULL: cuda */
    struct zk_gpu_norm *norms;
    uint64_t norms_room;
};

/* One matrix; device addresses. */
struct run {
    struct zk_gpu_ortho *o;
    const struct zk_ortho_how *how;
    uint64_t rows, cols, n, elems; /* n: of the squares */
    float *x, *to;
    float *gram, *poly;
    uint16_t *x16, *square16;
    struct zk_gpu_norm *norms;
    void *workspace;
    struct zb_err *err;
};

/* ---- products on the processor */

struct host_product {
    struct zk_lt_product p;
    const struct zk_ops *ops;
};

/* A factor as matmul() takes it: fp32, and transposed if `turn`. *made is to be freed. NULL: no memory. */
static const float *factor_get(const struct host_product *h, const struct zk_lt_mat *mat,
                               uint64_t rows, uint64_t cols, bool turn, float **made)
{
    const float *from = mat->at;
    float *wide = NULL;

    *made = NULL;
    if (h->p.dtype == ZB_BF16) {
        wide = malloc(rows * cols * sizeof(*wide));
        if (!wide)
            return NULL;
        h->ops->bf16_to_f32(mat->at, wide, rows * cols);
        from = *made = wide;
    }
    if (!turn)
        return from;
    *made = malloc(rows * cols * sizeof(**made));
    for (uint64_t r = 0; r < rows && *made; r++)
        for (uint64_t c = 0; c < cols; c++)
            (*made)[c * rows + r] = from[r * cols + c];
    free(wide);
    return *made;
}

static int host_product_run(void *args)
{
    const struct host_product *h = args;
    const struct zk_lt_product *p = &h->p;
    float *made[2] = { NULL, NULL };
    struct zk_matmul m = { .b_transposed = p->b.t,
                           .add = p->beta != 0.0f ? p->add : NULL,
                           .out = (float *)(uintptr_t)p->d.at,
                           .k = p->k,
                           .cols = p->n,
                           .alpha = p->alpha,
                           .beta = p->beta };
    int rc = -ENOMEM;

    m.a = p->a.t ? factor_get(h, &p->a, p->k, p->m, true, &made[0])
                 : factor_get(h, &p->a, p->m, p->k, false, &made[0]);
    m.b = factor_get(h, &p->b, p->b.t ? p->n : p->k, p->b.t ? p->k : p->n, false, &made[1]);
    if (m.a && m.b) {
        h->ops->matmul(&m, 0, p->m, 0, p->n);
        rc = 0;
    }
    free(made[0]);
    free(made[1]);
    return rc;
}

static int product_emulated(const struct run *run, const struct zk_lt_product *p)
{
    const struct host_product h = { *p, run->o->ops };
    uint64_t a = (uint64_t)p->m * p->k, b = (uint64_t)p->k * p->n, d = (uint64_t)p->m * p->n;
    const struct zk_gpu_use uses[] = {
        { offsetof(struct host_product, p.a.at), a * zb_dtype_bytes(p->dtype), false },
        { offsetof(struct host_product, p.b.at), b * zb_dtype_bytes(p->dtype), false },
        { offsetof(struct host_product, p.d.at), d * sizeof(float), true },
        { offsetof(struct host_product, p.add), p->add ? d * sizeof(float) : 0, false },
    };

    return zk_gpu_call(run->o->stream, host_product_run, &h, sizeof(h), uses, ZB_COUNT(uses),
                       run->err);
}

/* ---- the works of an iteration */

/* to = alpha a b + beta add, where `add` is as large as `to`. */
static int product(const struct run *run, struct zk_lt_mat a, struct zk_lt_mat b, float *to,
                   uint64_t rows, uint64_t k, uint64_t cols, double alpha, const float *add,
                   double beta)
{
    const struct zk_lt_product p = { .a = a,
                                     .b = b,
                                     .d = { .at = to, .ld = cols },
                                     .add = add,
                                     .dtype = run->how->bf16 ? ZB_BF16 : ZB_F32,
                                     .d_dtype = ZB_F32,
                                     .alpha = (float)alpha,
                                     .beta = (float)beta,
                                     .m = (uint32_t)rows,
                                     .n = (uint32_t)cols,
                                     .k = (uint32_t)k,
                                     .batch = 1 };
    int rc;

    if (run->o->ops)
        return product_emulated(run, &p);
    rc = zk_gpu_enter(run->o->gpu, run->err);
    return rc < 0 ? rc
                  : zk_lt_matmul(run->o->lt, &p, run->workspace,
                                 zk_gpu_stream_native(run->o->stream), run->err);
}

static int array(const struct run *run, const struct zk_gpu_array *a, enum zk_gpu_op op)
{
    return zk_gpu_launch(run->o->stream, &(struct zk_gpu_work){ .op = op, .array = *a }, run->err);
}

/* With bf16: rounds n elements, to a factor and back. */
static int rounded(const struct run *run, float *x, uint16_t *factor, uint64_t n)
{
    const struct zk_gpu_array down = {
        .from = x, .to = factor, .n = n, .from_dtype = ZB_F32, .to_dtype = ZB_BF16
    };
    const struct zk_gpu_array up = {
        .from = factor, .to = x, .n = n, .from_dtype = ZB_BF16, .to_dtype = ZB_F32
    };
    int rc = run->how->bf16 ? array(run, &down, ZK_GPU_CAST) : 0;

    return rc == 0 && run->how->bf16 ? array(run, &up, ZK_GPU_CAST) : rc;
}

static int iterate(struct run *run)
{
    bool tall = run->rows > run->cols, bf16 = run->how->bf16;
    const struct zk_lt_mat x = { .at = bf16 ? (void *)run->x16 : run->x, .ld = run->cols };
    const struct zk_lt_mat turned = { .at = x.at, .ld = x.ld, .t = true };
    const struct zk_lt_mat gram = { .at = bf16 ? (void *)run->square16 : run->gram, .ld = run->n };
    const struct zk_lt_mat poly = { .at = bf16 ? (void *)run->square16 : run->poly, .ld = run->n };
    uint64_t n = run->n, m = run->elems / n;
    float *old = run->x;
    int rc = product(run, tall ? turned : x, tall ? x : turned, run->gram, n, m, n, 1, NULL, 0);

    if (rc == 0)
        rc = rounded(run, run->gram, run->square16, n * n);
    if (rc == 0)
        rc = product(run, gram, gram, run->poly, n, n, n, run->how->c, run->gram, run->how->b);
    if (rc == 0)
        rc = rounded(run, run->poly, run->square16, n * n);
    if (rc == 0)
        rc = product(run, tall ? x : poly, tall ? poly : x, run->to, run->rows, n, run->cols, 1,
                     run->x, run->how->a);
    if (rc == 0)
        rc = rounded(run, run->to, run->x16, run->elems);
    run->x = run->to;
    run->to = old;
    return rc;
}

/* ---- before and after */

/* Copies the matrix to the device, with the sums of its squares back. Waits. */
static int load(struct run *run, const float *matrix)
{
    struct zk_gpu_ortho *o = run->o;
    uint64_t blocks = zb_div_up(run->elems, ZB_BLOCK_ELEMS);
    const struct zk_gpu_array a = {
        .from = run->to, .norms = run->norms, .n = run->elems, .from_dtype = ZB_F32
    };
    int rc;

    if (blocks > o->norms_room) {
        struct zk_gpu_norm *norms = realloc(o->norms, blocks * sizeof(*norms));

        if (!norms)
            return zb_fail(run->err, -ENOMEM, "the norm of a matrix: %m");
        o->norms = norms;
        o->norms_room = blocks;
    }
    rc = zk_gpu_copy(o->stream, ZK_GPU_TO_DEVICE, run->to, matrix, run->elems * sizeof(float),
                     run->err);
    if (rc == 0)
        rc = array(run, &a, ZK_GPU_NORM);
    if (rc == 0)
        rc = zk_gpu_copy(o->stream, ZK_GPU_TO_HOST, o->norms, run->norms,
                         blocks * sizeof(*o->norms), run->err);
    return rc == 0 ? zk_gpu_stream_sync(o->stream, run->err) : rc;
}

/* X is the matrix over its norm. */
static int normalize(struct run *run)
{
    struct zk_gpu_array a = { .from = run->to, .to = run->x, .n = run->elems };
    struct zk_xsum sum = { 0 };
    uint64_t bad = 0;
    int rc;

    for (uint64_t i = 0; i < zb_div_up(run->elems, ZB_BLOCK_ELEMS); i++) {
        bad += run->o->norms[i].nonfinite;
        if (run->o->norms[i].nonfinite == 0)
            zk_xsum_add(&sum, run->o->norms[i].sum);
    }
    a.factor = bad > 0 ? NAN : (float)(1 / fmax(sqrt(zk_xsum_value(&sum)), run->how->eps));
    rc = array(run, &a, ZK_GPU_SCALE);
    return rc == 0 ? rounded(run, run->x, run->x16, run->elems) : rc;
}

static int orthogonalize(struct run *run, float *matrix)
{
    int rc = load(run, matrix);

    if (rc == 0)
        rc = normalize(run);
    for (uint32_t i = 0; i < run->how->iterations && rc == 0; i++)
        rc = iterate(run);
    if (rc == 0)
        rc = zk_gpu_copy(run->o->stream, ZK_GPU_TO_HOST, matrix, run->x, run->elems * sizeof(float),
                         run->err);
    return rc == 0 ? zk_gpu_stream_sync(run->o->stream, run->err) : rc;
}

static void *cut(unsigned char **at, uint64_t bytes)
{
    void *ret = *at;

    *at += zb_round_up(bytes, ALIGN);
    return ret;
}

int zk_gpu_ortho(struct zk_gpu_ortho *o, const struct zk_ortho_how *how, float *matrix, size_t rows,
                 size_t cols, struct zb_err *err)
{
    struct run run = { .o = o,
                       .how = how,
                       .rows = rows,
                       .cols = cols,
                       .n = zb_min_u64(rows, cols),
                       .elems = (uint64_t)rows * cols,
                       .err = err };
    unsigned char *at = zk_gpu_addr(o->mem);
    int rc;

    assert(run.elems > 0 && zb_ortho_gpu_bytes(rows, cols, how->bf16) <= zk_gpu_len(o->mem));
    if (rows > UINT32_MAX || cols > UINT32_MAX)
        return zb_fail(err, -ENOTSUP, "a matrix of %zu x %zu", rows, cols);
    run.workspace = cut(&at, ZB_LT_WORKSPACE_BYTES);
    run.x = cut(&at, run.elems * sizeof(float));
    run.to = cut(&at, run.elems * sizeof(float));
    run.gram = cut(&at, run.n * run.n * sizeof(float));
    run.poly = cut(&at, run.n * run.n * sizeof(float));
    run.norms = cut(&at, zb_div_up(run.elems, ZB_BLOCK_ELEMS) * sizeof(*run.norms));
    run.x16 = cut(&at, how->bf16 ? run.elems * sizeof(uint16_t) : 0);
    run.square16 = cut(&at, how->bf16 ? run.n * run.n * sizeof(uint16_t) : 0);
    rc = orthogonalize(&run, matrix);
    if (rc < 0)
        (void)zk_gpu_stream_sync(o->stream, NULL); /* nothing uses the matrix any more */
    return rc;
}

/* ---- opening */

int zk_gpu_ortho_open(struct zk_gpu *g, uint64_t bytes, uint64_t tag, struct zk_gpu_ortho **ret,
                      struct zb_err *err)
{
    struct zk_gpu_ortho *o = calloc(1, sizeof(*o));
    int rc;

    if (!o)
        return zb_fail(err, -ENOMEM, "orthogonal matrices on a GPU: %m");
    o->gpu = g;
    rc = g->backend->call ? zk_select(NULL, &o->ops, err) : zk_lt_open(&o->lt, err);
    if (rc == 0)
        rc = zk_gpu_stream_new(g, &o->stream, err);
    if (rc == 0)
        rc = zk_gpu_alloc(g, bytes, tag, &o->mem, err);
    if (rc == 0)
        *ret = o;
    else
        zk_gpu_ortho_close(o);
    return rc;
}

void zk_gpu_ortho_close(struct zk_gpu_ortho *o)
{
    if (!o)
        return;
    zk_gpu_stream_free(o->stream);
    zk_gpu_free(o->mem);
    zk_lt_close(o->lt);
    free(o->norms);
    free(o);
}

uint64_t zk_gpu_ortho_bytes(const struct zk_gpu_ortho *o)
{
    return zk_gpu_len(o->mem);
}
