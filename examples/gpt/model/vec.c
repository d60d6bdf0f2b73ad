#include "examples/gpt/model/vec.h"

#include <math.h>
#include <string.h>

#include "examples/gpt/model/elem.h"

/* One body, compiled for several processors and chosen when the program is loaded. There is no
 * fused arithmetic and no reordering here (vec.h), so the copies differ in speed only. Sanitizers
 * instrument the chooser, which runs before they are ready. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* ---- sums and maxima in 16 lanes */

#define LANES 16

typedef float lanes_f __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
typedef int32_t lanes_i __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE float lanes_sum(const lanes_f *lanes)
{
    float f[LANES], sum = 0.0f;

    memcpy(f, lanes, sizeof(f));
    for (int i = 0; i < LANES; i++)
        sum += f[i];
    return sum;
}

INLINE float row_sum(const float *x, size_t n)
{
    lanes_f acc = { 0 };
    float tail[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        acc += *(const lanes_f *)(const void *)(x + i);
    memcpy(tail, x + i, (n - i) * sizeof(float));
    acc += *(const lanes_f *)(const void *)tail;
    return lanes_sum(&acc);
}

INLINE float row_dot(const float *x, const float *y, size_t n)
{
    lanes_f acc = { 0 };
    float tail_x[LANES] = { 0 }, tail_y[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        acc += *(const lanes_f *)(const void *)(x + i) * *(const lanes_f *)(const void *)(y + i);
    memcpy(tail_x, x + i, (n - i) * sizeof(float));
    memcpy(tail_y, y + i, (n - i) * sizeof(float));
    acc += *(const lanes_f *)(const void *)tail_x * *(const lanes_f *)(const void *)tail_y;
    return lanes_sum(&acc);
}

/* The largest; a NaN is passed over here and comes out of the exponential instead. */
INLINE float row_max(const float *x, size_t n)
{
    lanes_f best;
    float f[LANES];
    size_t i = 0;

    for (int j = 0; j < LANES; j++)
        f[j] = -INFINITY;
    memcpy(&best, f, sizeof(f));
    for (; i + LANES <= n; i += LANES) {
        lanes_f v = *(const lanes_f *)(const void *)(x + i);
        lanes_i more = v > best;

        best = (lanes_f)((more & (lanes_i)v) | (~more & (lanes_i)best));
    }
    memcpy(f, &best, sizeof(f));
    for (; i < n; i++)
        f[0] = x[i] > f[0] ? x[i] : f[0];
    for (int j = 1; j < LANES; j++)
        f[0] = f[j] > f[0] ? f[j] : f[0];
    return f[0];
}

/* ---- elementwise */

CLONES void gpt_vec_gelu(const float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gpt_elem_gelu(x[i]);
}

CLONES void gpt_vec_gelu_back(const float *restrict x, const float *dy, float *dx, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dx[i] = gpt_elem_gelu_back(x[i], dy[i]);
}

CLONES void gpt_vec_fill_rows(float *restrict y, const float *restrict b, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++)
        memcpy(y + r * n, b, n * sizeof(float));
}

CLONES void gpt_vec_add(float *restrict y, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

CLONES void gpt_vec_widen(const uint16_t *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gpt_elem_of_bf16(x[i]);
}

CLONES void gpt_vec_widen_fp16(const uint16_t *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gpt_elem_of_fp16(x[i]);
}

CLONES void gpt_vec_add_rows(float *restrict sum, const float *restrict y, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < n; i++)
            sum[i] += y[r * n + i];
}

/* ---- layer norm */

/* sum((x - mean)^2) */
INLINE float row_spread(const float *x, float mean, size_t n)
{
    lanes_f acc = { 0 }, d;
    float tail[LANES];
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        d = *(const lanes_f *)(const void *)(x + i) - mean;
        acc += d * d;
    }
    for (int j = 0; j < LANES; j++)
        tail[j] = i + (size_t)j < n ? x[i + (size_t)j] : mean;
    d = *(const lanes_f *)(const void *)tail - mean;
    acc += d * d;
    return lanes_sum(&acc);
}

CLONES void gpt_vec_layernorm(const float *restrict x, const float *restrict w,
                              const float *restrict b, float *restrict y, float *restrict mean,
                              float *restrict rstd, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, y += n) {
        float m = row_sum(x, n) / (float)n;
        float s = 1.0f / sqrtf(row_spread(x, m, n) / (float)n + GPT_LN_EPS);

        for (size_t i = 0; i < n; i++)
            y[i] = (x[i] - m) * s * w[i] + b[i];
        mean[r] = m;
        rstd[r] = s;
    }
}

/* With xhat = (x - mean) * rstd and g = dy * w:
 *     dx = rstd * (g - avg(g) - xhat * avg(g * xhat)),  dw = sum dy * xhat,  db = sum dy */
CLONES void gpt_vec_layernorm_back(const float *restrict x, const float *restrict w,
                                   const float *restrict mean, const float *restrict rstd,
                                   const float *restrict dy, float *restrict dx, float *restrict dw,
                                   float *restrict db, size_t rows, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        float m = mean[r], s = rstd[r];
        float avg_g = row_dot(dy, w, n) / (float)n;
        lanes_f acc = { 0 };
        float tail[LANES] = { 0 };
        float avg_gx;
        size_t i = 0;

        for (; i + LANES <= n; i += LANES)
            acc += *(const lanes_f *)(const void *)(dy + i) *
                   *(const lanes_f *)(const void *)(w + i) *
                   ((*(const lanes_f *)(const void *)(x + i) - m) * s);
        for (size_t j = 0; i + j < n; j++)
            tail[j] = dy[i + j] * w[i + j] * ((x[i + j] - m) * s);
        acc += *(const lanes_f *)(const void *)tail;
        avg_gx = lanes_sum(&acc) / (float)n;

        for (i = 0; i < n; i++) {
            float xhat = (x[i] - m) * s;

            dx[i] += s * (dy[i] * w[i] - avg_g - xhat * avg_gx);
        }
        for (i = 0; i < n && dw; i++) {
            dw[i] += dy[i] * ((x[i] - m) * s);
            db[i] += dy[i];
        }
    }
}

/* ---- softmax */

/* s becomes e^(s - max); returns the sum. */
INLINE float row_exp(float *s, size_t n)
{
    float max = row_max(s, n);

    for (size_t i = 0; i < n; i++)
        s[i] = gpt_elem_exp(s[i] - max);
    return row_sum(s, n);
}

CLONES void gpt_vec_softmax(float *s, size_t n)
{
    float scale = 1.0f / row_exp(s, n);

    for (size_t i = 0; i < n; i++)
        s[i] *= scale;
}

CLONES void gpt_vec_softmax_back(const float *restrict p, float *restrict d, size_t n)
{
    float sum = row_dot(d, p, n);

    for (size_t i = 0; i < n; i++)
        d[i] = p[i] * (d[i] - sum);
}

CLONES double gpt_vec_cross_entropy(float *logits, size_t n, uint32_t target, float scale)
{
    double above = (double)row_max(logits, n) - (double)logits[target];
    float sum = row_exp(logits, n);
    float factor = scale / sum;

    for (size_t i = 0; i < n; i++)
        logits[i] *= factor;
    logits[target] -= scale;
    return above + log((double)sum);
}
