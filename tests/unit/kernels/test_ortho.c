/*
 * test_ortho.c - orthogonalization, and the two passes of Muon around it.
 *
 * The reference is the same iteration in double, by plain loops. The result may differ from it by 1e-4 of its rms.
 * All implementations have the same bits, in whatever order the tiles of a phase run.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ortho.h"
#include "tests/unit/kernels/data.h"
#include "tests/unit/kernels/ortho_double.h"

/* The matrix orthogonalized by ops; tiles in reverse order if `reverse`. */
static float *ortho(const struct zk_ops *ops, const struct zk_ortho_how *how, const float *matrix,
                    size_t rows, size_t cols, bool reverse)
{
    float *x = floats(rows * cols);
    unsigned char *scratch = (unsigned char *)floats(zb_ortho_bytes(rows, cols) / sizeof(float));
    uint64_t bytes = zb_ortho_bytes(rows, cols);
    struct zk_ortho o;

    memcpy(x, matrix, rows * cols * sizeof(*x));
    memset(scratch, 0xff, bytes + 64); /* NaN */
    for (size_t n = zk_ortho_begin(&o, ops, how, x, rows, cols, scratch); n > 0;
         n = zk_ortho_next(&o))
        for (size_t t = 0; t < n; t++)
            zk_ortho_tile(&o, reverse ? n - 1 - t : t);
    for (size_t i = 0; i < 64; i++) /* not written beyond its end */
        assert_int_equal(scratch[bytes + i], 0xff);
    free(scratch);
    return x;
}

static const struct {
    size_t rows, cols;
} shapes[] = { { 1, 1 },   { 1, 7 },     { 7, 1 },    { 2, 2 },    { 16, 16 },
               { 31, 33 }, { 33, 31 },   { 64, 192 }, { 192, 64 }, { 13, 260 },
               { 520, 9 }, { 195, 200 }, { 200, 195 } };

/* Full rank, at any size of the values. */
static void as_in_double(void **state)
{
    static const double sizes[] = { 1, 1e-5, 1e15 };

    (void)state;
    for (size_t s = 0; s < ZB_COUNT(shapes); s++) {
        size_t rows = shapes[s].rows, cols = shapes[s].cols, n = rows * cols;
        float *x = floats(n);
        double *want = doubles(n), worst = 0;

        draw(x, n, sizes[s % 3]);
        reference(x, rows, cols, want);
        data_each_ops(ops)
        {
            float *got;

            if (strcmp(ops->name, "ref") == 0 && n > 10000)
                continue; /* slow; the same bits: below */
            got = ortho(ops, &zk_ortho_muon, x, rows, cols, false);
            for (size_t i = 0; i < n; i++)
                worst = fmax(worst, fabs((double)got[i] - want[i]));
            free(got);
        }
        if (!(worst <= 1e-4 * rms(want, n)))
            fail_msg("%zu x %zu: %g off, and the rms is %g", rows, cols, worst, rms(want, n));
        free(want);
        free(x);
    }
}

/* With O = U p(S) V^T and X = U S V^T, O X^T is symmetric, and p(S) is from 0.6 to 1.3 where S is not tiny: so O is the
 * polar factor of X, with its singular values in that range. */
static void near_the_polar_factor(void **state)
{
    enum { N = 24, M = 40 };
    float x[N * M];
    double o[N * M], xd[N * M], oo[N * N], ox[N * N];

    (void)state;
    draw(x, N * M, 1);
    data_each_ops(ops)
    {
        float *got = ortho(ops, &zk_ortho_muon, x, N, M, false);

        for (size_t i = 0; i < N * M; i++) {
            o[i] = got[i];
            xd[i] = x[i];
        }
        product(oo, o, o, true, NULL, N, N, M, 1, 0);
        product(ox, o, xd, true, NULL, N, N, M, 1, 0);
        for (size_t i = 0; i < N; i++) {
            double off = 0;

            assert_true(oo[i * N + i] > 0.6 * 0.6 && oo[i * N + i] < 1.3 * 1.3);
            for (size_t j = 0; j < N; j++) {
                off += i == j ? 0 : oo[i * N + j] * oo[i * N + j];
                assert_true(fabs(ox[i * N + j] - ox[j * N + i]) < 1e-4);
            }
            assert_true(sqrt(off) < 0.4);
        }
        free(got);
    }
}

