/*
 * run.c - a run on the processor: its memory is one piece, cut by run_lay_out().
 */
#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt/model/run_priv.h"

#define LOGITS_BYTES (UINT64_C(32) << 20) /* of logits at a time, at least one row */
#define ALIGN_BYTES  64u

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
                struct zb_err *err)
{
    uint64_t bytes = gpt_run_bytes(model, hold);
    struct gpt_run *run;

    if (hold->sequences < 1 || (uint64_t)hold->sequences * model->shape.seq > GPT_ROWS_MAX)
        return zb_fail(err, -EINVAL,
                       "a micro-batch of %u sequences of %u tokens: must have 1 "
                       "to %u tokens in all",
                       hold->sequences, model->shape.seq, GPT_ROWS_MAX);
    run = calloc(1, sizeof(*run));
    if (!run)
        return zb_fail(err, -ENOMEM, "activations: %m");
    run_size(run, model, hold);
    run->scale = 1.0f;
    run->micro = calloc(run->micros, sizeof(*run->micro));
    run->streams = calloc(run_streams(run), sizeof(*run->streams));
    run->acts = calloc(run_acts(run), sizeof(*run->acts));
    run->memory = bytes <= SIZE_MAX / 2 ? aligned_alloc(ALIGN_BYTES, bytes) : NULL;
    if (!run->micro || !run->streams || !run->acts || !run->memory) {
        gpt_run_free(run);
        return zb_fail(err, -ENOMEM,
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

void gpt_run_tokens(struct gpt_run *run, const uint32_t *tokens)
{
    size_t n = (size_t)run->sequences * (run->model->shape.seq + 1);

    for (size_t i = 0; i < n; i++)
        assert(tokens[i] < run->model->shape.vocab);
    memcpy(run->now->tokens, tokens, n * sizeof(*tokens));
    run->stopped = false;
}
