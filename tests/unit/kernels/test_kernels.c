/*
 * test_kernels.c - one suite for every implementation: the same bits as "ref", for every kernel,
 * over odd sizes, unaligned starts and special values; nothing outside the arrays is touched; a NaN
 * that is stored is the canonical one.
 *
 * What "ref" itself computes is held to independent definitions by test_cast.c, test_adamw.c and
 * test_reduce.c.
 */
#include "tests/ztest.h"

#include <math.h>
#include <stdlib.h>

#include "tests/unit/kernels/data.h"

#define N_MAX 4097
#define EDGE  16 /* elements that nobody may touch; a start takes some of those in front */
#define ROOM  (EDGE + N_MAX + EDGE)

/* What a kernel may read and write, and what it returns. Copied and compared as bytes. */
struct arrays {
    uint64_t nonfinite;
    uint64_t sum_bits;
    float p[ROOM], m[ROOM], v[ROOM], grad[ROOM];
    uint16_t hi[ROOM];
    int16_t lo[ROOM];
};

static void run_adamw_f32(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                          size_t at, size_t n)
{
    ops->adamw_f32(s, a->p + at, a->m + at, a->v + at, a->grad + at, n);
}

static void run_adamw_bf16(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                           size_t at, size_t n)
{
    ops->adamw_bf16(s, a->hi + at, a->lo + at, a->m + at, a->v + at, a->grad + at, n);
}

static void run_split(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                      size_t at, size_t n)
{
    (void)s;
    ops->split(a->p + at, a->hi + at, a->lo + at, n);
}

static void run_merge(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                      size_t at, size_t n)
{
    (void)s;
    ops->merge(a->hi + at, a->lo + at, a->p + at, n);
}

static void run_f32_to_bf16(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                            size_t at, size_t n)
{
    (void)s;
    ops->f32_to_bf16(a->p + at, a->hi + at, n);
}

static void run_bf16_to_f32(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                            size_t at, size_t n)
{
    (void)s;
    ops->bf16_to_f32(a->hi + at, a->p + at, n);
}

static void run_add_f32(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                        size_t at, size_t n)
{
    (void)s;
    ops->add_f32(a->p + at, a->grad + at, n);
}

static void run_add_bf16(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                         size_t at, size_t n)
{
    (void)s;
    ops->add_bf16(a->p + at, a->hi + at, n);
}

static void run_sumsq(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a,
                      size_t at, size_t n)
{
    uint64_t before = a->nonfinite;
    double sum = ops->sumsq(a->grad + at, zb_min_u64(n, ZB_BLOCK_ELEMS), &a->nonfinite);

    (void)s;
    if (a->nonfinite == before) /* else the sum means nothing */
        memcpy(&a->sum_bits, &sum, sizeof(sum));
}

/* Each kernel, and which arrays it may write. */
enum { P = 1, M = 2, V = 4, HI = 8, LO = 16 };

static const struct {
    const char *name;
    void (*run)(const struct zk_ops *ops, const struct zk_adamw *s, struct arrays *a, size_t at,
                size_t n);
    unsigned writes;
    bool uses_scalars;
} kernels[] = {
    { "adamw_f32", run_adamw_f32, P | M | V, true },
    { "adamw_bf16", run_adamw_bf16, HI | LO | M | V, true },
    { "split", run_split, HI | LO, false },
    { "merge", run_merge, P, false },
    { "f32_to_bf16", run_f32_to_bf16, HI, false },
    { "bf16_to_f32", run_bf16_to_f32, P, false },
    { "add_f32", run_add_f32, P, false },
    { "add_bf16", run_add_bf16, P, false },
    { "sumsq", run_sumsq, 0, false },
};

static const struct {
    const char *name;
    struct zk_adamw s; /* scale, decay, beta2, 1 - beta1, 1 - beta2, step_size, rsqrt_c2, eps */
} scalars[] = {
    { "usual", { 0.25f, 0.9999f, 0.999f, 0.1f, 0.001f, 0.01f, 31.6f, 1e-8f } },
    { "late, no decay", { 1.0f, 1.0f, 0.95f, 0.1f, 0.05f, 3e-4f, 1.0f, 1e-8f } },
    { "nothing learned", { 1.0f, 1.0f, 0.999f, 0.1f, 0.001f, 0.0f, 31.6f, 0.0f } },
    { "huge", { 3e38f, -3e38f, 0.999f, 0.1f, 0.001f, 3e38f, 1e18f, 0.0f } },
    { "tiny", { 1e-45f, 1e-39f, 1e-40f, 1e-45f, 1e-39f, 1e-45f, 1e-38f, 1e-45f } },
    { "infinite", { (float)INFINITY, 1.0f, 0.999f, 0.1f, 0.001f, 1.0f, (float)INFINITY, 0.0f } },
    { "not a number", { (float)NAN, 1.0f, 0.999f, 0.1f, 0.001f, 1.0f, 1.0f, 1e-8f } },
};

enum flavour { SPECIAL, ANY_BITS, TRAINING, FLAVOURS };

static uint32_t draw(uint64_t *seed, enum flavour flavour)
{
    switch (flavour) {
    case SPECIAL:
        return data_draw_special(seed);
    case ANY_BITS:
        return (uint32_t)ztest_random(seed);
    case TRAINING:
    case FLAVOURS:
        break;
    }
    return data_bits(data_draw_range(seed, -30, 2));
}

