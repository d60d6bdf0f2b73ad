/*
 * gpt.c - the units of the model, their initial values, and the two passes.
 *
 * SHAPES. M sequences of T tokens are N = M * T rows. Everything is row-major; a row of the
 * residual stream is C floats. Attention reads its queries, keys and values in place, as columns of
 * the rows of qkv [N, 3C], and works through ATT_ROWS queries of one head at a time: those need
 * only the keys up to their own end, and the square behind the diagonal is never computed.
 *
 * WHAT IS KEPT for the way back: the residual stream before each block, and behind the last, and
 * what is inside of each block, struct acts. Who recomputes has one struct acts, and fills it again
 * before it goes back through a block. Gradients flow through one array of the residual stream's
 * shape for each micro-batch, dx, that each step of the backward pass updates in place: a block is
 * x + f(ln(x)) twice, so dx += ln_back(f_back(dx)).
 */
#include "examples/gpt/model/gpt.h"

#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/model/rng.h"
#include "examples/gpt/model/vec.h"

#define ATT_ROWS     64u
#define LOGITS_BYTES (UINT64_C(32) << 20) /* of logits at a time, at least one row */
#define ALIGN_BYTES  64u
#define INIT_SIGMA   0.02

/* ---- units */

/* The tensors of a block, in this order. */
enum { LN1_W, LN1_B, QKV_W, QKV_B, ATT_W, ATT_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };

static void unit_add(struct gpt_unit *u, const char *prefix, const char *name, uint64_t rows,
                     uint64_t cols, enum gpt_fill fill, double sigma)
{
    struct gpt_tensor *t = &u->tensors[u->ntensors++];

    assert(u->ntensors <= GPT_UNIT_TENSORS_MAX);
    (void)snprintf(t->name, sizeof(t->name), "%s%s", prefix, name);
    t->ndims = rows ? 2 : 1; /* rows 0: a vector */
    t->dims[0] = rows ? rows : cols;
    t->dims[1] = rows ? cols : 1;
    t->elems = t->dims[0] * t->dims[1];
    t->first = u->elems;
    t->group = rows ? 0 : 1;
    t->fill = fill;
    t->sigma = sigma;
    u->elems += t->elems;
}

static void block_lay_out(struct gpt_unit *u, const struct gpt_shape *s, uint32_t layer)
{
    uint64_t c = s->width;
    double residual = INIT_SIGMA / sqrt(2.0 * s->layers);
    char prefix[32];

    (void)snprintf(u->name, sizeof(u->name), "h.%u", layer);
    (void)snprintf(prefix, sizeof(prefix), "transformer.h.%u.", layer);
    unit_add(u, prefix, "ln_1.weight", 0, c, GPT_FILL_ONE, 0);
    unit_add(u, prefix, "ln_1.bias", 0, c, GPT_FILL_ZERO, 0);
    unit_add(u, prefix, "attn.c_attn.weight", c, 3 * c, GPT_FILL_NORMAL, INIT_SIGMA);
    unit_add(u, prefix, "attn.c_attn.bias", 0, 3 * c, GPT_FILL_ZERO, 0);
    unit_add(u, prefix, "attn.c_proj.weight", c, c, GPT_FILL_NORMAL, residual);
    unit_add(u, prefix, "attn.c_proj.bias", 0, c, GPT_FILL_ZERO, 0);
    unit_add(u, prefix, "ln_2.weight", 0, c, GPT_FILL_ONE, 0);
    unit_add(u, prefix, "ln_2.bias", 0, c, GPT_FILL_ZERO, 0);
    unit_add(u, prefix, "mlp.c_fc.weight", c, 4 * c, GPT_FILL_NORMAL, INIT_SIGMA);
    unit_add(u, prefix, "mlp.c_fc.bias", 0, 4 * c, GPT_FILL_ZERO, 0);
    unit_add(u, prefix, "mlp.c_proj.weight", 4 * c, c, GPT_FILL_NORMAL, residual);
    unit_add(u, prefix, "mlp.c_proj.bias", 0, c, GPT_FILL_ZERO, 0);
}

