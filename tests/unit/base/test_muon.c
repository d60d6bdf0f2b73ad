/*
 * The memory of a job with Muon: the least is that of one matrix and of what shares a page with it, the
 * most is three times as much, and never more than all.
 */
#include "tests/ztest.h"

#include "base/muon.h"
#include "base/util.h"

#define PAGE 8192u
#define MAX  4u

static const struct {
    const char *what;
    struct zb_muon_matrix matrices[MAX];
    struct zb_muon_slice slices[MAX];
    uint64_t slots, matrix_elems, pages;
} cases[] = {
    { "a matrix of two pages", { { 0, 128, 128 } }, { { 0, 16384 } }, 2, 16384, 2 },
    { "one that begins in the middle of a page, alone",
      { { 4096, 64, 128 } },
      { { 0, 16384 } },
      2,
      8192,
      2 },
    { "two that share no page",
      { { 0, 128, 128 }, { 16384, 64, 128 } },
      { { 0, 24576 } },
      2,
      16384,
      3 },
    /* the ring has room for what may be lost where it wraps */
    { "two that share a page",
      { { 0, 96, 128 }, { 12288, 32, 128 } },
      { { 0, 16384 } },
      2,
      12288 + 4096 + 12288,
      2 },
    { "the first and the last share no page",
      { { 0, 96, 128 }, { 12288, 96, 128 }, { 24576, 64, 128 } },
      { { 0, 32768 } },
      2,
      3 * 12288,
      4 },
    { "cut into shards: pages begin with them",
      { { 0, 96, 128 }, { 12288, 96, 128 } },
      { { 0, 12288 }, { 12288, 12288 } },
      2,
      12288,
      4 },
    { "many in one page",
      { { 0, 16, 128 }, { 2048, 16, 128 }, { 4096, 16, 128 }, { 6144, 8, 128 } },
      { { 0, 8192 } },
      1,
      7168 + 2048,
      1 },
};

static void needs(void **state)
{
    struct zb_layout layout;
    struct zb_err err = { 0 };

    (void)state;
    assert_int_equal(zb_layout_of(ZB_BF16, ZB_BF16, ZB_MUON, ZB_MOMENTS_F32, false, &layout, &err),
                     0);
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zb_muon_needs n = { 0 };
        uint32_t nmatrices = 0, nslices = 0;

        print_message("%s\n", cases[i].what);
        while (nmatrices < MAX && cases[i].matrices[nmatrices].rows > 0)
            nmatrices++;
        while (nslices < MAX && cases[i].slices[nslices].count > 0)
            nslices++;
        zb_muon_add(&n, &layout, PAGE, cases[i].matrices, nmatrices, cases[i].slices, nslices, 5);
        assert_int_equal(n.slots, cases[i].slots);
        assert_int_equal(n.matrix_bytes, 4 * cases[i].matrix_elems);
        assert_int_equal(n.pages, 5 * cases[i].pages);
        assert_int_equal(n.page_bytes, PAGE * (2 + 2 + 6));
    }
}

static void rooms(void **state)
{
    struct zb_muon_needs n = { .matrix_bytes = 1 << 20,
                               .all_bytes = 1 << 26,
                               .scratch_bytes = UINT64_C(3) << 20,
                               .scratch_all = 1 << 26,
                               .slots = 10,
                               .pages = 100,
                               .page_bytes = 81920,
                               .page_elems = PAGE };
    struct zb_muon_room least = zb_muon_room(&n, 1, true), most = zb_muon_room(&n, 3, true);

    (void)state;
    assert_int_equal(least.slots, 10);
    assert_int_equal(least.bytes, (4 << 20) + 10 * 81920);
    assert_int_equal(most.slots, 30);
    assert_int_equal(most.matrices_bytes, 3 << 20);
    assert_true(most.scratch_bytes >= 2 * least.scratch_bytes);
    assert_int_equal(zb_muon_room(&n, 3, false).slots, 0);
    n.pages = 12;
    n.all_bytes = n.matrix_bytes + 4096;
    n.scratch_all = n.scratch_bytes;
    most = zb_muon_room(&n, 3, true);
    assert_int_equal(most.slots, 12);
    assert_int_equal(most.matrices_bytes, n.all_bytes);
    assert_int_equal(most.scratch_bytes, n.scratch_bytes);
    n = (struct zb_muon_needs){ 0 };
    assert_int_equal(zb_muon_room(&n, 3, true).bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(needs), cmocka_unit_test(rooms) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
