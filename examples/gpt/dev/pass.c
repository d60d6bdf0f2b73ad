/*
 * pass.c - the passes as launches.
 *
 * SHAPES as in gpt.c: N rows of tokens, C wide, T to a sequence, H heads. Attention works through
 * one sequence at a time, all its heads in one product: [H, T, T] of scores. Gradients flow through
 * dx, the gradient of the residual stream, which each step of the backward pass updates in place.
 *
 * ALIASES. In fp32 rounding is nothing: `dy` is dx, `ds` is `scores`, `dlogits` is `logits`.
 *
 * TOKENS. What depends on them alone is computed on the host and copied up with them: the inputs,
 * the targets, and the rows of each token in their order, so that the embedding's gradient is added
 * in an order of its own. Two host buffers take turns, and each has a mark: so a copy is never
 * waited for, unless the device is two micro-batches behind. Where several micro-batches are
 * between their passes, a host buffer has all of them.
 *
 * A STASH has the residual streams on the host, or behind it; on the device are three of them, the
 * one that a pass reads, the one that it makes, and one on its way (struct window). Copies have a
 * stream of their own, so they are beside what computes:
 *
 *     up      behind the last pass that used the window; the pass that reads it is behind the copy
 *     down    behind the pass that made it; who makes another one there is behind the copy
 *
 * What waits is the host, for a slot of the stash: so it is a few blocks ahead of the device at
 * most.
 */
#include "examples/gpt/dev/pass.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/dev/kern.h"
#include "examples/gpt/dev/matmul.h"

#ifndef LOGITS_BYTES                       /* a test has its own */
#define LOGITS_BYTES (UINT64_C(256) << 20) /* of fp32 logits at a time, at least one row */
#endif
#define ALIGN_BYTES  256u
#define HOST_BUFFERS 2u
#define MARK_LOSS    HOST_BUFFERS            /* behind those of the host buffers */
#define MARK_WINDOW  (MARK_LOSS + 1u)        /* behind the last pass that used each */
#define MARK_SLOT    (MARK_WINDOW + WINDOWS) /* behind the last copy from or to each */
#define WINDOWS      3u
#define NO_ENTRY     UINT32_MAX

_Static_assert(MARK_SLOT + GPT_STASH_SLOTS <= GPT_DEV_MARKS, "a mark for each slot");

/* The tensors of a block, as gpt.c lays them out. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, ATT_W, ATT_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };

/* Of one micro-batch, on the device and on the host alike. */
struct batch {
    uint32_t *inputs, *targets;      /* [N] */
    uint32_t *which, *first, *order; /* struct gpt_kern_embed_back: [N], [N + 1], [N] */
};

/* What a block's backward pass needs of its forward pass, but for its input. */
struct inside {
    float *mean1, *rstd1, *mean2, *rstd2;
    void *h1, *qkv, *mix, *h2, *fc, *gelu; /* of the dtype: [N, C], 3C, C, C, 4C, 4C */
    float *x2;                             /* [N, C] */
};

struct micro {
    struct batch batch; /* on the device */
    uint64_t distinct;
    float **x; /* [L + 1] of [N, C]: the residual stream before each block, and behind the last */
    struct inside *inside; /* [L], or [1] where it is computed anew */
    float *dx;             /* [N, C] */
};

struct window {
    float *at;
    uint32_t entry; /* of the stash, or NO_ENTRY */
    bool leaves;    /* a copy to this slot may be on its way */
    unsigned slot;
    uint64_t touched;
};

struct gpt_dev_run {
    struct gpt_dev *dev;
    const struct gpt *model;
    uint32_t sequences, micros;
    bool recompute;
    struct gpt_stash *stash; /* of x; NULL: it is on the device */
    struct window windows[WINDOWS];
    unsigned read; /* the window that is read */
    uint64_t clock;
    uint64_t rows, head_rows;
    enum gpt_dtype_dev dtype;
    float scale; /* of the loss, where gradients begin */
    uint64_t batch_elems;
    struct micro *micro, *now;    /* [micros], and of these */
    float **streams;              /* all of x */
    struct inside *inside;        /* all of them */
    struct inside *in;            /* of the block that is being computed */
    struct inside head;           /* mean1, rstd1 and h1 of the last layer norm */
    double *host_loss;            /* of the device's host memory, as these: */
    uint32_t *host[HOST_BUFFERS]; /* micro-batches */
    uint32_t *seen;               /* [vocab]: scratch of the host */
    unsigned turn;

    void *dy, *d1, *d4; /* of the dtype: C, C, 4C */
    float *scores;      /* [H, T, T] */
    void *p, *ds;       /* of the dtype */
    float *logits;      /* [head_rows, V] */
    void *dlogits;
    double *losses, *loss; /* [N], [1] */
    float *part, *part_x;  /* [GPT_KERN_SPLITS, 4C], C */
    gpt_tick_fn *tick;
    void *tick_arg;
};

/* ---- memory */

struct cutter {
    unsigned char *base; /* NULL: only count */
    uint64_t bytes;
};

