/*
 * ortho_double.h - the iteration of kernels/ortho.h in double, by plain loops: the reference of those
 * who orthogonalize.
 */
#ifndef ZTEST_KERNELS_ORTHO_DOUBLE_H
#define ZTEST_KERNELS_ORTHO_DOUBLE_H

#include <math.h>
#include <stdlib.h>

#include "kernels/ortho.h"
#include "tests/ztest.h"

static inline double *doubles(size_t n)
{
    double *d = calloc(n, sizeof(*d));

    assert_non_null(d);
    return d;
}

static inline float *floats(size_t n)
{
    float *f = NULL;

    assert_int_equal(posix_memalign((void **)&f, 64, (n + 16) * sizeof(*f)), 0);
    return f;
}

/* out = beta * add + alpha * a b; a is n x k, b is k x m, or m x k if it is turned */
static inline void product(double *out, const double *a, const double *b, bool turned,
                           const double *add, size_t n, size_t m, size_t k, double alpha,
                           double beta)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) {
            double sum = 0;

            for (size_t l = 0; l < k; l++)
                sum += a[i * k + l] * (turned ? b[j * k + l] : b[l * m + j]);
            out[i * m + j] = alpha * sum + (add ? beta * add[i * m + j] : 0);
        }
}

static inline void reference(const float *matrix, size_t rows, size_t cols, double *ret)
{
    const struct zk_ortho_how *how = &zk_ortho_muon;
    bool turned = rows > cols;
    size_t n = turned ? cols : rows, m = turned ? rows : cols;
    double *x = doubles(n * m), *to = doubles(n * m), *a = doubles(n * n), *b = doubles(n * n);
    double norm = 0;

    for (size_t i = 0; i < n * m; i++)
        norm += (double)matrix[i] * (double)matrix[i];
    norm = fmax(sqrt(norm), how->eps);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            x[i * m + j] = (double)(turned ? matrix[j * n + i] : matrix[i * m + j]) / norm;
    for (uint32_t i = 0; i < how->iterations; i++) {
        double *old = x;

        product(a, x, x, true, NULL, n, n, m, 1, 0);
        product(b, a, a, false, a, n, n, n, how->c, how->b);
        product(to, b, x, false, x, n, m, n, 1, how->a);
        x = to;
        to = old;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++)
            ret[turned ? j * n + i : i * m + j] = x[i * m + j];
    free(x);
    free(to);
    free(a);
    free(b);
}

static inline double rms(const double *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)n);
}

static inline void draw(float *x, size_t n, double size)
{
    uint64_t seed = 21 + n;

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(size * ((double)(ztest_random(&seed) >> 11) * 0x1p-52 - 1));
}

#endif
