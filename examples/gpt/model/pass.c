/*
 * pass.c - the two passes on the processor.
 *
 * SHAPES. M sequences of T tokens are N = M * T rows. Everything is row-major; a row of the
 * residual stream is C floats. Attention reads its queries, keys and values in place, as columns of
 * the rows of qkv [N, 3C], and processes ATT_ROWS queries of one head at a time. They need only the
 * keys up to the last of these queries, so most of the part above the diagonal is not computed.
 *
 * KEPT for the backward pass: the residual stream before each block and after the last, and the
 * intermediate arrays of each block (struct acts). With recomputation there is one struct acts,
 * which is filled again before the backward pass of each block. Each micro-batch has one gradient
 * array in the shape of the residual stream, dx, which the backward pass updates in place: a block
 * is x + f(ln(x)) twice, so dx += ln_back(f_back(dx)).
 */
#include <cblas.h>
#include <string.h>

#include "examples/gpt/model/block.h"
#include "examples/gpt/model/run_priv.h"
#include "examples/gpt/model/vec.h"

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

/* ---- the passes */

void gpt_embed_forward(struct gpt_run *run, const float *embed)
{
    const struct gpt_shape *s = &run->model->shape;
    const float *wpe = embed + (uint64_t)s->vocab * s->width;
    float *x = gpt_stream_make(run, 0);

    if (!x)
        return;
    for (uint64_t m = 0; m < run->sequences; m++)
        for (uint64_t t = 0; t < s->seq; t++, x += s->width) {
            memcpy(x, embed + (uint64_t)run->now->tokens[m * (s->seq + 1) + t] * s->width,
                   s->width * sizeof(float));
            gpt_vec_add(x, wpe + t * s->width, s->width);
        }
    gpt_stream_keep(run, 0);
}

static struct acts *acts_of(const struct gpt_run *run, uint32_t layer)
{
    return run->recompute ? run->acts : &run->now->acts[layer];
}

static const float *weight(const struct gpt_run *run, const struct gpt_block_weights *weights,
                           uint32_t which)
{
    const struct gpt_place *place = &run->model->block[which];

    return (const float *)weights->at[place->part] + place->first;
}

/* Computes a block up to gelu(fc), all that its backward pass needs. */
static void block_inside(struct gpt_run *run, uint32_t layer, const float *x,
                         const struct gpt_block_weights *weights)
{
    const struct gpt_shape *s = &run->model->shape;
    const struct acts *a = acts_of(run, layer);
    uint64_t n = run->rows, c = s->width;

    gpt_vec_layernorm(x, weight(run, weights, LN1_W), weight(run, weights, LN1_B), a->ln1,
                      a->ln1_mean, a->ln1_rstd, n, c);
    linear(a->ln1, weight(run, weights, QKV_W), weight(run, weights, QKV_B), a->qkv, n, c, 3 * c);
    for (uint64_t m = 0; m < run->sequences && gpt_run_go_on(run); m++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct head head = gpt_head_at(run, a, m, h);

            gpt_head_forward(&head, a->mix + m * s->seq * c + h * (uint64_t)head.hs);
        }
    linear(a->mix, weight(run, weights, ATT_W), weight(run, weights, ATT_B), a->x2, n, c, c);
    gpt_vec_add(a->x2, x, n * c);
    if (!gpt_run_go_on(run))
        return;

    gpt_vec_layernorm(a->x2, weight(run, weights, LN2_W), weight(run, weights, LN2_B), a->ln2,
                      a->ln2_mean, a->ln2_rstd, n, c);
    linear(a->ln2, weight(run, weights, FC_W), weight(run, weights, FC_B), a->fc, n, c, 4 * c);
    if (gpt_run_go_on(run))
        gpt_vec_gelu(a->fc, a->gelu, n * 4 * c);
}

void gpt_block_forward(struct gpt_run *run, uint32_t layer, const struct gpt_block_weights *weights)
{
    const struct acts *a = acts_of(run, layer);
    uint64_t n = run->rows, c = run->model->shape.width;
    const float *x = gpt_stream_take(run, layer);
    float *out = x ? gpt_stream_make(run, layer + 1) : NULL;

    if (!out)
        return;
    gpt_stream_ahead(run, layer, (int64_t)layer + 1);
    block_inside(run, layer, x, weights);
    if (run->stopped)
        return;
    linear(a->gelu, weight(run, weights, OUT_W), weight(run, weights, OUT_B), out, n, 4 * c, c);
    gpt_vec_add(out, a->x2, n * c);
    gpt_stream_keep(run, layer + 1);
    gpt_stream_drop(run, layer, true);
}

