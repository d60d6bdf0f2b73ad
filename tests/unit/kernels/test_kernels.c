/*
 * test_kernels.c - one suite for every implementation: every kernel gives the same bits as "ref",
 * for odd sizes, unaligned starts and special values; nothing outside the arrays is changed; a NaN
 * that is stored is the canonical one.
 *
 * Digests of the results are kept in golden_digests.inc, so that they are the same on every
 * architecture, too.
 *
 * test_cast.c, test_adamw.c and test_reduce.c compare "ref" itself with independent definitions.
 */
#include "tests/ztest.h"

#include <math.h>
#include <stdlib.h>

#include "tests/unit/kernels/data.h"

#define N_MAX 4097
#define EDGE  16 /* elements that must not change; a start uses some of those before */
#define ROOM  (EDGE + N_MAX + EDGE)

/* All inputs, outputs and results of a kernel. Copied and compared as bytes. */
struct arrays {
    uint64_t nonfinite;
    uint64_t sum_bits;
    float p[ROOM], m[ROOM], v[ROOM], grad[ROOM];
    uint16_t hi[ROOM], half[ROOM], grad16[ROOM], m16[ROOM], v16[ROOM];
    int16_t lo[ROOM];
    uint8_t code[ROOM];
    float group[ROOM]; /* scales */
};

/* A kernel, the arrays that it may write, and its other inputs. */
enum {
    P = 1,
    M = 2,
    V = 4,
    HI = 8,
    LO = 16,
    HALF = 32,
    CODE = 64,
    GROUP = 128,
    M16 = 256,
    V16 = 512
};

struct kernel {
    const char *name;
    void (*run)(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                struct arrays *a, size_t at, size_t n);
    unsigned writes;
    enum zb_optimizer optimizer; /* of a step function, 0 for others */
    enum zb_dtype dtype, grad_dtype;
    bool is_signed, grouped; /* of reduced moments; accepts only whole groups */
    enum zb_moments moments; /* of a step function */
};

static void run_step(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                     struct arrays *a, size_t at, size_t n)
{
    struct zk_step_arrays arrays = { .param = a->p + at,
                                     .m = a->m + at,
                                     .v = k->writes & V ? a->v + at : NULL,
                                     .grad = a->grad + at,
                                     .key = s->rounding,
                                     .first = 5 };

    if (k->moments == ZB_MOMENTS_BF16) {
        arrays.m = a->m16 + at;
        arrays.v = k->writes & V16 ? a->v16 + at : NULL;
    }
    if (k->dtype == ZB_BF16) {
        arrays.param = a->hi + at;
        arrays.master = a->lo + at;
    } else if (k->dtype == ZB_F16) {
        arrays.param = a->half + at;
        arrays.master = a->p + at;
    }
    if (k->grad_dtype != ZB_F32)
        arrays.grad = a->grad16 + at;
    (k->moments == ZB_MOMENTS_BF16
         ? ops->step_bf16
         : ops->step)[k->optimizer][k->dtype][k->grad_dtype](s, &arrays, n);
}

static void run_split(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                      struct arrays *a, size_t at, size_t n)
{
    (void)k;
    (void)s;
    ops->split(a->p + at, a->hi + at, a->lo + at, n);
}

static void run_merge(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                      struct arrays *a, size_t at, size_t n)
{
    (void)k;
    (void)s;
    ops->merge(a->hi + at, a->lo + at, a->p + at, n);
}

static void run_from_f32(const struct kernel *k, const struct zk_ops *ops,
                         const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    (void)s;
    if (k->dtype == ZB_BF16)
        ops->f32_to_bf16(a->p + at, a->hi + at, n);
    else
        ops->f32_to_f16(a->p + at, a->half + at, n);
}

static void run_to_f32(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                       struct arrays *a, size_t at, size_t n)
{
    (void)s;
    (k->dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)(a->grad16 + at, a->p + at, n);
}

static void run_add(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                    struct arrays *a, size_t at, size_t n)
{
    (void)s;
    if (k->dtype == ZB_F32)
        ops->add_f32(a->p + at, a->grad + at, n);
    else
        (k->dtype == ZB_BF16 ? ops->add_bf16 : ops->add_f16)(a->p + at, a->grad16 + at, n);
}

static void run_sumsq(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                      struct arrays *a, size_t at, size_t n)
{
    uint64_t before = a->nonfinite;
    double sum = ops->sumsq(a->grad + at, zb_min_u64(n, ZB_BLOCK_ELEMS), &a->nonfinite);

    (void)k;
    (void)s;
    if (a->nonfinite == before) /* else the sum is undefined */
        memcpy(&a->sum_bits, &sum, sizeof(sum));
}

