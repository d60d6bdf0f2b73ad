/*
 * test_kern.c - compares every operation of the model, on every device that opens, with plain loops
 * in double. The emulated device always opens, CUDA's only where there is one.
 *
 * Arrays are random, rounded to their dtype, and given to both. Outputs are followed by a guard,
 * and filled with NaNs first unless they are added to. Tolerances: sums of fp32 have a relative
 * error of n * 2^-24 at most; rounding to bf16 adds 2^-8, to fp16 2^-11.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "examples/gpt/dev/dev.h"
#include "examples/gpt/dev/kern.h"
#include "examples/gpt/dev/matmul.h"
#include "examples/gpt/model/elem.h"
#include "tests/unit/gpt/dev_fixture.h"

#define MEMORY (48u << 20)
#define GUARD  256u

enum type { F32 = GPT_DEV_F32, BF16 = GPT_DEV_BF16, F16 = GPT_DEV_FP16, F64, U32 };

static const size_t type_bytes[] = { [F32] = 4, [BF16] = 2, [F16] = 2, [F64] = 8, [U32] = 4 };

/* An array on the device, and its values on the host. */
struct array {
    enum type type;
    size_t n;
    void *dev;
    double *v;
};

static bool kern_open(struct fixture *x, const char *name)
{
    if (!fixture_open(x, name))
        return false;
    x->random = 7;
    good(x, zk_gpu_alloc(x->gpu, MEMORY, 0, &x->mem, &x->err));
    return true;
}

static void kern_close(struct fixture *x)
{
    struct zb_err err = { 0 };

    if (gpt_dev_error(x->dev, &err) != 0)
        fail_msg("%s: %s", x->name, err.text);
    fixture_close(x);
}

/* Runs `run` on each device that opens. */
static void on_each(void (*run)(struct fixture *x))
{
    static const char *const names[] = { "emulated:64M", "emulated:64M:50", "cuda" };
    struct fixture x;

    for (size_t i = 0; i < ZB_COUNT(names); i++)
        if (kern_open(&x, names[i])) {
            run(&x);
            kern_close(&x);
        }
}

/* ---- arrays */

static double drawn(struct fixture *x)
{
    x->random = x->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(x->random >> 11) * 0x1p-53;
}

static void store(enum type type, void *at, size_t i, double v)
{
    if (type == F32)
        ((float *)at)[i] = (float)v;
    else if (type == BF16)
        ((uint16_t *)at)[i] = gpt_elem_to_bf16((float)v);
    else if (type == F16)
        ((uint16_t *)at)[i] = gpt_elem_to_fp16((float)v);
    else if (type == F64)
        ((double *)at)[i] = v;
    else
        ((uint32_t *)at)[i] = (uint32_t)v;
}

static double load(enum type type, const void *at, size_t i)
{
    return type == F32    ? (double)((const float *)at)[i]
           : type == BF16 ? (double)gpt_elem_of_bf16(((const uint16_t *)at)[i])
           : type == F16  ? (double)gpt_elem_of_fp16(((const uint16_t *)at)[i])
           : type == F64  ? ((const double *)at)[i]
                          : (double)((const uint32_t *)at)[i];
}

static struct array array_take(struct fixture *x, enum type type, size_t n)
{
    struct array a = { type, n, (char *)zk_gpu_addr(x->mem) + x->used,
                       calloc(n ? n : 1, sizeof(double)) };

    assert_non_null(a.v);
    x->used += (n * type_bytes[type] + GUARD + 255) / 256 * 256;
    assert_true(x->used <= MEMORY);
    return a;
}

/* Copies a->v, rounded to the array's type, to the device, with the guard; a->v gets the rounded
 * values. */
static void array_put(struct fixture *x, struct array *a)
{
    size_t bytes = a->n * type_bytes[a->type];
    unsigned char *host = malloc(bytes + GUARD);

    assert_non_null(host);
    for (size_t i = 0; i < a->n; i++)
        store(a->type, host, i, a->v[i]);
    for (size_t i = 0; i < a->n; i++)
        a->v[i] = load(a->type, host, i);
    memset(host + bytes, 0x5a, GUARD);
    good(x, zk_gpu_copy(x->stream, ZK_GPU_TO_DEVICE, a->dev, host, bytes + GUARD, &x->err));
    good(x, zk_gpu_stream_sync(x->stream, &x->err));
    free(host);
}

