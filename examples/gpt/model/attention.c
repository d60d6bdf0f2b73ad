/*
 * attention.c - attention of one head, ATT_ROWS queries at a time.
 */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "examples/gpt/model/run_priv.h"
#include "examples/gpt/model/vec.h"

struct head gpt_head_at(const struct gpt_run *run, const struct acts *a, uint64_t seq, uint64_t h)
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

void gpt_head_forward(const struct head *h, float *y)
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

void gpt_head_backward(const struct head *h, const float *dy, float *dq, float *dk, float *dv,
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