static void run_encode_bf16(const struct kernel *k, const struct zk_ops *ops,
                            const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    (void)k;
    ops->encode_bf16(a->m + at, a->hi + at, s->rounding, n);
}

static void run_encode_q8(const struct kernel *k, const struct zk_ops *ops,
                          const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    ops->encode_q8(a->m + at, a->code + at, a->group + at, k->is_signed, s->rounding, n);
}

static void run_decode_q8(const struct kernel *k, const struct zk_ops *ops,
                          const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    (void)s;
    ops->decode_q8(a->code + at, a->group + at, a->p + at, k->is_signed, n);
}

static void run_quantize_i8(const struct kernel *k, const struct zk_ops *ops,
                            const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    (void)k;
    (void)s;
    ops->quantize_i8(a->m + at, (int8_t *)a->code + at, a->group + at, n);
}

static void run_dequantize_i8(const struct kernel *k, const struct zk_ops *ops,
                              const struct zk_scalars *s, struct arrays *a, size_t at, size_t n)
{
    (void)k;
    (void)s;
    ops->dequantize_i8((const int8_t *)a->code + at, a->group + at, a->p + at, n);
}

static void run_set(const struct kernel *k, const struct zk_ops *ops, const struct zk_scalars *s,
                    struct arrays *a, size_t at, size_t n)
{
    uint64_t before = a->nonfinite;
    size_t block = zb_min_u64(n, ZB_BLOCK_ELEMS);
    double sum = k->dtype == ZB_F32
                     ? ops->set_f32(a->p + at, a->grad + at, block, &a->nonfinite)
                     : ops->set_bf16(a->hi + at, a->grad16 + at, block, &a->nonfinite);

    (void)s;
    if (a->nonfinite == before)
        memcpy(&a->sum_bits, &sum, sizeof(sum));
}

static const struct kernel plain_kernels[] = {
    { "split", run_split, HI | LO, 0, 0, 0, false, false, 0 },
    { "merge", run_merge, P, 0, 0, 0, false, false, 0 },
    { "f32_to_bf16", run_from_f32, HI, 0, ZB_BF16, 0, false, false, 0 },
    { "bf16_to_f32", run_to_f32, P, 0, ZB_BF16, 0, false, false, 0 },
    { "f32_to_f16", run_from_f32, HALF, 0, ZB_F16, 0, false, false, 0 },
    { "f16_to_f32", run_to_f32, P, 0, ZB_F16, 0, false, false, 0 },
    { "add_f32", run_add, P, 0, ZB_F32, 0, false, false, 0 },
    { "add_bf16", run_add, P, 0, ZB_BF16, 0, false, false, 0 },
    { "add_f16", run_add, P, 0, ZB_F16, 0, false, false, 0 },
    { "sumsq", run_sumsq, 0, 0, 0, 0, false, false, 0 },
    { "set_f32", run_set, P, 0, ZB_F32, 0, false, false, 0 },
    { "set_bf16", run_set, HI, 0, ZB_BF16, 0, false, false, 0 },
    { "encode_bf16", run_encode_bf16, HI, 0, 0, 0, false, false, 0 },
    { "encode_q8 unsigned", run_encode_q8, CODE | GROUP, 0, 0, 0, false, true, 0 },
    { "encode_q8 signed", run_encode_q8, CODE | GROUP, 0, 0, 0, true, true, 0 },
    { "decode_q8 unsigned", run_decode_q8, P, 0, 0, 0, false, true, 0 },
    { "decode_q8 signed", run_decode_q8, P, 0, 0, 0, true, true, 0 },
    { "quantize_i8", run_quantize_i8, CODE | GROUP, 0, 0, 0, true, true, 0 },
    { "dequantize_i8", run_dequantize_i8, P, 0, 0, 0, true, true, 0 },
};

#define STEPS   (2 * (ZB_OPTIMIZER_END - 1) * (ZB_DTYPE_END - 1) * (ZB_DTYPE_END - 1))
#define KERNELS (ZB_COUNT(plain_kernels) + STEPS)