double gpt_head(struct gpt_run *run, const float *ln_f, const float *embed, float *ln_f_grads,
                float *embed_grads)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t n = run->rows, c = s->width, v = s->vocab;
    bool backward = ln_f_grads && embed_grads;
    const float *last = gpt_stream_take(run, s->layers);
    double loss = 0.0;

    if (!last)
        return loss;
    gpt_stream_ahead(run, s->layers, (int64_t)s->layers - 1);

    gpt_vec_layernorm(last, ln_f, ln_f + c, run->lnf, run->lnf_mean, run->lnf_rstd, n, c);
    for (uint64_t r = 0; r < n && gpt_run_go_on(run); r += run->head_rows) {
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
    gpt_stream_drop(run, s->layers, false);
    return loss / (double)n;
}

/* Where the gradient of a tensor goes, or NULL. */
static float *grad_of(const struct gpt_run *run, const struct gpt_block_grads *grads,
                      uint32_t which)
{
    const struct gpt_place *place = &run->model->block[which];

    return grads->at[place->part] ? grads->at[place->part] + place->first : NULL;
}

void gpt_block_backward(struct gpt_run *run, uint32_t layer,
                        const struct gpt_block_weights *weights,
                        const struct gpt_block_grads *grads)
{
    const struct gpt_shape *s = &run->model->shape;
    const struct acts *a = acts_of(run, layer);
    const float *x = gpt_stream_take(run, layer);
    uint64_t n = run->rows, c = s->width;
    float *dqkv = run->d4, *dx = run->now->dx;

    if (!x)
        return;
    gpt_stream_ahead(run, layer, (int64_t)layer - 1);
    if (run->recompute)
        block_inside(run, layer, x, weights);
    if (run->stopped)
        return;
    linear_back(a->gelu, weight(run, weights, OUT_W), dx, run->d4, grad_of(run, grads, OUT_W),
                grad_of(run, grads, OUT_B), n, 4 * c, c);
    if (!gpt_run_go_on(run))
        return;
    gpt_vec_gelu_back(a->fc, run->d4, run->d4, n * 4 * c);
    linear_back(a->ln2, weight(run, weights, FC_W), run->d4, run->d1, grad_of(run, grads, FC_W),
                grad_of(run, grads, FC_B), n, c, 4 * c);
    gpt_vec_layernorm_back(a->x2, weight(run, weights, LN2_W), a->ln2_mean, a->ln2_rstd, run->d1,
                           dx, grad_of(run, grads, LN2_W), grad_of(run, grads, LN2_B), n, c);
    if (!gpt_run_go_on(run))
        return;

    linear_back(a->mix, weight(run, weights, ATT_W), dx, run->d1, grad_of(run, grads, ATT_W),
                grad_of(run, grads, ATT_B), n, c, c);
    memset(dqkv, 0, n * 3 * c * sizeof(float));
    for (uint64_t m = 0; m < run->sequences && gpt_run_go_on(run); m++)
        for (uint64_t h = 0; h < s->heads; h++) {
            struct head head = gpt_head_at(run, a, m, h);
            float *dq = dqkv + (head.q - a->qkv);

            gpt_head_backward(&head, run->d1 + m * s->seq * c + h * (uint64_t)head.hs, dq, dq + c,
                              dq + 2 * c, run->ds);
        }
    linear_back(a->ln1, weight(run, weights, QKV_W), dqkv, run->d1, grad_of(run, grads, QKV_W),
                grad_of(run, grads, QKV_B), n, c, 3 * c);
    gpt_vec_layernorm_back(x, weight(run, weights, LN1_W), a->ln1_mean, a->ln1_rstd, run->d1, dx,
                           grad_of(run, grads, LN1_W), grad_of(run, grads, LN1_B), n, c);
    gpt_stream_drop(run, layer, false);
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
