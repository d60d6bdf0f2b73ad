/*
 * attention.c - attention, one sequence at a time, all its heads in one product.
 */
#include <math.h>

#include "examples/gpt/dev/run_priv.h"

/* Where matrices of heads stand in arrays whose rows are `ld` long: of sequence m, behind `first`.
 */
static struct zk_lt_mat heads_of(const struct gpt_dev_run *run, const void *array, uint64_t m,
                                 uint64_t first, uint64_t ld, bool t)
{
    const struct gpt_shape *s = &run->model->shape;

    return (struct zk_lt_mat){ .at = (const char *)array +
                                     (m * s->seq * ld + first) * gpt_dev_bytes(run->dtype),
                               .ld = ld,
                               .step = s->width / s->heads,
                               .t = t };
}

static struct zk_lt_mat square_of(const struct gpt_dev_run *run, const void *array, bool t)
{
    uint64_t seq = run->model->shape.seq;

    return (struct zk_lt_mat){ .at = array, .ld = seq, .step = seq * seq, .t = t };
}

/* d [T, n] = alpha * a [T, k] b [k, n], for all heads. */
static void heads_multiply(struct gpt_dev_run *run, struct zk_lt_mat a, struct zk_lt_mat b,
                           struct zk_lt_mat d, enum gpt_dtype_dev d_dtype, float alpha, uint32_t n,
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

void gpt_dev_attention_forward(struct gpt_dev_run *run)
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

void gpt_dev_attention_backward(struct gpt_dev_run *run, const void *dmix, void *dqkv)
{
    const struct gpt_shape *s = &run->model->shape;
    uint64_t c = s->width, hs = c / s->heads;
    float scale = 1.0f / sqrtf((float)hs);

    for (uint64_t m = 0; m < run->sequences; m++) {
        struct zk_lt_mat dmix_m = heads_of(run, dmix, m, 0, c, false);

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