static int shape_check(const struct gpt_shape *s, struct gpt_err *err)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } sizes[] = {
        { "layers", s->layers, GPT_LAYERS_MAX },   { "width", s->width, GPT_WIDTH_MAX },
        { "heads", s->heads, GPT_WIDTH_MAX },      { "seq", s->seq, GPT_SEQ_MAX },
        { "vocabulary", s->vocab, GPT_VOCAB_MAX },
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max)
            return gpt_fail(err, -EINVAL, "%s is %u, and must be from 1 to %u", sizes[i].name,
                            sizes[i].value, sizes[i].max);
    if (s->width % s->heads != 0)
        return gpt_fail(err, -EINVAL, "width %u is not a multiple of %u heads", s->width, s->heads);
    return 0;
}

int gpt_init(struct gpt *model, const struct gpt_shape *shape, struct gpt_err *err)
{
    struct gpt_unit *u;
    int rc = shape_check(shape, err);

    *model = (struct gpt){ .shape = *shape };
    if (rc != 0)
        return rc;
    model->units = calloc((size_t)shape->layers + 2, sizeof(*model->units));
    if (!model->units)
        return gpt_fail(err, -ENOMEM, "a model of %u layers: %m", shape->layers);
    model->nunits = shape->layers + 2;

    u = &model->units[gpt_unit_embed()];
    (void)snprintf(u->name, sizeof(u->name), "embed");
    unit_add(u, "transformer.", "wte.weight", shape->vocab, shape->width, GPT_FILL_NORMAL,
             INIT_SIGMA);
    unit_add(u, "transformer.", "wpe.weight", shape->seq, shape->width, GPT_FILL_NORMAL,
             INIT_SIGMA);
    for (uint32_t l = 0; l < shape->layers; l++)
        block_lay_out(&model->units[gpt_unit_block(l)], shape, l);
    u = &model->units[gpt_unit_ln_f(model)];
    (void)snprintf(u->name, sizeof(u->name), "ln_f");
    unit_add(u, "transformer.", "ln_f.weight", 0, shape->width, GPT_FILL_ONE, 0);
    unit_add(u, "transformer.", "ln_f.bias", 0, shape->width, GPT_FILL_ZERO, 0);

    for (uint32_t i = 0; i < model->nunits; i++)
        model->params += model->units[i].elems;
    return 0;
}

void gpt_done(struct gpt *model)
{
    free(model->units);
    *model = (struct gpt){ 0 };
}

/* Elements [first, first + count) of one tensor. */
static void tensor_init_range(const struct gpt_tensor *t, uint64_t seed, uint64_t first,
                              uint64_t count, float *out)
{
    struct gpt_rng rng = gpt_rng(seed, t->name);
    uint64_t end = first + count;

    if (t->fill != GPT_FILL_NORMAL) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = t->fill == GPT_FILL_ONE ? 1.0f : 0.0f;
        return;
    }
    for (uint64_t block = first / 4; block * 4 < end; block++) {
        double z[4];

        gpt_rng_normal4(&rng, block, z);
        for (uint64_t j = 0; j < 4; j++)
            if (block * 4 + j >= first && block * 4 + j < end)
                out[block * 4 + j - first] = (float)(t->sigma * z[j]);
    }
}

void gpt_init_range(const struct gpt *model, uint64_t seed, uint32_t unit, uint64_t first,
                    uint64_t count, float *out)
{
    const struct gpt_unit *u = &model->units[unit];

    assert(unit < model->nunits);
    for (uint64_t i = first > u->elems ? first : u->elems; i < first + count; i++)
        out[i - first] = 0.0f;
    for (uint32_t k = 0; k < u->ntensors; k++) {
        const struct gpt_tensor *t = &u->tensors[k];
        uint64_t from = first > t->first ? first : t->first;
        uint64_t to = first + count < t->first + t->elems ? first + count : t->first + t->elems;

        if (from < to)
            tensor_init_range(t, seed, from - t->first, to - from, out + (from - first));
    }
}

/* ---- a run: one piece of memory, cut by run_lay_out() */

