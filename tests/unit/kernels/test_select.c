/*
 * test_select.c - the selection of an implementation, the floating-point modes of a thread, the
 * powers and scalars that are computed once per step, and the positions of arrays in a state block.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels/zk_priv.h"
#include "tests/unit/kernels/data.h"

static bool yes(void)
{
    return true;
}

static bool no(void)
{
    return false;
}

/* A machine that supports some of the build's implementations. */
static const struct zk_ops fake_ref = { .name = "ref", .supported = yes };
static const struct zk_ops fake_good = { .name = "good", .supported = yes };
static const struct zk_ops fake_best = { .name = "best", .supported = no };
static const struct zk_ops *const fakes[] = { &fake_ref, &fake_good, &fake_best };

static const struct {
    const char *force;
    int rc;
    const struct zk_ops *ops;
    const char *text;
} select_cases[] = {
    { NULL, 0, &fake_good, "" },
    { "auto", 0, &fake_good, "" },
    { "ref", 0, &fake_ref, "" },
    { "good", 0, &fake_good, "" },
    { "best", -ENOTSUP, NULL,
      "kernels 'best' need instructions that this processor lacks; it runs 'good'" },
    { "bes", -ENOENT, NULL, "unknown kernels 'bes'; known are: auto, ref, good, best" },
    { "", -ENOENT, NULL, "unknown kernels ''; known are: auto, ref, good, best" },
};

static void select_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(select_cases); i++) {
        const struct zk_ops *ops = NULL;
        struct zb_err err = { 0 };
        int rc = zk_select_from(fakes, ZB_COUNT(fakes), select_cases[i].force, &ops, &err);

        if (rc != select_cases[i].rc || ops != select_cases[i].ops ||
            strcmp(err.text, select_cases[i].text) != 0)
            fail_msg("'%s': got %d, '%s'", select_cases[i].force, rc, err.text);
    }
}

/* However many names there are, the error message is complete. */
static void select_many_names(void **state)
{
    const struct zk_ops *many[100];
    const struct zk_ops *ops = NULL;
    struct zb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(many); i++)
        many[i] = &fake_good;
    assert_int_equal(zk_select_from(many, ZB_COUNT(many), "x", &ops, &err), -ENOENT);
    assert_null(ops);
    assert_true(strlen(err.text) < 200);
}

static void select_here(void **state)
{
    const struct zk_ops *ops = NULL, *best = NULL;
    struct zb_err err = { 0 };
    size_t count;
    const struct zk_ops *const *all = zk_all(&count);

    (void)state;
    assert_string_equal(all[0]->name, "ref");
    assert_true(all[0]->supported());
    data_each_ops(each)
    {
        best = each;
        assert_int_equal(zk_select(each->name, &ops, NULL), 0);
        assert_ptr_equal(ops, each);
    }
    assert_int_equal(zk_select(NULL, &ops, NULL), 0);
    assert_ptr_equal(ops, best);
    assert_int_equal(zk_select("abacus", &ops, &err), -ENOENT);
    assert_ptr_equal(ops, best);
    assert_int_equal(err.code, -ENOENT);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(zk_select(all[i]->name, &ops, NULL), all[i]->supported() ? 0 : -ENOTSUP);
}

static float times(float a, float b)
{
    volatile float x = a, y = b;

    return x * y;
}

static float plus(float a, float b)
{
    volatile float x = a, y = b;

    return x + y;
}

/* Results are compared as bits, because a comparison of floats flushes its operands, too. */
static void thread_modes(void **state)
{
    (void)state;
    (void)fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* as code built with -ffast-math sets it */
    assert_int_equal(data_bits(times(0x1p-140f, 1.0f)), 0);
#elif defined(__aarch64__)
    uint64_t fpcr;

    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr | UINT64_C(1) << 24)); /* FZ */
    assert_int_equal(data_bits(times(0x1p-140f, 1.0f)), 0);
#endif
    assert_int_equal(data_bits(plus(1.0f, 0x1p-30f)), 0x3f800001);
    zk_thread_init();
    assert_int_equal(data_bits(plus(1.0f, 0x1p-30f)), 0x3f800000);
    assert_int_equal(data_bits(times(0x1p-140f, 1.0f)), 0x200); /* denormals are read */
    assert_int_equal(data_bits(times(0x1p-126f, 0x1p-20f)), 8); /* and produced */
    assert_int_equal(fegetround(), FE_TONEAREST);
}

static const struct {
    double b;
    uint64_t t;
    double power;
} powers[] = {
    { 0.0, 0, 1.0 },
    { 0.0, 5, 0.0 },
    { 1.0, UINT64_MAX, 1.0 },
    { -1.0, UINT64_MAX, -1.0 },
    { 7.0, 1, 7.0 },
    { 2.0, 1023, 0x1p1023 },
    { 0.5, 1074, 0x1p-1074 },
    { 0.5, 1075, 0.0 },
    { 3.0, 33, 5559060566555523.0 },
    { 10.0, 15, 1e15 },
    { 1.5, 3, 3.375 },
    { 0.9, 2, 0.9 * 0.9 },
    { 0.9, 7, 0.9 * (0.9 * 0.9) * ((0.9 * 0.9) * (0.9 * 0.9)) }, /* the order of zk.h */
    { 0.999, 6, (0.999 * 0.999) * ((0.999 * 0.999) * (0.999 * 0.999)) },
};

static void powi_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(powers); i++)
        if (zk_powi(powers[i].b, powers[i].t) != powers[i].power)
            fail_msg("%g^%llu is %a", powers[i].b, (unsigned long long)powers[i].t,
                     zk_powi(powers[i].b, powers[i].t));
}

