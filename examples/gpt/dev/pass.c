/*
 * pass.c - the passes as launches.
 *
 * SHAPES as in model/pass.c: N rows of tokens, C wide, T to a sequence, H heads. Attention works
 * through one sequence at a time, all its heads in one product: [H, T, T] of scores. Gradients flow
 * through dx, the gradient of the residual stream, which each step of the backward pass updates in
 * place.
 *
 * ALIASES. In fp32 nothing is rounded, so arrays are shared: `dy` is dx, `ds` is `scores`,
 * `dlogits` is `logits`.
 *
 * TOKENS. Data that depends only on the tokens is computed on the host and copied with them: the
 * inputs, the targets, and the rows of each token in order, so that the embedding's gradient is
 * added in a fixed order. Two host buffers alternate, each with a mark. So the host waits for a
 * copy only if the device is two micro-batches behind. If several micro-batches are between their
 * passes, a host buffer has all of them.
 *
 * A STASH keeps the residual streams in host memory or below. Three of them are on the device: the
 * one that a pass reads, the one that it makes, and one in transfer (struct window). Copies have a
 * stream of their own, and so overlap the computation:
 *
 *     up      after the last pass that used the window, and before the pass that reads it
 *     down    after the pass that made it, and before the pass that reuses the window
 *
 * Only the host waits, for a slot of the stash. So it is at most a few blocks ahead of the device.
 */
#include <errno.h>

#include "examples/gpt/dev/run_priv.h"
#include "examples/gpt/model/block.h"

/* Element `first` of a unit's weights. */
static const void *elem(const struct gpt_dev_run *run, const void *weights, uint64_t first)
{
    return (const char *)weights + first * (uint64_t)gpt_dev_bytes(run->dtype);
}

/* A tensor of a block's weights. */
static const void *weight(const struct gpt_dev_run *run, const struct gpt_block_weights *weights,
                          uint32_t which)
{
    const struct gpt_place *place = &run->model->block[which];

    return elem(run, weights->at[place->part], place->first);
}

void gpt_dev_embed_forward(struct gpt_dev_run *run, const void *embed)
{
    const struct gpt_shape *s = &run->model->shape;
    float *x = gpt_dev_stream_out(run, 0);

    gpt_dev_kernel(run->dev, &(struct gpt_kern){
                                 .op = GPT_KERN_EMBED,
                                 .dtype = run->dtype,
                                 .embed = { .wte = embed,
                                            .wpe = elem(run, embed, (uint64_t)s->vocab * s->width),
                                            .tokens = run->now->batch.inputs,
                                            .x = x,
                                            .rows = run->rows,
                                            .cols = s->width,
                                            .seq = s->seq,
                                            .vocab = s->vocab } });
    gpt_dev_stream_made(run, 0);
}

static struct inside *inside_of(struct gpt_dev_run *run, uint32_t layer)
{
    return run->recompute ? run->inside : &run->now->inside[layer];
}

/* Computes a block up to gelu(fc), all that its backward pass needs, into run->in. */
static void block_inside(struct gpt_dev_run *run, const float *x, const struct gpt_block_weights *w)
{
    uint64_t c = run->model->shape.width;

    gpt_dev_norm(run, x, weight(run, w, LN1_W), weight(run, w, LN1_B), run->in->h1, run->in->mean1,
                 run->in->rstd1);
    gpt_dev_linear(run, run->in->h1, weight(run, w, QKV_W), weight(run, w, QKV_B), run->in->qkv, c,
                   3 * c);
    gpt_dev_attention_forward(run);
    gpt_dev_linear(run, run->in->mix, weight(run, w, ATT_W), NULL, run->d1, c, c);
    gpt_dev_residual(run, x, run->d1, weight(run, w, ATT_B), run->in->x2);
    gpt_dev_norm(run, run->in->x2, weight(run, w, LN2_W), weight(run, w, LN2_B), run->in->h2,
                 run->in->mean2, run->in->rstd2);
    gpt_dev_linear(run, run->in->h2, weight(run, w, FC_W), weight(run, w, FC_B), run->in->fc, c,
                   4 * c);
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){
                       .op = GPT_KERN_GELU,
                       .dtype = run->dtype,
                       .gelu = { .x = run->in->fc, .y = run->in->gelu, .n = run->rows * 4 * c } });
}

void gpt_dev_block_forward(struct gpt_dev_run *run, uint32_t layer,
                           const struct gpt_block_weights *w)
{
    uint64_t c = run->model->shape.width;

    const float *x = gpt_dev_stream_in(run, layer);
    float *out = gpt_dev_stream_out(run, layer + 1);

    gpt_dev_stream_ahead(run, layer, (int64_t)layer + 1);
    run->in = inside_of(run, layer);
    block_inside(run, x, w);
    gpt_dev_linear(run, run->in->gelu, weight(run, w, OUT_W), NULL, run->d1, 4 * c, c);
    gpt_dev_residual(run, run->in->x2, run->d1, weight(run, w, OUT_B), out);
    gpt_dev_stream_made(run, layer + 1);
    gpt_dev_stream_done(run);
}

