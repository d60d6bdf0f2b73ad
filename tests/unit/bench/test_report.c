#include "tests/ztest.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bench/turns.h"

static void expect_near(const char *what, double got, double want)
{
    if (!(fabs(got - want) <= 1e-12))
        fail_msg("%s: %.17g, not %.17g", what, got, want);
}

static const struct {
    const char *name;
    double values[8];
    unsigned n;
    double median, spread;
} median_cases[] = {
    { "one", { 7 }, 1, 7, 0 },
    { "two", { 4, 2 }, 2, 3, 2.0 / 3 },
    { "odd, in disorder", { 9, 1, 5 }, 3, 5, 8.0 / 5 },
    { "even, in disorder", { 8, 2, 6, 4 }, 4, 5, 6.0 / 5 },
    { "an outlier is one vote", { 1, 1, 1, 1000 }, 4, 1, 999 },
    { "nothing but zeros", { 0, 0, 0 }, 3, 0, 0 },
};

static void report_median(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(median_cases); i++) {
        double before[8];

        memcpy(before, median_cases[i].values, sizeof(before));
        expect_near(median_cases[i].name, zbench_median(before, median_cases[i].n),
                    median_cases[i].median);
        expect_near(median_cases[i].name, zbench_spread(before, median_cases[i].n),
                    median_cases[i].spread);
        assert_memory_equal(before, median_cases[i].values,
                            sizeof(before)); /* values stay in order */
    }
}

/* From the tables of the sign test: the rank of the lower end, and the coverage. */
static const struct {
    unsigned n, rank;
    double confidence;
} interval_cases[] = {
    { 1, 1, 0 },
    { 2, 1, 0.5 },
    { 4, 1, 0.875 },
    { 5, 1, 0.9375 },
    { 6, 1, 0.96875 },
    { 8, 1, 0.9921875 },
    { 9, 2, 0.9609375 },
    { 12, 3, 0.96142578125 },
    { 20, 6, 0.9586105346679688 },
    { 100, 40, 0.9647997997822951 },
};

static void report_interval(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(interval_cases); i++) {
        unsigned n = interval_cases[i].n;
        double values[100], low = 0, high = 0, confidence;
        char name[32];

        (void)snprintf(name, sizeof(name), "n = %u", n);
        for (unsigned k = 0; k < n; k++)
            values[k] = k + 1;
        for (unsigned k = 0; k < n / 2; k += 2) { /* out of order */
            double swap = values[k];

            values[k] = values[n - 1 - k];
            values[n - 1 - k] = swap;
        }
        confidence = zbench_interval(values, n, &low, &high);
        if (fabs(confidence - interval_cases[i].confidence) > 1e-9)
            fail_msg("%s: confidence %.12g", name, confidence);
        expect_near(name, low, interval_cases[i].rank);
        expect_near(name, high, n + 1 - interval_cases[i].rank);
    }
}

/* The ratio is that of the medians; `paired` is that of rounds, which drift together. */
static void report_row(void **state)
{
    static const double values[] = { 10, 20, 40 }, references[] = { 20, 40, 80 };
    static const double odd[] = { 10, 10, 40 };
    struct zbench z = { 0 };
    struct zbench_row named = { .name = "a/b", .unit = "x", .reference_name = "r", .lower = true };

    (void)state;
    for (int i = 0; i < 40; i++) /* more than the first allocation holds */
        assert_int_equal(zbench_add(&z, &named, values, references, 3), 0);
    assert_int_equal(z.count, 40);
    assert_string_equal(z.rows[39].name, "a/b");
    assert_true(z.rows[39].lower);
    expect_near("value", z.rows[39].value, 20);
    expect_near("reference", z.rows[39].reference, 40);
    expect_near("paired", z.rows[39].paired, 0.5);
    expect_near("low", z.rows[39].low, 0.5);
    expect_near("high", z.rows[39].high, 0.5);
    expect_near("spread", z.rows[39].spread, 1.5);
    assert_int_equal(zbench_add(&z, &named, odd, references, 3), 0);
    expect_near("ratio of medians", z.rows[40].value / z.rows[40].reference, 0.25);
    expect_near("median of ratios", z.rows[40].paired, 0.5);
    zbench_done(&z);
    assert_int_equal(z.count, 0);
}

