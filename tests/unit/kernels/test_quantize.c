/*
 * test_quantize.c - compares blockwise int8 with its definition: the nearest of the values that a
 * group can hold, within half a scale; and nonfinite values do not become numbers.
 */
#include "tests/ztest.h"

#include <math.h>

#include "tests/unit/kernels/data.h"

#define N      ZB_BLOCK_ELEMS
#define GROUPS (N / ZB_Q8_GROUP)

static float from[N], to[N], scale[GROUPS];
static int8_t code[N];

/* Groups of values of every magnitude; two of them are all denormal. */
static void error_is_half_a_scale(void **state)
{
    static const int high[] = { 127, 64, 10, 1, 0, -3, -20, -60, -100, -118, -119, -120, -125 };
    uint64_t seed = 4;

    (void)state;
    data_each_ops(ops)
    {
        for (size_t round = 0; round < ZB_COUNT(high); round++) {
            int low = high[round] < -100 ? -127 : high[round] - 12;

            for (size_t i = 0; i < N; i++)
                from[i] = data_draw_range(&seed, low, high[round] > low ? high[round] : low + 1);
            ops->quantize_i8(from, code, scale, N);
            ops->dequantize_i8(code, scale, to, N);
            for (size_t i = 0; i < N; i++) {
                double s = (double)scale[i / ZB_Q8_GROUP], x = (double)from[i];
                double bound = s / 2 + fabs(x) * 0x1p-22;

                if (!(s >= 0x1p-126) || code[i] == -128 || fabs((double)to[i] - x) > bound)
                    fail_msg("%s: %a became code %d of scale %a: %a", ops->name, x, code[i], s,
                             (double)to[i]);
            }
        }
    }
}

/* The largest value has code 127 or -127 and is restored within a rounding or two; ties go to even;
 * zeros stay. */
static void known_codes(void **state)
{
    static const struct {
        float x;
        int code;
    } rows[] = { { 127, 127 }, { -127, -127 }, { 1, 1 },        { -1, -1 },    { 0.5f, 0 },
                 { 1.5f, 2 },  { 2.5f, 2 },    { -2.5f, -2 },   { -3.5f, -4 }, { 0.49f, 0 },
                 { 0, 0 },     { -0.0f, 0 },   { 126.49f, 126 } };

    (void)state;
    data_each_ops(ops)
    {
        memset(from, 0, sizeof(from));
        for (size_t i = 0; i < ZB_COUNT(rows); i++)
            from[i] = rows[i].x;
        ops->quantize_i8(from, code, scale, ZB_Q8_GROUP);
        ops->dequantize_i8(code, scale, to, ZB_Q8_GROUP);
        assert_true(scale[0] == 1.0f);
        for (size_t i = 0; i < ZB_COUNT(rows); i++)
            if (code[i] != rows[i].code || to[i] != (float)rows[i].code ||
                !signbit(to[i]) != (code[i] >= 0))
                fail_msg("%s: %a is code %d and %a", ops->name, (double)rows[i].x, code[i],
                         (double)to[i]);
    }
}

/* One nonfinite element, anywhere: its whole group becomes NaN, and the next group is unchanged. */
static void not_finite_is_not_hidden(void **state)
{
    static const uint32_t bad[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff };

    (void)state;
    data_each_ops(ops)
    {
        for (size_t b = 0; b < ZB_COUNT(bad); b++)
            for (size_t at = 0; at < ZB_Q8_GROUP; at += 51) {
                for (size_t i = 0; i < 2 * ZB_Q8_GROUP; i++)
                    from[i] = (float)i;
                from[at] = data_float(bad[b]);
                ops->quantize_i8(from, code, scale, 2 * ZB_Q8_GROUP);
                ops->dequantize_i8(code, scale, to, 2 * ZB_Q8_GROUP);
                for (size_t i = 0; i < ZB_Q8_GROUP; i++)
                    if (data_bits(to[i]) != 0x7fc00000 || code[i] != 0)
                        fail_msg("%s: %08x at %zu and element %zu is %a", ops->name, bad[b], at, i,
                                 (double)to[i]);
                assert_true(isfinite(to[ZB_Q8_GROUP]) && fabsf(to[511] - 511) < 3);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_half_a_scale),
        cmocka_unit_test(known_codes),
        cmocka_unit_test(not_finite_is_not_hidden),
    };

    zk_thread_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