/* At most 2 log2(t) roundings, each of which is amplified t times at most. */
static void powi_is_the_power(void **state)
{
    static const double bases[] = { 0.9, 0.95, 0.99, 0.999, 0.9999 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(bases); i++)
        for (uint64_t t = 1; t < 100000; t = t * 3 / 2 + 1) {
            double want = pow(bases[i], (double)t);

            if (fabs(zk_powi(bases[i], t) - want) > want * (double)t * 0x1p-51)
                fail_msg("%g^%llu", bases[i], (unsigned long long)t);
        }
}

/* The first step's corrections cancel: lr / (1 - beta1), and 1 / sqrt(1 - beta2). */
static void prepare_first_step(void **state)
{
    const struct zk_params params = { .lr = 0.5,
                                      .beta1 = 0.75,
                                      .beta2 = 0.9375,
                                      .eps = 0x1p-20,
                                      .weight_decay = 0.25,
                                      .scale = 0x1p-16 };
    struct zk_scalars s = zk_prepare(ZB_ADAMW, &params, 1);

    (void)state;
    assert_true(s.scale == 0x1p-16f);
    assert_true(s.decay == 0.875f);
    assert_true(s.beta2 == 0.9375f);
    assert_true(s.one_minus_beta1 == 0.25f);
    assert_true(s.one_minus_beta2 == 0.0625f);
    assert_true(s.step_size == 2.0f);
    assert_true(s.rsqrt_c2 == 4.0f);
    assert_true(s.eps == 0x1p-20f);
    s = zk_prepare(ZB_ADAMW, &params, UINT64_C(1) << 40); /* no correction is left */
    assert_true(s.step_size == 0.5f && s.rsqrt_c2 == 1.0f);
}

/* Each optimizer's scalars; those that it does not use are 0. */
static void prepare_others(void **state)
{
    const struct zk_params params = { .lr = 0.5,
                                      .beta1 = 0.75,
                                      .beta2 = 0.9375,
                                      .eps = 0x1p-20,
                                      .weight_decay = 0.25,
                                      .scale = 0x1p-16,
                                      .momentum = 0.5,
                                      .dampening = 0.125,
                                      .lr_decay = 0.5,
                                      .nesterov = true };
    const struct zk_params still = { .lr = 0.5, .scale = 1 };
    struct zk_scalars s;

    (void)state;
    s = zk_prepare(ZB_ADAM, &params, 1);
    assert_true(s.decay == 0 && s.l2 == 0.25f && s.step_size == 2.0f && s.rsqrt_c2 == 4.0f);
    s = zk_prepare(ZB_LION, &params, 3);
    assert_true(s.decay == 0.875f && s.l2 == 0 && s.step_size == 0.5f && s.eps == 0);
    assert_true(s.beta1 == 0.75f && s.one_minus_beta2 == 0.0625f && s.rsqrt_c2 == 0);
    s = zk_prepare(ZB_SGD, &params, 1);
    assert_true(s.momentum == 0.5f && s.one_minus_dampening == 0.875f && s.l2 == 0.25f);
    assert_true(s.step_size == 0.5f && s.beta1 == 0 && s.fresh == 1 && s.nesterov == 1);
    assert_int_equal(zk_prepare(ZB_SGD, &params, 2).fresh, 0);
    assert_int_equal(zk_prepare(ZB_SGD, &still, 2).fresh, 1);
    s = zk_prepare(ZB_ADAGRAD, &params, 3);
    assert_true(s.step_size == 0.25f && s.l2 == 0.25f && s.eps == 0x1p-20f && s.momentum == 0);
    assert_true(zk_prepare(ZB_ADAGRAD, &params, 1).step_size == 0.5f);
}

static void state_block_arrays(void **state)
{
    static const struct {
        enum zb_dtype dtype;
        enum zb_optimizer optimizer;
        enum zb_moments moments;
        size_t master, moment0, moment1, bytes; /* offsets from the block's first byte; 0: absent */
    } rows[] = {
        { ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32, 1, 8192, 24576, 40960 },
        { ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, 0, 0, 16384, 32768 },
        { ZB_F16, ZB_SGD, ZB_MOMENTS_F32, 1, 16384, 0, 32768 },
        { ZB_F16, ZB_ADAM, ZB_MOMENTS_BF16, 1, 16384, 24576, 32768 },
        { ZB_BF16, ZB_ADAM, ZB_MOMENTS_Q8, 1, 8192, 12352, 16512 },
        { ZB_F32, ZB_LION, ZB_MOMENTS_Q8, 0, 0, 0, 4160 },
        { ZB_BF16, ZB_ADAM, ZB_MOMENTS_Q8_LO, 1, 4096, 8256, 12416 },
    };
    static _Alignas(64) unsigned char page[2 * 40960];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        unsigned char *block = page + rows[i].bytes;
        struct zb_layout l;
        struct zk_state_block b;

        assert_int_equal(zb_layout_of(rows[i].dtype, ZB_F32, rows[i].optimizer, rows[i].moments,
                                      false, &l, NULL),
                         0);
        b = zk_state_block(&l, page, 1);
        assert_ptr_equal(b.master, rows[i].master ? block : NULL);
        assert_ptr_equal(b.moment[0], block + rows[i].moment0);
        assert_ptr_equal(b.moment[1], rows[i].moment1 ? block + rows[i].moment1 : NULL);
        assert_int_equal(l.block_bytes[ZB_STATE], rows[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(select_table),       cmocka_unit_test(select_many_names),
        cmocka_unit_test(select_here),        cmocka_unit_test(thread_modes),
        cmocka_unit_test(powi_table),         cmocka_unit_test(powi_is_the_power),
        cmocka_unit_test(prepare_first_step), cmocka_unit_test(prepare_others),
        cmocka_unit_test(state_block_arrays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