static struct array array_drawn(struct fixture *x, enum type type, size_t n, double from, double to)
{
    struct array a = array_take(x, type, n);

    for (size_t i = 0; i < n; i++)
        a.v[i] = from + (to - from) * drawn(x);
    array_put(x, &a);
    return a;
}

/* An array for output. */
static struct array array_junk(struct fixture *x, enum type type, size_t n)
{
    struct array a = array_take(x, type, n);

    for (size_t i = 0; i < n; i++)
        a.v[i] = type == U32 ? 0 : NAN;
    array_put(x, &a);
    return a;
}

static void array_done(struct array *a)
{
    free(a->v);
    a->v = NULL;
}

/* Checks that the device has `want` in a, to a relative and an absolute error. */
static void array_check(struct fixture *x, const char *what, const struct array *a,
                        const double *want, double relative, double absolute)
{
    size_t bytes = a->n * type_bytes[a->type];
    unsigned char *host = malloc(bytes + GUARD);

    assert_non_null(host);
    good(x, zk_gpu_copy(x->stream, ZK_GPU_TO_HOST, host, a->dev, bytes + GUARD, &x->err));
    good(x, zk_gpu_stream_sync(x->stream, &x->err));
    relative += a->type == BF16 ? 0x1p-8 : a->type == F16 ? 0x1p-11 : 0;
    absolute += a->type == F16 ? 0x1p-25 : 0; /* below 2^-14 */
    for (size_t i = 0; i < a->n; i++) {
        double got = load(a->type, host, i);

        if (!(fabs(got - want[i]) <= relative * fabs(want[i]) + absolute))
            fail_msg("%s, %s: element %zu of %zu is %.9g, not %.9g", x->name, what, i, a->n, got,
                     want[i]);
    }
    for (size_t i = 0; i < GUARD; i++)
        if (host[bytes + i] != 0x5a)
            fail_msg("%s, %s: written behind the end", x->name, what);
    free(host);
}

static double *wants(size_t n)
{
    double *w = calloc(n ? n : 1, sizeof(*w));

    assert_non_null(w);
    return w;
}

static void again(struct fixture *x)
{
    x->used = 0;
}

/* ---- shapes: rows shorter and longer than a team's lanes, and than the pieces of a sum */

static const struct shape {
    uint64_t rows, cols;
} shapes[] = { { 1, 1 }, { 3, 7 }, { 65, 256 }, { 130, 257 }, { 7, 1600 }, { 64, 31 } };

static const enum type dtypes[] = { F32, BF16, F16 };

#define EACH_SHAPE(s, dtype)                                                      \
    for (size_t i_ = 0; i_ < ZB_COUNT(shapes) * ZB_COUNT(dtypes); i_++)           \
        for (struct shape s = shapes[i_ / ZB_COUNT(dtypes)], *once_ = &s; once_;) \
            for (enum type dtype = dtypes[i_ % ZB_COUNT(dtypes)]; once_; once_ = NULL)

static void embed_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t rows = s.rows * 3, vocab = 50;
        struct array wte = array_drawn(x, dtype, vocab * s.cols, -1, 1);
        struct array wpe = array_drawn(x, dtype, s.rows * s.cols, -1, 1);
        struct array tokens = array_drawn(x, U32, rows, 0, (double)vocab);
        struct array to = array_junk(x, F32, rows * s.cols);
        double *want = wants(to.n);
        struct gpt_kern k = { .op = GPT_KERN_EMBED,
                              .dtype = (enum gpt_dtype_dev)dtype,
                              .embed = { wte.dev, wpe.dev, tokens.dev, to.dev, rows, s.cols, s.rows,
                                         vocab } };

        for (uint64_t i = 0; i < to.n; i++) {
            uint64_t r = i / s.cols, j = i % s.cols;

            want[i] = wte.v[(uint64_t)tokens.v[r] * s.cols + j] + wpe.v[r % s.rows * s.cols + j];
        }
        gpt_dev_kernel(x->dev, &k);
        array_check(x, "embed", &to, want, 0x1p-23, 0);
        free(want);
        array_done(&wte);
        array_done(&wpe);
        array_done(&tokens);
        array_done(&to);
        again(x);
    }
}