struct acts {
    float *ln1_mean, *ln1_rstd; /* [N] */
    float *ln1;                 /* [N, C] */
    float *qkv;                 /* [N, 3C] */
    float *att;                 /* [M, H, T, T] probabilities; behind the diagonal: see above */
    float *mix;                 /* [N, C] the heads' results */
    float *x2;                  /* [N, C] after attention */
    float *ln2_mean, *ln2_rstd;
    float *ln2;  /* [N, C] */
    float *fc;   /* [N, 4C] before GELU */
    float *gelu; /* [N, 4C] */
};

/* Of one micro-batch. */
struct micro {
    uint32_t *tokens;  /* [M, T + 1] */
    float **x;         /* [L + 1] of [N, C]: before each block, and behind the last */
    struct acts *acts; /* [L], or [1] where they are computed anew */
    float *dx;         /* [N, C] gradient of the residual stream */
};

struct gpt_run {
    const struct gpt *model;
    uint32_t sequences, micros;
    bool recompute;
    struct gpt_stash *stash; /* of x; NULL: it is in memory */
    float *last;             /* with a stash: of a micro-batch that is alone, x behind the last */
    uint64_t rows;           /* N */
    uint64_t head_rows;      /* of logits at a time */
    struct micro *micro;     /* [micros] */
    struct micro *now;       /* of these */
    float **streams;         /* all of x */
    struct acts *acts;       /* all of them */
    float *lnf_mean, *lnf_rstd, *lnf;
    float *logits; /* [head_rows, V] */
    float *d1;     /* [N, C] scratch */
    float *d4;     /* [N, 4C] scratch */
    float *ds;     /* [ATT_ROWS, T] scratch */
    void *memory;
    float scale; /* of the loss, where gradients begin */
    gpt_tick_fn *tick;
    void *tick_arg;
    bool stopped; /* by tick */
};

struct cutter {
    unsigned char *base; /* NULL: only count */
    uint64_t bytes;
};

