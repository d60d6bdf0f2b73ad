/*
 * test_moments.c - reduced moments in every implementation: which values they keep, how large
 * errors are, and that rounding is fair.
 */
#include "tests/ztest.h"

#include <math.h>

#include "kernels/ref/moment_priv.h"
#include "tests/unit/kernels/data.h"

#define N      ZB_BLOCK_ELEMS
#define GROUPS (N / ZB_Q8_GROUP)

/* Every code of a group is preserved: decoding and encoding is the identity on stored values, for
 * any random bits, and for scales of every size. */
static void q8_keeps_what_it_can_hold(void **state)
{
    static uint8_t code[N], again[N];
    static float scale[GROUPS], scale_again[GROUPS], value[N];
    uint64_t seed = 1;

    (void)state;
    data_each_ops(ops)
    {
        for (int is_signed = 0; is_signed < 2; is_signed++)
            for (int round = 0; round < 40; round++) {
                for (size_t i = 0; i < N; i++) {
                    code[i] = (uint8_t)(i % ZB_Q8_GROUP);
                    if (is_signed && (code[i] & 0x7f) == 0)
                        code[i] = 0; /* a zero has the sign of the value; -0 is tried below */
                }
                for (size_t g = 0; g < GROUPS; g++) /* wide enough that no code is a denormal */
                    scale[g] = data_float((uint32_t)(0x200 + ztest_random(&seed) % 0x5f8) << 20);
                ops->decode_q8(code, scale, value, is_signed, N);
                ops->encode_q8(value, again, scale_again, is_signed, (uint32_t)ztest_random(&seed),
                               N);
                assert_memory_equal(scale, scale_again, sizeof(scale));
                for (size_t i = 0; i < N; i++)
                    if (again[i] != code[i] && !(is_signed && code[i] == 0xff && again[i] == 0x7f))
                        fail_msg("%s: code %02x of scale %a is %a, and then %02x", ops->name,
                                 code[i], (double)scale[i / ZB_Q8_GROUP], (double)value[i],
                                 again[i]);
            }
    }
}

/* Errors are within an eighth (a 256th for bf16), on either side; zeros stay; nonfinite values
 * become NaN. */
static void error_is_bounded(void **state)
{
    static uint8_t code[N];
    static uint16_t half[N];
    static float scale[GROUPS], from[N], to[N];
    uint64_t seed = 2;

    (void)state;
    data_each_ops(ops)
    {
        for (int is_signed = 0; is_signed < 2; is_signed++) {
            for (size_t i = 0; i < N; i++)
                from[i] = i % 9 == 0 ? 0 : data_draw_range(&seed, is_signed ? -14 : -30, 0);
            for (size_t i = 0; i < N && !is_signed; i++)
                from[i] = fabsf(from[i]);
            from[1000] = data_float(0x7f800000);
            from[1001] = data_float(0x7fc00001);
            ops->encode_q8(from, code, scale, is_signed, 7, N);
            ops->decode_q8(code, scale, to, is_signed, N);
            for (size_t i = 0; i < N; i++)
                if (i / 2 == 500 ? data_bits(to[i]) != 0x7fc00000
                                 : fabsf(to[i] - from[i]) > fabsf(from[i]) / 8)
                    fail_msg("%s: element %zu, %a is %a", ops->name, i, (double)from[i],
                             (double)to[i]);
            ops->encode_bf16(from, half, 7, N);
            ops->bf16_to_f32(half, to, N);
            assert_int_equal(half[1000], 0x7f80);
            assert_int_equal(half[1001], 0x7fc0);
            for (size_t i = 0; i < N; i++)
                if (i / 2 != 500 && fabsf(to[i] - from[i]) > fabsf(from[i]) / 128)
                    fail_msg("%s: element %zu, %a is %a", ops->name, i, (double)from[i],
                             (double)to[i]);
        }
    }
}

/* Values below the range of the largest: an unsigned one never becomes zero, a signed one does. */
static void below_the_range(void **state)
{
    static float from[ZB_Q8_GROUP] = { 1.0f, 0x1p-40f, -0x1p-40f, 0x1p-130f, 1e-45f, -0.0f };
    uint8_t code[ZB_Q8_GROUP];
    float scale, to[ZB_Q8_GROUP];

    (void)state;
    data_each_ops(ops)
    {
        ops->encode_q8(from, code, &scale, false, 3, ZB_Q8_GROUP);
        ops->decode_q8(code, &scale, to, false, ZB_Q8_GROUP);
        assert_true(scale == 1.0f && to[0] == 1.0f);
        assert_true(to[1] > 0 && to[1] < 0x1p-31f && to[1] == to[3] && to[1] == to[4]);
        assert_true(to[5] == 0 && to[6] == 0);
        ops->encode_q8(from, code, &scale, true, 3, ZB_Q8_GROUP);
        ops->decode_q8(code, &scale, to, true, ZB_Q8_GROUP);
        assert_true(to[0] == 1.0f && to[1] == 0 && to[2] == 0 && to[4] == 0);
    }
}