static void embed_back_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t rows = s.rows * 2, vocab = 5, distinct = 0, at = 0;
        struct array dx = array_drawn(x, F32, rows * s.cols, -1, 1);
        struct array dwte = array_drawn(x, F32, vocab * s.cols, -1, 1);
        struct array dwpe = array_drawn(x, F32, s.rows * s.cols, -1, 1);
        struct array tokens = array_drawn(x, U32, rows, 0, (double)vocab);
        struct array which = array_take(x, U32, vocab), first = array_take(x, U32, vocab + 1);
        struct array order = array_take(x, U32, rows);
        double *want = wants(dwte.n), *want_pos = wants(dwpe.n);
        struct gpt_kern k = { .op = GPT_KERN_EMBED_BACK }, pos = { .op = GPT_KERN_POS_BACK };

        (void)dtype;
        memcpy(want, dwte.v, dwte.n * sizeof(*want));
        memcpy(want_pos, dwpe.v, dwpe.n * sizeof(*want));
        for (uint64_t token = vocab; token-- > 0;) { /* tokens in some order */
            uint64_t before = at;

            for (uint64_t r = 0; r < rows; r++)
                if ((uint64_t)tokens.v[r] == token)
                    order.v[at++] = (double)r;
            if (at > before) {
                first.v[distinct] = (double)before;
                which.v[distinct++] = (double)token;
            }
        }
        first.v[distinct] = (double)at;
        array_put(x, &which);
        array_put(x, &first);
        array_put(x, &order);
        for (uint64_t i = 0; i < dx.n; i++) {
            uint64_t r = i / s.cols, j = i % s.cols;

            want[(uint64_t)tokens.v[r] * s.cols + j] += dx.v[i];
            want_pos[r % s.rows * s.cols + j] += dx.v[i];
        }
        k.embed_back = (struct gpt_kern_embed_back){ which.dev, first.dev, order.dev,
                                                     dx.dev,    dwte.dev,  distinct,
                                                     rows,      s.cols,    vocab };
        pos.pos_back = (struct gpt_kern_pos_back){ dx.dev, dwpe.dev, rows, s.cols, s.rows };
        gpt_dev_kernel(x->dev, &k);
        gpt_dev_kernel(x->dev, &pos);
        array_check(x, "the embedding's gradient", &dwte, want, 1e-5, 1e-5);
        array_check(x, "the positions' gradient", &dwpe, want_pos, 1e-6, 1e-6);
        free(want);
        free(want_pos);
        array_done(&dx);
        array_done(&dwte);
        array_done(&dwpe);
        array_done(&tokens);
        array_done(&which);
        array_done(&first);
        array_done(&order);
        again(x);
    }
}

/* Mean and 1 / standard deviation of a row. */
static void row_moments(const double *row, uint64_t n, double *mean, double *rstd)
{
    double sum = 0, spread = 0;

    for (uint64_t j = 0; j < n; j++)
        sum += row[j];
    *mean = sum / (double)n;
    for (uint64_t j = 0; j < n; j++)
        spread += (row[j] - *mean) * (row[j] - *mean);
    *rstd = 1 / sqrt(spread / (double)n + (double)GPT_LN_EPS);
}