static void *cut(struct cutter *c, uint64_t elems, uint64_t elem_bytes)
{
    void *p = c->base ? c->base + c->bytes : NULL;

    c->bytes += (elems * elem_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return p;
}

static struct batch batch_at(uint32_t *base, uint64_t n)
{
    return (struct batch){ .inputs = base,
                           .targets = base + n,
                           .which = base + 2 * n,
                           .order = base + 3 * n,
                           .first = base + 4 * n };
}

static void run_size(struct gpt_dev_run *run, const struct gpt *model, const struct gpt_hold *hold,
                     enum gpt_dtype_dev dtype)
{
    uint64_t most = LOGITS_BYTES / (sizeof(float) * model->shape.vocab);

    run->model = model;
    run->sequences = hold->sequences;
    run->micros = hold->micros ? hold->micros : 1;
    run->recompute = hold->recompute;
    run->stash = hold->stash;
    assert(!run->stash || run->recompute);
    run->rows = (uint64_t)hold->sequences * model->shape.seq;
    run->head_rows = most < 1 ? 1 : most < run->rows ? most : run->rows;
    run->dtype = dtype;
    run->scale = 1.0f;
    run->batch_elems = 5 * run->rows + 1;
}

static void head_lay_out(const struct gpt_dev_run *run, struct inside *in, struct cutter *c)
{
    in->mean1 = cut(c, run->rows, 4);
    in->rstd1 = cut(c, run->rows, 4);
    in->h1 = cut(c, run->rows * run->model->shape.width, gpt_dev_bytes(run->dtype));
}

static void inside_lay_out(const struct gpt_dev_run *run, struct inside *in, struct cutter *c)
{
    uint64_t n = run->rows, w = run->model->shape.width, e = gpt_dev_bytes(run->dtype);

    head_lay_out(run, in, c);
    in->mean2 = cut(c, n, 4);
    in->rstd2 = cut(c, n, 4);
    in->qkv = cut(c, n * 3 * w, e);
    in->mix = cut(c, n * w, e);
    in->x2 = cut(c, n * w, 4);
    in->h2 = cut(c, n * w, e);
    in->fc = cut(c, n * 4 * w, e);
    in->gelu = cut(c, n * 4 * w, e);
}

static void micro_lay_out(const struct gpt_dev_run *run, struct micro *m, struct cutter *c)
{
    m->batch = batch_at(cut(c, run->batch_elems, 4), run->rows);
    m->dx = cut(c, run->rows * run->model->shape.width, 4);
}

/* All that there is once. */
static void run_lay_out(struct gpt_dev_run *run, struct cutter *c)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t n = run->rows, w = s->width, tt = (uint64_t)s->heads * s->seq * s->seq;
    uint64_t e = gpt_dev_bytes(run->dtype);
    bool rounds = run->dtype != GPT_DEV_F32;

    if (!run->recompute)
        head_lay_out(run, &run->head, c);
    run->dy = rounds ? cut(c, n * w, e) : NULL;
    run->d1 = cut(c, n * w, e);
    run->d4 = cut(c, n * 4 * w, e);
    run->scores = cut(c, tt, 4);
    run->p = cut(c, tt, e);
    run->ds = rounds ? cut(c, tt, e) : run->scores;
    run->logits = cut(c, run->head_rows * s->vocab, 4);
    run->dlogits = rounds ? cut(c, run->head_rows * s->vocab, e) : run->logits;
    run->losses = cut(c, n, 8);
    run->loss = cut(c, 1, 8);
    run->part = cut(c, GPT_KERN_SPLITS * 4 * w, 4);
    run->part_x = cut(c, GPT_KERN_SPLITS * w, 4);
}

static uint64_t run_insides(const struct gpt_dev_run *run)
{
    return run->recompute ? 1 : (uint64_t)run->micros * run->model->shape.layers;
}

static uint64_t run_streams(const struct gpt_dev_run *run)
{
    return run->micros * ((uint64_t)run->model->shape.layers + 1);
}

uint64_t gpt_dev_run_bytes(const struct gpt *model, const struct gpt_hold *hold,
                           enum gpt_dtype_dev dtype)
{
    struct cutter rest = { 0 }, parts[3] = { { 0 } };
    struct gpt_dev_run run = { 0 };
    struct micro micro;
    struct inside in;
    uint64_t bytes;

