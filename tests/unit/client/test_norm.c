#include "tests/ztest.h"

#include <math.h>
#include <string.h>

#include "client/zclient.h"
#include "kernels/zk.h"

static struct zc_norm norm_of(double sum_of_squares, uint64_t nonfinite)
{
    struct zc_norm norm = { .nonfinite = nonfinite };
    struct zk_xsum sum = { 0 };

    zk_xsum_add(&sum, sum_of_squares);
    zk_xsum_store(&sum, norm.sum_of_squares);
    return norm;
}

static void values(void **state)
{
    struct zc_norm zero = { 0 }, nine = norm_of(9, 0), tiny = norm_of(0x1p-300, 0);
    struct zc_norm broken = norm_of(9, 1);

    (void)state;
    assert_true(zc_norm_value(&zero) == 0);
    assert_true(zc_norm_value(&nine) == 3);
    assert_true(zc_norm_value(&tiny) == 0x1p-150);
    assert_true(isnan(zc_norm_value(&broken)));
}

/** Any order gives the same bits; sums of doubles would not. */
static void merging(void **state)
{
    const double parts[] = { 1e30, 1, 1e-30, 3, 0x1p-60, 1e20 };
    const unsigned orders[3][6] = { { 0, 1, 2, 3, 4, 5 },
                                    { 5, 4, 3, 2, 1, 0 },
                                    { 2, 0, 4, 1, 5, 3 } };
    struct zc_norm sums[3];

    (void)state;
    memset(sums, 0, sizeof(sums));
    for (unsigned o = 0; o < 3; o++)
        for (unsigned i = 0; i < 6; i++) {
            struct zc_norm part = norm_of(parts[orders[o][i]], orders[o][i]);

            zc_norm_merge(&sums[o], &part);
        }
    assert_memory_equal(&sums[0], &sums[1], sizeof(sums[0]));
    assert_memory_equal(&sums[0], &sums[2], sizeof(sums[0]));
    assert_int_equal(sums[0].nonfinite, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(merging),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