static void norm_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t n = s.rows * s.cols;
        struct array in = array_drawn(x, F32, n, -2, 3);
        struct array w = array_drawn(x, dtype, s.cols, 0.5, 1.5);
        struct array b = array_drawn(x, dtype, s.cols, -1, 1);
        struct array y = array_junk(x, dtype, n), dy = array_drawn(x, dtype, n, -1, 1);
        struct array mean = array_junk(x, F32, s.rows), rstd = array_junk(x, F32, s.rows);
        struct array dx = array_drawn(x, F32, n, -1, 1);
        struct array part = array_junk(x, F32, GPT_KERN_SPLITS * s.cols);
        struct array part_x = array_junk(x, F32, GPT_KERN_SPLITS * s.cols);
        struct array dw = array_drawn(x, F32, s.cols, -1, 1);
        struct array db = array_drawn(x, F32, s.cols, -1, 1);
        double *want = wants(n), *want_dx = wants(n), *want_dw = wants(s.cols);
        double *want_db = wants(s.cols), *means = wants(s.rows), *rstds = wants(s.rows);
        enum gpt_dtype_dev d = (enum gpt_dtype_dev)dtype;

        memcpy(want_dw, dw.v, s.cols * sizeof(double));
        memcpy(want_db, db.v, s.cols * sizeof(double));
        for (uint64_t r = 0; r < s.rows; r++) {
            const double *row = in.v + r * s.cols;
            double g = 0, gx = 0;

            row_moments(row, s.cols, &means[r], &rstds[r]);
            for (uint64_t j = 0; j < s.cols; j++) {
                double xhat = (row[j] - means[r]) * rstds[r], dyj = dy.v[r * s.cols + j];

                want[r * s.cols + j] = xhat * w.v[j] + b.v[j];
                g += dyj * w.v[j] / (double)s.cols;
                gx += dyj * w.v[j] * xhat / (double)s.cols;
                want_dw[j] += dyj * xhat;
                want_db[j] += dyj;
            }
            for (uint64_t j = 0; j < s.cols; j++) {
                double xhat = (row[j] - means[r]) * rstds[r];
                uint64_t i = r * s.cols + j;

                want_dx[i] = dx.v[i] + rstds[r] * (dy.v[i] * w.v[j] - g - xhat * gx);
            }
        }
        gpt_dev_kernel(x->dev, &(struct gpt_kern){ .op = GPT_KERN_NORM,
                                                   .dtype = d,
                                                   .norm = { in.dev, w.dev, b.dev, y.dev, mean.dev,
                                                             rstd.dev, s.rows, s.cols } });
        array_check(x, "norm", &y, want, 1e-5, 1e-5);
        array_check(x, "mean", &mean, means, 1e-5, 1e-6);
        array_check(x, "rstd", &rstd, rstds, 1e-5, 0);
        gpt_dev_kernel(x->dev,
                       &(struct gpt_kern){ .op = GPT_KERN_NORM_BACK,
                                           .dtype = d,
                                           .norm_back = { in.dev, w.dev, mean.dev, rstd.dev, dy.dev,
                                                          dx.dev, s.rows, s.cols } });
        /* A row of one element has no variance: rstd is 316 then, and errors are as large. */
        array_check(x, "norm's way back", &dx, want_dx, 1e-5, s.cols == 1 ? 1e-3 : 1e-5);
        gpt_dev_kernel(x->dev,
                       &(struct gpt_kern){ .op = GPT_KERN_COLS,
                                           .dtype = d,
                                           .cols = { dy.dev, in.dev, mean.dev, rstd.dev, part.dev,
                                                     part_x.dev, s.rows, s.cols } });
        gpt_dev_kernel(x->dev, &(struct gpt_kern){ .op = GPT_KERN_COLS_END,
                                                   .cols_end = { part_x.dev, dw.dev, s.cols } });
        gpt_dev_kernel(x->dev, &(struct gpt_kern){ .op = GPT_KERN_COLS_END,
                                                   .cols_end = { part.dev, db.dev, s.cols } });
        array_check(x, "the gradient of a norm's weights", &dw, want_dw, 1e-5, 1e-4);
        array_check(x, "the gradient of a norm's biases", &db, want_db, 1e-5, 1e-5);
        for (uint64_t j = 0; j < s.cols; j++) /* again, without x */
            for (uint64_t r = 0; r < s.rows; r++)
                want_db[j] += dy.v[r * s.cols + j];
        gpt_dev_kernel(
            x->dev,
            &(struct gpt_kern){
                .op = GPT_KERN_COLS,
                .dtype = d,
                .cols = { .y = dy.dev, .part = part.dev, .rows = s.rows, .cols = s.cols } });
        gpt_dev_kernel(x->dev, &(struct gpt_kern){ .op = GPT_KERN_COLS_END,
                                                   .cols_end = { part.dev, db.dev, s.cols } });
        array_check(x, "sums of columns", &db, want_db, 1e-5, 1e-5);
        {
            struct array *const all[] = { &in,   &w,  &b,    &y,      &dy, &mean,
                                          &rstd, &dx, &part, &part_x, &dw, &db };
            double *const made[] = { want, want_dx, want_dw, want_db, means, rstds };

            for (size_t i = 0; i < ZB_COUNT(all); i++)
                array_done(all[i]);
            for (size_t i = 0; i < ZB_COUNT(made); i++)
                free(made[i]);
        }
        again(x);
    }
}

