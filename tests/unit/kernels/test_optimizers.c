/*
 * test_optimizers.c - compares Adam, Lion, SGD and Adagrad in every implementation with independent
 * statements of them: the textbook's formula in double within a derived bound, and a table of
 * results for infinities, denormals, NaN and learning rates of any size. test_adamw.c tests AdamW.
 *
 * THE BOUND of one step. u = 2^-24 bounds the relative error of one rounding to float, `tiny` =
 * 2^-149 its absolute error where the result is a denormal. Each scalar of struct zk_scalars is off
 * by u. E(x) is the error of x, x' the value after the step. The derivation is that of
 * docs/OPTIMIZERS.md, with fused multiply-adds where zk.h has them, and with underflow.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "tests/unit/kernels/data.h"

#define N    ZB_BLOCK_ELEMS
#define U    0x1p-24
#define TINY 0x1p-149

/* For second-order terms, and for double's own roundings. */
#define SLACK 1.001

/* An element's planes, or their error bounds. */
struct element {
    double p, m, v;
};

/* A value, and the error bound of the float. */
struct value {
    double x, e;
};

static struct value gradient(const struct zk_params *k, double p, double grad, bool l2)
{
    struct value g = { grad * k->scale, 0 };

    g.e = 2 * U * fabs(g.x) + TINY;
    if (l2) {
        double decay = k->weight_decay * p;

        g.x += decay;
        g.e += U * fabs(decay) + U * fabs(g.x) + TINY;
    }
    return g;
}

static struct value root(struct value v)
{
    struct value r = { sqrt(v.x), 0 };

    if (r.x > 0)
        r.e = v.e / (r.x + sqrt(fmax(v.x - v.e, 0))) + U * r.x;
    else
        r.e = sqrt(v.e);
    return r;
}

static struct value quotient(struct value n, struct value d)
{
    struct value q = { n.x / d.x, 0 };

    q.e = (n.e + fabs(q.x) * d.e) / (d.x - d.e) + U * fabs(q.x) + TINY;
    return q;
}

/* fma(-z, q, p), with a scalar z. */
static struct value moved(struct value p, double z, struct value q)
{
    struct value to = { p.x - z * q.x, 0 };

    to.e = p.e + z * (q.e + U * fabs(q.x)) + U * fabs(to.x) + TINY;
    return to;
}

/* fma(a, x, beta * m), with scalars a and beta. */
static struct value blended(double a, struct value x, double beta, double m)
{
    struct value to = { a * x.x + beta * m, 0 };

    to.e = a * (x.e + U * fabs(x.x)) + 2 * U * fabs(beta * m) + TINY + U * fabs(to.x) + TINY;
    return to;
}

static void step_adam(const struct zk_params *k, uint64_t t, double grad, struct element *x,
                      struct element *ret_bound)
{
    double a = 1 - k->beta1, b = 1 - k->beta2, c = 1 / sqrt(1 - pow(k->beta2, (double)t));
    struct value p = { x->p, 0 }, g = gradient(k, x->p, grad, true), m, v, d;
    double gg = g.x * g.x;

    m.x = x->m + a * (g.x - x->m);
    m.e = a * (g.e + 2 * U * fabs(g.x - x->m)) + U * fabs(m.x) + TINY;
    v.x = k->beta2 * x->v + b * gg;
    v.e = b * (2 * fabs(g.x) * g.e + g.e * g.e + 2 * U * gg) + TINY * (fabs(g.x) + g.e) +
          2 * U * k->beta2 * x->v + TINY + U * v.x + TINY;
    d = root(v);
    d.e = c * d.e + U * d.x * c + U * k->eps;
    d.x = d.x * c + k->eps;
    d.e += U * d.x;
    p = moved(p, k->lr / (1 - pow(k->beta1, (double)t)), quotient(m, d));
    *x = (struct element){ p.x, m.x, v.x };
    *ret_bound = (struct element){ p.e, m.e, v.e };
}

static void step_lion(const struct zk_params *k, uint64_t t, double grad, struct element *x,
                      struct element *ret_bound)
{
    double decay = 1 - k->lr * k->weight_decay;
    struct value p = { x->p * decay, 0 }, g = gradient(k, x->p, grad, false);
    struct value u = blended(1 - k->beta1, g, k->beta1, x->m);
    struct value m = blended(1 - k->beta2, g, k->beta2, x->m), sign;