/* A magnitude whose pattern is near `pattern`, one of those that are not numbers, or a tiny one. */
static float draw_near(uint64_t *seed, uint32_t pattern)
{
    uint64_t r = ztest_random(seed);
    uint32_t low = (uint32_t)(r >> 8) & 0xfffff, sign = (uint32_t)(r & 1) << 31;
    uint32_t p = pattern - (uint32_t)(r >> 32) % (pattern + 1 < 280 ? pattern + 1 : 280);

    switch (r >> 60) {
    case 0:
        return data_float(sign);
    case 1:
        return data_float(sign | (low & 0xff));
    case 2:
        return data_float(sign | p << 20);
    default:
        return data_float(sign | p << 20 | (p < pattern ? low : 0));
    }
}

/* Whether moment m of the group has the codes and the scale of its elements, and decodes to them. */
static void group_check(const struct zk_ops *ops, const struct zk_q8_group *g, unsigned m)
{
    uint32_t most = 0, sign = g->is_signed[m] ? MOMENT_SIGN : 0, pattern;
    uint32_t top = g->is_signed[m] ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;
    float to[ZB_Q8_GROUP];

    for (size_t i = 0; i < ZB_Q8_GROUP; i++)
        most = (uint32_t)zb_max_u64(most, moment_finite(data_bits(g->value[m][i])));
    pattern = moment_pattern(most);
    assert_int_equal(data_bits(*g->scale[m]), data_bits(moment_scale(pattern)));
    ops->decode_q8(g->code[m], g->scale[m], to, g->is_signed[m], ZB_Q8_GROUP);
    for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
        uint32_t noise = moment_noise(g->key | m, g->first + (uint32_t)i);
        uint8_t want = moment_code(g->value[m][i], pattern, noise, g->is_signed[m]);

        if (g->code[m][i] != want)
            fail_msg("%s: %a in a group of %a is %02x, not %02x", ops->name, (double)g->value[m][i],
                     (double)*g->scale[m], g->code[m][i], want);
        if (data_bits(to[i]) != data_bits(moment_decode(want, pattern, sign, top)))
            fail_msg("%s: %02x in a group of %a is %a", ops->name, want, (double)*g->scale[m],
                     (double)to[i]);
    }
}

/* Groups are done with fewer operations where their values allow it: the results are those of
 * moment_code() and moment_decode() for each element, at every limit. */
static void groups_are_their_elements(void **state)
{
    static const uint32_t patterns[] = { 0,   1,   2,   125,   126,   127,   128,  253,
                                         254, 255, 256, 0x400, 0x7f6, 0x7f7, 0x7f8 };
    static const uint32_t odd[] = { 0, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f7fffff };
    static float from[2][ZB_Q8_GROUP], scale[2];
    static uint8_t code[2][ZB_Q8_GROUP];
    uint64_t seed = 9;

    (void)state;
    data_each_ops(ops)
    {
        for (size_t round = 0; round < ZB_COUNT(patterns) * ZB_COUNT(odd) * 8; round++) {
            uint32_t special = odd[round / ZB_COUNT(patterns) % ZB_COUNT(odd)];
            struct zk_q8_group g = { .n = 2, .is_signed = { round % 2, round / 2 % 2 } };

            if (!ops->encode_q8_group) /* the GPU's kernels */
                continue;
            g.key = (uint32_t)ztest_random(&seed) & ~UINT32_C(1);
            g.first = (uint32_t)ztest_random(&seed) % 16 * ZB_Q8_GROUP;
            for (unsigned m = 0; m < 2; m++) {
                for (size_t i = 0; i < ZB_Q8_GROUP; i++)
                    from[m][i] = draw_near(&seed, patterns[round % ZB_COUNT(patterns)]);
                if (special != 0)
                    from[m][77] = data_float(special);
                g.value[m] = from[m];
                g.code[m] = code[m];
                g.scale[m] = &scale[m];
            }
            ops->encode_q8_group(&g);
            group_check(ops, &g, 0);
            group_check(ops, &g, 1);
        }
    }
}

