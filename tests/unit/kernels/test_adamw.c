/*
 * test_adamw.c - compares AdamW in every implementation with three independent statements of it:
 * exact arithmetic (golden_adamw.inc), the textbook's formula in double within a derived bound, and
 * the split form with the plain one.
 */
#include "tests/ztest.h"

#include <math.h>

#include "tests/unit/kernels/data.h"

#define N ZB_BLOCK_ELEMS

/* Rows made with exact arithmetic. */
struct golden_params {
    double lr_beta1_beta2_eps_decay_scale[6];
    uint64_t t;
    uint32_t scalars[8];
};

struct golden_step {
    unsigned params;
    uint32_t p_m_v_grad[4], after[3];
};

#include "tests/unit/kernels/golden_adamw.inc"

static struct zk_scalars golden_prepare(const struct golden_params *row)
{
    const double *x = row->lr_beta1_beta2_eps_decay_scale;
    struct zk_params params = {
        .lr = x[0], .beta1 = x[1], .beta2 = x[2], .eps = x[3], .weight_decay = x[4], .scale = x[5]
    };

    return zk_prepare(ZB_ADAMW, &params, row->t);
}

static void golden_scalars(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(golden_params); i++) {
        struct zk_scalars s = golden_prepare(&golden_params[i]);
        const float floats[] = { s.scale,           s.decay,     s.beta2,    s.one_minus_beta1,
                                 s.one_minus_beta2, s.step_size, s.rsqrt_c2, s.eps };

        _Static_assert(sizeof(floats) == sizeof(golden_params[0].scalars), "the same floats");
        assert_memory_equal(floats, golden_params[i].scalars, sizeof(floats));
    }
}

static void adamw_f32(const struct zk_ops *ops, const struct zk_scalars *s, float *p, float *m,
                      float *v, const float *grad, size_t n)
{
    const struct zk_step_arrays a = { .param = p, .m = m, .v = v, .grad = grad };

    ops->step[ZB_ADAMW][ZB_F32][ZB_F32](s, &a, n);
}

static void adamw_bf16(const struct zk_ops *ops, const struct zk_scalars *s, uint16_t *hi,
                       int16_t *lo, float *m, float *v, const float *grad, size_t n)
{
    const struct zk_step_arrays a = { .param = hi, .master = lo, .m = m, .v = v, .grad = grad };

    ops->step[ZB_ADAMW][ZB_BF16][ZB_F32](s, &a, n);
}

static void golden_bits(void **state)
{
    (void)state;
    data_each_ops(ops)
    {
        for (size_t i = 0; i < ZB_COUNT(golden_steps); i++) {
            const struct golden_step *row = &golden_steps[i];
            struct zk_scalars s = golden_prepare(&golden_params[row->params]);
            uint32_t after[3];
            float x[4]; /* p, m, v, grad */

            memcpy(x, row->p_m_v_grad, sizeof(x));
            adamw_f32(ops, &s, &x[0], &x[1], &x[2], &x[3], 1);
            memcpy(after, x, sizeof(after));
            if (memcmp(after, row->after, sizeof(after)) != 0)
                fail_msg("%s, row %zu: p %08x m %08x v %08x, want %08x %08x %08x", ops->name, i,
                         after[0], after[1], after[2], row->after[0], row->after[1], row->after[2]);
        }
    }
}

/* An element's planes after one step in double, and how far the floats may be off. */
struct element {
    double p, m, v;
};

