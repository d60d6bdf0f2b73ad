/*
 * test_vec.c - compares the row functions with the same formulas in double.
 *
 * Tolerances: fp32 has 24 bits (6e-8). A result of a few operations and a polynomial may be off by
 * 2e-7 or 1e-6 of its natural scale, a gradient through a row of up to 257 elements by 1e-5.
 */
#include "tests/ztest.h"

#include <math.h>
#include <string.h>

#include "examples/gpt/model/elem.h"
#include "examples/gpt/model/vec.h"

#define N_MAX 257

static const size_t sizes[] = { 1, 2, 15, 16, 17, 31, 33, 64, 100, 257 };

static double uniform(uint64_t *seed, double from, double to)
{
    return from + (to - from) * (double)(ztest_random(seed) >> 11) * 0x1p-53;
}

static void fill(float *x, size_t n, uint64_t *seed, double from, double to)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)uniform(seed, from, to);
}

static void close_to(const char *what, size_t n, size_t i, double got, double want,
                     double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s of %zu, element %zu: got %.9g, want %.9g", what, n, i, got, want);
}

static void exp_accuracy(void **state)
{
    double worst = 0;

    (void)state;
    for (int i = -870000; i <= 880000; i++) {
        float x = (float)(i * 1e-4);
        double want = exp(x), error = fabs(gpt_elem_exp(x) - want) / want;

        worst = error > worst ? error : worst;
    }
    if (worst > 2e-7)
        fail_msg("the largest relative error of exp is %g", worst);
}

static void exp_ends(void **state)
{
    float x[5] = { -1e30f, 1e30f, 0.0f, NAN, -INFINITY }, y[5];

    (void)state;
    for (int i = 0; i < 5; i++)
        y[i] = gpt_elem_exp(x[i]);
    assert_true(y[0] >= 0 && y[0] < 2e-38f);
    assert_true(isfinite(y[1]) && y[1] > 1e38f);
    assert_true(y[2] == 1.0f);
    assert_true(isnan(y[3]));
    assert_true(y[4] >= 0 && y[4] < 2e-38f);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));

    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void gelu_accuracy(void **state)
{
    float one = 1.0f;

    (void)state;
    for (int i = -120000; i <= 120000; i++) {
        float x = (float)(i * 1e-4), y, dx;

        gpt_vec_gelu(&x, &y, 1);
        gpt_vec_gelu_back(&x, &one, &dx, 1);
        close_to("gelu", 1, (size_t)(i + 120000), y, gelu(x), 2e-7 * (1 + fabs((double)x)));
        close_to("its slope", 1, (size_t)(i + 120000), dx, gelu_slope(x),
                 1e-6 * (1 + fabs((double)x)));
    }
    {
        float x[3] = { NAN, 1e30f, -1e30f }, y[3];

        gpt_vec_gelu(x, y, 3);
        assert_true(isnan(y[0]));
        assert_true(y[1] == 1e30f);
        assert_true(fabsf(y[2]) < 1e-5f);
    }
}

static void elementwise_any_size(void **state)
{
    uint64_t seed = 1;
    float x[N_MAX], dy[N_MAX], y[N_MAX + 1], one;

    (void)state;
    fill(x, N_MAX, &seed, -4, 4);
    fill(dy, N_MAX, &seed, -1, 1);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t n = sizes[k];

        y[n] = 77.0f;
        gpt_vec_gelu(x, y, n);
        for (size_t i = 0; i < n; i++) {
            gpt_vec_gelu(&x[i], &one, 1);
            close_to("gelu", n, i, y[i], one, 0); /* the same bits at any position */
        }
        memcpy(y, dy, n * sizeof(*y));
        gpt_vec_gelu_back(x, y, y, n); /* in place */
        for (size_t i = 0; i < n; i++) {
            gpt_vec_gelu_back(&x[i], &dy[i], &one, 1);
            close_to("gelu back", n, i, y[i], one, 0);
        }
        gpt_vec_fill_rows(y, x, 1, n);
        gpt_vec_add(y, dy, n);
        for (size_t i = 0; i < n; i++)
            close_to("add", n, i, y[i], x[i] + dy[i], 0);
        assert_true(y[n] == 77.0f);
    }
}

static void layernorm(void **state)
{
    uint64_t seed = 2;
    float x[3 * N_MAX], w[N_MAX], b[N_MAX], y[3 * N_MAX], dy[3 * N_MAX], dx[3 * N_MAX];
    float dw[N_MAX], db[N_MAX], mean[3], rstd[3];

    (void)state;
    fill(x, 3 * N_MAX, &seed, -1, 3);
    fill(w, N_MAX, &seed, 0.5, 1.5);
    fill(b, N_MAX, &seed, -1, 1);
    fill(dy, 3 * N_MAX, &seed, -1, 1);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t n = sizes[k];
        double want_dw[N_MAX] = { 0 };

        gpt_vec_layernorm(x, w, b, y, mean, rstd, 3, n);
        for (size_t i = 0; i < 3 * n; i++)
            dx[i] = 1.0f; /* the function adds */
        memset(dw, 0, sizeof(dw));
        memset(db, 0, sizeof(db));
        gpt_vec_layernorm_back(x, w, mean, rstd, dy, dx, dw, db, 3, n);
        for (size_t r = 0; r < 3; r++) {
            double m = 0, v = 0, s, g = 0, gx = 0;

            for (size_t i = 0; i < n; i++)
                m += x[r * n + i] / (double)n;
            for (size_t i = 0; i < n; i++)
                v += (x[r * n + i] - m) * (x[r * n + i] - m) / (double)n;
            s = 1 / sqrt(v + 1e-5);
            for (size_t i = 0; i < n; i++) {
                double xhat = (x[r * n + i] - m) * s;

                close_to("layernorm", n, i, y[r * n + i], xhat * w[i] + b[i], 5e-6);
                g += dy[r * n + i] * (double)w[i] / (double)n;
                gx += dy[r * n + i] * (double)w[i] * xhat / (double)n;
                want_dw[i] += dy[r * n + i] * xhat;
            }
            for (size_t i = 0; i < n; i++) {
                double xhat = (x[r * n + i] - m) * s;

                close_to("layernorm back", n, i, dx[r * n + i],
                         1 + s * (dy[r * n + i] * (double)w[i] - g - xhat * gx),
                         1e-5 * (n == 1 ? s : 1)); /* one element: 1 / sqrt(eps) */
            }
        }
        for (size_t i = 0; i < n; i++) {
            close_to("weight", n, i, dw[i], want_dw[i], 1e-5);
            close_to("bias", n, i, db[i], (double)dy[i] + dy[n + i] + dy[2 * n + i], 1e-6);
        }
    }
}

