/*
 * kern_priv.h - the kernels of kern.h as what one team does, in what C and C++ have in common.
 *
 * MODEL. A team is 256 lanes: a block of threads on a GPU, a loop on the processor. It does one
 * row, or one piece of an array. Lanes meet only in team_sum() and team_max(). What a lane keeps
 * between two meetings is in an array of TEAM_STATES: one element, for the lane itself, on a GPU;
 * one for each lane on a processor; TEAM_EACH() walks it, once there and 256 times here. Between
 * two meetings no lane reads what another one writes.
 *
 * SUMS. Lane i has the elements i, i + 256, ...; lanes are added as a tree within 32 of them, and
 * the eight sums of those one after the other. So the order depends on the length alone, and is the
 * same on both.
 */
#ifndef GPT_KERN_PRIV_H
#define GPT_KERN_PRIV_H

#include <math.h>

#include "examples/gpt/dev/kern.h"
#include "examples/gpt/model/elem.h"

#define TEAM       256u
#define TEAM_WARPS (TEAM / 32u)
#define TEAM_CHUNK (4u * TEAM) /* elements of an array that a team does */

#define KERN_FN    GPT_ELEM

#ifdef __CUDA_ARCH__
#define TEAM_STATES  1u
#define TEAM_LANE(w) ((w) + threadIdx.x)
#else
#define TEAM_STATES  TEAM
#define TEAM_LANE(w) (w)
#endif
#define TEAM_EACH(w)       for (unsigned w = 0; w < TEAM_STATES; w++)
#define TEAM_WALK(i, w, n) for (uint64_t i = TEAM_LANE(w); i < (n); i += TEAM)

/* ---- elements of the dtype */

KERN_FN float elem_get(const void *x, uint64_t i, enum gpt_dtype_dev dtype)
{
    if (dtype == GPT_DEV_F32)
        return ((const float *)x)[i];
    return dtype == GPT_DEV_BF16 ? gpt_elem_of_bf16(((const uint16_t *)x)[i])
                                 : gpt_elem_of_fp16(((const uint16_t *)x)[i]);
}

KERN_FN void elem_put(void *x, uint64_t i, enum gpt_dtype_dev dtype, float value)
{
    if (dtype == GPT_DEV_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == GPT_DEV_BF16 ? gpt_elem_to_bf16(value)
                                                   : gpt_elem_to_fp16(value);
}

/* ---- meetings: one value of each lane, the result for all */

KERN_FN float larger(float a, float b)
{
    return b > a ? b : a; /* a NaN in b is passed over, and comes out of the exponential */
}

#ifdef __CUDA_ARCH__

#define TEAM_MEETING(name, type, join)                                   \
    KERN_FN type name(const type *state)                                 \
    {                                                                    \
        __shared__ type warps[TEAM_WARPS];                               \
        type x = state[0];                                               \
                                                                         \
        for (unsigned by = 16; by > 0; by /= 2)                          \
            x = join(x, __shfl_xor_sync(0xffffffffu, x, by));            \
        __syncthreads(); /* the meeting before this one has been read */ \
        if (threadIdx.x % 32 == 0)                                       \
            warps[threadIdx.x / 32] = x;                                 \
        __syncthreads();                                                 \
        x = warps[0];                                                    \
        for (unsigned i = 1; i < TEAM_WARPS; i++)                        \
            x = join(x, warps[i]);                                       \
        return x;                                                        \
    }

#else

#define TEAM_MEETING(name, type, join)                       \
    KERN_FN type name(const type *state)                     \
    {                                                        \
        type all = 0;                                        \
                                                             \
        for (unsigned warp = 0; warp < TEAM_WARPS; warp++) { \
            type x[32];                                      \
                                                             \
            memcpy(x, state + warp * 32, sizeof(x));         \
            for (unsigned by = 16; by > 0; by /= 2)          \
                for (unsigned i = 0; i < by; i++)            \
                    x[i] = join(x[i], x[i + by]);            \
            all = warp == 0 ? x[0] : join(all, x[0]);        \
        }                                                    \
        return all;                                          \
    }

#endif

#define PLUS(a, b) ((a) + (b))

TEAM_MEETING(team_sum, float, PLUS)
TEAM_MEETING(team_sum_f64, double, PLUS)
TEAM_MEETING(team_max, float, larger)

/* ---- the embedding */

KERN_FN void embed_team(const struct gpt_kern_embed *a, enum gpt_dtype_dev dtype, uint64_t row)
{
    uint64_t token = a->tokens[row], t = row % a->seq;

    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols)
            a->x[row * a->cols + j] = elem_get(a->wte, token * a->cols + j, dtype) +
                                      elem_get(a->wpe, t * a->cols + j, dtype);
}

