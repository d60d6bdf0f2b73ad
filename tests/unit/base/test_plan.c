#include "tests/ztest.h"

#include <errno.h>

#include "base/plan.h"

/* K and G of the field's formulas, and the alignment that pages rely on. */
static void plan_layouts(void **state)
{
    struct zb_layout l;

    (void)state;
    assert_int_equal(zb_layout_of(ZB_BF16, ZB_F32, false, &l, NULL), 0);
    assert_int_equal(l.elem_bytes[ZB_PARAM], 2);
    assert_int_equal(l.elem_bytes[ZB_GRAD], 4);
    assert_int_equal(l.elem_bytes[ZB_STATE], 10);
    assert_int_equal(l.crc_bytes[ZB_STATE], 40960);
    assert_int_equal(l.crc_bytes[ZB_PARAM], 65536);
    assert_int_equal(zb_layout_of(ZB_F32, ZB_F32, false, &l, NULL), 0);
    assert_int_equal(l.elem_bytes[ZB_PARAM] + l.elem_bytes[ZB_STATE], 12);
    assert_int_equal(l.crc_bytes[ZB_STATE], 65536);
    assert_int_equal(zb_layout_of(ZB_BF16, 0, true, &l, NULL), 0);
    assert_int_equal(l.elem_bytes[ZB_STATE], 0);
    assert_int_equal(l.elem_bytes[ZB_GRAD], 0);
    assert_int_equal(zb_layout_of(9, ZB_F32, false, &l, NULL), -EINVAL);
    assert_int_equal(zb_layout_of(ZB_F32, 9, false, &l, NULL), -EINVAL);
    for (int d = ZB_F32; d <= ZB_BF16; d++)
        for (int p = 0; p < ZB_PLANES; p++) {
            assert_int_equal(zb_layout_of(d, ZB_F32, false, &l, NULL), 0);
            assert_int_equal(l.elem_bytes[p] * ZB_BLOCK_ELEMS % ZB_PAGE_ALIGN, 0);
            assert_int_equal(l.crc_bytes[p] % (l.elem_bytes[p] * ZB_BLOCK_ELEMS), 0);
        }
}

/* Slices of any unit over any world cover it once, in order, in whole blocks. */
static void plan_slices(void **state)
{
    static const uint64_t units[] = { 1, 4095, 4096, 4097, 3 * 4096, 1000003 };

    (void)state;
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++)
        for (uint32_t world = 1; world <= 9; world++) {
            uint64_t at = 0;

            for (uint32_t rank = 0; rank < world; rank++) {
                uint64_t slice, first, count;

                zb_slice(units[u], world, rank, &slice, &first, &count);
                assert_int_equal(slice % ZB_BLOCK_ELEMS, 0);
                assert_int_equal(count % ZB_BLOCK_ELEMS, 0);
                assert_true(count <= slice);
                if (count > 0)
                    assert_int_equal(first, rank * slice);
                assert_int_equal(first, at);
                at += count;
            }
            assert_int_equal(at, zb_padded_elems(units[u]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_layouts),
        cmocka_unit_test(plan_slices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