/* The plain kernels, and every entry of the table of step functions. */
static const struct kernel *all_kernels(void)
{
    static struct kernel list[KERNELS];
    static const unsigned writes[ZB_DTYPE_END] = {
        [ZB_F32] = P, [ZB_BF16] = HI | LO, [ZB_F16] = HALF | P
    };
    struct kernel *k = list + ZB_COUNT(plain_kernels);

    memcpy(list, plain_kernels, sizeof(plain_kernels));
    for (size_t i = 0; i < STEPS; i++) {
        enum zb_optimizer o = ZB_ADAMW + (enum zb_optimizer)(i / 9 % (ZB_OPTIMIZER_END - 1));
        enum zb_dtype p = ZB_F32 + (enum zb_dtype)(i / 3 % 3);
        bool two = zb_moment_name(o, 1), bf16 = i >= STEPS / 2;
        unsigned moments = bf16 ? M16 | (two ? V16 : 0) : M | (two ? V : 0);

        *k++ = (struct kernel){ .name = zb_optimizer_name(o),
                                .run = run_step,
                                .writes = writes[p] | moments,
                                .optimizer = o,
                                .dtype = p,
                                .grad_dtype = ZB_F32 + (enum zb_dtype)(i % 3),
                                .moments = bf16 ? ZB_MOMENTS_BF16 : ZB_MOMENTS_F32 };
    }
    assert_int_equal(k - list, KERNELS);
    return list;
}

/* Chosen by hand: the results of zk_prepare() do not matter here. */
static const struct {
    const char *name;
    float scale, decay, l2, step_size, eps, beta1, beta2, rsqrt_c2, momentum, undamped;
    uint32_t fresh, nesterov;
} scalars[] = {
    { "usual", 0.25f, 0.9999f, 0.01f, 0.01f, 1e-8f, 0.9f, 0.999f, 31.6f, 0.9f, 0.9f, 0, 0 },
    { "late, no decay", 1.0f, 1.0f, 0.0f, 3e-4f, 1e-8f, 0.9f, 0.95f, 1.0f, 0.9f, 1.0f, 0, 1 },
    { "nothing learned", 1.0f, 1.0f, 0.1f, 0.0f, 0.0f, 0.9f, 0.99f, 31.6f, 0.5f, 1.0f, 1, 0 },
    { "huge", 3e38f, -3e38f, 3e38f, 3e38f, 0.0f, 0.9f, 0.999f, 1e18f, 3e38f, 1.0f, 0, 1 },
    { "tiny", 1e-45f, 1e-39f, 1e-45f, 1e-45f, 1e-45f, 0.9f, 1e-40f, 1e-38f, 1e-45f, 1e-39f, 0, 0 },
    { "infinite", (float)INFINITY, 1.0f, 0.1f, 1.0f, 0.0f, 0.9f, 0.999f, (float)INFINITY,
      (float)INFINITY, 1.0f, 0, 0 },
    { "not a number", (float)NAN, 1.0f, 0.1f, 1.0f, 1e-8f, 0.9f, 0.999f, 1.0f, 1.0f, 1.0f, 1, 1 },
};

static struct zk_scalars scalars_of(size_t i)
{
    return (struct zk_scalars){ .scale = scalars[i].scale,
                                .decay = scalars[i].decay,
                                .l2 = scalars[i].l2,
                                .step_size = scalars[i].step_size,
                                .eps = scalars[i].eps,
                                .beta1 = scalars[i].beta1,
                                .one_minus_beta1 = 1 - scalars[i].beta1,
                                .beta2 = scalars[i].beta2,
                                .one_minus_beta2 = 1 - scalars[i].beta2,
                                .rsqrt_c2 = scalars[i].rsqrt_c2,
                                .momentum = scalars[i].momentum,
                                .one_minus_dampening = scalars[i].undamped,
                                .one_minus_momentum = scalars[i].undamped,
                                .fresh = scalars[i].fresh,
                                .nesterov = scalars[i].nesterov,
                                .rounding = (uint32_t)i * 77777777 };
}

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

/* A 16-bit gradient: random bits, or the upper halves of fp32 values. Read as fp16, random bits are
 * of all kinds, and the halves include small numbers. */
static uint16_t draw_16(uint64_t *seed, enum flavour flavour)
{
    uint32_t bits = draw(seed, flavour);

    return (uint16_t)(flavour == ANY_BITS ? bits : bits >> 16);
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
        a->half[i] = (uint16_t)draw(&seed, flavour);
        a->grad16[i] = draw_16(&seed, flavour);
        a->m16[i] = (uint16_t)(data_bits(a->m[i]) >> 16);
        a->v16[i] = (uint16_t)(data_bits(a->v[i]) >> 16);
        a->lo[i] = (int16_t)(uint16_t)master;
        a->code[i] = (uint8_t)draw(&seed, flavour);
        a->group[i] = data_float(draw(&seed, flavour));
    }
}