/* Rank 1: one singular value, whose vectors stay. All others stay 0, up to rounding. */
static void rank_one(void **state)
{
    enum { N = 20, M = 12 };
    float x[N * M];
    double want[N * M], u = 0, v = 0, value = 1;

    (void)state;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < M; j++)
            x[i * M + j] = (float)(((double)i - 7) * ((double)j - 3.5));
    for (size_t i = 0; i < N; i++)
        u += ((double)i - 7) * ((double)i - 7);
    for (size_t j = 0; j < M; j++)
        v += ((double)j - 3.5) * ((double)j - 3.5);
    for (uint32_t i = 0; i < zk_ortho_muon.iterations; i++) { /* of the singular value */
        double s = value * value;

        value *= zk_ortho_muon.a + zk_ortho_muon.b * s + zk_ortho_muon.c * s * s;
    }
    for (size_t i = 0; i < N * M; i++)
        want[i] = value * (double)x[i] / sqrt(u * v);
    data_each_ops(ops)
    {
        float *got = ortho(ops, &zk_ortho_muon, x, N, M, false);

        for (size_t i = 0; i < N * M; i++)
            assert_true(fabs((double)got[i] - want[i]) < 1e-4 * rms(want, N * M) * 10);
        free(got);
    }
}

/* A matrix of zeros stays one. Below eps a matrix is not made larger than eps allows. One value that is not finite spoils its
 * matrix, all of it. */
static void at_the_ends(void **state)
{
    float x[5 * 9] = { 0 };

    (void)state;
    data_each_ops(ops)
    {
        float *got;

        memset(x, 0, sizeof(x));
        got = ortho(ops, &zk_ortho_muon, x, 5, 9, false);
        for (size_t i = 0; i < 45; i++)
            assert_int_equal(data_bits(got[i]), 0);
        free(got);
        x[7] = 1e-20f;
        got = ortho(ops, &zk_ortho_muon, x, 9, 5, false);
        for (size_t i = 0; i < 45; i++)
            assert_true(i == 7 ? got[i] > 0 && got[i] < 1e-10f : got[i] == 0);
        free(got);
        x[8] = (float)INFINITY;
        got = ortho(ops, &zk_ortho_muon, x, 9, 5, false);
        for (size_t i = 0; i < 45; i++)
            assert_true(isnan(got[i]));
        free(got);
    }
}

static void check_bits(const struct zk_ortho_how *how, size_t rows, size_t cols)
{
    float *x = floats(rows * cols), *want;

    draw(x, rows * cols, 1);
    want = ortho(zk_all(&(size_t){ 0 })[0], how, x, rows, cols, false);
    data_each_ops(ops)
    {
        for (int reverse = 0; reverse < 2; reverse++) {
            float *got = ortho(ops, how, x, rows, cols, reverse);

            if (memcmp(got, want, rows * cols * sizeof(*got)) != 0)
                fail_msg("%s: %zu x %zu differs from ref", ops->name, rows, cols);
            free(got);
        }
    }
    free(want);
    free(x);
}

static void same_bits(void **state)
{
    struct zk_ortho_how bf16 = zk_ortho_muon, even = zk_ortho_muon;

    (void)state;
    bf16.bf16 = true;
    even.iterations = 2;
    even.bf16 = true;
    for (size_t s = 0; s < ZB_COUNT(shapes); s++) {
        check_bits(s % 2 ? &bf16 : &zk_ortho_muon, shapes[s].rows, shapes[s].cols);
        check_bits(&even, shapes[s].rows, shapes[s].cols);
    }
}

/* With bf16 every value of the result is one, and near that of fp32. */
static void in_bf16(void **state)
{
    struct zk_ortho_how how = zk_ortho_muon;
    float x[48 * 32], *exact, *got;

    (void)state;
    how.bf16 = true;
    draw(x, 48 * 32, 1);
    data_each_ops(ops)
    {
        exact = ortho(ops, &zk_ortho_muon, x, 48, 32, false);
        got = ortho(ops, &how, x, 48, 32, false);
        for (size_t i = 0; i < 48 * 32; i++) {
            assert_int_equal(data_bits(got[i]) & 0xffff, 0);
            assert_true(fabsf(got[i] - exact[i]) < 0.05f);
        }
        free(exact);
        free(got);
    }
}