static void softmax(void **state)
{
    uint64_t seed = 3;
    float s[N_MAX], p[N_MAX], d[N_MAX], got[N_MAX];

    (void)state;
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t n = sizes[k];
        double sum = 0, dot = 0, top = -INFINITY;

        fill(s, n, &seed, -20, 60);
        fill(d, n, &seed, -1, 1);
        memcpy(p, s, n * sizeof(*p));
        gpt_vec_softmax(p, n);
        for (size_t i = 0; i < n; i++)
            top = s[i] > top ? s[i] : top;
        for (size_t i = 0; i < n; i++)
            sum += exp(s[i] - top);
        for (size_t i = 0; i < n; i++)
            close_to("softmax", n, i, p[i], exp(s[i] - top) / sum, 5e-7);
        memcpy(got, d, n * sizeof(*got));
        gpt_vec_softmax_back(p, got, n);
        for (size_t i = 0; i < n; i++)
            dot += (double)d[i] * p[i];
        for (size_t i = 0; i < n; i++)
            close_to("softmax back", n, i, got[i], p[i] * (d[i] - dot), 1e-6);
    }
}

static void cross_entropy(void **state)
{
    uint64_t seed = 4;
    float s[N_MAX], got[N_MAX];

    (void)state;
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size_t n = sizes[k];
        uint32_t target = (uint32_t)(ztest_random(&seed) % n);
        double sum = 0, loss;

        fill(s, n, &seed, -50, 50);
        memcpy(got, s, n * sizeof(*got));
        loss = gpt_vec_cross_entropy(got, n, target, 0.5f);
        for (size_t i = 0; i < n; i++)
            sum += exp((double)s[i] - 50);
        close_to("loss", n, 0, loss, log(sum) + 50 - s[target], 5e-6);
        for (size_t i = 0; i < n; i++)
            close_to("gradient", n, i, got[i], 0.5 * (exp((double)s[i] - 50) / sum - (i == target)),
                     1e-6);
    }
}

/* Every pattern is converted to the float with its value. */
static void halves_widen(void **state)
{
    static uint16_t half[65536];
    static float got[65536];

    (void)state;
    for (uint32_t h = 0; h < 65536; h++)
        half[h] = (uint16_t)h;
    gpt_vec_widen_fp16(half, got, 65536);
    for (uint32_t h = 0; h < 65536; h++) {
        int power = h >> 10 & 31, fraction = h & 1023;
        float want = power == 31  ? fraction ? NAN : INFINITY
                     : power == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(1024 + fraction), power - 25);

        want = h >> 15 ? -want : want;
        if (isnan(want) ? !isnan(got[h]) : got[h] != want || !signbit(got[h]) != !signbit(want))
            fail_msg("%#x: %a, not %a", h, (double)got[h], (double)want);
        if (!isnan(want) && gpt_elem_to_fp16(want) != h)
            fail_msg("%#x comes back as %#x", h, gpt_elem_to_fp16(want));
        /* Between this and the next number: the middle goes to the even one, other values to the
         * nearer one. */
        if (power < 31) {
            float next = h & 0x7fff ? ldexpf(1, power > 0 ? power - 25 : -24) : 0x1p-24f;
            float middle = want + (h >> 15 ? -next : next) / 2;
            uint32_t up = h + 1;

            assert_int_equal(gpt_elem_to_fp16(middle), h & 1 ? up : h);
            assert_int_equal(gpt_elem_to_fp16(nextafterf(middle, 0)), h);
            assert_int_equal(gpt_elem_to_fp16(nextafterf(
                                 middle, want < 0 || signbit(want) ? -INFINITY : INFINITY)),
                             up);
        }
    }
}

static void not_finite_is_seen(void **state)
{
    static const float bad[] = { NAN, INFINITY };

    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (size_t at = 0; at < 40; at++) {
            float x[40] = { 0 }, w[40] = { 0 }, y[40], mean, rstd;

            x[at] = bad[k];
            gpt_vec_layernorm(x, w, w, y, &mean, &rstd, 1, 40);
            assert_true(isnan(y[0]));
            memcpy(y, x, sizeof(y));
            gpt_vec_softmax(y, 40);
            assert_true(isnan(y[0]));
            assert_true(isnan(gpt_vec_cross_entropy(x, 40, 3, 1.0f)) || at == 3);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_accuracy),  cmocka_unit_test(exp_ends),
        cmocka_unit_test(gelu_accuracy), cmocka_unit_test(elementwise_any_size),
        cmocka_unit_test(layernorm),     cmocka_unit_test(softmax),
        cmocka_unit_test(cross_entropy), cmocka_unit_test(not_finite_is_seen),
        cmocka_unit_test(halves_widen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