static void fill(struct arrays *a, enum flavour flavour, uint64_t seed)
{
    memset(a, 0, sizeof(*a));
    for (size_t i = 0; i < ROOM; i++) {
        uint32_t master = draw(&seed, flavour);

        a->p[i] = data_float(draw(&seed, flavour));
        a->m[i] = data_float(draw(&seed, flavour));
        a->v[i] =
            data_float(draw(&seed, flavour) & (flavour == TRAINING ? 0x7fffffff : UINT32_MAX));
        a->grad[i] = data_float(draw(&seed, flavour));
        a->hi[i] = (uint16_t)(master >> 16);
        a->lo[i] = (int16_t)(uint16_t)master;
    }
}

/* What `ref` did to one array: only [at, at + n) changed, and only if it may be written. */
static bool outside_unchanged(const void *now, const void *before, size_t elem_bytes, bool writes,
                              size_t at, size_t n)
{
    const char *x = now, *y = before;
    size_t end = (at + n) * elem_bytes;

    if (!writes)
        return memcmp(x, y, ROOM * elem_bytes) == 0;
    return memcmp(x, y, at * elem_bytes) == 0 &&
           memcmp(x + end, y + end, ROOM * elem_bytes - end) == 0;
}

static bool arrays_outside_unchanged(const struct arrays *now, const struct arrays *before,
                                     unsigned writes, size_t at, size_t n)
{
    return outside_unchanged(now->p, before->p, sizeof(float), writes & P, at, n) &&
           outside_unchanged(now->m, before->m, sizeof(float), writes & M, at, n) &&
           outside_unchanged(now->v, before->v, sizeof(float), writes & V, at, n) &&
           outside_unchanged(now->grad, before->grad, sizeof(float), false, at, n) &&
           outside_unchanged(now->hi, before->hi, sizeof(uint16_t), writes & HI, at, n) &&
           outside_unchanged(now->lo, before->lo, sizeof(int16_t), writes & LO, at, n);
}

static bool nan_is_canonical(float f)
{
    return !data_is_nan(data_bits(f)) || data_bits(f) == 0x7fc00000;
}

static bool arrays_canonical(const struct arrays *a, unsigned writes, size_t at, size_t n)
{
    bool good = true;

    for (size_t i = at; i < at + n; i++) {
        bool bf16_nan = (a->hi[i] & 0x7fff) > 0x7f80;

        good = good && (!(writes & P) || nan_is_canonical(a->p[i]));
        good = good && (!(writes & M) || nan_is_canonical(a->m[i]));
        good = good && (!(writes & V) || nan_is_canonical(a->v[i]));
        good = good && (!(writes & HI) || !bf16_nan || a->hi[i] == 0x7fc0);
        good = good && (!(writes & LO) || !bf16_nan || a->lo[i] == 0);
    }
    return good;
}

struct fixture {
    struct arrays before, want, got;
};

/* One call of one kernel with one set of everything, in every implementation. */
static void try_all(struct fixture *x, size_t kernel, size_t scalar, size_t at, size_t n,
                    const char *flavour)
{
    const struct zk_ops *ref = data_next_ops(NULL);

    data_each_ops(ops)
    {
        const char *bad = NULL;

        memcpy(&x->got, &x->before, sizeof(x->got));
        kernels[kernel].run(ops, &scalars[scalar].s, &x->got, at, n);
        if (ops == ref) {
            memcpy(&x->want, &x->got, sizeof(x->want));
            if (!arrays_outside_unchanged(&x->got, &x->before, kernels[kernel].writes, at, n))
                bad = "wrote where it may not";
            else if (!arrays_canonical(&x->got, kernels[kernel].writes, at, n))
                bad = "stored a NaN that is not canonical";
        } else if (memcmp(&x->got, &x->want, sizeof(x->want)) != 0) {
            bad = "differs from ref";
        }
        if (bad)
            fail_msg("%s %s, scalars '%s', %s values, start %zu, %zu elements: %s", ops->name,
                     kernels[kernel].name, scalars[scalar].name, flavour, at, n, bad);
    }
}

static const size_t sizes[] = {
    0,  1,  2,  3,   4,   5,   6,   7,   8,   9,    10,   11,   12,   13,   14,
    15, 16, 17, 18,  23,  31,  32,  33,  47,  48,   49,   63,   64,   65,   66,
    95, 96, 97, 127, 128, 129, 255, 256, 257, 1000, 1023, 4095, 4096, 4097,
};

static void every_kernel_same_bits(void **state)
{
    static const size_t starts[] = { 0, 1, 3, EDGE };
    static const char *const flavours[] = { "special", "any", "training" };
    struct fixture *x = malloc(sizeof(*x));

    (void)state;
    assert_non_null(x);
    for (enum flavour f = 0; f < FLAVOURS; f++)
        for (size_t size = 0; size < ZB_COUNT(sizes); size++) {
            fill(&x->before, f, size + 1);
            for (size_t kernel = 0; kernel < ZB_COUNT(kernels); kernel++)
                for (size_t s = 0; s < (kernels[kernel].uses_scalars ? ZB_COUNT(scalars) : 1); s++)
                    for (size_t start = 0; start < ZB_COUNT(starts); start++)
                        try_all(x, kernel, s, starts[start], sizes[size], flavours[f]);
        }
    free(x);
}

/* Every short length from every start inside one widest vector: heads and tails of the loops. */
static void short_runs_from_every_start(void **state)
{
    struct fixture *x = malloc(sizeof(*x));

    (void)state;
    assert_non_null(x);
    fill(&x->before, SPECIAL, 99);
    for (size_t at = 0; at < 16; at++)
        for (size_t n = 0; n < 40; n += 3)
            for (size_t kernel = 0; kernel < ZB_COUNT(kernels); kernel++)
                try_all(x, kernel, 0, at, n, "special");
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_same_bits),
        cmocka_unit_test(short_runs_from_every_start),
    };

    zk_thread_init();
    data_each_ops(ops)
    {
        print_message("kernels: %s\n", ops->name);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
