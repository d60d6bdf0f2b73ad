/*
 * vec.h - the parts of a transformer that are not matrix products, over rows of floats.
 *
 * NUMBERS. Elementwise functions are plain sequences of IEEE operations without fused
 * multiply-adds, and sums go to 16 lanes (element i to lane i % 16) that are added in index order:
 * the results are the same whatever vector width the compiler or the processor brings. Infinities
 * and NaN are not hidden: a row that has one gives one.
 *
 * Arrays of one call do not overlap unless it says so. Nothing here allocates or keeps state.
 */
#ifndef GPT_VEC_H
#define GPT_VEC_H

#include <stddef.h>
#include <stdint.h>

#include "examples/gpt/model/elem.h" /* GPT_LN_EPS */

/** y[i] = e^x[i], relative error below 2e-7 in [-87, 88]; x is clamped to that range. y may be x.
 */

/** GELU in its tanh form: y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). */
void gpt_vec_gelu(const float *x, float *y, size_t n);
/** dx = dy * gelu'(x). dx may be dy. */
void gpt_vec_gelu_back(const float *x, const float *dy, float *dx, size_t n);

/** Each row of n: y = (x - mean) * rstd * w + b; mean and rstd [rows] are kept for the way back. */
void gpt_vec_layernorm(const float *x, const float *w, const float *b, float *y, float *mean,
                       float *rstd, size_t rows, size_t n);
/** Adds to dx, and, unless these are NULL, to dw and db. */
void gpt_vec_layernorm_back(const float *x, const float *w, const float *mean, const float *rstd,
                            const float *dy, float *dx, float *dw, float *db, size_t rows,
                            size_t n);

/** In place: s[0..n) becomes its softmax. n >= 1. */
void gpt_vec_softmax(float *s, size_t n);
/** In place: d = p * (d - sum(d * p)), the way back through a softmax whose result was p. */
void gpt_vec_softmax_back(const float *p, float *d, size_t n);

/**
 * Cross-entropy of one row of logits, in nats, against `target` < n. In place the logits become
 * their gradient times scale: (softmax - onehot) * scale.
 */
double gpt_vec_cross_entropy(float *logits, size_t n, uint32_t target, float scale);

/** Each row of n becomes b (the start of a product with a bias). */
void gpt_vec_fill_rows(float *y, const float *b, size_t rows, size_t n);
/** sum[j] += every row's element j, in row order. */
void gpt_vec_add_rows(float *sum, const float *y, size_t rows, size_t n);
/** bf16 and fp16 to fp32, exactly. */
void gpt_vec_widen_fp16(const uint16_t *x, float *y, size_t n);
void gpt_vec_widen(const uint16_t *x, float *y, size_t n);
/** y[i] += x[i] */
void gpt_vec_add(float *y, const float *x, size_t n);

#endif
