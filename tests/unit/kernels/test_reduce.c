/*
 * test_reduce.c - compares additions and the sum of squares with their definitions.
 */
#include "tests/ztest.h"

#include <math.h>

#include "tests/unit/kernels/data.h"

#define N ZB_BLOCK_ELEMS

/* Double holds the sum of two floats exactly enough (53 >= 2 * 24 + 2) that rounding it to float
 * gives the correctly rounded sum. */
static uint32_t sum_of(float a, float b)
{
    float sum = (float)((double)a + (double)b);

    return isnan(sum) ? 0x7fc00000 : data_bits(sum);
}

static void add_is_one_rounding(void **state)
{
    static float before[N], x[N], wide[N], acc[N];
    static uint16_t narrow[N];
    uint64_t seed = 7;

    (void)state;
    for (int round = 0; round < 16; round++) {
        for (size_t i = 0; i < N; i++) {
            bool usual = round % 2 == 0;

            before[i] = usual ? data_draw_range(&seed, -6, 6)
                              : data_float(data_draw_special(&seed));
            x[i] = usual ? data_draw_range(&seed, -20, 6) : data_float(data_draw_special(&seed));
            narrow[i] = (uint16_t)(data_bits(x[i]) >> 16);
            wide[i] = data_float((uint32_t)narrow[i] << 16);
        }
        data_each_ops(ops)
        {
            memcpy(acc, before, sizeof(acc));
            ops->add_f32(acc, x, N);
            for (size_t i = 0; i < N; i++)
                if (data_bits(acc[i]) != sum_of(before[i], x[i]))
                    fail_msg("%s: %a + %a became %a", ops->name, (double)before[i], (double)x[i],
                             (double)acc[i]);
            memcpy(acc, before, sizeof(acc));
            ops->add_bf16(acc, narrow, N);
            for (size_t i = 0; i < N; i++)
                if (data_bits(acc[i]) != sum_of(before[i], wide[i]))
                    fail_msg("%s: %a + bf16 %04x became %a", ops->name, (double)before[i],
                             narrow[i], (double)acc[i]);
        }
    }
}

/* The definition in zk.h, word by word. */
static double sumsq_of(const float *x, size_t n)
{
    double lane[16] = { 0 };

    for (size_t i = 0; i < n; i++)
        lane[i % 16] += (double)x[i] * (double)x[i];
    for (int step = 8; step > 0; step /= 2)
        for (int j = 0; j < step; j++)
            lane[j] += lane[j + step];
    return lane[0];
}

static void sumsq_order(void **state)
{
    static float x[N + 1];
    uint64_t seed = 11;

    (void)state;
    for (size_t n = 0; n <= N; n += n < 100 ? 1 : 333) {
        for (size_t i = 0; i < N + 1; i++)
            x[i] = data_draw_range(&seed, -60, 60);
        data_each_ops(ops)
        {
            uint64_t nonfinite = 3;
            double want = sumsq_of(x + 1, n), got = ops->sumsq(x + 1, n, &nonfinite);

            if (memcmp(&want, &got, sizeof(want)) != 0 || nonfinite != 3)
                fail_msg("%s, %zu elements: %a, want %a", ops->name, n, got, want);
        }
    }
}

static void sumsq_extremes(void **state)
{
    static float x[N];

    (void)state;
    data_each_ops(ops)
    {
        uint64_t nonfinite = 0;

        for (size_t i = 0; i < N; i++)
            x[i] = 0x1.fffffep127f;
        assert_true(ops->sumsq(x, N, &nonfinite) == sumsq_of(x, N) && isfinite(sumsq_of(x, N)));
        for (size_t i = 0; i < N; i++)
            x[i] = -0x1p-149f;
        assert_true(ops->sumsq(x, N, &nonfinite) == 0x1p-298 * N);
        assert_int_equal(nonfinite, 0);
    }
}

static void sumsq_counts_nonfinite(void **state)
{
    static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f800001 };
    static float x[N];

    (void)state;
    for (size_t n = 1; n <= N; n = 2 * n + 1) /* the last one is N - 1 */
        data_each_ops(ops)
        {
            for (size_t k = 0; k < ZB_COUNT(bad); k++) {
                uint64_t nonfinite = 10;

                for (size_t i = 0; i < N; i++)
                    x[i] = 0x1.fffffep127f; /* large, but finite */
                x[n - 1] = x[n / 2] = x[0] = data_float(bad[k]);
                x[n] = data_float(bad[k]); /* outside of the range */
                (void)ops->sumsq(x, n, &nonfinite);
                if (nonfinite != 10 + (n < 3 ? n : 3))
                    fail_msg("%s, %zu elements: counted %llu", ops->name, n,
                             (unsigned long long)nonfinite - 10);
            }
        }
}

/* Gradients are copied unchanged, NaNs of any kind too, with the sum and the count of sumsq(). */
static void set_copies_and_sums(void **state)
{
    static uint16_t narrow[N + 1], narrow_to[N + 1];
    static float x[N + 1], wide[N + 1], to[N + 1];
    uint64_t seed = 11;

    (void)state;
    for (size_t n = 0; n <= N; n = n < 40 ? n + 1 : n + 507)
        for (int special = 0; special < 2; special++)
            data_each_ops(ops)
            {
                uint64_t want_bad = 0, bad = 5, narrow_want_bad = 0, narrow_bad = 5;
                double want, got, narrow_want, narrow_got;

                for (size_t i = 0; i <= N; i++) {
                    x[i] = special ? data_float(data_draw_special(&seed))
                                   : data_draw_range(&seed, -30, 10);
                    narrow[i] = (uint16_t)(data_bits(x[i]) >> 16);
                    wide[i] = data_float((uint32_t)narrow[i] << 16);
                    narrow_to[i] = 77;
                    to[i] = 77;
                }
                want = ops->sumsq(x, n, &want_bad);
                got = ops->set_f32(to, x, n, &bad);
                narrow_want = ops->sumsq(wide, n, &narrow_want_bad);
                narrow_got = ops->set_bf16(narrow_to, narrow, n, &narrow_bad);
                assert_memory_equal(to, x, n * sizeof(*x));
                assert_memory_equal(narrow_to, narrow, n * sizeof(*narrow));
                assert_true(to[n] == 77 && narrow_to[n] == 77);
                assert_int_equal(bad, 5 + want_bad);
                assert_int_equal(narrow_bad, 5 + narrow_want_bad);
                assert_true((want_bad > 0 || got == want) &&
                            (narrow_want_bad > 0 || narrow_got == narrow_want));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(add_is_one_rounding), cmocka_unit_test(sumsq_order),
        cmocka_unit_test(sumsq_extremes),      cmocka_unit_test(sumsq_counts_nonfinite),
        cmocka_unit_test(set_copies_and_sums),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
