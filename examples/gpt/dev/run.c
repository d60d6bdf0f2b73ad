/*
 * run.c - a run on a device: its memory, which is one piece, and the tokens of its micro-batches.
 */
#include "examples/gpt/dev/run_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifndef LOGITS_BYTES                       /* a test has its own */
#define LOGITS_BYTES (UINT64_C(256) << 20) /* of fp32 logits at a time, at least one row */
#endif
#define ALIGN_BYTES 256u

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

/* Lays out the arrays that exist once. */
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

static int host_new(struct gpt_dev_run *run, struct zb_err *err)
{
    uint64_t elems = run->micros * run->batch_elems;
    struct cutter c = { 0 };

    run->seen = calloc(run->model->shape.vocab, sizeof(*run->seen));
    run->micro = calloc(run->micros, sizeof(*run->micro));
    run->streams = calloc(run_streams(run), sizeof(*run->streams));
    run->inside = calloc(run_insides(run), sizeof(*run->inside));
    if (!run->seen || !run->micro || !run->streams || !run->inside)
        return zb_fail(err, -ENOMEM, "a run on a device: %m");
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

/* Whether a copy from or to this slot is still outstanding on the device. */
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
                    const struct gpt_hold *hold, enum gpt_dtype_dev dtype, struct zb_err *err)
{
    uint64_t bytes = gpt_dev_run_bytes(model, hold, dtype);
    struct gpt_dev_run *run;
    struct cutter c = { 0 };
    int rc;

    if (hold->sequences < 1 || bytes == UINT64_MAX)
        return zb_fail(err, -EINVAL, "a micro-batch of %u sequences of %u tokens", hold->sequences,
                       model->shape.seq);
    run = calloc(1, sizeof(*run));
    if (!run)
        return zb_fail(err, -ENOMEM, "activations: %m");
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
