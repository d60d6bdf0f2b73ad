/*
 * test_measure.c - zk_measure_steps(): its buffers have room for every layout's pages (checked by
 * the sanitizers), and it returns a rate. A test cannot tell whether the rate is right.
 */
#include "kernels/measure.h"
#include "tests/ztest.h"

static const struct {
    enum zb_dtype param, grad;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
} cases[] = {
    { ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32 },
    { ZB_F32, ZB_F32, ZB_ADAM, ZB_MOMENTS_BF16 },
    { ZB_F16, ZB_F16, ZB_ADAMW, ZB_MOMENTS_Q8 },
    { ZB_BF16, ZB_BF16, ZB_LION, ZB_MOMENTS_F32 },
};

static void rates(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct zb_layout layout;
        struct zb_err err;
        double rate = -1;

        assert_int_equal(zb_layout_of(cases[i].param, cases[i].grad, cases[i].optimizer,
                                      cases[i].moments, false, &layout, &err),
                         0);
        assert_int_equal(zk_measure_steps(&layout, 2, &rate, &err), 0);
        assert_true(rate > 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(rates) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