/*
 * THE BOUND. u = 2^-24 bounds the relative error of one rounding to float, `tiny` = 2^-149 its
 * absolute error where the result is a denormal. Each scalar of struct zk_scalars is off by u.
 * These are first-order terms. Second-order ones are below a thousandth of them; the factor at the
 * end covers those and double's own roundings. E(x) is the error of x, x' the value after the step:
 *
 *   g = grad scale             E(g) = 2u |g| + tiny                           scale, product
 *   m' = m + a (g - m)         E(m) = a (E(g) + 2u |g - m|) + u |m'| + tiny   difference, a; fma
 *   v' = b v + (1 - b) g g     relative 7u: the worse term has (1 - b), its product, 2 E(g)/g = 4u,
 *                              and the fma; all terms are positive. Underflow of the products adds
 *                              tiny (4 |g| + 2)
 *   d = sqrt(v') r + eps       relative 6.5u: 3.5u through the root, the root, r, the fma;
 *                              underflow adds sqrt(tiny (4 |g| + 2)) r, far below eps
 *   q = m' / d                 E(q) = E(m) / d + |q| (E(d) / d + u) + tiny
 *   p' = p w - z q             E(p) = 2u |p w| + z (E(q) + u |q|) + u |p'| + 2 tiny
 */
static void step_in_double(const struct zk_params *k, double t, double grad, struct element *x,
                           struct element *ret_bound)
{
    const double u = 0x1p-24, tiny = 0x1p-149, slack = 1.001;
    double g = grad * k->scale, a = 1 - k->beta1;
    double rsqrt_c2 = 1 / sqrt(1 - pow(k->beta2, t)), step_size = k->lr / (1 - pow(k->beta1, t));
    double decayed = x->p - k->lr * k->weight_decay * x->p;
    double m = k->beta1 * x->m + a * g;
    double v = k->beta2 * x->v + (1 - k->beta2) * g * g;
    double d = sqrt(v) * rsqrt_c2 + k->eps;
    double p = decayed - step_size * (m / d);
    double small = tiny * (4 * fabs(g) + 2);
    double error_m = a * (2 * u * fabs(g) + tiny + 2 * u * fabs(g - x->m)) + u * fabs(m) + tiny;
    double error_d = 6.5 * u * d + sqrt(small) * rsqrt_c2;
    double error_q = error_m / d + fabs(m / d) * (error_d / d + u) + tiny;

    ret_bound->m = slack * error_m;
    ret_bound->v = slack * (7 * u * v + small);
    ret_bound->p = slack * (2 * u * fabs(decayed) + step_size * (error_q + u * fabs(m / d)) +
                            u * fabs(p) + 2 * tiny);
    *x = (struct element){ p, m, v };
}

/* Draws from [low, high] such that every power of ten is equally likely. */
static double draw_log(uint64_t *seed, double low, double high)
{
    return low * pow(high / low, (double)(ztest_random(seed) >> 11) * 0x1p-53);
}

static double worst(double error, double bound, double so_far)
{
    return fmax(so_far, error / bound);
}

/* Steps of plausible trainings. They must be within the bound everywhere, and near it somewhere, so
 * that the bound is meaningful. */
static void textbook_in_double(void **state)
{
    static float p[N], m[N], v[N], grad[N];
    static struct element want[N], bound[N];

    (void)state;
    data_each_ops(ops)
    {
        struct element ratio = { 0 };
        uint64_t seed = 5;

        for (int round = 0; round < 50; round++) {
            struct zk_params k = {
                .lr = draw_log(&seed, 1e-6, 0.1),
                .beta1 = round % 8 == 0 ? 0 : 1 - draw_log(&seed, 0.01, 1),
                .beta2 = 1 - draw_log(&seed, 1e-4, 0.1),
                .eps = draw_log(&seed, 1e-8, 1e-3),
                .weight_decay = round % 3 == 0 ? 0 : draw_log(&seed, 1e-4, 1),
                .scale = draw_log(&seed, 1e-5, 1),
            };
            uint64_t t = (uint64_t)draw_log(&seed, 1, 1e6);
            struct zk_scalars s = zk_prepare(ZB_ADAMW, &k, t);

            for (size_t i = 0; i < N; i++) {
                p[i] = data_draw_range(&seed, -20, 4);
                m[i] = round % 5 == 0 ? 0 : data_draw_range(&seed, -30, 0);
                v[i] = round % 5 == 0 ? 0 : fabsf(data_draw_range(&seed, -60, 0));
                grad[i] = data_draw_range(&seed, -30, 10);
                want[i] = (struct element){ (double)p[i], (double)m[i], (double)v[i] };
                step_in_double(&k, (double)t, (double)grad[i], &want[i], &bound[i]);
            }
            adamw_f32(ops, &s, p, m, v, grad, N);
            for (size_t i = 0; i < N; i++) {
                ratio.p = worst(fabs((double)p[i] - want[i].p), bound[i].p, ratio.p);
                ratio.m = worst(fabs((double)m[i] - want[i].m), bound[i].m, ratio.m);
                ratio.v = worst(fabs((double)v[i] - want[i].v), bound[i].v, ratio.v);
            }
        }
        print_message("%s: worst error / bound: p %.2f, m %.2f, v %.2f\n", ops->name, ratio.p,
                      ratio.m, ratio.v);
        assert_true(ratio.p <= 1 && ratio.m <= 1 && ratio.v <= 1);
        assert_true(ratio.p > 0.25 && ratio.m > 0.25 && ratio.v > 0.25);
    }
}