KERN_FN void embed_back_team(const struct gpt_kern_embed_back *a, uint64_t i)
{
    float *to = a->dwte + (uint64_t)a->which[i] * a->cols;

    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols) {
            float sum = 0.0f;

            for (uint32_t k = a->first[i]; k < a->first[i + 1]; k++)
                sum += a->dx[(uint64_t)a->order[k] * a->cols + j];
            to[j] += sum;
        }
}

KERN_FN void pos_back_team(const struct gpt_kern_pos_back *a, uint64_t t)
{
    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols) {
            float sum = 0.0f;

            for (uint64_t row = t; row < a->rows; row += a->seq)
                sum += a->dx[row * a->cols + j];
            a->dwpe[t * a->cols + j] += sum;
        }
}

/* ---- layer norm */

KERN_FN void norm_team(const struct gpt_kern_norm *a, enum gpt_dtype_dev dtype, uint64_t row)
{
    const float *x = a->x + row * a->cols;
    float state[TEAM_STATES], mean, rstd;

    TEAM_EACH (w) {
        state[w] = 0.0f;
        TEAM_WALK (j, w, a->cols)
            state[w] += x[j];
    }
    mean = team_sum(state) / (float)a->cols;
    TEAM_EACH (w) {
        state[w] = 0.0f;
        TEAM_WALK (j, w, a->cols)
            state[w] += (x[j] - mean) * (x[j] - mean);
    }
    rstd = 1.0f / sqrtf(team_sum(state) / (float)a->cols + GPT_LN_EPS);
    TEAM_EACH (w) {
        TEAM_WALK (j, w, a->cols)
            elem_put(a->y, row * a->cols + j, dtype,
                     (x[j] - mean) * rstd * elem_get(a->w, j, dtype) + elem_get(a->b, j, dtype));
        if (TEAM_LANE(w) == 0) {
            a->mean[row] = mean;
            a->rstd[row] = rstd;
        }
    }
}

/* With xhat = (x - mean) * rstd and g = dy * w: dx += rstd * (g - avg(g) - xhat * avg(g * xhat)).
 */
KERN_FN void norm_back_team(const struct gpt_kern_norm_back *a, enum gpt_dtype_dev dtype,
                            uint64_t row)
{
    const float *x = a->x + row * a->cols;
    float *dx = a->dx + row * a->cols;
    float mean = a->mean[row], rstd = a->rstd[row];
    float sum_g[TEAM_STATES], sum_gx[TEAM_STATES], avg_g, avg_gx;

    TEAM_EACH (w) {
        sum_g[w] = sum_gx[w] = 0.0f;
        TEAM_WALK (j, w, a->cols) {
            float g = elem_get(a->dy, row * a->cols + j, dtype) * elem_get(a->w, j, dtype);

            sum_g[w] += g;
            sum_gx[w] += g * ((x[j] - mean) * rstd);
        }
    }
    avg_g = team_sum(sum_g) / (float)a->cols;
    avg_gx = team_sum(sum_gx) / (float)a->cols;
    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols) {
            float g = elem_get(a->dy, row * a->cols + j, dtype) * elem_get(a->w, j, dtype);

            dx[j] += rstd * (g - avg_g - (x[j] - mean) * rstd * avg_gx);
        }
}

/* ---- sums of columns: a team has 256 columns and a piece of the rows */