/* The loss of `rows` rows from `first` on; with `backward` also dlogits and the gradients. */
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
    mm.a = (struct zk_lt_mat){ .at = run->dlogits, .ld = v, .t = true };
    mm.b = (struct zk_lt_mat){ .at = h, .ld = c };
    mm.d = (struct zk_lt_mat){ .at = embed_grads, .ld = c };
    mm.beta = 1.0f;
    mm.m = (uint32_t)v;
    mm.n = (uint32_t)c;
    mm.k = (uint32_t)rows;
    gpt_dev_matmul(run->dev, &mm);
    mm.a = (struct zk_lt_mat){ .at = run->dlogits, .ld = v };
    mm.b = (struct zk_lt_mat){ .at = embed, .ld = c };
    mm.d = (struct zk_lt_mat){ .at = (char *)run->d1 + first * c * e, .ld = c };
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
    uint64_t c = run->model->shape.width;
    uint32_t layers = run->model->shape.layers;
    const float *x = gpt_dev_stream_in(run, layers);

    gpt_dev_stream_ahead(run, layers, (int64_t)layers - 1);

    gpt_dev_norm(run, x, ln_f, elem(run, ln_f, run->model->shape.width), run->head.h1,
                 run->head.mean1, run->head.rstd1);
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
    gpt_dev_stream_forget(run, layers);
    if (!ln_f_grads || !embed_grads) {
        gpt_dev_stream_done(run);
        return;
    }
    gpt_dev_zero(run->dev, run->now->dx, run->rows * c * sizeof(float));
    gpt_dev_norm_back(run, x, ln_f, run->head.mean1, run->head.rstd1, run->d1, ln_f_grads,
                      ln_f_grads + c);
    gpt_dev_stream_done(run);
}

/* Where the gradient of a tensor goes, or NULL. */
static float *grad_of(const struct gpt_dev_run *run, const struct gpt_block_grads *grads,
                      uint32_t which)
{
    const struct gpt_place *place = &run->model->block[which];

    return grads->at[place->part] ? grads->at[place->part] + place->first : NULL;
}

void gpt_dev_block_backward(struct gpt_dev_run *run, uint32_t layer,
                            const struct gpt_block_weights *w, const struct gpt_block_grads *grads)
{
    uint64_t c = run->model->shape.width;
    const float *x = gpt_dev_stream_in(run, layer);
    const void *dy;

    gpt_dev_stream_ahead(run, layer, (int64_t)layer - 1);
    run->in = inside_of(run, layer);
    if (run->recompute)
        block_inside(run, x, w);

    dy = gpt_dev_dx_round(run);
    gpt_dev_bias_back(run, GPT_DEV_F32, run->now->dx, grad_of(run, grads, OUT_B), c);
    gpt_dev_weights_back(run, run->in->gelu, dy, grad_of(run, grads, OUT_W), 4 * c, c);
    gpt_dev_inputs_back(run, dy, weight(run, w, OUT_W), run->d4, 4 * c, c);
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_GELU_BACK,
                                                 .dtype = run->dtype,
                                                 .gelu_back = { .x = run->in->fc,
                                                                .dy = run->d4,
                                                                .dx = run->d4,
                                                                .n = run->rows * 4 * c } });
    gpt_dev_bias_back(run, run->dtype, run->d4, grad_of(run, grads, FC_B), 4 * c);
    gpt_dev_weights_back(run, run->in->h2, run->d4, grad_of(run, grads, FC_W), c, 4 * c);
    gpt_dev_inputs_back(run, run->d4, weight(run, w, FC_W), run->d1, c, 4 * c);
    gpt_dev_norm_back(run, run->in->x2, weight(run, w, LN2_W), run->in->mean2, run->in->rstd2,
                      run->d1, grad_of(run, grads, LN2_W), grad_of(run, grads, LN2_B));

    dy = gpt_dev_dx_round(run);
    gpt_dev_bias_back(run, GPT_DEV_F32, run->now->dx, grad_of(run, grads, ATT_B), c);
    gpt_dev_weights_back(run, run->in->mix, dy, grad_of(run, grads, ATT_W), c, c);
    gpt_dev_inputs_back(run, dy, weight(run, w, ATT_W), run->d1, c, c);
    gpt_dev_attention_backward(run, run->d1, run->d4);
    gpt_dev_bias_back(run, run->dtype, run->d4, grad_of(run, grads, QKV_B), 3 * c);
    gpt_dev_weights_back(run, run->in->h1, run->d4, grad_of(run, grads, QKV_W), c, 3 * c);
    gpt_dev_inputs_back(run, run->d4, weight(run, w, QKV_W), run->d1, c, 3 * c);
    gpt_dev_norm_back(run, x, weight(run, w, LN1_W), run->in->mean1, run->in->rstd1, run->d1,
                      grad_of(run, grads, LN1_W), grad_of(run, grads, LN1_B));
    gpt_dev_stream_done(run);
    gpt_dev_stream_forget(run, layer);
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

int gpt_dev_loss(struct gpt_dev_run *run, double *ret, struct zb_err *err)
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
