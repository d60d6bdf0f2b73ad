#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "bench/zbench.h"

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
        assert_memory_equal(before, median_cases[i].values, sizeof(before)); /* not sorted */
    }
}

/* From the tables of the sign test: the rank of the lower end and the coverage. */
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
        for (unsigned k = 0; k < n / 2; k += 2) { /* in some disorder */
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

/* The ratio is that of the medians; `paired` is that of the rounds, which drift together. */
static void report_row(void **state)
{
    static const double values[] = { 10, 20, 40 }, references[] = { 20, 40, 80 };
    static const double odd[] = { 10, 10, 40 };
    struct zbench z = { 0 };
    struct zbench_row named = { .name = "a/b", .unit = "x", .reference_name = "r", .lower = true };

    (void)state;
    for (int i = 0; i < 40; i++) /* more than the first room */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_median),
        cmocka_unit_test(report_interval),
        cmocka_unit_test(report_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