#define RUN (4 * ZB_Q8_GROUP)

/* What a step of groups reads and writes; of no padding, so that two compare as bytes. */
struct run_arrays {
    float param[RUN], master[RUN], scale[2][RUN / ZB_Q8_GROUP];
    uint8_t code[2][RUN];
};

/* A run of groups whose patterns are near `pattern`, from any codes, with `special` (if it is not 0)
 * among the gradients, or among the parameters. */
static void run_draw(struct run_arrays *a, float *grad, uint64_t *seed, uint32_t pattern,
                     uint32_t special)
{
    memset(a, 0, sizeof(*a));
    for (size_t i = 0; i < RUN; i++) {
        grad[i] = draw_near(seed, pattern);
        a->param[i] = data_draw_range(seed, -20, 2);
        a->master[i] = data_draw_range(seed, -20, 2);
        a->code[0][i] = (uint8_t)(ztest_random(seed) % 127 | (ztest_random(seed) & 0x80));
        a->code[1][i] = (uint8_t)(ztest_random(seed) % 255);
    }
    for (size_t i = 0; i < RUN / ZB_Q8_GROUP; i++) {
        a->scale[0][i] = moment_scale(pattern);
        a->scale[1][i] = moment_scale(pattern > 300 ? pattern - 3 : pattern);
    }
    if (special != 0) {
        grad[RUN / 2 + 77] = data_float(special);
        a->param[RUN / 2 + 78] = data_float(special);
        a->code[special & 1][ZB_Q8_GROUP + 3] = 0xff; /* NaN */
    }
}

/* Steps a run group by group, as a page does without step_q8_groups(). */
static void run_by_group(const struct zk_ops *ops, const struct zk_q8_run *r)
{
    static const size_t bytes[] = { [ZB_F32] = 4, [ZB_BF16] = 2, [ZB_F16] = 2 };
    uint16_t old[2][ZB_Q8_GROUP];
    float stepped[2][ZB_Q8_GROUP];

    for (size_t at = 0; at < RUN; at += ZB_Q8_GROUP) {
        struct zk_step_arrays arrays = {
            .param = (char *)r->param + at * bytes[r->dtype],
            .master = (char *)r->master + at * (r->dtype == ZB_BF16 ? 2 : 4),
            .m = old[0],
            .v = old[1],
            .to_m = stepped[0],
            .to_v = stepped[1],
            .grad = (const char *)r->grad + at * bytes[r->grad_dtype],
        };
        struct zk_q8_group g = {
            .n = 2, .is_signed = { true, false }, .key = r->key, .first = r->first + (uint32_t)at
        };

        for (unsigned m = 0; m < 2; m++) {
            g.value[m] = stepped[m];
            g.code[m] = r->code[m] + at;
            g.scale[m] = &r->scale[m][at / ZB_Q8_GROUP];
            ops->decode_q8_bf16(g.code[m], g.scale[m], old[m], m == 0, ZB_Q8_GROUP);
        }
        ops->step_q8[r->optimizer][r->dtype][r->grad_dtype](r->scalars, &arrays, ZB_Q8_GROUP);
        ops->encode_q8_group(&g);
    }
}

static void run_arrays_set(struct zk_q8_run *r, struct run_arrays *a)
{
    r->param = a->param;
    r->master = a->master;
    for (unsigned m = 0; m < 2; m++) {
        r->code[m] = a->code[m];
        r->scale[m] = a->scale[m];
    }
}

/* Steps `a` by ops, from where it stops by a group of the reference; returns what ops has stepped. */
static size_t run_step(const struct zk_ops *ops, struct zk_q8_run r, struct run_arrays *a,
                       struct run_arrays *want, const char *what)
{
    struct run_arrays before = *a;
    size_t n;