static void *cut(struct cutter *c, uint64_t elems)
{
    void *p = c->base ? c->base + c->bytes : NULL;

    c->bytes += (elems * 4 + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return p;
}

static void acts_lay_out(struct acts *a, struct cutter *c, const struct gpt_shape *s,
                         uint32_t sequences)
{
    uint64_t n = (uint64_t)sequences * s->seq, w = s->width;

    a->ln1_mean = cut(c, n);
    a->ln1_rstd = cut(c, n);
    a->ln1 = cut(c, n * w);
    a->qkv = cut(c, n * 3 * w);
    a->att = cut(c, n * s->heads * s->seq);
    a->mix = cut(c, n * w);
    a->x2 = cut(c, n * w);
    a->ln2_mean = cut(c, n);
    a->ln2_rstd = cut(c, n);
    a->ln2 = cut(c, n * w);
    a->fc = cut(c, n * 4 * w);
    a->gelu = cut(c, n * 4 * w);
}

/* Everything but the streams and the blocks' activations. */
static void run_lay_out(struct gpt_run *run, struct cutter *c, const struct gpt_shape *s)
{
    uint64_t n = run->rows, w = s->width;

    run->lnf_mean = cut(c, n);
    run->lnf_rstd = cut(c, n);
    run->lnf = cut(c, n * w);
    run->logits = cut(c, run->head_rows * s->vocab);
    run->d1 = cut(c, n * w);
    run->d4 = cut(c, n * 4 * w);
    run->ds = cut(c, (uint64_t)ATT_ROWS * s->seq);
}

static void micro_lay_out(struct micro *m, struct cutter *c, const struct gpt_run *run)
{
    const struct gpt_shape *s = &run->model->shape;

    m->tokens = cut(c, (uint64_t)run->sequences * (s->seq + 1));
    m->dx = cut(c, run->rows * s->width);
}

static void run_size(struct gpt_run *run, const struct gpt *model, const struct gpt_hold *hold)
{
    run->model = model;
    run->sequences = hold->sequences;
    run->micros = hold->micros ? hold->micros : 1;
    run->recompute = hold->recompute;
    run->stash = hold->stash;
    assert(!run->stash || run->recompute);
    run->rows = (uint64_t)hold->sequences * model->shape.seq;
    run->head_rows = LOGITS_BYTES / (sizeof(float) * model->shape.vocab);
    run->head_rows = run->head_rows < 1 ? 1 : run->head_rows;
    run->head_rows = run->head_rows > run->rows ? run->rows : run->head_rows;
}

/* struct acts that there are. */
static uint64_t run_acts(const struct gpt_run *run)
{
    return run->recompute ? 1 : (uint64_t)run->micros * run->model->shape.layers;
}

static uint64_t run_streams(const struct gpt_run *run)
{
    return run->micros * ((uint64_t)run->model->shape.layers + 1);
}

uint32_t gpt_hold_entries(const struct gpt *model, const struct gpt_hold *hold)
{
    return (hold->micros ? hold->micros : 1) * (model->shape.layers + 1);
}

uint64_t gpt_hold_entry_bytes(const struct gpt *model, const struct gpt_hold *hold)
{
    return (uint64_t)hold->sequences * model->shape.seq * model->shape.width * sizeof(float);
}

uint64_t gpt_run_bytes(const struct gpt *model, const struct gpt_hold *hold)
{
    struct cutter rest = { 0 }, parts[3] = { { 0 } };
    struct gpt_run run = { 0 };
    struct micro micro;
    struct acts a;
    uint64_t bytes;

    run_size(&run, model, hold);
    if (run.rows > GPT_ROWS_MAX)
        return UINT64_MAX;
    acts_lay_out(&a, &parts[0], &model->shape, run.sequences); /* below 2^24 * 2^16 * 2^20 * 4 */
    (void)cut(&parts[1], run.rows * model->shape.width);
    micro_lay_out(&micro, &parts[2], &run);
    run_lay_out(&run, &rest, &model->shape);
    bytes = rest.bytes;
    for (int i = 0; i < 3; i++) {
        uint64_t n = i == 0                ? run_acts(&run)
                     : i == 1 && run.stash ? 0
                     : i == 1              ? run_streams(&run)
                                           : run.micros;

        if (__builtin_mul_overflow(parts[i].bytes, n, &parts[i].bytes) ||
            __builtin_add_overflow(bytes, parts[i].bytes, &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

/* Cuts the memory. */
static void run_cut(struct gpt_run *run)
{
    const struct gpt_shape *s = &run->model->shape;
    struct cutter c = { .base = run->memory };

    for (uint64_t i = 0; i < run_acts(run); i++)
        acts_lay_out(&run->acts[i], &c, s, run->sequences);
    for (uint64_t i = 0; i < run_streams(run) && !run->stash; i++)
        run->streams[i] = cut(&c, run->rows * s->width);
    for (uint32_t m = 0; m < run->micros; m++) {
        run->micro[m].x = run->streams + m * ((uint64_t)s->layers + 1);
        run->micro[m].acts = run->acts + (run->recompute ? 0 : (uint64_t)m * s->layers);
        micro_lay_out(&run->micro[m], &c, run);
    }
    run_lay_out(run, &c, s);
    run->now = &run->micro[0];
}

int gpt_run_new(struct gpt_run **ret, const struct gpt *model, const struct gpt_hold *hold,
                struct gpt_err *err)
{
    uint64_t bytes = gpt_run_bytes(model, hold);
    struct gpt_run *run;

    if (hold->sequences < 1 || (uint64_t)hold->sequences * model->shape.seq > GPT_ROWS_MAX)
        return gpt_fail(err, -EINVAL,
                        "a micro-batch of %u sequences of %u tokens: must be from 1 "
                        "to %u tokens in all",
                        hold->sequences, model->shape.seq, GPT_ROWS_MAX);
    run = calloc(1, sizeof(*run));
    if (!run)
        return gpt_fail(err, -ENOMEM, "activations: %m");
    run_size(run, model, hold);
    run->scale = 1.0f;
    run->micro = calloc(run->micros, sizeof(*run->micro));
    run->streams = calloc(run_streams(run), sizeof(*run->streams));
    run->acts = calloc(run_acts(run), sizeof(*run->acts));
    run->memory = bytes <= SIZE_MAX / 2 ? aligned_alloc(ALIGN_BYTES, bytes) : NULL;
    if (!run->micro || !run->streams || !run->acts || !run->memory) {
        gpt_run_free(run);
        return gpt_fail(err, -ENOMEM,
                        "activations of %u sequences of %u tokens take %" PRIu64
                        " bytes: a smaller micro-batch takes less",
                        hold->sequences, model->shape.seq, bytes);
    }
    run_cut(run);
    memset(run->memory, 0, bytes); /* touched now: a lack of memory shows before the training */
    openblas_set_num_threads(1);
    *ret = run;
    return 0;
}

void gpt_run_free(struct gpt_run *run)
{
    if (!run)
        return;
    free(run->memory);
    free(run->micro);
    free(run->streams);
    free(run->acts);
    free(run);
}

void gpt_run_micro(struct gpt_run *run, uint32_t micro)
{
    assert(micro < run->micros);
    run->now = &run->micro[micro];
}

void gpt_run_on_tick(struct gpt_run *run, gpt_tick_fn *tick, void *arg)
{
    run->tick = tick;
    run->tick_arg = arg;
}

void gpt_run_scale(struct gpt_run *run, float scale)
{
    run->scale = scale;
}

/* False: return, whatever was going on. */
static bool run_go_on(struct gpt_run *run)
{
    if (run->tick && !run->stopped && !run->tick(run->tick_arg))
        run->stopped = true;
    return !run->stopped;
}

void gpt_run_tokens(struct gpt_run *run, const uint32_t *tokens)
{
    size_t n = (size_t)run->sequences * (run->model->shape.seq + 1);

    for (size_t i = 0; i < n; i++)
        assert(tokens[i] < run->model->shape.vocab);
    memcpy(run->now->tokens, tokens, n * sizeof(*tokens));
    run->stopped = false;
}

/* ---- products: y [n, out], x [n, in], w [in, out] */

/* y = x w + b */
static void linear(const float *x, const float *w, const float *b, float *y, uint64_t n,
                   uint64_t in, uint64_t out)
{
    gpt_vec_fill_rows(y, b, n, out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)out, (int)in, 1.0f, x,
                (int)in, w, (int)out, 1.0f, y, (int)out);
}

/* dx = dy w^T, dw += x^T dy, db += dy; the latter unless dw and db are NULL. */
static void linear_back(const float *x, const float *w, const float *dy, float *dx, float *dw,
                        float *db, uint64_t n, uint64_t in, uint64_t out)
{
    if (dw) {
        gpt_vec_add_rows(db, dy, n, out);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)in, (int)out, (int)n, 1.0f, x,
                    (int)in, dy, (int)out, 1.0f, dw, (int)out);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)in, (int)out, 1.0f, dy,
                (int)out, w, (int)out, 0.0f, dx, (int)in);
}

/* ---- attention of one head: q, k, v are columns of rows 3C long; y of rows C long */

struct head {
    const float *q, *k, *v;
    float *att; /* [T, T] */
    int t, hs, ld_qkv, ld_y;
    float scale;
};

static struct head head_at(const struct gpt_run *run, const struct acts *a, uint64_t seq,
                           uint64_t h)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, hs = c / s->heads, t = s->seq;
    const float *q = a->qkv + seq * t * 3 * c + h * hs;

    return (struct head){
        .q = q,
        .k = q + c,
        .v = q + 2 * c,
        .att = a->att + (seq * s->heads + h) * t * t,
        .t = (int)t,
        .hs = (int)hs,
        .ld_qkv = (int)(3 * c),
        .ld_y = (int)c,
        .scale = 1.0f / sqrtf((float)hs),
    };
}