static double gelu(double v)
{
    return v / 2 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
}

static double gelu_slope(double v)
{
    double u = sqrt(2 / M_PI) * (v + 0.044715 * v * v * v), t = tanh(u);

    return (1 + t) / 2 + v / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
}

static void elementwise_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t n = s.rows * s.cols;
        struct array a = array_drawn(x, dtype, n, -6, 6), dy = array_drawn(x, dtype, n, -1, 1);
        struct array y = array_junk(x, dtype, n), dx = array_junk(x, dtype, n);
        struct array in = array_drawn(x, F32, n, -1, 1), to = array_junk(x, F32, n);
        struct array b = array_drawn(x, dtype, s.cols, -1, 1);
        struct array *const all[] = { &a, &dy, &y, &dx, &in, &to, &b };
        enum gpt_dtype_dev d = (enum gpt_dtype_dev)dtype;
        double *want = wants(n);
        struct gpt_kern residual = { .op = GPT_KERN_RESIDUAL,
                                     .dtype = d,
                                     .residual = { in.dev, a.dev, b.dev, to.dev, s.rows, s.cols } };
        struct gpt_kern back = { .op = GPT_KERN_GELU_BACK,
                                 .dtype = d,
                                 .gelu_back = { a.dev, dy.dev, dx.dev, n } };

        for (uint64_t i = 0; i < n; i++)
            want[i] = in.v[i] + a.v[i] + b.v[i % s.cols];
        gpt_dev_kernel(x->dev, &residual);
        array_check(x, "residual", &to, want, 1e-6, 1e-6);
        residual.residual.to = in.dev;
        gpt_dev_kernel(x->dev, &residual);
        array_check(x, "residual in place", &in, want, 1e-6, 1e-6);

        for (uint64_t i = 0; i < n; i++)
            want[i] = gelu(a.v[i]);
        gpt_dev_kernel(x->dev, &(struct gpt_kern){
                                   .op = GPT_KERN_GELU, .dtype = d, .gelu = { a.dev, y.dev, n } });
        array_check(x, "gelu", &y, want, 1e-6, 1e-6);
        for (uint64_t i = 0; i < n; i++)
            want[i] = dy.v[i] * gelu_slope(a.v[i]);
        gpt_dev_kernel(x->dev, &back);
        array_check(x, "gelu's way back", &dx, want, 1e-5, 1e-6);
        back.gelu_back.dx = dy.dev;
        gpt_dev_kernel(x->dev, &back);
        array_check(x, "gelu's way back in place", &dy, want, 1e-5, 1e-6);

        for (uint64_t i = 0; i < n; i++)
            want[i] = in.v[i];
        gpt_dev_round(x->dev, to.dev, dx.dev, (enum gpt_dtype_dev)dtype,
                      dtype != F32 ? n : 0); /* `to`: the residual */
        for (uint64_t i = 0; i < n; i++)
            want[i] = (double)(float)in.v[i] + a.v[i] + b.v[i % s.cols];
        if (dtype != F32)
            array_check(x, "rounding", &dx, want, 1e-6, 1e-6);
        free(want);
        for (size_t i = 0; i < ZB_COUNT(all); i++)
            array_done(all[i]);
        again(x);
    }
}

