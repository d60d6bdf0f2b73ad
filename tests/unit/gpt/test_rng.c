#include "tests/ztest.h"

#include <math.h>

#include "examples/gpt/model/rng.h"

/* Known answers of Philox4x32-10 from the authors' Random123 (kat_vectors). */
static void philox_known(void **state)
{
    static const struct {
        struct gpt_rng rng;
        uint64_t position;
        uint32_t out[4];
    } cases[] = {
        { { 0, 0 }, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { UINT64_MAX, UINT64_MAX },
          UINT64_MAX,
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e) },
          UINT64_C(0x85a308d3243f6a88),
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t out[4];

        gpt_rng_block(&cases[i].rng, cases[i].position, out);
        for (int k = 0; k < 4; k++)
            if (out[k] != cases[i].out[k])
                fail_msg("case %zu, word %d: got %08x", i, k, out[k]);
    }
}

static void streams_differ(void **state)
{
    struct gpt_rng a = gpt_rng(1, "a"), b = gpt_rng(1, "b"), c = gpt_rng(2, "a");
    uint32_t x[4], y[4], z[4];

    (void)state;
    assert_int_equal(gpt_rng(0, "").stream, UINT64_C(0xcbf29ce484222325));
    assert_int_equal(gpt_rng(0, "foobar").stream, UINT64_C(0x85944171f73967e8)); /* FNV-1a */
    gpt_rng_block(&a, 5, x);
    gpt_rng_block(&b, 5, y);
    gpt_rng_block(&c, 5, z);
    assert_memory_not_equal(x, y, sizeof(x));
    assert_memory_not_equal(x, z, sizeof(x));
}

static void below_is_uniform(void **state)
{
    struct gpt_rng rng = gpt_rng(7, "below");
    unsigned times[10] = { 0 };

    (void)state;
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t x = gpt_rng_below(&rng, i, 10);

        assert_true(x < 10);
        times[x]++;
        assert_int_equal(gpt_rng_below(&rng, i, 1), 0);
    }
    for (int k = 0; k < 10; k++)
        assert_in_range(times[k], 9600, 10400); /* 10000 with a standard deviation of 95 */
}

static void normal_moments(void **state)
{
    struct gpt_rng rng = gpt_rng(3, "normal");
    double sum[5] = { 0 };
    const double n = 400000;

    (void)state;
    for (uint64_t block = 0; block < n / 4; block++) {
        double z[4];

        gpt_rng_normal4(&rng, block, z);
        for (int k = 0; k < 4; k++) {
            assert_true(isfinite(z[k]));
            for (int power = 1; power <= 4; power++)
                sum[power] += pow(z[k], power);
        }
        sum[0] += z[0] * z[1] + z[0] * z[2] + z[1] * z[3];
    }
    assert_true(fabs(sum[1] / n) < 5 * 1.0 / sqrt(n));
    assert_true(fabs(sum[2] / n - 1) < 5 * sqrt(2 / n));
    assert_true(fabs(sum[3] / n) < 5 * sqrt(15 / n));
    assert_true(fabs(sum[4] / n - 3) < 5 * sqrt(96 / n));
    assert_true(fabs(sum[0] / n) < 5 / sqrt(n)); /* not correlated within a block */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known),
        cmocka_unit_test(streams_differ),
        cmocka_unit_test(below_is_uniform),
        cmocka_unit_test(normal_moments),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