    (void)t;
    p.e = 2 * U * fabs(p.x) + TINY;
    sign.x = u.x > 0 ? 1 : u.x < 0 ? -1 : 0;
    sign.e = fabs(u.x) <= u.e ? 2 : 0;
    p = moved(p, k->lr, sign);
    *x = (struct element){ p.x, m.x, 0 };
    *ret_bound = (struct element){ p.e, m.e, 1 };
}

static void step_sgd(const struct zk_params *k, uint64_t t, double grad, struct element *x,
                     struct element *ret_bound)
{
    struct value p = { x->p, 0 }, g = gradient(k, x->p, grad, true), m = g, d;

    if (t > 1 && k->momentum > 0)
        m = blended(1 - k->dampening, g, k->momentum, x->m);
    d = m;
    if (k->nesterov) {
        d.x = g.x + k->momentum * m.x;
        d.e = g.e + k->momentum * (m.e + U * fabs(m.x)) + U * fabs(d.x) + TINY;
    }
    p = moved(p, k->lr, d);
    *x = (struct element){ p.x, m.x, 0 };
    *ret_bound = (struct element){ p.e, m.e, 1 };
}

static void step_adagrad(const struct zk_params *k, uint64_t t, double grad, struct element *x,
                         struct element *ret_bound)
{
    struct value p = { x->p, 0 }, g = gradient(k, x->p, grad, true), sum, d;

    sum.x = x->m + g.x * g.x;
    sum.e = 2 * fabs(g.x) * g.e + g.e * g.e + U * sum.x + TINY;
    d = root(sum);
    d.x += k->eps;
    d.e += U * k->eps + U * d.x;
    p = moved(p, k->lr / (1 + (double)(t - 1) * k->lr_decay), quotient(g, d));
    *x = (struct element){ p.x, sum.x, 0 };
    *ret_bound = (struct element){ p.e, sum.e, 1 };
}

static const struct {
    enum zb_optimizer optimizer;
    void (*step)(const struct zk_params *k, uint64_t t, double grad, struct element *x,
                 struct element *ret_bound);
} optimizers[] = {
    { ZB_ADAM, step_adam },
    { ZB_LION, step_lion },
    { ZB_SGD, step_sgd },
    { ZB_ADAGRAD, step_adagrad },
};

/* ---- within the bound everywhere; and near it somewhere, so that the bound is meaningful */

/* Draws from [low, high] such that every power of ten is equally likely. */
static double draw_log(uint64_t *seed, double low, double high)
{
    return low * pow(high / low, (double)(ztest_random(seed) >> 11) * 0x1p-53);
}

/* Parameters as in real trainings, or any that keep results finite. */
static struct zk_params draw_params(uint64_t *seed, unsigned round)
{
    bool wide = round % 4 == 3;
    struct zk_params k = {
        .lr = wide ? draw_log(seed, 1e-30, ZK_PARAM_MAX) : draw_log(seed, 1e-6, 0.1),
        .beta1 = round % 8 == 0 ? 0 : 1 - draw_log(seed, 0.01, 1),
        .beta2 = 1 - draw_log(seed, 1e-4, 0.1),
        .eps = draw_log(seed, 1e-8, 1e-3),
        .weight_decay = round % 3 == 0 ? 0 : draw_log(seed, 1e-4, 1),
        .scale = draw_log(seed, 1e-5, 1),
        .momentum = round % 5 == 0 ? 0 : 1 - draw_log(seed, 0.01, 1),
        .lr_decay = round % 2 == 0 ? 0 : draw_log(seed, 1e-5, 1),
    };

    k.nesterov = k.momentum > 0 && round % 4 == 1;
    k.dampening = k.nesterov || round % 2 == 0 ? 0 : draw_log(seed, 0.01, 0.9);
    return k;
}