    run_size(&run, model, hold, dtype);
    if (run.rows > GPT_ROWS_MAX)
        return UINT64_MAX;
    run_lay_out(&run, &rest); /* below 2^62: see gpt.h's limits */
    inside_lay_out(&run, &in, &parts[0]);
    (void)cut(&parts[1], run.rows * model->shape.width, 4);
    micro_lay_out(&run, &micro, &parts[2]);
    bytes = rest.bytes;
    for (int i = 0; i < 3; i++) {
        uint64_t n = i == 0                ? run_insides(&run)
                     : i == 1 && run.stash ? WINDOWS
                     : i == 1              ? run_streams(&run)
                                           : run.micros;

        if (__builtin_mul_overflow(parts[i].bytes, n, &parts[i].bytes) ||
            __builtin_add_overflow(bytes, parts[i].bytes, &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

static int host_new(struct gpt_dev_run *run, struct gpt_err *err)
{
    uint64_t elems = run->micros * run->batch_elems;
    struct cutter c = { 0 };

    run->seen = calloc(run->model->shape.vocab, sizeof(*run->seen));
    run->micro = calloc(run->micros, sizeof(*run->micro));
    run->streams = calloc(run_streams(run), sizeof(*run->streams));
    run->inside = calloc(run_insides(run), sizeof(*run->inside));
    if (!run->seen || !run->micro || !run->streams || !run->inside)
        return gpt_fail(err, -ENOMEM, "a run on a device: %m");
    c.base = gpt_dev_host(run->dev, ALIGN_BYTES + HOST_BUFFERS * (elems * 4 + ALIGN_BYTES));
    if (!c.base)
        return gpt_dev_error(run->dev, err);
    run->host_loss = cut(&c, 1, sizeof(double));
    for (unsigned i = 0; i < HOST_BUFFERS; i++)
        run->host[i] = cut(&c, elems, 4);
    return 0;
}

static void run_cut(struct gpt_dev_run *run, struct cutter *c)
{
    uint32_t layers = run->model->shape.layers;

    for (uint64_t i = 0; i < run_streams(run) && !run->stash; i++)
        run->streams[i] = cut(c, run->rows * run->model->shape.width, 4);
    for (unsigned w = 0; w < WINDOWS && run->stash; w++)
        run->windows[w] = (struct window){
            .at = cut(c, run->rows * run->model->shape.width, 4),
            .entry = NO_ENTRY,
        };
    for (uint64_t i = 0; i < run_insides(run); i++)
        inside_lay_out(run, &run->inside[i], c);
    for (uint32_t m = 0; m < run->micros; m++) {
        run->micro[m].x = run->streams + m * ((uint64_t)layers + 1);
        run->micro[m].inside = run->inside + (run->recompute ? 0 : (uint64_t)m * layers);
        micro_lay_out(run, &run->micro[m], c);
    }
    if (run->recompute) /* nothing of a block is kept when the head comes */
        run->head = run->inside[0];
    run_lay_out(run, c);
    run->now = run->micro;
}

/* The device has not got to the copy from or to this slot. */
static bool stash_busy(void *arg, unsigned slot)
{
    struct gpt_dev_run *run = arg;

    return !gpt_dev_reached(run->dev, MARK_SLOT + slot);
}

static void stash_use(struct gpt_dev_run *run)
{
    run->stash->busy = stash_busy;
    run->stash->busy_arg = run;
    gpt_dev_pin(run->dev, run->stash->memory, run->stash->memory_bytes);
}

int gpt_dev_run_new(struct gpt_dev_run **ret, struct gpt_dev *dev, const struct gpt *model,
                    const struct gpt_hold *hold, enum gpt_dtype_dev dtype, struct gpt_err *err)
{
    uint64_t bytes = gpt_dev_run_bytes(model, hold, dtype);
    struct gpt_dev_run *run;
    struct cutter c = { 0 };
    int rc;

    if (hold->sequences < 1 || bytes == UINT64_MAX)
        return gpt_fail(err, -EINVAL, "a micro-batch of %u sequences of %u tokens", hold->sequences,
                        model->shape.seq);
    run = calloc(1, sizeof(*run));
    if (!run)
        return gpt_fail(err, -ENOMEM, "activations: %m");
    run->dev = dev;
    run_size(run, model, hold, dtype);
    rc = host_new(run, err);
    if (rc == 0) {
        c.base = gpt_dev_memory(dev, bytes, "activations");
        rc = gpt_dev_error(dev, err);
    }
    if (rc < 0) {
        gpt_dev_run_free(run);
        return rc;
    }
    run_cut(run, &c);
    assert(c.bytes == bytes);
    if (run->stash)
        stash_use(run);
    gpt_dev_zero(dev, run->loss, sizeof(double));
    *ret = run;
    return gpt_dev_error(dev, err);
}

void gpt_dev_run_free(struct gpt_dev_run *run)
{
    if (!run)
        return;
    if (run->stash)
        run->stash->busy = NULL;
    free(run->seen);
    free(run->micro);
    free(run->streams);
    free(run->inside);
    free(run);
}

void gpt_dev_run_scale(struct gpt_dev_run *run, float scale)
{
    run->scale = scale;
}

void gpt_dev_run_on_tick(struct gpt_dev_run *run, gpt_tick_fn *tick, void *arg)
{
    run->tick = tick;
    run->tick_arg = arg;
}

/* ---- tokens */

/* The rows of each token, tokens in their order of first appearance, rows in theirs. */
static uint64_t batch_sort(const struct batch *b, uint64_t n, uint32_t *seen, uint32_t vocab)
{
    uint64_t distinct = 0, at = 0;

    memset(seen, 0, vocab * sizeof(*seen));
    for (uint64_t r = 0; r < n; r++)
        if (seen[b->inputs[r]]++ == 0)
            b->which[distinct++] = b->inputs[r];
    for (uint64_t i = 0; i < distinct; i++) {
        b->first[i] = (uint32_t)at;
        at += seen[b->which[i]];
        seen[b->which[i]] = b->first[i]; /* from now on: where its next row goes */
    }
    b->first[distinct] = (uint32_t)at;
    for (uint64_t r = 0; r < n; r++)
        b->order[seen[b->inputs[r]]++] = (uint32_t)r;
    return distinct;
}

void gpt_dev_micro(struct gpt_dev_run *run, uint32_t micro)
{
    assert(micro < run->micros);
    run->now = &run->micro[micro];
}

void gpt_dev_tokens(struct gpt_dev_run *run, const uint32_t *tokens)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t place = (uint64_t)(run->now - run->micro) * run->batch_elems;
    unsigned turn = run->now == run->micro ? ++run->turn % HOST_BUFFERS : run->turn % HOST_BUFFERS;
    uint32_t *host = run->host[turn] + place;
    struct batch b = batch_at(host, run->rows);

    if (run->now == run->micro && !gpt_dev_wait(run->dev, turn, run->tick, run->tick_arg))
        return; /* the end of the step tells why */
    for (uint64_t m = 0; m < run->sequences; m++)
        for (uint64_t t = 0; t < s->seq; t++) {
            const uint32_t *at = tokens + m * (s->seq + 1) + t;

            assert(at[0] < s->vocab && at[1] < s->vocab);
            b.inputs[m * s->seq + t] = at[0];
            b.targets[m * s->seq + t] = at[1];
        }
    run->now->distinct = batch_sort(&b, run->rows, run->seen, s->vocab);
    gpt_dev_up(run->dev, run->now->batch.inputs, host, run->batch_elems * sizeof(*host));
    gpt_dev_mark(run->dev, turn);
}

/* ---- products */

/* y = x w + b; y and b of the dtype. b may be NULL. */
static void linear(struct gpt_dev_run *run, const void *x, const void *w, const void *b, void *y,
                   uint64_t in, uint64_t out)
{
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = x, .ld = in },
                                                   .b = { .at = w, .ld = out },
                                                   .d = { .at = y, .ld = out },
                                                   .bias = b,
                                                   .dtype = run->dtype,
                                                   .d_dtype = run->dtype,
                                                   .alpha = 1.0f,
                                                   .m = (uint32_t)run->rows,
                                                   .n = (uint32_t)out,
                                                   .k = (uint32_t)in,
                                                   .batch = 1 });
}