/* The bf16 form is the fp32 form on the merged master: for 50 steps in a row, the parameter is the
 * rounded master and nothing is lost. */
static void split_form_is_plain_form(void **state)
{
    static float p[N], m[N], v[N], m_split[N], v_split[N], grad[N], merged[N];
    static uint16_t hi[N], want_hi[N];
    static int16_t lo[N], want_lo[N];
    const struct zk_params k = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .scale = 1
    };

    (void)state;
    data_each_ops(ops)
    {
        uint64_t seed = 3;

        for (size_t i = 0; i < N; i++) {
            p[i] = data_draw_range(&seed, -10, 1);
            m[i] = v[i] = m_split[i] = v_split[i] = 0;
        }
        ops->split(p, hi, lo, N);
        for (uint64_t t = 1; t <= 50; t++) {
            struct zk_scalars s = zk_prepare(ZB_ADAMW, &k, t);

            for (size_t i = 0; i < N; i++)
                grad[i] = data_draw_range(&seed, -12, 2);
            adamw_f32(ops, &s, p, m, v, grad, N);
            adamw_bf16(ops, &s, hi, lo, m_split, v_split, grad, N);
            ops->split(p, want_hi, want_lo, N);
            assert_memory_equal(hi, want_hi, sizeof(hi));
            assert_memory_equal(lo, want_lo, sizeof(lo));
            assert_memory_equal(m, m_split, sizeof(m));
            assert_memory_equal(v, v_split, sizeof(v));
            ops->merge(hi, lo, merged, N);
            assert_memory_equal(merged, p, sizeof(p));
        }
    }
}

/* A NaN gradient affects only its own element. */
static void nan_stays_where_it_is(void **state)
{
    const struct zk_params k = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .scale = 1
    };
    struct zk_scalars s = zk_prepare(ZB_ADAMW, &k, 1);

    (void)state;
    data_each_ops(ops)
    {
        uint16_t hi[3] = { 0x3f80, 0x3f80, 0x3f80 };
        int16_t lo[3] = { 77, 77, 77 };
        float m[3] = { 0 }, v[3] = { 0 };
        float grad[3] = { 1, data_float(0xffc12345), 1 };

        adamw_bf16(ops, &s, hi, lo, m, v, grad, 3);
        assert_int_equal(hi[1], 0x7fc0);
        assert_int_equal(lo[1], 0);
        assert_int_equal(data_bits(m[1]), 0x7fc00000);
        assert_int_equal(data_bits(v[1]), 0x7fc00000);
        assert_true(isfinite(m[0]) && isfinite(v[0]) && hi[0] < 0x7f80);
        assert_true(isfinite(m[2]) && isfinite(v[2]) && hi[2] < 0x7f80);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_scalars),        cmocka_unit_test(golden_bits),
        cmocka_unit_test(textbook_in_double),    cmocka_unit_test(split_form_is_plain_form),
        cmocka_unit_test(nan_stays_where_it_is),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