    run_arrays_set(&r, want);
    run_by_group(zk_all(&(size_t){ 0 })[0], &r);
    run_arrays_set(&r, a);
    n = ops->step_q8_groups(&r, RUN);
    assert_true(n <= RUN && n % ZB_Q8_GROUP == 0);
    for (size_t i = 0; i < RUN; i++) {
        const struct run_arrays *by = i < n ? want : &before;
        size_t g = i / ZB_Q8_GROUP, w = r.dtype == ZB_BF16 ? 2 : 4;

        for (unsigned m = 0; m < 2; m++)
            if (a->code[m][i] != by->code[m][i] ||
                data_bits(a->scale[m][g]) != data_bits(by->scale[m][g]))
                fail_msg("%s, %s: moment %u of element %zu of %zu is %02x of %a, not %02x of %a",
                         ops->name, what, m, i, n, a->code[m][i], (double)a->scale[m][g],
                         by->code[m][i], (double)by->scale[m][g]);
        if (memcmp((char *)a->param + i * w, (char *)by->param + i * w, w) != 0 ||
            memcmp((char *)a->master + i * w, (char *)by->master + i * w, w) != 0)
            fail_msg("%s, %s: element %zu of %zu is wrong", ops->name, what, i, n);
    }
    return n;
}

static const struct run_kind {
    const char *name;
    enum zb_optimizer optimizer;
    enum zb_dtype dtype, grad_dtype;
} run_kinds[] = {
    { "adamw bf16 bf16", ZB_ADAMW, ZB_BF16, ZB_BF16 },
    { "adamw bf16 f32", ZB_ADAMW, ZB_BF16, ZB_F32 },
    { "adamw f32 bf16", ZB_ADAMW, ZB_F32, ZB_BF16 },
    { "adamw f32 f32", ZB_ADAMW, ZB_F32, ZB_F32 },
    { "adam bf16 bf16", ZB_ADAM, ZB_BF16, ZB_BF16 },
    { "adam bf16 f32", ZB_ADAM, ZB_BF16, ZB_F32 },
    { "adam f32 bf16", ZB_ADAM, ZB_F32, ZB_BF16 },
    { "adam f32 f32", ZB_ADAM, ZB_F32, ZB_F32 },
    { "adamw f16 f16", ZB_ADAMW, ZB_F16, ZB_F16 },
};

/* Groups that are stepped in one pass are what the three kernels for one group make of them. */
static void runs_are_their_groups(void **state)
{
    static const uint32_t patterns[] = { 1, 126, 127, 254, 255, 0x300, 0x3c0, 0x3f0, 0x7f7 };
    static const uint32_t odd[] = { 0, 0, 0x7f800000, 0xffc00001, 0x7f7fffff };
    static const struct zk_params params = {
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .scale = 0.5
    };
    static struct run_arrays a, want;
    static float f32[RUN];
    static uint16_t bf16[RUN];
    uint64_t seed = 11;

    (void)state;
    data_each_ops(ops)
    {
        size_t stepped = 0;

        for (size_t i = 0; i < ZB_COUNT(run_kinds) * ZB_COUNT(patterns) * ZB_COUNT(odd); i++) {
            const struct run_kind *k = &run_kinds[i % ZB_COUNT(run_kinds)];
            size_t round = i / ZB_COUNT(run_kinds);
            struct zk_scalars scalars = zk_prepare(k->optimizer, &params, round + 1);
            struct zk_q8_run r = { .scalars = &scalars,
                                   .optimizer = k->optimizer,
                                   .dtype = k->dtype,
                                   .grad_dtype = k->grad_dtype,
                                   .key = (uint32_t)ztest_random(&seed) & ~UINT32_C(1),
                                   .first = (uint32_t)ztest_random(&seed) % 12 * ZB_Q8_GROUP };

            if (!ops->step_q8_groups) /* the GPU's kernels */
                continue;
            run_draw(&a, f32, &seed, patterns[round % ZB_COUNT(patterns)],
                     odd[round / ZB_COUNT(patterns)]);
            ops->f32_to_bf16(f32, bf16, RUN);
            r.grad = k->grad_dtype == ZB_F32 ? (const void *)f32 : bf16;
            want = a;
            stepped += run_step(ops, r, &a, &want, k->name);
        }
        if (strncmp(ops->name, "avx", 3) == 0) /* which have a pass by hand */
            assert_true(stepped > ZB_COUNT(run_kinds) * RUN);
    }
}