static void one_step(const struct zk_ops *ops, enum zb_optimizer optimizer,
                     const struct zk_scalars *s, float *p, float *m, float *v, const float *grad,
                     size_t n)
{
    const struct zk_step_arrays a = {
        .param = p, .m = m, .v = zb_moment_name(optimizer, 1) ? v : NULL, .grad = grad
    };

    ops->step[optimizer][ZB_F32][ZB_F32](s, &a, n);
}

static void textbook_of(const struct zk_ops *ops, size_t o)
{
    static float p[N], m[N], v[N], grad[N];
    static struct element want[N], bound[N];
    enum zb_optimizer optimizer = optimizers[o].optimizer;
    struct element ratio = { 0 };
    uint64_t seed = 7 + o;

    for (unsigned round = 0; round < 60; round++) {
        struct zk_params k = draw_params(&seed, round);
        uint64_t t = round % 6 == 0 ? 1 : (uint64_t)draw_log(&seed, 1, 1e6);
        struct zk_scalars s = zk_prepare(optimizer, &k, t);

        assert_int_equal(zk_params_check(optimizer, &k, NULL), 0);
        for (size_t i = 0; i < N; i++) {
            p[i] = data_draw_range(&seed, -20, 4);
            m[i] = round % 5 == 0 ? 0 : data_draw_range(&seed, -30, 0);
            v[i] = round % 5 == 0 ? 0 : fabsf(data_draw_range(&seed, -60, 0));
            if (optimizer == ZB_ADAGRAD)
                m[i] = fabsf(m[i]);
            grad[i] = data_draw_range(&seed, round % 7 == 0 ? -126 : -30, 10);
            want[i] = (struct element){ (double)p[i], (double)m[i], (double)v[i] };
            optimizers[o].step(&k, t, (double)grad[i], &want[i], &bound[i]);
        }
        one_step(ops, optimizer, &s, p, m, v, grad, N);
        for (size_t i = 0; i < N; i++) {
            ratio.p = fmax(ratio.p, fabs((double)p[i] - want[i].p) / (SLACK * bound[i].p));
            ratio.m = fmax(ratio.m, fabs((double)m[i] - want[i].m) / (SLACK * bound[i].m));
            if (zb_moment_name(optimizer, 1))
                ratio.v = fmax(ratio.v, fabs((double)v[i] - want[i].v) / (SLACK * bound[i].v));
        }
    }
    print_message("%s, %s: worst error / bound: p %.2f, m %.2f, v %.2f\n", ops->name,
                  zb_optimizer_name(optimizer), ratio.p, ratio.m, ratio.v);
    assert_true(ratio.p <= 1 && ratio.m <= 1 && ratio.v <= 1);
    assert_true(ratio.p > 0.4 && ratio.m > 0.4);
    assert_true(ratio.v > 0.4 || !zb_moment_name(optimizer, 1));
}

static void textbook_in_double(void **state)
{
    (void)state;
    data_each_ops(ops)
    {
        for (size_t o = 0; o < ZB_COUNT(optimizers); o++)
            textbook_of(ops, o);
    }
}

/* ---- invalid parameters */

static void params_are_checked(void **state)
{
    static const struct {
        enum zb_optimizer optimizer;
        struct zk_params k; /* betas are 0.5, the scale is 1 */
        const char *says;   /* NULL: accepted */
    } cases[] = {
        { ZB_ADAMW, { .lr = 0 }, NULL },
        { ZB_ADAMW, { .lr = 1e6, .weight_decay = 1e6, .eps = 1e6 }, NULL },
        { ZB_ADAMW, { .lr = -1 }, "adamw with lr -1: from 0 to 1e+06" },
        { ZB_ADAM, { .lr = 1e39 }, "adam with lr 1e+39" },
        { ZB_LION, { .lr = NAN }, "lion with lr nan" },
        { ZB_SGD, { .weight_decay = -0.1 }, "sgd with weight decay -0.1" },
        { ZB_ADAGRAD, { .weight_decay = 1e39 }, "adagrad with weight decay 1e+39" },
        { ZB_ADAMW, { .eps = -1 }, "adamw with eps -1" },
        { ZB_ADAGRAD, { .eps = 1e39 }, "adagrad with eps 1e+39" },
        { ZB_LION, { .eps = -1 }, NULL }, /* it has no eps */
        { ZB_ADAGRAD, { .lr_decay = -1 }, "adagrad with lr decay -1" },
        { ZB_SGD, { .momentum = -1 }, "sgd with momentum -1" },
        { ZB_SGD, { .momentum = INFINITY }, "sgd with momentum inf" },
        { ZB_SGD, { .dampening = 1e39 }, "sgd with dampening 1e+39" },
        { ZB_SGD, { .dampening = -1 }, NULL },
        { ZB_ADAMW, { .beta1 = 0.5 }, "betas 1 and 0.5" },
        { ZB_SGD, { .scale = 1e39 }, "sgd with scale 1e+39" },
        { ZB_SGD, { .scale = -3e38 }, NULL },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zk_params k = cases[i].k;
        struct zb_err err = { 0 };
        int rc;

        k.beta1 += 0.5;
        k.beta2 = 0.5;
        k.scale = k.scale == 0 ? 1 : k.scale;
        rc = zk_params_check(cases[i].optimizer, &k, &err);
        if (rc != (cases[i].says ? -EINVAL : 0) || (rc < 0 && !strstr(err.text, cases[i].says)))
            fail_msg("%zu: %d '%s'", i, rc, err.text);
    }
}