/* Checks one array after `ref`: only [at, at + n) has changed, and only if the kernel may write
 * it. */
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
           outside_unchanged(now->lo, before->lo, sizeof(int16_t), writes & LO, at, n) &&
           outside_unchanged(now->half, before->half, sizeof(uint16_t), writes & HALF, at, n) &&
           outside_unchanged(now->grad16, before->grad16, sizeof(uint16_t), false, at, n) &&
           outside_unchanged(now->m16, before->m16, sizeof(uint16_t), writes & M16, at, n) &&
           outside_unchanged(now->v16, before->v16, sizeof(uint16_t), writes & V16, at, n) &&
           outside_unchanged(now->code, before->code, sizeof(uint8_t), writes & CODE, at, n) &&
           outside_unchanged(now->group, before->group, sizeof(float), writes & GROUP, at, n);
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

        good = good && (!(writes & M16) || (a->m16[i] & 0x7fff) <= 0x7f80 || a->m16[i] == 0x7fc0);
        good = good && (!(writes & V16) || (a->v16[i] & 0x7fff) <= 0x7f80 || a->v16[i] == 0x7fc0);
        good = good && (!(writes & P) || nan_is_canonical(a->p[i]));
        good = good && (!(writes & M) || nan_is_canonical(a->m[i]));
        good = good && (!(writes & V) || nan_is_canonical(a->v[i]));
        good = good && (!(writes & HI) || !bf16_nan || a->hi[i] == 0x7fc0);
        good = good && (!(writes & LO) || !bf16_nan || a->lo[i] == 0);
        good = good &&
               (!(writes & HALF) || (a->half[i] & 0x7fff) <= 0x7c00 || a->half[i] == 0x7e00);
    }
    return good;
}

struct fixture {
    struct arrays before, want, got;
};

/* One call of one kernel with one set of inputs, in every implementation. */
static void try_all(struct fixture *x, const struct kernel *k, size_t scalar, size_t at, size_t n,
                    const char *flavour)
{
    const struct zk_ops *ref = data_next_ops(NULL);
    const struct zk_scalars s = scalars_of(scalar);

    if (k->grouped)
        n = n / ZB_Q8_GROUP * ZB_Q8_GROUP;
    data_each_ops(ops)
    {
        const char *bad = NULL;

        if (k->moments == ZB_MOMENTS_BF16 && !ops->step_bf16)
            continue;
        memcpy(&x->got, &x->before, sizeof(x->got));
        k->run(k, ops, &s, &x->got, at, n);
        if (ops == ref) {
            memcpy(&x->want, &x->got, sizeof(x->want));
            if (!arrays_outside_unchanged(&x->got, &x->before, k->writes, at, n))
                bad = "wrote where it may not";
            else if (k->run != run_set && !arrays_canonical(&x->got, k->writes, at, n))
                bad = "stored a NaN that is not canonical";
        } else if (memcmp(&x->got, &x->want, sizeof(x->want)) != 0) {
            bad = "differs from ref";
        }
        if (bad)
            fail_msg("%s %s, moments %d, dtypes %d and %d, scalars '%s', %s values, start %zu, %zu "
                     "elements: %s",
                     ops->name, k->name, (int)k->moments, (int)k->dtype, (int)k->grad_dtype,
                     scalars[scalar].name, flavour, at, n, bad);
    }
}

static const size_t sizes[] = {
    0,  1,  2,  3,   4,   5,   6,   7,   8,   9,    10,   11,   12,   13,   14,
    15, 16, 17, 18,  23,  31,  32,  33,  47,  48,   49,   63,   64,   65,   66,
    95, 96, 97, 127, 128, 129, 255, 256, 257, 1000, 1023, 4095, 4096, 4097,
};

/* Every kernel is run with every size and every flavour of values. Sets of scalars and starts
 * alternate, so that each of them occurs with each kernel many times. */
static void every_kernel_same_bits(void **state)
{
    static const size_t starts[] = { 0, 1, 3, EDGE };
    static const char *const flavours[] = { "special", "any", "training" };
    const struct kernel *kernels = all_kernels();
    struct fixture *x = malloc(sizeof(*x));

    (void)state;
    assert_non_null(x);
    for (enum flavour f = 0; f < FLAVOURS; f++)
        for (size_t size = 0; size < ZB_COUNT(sizes); size++) {
            fill(&x->before, f, size + 1);
            for (size_t k = 0; k < KERNELS; k++)
                for (size_t i = 0; i < 2; i++) {
                    size_t turn = size + k + i;

                    try_all(x, &kernels[k], turn % ZB_COUNT(scalars),
                            starts[turn % ZB_COUNT(starts)], sizes[size], flavours[f]);
                }
        }
    free(x);
}

static uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t n) /* FNV-1a */
{
    for (const unsigned char *p = bytes; n > 0; n--)
        digest = (digest ^ *p++) * UINT64_C(0x100000001b3);
    return digest;
}

/* Of the arrays that a kernel wrote. */
static uint64_t digest_arrays(uint64_t digest, const struct arrays *a, unsigned writes, size_t at,
                              size_t n)
{
    const struct {
        const void *array;
        unsigned bit, elem_bytes;
    } arrays[] = { { a->p, P, 4 },       { a->m, M, 4 },         { a->v, V, 4 },
                   { a->hi, HI, 2 },     { a->lo, LO, 2 },       { a->half, HALF, 2 },
                   { a->code, CODE, 1 }, { a->group, GROUP, 4 }, { a->m16, M16, 2 },
                   { a->v16, V16, 2 } };

    digest = digest_bytes(digest, &a->nonfinite, sizeof(a->nonfinite));
    digest = digest_bytes(digest, &a->sum_bits, sizeof(a->sum_bits));
    for (size_t i = 0; i < ZB_COUNT(arrays); i++)
        if (writes & arrays[i].bit)
            digest = digest_bytes(digest, (const char *)arrays[i].array + at * arrays[i].elem_bytes,
                                  n * arrays[i].elem_bytes);
    return digest;
}

/* Results of every_set_of_scalars() for each kernel, independent of the processor. After a change
 * of the arithmetic, ZSHARD_PRINT=1 build/tests/test_kernels prints the new ones. */
static const uint64_t golden_digests[] = {
#include "tests/unit/kernels/golden_digests.inc"
};

static void digest_check(const struct kernel *k, size_t i, uint64_t digest)
{
    if (getenv("ZSHARD_PRINT"))
        print_message("UINT64_C(0x%016llx), /* %s %d %d %d */\n", (unsigned long long)digest,
                      k->name, (int)k->moments, (int)k->dtype, (int)k->grad_dtype);
    else if (i >= ZB_COUNT(golden_digests) || golden_digests[i] != digest)
        fail_msg("%s, dtypes %d and %d: the digest of its results is %016llx, not that of "
                 "golden_digests.inc: other bits than on other processors, or than before",
                 k->name, (int)k->dtype, (int)k->grad_dtype, (unsigned long long)digest);
}

/* Every set of scalars with every kernel, on values of every flavour. The results must be the same
 * on every architecture. */
static void every_set_of_scalars(void **state)
{
    const size_t at = EDGE, n = 1111;
    uint64_t digests[KERNELS] = { 0 };
    static const char *const flavours[] = { "special", "any", "training" };
    const struct kernel *kernels = all_kernels();
    struct fixture *x = malloc(sizeof(*x));

    (void)state;
    assert_non_null(x);
    for (enum flavour f = 0; f < FLAVOURS; f++) {
        fill(&x->before, f, 7 + f);
        for (size_t k = 0; k < KERNELS; k++)
            for (size_t i = 0; i < ZB_COUNT(scalars); i++) {
                try_all(x, &kernels[k], i, at, n, flavours[f]);
                digests[k] = digest_arrays(digests[k], &x->want, kernels[k].writes, at, n);
            }
    }
    free(x);
    for (size_t k = 0; k < KERNELS; k++)
        digest_check(&kernels[k], k, digests[k]);
}

/* Every short length from every start within the widest vector: heads and tails of the loops. */
static void short_runs_from_every_start(void **state)
{
    const struct kernel *kernels = all_kernels();
    struct fixture *x = malloc(sizeof(*x));

    (void)state;
    assert_non_null(x);
    fill(&x->before, SPECIAL, 99);
    for (size_t at = 0; at < 16; at++)
        for (size_t n = at % 3; n < 40; n += 7)
            for (size_t k = 0; k < KERNELS; k++)
                try_all(x, &kernels[k], 0, at, n, "special");
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_same_bits),
        cmocka_unit_test(every_set_of_scalars),
        cmocka_unit_test(short_runs_from_every_start),
    };

    zk_thread_init();
    data_each_ops(ops)
    {
        print_message("kernels: %s\n", ops->name);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