/* dw += x^T dy; NULL: nothing */
static void weights_back(struct gpt_dev_run *run, const void *x, const void *dy, float *dw,
                         uint64_t in, uint64_t out)
{
    if (!dw)
        return;
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = x, .ld = in, .t = true },
                                                   .b = { .at = dy, .ld = out },
                                                   .d = { .at = dw, .ld = out },
                                                   .dtype = run->dtype,
                                                   .d_dtype = GPT_DEV_F32,
                                                   .alpha = 1.0f,
                                                   .beta = 1.0f,
                                                   .m = (uint32_t)in,
                                                   .n = (uint32_t)out,
                                                   .k = (uint32_t)run->rows,
                                                   .batch = 1 });
}

/* dx = dy w^T */
static void inputs_back(struct gpt_dev_run *run, const void *dy, const void *w, void *dx,
                        uint64_t in, uint64_t out)
{
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = dy, .ld = out },
                                                   .b = { .at = w, .ld = out, .t = true },
                                                   .d = { .at = dx, .ld = in },
                                                   .dtype = run->dtype,
                                                   .d_dtype = run->dtype,
                                                   .alpha = 1.0f,
                                                   .m = (uint32_t)run->rows,
                                                   .n = (uint32_t)in,
                                                   .k = (uint32_t)out,
                                                   .batch = 1 });
}

/* ---- kernels */

static void norm(struct gpt_dev_run *run, const float *x, const void *w, const void *b, void *y,
                 float *mean, float *rstd)
{
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_NORM,
                                                 .dtype = run->dtype,
                                                 .norm = { .x = x,
                                                           .w = w,
                                                           .b = b,
                                                           .y = y,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .rows = run->rows,
                                                           .cols = run->model->shape.width } });
}

static void cols_end(struct gpt_dev_run *run, const float *part, float *to, uint64_t cols)
{
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){ .op = GPT_KERN_COLS_END,
                                       .cols_end = { .part = part, .to = to, .cols = cols } });
}

/* db += the sums of dy's columns, which is of `dtype`; NULL: nothing */
static void bias_back(struct gpt_dev_run *run, enum gpt_dtype_dev dtype, const void *dy, float *db,
                      uint64_t cols)
{
    if (!db)
        return;
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){
                       .op = GPT_KERN_COLS,
                       .dtype = dtype,
                       .cols = { .y = dy, .part = run->part, .rows = run->rows, .cols = cols } });
    cols_end(run, run->part, db, cols);
}

/* The gradients of a layer norm's w and b. */
static void norm_weights_back(struct gpt_dev_run *run, const float *x, const float *mean,
                              const float *rstd, const void *dy, float *dw, float *db)
{
    uint64_t cols = run->model->shape.width;

    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_COLS,
                                                 .dtype = run->dtype,
                                                 .cols = { .y = dy,
                                                           .x = x,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .part = run->part,
                                                           .part_x = run->part_x,
                                                           .rows = run->rows,
                                                           .cols = cols } });
    cols_end(run, run->part_x, dw, cols);
    cols_end(run, run->part, db, cols);
}

/* dx += the way back of dy, and, unless dw and db are NULL, the gradients of w and b. */
static void norm_back(struct gpt_dev_run *run, const float *x, const void *w, const float *mean,
                      const float *rstd, const void *dy, float *dw, float *db)
{
    uint64_t cols = run->model->shape.width;

    if (dw)
        norm_weights_back(run, x, mean, rstd, dy, dw, db);
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_NORM_BACK,
                                                 .dtype = run->dtype,
                                                 .norm_back = { .x = x,
                                                                .w = w,
                                                                .mean = mean,
                                                                .rstd = rstd,
                                                                .dy = dy,
                                                                .dx = run->now->dx,
                                                                .rows = run->rows,
                                                                .cols = cols } });
}