static void head_forward(const struct head *h, float *y)
{
    for (int r = 0; r < h->t; r += (int)ATT_ROWS) {
        int end = r + (int)ATT_ROWS < h->t ? r + (int)ATT_ROWS : h->t;
        float *att = h->att + (size_t)r * (size_t)h->t;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, end - r, end, h->hs, h->scale,
                    h->q + (size_t)r * (size_t)h->ld_qkv, h->ld_qkv, h->k, h->ld_qkv, 0.0f, att,
                    h->t);
        for (int i = r; i < end; i++) {
            float *row = h->att + (size_t)i * (size_t)h->t;

            gpt_vec_softmax(row, (size_t)i + 1);
            memset(row + i + 1, 0, (size_t)(end - i - 1) * sizeof(float));
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, end - r, h->hs, end, 1.0f, att, h->t,
                    h->v, h->ld_qkv, 0.0f, y + (size_t)r * (size_t)h->ld_y, h->ld_y);
    }
}

/* Adds to dq, dk, dv, which lie as q, k, v do. ds is scratch [ATT_ROWS, T]. */
static void head_backward(const struct head *h, const float *dy, float *dq, float *dk, float *dv,
                          float *ds)
{
    for (int r = 0; r < h->t; r += (int)ATT_ROWS) {
        int end = r + (int)ATT_ROWS < h->t ? r + (int)ATT_ROWS : h->t;
        const float *att = h->att + (size_t)r * (size_t)h->t;
        const float *dy_r = dy + (size_t)r * (size_t)h->ld_y;
        size_t at = (size_t)r * (size_t)h->ld_qkv;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, end - r, end, h->hs, 1.0f, dy_r,
                    h->ld_y, h->v, h->ld_qkv, 0.0f, ds, h->t);
        /* Behind the diagonal the probabilities are 0, and make ds 0 there. */
        for (int i = 0; i < end - r; i++)
            gpt_vec_softmax_back(att + (size_t)i * (size_t)h->t, ds + (size_t)i * (size_t)h->t,
                                 (size_t)end);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, end - r, h->hs, end, h->scale, ds,
                    h->t, h->k, h->ld_qkv, 1.0f, dq + at, h->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, end, h->hs, end - r, h->scale, ds,
                    h->t, h->q + at, h->ld_qkv, 1.0f, dk, h->ld_qkv);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, end, h->hs, end - r, 1.0f, att, h->t,
                    dy_r, h->ld_y, 1.0f, dv, h->ld_qkv);
    }
}

