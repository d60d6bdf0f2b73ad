/*
 * test_xsum.c - compares the exact sum with __int128, and with addition bit by bit, in every order
 * and partition; and its rounding with the processor's own.
 */
#include "tests/ztest.h"

#include <math.h>

#include "tests/unit/kernels/data.h"

#define BITS   (64 * ZK_XSUM_LIMBS)
#define LOWEST (-320)

/* A double with 53 random bits whose highest bit is 2^exponent. */
static double draw(uint64_t *seed, int exponent)
{
    return ldexp((double)(ztest_random(seed) >> 12 | UINT64_C(1) << 52), exponent - 52);
}

static struct zk_xsum sum_of(const double *x, size_t n)
{
    struct zk_xsum s = { 0 };

    for (size_t i = 0; i < n; i++)
        zk_xsum_add(&s, x[i]);
    return s;
}

static unsigned xsum_bit(const struct zk_xsum *s, unsigned i)
{
    return s->limb[i / 64] >> i % 64 & 1;
}

/* Sums that fit 128 bits, at every offset inside a limb. */
static void against_int128(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (int base = -298; base < 180; base += 7) {
        struct zk_xsum s = { 0 };
        unsigned __int128 want = 0;

        for (int i = 0; i < 1000; i++) {
            uint64_t mantissa = ztest_random(&seed) >> (11 + ztest_random(&seed) % 50);
            unsigned up = ztest_random(&seed) % 60;

            want += (unsigned __int128)mantissa << up;
            zk_xsum_add(&s, ldexp((double)mantissa, base + (int)up));
        }
        for (unsigned i = 0; i < BITS; i++) {
            unsigned at = i - (unsigned)(base - LOWEST); /* wraps around below the base */

            if (xsum_bit(&s, i) != (at < 128 ? (unsigned)(want >> at & 1) : 0))
                fail_msg("base 2^%d: bit %u", base, i);
        }
    }
}

/* Schoolbook addition of one double, bit by bit. */
static void bits_add(unsigned char bits[BITS], double x)
{
    unsigned carry = 0;

    for (int i = 0; i < BITS; i++) {
        double half = floor(ldexp(x, -(i + LOWEST))) / 2; /* x in units of this bit */
        unsigned sum = bits[i] + (half != floor(half)) + carry;

        bits[i] = sum & 1;
        carry = sum >> 1;
    }
}

static void against_bits_over_the_whole_range(void **state)
{
    unsigned char bits[BITS] = { 0 };
    struct zk_xsum s = { 0 };
    uint64_t seed = 2;

    (void)state;
    for (int i = 0; i < 600; i++) {
        double x = draw(&seed, (int)(ztest_random(&seed) % 559) - 298); /* 2^-298 to 2^260 */

        zk_xsum_add(&s, x);
        bits_add(bits, x);
    }
    for (unsigned i = 0; i < BITS; i++)
        assert_int_equal(xsum_bit(&s, i), bits[i]);
}

static void any_order_any_partition(void **state)
{
    enum { COUNT = 500 };
    double x[COUNT];
    uint64_t seed = 3;
    struct zk_xsum want;

    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        x[i] = draw(&seed, (int)(ztest_random(&seed) % 559) - 298);
    want = sum_of(x, COUNT);
    for (int round = 0; round < 100; round++) {
        struct zk_xsum part[9] = { 0 }, s = { 0 };

        for (size_t i = COUNT - 1; i > 0; i--) {
            size_t j = ztest_random(&seed) % (i + 1);
            double swap = x[i];

            x[i] = x[j];
            x[j] = swap;
        }
        s = sum_of(x, COUNT);
        assert_memory_equal(&s, &want, sizeof(s));
        for (size_t i = 0; i < COUNT; i++)
            zk_xsum_add(&part[ztest_random(&seed) % ZB_COUNT(part)], x[i]);
        s = (struct zk_xsum){ 0 };
        for (size_t i = 0; i < ZB_COUNT(part); i++)
            zk_xsum_merge(&s, &part[i]);
        assert_memory_equal(&s, &want, sizeof(s));
    }
}