static void residual(struct gpt_dev_run *run, const float *x, const void *y, const void *b,
                     float *to)
{
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_RESIDUAL,
                                                 .dtype = run->dtype,
                                                 .residual = { .x = x,
                                                               .y = y,
                                                               .b = b,
                                                               .to = to,
                                                               .rows = run->rows,
                                                               .cols = run->model->shape.width } });
}

/* dx of the dtype. */
static const void *dx_round(struct gpt_dev_run *run)
{
    if (run->dtype == GPT_DEV_F32)
        return run->now->dx;
    gpt_dev_round(run->dev, run->now->dx, run->dy, run->dtype, run->rows * run->model->shape.width);
    return run->dy;
}

/* ---- attention, one sequence at a time */

/* Where matrices of heads stand in arrays whose rows are `ld` long: of sequence m, behind `first`.
 */
static struct gpt_mat heads_of(const struct gpt_dev_run *run, const void *array, uint64_t m,
                               uint64_t first, uint64_t ld, bool t)
{
    const struct gpt_shape *s = &run->model->shape;

    return (struct gpt_mat){ .at = (const char *)array +
                                   (m * s->seq * ld + first) * gpt_dev_bytes(run->dtype),
                             .ld = ld,
                             .step = s->width / s->heads,
                             .t = t };
}

static struct gpt_mat square_of(const struct gpt_dev_run *run, const void *array, bool t)
{
    uint64_t seq = run->model->shape.seq;

    return (struct gpt_mat){ .at = array, .ld = seq, .step = seq * seq, .t = t };
}

/* d [T, n] = alpha * a [T, k] b [k, n], for all heads. */
static void heads_multiply(struct gpt_dev_run *run, struct gpt_mat a, struct gpt_mat b,
                           struct gpt_mat d, enum gpt_dtype_dev d_dtype, float alpha, uint32_t n,
                           uint32_t k)
{
    const struct gpt_shape *s = &run->model->shape;

    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = a,
                                                   .b = b,
                                                   .d = d,
                                                   .dtype = run->dtype,
                                                   .d_dtype = d_dtype,
                                                   .alpha = alpha,
                                                   .m = s->seq,
                                                   .n = n,
                                                   .k = k,
                                                   .batch = s->heads });
}

/* run->p = softmax(q k^T / sqrt(hs)) of sequence m. */
static void attention_weights(struct gpt_dev_run *run, uint64_t m)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, hs = c / s->heads;

    heads_multiply(run, heads_of(run, run->in->qkv, m, 0, 3 * c, false),
                   heads_of(run, run->in->qkv, m, c, 3 * c, true),
                   square_of(run, run->scores, false), GPT_DEV_F32, 1.0f / sqrtf((float)hs), s->seq,
                   (uint32_t)hs);
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_SOFTMAX,
                                                 .dtype = run->dtype,
                                                 .softmax = { .s = run->scores,
                                                              .p = run->p,
                                                              .rows = (uint64_t)s->heads * s->seq,
                                                              .seq = s->seq } });
}

static void attention_forward(struct gpt_dev_run *run)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, hs = c / s->heads;

    for (uint64_t m = 0; m < run->sequences; m++) {
        attention_weights(run, m);
        heads_multiply(
            run, square_of(run, run->p, false), heads_of(run, run->in->qkv, m, 2 * c, 3 * c, false),
            heads_of(run, run->in->mix, m, 0, c, false), run->dtype, 1.0f, (uint32_t)hs, s->seq);
    }
}

/* dqkv from dmix; both as qkv and mix lie. */
static void attention_backward(struct gpt_dev_run *run, const void *dmix, void *dqkv)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, hs = c / s->heads;
    float scale = 1.0f / sqrtf((float)hs);

    for (uint64_t m = 0; m < run->sequences; m++) {
        struct gpt_mat dmix_m = heads_of(run, dmix, m, 0, c, false);

        attention_weights(run, m);
        heads_multiply(run, dmix_m, heads_of(run, run->in->qkv, m, 2 * c, 3 * c, true),
                       square_of(run, run->scores, false), GPT_DEV_F32, 1.0f, s->seq, (uint32_t)hs);
        gpt_dev_kernel(run->dev,
                       &(struct gpt_kern){ .op = GPT_KERN_SOFTMAX_BACK,
                                           .dtype = run->dtype,
                                           .softmax_back = { .p = run->p,
                                                             .dp = run->scores,
                                                             .ds = run->ds,
                                                             .rows = (uint64_t)s->heads * s->seq,
                                                             .seq = s->seq } });
        heads_multiply(
            run, square_of(run, run->ds, false), heads_of(run, run->in->qkv, m, c, 3 * c, false),
            heads_of(run, dqkv, m, 0, 3 * c, false), run->dtype, scale, (uint32_t)hs, s->seq);
        heads_multiply(
            run, square_of(run, run->ds, true), heads_of(run, run->in->qkv, m, 0, 3 * c, false),
            heads_of(run, dqkv, m, c, 3 * c, false), run->dtype, scale, (uint32_t)hs, s->seq);
        heads_multiply(run, square_of(run, run->p, true), dmix_m,
                       heads_of(run, dqkv, m, 2 * c, 3 * c, false), run->dtype, 1.0f, (uint32_t)hs,
                       s->seq);
    }
}