/* ---- the passes around it */

static void scalars_and_factors(void **state)
{
    const struct zk_params p = { .lr = 0.02,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .momentum = 0.95,
                                 .nesterov = 1,
                                 .weight_decay = 0.1,
                                 .scale = 2 };
    struct zk_params bad = p;
    struct zk_scalars s = zk_prepare(ZB_MUON, &p, 3);
    struct zb_err err = { 0 };

    (void)state;
    assert_true(s.decay == (float)(1 - 0.02 * 0.1) && s.momentum == 0.95f && s.scale == 2);
    assert_true(s.one_minus_momentum == (float)(1 - 0.95) && s.nesterov == 1 && s.l2 == 0);
    assert_true(zk_muon_factor(ZK_MUON_RMS, 16, 100) == 2 &&
                zk_muon_factor(ZK_MUON_RMS, 100, 16) == 2);
    assert_true(zk_muon_factor(ZK_MUON_SHAPE, 36, 4) == 3 &&
                zk_muon_factor(ZK_MUON_SHAPE, 4, 36) == 1);
    assert_int_equal(zk_params_check(ZB_MUON, &p, &err), 0);
    bad.momentum = 1;
    assert_int_equal(zk_params_check(ZB_MUON, &bad, &err), -EINVAL);
    assert_string_equal(err.text, "muon with momentum 1: from 0 to below 1");
    bad = p;
    bad.muon_scale = ZK_MUON_SCALE_END;
    assert_int_equal(zk_params_check(ZB_MUON, &bad, &err), -EINVAL);
}

/* Both passes, against double. */
static void passes(void **state)
{
    enum { N = 100 };
    const double mu = 0.95, lr = 0.02, decay = 1 - 0.02 * 0.1;
    float grad[N], m[N], u[N], p[N], by[N];

    (void)state;
    data_each_ops(ops)
    {
        for (uint64_t nesterov = 0; nesterov < 2; nesterov++) {
            const struct zk_params params = {
                .lr = lr, .momentum = mu, .nesterov = nesterov, .weight_decay = 0.1, .scale = 0.5
            };
            const struct zk_scalars s = zk_prepare(ZB_MUON, &params, 1);
            const struct zk_step_arrays a = { .param = u, .m = m, .grad = grad };
            float old[N];

            draw(grad, N, 2);
            draw(m, N, 1);
            draw(p, N, 3);
            memcpy(old, m, sizeof(m));
            ops->step[ZB_MUON][ZB_F32][ZB_F32](&s, &a, N);
            for (size_t i = 0; i < N; i++) {
                double g = 0.5 * (double)grad[i], to = mu * (double)old[i] + (1 - mu) * g;

                assert_true(fabs((double)m[i] - to) < 1e-6);
                assert_true(fabs((double)u[i] - (nesterov ? mu * to + (1 - mu) * g : to)) < 1e-6);
            }
            draw(by, N, 1);
            ops->weight_f32(&s, p, by, N);
            draw(old, N, 3);
            for (size_t i = 0; i < N; i++)
                assert_true(fabs((double)p[i] - ((double)old[i] * decay - lr * (double)by[i])) <
                            1e-6);
        }
    }
}

/* Split masters get the bits that fp32 gets. */
static void split_as_fp32(void **state)
{
    enum { N = 77 };
    const struct zk_params params = { .lr = 0.1, .weight_decay = 0.5, .scale = 1 };
    const struct zk_scalars s = zk_prepare(ZB_MUON, &params, 1);
    float p[N], by[N], merged[N];
    uint16_t hi[N];
    int16_t lo[N];

    (void)state;
    data_each_ops(ops)
    {
        draw(p, N, 3);
        draw(by, N, 1);
        by[5] = (float)NAN;
        ops->split(p, hi, lo, N);
        ops->weight_f32(&s, p, by, N);
        ops->weight_bf16(&s, hi, lo, by, N);
        ops->merge(hi, lo, merged, N);
        assert_memory_equal(merged, p, sizeof(p));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_in_double),
        cmocka_unit_test(near_the_polar_factor),
        cmocka_unit_test(rank_one),
        cmocka_unit_test(at_the_ends),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(in_bf16),
        cmocka_unit_test(scalars_and_factors),
        cmocka_unit_test(passes),
        cmocka_unit_test(split_as_fp32),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
