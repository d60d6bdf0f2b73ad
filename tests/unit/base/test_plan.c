#include "tests/ztest.h"

#include <errno.h>

#include "base/plan.h"

/* K and G of the formulas in the literature, in bytes of a block. */
static void plan_layouts(void **state)
{
    static const struct {
        enum zb_dtype dtype, grad_dtype;
        enum zb_optimizer optimizer;
        enum zb_moments moments;
        uint32_t param, grad, state, state_crc;
    } rows[] = {
        { ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, 2 * 4096, 4 * 4096, 10 * 4096, 40960 },
        { ZB_F32, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, 4 * 4096, 4 * 4096, 8 * 4096, 65536 },
        { ZB_F16, ZB_F16, ZB_ADAM, ZB_MOMENTS_F32, 2 * 4096, 2 * 4096, 12 * 4096, 49152 },
        { ZB_BF16, ZB_BF16, ZB_LION, ZB_MOMENTS_F32, 2 * 4096, 2 * 4096, 6 * 4096, 49152 },
        { ZB_F32, ZB_F16, ZB_SGD, ZB_MOMENTS_F32, 4 * 4096, 2 * 4096, 4 * 4096, 65536 },
        { ZB_F16, ZB_F32, ZB_ADAGRAD, ZB_MOMENTS_F32, 2 * 4096, 4 * 4096, 8 * 4096, 65536 },
        { ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_BF16, 2 * 4096, 4 * 4096, 6 * 4096, 49152 },
        { ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_Q8, 2 * 4096, 4 * 4096, 2 * 4096 + 2 * 4160,
          49536 },
        { ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_Q8_LO, 2 * 4096, 4 * 4096, 4096 + 2 * 4160,
          5 * 12416 },
        { ZB_F16, ZB_F32, ZB_LION, ZB_MOMENTS_Q8_LO, 2 * 4096, 4 * 4096, 4 * 4096 + 4160,
          3 * 20544 },
        { ZB_BF16, ZB_F32, ZB_MUON, ZB_MOMENTS_F32, 2 * 4096, 4 * 4096, 6 * 4096, 49152 },
        { ZB_BF16, ZB_F32, ZB_MUON, ZB_MOMENTS_Q8, 2 * 4096, 4 * 4096, 2 * 4096 + 4160, 61760 },
        { ZB_F32, ZB_F32, ZB_LION, ZB_MOMENTS_Q8, 4 * 4096, 4 * 4096, 4160, 15 * 4160 },
    };
    struct zb_layout l;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(zb_layout_of(rows[i].dtype, rows[i].grad_dtype, rows[i].optimizer,
                                      rows[i].moments, false, &l, NULL),
                         0);
        assert_int_equal(l.block_bytes[ZB_PARAM], rows[i].param);
        assert_int_equal(l.block_bytes[ZB_GRAD], rows[i].grad);
        assert_int_equal(l.block_bytes[ZB_STATE], rows[i].state);
        assert_int_equal(l.crc_bytes[ZB_STATE], rows[i].state_crc);
    }
    assert_int_equal(zb_layout_of(ZB_BF16, 0, ZB_ADAMW, ZB_MOMENTS_F32, true, &l, NULL), 0);
    assert_int_equal(l.block_bytes[ZB_STATE], 0);
    assert_int_equal(l.block_bytes[ZB_GRAD], 0);
    assert_int_equal(zb_layout_of(9, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &l, NULL), -EINVAL);
    assert_int_equal(zb_layout_of(ZB_F32, 9, ZB_ADAMW, ZB_MOMENTS_F32, false, &l, NULL), -EINVAL);
    assert_int_equal(
        zb_layout_of(ZB_F32, ZB_F32, ZB_OPTIMIZER_END, ZB_MOMENTS_F32, false, &l, NULL), -EINVAL);
    assert_int_equal(zb_layout_of(ZB_F32, ZB_F32, 0, ZB_MOMENTS_F32, true, &l, NULL), -EINVAL);
    assert_int_equal(zb_layout_of(ZB_F32, ZB_F32, ZB_ADAMW, ZB_MOMENTS_END, false, &l, NULL),
                     -EINVAL);
}