/* ---- the residual stream: on the device, or in a stash, whose failure is seen at the end */

static uint32_t stream_entry(const struct gpt_dev_run *run, uint32_t layer)
{
    return (uint32_t)(run->now - run->micro) * (run->model->shape.layers + 1) + layer;
}

static uint64_t stream_bytes(const struct gpt_dev_run *run)
{
    return run->rows * run->model->shape.width * sizeof(float);
}

/* The one that was used longest ago; never the one that is read. */
static unsigned window_find(const struct gpt_dev_run *run)
{
    unsigned best = (run->read + 1) % WINDOWS;

    for (unsigned w = 0; w < WINDOWS; w++)
        if (w != run->read && run->windows[w].touched < run->windows[best].touched)
            best = w;
    return best;
}

/* To be read, until stream_done(). */
static const float *stream_in(struct gpt_dev_run *run, uint32_t layer)
{
    uint32_t entry = stream_entry(run, layer);
    unsigned slot, w = 0;
    struct window *window;
    void *from;

    if (!run->stash)
        return run->now->x[layer];
    while (w < WINDOWS && run->windows[w].entry != entry)
        w++;
    if (w < WINDOWS) {
        run->read = w;
        return run->windows[w].at;
    }
    run->read = window_find(run);
    window = &run->windows[run->read];
    window->entry = entry;
    window->leaves = false; /* this copy is behind that one */
    from = run->stash->ops->take(run->stash, entry, &slot);
    if (from) {
        gpt_dev_up_beside(run->dev, window->at, from, stream_bytes(run), MARK_WINDOW + run->read,
                          MARK_SLOT + slot);
        gpt_dev_behind(run->dev, MARK_SLOT + slot);
        run->stash->ops->drop(run->stash, entry);
    }
    return window->at;
}

static void stream_done(struct gpt_dev_run *run)
{
    if (!run->stash)
        return;
    run->windows[run->read].touched = ++run->clock;
    gpt_dev_mark(run->dev, MARK_WINDOW + run->read);
}

/* To be made, beside what is read: stream_made() comes next. */
static float *stream_out(struct gpt_dev_run *run, uint32_t layer)
{
    uint32_t entry = stream_entry(run, layer);
    struct window *w;

    if (!run->stash)
        return run->now->x[layer];
    for (unsigned i = 0; i < WINDOWS; i++) /* of the step before */
        if (run->windows[i].entry == entry)
            run->windows[i].entry = NO_ENTRY;
    w = &run->windows[window_find(run)];
    if (w->leaves)
        gpt_dev_behind(run->dev, MARK_SLOT + w->slot);
    w->leaves = false;
    w->entry = entry;
    return w->at;
}

/* It is made. Behind the last block, of a micro-batch that is alone, it is wanted at once. */
static void stream_made(struct gpt_dev_run *run, uint32_t layer)
{
    unsigned made = window_find(run);
    struct window *w = &run->windows[made];
    void *to;

    if (!run->stash)
        return;
    w->touched = ++run->clock;
    gpt_dev_mark(run->dev, MARK_WINDOW + made);
    if (run->micros == 1 && layer == run->model->shape.layers)
        return;
    to = run->stash->ops->make(run->stash, stream_entry(run, layer), &w->slot);
    if (!to)
        return;
    gpt_dev_down_beside(run->dev, to, w->at, stream_bytes(run), MARK_WINDOW + made,
                        MARK_SLOT + w->slot);
    w->leaves = true;
    run->stash->ops->keep(run->stash, stream_entry(run, layer));
}

static void stream_forget(struct gpt_dev_run *run, uint32_t layer)
{
    if (run->stash)
        run->stash->ops->forget(run->stash, stream_entry(run, layer));
}

/* As in gpt.c. */
static void stream_ahead(struct gpt_dev_run *run, uint32_t now, int64_t layer)
{
    uint32_t streams = run->model->shape.layers + 1, next = stream_entry(run, now) + streams;

    if (!run->stash)
        return;
    if (next < run->micros * streams)
        run->stash->ops->ahead(run->stash, next);
    else if (layer >= 0)
        run->stash->ops->ahead(run->stash, (uint32_t)layer);
}

/* ---- the passes */

/* A tensor of a unit's weights. */
static const void *tensor(const struct gpt_dev_run *run, uint32_t unit, const void *weights,
                          uint32_t which)
{
    return (const char *)weights +
           run->model->units[unit].tensors[which].first * (uint64_t)gpt_dev_bytes(run->dtype);
}

void gpt_dev_embed_forward(struct gpt_dev_run *run, const void *embed)
{
    const struct gpt_shape *s = &run->model->shape;
    float *x = stream_out(run, 0);

    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){ .op = GPT_KERN_EMBED,
                                       .dtype = run->dtype,
                                       .embed = { .wte = tensor(run, gpt_unit_embed(), embed, 0),
                                                  .wpe = tensor(run, gpt_unit_embed(), embed, 1),
                                                  .tokens = run->now->batch.inputs,
                                                  .x = x,
                                                  .rows = run->rows,
                                                  .cols = s->width,
                                                  .seq = s->seq,
                                                  .vocab = s->vocab } });
    stream_made(run, 0);
}