/* Codes that no encoder makes, and scales that none has, are decoded as their elements, too. */
static void any_codes(void **state)
{
    static const uint32_t scales[] = { 0x00000000, 0x00100000, 0x0fe00000, 0x0ff00000, 0x3f800000,
                                       0x7f700000, 0x7f800000, 0x7fc00000, 0x80000000, 0xbf800000 };
    uint8_t code[ZB_Q8_GROUP];
    float to[ZB_Q8_GROUP];

    (void)state;
    data_each_ops(ops)
    {
        for (size_t k = 0; k < ZB_COUNT(scales) * 4; k++) {
            bool is_signed = k % 2 != 0, without_nan = k / 2 % 2 != 0;
            uint32_t top = is_signed ? MOMENT_SIGNED_TOP : MOMENT_UNSIGNED_TOP;
            float scale = data_float(scales[k / 4]);

            for (size_t i = 0; i < ZB_Q8_GROUP; i++) {
                code[i] = (uint8_t)i;
                if (without_nan && (i & (is_signed ? 0x7f : 0xff)) > top)
                    code[i] = 1;
            }
            ops->decode_q8(code, &scale, to, is_signed, ZB_Q8_GROUP);
            for (size_t i = 0; i < ZB_Q8_GROUP; i++)
                assert_int_equal(data_bits(to[i]),
                                 data_bits(moment_decode(code[i], scales[k / 4] >> MOMENT_CUT,
                                                         is_signed ? MOMENT_SIGN : 0, top)));
        }
    }
}

/* The mean of many roundings is the value, within five standard deviations. Rounding x to steps of
 * d has a variance of d^2 / 4 at most. */
static void rounding_is_fair(void **state)
{
    static float from[N], to[N];
    static uint8_t code[N];
    static uint16_t half[N];
    static float scale[GROUPS];
    const struct zk_ops *ops = data_next_ops(NULL);
    enum { ROUNDS = 200 };
    const double count = (double)ROUNDS * N;

    (void)state;
    for (int v = 0; v < 20; v++) {
        float x = 1.0f + (float)v / 20 + 0.003f;
        double q8 = 0, bf16 = 0;

        for (size_t i = 0; i < N; i++)
            from[i] = i % ZB_Q8_GROUP == 0 ? 4.0f : x;
        for (uint32_t round = 0; round < ROUNDS; round++) {
            ops->encode_q8(from, code, scale, v % 2, round * 1234567 + (unsigned)v / 2 % 2, N);
            ops->decode_q8(code, scale, to, v % 2, N);
            for (size_t i = 0; i < N; i++)
                q8 += (double)(to[i] - from[i]);
            ops->encode_bf16(from, half, round * 7654321 + (unsigned)v % 2, N);
            ops->bf16_to_f32(half, to, N);
            for (size_t i = 0; i < N; i++)
                bf16 += (double)(to[i] - from[i]);
        }
        if (fabs(q8 / count) > 5 * 0x1p-4 / sqrt(count) ||
            fabs(bf16 / count) > 5 * 0x1p-8 / sqrt(count))
            fail_msg("%g is off by %g and %g", (double)x, q8 / count, bf16 / count);
    }
}

/* Pearson's correlation of two samples of 0 and 1. */
static double correlation(const bool *a, const bool *b, size_t n)
{
    double sum_a = 0, sum_b = 0, both = 0;

    for (size_t i = 0; i < n; i++) {
        sum_a += a[i];
        sum_b += b[i];
        both += a[i] && b[i];
    }
    sum_a /= (double)n;
    sum_b /= (double)n;
    return (both / (double)n - sum_a * sum_b) / sqrt(sum_a * (1 - sum_a) * sum_b * (1 - sum_b));
}

/* Elements round up independently of their neighbours, and an element's moments independently of
 * each other; otherwise errors would add up instead of cancelling. Samples are keys; 5 standard
 * deviations. The number of elements that round up in a block varies as if each tossed its own
 * coin; the standard deviation of its variance is a fraction of sqrt(2 / KEYS). */
static void random_bits_are_independent(void **state)
{
    enum { KEYS = 4000, NEAR = 40 };
    static bool up[2][NEAR][KEYS];

    (void)state;
    for (unsigned nth = 1; nth <= 3; nth++) { /* rounds up with a probability of 1/2, 1/4, 1/8 */
        uint32_t least = UINT32_MAX - (UINT32_MAX >> nth);
        double p = 1.0 / (1u << nth), sum[2] = { 0 }, squares[2] = { 0 };

        for (uint32_t k = 0; k < KEYS; k++) {
            unsigned ups[2] = { 0 };

            for (size_t i = 0; i < N; i++) {
                uint32_t key = (k * 0x9e3779b1u ^ k >> 3) << 1;
                bool first = moment_noise(key, (uint32_t)i) >= least;
                bool second = moment_noise(key | 1, (uint32_t)i) >= least;

                ups[0] += first;
                ups[1] += second;
                if (i < NEAR) {
                    up[0][i][k] = first;
                    up[1][i][k] = second;
                }
            }
            for (int m = 0; m < 2; m++) {
                sum[m] += ups[m] - N * p;
                squares[m] += (ups[m] - N * p) * (ups[m] - N * p);
            }
        }
        for (int m = 0; m < 2; m++) {
            double variance = N * p * (1 - p);

            if (fabs(sum[m]) > 5 * sqrt(KEYS * variance) ||
                fabs(squares[m] / KEYS / variance - 1) > 5 * sqrt(2.0 / KEYS))
                fail_msg("moment %d, chance %g: %g too many, %g of the variance", m, p, sum[m],
                         squares[m] / KEYS / variance);
        }
        for (size_t i = 0; i < NEAR; i++)
            for (size_t j = 0; j < NEAR; j++)
                for (int m = 0; m < 3; m++) {
                    const bool *a = up[m == 1][i], *b = up[m > 0][j];
                    double r = (m < 2 && i == j) ? 0 : correlation(a, b, KEYS);

                    if (fabs(r) > 5 / sqrt(KEYS))
                        fail_msg("elements %zu and %zu, case %d, chance %g: correlation %g", i, j,
                                 m, p, r);
                }
    }
}

