/*
 * Histograms: bounds, the bucket of a duration, sums.
 */
#include "tests/ztest.h"

#include "base/util.h"
#include "daemon/run/histogram.h"

#define TOP UINT64_C(100000000000)

static void bounds_ascend(void **state)
{
    (void)state;
    assert_true(zsd_bounds_ns[0] == 1000 && zsd_bounds_ns[ZSD_BOUNDS - 1] == TOP);
    for (unsigned i = 1; i < ZSD_BOUNDS; i++) {
        assert_true(zsd_bounds_ns[i] > zsd_bounds_ns[i - 1]);
        assert_true(zsd_bounds_ns[i] <= zsd_bounds_ns[i - 1] * 5 / 2);
    }
}

/* A bound belongs to its own bucket, the next value to the next one. */
static void each_bound(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ZSD_BOUNDS; i++) {
        struct zsd_histogram h = { 0 };

        zsd_histogram_add(&h, zsd_bounds_ns[i]);
        assert_int_equal(h.counts[i], 1);
        zsd_histogram_add(&h, zsd_bounds_ns[i] + 1);
        assert_int_equal(h.counts[i + 1], 1);
        assert_int_equal(zsd_histogram_count(&h), 2);
        assert_true(h.sum_ns == 2 * zsd_bounds_ns[i] + 1);
    }
}

static void sums(void **state)
{
    static const uint64_t times[] = { 0, 1, 999, 1000, 1001, 7000000, TOP + 1, 3 * TOP };
    struct zsd_histogram h = { 0 };
    uint64_t sum = 0;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(times); i++) {
        zsd_histogram_add(&h, times[i]);
        sum += times[i];
    }
    assert_int_equal(zsd_histogram_count(&h), ZB_COUNT(times));
    assert_true(h.sum_ns == sum);
    assert_int_equal(h.counts[0], 4);
    assert_int_equal(h.counts[1], 1);
    assert_int_equal(h.counts[12], 1); /* 5 to 10 ms */
    assert_int_equal(h.counts[ZSD_BOUNDS], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_ascend),
        cmocka_unit_test(each_bound),
        cmocka_unit_test(sums),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