static void report_quantile(void **state)
{
    static const double values[] = { 5, 1, 4, 2, 3, 6, 7, 8, 9, 10, 11 };

    (void)state;
    expect_near("the least", zbench_quantile(values, 11, 0), 1);
    expect_near("the middle", zbench_quantile(values, 11, 0.5), 6);
    expect_near("9 of 10", zbench_quantile(values, 11, 0.9), 10);
    expect_near("the greatest", zbench_quantile(values, 11, 1), 11);
}

/* ---- rounds */

struct turns {
    char seen[64];
    unsigned n, fails_at; /* index of a slice, from 0; UINT_MAX: none */
};

/* Returns a value made of the contestant and the number of slices before. */
static int turns_slice(void *bench, unsigned who, double *ret)
{
    struct turns *t = bench;

    expect_near("a value that nobody set", ret[0] + ret[1] + ret[2], 0);
    if (t->n == t->fails_at)
        return -EIO;
    ret[0] = 10.0 * who + t->n;
    ret[1] = -ret[0];
    t->seen[t->n++] = (char)('A' + who);
    return 0;
}

static void turns_order(void **state)
{
    static const struct {
        const char *order;
        unsigned rounds, who;
        double first, last; /* of `who`, in the first and in the last round */
    } cases[] = {
        { "ABBA", 2, 0, 1.5, 5.5 },      { "ABBA", 2, 1, 11.5, 15.5 },
        { "BAAB", 1, 0, 1.5, 1.5 },      { "A", 3, 0, 0, 2 },
        { "ABCD", 1, 3, 33, 33 },        { "DACBBCA", 1, 2, 23.5, 23.5 },
        { "ABCDDCBA", 2, 0, 3.5, 11.5 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct turns t = { .fails_at = UINT_MAX };
        struct zbench_series s;
        unsigned rounds = cases[i].rounds, who = cases[i].who;
        size_t len = strlen(cases[i].order);

        assert_int_equal(zbench_turns(&s, cases[i].order, 2, rounds, turns_slice, &t), 0);
        for (unsigned round = 0; round < rounds; round++)
            assert_memory_equal(t.seen + round * len, cases[i].order, len);
        assert_int_equal(t.n, rounds * len);
        expect_near(cases[i].order, s.of[who][0][0], cases[i].first);
        expect_near(cases[i].order, s.of[who][0][rounds - 1], cases[i].last);
        expect_near(cases[i].order, s.of[who][1][0], -cases[i].first);
    }
}

static void turns_fail(void **state)
{
    (void)state;
    for (unsigned nth = 0; nth < 8; nth++) {
        struct turns t = { .fails_at = nth };
        struct zbench z = { 0 };
        const struct zbench_row row = zbench_row("s", true, "B", "%s/%d", "turns", 1);

        assert_int_equal(zbench_compare(&z, &row, "ABBA", 2, turns_slice, &t), -EIO);
        assert_int_equal(t.n, nth);
        assert_int_equal(z.count, 0);
        zbench_done(&z);
    }
}

static void turns_rows(void **state)
{
    const struct zbench_row row = zbench_row("s", true, "B", "%s/%d", "turns", 1);
    struct turns t = { .fails_at = UINT_MAX };
    struct zbench z = { 0 };
    static const double values[] = { 2, 4, 6 };

    (void)state;
    assert_int_equal(zbench_compare(&z, &row, "ABBA", 2, turns_slice, &t), 0);
    assert_int_equal(zbench_add_fixed(&z, &row, values, 8, 3), 0);
    assert_int_equal(z.count, 2);
    assert_string_equal(z.rows[0].name, "turns/1");
    assert_string_equal(z.rows[0].reference_name, "B");
    assert_true(z.rows[0].lower);
    expect_near("A", z.rows[0].value, 3.5);
    expect_near("B", z.rows[0].reference, 13.5);
    expect_near("fixed", z.rows[1].reference, 8);
    expect_near("fixed, paired", z.rows[1].paired, 0.5);
    zbench_done(&z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_median), cmocka_unit_test(report_interval),
        cmocka_unit_test(report_row),    cmocka_unit_test(report_quantile),
        cmocka_unit_test(turns_order),   cmocka_unit_test(turns_fail),
        cmocka_unit_test(turns_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