static struct inside *inside_of(struct gpt_dev_run *run, uint32_t layer)
{
    return run->recompute ? run->inside : &run->now->inside[layer];
}

/* A block up to gelu(fc), which is all that its backward pass needs, into run->in. */
static void block_inside(struct gpt_dev_run *run, uint32_t layer, const float *x, const void *w)
{
    uint32_t u = gpt_unit_block(layer);
    uint64_t c = run->model->shape.width;

    norm(run, x, tensor(run, u, w, LN1_W), tensor(run, u, w, LN1_B), run->in->h1, run->in->mean1,
         run->in->rstd1);
    linear(run, run->in->h1, tensor(run, u, w, QKV_W), tensor(run, u, w, QKV_B), run->in->qkv, c,
           3 * c);
    attention_forward(run);
    linear(run, run->in->mix, tensor(run, u, w, ATT_W), NULL, run->d1, c, c);
    residual(run, x, run->d1, tensor(run, u, w, ATT_B), run->in->x2);
    norm(run, run->in->x2, tensor(run, u, w, LN2_W), tensor(run, u, w, LN2_B), run->in->h2,
         run->in->mean2, run->in->rstd2);
    linear(run, run->in->h2, tensor(run, u, w, FC_W), tensor(run, u, w, FC_B), run->in->fc, c,
           4 * c);
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){
                       .op = GPT_KERN_GELU,
                       .dtype = run->dtype,
                       .gelu = { .x = run->in->fc, .y = run->in->gelu, .n = run->rows * 4 * c } });
}

void gpt_dev_block_forward(struct gpt_dev_run *run, uint32_t layer, const void *weights)
{
    uint32_t u = gpt_unit_block(layer);
    uint64_t c = run->model->shape.width;

    const float *x = stream_in(run, layer);
    float *out = stream_out(run, layer + 1);

    stream_ahead(run, layer, (int64_t)layer + 1);
    run->in = inside_of(run, layer);
    block_inside(run, layer, x, weights);
    linear(run, run->in->gelu, tensor(run, u, weights, OUT_W), NULL, run->d1, 4 * c, c);
    residual(run, run->in->x2, run->d1, tensor(run, u, weights, OUT_B), out);
    stream_made(run, layer + 1);
    stream_done(run);
}

/* The loss of `rows` rows from `first` on; backward: dlogits, and what follows from them. */
static void head_rows(struct gpt_dev_run *run, uint64_t first, uint64_t rows, const void *embed,
                      float *embed_grads)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, v = s->vocab, e = gpt_dev_bytes(run->dtype);
    const char *h = (const char *)run->head.h1 + first * c * e;
    struct gpt_matmul mm = { .a = { .at = h, .ld = c },
                             .b = { .at = embed, .ld = c, .t = true },
                             .d = { .at = run->logits, .ld = v },
                             .dtype = run->dtype,
                             .d_dtype = GPT_DEV_F32,
                             .alpha = 1.0f,
                             .m = (uint32_t)rows,
                             .n = (uint32_t)v,
                             .k = (uint32_t)c,
                             .batch = 1 };

    gpt_dev_matmul(run->dev, &mm);
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){ .op = GPT_KERN_LOSS,
                                       .dtype = run->dtype,
                                       .loss = { .logits = run->logits,
                                                 .targets = run->now->batch.targets + first,
                                                 .dlogits = embed_grads ? run->dlogits : NULL,
                                                 .losses = run->losses + first,
                                                 .rows = rows,
                                                 .vocab = v,
                                                 .scale = run->scale / (float)run->rows } });
    if (!embed_grads)
        return;
    mm.a = (struct gpt_mat){ .at = run->dlogits, .ld = v, .t = true };
    mm.b = (struct gpt_mat){ .at = h, .ld = c };
    mm.d = (struct gpt_mat){ .at = embed_grads, .ld = c };
    mm.beta = 1.0f;
    mm.m = (uint32_t)v;
    mm.n = (uint32_t)c;
    mm.k = (uint32_t)rows;
    gpt_dev_matmul(run->dev, &mm);
    mm.a = (struct gpt_mat){ .at = run->dlogits, .ld = v };
    mm.b = (struct gpt_mat){ .at = embed, .ld = c };
    mm.d = (struct gpt_mat){ .at = (char *)run->d1 + first * c * e, .ld = c };
    mm.d_dtype = run->dtype;
    mm.beta = 0.0f;
    mm.m = (uint32_t)rows;
    mm.n = (uint32_t)c;
    mm.k = (uint32_t)v;
    gpt_dev_matmul(run->dev, &mm);
}