static void softmax_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t seq = s.cols < 300 ? s.cols : 300, rows = seq * 3, n = rows * seq;
        struct array sc = array_drawn(x, F32, n, -20, 20), p = array_junk(x, dtype, n);
        struct array q = array_drawn(x, dtype, n, 0, 1), dp = array_drawn(x, F32, n, -1, 1);
        struct array ds = array_junk(x, dtype, n);
        struct array *const all[] = { &sc, &p, &q, &dp, &ds };
        enum gpt_dtype_dev d = (enum gpt_dtype_dev)dtype;
        double *want = wants(n), *want_ds = wants(n);
        struct gpt_kern k = { .op = GPT_KERN_SOFTMAX,
                              .dtype = d,
                              .softmax = { sc.dev, p.dev, rows, seq } };
        struct gpt_kern back = { .op = GPT_KERN_SOFTMAX_BACK,
                                 .dtype = d,
                                 .softmax_back = { q.dev, dp.dev, ds.dev, rows, seq } };

        for (uint64_t r = 0; r < rows; r++) {
            double sum = 0, dot = 0;

            for (uint64_t j = 0; j <= r % seq; j++) {
                sum += exp(sc.v[r * seq + j]);
                dot += q.v[r * seq + j] * dp.v[r * seq + j];
            }
            for (uint64_t j = 0; j <= r % seq; j++) {
                want[r * seq + j] = exp(sc.v[r * seq + j]) / sum;
                want_ds[r * seq + j] = q.v[r * seq + j] * (dp.v[r * seq + j] - dot);
            }
        }
        gpt_dev_kernel(x->dev, &k);
        array_check(x, "softmax", &p, want, 1e-5, 1e-30);
        gpt_dev_kernel(x->dev, &back);
        array_check(x, "softmax's way back", &ds, want_ds, 1e-5, 1e-4);
        if (dtype == F32) {
            k.softmax.p = sc.dev;
            gpt_dev_kernel(x->dev, &k);
            array_check(x, "softmax in place", &sc, want, 1e-5, 1e-30);
            back.softmax_back.ds = dp.dev;
            gpt_dev_kernel(x->dev, &back);
            array_check(x, "softmax's way back in place", &dp, want_ds, 1e-5, 1e-4);
        }
        free(want);
        free(want_ds);
        for (size_t i = 0; i < ZB_COUNT(all); i++)
            array_done(all[i]);
        again(x);
    }
}

static void loss_on(struct fixture *x)
{
    EACH_SHAPE(s, dtype)
    {
        uint64_t n = s.rows * s.cols;
        struct array in = array_drawn(x, F32, n, -10, 10);
        struct array targets = array_drawn(x, U32, s.rows, 0, (double)s.cols);
        struct array losses = array_junk(x, F64, s.rows), d = array_junk(x, dtype, n);
        struct array sum = array_drawn(x, F64, 1, 1, 2);
        struct array *const all[] = { &in, &targets, &losses, &d, &sum };
        float scale = 1.0f / (float)s.rows;
        double *want = wants(s.rows), *want_d = wants(n), want_sum = sum.v[0];
        struct gpt_kern k = { .op = GPT_KERN_LOSS,
                              .dtype = (enum gpt_dtype_dev)dtype,
                              .loss = { in.dev, targets.dev, NULL, losses.dev, s.rows, s.cols,
                                        scale } };

        for (uint64_t r = 0; r < s.rows; r++) {
            double all_of = 0;

            for (uint64_t j = 0; j < s.cols; j++)
                all_of += exp(in.v[r * s.cols + j]);
            want[r] = log(all_of) - in.v[r * s.cols + (uint64_t)targets.v[r]];
            want_sum += want[r] * 0.25;
            for (uint64_t j = 0; j < s.cols; j++)
                want_d[r * s.cols + j] =
                    (exp(in.v[r * s.cols + j]) / all_of - (j == (uint64_t)targets.v[r] ? 1 : 0)) *
                    (double)scale;
        }
        gpt_dev_kernel(x->dev, &k);
        array_check(x, "loss", &losses, want, 1e-5, 1e-5);
        gpt_dev_kernel(x->dev,
                       &(struct gpt_kern){ .op = GPT_KERN_LOSS_SUM,
                                           .loss_sum = { losses.dev, sum.dev, s.rows, 0.25 } });
        array_check(x, "the sum of losses", &sum, &want_sum, 1e-5, 1e-5);
        k.loss.dlogits = d.dev;
        gpt_dev_kernel(x->dev, &k);
        array_check(x, "the loss's way back", &d, want_d, 1e-5, 1e-6);
        k.loss.dlogits = in.dev;
        if (dtype == F32) {
            gpt_dev_kernel(x->dev, &k);
            array_check(x, "the loss's way back in place", &in, want_d, 1e-5, 1e-6);
            array_check(x, "loss, once more", &losses, want, 1e-5, 1e-5);
        }
        free(want);
        free(want_d);
        for (size_t i = 0; i < ZB_COUNT(all); i++)
            array_done(all[i]);
        again(x);
    }
}