/* ---- the residual stream: in memory, or in a stash. NULL: the stash failed, and so does the pass
 */

static uint32_t stream_entry(const struct gpt_run *run, uint32_t layer)
{
    return (uint32_t)(run->now - run->micro) * (run->model->shape.layers + 1) + layer;
}

/* Behind the last block, of a micro-batch that is alone: wanted at once, and not worth keeping. */
static bool stream_stays(const struct gpt_run *run, uint32_t layer)
{
    return run->micros == 1 && layer == run->model->shape.layers;
}

/* To be filled. */
static float *stream_make(struct gpt_run *run, uint32_t layer)
{
    unsigned slot;
    float *x;

    if (!run->stash)
        return run->now->x[layer];
    x = run->stash->ops->make(run->stash, stream_entry(run, layer), &slot);
    if (!x)
        run->stopped = true;
    if (stream_stays(run, layer))
        run->last = x;
    return x;
}

static void stream_keep(struct gpt_run *run, uint32_t layer)
{
    if (run->stash && !stream_stays(run, layer))
        run->stash->ops->keep(run->stash, stream_entry(run, layer));
}

/* To be read, until stream_drop(). */
static const float *stream_take(struct gpt_run *run, uint32_t layer)
{
    unsigned slot;
    const float *x;

    if (!run->stash)
        return run->now->x[layer];
    if (stream_stays(run, layer))
        return run->last;
    x = run->stash->ops->take(run->stash, stream_entry(run, layer), &slot);
    if (!x)
        run->stopped = true;
    return x;
}

static void stream_drop(struct gpt_run *run, uint32_t layer, bool again)
{
    if (!run->stash)
        return;
    if (!stream_stays(run, layer))
        run->stash->ops->drop(run->stash, stream_entry(run, layer));
    if (!again)
        run->stash->ops->forget(run->stash, stream_entry(run, layer));
}

/* The pass behind this one reads the same of the next micro-batch; behind the last one, of the
 * first, `layer`. */
static void stream_ahead(struct gpt_run *run, uint32_t now, int64_t layer)
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

void gpt_embed_forward(struct gpt_run *run, const float *embed)
{
    const struct gpt_shape *s = &run->model->shape;
    const float *wpe = embed + (uint64_t)s->vocab * s->width;
    float *x = stream_make(run, 0);

    if (!x)
        return;
    for (uint64_t m = 0; m < run->sequences; m++)
        for (uint64_t t = 0; t < s->seq; t++, x += s->width) {
            memcpy(x, embed + (uint64_t)run->now->tokens[m * (s->seq + 1) + t] * s->width,
                   s->width * sizeof(float));
            gpt_vec_add(x, wpe + t * s->width, s->width);
        }
    stream_keep(run, 0);
}