static void carries_through_all_limbs(void **state)
{
    struct zk_xsum s = { 0 }, one = { .limb = { 1 } };

    (void)state;
    for (int i = 0; i < ZK_XSUM_LIMBS - 1; i++)
        s.limb[i] = UINT64_MAX;
    zk_xsum_add(&s, 0x1p-320);
    for (int i = 0; i < ZK_XSUM_LIMBS; i++)
        assert_int_equal(s.limb[i], i == ZK_XSUM_LIMBS - 1);
    for (int i = 0; i < ZK_XSUM_LIMBS; i++)
        s.limb[i] = UINT64_MAX;
    zk_xsum_merge(&s, &one); /* 2^320: wraps around to zero, nothing else changes */
    for (int i = 0; i < ZK_XSUM_LIMBS; i++)
        assert_int_equal(s.limb[i], 0);
}

/* Doubling by merging: the same value one exponent up, from the lowest bit to the highest. */
static void doubling(void **state)
{
    struct zk_xsum s = { 0 };

    (void)state;
    zk_xsum_add(&s, 0x1p-320);
    for (int e = -320; e < 319; e++) {
        assert_true(zk_xsum_value(&s) == ldexp(1, e));
        zk_xsum_merge(&s, &s);
    }
    assert_true(zk_xsum_value(&s) == 0x1p319);
}

static const struct {
    const char *name;
    double x[3];
    double value;
} value_cases[] = {
    { "nothing", { 0, 0, 0 }, 0 },
    { "minus zero is zero", { -0.0, 0, 0 }, 0 },
    { "lowest bit", { 0x1p-320, 0, 0 }, 0x1p-320 },
    { "cut below the lowest bit", { 0x1.8p-320, 0x1.fffffffffffffp-321, 0 }, 0x1p-320 },
    { "all bits cut", { 0x1.fp-321, 0x1p-1074, 0x1.fffffffffffffp-374 }, 0 },
    { "exact", { 0x1p100, 0x1p48, 0 }, 0x1.0000000000001p100 },
    { "tie to even, down", { 1, 0x1p-53, 0 }, 1 },
    { "tie to even, up", { 0x1.0000000000001p0, 0x1p-53, 0 }, 0x1.0000000000002p0 },
    { "just above a tie", { 1, 0x1p-53, 0x1p-320 }, 0x1.0000000000001p0 },
    { "just above, two limbs down", { 1, 0x1p-53, 0x1p-100 }, 0x1.0000000000001p0 },
    { "just above, next limb", { 0x1p63, 0x1p10, 0x1p-1 }, 0x1.0000000000001p63 },
    { "just below a tie", { 1, 0x1.fffffffffffffp-54, 0 }, 1 },
    { "rounds up to a power of two", { 0x1.fffffffffffffp0, 0x1p-53, 0 }, 2 },
    { "far apart", { 0x1p260, 0x1p-298, 0 }, 0x1p260 },
    { "largest", { 0x1.fffffffffffffp318, 0, 0 }, 0x1.fffffffffffffp318 },
};

static void value_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(value_cases); i++) {
        struct zk_xsum s = sum_of(value_cases[i].x, 3);

        if (zk_xsum_value(&s) != value_cases[i].value)
            fail_msg("%s: %a", value_cases[i].name, zk_xsum_value(&s));
    }
}

/* The processor rounds a sum of two correctly; ours must agree, wherever the bits are. */
static void value_rounds_as_the_processor(void **state)
{
    uint64_t seed = 4;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        int exponent = (int)(ztest_random(&seed) % 400) - 150;
        double x[2] = { draw(&seed, exponent),
                        draw(&seed, exponent - (int)(ztest_random(&seed) % 64)) };
        struct zk_xsum s = sum_of(x, 2);

        if (zk_xsum_value(&s) != x[0] + x[1])
            fail_msg("%a + %a: %a", x[0], x[1], zk_xsum_value(&s));
    }
}