KERN_FN void cols_team(const struct gpt_kern_cols *a, enum gpt_dtype_dev dtype, uint64_t team)
{
    uint64_t split = team % GPT_KERN_SPLITS, first = team / GPT_KERN_SPLITS * TEAM;
    uint64_t per = (a->rows + GPT_KERN_SPLITS - 1) / GPT_KERN_SPLITS;
    uint64_t from = split * per, to = from + per < a->rows ? from + per : a->rows;

    TEAM_EACH (w) {
        uint64_t j = first + TEAM_LANE(w);
        float sum = 0.0f, sum_x = 0.0f;

        for (uint64_t row = from; row < to && j < a->cols; row++) {
            float y = elem_get(a->y, row * a->cols + j, dtype);

            sum += y;
            if (a->x)
                sum_x += y * ((a->x[row * a->cols + j] - a->mean[row]) * a->rstd[row]);
        }
        if (j < a->cols) {
            a->part[split * a->cols + j] = sum;
            if (a->x)
                a->part_x[split * a->cols + j] = sum_x;
        }
    }
}

KERN_FN void cols_end_team(const struct gpt_kern_cols_end *a, uint64_t team)
{
    TEAM_EACH (w) {
        uint64_t j = team * TEAM + TEAM_LANE(w);
        float sum = 0.0f;

        for (unsigned split = 0; split < GPT_KERN_SPLITS && j < a->cols; split++)
            sum += a->part[split * a->cols + j];
        if (j < a->cols)
            a->to[j] += sum;
    }
}

/* ---- elementwise */

KERN_FN void residual_team(const struct gpt_kern_residual *a, enum gpt_dtype_dev dtype,
                           uint64_t row)
{
    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols) {
            uint64_t i = row * a->cols + j;

            a->to[i] = a->x[i] + (elem_get(a->y, i, dtype) + elem_get(a->b, j, dtype));
        }
}

KERN_FN void bias_team(const struct gpt_kern_bias *a, enum gpt_dtype_dev dtype, uint64_t row)
{
    TEAM_EACH (w)
        TEAM_WALK (j, w, a->cols) {
            uint64_t i = row * a->ld + j;

            elem_put(a->y, i, dtype, elem_get(a->y, i, dtype) + elem_get(a->b, j, dtype));
        }
}

/* The elements of a team's chunk. */
#define CHUNK_EACH(i, w, team, n)                                                                 \
    for (uint64_t i = (team)*TEAM_CHUNK + TEAM_LANE(w); i < (n) && i < ((team) + 1) * TEAM_CHUNK; \
         i += TEAM)

KERN_FN void gelu_team(const struct gpt_kern_gelu *a, enum gpt_dtype_dev dtype, uint64_t team)
{
    TEAM_EACH (w)
        CHUNK_EACH (i, w, team, a->n)
            elem_put(a->y, i, dtype, gpt_elem_gelu(elem_get(a->x, i, dtype)));
}

KERN_FN void gelu_back_team(const struct gpt_kern_gelu_back *a, enum gpt_dtype_dev dtype,
                            uint64_t team)
{
    TEAM_EACH (w)
        CHUNK_EACH (i, w, team, a->n)
            elem_put(a->dx, i, dtype,
                     gpt_elem_gelu_back(elem_get(a->x, i, dtype), elem_get(a->dy, i, dtype)));
}

/* ---- softmax */

/* The largest of n >= 1, and the sum of e^(x - largest). */
KERN_FN float row_exp(const float *x, uint64_t n, float *ret_most)
{
    float state[TEAM_STATES], most;

    TEAM_EACH (w) {
        state[w] = -INFINITY;
        TEAM_WALK (j, w, n)
            state[w] = larger(state[w], x[j]);
    }
    most = team_max(state);
    TEAM_EACH (w) {
        state[w] = 0.0f;
        TEAM_WALK (j, w, n)
            state[w] += gpt_elem_exp(x[j] - most);
    }
    *ret_most = most;
    return team_sum(state);
}

KERN_FN void softmax_team(const struct gpt_kern_softmax *a, enum gpt_dtype_dev dtype, uint64_t row)
{
    const float *s = a->s + row * a->seq;
    uint64_t n = row % a->seq + 1;
    float most, scale = 1.0f / row_exp(s, n, &most);

    TEAM_EACH (w)
        TEAM_WALK (j, w, a->seq)
            elem_put(a->p, row * a->seq + j, dtype,
                     j < n ? gpt_elem_exp(s[j] - most) * scale : 0.0f);
}