static void low_check(const struct zk_ops *ops, const uint32_t *master, uint32_t key, bool written)
{
    static uint16_t hi[N];
    static int16_t lo[N];
    static int8_t lo8[N];

    for (size_t i = 0; i < N; i++)
        elem_split(data_float(master[i]), &hi[i], &lo[i]);
    if (written)
        ops->nearest_lo(hi, lo, lo8, N);
    else
        ops->round_lo(hi, lo, lo8, key, N);
    ops->widen_lo(lo8, lo, N);
    for (size_t i = 0; i < N; i++) {
        uint32_t b = data_bits(elem_canonical(data_float(master[i])));
        uint32_t noise = written ? 0x80 : moment_noise(key, (uint32_t)i) >> 16 & 0xff;
        uint32_t want = (b + noise) & ~UINT32_C(0xff);

        if (hi[i] != (uint16_t)((want + 0x8000) >> 16) ||
            ((uint32_t)hi[i] << 16) + (uint32_t)(int32_t)lo[i] != want)
            fail_msg("%s: master %08x became %04x and %d, not %08x", ops->name, master[i], hi[i],
                     lo[i], want);
    }
}

/* The low half in 8 bits: every result is that of its element, what is written is nearest, and the mean of
 * many roundings is the value: within five standard deviations, each of which is at most half a step. */
static void low_halves(void **state)
{
    static uint32_t master[N];
    uint64_t seed = 5;

    (void)state;
    data_each_ops(ops)
    {
        double sum = 0;

        if (!ops->round_lo) /* the GPU's kernels */
            continue;
        for (uint32_t round = 0; round < 64; round++) {
            for (size_t i = 0; i < N; i++)
                master[i] = i % 4 == 0   ? data_draw_special(&seed)
                            : i % 4 == 1 ? (uint32_t)ztest_random(&seed)
                            : i % 4 == 2 ? (uint32_t)ztest_random(&seed) & ~UINT32_C(0xff)
                                         : data_bits(data_draw_range(&seed, -40, 10));
            low_check(ops, master, (uint32_t)ztest_random(&seed) & ~UINT32_C(1), round % 8 == 0);
        }
        for (uint32_t round = 0; round < 64; round++) {
            static uint16_t hi[N];
            static int16_t lo[N];
            static int8_t lo8[N];

            for (size_t i = 0; i < N; i++)
                elem_split(data_float(0x3f812345 + (uint32_t)i % 256), &hi[i], &lo[i]);
            ops->round_lo(hi, lo, lo8, moment_key(round, 0, 3), N);
            for (size_t i = 0; i < N; i++)
                sum += (int32_t)(((uint32_t)hi[i] << 16) + (uint32_t)(lo8[i] * 256)) -
                       (double)(0x3f812345 + i % 256);
        }
        assert_true(fabs(sum) < 5 * 128 * sqrt(64.0 * N) + 0.5 * 64 * N);
        print_message("%s: mean %g of 256\n", ops->name, sum / (64.0 * N));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8_keeps_what_it_can_hold),
        cmocka_unit_test(error_is_bounded),
        cmocka_unit_test(below_the_range),
        cmocka_unit_test(groups_are_their_elements),
        cmocka_unit_test(runs_are_their_groups),
        cmocka_unit_test(low_halves),
        cmocka_unit_test(any_codes),
        cmocka_unit_test(rounding_is_fair),
        cmocka_unit_test(random_bits_are_independent),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