/* The wire format: byte b holds the bits from 2^(8b - 320) up. */
static void store_and_load(void **state)
{
    unsigned char bytes[ZK_XSUM_BYTES], any[ZK_XSUM_BYTES];
    struct zk_xsum s = { 0 }, back;
    uint64_t seed = 5;

    (void)state;
    zk_xsum_add(&s, 0x1p-319);
    zk_xsum_add(&s, 3.0);
    zk_xsum_add(&s, 0x1p318);
    zk_xsum_store(&s, bytes);
    for (size_t i = 0; i < sizeof(bytes); i++)
        assert_int_equal(bytes[i], i == 0 ? 2 : i == 40 ? 3 : i == 79 ? 0x40 : 0);
    for (size_t i = 0; i < sizeof(any); i++)
        any[i] = (unsigned char)ztest_random(&seed);
    zk_xsum_load(&back, any);
    zk_xsum_store(&back, bytes);
    assert_memory_equal(bytes, any, sizeof(any));
    assert_true(isfinite(zk_xsum_value(&back)));
    memset(any, 0xff, sizeof(any));
    zk_xsum_load(&back, any);
    assert_true(zk_xsum_value(&back) == 0x1p320);
}

/* Subtracting what was added restores the sum, to the bit, through every limb. */
static void taken_away(void **state)
{
    struct zk_xsum s = { 0 }, a = { 0 }, b = { 0 }, zero = { 0 };

    (void)state;
    zk_xsum_add(&a, 0x1p-320);
    zk_xsum_add(&b, 0x1p318);
    zk_xsum_add(&b, 3.0);
    zk_xsum_merge(&s, &a);
    zk_xsum_merge(&s, &b);
    zk_xsum_take(&s, &a); /* borrows nothing */
    assert_memory_equal(&s, &b, sizeof(s));
    zk_xsum_merge(&s, &a);
    zk_xsum_take(&s, &b);
    assert_memory_equal(&s, &a, sizeof(s));
    s = (struct zk_xsum){ 0 };
    zk_xsum_add(&s, 0x1p300); /* minus the lowest bit: a borrow through all limbs */
    zk_xsum_take(&s, &a);
    zk_xsum_merge(&s, &a);
    assert_true(zk_xsum_value(&s) == 0x1p300);
    zk_xsum_take(&s, &s);
    assert_memory_equal(&s, &zero, sizeof(s));
}

/* Its purpose: block sums of a gradient, cut into shards in any way, give one norm. */
static void norm_of_blocks(void **state)
{
    enum { BLOCKS = 24 };
    static float x[BLOCKS * ZB_BLOCK_ELEMS];
    struct zk_xsum want = { 0 };
    uint64_t seed = 6, nonfinite = 0;
    const struct zk_ops *ops = data_next_ops(NULL);

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(x); i++)
        x[i] = data_draw_range(&seed, -100, 60);
    for (size_t b = 0; b < BLOCKS; b++)
        zk_xsum_add(&want, ops->sumsq(x + b * ZB_BLOCK_ELEMS, ZB_BLOCK_ELEMS, &nonfinite));
    for (size_t ranks = 1; ranks <= 7; ranks++) {
        struct zk_xsum total = { 0 };

        for (size_t rank = ranks; rank-- > 0;) {
            struct zk_xsum mine = { 0 };

            for (size_t b = rank * BLOCKS / ranks; b < (rank + 1) * BLOCKS / ranks; b++)
                zk_xsum_add(&mine, ops->sumsq(x + b * ZB_BLOCK_ELEMS, ZB_BLOCK_ELEMS, &nonfinite));
            zk_xsum_merge(&total, &mine);
        }
        assert_memory_equal(&total, &want, sizeof(total));
    }
    assert_int_equal(nonfinite, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_int128),
        cmocka_unit_test(against_bits_over_the_whole_range),
        cmocka_unit_test(any_order_any_partition),
        cmocka_unit_test(carries_through_all_limbs),
        cmocka_unit_test(taken_away),
        cmocka_unit_test(doubling),
        cmocka_unit_test(value_table),
        cmocka_unit_test(value_rounds_as_the_processor),
        cmocka_unit_test(store_and_load),
        cmocka_unit_test(norm_of_blocks),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
