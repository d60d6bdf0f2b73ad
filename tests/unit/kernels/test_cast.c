/*
 * test_cast.c - compares the casts and the split master with their definitions (cast_check.h), on a
 * sample of all patterns that contains every tie. test_cast_all.c checks all patterns.
 */
#include "tests/ztest.h"

#include "tests/unit/kernels/cast_check.h"

/* A prime, so that all exponents, signs and low halves occur. */
static void every_65521st_pattern(void **state)
{
    static uint32_t patterns[CAST_N];
    size_t n = 0;

    (void)state;
    for (uint64_t p = 0; p <= UINT32_MAX; p += 65521) {
        patterns[n++] = (uint32_t)p;
        if (n == CAST_N) {
            cast_check(patterns, n);
            n = 0;
        }
    }
    cast_check(patterns, n);
}

/* For every high half: the exact bf16, its neighbours, and the tie with the next. This includes
 * both ends of every exponent, of the denormals, of infinity and of the NaNs. */
static void every_tie(void **state)
{
    static const uint16_t low[] = {
        0x0000, 0x0001, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff
    };
    static uint32_t patterns[CAST_N];
    size_t n = 0;

    (void)state;
    for (uint32_t high = 0; high <= 0xffff; high++)
        for (size_t i = 0; i < ZB_COUNT(low); i++) {
            patterns[n++] = high << 16 | low[i];
            if (n == CAST_N) {
                cast_check(patterns, n);
                n = 0;
            }
        }
    assert_int_equal(n, 0);
}

/* For every fp16: itself, its neighbours, the tie with the next, and the neighbours of the tie. */
static void every_tie_of_fp16(void **state)
{
    static const uint32_t steps[] = { 0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff, 0 };
    static uint32_t patterns[8 * 512];
    size_t n = 0;

    (void)state;
    for (uint32_t h = 0; h <= 0xffff; h++) {
        uint32_t bits = data_bits((float)cast_magnitude_f16(h & 0x7fff)) | (h & 0x8000) << 16;
        float next = (float)cast_magnitude_f16((h & 0x7fff) + 1);
        float tie = (data_float(bits & 0x7fffffff) + next) / 2; /* a denormal's is elsewhere */

        for (size_t i = 0; i < 7; i++)
            patterns[n++] = bits + steps[i];
        patterns[n++] = data_bits(tie) | (h & 0x8000) << 16;
        if (n == ZB_COUNT(patterns)) {
            cast_check(patterns, n);
            n = 0;
        }
    }
    assert_int_equal(n, 0);
}

/* All fp16 patterns: the exact value by definition; NaN canonical. */
static void fp16_to_f32_all(void **state)
{
    static uint16_t from[65536];
    static float to[65536];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(from); i++)
        from[i] = (uint16_t)i;
    data_each_ops(ops)
    {
        ops->f16_to_f32(from, to, ZB_COUNT(from));
        for (size_t i = 0; i < ZB_COUNT(from); i++) {
            uint16_t magnitude = from[i] & 0x7fff;
            double want = magnitude == 0x7c00 ? (double)INFINITY : cast_magnitude_f16(magnitude);

            if (magnitude > 0x7c00 ? data_bits(to[i]) != 0x7fc00000
                                   : fabs((double)to[i]) != want || !signbit(to[i]) != (i < 0x8000))
                fail_msg("%s: fp16 %04x became %08x", ops->name, from[i], data_bits(to[i]));
        }
    }
}

/* All bf16 patterns: the exact value by definition; NaN canonical. */
static void bf16_to_f32_all(void **state)
{
    static uint16_t from[65536];
    static float to[65536];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(from); i++)
        from[i] = (uint16_t)i;
    data_each_ops(ops)
    {
        ops->bf16_to_f32(from, to, ZB_COUNT(from));
        for (size_t i = 0; i < ZB_COUNT(from); i++) {
            uint16_t magnitude = from[i] & 0x7fff;
            double want = magnitude == 0x7f80 ? (double)INFINITY : cast_magnitude(magnitude);

            if (magnitude > 0x7f80 ? data_bits(to[i]) != 0x7fc00000
                                   : fabs((double)to[i]) != want || !signbit(to[i]) != (i < 0x8000))
                fail_msg("%s: bf16 %04x became %08x", ops->name, from[i], data_bits(to[i]));
        }
    }
}

/* Pairs that split never makes: their merge is still defined. */
static void merge_of_foreign_pairs(void **state)
{
    static const struct {
        uint16_t hi;
        int16_t lo;
        uint32_t master;
    } rows[] = {
        { 0x7f80, 1, 0x7fc00000 },  /* beyond infinity */
        { 0x7f80, -1, 0x7f7fffff }, /* the largest float; rounded to bf16 it is infinity */
        { 0xff80, -0x8000, 0xff7f8000 }, { 0x7fc0, 5, 0x7fc00000 }, { 0xffff, 0, 0x7fc00000 },
        { 0x0000, -1, 0x7fc00000 }, /* below zero, wrapped around: all ones */
        { 0x8000, -1, 0x7fc00000 },
    };

    (void)state;
    data_each_ops(ops)
    {
        for (size_t i = 0; i < ZB_COUNT(rows); i++) {
            float master;

            ops->merge(&rows[i].hi, &rows[i].lo, &master, 1);
            if (data_bits(master) != rows[i].master)
                fail_msg("%s: %04x %d became %08x", ops->name, rows[i].hi, rows[i].lo,
                         data_bits(master));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_65521st_pattern), cmocka_unit_test(every_tie),
        cmocka_unit_test(every_tie_of_fp16),     cmocka_unit_test(fp16_to_f32_all),
        cmocka_unit_test(bf16_to_f32_all),       cmocka_unit_test(merge_of_foreign_pairs),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