static struct acts *acts_of(const struct gpt_run *run, uint32_t layer)
{
    return run->recompute ? run->acts : &run->now->acts[layer];
}

/* A block up to gelu(fc), which is all that its backward pass needs. */
static void block_inside(struct gpt_run *run, uint32_t layer, const float *x, const float *weights)
{
    const struct gpt_shape *s = &run->model->shape;
    const struct gpt_tensor *t = run->model->units[gpt_unit_block(layer)].tensors;
    const struct acts *a = acts_of(run, layer);
    uint64_t n = run->rows, c = s->width;

    gpt_vec_layernorm(x, weights + t[LN1_W].first, weights + t[LN1_B].first, a->ln1, a->ln1_mean,
                      a->ln1_rstd, n, c);
    linear(a->ln1, weights + t[QKV_W].first, weights + t[QKV_B].first, a->qkv, n, c, 3 * c);
    for (uint64_t m = 0; m < run->sequences && run_go_on(run); m++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct head head = head_at(run, a, m, h);

            head_forward(&head, a->mix + m * s->seq * c + h * (uint64_t)head.hs);
        }
    linear(a->mix, weights + t[ATT_W].first, weights + t[ATT_B].first, a->x2, n, c, c);
    gpt_vec_add(a->x2, x, n * c);
    if (!run_go_on(run))
        return;

    gpt_vec_layernorm(a->x2, weights + t[LN2_W].first, weights + t[LN2_B].first, a->ln2,
                      a->ln2_mean, a->ln2_rstd, n, c);
    linear(a->ln2, weights + t[FC_W].first, weights + t[FC_B].first, a->fc, n, c, 4 * c);
    if (run_go_on(run))
        gpt_vec_gelu(a->fc, a->gelu, n * 4 * c);
}

void gpt_block_forward(struct gpt_run *run, uint32_t layer, const float *weights)
{
    const struct gpt_tensor *t = run->model->units[gpt_unit_block(layer)].tensors;
    const struct acts *a = acts_of(run, layer);
    uint64_t n = run->rows, c = run->model->shape.width;
    const float *x = stream_take(run, layer);
    float *out = x ? stream_make(run, layer + 1) : NULL;

    if (!out)
        return;
    stream_ahead(run, layer, (int64_t)layer + 1);
    block_inside(run, layer, x, weights);
    if (run->stopped)
        return;
    linear(a->gelu, weights + t[OUT_W].first, weights + t[OUT_B].first, out, n, 4 * c, c);
    gpt_vec_add(out, a->x2, n * c);
    stream_keep(run, layer + 1);
    stream_drop(run, layer, true);
}

double gpt_head(struct gpt_run *run, const float *ln_f, const float *embed, float *ln_f_grads,
                float *embed_grads)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t n = run->rows, c = s->width, v = s->vocab;
    bool backward = ln_f_grads && embed_grads;
    const float *last = stream_take(run, s->layers);
    double loss = 0.0;

    if (!last)
        return loss;
    stream_ahead(run, s->layers, (int64_t)s->layers - 1);

    gpt_vec_layernorm(last, ln_f, ln_f + c, run->lnf, run->lnf_mean, run->lnf_rstd, n, c);
    for (uint64_t r = 0; r < n && run_go_on(run); r += run->head_rows) {
        int rows = (int)(n - r < run->head_rows ? n - r : run->head_rows);
        const float *x = run->lnf + r * c;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, (int)v, (int)c, 1.0f, x, (int)c,
                    embed, (int)c, 0.0f, run->logits, (int)v);
        for (uint64_t i = r; i < r + (uint64_t)rows; i++) {
            uint32_t target = run->now->tokens[i / s->seq * (s->seq + 1) + i % s->seq + 1];

            loss +=
                gpt_vec_cross_entropy(run->logits + (i - r) * v, v, target, run->scale / (float)n);
        }
        if (!backward)
            continue;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)v, (int)c, rows, 1.0f,
                    run->logits, (int)v, x, (int)c, 1.0f, embed_grads, (int)c);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, (int)c, (int)v, 1.0f,
                    run->logits, (int)v, embed, (int)c, 0.0f, run->d1 + r * c, (int)c);
    }
    if (backward) {
        memset(run->now->dx, 0, n * c * sizeof(float));
        gpt_vec_layernorm_back(last, ln_f, run->lnf_mean, run->lnf_rstd, run->d1, run->now->dx,
                               ln_f_grads, ln_f_grads + c, n, c);
    }
    stream_drop(run, s->layers, false);
    return loss / (double)n;
}