/* ---- products */

static const struct product {
    const char *name;
    uint32_t m, n, k, batch;
    bool ta, tb, bias;
    float alpha, beta;
    uint32_t gap;     /* elements between rows */
    bool interleaved; /* the batch's matrices are columns of one array */
    uint32_t skew;    /* elements of the bias to skip */
} products[] = {
    { "plain", 33, 20, 17, 1, false, false, false, 1, 0, 0, false, 0 },
    { "one element", 1, 1, 1, 1, false, false, false, 2, 0, 0, false, 0 },
    { "a row", 1, 40, 24, 1, false, false, true, 1, 0, 0, false, 0 },
    { "bias", 64, 48, 32, 1, false, false, true, 1, 0, 0, false, 0 },
    { "bias, skewed", 20, 48, 32, 1, false, false, true, 1, 0, 0, false, 3 },
    { "bias, skewed, gaps", 5, 300, 32, 1, false, false, true, 1, 0, 4, false, 1 },
    { "b transposed", 40, 24, 64, 1, false, true, false, 1, 0, 0, false, 0 },
    { "a transposed, added", 24, 40, 64, 1, true, false, false, 1, 1, 0, false, 0 },
    { "both transposed", 16, 8, 24, 1, true, true, false, 0.5f, 0.25f, 0, false, 0 },
    { "gaps", 16, 24, 8, 1, false, false, true, 1, 0, 8, false, 0 },
    { "a batch", 16, 16, 8, 5, false, true, false, 0.25f, 0, 0, false, 0 },
    { "heads into a square", 32, 32, 8, 3, false, true, false, 0.35f, 0, 0, true, 0 },
    { "a square into heads", 32, 8, 32, 3, false, false, false, 1, 0, 0, true, 0 },
    { "a square, transposed, into heads", 32, 8, 32, 3, true, false, false, 1, 0, 0, true, 0 },
};

/* Rows are adjacent or have a gap; matrices follow each other or are interleaved. */
static struct zk_lt_mat mat_of(const struct product *p, uint64_t rows, uint64_t cols, bool t)
{
    bool heads = p->interleaved && rows != cols;

    return (struct zk_lt_mat){ .ld = (heads ? cols * p->batch : cols) + p->gap,
                               .step = heads ? cols : rows * (cols + p->gap),
                               .t = t };
}

static void product_on(struct fixture *x, const struct product *p, enum type dtype,
                       enum type d_type)
{
    struct zk_lt_mat a = mat_of(p, p->ta ? p->k : p->m, p->ta ? p->m : p->k, p->ta);
    struct zk_lt_mat b = mat_of(p, p->tb ? p->n : p->k, p->tb ? p->k : p->n, p->tb);
    struct zk_lt_mat d = mat_of(p, p->m, p->n, false);
    uint64_t most = 33 * 64 * 5 * 4;
    struct array va = array_drawn(x, dtype, most, -1, 1), vb = array_drawn(x, dtype, most, -1, 1);
    struct array vd = array_drawn(x, d_type, most, -1, 1),
                 bias = array_drawn(x, d_type, 304, -1, 1);
    double *want = wants(most);
    struct gpt_matmul mm = { .bias = p->bias ? (char *)bias.dev + p->skew * type_bytes[d_type]
                                             : NULL,
                             .dtype = (enum gpt_dtype_dev)dtype,
                             .d_dtype = (enum gpt_dtype_dev)d_type,
                             .alpha = p->alpha,
                             .beta = p->beta,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .batch = p->batch };