/* ---- special values */

#define INF INFINITY

/* In the table betas are 0.5, eps is 0, and omitted fields are 0, so that values are exact. */
static const struct {
    const char *name;
    enum zb_optimizer optimizer;
    uint64_t t;
    struct zk_params k;
    float p, m, v, grad;
    float want_p, want_m, want_v; /* NAN: the canonical one */
} rows[] = {
    { "adam, infinite gradient",
      ZB_ADAM,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      INF,
      NAN,
      INF,
      INF },
    { "adamw, infinite gradient",
      ZB_ADAMW,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      -INF,
      NAN,
      -INF,
      INF },
    { "adam, infinite parameter",
      ZB_ADAM,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      INF,
      0,
      0,
      1,
      NAN,
      NAN,
      NAN },
    { "adamw, infinite parameter",
      ZB_ADAMW,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      INF,
      0,
      0,
      0,
      INF,
      0,
      0 },
    { "adam, square beyond the largest",
      ZB_ADAM,
      2,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      1,
      0,
      0,
      0x1p100f,
      1,
      0x1p99f,
      INF },
    { "adam, nothing over nothing",
      ZB_ADAM,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      0,
      NAN,
      0,
      0 },
    { "adam, denormal gradient whose square is nothing",
      ZB_ADAM,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      0,
      0,
      0,
      0x1p-140f,
      -0x1p-141f,
      0x1p-141f,
      0 },
    { "adam, denormal moment halved to even",
      ZB_ADAM,
      9,
      { .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      1,
      0x3p-149f,
      0x3p-149f,
      0,
      1,
      0x2p-149f,
      0x2p-149f },
    { "adam, learning rate below the smallest",
      ZB_ADAM,
      1,
      { .lr = 1e-300, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      3,
      0,
      0,
      1,
      3,
      0.5f,
      0.5f },
    { "adam, learning rate beyond the largest",
      ZB_ADAM,
      1,
      { .lr = 1e300, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .scale = 1 },
      3,
      0,
      0,
      1,
      -INF,
      0.5f,
      0.5f },
    { "lion, infinite gradient",
      ZB_LION,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      INF,
      0.5f,
      INF,
      0 },
    { "lion, infinities against each other",
      ZB_LION,
      2,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      -INF,
      0,
      INF,
      NAN,
      NAN,
      0 },
    { "lion, nothing has no sign",
      ZB_LION,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      -0.0f,
      1,
      0,
      0 },
    { "lion, a denormal has one",
      ZB_LION,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0x3p-149f,
      0,
      0,
      0.5f,
      0x2p-149f,
      0 },
    { "lion, half of the smallest is nothing",
      ZB_LION,
      1,
      { .lr = 0.5, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      1,
      0,
      0,
      -0x1p-149f,
      1,
      0,
      0 },
    { "lion, huge learning rate",
      ZB_LION,
      1,
      { .lr = 0x1p127, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      -0x1p127f,
      0,
      0,
      1,
      -INF,
      0.5f,
      0 },
    { "lion, learning rate below the smallest",
      ZB_LION,
      1,
      { .lr = 1e-300, .beta1 = 0.5, .beta2 = 0.5, .scale = 1 },
      3,
      0,
      0,
      1,
      3,
      0.5f,
      0 },
    { "sgd, infinite gradient", ZB_SGD, 1, { .lr = 0.5, .scale = 1 }, 1, 0, 0, INF, -INF, INF, 0 },
    { "sgd, infinite gradient and no learning rate",
      ZB_SGD,
      1,
      { .scale = 1 },
      1,
      0,
      0,
      INF,
      NAN,
      INF,
      0 },
    { "sgd, a first step does not look at the momentum",
      ZB_SGD,
      1,
      { .lr = 0.5, .momentum = 0.5, .scale = 1 },
      1,
      NAN,
      0,
      2,
      0,
      2,
      0 },
    { "sgd, a later one does",
      ZB_SGD,
      2,
      { .lr = 0.5, .momentum = 0.5, .scale = 1 },
      1,
      NAN,
      0,
      2,
      NAN,
      NAN,
      0 },
    { "sgd, denormals",
      ZB_SGD,
      2,
      { .lr = 0.5, .momentum = 0.5, .scale = 1 },
      0,
      0x6p-149f,
      0,
      0x3p-149f,
      -0x3p-149f,
      0x6p-149f,
      0 },
    { "sgd, nesterov",
      ZB_SGD,
      2,
      { .lr = 0.5, .momentum = 0.5, .nesterov = 1, .scale = 1 },
      8,
      4,
      0,
      2,
      8 - 0.5f * (2 + 0.5f * 4),
      4,
      0 },
    { "sgd, dampening beyond 1",
      ZB_SGD,
      2,
      { .lr = 0.5, .momentum = 0.5, .dampening = 2, .scale = 1 },
      8,
      4,
      0,
      2,
      8,
      0,
      0 },
    { "sgd, huge learning rate",
      ZB_SGD,
      1,
      { .lr = 0x1p100, .scale = 1 },
      1,
      0,
      0,
      0x1p100f,
      -INF,
      0x1p100f,
      0 },
    { "sgd, learning rate beyond the largest, of nothing",
      ZB_SGD,
      1,
      { .lr = 1e300, .scale = 1 },
      1,
      0,
      0,
      0,
      NAN,
      0,
      0 },
    { "sgd, learning rate below the smallest",
      ZB_SGD,
      1,
      { .lr = 1e-300, .scale = 1 },
      3,
      0,
      0,
      0x1p100f,
      3,
      0x1p100f,
      0 },
    { "adagrad, infinite gradient",
      ZB_ADAGRAD,
      1,
      { .lr = 0.5, .scale = 1 },
      1,
      0,
      0,
      INF,
      NAN,
      INF,
      0 },
    { "adagrad, infinite sum", ZB_ADAGRAD, 2, { .lr = 0.5, .scale = 1 }, 1, INF, 0, 5, 1, INF, 0 },
    { "adagrad, square beyond the largest",
      ZB_ADAGRAD,
      1,
      { .lr = 0.5, .scale = 1 },
      1,
      0,
      0,
      0x1p100f,
      1,
      INF,
      0 },
    { "adagrad, square below the smallest",
      ZB_ADAGRAD,
      1,
      { .lr = 0.5, .scale = 1 },
      1,
      0,
      0,
      0x1p-100f,
      -INF,
      0,
      0 },
    { "adagrad, nothing over nothing",
      ZB_ADAGRAD,
      1,
      { .lr = 0.5, .scale = 1 },
      1,
      0,
      0,
      0,
      NAN,
      0,
      0 },
    { "adagrad, the rate decays from the second step on",
      ZB_ADAGRAD,
      3,
      { .lr = 0.5, .lr_decay = 0.5, .scale = 1 },
      1,
      12,
      0,
      2,
      0.875f,
      16,
      0 },
    { "adagrad, huge learning rate",
      ZB_ADAGRAD,
      1,
      { .lr = 0x1p127, .scale = 1 },
      -0x1p127f,
      0,
      0,
      1,
      -INF,
      1,
      0 },
};

static bool as_wanted(float is, float want)
{
    return data_bits(is) == (isnan(want) ? 0x7fc00000 : data_bits(want)) ||
           (is == 0 && want == 0); /* of either sign */
}

/* Each row alone, and repeated so that it fills every vector. */
static void special_rows(void **state)
{
    enum { MANY = 67 };
    static const size_t counts[] = { 1, MANY };
    float p[MANY], m[MANY], v[MANY], grad[MANY];

    (void)state;
    data_each_ops(ops)
    {
        for (size_t i = 0; i < ZB_COUNT(rows); i++) {
            struct zk_scalars s = zk_prepare(rows[i].optimizer, &rows[i].k, rows[i].t);

            for (size_t c = 0; c < ZB_COUNT(counts); c++) {
                for (size_t e = 0; e < counts[c]; e++) {
                    p[e] = rows[i].p;
                    m[e] = rows[i].m;
                    v[e] = rows[i].v;
                    grad[e] = rows[i].grad;
                }
                one_step(ops, rows[i].optimizer, &s, p, m, v, grad, counts[c]);
                for (size_t e = 0; e < counts[c]; e++)
                    if (!as_wanted(p[e], rows[i].want_p) || !as_wanted(m[e], rows[i].want_m) ||
                        !as_wanted(v[e], rows[i].want_v))
                        fail_msg("%s, %s: p %a, m %a, v %a; want %a, %a, %a", ops->name,
                                 rows[i].name, (double)p[e], (double)m[e], (double)v[e],
                                 (double)rows[i].want_p, (double)rows[i].want_m,
                                 (double)rows[i].want_v);
            }
        }
    }
}

/* A NaN in any plane causes canonical NaNs in all values that depend on it, and in no others,
 * whatever its bits, the other planes and the learning rate (0 too). */
static void nan_stays(void **state)
{
    static const double rates[] = { 0, 1e-300, 1e-40, 1e-3, 1e30, 1e300 };
    float x[4][64]; /* p, m, v, grad */
    uint64_t seed = 9;

    (void)state;
    data_each_ops(ops)
    {
        for (enum zb_optimizer o = ZB_ADAMW; o < ZB_OPTIMIZER_END; o++)
            for (size_t n = 0; n < ZB_COUNT(rates) * 4; n++) {
                size_t plane = n % 4, planes = zb_moment_name(o, 1) ? 3 : 2, which;
                bool l2 = o != ZB_ADAMW && o != ZB_LION;
                struct zk_params k = { .lr = rates[n / 4],
                                       .beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .eps = 1e-8,
                                       .scale = 1,
                                       .momentum = 0.9 };
                struct zk_scalars s = zk_prepare(o, &k, 2);

                if ((plane == 2 && planes == 2) || (plane == 0 && o == ZB_MUON))
                    continue; /* it has no such plane, or does not read it */
                for (size_t i = 0; i < 64; i++)
                    for (size_t y = 0; y < 4; y++)
                        x[y][i] = y == 2 || (y == 1 && o == ZB_ADAGRAD)
                                      ? fabsf(data_draw_range(&seed, -20, 4))
                                      : data_draw_range(&seed, -20, 4);
                which = ztest_random(&seed) % 64;
                x[plane][which] =
                    data_float(0x7f800001 | (uint32_t)(ztest_random(&seed) & 0x807fffff));
                one_step(ops, o, &s, x[0], x[1], x[2], x[3], 64);
                for (size_t i = 0; i < 64; i++)
                    for (size_t y = 0; y < planes; y++) {
                        bool follows = y == 0 || y == plane || plane == 3 || (plane == 0 && l2);

                        if (i == which && follows ? data_bits(x[y][i]) != 0x7fc00000
                                                  : isnan(x[y][i]))
                            fail_msg("%s, %s, NaN in plane %zu of element %zu, lr %g: plane %zu of "
                                     "%zu is %a",
                                     ops->name, zb_optimizer_name(o), plane, which, k.lr, y, i,
                                     (double)x[y][i]);
                    }
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(textbook_in_double),
        cmocka_unit_test(params_are_checked),
        cmocka_unit_test(special_rows),
        cmocka_unit_test(nan_stays),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