/* One byte for each element, and a scale for each group, whatever the dtype. */
static void plan_quantized(void **state)
{
    struct zb_layout l;

    (void)state;
    for (enum zb_dtype d = ZB_F32; d < ZB_DTYPE_END; d++) {
        assert_int_equal(zb_layout_of(d, 0, ZB_ADAMW, ZB_MOMENTS_F32, true, &l, NULL), 0);
        assert_false(l.quantized);
        zb_layout_quantize(&l);
        assert_true(l.quantized);
        assert_int_equal(l.dtype, d);
        assert_int_equal(l.block_bytes[ZB_PARAM], 4096 + 16 * 4);
        assert_int_equal(l.crc_bytes[ZB_PARAM], 15 * 4160);
        assert_int_equal(l.block_bytes[ZB_GRAD] + l.block_bytes[ZB_STATE], 0);
    }
}

/* For every layout: whole elements where planes are arrays, checksums of whole blocks, page sizes
 * that O_DIRECT accepts, and planes that consist of their pages. */
static void plan_pages(void **state)
{
    struct zb_layout l;

    (void)state;
    for (enum zb_dtype d = ZB_F32; d < ZB_DTYPE_END; d++)
        for (enum zb_optimizer o = ZB_ADAMW; o < ZB_OPTIMIZER_END; o++)
            for (enum zb_moments m = ZB_MOMENTS_F32; m < ZB_MOMENTS_END; m++) {
                assert_int_equal(zb_layout_of(d, ZB_F32, o, m, false, &l, NULL), 0);
                assert_int_equal(l.block_bytes[ZB_PARAM] % ZB_PAGE_ALIGN, 0);
                assert_int_equal(l.block_bytes[ZB_GRAD] % ZB_PAGE_ALIGN, 0);
                assert_int_equal(l.block_bytes[ZB_STATE] % 64, 0);
                for (int p = 0; p < ZB_PLANES; p++) {
                    uint32_t block = l.block_bytes[p];
                    uint64_t five = zb_page_bytes(block, 5 * ZB_BLOCK_ELEMS);

                    assert_true(l.crc_bytes[p] >= block && l.crc_bytes[p] <= ZB_CRC_BYTES_MAX);
                    assert_int_equal(l.crc_bytes[p] % block, 0);
                    assert_int_equal(five % ZB_PAGE_ALIGN, 0);
                    assert_true(five >= 5 * block && five < 5 * block + ZB_PAGE_ALIGN);
                    assert_int_equal(zb_page_bytes(block, ZB_PAGE_ELEMS_DEFAULT),
                                     zb_blocks_bytes(block, ZB_PAGE_ELEMS_DEFAULT));
                    assert_int_equal(zb_plane_bytes(block, 5 * ZB_BLOCK_ELEMS, 12 * ZB_BLOCK_ELEMS),
                                     2 * five + zb_page_bytes(block, 2 * ZB_BLOCK_ELEMS));
                }
            }
}

static void plan_names(void **state)
{
    (void)state;
    assert_string_equal(zb_optimizer_name(ZB_ADAGRAD), "adagrad");
    assert_string_equal(zb_moments_name(ZB_MOMENTS_Q8), "8bit");
    assert_string_equal(zb_moments_name(ZB_MOMENTS_Q8_LO), "8bit-lo");
    assert_string_equal(zb_moment_name(ZB_ADAMW, 1), "exp_avg_sq");
    assert_string_equal(zb_moment_name(ZB_SGD, 0), "momentum_buffer");
    assert_null(zb_moment_name(ZB_SGD, 1));
    assert_null(zb_moment_name(ZB_ADAM, 2));
    assert_null(zb_moment_name(0, 0));
    assert_null(zb_optimizer_name(ZB_OPTIMIZER_END));
    assert_null(zb_moments_name(0));
    assert_null(zb_dtype_name(-1));
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
        cmocka_unit_test(plan_layouts), cmocka_unit_test(plan_quantized),
        cmocka_unit_test(plan_pages),   cmocka_unit_test(plan_names),
        cmocka_unit_test(plan_slices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