void gpt_dev_head(struct gpt_dev_run *run, const void *ln_f, const void *embed, float *ln_f_grads,
                  float *embed_grads)
{
    uint32_t u = gpt_unit_ln_f(run->model);
    uint64_t c = run->model->shape.width;
    uint32_t layers = run->model->shape.layers;
    const float *x = stream_in(run, layers);

    stream_ahead(run, layers, (int64_t)layers - 1);

    norm(run, x, tensor(run, u, ln_f, 0), tensor(run, u, ln_f, 1), run->head.h1, run->head.mean1,
         run->head.rstd1);
    for (uint64_t r = 0; r < run->rows; r += run->head_rows) {
        uint64_t left = run->rows - r;

        head_rows(run, r, left < run->head_rows ? left : run->head_rows, embed, embed_grads);
    }
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){ .op = GPT_KERN_LOSS_SUM,
                                       .loss_sum = { .losses = run->losses,
                                                     .to = run->loss,
                                                     .n = run->rows,
                                                     .scale = 1.0 / (double)run->rows } });
    stream_forget(run, layers);
    if (!ln_f_grads || !embed_grads) {
        stream_done(run);
        return;
    }
    gpt_dev_zero(run->dev, run->now->dx, run->rows * c * sizeof(float));
    norm_back(run, x, tensor(run, u, ln_f, 0), run->head.mean1, run->head.rstd1, run->d1,
              ln_f_grads, ln_f_grads + c);
    stream_done(run);
}

/* As in gpt.c. */
static float *grad_of(float *grads, const struct gpt_tensor *t)
{
    return grads ? grads + t->first : NULL;
}

void gpt_dev_block_backward(struct gpt_dev_run *run, uint32_t layer, const void *weights,
                            float *grads)
{
    uint32_t u = gpt_unit_block(layer);
    const struct gpt_tensor *t = run->model->units[u].tensors;
    const void *w = weights;
    uint64_t c = run->model->shape.width;
    const float *x = stream_in(run, layer);
    const void *dy;

    stream_ahead(run, layer, (int64_t)layer - 1);
    run->in = inside_of(run, layer);
    if (run->recompute)
        block_inside(run, layer, x, w);

    dy = dx_round(run);
    bias_back(run, GPT_DEV_F32, run->now->dx, grad_of(grads, &t[OUT_B]), c);
    weights_back(run, run->in->gelu, dy, grad_of(grads, &t[OUT_W]), 4 * c, c);
    inputs_back(run, dy, tensor(run, u, w, OUT_W), run->d4, 4 * c, c);
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_GELU_BACK,
                                                 .dtype = run->dtype,
                                                 .gelu_back = { .x = run->in->fc,
                                                                .dy = run->d4,
                                                                .dx = run->d4,
                                                                .n = run->rows * 4 * c } });
    bias_back(run, run->dtype, run->d4, grad_of(grads, &t[FC_B]), 4 * c);
    weights_back(run, run->in->h2, run->d4, grad_of(grads, &t[FC_W]), c, 4 * c);
    inputs_back(run, run->d4, tensor(run, u, w, FC_W), run->d1, c, 4 * c);
    norm_back(run, run->in->x2, tensor(run, u, w, LN2_W), run->in->mean2, run->in->rstd2, run->d1,
              grad_of(grads, &t[LN2_W]), grad_of(grads, &t[LN2_B]));

    dy = dx_round(run);
    bias_back(run, GPT_DEV_F32, run->now->dx, grad_of(grads, &t[ATT_B]), c);
    weights_back(run, run->in->mix, dy, grad_of(grads, &t[ATT_W]), c, c);
    inputs_back(run, dy, tensor(run, u, w, ATT_W), run->d1, c, c);
    attention_backward(run, run->d1, run->d4);
    bias_back(run, run->dtype, run->d4, grad_of(grads, &t[QKV_B]), 3 * c);
    weights_back(run, run->in->h1, run->d4, grad_of(grads, &t[QKV_W]), c, 3 * c);
    inputs_back(run, run->d4, tensor(run, u, w, QKV_W), run->d1, c, 3 * c);
    norm_back(run, x, tensor(run, u, w, LN1_W), run->in->mean1, run->in->rstd1, run->d1,
              grad_of(grads, &t[LN1_W]), grad_of(grads, &t[LN1_B]));
    stream_done(run);
    stream_forget(run, layer);
}

void gpt_dev_embed_backward(struct gpt_dev_run *run, float *embed_grads)
{
    const struct gpt_shape *s = &run->model->shape;

    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_EMBED_BACK,
                                                 .embed_back = { .which = run->now->batch.which,
                                                                 .first = run->now->batch.first,
                                                                 .order = run->now->batch.order,
                                                                 .dx = run->now->dx,
                                                                 .dwte = embed_grads,
                                                                 .n = run->now->distinct,
                                                                 .rows = run->rows,
                                                                 .cols = s->width,
                                                                 .vocab = s->vocab } });
    gpt_dev_kernel(run->dev, &(struct gpt_kern){
                                 .op = GPT_KERN_POS_BACK,
                                 .pos_back = { .dx = run->now->dx,
                                               .dwpe = embed_grads + (uint64_t)s->vocab * s->width,
                                               .rows = run->rows,
                                               .cols = s->width,
                                               .seq = s->seq } });
}

int gpt_dev_loss(struct gpt_dev_run *run, double *ret, struct gpt_err *err)
{
    gpt_dev_down(run->dev, run->host_loss, run->loss, sizeof(double));
    gpt_dev_zero(run->dev, run->loss, sizeof(double));
    gpt_dev_mark(run->dev, MARK_LOSS);
    if (!gpt_dev_wait(run->dev, MARK_LOSS, run->tick, run->tick_arg)) {
        int rc = gpt_dev_error(run->dev, err);

        return rc < 0 ? rc : -ECANCELED;
    }
    *ret = *run->host_loss;
    return 0;
}