/* Where the gradient of a tensor goes, or NULL. */
static float *grad_of(float *grads, const struct gpt_tensor *t)
{
    return grads ? grads + t->first : NULL;
}

void gpt_block_backward(struct gpt_run *run, uint32_t layer, const float *weights, float *grads)
{
    const struct gpt_shape *s = &run->model->shape;
    const struct gpt_tensor *t = run->model->units[gpt_unit_block(layer)].tensors;
    const struct acts *a = acts_of(run, layer);
    const float *x = stream_take(run, layer);
    uint64_t n = run->rows, c = s->width;
    float *dqkv = run->d4, *dx = run->now->dx;

    if (!x)
        return;
    stream_ahead(run, layer, (int64_t)layer - 1);
    if (run->recompute)
        block_inside(run, layer, x, weights);
    if (run->stopped)
        return;
    linear_back(a->gelu, weights + t[OUT_W].first, dx, run->d4, grad_of(grads, &t[OUT_W]),
                grad_of(grads, &t[OUT_B]), n, 4 * c, c);
    if (!run_go_on(run))
        return;
    gpt_vec_gelu_back(a->fc, run->d4, run->d4, n * 4 * c);
    linear_back(a->ln2, weights + t[FC_W].first, run->d4, run->d1, grad_of(grads, &t[FC_W]),
                grad_of(grads, &t[FC_B]), n, c, 4 * c);
    gpt_vec_layernorm_back(a->x2, weights + t[LN2_W].first, a->ln2_mean, a->ln2_rstd, run->d1, dx,
                           grad_of(grads, &t[LN2_W]), grad_of(grads, &t[LN2_B]), n, c);
    if (!run_go_on(run))
        return;

    linear_back(a->mix, weights + t[ATT_W].first, dx, run->d1, grad_of(grads, &t[ATT_W]),
                grad_of(grads, &t[ATT_B]), n, c, c);
    memset(dqkv, 0, n * 3 * c * sizeof(float));
    for (uint64_t m = 0; m < run->sequences && run_go_on(run); m++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct head head = head_at(run, a, m, h);
            float *dq = dqkv + (head.q - a->qkv);

            head_backward(&head, run->d1 + m * s->seq * c + h * (uint64_t)head.hs, dq, dq + c,
                          dq + 2 * c, run->ds);
        }
    linear_back(a->ln1, weights + t[QKV_W].first, dqkv, run->d1, grad_of(grads, &t[QKV_W]),
                grad_of(grads, &t[QKV_B]), n, c, 3 * c);
    gpt_vec_layernorm_back(x, weights + t[LN1_W].first, a->ln1_mean, a->ln1_rstd, run->d1, dx,
                           grad_of(grads, &t[LN1_W]), grad_of(grads, &t[LN1_B]), n, c);
    stream_drop(run, layer, false);
}

void gpt_embed_backward(struct gpt_run *run, float *embed_grads)
{
    const struct gpt_shape *s = &run->model->shape;
    float *wpe = embed_grads + (uint64_t)s->vocab * s->width;
    const float *dx = run->now->dx;

    for (uint64_t m = 0; m < run->sequences; m++)
        for (uint64_t t = 0; t < s->seq; t++, dx += s->width) {
            uint32_t token = run->now->tokens[m * (s->seq + 1) + t];

            gpt_vec_add(embed_grads + (uint64_t)token * s->width, dx, s->width);
            gpt_vec_add(wpe + t * s->width, dx, s->width);
        }
}