KERN_FN void softmax_back_team(const struct gpt_kern_softmax_back *a, enum gpt_dtype_dev dtype,
                               uint64_t row)
{
    const float *dp = a->dp + row * a->seq;
    uint64_t n = row % a->seq + 1;
    float state[TEAM_STATES], sum;

    TEAM_EACH (w) {
        state[w] = 0.0f;
        TEAM_WALK (j, w, n)
            state[w] += dp[j] * elem_get(a->p, row * a->seq + j, dtype);
    }
    sum = team_sum(state);
    TEAM_EACH (w)
        TEAM_WALK (j, w, a->seq) {
            uint64_t i = row * a->seq + j;

            elem_put(a->ds, i, dtype, j < n ? elem_get(a->p, i, dtype) * (dp[j] - sum) : 0.0f);
        }
}

/* ---- the loss */

KERN_FN void loss_team(const struct gpt_kern_loss *a, enum gpt_dtype_dev dtype, uint64_t row)
{
    const float *x = a->logits + row * a->vocab;
    uint32_t target = a->targets[row];
    float most, right = x[target], sum = row_exp(x, a->vocab, &most), factor = a->scale / sum;

    TEAM_EACH (w) {
        if (TEAM_LANE(w) == 0)
            a->losses[row] = ((double)most - (double)right) + log((double)sum);
        if (a->dlogits)
            TEAM_WALK (j, w, a->vocab)
                elem_put(a->dlogits, row * a->vocab + j, dtype,
                         gpt_elem_exp(x[j] - most) * factor - (j == target ? a->scale : 0.0f));
    }
}

KERN_FN void loss_sum_team(const struct gpt_kern_loss_sum *a)
{
    double state[TEAM_STATES], sum;

    TEAM_EACH (w) {
        state[w] = 0.0;
        TEAM_WALK (i, w, a->n)
            state[w] += a->losses[i];
    }
    sum = team_sum_f64(state);
    TEAM_EACH (w)
        if (TEAM_LANE(w) == 0)
            a->to[0] += sum * a->scale;
}

/* ---- one team of any kernel */

KERN_FN void kern_team(const struct gpt_kern *k, enum gpt_kern_op op, uint64_t team)
{
    switch (op) {
    case GPT_KERN_EMBED:
        embed_team(&k->embed, k->dtype, team);
        break;
    case GPT_KERN_EMBED_BACK:
        embed_back_team(&k->embed_back, team);
        break;
    case GPT_KERN_POS_BACK:
        pos_back_team(&k->pos_back, team);
        break;
    case GPT_KERN_NORM:
        norm_team(&k->norm, k->dtype, team);
        break;
    case GPT_KERN_NORM_BACK:
        norm_back_team(&k->norm_back, k->dtype, team);
        break;
    case GPT_KERN_COLS:
        cols_team(&k->cols, k->dtype, team);
        break;
    case GPT_KERN_COLS_END:
        cols_end_team(&k->cols_end, team);
        break;
    case GPT_KERN_RESIDUAL:
        residual_team(&k->residual, k->dtype, team);
        break;
    case GPT_KERN_BIAS:
        bias_team(&k->bias, k->dtype, team);
        break;
    case GPT_KERN_GELU:
        gelu_team(&k->gelu, k->dtype, team);
        break;
    case GPT_KERN_GELU_BACK:
        gelu_back_team(&k->gelu_back, k->dtype, team);
        break;
    case GPT_KERN_SOFTMAX:
        softmax_team(&k->softmax, k->dtype, team);
        break;
    case GPT_KERN_SOFTMAX_BACK:
        softmax_back_team(&k->softmax_back, k->dtype, team);
        break;
    case GPT_KERN_LOSS:
        loss_team(&k->loss, k->dtype, team);
        break;
    case GPT_KERN_LOSS_SUM:
        loss_sum_team(&k->loss_sum);
        break;
    case GPT_KERN_OP_END:
        break;
    }
}

#endif