    a.at = va.dev;
    b.at = vb.dev;
    d.at = vd.dev;
    mm.a = a;
    mm.b = b;
    mm.d = d;
    memcpy(want, vd.v, most * sizeof(*want)); /* the gaps are left unchanged */
    for (uint64_t i = 0; i < p->batch; i++)
        for (uint64_t r = 0; r < p->m; r++)
            for (uint64_t c = 0; c < p->n; c++) {
                double sum = 0, *to = &want[i * d.step + r * d.ld + c];

                for (uint64_t k = 0; k < p->k; k++)
                    sum += va.v[i * a.step + (p->ta ? k * a.ld + r : r * a.ld + k)] *
                           vb.v[i * b.step + (p->tb ? c * b.ld + k : k * b.ld + c)];
                *to = (double)p->alpha * sum + (double)p->beta * *to +
                      (p->bias ? bias.v[p->skew + c] : 0);
            }
    gpt_dev_matmul(x->dev, &mm);
    /* Two roundings if a kernel adds the bias. */
    array_check(x, p->name, &vd, want, 1e-5, p->skew && d_type != F32 ? 0x1p-6 : 1e-5);
    free(want);
    array_done(&va);
    array_done(&vb);
    array_done(&vd);
    array_done(&bias);
    again(x);
}

static void products_on(struct fixture *x)
{
    for (size_t i = 0; i < ZB_COUNT(products); i++) {
        product_on(x, &products[i], F32, F32);
        if (products[i].beta == 0.0f) { /* products of 16 bits are not added to */
            product_on(x, &products[i], BF16, BF16);
            product_on(x, &products[i], F16, F16);
        }
        if (!products[i].bias) { /* biases have the product's dtype */
            product_on(x, &products[i], BF16, F32);
            product_on(x, &products[i], F16, F32);
        }
    }
}

#define ON_EACH(what)                   \
    static void what##_is(void **state) \
    {                                   \
        (void)state;                    \
        on_each(what##_on);             \
    }

ON_EACH(embed)
ON_EACH(embed_back)
ON_EACH(norm)
ON_EACH(elementwise)
ON_EACH(softmax)
ON_EACH(loss)
ON_EACH(products)

/* ---- errors */

/* A kernel with an invalid address: the device is lost, and reports that from then on. */
static void a_wrong_address_is_said(void **state)
{
    struct fixture x;
    struct zb_err err = { 0 };
    struct gpt_kern k = { .op = GPT_KERN_GELU, .gelu = { (void *)64, (void *)64, 16 } };

    (void)state;
    assert_true(kern_open(&x, "emulated:64M"));
    gpt_dev_kernel(x.dev, &k);
    assert_int_equal(zk_gpu_stream_sync(x.stream, &x.err), -EFAULT);
    gpt_dev_mark(x.dev, 0);
    assert_false(gpt_dev_wait(x.dev, 0, NULL, NULL));
    assert_int_equal(gpt_dev_error(x.dev, &err), -EFAULT);
    assert_non_null(strstr(err.text, "not its own"));
    fixture_close(&x);
}

static void names_are_known(void **state)
{
    static const struct {
        const char *name;
        bool is;
    } cases[] = { { "cuda", true },      { "cuda:1", true }, { "emulated", true },
                  { "emulated:", true }, { "cudax", false }, { "", false },
                  { "cpu", false },      { "Cuda", false } };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++)
        if (gpt_dev_named(cases[i].name) != cases[i].is)
            fail_msg("'%s'", cases[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_is),        cmocka_unit_test(embed_back_is),
        cmocka_unit_test(norm_is),         cmocka_unit_test(elementwise_is),
        cmocka_unit_test(softmax_is),      cmocka_unit_test(loss_is),
        cmocka_unit_test(products_is),     cmocka_unit_test(a_wrong_address_is_said),
        cmocka_unit_test(names_are_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
